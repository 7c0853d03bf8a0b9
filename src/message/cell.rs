//! An epoch as its messages see it: the books, and who is to be woken.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use parking_lot::Mutex;
use slab::Slab;

use crate::ledger::{Effects, Epoch, EpochId, Reason, TopicPartition};

/// Tells sources of one process apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SourceId(u64);

impl SourceId {
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        SourceId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A message of a live epoch that was not finished.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) tp: TopicPartition,
    pub(crate) epoch: EpochId,
    pub(crate) offset: i64,
    pub(crate) attempts: u32,
    pub(crate) reason: Reason,
    pub(crate) error: Option<String>,
}

/// Where an epoch's news go. Called without any lock held.
pub(crate) trait Signal: Send + Sync {
    fn effects(&self, effects: Effects);
    fn failure(&self, failure: Failure);
}

/// An epoch shared by its messages.
pub(crate) struct EpochCell {
    pub(crate) epoch: Arc<Epoch>,
    pub(crate) source: SourceId,
    pub(crate) signal: Arc<dyn Signal>,
    watchers: Mutex<Slab<Option<Waker>>>,
}

impl EpochCell {
    pub(crate) fn new(epoch: Arc<Epoch>, source: SourceId, signal: Arc<dyn Signal>) -> Self {
        EpochCell {
            epoch,
            source,
            signal,
            watchers: Mutex::default(),
        }
    }

    /// Registers a waker for the next stop or fence; the caller reads the stage again after that. Wakers are cloned,
    /// dropped and woken outside of the lock: they are foreign code.
    pub(super) fn watch(&self, key: Option<usize>, waker: &Waker) -> usize {
        let waker = waker.clone();
        let mut watchers = self.watchers.lock();
        match key {
            Some(key) => {
                let old = watchers.get_mut(key).and_then(|slot| slot.replace(waker));
                drop(watchers);
                drop(old);
                key
            }
            None => watchers.insert(Some(waker)),
        }
    }

    /// Whether the registered waker is still there and would wake the same task.
    pub(super) fn is_watched(&self, key: usize, waker: &Waker) -> bool {
        self.watchers
            .lock()
            .get(key)
            .and_then(Option::as_ref)
            .is_some_and(|registered| registered.will_wake(waker))
    }

    pub(super) fn unwatch(&self, key: usize) {
        let old = self.watchers.lock().try_remove(key);
        drop(old);
    }

    pub(super) fn wake(&self, key: usize) {
        let waker = self.watchers.lock().get_mut(key).and_then(Option::take);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Wakes everyone who watches the epoch: it was stopped or fenced.
    pub(crate) fn wake_all(&self) {
        let wakers: Vec<Waker> = {
            let mut watchers = self.watchers.lock();
            watchers.iter_mut().filter_map(|(_, w)| w.take()).collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl fmt::Debug for EpochCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.epoch.fmt(f)
    }
}
