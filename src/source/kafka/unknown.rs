//! Partitions that are assigned, and not read.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::link::{Job, Seek};
use crate::ledger::{Start, TopicPartition};

/// After a question without an answer the next one waits, longer each time.
const AGAIN: Duration = Duration::from_secs(1);
const AGAIN_MOST: Duration = Duration::from_secs(5);

/// Assigned partitions that nobody may read yet: where they start could not be found out and is to be committed first,
/// or they are gone. Asked for one at a time, since each question may keep commits waiting.
#[derive(Default)]
pub(super) struct Unknown {
    tps: VecDeque<TopicPartition>,
    is_asking: bool,
    failures: u32,
    not_before: Option<Instant>,
}

impl Unknown {
    pub(super) fn insert(&mut self, tp: TopicPartition) {
        self.tps.push_back(tp);
    }

    pub(super) fn remove(&mut self, tp: &TopicPartition) {
        self.tps.retain(|unknown| unknown != tp);
    }

    /// The next question, if it is time for one.
    pub(super) fn next(&mut self, now: Instant) -> Option<Job> {
        if self.is_asking || self.not_before.is_some_and(|at| now < at) {
            return None;
        }
        let tp = self.tps.front()?.clone();
        self.is_asking = true;
        Some(Job::Start(tp))
    }

    /// The answer to it: where to send the client.
    pub(super) fn answered(
        &mut self,
        tp: TopicPartition,
        start: Option<Start>,
        now: Instant,
    ) -> Option<Seek> {
        self.is_asking = false;
        let at = self.tps.iter().position(|unknown| *unknown == tp)?;
        self.tps.remove(at);
        let Some(start) = start else {
            self.tps.push_back(tp);
            let pause = AGAIN.saturating_mul(1 << self.failures.min(8));
            self.not_before = Some(now + pause.min(AGAIN_MOST));
            self.failures += 1;
            return None;
        };
        self.failures = 0;
        let offset = match start {
            Start::Committed(offset) | Start::Pin(offset) => Some(offset),
            Start::Unknown => None,
        };
        Some(Seek { tp, offset, start })
    }
}
