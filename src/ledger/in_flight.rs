//! What is in flight over a whole source, and how verdicts came out.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{Kind, Reason, Verdict};

/// Counters shared by all epochs of one ledger.
#[derive(Debug)]
pub(super) struct InFlight {
    max_messages: u64,
    max_bytes: u64,
    messages: AtomicU64,
    bytes: AtomicU64,
    /// Somebody was refused since the last time that room was announced.
    refused: AtomicBool,
    delivered: AtomicU64,
    done: AtomicU64,
    skipped: AtomicU64,
    dead_lettered: AtomicU64,
    not_finished: [AtomicU64; Reason::ALL.len()],
    late: AtomicU64,
}

/// How the verdicts of a ledger came out so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Messages handed out.
    pub delivered: u64,
    /// Finished: an attempt ended `Ok`.
    pub done: u64,
    /// Finished: skipped by a named policy.
    pub skipped: u64,
    /// Finished: published to a dead-letter topic.
    pub dead_lettered: u64,
    /// Verdicts that changed nothing: their epoch was over, or the message had one already.
    pub late: u64,
    not_finished: [u64; Reason::ALL.len()],
}

impl Counts {
    /// Messages that were finished, in whichever way.
    pub fn finished(&self) -> u64 {
        self.done + self.skipped + self.dead_lettered
    }

    /// Messages that were not finished for this reason.
    pub fn not_finished(&self, reason: Reason) -> u64 {
        self.not_finished[reason as usize]
    }

    /// Messages that were not finished, for whichever reason.
    pub fn not_finished_total(&self) -> u64 {
        self.not_finished.iter().sum()
    }
}

impl InFlight {
    pub(super) fn new(max_messages: usize, max_bytes: u64) -> Self {
        InFlight {
            max_messages: max_messages as u64,
            max_bytes,
            messages: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            refused: AtomicBool::new(false),
            delivered: AtomicU64::new(0),
            done: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            dead_lettered: AtomicU64::new(0),
            not_finished: Default::default(),
            late: AtomicU64::new(0),
        }
    }

    /// A refusal is remembered first and the counters read again after it, so that a message given back in between
    /// cannot be missed.
    pub(super) fn has_room(&self) -> bool {
        if self.is_free() {
            return true;
        }
        self.refused.store(true, Ordering::SeqCst);
        self.is_free()
    }

    fn is_free(&self) -> bool {
        self.messages.load(Ordering::SeqCst) < self.max_messages
            && self.bytes.load(Ordering::SeqCst) < self.max_bytes
    }

    pub(super) fn take(&self, bytes: u64) {
        self.messages.fetch_add(1, Ordering::SeqCst);
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
        self.delivered.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether somebody who was refused should be told of the room: when an eighth of the bound is free, at most 64
    /// messages, so that handlers are fed before they run dry and the taker is not woken for each message.
    pub(super) fn give_back(&self, bytes: u64) -> bool {
        let bytes = self.bytes.fetch_sub(bytes, Ordering::SeqCst) - bytes;
        let messages = self.messages.fetch_sub(1, Ordering::SeqCst) - 1;
        let step = (self.max_messages / 8).clamp(1, 64);
        self.refused.load(Ordering::SeqCst)
            && (messages == 0
                || messages <= self.max_messages.saturating_sub(step)
                    && bytes <= self.max_bytes - self.max_bytes / 8)
            && self.refused.swap(false, Ordering::SeqCst)
    }

    pub(super) fn messages(&self) -> u64 {
        self.messages.load(Ordering::SeqCst)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::SeqCst)
    }

    pub(super) fn count(&self, verdict: Verdict) {
        let counter = match verdict {
            Verdict::Finished(Kind::Done) => &self.done,
            Verdict::Finished(Kind::Skipped) => &self.skipped,
            Verdict::Finished(Kind::DeadLettered) => &self.dead_lettered,
            Verdict::NotFinished(reason) => &self.not_finished[reason as usize],
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_late(&self) {
        self.late.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn counts(&self) -> Counts {
        let mut not_finished = [0; Reason::ALL.len()];
        for (n, counter) in not_finished.iter_mut().zip(&self.not_finished) {
            *n = counter.load(Ordering::Relaxed);
        }
        Counts {
            delivered: self.delivered.load(Ordering::Relaxed),
            done: self.done.load(Ordering::Relaxed),
            skipped: self.skipped.load(Ordering::Relaxed),
            dead_lettered: self.dead_lettered.load(Ordering::Relaxed),
            late: self.late.load(Ordering::Relaxed),
            not_finished,
        }
    }
}
