use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::MemorySourceBuilder;
use crate::ledger::{CommitFailure, TopicPartition};
use crate::message::{MessageBuilder, Record};

/// Topics and groups in memory. Clones are the same broker. See the [module's documentation](super).
#[derive(Clone, Default)]
pub struct MemoryBroker {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    topics: HashMap<Arc<str>, Vec<Log>>,
    groups: HashMap<String, Group>,
    /// Sources that wait for messages.
    waiting: Vec<Waker>,
}

#[derive(Default)]
struct Log {
    /// In offset order, with gaps where offsets were skipped.
    records: Vec<MessageBuilder>,
    next: i64,
}

#[derive(Default)]
struct Group {
    committed: HashMap<TopicPartition, i64>,
    log: Vec<Committed>,
    reply: Option<Reply>,
}

type Reply = Arc<dyn Fn(&TopicPartition, i64) -> CommitReply + Send + Sync>;

/// A commit that the broker stored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Committed {
    /// The partition.
    pub tp: TopicPartition,
    /// The next offset to read.
    pub offset: i64,
    /// When it was stored.
    pub at: Instant,
}

/// What becomes of a commit; see [`MemoryBroker::on_commit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitReply {
    pub(super) after: Duration,
    pub(super) store: bool,
    pub(super) answer: Result<(), CommitFailure>,
}

impl CommitReply {
    /// Stored and acknowledged.
    pub const fn ok() -> Self {
        CommitReply {
            after: Duration::ZERO,
            store: true,
            answer: Ok(()),
        }
    }

    /// Not stored; answered with an error that may pass.
    pub const fn transient_error() -> Self {
        CommitReply {
            store: false,
            answer: Err(CommitFailure::Transient),
            ..CommitReply::ok()
        }
    }

    /// Not stored; answered with an error that will not pass.
    pub const fn permanent_error() -> Self {
        CommitReply {
            store: false,
            answer: Err(CommitFailure::Permanent),
            ..CommitReply::ok()
        }
    }

    /// Stored, but the answer is an error all the same, as when it was lost on its way.
    pub const fn answer_lost() -> Self {
        CommitReply {
            store: true,
            answer: Err(CommitFailure::Transient),
            ..CommitReply::ok()
        }
    }

    /// Happens, and is answered, only after this time.
    pub const fn after(mut self, delay: Duration) -> Self {
        self.after = delay;
        self
    }
}

impl MemoryBroker {
    /// A broker without topics.
    pub fn new() -> Self {
        MemoryBroker::default()
    }

    /// Makes a topic, anew if there is one of this name: its numbering starts at 0 again.
    pub fn create_topic(&self, topic: impl Into<Arc<str>>, partitions: usize) {
        let logs = (0..partitions).map(|_| Log::default()).collect();
        // what payloads do when they are dropped is foreign code: not under the lock
        let old = self.state.lock().topics.insert(topic.into(), logs);
        drop(old);
    }

    /// Appends a message, and answers its offset. Makes the topic and the partition if need be; the builder's offset
    /// counts for nothing.
    pub fn produce(&self, message: MessageBuilder) -> i64 {
        let (topic, partition) = message.place();
        let (offset, waiting) = {
            let mut state = self.state.lock();
            let log = state.log_mut(topic, partition);
            let offset = log.next;
            log.records.push(message.offset(offset));
            log.next += 1;
            (offset, std::mem::take(&mut state.waiting))
        };
        waiting.into_iter().for_each(Waker::wake);
        offset
    }

    /// Leaves a gap of `count` offsets that no message has, as compaction and transaction markers do.
    pub fn skip_offsets(&self, topic: &str, partition: i32, count: i64) {
        self.state.lock().log_mut(topic.into(), partition).next += count;
    }

    /// The end of a partition's log: the offset that the next message will get. `None` if there is no such partition.
    pub fn log_end(&self, topic: &str, partition: i32) -> Option<i64> {
        let state = self.state.lock();
        Some(state.log(topic, partition)?.next)
    }

    /// What a group has committed for a partition: the next offset to read.
    pub fn committed(&self, group: &str, topic: &str, partition: i32) -> Option<i64> {
        let tp = TopicPartition::new(topic, partition);
        self.state
            .lock()
            .groups
            .get(group)?
            .committed
            .get(&tp)
            .copied()
    }

