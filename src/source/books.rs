//! The ledger with its messages attached: who is told what.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::warn;

use crate::ledger::{
    Commit, CommitFailure, CommitOutcome, Config, Counts, Effects, EpochId, Head, Ledger, Phase,
    Reason, Released, Start, TopicPartition,
};
use crate::message::{EpochCell, Failure, Signal, SourceId};

/// The books of a source: what was delivered, what is finished, what is committed. Cheap to clone; to be read.
#[derive(Clone)]
pub struct Books {
    shared: Arc<Shared>,
}

/// A message that has held the watermark of its partition for too long.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stall {
    /// The partition.
    pub tp: TopicPartition,
    /// The offset that holds the watermark.
    pub offset: i64,
    /// Since when.
    pub age: Duration,
    /// Where the message is.
    pub phase: Phase,
    /// How many attempts have begun.
    pub attempts: u32,
    /// Why it did not finish, if it already has that verdict.
    pub reason: Option<Reason>,
    /// Nothing more of the partition is read until the watermark moves.
    pub window_full: bool,
}

/// Failures kept for `serve`.
const MOST_FAILURES: usize = 1_024;

type Hook = Box<dyn Fn(Effects) + Send + Sync>;

struct Shared {
    source: SourceId,
    state: Mutex<State>,
    failures: Mutex<VecDeque<Failure>>,
    driver: Mutex<Option<Waker>>,
    hook: Option<Hook>,
}

struct State {
    ledger: Ledger,
    cells: HashMap<EpochId, Arc<EpochCell>>,
}

impl State {
    fn cells_of<'a>(
        &mut self,
        epochs: impl IntoIterator<Item = &'a Arc<crate::ledger::Epoch>>,
    ) -> Vec<Arc<EpochCell>> {
        epochs
            .into_iter()
            .filter_map(|epoch| self.cells.get(&epoch.id()).cloned())
            .collect()
    }
}

impl Signal for Shared {
    fn effects(&self, effects: Effects) {
        if let Some(hook) = &self.hook {
            hook(effects);
        }
        if self.hook.is_none() || effects.room {
            self.wake();
        }
    }

    fn failure(&self, failure: Failure) {
        let mut failures = self.failures.lock();
        // in a loop of the user's own nobody takes them; whoever does has taken them long before
        if failures.len() < MOST_FAILURES {
            failures.push_back(failure);
        }
        drop(failures);
        self.wake();
    }
}

