use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::message::Message as _;
use tokio::time::{Sleep, sleep};
use tracing::{error, warn};

use super::KafkaSourceBuilder;
use super::classify::{self, Meaning};
use super::link::{Link, Opened};
use super::message::record;
use crate::ledger::{DeliverError, Released, Room, Stage, TopicPartition};
use crate::message::Message;
use crate::source::{Books, Source, SourceError};

/// Messages of one partition handed out in a row before the next partition has its turn.
const TURN: u32 = 64;
/// Every queue is looked into at least this often: wake-ups of the client can be lost.
const TICK: Duration = Duration::from_millis(100);
/// Of the budget of a close, kept for the leave, and once more for the answer.
const CLOSE_MARGIN: Duration = Duration::from_millis(100);

/// A member of a Kafka group. See the [module's documentation](super).
pub struct KafkaSource {
    link: Arc<Link>,
    partitions: Vec<Opened>,
    /// Whose turn it is, and how much of it is used.
    turn: usize,
    taken_in_turn: u32,
    tick: Option<Pin<Box<Sleep>>>,
    errors: Vec<SourceError>,
    dead: Option<SourceError>,
    /// What was assigned when the close began.
    closing: Option<Vec<TopicPartition>>,
    closed: Option<Vec<Released>>,
}

impl KafkaSource {
    /// Begins to build a member of `group` that reads from the brokers at `bootstrap` (`host:port`, comma-separated).
    pub fn builder(bootstrap: impl Into<String>, group: impl Into<String>) -> KafkaSourceBuilder {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", bootstrap.into())
            .set("group.id", group.into());
        KafkaSourceBuilder::new(config)
    }

    /// Begins to build a source from settings of librdkafka. What would break a promise is refused by `build`.
    pub fn from_config(config: ClientConfig) -> KafkaSourceBuilder {
        KafkaSourceBuilder::new(config)
    }

    pub(super) fn new(link: Arc<Link>) -> Self {
        KafkaSource {
            link,
            partitions: Vec::new(),
            turn: 0,
            taken_in_turn: 0,
            tick: None,
            errors: Vec::new(),
            dead: None,
            closing: None,
            closed: None,
        }
    }

    fn read_news(&mut self) {
        let Some(news) = self.link.news() else { return };
        self.partitions
            .retain(|partition| partition.cell.epoch.stage() != Stage::Fenced);
        for opened in news.opened {
            self.partitions
                .retain(|partition| partition.tp != opened.tp);
            self.partitions.push(opened);
        }
        self.errors.extend(news.errors);
        if let Some(dead) = news.dead {
            self.dead = Some(dead);
        }
        if let Some(closed) = news.closed {
            self.closed = Some(closed);
        }
    }

    /// The next message of the partition whose turn it is, or of the first after it that has one and has room.
    fn take(&mut self) -> Option<Message> {
        let count = self.partitions.len();
        for _ in 0..=count {
            if self.turn >= self.partitions.len() {
                self.turn = 0;
            }
            if self.taken_in_turn < TURN
                && let Some(message) = self.take_from(self.turn)
            {
                self.taken_in_turn += 1;
                return Some(message);
            }
            self.turn += 1;
            self.taken_in_turn = 0;
        }
        None
    }

    fn take_from(&mut self, index: usize) -> Option<Message> {
        let partition = self.partitions.get(index)?;
        let queue = &partition.queue;
        if !queue.ready.load(Ordering::Relaxed) || partition.cell.epoch.room() != Room::Free {
            return None;
        }
        // before the poll: a message that comes after it sets the flag again
        queue.ready.store(false, Ordering::SeqCst);
        let slot = queue.queue.lock();
        let polled = slot.as_ref()?.poll(Duration::ZERO)?;
        queue.ready.store(true, Ordering::SeqCst);
        let message = match polled {
            Ok(message) => message,
            Err(error) => {
                drop(slot);
                self.partition_failed(index, &error);
                return None;
            }
        };
        // what was in the queue when its partition was released belongs to nobody here
        let (offset, tp) = (message.offset(), &partition.tp);
        let bytes = message.key_len() + message.payload_len();
        match partition.cell.epoch.deliver(offset, bytes, Instant::now()) {
            Ok(delivered) => {
                if delivered.below_committed {
                    warn!(
                        topic = &*tp.topic,
                        partition = tp.partition,
                        offset,
                        committed = partition.cell.epoch.committed(),
                        "delivery begins below the committed offset: delivered again, and nothing below it is committed"
                    );
                }
                let record = record(&message, &tp.topic);
                Some(Message::from_record(
                    record,
                    Some((partition.cell.clone(), delivered.ticket)),
                ))
            }
            Err(DeliverError::Falling { last, .. }) => {
                warn!(
                    topic = &*tp.topic,
                    partition = tp.partition,
                    offset,
                    last,
                    "offsets fell (the topic was made anew or truncated): this epoch ends"
                );
                drop(message);
                drop(slot);
                self.restart(index, Some(offset));
                None
            }
            Err(error) => {
                if partition.cell.epoch.stage() == Stage::Live {
                    error!(topic = &*tp.topic, partition = tp.partition, offset, %error, "message not taken");
                }
                None
            }
        }
    }

