//! Within one assignment the committed offset never goes down, as the broker sees it.

use std::time::Duration;

use crate::plan::{Behaviour, Commit, LIBRARY, Program, Setup};
use crate::scenario::Scenario;

#[test]
#[ignore = "needs a real Kafka: tests/kafka/run"]
fn s3_naive_a_late_success_sets_the_committed_offset_back() {
    let mut scenario = Scenario::new("s3-naive");
    scenario.produce(37);
    let watch = scenario.watch();
    let naive = Program::Naive(Commit::Own);
    let run_1 = scenario.start(Setup {
        program: naive,
        behaviour: Behaviour::SlowOne,
        ..LIBRARY
    });
    run_1.wait_processed((0, 35));
    scenario.wait_still(Duration::from_secs(1));
    drop(run_1);
    let seen = watch.finish();
    assert!(!seen.is_sorted(), "{seen:?}");
    assert_eq!(
        seen.last(),
        Some(&36),
        "the commit of 35 was the last: {seen:?}"
    );
}

#[test]
#[ignore = "needs a real Kafka: tests/kafka/run"]
fn s3_the_committed_offset_never_goes_down_in_whatever_order_handlers_end() {
    let mut scenario = Scenario::new("s3");
    scenario.produce(200);
    let watch = scenario.watch();
    let setup = Setup {
        behaviour: Behaviour::Jitter,
        concurrency: 16,
        commit_interval: Some(Duration::from_millis(10)),
        ..LIBRARY
    };
    let run_1 = scenario.start(setup);
    scenario.wait_committed(200);
    let crash = scenario.kill(run_1);
    let seen = watch.finish();
    assert!(seen.is_sorted(), "the committed offset went down: {seen:?}");
    assert!(
        seen.len() > 3,
        "too few commits were seen to tell: {seen:?}"
    );
    assert_eq!(crash.committed, [200]);
    assert_eq!(crash.processed.len(), 200);
}
