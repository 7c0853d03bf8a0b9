use std::fmt;
use std::hash::{Hash, Hasher};

use crate::message::Message;

/// Says which messages of a partition are to be handled one after the other.
///
/// Called once for each message, in `call`, without any lock held. A panic in it is a panic in `call`.
pub trait LaneKey {
    /// Feeds what names the lane into `lane`, or answers `false`: the message has no constraint.
    fn lane<H: Hasher>(&self, message: &Message, lane: &mut H) -> bool;
}

/// A lane for each key of a partition: [`OrderLayer::by_key`](super::OrderLayer::by_key).
#[derive(Clone, Copy, Debug, Default)]
pub struct ByKey {
    _private: (),
}

impl ByKey {
    pub(super) const fn new() -> Self {
        ByKey { _private: () }
    }
}

impl LaneKey for ByKey {
    fn lane<H: Hasher>(&self, message: &Message, lane: &mut H) -> bool {
        message.key().is_some_and(|key| {
            key.hash(lane);
            true
        })
    }
}

/// A lane for each partition: [`OrderLayer::by_partition`](super::OrderLayer::by_partition).
#[derive(Clone, Copy, Debug, Default)]
pub struct ByPartition {
    _private: (),
}

impl ByPartition {
    pub(super) const fn new() -> Self {
        ByPartition { _private: () }
    }
}

impl LaneKey for ByPartition {
    fn lane<H: Hasher>(&self, _: &Message, _: &mut H) -> bool {
        true
    }
}

/// Lanes by a function: [`OrderLayer::by`](super::OrderLayer::by).
#[derive(Clone, Copy)]
pub struct By<F>(pub(super) F);

impl<F, K> LaneKey for By<F>
where
    F: Fn(&Message) -> Option<K>,
    K: Hash,
{
    fn lane<H: Hasher>(&self, message: &Message, lane: &mut H) -> bool {
        (self.0)(message).is_some_and(|key| {
            key.hash(lane);
            true
        })
    }
}

impl<F> fmt::Debug for By<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("By")
            .field(&std::any::type_name::<F>())
            .finish()
    }
}
