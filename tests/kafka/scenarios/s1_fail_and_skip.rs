//! 64 messages, one handler at a time, in offset order. It fails for 5, 10, 15, 20, 25 and 30, and stops in 32: killed
//! when 31 is processed.

use std::time::Duration;

use crate::plan::{Behaviour, LIBRARY, NAIVE, Setup};
use crate::scenario::Scenario;

/// Longer than any commit interval of the programs: any commit that is allowed has been sent and acknowledged.
const COMMITS_ARE_IN: Duration = Duration::from_millis(1500);

const SETUP: Setup = Setup {
    behaviour: Behaviour::FailEveryFifth,
    concurrency: 1,
    ..LIBRARY
};

fn scenario() -> Scenario {
    let mut scenario = Scenario::new("s1");
    scenario.produce(64);
    scenario
}

#[test]
#[ignore = "needs a real Kafka: tests/kafka/run"]
fn s1_naive_the_commit_of_31_covers_the_failures_below() {
    let setup = Setup {
        program: NAIVE.program,
        ..SETUP
    };
    let scenario = scenario();
    let run_1 = scenario.start(setup);
    run_1.wait_processed((0, 31));
    scenario.wait_still(COMMITS_ARE_IN);
    let crash = scenario.kill(run_1);
    assert_eq!(crash.committed, [32]);
    assert_eq!(
        crash.skipped(),
        [5, 10, 15, 20, 25, 30].map(|offset| (0, offset))
    );

    let end = scenario.restart(setup);
    assert_eq!(end.first_of_run_2, [Some(32)]);
    assert_eq!(
        end.account.lost,
        [5, 10, 15, 20, 25, 30].map(|offset| (0, offset))
    );
    assert_eq!(end.account.duplicated, 0);
    assert_eq!(end.committed, end.log_end);
}

#[test]
#[ignore = "needs a real Kafka: tests/kafka/run"]
fn s1_a_failure_leaves_a_gap_and_the_committed_offset_stays_below_it() {
    let scenario = scenario();
    let run_1 = scenario.start(SETUP);
    run_1.wait_processed((0, 31));
    scenario.wait_committed(5);
    scenario.wait_still(COMMITS_ARE_IN);
    let crash = scenario.kill(run_1);
    assert_eq!(crash.committed, [5]);

    let end = scenario.restart(SETUP);
    assert_eq!(end.first_of_run_2, [Some(5)]);
    assert_eq!(end.account.duplicated, 21);
    end.assert_nothing_lost(&crash, 64);
}

#[test]
#[ignore = "needs a real Kafka: tests/kafka/run"]
fn s1_behind_a_gap_the_source_stops_when_the_window_is_full() {
    let setup = Setup { window: 8, ..SETUP };
    let scenario = scenario();
    let run_1 = scenario.start(setup);
    run_1.wait_processed((0, 12));
    scenario.wait_committed(5);
    scenario.wait_still(Duration::from_secs(2));
    let crash = scenario.kill(run_1);
    assert_eq!(crash.committed, [5]);
    assert_eq!(
        crash.processed,
        [0, 1, 2, 3, 4, 6, 7, 8, 9, 11, 12]
            .map(|offset| (0, offset))
            .into()
    );

    let end = scenario.restart(setup);
    assert_eq!(end.first_of_run_2, [Some(5)]);
    assert_eq!(end.account.duplicated, 6);
    end.assert_nothing_lost(&crash, 8);
}

#[test]
#[ignore = "needs a real Kafka: tests/kafka/run"]
fn s1_with_a_retry_in_place_there_is_no_gap() {
    let setup = Setup {
        attempts: 2,
        ..SETUP
    };
    let scenario = scenario();
    let run_1 = scenario.start(setup);
    run_1.wait_processed((0, 31));
    scenario.wait_committed(32);
    let crash = scenario.kill(run_1);
    assert_eq!(crash.committed, [32]);
    for offset in 0..32 {
        let attempts = if [5, 10, 15, 20, 25, 30].contains(&offset) {
            2
        } else {
            1
        };
        assert_eq!(
            crash.attempts((0, offset)),
            attempts,
            "attempts of offset {offset}"
        );
    }

    let end = scenario.restart(setup);
    assert_eq!(end.account.duplicated, 0);
    end.assert_nothing_lost(&crash, 64);
}
