//! The way of a delivered message: a read side for everyone, one right to settle.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::task::Waker;

use tracing::{debug, warn};

use super::{EpochCell, Failure, Handle, Record};
use crate::ledger::{Begin, Effects, EpochId, Judgement, Phase, Reason, Stage, Ticket, Verdict};

const NO_WATCH: usize = usize::MAX;
const NO_HINT: u8 = u8::MAX;

/// A view of the way of a delivered message: [`Message::delivery`](super::Message::delivery).
///
/// It only reads. The right to say that the message is finished is taken by
/// [`CommitLayer`](crate::commit::CommitLayer), once; no layer, handler or clone has it.
#[derive(Clone, Copy)]
pub struct Delivery<'a> {
    pub(super) state: &'a DeliveryState,
    pub(super) record: &'a Record,
}

impl<'a> Delivery<'a> {
    /// The topic.
    pub fn topic(&self) -> &'a str {
        &self.record.topic
    }

    /// The partition, from 0.
    pub fn partition(&self) -> i32 {
        self.record.partition
    }

    /// The offset.
    pub fn offset(&self) -> i64 {
        self.record.offset
    }

    /// The assignment on whose behalf the message was delivered.
    pub fn epoch(&self) -> EpochId {
        self.state.cell.epoch.id()
    }

    /// How many attempts have begun; 0 before the first.
    pub fn attempt(&self) -> u32 {
        self.state.attempts()
    }

    /// Where the message is on its way.
    pub fn phase(&self) -> Phase {
        self.state.phase()
    }

    /// Whether an attempt may still begin. `false` once its partition is being given up, or the message has its
    /// verdict.
    pub fn may_start(&self) -> bool {
        self.state.stage() == Stage::Live && self.state.phase() != Phase::Settled
    }
}

impl fmt::Debug for Delivery<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("topic", &self.topic())
            .field("partition", &self.partition())
            .field("offset", &self.offset())
            .field("epoch", &self.epoch())
            .field("attempt", &self.attempt())
            .field("phase", &self.phase())
            .finish()
    }
}

/// What a delivered message shares with the books.
pub(crate) struct DeliveryState {
    cell: Arc<EpochCell>,
    ticket: Ticket,
    right_taken: AtomicBool,
    /// Key of the waker of whoever holds the right.
    watch: AtomicUsize,
    /// A reason that a layer of ours left for `CommitLayer`; the next attempt wipes it.
    hint: AtomicU8,
    /// There are attempts within attempts: only those of the innermost service count.
    nested: AtomicBool,
}

impl DeliveryState {
    pub(super) fn new(cell: Arc<EpochCell>, ticket: Ticket) -> Self {
        DeliveryState {
            cell,
            ticket,
            right_taken: AtomicBool::new(false),
            watch: AtomicUsize::new(NO_WATCH),
            hint: AtomicU8::new(NO_HINT),
            nested: AtomicBool::new(false),
        }
    }

    pub(crate) fn cell(&self) -> &Arc<EpochCell> {
        &self.cell
    }

    pub(crate) fn stage(&self) -> Stage {
        self.cell.epoch.stage()
    }

    pub(crate) fn phase(&self) -> Phase {
        let view = self.cell.epoch.view(self.ticket);
        view.map_or(Phase::Settled, |view| view.phase)
    }

    /// Whether an attempt is due after a backoff and has not begun.
    fn is_due(&self) -> bool {
        let view = self.cell.epoch.view(self.ticket);
        view.is_some_and(|view| view.is_due)
    }

    pub(crate) fn attempts(&self) -> u32 {
        let view = self.cell.epoch.view(self.ticket);
        view.map_or(0, |view| view.attempts)
    }

    pub(crate) fn is_busy(&self) -> bool {
        let view = self.cell.epoch.view(self.ticket);
        view.is_some_and(|view| view.busy)
    }

    pub(crate) fn attempt_ok(&self) -> bool {
        self.cell.epoch.attempt_ok(self.ticket)
    }

    pub(super) fn take_right(&self) -> bool {
        !self.right_taken.swap(true, Ordering::SeqCst)
    }

    pub(super) fn note(&self, phase: Phase) {
        self.cell.epoch.note(self.ticket, phase);
        self.progressed(Effects::default());
    }

    /// Leaves a reason for the verdict, should an `Err` follow without another attempt.
    pub(crate) fn hint(&self, reason: Reason) {
        self.hint.store(reason as u8, Ordering::SeqCst);
    }

    pub(crate) fn hinted(&self) -> Option<Reason> {
        let hint = self.hint.load(Ordering::SeqCst);
        Reason::ALL.into_iter().find(|reason| *reason as u8 == hint)
    }

    pub(super) fn begin(&self) -> bool {
        match self.cell.epoch.begin(self.ticket) {
            Begin::Started(_) => {
                self.hint.store(NO_HINT, Ordering::SeqCst);
                true
            }
            Begin::Stopped(effects) => {
                self.progressed(effects);
                false
            }
        }
    }

    pub(super) fn nest(&self) {
        self.nested.store(true, Ordering::SeqCst);
    }

    fn end(&self, ok: bool) {
        let effects = self.cell.epoch.end(self.ticket, ok);
        self.progressed(effects);
    }

    pub(super) fn hold(&self) {
        self.cell.epoch.hold(self.ticket, None);
    }

    pub(super) fn unhold(&self) {
        let effects = self.cell.epoch.unhold(self.ticket);
        self.progressed(effects);
    }

    /// During a drain, whoever holds the right has to look again whenever something of its message ended: it may have
    /// happened on another task.
    fn progressed(&self, effects: Effects) {
        if effects != Effects::default() {
            self.cell.signal.effects(effects);
        }
        if self.stage() != Stage::Live {
            let key = self.watch.load(Ordering::SeqCst);
            if key != NO_WATCH {
                self.cell.wake(key);
            }
        }
    }

