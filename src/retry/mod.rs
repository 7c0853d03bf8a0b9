//! How long to wait before another attempt: [`Backoff`], a policy for tower's own [`Retry`](tower::retry::Retry).
//!
//! ```
//! use std::time::Duration;
//! use tower::ServiceBuilder;
//! use tower_consumer::{Message, commit::CommitLayer, handler::handler_fn};
//! use tower_consumer::{order::OrderLayer, retry::Backoff};
//!
//! # fn stack() -> impl tower::Service<Message> {
//! ServiceBuilder::new()
//!     .layer(CommitLayer::new())
//!     .layer(OrderLayer::by_key())
//!     .retry(
//!         Backoff::exponential(Duration::from_millis(100))
//!             .cap(Duration::from_secs(10))
//!             .full_jitter()
//!             .max_attempts(5),
//!     )
//!     .concurrency_limit(64)
//!     .service(handler_fn(|_: Message| async { Ok::<(), std::io::Error>(()) }))
//! # }
//! ```
//!
//! # Where it belongs
//! Inside of [`OrderLayer`](crate::order::OrderLayer): then the message's key waits for the retries, and no later message
//! of it is handled first. Outside of a concurrency limit: then a retry that waits holds no permit. Inside of
//! [`CommitLayer`](crate::commit::CommitLayer), like everything else.
//!
//! # What is retried
//! Every `Err`, except those that cannot heal by another attempt: a closed lane, and a service that cannot become ready.
//!
//! # What it does to the watermark
//! Nothing while it waits: the message is not settled until its retries are over. When a partition is given up during a
//! delay, `CommitLayer` drops the message: no further attempt begins, and it is delivered again.

mod backoff;

pub use self::backoff::{Backoff, BackoffFuture};
