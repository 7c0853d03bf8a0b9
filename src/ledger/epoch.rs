//! The books of one assignment of one partition.

mod stalls;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::answers::{
    Begin, DeliverError, Delivered, Effects, EpochId, Judgement, Room, Stage, Ticket,
};
use super::in_flight::InFlight;
use super::window::{Head, Mark, View, Window};
use super::{Kind, Limits, Phase, Reason, TopicPartition, Verdict};

/// The books of one epoch, shared by everyone who holds one of its messages.
///
/// Every method is one step under one lock.
pub struct Epoch {
    id: EpochId,
    tp: TopicPartition,
    limits: Limits,
    in_flight: Arc<InFlight>,
    /// Copy of `Book::stage`, to be read without the lock. Only ever rises.
    stage: AtomicU8,
    book: Mutex<Book>,
}

struct Book {
    stage: Stage,
    window: Window,
    /// Attempts, guards and produces that are out, over the whole epoch.
    busy: usize,
    /// Payload bytes of deliveries without a verdict.
    bytes: u64,
    /// The highest offset known to be committed: acknowledged, or found at assign.
    acked: Option<i64>,
    /// Deliveries covered by `acked`.
    acked_seq: u64,
    /// A start position that must be committed before anything is taken.
    pin: Option<i64>,
    /// What `room` was refused for since the last time that room was announced.
    refused: Option<Refused>,
    /// The head last reported as stalled, and the age at which it is to be reported again.
    reported: Option<(u64, Duration)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    Messages,
    Bytes,
    /// Too much is in flight over the whole source, and this epoch has had its share of one.
    InFlight,
}

impl Book {
    /// What is to be committed: something that is finished, and nothing at or below what is committed already.
    fn dirty(&self) -> Option<Mark> {
        if let Some(pin) = self.pin {
            return Some(Mark {
                offset: pin,
                seq: 0,
            });
        }
        let mark = self.window.mark()?;
        let is_new =
            mark.seq > self.acked_seq && self.acked.is_none_or(|acked| mark.offset > acked);
        is_new.then_some(mark)
    }

    /// Deliveries that no acknowledged commit covers.
    fn uncovered(&self) -> u64 {
        self.window.next_seq() - self.acked_seq
    }

    /// While the watermark is at or below what is committed already, no commit will come to open the window.
    fn cover_below_acked(&mut self) {
        if let (Some(mark), Some(acked)) = (self.window.mark(), self.acked)
            && mark.offset <= acked
        {
            self.acked_seq = self.acked_seq.max(mark.seq);
        }
    }

    fn window_full(&self, limits: &Limits) -> Option<Refused> {
        if self.uncovered() >= limits.window_messages as u64 {
            Some(Refused::Messages)
        } else if self.bytes >= limits.window_bytes && self.bytes > 0 {
            Some(Refused::Bytes)
        } else {
            None
        }
    }

    fn idle(&self) -> bool {
        self.stage != Stage::Live && self.busy == 0
    }

    /// Only an acknowledged commit opens a window that is full of messages: it should not wait.
    fn waits_for_commit(&self) -> bool {
        self.refused == Some(Refused::Messages)
    }

    /// Room at full is announced at half, so that the taker is not woken for every message.
    fn room_again(&mut self, limits: &Limits) -> bool {
        let enough = match self.refused {
            Some(Refused::Messages) => self.uncovered() <= limits.window_messages as u64 / 2,
            Some(Refused::Bytes) => self.bytes <= limits.window_bytes / 2,
            // its share is free, however much the others hold
            Some(Refused::InFlight) => self.window.unsettled() == 0,
            None => false,
        };
        let open = enough && self.window_full(limits).is_none();
        if open {
            self.refused = None;
        }
        open
    }
}

impl Epoch {
    pub(super) fn new(
        id: EpochId,
        tp: TopicPartition,
        limits: Limits,
        in_flight: Arc<InFlight>,
        acked: Option<i64>,
        pin: Option<i64>,
        now: Instant,
    ) -> Self {
        Epoch {
            id,
            tp,
            limits,
            in_flight,
            stage: AtomicU8::new(Stage::Live as u8),
            book: Mutex::new(Book {
                stage: Stage::Live,
                window: Window::new(now),
                busy: 0,
                bytes: 0,
                acked,
                acked_seq: 0,
                pin,
                refused: None,
                reported: None,
            }),
        }
    }

    /// This assignment's identity.
    pub fn id(&self) -> EpochId {
        self.id
    }

    /// The partition.
    pub fn topic_partition(&self) -> &TopicPartition {
        &self.tp
    }

    /// How far the epoch has come. Reads one atomic; it only ever rises.
    pub fn stage(&self) -> Stage {
        match self.stage.load(Ordering::SeqCst) {
            0 => Stage::Live,
            1 => Stage::Stopped,
            _ => Stage::Fenced,
        }
    }

    /// Whether a message may be taken from the client. A refusal is remembered: the call that makes room again says
    /// so in its [`Effects`].
    pub fn room(&self) -> Room {
        let mut book = self.book.lock();
        self.room_of(&mut book)
    }

