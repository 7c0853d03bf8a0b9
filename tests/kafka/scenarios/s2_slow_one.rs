//! 37 messages at once. 35 takes 5 s, its neighbours no time: killed while 35 is under way. Then 27 more.

use std::time::Duration;
use std::{panic, thread};

use crate::child::Event;
use crate::plan::{Behaviour, LIBRARY, NAIVE, Setup};
use crate::scenario::Scenario;

const SETUP: Setup = Setup {
    behaviour: Behaviour::SlowOne,
    ..LIBRARY
};

fn scenario() -> Scenario {
    let mut scenario = Scenario::new("s2");
    scenario.produce(37);
    scenario
}

#[test]
#[ignore = "needs a real Kafka: tests/kafka/run"]
fn s2_naive_the_commit_of_36_covers_35() {
    let setup = Setup {
        program: NAIVE.program,
        ..SETUP
    };
    let mut scenario = scenario();
    let run_1 = scenario.start(setup);
    run_1.wait_processed((0, 36));
    scenario.wait_committed(37);
    thread::sleep(Duration::from_secs(1));
    let crash = scenario.kill(run_1);
    assert_eq!(crash.committed, [37]);
    assert_eq!(crash.skipped(), [(0, 35)]);

    scenario.produce(27);
    let end = scenario.restart(setup);
    assert_eq!(end.first_of_run_2, [Some(37)]);
    assert_eq!(end.account.lost, [(0, 35)]);
    assert_eq!(end.account.duplicated, 0);
    assert_eq!(end.committed, end.log_end);
}

#[test]
#[ignore = "needs a real Kafka: tests/kafka/run"]
fn s2_the_slow_one_holds_the_committed_offset() {
    let mut scenario = scenario();
    let run_1 = scenario.start(SETUP);
    run_1.wait_processed((0, 36));
    scenario.wait_committed(35);
    thread::sleep(Duration::from_secs(1));
    let crash = scenario.kill(run_1);
    assert_eq!(crash.committed, [35]);

    scenario.produce(27);
    let end = scenario.restart(SETUP);
    assert_eq!(end.first_of_run_2, [Some(35)]);
    assert_eq!(end.account.duplicated, 1);
    end.assert_nothing_lost(&crash, 64);
}

#[test]
#[ignore = "needs a real Kafka: tests/kafka/run"]
fn s2b_the_late_success_moves_the_committed_offset_by_two_and_never_back() {
    let mut scenario = scenario();
    let watch = scenario.watch();
    let run_1 = scenario.start(SETUP);
    run_1.wait_processed((0, 35));
    scenario.wait_committed(37);
    let crash = scenario.kill(run_1);
    assert_eq!(crash.committed, [37]);
    let seen = watch.finish();
    assert!(seen.is_sorted(), "the committed offset went down: {seen:?}");
    assert_eq!(seen[seen.len() - 2..], [35, 37]);

    scenario.produce(27);
    let end = scenario.restart(SETUP);
    assert_eq!(end.first_of_run_2, [Some(37)]);
    assert_eq!(end.account.duplicated, 0);
    end.assert_nothing_lost(&crash, 64);
}

#[test]
#[ignore = "needs a real Kafka: tests/kafka/run"]
fn s2c_36_does_not_start_before_35_of_the_same_key_has_ended() {
    let setup = Setup {
        order: true,
        ..SETUP
    };
    let mut scenario = Scenario::new("s2c");
    scenario.produce_keyed(37, |i| Some(format!("k{}", i.min(35))));
    let run_1 = scenario.start(setup);
    run_1.wait_processed((0, 36));
    scenario.wait_committed(37);
    let crash = scenario.kill(run_1);
    let at = |event| {
        crash
            .events
            .iter()
            .position(|&happened| happened == event)
            .unwrap()
    };
    let ended = at(Event::Processed {
        partition: 0,
        offset: 35,
    });
    let started = at(Event::Started {
        partition: 0,
        offset: 36,
    });
    assert!(ended < started, "36 started while 35 ran");

    scenario.produce(27);
    let end = scenario.restart(setup);
    assert_eq!(end.account.duplicated, 0);
    end.assert_nothing_lost(&crash, 64);
}

/// Four at a time: most of each is waiting for the dead member's session to end.
#[test]
#[ignore = "needs a real Kafka: tests/kafka/run"]
fn s2_at_20_random_kill_moments() {
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| (0..5).for_each(|_| kill_at_random())))
            .collect();
        for lane in lanes {
            lane.join()
                .unwrap_or_else(|cause| panic::resume_unwind(cause));
        }
    });
}

fn kill_at_random() {
    // commits as often as it can, so that kills hit one that is under way
    let setup = Setup {
        commit_interval: Some(Duration::from_millis(10)),
        ..SETUP
    };
    let successes = fastrand::usize(0..=37);
    let and_then = Duration::from_millis(100).mul_f64(fastrand::f64().powi(3)); // mostly short
    println!("killed {and_then:?} after {successes} successes");

    let mut scenario = scenario();
    let run_1 = scenario.start(setup);
    run_1.wait("a number of successes", |events| {
        events
            .iter()
            .filter(|event| matches!(event, Event::Processed { .. }))
            .count()
            >= successes
    });
    thread::sleep(and_then);
    let crash = scenario.kill(run_1);
    crash.assert_safe();

    scenario.produce(27);
    scenario.restart(setup).assert_nothing_lost(&crash, 64);
}
