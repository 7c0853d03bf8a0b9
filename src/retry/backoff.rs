use std::any::Any;
use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project::pin_project;
use tokio::time::{Instant, Sleep, sleep};
use tower::BoxError;
use tower::retry::Policy;

use crate::ledger::{Phase, Reason};
use crate::message::{Handle, Message};
use crate::outcome::IntoOutcome;

/// Delays between the attempts of a message, and when to give up. See the [module's documentation](super).
///
/// Unless said otherwise there is no jitter, a delay is at most 30 s, and attempts never end.
#[derive(Clone)]
pub struct Backoff {
    first: Duration,
    factor: u32,
    cap: Duration,
    jitter: Option<RandomState>,
    max_attempts: Option<u32>,
    max_elapsed: Option<Duration>,
    retry_if: Option<RetryIf>,
    /// Of the message at hand: tower clones the policy for each.
    attempts: u32,
    began: Option<Instant>,
}

/// Whether to try again, for the errors that it knows.
type RetryIf = Arc<dyn Fn(&dyn Any) -> Option<bool> + Send + Sync>;

const CAP: Duration = Duration::from_secs(30);

impl Backoff {
    /// The same delay before each retry. Zero is allowed, and retries at once; [`Duration::MAX`] holds the message for
    /// good after its first failure. A fixed delay has no cap.
    pub fn fixed(delay: Duration) -> Self {
        Backoff {
            cap: Duration::MAX,
            ..Backoff::new(delay, 1)
        }
    }

    /// `first`, then twice as long each time, up to the [`cap`](Backoff::cap) (30 s).
    pub fn exponential(first: Duration) -> Self {
        Backoff::new(first, 2)
    }

    fn new(first: Duration, factor: u32) -> Self {
        Backoff {
            first,
            factor,
            cap: CAP,
            jitter: None,
            max_attempts: None,
            max_elapsed: None,
            retry_if: None,
            attempts: 0,
            began: None,
        }
    }

    /// The longest delay.
    pub fn cap(mut self, cap: Duration) -> Self {
        self.cap = cap;
        self
    }

    /// Each delay is drawn evenly from zero to what it would be without jitter, so that messages that failed together
    /// do not come back together.
    pub fn full_jitter(mut self) -> Self {
        self.jitter = Some(RandomState::new());
        self
    }

    /// The most attempts, the first one included; 0 and 1 mean no retry.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// No retry is due later than this after the first call. A retry that is due may still wait for a permit.
    pub fn max_elapsed(mut self, elapsed: Duration) -> Self {
        self.max_elapsed = Some(elapsed);
        self
    }

    /// Asks `retry` about errors of type `E`, boxed or not, also as the source of another: `false` gives up at once.
    /// Errors of other types are retried. The last function that was set counts.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_consumer::retry::Backoff;
    ///
    /// # #[derive(Debug)]
    /// enum ChargeError {
    ///     Declined,
    ///     Unavailable,
    /// }
    /// # impl std::fmt::Display for ChargeError {
    /// #     fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { Ok(()) }
    /// # }
    /// # impl std::error::Error for ChargeError {}
    ///
    /// let backoff = Backoff::exponential(Duration::from_millis(100))
    ///     .retry_if(|error: &ChargeError| matches!(error, ChargeError::Unavailable));
    /// ```
    pub fn retry_if<E, F>(mut self, retry: F) -> Self
    where
        E: std::error::Error + 'static,
        F: Fn(&E) -> bool + Send + Sync + 'static,
    {
        self.retry_if = Some(Arc::new(move |error: &dyn Any| {
            if let Some(error) = error.downcast_ref::<E>() {
                return Some(retry(error));
            }
            let boxed = error.downcast_ref::<BoxError>()?;
            let mut next: Option<&(dyn std::error::Error + 'static)> = Some(&**boxed);
            while let Some(error) = next {
                if let Some(error) = error.downcast_ref::<E>() {
                    return Some(retry(error));
                }
                next = error.source();
            }
            None
        }));
        self
    }

    /// The delay after the `n`-th attempt (from 1), before jitter.
    fn delay(&self, n: u32) -> Duration {
        let mut delay = self.first.min(self.cap);
        // step by step: a power of the factor overflows long before a short delay has grown to its cap
        for _ in 1..n {
            if self.factor == 1 || delay.is_zero() || delay == self.cap {
                break;
            }
            delay = delay.saturating_mul(self.factor).min(self.cap);
        }
        delay
    }

    fn jittered(&self, delay: Duration, message: &Message) -> Duration {
        let Some(random) = &self.jitter else {
            return delay;
        };
        let draw = random.hash_one((
            message.topic(),
            message.partition(),
            message.offset(),
            self.attempts,
        ));
        delay.mul_f64((draw >> 11) as f64 / (1u64 << 53) as f64)
    }
}

impl fmt::Debug for Backoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backoff")
            .field("first", &self.first)
            .field("factor", &self.factor)
            .field("cap", &self.cap)
            .field("full_jitter", &self.jitter.is_some())
            .field("max_attempts", &self.max_attempts)
            .field("max_elapsed", &self.max_elapsed)
            .finish_non_exhaustive()
    }
}

/// Asks for an answer that says how a message was finished: a retry outside of `CommitLayer`, which could never succeed,
/// does not compile.
impl<T: IntoOutcome, E: 'static> Policy<Message, T, E> for Backoff {
    type Future = BackoffFuture;

    fn retry(&mut self, message: &mut Message, answer: &mut Result<T, E>) -> Option<Self::Future> {
        let Err(error) = answer else { return None };
        let handle = message.handle();
        self.attempts = self.attempts.saturating_add(1);
        // an error that no attempt can heal
        let hint = handle.delivery().and_then(|delivery| delivery.hinted());
        if matches!(hint, Some(Reason::KeyClosed | Reason::Unready)) {
            return None;
        }
        let gives_up = match &self.retry_if {
            Some(retry) => retry(error) == Some(false),
            None => false,
        };
        let delay = self.jittered(self.delay(self.attempts), message);
        let too_many = self.max_attempts.is_some_and(|max| self.attempts >= max);
        let too_late = match (self.max_elapsed, self.began) {
            (Some(max), Some(began)) => began.elapsed().saturating_add(delay) > max,
            _ => false,
        };
        if gives_up || too_many || too_late {
            // not "retrying" any more: what follows is this attempt's error, not one of readiness
            handle.note(Phase::AttemptFailed);
            return None;
        }
        handle.note(Phase::BackingOff);
        Some(BackoffFuture {
            sleep: (!delay.is_zero()).then(|| sleep(delay)),
            message: handle,
        })
    }

    fn clone_request(&mut self, message: &Message) -> Option<Message> {
        if self.attempts == 0 {
            self.began = Some(Instant::now());
        }
        Some(message.clone())
    }
}

/// The wait before the next attempt.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct BackoffFuture {
    #[pin]
    sleep: Option<Sleep>,
    message: Handle,
}

impl Future for BackoffFuture {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        if let Some(sleep) = this.sleep.as_pin_mut() {
            ready!(sleep.poll(cx));
        }
        this.message.note(Phase::Retrying);
        Poll::Ready(())
    }
}

impl fmt::Debug for BackoffFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackoffFuture")
            .field("message", &self.message)
            .finish_non_exhaustive()
    }
}
