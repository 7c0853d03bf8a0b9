//! Where messages come from, and where commits go.
//!
//! A [`Source`] hands out messages of the partitions that are assigned to it, enters each in its [`Books`] when it is
//! taken from the client, and commits the watermark. [`serve`](crate::serve()) drives one; a loop of your own can, too:
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt};
//! use tower_consumer::{Message, commit::CommitLayer, handler::handler_fn};
//! use tower_consumer::source::{Source, memory::MemoryBroker};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), tower_consumer::BoxError> {
//! let broker = MemoryBroker::new();
//! broker.create_topic("orders", 1);
//! broker.produce(Message::builder("orders").payload("a"));
//!
//! let mut stack = ServiceBuilder::new()
//!     .layer(CommitLayer::new())
//!     .service(handler_fn(|_: Message| async { Ok::<(), std::io::Error>(()) }));
//! let mut source = broker.source("billing", ["orders"]).until_end().build()?;
//! while let Some(message) = source.next().await {
//!     let answer = stack.ready().await?.call(message?).await;
//!     assert!(answer.is_ok());
//! }
//! source.close(std::time::Duration::from_secs(5)).await?;
//! assert_eq!(broker.committed("billing", "orders", 0), Some(1));
//! # Ok(())
//! # }
//! ```
//!
//! # When what is called
//! `poll_next` makes progress and yields a message of a partition that has room. `poll_progress` makes the same
//! progress without yielding, for when the service is not ready. `start_close` stops, and `poll_close` drains, commits
//! and leaves. Nothing of this ever waits for a handler. A source that is dropped without being closed commits nothing
//! more: a crash in small.

mod books;
mod bounds;
mod error;
#[cfg(feature = "kafka")]
pub mod kafka;
pub mod memory;

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

pub use self::books::{Books, Stall};
pub use self::error::SourceError;
use crate::ledger::Released;
use crate::message::Message;

/// A stream of messages with books. See the [module's documentation](self).
///
/// Only this crate can make [`Books`], so the sources are those of this crate.
pub trait Source {
    /// Makes progress and yields a message of a partition that has room.
    ///
    /// `None`: the source has ended, and everything it handed out has its verdict. An error is the end of the source
    /// as well: close it. Only after [`SourceError::Partition`] the other partitions can be read on.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Message, SourceError>>>;

    /// Makes the same progress without yielding a message. Ready only with an error.
    fn poll_progress(&mut self, cx: &mut Context<'_>) -> Poll<SourceError>;

    /// Begins to give all partitions up: nothing starts any more, what runs may end within the budget. A second call
    /// changes nothing.
    fn start_close(&mut self, budget: Duration);

    /// After [`start_close`](Source::start_close): ready when every partition was committed and released, or the budget
    /// is over. Answers each partition that was assigned at the time.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<Released>, SourceError>>;

    /// The books.
    fn books(&self) -> &Books;

    /// The next message; see [`poll_next`](Source::poll_next). Cancel-safe: a message is only taken when this answers.
    fn next(&mut self) -> impl Future<Output = Option<Result<Message, SourceError>>> + Send
    where
        Self: Sized + Send,
    {
        poll_fn(|cx| self.poll_next(cx))
    }

    /// Gives all partitions up: waits for what runs, commits, leaves, all within the budget.
    fn close(
        &mut self,
        budget: Duration,
    ) -> impl Future<Output = Result<Vec<Released>, SourceError>> + Send
    where
        Self: Sized + Send,
    {
        let mut started = false;
        poll_fn(move |cx| {
            if !std::mem::replace(&mut started, true) {
                self.start_close(budget);
            }
            self.poll_close(cx)
        })
    }
}
