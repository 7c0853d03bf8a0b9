//! `serve`: what it does about a message that is not finished, how it ends, what it says, and where it runs.

#[path = "../support_memory/mod.rs"]
mod support;

mod failure;
mod runtimes;
mod shutdown;
mod stalls;
