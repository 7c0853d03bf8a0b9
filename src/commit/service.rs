use std::borrow::Cow;
use std::task::{Context, Poll};

use tower::BoxError;
use tower_service::Service;

use super::{CommitError, ResponseFuture};
use crate::ledger::Kind;
use crate::message::{Message, TakeRight};
use crate::outcome::{IntoOutcome, Outcome};

/// Gives each message its verdict. See the [module's documentation](super).
#[derive(Clone, Copy, Debug)]
pub struct Commit<S> {
    inner: S,
}

impl<S> Commit<S> {
    /// Wraps a stack.
    pub const fn new(inner: S) -> Self {
        Commit { inner }
    }

    /// The stack inside.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The stack inside.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The stack inside.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S> Service<Message> for Commit<S>
where
    S: Service<Message>,
    S::Response: IntoOutcome,
    S::Error: Into<BoxError>,
{
    type Response = Settled;
    type Error = BoxError;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, message: Message) -> Self::Future {
        let handle = message.handle();
        match handle.take_right() {
            TakeRight::Gone => ResponseFuture::refused(CommitError::AlreadySettled {
                topic: handle.topic().to_string(),
                partition: handle.partition(),
                offset: handle.offset(),
            }),
            TakeRight::NoDelivery => ResponseFuture::new(self.inner.call(message), None),
            // the right comes first: should `call` panic, it is dropped and settles
            TakeRight::Taken(right) => {
                let future = self.inner.call(message);
                ResponseFuture::new(future, Some(right))
            }
        }
    }
}

/// The answer of [`CommitLayer`](super::CommitLayer): the message is finished, and the books know it. Only that layer
/// can make one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    kind: Kind,
    why: Option<Cow<'static, str>>,
}

impl Settled {
    pub(super) fn new(outcome: Outcome) -> Self {
        let kind = outcome.kind();
        let why = match outcome {
            Outcome::Skipped(why) => Some(why),
            Outcome::Done => None,
        };
        Settled { kind, why }
    }

    /// How the message was finished.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Why it was skipped, if it was.
    pub fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }
}

/// What [`serve`](crate::serve()) asks of a stack's answer: that it is [`Settled`]. Sealed.
#[diagnostic::on_unimplemented(
    message = "the stack has no `CommitLayer`, so nothing decides what may be committed",
    label = "this stack answers `{Self}`, not `Settled`",
    note = "put CommitLayer outermost: `ServiceBuilder::new().layer(CommitLayer::new())…`"
)]
pub trait Settlement: sealed::Sealed {}

impl Settlement for Settled {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Settled {}
}