impl Shared {
    fn wake(&self) {
        let waker = self.driver.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Books {
    /// Without a hook every effect wakes the driver; with one only room does, and the hook is told of all.
    pub(crate) fn new(config: Config, hook: Option<Hook>) -> Self {
        Books {
            shared: Arc::new(Shared {
                source: SourceId::next(),
                state: Mutex::new(State {
                    ledger: Ledger::new(config),
                    cells: HashMap::new(),
                }),
                failures: Mutex::default(),
                driver: Mutex::default(),
                hook,
            }),
        }
    }

    /// How the verdicts came out so far.
    pub fn counts(&self) -> Counts {
        self.shared.state.lock().ledger.counts()
    }

    /// The partitions that are assigned, or being given up.
    pub fn assigned(&self) -> Vec<TopicPartition> {
        let mut assigned = self.shared.state.lock().ledger.assigned();
        assigned.sort();
        assigned
    }

    /// The watermark of a partition in its present assignment: the first delivered offset that is not finished, or
    /// the last delivered one plus 1. `None` if it is not assigned or nothing was delivered.
    pub fn watermark(&self, topic: &str, partition: i32) -> Option<i64> {
        let tp = TopicPartition::new(topic, partition);
        self.shared.state.lock().ledger.epoch(&tp)?.watermark()
    }

    /// The offset of a partition that is known to be committed.
    pub fn committed(&self, topic: &str, partition: i32) -> Option<i64> {
        let tp = TopicPartition::new(topic, partition);
        self.shared.state.lock().ledger.epoch(&tp)?.committed()
    }

    /// The message that holds the watermark of a partition.
    pub fn head(&self, topic: &str, partition: i32) -> Option<Head> {
        let tp = TopicPartition::new(topic, partition);
        let now = tokio::time::Instant::now().into_std();
        self.shared.state.lock().ledger.epoch(&tp)?.head(now)
    }

    /// Messages and their bytes without a verdict, over all partitions.
    pub fn in_flight(&self) -> (u64, u64) {
        self.shared.state.lock().ledger.in_flight()
    }

    /// Who is to be woken when the driver has something to do.
    pub(crate) fn set_driver(&self, waker: &Waker) {
        let mut driver = self.shared.driver.lock();
        if driver
            .as_ref()
            .is_some_and(|driver| driver.will_wake(waker))
        {
            return;
        }
        drop(driver);
        let waker = waker.clone();
        driver = self.shared.driver.lock();
        let old = driver.replace(waker);
        drop(driver);
        drop(old);
    }

    pub(crate) fn wake_driver(&self) {
        self.shared.wake();
    }

    pub(crate) fn take_failure(&self) -> Option<Failure> {
        self.shared.failures.lock().pop_front()
    }

    pub(crate) fn assign(&self, tp: &TopicPartition, start: Start, now: Instant) -> Arc<EpochCell> {
        let signal: Arc<dyn Signal> = self.shared.clone();
        let mut state = self.shared.state.lock();
        let epoch = state.ledger.assign(tp, start, now);
        let source = self.shared.source;
        state
            .cells
            .entry(epoch.id())
            .or_insert_with(|| Arc::new(EpochCell::new(epoch, source, signal)))
            .clone()
    }

    pub(crate) fn revoke(&self, tps: &[TopicPartition], budget: Duration, now: Instant) {
        let cells = {
            let mut state = self.shared.state.lock();
            let stopped = state.ledger.revoke(tps, budget, now);
            state.cells_of(&stopped)
        };
        wake_all(cells);
        self.shared.wake();
    }

    pub(crate) fn lose(&self, tps: &[TopicPartition]) {
        self.fenced(|ledger| ledger.lose(tps));
    }

    pub(crate) fn lose_all(&self) {
        self.fenced(Ledger::lose_all);
    }

    fn fenced(&self, fence: impl FnOnce(&mut Ledger) -> Vec<Arc<crate::ledger::Epoch>>) {
        let cells = {
            let mut state = self.shared.state.lock();
            let fenced = fence(&mut state.ledger);
            let cells = state.cells_of(&fenced);
            for cell in &cells {
                state.cells.remove(&cell.epoch.id());
            }
            cells
        };
        wake_all(cells);
        self.shared.wake();
    }

    /// Fences what is due and answers the drains that are over.
    pub(crate) fn drain_step(&self, now: Instant) -> Vec<Vec<Released>> {
        let (cells, released) = {
            let mut state = self.shared.state.lock();
            let drained = state.ledger.drain_step(now);
            let cells = state.cells_of(&drained.fenced);
            for cell in &cells {
                state.cells.remove(&cell.epoch.id());
            }
            (cells, drained.released)
        };
        wake_all(cells);
        for released in released.iter().flatten() {
            if let Some(offset) = released.not_committed {
                warn!(
                    topic = &*released.tp.topic,
                    partition = released.tp.partition,
                    offset,
                    "released without the last commit: not committed within the budget"
                );
            }
            if released.cut > 0 {
                warn!(
                    topic = &*released.tp.topic,
                    partition = released.tp.partition,
                    running = released.cut,
                    "released over work that did not end within the budget"
                );
            }
        }
        released
    }

    pub(crate) fn draining(&self) -> bool {
        self.shared.state.lock().ledger.draining()
    }

    pub(crate) fn rebalanced(&self) {
        self.shared.state.lock().ledger.rebalanced();
    }

    pub(crate) fn take_commits(&self, now: Instant) -> Vec<Commit> {
        self.shared.state.lock().ledger.take_commits(now)
    }

    pub(crate) fn commit_ended(
        &self,
        commit: &Commit,
        result: Result<(), CommitFailure>,
        now: Instant,
    ) -> CommitOutcome {
        let outcome = self
            .shared
            .state
            .lock()
            .ledger
            .commit_ended(commit, result, now);
        if outcome.effects.room {
            self.shared.wake();
        }
        outcome
    }

    pub(crate) fn next_timeout(&self, now: Instant) -> Option<Instant> {
        self.shared.state.lock().ledger.next_timeout(now)
    }

    /// Messages that have held their watermark for longer than `after` and are due to be reported.
    pub(crate) fn stalls(&self, after: Duration, now: Instant) -> Vec<Stall> {
        let state = self.shared.state.lock();
        state
            .ledger
            .epochs()
            .filter_map(|epoch| {
                let head = epoch.stalled(after, now)?;
                Some(Stall {
                    tp: epoch.topic_partition().clone(),
                    offset: head.offset,
                    age: head.age,
                    phase: head.phase,
                    attempts: head.attempts,
                    reason: head.reason,
                    window_full: epoch.is_full(),
                })
            })
            .collect()
    }

    pub(crate) fn next_stall(&self, after: Duration, now: Instant) -> Option<Instant> {
        let state = self.shared.state.lock();
        state
            .ledger
            .epochs()
            .filter_map(|epoch| epoch.stalls_at(after, now))
            .min()
    }
}

fn wake_all(cells: Vec<Arc<EpochCell>>) {
    for cell in cells {
        cell.wake_all();
    }
}

impl fmt::Debug for Books {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Books")
            .field("assigned", &self.assigned())
            .finish_non_exhaustive()
    }
}
