use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project::pin_project;
use tower::BoxError;
use tower_service::Service;

use crate::message::{Attempt, Handle, Message};
use crate::outcome::IntoOutcome;

/// An async function that handles a message. Implemented for `Fn(Message) -> impl Future<Output = Result<(), E>>`
/// (or `Result<Outcome, E>`) that is `Clone` and `Send`; not to be implemented by hand.
///
/// `Args` only tells signatures apart.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler",
    label = "expected an async function of one `Message` that answers `Result<(), E>` or `Result<Outcome, E>`",
    note = "a closure must say its error type: `Ok::<(), MyError>(())`",
    note = "it must be `Fn + Clone`, and its error must convert into a boxed `std::error::Error + Send + Sync`"
)]
pub trait Handler<Args>: Clone {
    /// What it answers for a message that is finished: `()` or [`Outcome`](crate::Outcome).
    type Response: IntoOutcome;
    /// What it answers for one that is not.
    type Error: Into<BoxError>;
    /// Its future.
    type Future: Future<Output = Result<Self::Response, Self::Error>>;

    /// Begins to handle a message.
    fn handle(&self, message: Message) -> Self::Future;
}

impl<F, Fut, T, E> Handler<(Message,)> for F
where
    F: Fn(Message) -> Fut + Clone,
    Fut: Future<Output = Result<T, E>>,
    T: IntoOutcome,
    E: Into<BoxError>,
{
    type Response = T;
    type Error = E;
    type Future = Fut;

    fn handle(&self, message: Message) -> Fut {
        self(message)
    }
}

/// Makes a service of an async function. See the [module's documentation](super).
///
/// It is always ready; put limits around it as layers. Its error is always a `BoxError`.
pub fn handler_fn<H, Args>(handler: H) -> HandlerFn<H, Args>
where
    H: Handler<Args>,
{
    HandlerFn {
        handler,
        args: PhantomData,
    }
}

/// The service that [`handler_fn`] makes.
pub struct HandlerFn<H, Args> {
    handler: H,
    args: PhantomData<fn(Args)>,
}

impl<H: Clone, Args> Clone for HandlerFn<H, Args> {
    fn clone(&self) -> Self {
        HandlerFn {
            handler: self.handler.clone(),
            args: PhantomData,
        }
    }
}

impl<H, Args> fmt::Debug for HandlerFn<H, Args> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerFn")
            .field("handler", &std::any::type_name::<H>())
            .finish()
    }
}

impl<H, Args> Service<Message> for HandlerFn<H, Args>
where
    H: Handler<Args>,
{
    type Response = H::Response;
    type Error = BoxError;
    type Future = HandlerFuture<H, Args>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, message: Message) -> Self::Future {
        message.claim_attempt();
        HandlerFuture {
            future: None,
            start: Some((self.handler.clone(), message.handle(), message)),
            attempt: None,
        }
    }
}

/// One attempt of a handler.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct HandlerFuture<H, Args>
where
    H: Handler<Args>,
{
    #[pin]
    future: Option<H::Future>,
    start: Option<(H, Handle, Message)>,
    attempt: Option<Attempt>,
}

impl<H, Args> Future for HandlerFuture<H, Args>
where
    H: Handler<Args>,
{
    type Output = Result<H::Response, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Some((_, handle, _)) = this.start {
            *this.attempt = Some(ready!(handle.poll_begin(cx)));
            if let Some((handler, _, message)) = this.start.take() {
                this.future.set(Some(handler.handle(message)));
            }
        }
        let Some(future) = this.future.as_mut().as_pin_mut() else {
            panic!("HandlerFuture polled after it was ready");
        };
        let answer = ready!(future.poll(cx));
        // what the handler still holds goes before its end is noted
        this.future.set(None);
        if let Some(attempt) = this.attempt.take() {
            attempt.end(answer.is_ok());
        }
        Poll::Ready(answer.map_err(Into::into))
    }
}

impl<H, Args> fmt::Debug for HandlerFuture<H, Args>
where
    H: Handler<Args>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerFuture")
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}
