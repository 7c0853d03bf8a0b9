//! The cluster: librdkafka's mock in this process, or a real one; orders to read, and a client that reads offsets back.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tower_consumer::BoxError;

const PARTITIONS: i32 = 6;
const ORDERS: usize = 6_000;
const CUSTOMERS: usize = 500;
const ASK: Duration = Duration::from_secs(10);

pub(crate) struct Kafka {
    bootstrap: String,
    topic: String,
    group: String,
    reader: BaseConsumer,
    /// Ends with this, after the client above.
    embedded: Option<MockCluster<'static, DefaultProducerContext>>,
}

impl Kafka {
    pub(crate) async fn embedded(topic: &str) -> Result<Self, BoxError> {
        let cluster = MockCluster::new(3)?;
        cluster.create_topic(topic, PARTITIONS, 3)?;
        let bootstrap = cluster.bootstrap_servers();
        println!("an embedded Kafka listens at {bootstrap}");
        let kafka = Kafka::new(bootstrap, topic, Some(cluster))?;
        kafka.produce()?;
        Ok(kafka)
    }

    pub(crate) async fn real(bootstrap: &str, topic: &str) -> Result<Self, BoxError> {
        let kafka = Kafka::new(bootstrap.to_owned(), topic, None)?;
        kafka.create_topic().await?;
        let is_empty = kafka.log()?.values().all(|offsets| offsets.is_empty());
        if is_empty {
            kafka.produce()?;
        } else {
            println!("{topic} is not empty: nothing is produced, what is there is consumed");
        }
        Ok(kafka)
    }

    fn new(
        bootstrap: String,
        topic: &str,
        embedded: Option<MockCluster<'static, DefaultProducerContext>>,
    ) -> Result<Self, BoxError> {
        let group = "quickstart".to_owned();
        // not subscribed: it only asks
        let reader = ClientConfig::new()
            .set("bootstrap.servers", &bootstrap)
            .set("group.id", &group)
            .set("enable.auto.commit", "false")
            .create()?;
        Ok(Kafka {
            bootstrap,
            topic: topic.to_owned(),
            group,
            embedded,
            reader,
        })
    }

    pub(crate) fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    pub(crate) fn topic(&self) -> &str {
        &self.topic
    }

    pub(crate) fn group(&self) -> &str {
        &self.group
    }

    pub(crate) fn is_embedded(&self) -> bool {
        self.embedded.is_some()
    }

    async fn create_topic(&self) -> Result<(), BoxError> {
        let admin: AdminClient<DefaultClientContext> = ClientConfig::new()
            .set("bootstrap.servers", &self.bootstrap)
            .create()?;
        // -1: as many replicas as the cluster makes by default (KIP-464)
        let topic = NewTopic::new(&self.topic, PARTITIONS, TopicReplication::Fixed(-1));
        for result in admin.create_topics([&topic], &AdminOptions::new()).await? {
            match result {
                Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((topic, code)) => {
                    return Err(format!("cannot make topic {topic}: {code}").into());
                }
            }
        }
        Ok(())
    }

    /// Each customer's orders go to one partition, as the default partitioner does it.
    fn produce(&self) -> Result<(), BoxError> {
        let producer: BaseProducer = ClientConfig::new()
            .set("bootstrap.servers", &self.bootstrap)
            .create()?;
        for n in 0..ORDERS {
            let customer = format!("customer-{:03}", n * 7 % CUSTOMERS);
            let order = format!(r#"{{"order": {n}, "customer": "{customer}"}}"#);
            let record = BaseRecord::to(&self.topic).key(&customer).payload(&order);
            producer.send(record).map_err(|(error, _)| error)?;
            producer.poll(Duration::ZERO);
        }
        producer.flush(ASK)?;
        println!(
            "produced {ORDERS} orders of {CUSTOMERS} customers to {PARTITIONS} partitions of {}",
            self.topic
        );
        Ok(())
    }

    /// The offsets that the log holds.
    fn log(&self) -> Result<BTreeMap<i32, Range<i64>>, BoxError> {
        let metadata = self.reader.fetch_metadata(Some(&self.topic), ASK)?;
        let topic = metadata.topics().first().ok_or("no such topic")?;
        let mut log = BTreeMap::new();
        for partition in topic.partitions() {
            let (start, end) = self
                .reader
                .fetch_watermarks(&self.topic, partition.id(), ASK)?;
            log.insert(partition.id(), start..end);
        }
        Ok(log)
    }

    /// The offsets that are to be read: from the committed one, or the start of the log.
    pub(crate) fn orders(&self) -> Result<BTreeMap<i32, Range<i64>>, BoxError> {
        let committed = self.committed()?;
        let mut log = self.log()?;
        for (partition, offsets) in &mut log {
            if let Some(committed) = committed.get(partition) {
                offsets.start = *committed;
            }
        }
        Ok(log)
    }

    /// What the group has committed, asked of the broker.
    pub(crate) fn committed(&self) -> Result<BTreeMap<i32, i64>, BoxError> {
        let mut list = TopicPartitionList::new();
        for partition in self.log()?.into_keys() {
            list.add_partition(&self.topic, partition);
        }
        let list = self.reader.committed_offsets(list, ASK)?;
        let committed = list
            .elements()
            .into_iter()
            .filter_map(|element| match element.offset() {
                Offset::Offset(offset) => Some((element.partition(), offset)),
                _ => None,
            });
        Ok(committed.collect())
    }
}
