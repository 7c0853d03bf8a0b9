//! Who is in which lane, and who comes next.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::Arc;
use std::task::{Context, Waker};

use parking_lot::Mutex;
use slab::Slab;

use super::{LaneKey, OrderError};
use crate::ledger::{EpochId, Stage};
use crate::message::{EpochCell, Handle, Message, SourceId};

type EpochKey = (SourceId, EpochId);

#[derive(Default)]
pub(super) struct Lanes {
    hasher: RandomState,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Only lanes in use.
    lanes: HashMap<u64, Lane>,
    waiters: Slab<Waiter>,
    epochs: HashMap<EpochKey, EpochOrder>,
}

/// A lane in use: one message has it, these wait for it.
#[derive(Default)]
struct Lane {
    queue: VecDeque<usize>,
    /// How many in `queue` will not come any more.
    left: usize,
}

enum Waiter {
    Waiting(Option<Waker>),
    Granted,
    Left,
}

/// What belongs to one assignment.
struct EpochOrder {
    cell: Arc<EpochCell>,
    highest: i64,
    /// Lanes in which a message did not finish: the lowest such offset. What lies above it is not handled.
    closed: HashMap<u64, i64>,
}

impl EpochOrder {
    /// A message of the lane did not finish.
    fn close(&mut self, lane: u64, offset: i64) {
        let closed = self.closed.entry(lane).or_insert(offset);
        *closed = offset.min(*closed);
    }
}

impl Lanes {
    pub(super) fn len(&self) -> usize {
        self.state.lock().lanes.len()
    }

    /// The lane of a message. User code: no lock is held.
    pub(super) fn lane_of(&self, key: &impl LaneKey, message: &Message) -> Option<u64> {
        let mut hasher = self.hasher.build_hasher();
        if let Some(delivery) = message.handle().delivery() {
            delivery.cell().source.hash(&mut hasher);
        }
        message.topic().hash(&mut hasher);
        message.partition().hash(&mut hasher);
        key.lane(message, &mut hasher).then(|| hasher.finish())
    }

    /// Takes the message's place in its lane.
    pub(super) fn enter(
        self: &Arc<Self>,
        lane: Option<u64>,
        message: Handle,
    ) -> Result<Place, OrderError> {
        let mut fenced = Vec::new();
        let mut state = self.state.lock();
        if let Some(delivery) = message.delivery() {
            let cell = delivery.cell();
            let key = (cell.source, cell.epoch.id());
            let offset = message.offset();
            match state.epochs.get_mut(&key) {
                Some(epoch) if offset < epoch.highest => {
                    // not handled, so later messages of its lane must not be
                    if let Some(lane) = lane {
                        epoch.close(lane, offset);
                    }
                    let highest = epoch.highest;
                    drop(state);
                    return Err(OrderError::OutOfOrder {
                        topic: message.topic().to_string(),
                        partition: message.partition(),
                        offset,
                        highest,
                    });
                }
                Some(epoch) => epoch.highest = offset,
                None => {
                    // a new assignment is the time to let go of those that are over; their cells, and whatever hangs
                    // on them, are dropped outside of the lock
                    fenced.extend(
                        state
                            .epochs
                            .extract_if(|_, epoch| epoch.cell.epoch.stage() == Stage::Fenced),
                    );
                    state.epochs.insert(
                        key,
                        EpochOrder {
                            cell: cell.clone(),
                            highest: offset,
                            closed: HashMap::new(),
                        },
                    );
                }
            }
        }
        let waiter = match lane {
            None => None,
            Some(lane) => {
                let State { lanes, waiters, .. } = &mut *state;
                match lanes.entry(lane) {
                    Entry::Vacant(free) => {
                        free.insert(Lane::default());
                        None
                    }
                    Entry::Occupied(mut taken) => {
                        let waiter = waiters.insert(Waiter::Waiting(None));
                        taken.get_mut().queue.push_back(waiter);
                        Some(waiter)
                    }
                }
            }
        };
        drop(state);
        drop(fenced);
        Ok(Place {
            lanes: self.clone(),
            lane,
            waiter,
            message,
            finished: false,
        })
    }

