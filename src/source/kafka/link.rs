//! What the driver and the two threads share.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rdkafka::consumer::base_consumer::PartitionQueue;

use super::context::Recorder;
use crate::ledger::{Effects, Released, Start, TopicPartition};
use crate::message::EpochCell;
use crate::source::{Books, SourceError};

pub(super) struct Link {
    pub(super) books: Books,
    pub(super) bell: Arc<Bell>,
    inbox: Mutex<Inbox>,
    /// Something is in the inbox.
    news: AtomicBool,
    jobs: Mutex<Vec<Job>>,
    answers: Mutex<Vec<Answer>>,
    orders: Mutex<Orders>,
}

/// From the threads to the driver.
#[derive(Default)]
pub(super) struct Inbox {
    pub(super) opened: Vec<Opened>,
    pub(super) errors: Vec<SourceError>,
    /// The source is over, for this reason.
    pub(super) dead: Option<SourceError>,
    pub(super) closed: Option<Vec<Released>>,
}

/// A partition to read.
pub(super) struct Opened {
    pub(super) tp: TopicPartition,
    pub(super) cell: Arc<EpochCell>,
    pub(super) queue: Arc<Queue>,
}

/// A partition's queue. It outlives the driver's interest only until its partition is released: a queue that is
/// dropped after the next assignment would silence it.
pub(super) struct Queue {
    pub(super) queue: Mutex<Option<PartitionQueue<Recorder>>>,
    /// The queue may hold something. Set by the client's callback, which comes only when an empty queue gets its first
    /// message; cleared before a poll that finds nothing.
    pub(super) ready: Arc<AtomicBool>,
}

/// From the driver to the group thread.
#[derive(Debug, Default)]
pub(super) struct Orders {
    pub(super) close: Option<Instant>,
    /// The driver is gone: commit nothing more, leave.
    pub(super) abandoned: bool,
    /// Partitions to be read again in a new epoch: from the offset to which they fell, or from where the group says
    /// once they are there again.
    pub(super) restart: Vec<(TopicPartition, Option<i64>)>,
}

/// From the group thread to the commit thread: calls that wait for a broker. They are done and answered in this order,
/// which keeps those of an earlier assignment away from a later one: it begins with [`Job::Starts`].
#[derive(Debug)]
pub(super) enum Job {
    /// Where to start: asked before an assign is answered.
    Starts(Vec<TopicPartition>),
    /// The same for one partition that is assigned already.
    Start(TopicPartition),
    Seek(Seek),
    Exit,
}

/// Sends the client to an offset of an assigned partition; then an epoch begins.
#[derive(Debug)]
pub(super) struct Seek {
    pub(super) tp: TopicPartition,
    /// `None`: as `auto.offset.reset` says.
    pub(super) offset: Option<i64>,
    pub(super) start: Start,
}

/// And back.
#[derive(Debug)]
pub(super) enum Answer {
    Starts(HashMap<TopicPartition, Start>),
    Start(TopicPartition, Option<Start>),
    /// And whether it worked.
    Sought(Seek, bool),
}

/// Wakes the commit thread.
#[derive(Default)]
pub(super) struct Bell {
    rung: Mutex<bool>,
    condvar: Condvar,
}

impl Bell {
    pub(super) fn ring(&self) {
        *self.rung.lock() = true;
        self.condvar.notify_one();
    }

    pub(super) fn wait(&self, limit: Duration) {
        let mut rung = self.rung.lock();
        if !*rung {
            self.condvar.wait_for(&mut rung, limit);
        }
        *rung = false;
    }
}

impl Link {
    pub(super) fn new(config: crate::ledger::Config) -> Arc<Self> {
        let bell = Arc::new(Bell::default());
        let hook = {
            let bell = bell.clone();
            // an epoch that is idle is seen by the group thread, which looks every few milliseconds during a drain
            move |effects: Effects| {
                if effects.dirty || effects.urgent {
                    bell.ring();
                }
            }
        };
        Arc::new(Link {
            books: Books::new(config, Some(Box::new(hook))),
            bell,
            inbox: Mutex::default(),
            news: AtomicBool::new(false),
            jobs: Mutex::default(),
            answers: Mutex::default(),
            orders: Mutex::default(),
        })
    }

    /// Tells the driver something.
    pub(super) fn tell(&self, news: impl FnOnce(&mut Inbox)) {
        news(&mut self.inbox.lock());
        self.news.store(true, Ordering::SeqCst);
        self.books.wake_driver();
    }

    /// The end of the source: everything is fenced, nothing more is committed, and the driver is told why.
    pub(super) fn die(&self, error: SourceError) {
        self.books.lose_all();
        self.tell(|inbox| {
            inbox.dead.get_or_insert(error);
        });
    }

    /// What the driver has not read yet; `None` if there is nothing.
    pub(super) fn news(&self) -> Option<Inbox> {
        if !self.news.swap(false, Ordering::SeqCst) {
            return None;
        }
        let mut inbox = self.inbox.lock();
        let dead = inbox.dead.clone();
        let news = std::mem::take(&mut *inbox);
        inbox.dead = dead;
        Some(news)
    }

    pub(super) fn order(&self, order: impl FnOnce(&mut Orders)) {
        order(&mut self.orders.lock());
    }

    pub(super) fn is_closing(&self) -> Option<Instant> {
        self.orders.lock().close
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.orders.lock().abandoned
    }

    pub(super) fn take_restarts(&self) -> Vec<(TopicPartition, Option<i64>)> {
        std::mem::take(&mut self.orders.lock().restart)
    }

    pub(super) fn ask(&self, job: Job) {
        self.jobs.lock().push(job);
        self.bell.ring();
    }

    pub(super) fn take_jobs(&self) -> Vec<Job> {
        std::mem::take(&mut self.jobs.lock())
    }

    pub(super) fn answer(&self, answer: Answer) {
        self.answers.lock().push(answer);
    }

    pub(super) fn take_answers(&self) -> Vec<Answer> {
        std::mem::take(&mut self.answers.lock())
    }
}

/// Says so if its thread unwinds.
pub(super) struct Alive {
    pub(super) link: Arc<Link>,
    pub(super) what: &'static str,
}

impl Drop for Alive {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.link.die(SourceError::ThreadDied(self.what));
        }
    }
}
