/// What [`OrderLayer`](super::OrderLayer) itself has to object. Errors of the service inside pass through.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OrderError {
    /// An earlier message of the same lane did not finish, so this one was not handled.
    #[error(
        "message {offset} of {topic}/{partition} was not handled, because message {closed_by} of the same lane did not finish (if a retry is to help it, place the retry inside of OrderLayer); it will be delivered again"
    )]
    LaneClosed {
        /// The message's topic.
        topic: String,
        /// The message's partition.
        partition: i32,
        /// The message's offset.
        offset: i64,
        /// The offset of the first message of the lane that did not finish.
        closed_by: i64,
    },
    /// A message with a higher offset of the same partition was called before.
    #[error(
        "message {offset} of {topic}/{partition} came to OrderLayer after message {highest}: a layer outside of it (a retry, a buffer) defers calls; move it inside of OrderLayer"
    )]
    OutOfOrder {
        /// The message's topic.
        topic: String,
        /// The message's partition.
        partition: i32,
        /// The message's offset.
        offset: i64,
        /// The highest offset called so far in this assignment.
        highest: i64,
    },
}