    /// Gives a lane to the next who still wants it; to nobody, and it is gone. Answers whom to wake.
    fn pass_on(state: &mut State, lane: u64) -> Option<Waker> {
        let queue = state.lanes.get_mut(&lane)?;
        while let Some(next) = queue.queue.pop_front() {
            match state.waiters.get_mut(next) {
                Some(waiter @ Waiter::Waiting(_)) => {
                    return match std::mem::replace(waiter, Waiter::Granted) {
                        Waiter::Waiting(waker) => waker,
                        Waiter::Granted | Waiter::Left => None,
                    };
                }
                _ => {
                    queue.left = queue.left.saturating_sub(1);
                    state.waiters.try_remove(next);
                }
            }
        }
        state.lanes.remove(&lane);
        None
    }

    fn release(&self, lane: u64) {
        let waker = Self::pass_on(&mut self.state.lock(), lane);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A message's place in its lane, from `call` until its future is gone.
pub(super) struct Place {
    lanes: Arc<Lanes>,
    lane: Option<u64>,
    /// Its entry among the waiters, until the lane is won.
    waiter: Option<usize>,
    message: Handle,
    finished: bool,
}

impl Place {
    pub(super) fn message(&self) -> &Handle {
        &self.message
    }

    /// Whether the lane is won.
    pub(super) fn poll_won(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(key) = self.waiter else { return true };
        let waker = cx.waker().clone();
        let mut state = self.lanes.state.lock();
        let old = match state.waiters.get_mut(key) {
            Some(Waiter::Waiting(registered)) => registered.replace(waker),
            _ => {
                state.waiters.try_remove(key);
                self.waiter = None;
                drop(state);
                drop(waker);
                return true;
            }
        };
        drop(state);
        drop(old);
        false
    }

    /// The earlier message of the lane that did not finish in this assignment, if there is one.
    pub(super) fn closed_by(&self) -> Option<i64> {
        let (lane, key) = (self.lane?, self.epoch_key()?);
        let state = self.lanes.state.lock();
        let closed = *state.epochs.get(&key)?.closed.get(&lane)?;
        (closed < self.message.offset()).then_some(closed)
    }

    /// The message is finished: its lane stays open.
    pub(super) fn finish(&mut self) {
        self.finished = true;
    }

    fn epoch_key(&self) -> Option<EpochKey> {
        let cell = self.message.delivery()?.cell();
        Some((cell.source, cell.epoch.id()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(lane) = self.lane else { return };
        let epoch = self.epoch_key().filter(|_| !self.finished);
        let mut state = self.lanes.state.lock();
        if let Some(key) = epoch
            && let Some(epoch) = state.epochs.get_mut(&key)
        {
            epoch.close(lane, self.message.offset());
        }
        let waited = self.waiter.take();
        if let Some(key) = waited {
            match state.waiters.get_mut(key) {
                Some(waiter @ Waiter::Waiting(_)) => {
                    let old = std::mem::replace(waiter, Waiter::Left);
                    state.sweep(lane);
                    drop(state);
                    drop(old);
                    return;
                }
                // won, but not polled since: pass it on
                _ => {
                    state.waiters.try_remove(key);
                }
            }
        }
        drop(state);
        let lanes = self.lanes.clone();
        self.message.when_unguarded(move || lanes.release(lane));
    }
}

impl State {
    /// Waiters that left stay in the queue until it is their turn, unless they are the most of it.
    fn sweep(&mut self, lane: u64) {
        let Some(lane) = self.lanes.get_mut(&lane) else {
            return;
        };
        lane.left += 1;
        if lane.left <= lane.queue.len() / 2 {
            return;
        }
        let waiters = &mut self.waiters;
        lane.queue.retain(|key| {
            let left = matches!(waiters.get(*key), Some(Waiter::Left));
            if left {
                waiters.remove(*key);
            }
            !left
        });
        lane.left = 0;
    }
}
