//! What an error of the client means for us. Unknown codes are never ignored.

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use crate::ledger::CommitFailure;

/// What a consume error asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Not an error at all.
    Nothing,
    /// Heals by itself, or is retried by the client: said, and counted.
    Transient,
    /// The group has taken the partitions away, because the main queue was not polled in time.
    PollExceeded,
    /// The partition that it came from cannot be read any more.
    Partition,
    /// The partition is not there any more: its topic was deleted, and may be made anew.
    Gone,
    /// The client cannot go on.
    Fatal,
}

pub(super) fn consume(error: &KafkaError) -> Meaning {
    match error {
        KafkaError::PartitionEOF(_) => Meaning::Nothing,
        KafkaError::MessageConsumptionFatal(_) => Meaning::Fatal,
        KafkaError::MessageConsumption(code) => consume_code(*code),
        _ => Meaning::Transient,
    }
}

fn consume_code(code: Code) -> Meaning {
    match code {
        Code::NoError | Code::PartitionEOF => Meaning::Nothing,
        Code::PollExceeded => Meaning::PollExceeded,
        Code::Fatal
        | Code::Fenced
        | Code::FencedInstanceId
        | Code::Authentication
        | Code::SaslAuthenticationFailed
        | Code::UnsupportedSASLMechanism
        | Code::IllegalSASLState
        | Code::GroupAuthorizationFailed
        | Code::ClusterAuthorizationFailed => Meaning::Fatal,
        Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition => {
            Meaning::Gone
        }
        Code::BadMessage
        | Code::BadCompression
        | Code::InvalidMessage
        | Code::InvalidMessageSize
        | Code::MessageSizeTooLarge
        | Code::OffsetOutOfRange
        | Code::AutoOffsetReset
        | Code::LogTruncation
        | Code::TopicAuthorizationFailed
        | Code::NotImplemented
        | Code::UnsupportedFeature
        | Code::UnsupportedVersion => Meaning::Partition,
        _ => Meaning::Transient,
    }
}

/// What a commit error asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommitMeaning {
    /// It holds for the whole group, not for one partition.
    Group(CommitFailure),
    /// It may be one partition's: the others of the list may be stored.
    Partition(CommitFailure),
    /// The client cannot go on.
    Fatal,
}

pub(super) fn commit(error: &KafkaError) -> CommitMeaning {
    use CommitFailure::{Permanent, Transient};
    let KafkaError::ConsumerCommit(code) = error else {
        return CommitMeaning::Group(Transient);
    };
    match code {
        Code::Fenced | Code::FencedInstanceId | Code::Fatal => CommitMeaning::Fatal,
        Code::GroupAuthorizationFailed
        | Code::ClusterAuthorizationFailed
        | Code::InvalidGroupId => CommitMeaning::Group(Permanent),
        Code::TopicAuthorizationFailed
        | Code::UnknownTopicOrPartition
        | Code::UnknownTopic
        | Code::UnknownPartition
        | Code::OffsetMetadataTooLarge
        | Code::InvalidCommitOffsetSize => CommitMeaning::Partition(Permanent),
        Code::IllegalGeneration
        | Code::UnknownMemberId
        | Code::RebalanceInProgress
        | Code::NotCoordinator
        | Code::CoordinatorNotAvailable
        | Code::CoordinatorLoadInProgress
        | Code::WaitingForCoordinator
        | Code::BrokerTransportFailure
        | Code::AllBrokersDown
        | Code::OperationTimedOut
        | Code::RequestTimedOut
        | Code::NetworkException
        | Code::State
        | Code::DestroyBroker => CommitMeaning::Group(Transient),
        _ => CommitMeaning::Partition(Transient),
    }
}
