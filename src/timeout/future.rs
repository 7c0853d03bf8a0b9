use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project::pin_project;
use tokio::time::{Sleep, sleep};
use tower::BoxError;

use super::Elapsed;

/// The answer of the service inside, or [`Elapsed`].
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture<F> {
    #[pin]
    inner: Option<F>,
    /// Made at the first pending poll: most work is done by then.
    #[pin]
    sleep: Option<Sleep>,
    limit: Duration,
}

impl<F> ResponseFuture<F> {
    pub(super) fn new(inner: F, limit: Duration) -> Self {
        ResponseFuture {
            inner: Some(inner),
            sleep: None,
            limit,
        }
    }
}

impl<F, T, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
{
    type Output = Result<T, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let Some(inner) = this.inner.as_mut().as_pin_mut() else {
            panic!("ResponseFuture polled after it was ready");
        };
        // work that is done counts, even if the deadline is over too
        if let Poll::Ready(answer) = inner.poll(cx) {
            this.inner.set(None);
            return Poll::Ready(answer.map_err(Into::into));
        }
        if *this.limit == Duration::MAX {
            return Poll::Pending;
        }
        if this.sleep.is_none() {
            this.sleep.set(Some(sleep(*this.limit)));
        }
        let Some(sleep) = this.sleep.as_mut().as_pin_mut() else {
            return Poll::Pending;
        };
        if sleep.poll(cx).is_pending() {
            return Poll::Pending;
        }
        // dropped before the error is out: nothing of the attempt lives on behind it
        this.inner.set(None);
        Poll::Ready(Err(Elapsed { limit: *this.limit }.into()))
    }
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture")
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}
