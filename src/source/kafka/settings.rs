//! What the threads are told when they start.

use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) revoke_budget: Duration,
    pub(super) start: StartPolicy,
}

/// Where to start in a partition without a committed offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartPolicy {
    /// As `auto.offset.reset` says.
    Client,
    /// At the end, and that position is committed before anything is taken: without it a restart would choose another
    /// end, and what was produced in between would be skipped.
    PinLatest,
}
