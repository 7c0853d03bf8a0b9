use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use tower::BoxError;
use tower_service::Service;

use super::lanes::Lanes;
use super::{LaneKey, ResponseFuture};
use crate::message::Message;
use crate::outcome::IntoOutcome;

/// Handles the messages of a lane one at a time. See the [module's documentation](super).
///
/// Clones share their lanes.
pub struct Order<S, K> {
    inner: S,
    key: K,
    lanes: Arc<Lanes>,
}

impl<S, K> Order<S, K> {
    pub(super) fn new(inner: S, key: K) -> Self {
        Order {
            inner,
            key,
            lanes: Arc::default(),
        }
    }

    /// The service inside.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The service inside.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The service inside.
    pub fn into_inner(self) -> S {
        self.inner
    }

    /// How many lanes are in use now. A lane that nobody uses does not exist.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }
}

impl<S: Clone, K: Clone> Clone for Order<S, K> {
    fn clone(&self) -> Self {
        Order {
            inner: self.inner.clone(),
            key: self.key.clone(),
            lanes: self.lanes.clone(),
        }
    }
}

impl<S: fmt::Debug, K: fmt::Debug> fmt::Debug for Order<S, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Order")
            .field("inner", &self.inner)
            .field("key", &self.key)
            .field("lanes", &self.lanes.len())
            .finish()
    }
}

impl<S, K> Service<Message> for Order<S, K>
where
    S: Service<Message> + Clone,
    S::Response: IntoOutcome,
    S::Error: Into<BoxError>,
    K: LaneKey,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = ResponseFuture<S>;

    /// Always ready: the service inside is asked in the future, once the lane is won.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, message: Message) -> Self::Future {
        let lane = self.lanes.lane_of(&self.key, &message);
        match self.lanes.enter(lane, message.handle()) {
            Ok(place) => ResponseFuture::new(place, self.inner.clone(), message),
            Err(error) => ResponseFuture::refused(error),
        }
    }
}
