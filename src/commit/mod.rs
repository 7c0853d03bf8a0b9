//! Decides what may be committed. The outermost layer of every stack.
//!
//! [`CommitLayer`] never commits. It takes the one right to settle out of each message and gives the verdict when the
//! future that `call` answered ends: *finished*, or *not finished*. The watermark over these verdicts is what the
//! source commits.
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt};
//! use tower_consumer::{Message, commit::CommitLayer, handler::handler_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let mut stack = ServiceBuilder::new()
//!     .layer(CommitLayer::new())
//!     .service(handler_fn(|message: Message| async move {
//!         println!("{:?}", message.payload());
//!         Ok::<(), std::io::Error>(())
//!     }));
//!
//! // a message built by hand passes freely: no broker, no source
//! let message = Message::builder("orders").payload("x").build();
//! let settled = stack.ready().await.unwrap().call(message).await.unwrap();
//! assert_eq!(settled.kind(), tower_consumer::ledger::Kind::Done);
//! # }
//! ```
//!
//! # When which verdict is given
//!
//! | what happened inside | verdict |
//! | --- | --- |
//! | `Ok(())`, `Ok(Outcome::Done)` after an attempt that ended `Ok` | finished |
//! | `Ok(Outcome::Skipped(why))` | finished |
//! | `Err` of any kind | not finished |
//! | the future was dropped before it ended, or panicked | not finished |
//! | `Ok(())` or `Ok(Outcome::Done)`, though no attempt of this delivery ended `Ok` | not finished; the error says what to do |
//! | `Err` because the service inside could not become ready | not finished; [`serve`](crate::serve()) ends |
//! | a drain came while no attempt was running, or a fence at any time | not finished; the inner future is dropped |
//!
//! # What it does to the watermark
//! A message that is not finished holds the watermark of its partition for the rest of its assignment. Nothing outside
//! this layer can turn that into success: its answer, [`Settled`], is a type that only it can make.
//!
//! A message built by hand has no books: it is answered `Settled` for every `Ok`, also without an attempt. What would be
//! committed is shown by a source, for example the broker in memory.
//!
//! # Readiness and cancellation
//! Readiness is that of the inner service. Dropping the future settles "not finished" and drops the inner future.

mod error;
mod future;
mod layer;
mod service;

pub use self::error::CommitError;
pub use self::future::ResponseFuture;
pub use self::layer::CommitLayer;
pub use self::service::{Commit, Settled, Settlement};
