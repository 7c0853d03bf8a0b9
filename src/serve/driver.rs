use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep_until};
use tower::BoxError;
use tower_service::Service;
use tracing::{info, warn};

use super::task::{Ended, MessageId, Task, settle_untaken};
use super::{OnFailure, Options, ServeError, ServeErrorKind, Summary};
use crate::commit::Settlement;
use crate::ledger::{Reason, Stage, TopicPartition};
use crate::message::{Failure, Handle, Message};
use crate::source::{Source, SourceError};

/// Messages taken in a row before the task yields.
const BATCH: usize = 64;
/// Polls in place between two looks at the clock.
const SLICE_POLLS: u32 = 8;
/// When that many polls took longer than this, the next ones are left to the runtime's other workers.
const SLICE_TIME: Duration = Duration::from_micros(80);
const SPAWN_NEXT: u32 = 64;
/// What a shutdown keeps for itself.
const MARGIN: Duration = Duration::from_millis(250);

pub(super) struct Driver<Src, Svc> {
    source: Src,
    service: Svc,
    options: Options,
    /// Taken, and not called yet: the service is not ready.
    hand: Option<Message>,
    /// The service was ready and has not been called since.
    reserved: bool,
    tasks: JoinSet<Ended>,
    slice: Slice,
    stall_timer: Option<Pin<Box<Sleep>>>,
    stalls: u64,
    closing: Option<Closing>,
    /// What the stack answered for messages that ended since the books were asked for failures.
    errors: Vec<(MessageId, BoxError)>,
}

struct Closing {
    cause: Option<ServeErrorKind>,
    /// Which message the cause is about, while what the stack answered for it is not known yet.
    about: Option<MessageId>,
    deadline: Instant,
    limit: Option<Pin<Box<Sleep>>>,
    closed: Option<Result<Vec<crate::ledger::Released>, SourceError>>,
}

/// Notices that first polls take long.
struct Slice {
    polls: u32,
    since: Instant,
    spawn_next: u32,
}

impl Slice {
    fn spawns(&mut self) -> bool {
        let spawn = self.spawn_next > 0;
        self.spawn_next = self.spawn_next.saturating_sub(1);
        if self.polls == 0 && !spawn {
            self.since = Instant::now();
        }
        spawn
    }

    fn polled(&mut self) {
        self.polls += 1;
        if self.polls == SLICE_POLLS {
            self.polls = 0;
            if self.since.elapsed() > SLICE_TIME {
                self.spawn_next = SPAWN_NEXT;
            }
        }
    }
}

