//! The ledger against naive books: random walks through everything that can happen to a few partitions with small
//! windows, a driver that does nothing but what it is told, and the cases that a reader wants to see spelled out.
//!
//! A failing walk prints its seed and its shortest story. To walk it again:
//!
//! ```text
//! LEDGER_MODEL_SEED=<seed> cargo test --test ledger_model random_walks
//! ```
//!
//! `LEDGER_MODEL_CASES=<n>` walks more than usual. Every run prints how often each pair of neighbouring events occurred.

mod books;
mod cases;
mod commits;
mod driver;
mod faults;
mod lifecycle;
mod messages;
mod pairs;
mod rng;
mod walk;
mod world;

use std::io::{self, Write as _};

use crate::pairs::Pairs;

/// Random walks of a normal run; few enough for a debug build, enough for every pair of neighbours.
const CASES: u64 = 15_000;

fn cases() -> u64 {
    from_env("LEDGER_MODEL_CASES").unwrap_or(CASES)
}

fn from_env(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().expect("a whole number"))
}

#[test]
fn random_walks_keep_every_promise_and_visit_every_pair_of_neighbours() {
    if let Some(seed) = from_env("LEDGER_MODEL_SEED") {
        if let Err(told) = walk::walk(seed, &mut Pairs::default()) {
            panic!("{told}");
        }
        return;
    }
    let cases = cases();
    let pairs = match walk::walk_all(cases) {
        Ok(pairs) => pairs,
        Err(told) => panic!("{told}"),
    };
    // past the capture of the test runner: the table belongs to every run
    let _ = writeln!(io::stderr(), "{cases} walks\n{}", pairs.table());
    assert_eq!(pairs.surprises(), [""; 0], "were said to be impossible");
    if cases >= CASES {
        assert_eq!(pairs.missing(), [""; 0], "never occurred");
    }
}

#[test]
fn a_driver_that_does_only_what_it_is_told_always_comes_to_the_end() {
    let seeds = match from_env("LEDGER_MODEL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..cases(),
    };
    for seed in seeds {
        if let Err(told) = driver::drive(seed) {
            panic!("seed {seed}: {told}\nagain with LEDGER_MODEL_SEED={seed}");
        }
    }
}
