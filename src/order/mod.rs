//! One message of a key at a time, in offset order.
//!
//! ```
//! use tower::ServiceBuilder;
//! use tower_consumer::{Message, commit::CommitLayer, handler::handler_fn, order::OrderLayer};
//!
//! # fn stack() -> impl tower::Service<Message> {
//! ServiceBuilder::new()
//!     .layer(CommitLayer::new())
//!     .layer(OrderLayer::by_key())
//!     .concurrency_limit(64)
//!     .service(handler_fn(|_: Message| async { Ok::<(), std::io::Error>(()) }))
//! # }
//! ```
//!
//! # Lanes
//! Messages of one lane never overlap and start in the order in which `call` was called with them, which is offset
//! order under [`serve`](crate::serve()). A lane is
//! - [`by_key`](OrderLayer::by_key): a key of a partition of a topic (equality is by bytes; equal keys of different
//!   partitions or topics are different lanes). A message with a null key has no constraint.
//! - [`by_partition`](OrderLayer::by_partition): a partition of a topic.
//! - [`by`](OrderLayer::by): whatever a function makes of the message, within its partition; `None` is no constraint.
//!
//! Lanes are told apart by a seeded 64-bit hash, so no key bytes are kept. A collision makes two keys wait for each
//! other; it never breaks an order. A lane exists only while it is in use.
//!
//! # When what is called
//! `call` takes the message's place in its lane, at once. The future waits for the lane, then clones the service
//! inside, waits until the clone is ready, and calls it: so a message that waits for its lane holds no permit of a limit
//! inside. The layer itself is always ready; what bounds the messages that wait is `in_flight` of the source.
//!
//! # What it does to the watermark
//! Nothing by itself. When a message of a lane did **not** finish, its lane is closed for the rest of that assignment:
//! later messages of it are answered [`OrderError::LaneClosed`] without being handled, so they are not finished either,
//! and no message is handled before an earlier one of its key. Retries belong inside of this layer: then the key waits
//! for them.
//!
//! A layer between `CommitLayer` and this one that turns a message away (a filter, a load shed) does so before the message
//! takes its place: the lane stays open, and later messages of the key are handled. Put such layers inside.
//!
//! The lane is given back when the future ends, after the inner future is gone and after the last
//! [`guard`](crate::Message::guard) of the message: also when a partition is revoked and assigned again at once, two
//! messages of a key never overlap.

mod error;
mod future;
mod key;
mod lanes;
mod layer;
mod service;

pub use self::error::OrderError;
pub use self::future::ResponseFuture;
pub use self::key::{By, ByKey, ByPartition, LaneKey};
pub use self::layer::OrderLayer;
pub use self::service::Order;
