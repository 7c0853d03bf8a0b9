//! A ledger and the naive books beside it: the same events go into both, and everything that can be asked of the one is
//! compared with the other.

use std::time::{Duration, Instant};

use tower_consumer::ledger::{Config, Kind, Ledger, Reason, Verdict};

use crate::books::PartitionBook;
use crate::pairs::{Event, Pairs};
use crate::rng::Rng;

/// `Err` says which promise was broken.
pub(crate) type Checked<T = ()> = Result<T, String>;

macro_rules! ensure {
    ($holds:expr, $($said:tt)+) => {
        if !$holds {
            return Err(format!($($said)+));
        }
    };
}
pub(crate) use ensure;

/// What the walk tries. Which [`Event`] comes of it depends on the state it finds.
#[derive(Clone, Copy, Debug)]
enum Action {
    Assign,
    Deliver,
    Falling,
    Begin,
    End,
    Hold,
    Unhold,
    Settle,
    SettleTwice,
    Revoke,
    Lose,
    TakeCommits,
    CommitEnded,
    AnswerTwice,
    DrainStep,
    Wake,
    Rebalanced,
    Time,
}

const ACTIONS: &[(Action, usize)] = &[
    (Action::Assign, 10),
    (Action::Deliver, 12),
    (Action::Falling, 8),
    (Action::Begin, 9),
    (Action::End, 11),
    (Action::Hold, 3),
    (Action::Unhold, 3),
    (Action::Settle, 16),
    (Action::SettleTwice, 3),
    (Action::Revoke, 4),
    (Action::Lose, 1),
    (Action::TakeCommits, 12),
    (Action::CommitEnded, 9),
    (Action::AnswerTwice, 2),
    (Action::DrainStep, 6),
    (Action::Wake, 2),
    (Action::Rebalanced, 1),
    (Action::Time, 3),
];

/// How the verdicts came out, by the naive books.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) delivered: u64,
    pub(crate) kinds: [u64; 3],
    pub(crate) reasons: [u64; Reason::ALL.len()],
    pub(crate) late: u64,
}

