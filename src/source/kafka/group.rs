//! The thread that keeps the membership: it polls the main queue, answers rebalances, drains, and closes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdkafka::consumer::Consumer as _;
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::{Offset, TopicPartitionList};
use tracing::{debug, error, info, warn};

use super::classify::{self, Meaning};
use super::context::{Consumer, Rebalance, assign, list_of, unassign};
use super::link::{Alive, Answer, Job, Link, Opened, Queue, Seek};
use super::reports::Reports;
use super::settings::{Settings, StartPolicy};
use super::unknown::Unknown;
use crate::ledger::{Released, Start, TopicPartition};
use crate::source::SourceError;

/// The main queue is polled at least this often.
const POLL: Duration = Duration::from_millis(100);
/// And this often while an answer is due.
const POLL_BUSY: Duration = Duration::from_millis(5);
const SEEK_AGAIN: Duration = Duration::from_secs(1);
/// How long a client that leaves waits for the commit thread.
const LEAVE: Duration = Duration::from_secs(30);

pub(super) fn run(link: Arc<Link>, consumer: Arc<Consumer>, settings: Settings, reports: Reports) {
    let _alive = Alive {
        link: link.clone(),
        what: "keeps the membership",
    };
    let mut group = Group {
        link,
        consumer,
        settings,
        reports,
        queues: HashMap::new(),
        state: State::Steady,
        seeks: Vec::new(),
        unknown: Unknown::default(),
        released: HashMap::new(),
        closing: None,
    };
    while group.step() {}
    group.leave();
    let link = group.link.clone();
    // the client leaves the group here, unless the commit thread still holds it
    drop(group);
    link.tell(|inbox| inbox.closed = true);
}

impl Drop for Group {
    /// Also when this thread unwinds: the client must not be dropped by the driver, on a worker of the runtime.
    fn drop(&mut self) {
        self.forget_all();
        self.link.ask(Job::Exit);
    }
}

struct Group {
    link: Arc<Link>,
    consumer: Arc<Consumer>,
    settings: Settings,
    reports: Reports,
    /// The queues of assigned partitions, shared with the driver.
    queues: HashMap<TopicPartition, Arc<Queue>>,
    state: State,
    /// Seeks that failed, and when to try again.
    seeks: Vec<(Instant, Seek)>,
    unknown: Unknown,
    /// What was released since it was last assigned.
    released: HashMap<TopicPartition, Released>,
    closing: Option<Closing>,
}

/// The rebalance that waits for our answer. The client sends the next one only after that.
enum State {
    Steady,
    Assigning(Vec<TopicPartition>),
    Revoking(Vec<TopicPartition>),
}

struct Closing {
    deadline: Instant,
}

impl Group {
    fn step(&mut self) -> bool {
        let busy = !matches!(self.state, State::Steady) || self.closing.is_some();
        match self.consumer.poll(if busy { POLL_BUSY } else { POLL }) {
            None => {}
            Some(Ok(message)) => stray(&self.consumer, &message, self.closing.is_some()),
            Some(Err(error)) => self.failed(&error),
        }
        let any = !self.queues.is_empty();
        self.reports.assigned(any, Instant::now());
        self.answers();
        self.restarts();
        self.rebalance();
        for released in self
            .link
            .books
            .drain_step(Instant::now())
            .into_iter()
            .flatten()
        {
            self.released.insert(released.tp.clone(), released);
        }
        self.drained();
        self.close()
    }

    fn failed(&mut self, error: &KafkaError) {
        match classify::consume(error) {
            Meaning::Nothing => {}
            Meaning::Fatal => {
                let reason = match self.consumer.client().fatal_error() {
                    Some((code, reason)) => format!("{code}: {reason}"),
                    None => match self.consumer.context().last_error() {
                        Some(text) => format!("{error}: {text}"),
                        None => error.to_string(),
                    },
                };
                error!(%reason, "fatal client error: everything is fenced");
                self.link.die(SourceError::Fatal(reason));
            }
            Meaning::PollExceeded => {
                error!(
                    "max.poll.interval.ms was exceeded: every partition is lost; the client joins again"
                );
                self.link.books.lose_all();
            }
            // on the main queue it names a topic of the subscription, which may still come
            Meaning::Partition | Meaning::Gone | Meaning::Transient => {
                self.reports.error(error, Instant::now());
            }
        }
    }

    /// Takes up the next rebalance, one at a time.
    fn rebalance(&mut self) {
        while matches!(self.state, State::Steady) {
            match self.consumer.context().take() {
                None => return,
                Some(Rebalance::Assign(tps)) => {
                    debug!(partitions = ?Names(&tps), "assigning");
                    if tps.is_empty() || self.is_leaving() {
                        self.assign(&tps, &HashMap::new());
                    } else {
                        self.link.ask(Job::Starts(tps.clone()));
                        self.state = State::Assigning(tps);
                    }
                }
                Some(Rebalance::Revoke(tps)) => {
                    debug!(partitions = ?Names(&tps), lost = self.consumer.assignment_lost(), "revoking");
                    if self.consumer.assignment_lost() {
                        self.link.books.lose(&tps);
                    } else {
                        self.link
                            .books
                            .revoke(&tps, self.settings.revoke_budget, Instant::now());
                    }
                    self.state = State::Revoking(tps);
                }
            }
        }
    }

