//! S4b, a deadline of 100 ms on the handler: the first attempt of 3, 13, … 93 takes 300 ms. 100 messages, window 128.

use std::time::Duration;

use crate::plan::{Behaviour, LIBRARY, Setup};
use crate::scenario::Scenario;

const SETUP: Setup = Setup {
    behaviour: Behaviour::SlowFirstAttempt,
    timeout: Some(Duration::from_millis(100)),
    window: 128,
    ..LIBRARY
};

fn scenario() -> Scenario {
    let mut scenario = Scenario::new("s4b");
    scenario.produce(100);
    scenario
}

#[test]
#[ignore = "needs a real Kafka: tests/kafka/run"]
fn s4b_a_timeout_leaves_a_gap() {
    let scenario = scenario();
    let watch = scenario.watch();
    let run_1 = scenario.start(SETUP);
    run_1.wait_processed((0, 99));
    scenario.wait_committed(3);
    // longer than the slow handlers would have taken: none of them went on behind its deadline
    scenario.wait_still(Duration::from_millis(1500));
    let crash = scenario.kill(run_1);
    assert_eq!(crash.committed, [3]);
    assert_eq!(
        crash.processed,
        (0..100)
            .filter(|offset| offset % 10 != 3)
            .map(|offset| (0, offset))
            .collect()
    );
    assert!(watch.finish().into_iter().all(|committed| committed <= 3));

    let end = scenario.restart(SETUP);
    assert_eq!(end.first_of_run_2, [Some(3)]);
    assert_eq!(end.account.duplicated, 87);
    end.assert_nothing_lost(&crash, 128);
}

#[test]
#[ignore = "needs a real Kafka: tests/kafka/run"]
fn s4b_with_a_retry_the_second_attempt_succeeds() {
    let setup = Setup {
        attempts: 2,
        ..SETUP
    };
    let mut scenario = scenario();
    let run_1 = scenario.start(setup);
    scenario.wait_committed(100);
    let crash = scenario.kill(run_1);
    assert_eq!(crash.committed, [100]);
    for offset in 0..100 {
        let attempts = if offset % 10 == 3 { 2 } else { 1 };
        assert_eq!(
            crash.attempts((0, offset)),
            attempts,
            "attempts of offset {offset}"
        );
    }

    scenario.produce(1); // run 2 has to show where it starts
    let end = scenario.restart(setup);
    assert_eq!(end.account.duplicated, 0);
    end.assert_nothing_lost(&crash, 128);
}
