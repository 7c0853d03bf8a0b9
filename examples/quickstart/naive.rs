//! The loop that many write: a task per message, and after each success the highest finished offset is committed. It
//! stops midway, as in a deployment or a crash, and starts again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::KafkaResult;
use rdkafka::message::OwnedMessage;
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::timeout;
use tower_consumer::BoxError;

use crate::kafka::Kafka;
use crate::shop::Shop;
use crate::{CONCURRENCY, DEADLINE};

pub(crate) async fn run(kafka: &Kafka, shop: &Arc<Shop>) -> Result<(), BoxError> {
    consume(kafka, shop, Some(shop.produced() / 2)).await?;
    println!("stopped midway; starting again");
    consume(kafka, shop, None).await
}

/// Until so many are handled, or until nothing comes any more.
async fn consume(kafka: &Kafka, shop: &Arc<Shop>, stop_at: Option<usize>) -> Result<(), BoxError> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", kafka.bootstrap())
        .set("group.id", kafka.group())
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false")
        .create()?;
    // all partitions by hand: the second start need not wait for the group to notice the end of the first
    let mut all = TopicPartitionList::new();
    for partition in shop.partitions() {
        all.add_partition_offset(kafka.topic(), partition, Offset::Stored)?;
    }
    consumer.assign(&all)?;
    let permits = Arc::new(Semaphore::new(CONCURRENCY));
    let highest: Arc<Mutex<BTreeMap<i32, i64>>> = Arc::default();
    let mut tasks = JoinSet::new();
    let mut idle = Duration::from_secs(8);
    while stop_at.is_none_or(|stop| shop.handled() < stop) {
        let Some(message) = block_in_place(|| poll(&consumer, idle)) else {
            break;
        };
        idle = Duration::from_secs(2);
        let message = message?;
        let permit = permits.clone().acquire_owned().await?;
        let (shop, highest) = (shop.clone(), highest.clone());
        tasks.spawn(async move {
            let (partition, offset) = (message.partition(), message.offset());
            // it even retries
            for _ in 0..5 {
                if timeout(DEADLINE, shop.charge(partition, offset, message.key()))
                    .await
                    .is_ok()
                {
                    let mut highest = highest.lock().unwrap();
                    let next = highest.entry(partition).or_default();
                    *next = (*next).max(offset + 1);
                    break;
                }
            }
            drop(permit);
        });
        while tasks.try_join_next().is_some() {}
    }
    // midway, what is at work is cut off; at the end it is waited for
    if stop_at.is_some() {
        tasks.shutdown().await;
    }
    while tasks.join_next().await.is_some() {}
    let mut list = TopicPartitionList::new();
    for (partition, next) in highest.lock().unwrap().iter() {
        list.add_partition_offset(kafka.topic(), *partition, Offset::Offset(*next))?;
    }
    // the client's calls wait for brokers, and so does its end
    block_in_place(|| {
        consumer.commit(&list, CommitMode::Sync)?;
        drop(consumer);
        Ok(())
    })
}

/// The next message, if one comes in time. A single poll also ends when it has served a rebalance.
fn poll(consumer: &BaseConsumer, limit: Duration) -> Option<KafkaResult<OwnedMessage>> {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        if let Some(message) = consumer.poll(Duration::from_millis(100)) {
            return Some(message.map(|message| message.detach()));
        }
    }
    None
}