    fn is_leaving(&self) -> bool {
        self.closing.is_some() || self.link.is_abandoned()
    }

    /// What the commit thread found out.
    fn answers(&mut self) {
        for answer in self.link.take_answers() {
            match answer {
                Answer::Starts(starts) => {
                    if let State::Assigning(tps) = std::mem::replace(&mut self.state, State::Steady)
                    {
                        self.assign(&tps, &starts);
                    }
                }
                Answer::Start(tp, start) => {
                    if let Some(seek) = self.unknown.answered(tp, start, Instant::now()) {
                        self.discard_errors(&seek.tp);
                        self.link.ask(Job::Seek(seek));
                    }
                }
                Answer::Sought(seek, ok) => self.sought(seek, ok),
            }
        }
    }

    /// A partition that was gone has said so again and again; a seek leaves that in its queue. A message that stands
    /// behind it comes again after the seek.
    fn discard_errors(&mut self, tp: &TopicPartition) {
        let Some(queue) = self.queues.get(tp).cloned() else {
            return;
        };
        let next = || {
            let queue = queue.queue.lock();
            queue.as_ref()?.poll(Duration::ZERO)?.err()
        };
        while let Some(error) = next() {
            if classify::consume(&error) != Meaning::Gone {
                self.failed(&error);
            }
        }
    }

    fn sought(&mut self, seek: Seek, ok: bool) {
        // it may have been given up meanwhile
        let Some(queue) = self.queues.get(&seek.tp).cloned() else {
            return;
        };
        if !ok {
            self.seeks.push((Instant::now() + SEEK_AGAIN, seek));
            return;
        }
        let Seek { tp, offset, start } = seek;
        let (topic, partition) = (&*tp.topic, tp.partition);
        match start {
            Start::Unknown => warn!(topic, partition, offset, "a new epoch begins"),
            _ => info!(topic, partition, offset, "its start is known now"),
        }
        self.open(&tp, queue, start);
    }

    /// Partitions whose epoch the driver has ended, because their offsets fell or they are gone. The client is sent to
    /// where the new numbering begins, and only then another epoch is opened.
    fn restarts(&mut self) {
        for (tp, offset) in self.link.take_restarts() {
            // given up, or even assigned anew, meanwhile
            let is_over = self.link.books.assigned().contains(&tp);
            if is_over || !self.queues.contains_key(&tp) {
                continue;
            }
            let start = Start::Unknown;
            match offset {
                Some(_) => self.link.ask(Job::Seek(Seek { tp, offset, start })),
                None => self.unknown.insert(tp),
            }
        }
        let now = Instant::now();
        for (_, seek) in self.seeks.extract_if(.., |(at, _)| *at <= now) {
            self.link.ask(Job::Seek(seek));
        }
        if let Some(question) = self.unknown.next(now) {
            self.link.ask(question);
        }
    }

    /// Answers an assign: each partition gets its own queue before the client may fetch for it, so that nothing of it
    /// reaches the main queue.
    fn assign(&mut self, tps: &[TopicPartition], starts: &HashMap<TopicPartition, Start>) {
        let mut list = TopicPartitionList::with_capacity(tps.len());
        for tp in tps {
            let start = match starts.get(tp) {
                Some(start) => Some(*start),
                None if self.settings.start == StartPolicy::PinLatest => None,
                None => Some(Start::Unknown),
            };
            match start {
                Some(Start::Pin(offset)) => {
                    let _ =
                        list.add_partition_offset(&tp.topic, tp.partition, Offset::Offset(offset));
                }
                // the client looks for the committed offset by itself, leader epoch included
                _ => {
                    list.add_partition(&tp.topic, tp.partition);
                }
            }
            if self.is_leaving() {
                continue;
            }
            match (self.split(tp), start) {
                (Some(queue), Some(start)) => self.open(tp, queue, start),
                (Some(_), None) => self.unknown.insert(tp.clone()),
                (None, _) => self.link.tell(|inbox| {
                    inbox.errors.push(SourceError::Partition {
                        tp: tp.clone(),
                        error: "the client has no queue for it".to_owned(),
                    });
                }),
            }
        }
        if let Err(error) = assign(&self.consumer, &list) {
            warn!(%error, "the client refused the assignment");
            self.link.books.lose(tps);
            self.forget(tps);
        } else {
            info!(partitions = ?Names(tps), "assigned");
        }
        self.link.books.rebalanced();
        self.link.bell.ring();
    }

    fn split(&mut self, tp: &TopicPartition) -> Option<Arc<Queue>> {
        // an old queue that is dropped after the split would take the new one's callback with it
        self.forget(std::slice::from_ref(tp));
        let mut queue = self
            .consumer
            .split_partition_queue(&tp.topic, tp.partition)?;
        let ready = Arc::new(AtomicBool::new(true));
        let (flag, books) = (ready.clone(), self.link.books.clone());
        queue.set_nonempty_callback(move || {
            flag.store(true, Ordering::SeqCst);
            books.wake_driver();
        });
        let queue = Arc::new(Queue {
            queue: Mutex::new(Some(queue)),
            ready,
        });
        self.queues.insert(tp.clone(), queue.clone());
        Some(queue)
    }

