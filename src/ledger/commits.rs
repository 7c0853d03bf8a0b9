//! When to commit what: one commit of a partition out at a time, always the newest watermark, and again until it is
//! acknowledged or its epoch ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::window::Mark;
use super::{Effects, Epoch, EpochId, Ledger, TopicPartition};

const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MOST: Duration = Duration::from_secs(5);
const BACKOFF_PERMANENT: Duration = Duration::from_secs(30);
/// A year, so that `Duration::MAX` means never and does not overflow.
const INTERVAL_MOST: Duration = Duration::from_secs(365 * 86_400);

/// An offset to commit. Answer it with [`Ledger::commit_ended`], whatever comes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The partition.
    pub tp: TopicPartition,
    /// The epoch on whose behalf.
    pub epoch: EpochId,
    /// The next offset to read.
    pub offset: i64,
    /// The last commit of an epoch that is being given up.
    pub last: bool,
}

/// How a commit failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitFailure {
    /// It may succeed when sent again.
    Transient,
    /// It will not heal by itself (authorization, unknown topic): sent again, but rarely.
    Permanent,
}

/// What the answer to a commit changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitOutcome {
    /// Whom to wake.
    pub effects: Effects,
    /// Failures of this partition in a row, this one included.
    pub failures: u32,
}

#[derive(Debug)]
struct Out {
    epoch: Arc<Epoch>,
    mark: Mark,
}

/// The commits of one partition. It outlives epochs: the one that is out is waited for by the next epoch too.
#[derive(Debug, Default)]
pub(super) struct CommitState {
    out: Option<Out>,
    failures: u32,
    retry_at: Option<Instant>,
    last_sent: Option<Instant>,
}

impl CommitState {
    pub(super) fn is_out(&self) -> bool {
        self.out.is_some()
    }

    pub(super) fn begin_epoch(&mut self, now: Instant) {
        self.failures = 0;
        self.retry_at = None;
        self.last_sent = Some(now);
    }

    /// When the partition's watermark should go out; a backoff delays even an urgent one.
    fn due(&self, urgent: bool, interval: Duration, now: Instant) -> Instant {
        match self.retry_at {
            Some(at) => at,
            None if urgent => now,
            None => self
                .last_sent
                .map_or(now, |sent| sent + interval.min(INTERVAL_MOST)),
        }
    }

    fn send(&mut self, epoch: &Arc<Epoch>, mark: Mark, last: bool, now: Instant) -> Commit {
        self.last_sent = Some(now);
        self.out = Some(Out {
            epoch: epoch.clone(),
            mark,
        });
        Commit {
            tp: epoch.topic_partition().clone(),
            epoch: epoch.id(),
            offset: mark.offset,
            last,
        }
    }
}

impl Ledger {
    /// Takes what is to be committed at this moment, to be sent at once in one request. Empty while nothing is due;
    /// once one partition is due, every other with something new goes along.
    ///
    /// Each commit counts as out until [`commit_ended`](Ledger::commit_ended) is called for it.
    pub fn take_commits(&mut self, now: Instant) -> Vec<Commit> {
        let mut list = Vec::new();
        for partition in self.partitions.values_mut() {
            if let (Some(drain), false) = (&mut partition.drain, partition.commits.is_out())
                && let Some((epoch, mark)) = drain.take_last(now)
            {
                list.push(partition.commits.send(&epoch, mark, true, now));
            }
        }
        if self.held(now) {
            return list;
        }
        let interval = self.config.commit_interval;
        let mut is_due = !list.is_empty();
        let mut ready = Vec::new();
        for partition in self.partitions.values_mut() {
            if partition.drain.is_some() || partition.commits.is_out() {
                continue;
            }
            let Some(epoch) = &partition.epoch else {
                continue;
            };
            let Some((mark, urgent)) = epoch.snapshot() else {
                continue;
            };
            is_due |= partition.commits.due(urgent, interval, now) <= now;
            if partition.commits.retry_at.is_none_or(|at| at <= now) {
                ready.push((&mut partition.commits, epoch, mark));
            }
        }
        if is_due {
            list.extend(
                ready
                    .into_iter()
                    .map(|(commits, epoch, mark)| commits.send(epoch, mark, false, now)),
            );
        }
        list
    }

    /// Books the answer to a commit. A failed one is sent again with the newest watermark of then.
    ///
    /// An answer to a commit that is not out changes nothing.
    pub fn commit_ended(
        &mut self,
        commit: &Commit,
        result: Result<(), CommitFailure>,
        now: Instant,
    ) -> CommitOutcome {
        let mut outcome = CommitOutcome::default();
        let Some(partition) = self.partitions.get_mut(&commit.tp) else {
            return outcome;
        };
        let state = &mut partition.commits;
        let epoch = partition.epoch.as_ref();
        let is_current = epoch.is_some_and(|epoch| epoch.id() == commit.epoch);
        let Some(out) = state
            .out
            .take_if(|out| out.epoch.id() == commit.epoch && out.mark.offset == commit.offset)
        else {
            return outcome;
        };
        match result {
            Ok(()) => {
                state.failures = 0;
                state.retry_at = None;
                outcome.effects = out.epoch.ack(out.mark);
            }
            Err(kind) => {
                state.failures = state.failures.saturating_add(1);
                outcome.failures = state.failures;
                // what an ended epoch met with says nothing of this one
                if is_current {
                    state.retry_at = Some(now + backoff(kind, state.failures));
                }
            }
        }
        if let Some(drain) = &mut partition.drain {
            drain.commit_ended(commit, result, now);
        }
        self.forget_if_closed(&commit.tp);
        outcome
    }

    pub(super) fn hold_commits(&mut self, until: Instant) {
        self.held_until = Some(until);
    }

    /// The rebalance is over: an assign event came, an empty one included.
    pub fn rebalanced(&mut self) {
        self.held_until = None;
    }

    pub(super) fn held(&self, now: Instant) -> bool {
        self.held_until.is_some_and(|until| now < until)
    }

    pub(super) fn next_commit(&self, now: Instant) -> Option<Instant> {
        let interval = self.config.commit_interval;
        let due = self
            .partitions
            .values()
            .filter(|p| p.drain.is_none() && !p.commits.is_out())
            .filter_map(|p| {
                let (_, urgent) = p.epoch.as_ref()?.snapshot()?;
                Some(p.commits.due(urgent, interval, now))
            })
            .min()?;
        Some(match self.held_until {
            Some(until) => due.max(until),
            None => due,
        })
    }
}

pub(super) fn backoff(kind: CommitFailure, failures: u32) -> Duration {
    match kind {
        CommitFailure::Transient => BACKOFF_FIRST
            .saturating_mul(1 << (failures - 1).min(16))
            .min(BACKOFF_MOST),
        CommitFailure::Permanent => BACKOFF_PERMANENT,
    }
}
