//! The ring of delivered messages of one epoch, and the watermark over it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::{Phase, Reason, Verdict};

/// Resolution of a slot's hand-out time. Coarse, so that 32 bits last more than a year.
const TICK_MS: u64 = 8;

const FINISHED: u8 = 0b0001;
const NOT_FINISHED: u8 = 0b0010;
/// Some attempt of this delivery ended `Ok`.
const ATTEMPT_OK: u8 = 0b0100;
/// An attempt ended `Ok`, and the layers around it have not answered yet.
const FINISHING: u8 = 0b1000;
/// The upper half holds the phase of a message without a verdict, the reason of one that did not finish.
const NIBBLE: u8 = 4;
const LOW: u8 = 0b1111;

/// What is kept of one delivered message: 16 bytes, however large its payload was.
#[derive(Clone, Copy, Debug)]
struct Slot {
    offset: i64,
    /// Hand-out time in ticks since the epoch began; wraps.
    since: u32,
    attempts: u16,
    /// Running attempts, guards and produces that are out.
    busy: u8,
    bits: u8,
}

const _: () = assert!(size_of::<Slot>() == 16);

impl Slot {
    fn is_settled(&self) -> bool {
        self.bits & (FINISHED | NOT_FINISHED) != 0
    }

    /// What was noted last. Work that is out hides it until it ends: an attempt that runs, or one that left work behind.
    fn phase(&self) -> Phase {
        if self.is_settled() {
            return Phase::Settled;
        }
        match self.noted() {
            _ if self.bits & FINISHING != 0 && self.busy == 1 => Phase::Finishing,
            noted if noted == Phase::DeadLettering || self.busy == 0 || self.attempts == 0 => noted,
            _ => Phase::Running,
        }
    }

    fn noted(&self) -> Phase {
        Phase::from_bits(self.bits >> NIBBLE)
    }

    fn set_phase(&mut self, phase: Phase) {
        self.bits = self.bits & LOW | phase.to_bits() << NIBBLE;
    }

    fn take(&mut self) {
        self.busy = self.busy.saturating_add(1);
    }

    /// A count that has reached its end is lost: the message stays busy until its verdict.
    fn give_back(&mut self) {
        if self.busy < u8::MAX {
            self.busy = self.busy.saturating_sub(1);
        }
    }

    fn reason(&self) -> Option<Reason> {
        (self.bits & NOT_FINISHED != 0).then(|| Reason::from_bits(self.bits >> NIBBLE))
    }
}

/// The message that holds the watermark: the first delivered one that is not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Its offset.
    pub offset: i64,
    /// Time since it was handed out, rounded to 8 ms.
    pub age: Duration,
    /// Where it is on its way.
    pub phase: Phase,
    /// How many attempts have begun.
    pub attempts: u32,
    /// Why it did not finish, if it already has that verdict.
    pub reason: Option<Reason>,
    pub(super) seq: u64,
}

/// A position of the watermark: what would be committed, and how many deliveries it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// The next offset to read.
    pub(super) offset: i64,
    /// Every delivery with a lower sequence number is finished.
    pub(super) seq: u64,
}

#[derive(Debug)]
pub(super) struct Window {
    slots: VecDeque<Slot>,
    /// Sequence number of `slots[0]`.
    base: u64,
    last: Option<i64>,
    started: Instant,
    /// Deliveries without a verdict.
    unsettled: usize,
}

impl Window {
    pub(super) fn new(started: Instant) -> Self {
        Window {
            slots: VecDeque::new(),
            base: 0,
            last: None,
            started,
            unsettled: 0,
        }
    }

    pub(super) fn last(&self) -> Option<i64> {
        self.last
    }

    /// Sequence number of the next delivery: how many there have been.
    pub(super) fn next_seq(&self) -> u64 {
        self.base + self.slots.len() as u64
    }

    pub(super) fn unsettled(&self) -> usize {
        self.unsettled
    }

    /// The caller has checked that `offset` is above the last one.
    pub(super) fn push(&mut self, offset: i64, now: Instant) -> u64 {
        let seq = self.next_seq();
        self.slots.push_back(Slot {
            offset,
            since: self.ticks(now) as u32,
            attempts: 0,
            busy: 0,
            bits: Phase::Delivered.to_bits() << NIBBLE,
        });
        self.last = Some(offset);
        self.unsettled += 1;
        seq
    }

    /// The watermark walks over what was delivered, never over the integers.
    pub(super) fn mark(&self) -> Option<Mark> {
        let offset = match self.slots.front() {
            Some(slot) => slot.offset,
            None => self.last?.saturating_add(1),
        };
        Some(Mark {
            offset,
            seq: self.base,
        })
    }

    /// Writes a verdict; `None` if this delivery already has one.
    pub(super) fn settle(&mut self, seq: u64, verdict: Verdict) -> Option<Left> {
        let slot = self.slot_mut(seq)?;
        if slot.is_settled() {
            return None;
        }
        let left = Left {
            finishing: slot.bits & FINISHING != 0,
            moved: false,
        };
        let keep = slot.bits & ATTEMPT_OK;
        slot.bits = match verdict {
            Verdict::Finished(_) => keep | FINISHED,
            Verdict::NotFinished(reason) => keep | NOT_FINISHED | reason.to_bits() << NIBBLE,
        };
        if left.finishing {
            slot.give_back();
        }
        self.unsettled -= 1;
        let before = self.base;
        while self.slots.front().is_some_and(|s| s.bits & FINISHED != 0) {
            self.slots.pop_front();
            self.base += 1;
        }
        if self.slots.capacity() > 1024 && self.slots.len() * 8 < self.slots.capacity() {
            self.slots.shrink_to(self.slots.len() * 2);
        }
        Some(Left {
            moved: self.base != before,
            ..left
        })
    }

