//! The driver: a source on one side, a stack on the other.
//!
//! ```
//! use std::time::Duration;
//! use tower::ServiceBuilder;
//! use tower_consumer::{Message, commit::CommitLayer, handler::handler_fn, serve, serve::OnFailure};
//! use tower_consumer::source::memory::MemoryBroker;
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let broker = MemoryBroker::new();
//! broker.create_topic("orders", 1);
//! broker.produce(Message::builder("orders").payload("a"));
//!
//! let stack = ServiceBuilder::new()
//!     .layer(CommitLayer::new())
//!     .service(handler_fn(|_: Message| async { Ok::<(), std::io::Error>(()) }));
//!
//! let summary = serve(broker.source("billing", ["orders"]).build()?, stack)
//!     .on_failure(OnFailure::Stop)
//!     .shutdown_limit(Duration::from_secs(30))
//!     .with_graceful_shutdown(tokio::time::sleep(Duration::from_secs(5)))
//!     .await?;
//! println!("{summary}");
//! # Ok(())
//! # }
//! ```
//!
//! # When what is called
//! The stack is asked for readiness only with a message in hand, one at most; a reservation that is left over is kept
//! for the next message of any partition (so two `serve`s should not share one limit that is asked before `call`: under
//! [`OrderLayer`](crate::order::OrderLayer) it is not). `call` is made in delivery order, on the task that awaits `serve`. The
//! future is polled once in place and spawned on the runtime if it is pending; while first polls take long (CPU-bound
//! handlers) futures are spawned unpolled, so that the work spreads over the runtime.
//!
//! # How it ends
//! By the shutdown future, by the end of the source, or by an error: then nothing new starts, what runs may end, what
//! is finished is committed, and all of it takes at most [`shutdown_limit`](Serve::shutdown_limit). Dropping the
//! future of `serve` instead loses nothing either: it is a crash in small, and what was not committed is delivered
//! again.

mod driver;
mod error;
mod summary;
mod task;

use std::fmt;
use std::future::{Future, IntoFuture, Pending, pending};
use std::pin::Pin;
use std::time::Duration;

use tower::BoxError;
use tower_service::Service;

use self::driver::Driver;
pub use self::error::{ServeError, ServeErrorKind};
pub use self::summary::Summary;
use crate::commit::Settlement;
use crate::message::Message;
use crate::source::Source;

/// What to do about a message of a live assignment that was not finished, whatever the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFailure {
    /// Take no more, let what runs end, commit what is finished below it, leave, and answer an error that names the
    /// message. The default. When a message fails on another worker of the runtime, what is left of a batch, 63 at most,
    /// may still begin.
    #[default]
    Stop,
    /// Leave a gap: the watermark of that partition stays below the message, the others go on. The partition goes on
    /// until its window is full; the stall report names the offset; nothing is delivered again before the partition is
    /// assigned anew.
    Hold,
}

/// What to do about a message that holds its watermark for too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnStall {
    /// Say so: an event of `tracing` that names the message, again at doubling ages. The default.
    #[default]
    Report,
}

/// Hands the messages of a source to a stack, and commits what is finished. See the [module](self).
///
/// The stack is any `tower::Service<Message>` with [`CommitLayer`](crate::commit::CommitLayer) outermost (stock layers
/// may stand around it).
///
/// To be awaited; `tokio::spawn` wants the future itself: `tokio::spawn(serve(source, stack).into_future())`.
pub fn serve<Src, Svc>(source: Src, service: Svc) -> Serve<Src, Svc, Pending<()>>
where
    Src: Source + Send + 'static,
    Svc: Service<Message> + Send + 'static,
    Svc::Response: Settlement,
    Svc::Error: Into<BoxError>,
    Svc::Future: Send + 'static,
{
    Serve {
        source,
        service,
        shutdown: pending(),
        options: Options::default(),
    }
}

#[derive(Clone, Copy, Debug)]
struct Options {
    on_failure: OnFailure,
    stall_after: Duration,
    shutdown_limit: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            on_failure: OnFailure::default(),
            stall_after: Duration::from_secs(60),
            shutdown_limit: Duration::from_secs(30),
        }
    }
}

/// What [`serve`] answers: to be awaited.
#[must_use = "`serve` does nothing unless it is awaited"]
pub struct Serve<Src, Svc, Sig> {
    source: Src,
    service: Svc,
    shutdown: Sig,
    options: Options,
}

impl<Src, Svc, Sig> Serve<Src, Svc, Sig> {
    /// Shuts down in order when this future is ready, whatever it answers.
    pub fn with_graceful_shutdown<F>(self, shutdown: F) -> Serve<Src, Svc, F>
    where
        F: Future,
    {
        Serve {
            source: self.source,
            service: self.service,
            shutdown,
            options: self.options,
        }
    }

    /// What to do about a message that was not finished; [`OnFailure::Stop`] by default.
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.options.on_failure = on_failure;
        self
    }

    /// How long a message may hold its watermark before it is reported, and what is done then; 60 s and
    /// [`OnStall::Report`] by default. [`Duration::MAX`] turns it off.
    pub fn stall_after(mut self, after: Duration, on_stall: OnStall) -> Self {
        let OnStall::Report = on_stall;
        self.options.stall_after = after;
        self
    }

    /// The most that an orderly end may take, from the shutdown to the answer; 30 s by default. About four fifths of it
    /// are for handlers that run (23.8 s of 30 s), the rest for the last commit, the leave and the answer: set it to at
    /// least 1.25 × the longest that a handler should be waited for, and give the process that long before it is killed.
    pub fn shutdown_limit(mut self, limit: Duration) -> Self {
        self.options.shutdown_limit = limit;
        self
    }
}

impl<Src, Svc, Sig> IntoFuture for Serve<Src, Svc, Sig>
where
    Src: Source + Send + 'static,
    Svc: Service<Message> + Send + 'static,
    Svc::Response: Settlement,
    Svc::Error: Into<BoxError>,
    Svc::Future: Send + 'static,
    Sig: Future + Send + 'static,
{
    type Output = Result<Summary, ServeError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let mut shutdown = Box::pin(self.shutdown);
        let mut driver = Driver::new(self.source, self.service, self.options);
        // without this a handler that takes one uncontended lock of tokio looks pending once the task's budget is
        // gone; the driver yields by itself after each batch
        Box::pin(tokio::task::unconstrained(std::future::poll_fn(
            move |cx| driver.poll(cx, shutdown.as_mut()),
        )))
    }
}

impl<Src, Svc, Sig> fmt::Debug for Serve<Src, Svc, Sig> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serve")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
