//! Async functions as services, and the note that every attempt leaves.
//!
//! [`handler_fn`] makes a `tower::Service` of an async function. [`AttemptLayer`] does for any other innermost service
//! what `handler_fn` does by itself: it notes when an attempt begins and how it ends. That note is what
//! [`CommitLayer`](crate::commit::CommitLayer) believes: an `Ok(())` without an attempt that ended `Ok` does not
//! finish a message.
//!
//! ```
//! use tower::{Service, ServiceExt};
//! use tower_consumer::{Message, handler::handler_fn};
//!
//! async fn charge(message: Message) -> Result<(), std::io::Error> {
//!     println!("charging {:?}", message.payload());
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let mut service = handler_fn(charge);
//! let message = Message::builder("orders").payload("x").build();
//! service.ready().await.unwrap().call(message).await.unwrap();
//! # }
//! ```
//!
//! # When what is called
//! The function is called when the future is first polled, not in `call`, and only if the message may still start:
//! once its partition is being given up the future stays pending and `CommitLayer` drops it. While a
//! [`guard`](Message::guard) of an earlier attempt lives, the next attempt waits for it.
//!
//! # What it does to the watermark
//! Nothing by itself. `Err`, a dropped future and a panic end the attempt without success.

mod attempt;
mod function;

pub use self::attempt::{Attempt, AttemptFuture, AttemptLayer};
pub use self::function::{Handler, HandlerFn, HandlerFuture, handler_fn};

#[allow(unused_imports, reason = "for the links in the documentation")]
use crate::message::Message;
