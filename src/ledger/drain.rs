//! Giving partitions up: stop, wait for what runs, snapshot and fence in one step, commit, release.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::commits::backoff;
use super::window::Mark;
use super::{Commit, CommitFailure, Epoch, Ledger, TopicPartition};

/// How long commits of other partitions wait for the end of a rebalance, from its revoke on.
const HOLD: Duration = Duration::from_secs(5);

/// One partition that is being given up.
#[derive(Debug)]
pub(super) struct Drain {
    group: u64,
    /// Work may run until then: the rest of the budget is for the last commit.
    wait_until: Instant,
    deadline: Instant,
    fenced: Option<Fenced>,
}

#[derive(Debug)]
struct Fenced {
    epoch: Arc<Epoch>,
    /// What is still to be committed.
    last: Option<Mark>,
    /// Failures of the last commit. Those of earlier commits do not count: they would use up what is left of the
    /// budget.
    failures: u32,
    not_before: Option<Instant>,
    cut: usize,
}

impl Drain {
    /// The last commit of the epoch, if it is to be sent now. The backoff of earlier failures does not count.
    pub(super) fn take_last(&mut self, now: Instant) -> Option<(Arc<Epoch>, Mark)> {
        let fenced = self.fenced.as_ref()?;
        if fenced.not_before.is_some_and(|at| now < at) || now >= self.deadline {
            return None;
        }
        Some((fenced.epoch.clone(), fenced.last?))
    }

    /// Whether there is nothing left to wait for.
    fn is_over(&self, is_out: bool, now: Instant) -> bool {
        let committed = self.fenced.as_ref().is_some_and(|f| f.last.is_none());
        committed && !is_out || now >= self.deadline
    }

    pub(super) fn commit_ended(
        &mut self,
        commit: &Commit,
        result: Result<(), CommitFailure>,
        now: Instant,
    ) {
        // across epochs offsets cannot be compared: an answer to an old one's commit says nothing of this one
        let Some(fenced) = self
            .fenced
            .as_mut()
            .filter(|f| f.epoch.id() == commit.epoch)
        else {
            return;
        };
        match result {
            // one that was out when the fence fell may have covered it
            Ok(()) => {
                fenced.last.take_if(|mark| mark.offset <= commit.offset);
            }
            Err(kind) if commit.last => {
                fenced.failures = fenced.failures.saturating_add(1);
                fenced.not_before = Some(now + backoff(kind, fenced.failures));
            }
            Err(_) => {}
        }
    }
}

/// A partition that was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Released {
    /// The partition.
    pub tp: TopicPartition,
    /// The highest offset known to be committed.
    pub committed: Option<i64>,
    /// A watermark that could not be committed within the budget: what lies below it is delivered again.
    pub not_committed: Option<i64>,
    /// Work that still ran when the budget was over: attempts, guards, produces.
    pub cut: usize,
}

/// Answer to [`Ledger::drain_step`].
#[derive(Debug, Default)]
pub struct Drained {
    /// Epochs that were fenced, to be woken.
    pub fenced: Vec<Arc<Epoch>>,
    /// Drains that are over: the partitions that one call to [`Ledger::revoke`] began to drain, together.
    pub released: Vec<Vec<Released>>,
}

