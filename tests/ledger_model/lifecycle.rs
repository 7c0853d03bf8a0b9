//! Events of whole partitions: assigned, revoked, drained, lost.

use std::time::Duration;

use tower_consumer::ledger::{Released, Stage, Start, TopicPartition};

use crate::books::{Draining, EpochBook, FencedBook};
use crate::pairs::Event;
use crate::rng::Rng;
use crate::world::{Checked, World, ensure};

/// How long other partitions may wait for a rebalance that is over.
const HOLD: Duration = Duration::from_secs(5);

impl World {
    pub(crate) fn assign(&mut self, p: usize, rng: &mut Rng) -> Checked<bool> {
        let offset = rng.pick(&[0, 5, 20, 60]);
        let start = rng.pick(&[
            Start::Unknown,
            Start::Unknown,
            Start::Committed(offset),
            Start::Committed(offset),
            Start::Pin(offset),
        ]);
        let now = self.now;
        let book = &mut self.partitions[p];
        let handle = self.ledger.assign(&book.tp, start, now);
        let event = match book.stage() {
            None => Event::Assign,
            Some(Stage::Live) => Event::AssignLive,
            Some(_) => Event::AssignDraining,
        };
        if event == Event::AssignLive {
            let same = book
                .epoch()
                .is_some_and(|epoch| epoch.handle.id() == handle.id());
            ensure!(same, "a repeated assign opened another epoch");
            if rng.one_in(4) {
                self.happened(p, event, &String::new);
            }
            return Ok(true);
        }
        let newer = book
            .epochs
            .iter()
            .all(|epoch| epoch.handle.id() < handle.id());
        ensure!(newer, "promise 3: an epoch was used twice");
        if let Some(e) = book.current {
            book.epochs[e].stage = Stage::Fenced;
        }
        book.current = Some(book.epochs.len());
        book.epochs.push(EpochBook::new(handle, start));
        book.failures = 0;
        book.retry_at = None;
        book.last_sent = now;
        self.forget_drain(p);
        self.happened(p, event, &|| format!("{start:?}"));
        Ok(true)
    }

    /// A drain ended without a release: nothing is left to hold the commits of others for.
    fn forget_drain(&mut self, p: usize) {
        let dropped = self.partitions[p].drain.take().is_some();
        if dropped && !self.is_draining() {
            self.held_until = None;
        }
    }

    fn is_draining(&self) -> bool {
        self.partitions.iter().any(|p| p.drain.is_some())
    }

    /// One partition, or several at once.
    fn some_partitions(&self, p: usize, rng: &mut Rng) -> Vec<usize> {
        let mut list = vec![p];
        if rng.one_in(2) {
            let other = rng.below(self.partitions.len());
            list.extend((other != p).then_some(other));
        }
        list
    }

    pub(crate) fn revoke(&mut self, p: usize, rng: &mut Rng) -> Checked<bool> {
        let list = self.some_partitions(p, rng);
        if list.iter().all(|p| self.partitions[*p].current.is_none()) {
            return Ok(false);
        }
        let budget = Duration::from_millis(rng.pick(&[0, 50, 1_000, 5_000, 30_000]));
        let now = self.now;
        let tps: Vec<TopicPartition> = list
            .iter()
            .map(|p| self.partitions[*p].tp.clone())
            .collect();
        let stopped = self.ledger.revoke(&tps, budget, now);

        let (deadline, wait_until) = (now + budget, now + budget * 4 / 5);
        let group = self.next_group;
        self.next_group += 1;
        let mut expected = Vec::new();
        for p in list {
            let book = &mut self.partitions[p];
            let Some(e) = book.current else { continue };
            if let Some(drain) = &mut book.drain {
                drain.deadline = drain.deadline.min(deadline);
                drain.wait_until = drain.wait_until.min(wait_until);
                self.happened(p, Event::RevokeAgain, &|| format!("{budget:?}"));
                continue;
            }
            book.epochs[e].stage = Stage::Stopped;
            book.drain = Some(Draining {
                group,
                wait_until,
                deadline,
                fenced: None,
            });
            expected.push(book.epochs[e].handle.id());
            if self.held_until.is_none_or(|until| until <= now) {
                self.held_until = Some(now + HOLD);
            }
            self.happened(p, Event::Revoke, &|| format!("{budget:?}"));
        }
        let stopped: Vec<_> = stopped.iter().map(|epoch| epoch.id()).collect();
        ensure!(
            stopped == expected,
            "stopped {stopped:?} where it is {expected:?}"
        );
        Ok(true)
    }

