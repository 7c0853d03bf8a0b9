//! Messages of a Kafka group, through librdkafka (feature `kafka`).
//!
//! ```no_run
//! use std::time::Duration;
//! use tower_consumer::source::kafka::KafkaSource;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let source = KafkaSource::builder("localhost:9092", "billing")
//!     .topics(["orders"])
//!     .window(8_192)
//!     .in_flight(512)
//!     .set("session.timeout.ms", "10000") // any setting of librdkafka
//!     .build()?;
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//! Two threads of its own, so that nothing a handler does, one that blocks every worker of the runtime included, stops
//! the membership: one polls the client's main queue at least every 100 ms (heartbeats, rebalances, close), one sends
//! commits and asks for offsets. Messages are read from a queue per partition, on the task that drives the source; a
//! partition without room is not read, which needs no pause and throws nothing away.
//!
//! A rebalance does not block: it is recorded and answered later, when what runs of the revoked partitions has ended
//! and is committed, within the [`revoke budget`](KafkaSourceBuilder::revoke_budget). Partitions that stay go on with
//! what is here; their commits wait for the end of the rebalance, 5 s at most.
//!
//! # Commits
//! The source commits by itself, always the watermark: `enable.auto.commit` and `enable.auto.offset.store` are off and
//! refused. A commit is a bare offset; metadata that others left is not read.
//!
//! # Where a partition begins
//! At the committed offset. Without one, or if it lies outside of the log, `auto.offset.reset` decides (`earliest`
//! unless you say otherwise). With `latest` that position is committed before anything is taken, so that a restart does
//! not choose another one; what cannot be found out at assign is asked for again, and the partition waits.
//!
//! When offsets fall (a truncation, a topic that was made anew) or a partition is gone, its assignment ends as if it
//! were lost, with a warning, and another begins where the log or the group says. One case nobody can see: a topic that
//! is deleted, made anew and filled beyond the old position before the client hears of its end is read on from that
//! position. Delete a topic only when its consumers have stopped, or let the client look more often
//! (`topic.metadata.refresh.interval.ms`).
//!
//! # Clients and memory
//! Since each partition has its own queue, `queued.min.messages` and `queued.max.messages.kbytes` count per partition.
//! The source sets them small (1,000 messages, 1 MiB), and `fetch.queue.backoff.ms` to 5 and `fetch.wait.max.ms` to
//! 100, unless you do. The client then holds at most about partitions × (1 MiB + the largest fetch of a partition,
//! `fetch.message.max.bytes`).

mod builder;
mod classify;
mod client;
mod commits;
mod context;
mod group;
mod link;
mod message;
mod reports;
mod settings;
mod source;
mod unknown;

pub use self::builder::{BuildError, KafkaSourceBuilder};
pub use self::source::KafkaSource;