    /// Notes the start of an attempt. `None` if the message already has its verdict.
    pub(super) fn begin(&mut self, seq: u64) -> Option<Begun> {
        let slot = self.open_slot(seq)?;
        let was_finishing = slot.bits & FINISHING != 0;
        slot.bits &= !FINISHING;
        if !was_finishing {
            slot.take();
        }
        slot.attempts = slot.attempts.saturating_add(1);
        slot.set_phase(Phase::Running);
        Some(Begun {
            attempt: u32::from(slot.attempts),
            was_finishing,
        })
    }

    /// Takes back what [`FINISHING`] holds. Whether there was anything.
    pub(super) fn unfinish(&mut self, seq: u64) -> bool {
        match self.open_slot(seq) {
            Some(slot) if slot.bits & FINISHING != 0 => {
                slot.bits &= !FINISHING;
                slot.give_back();
                slot.set_phase(Phase::Retrying);
                true
            }
            _ => false,
        }
    }

    /// Notes the end of an attempt. Whether its share of `busy` is free now: an attempt that ended `Ok` hands it to
    /// what the layers around it still have to do.
    pub(super) fn end(&mut self, seq: u64, ok: bool) -> bool {
        let Some(slot) = self.open_slot(seq) else {
            return true;
        };
        if ok {
            slot.bits |= ATTEMPT_OK;
            if slot.bits & FINISHING == 0 {
                slot.bits |= FINISHING;
                return false;
            }
        }
        slot.give_back();
        slot.set_phase(Phase::AttemptFailed);
        true
    }

    /// Adds a guard or a produce.
    pub(super) fn hold(&mut self, seq: u64) {
        if let Some(slot) = self.open_slot(seq) {
            slot.take();
        }
    }

    pub(super) fn unhold(&mut self, seq: u64) {
        if let Some(slot) = self.open_slot(seq) {
            slot.give_back();
        }
    }

    /// A note never hides a running attempt: it shows when nothing is out any more.
    pub(super) fn note(&mut self, seq: u64, phase: Phase) {
        if let Some(slot) = self.open_slot(seq) {
            slot.set_phase(phase);
        }
    }

    /// Phase, attempts, whether work is out, and whether an attempt ended `Ok`.
    pub(super) fn view(&self, seq: u64) -> Option<View> {
        self.slot(seq).map(|slot| View {
            phase: slot.phase(),
            is_due: !slot.is_settled() && slot.noted() == Phase::Retrying,
            attempts: u32::from(slot.attempts),
            busy: slot.busy > 0,
            attempt_ok: slot.bits & ATTEMPT_OK != 0,
        })
    }

    pub(super) fn head(&self, now: Instant) -> Option<Head> {
        let slot = self.slots.front()?;
        Some(Head {
            offset: slot.offset,
            age: now.saturating_duration_since(self.since(slot, now)),
            phase: slot.phase(),
            attempts: u32::from(slot.attempts),
            reason: slot.reason(),
            seq: self.base,
        })
    }

    /// When the head was handed out, seen from `now`.
    pub(super) fn head_since(&self, now: Instant) -> Option<Instant> {
        self.slots.front().map(|slot| self.since(slot, now))
    }

    fn since(&self, slot: &Slot, now: Instant) -> Instant {
        let now = self.ticks(now);
        let age = u64::from((now as u32).wrapping_sub(slot.since));
        // another thread may have read the clock a little earlier than the hand-out did: age 0, not a year
        let age = if age > u64::from(u32::MAX) - 1024 {
            0
        } else {
            age
        };
        self.started + Duration::from_millis(now.saturating_sub(age) * TICK_MS)
    }

    fn ticks(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.started).as_millis() as u64 / TICK_MS
    }

    fn slot(&self, seq: u64) -> Option<&Slot> {
        self.slots
            .get(usize::try_from(seq.checked_sub(self.base)?).ok()?)
    }

    fn slot_mut(&mut self, seq: u64) -> Option<&mut Slot> {
        self.slots
            .get_mut(usize::try_from(seq.checked_sub(self.base)?).ok()?)
    }

    fn open_slot(&mut self, seq: u64) -> Option<&mut Slot> {
        self.slot_mut(seq).filter(|slot| !slot.is_settled())
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Left {
    /// The settled message still held the share of an attempt that had ended `Ok`.
    pub(super) finishing: bool,
    /// The watermark moved.
    pub(super) moved: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    pub(super) attempt: u32,
    pub(super) was_finishing: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub(crate) phase: Phase,
    /// An attempt is due after a backoff, whatever else is out.
    pub(crate) is_due: bool,
    pub(crate) attempts: u32,
    pub(crate) busy: bool,
    pub(crate) attempt_ok: bool,
}
