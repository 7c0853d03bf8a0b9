//! When the message that holds the watermark is worth a report.

use std::time::{Duration, Instant};

use super::{Book, Epoch};
use crate::ledger::{Head, Stage};

impl Epoch {
    /// The head, if it is older than `after` and was not reported at this age yet. Reports of one head come at
    /// doubling ages.
    pub fn stalled(&self, after: Duration, now: Instant) -> Option<Head> {
        let mut book = self.book.lock();
        let head = book.window.head(now)?;
        if book.stage != Stage::Live || head.age < Self::report_at(&book, head.seq, after) {
            return None;
        }
        let next = head.age.saturating_mul(2).max(after);
        book.reported = Some((head.seq, next));
        Some(head)
    }

    /// When [`stalled`](Epoch::stalled) has something to say, if the head stays the same.
    pub fn stalls_at(&self, after: Duration, now: Instant) -> Option<Instant> {
        let book = self.book.lock();
        let since = book.window.head_since(now)?;
        let at = since.checked_add(Self::report_at(&book, book.window.mark()?.seq, after))?;
        (book.stage == Stage::Live).then_some(at)
    }

    fn report_at(book: &Book, seq: u64, after: Duration) -> Duration {
        match book.reported {
            Some((reported, at)) if reported == seq => at,
            _ => after,
        }
    }

    /// Whether a stall of the present head was reported.
    pub fn is_stalled(&self) -> bool {
        let book = self.book.lock();
        let head = book.window.mark().map(|mark| mark.seq);
        book.reported.is_some_and(|(seq, _)| Some(seq) == head)
    }
}
