use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project::pin_project;
use tower::BoxError;
use tracing::info;

use super::{CommitError, Settled};
use crate::ledger::{Phase, Reason, Verdict};
use crate::message::{Handle, Right};
use crate::outcome::IntoOutcome;

/// The answer to a message, and its verdict: given when this future ends, in whichever way.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture<F> {
    /// Dropped before the right: when a verdict is given, nothing of the work is left.
    #[pin]
    inner: Option<F>,
    right: Option<Right>,
    refused: Option<CommitError>,
}

impl<F> ResponseFuture<F> {
    pub(super) fn new(inner: F, right: Option<Right>) -> Self {
        ResponseFuture {
            inner: Some(inner),
            right,
            refused: None,
        }
    }

    pub(super) fn refused(error: CommitError) -> Self {
        ResponseFuture {
            inner: None,
            right: None,
            refused: Some(error),
        }
    }
}

impl<F, T, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<T, E>>,
    T: IntoOutcome,
    E: Into<BoxError>,
{
    type Output = Result<Settled, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Some(error) = this.refused.take() {
            return Poll::Ready(Err(error.into()));
        }
        let Some(inner) = this.inner.as_mut().as_pin_mut() else {
            panic!("ResponseFuture polled after it was ready");
        };
        // out of its place for as long as nobody knows how the poll ends: whatever unwinds drops it, and so settles
        let Some(mut right) = this.right.take() else {
            let answer = ready!(inner.poll(cx));
            this.inner.set(None);
            return Poll::Ready(
                answer
                    .map(|t| Settled::new(t.into_outcome()))
                    .map_err(Into::into),
            );
        };

        // after a stop only what runs is polled: nothing inside may begin anything, not even a layer without attempts
        if right.may_go_on() {
            match catch_unwind(AssertUnwindSafe(|| inner.poll(cx))) {
                Ok(Poll::Ready(answer)) => {
                    this.inner.set(None);
                    return Poll::Ready(settle(right, answer));
                }
                Ok(Poll::Pending) => {}
                Err(panic) => {
                    let text = crate::panic::text(&*panic);
                    right.settle(Verdict::NotFinished(Reason::Panicked), Some(&text));
                    resume_unwind(panic);
                }
            }
            // registered first, then the stage is read again: a stop in between cannot be missed
            right.watch(cx.waker());
        }
        if right.may_go_on() {
            *this.right = Some(right);
            return Poll::Pending;
        }
        let phase = right.phase();
        this.inner.set(None);
        Poll::Ready(Err(cut(right, phase)))
    }
}

fn settle<T, E>(mut right: Right, answer: Result<T, E>) -> Result<Settled, BoxError>
where
    T: IntoOutcome,
    E: Into<BoxError>,
{
    match answer {
        Ok(answer) => {
            let kind = answer.kind();
            let verdict = right.settle(Verdict::Finished(kind), Some(&OK_WITHOUT_ATTEMPT));
            match verdict.and_then(|judgement| judgement.verdict) {
                Some(Verdict::Finished(_)) => {
                    let settled = Settled::new(answer.into_outcome());
                    if let Some(why) = settled.why() {
                        let message = right.message();
                        info!(
                            topic = &**message.topic(),
                            partition = message.partition(),
                            offset = message.offset(),
                            why,
                            "message skipped"
                        );
                    }
                    Ok(settled)
                }
                Some(Verdict::NotFinished(_)) => {
                    Err(named(right.message(), |topic, partition, offset| {
                        CommitError::OkWithoutAttempt {
                            topic,
                            partition,
                            offset,
                        }
                    }))
                }
                None => Err(named(right.message(), |topic, partition, offset| {
                    CommitError::Late {
                        topic,
                        partition,
                        offset,
                    }
                })),
            }
        }
        Err(error) => {
            let error = error.into();
            let reason = reason_of(&right, &error);
            right.settle(Verdict::NotFinished(reason), Some(&error));
            Err(error)
        }
    }
}

const OK_WITHOUT_ATTEMPT: &str =
    "wrap the innermost service in AttemptLayer, or answer Outcome::skipped(why)";

/// Why an `Err` came. A readiness error comes out of tower's `Retry` like any other: it is told by an attempt that was
/// due after a backoff and never began. A deadline around the retry looks the same, so it is recognised by its type.
fn reason_of(right: &Right, error: &BoxError) -> Reason {
    if let Some(hint) = right.hinted() {
        return hint;
    }
    if right.is_due() && !is_deadline_or_shed(error) {
        return Reason::Unready;
    }
    Reason::Failed
}

fn is_deadline_or_shed(error: &BoxError) -> bool {
    let mut error: Option<&(dyn std::error::Error + 'static)> = Some(&**error);
    while let Some(e) = error {
        if e.is::<tower::timeout::error::Elapsed>()
            || e.is::<crate::timeout::Elapsed>()
            || e.is::<tokio::time::error::Elapsed>()
            || e.is::<tower::load_shed::error::Overloaded>()
        {
            return true;
        }
        error = e.source();
    }
    false
}

fn cut(mut right: Right, phase: Phase) -> BoxError {
    let error = named(right.message(), |topic, partition, offset| {
        CommitError::Cut {
            topic,
            partition,
            offset,
            phase,
        }
    });
    right.settle(Verdict::NotFinished(Reason::Cut), Some(&error));
    error
}

fn named(message: &Handle, error: impl FnOnce(String, i32, i64) -> CommitError) -> BoxError {
    error(
        message.topic().to_string(),
        message.partition(),
        message.offset(),
    )
    .into()
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture")
            .field("right", &self.right)
            .field("refused", &self.refused)
            .finish_non_exhaustive()
    }
}