    /// Ends an epoch; the group thread begins the next one.
    fn restart(&mut self, index: usize, offset: Option<i64>) {
        let tp = self.partitions.swap_remove(index).tp;
        self.link.books.lose(std::slice::from_ref(&tp));
        self.link.order(|orders| orders.restart.push((tp, offset)));
    }

    fn partition_failed(&mut self, index: usize, error: &rdkafka::error::KafkaError) {
        let Some(partition) = self.partitions.get(index) else {
            return;
        };
        let tp = partition.tp.clone();
        match classify::consume(error) {
            Meaning::Nothing => {}
            Meaning::Transient => {
                warn!(topic = &*tp.topic, partition = tp.partition, %error, "client error");
            }
            Meaning::PollExceeded => self.link.books.lose_all(),
            Meaning::Fatal => self.link.die(SourceError::Fatal(error.to_string())),
            Meaning::Gone => {
                warn!(topic = &*tp.topic, partition = tp.partition, %error, "the partition is gone: this epoch ends, and another begins when it is there again");
                self.restart(index, None);
            }
            Meaning::Partition => {
                error!(topic = &*tp.topic, partition = tp.partition, %error, "the partition cannot be read");
                // what was taken goes on, and is committed; nothing more is taken
                self.partitions.swap_remove(index);
                let error = error.to_string();
                self.errors.push(SourceError::Partition { tp, error });
            }
        }
    }

    fn poll_tick(&mut self, cx: &mut Context<'_>) {
        loop {
            let tick = self.tick.get_or_insert_with(|| Box::pin(sleep(TICK)));
            if tick.as_mut().poll(cx).is_pending() {
                return;
            }
            tick.as_mut().reset(tokio::time::Instant::now() + TICK);
            for partition in &self.partitions {
                partition.queue.ready.store(true, Ordering::SeqCst);
            }
        }
    }

    fn poll_error(&mut self) -> Option<SourceError> {
        if let Some(dead) = &self.dead {
            return Some(dead.clone());
        }
        self.errors.pop()
    }
}

impl Source for KafkaSource {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Message, SourceError>>> {
        if self.closing.is_some() {
            return Poll::Ready(None);
        }
        self.read_news();
        if self.taken_in_turn == 0 {
            self.poll_tick(cx);
        }
        if let Some(message) = self.take() {
            return Poll::Ready(Some(Ok(message)));
        }
        // registered first, then looked again: what came in between is not missed
        self.link.books.set_driver(cx.waker());
        self.poll_tick(cx);
        self.read_news();
        match self.take() {
            Some(message) => Poll::Ready(Some(Ok(message))),
            None => match self.poll_error() {
                Some(error) => Poll::Ready(Some(Err(error))),
                None => Poll::Pending,
            },
        }
    }

    fn poll_progress(&mut self, cx: &mut Context<'_>) -> Poll<SourceError> {
        self.link.books.set_driver(cx.waker());
        self.read_news();
        match self.poll_error() {
            Some(error) => Poll::Ready(error),
            None => Poll::Pending,
        }
    }

    fn start_close(&mut self, budget: Duration) {
        if self.closing.is_some() {
            return;
        }
        let now = Instant::now();
        // the answer, what was not committed included, is to be there when the budget is over: the commits and then
        // the leave end a little earlier
        let margin = (budget / 10).min(CLOSE_MARGIN);
        let leave = budget.saturating_sub(margin);
        let deadline = now
            .checked_add(leave)
            .unwrap_or_else(|| now + Duration::from_secs(1 << 30));
        let tps: Vec<TopicPartition> = self.link.books.assigned();
        // stopped here and now, so that nothing starts while the group thread sleeps
        self.link
            .books
            .revoke(&tps, leave.saturating_sub(margin), now);
        self.closing = Some(tps);
        self.link.order(|orders| orders.close = Some(deadline));
        self.link.bell.ring();
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<Released>, SourceError>> {
        self.link.books.set_driver(cx.waker());
        self.read_news();
        if let (Some(mut closed), Some(tps)) = (self.closed.take(), &self.closing) {
            closed.retain(|released| tps.contains(&released.tp));
            closed.sort_by(|a, b| a.tp.cmp(&b.tp));
            return Poll::Ready(Ok(closed));
        }
        match &self.dead {
            Some(dead) => Poll::Ready(Err(dead.clone())),
            None => Poll::Pending,
        }
    }

    fn books(&self) -> &Books {
        &self.link.books
    }
}

impl Drop for KafkaSource {
    /// A crash in small: everything is fenced, nothing more is committed, and the client leaves on its own thread.
    fn drop(&mut self) {
        self.link.books.lose_all();
        self.link.order(|orders| orders.abandoned = true);
        self.link.bell.ring();
    }
}

impl fmt::Debug for KafkaSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSource")
            .field("books", &self.link.books)
            .finish_non_exhaustive()
    }
}
