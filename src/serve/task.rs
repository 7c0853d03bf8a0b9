use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project::pin_project;
use tower::BoxError;

use crate::ledger::{EpochId, Reason, Verdict};
use crate::message::{Handle, TakeRight};

/// The future of one call, and the message it was for.
#[pin_project]
pub(super) struct Task<F> {
    #[pin]
    future: Option<F>,
    message: Option<Handle>,
}

/// How a call ended: what it answered, if that was not `Settled`.
pub(super) struct Ended {
    /// Which message it was about; `None` for one without a delivery.
    pub(super) id: Option<MessageId>,
    pub(super) error: Option<BoxError>,
}

pub(super) type MessageId = (EpochId, i64);

impl<F> Task<F> {
    pub(super) fn new(future: F, message: Handle) -> Self {
        Task {
            future: Some(future),
            message: Some(message),
        }
    }
}

impl<F, T, E> Future for Task<F>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
{
    type Output = Ended;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Ended> {
        let mut this = self.project();
        let Some(future) = this.future.as_mut().as_pin_mut() else {
            panic!("Task polled after it was ready");
        };
        let (error, reason) = match catch_unwind(AssertUnwindSafe(|| future.poll(cx))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(Ok(_))) => (None, Reason::Dropped),
            Ok(Poll::Ready(Err(error))) => (Some(error.into()), Reason::Failed),
            Err(panic) => {
                let text = crate::panic::text(&*panic);
                (Some(format!("panicked: {text}").into()), Reason::Panicked)
            }
        };
        // a panic may come out of the drop of what panicked, too; the message must not hang on it
        let _ = catch_unwind(AssertUnwindSafe(|| this.future.set(None)));
        let Some(message) = this.message.take() else {
            panic!("Task polled after it was ready");
        };
        settle_untaken(&message, reason, error.as_ref());
        let delivery = message.delivery();
        let id = delivery.map(|delivery| (delivery.cell().epoch.id(), message.offset()));
        // the payload goes now, not when the driver looks; and its owner's drop may panic, too
        let _ = catch_unwind(AssertUnwindSafe(|| drop(message)));
        Poll::Ready(Ended { id, error })
    }
}

/// What `CommitLayer` never saw (a filter, a load shed outside of it) is settled here.
pub(super) fn settle_untaken(message: &Handle, reason: Reason, error: Option<&BoxError>) {
    if let TakeRight::Taken(mut right) = message.take_right() {
        right.settle(
            Verdict::NotFinished(reason),
            error.map(|error| error as &dyn std::fmt::Display),
        );
    }
}
