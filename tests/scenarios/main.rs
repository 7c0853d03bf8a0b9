//! The programs that lost messages, as tests: `fail_and_skip` (S1), `slow_one` (S2) and `deadline` (S4), each with a
//! naive twin that shows that the same harness sees a loss, and `no_way_back` (S3).
//!
//! A *kill* drops the future of `serve`; the next run builds the stack anew over the same broker.

#[path = "../support_memory/mod.rs"]
mod support;

mod deadline;
mod fail_and_skip;
mod no_way_back;
mod slow_one;
