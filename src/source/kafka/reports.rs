//! What the client's thread says of trouble: each kind at once, and then at doubling intervals.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rdkafka::error::KafkaError;
use tracing::warn;

const FIRST: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(300);
/// A member without a partition is worth a word after this.
const IDLE: Duration = Duration::from_secs(10);

/// A client that finds no broker repeats its error many times a second; a log that is flooded is not read.
pub(super) struct Reports {
    bootstrap: String,
    topics: String,
    errors: HashMap<String, Again>,
    idle: Option<(Instant, Again)>,
}

struct Again {
    next: Instant,
    pause: Duration,
    /// How often it has happened since it was last said.
    unsaid: u64,
}

impl Again {
    fn new(next: Instant, pause: Duration) -> Self {
        Again {
            next,
            pause,
            unsaid: 0,
        }
    }

    /// Whether it is to be said, and how often it has happened since the last time.
    fn is_due(&mut self, now: Instant) -> Option<u64> {
        self.unsaid += 1;
        if now < self.next {
            return None;
        }
        self.pause = (self.pause * 2).min(MOST);
        self.next = now + self.pause;
        Some(std::mem::take(&mut self.unsaid))
    }
}

impl Reports {
    pub(super) fn new(bootstrap: String, topics: &[String]) -> Self {
        Reports {
            bootstrap,
            topics: topics.join(", "),
            errors: HashMap::new(),
            idle: None,
        }
    }

    pub(super) fn error(&mut self, error: &KafkaError, now: Instant) {
        let again = self
            .errors
            .entry(error.to_string())
            .or_insert_with(|| Again::new(now, FIRST));
        if let Some(times) = again.is_due(now) {
            warn!(
                %error,
                times,
                bootstrap = %self.bootstrap,
                topics = %self.topics,
                "client error; the client goes on trying"
            );
        }
    }

    /// Says so when no partition is assigned for a while: no broker, no such topic, or more members than partitions.
    pub(super) fn assigned(&mut self, any: bool, now: Instant) {
        if any {
            self.idle = None;
            // what comes next is news again
            self.errors.clear();
            return;
        }
        let (since, again) = self
            .idle
            .get_or_insert_with(|| (now, Again::new(now + IDLE, IDLE / 2)));
        if again.is_due(now).is_some() {
            warn!(
                seconds = now.saturating_duration_since(*since).as_secs(),
                bootstrap = %self.bootstrap,
                topics = %self.topics,
                "no partition is assigned: is a broker reachable, do the topics exist, has the group more members than partitions?"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::Again;

    #[test]
    fn what_happens_20_times_a_second_is_said_8_times_in_5_minutes() {
        let begin = Instant::now();
        let mut again = Again::new(begin, super::FIRST);
        let said: Vec<u64> = (0..6_000)
            .filter_map(|n| again.is_due(begin + Duration::from_millis(50) * n))
            .collect();
        // at 0, 2, 6, 14, 30, 62, 126 and 254 s
        assert_eq!(said, [1, 40, 80, 160, 320, 640, 1_280, 2_560]);
    }
}
