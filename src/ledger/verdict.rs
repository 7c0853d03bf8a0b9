//! The words the ledger thinks in: phases, verdicts, reasons.

use std::fmt;

/// Where a delivered message is on its way through the stack.
///
/// For people (stall reports) and for the drain: only [`Running`](Phase::Running),
/// [`Finishing`](Phase::Finishing) and [`DeadLettering`](Phase::DeadLettering) are work that a drain
/// waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Handed out; no layer has said more yet. Also a message that waits for the service to be ready.
    Delivered,
    /// Waits until the messages before it in its lane (its key, its partition) are over.
    WaitingForLane,
    /// Has its lane and waits for the service inside to be ready, for example for a concurrency permit.
    WaitingForPermit,
    /// An attempt is running.
    Running,
    /// An attempt ended `Ok`; the layers around it have not answered yet.
    Finishing,
    /// The last attempt ended without success, and nobody has said yet what comes of it.
    AttemptFailed,
    /// Waits for the delay before its next attempt.
    BackingOff,
    /// The delay before the next attempt is over; that attempt has not begun.
    Retrying,
    /// Is being published to a dead-letter topic. No layer of this version does that yet.
    DeadLettering,
    /// Has its verdict.
    Settled,
}

impl Phase {
    const ALL: [Phase; 10] = [
        Phase::Delivered,
        Phase::WaitingForLane,
        Phase::WaitingForPermit,
        Phase::Running,
        Phase::Finishing,
        Phase::AttemptFailed,
        Phase::BackingOff,
        Phase::Retrying,
        Phase::DeadLettering,
        Phase::Settled,
    ];

    pub(super) fn to_bits(self) -> u8 {
        self as u8
    }

    pub(super) fn from_bits(bits: u8) -> Phase {
        Self::ALL
            .get(bits as usize)
            .copied()
            .unwrap_or(Phase::Delivered)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Delivered => "delivered",
            Phase::WaitingForLane => "waiting for its lane",
            Phase::WaitingForPermit => "waiting for a permit",
            Phase::Running => "running",
            Phase::Finishing => "finishing",
            Phase::AttemptFailed => "attempt failed",
            Phase::BackingOff => "backing off",
            Phase::Retrying => "about to retry",
            Phase::DeadLettering => "dead-lettering",
            Phase::Settled => "settled",
        })
    }
}

/// How a message was finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// An attempt ended `Ok`.
    Done,
    /// Skipped by a named policy.
    Skipped,
    /// Published to a dead-letter topic, and the publish acknowledged. No layer of this version does that yet.
    DeadLettered,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Done => "done",
            Kind::Skipped => "skipped",
            Kind::DeadLettered => "dead-lettered",
        })
    }
}

/// Why a message was not finished. For counting and for people; the watermark stays below it whatever the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The stack answered an error.
    Failed,
    /// Ended by a drain, a revoke or a shutdown before its work was over.
    Cut,
    /// The stack panicked.
    Panicked,
    /// The future was dropped before it ended.
    Dropped,
    /// The stack answered success, but no attempt of this delivery ended `Ok`.
    OkWithoutAttempt,
    /// An earlier message of the same key did not finish, so this one was not handled.
    KeyClosed,
    /// The service inside could not become ready: a broken stack, not a bad message.
    Unready,
}

impl Reason {
    /// Every reason, in the order in which they are counted.
    pub const ALL: [Reason; 7] = [
        Reason::Failed,
        Reason::Cut,
        Reason::Panicked,
        Reason::Dropped,
        Reason::OkWithoutAttempt,
        Reason::KeyClosed,
        Reason::Unready,
    ];

    /// A short name that does not change, for counters and alerts: `failed`, `cut`, `panicked`, `dropped`,
    /// `ok_without_attempt`, `key_closed`, `unready`.
    pub const fn code(self) -> &'static str {
        match self {
            Reason::Failed => "failed",
            Reason::Cut => "cut",
            Reason::Panicked => "panicked",
            Reason::Dropped => "dropped",
            Reason::OkWithoutAttempt => "ok_without_attempt",
            Reason::KeyClosed => "key_closed",
            Reason::Unready => "unready",
        }
    }

    pub(super) fn to_bits(self) -> u8 {
        self as u8
    }

    pub(super) fn from_bits(bits: u8) -> Reason {
        Self::ALL
            .get(bits as usize)
            .copied()
            .unwrap_or(Reason::Dropped)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Failed => "failed",
            Reason::Cut => "cut off by a drain or a revoke",
            Reason::Panicked => "panicked",
            Reason::Dropped => "dropped before it ended",
            Reason::OkWithoutAttempt => "answered success without a successful attempt",
            Reason::KeyClosed => {
                "not handled, because an earlier message of its key did not finish"
            }
            Reason::Unready => "not handled, because the service could not become ready",
        })
    }
}

/// The end of a delivered message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The watermark may pass it.
    Finished(Kind),
    /// The watermark stays below it for the rest of its epoch.
    NotFinished(Reason),
}

impl Verdict {
    /// Whether the watermark may pass the message.
    pub const fn is_finished(self) -> bool {
        matches!(self, Verdict::Finished(_))
    }
}
