//! The books: which offsets were delivered, which are finished, and what may be committed.
//!
//! A deterministic state machine in the manner of `quinn-proto`: no clock, no I/O, no task and no message. Offsets,
//! sizes and the time come in as arguments; what to commit, whom to wake and which partitions may be released comes
//! out. A [`Source`](crate::source::Source) drives it; a message's [`Delivery`](crate::message::Delivery) settles
//! into it. Nobody who only *uses* the library needs this module; it is public for those who write a source, and for
//! those who want to test the claims of `docs/guarantees.md` themselves.
//!
//! # Words
//! *Committed* N: the next offset to read is N (Kafka's meaning). *Watermark*: the first delivered offset that is not
//! finished, or the last delivered one plus 1. *Epoch*: one assignment of one partition to this member. *Window*: the
//! most messages (and payload bytes) that are delivered and not yet covered by an **acknowledged** commit.
//!
//! ```
//! use std::time::{Duration, Instant};
//! use tower_consumer::ledger::{Config, Kind, Ledger, Start, TopicPartition, Verdict};
//!
//! let now = Instant::now();
//! let mut ledger = Ledger::new(Config::default());
//! let orders = TopicPartition::new("orders", 0);
//! let epoch = ledger.assign(&orders, Start::Unknown, now);
//!
//! // compaction left a hole: 0, then 3
//! let first = epoch.deliver(0, 100, now)?.ticket;
//! let second = epoch.deliver(3, 100, now)?.ticket;
//!
//! // the second ends first: nothing may be committed
//! epoch.begin(second);
//! epoch.end(second, true);
//! epoch.settle(second, Verdict::Finished(Kind::Done));
//! assert!(ledger.take_commits(now + Duration::from_secs(1)).is_empty());
//!
//! epoch.begin(first);
//! epoch.end(first, true);
//! epoch.settle(first, Verdict::Finished(Kind::Done));
//! let commits = ledger.take_commits(now + Duration::from_secs(1));
//! assert_eq!(commits[0].offset, 4);
//! # Ok::<(), tower_consumer::ledger::DeliverError>(())
//! ```

mod answers;
mod commits;
mod drain;
mod epoch;
mod in_flight;
mod verdict;
mod window;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use self::answers::{
    Begin, DeliverError, Delivered, Effects, EpochId, Judgement, Room, Stage, Ticket,
};
pub use self::commits::{Commit, CommitFailure, CommitOutcome};
pub use self::drain::{Drained, Released};
pub use self::epoch::Epoch;
pub use self::in_flight::Counts;
pub use self::verdict::{Kind, Phase, Reason, Verdict};
pub use self::window::Head;

use self::commits::CommitState;
use self::drain::Drain;
use self::in_flight::InFlight;

/// A partition of a topic. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// The topic's name.
    pub topic: Arc<str>,
    /// The partition's number, from 0.
    pub partition: i32,
}

impl TopicPartition {
    /// Names a partition.
    pub fn new(topic: impl Into<Arc<str>>, partition: i32) -> Self {
        TopicPartition {
            topic: topic.into(),
            partition,
        }
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}

/// The most that one epoch may have delivered and not covered by an acknowledged commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) window_messages: usize,
    pub(crate) window_bytes: u64,
}

/// Bounds and times of a [`Ledger`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Most messages of a partition that are delivered and not covered by an acknowledged commit. 8,192 by default.
    /// To keep a partition busy it must exceed the messages in flight plus rate × commit round trip.
    pub window_messages: usize,
    /// Most key and payload bytes of a partition without a verdict; one message may overshoot. 64 MiB by default.
    pub window_bytes: u64,
    /// Most messages without a verdict over the whole source; each partition has a share of at least one. 10,000 by
    /// default. Set it a little above the concurrency limit of the stack: a waiting message costs memory and time.
    pub in_flight_messages: usize,
    /// Most key and payload bytes without a verdict over the whole source; 256 MiB by default.
    pub in_flight_bytes: u64,
    /// Longest time between a moved watermark and its commit; 1 s by default.
    pub commit_interval: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            window_messages: 8_192,
            window_bytes: 64 << 20,
            in_flight_messages: 10_000,
            in_flight_bytes: 256 << 20,
            commit_interval: Duration::from_secs(1),
        }
    }
}

/// Why a [`Config`] is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// With a window of 0 nothing could ever be delivered.
    #[error(
        "window: 0 messages or bytes would let nothing through; set at least 1 (the default is 8,192 messages, 64 MiB)"
    )]
    ZeroWindow,
    /// With a bound of 0 nothing could ever be delivered.
    #[error(
        "in_flight: 0 messages or bytes would let nothing through; set at least 1 (the default is 10,000 messages, 256 MiB)"
    )]
    ZeroInFlight,
}

impl Config {
    /// Refuses what would let nothing through.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.window_messages == 0 || self.window_bytes == 0 {
            return Err(ConfigError::ZeroWindow);
        }
        if self.in_flight_messages == 0 || self.in_flight_bytes == 0 {
            return Err(ConfigError::ZeroInFlight);
        }
        Ok(())
    }
}

