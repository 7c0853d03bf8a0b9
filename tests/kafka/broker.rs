//! Topics, messages and offsets, as an administrator sees them: by clients that are no member of the group.

use std::env;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};
use rdkafka::{ClientConfig, ClientContext, Message, Offset, TopicPartitionList};

/// How long a request to the broker may take.
const REQUEST: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub(crate) struct Broker {
    bootstrap: String,
}

impl Broker {
    pub(crate) fn from_env() -> Self {
        let bootstrap = env::var("KAFKA_BOOTSTRAP")
            .expect("KAFKA_BOOTSTRAP is not set: these tests are run by tests/kafka/run");
        Self { bootstrap }
    }

    pub(crate) fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.bootstrap);
        config
    }

    pub(crate) fn create_topic(&self, topic: &str, partitions: i32) {
        let admin: AdminClient<DefaultClientContext> = self.config().create().unwrap();
        let topic = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
        let options = AdminOptions::new().operation_timeout(Some(REQUEST));
        let created = tokio_test::block_on(admin.create_topics([&topic], &options)).unwrap();
        for result in created {
            result.unwrap_or_else(|(topic, error)| panic!("topic {topic} was not made: {error}"));
        }
    }

    /// Sends the messages, one after the other, and waits until each got the offset that it was meant to get.
    pub(crate) fn produce(&self, topic: &str, messages: impl IntoIterator<Item = Produced>) {
        let producer: BaseProducer<Deliveries> = self
            .config()
            .set("enable.idempotence", "true") // in order, also when a request is sent again
            .set("linger.ms", "5")
            .create_with_context(Deliveries::default())
            .unwrap();
        let mut sent = 0;
        for message in messages {
            let mut record = BaseRecord::with_opaque_to(topic, Box::new(message.offset))
                .partition(message.partition)
                .payload(&message.value);
            if let Some(key) = &message.key {
                record = record.key(key);
            }
            producer.send(record).map_err(|(error, _)| error).unwrap();
            sent += 1;
        }
        producer.flush(REQUEST).unwrap();
        let deliveries = &producer.context().0;
        let deliveries = deliveries.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(deliveries.len(), sent, "not every message was delivered");
        for delivery in deliveries.iter() {
            let (meant, got) = delivery.as_ref().unwrap();
            assert_eq!(
                got, meant,
                "a message got another offset than it was meant to get"
            );
        }
    }

    pub(crate) fn offsets(&self, group: &str, topic: &str, partitions: i32) -> Offsets {
        let consumer = self.config().set("group.id", group).create().unwrap();
        Offsets {
            consumer,
            topic: topic.to_owned(),
            partitions,
        }
    }
}

/// A message to send, and the offset that it is meant to get.
#[derive(Clone, Debug)]
pub(crate) struct Produced {
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) key: Option<String>,
    pub(crate) value: String,
}

/// The offset each message was meant to get, and the one it got.
#[derive(Default)]
struct Deliveries(Mutex<Vec<Result<(i64, i64), String>>>);

impl ClientContext for Deliveries {}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = Box<i64>;

    fn delivery(&self, result: &DeliveryResult<'_>, meant: Box<i64>) {
        let delivery = match result {
            Ok(message) => Ok((*meant, message.offset())),
            Err((error, _)) => Err(error.to_string()),
        };
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(delivery);
    }
}

/// The offsets of one group in one topic. It asks for them and is no member of the group.
pub(crate) struct Offsets {
    consumer: BaseConsumer,
    topic: String,
    partitions: i32,
}

impl Offsets {
    /// Of each partition the next offset to read: 0 if nothing was ever committed.
    pub(crate) fn committed(&self) -> Vec<i64> {
        let mut list = TopicPartitionList::new();
        for partition in 0..self.partitions {
            list.add_partition(&self.topic, partition);
        }
        let committed = self.consumer.committed_offsets(list, REQUEST).unwrap();
        let of = |partition| match committed
            .find_partition(&self.topic, partition)
            .unwrap()
            .offset()
        {
            Offset::Offset(offset) => offset,
            Offset::Invalid => 0,
            other => panic!("committed offset {other:?}"),
        };
        (0..self.partitions).map(of).collect()
    }

    pub(crate) fn log_end(&self) -> Vec<i64> {
        let of = |partition| {
            self.consumer
                .fetch_watermarks(&self.topic, partition, REQUEST)
                .unwrap()
                .1
        };
        (0..self.partitions).map(of).collect()
    }

    /// Reads the committed offset of partition 0 in a loop, until [`Watch::finish`].
    pub(crate) fn watch(self) -> Watch {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                let mut seen = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let committed = self.committed()[0];
                    if seen.last() != Some(&committed) {
                        seen.push(committed);
                    }
                    thread::sleep(Duration::from_millis(2));
                }
                seen
            }
        });
        Watch { stop, thread }
    }
}

pub(crate) struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<i64>>,
}

impl Watch {
    /// Every change of the committed offset that was seen, in order.
    pub(crate) fn finish(self) -> Vec<i64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}
