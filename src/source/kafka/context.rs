//! The client's callbacks: they record and return. None takes a lock that anybody holds across a call of the client.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rdkafka::ClientContext;
use rdkafka::TopicPartitionList;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::statistics::Statistics;
use rdkafka::types::RDKafkaRespErr;
use tracing::{debug, error, info, warn};

use crate::ledger::TopicPartition;

pub(super) type Consumer = BaseConsumer<Recorder>;

/// A rebalance that waits for its answer.
#[derive(Debug)]
pub(super) enum Rebalance {
    Assign(Vec<TopicPartition>),
    Revoke(Vec<TopicPartition>),
}

#[derive(Debug, Default)]
pub(super) struct Recorder {
    rebalances: Mutex<VecDeque<Rebalance>>,
    /// What the client said of its last error: more than the error's code says.
    last_error: Mutex<Option<String>>,
    /// Nobody is left to answer later: answer at once.
    leaving: AtomicBool,
}

impl Recorder {
    pub(super) fn take(&self) -> Option<Rebalance> {
        self.rebalances.lock().pop_front()
    }

    pub(super) fn last_error(&self) -> Option<String> {
        self.last_error.lock().clone()
    }

    /// From now on rebalances are answered in the callback: the client is about to be dropped, which waits for the
    /// answer to its last revoke.
    pub(super) fn leave(&self) {
        self.leaving.store(true, Ordering::SeqCst);
    }
}

/// Gives partitions back.
pub(super) fn unassign(consumer: &Consumer, list: &TopicPartitionList) -> KafkaResult<()> {
    match consumer.rebalance_protocol() {
        RebalanceProtocol::Cooperative => consumer.incremental_unassign(list),
        _ => consumer.unassign(),
    }
}

/// Takes partitions.
pub(super) fn assign(consumer: &Consumer, list: &TopicPartitionList) -> KafkaResult<()> {
    match consumer.rebalance_protocol() {
        RebalanceProtocol::Cooperative => consumer.incremental_assign(list),
        _ => consumer.assign(list),
    }
}

impl ConsumerContext for Recorder {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        code: RDKafkaRespErr,
        list: &mut TopicPartitionList,
    ) {
        if self.leaving.load(Ordering::SeqCst) {
            let answered = match code {
                RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => assign(consumer, list),
                _ => unassign(consumer, list),
            };
            if let Err(error) = answered {
                debug!(%error, "the client refused the answer to its last rebalance");
            }
            return;
        }
        let tps = partitions(list);
        let rebalance = match code {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => Rebalance::Assign(tps),
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__REVOKE_PARTITIONS => Rebalance::Revoke(tps),
            code => {
                error!(?code, "rebalance failed: all its partitions are given back");
                Rebalance::Revoke(tps)
            }
        };
        self.rebalances.lock().push_back(rebalance);
    }
}

impl ClientContext for Recorder {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        match level {
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error => error!(target: "librdkafka", facility, "{message}"),
            RDKafkaLogLevel::Warning => warn!(target: "librdkafka", facility, "{message}"),
            RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
                info!(target: "librdkafka", facility, "{message}");
            }
            RDKafkaLogLevel::Debug => debug!(target: "librdkafka", facility, "{message}"),
        }
    }

    fn stats(&self, statistics: Statistics) {
        debug!(target: "librdkafka", ?statistics, "statistics");
    }

    /// Consume errors come back from the poll as well, with what is to be done about them.
    fn error(&self, error: KafkaError, reason: &str) {
        debug!(target: "librdkafka", %error, reason, "client error");
        *self.last_error.lock() = Some(reason.to_owned());
    }
}

pub(super) fn partitions(list: &TopicPartitionList) -> Vec<TopicPartition> {
    list.elements()
        .iter()
        .map(|element| TopicPartition::new(element.topic(), element.partition()))
        .collect()
}

pub(super) fn list_of<'a>(tps: impl IntoIterator<Item = &'a TopicPartition>) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for tp in tps {
        list.add_partition(&tp.topic, tp.partition);
    }
    list
}
