//! Doubles of services.

use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use tower::Service;
use tower::retry::Policy;
use tower_consumer::{BoxError, Message};

use super::{Answer, refused, sleep_ms};

/// A service that panics when an instance is called that was not itself polled ready. A clone is not ready.
pub struct Strict {
    ready: bool,
    polls: usize,
    script: Script,
    shared: Arc<Shared>,
}

#[derive(Clone, Copy)]
struct Script {
    pending_first: bool,
    fails_at_call: usize,
    fails_every: usize,
}

#[derive(Default)]
struct Shared {
    calls: AtomicUsize,
    running: AtomicUsize,
    most: AtomicUsize,
}

impl Strict {
    /// Always ready; each call takes 5 ms and answers `Ok`.
    pub fn new() -> Self {
        Strict {
            ready: false,
            polls: 0,
            script: Script {
                pending_first: false,
                fails_at_call: usize::MAX,
                fails_every: usize::MAX,
            },
            shared: Arc::default(),
        }
    }

    /// Each instance is pending when it is first asked before a call, and ready when it is asked again.
    pub fn pending_first(mut self) -> Self {
        self.script.pending_first = true;
        self
    }

    /// Once there were that many calls every instance answers an error when it is asked.
    pub fn unready_after(mut self, calls: usize) -> Self {
        self.script.fails_at_call = calls;
        self
    }

    /// Every n-th call answers an error.
    pub fn fails_every(mut self, n: usize) -> Self {
        self.script.fails_every = n;
        self
    }

    pub fn calls(&self) -> usize {
        self.shared.calls.load(Ordering::SeqCst)
    }

    /// The most calls that ran at the same time.
    pub fn most(&self) -> usize {
        self.shared.most.load(Ordering::SeqCst)
    }

    /// To look at the counters when the service is gone.
    pub fn watch(&self) -> Strict {
        self.clone()
    }
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Strict {
            ready: false,
            polls: 0,
            script: self.script,
            shared: self.shared.clone(),
        }
    }
}

struct Run(Arc<Shared>);

impl Drop for Run {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Service<Message> for Strict {
    type Response = ();
    type Error = BoxError;
    type Future = Answer;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if self.calls() >= self.script.fails_at_call {
            return Poll::Ready(Err("no connection".into()));
        }
        self.polls += 1;
        if self.script.pending_first && self.polls == 1 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Message) -> Answer {
        assert!(self.ready, "an instance was called that was not ready");
        self.ready = false;
        self.polls = 0;
        let call = self.shared.calls.fetch_add(1, Ordering::SeqCst) + 1;
        let running = self.shared.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.shared.most.fetch_max(running, Ordering::SeqCst);
        let run = Run(self.shared.clone());
        let fails = call.is_multiple_of(self.script.fails_every);
        Box::pin(async move {
            let _run = run;
            sleep_ms(5).await;
            if fails { Err(refused()) } else { Ok(()) }
        })
    }
}

/// A service that never becomes ready. Its clones share one count: [`NeverReady::instances`].
#[derive(Clone, Default)]
pub struct NeverReady(Arc<Mutex<Vec<Waker>>>);

impl NeverReady {
    /// How many instances there are, this one included.
    pub fn instances(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// Wakes whoever waits; it is not ready all the same.
    pub fn wake(&self) {
        let waiting = std::mem::take(&mut *self.0.lock().unwrap());
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl Service<Message> for NeverReady {
    type Response = ();
    type Error = BoxError;
    type Future = Ready<Result<(), BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.lock().unwrap().push(cx.waker().clone());
        Poll::Pending
    }

    fn call(&mut self, _: Message) -> Self::Future {
        panic!("it was never ready");
    }
}

/// A policy for tower's `Retry` that is not ours: so many tries more, at once.
#[derive(Clone, Debug)]
pub struct Tries(pub usize);

impl<T, E> Policy<Message, T, E> for Tries {
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut Message, answer: &mut Result<T, E>) -> Option<Ready<()>> {
        if answer.is_ok() || self.0 == 0 {
            return None;
        }
        self.0 -= 1;
        Some(ready(()))
    }

    fn clone_request(&mut self, message: &Message) -> Option<Message> {
        Some(message.clone())
    }
}

/// Calls the service inside twice with each message and answers with the first `Ok`, as a hedge does; with the last
/// error if there is none.
#[derive(Clone)]
pub struct Race<S>(pub S);

impl<S> Service<Message> for Race<S>
where
    S: Service<Message> + Clone + Send + 'static,
    S::Response: Send,
    S::Error: Send,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, message: Message) -> Self::Future {
        use tower::ServiceExt;
        let first = self.0.clone().oneshot(message.clone());
        let second = self.0.clone().oneshot(message);
        Box::pin(async move {
            match futures_util::future::select_ok([Box::pin(first), Box::pin(second)]).await {
                Ok((answer, _)) => Ok(answer),
                Err(error) => Err(error),
            }
        })
    }
}

/// Answers an error of readiness once the service inside was called that often.
#[derive(Clone)]
pub struct Breaks<S> {
    inner: S,
    after: usize,
    calls: Arc<AtomicUsize>,
}

impl<S> Breaks<S> {
    pub fn after(calls: usize, inner: S) -> Self {
        Breaks {
            inner,
            after: calls,
            calls: Arc::default(),
        }
    }
}

impl<S> Service<Message> for Breaks<S>
where
    S: Service<Message>,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = futures_util::future::ErrInto<S::Future, BoxError>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if self.calls.load(Ordering::SeqCst) >= self.after {
            return Poll::Ready(Err("no connection".into()));
        }
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, message: Message) -> Self::Future {
        use futures_util::TryFutureExt;
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.inner.call(message).err_into()
    }
}

/// A deadline as somebody might write it by hand, with `tokio::time::timeout`.
#[derive(Clone)]
pub struct Deadline<S>(pub std::time::Duration, pub S);

impl<S> Service<Message> for Deadline<S>
where
    S: Service<Message, Response = (), Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = ();
    type Error = BoxError;
    type Future = Answer;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.1.poll_ready(cx)
    }

    fn call(&mut self, message: Message) -> Answer {
        let answer = tokio::time::timeout(self.0, self.1.call(message));
        Box::pin(async move {
            match answer.await {
                Ok(answer) => answer,
                Err(elapsed) => Err(elapsed.into()),
            }
        })
    }
}
