use crate::ledger::TopicPartition;

/// Why a source ended, or could not be closed in order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The client cannot go on: fenced by another member with the same `group.instance.id`, refused by the broker's
    /// authentication, and the like. Everything was fenced, and nothing more is committed.
    #[error("the Kafka client cannot go on: {0}")]
    Fatal(String),
    /// One partition cannot be read any more.
    #[error("{tp} cannot be read: {error}")]
    Partition {
        /// The partition.
        tp: TopicPartition,
        /// What the client said.
        error: String,
    },
    /// A thread of the source ended, which it never should. Everything was fenced.
    #[error("the thread that {0} has ended")]
    ThreadDied(&'static str),
    /// The source did not close within its budget. What was not committed is delivered again.
    #[error("the source did not close within its budget")]
    CloseTimedOut,
}
