//! A broker in memory, for tests without a broker.
//!
//! The books, the drains and the commit schedule are those of every source; only the log and the group are kept in
//! memory. It has no thread and no clock of its own: on a paused tokio clock a run is the same every time.
//!
//! ```
//! use tower::ServiceBuilder;
//! use tower_consumer::{Message, commit::CommitLayer, handler::handler_fn, serve};
//! use tower_consumer::source::memory::MemoryBroker;
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let broker = MemoryBroker::new();
//! broker.create_topic("orders", 2);
//! for n in 0..10 {
//!     broker.produce(Message::builder("orders").partition(n % 2).payload(n.to_string()));
//! }
//!
//! let stack = ServiceBuilder::new()
//!     .layer(CommitLayer::new())
//!     .service(handler_fn(|_: Message| async { Ok::<(), std::io::Error>(()) }));
//! let source = broker.source("billing", ["orders"]).until_end().build()?;
//! let summary = serve(source, stack).await?;
//!
//! assert_eq!(summary.counts.done, 10);
//! assert_eq!(broker.committed("billing", "orders", 0), Some(5));
//! # Ok(())
//! # }
//! ```

mod broker;
mod builder;
mod member;
mod source;

pub use self::broker::{CommitReply, Committed, MemoryBroker};
pub use self::builder::MemorySourceBuilder;
pub use self::member::MemoryMember;
pub use self::source::MemorySource;