    pub(crate) fn lose(&mut self, p: usize, rng: &mut Rng) -> Checked<bool> {
        let list = if rng.one_in(2) {
            vec![p]
        } else {
            self.some_partitions(p, rng)
        };
        if list.iter().all(|p| self.partitions[*p].current.is_none()) {
            return Ok(false);
        }
        let tps: Vec<TopicPartition> = list
            .iter()
            .map(|p| self.partitions[*p].tp.clone())
            .collect();
        let fenced: Vec<_> = self
            .ledger
            .lose(&tps)
            .iter()
            .map(|epoch| epoch.id())
            .collect();
        let mut expected = Vec::new();
        for p in list {
            let book = &mut self.partitions[p];
            let Some(e) = book.current.take() else {
                continue;
            };
            book.epochs[e].stage = Stage::Fenced;
            expected.push(book.epochs[e].handle.id());
            ensure!(
                book.epochs[e].handle.stage() == Stage::Fenced,
                "promise 10: lost, and not fenced at once"
            );
            self.forget_drain(p);
            self.happened(p, Event::Lose, &String::new);
        }
        ensure!(
            fenced == expected,
            "lost {fenced:?} where it is {expected:?}"
        );
        Ok(true)
    }

    /// Answers whether anything came of it.
    pub(crate) fn drain_step(&mut self) -> Checked<bool> {
        let now = self.now;
        let drained = self.ledger.drain_step(now);
        let mut fenced: Vec<_> = drained.fenced.iter().map(|epoch| epoch.id()).collect();
        fenced.sort_unstable();

        let mut expected = Vec::new();
        for p in 0..self.partitions.len() {
            let book = &mut self.partitions[p];
            let (Some(e), Some(drain)) = (book.current, &mut book.drain) else {
                continue;
            };
            let epoch = &mut book.epochs[e];
            if drain.fenced.is_none() && (epoch.busy() == 0 || now >= drain.wait_until) {
                let (last, cut) = (epoch.to_commit(), epoch.busy());
                epoch.stage = Stage::Fenced;
                drain.fenced = Some(FencedBook {
                    last,
                    cut,
                    failures: 0,
                    not_before: None,
                });
                expected.push(epoch.handle.id());
                self.happened(p, Event::Fence, &|| format!("last {last:?}, cut {cut}"));
            }
        }
        expected.sort_unstable();
        ensure!(
            fenced == expected,
            "promise 10: fenced {fenced:?} where idle or out of time were {expected:?}"
        );

        let mut groups = Vec::new();
        while let Some(group) = self.group_that_is_over() {
            groups.push(self.release(group));
        }
        let mut released = drained.released;
        released.sort_by(|a, b| a[0].tp.cmp(&b[0].tp));
        groups.sort_by(|a, b| a[0].0.cmp(&b[0].0));
        let released: Vec<Vec<_>> = released
            .iter()
            .map(|group| group.iter().map(report).collect())
            .collect();
        ensure!(
            released == groups,
            "promise 10: released {released:?} where it is {groups:?}"
        );
        Ok(!fenced.is_empty() || !released.is_empty())
    }

    /// A group of partitions revoked together none of which has anything left to wait for.
    pub(crate) fn group_that_is_over(&self) -> Option<u64> {
        let drains = || self.partitions.iter().filter(|p| p.drain.is_some());
        let group_of = |p: &crate::books::PartitionBook| p.drain.as_ref().map(|d| d.group);
        drains().filter_map(group_of).find(|group| {
            drains()
                .filter(|p| group_of(p) == Some(*group))
                .all(|p| p.is_over(self.now))
        })
    }

    fn release(&mut self, group: u64) -> Vec<Report> {
        let mut released = Vec::new();
        for p in 0..self.partitions.len() {
            let book = &mut self.partitions[p];
            let Some(drain) = book.drain.take_if(|drain| drain.group == group) else {
                continue;
            };
            let (Some(e), Some(fenced)) = (book.current.take(), drain.fenced) else {
                continue;
            };
            let report = (
                book.tp.clone(),
                book.epochs[e].acked,
                fenced.last.map(|(offset, _)| offset),
                fenced.cut,
            );
            self.happened(p, Event::Release, &|| format!("{report:?}"));
            released.push(report);
        }
        released
    }
}

/// Partition, committed, not committed, cut.
type Report = (TopicPartition, Option<i64>, Option<i64>, usize);

fn report(released: &Released) -> Report {
    (
        released.tp.clone(),
        released.committed,
        released.not_committed,
        released.cut,
    )
}
