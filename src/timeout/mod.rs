//! A deadline for the work on a message that never commits anything.
//!
//! ```
//! use std::time::Duration;
//! use tower::{Service, ServiceBuilder, ServiceExt};
//! use tower_consumer::{Message, handler::handler_fn};
//! use tower_consumer::timeout::{Elapsed, TimeoutLayer};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! let mut stack = ServiceBuilder::new()
//!     .layer(TimeoutLayer::new(Duration::from_millis(100)))
//!     .service(handler_fn(|_: Message| async {
//!         tokio::time::sleep(Duration::from_secs(1)).await;
//!         Ok::<(), std::io::Error>(())
//!     }));
//!
//! let message = Message::builder("orders").build();
//! let error = stack.ready().await.unwrap().call(message).await.unwrap_err();
//! assert!(error.is::<Elapsed>());
//! # }
//! ```
//!
//! # What it does to the watermark
//! When the time is over the inner future is dropped and the answer is an `Err`, [`Elapsed`]: the attempt is not
//! finished, so the watermark stays below the message until a retry, a dead letter or a skip by policy finishes it.
//! Work that goes on elsewhere after that (a blocking call, a spawned task) does not count, whatever comes of it; let
//! it hold [`Message::guard`](crate::Message::guard) so that the message's key waits for it.
//!
//! # Where it belongs
//! Inside of a retry it bounds one attempt, outside of it all attempts together. Inside of a concurrency limit it does
//! not count the wait for a permit. Time starts when the future is first polled; the timer is made only if the inner
//! future is pending then.

mod future;
mod layer;
mod service;

use std::time::Duration;

pub use self::future::ResponseFuture;
pub use self::layer::TimeoutLayer;
pub use self::service::Timeout;

/// The work on a message took longer than its deadline. It was dropped, and the message is not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not finished after {limit:?}")]
#[non_exhaustive]
pub struct Elapsed {
    /// The deadline.
    pub limit: Duration,
}