impl Ledger {
    /// Begins to give partitions up: from now on nothing of them starts. Answers the epochs that were stopped, to be
    /// woken. What is not assigned is passed over. What is being drained already is released with the partitions it was
    /// revoked with, within its own budget or the new one, whichever ends first.
    ///
    /// Then call [`drain_step`](Ledger::drain_step) and [`take_commits`](Ledger::take_commits) when an epoch is idle,
    /// when a commit ended, and at [`next_timeout`](Ledger::next_timeout), until the drain is released. Four fifths of
    /// the budget are for what runs, the rest is kept for the last commit.
    pub fn revoke<'a>(
        &mut self,
        tps: impl IntoIterator<Item = &'a TopicPartition>,
        budget: Duration,
        now: Instant,
    ) -> Vec<Arc<Epoch>> {
        let group = self.next_drain;
        self.next_drain += 1;
        let deadline = now + budget.min(Duration::from_secs(86_400));
        let wait_until = now + budget.min(Duration::from_secs(86_400)) * 4 / 5;
        let mut stopped = Vec::new();
        for tp in tps {
            let Some(partition) = self.partitions.get_mut(tp) else {
                continue;
            };
            let Some(epoch) = &partition.epoch else {
                continue;
            };
            if let Some(drain) = &mut partition.drain {
                drain.deadline = drain.deadline.min(deadline);
                drain.wait_until = drain.wait_until.min(wait_until);
                continue;
            }
            epoch.stop();
            partition.drain = Some(Drain {
                group,
                wait_until,
                deadline,
                fenced: None,
            });
            stopped.push(epoch.clone());
        }
        // one revoke after the other does not keep others waiting for longer
        if !stopped.is_empty() && !self.held(now) {
            self.hold_commits(now + HOLD);
        }
        stopped
    }

    /// Fences what is idle or out of time, and releases drains that are over.
    pub fn drain_step(&mut self, now: Instant) -> Drained {
        let mut drained = Drained::default();
        for partition in self.partitions.values_mut() {
            let (Some(drain), Some(epoch)) = (&mut partition.drain, &partition.epoch) else {
                continue;
            };
            if drain.fenced.is_none() && (epoch.is_idle() || now >= drain.wait_until) {
                let (last, cut) = epoch.fence();
                drain.fenced = Some(Fenced {
                    epoch: epoch.clone(),
                    last,
                    failures: 0,
                    not_before: None,
                    cut,
                });
                drained.fenced.push(epoch.clone());
            }
        }
        for group in self.groups_over(now) {
            drained.released.push(self.release(group));
        }
        drained
    }

    /// Whether any partition is being given up.
    pub fn draining(&self) -> bool {
        self.partitions.values().any(|p| p.drain.is_some())
    }

    /// Groups of partitions given up together of which none has anything left to wait for.
    fn groups_over(&self, now: Instant) -> Vec<u64> {
        let drains = self
            .partitions
            .values()
            .filter_map(|p| Some((p.drain.as_ref()?, p.commits.is_out())));
        let mut groups: Vec<(u64, bool)> = drains
            .map(|(drain, is_out)| (drain.group, drain.is_over(is_out, now)))
            .collect();
        groups.sort_unstable();
        groups
            .chunk_by(|a, b| a.0 == b.0)
            .filter(|group| group.iter().all(|(_, over)| *over))
            .map(|group| group[0].0)
            .collect()
    }

    /// A drain ended without a release. With the last one goes what the commits of other partitions were held for: no
    /// release will come to let them go.
    pub(super) fn drain_dropped(&mut self) {
        if !self.draining() {
            self.rebalanced();
        }
    }

    fn release(&mut self, group: u64) -> Vec<Released> {
        let mut released = Vec::new();
        for (tp, partition) in &mut self.partitions {
            let Some(drain) = partition.drain.take_if(|drain| drain.group == group) else {
                continue;
            };
            partition.epoch = None;
            let Some(fenced) = drain.fenced else { continue };
            released.push(Released {
                tp: tp.clone(),
                committed: fenced.epoch.committed(),
                not_committed: fenced.last.map(|mark| mark.offset),
                cut: fenced.cut,
            });
        }
        released.sort_by(|a, b| a.tp.cmp(&b.tp));
        for done in &released {
            self.forget_if_closed(&done.tp);
        }
        released
    }

    pub(super) fn next_drain_step(&self, now: Instant) -> Option<Instant> {
        if !self.groups_over(now).is_empty() {
            return Some(now);
        }
        self.partitions
            .values()
            .filter_map(|p| Some((p.drain.as_ref()?, p.epoch.as_ref()?, p.commits.is_out())))
            .filter_map(|(drain, epoch, is_out)| match &drain.fenced {
                None if epoch.is_idle() => Some(now),
                None => Some(drain.wait_until),
                // waits for the others of its group, which say themselves when: a time that is over would make the
                // driver spin
                Some(_) if drain.is_over(is_out, now) => None,
                Some(fenced) if is_out || fenced.last.is_none() => Some(drain.deadline),
                Some(fenced) => Some(fenced.not_before.unwrap_or(now).min(drain.deadline)),
            })
            .min()
    }
}
