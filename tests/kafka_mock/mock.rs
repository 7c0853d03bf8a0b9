//! The cluster of one test, and what an administrator sees of it: clients that are no member of the group.

use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tower_consumer::source::kafka::{KafkaSource, KafkaSourceBuilder};

use crate::{LIMIT, said, wire};

/// For one request to the cluster.
const REQUEST: Duration = Duration::from_secs(10);

pub(crate) struct Mock {
    cluster: MockCluster<'static, DefaultProducerContext>,
    bootstrap: String,
    producer: BaseProducer,
}

/// A message to send.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Produced<'a> {
    pub(crate) partition: i32,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) payload: Option<&'a [u8]>,
    pub(crate) headers: &'a [(&'a str, Option<&'a [u8]>)],
    pub(crate) timestamp: Option<i64>,
}

impl Mock {
    /// One broker, and these topics: name and number of partitions.
    pub(crate) fn new(topics: &[(&str, i32)]) -> Self {
        said::listen();
        let cluster = MockCluster::new(1).unwrap();
        for (topic, partitions) in topics {
            cluster.create_topic(topic, *partitions, 1).unwrap();
        }
        let bootstrap = cluster.bootstrap_servers();
        let producer = ClientConfig::new()
            .set("bootstrap.servers", &bootstrap)
            .set("enable.idempotence", "true") // in order
            .set("linger.ms", "1")
            .create()
            .unwrap();
        Mock {
            cluster,
            bootstrap,
            producer,
        }
    }

    /// The cluster gives a group's second member its share after the session timeout less a second: so that is short.
    pub(crate) fn source(&self, group: &str) -> KafkaSourceBuilder {
        KafkaSource::builder(&self.bootstrap, group)
            .set("session.timeout.ms", "3500")
            .set("heartbeat.interval.ms", "500")
            .commit_interval(Duration::from_millis(20))
    }

    /// The same, without settings that only the classic protocol has.
    pub(crate) fn source_kip_848(&self, group: &str) -> KafkaSourceBuilder {
        KafkaSource::builder(&self.bootstrap, group)
            .set("group.protocol", "consumer")
            .commit_interval(Duration::from_millis(20))
    }

    pub(crate) fn cluster(&self) -> &MockCluster<'static, DefaultProducerContext> {
        &self.cluster
    }

    /// The next requests of this kind are answered with these errors.
    pub(crate) fn fail(&self, requests: RDKafkaApiKey, errors: &[RDKafkaRespErr]) {
        self.cluster.request_errors(requests, errors);
    }

    /// Sends messages, and waits until all are stored.
    pub(crate) fn produce_all<'a>(
        &self,
        topic: &str,
        messages: impl IntoIterator<Item = Produced<'a>>,
    ) {
        for message in messages {
            let mut record: BaseRecord<'_, [u8], [u8]> =
                BaseRecord::to(topic).partition(message.partition);
            record.key = message.key;
            record.payload = message.payload;
            record.timestamp = message.timestamp;
            if !message.headers.is_empty() {
                let headers = message
                    .headers
                    .iter()
                    .fold(OwnedHeaders::new(), |headers, (key, value)| {
                        headers.insert(Header { key, value: *value })
                    });
                record = record.headers(headers);
            }
            self.producer
                .send(record)
                .map_err(|(error, _)| error)
                .unwrap();
        }
        // `flush` waits in steps of 100 ms
        let deadline = Instant::now() + REQUEST;
        while self.producer.in_flight_count() > 0 {
            assert!(Instant::now() < deadline, "not everything was sent");
            self.producer.poll(Duration::from_millis(1));
        }
    }

    /// Sends `count` messages to one partition.
    pub(crate) fn produce(&self, topic: &str, partition: i32, count: usize) {
        let message = Produced {
            partition,
            payload: Some(b"payload"),
            ..Produced::default()
        };
        self.produce_all(topic, std::iter::repeat_n(message, count));
    }

    /// Sends one message to each partition.
    pub(crate) fn produce_each(&self, topic: &str, partitions: i32) {
        let message = |partition| Produced {
            partition,
            payload: Some(b"payload"),
            ..Produced::default()
        };
        self.produce_all(topic, (0..partitions).map(message));
    }

    fn observer(&self, group: &str) -> BaseConsumer {
        ClientConfig::new()
            .set("bootstrap.servers", &self.bootstrap)
            .set("group.id", group)
            .create()
            .unwrap()
    }

    /// Commits, as no member of the group: only before the group has its first member.
    pub(crate) fn commit(&self, group: &str, topic: &str, partition: i32, offset: i64) {
        self.commit_with(group, topic, partition, offset, b"");
    }

    /// Commits with metadata.
    pub(crate) fn commit_with(
        &self,
        group: &str,
        topic: &str,
        partition: i32,
        offset: i64,
        metadata: &[u8],
    ) {
        wire::commit(&self.bootstrap, group, topic, partition, offset, metadata);
    }

    /// The next offset to read; `None` if nothing was ever committed.
    pub(crate) fn committed(&self, group: &str, topic: &str, partition: i32) -> Option<i64> {
        self.committed_by(&self.observer(group), topic, partition)
    }

    fn committed_by(&self, observer: &BaseConsumer, topic: &str, partition: i32) -> Option<i64> {
        let mut list = TopicPartitionList::new();
        list.add_partition(topic, partition);
        let list = observer.committed_offsets(list, REQUEST).unwrap();
        match list.find_partition(topic, partition).unwrap().offset() {
            Offset::Offset(offset) => Some(offset),
            Offset::Invalid => None,
            other => panic!("committed offset {other:?}"),
        }
    }

    /// Waits until this offset is committed. A higher one is a failure at once.
    #[track_caller]
    pub(crate) fn wait_committed(&self, group: &str, topic: &str, partition: i32, offset: i64) {
        self.wait_committed_of(group, topic, partition, |committed| {
            assert!(
                committed <= Some(offset),
                "committed is {committed:?}, past {offset}"
            );
            committed == Some(offset)
        });
    }

    /// Waits until the committed offset satisfies this.
    #[track_caller]
    pub(crate) fn wait_committed_of(
        &self,
        group: &str,
        topic: &str,
        partition: i32,
        enough: impl Fn(Option<i64>) -> bool,
    ) {
        let observer = self.observer(group);
        self.wait(|| enough(self.committed_by(&observer, topic, partition)));
    }

    /// Waits until this offset is committed, and answers every one that was seen until then.
    #[track_caller]
    pub(crate) fn watch_committed(
        &self,
        group: &str,
        topic: &str,
        partition: i32,
        offset: i64,
    ) -> Vec<i64> {
        let observer = self.observer(group);
        let mut seen = Vec::new();
        self.wait(|| {
            let committed = self.committed_by(&observer, topic, partition);
            if committed != seen.last().copied() {
                seen.extend(committed);
            }
            committed == Some(offset)
        });
        seen
    }

    /// Waits for something that only asking tells.
    #[track_caller]
    pub(crate) fn wait(&self, mut enough: impl FnMut() -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !enough() {
            assert!(Instant::now() < deadline, "waited in vain");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The first offset of the log, and the one after its last.
    pub(crate) fn log(&self, topic: &str, partition: i32) -> (i64, i64) {
        let observer = self.observer("observer");
        observer
            .fetch_watermarks(topic, partition, REQUEST)
            .unwrap()
    }
}
