//! The programs that lost messages, on a real Kafka: each consumer is a process of its own, killed with SIGKILL and
//! started again, and what it did is counted in a file that outlives it.
//!
//! `tests/kafka/run` starts a broker and runs all of it; `tests/kafka/run s2` only what matches. Every test that
//! needs the broker is ignored in a plain `cargo test`.
//!
//! - `broker`: topics, messages and offsets, as an administrator sees them
//! - `child`: the consumer process, `child::library` the program under test and `child::naive` its careless twin
//! - `process`: that process as its parent sees it
//! - `ledger`: the file in which it writes down what it has processed
//! - `scenario`: what all scenarios share: kill, restart, drain, count
//! - `scenarios`: the tests
//!
//! Beside them `source`: `KafkaSource` in this process, where only a real broker will do.

mod broker;
mod child;
mod ledger;
#[allow(dead_code)] // what only the hermetic tests need
#[path = "../kafka_mock/member.rs"]
mod member;
mod plan;
mod process;
#[path = "../kafka_mock/said.rs"]
mod said;
mod scenario;
mod scenarios;
mod source;
#[path = "../kafka_mock/wire.rs"]
mod wire;

use process::LIMIT;

/// Not a test: the consumer process of the others, which start this executable again with a plan in its environment.
#[test]
#[ignore = "the consumer process of the other tests, started by them"]
fn consumer_process() {
    if let Some(plan) = plan::Plan::from_env() {
        child::run(plan);
    }
}
