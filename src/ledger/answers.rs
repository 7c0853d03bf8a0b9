//! What an epoch is given, and what it answers.

use std::fmt;

use super::Verdict;

/// Identifies one assignment of one partition to this member. Never used twice by one ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EpochId(pub(super) u64);

impl fmt::Display for EpochId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How far an epoch has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Stage {
    /// Messages are handed out and may start.
    Live,
    /// Nothing new may start; what runs may end and still counts.
    Stopped,
    /// Over: no verdict changes anything any more.
    Fenced,
}

/// One delivered message of an epoch: the key to its slot. Private to the library outside of tests, which is what
/// makes "one verdict a message" hold; a second verdict changes nothing and is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub(super) seq: u64,
    pub(super) bytes: u32,
}

/// What a call on an epoch means for others: whom to wake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// There is something to commit now where there was nothing: arm the timer.
    pub dirty: bool,
    /// A commit should go out at once.
    pub urgent: bool,
    /// The epoch is stopped, and nothing runs any more.
    pub idle: bool,
    /// There is room again after a refusal.
    pub room: bool,
}

/// Answer to [`Epoch::settle`](super::Epoch::settle).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// The verdict as it was written, which may differ from the one that was asked for
    /// ([`Reason::OkWithoutAttempt`](super::Reason::OkWithoutAttempt)); `None` if it changed nothing, because the epoch was fenced or the message had
    /// its verdict.
    pub verdict: Option<Verdict>,
    /// Whether the epoch was live, neither stopping nor fenced: only then is "not finished" a failure.
    pub live: bool,
    /// How many attempts had begun.
    pub attempts: u32,
    /// Whom to wake.
    pub effects: Effects,
}

/// Answer to [`Epoch::begin`](super::Epoch::begin).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// The attempt has begun, and is the n-th of this delivery (from 1).
    Started(u32),
    /// Nothing may start any more.
    Stopped(Effects),
}

/// Whether a message may be taken from the client for this epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Room {
    /// Yes.
    Free,
    /// No: its window is full, in messages or in bytes.
    WindowFull,
    /// No: as much as is allowed over the whole source is in flight.
    InFlightFull,
    /// No: its start position is not committed yet.
    NotPinned,
    /// No: the epoch is stopped or fenced.
    Closed,
}

/// Why [`Epoch::deliver`](super::Epoch::deliver) took nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeliverError {
    /// There was no room; ask [`Epoch::room`](super::Epoch::room) before taking a message from the client.
    #[error("no room: {0:?}")]
    NoRoom(Room),
    /// The offset is not above the last delivered one (a topic made anew, a truncation, reordering): this epoch must
    /// end and another begin.
    #[error("offset {offset} is not above {last}, the last delivered one")]
    Falling {
        /// The offset that came.
        offset: i64,
        /// The last one delivered before it.
        last: i64,
    },
    /// Kafka's offsets are not negative.
    #[error("offset {0} is negative")]
    Negative(i64),
}

/// A message entered in the books.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// The right to settle it.
    pub ticket: Ticket,
    /// It is the first of its epoch and lies below the offset that was committed at assign: delivered again although
    /// finished before. Nothing below that offset will be committed.
    pub below_committed: bool,
}
