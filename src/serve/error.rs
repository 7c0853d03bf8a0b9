use std::fmt;

use tower::BoxError;

use super::Summary;
use crate::ledger::{Reason, TopicPartition};
use crate::source::SourceError;

/// Why [`serve`](crate::serve()) ended before it was asked to. Everything that was finished below the cause is
/// committed, within the shutdown limit; nothing at or above it is.
#[non_exhaustive]
pub struct ServeError {
    /// What happened.
    pub kind: ServeErrorKind,
    /// What became of everything that was taken.
    pub summary: Summary,
}

/// What ended [`serve`](crate::serve()).
#[derive(Debug)]
#[non_exhaustive]
pub enum ServeErrorKind {
    /// A message was not finished, and the policy is [`OnFailure::Stop`](super::OnFailure::Stop).
    NotFinished {
        /// Its partition.
        tp: TopicPartition,
        /// Its offset.
        offset: i64,
        /// How many attempts had begun.
        attempts: u32,
        /// Why it does not count as finished.
        reason: Reason,
        /// What the stack answered.
        cause: Option<BoxError>,
    },
    /// The stack could not become ready to take a message: it is broken, not the message.
    Unready {
        /// The partition of the message that waited.
        tp: TopicPartition,
        /// The offset of the message that waited.
        offset: i64,
        /// What the stack answered.
        cause: Option<BoxError>,
    },
    /// The stack panicked in `call`.
    CallPanicked {
        /// The partition of the message it was called with.
        tp: TopicPartition,
        /// The offset of the message it was called with.
        offset: i64,
        /// What the panic said.
        text: String,
    },
    /// The source ended with an error.
    Source(SourceError),
}

impl ServeError {
    pub(super) fn new(kind: ServeErrorKind, summary: Summary) -> Self {
        ServeError { kind, summary }
    }
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)
    }
}

impl fmt::Debug for ServeError {
    /// The sentence, and the summary: what a `main` that answers the error prints.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.kind, self.summary)
    }
}

impl fmt::Display for ServeErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = match self {
            ServeErrorKind::NotFinished {
                tp,
                offset,
                attempts,
                reason,
                cause,
            } => {
                let cause_says_it = match reason {
                    Reason::KeyClosed | Reason::OkWithoutAttempt | Reason::Panicked => cause,
                    _ => &None,
                };
                match cause_says_it {
                    Some(_) => write!(f, "message {offset} of {tp}")?,
                    None => write!(f, "message {offset} of {tp} {reason}")?,
                }
                write!(f, ", after {attempts} attempt(s)")?;
                cause
            }
            ServeErrorKind::Unready { tp, offset, cause } => {
                write!(
                    f,
                    "the stack could not become ready for message {offset} of {tp}"
                )?;
                cause
            }
            ServeErrorKind::CallPanicked { tp, offset, text } => {
                return write!(
                    f,
                    "the stack panicked in `call` with message {offset} of {tp}: {text}"
                );
            }
            ServeErrorKind::Source(error) => return error.fmt(f),
        };
        match cause {
            Some(cause) => write!(f, ": {cause}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ServeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            ServeErrorKind::NotFinished { cause, .. } | ServeErrorKind::Unready { cause, .. } => {
                cause.as_ref().map(|cause| &**cause as _)
            }
            ServeErrorKind::CallPanicked { .. } => None,
            ServeErrorKind::Source(error) => Some(error),
        }
    }
}
