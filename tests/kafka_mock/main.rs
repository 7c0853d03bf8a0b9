//! `KafkaSource` against rdkafka's mock cluster, a protocol peer in this process: every test has a cluster of its own.
//!
//! - `mock`: the cluster, what is produced to it, and what is committed in it
//! - `member`: a member of a group, as an application would run it, and the log of what its handlers did
//! - `said`: what the library warned of
//! - `wire`: a request that the client would not send
//!
//! The cluster waits 3 s before it gives a new group its first assignment, so the tests wait more than they compute:
//! run them with more threads than cores.

mod bounds;
mod commits;
mod content;
mod ends;
mod groups;
mod member;
mod mock;
mod plumbing;
mod refusals;
mod resets;
mod said;
mod start;
mod wire;

use std::time::Duration;

/// The longest that a test waits for one thing.
const LIMIT: Duration = Duration::from_secs(30);
