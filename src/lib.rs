//! Kafka consumer middleware as [tower] layers: messages of one partition are handled concurrently, in key order, with
//! deadlines and retries, and only what is finished is committed.
//!
//! Handling a message is a [`tower::Service`] of [`Message`]; everything between Kafka and the handler is an
//! ordinary tower layer, of this crate or of any other.
//!
//! ```
//! use std::time::Duration;
//! use tower::ServiceBuilder;
//! use tower_consumer::commit::CommitLayer;
//! use tower_consumer::handler::handler_fn;
//! use tower_consumer::order::OrderLayer;
//! use tower_consumer::retry::Backoff;
//! use tower_consumer::source::memory::MemoryBroker;
//! use tower_consumer::timeout::TimeoutLayer;
//! use tower_consumer::{BoxError, Message, serve};
//!
//! async fn charge(order: Message) -> Result<(), std::io::Error> {
//!     println!("charging {:?}", order.payload());
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), BoxError> {
//! let stack = ServiceBuilder::new()
//!     .layer(CommitLayer::new()) //    decides what may be committed; outermost
//!     .layer(OrderLayer::by_key()) //  one at a time per key, in offset order
//!     .retry(Backoff::exponential(Duration::from_millis(100)).max_attempts(5))
//!     .concurrency_limit(256) //       tower's own
//!     .layer(TimeoutLayer::new(Duration::from_secs(30)))
//!     .service(handler_fn(charge));
//!
//! // a broker in memory here; `source::kafka::KafkaSource` in production
//! let broker = MemoryBroker::new();
//! broker.create_topic("orders", 6);
//! broker.produce(Message::builder("orders").key("customer-7").payload("12 EUR"));
//! let source = broker.source("billing", ["orders"]).until_end().build()?;
//!
//! let summary = serve(source, stack).await?;
//! assert_eq!(summary.committed("orders", 0), Some(1));
//! # Ok(())
//! # }
//! ```
//!
//! # The parts
//!
//! | module | what it is for | what it does to the watermark |
//! | --- | --- | --- |
//! | [`serve`](mod@serve) | drives a stack with the messages of a source | decides what follows when a message is not finished |
//! | [`commit`] | gives each message its verdict | moves it past finished messages only |
//! | [`order`] | one message of a key at a time | closes a key behind a message that is not finished |
//! | [`retry`] | delays between attempts, for tower's own `Retry` | holds it while it waits |
//! | [`timeout`] | a deadline for an attempt | none: a timeout is an error |
//! | [`handler`] | async functions as services; notes of attempts | none by itself |
//! | [`message`] | the request | |
//! | [`source`] | where messages come from and commits go: `source::kafka`, [`source::memory`] | commits it |
//! | [`ledger`] | the books behind all of this, without I/O | computes it |
//!
//! The *watermark* of a partition is the first delivered offset that is not finished, or the last delivered one plus 1:
//! what is committed, and all that ever is.
//!
//! # Features
//! `kafka` (default): `source::kafka`, over librdkafka, which is built from its bundled source with a C compiler.
//! `ssl`: TLS and SASL/SCRAM with the system's OpenSSL; `ssl-vendored`: with OpenSSL built from source. `zstd`:
//! zstd-compressed topics.
//!
//! [tower]: https://docs.rs/tower
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod commit;
pub mod handler;
pub mod ledger;
pub mod message;
pub mod order;
mod outcome;
mod panic;
mod ready;
pub mod retry;
pub mod serve;
pub mod source;
pub mod timeout;

pub use self::message::Message;
pub use self::outcome::{IntoOutcome, Outcome};
pub use self::serve::serve;
/// The error type of every layer: a boxed [`std::error::Error`] that is `Send + Sync`.
pub use tower::BoxError;

/// The examples of the README, compiled and run.
#[cfg(all(doctest, feature = "kafka"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// The examples of the guide, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../docs/writing-a-layer.md")]
struct WritingALayer;

/// The recipes, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../docs/recipes.md")]
struct Recipes;
