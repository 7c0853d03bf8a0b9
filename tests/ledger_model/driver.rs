//! A driver that never looks around by itself: it asks for room, sends commits and steps drains only when an
//! [`Effects`], the answer to a commit or its timer tells it to. It has no tick. If a single wake-up is missed, it
//! sleeps for ever with messages left in the log, and the test says so.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tower_consumer::ledger::{
    Begin, Commit, CommitFailure, Config, Effects, Epoch, Kind, Ledger, Phase, Reason, Room, Stage,
    Start, Ticket, TopicPartition, Verdict,
};

use crate::rng::Rng;
use crate::world::{Checked, ensure};

/// A partition as the broker has it, and the epoch in which it is read.
#[derive(Debug)]
struct Log {
    tp: TopicPartition,
    offsets: Vec<i64>,
    finished: Vec<bool>,
    committed: Option<i64>,
    /// Index into `offsets` of what is read next.
    position: usize,
    epoch: Option<Arc<Epoch>>,
}

impl Log {
    fn is_read_to_the_end(&self) -> bool {
        let end = self.offsets.last().map(|last| last + 1);
        self.position == self.offsets.len()
            && self.finished.iter().all(|finished| *finished)
            && self.committed == end
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Waiting,
    Running,
    Ended(bool),
    Publishing,
}

/// A message in the hands of a handler.
#[derive(Debug)]
struct Work {
    p: usize,
    index: usize,
    epoch: Arc<Epoch>,
    ticket: Ticket,
    step: Step,
}

#[derive(Debug)]
struct Driver {
    ledger: Ledger,
    rng: Rng,
    now: Instant,
    logs: Vec<Log>,
    work: Vec<Work>,
    out: Vec<Commit>,
    timer: Option<Instant>,
    rebalances_left: usize,
    failures_left: usize,
    /// The handlers of this partition do not end before all others have.
    stuck: Option<usize>,
}

/// Reads logs to their end through handlers, failures and rebalances, all as `seed` says.
pub(crate) fn drive(seed: u64) -> Checked {
    let mut driver = Driver::new(seed);
    for _ in 0..20_000 {
        if driver.happen()? {
            continue;
        }
        let Some(stuck) = driver.stuck.take() else {
            return driver.is_at_the_end(None);
        };
        driver.is_at_the_end(Some(stuck))?;
    }
    Err("it never comes to rest".to_owned())
}

impl Driver {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut config = Config::default();
        config.window_messages = 1 + rng.below(8);
        config.window_bytes = 1 + rng.below(60) as u64;
        config.in_flight_messages = 1 + rng.below(20);
        config.in_flight_bytes = 1 + rng.below(120) as u64;
        let logs: Vec<Log> = (0..2 + rng.below(2) as i32)
            .map(|n| {
                let mut next = rng.pick(&[0, 3]);
                let offsets: Vec<i64> = (0..4 + rng.below(16))
                    .map(|_| {
                        next += 1 + rng.pick(&[0, 0, 0, 1, 5]);
                        next - 1
                    })
                    .collect();
                Log {
                    tp: TopicPartition::new("orders", n),
                    finished: vec![false; offsets.len()],
                    offsets,
                    committed: None,
                    position: 0,
                    epoch: None,
                }
            })
            .collect();
        let stuck = rng.one_in(3).then(|| rng.below(logs.len()));
        let calm = stuck.is_some();
        Driver {
            ledger: Ledger::new(config),
            now: Instant::now(),
            logs,
            work: Vec::new(),
            out: Vec::new(),
            timer: None,
            rebalances_left: if calm { 0 } else { rng.below(4) },
            failures_left: if calm { 0 } else { rng.below(4) },
            stuck,
            rng,
        }
    }