    fn open(&mut self, tp: &TopicPartition, queue: Arc<Queue>, start: Start) {
        let cell = self.link.books.assign(tp, start, Instant::now());
        self.released.remove(tp);
        self.link.tell(|inbox| {
            inbox.opened.push(Opened {
                tp: tp.clone(),
                cell,
                queue,
            });
        });
        if let Start::Pin(_) = start {
            self.link.bell.ring();
        }
    }

    fn forget_all(&mut self) {
        let tps: Vec<_> = self.queues.keys().cloned().collect();
        self.forget(&tps);
    }

    fn forget(&mut self, tps: &[TopicPartition]) {
        for tp in tps {
            self.seeks.retain(|(_, seek)| seek.tp != *tp);
            self.unknown.remove(tp);
            if let Some(queue) = self.queues.remove(tp) {
                let old = queue.queue.lock().take();
                drop(old);
            }
        }
    }

    /// Answers a revoke once none of its partitions has books any more.
    fn drained(&mut self) {
        let State::Revoking(tps) = &self.state else {
            return;
        };
        if self.consumer.assignment_lost() {
            self.link.books.lose(tps);
        } else if self.link.books.draining() {
            // the last commit may have become possible just now
            self.link.bell.ring();
        }
        let assigned = self.link.books.assigned();
        if tps.iter().any(|tp| assigned.binary_search(tp).is_ok()) {
            return;
        }
        let State::Revoking(tps) = std::mem::replace(&mut self.state, State::Steady) else {
            return;
        };
        self.forget(&tps);
        match unassign(&self.consumer, &list_of(&tps)) {
            Ok(()) => info!(partitions = ?Names(&tps), "revoked"),
            Err(error) => warn!(%error, "the client refused the revocation"),
        }
    }

    /// Whether to go on.
    fn close(&mut self) -> bool {
        let closing = match &self.closing {
            Some(closing) => closing,
            None if self.link.is_abandoned() => {
                self.link.books.lose_all();
                let deadline = Instant::now() + LEAVE;
                self.closing.insert(Closing { deadline })
            }
            None => match self.link.is_closing() {
                Some(deadline) => self.closing.insert(Closing { deadline }),
                None => return true,
            },
        };
        let in_time = Instant::now() < closing.deadline;
        if self.link.books.draining() {
            self.link.bell.ring();
            return true;
        }
        // a revoke that waits for its answer gets it first
        matches!(self.state, State::Revoking(_)) && in_time
    }

    /// Leaves the group. Everything is drained and committed, or the budget is over.
    fn leave(&mut self) {
        let released = self
            .released
            .drain()
            .map(|(_, released)| released)
            .collect();
        self.link.tell(|inbox| inbox.released = Some(released));
        self.forget_all();
        self.link.ask(Job::Exit);
        // from here on rebalances are answered as they come; those that waited are answered first
        self.consumer.context().leave();
        let waiting = match std::mem::replace(&mut self.state, State::Steady) {
            State::Steady => None,
            State::Assigning(tps) => Some(Rebalance::Assign(tps)),
            State::Revoking(tps) => Some(Rebalance::Revoke(tps)),
        };
        let recorded = std::iter::from_fn(|| self.consumer.context().take());
        for rebalance in waiting.into_iter().chain(recorded) {
            let answered = match rebalance {
                Rebalance::Assign(tps) => assign(&self.consumer, &list_of(&tps)),
                Rebalance::Revoke(tps) => unassign(&self.consumer, &list_of(&tps)),
            };
            if let Err(error) = answered {
                debug!(%error, "the client refused the answer to its last rebalance");
            }
        }
        // the client leaves when its last owner drops it; the commit thread may still wait for a broker
        let patience = Instant::now() + LEAVE;
        while Arc::strong_count(&self.consumer) > 1 && Instant::now() < patience {
            if let Some(Err(error)) = self.consumer.poll(POLL_BUSY) {
                debug!(%error, "client error while leaving");
            }
        }
    }
}

/// A message on the main queue, though its partition has a queue of its own. It is not lost: the client is sent back to
/// it.
fn stray(consumer: &Consumer, message: &BorrowedMessage<'_>, leaving: bool) {
    if leaving {
        return;
    }
    let (topic, partition, offset) = (message.topic(), message.partition(), message.offset());
    warn!(
        topic,
        partition, offset, "a message came by the main queue; it is fetched again"
    );
    if let Err(error) = consumer.seek(topic, partition, Offset::Offset(offset), Duration::ZERO) {
        error!(topic, partition, offset, %error, "seek failed");
    }
}

struct Names<'a>(&'a [TopicPartition]);

impl std::fmt::Debug for Names<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(ToString::to_string))
            .finish()
    }
}
