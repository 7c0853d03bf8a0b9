//! The naive books: plain lists of what was delivered, and everything recomputed from them by brute force.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tower_consumer::ledger::{
    Commit, CommitFailure, Config, Epoch, Room, Stage, Start, Ticket, TopicPartition,
};

/// One delivered message and all that is known of it.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    pub(crate) offset: i64,
    pub(crate) bytes: usize,
    pub(crate) ticket: Ticket,
    pub(crate) attempts: u32,
    pub(crate) running: usize,
    pub(crate) holds: usize,
    /// Some attempt ended `Ok`.
    pub(crate) attempt_ok: bool,
    /// An attempt ended `Ok` and no verdict was given since: the layers around it are still at work.
    pub(crate) finishing: bool,
    /// It was given a verdict, too late or not.
    pub(crate) settled: bool,
    /// Its verdict was "finished", and given before the fence.
    pub(crate) finished: bool,
}

impl Delivery {
    pub(crate) fn busy(&self) -> usize {
        self.running + self.holds + usize::from(self.finishing)
    }
}

/// One assignment of one partition.
#[derive(Debug)]
pub(crate) struct EpochBook {
    pub(crate) handle: Arc<Epoch>,
    pub(crate) stage: Stage,
    /// The start position that is not committed yet.
    pub(crate) pin: Option<i64>,
    /// The highest offset known to be committed.
    pub(crate) acked: Option<i64>,
    /// What was committed, or was to be, when the epoch began.
    pub(crate) floor: Option<i64>,
    /// How many deliveries, counted from the first, `acked` covers.
    pub(crate) covered: usize,
    pub(crate) deliveries: Vec<Delivery>,
    /// The last answer of `room` was that there are too many messages, and none came since that there is room.
    pub(crate) refused_full: bool,
    /// Some answer of `room` was that the window is full.
    pub(crate) was_refused: bool,
    /// What was handed out to be committed, and whether the answer was "failed".
    pub(crate) sent: Vec<(i64, bool)>,
}

impl EpochBook {
    pub(crate) fn new(handle: Arc<Epoch>, start: Start) -> Self {
        let (acked, pin) = match start {
            Start::Committed(offset) => (Some(offset), None),
            Start::Pin(offset) => (None, Some(offset)),
            _ => (None, None),
        };
        EpochBook {
            handle,
            stage: Stage::Live,
            pin,
            acked,
            floor: acked.or(pin),
            covered: 0,
            deliveries: Vec::new(),
            refused_full: false,
            was_refused: false,
            sent: Vec::new(),
        }
    }

    pub(crate) fn last(&self) -> Option<i64> {
        self.deliveries.last().map(|d| d.offset)
    }

    /// How many deliveries, counted from the first, are finished.
    pub(crate) fn prefix(&self) -> usize {
        self.deliveries.iter().take_while(|d| d.finished).count()
    }

    pub(crate) fn watermark(&self) -> Option<i64> {
        match self.deliveries.iter().find(|d| !d.finished) {
            Some(first) => Some(first.offset),
            None => self.last().map(|last| last + 1),
        }
    }

    /// What a commit would be at this moment, and how many deliveries it would cover.
    pub(crate) fn to_commit(&self) -> Option<(i64, usize)> {
        if let Some(pin) = self.pin {
            return Some((pin, 0));
        }
        let (watermark, prefix) = (self.watermark()?, self.prefix());
        let is_new = prefix > self.covered && self.acked.is_none_or(|acked| watermark > acked);
        is_new.then_some((watermark, prefix))
    }

    /// A watermark at or below what is committed needs no commit: it is covered as it is.
    pub(crate) fn cover(&mut self) {
        if let (Some(watermark), Some(acked)) = (self.watermark(), self.acked)
            && watermark <= acked
        {
            self.covered = self.covered.max(self.prefix());
        }
    }

    pub(crate) fn acknowledge(&mut self, offset: i64, prefix: usize) {
        self.pin.take_if(|pin| *pin <= offset);
        self.acked = self.acked.max(Some(offset));
        self.covered = self.covered.max(prefix);
        self.cover();
    }

    pub(crate) fn busy(&self) -> usize {
        self.deliveries.iter().map(Delivery::busy).sum()
    }

    pub(crate) fn unsettled(&self) -> usize {
        self.deliveries.iter().filter(|d| !d.settled).count()
    }

    pub(crate) fn unsettled_bytes(&self) -> usize {
        let open = self.deliveries.iter().filter(|d| !d.settled);
        open.map(|d| d.bytes).sum()
    }

    pub(crate) fn uncovered(&self) -> usize {
        self.deliveries.len() - self.covered
    }