    fn room_of(&self, book: &mut Book) -> Room {
        if book.stage != Stage::Live {
            return Room::Closed;
        }
        if book.pin.is_some() {
            return Room::NotPinned;
        }
        if let Some(full) = book.window_full(&self.limits) {
            book.refused = Some(full);
            return Room::WindowFull;
        }
        // every partition has a share of one message, so that none starves behind the others
        if book.window.unsettled() > 0 && !self.in_flight.has_room() {
            book.refused = Some(Refused::InFlight);
            return Room::InFlightFull;
        }
        Room::Free
    }

    /// Enters a message taken from the client: `bytes` are those of key and payload.
    pub fn deliver(
        &self,
        offset: i64,
        bytes: usize,
        now: Instant,
    ) -> Result<Delivered, DeliverError> {
        let mut book = self.book.lock();
        match self.room_of(&mut book) {
            Room::Free => {}
            room => return Err(DeliverError::NoRoom(room)),
        }
        if offset < 0 {
            return Err(DeliverError::Negative(offset));
        }
        let last = book.window.last();
        if let Some(last) = last
            && offset <= last
        {
            return Err(DeliverError::Falling { offset, last });
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let seq = book.window.push(offset, now);
        book.bytes += u64::from(bytes);
        self.in_flight.take(u64::from(bytes));
        Ok(Delivered {
            ticket: Ticket { seq, bytes },
            below_committed: last.is_none() && book.acked.is_some_and(|acked| offset < acked),
        })
    }

    /// Gives the message its verdict, once.
    ///
    /// [`Kind::Done`] is written only if an attempt of this delivery ended `Ok`; otherwise the verdict becomes
    /// [`Reason::OkWithoutAttempt`].
    pub fn settle(&self, ticket: Ticket, verdict: Verdict) -> Judgement {
        let mut guard = self.book.lock();
        let book = &mut *guard;
        let view = book.window.view(ticket.seq);
        let verdict = match verdict {
            Verdict::Finished(Kind::Done) if !view.is_some_and(|v| v.attempt_ok) => {
                Verdict::NotFinished(Reason::OkWithoutAttempt)
            }
            verdict => verdict,
        };
        let mut judgement = Judgement {
            verdict: None,
            live: book.stage == Stage::Live,
            attempts: view.map_or(0, |v| v.attempts),
            effects: Effects::default(),
        };
        let before = book.dirty();
        // what a fenced epoch still holds is given back as well, but it counts for nothing: its watermark stays
        let fenced = book.stage == Stage::Fenced;
        let written = match verdict {
            Verdict::Finished(_) if fenced => Verdict::NotFinished(Reason::Cut),
            verdict => verdict,
        };
        let Some(left) = book.window.settle(ticket.seq, written) else {
            drop(guard);
            self.in_flight.count_late();
            return judgement;
        };
        book.bytes -= u64::from(ticket.bytes);
        if left.finishing {
            book.busy -= 1;
        }
        judgement.effects.idle = left.finishing && book.idle();
        if fenced {
            self.in_flight.count_late();
        } else {
            judgement.verdict = Some(verdict);
            self.in_flight.count(verdict);
            if left.moved {
                book.cover_below_acked();
                self.commit_effects(book, before, &mut judgement.effects);
            }
        }
        judgement.effects.room |= book.room_again(&self.limits);
        drop(guard);
        judgement.effects.room |= self.in_flight.give_back(u64::from(ticket.bytes));
        judgement
    }

    fn commit_effects(&self, book: &Book, before: Option<Mark>, effects: &mut Effects) {
        let Some(mark) = book.dirty() else { return };
        effects.dirty = before.is_none();
        let half = (self.limits.window_messages as u64).div_ceil(2);
        let was = before.map_or(book.acked_seq, |m| m.seq) - book.acked_seq;
        effects.urgent = was < half && mark.seq - book.acked_seq >= half || book.waits_for_commit();
    }

    /// Notes that an attempt begins, unless nothing may start any more. One step with the stop of the epoch: an
    /// attempt that has begun is waited for, one that has not never begins.
    pub fn begin(&self, ticket: Ticket) -> Begin {
        let mut guard = self.book.lock();
        let book = &mut *guard;
        if book.stage != Stage::Live {
            let mut effects = Effects::default();
            if book.window.unfinish(ticket.seq) {
                book.busy -= 1;
                effects.idle = book.idle();
            }
            return Begin::Stopped(effects);
        }
        match book.window.begin(ticket.seq) {
            Some(begun) => {
                book.busy += usize::from(!begun.was_finishing);
                Begin::Started(begun.attempt)
            }
            None => Begin::Stopped(Effects::default()),
        }
    }

    /// Notes that an attempt ended: with `Ok`, or in any other way. Every [`Begin::Started`] needs exactly one.
    pub fn end(&self, ticket: Ticket, ok: bool) -> Effects {
        let mut guard = self.book.lock();
        let book = &mut *guard;
        if book.window.end(ticket.seq, ok) {
            book.busy -= 1;
        }
        Effects {
            idle: book.idle(),
            ..Effects::default()
        }
    }

    /// Adds work that outlives its future (a guard), or a produce that is out. A drain waits for it.
    pub fn hold(&self, ticket: Ticket, phase: Option<Phase>) {
        let mut book = self.book.lock();
        if let Some(phase) = phase {
            book.window.note(ticket.seq, phase);
        }
        book.window.hold(ticket.seq);
        book.busy += 1;
    }

    /// Takes back one [`hold`](Epoch::hold).
    pub fn unhold(&self, ticket: Ticket) -> Effects {
        let mut book = self.book.lock();
        book.window.unhold(ticket.seq);
        book.busy -= 1;
        Effects {
            idle: book.idle(),
            ..Effects::default()
        }
    }

    /// Notes where a message is. A running attempt is never hidden by it.
    pub fn note(&self, ticket: Ticket, phase: Phase) {
        self.book.lock().window.note(ticket.seq, phase);
    }

    pub(crate) fn view(&self, ticket: Ticket) -> Option<View> {
        self.book.lock().window.view(ticket.seq)
    }

    /// Whether an attempt of this delivery ended `Ok`.
    pub fn attempt_ok(&self, ticket: Ticket) -> bool {
        self.view(ticket).is_none_or(|v| v.attempt_ok)
    }

    /// Work that is out: attempts, guards, produces.
    pub fn busy(&self) -> usize {
        self.book.lock().busy
    }

    /// Deliveries without a verdict.
    pub fn unsettled(&self) -> usize {
        self.book.lock().window.unsettled()
    }

    /// Deliveries that no acknowledged commit covers.
    pub fn uncovered(&self) -> u64 {
        self.book.lock().uncovered()
    }

    /// Whether the window is full, so that nothing more is taken until an acknowledged commit or a verdict opens it.
    pub fn is_full(&self) -> bool {
        self.book.lock().window_full(&self.limits).is_some()
    }

    /// The watermark: the first delivered offset that is not finished, or the last delivered one plus 1. `None` while
    /// nothing was delivered.
    pub fn watermark(&self) -> Option<i64> {
        self.book.lock().window.mark().map(|mark| mark.offset)
    }

    /// The highest offset known to be committed.
    pub fn committed(&self) -> Option<i64> {
        self.book.lock().acked
    }

    /// The message that holds the watermark.
    pub fn head(&self, now: Instant) -> Option<Head> {
        self.book.lock().window.head(now)
    }

    /// From now on nothing starts. Whether nothing runs.
    pub(super) fn stop(&self) -> bool {
        let mut book = self.book.lock();
        if book.stage == Stage::Live {
            book.stage = Stage::Stopped;
            self.stage.store(Stage::Stopped as u8, Ordering::SeqCst);
        }
        book.busy == 0
    }

    pub(super) fn is_idle(&self) -> bool {
        self.book.lock().idle()
    }

    /// Takes the last snapshot and fences, in one step: a verdict given before is in the snapshot, one given after is
    /// nowhere. Answers what is still to be committed, and how much work was out.
    pub(super) fn fence(&self) -> (Option<Mark>, usize) {
        let mut book = self.book.lock();
        let last = match book.stage {
            Stage::Fenced => None,
            _ => book.dirty(),
        };
        book.stage = Stage::Fenced;
        self.stage.store(Stage::Fenced as u8, Ordering::SeqCst);
        (last, book.busy)
    }

    /// What is to be committed now, and whether it should not wait for the interval.
    pub(super) fn snapshot(&self) -> Option<(Mark, bool)> {
        let book = self.book.lock();
        if book.stage == Stage::Fenced {
            return None;
        }
        let mark = book.dirty()?;
        let half = (self.limits.window_messages as u64).div_ceil(2);
        let urgent =
            book.pin.is_some() || book.waits_for_commit() || mark.seq - book.acked_seq >= half;
        Some((mark, urgent))
    }

    /// A commit of this epoch was acknowledged.
    pub(super) fn ack(&self, mark: Mark) -> Effects {
        let mut guard = self.book.lock();
        let book = &mut *guard;
        let mut effects = Effects::default();
        if book.pin.take_if(|pin| *pin <= mark.offset).is_some() {
            effects.room = true;
        }
        if book.acked.is_none_or(|acked| acked < mark.offset) {
            book.acked = Some(mark.offset);
        }
        book.acked_seq = book.acked_seq.max(mark.seq);
        book.cover_below_acked();
        effects.room |= book.room_again(&self.limits);
        let window = matches!(book.refused, Some(Refused::Messages | Refused::Bytes));
        if window && book.window_full(&self.limits).is_none() {
            // less than half perhaps, but acknowledgements are few: say so at once
            book.refused = None;
            effects.room = true;
        }
        effects
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epoch")
            .field("id", &self.id.0)
            .field("topic_partition", &self.tp)
            .field("stage", &self.stage())
            .finish_non_exhaustive()
    }
}
