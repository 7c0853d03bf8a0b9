use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tower_consumer::Message;

/// Holds handlers back, each until its own gate is opened: a hand on the order in which they end.
#[derive(Clone, Default)]
pub(crate) struct Gates {
    gates: Arc<Mutex<ByMessage>>,
}

/// By partition and offset.
type ByMessage = HashMap<(i32, i64), Arc<Notify>>;

impl Gates {
    /// Waits for the gate of a message. One opening lets one through, whichever comes first.
    pub(crate) async fn wait(&self, message: &Message) {
        let gate = self.gate(message.partition(), message.offset());
        gate.notified().await;
    }

    pub(crate) fn open(&self, partition: i32, offset: i64) {
        self.gate(partition, offset).notify_one();
    }

    pub(crate) fn open_all(&self, partition: i32, offsets: impl IntoIterator<Item = i64>) {
        for offset in offsets {
            self.open(partition, offset);
        }
    }

    fn gate(&self, partition: i32, offset: i64) -> Arc<Notify> {
        let mut gates = self.gates.lock();
        gates.entry((partition, offset)).or_default().clone()
    }
}
