//! `KafkaSource` in this process, where only a real broker will do: transactions, topics that change under a running
//! member, the broker's own view of the group.

mod groups;
mod membership;
mod offsets;
mod topics;

use std::process;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tower_consumer::source::kafka::{KafkaSource, KafkaSourceBuilder};

use crate::LIMIT;
use crate::broker::Broker;
use crate::{said, wire};

/// For one request.
const REQUEST: Duration = Duration::from_secs(30);

/// A fresh topic, and a group of the same name.
struct Case {
    broker: Broker,
    name: String,
    producer: BaseProducer,
}

impl Case {
    fn new(name: &str, partitions: i32) -> Self {
        said::listen();
        let broker = Broker::from_env();
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos();
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", broker.bootstrap());
        let case = Case {
            name: format!("{name}-{}-{since:x}", process::id()),
            producer: config
                .set("enable.idempotence", "true") // in order
                .set("linger.ms", "1")
                .create()
                .unwrap(),
            broker,
        };
        case.create_topic(partitions);
        case
    }

    fn create_topic(&self, partitions: i32) {
        // it blocks on a runtime of its own
        thread::scope(|scope| {
            scope.spawn(|| self.broker.create_topic(&self.name, partitions));
        });
    }

    fn source(&self) -> KafkaSourceBuilder {
        self.source_kip_848()
            .set("group.protocol", "classic")
            .set("session.timeout.ms", "6000")
            .set("heartbeat.interval.ms", "500")
    }

    /// Without settings that only the classic protocol has.
    fn source_kip_848(&self) -> KafkaSourceBuilder {
        KafkaSource::builder(self.broker.bootstrap(), &self.name)
            .topics([&*self.name])
            .set("group.protocol", "consumer")
            .commit_interval(Duration::from_millis(20))
    }

    fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.broker.bootstrap());
        config
    }

    fn admin(&self) -> AdminClient<DefaultClientContext> {
        self.client().create().unwrap()
    }

    fn options() -> AdminOptions {
        AdminOptions::new().operation_timeout(Some(REQUEST))
    }

    /// Sends messages to one partition, and waits until all are stored.
    fn produce(&self, partition: i32, count: usize) {
        self.produce_payloads(partition, std::iter::repeat_n(&b"payload"[..], count));
    }

    fn produce_payloads<'a>(&self, partition: i32, payloads: impl IntoIterator<Item = &'a [u8]>) {
        for payload in payloads {
            self.send(&self.producer, partition, payload);
        }
        self.flush();
    }

    fn send(&self, producer: &BaseProducer, partition: i32, payload: &[u8]) {
        let record: BaseRecord<'_, [u8], [u8]> = BaseRecord::to(&self.name)
            .partition(partition)
            .payload(payload);
        let sent = producer.send(record).map_err(|(error, _)| error);
        sent.unwrap();
    }

    fn flush(&self) {
        // `flush` waits in steps of 100 ms
        let deadline = Instant::now() + REQUEST;
        while self.producer.in_flight_count() > 0 {
            assert!(Instant::now() < deadline, "not everything was sent");
            self.producer.poll(Duration::from_millis(1));
        }
    }

    /// A client of the group that is no member.
    fn observer(&self) -> BaseConsumer {
        self.client().set("group.id", &self.name).create().unwrap()
    }

    /// Commits as another tool would, before the group has a member.
    fn commit(&self, partition: i32, offset: i64, metadata: &[u8]) {
        let (group, topic) = (&self.name, &self.name);
        wire::commit(
            self.broker.bootstrap(),
            group,
            topic,
            partition,
            offset,
            metadata,
        );
    }

    fn committed(&self, partition: i32) -> Option<i64> {
        committed_by(&self.observer(), &self.name, partition)
    }

    /// Waits until this offset is committed.
    #[track_caller]
    fn wait_committed(&self, partition: i32, offset: i64) {
        let observer = self.observer();
        let deadline = Instant::now() + LIMIT;
        loop {
            let committed = committed_by(&observer, &self.name, partition);
            if committed == Some(offset) {
                return;
            }
            let late = Instant::now() >= deadline;
            assert!(!late, "committed is {committed:?}, waited for {offset}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn committed_by(observer: &BaseConsumer, topic: &str, partition: i32) -> Option<i64> {
    let mut list = TopicPartitionList::new();
    list.add_partition(topic, partition);
    let list = observer.committed_offsets(list, REQUEST).unwrap();
    match list.find_partition(topic, partition).unwrap().offset() {
        Offset::Offset(offset) => Some(offset),
        Offset::Invalid => None,
        other => panic!("committed offset {other:?}"),
    }
}

/// Offsets of a partition in order, whatever the order in which their handlers were called.
fn sorted(mut offsets: Vec<i64>) -> Vec<i64> {
    offsets.sort();
    offsets
}
