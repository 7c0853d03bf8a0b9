use crate::ledger::Phase;

/// What [`CommitLayer`](super::CommitLayer) itself has to object. Errors of the service inside pass through.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// The right to settle this message was taken before: something outside, a retry perhaps, called the stack twice
    /// with it. The service inside was not called.
    #[error(
        "message {offset} of {topic}/{partition} was given to CommitLayer before: place the layer that calls twice (a retry?) inside of it"
    )]
    AlreadySettled {
        /// The message's topic.
        topic: String,
        /// The message's partition.
        partition: i32,
        /// The message's offset.
        offset: i64,
    },
    /// The service inside answered success, but no attempt of this delivery ended `Ok`.
    #[error(
        "message {offset} of {topic}/{partition}: the stack answered success, but no attempt of this delivery ended Ok, so it does not count as finished: wrap the innermost service in AttemptLayer (handler_fn does that by itself), or answer Outcome::skipped(why) to pass the message over on purpose"
    )]
    OkWithoutAttempt {
        /// The message's topic.
        topic: String,
        /// The message's partition.
        partition: i32,
        /// The message's offset.
        offset: i64,
    },
    /// The partition is being given up, or was: the work on this message was dropped, and it is delivered again, here
    /// or elsewhere.
    #[error(
        "message {offset} of {topic}/{partition} was cut off in phase \"{phase}\", because its partition is given up; it will be delivered again"
    )]
    Cut {
        /// The message's topic.
        topic: String,
        /// The message's partition.
        partition: i32,
        /// The message's offset.
        offset: i64,
        /// Where it was.
        phase: Phase,
    },
    /// The work ended after its partition had been given up, so its verdict changes nothing: the message is delivered
    /// again, here or elsewhere.
    #[error(
        "message {offset} of {topic}/{partition} ended after its partition was given up; it will be delivered again"
    )]
    Late {
        /// The message's topic.
        topic: String,
        /// The message's partition.
        partition: i32,
        /// The message's offset.
        offset: i64,
    },
}