    fn settle(
        &self,
        record: &Record,
        verdict: Verdict,
        error: Option<&dyn fmt::Display>,
    ) -> Judgement {
        let key = self.watch.swap(NO_WATCH, Ordering::SeqCst);
        if key != NO_WATCH {
            self.cell.unwatch(key);
        }
        let judgement = self.cell.epoch.settle(self.ticket, verdict);
        // a verdict that a fence made late is said as it was asked for, and is no failure
        if let Verdict::NotFinished(reason) = judgement.verdict.unwrap_or(verdict) {
            let (topic, partition, offset) = (&*record.topic, record.partition, record.offset);
            let attempts = judgement.attempts;
            let error = error.map(ToString::to_string);
            let text = error.as_deref().unwrap_or_default();
            let code = reason.code();
            // nothing is wrong with a message that a rebalance took away before it began
            if reason == Reason::Cut && attempts == 0 {
                debug!(topic, partition, offset, attempts, reason = code, error = %text, "message not finished");
            } else {
                warn!(topic, partition, offset, attempts, reason = code, error = %text, "message not finished");
            }
            if judgement.verdict.is_some() && judgement.live {
                self.cell.signal.failure(Failure {
                    tp: self.cell.epoch.topic_partition().clone(),
                    epoch: self.cell.epoch.id(),
                    offset,
                    attempts,
                    reason,
                    error,
                });
            }
        }
        if judgement.effects != Effects::default() {
            self.cell.signal.effects(judgement.effects);
        }
        judgement
    }
}

impl Drop for super::Inner {
    /// A message that no `CommitLayer` took is settled when its last clone goes.
    fn drop(&mut self) {
        if let Some(state) = &self.delivery
            && state.take_right()
        {
            state.settle(&self.record, Verdict::NotFinished(drop_reason(state)), None);
        }
    }
}

fn drop_reason(state: &DeliveryState) -> Reason {
    if std::thread::panicking() {
        Reason::Panicked
    } else if state.stage() != Stage::Live {
        Reason::Cut
    } else {
        Reason::Dropped
    }
}

pub(crate) enum TakeRight {
    NoDelivery,
    Taken(Right),
    Gone,
}

/// The right to settle one message. Whoever drops it settles "not finished".
pub(crate) struct Right {
    message: Handle,
    used: bool,
}

impl Right {
    pub(super) fn new(message: Handle) -> Self {
        Right {
            message,
            used: false,
        }
    }

    fn state(&self) -> Option<&DeliveryState> {
        self.message.delivery()
    }

    fn stage(&self) -> Stage {
        self.state().map_or(Stage::Live, DeliveryState::stage)
    }

    /// Whether the work may go on: after a stop only what runs may end, after a fence nothing.
    pub(crate) fn may_go_on(&self) -> bool {
        match self.stage() {
            Stage::Live => true,
            Stage::Stopped => self.state().is_some_and(DeliveryState::is_busy),
            Stage::Fenced => false,
        }
    }

    /// Wakes `waker` at the next stop or fence, and during a drain whenever something of this message ended. The
    /// caller asks [`may_go_on`](Right::may_go_on) after this.
    pub(crate) fn watch(&self, waker: &Waker) {
        let Some(state) = self.state() else { return };
        let key = state.watch.load(Ordering::SeqCst);
        if key == NO_WATCH {
            let key = state.cell.watch(None, waker);
            state.watch.store(key, Ordering::SeqCst);
        } else if !state.cell.is_watched(key, waker) {
            state.cell.watch(Some(key), waker);
        }
    }

    pub(crate) fn hinted(&self) -> Option<Reason> {
        self.state()?.hinted()
    }

    pub(crate) fn phase(&self) -> Phase {
        self.state().map_or(Phase::Delivered, DeliveryState::phase)
    }

    pub(crate) fn is_due(&self) -> bool {
        self.state().is_some_and(DeliveryState::is_due)
    }

    pub(crate) fn message(&self) -> &Handle {
        &self.message
    }

    /// Gives the verdict. Only the first one counts.
    pub(crate) fn settle(
        &mut self,
        verdict: Verdict,
        error: Option<&dyn fmt::Display>,
    ) -> Option<Judgement> {
        if std::mem::replace(&mut self.used, true) {
            return None;
        }
        let state = self.state()?;
        Some(state.settle(&self.message.0.record, verdict, error))
    }
}

impl Drop for Right {
    fn drop(&mut self) {
        if !self.used
            && let Some(state) = self.message.delivery()
        {
            state.settle(
                &self.message.0.record,
                Verdict::NotFinished(drop_reason(state)),
                None,
            );
        }
    }
}

/// An attempt that runs; it ends once, with `Ok` or not.
pub(crate) struct Attempt {
    message: Handle,
    ended: bool,
}

impl Attempt {
    pub(super) fn new(message: Handle) -> Self {
        Attempt {
            message,
            ended: false,
        }
    }

    pub(crate) fn end(mut self, ok: bool) {
        self.note_end(ok);
    }

    /// The end of an attempt that may have others inside of it.
    pub(crate) fn end_outer(mut self, ok: bool) {
        let state = self.message.delivery();
        let nested = state.is_some_and(|state| state.nested.load(Ordering::SeqCst));
        self.note_end(ok && !nested);
    }

    fn note_end(&mut self, ok: bool) {
        if !std::mem::replace(&mut self.ended, true)
            && let Some(state) = self.message.delivery()
        {
            state.end(ok);
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.note_end(false);
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Attempt").field(&self.message).finish()
    }
}

impl fmt::Debug for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Right").field(&self.message).finish()
    }
}