    fn is_at_the_end(&self, except: Option<usize>) -> Checked {
        for (p, log) in self.logs.iter().enumerate() {
            ensure!(
                Some(p) == except || log.is_read_to_the_end(),
                "nobody wakes the driver any more, and {} is read up to index {} of {:?}, committed {:?}",
                log.tp,
                log.position,
                log.offsets,
                log.committed
            );
        }
        ensure!(
            except.is_some() || !self.ledger.draining(),
            "a drain was not released"
        );
        ensure!(
            except.is_some() || self.ledger.in_flight() == (0, 0),
            "in flight {:?} at the end",
            self.ledger.in_flight()
        );
        Ok(())
    }

    /// One thing happens in the world around the driver; `false` if nothing can.
    fn happen(&mut self) -> Checked<bool> {
        self.now += Duration::from_millis(self.rng.pick(&[0, 0, 1, 30]));
        if self.timer.is_some_and(|at| at <= self.now) {
            self.timer = None;
            self.step()?;
            return Ok(true);
        }
        let movable = |work: &Work| Some(work.p) != self.stuck;
        let works: Vec<usize> = (0..self.work.len())
            .filter(|n| movable(&self.work[*n]))
            .collect();
        let unassigned = self.logs.iter().position(|log| log.epoch.is_none());
        let mut choices = Vec::new();
        choices.extend((!works.is_empty()).then_some((0, 12)));
        choices.extend((!self.out.is_empty()).then_some((1, 4)));
        choices.extend(unassigned.map(|_| (2, 2)));
        let rebalance = self.rebalances_left > 0 && !works.is_empty();
        choices.extend(rebalance.then_some((3, 1)));
        if choices.is_empty() {
            let Some(at) = self.timer else {
                return Ok(false);
            };
            self.now = self.now.max(at);
            return Ok(true);
        }
        match self.rng.weighted(&choices) {
            0 => {
                let n = self.rng.pick(&works);
                self.work_on(n)?;
            }
            1 => {
                let n = self.rng.below(self.out.len());
                self.answer(n)?;
            }
            2 => self.assign(unassigned.unwrap_or(0))?,
            _ => self.rebalance()?,
        }
        Ok(true)
    }

    fn assign(&mut self, p: usize) -> Checked {
        let log = &mut self.logs[p];
        let start = match log.committed {
            Some(offset) => Start::Committed(offset),
            None if self.rng.one_in(2) => Start::Pin(log.offsets[0]),
            None => Start::Unknown,
        };
        let at = log.committed.unwrap_or(0);
        log.position = log
            .offsets
            .iter()
            .take_while(|offset| **offset < at)
            .count();
        if self.rng.one_in(2) {
            self.ledger.rebalanced();
        }
        log.epoch = Some(self.ledger.assign(&log.tp, start, self.now));
        self.fill()
    }

    fn rebalance(&mut self) -> Checked {
        self.rebalances_left -= 1;
        let p = self.rng.below(self.logs.len());
        let log = &mut self.logs[p];
        if self.rng.one_in(3) {
            self.ledger.lose([&log.tp]);
            log.epoch = None;
            self.arm();
            return Ok(());
        }
        self.revoke(p)
    }

    fn revoke(&mut self, p: usize) -> Checked {
        let budget = Duration::from_millis(self.rng.pick(&[0, 40, 1_000, 30_000]));
        self.ledger.revoke([&self.logs[p].tp], budget, self.now);
        self.step()
    }

    /// A handler gets on with one message.
    fn work_on(&mut self, n: usize) -> Checked {
        let work = &mut self.work[n];
        let (epoch, ticket) = (work.epoch.clone(), work.ticket);
        match work.step {
            Step::Waiting | Step::Ended(false)
                if work.step == Step::Waiting || self.rng.one_in(2) =>
            {
                match epoch.begin(ticket) {
                    Begin::Started(_) => work.step = Step::Running,
                    Begin::Stopped(effects) => {
                        self.follow(effects)?;
                        return self.settle(n, Verdict::NotFinished(Reason::Cut));
                    }
                }
                Ok(())
            }
            Step::Running => {
                let ok = !self.rng.one_in(4);
                work.step = Step::Ended(ok);
                let effects = epoch.end(ticket, ok);
                self.follow(effects)
            }
            Step::Ended(true) => self.settle(n, Verdict::Finished(Kind::Done)),
            Step::Publishing => {
                self.settle(n, Verdict::Finished(Kind::DeadLettered))?;
                let effects = epoch.unhold(ticket);
                self.follow(effects)
            }
            _ if self.failures_left > 0 => {
                self.failures_left -= 1;
                self.settle(n, Verdict::NotFinished(Reason::Failed))
            }
            _ => {
                epoch.hold(ticket, Some(Phase::DeadLettering));
                work.step = Step::Publishing;
                Ok(())
            }
        }
    }

