use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::ledger::{Released, TopicPartition};
use crate::source::Books;

/// Moves partitions to and from a [`MemorySource`](super::MemorySource), as a group coordinator would.
///
/// What is asked for happens when the source is polled next; so the source must be driven meanwhile. When it is gone,
/// everything is answered at once.
#[derive(Clone)]
pub struct MemoryMember {
    pub(super) orders: Arc<Orders>,
    pub(super) books: Books,
}

/// What was asked for and not looked at yet; `None` once the source is gone.
pub(super) struct Orders(pub(super) Mutex<Option<VecDeque<Order>>>);

impl Default for Orders {
    fn default() -> Self {
        Orders(Mutex::new(Some(VecDeque::new())))
    }
}

pub(super) enum Order {
    Assign(Vec<TopicPartition>, oneshot::Sender<()>),
    Revoke(
        Vec<TopicPartition>,
        Duration,
        oneshot::Sender<Vec<Released>>,
    ),
    Lose(Vec<TopicPartition>, oneshot::Sender<()>),
}

impl MemoryMember {
    /// Assigns partitions, which are read from their committed offset. Those that are assigned stay as they are; those
    /// that are being revoked are assigned when they are released.
    pub async fn assign(&self, tps: impl IntoIterator<Item = TopicPartition>) {
        let (done, wait) = oneshot::channel();
        self.order(Order::Assign(tps.into_iter().collect(), done));
        let _ = wait.await;
    }

    /// Revokes partitions in order: what runs may end within the budget, and what is finished is committed. Answers
    /// when they are released; with an empty list if the source is gone.
    pub async fn revoke(
        &self,
        tps: impl IntoIterator<Item = TopicPartition>,
        budget: Duration,
    ) -> Vec<Released> {
        let (done, wait) = oneshot::channel();
        self.order(Order::Revoke(tps.into_iter().collect(), budget, done));
        wait.await.unwrap_or_default()
    }

    /// Takes partitions away at once, as when the group has given them to somebody else already.
    pub async fn lose(&self, tps: impl IntoIterator<Item = TopicPartition>) {
        let (done, wait) = oneshot::channel();
        self.order(Order::Lose(tps.into_iter().collect(), done));
        let _ = wait.await;
    }

    /// The books of the source.
    pub fn books(&self) -> &Books {
        &self.books
    }

    /// An order that nobody will look at is dropped, which answers it.
    fn order(&self, order: Order) {
        if let Some(orders) = &mut *self.orders.0.lock() {
            orders.push_back(order);
        }
        self.books.wake_driver();
    }
}

impl fmt::Debug for MemoryMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryMember")
            .field("books", &self.books)
            .finish_non_exhaustive()
    }
}
