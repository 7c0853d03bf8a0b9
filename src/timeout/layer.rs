use std::time::Duration;

use tower_layer::Layer;

use super::Timeout;

/// Gives each message a deadline. See the [module's documentation](super).
#[derive(Clone, Copy, Debug)]
pub struct TimeoutLayer {
    limit: Duration,
}

impl TimeoutLayer {
    /// A deadline of `limit` for each call. Zero lets through only what is ready at the first poll;
    /// [`Duration::MAX`] is no deadline.
    pub const fn new(limit: Duration) -> Self {
        TimeoutLayer { limit }
    }
}

impl<S> Layer<S> for TimeoutLayer {
    type Service = Timeout<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Timeout::new(inner, self.limit)
    }
}