    fn settle(&mut self, n: usize, verdict: Verdict) -> Checked {
        let work = self.work.swap_remove(n);
        let settlement = work.epoch.settle(work.ticket, verdict);
        let finished = settlement.verdict.is_some_and(Verdict::is_finished);
        self.logs[work.p].finished[work.index] |= finished;
        self.follow(settlement.effects)?;
        if settlement.live && !finished {
            // deliver it again: give the partition up and read on from its watermark
            return self.revoke(work.p);
        }
        Ok(())
    }

    /// Does what it is told, and no more.
    fn follow(&mut self, effects: Effects) -> Checked {
        if effects.room {
            self.fill()?;
        }
        if effects.dirty {
            self.arm();
        }
        if effects.urgent {
            self.send()?;
        }
        if effects.idle {
            self.step()?;
        }
        Ok(())
    }

    fn arm(&mut self) {
        self.timer = self.ledger.next_timeout(self.now);
    }

    /// Takes from every partition what there is room for.
    fn fill(&mut self) -> Checked {
        for (p, log) in self.logs.iter_mut().enumerate() {
            let Some(epoch) = &log.epoch else { continue };
            while log.position < log.offsets.len() && epoch.room() == Room::Free {
                let bytes = self.rng.pick(&[0, 1, 7, 25]);
                let delivered = epoch.deliver(log.offsets[log.position], bytes, self.now);
                let delivered = delivered.map_err(|error| error.to_string())?;
                self.work.push(Work {
                    p,
                    index: log.position,
                    epoch: epoch.clone(),
                    ticket: delivered.ticket,
                    step: Step::Waiting,
                });
                log.position += 1;
            }
        }
        // what was refused may make a commit urgent
        self.arm();
        Ok(())
    }

    fn send(&mut self) -> Checked {
        for commit in self.ledger.take_commits(self.now) {
            ensure!(
                self.out.iter().all(|out| out.tp != commit.tp),
                "promise 4: two commits of {} are out",
                commit.tp
            );
            self.out.push(commit);
        }
        self.arm();
        Ok(())
    }

    fn step(&mut self) -> Checked {
        let drained = self.ledger.drain_step(self.now);
        for released in drained.released.into_iter().flatten() {
            let log = self.logs.iter_mut().find(|log| log.tp == released.tp);
            let log = log.ok_or("released what was never assigned")?;
            let epoch = log.epoch.take().ok_or("released twice")?;
            ensure!(epoch.stage() == Stage::Fenced, "released before the fence");
        }
        self.send()
    }

    fn answer(&mut self, n: usize) -> Checked {
        let commit = self.out.swap_remove(n);
        let result = match self.rng.below(8) {
            0 | 1 => Err(CommitFailure::Transient),
            2 => Err(CommitFailure::Permanent),
            _ => Ok(()),
        };
        if result.is_ok() {
            let log = self.logs.iter_mut().find(|log| log.tp == commit.tp);
            let log = log.ok_or("a commit of what was never assigned")?;
            let below = log
                .offsets
                .iter()
                .take_while(|offset| **offset < commit.offset);
            let passed = below.count();
            ensure!(
                log.finished[..passed].iter().all(|finished| *finished),
                "promise 1: {} is committed over what never finished",
                commit.offset
            );
            log.committed = Some(commit.offset);
        }
        let outcome = self.ledger.commit_ended(&commit, result, self.now);
        self.follow(outcome.effects)?;
        self.step()
    }
}
