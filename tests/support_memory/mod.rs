//! What the tests over the broker in memory share: a topic, a journal of what the handlers did, gates that hold
//! handlers back, and a run of `serve` that can be killed.

#![allow(
    dead_code,
    unused_imports,
    reason = "each test program uses a part of it"
)]

pub(crate) mod events;
mod gated;
mod gates;
mod journal;
mod random;
mod run;

use std::future::Future;
use std::time::Duration;

use tower_consumer::Message;
use tower_consumer::ledger::TopicPartition;
use tower_consumer::source::memory::{MemoryBroker, MemorySourceBuilder};

pub(crate) use self::gated::{gated, gated_from, revoke};
pub(crate) use self::gates::Gates;
pub(crate) use self::journal::Journal;
pub(crate) use self::random::Random;
pub(crate) use self::run::{Restart, Run, assert_covered, restart, run};

pub(crate) const TOPIC: &str = "orders";
pub(crate) const GROUP: &str = "billing";

/// What a handler answers for a message that it did not finish.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Failed(pub(crate) &'static str);

pub(crate) type Answer = Result<(), Failed>;

/// A broker with the topic.
pub(crate) fn broker(partitions: usize) -> MemoryBroker {
    let broker = MemoryBroker::new();
    broker.create_topic(TOPIC, partitions);
    broker
}

/// Appends `count` messages without a key, `m-<offset>` each.
pub(crate) fn produce(broker: &MemoryBroker, partition: i32, count: i64) {
    for _ in 0..count {
        let next = broker.log_end(TOPIC, partition).unwrap_or(0);
        let message = Message::builder(TOPIC).partition(partition);
        let offset = broker.produce(message.payload(format!("m-{next}")));
        assert_eq!(offset, next);
    }
}

/// Appends one message for each key, and answers the first offset.
pub(crate) fn produce_keys<'a>(
    broker: &MemoryBroker,
    partition: i32,
    keys: impl IntoIterator<Item = &'a str>,
) {
    for key in keys {
        let message = Message::builder(TOPIC).partition(partition);
        broker.produce(message.key(key.to_owned()).payload("m"));
    }
}

/// Appends messages at exactly these offsets: the others are gaps.
pub(crate) fn produce_at(broker: &MemoryBroker, partition: i32, offsets: &[i64]) {
    for offset in offsets {
        let end = broker.log_end(TOPIC, partition).unwrap_or(0);
        broker.skip_offsets(TOPIC, partition, offset - end);
        produce(broker, partition, 1);
    }
}

pub(crate) fn source(broker: &MemoryBroker) -> MemorySourceBuilder {
    broker.source(GROUP, [TOPIC])
}

pub(crate) fn tp(partition: i32) -> TopicPartition {
    TopicPartition::new(TOPIC, partition)
}

/// What the group has committed.
pub(crate) fn committed(broker: &MemoryBroker, partition: i32) -> Option<i64> {
    broker.committed(GROUP, TOPIC, partition)
}

/// Every offset that was committed for a partition, in order.
pub(crate) fn commits(broker: &MemoryBroker, partition: i32) -> Vec<i64> {
    let all = broker.commits(GROUP);
    let of = all.iter().filter(|commit| commit.tp == tp(partition));
    of.map(|commit| commit.offset).collect()
}

/// A handler that is given a clone of `state` with each message.
pub(crate) fn with<T, F, Fut>(state: T, f: F) -> impl Fn(Message) -> Fut + Clone
where
    T: Clone,
    F: Fn(T, Message) -> Fut + Clone,
    Fut: Future,
{
    move |message| f(state.clone(), message)
}

/// Everything that needs no time happens; takes a millisecond of the paused clock.
pub(crate) async fn quiet() {
    pass(1).await;
}

/// Time passes on the paused clock, and everything that is due by then happens.
pub(crate) async fn pass(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
