use std::hash::Hash;

use tower_layer::Layer;

use super::{By, ByKey, ByPartition, Order};
use crate::message::Message;

/// Handles the messages of a lane one at a time, in offset order. See the [module's documentation](super).
#[derive(Clone, Copy, Debug)]
pub struct OrderLayer<K> {
    key: K,
}

impl OrderLayer<ByKey> {
    /// One at a time per (topic, partition, key). Messages with a null key have no constraint.
    pub const fn by_key() -> Self {
        OrderLayer { key: ByKey::new() }
    }
}

impl OrderLayer<ByPartition> {
    /// One at a time per (topic, partition).
    pub const fn by_partition() -> Self {
        OrderLayer {
            key: ByPartition::new(),
        }
    }
}

impl<F> OrderLayer<By<F>> {
    /// One at a time per (topic, partition, what `key` answers); `None` has no constraint.
    ///
    /// ```
    /// use tower_consumer::order::OrderLayer;
    ///
    /// // the tenant is in a header
    /// let layer = OrderLayer::by(|message| {
    ///     message.headers().last("tenant").flatten().map(<[u8]>::to_vec)
    /// });
    /// ```
    pub const fn by<K>(key: F) -> Self
    where
        F: Fn(&Message) -> Option<K>,
        K: Hash,
    {
        OrderLayer { key: By(key) }
    }
}

impl<S, K: Clone> Layer<S> for OrderLayer<K> {
    type Service = Order<S, K>;

    fn layer(&self, inner: S) -> Self::Service {
        Order::new(inner, self.key.clone())
    }
}