    pub(crate) fn room(&self, config: &Config, in_flight: (u64, u64)) -> Room {
        let bytes = self.unsettled_bytes() as u64;
        if self.stage != Stage::Live {
            Room::Closed
        } else if self.pin.is_some() {
            Room::NotPinned
        } else if self.uncovered() >= config.window_messages
            || bytes >= config.window_bytes && bytes > 0
        {
            Room::WindowFull
        } else if self.unsettled() > 0
            && (in_flight.0 >= config.in_flight_messages as u64
                || in_flight.1 >= config.in_flight_bytes)
        {
            Room::InFlightFull
        } else {
            Room::Free
        }
    }

    /// Whether a commit should not wait for the interval.
    pub(crate) fn is_urgent(&self, window: usize) -> bool {
        self.pin.is_some()
            || self.refused_full
            || self.prefix() - self.covered >= window.div_ceil(2)
    }
}

/// A commit that was handed out and not answered yet.
#[derive(Clone, Debug)]
pub(crate) struct Out {
    pub(crate) commit: Commit,
    /// Index of its epoch.
    pub(crate) epoch: usize,
    pub(crate) prefix: usize,
}

#[derive(Debug)]
pub(crate) struct Draining {
    pub(crate) group: u64,
    pub(crate) wait_until: Instant,
    pub(crate) deadline: Instant,
    pub(crate) fenced: Option<FencedBook>,
}

#[derive(Clone, Debug)]
pub(crate) struct FencedBook {
    /// The watermark at the fence, while it is not known to be committed.
    pub(crate) last: Option<(i64, usize)>,
    pub(crate) cut: usize,
    pub(crate) failures: u32,
    pub(crate) not_before: Option<Instant>,
}

/// One partition with all the epochs that it ever had.
#[derive(Debug)]
pub(crate) struct PartitionBook {
    pub(crate) tp: TopicPartition,
    pub(crate) epochs: Vec<EpochBook>,
    /// Index of the epoch that is live or being drained.
    pub(crate) current: Option<usize>,
    pub(crate) drain: Option<Draining>,
    pub(crate) out: Option<Out>,
    pub(crate) answered: Option<Commit>,
    pub(crate) failures: u32,
    pub(crate) retry_at: Option<Instant>,
    pub(crate) last_sent: Instant,
}

impl PartitionBook {
    pub(crate) fn new(partition: i32, now: Instant) -> Self {
        PartitionBook {
            tp: TopicPartition::new("orders", partition),
            epochs: Vec::new(),
            current: None,
            drain: None,
            out: None,
            answered: None,
            failures: 0,
            retry_at: None,
            last_sent: now,
        }
    }

    pub(crate) fn epoch(&self) -> Option<&EpochBook> {
        self.current.map(|e| &self.epochs[e])
    }

    pub(crate) fn stage(&self) -> Option<Stage> {
        self.epoch().map(|epoch| epoch.stage)
    }

    /// A watermark that may be sent: live, something new, and no other commit out.
    pub(crate) fn ready(&self) -> Option<(i64, usize)> {
        if self.drain.is_some() || self.out.is_some() {
            return None;
        }
        self.epoch()?.to_commit()
    }

    /// When that watermark has to be sent at the latest.
    pub(crate) fn due(&self, config: &Config, now: Instant) -> Option<Instant> {
        self.ready()?;
        let urgent = self.epoch()?.is_urgent(config.window_messages);
        Some(match self.retry_at {
            Some(at) => at,
            None if urgent => now,
            None => self.last_sent + config.commit_interval,
        })
    }

    /// The last commit of a fenced epoch, if it is to be sent now.
    pub(crate) fn last_commit(&self, now: Instant) -> Option<(i64, usize)> {
        let drain = self.drain.as_ref()?;
        let fenced = drain.fenced.as_ref()?;
        let may = self.out.is_none()
            && now < drain.deadline
            && fenced.not_before.is_none_or(|at| at <= now);
        fenced.last.filter(|_| may)
    }

    /// Whether there is nothing left to wait for in this drain.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.drain.as_ref().is_some_and(|drain| {
            let at_rest = |fenced: &FencedBook| fenced.last.is_none() && self.out.is_none();
            now >= drain.deadline || drain.fenced.as_ref().is_some_and(at_rest)
        })
    }
}

/// 100 ms doubling to 5 s; 30 s for what does not heal by itself.
pub(crate) fn backoff(kind: CommitFailure, failures: u32) -> Duration {
    match kind {
        CommitFailure::Transient => {
            Duration::from_millis((100 << (failures - 1).min(10)).min(5_000))
        }
        CommitFailure::Permanent => Duration::from_secs(30),
    }
}