impl Tally {
    pub(crate) fn count(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Finished(kind) => self.kinds[kind as usize] += 1,
            Verdict::NotFinished(reason) => self.reasons[reason as usize] += 1,
        }
    }
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) ledger: Ledger,
    pub(crate) config: Config,
    pub(crate) started: Instant,
    pub(crate) now: Instant,
    pub(crate) partitions: Vec<PartitionBook>,
    pub(crate) tally: Tally,
    /// Until then only last commits go out.
    pub(crate) held_until: Option<Instant>,
    pub(crate) next_group: u64,
    /// Somebody was refused because of what is in flight over all, and none was told since that there is room.
    pub(crate) refused_in_flight: bool,
    /// The last event of each partition.
    before: Vec<Option<Event>>,
    pub(crate) pairs: Pairs,
    /// What happened, for people; kept only when a failing case is told.
    pub(crate) story: Option<Vec<String>>,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut config = Config::default();
        config.window_messages = 1 + rng.below(6);
        config.window_bytes = 1 + rng.below(40) as u64;
        config.in_flight_messages = 1 + rng.below(10);
        config.in_flight_bytes = 1 + rng.below(80) as u64;
        let now = Instant::now();
        let partitions: Vec<_> = (0..2 + rng.below(2) as i32)
            .map(|n| PartitionBook::new(n, now))
            .collect();
        World {
            ledger: Ledger::new(config.clone()),
            config,
            started: now,
            now,
            before: vec![None; partitions.len()],
            partitions,
            tally: Tally::default(),
            held_until: None,
            next_group: 1,
            refused_in_flight: false,
            pairs: Pairs::default(),
            story: None,
        }
    }

    /// One random event: what `word` says, or the next best that is possible here.
    pub(crate) fn step(&mut self, word: u64) -> Checked {
        let mut rng = Rng::new(word);
        for _ in 0..64 {
            let action = rng.weighted(ACTIONS);
            let p = rng.below(self.partitions.len());
            if self.act(action, p, &mut rng)? {
                return self.compare();
            }
        }
        Ok(())
    }

    /// Whether the action was possible.
    fn act(&mut self, action: Action, p: usize, rng: &mut Rng) -> Checked<bool> {
        match action {
            Action::Assign => self.assign(p, rng),
            Action::Deliver => self.deliver(p, rng),
            Action::Falling => self.deliver_falling(p, rng),
            Action::Begin => self.begin(p, rng),
            Action::End => self.end(p, rng),
            Action::Hold => self.hold(p, rng),
            Action::Unhold => self.unhold(p, rng),
            Action::Settle => self.settle(p, rng),
            Action::SettleTwice => self.settle_twice(p, rng),
            Action::Revoke => self.revoke(p, rng),
            Action::Lose => self.lose(p, rng),
            Action::TakeCommits => self.take_commits(),
            Action::CommitEnded => self.commit_ended(p, rng),
            Action::AnswerTwice => self.answer_twice(p),
            Action::DrainStep => self.drain_step(),
            Action::Wake => self.wake(),
            Action::Rebalanced => self.rebalanced(),
            Action::Time => self.time(rng),
        }
    }

    pub(crate) fn happened(&mut self, p: usize, event: Event, what: &dyn Fn() -> String) {
        if let Some(before) = self.before[p].replace(event) {
            self.pairs.count(before, event);
        }
        if let Some(story) = &mut self.story {
            let at = self.now.duration_since(self.started);
            story.push(format!("{at:>9.3?} p{p} {}: {}", event.label(), what()));
        }
    }

    fn happened_to_all(&mut self, event: Event) {
        for p in 0..self.partitions.len() {
            self.happened(p, event, &String::new);
        }
    }

    fn rebalanced(&mut self) -> Checked<bool> {
        self.ledger.rebalanced();
        self.held_until = None;
        self.happened_to_all(Event::Rebalanced);
        Ok(true)
    }

    fn time(&mut self, rng: &mut Rng) -> Checked<bool> {
        let ms = rng.pick(&[1, 20, 99, 100, 400, 800, 1_000, 4_000, 5_000, 31_000]);
        let next = self.ledger.next_timeout(self.now);
        self.now = match next.filter(|next| *next > self.now) {
            Some(next) if rng.one_in(2) => next,
            Some(next) if rng.one_in(4) => self.now.max(next - Duration::from_millis(1)),
            _ => self.now + Duration::from_millis(ms),
        };
        self.happened_to_all(Event::Time);
        Ok(true)
    }

    pub(crate) fn in_flight(&self) -> (u64, u64) {
        let (mut messages, mut bytes) = (0, 0);
        for book in &self.partitions {
            for epoch in &book.epochs {
                for delivery in &epoch.deliveries {
                    if !delivery.settled {
                        messages += 1;
                        bytes += delivery.bytes as u64;
                    }
                }
            }
        }
        (messages, bytes)
    }

    /// The ledger and the books say the same.
    pub(crate) fn compare(&self) -> Checked {
        for book in &self.partitions {
            let known = self.ledger.epoch(&book.tp).map(|epoch| epoch.id());
            let epoch = book.epoch();
            ensure!(
                known == epoch.map(|e| e.handle.id()),
                "{} has another epoch",
                book.tp
            );
            let Some(epoch) = epoch else { continue };
            let handle = &epoch.handle;
            let watermark = epoch.watermark();
            ensure!(
                handle.watermark() == watermark,
                "promise 2: watermark {:?} where the first unfinished delivery is {watermark:?}",
                handle.watermark()
            );
            ensure!(handle.stage() == epoch.stage, "stage {:?}", handle.stage());
            ensure!(
                handle.committed() == epoch.acked,
                "committed {:?}, acknowledged was {:?}",
                handle.committed(),
                epoch.acked
            );
            ensure!(
                handle.unsettled() == epoch.unsettled() && handle.busy() == epoch.busy(),
                "promise 6: {} unsettled, {} busy, where it is {} and {}",
                handle.unsettled(),
                handle.busy(),
                epoch.unsettled(),
                epoch.busy()
            );
            ensure!(
                handle.uncovered() == epoch.uncovered() as u64,
                "promise 11: {} uncovered where it is {}",
                handle.uncovered(),
                epoch.uncovered()
            );
            // said once more without any bookkeeping: what a crash would deliver again, and what it would not
            let acked = epoch.acked.unwrap_or(0);
            let (mut again, mut largest) = (0, 1);
            for delivery in &epoch.deliveries {
                let offset = delivery.offset;
                again += usize::from(offset >= acked);
                largest = largest.max(delivery.bytes);
                // what was committed before anything was delivered is nobody's fault
                let below_floor = epoch.floor.is_some_and(|floor| offset < floor);
                ensure!(
                    delivery.finished || acked <= offset || below_floor,
                    "promise 1: {acked} is committed over {offset}, which is not finished"
                );
            }
            ensure!(
                again <= self.config.window_messages,
                "promise 11: more than a window is not covered by an acknowledged commit"
            );
            let bytes = epoch.unsettled_bytes();
            ensure!(
                (bytes as u64) < self.config.window_bytes + largest as u64,
                "promise 9: {bytes} bytes, more than one message over the window"
            );
        }
        ensure!(
            self.ledger.in_flight() == self.in_flight(),
            "promise 6: {:?} in flight where it is {:?}",
            self.ledger.in_flight(),
            self.in_flight()
        );
        self.compare_counts()
    }

    fn compare_counts(&self) -> Checked {
        let counts = self.ledger.counts();
        let kinds = [counts.done, counts.skipped, counts.dead_lettered];
        let reasons = Reason::ALL.map(|reason| counts.not_finished(reason));
        ensure!(
            counts.delivered == self.tally.delivered
                && kinds == self.tally.kinds
                && reasons == self.tally.reasons,
            "counted {counts:?} where it is {:?}",
            self.tally
        );
        ensure!(
            counts.late == self.tally.late,
            "promise 3: {} late verdicts counted where there were {}",
            counts.late,
            self.tally.late
        );
        Ok(())
    }

    /// Ends all that is open, lets every commit succeed and time pass, and looks at what is left.
    pub(crate) fn finish(&mut self) -> Checked {
        for p in 0..self.partitions.len() {
            for e in 0..self.partitions[p].epochs.len() {
                for d in 0..self.partitions[p].epochs[e].deliveries.len() {
                    self.finish_delivery(p, e, d)?;
                }
            }
        }
        self.compare()?;
        ensure!(
            self.ledger.in_flight() == (0, 0),
            "promise 6: in flight {:?} after the last verdict",
            self.ledger.in_flight()
        );
        for epoch in self.partitions.iter().flat_map(|p| &p.epochs) {
            ensure!(
                epoch.handle.busy() == 0,
                "promise 6: still busy after the last end"
            );
        }
        self.come_to_rest()?;
        for book in &self.partitions {
            ensure!(
                book.drain.is_none(),
                "promise 10: {} was not released",
                book.tp
            );
            let Some(epoch) = book.epoch() else { continue };
            ensure!(
                epoch.to_commit().is_none() && epoch.pin.is_none(),
                "promise 4: at rest, and {:?} is not committed",
                epoch.to_commit()
            );
            if epoch.deliveries.iter().all(|d| d.finished) {
                let end = epoch.last().map(|last| last + 1);
                ensure!(
                    epoch.handle.committed() >= end && epoch.handle.uncovered() == 0,
                    "promise 11: all is finished, {:?} is committed where {end:?} should be",
                    epoch.handle.committed()
                );
                ensure!(
                    epoch.handle.room() == tower_consumer::ledger::Room::Free,
                    "promise 11: an empty window has no room"
                );
            }
        }
        Ok(())
    }

    fn finish_delivery(&mut self, p: usize, e: usize, d: usize) -> Checked {
        while self.partitions[p].epochs[e].deliveries[d].running > 0 {
            self.end_attempt(p, e, d, true)?;
        }
        while self.partitions[p].epochs[e].deliveries[d].holds > 0 {
            self.unhold_one(p, e, d)?;
        }
        let delivery = &self.partitions[p].epochs[e].deliveries[d];
        if !delivery.settled {
            let kind = if delivery.attempt_ok {
                Kind::Done
            } else {
                Kind::DeadLettered
            };
            self.give_verdict(p, e, d, Verdict::Finished(kind))?;
        }
        Ok(())
    }

    /// A driver that only follows `next_timeout` and the answers to its commits.
    fn come_to_rest(&mut self) -> Checked {
        for _ in 0..64 {
            for p in 0..self.partitions.len() {
                self.answer(p, Ok(()))?;
            }
            self.wake()?;
            let next = self.ledger.next_timeout(self.now);
            if self.partitions.iter().any(|p| p.out.is_some()) {
                continue;
            }
            match next {
                Some(next) => {
                    self.now = next;
                    self.happened_to_all(Event::Time);
                }
                None => return self.compare(),
            }
        }
        Err("promise 4: it does not come to rest".to_owned())
    }
}
