use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project::pin_project;
use tower::BoxError;
use tower_layer::Layer;
use tower_service::Service;

use crate::message::{self, Handle, Message};
use crate::outcome::IntoOutcome;

/// Notes the start and the end of each attempt of a service that is not a [`handler_fn`](super::handler_fn). Place it
/// directly around the innermost service. See the [module's documentation](super).
///
/// ```
/// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
/// use tower_consumer::{Message, commit::CommitLayer, handler::AttemptLayer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let mut stack = ServiceBuilder::new()
///     .layer(CommitLayer::new())
///     .layer(AttemptLayer::new())
///     .service(service_fn(|_: Message| async { Ok::<(), std::io::Error>(()) }));
/// stack.ready().await.unwrap().call(Message::builder("orders").build()).await.unwrap();
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct AttemptLayer {
    _private: (),
}

impl AttemptLayer {
    /// A layer; there is nothing to set.
    pub const fn new() -> Self {
        AttemptLayer { _private: () }
    }
}

impl<S> Layer<S> for AttemptLayer {
    type Service = Attempt<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Attempt::new(inner)
    }
}

/// Notes attempts of the service inside: [`AttemptLayer`].
///
/// The service is called when the future is first polled, on the instance that was ready; so it must be `Clone`.
/// Its error is always a `BoxError`.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<S> {
    inner: S,
}

impl<S> Attempt<S> {
    /// Wraps a service.
    pub const fn new(inner: S) -> Self {
        Attempt { inner }
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

impl<S> Service<Message> for Attempt<S>
where
    S: Service<Message> + Clone,
    // an attempt that answers `Ok(Err(..))` did not end `Ok`
    S::Response: IntoOutcome,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = AttemptFuture<S>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, message: Message) -> Self::Future {
        message.claim_attempt();
        AttemptFuture {
            future: None,
            start: Some(Start {
                service: crate::ready::take(&mut self.inner),
                handle: message.handle(),
                message: message.into_attempt(),
            }),
            attempt: None,
        }
    }
}

struct Start<S> {
    service: S,
    handle: Handle,
    message: Message,
}

/// One attempt of a service.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct AttemptFuture<S>
where
    S: Service<Message>,
{
    #[pin]
    future: Option<S::Future>,
    start: Option<Start<S>>,
    attempt: Option<message::Attempt>,
}

impl<S> Future for AttemptFuture<S>
where
    S: Service<Message>,
    S::Error: Into<BoxError>,
{
    type Output = Result<S::Response, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Some(start) = this.start {
            *this.attempt = Some(ready!(start.handle.poll_begin(cx)));
            if let Some(mut start) = this.start.take() {
                this.future.set(Some(start.service.call(start.message)));
            }
        }
        let Some(future) = this.future.as_mut().as_pin_mut() else {
            panic!("AttemptFuture polled after it was ready");
        };
        let answer = ready!(future.poll(cx));
        this.future.set(None);
        if let Some(attempt) = this.attempt.take() {
            attempt.end_outer(answer.is_ok());
        }
        Poll::Ready(answer.map_err(Into::into))
    }
}

impl<S> fmt::Debug for AttemptFuture<S>
where
    S: Service<Message>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttemptFuture")
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}
