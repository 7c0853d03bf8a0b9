use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project::pin_project;
use tower::BoxError;
use tower_service::Service;

use super::OrderError;
use super::lanes::Place;
use crate::ledger::{Kind, Phase, Reason};
use crate::message::Message;
use crate::outcome::IntoOutcome;

/// Waits for the message's lane, then for the service inside, then for its answer.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture<S>
where
    S: Service<Message>,
{
    /// Declared, and so dropped, before the place: the work is gone when the lane is given on.
    #[pin]
    inner: Option<S::Future>,
    waiting: Option<(S, Message)>,
    place: Option<Place>,
    refused: Option<OrderError>,
    won: bool,
}

impl<S> ResponseFuture<S>
where
    S: Service<Message>,
{
    pub(super) fn new(place: Place, service: S, message: Message) -> Self {
        ResponseFuture {
            inner: None,
            waiting: Some((service, message)),
            place: Some(place),
            refused: None,
            won: false,
        }
    }

    pub(super) fn refused(error: OrderError) -> Self {
        ResponseFuture {
            inner: None,
            waiting: None,
            place: None,
            refused: Some(error),
            won: false,
        }
    }
}

impl<S> Future for ResponseFuture<S>
where
    S: Service<Message>,
    S::Response: IntoOutcome,
    S::Error: Into<BoxError>,
{
    type Output = Result<S::Response, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Some(error) = this.refused.take() {
            return Poll::Ready(Err(error.into()));
        }
        let Some(place) = this.place.as_mut() else {
            panic!("ResponseFuture polled after it was ready");
        };
        if let Some((service, _)) = this.waiting {
            if !*this.won {
                if !place.poll_won(cx) {
                    place.message().note(Phase::WaitingForLane);
                    return Poll::Pending;
                }
                *this.won = true;
                if let Some(closed_by) = place.closed_by() {
                    let error = closed(place, closed_by);
                    *this.waiting = None;
                    *this.place = None;
                    return Poll::Ready(Err(error.into()));
                }
            }
            match service.poll_ready(cx) {
                Poll::Pending => {
                    place.message().note(Phase::WaitingForPermit);
                    return Poll::Pending;
                }
                Poll::Ready(Err(error)) => {
                    if let Some(delivery) = place.message().delivery() {
                        delivery.hint(Reason::Unready);
                    }
                    *this.waiting = None;
                    *this.place = None;
                    return Poll::Ready(Err(error.into()));
                }
                Poll::Ready(Ok(())) => {}
            }
            if let Some((mut service, message)) = this.waiting.take() {
                this.inner.set(Some(service.call(message)));
            }
        }
        let Some(inner) = this.inner.as_mut().as_pin_mut() else {
            panic!("ResponseFuture polled after it was ready");
        };
        let answer = ready!(inner.poll(cx));
        this.inner.set(None);
        if answer
            .as_ref()
            .is_ok_and(|answer| finishes(place, answer.kind()))
        {
            place.finish();
        }
        *this.place = None;
        Poll::Ready(answer.map_err(Into::into))
    }
}

/// The test that the books will apply to the answer, before the lane is given on.
fn finishes(place: &Place, kind: Kind) -> bool {
    match place.message().delivery() {
        Some(delivery) if kind == Kind::Done => delivery.attempt_ok(),
        _ => true,
    }
}

fn closed(place: &Place, closed_by: i64) -> OrderError {
    let message = place.message();
    if let Some(delivery) = message.delivery() {
        delivery.hint(Reason::KeyClosed);
    }
    OrderError::LaneClosed {
        topic: message.topic().to_string(),
        partition: message.partition(),
        offset: message.offset(),
        closed_by,
    }
}

impl<S> fmt::Debug for ResponseFuture<S>
where
    S: Service<Message>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture")
            .field("message", &self.place.as_ref().map(Place::message))
            .field("refused", &self.refused)
            .finish_non_exhaustive()
    }
}
