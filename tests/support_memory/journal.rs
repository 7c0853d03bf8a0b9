use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;
use tower_consumer::Message;

/// What handlers did: when each began, and when it was done. The line of a message is written by [`Work::done`], before
/// the stack hears of it.
#[derive(Clone)]
pub(crate) struct Journal {
    pages: Arc<Mutex<Pages>>,
    opened: Instant,
}

#[derive(Default)]
struct Pages {
    starts: Vec<Line>,
    done: Vec<Line>,
    live: usize,
    most_live: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) key: Option<Vec<u8>>,
    /// Milliseconds of the paused clock since the journal was opened.
    pub(crate) at: u128,
}

impl Journal {
    pub(crate) fn new() -> Self {
        Journal {
            pages: Arc::default(),
            opened: Instant::now(),
        }
    }

    /// A handler has begun. It is live until what this answers is dropped.
    pub(crate) fn begin(&self, message: &Message) -> Work {
        let line = Line {
            partition: message.partition(),
            offset: message.offset(),
            key: message.key().map(<[u8]>::to_vec),
            at: self.millis(),
        };
        let mut pages = self.pages.lock();
        pages.starts.push(line.clone());
        pages.live += 1;
        pages.most_live = pages.most_live.max(pages.live);
        Work {
            journal: self.clone(),
            line,
        }
    }

    /// Milliseconds since it was opened.
    pub(crate) fn millis(&self) -> u128 {
        self.opened.elapsed().as_millis()
    }

    pub(crate) fn start_lines(&self) -> Vec<Line> {
        self.pages.lock().starts.clone()
    }

    pub(crate) fn done_lines(&self) -> Vec<Line> {
        self.pages.lock().done.clone()
    }

    /// Offsets of a partition in the order in which their handlers began.
    pub(crate) fn starts(&self, partition: i32) -> Vec<i64> {
        offsets(&self.pages.lock().starts, partition)
    }

    /// Offsets of a partition in the order in which their handlers were done.
    pub(crate) fn done(&self, partition: i32) -> Vec<i64> {
        offsets(&self.pages.lock().done, partition)
    }

    /// The same in offset order.
    pub(crate) fn done_sorted(&self, partition: i32) -> Vec<i64> {
        let mut done = self.done(partition);
        done.sort_unstable();
        done
    }

    /// When a handler of this offset of partition 0 began, each time.
    pub(crate) fn started_at(&self, offset: i64) -> Vec<u128> {
        let starts = self.start_lines();
        let of = starts.iter().filter(|line| line.offset == offset);
        of.map(|line| line.at).collect()
    }

    /// When a handler of this offset of partition 0 was done, each time.
    pub(crate) fn done_at(&self, offset: i64) -> Vec<u128> {
        let done = self.done_lines();
        let of = done.iter().filter(|line| line.offset == offset);
        of.map(|line| line.at).collect()
    }

    /// Handlers that have begun and are neither done nor dropped.
    pub(crate) fn live(&self) -> usize {
        self.pages.lock().live
    }

    /// The most that were ever live.
    pub(crate) fn most_live(&self) -> usize {
        self.pages.lock().most_live
    }
}

fn offsets(lines: &[Line], partition: i32) -> Vec<i64> {
    let of = lines.iter().filter(|line| line.partition == partition);
    of.map(|line| line.offset).collect()
}

/// A handler that runs.
pub(crate) struct Work {
    journal: Journal,
    line: Line,
}

impl Work {
    /// The handler has done its work: the line is written.
    pub(crate) fn done(&self) {
        let at = self.journal.millis();
        let line = Line {
            at,
            ..self.line.clone()
        };
        self.journal.pages.lock().done.push(line);
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.journal.pages.lock().live -= 1;
    }
}
