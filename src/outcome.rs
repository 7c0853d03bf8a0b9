//! What a stack answers when a message is finished.

use std::borrow::Cow;

use crate::ledger::Kind;

/// How a message was finished. Every variant means *finished*: the watermark may pass it. All else is an `Err`.
///
/// A handler that only ever does its work answers `()`, which is [`Outcome::Done`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The work is done. Counts only if an attempt of this delivery ended `Ok`; see
    /// [`AttemptLayer`](crate::handler::AttemptLayer).
    Done,
    /// The message is passed over on purpose, for this reason, without being handled.
    Skipped(Cow<'static, str>),
}

impl Outcome {
    /// Passes the message over, for this reason.
    pub fn skipped(why: impl Into<Cow<'static, str>>) -> Self {
        Outcome::Skipped(why.into())
    }

    /// How the message was finished, without the details.
    pub fn kind(&self) -> Kind {
        match self {
            Outcome::Done => Kind::Done,
            Outcome::Skipped(_) => Kind::Skipped,
        }
    }
}

/// Answers that say how a message was finished: `()` (done) and [`Outcome`]. Sealed.
///
/// A `Result`, an `Option` or a `bool` inside of `Ok` is not one: they would make an error look like success.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say how a message was finished",
    label = "a stack under this layer must answer `()` or `Outcome`",
    note = "answer `Ok(())` for a message that was handled, `Ok(Outcome::skipped(why))` for one that is passed over on purpose, and `Err` for everything else",
    note = "if this is `Settled`: there is a second `CommitLayer` inside, or a layer that belongs inside of `CommitLayer` stands outside"
)]
pub trait IntoOutcome: sealed::Sealed {
    /// The outcome.
    fn into_outcome(self) -> Outcome;

    /// How the message was finished, without taking the answer.
    fn kind(&self) -> Kind;
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Outcome {
        Outcome::Done
    }

    fn kind(&self) -> Kind {
        Kind::Done
    }
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }

    fn kind(&self) -> Kind {
        Outcome::kind(self)
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for () {}
    impl Sealed for super::Outcome {}
}
