use std::task::{Context, Poll};
use std::time::Duration;

use tower::BoxError;
use tower_service::Service;

use super::ResponseFuture;

/// Gives each call a deadline. See the [module's documentation](super).
#[derive(Clone, Copy, Debug)]
pub struct Timeout<S> {
    inner: S,
    limit: Duration,
}

impl<S> Timeout<S> {
    /// Wraps a service.
    pub const fn new(inner: S, limit: Duration) -> Self {
        Timeout { inner, limit }
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
}

impl<S, Request> Service<Request> for Timeout<S>
where
    S: Service<Request>,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        ResponseFuture::new(self.inner.call(request), self.limit)
    }
}