/// What is known of a partition when it is assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// This offset is committed: nothing at or below it is ever committed in this epoch.
    Committed(i64),
    /// Nothing is committed, or what is committed counts for nothing (it lies outside of the log, so that the
    /// client resets).
    Unknown,
    /// Nothing is committed and the client would start at this position: it is committed before anything is taken, so
    /// that a restart does not choose another one.
    Pin(i64),
}

#[derive(Debug, Default)]
struct Partition {
    /// The epoch that is live or being drained.
    epoch: Option<Arc<Epoch>>,
    commits: CommitState,
    drain: Option<Drain>,
}

/// The books of one source: all its partitions, their epochs, what is to be committed and what is being drained.
///
/// See the [module's documentation](self).
#[derive(Debug)]
pub struct Ledger {
    config: Config,
    in_flight: Arc<InFlight>,
    partitions: HashMap<TopicPartition, Partition>,
    next_epoch: u64,
    next_drain: u64,
    /// While a rebalance is under way only the commit of its revoke goes out.
    held_until: Option<Instant>,
}

impl Ledger {
    /// An empty ledger. The configuration is taken as it is; see [`Config::validate`].
    pub fn new(config: Config) -> Self {
        let in_flight = InFlight::new(config.in_flight_messages, config.in_flight_bytes);
        Ledger {
            config,
            in_flight: Arc::new(in_flight),
            partitions: HashMap::new(),
            next_epoch: 1,
            next_drain: 1,
            held_until: None,
        }
    }

    /// Opens an epoch for a partition. One that is live already stays as it is; one that is being drained is fenced
    /// without a commit.
    pub fn assign(&mut self, tp: &TopicPartition, start: Start, now: Instant) -> Arc<Epoch> {
        let partition = self.partitions.entry(tp.clone()).or_default();
        if let Some(epoch) = &partition.epoch {
            if epoch.stage() == Stage::Live {
                return epoch.clone();
            }
            epoch.fence();
        }
        let id = EpochId(self.next_epoch);
        self.next_epoch += 1;
        let limits = Limits {
            window_messages: self.config.window_messages,
            window_bytes: self.config.window_bytes,
        };
        let (acked, pin) = match start {
            Start::Committed(offset) => (Some(offset), None),
            Start::Unknown => (None, None),
            Start::Pin(offset) => (None, Some(offset)),
        };
        let epoch = Arc::new(Epoch::new(
            id,
            tp.clone(),
            limits,
            self.in_flight.clone(),
            acked,
            pin,
            now,
        ));
        partition.epoch = Some(epoch.clone());
        partition.commits.begin_epoch(now);
        if partition.drain.take().is_some() {
            self.drain_dropped();
        }
        epoch
    }

    /// Fences epochs at once and commits nothing for them: partitions that were lost, or whose numbering fell.
    /// Answers the epochs that were fenced, to be woken.
    pub fn lose<'a>(
        &mut self,
        tps: impl IntoIterator<Item = &'a TopicPartition>,
    ) -> Vec<Arc<Epoch>> {
        let mut fenced = Vec::new();
        let mut dropped = false;
        for tp in tps {
            let Some(partition) = self.partitions.get_mut(tp) else {
                continue;
            };
            dropped |= partition.drain.take().is_some();
            if let Some(epoch) = partition.epoch.take() {
                epoch.fence();
                fenced.push(epoch);
            }
            self.forget_if_closed(tp);
        }
        if dropped {
            self.drain_dropped();
        }
        fenced
    }

    /// Fences everything: the source was dropped, or its client is dead. A crash in small.
    pub fn lose_all(&mut self) -> Vec<Arc<Epoch>> {
        let tps = self.assigned();
        self.lose(&tps)
    }

    /// The epoch of a partition that is live or being drained.
    pub fn epoch(&self, tp: &TopicPartition) -> Option<&Arc<Epoch>> {
        self.partitions.get(tp)?.epoch.as_ref()
    }

    /// Every epoch that is live or being drained.
    pub fn epochs(&self) -> impl Iterator<Item = &Arc<Epoch>> {
        self.partitions.values().filter_map(|p| p.epoch.as_ref())
    }

    /// The partitions with an epoch, in no order.
    pub fn assigned(&self) -> Vec<TopicPartition> {
        self.epochs()
            .map(|epoch| epoch.topic_partition().clone())
            .collect()
    }

    /// How the verdicts came out so far.
    pub fn counts(&self) -> Counts {
        self.in_flight.counts()
    }

    /// Messages and bytes without a verdict, over all epochs, the ended ones included.
    pub fn in_flight(&self) -> (u64, u64) {
        (self.in_flight.messages(), self.in_flight.bytes())
    }

    /// The earliest time at which a call with a newer `now` would change something by itself.
    pub fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let commits = self.next_commit(now);
        let drains = self.next_drain_step(now);
        [commits, drains].into_iter().flatten().min()
    }

    /// Books of a partition without an epoch and without a commit that is out are not kept.
    fn forget_if_closed(&mut self, tp: &TopicPartition) {
        if let Some(partition) = self.partitions.get(tp)
            && partition.epoch.is_none()
            && !partition.commits.is_out()
        {
            self.partitions.remove(tp);
        }
    }
}
