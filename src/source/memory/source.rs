use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::time::Sleep;
use tracing::warn;

use super::member::{Order, Orders};
use super::{CommitReply, MemoryBroker, MemoryMember, MemorySourceBuilder};
use crate::ledger::{Commit, DeliverError, Released, Room, Start, TopicPartition};
use crate::message::{EpochCell, Message};
use crate::source::{Books, Source, SourceError};

/// Messages of one partition handed out in a row before the next partition has its turn.
const TURN: u32 = 64;
/// After a refusal for lack of room the books are asked again at least this often.
const TICK: Duration = Duration::from_millis(100);

/// A member of a group that reads topics in memory. See the [module's documentation](super).
pub struct MemorySource {
    broker: MemoryBroker,
    group: String,
    until_end: bool,
    books: Books,
    /// In turn: the first is asked first.
    assigned: VecDeque<Assigned>,
    taken_in_turn: u32,
    commits: Vec<PendingCommit>,
    orders: Arc<Orders>,
    revokes: Vec<Revoke>,
    timer: Option<Pin<Box<Sleep>>>,
    closing: Option<Closing>,
}

struct Assigned {
    tp: TopicPartition,
    cell: Arc<EpochCell>,
    position: i64,
}

struct PendingCommit {
    commit: Commit,
    reply: CommitReply,
    at: Instant,
}

struct Revoke {
    tps: Vec<TopicPartition>,
    done: oneshot::Sender<Vec<Released>>,
    released: Vec<Released>,
}

#[derive(Default)]
struct Closing {
    released: Vec<Released>,
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl MemorySource {
    pub(super) fn new(builder: MemorySourceBuilder) -> Self {
        let MemorySourceBuilder {
            broker,
            group,
            topics,
            config,
            until_end,
        } = builder;
        let tps: Vec<_> = topics
            .iter()
            .flat_map(|topic| broker.partitions(topic))
            .collect();
        let mut source = MemorySource {
            broker,
            group,
            until_end,
            books: Books::new(config, None),
            assigned: VecDeque::new(),
            taken_in_turn: 0,
            commits: Vec::new(),
            orders: Arc::default(),
            revokes: Vec::new(),
            timer: None,
            closing: None,
        };
        source.assign(&tps);
        source
    }

    /// A handle that moves partitions to and from this source.
    pub fn member(&self) -> MemoryMember {
        MemoryMember {
            orders: self.orders.clone(),
            books: self.books.clone(),
        }
    }

    fn assign(&mut self, tps: &[TopicPartition]) {
        for tp in tps {
            if self.assigned.iter().any(|assigned| assigned.tp == *tp) {
                continue;
            }
            let committed = self.broker.committed(&self.group, &tp.topic, tp.partition);
            // one outside of the log counts for nothing: the client starts over
            let committed = committed.filter(|offset| self.broker.is_in_log(tp, *offset));
            let start = committed.map_or(Start::Unknown, Start::Committed);
            self.assigned.push_back(Assigned {
                tp: tp.clone(),
                cell: self.books.assign(tp, start, now()),
                position: committed.unwrap_or(0),
            });
        }
        self.books.rebalanced();
    }

    fn forget(&mut self, tps: &[TopicPartition]) {
        self.assigned.retain(|assigned| !tps.contains(&assigned.tp));
    }

    /// The next thing that is asked for. A partition that is being given up is assigned again when it is released;
    /// what was asked for after that waits, too.
    fn next_order(&mut self) -> Option<Order> {
        let mut orders = self.orders.0.lock();
        let orders = orders.as_mut()?;
        if let Some(Order::Assign(tps, _)) = orders.front()
            && self
                .revokes
                .iter()
                .any(|revoke| revoke.tps.iter().any(|tp| tps.contains(tp)))
        {
            return None;
        }
        orders.pop_front()
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Assign(tps, done) => {
                self.assign(&tps);
                let _ = done.send(());
            }
            Order::Revoke(mut tps, budget, done) => {
                tps.retain(|tp| self.assigned.iter().any(|assigned| assigned.tp == *tp));
                self.books.revoke(&tps, budget, now());
                self.revokes.push(Revoke {
                    tps,
                    done,
                    released: Vec::new(),
                });
            }
            Order::Lose(tps, done) => {
                self.books.lose(&tps);
                self.forget(&tps);
                let _ = done.send(());
            }
        }
    }