impl<Src, Svc> Driver<Src, Svc>
where
    Src: Source,
    Svc: Service<Message>,
    Svc::Response: Settlement,
    Svc::Error: Into<BoxError>,
    Svc::Future: Send + 'static,
{
    pub(super) fn new(source: Src, service: Svc, options: Options) -> Self {
        Driver {
            source,
            service,
            options,
            hand: None,
            reserved: false,
            tasks: JoinSet::new(),
            slice: Slice {
                polls: 0,
                since: Instant::now(),
                spawn_next: 0,
            },
            stall_timer: None,
            stalls: 0,
            closing: None,
            errors: Vec::new(),
        }
    }

    pub(super) fn poll<Sig: Future>(
        &mut self,
        cx: &mut Context<'_>,
        shutdown: Pin<&mut Sig>,
    ) -> Poll<Result<Summary, ServeError>> {
        if self.closing.is_none() && shutdown.poll(cx).is_ready() {
            info!("shutting down");
            self.close(None, None);
        }
        self.reap(cx);
        if self.closing.is_none() {
            self.report_stalls(cx);
            if self.drive(cx).is_ready() {
                // a batch is over: let others have the worker
                cx.waker().wake_by_ref();
            }
            // what was polled in place may have failed
            self.reap(cx);
        }
        if self.closing.is_some() {
            return self.poll_closing(cx);
        }
        Poll::Pending
    }

    /// Takes messages and calls the stack. Ready when there may be more to do at once.
    fn drive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        for _ in 0..BATCH {
            if self.closing.is_some() {
                return Poll::Ready(());
            }
            let Some(message) = self.message_in_hand(cx) else {
                return Poll::Pending;
            };
            if !self.reserved {
                match self.service.poll_ready(cx) {
                    Poll::Ready(Ok(())) => self.reserved = true,
                    Poll::Ready(Err(error)) => {
                        self.unready(message.handle(), error.into());
                        return Poll::Ready(());
                    }
                    Poll::Pending => {
                        self.hand = Some(message);
                        while let Poll::Ready(error) = self.source.poll_progress(cx) {
                            if !self.is_held(&error) {
                                self.close(Some(ServeErrorKind::Source(error)), None);
                                return Poll::Ready(());
                            }
                        }
                        return Poll::Pending;
                    }
                }
            }
            self.call(message, cx);
            // nothing more is to be called behind a failure, and the books know of it already
            if self.options.on_failure == OnFailure::Stop && !self.errors.is_empty() {
                return Poll::Ready(());
            }
        }
        Poll::Ready(())
    }

    /// The message that waits, if its partition is still ours; else the next one.
    fn message_in_hand(&mut self, cx: &mut Context<'_>) -> Option<Message> {
        if let Some(message) = self.hand.take() {
            let delivery = message.handle();
            if delivery
                .delivery()
                .is_none_or(|delivery| delivery.stage() == Stage::Live)
            {
                return Some(message);
            }
        }
        loop {
            match self.source.poll_next(cx) {
                Poll::Ready(Some(Ok(message))) => return Some(message),
                Poll::Ready(Some(Err(error))) => {
                    if !self.is_held(&error) {
                        self.close(Some(ServeErrorKind::Source(error)), None);
                        return None;
                    }
                }
                Poll::Ready(None) => {
                    self.close(None, None);
                    return None;
                }
                Poll::Pending => return None,
            }
        }
    }

    /// One partition that cannot be read is like a message that is not finished: with `OnFailure::Hold` the others go
    /// on. The source has said which, and reads no more of it.
    fn is_held(&self, error: &SourceError) -> bool {
        self.options.on_failure == OnFailure::Hold && matches!(error, SourceError::Partition { .. })
    }

    fn call(&mut self, message: Message, cx: &mut Context<'_>) {
        self.reserved = false;
        let handle = message.handle();
        let future = match catch_unwind(AssertUnwindSafe(|| self.service.call(message))) {
            Ok(future) => future,
            Err(panic) => {
                let text = crate::panic::text(&*panic).to_owned();
                let error: BoxError = format!("panicked: {text}").into();
                settle_untaken(&handle, Reason::Panicked, Some(&error));
                let (tp, offset) = (tp_of(&handle), handle.offset());
                self.close(
                    Some(ServeErrorKind::CallPanicked { tp, offset, text }),
                    None,
                );
                return;
            }
        };
        let task = Task::new(future, handle);
        if self.slice.spawns() {
            self.tasks.spawn(task);
            return;
        }
        let mut task = Box::pin(task);
        let polled = task.as_mut().poll(cx);
        self.slice.polled();
        match polled {
            Poll::Ready(ended) => self.ended(ended),
            Poll::Pending => {
                self.tasks.spawn(task);
            }
        }
    }

    fn unready(&mut self, message: Handle, error: BoxError) {
        settle_untaken(&message, Reason::Unready, Some(&error));
        let (tp, offset) = (tp_of(&message), message.offset());
        let cause = Some(error);
        self.close(Some(ServeErrorKind::Unready { tp, offset, cause }), None);
    }

    /// Collects what ended, and what the books have against it.
    fn reap(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(Some(joined)) = self.tasks.poll_join_next(cx) {
            // an error is a task that was aborted: its message was settled when it was dropped
            if let Ok(ended) = joined {
                self.ended(ended);
            }
        }
        while let Some(failure) = self.source.books().take_failure() {
            self.failed(failure);
        }
        // the books told of a failure before the stack answered it: what is left was none
        self.errors.clear();
    }

    fn ended(&mut self, ended: Ended) {
        let (Some(id), Some(error)) = (ended.id, ended.error) else {
            return;
        };
        match &mut self.closing {
            Some(closing) if closing.about == Some(id) => {
                closing.about = None;
                if let Some(
                    ServeErrorKind::NotFinished { cause, .. }
                    | ServeErrorKind::Unready { cause, .. },
                ) = &mut closing.cause
                {
                    *cause = Some(error);
                }
            }
            Some(closing) if closing.cause.is_some() => {}
            _ => self.errors.push((id, error)),
        }
    }

    /// The books decide, never the type of an error. They tell only of failures from before the stop, so one that is
    /// found after it is still the cause, unless there was another before.
    fn failed(&mut self, failure: Failure) {
        if (self.closing.as_ref()).is_some_and(|closing| closing.cause.is_some()) {
            return;
        }
        let Failure {
            tp,
            epoch,
            offset,
            attempts,
            reason,
            error,
        } = failure;
        let about = (epoch, offset);
        let known = self.errors.iter().position(|(id, _)| *id == about);
        let cause = known.map(|index| self.errors.swap_remove(index).1);
        let about = cause.is_none().then_some(about);
        // its text, until the error itself comes out of the stack; which it does not if a layer outside keeps it
        let cause = cause.or(error.map(Into::into));
        let kind = if reason == Reason::Unready {
            ServeErrorKind::Unready { tp, offset, cause }
        } else if self.options.on_failure == OnFailure::Stop {
            ServeErrorKind::NotFinished {
                tp,
                offset,
                attempts,
                reason,
                cause,
            }
        } else {
            return;
        };
        match &mut self.closing {
            Some(closing) => {
                closing.cause = Some(kind);
                closing.about = about;
            }
            None => self.close(Some(kind), about),
        }
    }

    fn report_stalls(&mut self, cx: &mut Context<'_>) {
        let after = self.options.stall_after.max(Duration::from_millis(1));
        loop {
            let now = Instant::now();
            for stall in self.source.books().stalls(after, now.into_std()) {
                self.stalls += 1;
                warn!(
                    topic = &*stall.tp.topic,
                    partition = stall.tp.partition,
                    offset = stall.offset,
                    age_ms = stall.age.as_millis() as u64,
                    phase = %stall.phase,
                    attempts = stall.attempts,
                    reason = stall.reason.map(crate::ledger::Reason::code),
                    window_full = stall.window_full,
                    "stalled: this message holds the watermark of its partition"
                );
            }
            // what is handed out from now on cannot stall before this
            let at = self.source.books().next_stall(after, now.into_std());
            let latest = now.checked_add(after);
            let Some(at) = at.map(Instant::from_std).into_iter().chain(latest).min() else {
                return;
            };
            let timer = self
                .stall_timer
                .get_or_insert_with(|| Box::pin(sleep_until(at)));
            if timer.deadline() > at || timer.is_elapsed() {
                timer.as_mut().reset(at);
            }
            if timer.as_mut().poll(cx).is_pending() {
                return;
            }
        }
    }

    fn close(&mut self, cause: Option<ServeErrorKind>, about: Option<MessageId>) {
        if self.closing.is_some() {
            return;
        }
        // the source keeps its budget by itself; the rest is for its answer
        let limit = self.options.shutdown_limit;
        self.source.start_close(limit - (limit / 10).min(MARGIN));
        // after the stop: nobody has begun it, so it is no failure, and it is delivered again
        self.hand = None;
        let limit = limit.max(MARGIN);
        let now = Instant::now();
        self.closing = Some(Closing {
            cause,
            about,
            deadline: now
                .checked_add(limit)
                .unwrap_or(now + Duration::from_secs(1 << 30)),
            limit: None,
            closed: None,
        });
    }

    fn poll_closing(&mut self, cx: &mut Context<'_>) -> Poll<Result<Summary, ServeError>> {
        let Some(closing) = &mut self.closing else {
            return Poll::Pending;
        };
        if closing.closed.is_none() {
            if let Poll::Ready(closed) = self.source.poll_close(cx) {
                // fenced: what lives on is dropped, wherever it waits
                self.tasks.abort_all();
                closing.closed = Some(closed);
            }
            self.reap(cx);
        }
        let Some(closing) = &mut self.closing else {
            return Poll::Pending;
        };
        let deadline = closing.deadline;
        let timer = closing
            .limit
            .get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        let is_over = timer.as_mut().poll(cx).is_ready();
        if closing.closed.is_none() && is_over {
            closing.closed = Some(Err(SourceError::CloseTimedOut));
        }
        if closing.closed.is_none() || !(self.tasks.is_empty() || is_over) {
            return Poll::Pending;
        }
        let mut summary = Summary {
            counts: self.source.books().counts(),
            partitions: Vec::new(),
            stalls: self.stalls,
        };
        let closing = self.closing.take();
        let (cause, closed) = match closing {
            Some(closing) => (closing.cause, closing.closed),
            None => (None, None),
        };
        let mut kind = cause;
        match closed {
            Some(Ok(released)) => summary.partitions = released,
            Some(Err(error)) => kind = kind.or(Some(ServeErrorKind::Source(error))),
            None => {}
        }
        Poll::Ready(match kind {
            Some(kind) => Err(ServeError::new(kind, summary)),
            None => Ok(summary),
        })
    }
}

fn tp_of(message: &Handle) -> TopicPartition {
    TopicPartition::new(message.topic().clone(), message.partition())
}
