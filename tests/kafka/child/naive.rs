//! The careless twin: a task per message, and after each success a commit that says "all below" where "this one" was
//! meant. It shows that these tests can see a loss.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use super::Handler;
use crate::ledger::Position;
use crate::plan::{Commit, Plan};

pub(super) fn run(plan: &Plan, commit: Commit, handler: Handler) {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", &plan.bootstrap)
        .set("group.id", &plan.group)
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("session.timeout.ms", "6000")
        .create()
        .unwrap();
    consumer.subscribe(&[&plan.topic]).unwrap();
    let committer = Arc::new(Committer {
        consumer,
        topic: plan.topic.clone(),
        commit,
        highest: Mutex::default(),
    });

    let runtime = Runtime::new().unwrap();
    let permits = Arc::new(Semaphore::new(plan.setup.concurrency));
    loop {
        let Some(message) = committer.consumer.poll(Duration::from_millis(100)) else {
            continue;
        };
        let message = message.unwrap().detach();
        let permit = runtime
            .block_on(Arc::clone(&permits).acquire_owned())
            .unwrap();
        let (handler, committer) = (handler.clone(), Arc::clone(&committer));
        runtime.spawn(async move {
            let position = (message.partition(), message.offset());
            if handler.handle(position, message.key()).await.is_ok() {
                committer.succeeded(position);
            }
            drop(permit);
        });
    }
}

struct Committer {
    consumer: BaseConsumer,
    topic: String,
    commit: Commit,
    /// Per partition, the highest offset that has succeeded.
    highest: Mutex<HashMap<i32, i64>>,
}

impl Committer {
    /// Commits, and waits for the answer: one commit at a time.
    fn succeeded(&self, (partition, offset): Position) {
        let mut highest = self.highest.lock().unwrap();
        let highest = highest.entry(partition).or_insert(offset);
        *highest = offset.max(*highest);
        let offset = match self.commit {
            Commit::Highest => *highest,
            Commit::Own => offset,
        };
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&self.topic, partition, Offset::Offset(offset + 1))
            .unwrap();
        self.consumer.commit(&list, CommitMode::Sync).unwrap();
    }
}