    /// Everything but handing out messages: orders, commits, drains, until nothing changes; then the timer.
    fn pump(&mut self, cx: &mut Context<'_>) {
        self.books.set_driver(cx.waker());
        loop {
            while let Some(order) = self.next_order() {
                self.obey(order);
            }
            let released = self.books.drain_step(now());
            let sent = self.send_commits();
            let ended = self.end_commits();
            let is_released = !released.is_empty();
            for group in released {
                self.released(group);
            }
            let is_over = self.finish_revokes();
            if !sent && !ended && !is_released && !is_over && !self.rewind_timer(cx) {
                return;
            }
        }
    }

    fn send_commits(&mut self) -> bool {
        let commits = self.books.take_commits(now());
        let sent = !commits.is_empty();
        for commit in commits {
            let reply = self.broker.reply(&self.group, &commit.tp, commit.offset);
            self.commits.push(PendingCommit {
                at: now()
                    .checked_add(reply.after)
                    .unwrap_or_else(|| now() + Duration::from_secs(1 << 30)),
                commit,
                reply,
            });
        }
        sent
    }

    fn end_commits(&mut self) -> bool {
        let now = now();
        let due: Vec<_> = self
            .commits
            .extract_if(.., |pending| pending.at <= now)
            .collect();
        for PendingCommit { commit, reply, .. } in &due {
            if reply.store {
                self.broker.store(&self.group, &commit.tp, commit.offset);
            }
            let outcome = self.books.commit_ended(commit, reply.answer, now);
            if let Err(failure) = reply.answer {
                warn!(
                    topic = &*commit.tp.topic,
                    partition = commit.tp.partition,
                    offset = commit.offset,
                    failures = outcome.failures,
                    ?failure,
                    "commit failed"
                );
            }
        }
        !due.is_empty()
    }

    fn released(&mut self, group: Vec<Released>) {
        let tps: Vec<_> = group.iter().map(|released| released.tp.clone()).collect();
        self.forget(&tps);
        for released in group {
            let revoke = self
                .revokes
                .iter_mut()
                .find(|revoke| revoke.tps.contains(&released.tp));
            if let Some(revoke) = revoke {
                revoke.released.push(released.clone());
            }
            if let Some(closing) = &mut self.closing {
                closing.released.push(released);
            }
        }
    }

    fn finish_revokes(&mut self) -> bool {
        let assigned = &self.assigned;
        let before = self.revokes.len();
        let over = self.revokes.extract_if(.., |revoke| {
            !revoke
                .tps
                .iter()
                .any(|tp| assigned.iter().any(|a| a.tp == *tp))
        });
        for revoke in over {
            let _ = revoke.done.send(revoke.released);
        }
        self.revokes.len() < before
    }

    /// Sets the timer to the next thing that happens by itself. Whether it is due already.
    fn rewind_timer(&mut self, cx: &mut Context<'_>) -> bool {
        let books = self.books.next_timeout(now());
        let commits = self.commits.iter().map(|pending| pending.at).min();
        let tick = self.is_refused().then(|| now() + TICK);
        let Some(at) = [books, commits, tick].into_iter().flatten().min() else {
            self.timer = None;
            return false;
        };
        let at = tokio::time::Instant::from_std(at);
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        if timer.deadline() != at {
            timer.as_mut().reset(at);
        }
        timer.as_mut().poll(cx).is_ready()
    }