    /// Commits for a group, as another member or an administrator would.
    pub fn commit(&self, group: &str, topic: &str, partition: i32, offset: i64) {
        self.store(group, &TopicPartition::new(topic, partition), offset);
    }

    /// Every commit of a group that was stored, in order.
    pub fn commits(&self, group: &str) -> Vec<Committed> {
        let state = self.state.lock();
        state
            .groups
            .get(group)
            .map(|g| g.log.clone())
            .unwrap_or_default()
    }

    /// Decides what becomes of each commit of a group from now on; without it each is stored at once.
    ///
    /// The function is called with the partition and the offset at the moment of sending.
    pub fn on_commit(
        &self,
        group: &str,
        reply: impl Fn(&TopicPartition, i64) -> CommitReply + Send + Sync + 'static,
    ) {
        let reply: Reply = Arc::new(reply);
        let mut state = self.state.lock();
        let group = state.groups.entry(group.to_owned()).or_default();
        let old = group.reply.replace(reply);
        drop(state);
        drop(old);
    }

    /// Begins to build a source: a member of `group` that reads all partitions of `topics`.
    pub fn source<T: Into<Arc<str>>>(
        &self,
        group: impl Into<String>,
        topics: impl IntoIterator<Item = T>,
    ) -> MemorySourceBuilder {
        MemorySourceBuilder::new(
            self.clone(),
            group.into(),
            topics.into_iter().map(Into::into).collect(),
        )
    }

    pub(super) fn partitions(&self, topic: &Arc<str>) -> Vec<TopicPartition> {
        let state = self.state.lock();
        let count = state.topics.get(topic).map_or(0, Vec::len);
        (0..count as i32)
            .map(|partition| TopicPartition::new(topic.clone(), partition))
            .collect()
    }

    /// The first message at or above `position`. A position outside of the log is reset to its start.
    pub(super) fn fetch(&self, tp: &TopicPartition, position: i64) -> Option<Record> {
        let state = self.state.lock();
        let log = state.log(&tp.topic, tp.partition)?;
        let position = if position > log.next { 0 } else { position };
        let index = log
            .records
            .partition_point(|record| record.offset_set() < position);
        let record = log.records.get(index)?.clone();
        drop(state);
        Some(record.into_record())
    }

    pub(super) fn has_more(&self, tp: &TopicPartition, position: i64) -> bool {
        let state = self.state.lock();
        state
            .log(&tp.topic, tp.partition)
            .and_then(|log| log.records.last())
            .is_some_and(|last| last.offset_set() >= position)
    }

    pub(super) fn is_in_log(&self, tp: &TopicPartition, offset: i64) -> bool {
        let state = self.state.lock();
        let log = state.log(&tp.topic, tp.partition);
        log.is_some_and(|log| (0..=log.next).contains(&offset))
    }

    pub(super) fn wait(&self, waker: &Waker) {
        let waker = waker.clone();
        let mut state = self.state.lock();
        if !state
            .waiting
            .iter()
            .any(|waiting| waiting.will_wake(&waker))
        {
            state.waiting.push(waker);
        }
    }

    pub(super) fn reply(&self, group: &str, tp: &TopicPartition, offset: i64) -> CommitReply {
        let reply = {
            let state = self.state.lock();
            state
                .groups
                .get(group)
                .and_then(|group| group.reply.clone())
        };
        reply.map_or(CommitReply::ok(), |reply| reply(tp, offset))
    }

    pub(super) fn store(&self, group: &str, tp: &TopicPartition, offset: i64) {
        let mut state = self.state.lock();
        let group = state.groups.entry(group.to_owned()).or_default();
        group.committed.insert(tp.clone(), offset);
        group.log.push(Committed {
            tp: tp.clone(),
            offset,
            at: Instant::now(),
        });
    }
}

impl State {
    fn log(&self, topic: &str, partition: i32) -> Option<&Log> {
        self.topics
            .get(topic)?
            .get(usize::try_from(partition).ok()?)
    }

    fn log_mut(&mut self, topic: Arc<str>, partition: i32) -> &mut Log {
        let partition = usize::try_from(partition).unwrap_or(0);
        let logs = self.topics.entry(topic).or_default();
        if logs.len() <= partition {
            logs.resize_with(partition + 1, Log::default);
        }
        &mut logs[partition]
    }
}

impl fmt::Debug for MemoryBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("MemoryBroker")
            .field("topics", &state.topics.keys())
            .field("groups", &state.groups.keys())
            .finish()
    }
}
