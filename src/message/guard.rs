//! Work that outlives its future.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};

use parking_lot::Mutex;

use super::Inner;

/// Stands for work on a message that may outlive the future that started it. See [`Message::guard`].
///
/// [`Message::guard`]: super::Message::guard
#[must_use = "a guard that is dropped at once protects nothing"]
pub struct Guard(Arc<Inner>);

impl Guard {
    pub(super) fn new(inner: Arc<Inner>) -> Self {
        if inner.guards.count.fetch_add(1, Ordering::SeqCst) == 0
            && let Some(delivery) = &inner.delivery
        {
            delivery.hold();
        }
        Guard(inner)
    }
}

impl Clone for Guard {
    fn clone(&self) -> Self {
        Guard::new(self.0.clone())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.0.guards.count.fetch_sub(1, Ordering::SeqCst) != 1 {
            return;
        }
        if let Some(delivery) = &self.0.delivery {
            delivery.unhold();
        }
        let waiting = std::mem::take(&mut *self.0.guards.waiting.lock());
        for waiting in waiting {
            match waiting {
                Waiting::Wake(waker) => waker.wake(),
                Waiting::Run(f) => f(),
            }
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&self.0.record.offset).finish()
    }
}

enum Waiting {
    Wake(Waker),
    Run(Box<dyn FnOnce() + Send>),
}

/// The guards of one message, and who waits for their end.
#[derive(Default)]
pub(super) struct Guards {
    count: AtomicUsize,
    waiting: Mutex<Vec<Waiting>>,
}

impl Guards {
    pub(super) fn poll_none(&self, cx: &mut Context<'_>) -> bool {
        if self.count.load(Ordering::SeqCst) == 0 {
            return true;
        }
        let waker = cx.waker().clone();
        self.wait(Waiting::Wake(waker)).is_some()
    }

    pub(super) fn when_none(&self, f: impl FnOnce() + Send + 'static) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return f();
        }
        if let Some(Waiting::Run(f)) = self.wait(Waiting::Run(Box::new(f))) {
            f();
        }
    }

    /// Gives `waiting` back if there is nothing to wait for. The count is read under the lock: whoever brings it to
    /// zero takes the list after that.
    fn wait(&self, waiting: Waiting) -> Option<Waiting> {
        let mut list = self.waiting.lock();
        if self.count.load(Ordering::SeqCst) == 0 {
            return Some(waiting);
        }
        list.push(waiting);
        None
    }
}