    fn is_refused(&self) -> bool {
        self.closing.is_none()
            && self.assigned.iter().any(|assigned| {
                matches!(
                    assigned.cell.epoch.room(),
                    Room::WindowFull | Room::InFlightFull
                ) && self.broker.has_more(&assigned.tp, assigned.position)
            })
    }

    /// The next message of the partition whose turn it is, or of the first after it that has one and has room.
    fn take(&mut self) -> Option<Message> {
        for _ in 0..self.assigned.len() {
            if self.taken_in_turn < TURN
                && let Some(message) = self.take_first()
            {
                self.taken_in_turn += 1;
                return Some(message);
            }
            self.assigned.rotate_left(1);
            self.taken_in_turn = 0;
        }
        let message = self.take_first()?;
        self.taken_in_turn = 1;
        Some(message)
    }

    fn take_first(&mut self) -> Option<Message> {
        let assigned = self.assigned.front_mut()?;
        if assigned.cell.epoch.room() != Room::Free {
            return None;
        }
        let record = self.broker.fetch(&assigned.tp, assigned.position)?;
        let bytes = record.data.len();
        let (offset, tp) = (record.offset, assigned.tp.clone());
        let delivered = match assigned.cell.epoch.deliver(offset, bytes, now()) {
            Err(DeliverError::Falling { last, .. }) => {
                warn!(
                    topic = &*tp.topic,
                    partition = tp.partition,
                    offset,
                    last,
                    "offsets fell (the topic was made anew or truncated): a new epoch begins"
                );
                self.books.lose(std::slice::from_ref(&tp));
                assigned.cell = self.books.assign(&tp, Start::Unknown, now());
                assigned.cell.epoch.deliver(offset, bytes, now())
            }
            delivered => delivered,
        };
        match delivered {
            Ok(delivered) => {
                assigned.position = offset + 1;
                Some(Message::from_record(
                    record,
                    Some((assigned.cell.clone(), delivered.ticket)),
                ))
            }
            Err(error) => {
                warn!(topic = &*tp.topic, partition = tp.partition, %error, "message not taken");
                None
            }
        }
    }

    fn is_at_end(&self) -> bool {
        self.until_end
            && self.books.in_flight().0 == 0
            && !self
                .assigned
                .iter()
                .any(|assigned| self.broker.has_more(&assigned.tp, assigned.position))
    }
}

impl Source for MemorySource {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Message, SourceError>>> {
        self.pump(cx);
        if self.closing.is_some() {
            return Poll::Ready(None);
        }
        if let Some(message) = self.take() {
            return Poll::Ready(Some(Ok(message)));
        }
        if self.is_at_end() {
            return Poll::Ready(None);
        }
        self.broker.wait(cx.waker());
        // a message may have come, and room been refused, since the last look
        match self.take() {
            Some(message) => Poll::Ready(Some(Ok(message))),
            None if self.rewind_timer(cx) => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            None => Poll::Pending,
        }
    }

    fn poll_progress(&mut self, cx: &mut Context<'_>) -> Poll<SourceError> {
        self.pump(cx);
        Poll::Pending
    }

    fn start_close(&mut self, budget: Duration) {
        if self.closing.is_none() {
            self.closing = Some(Closing::default());
            let tps = self.books.assigned();
            self.books.revoke(&tps, budget, now());
        }
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<Released>, SourceError>> {
        self.pump(cx);
        if self.books.draining() {
            return Poll::Pending;
        }
        let closing = self.closing.take().unwrap_or_default();
        self.closing = Some(Closing::default());
        Poll::Ready(Ok(closing.released))
    }

    fn books(&self) -> &Books {
        &self.books
    }
}

impl Drop for MemorySource {
    /// A crash in small: nothing more is committed. A commit that is out lands or not, as the broker likes.
    fn drop(&mut self) {
        let orders = self.orders.0.lock().take();
        drop(orders);
        self.books.lose_all();
    }
}

impl fmt::Debug for MemorySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemorySource")
            .field("group", &self.group)
            .field("books", &self.books)
            .finish_non_exhaustive()
    }
}
