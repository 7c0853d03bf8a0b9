//! What goes wrong for people who consume Kafka concurrently, each as a test that names what must hold. The case ids
//! (`C01` and so on) stand at the tests; those without one are other faults of the same kinds.

#[path = "../support_memory/mod.rs"]
mod support;

mod commits;
mod drain;
mod edges;
mod epochs;
mod gaps;
mod leaks;
mod loss;
mod order;
mod rebalances;
mod stuck;
mod tower_contract;
mod ways_out;
