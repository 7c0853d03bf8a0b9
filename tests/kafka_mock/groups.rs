//! Two members: partitions move, in order and over work that does not end.
//!
//! With an eager assignor (range, the client's default) this cluster refuses every commit from the moment on at which
//! a member joins, so only what was committed before can move without being handled again; a real broker takes them.
//! With a cooperative one it does so too if a heartbeat comes between join and sync: then the test is run again.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tower_consumer::source::kafka::KafkaSourceBuilder;

use crate::content::once_each;
use crate::member::{Gate, Log, Member};
use crate::mock::Mock;
use crate::{LIMIT, said};

const PARTITIONS: i32 = 6;

fn cooperative(mock: &Mock, topic: &str) -> KafkaSourceBuilder {
    mock.source("billing")
        .topics([topic])
        .set("partition.assignment.strategy", "cooperative-sticky")
        .revoke_budget(Duration::from_millis(1_500))
}

/// Waits until each member has that many partitions.
async fn until_shared<const N: usize>(members: [(&Member, usize); N]) {
    for (member, count) in members {
        member.until_assigned(count).await;
    }
}

/// Runs a test until the cluster took the commits of its revokes.
async fn with_commits_taken(name: &str, test: impl AsyncFn(&str)) {
    for attempt in 0..5 {
        let topic = format!("{name}-{attempt}");
        let tested = std::panic::AssertUnwindSafe(test(&topic));
        let ended = futures_util::FutureExt::catch_unwind(tested).await;
        let refused = |said: &String| said.contains("released without the last commit");
        match ended {
            Ok(()) => return,
            Err(_) if said::warnings(&topic).iter().any(refused) => {}
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    panic!("the cluster took no commit");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cooperative_members_come_and_go_and_every_message_is_handled_once() {
    with_commits_taken("come-and-go", async |topic| {
        let mock = Mock::new(&[(topic, PARTITIONS)]);
        let source = || cooperative(&mock, topic).build().unwrap();
        let log = Log::new();
        let produced = Produced::new(topic);
        let first = Member::start(1, source(), &log);
        produced
            .until(&mock, || first.books.assigned().len() == 6)
            .await;
        let second = Member::start(2, source(), &log);
        let shared = || first.books.assigned().len() == 3 && second.books.assigned().len() == 3;
        produced.until(&mock, shared).await;
        log.until_handled(produced.count()).await;
        let leaving = second.begin_stop();
        produced
            .until(&mock, || first.books.assigned().len() == 6)
            .await;
        leaving.end().await.unwrap();
        log.until_handled(produced.count()).await;
        first.stop().await.unwrap();
        produced.assert_committed(&mock);
        assert_eq!(
            log.handled(),
            once_each(0..PARTITIONS, 0..produced.rounds())
        );
        assert!(log.begun().iter().any(|begun| begun.member == 2));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn range_members_come_and_go_and_no_message_is_lost() {
    let mock = Mock::new(&[("orders", PARTITIONS)]);
    let source = || {
        let source = mock.source("billing").topics(["orders"]);
        source
            .revoke_budget(Duration::from_secs(1))
            .build()
            .unwrap()
    };
    let log = Log::new();
    let produced = Produced::new("orders");
    let first = Member::start(1, source(), &log);
    produced
        .until(&mock, || first.books.assigned().len() == 6)
        .await;
    let second = Member::start(2, source(), &log);
    let shared = || first.books.assigned().len() == 3 && second.books.assigned().len() == 3;
    produced.until(&mock, shared).await;
    log.until_handled(produced.count()).await;
    let leaving = second.begin_stop();
    produced
        .until(&mock, || first.books.assigned().len() == 6)
        .await;
    leaving.end().await.unwrap();
    log.until_handled(produced.count()).await;
    first.stop().await.unwrap();
    produced.assert_committed(&mock);
    let handled: BTreeSet<_> = log.handled().into_keys().collect();
    let expected = once_each(0..PARTITIONS, 0..produced.rounds());
    assert_eq!(handled, expected.into_keys().collect());
    assert!(log.begun().iter().any(|begun| begun.member == 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_range_members_have_committed_moves_without_being_handled_again() {
    let mock = Mock::new(&[("orders", PARTITIONS)]);
    let source = || mock.source("billing").topics(["orders"]).build().unwrap();
    let log = Log::new();
    let first = Member::start(1, source(), &log);
    let all = async |rounds: i64| {
        for partition in 0..PARTITIONS {
            mock.produce("orders", partition, 20);
        }
        log.until_handled(20 * rounds as usize * PARTITIONS as usize)
            .await;
        for partition in 0..PARTITIONS {
            mock.wait_committed("billing", "orders", partition, 20 * rounds);
        }
    };
    all(1).await;
    let second = Member::start(2, source(), &log);
    until_shared([(&first, 3), (&second, 3)]).await;
    all(2).await;
    second.stop().await.unwrap();
    until_shared([(&first, 6)]).await;
    all(3).await;
    first.stop().await.unwrap();
    assert_eq!(log.handled(), once_each(0..PARTITIONS, 0..60));
}

/// Message 7 of every partition runs when the second member joins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_runs_at_a_revoke_may_end_and_is_committed_before_the_partition_moves() {
    with_commits_taken("moves", async |topic| {
        let mock = Mock::new(&[(topic, PARTITIONS)]);
        for partition in 0..PARTITIONS {
            mock.produce(topic, partition, 10);
        }
        let source = || cooperative(&mock, topic).build().unwrap();
        let log = Log::new();
        let gate = Gate::new(|message| message.offset() != 7);
        let first = Member::start_gated(1, source(), &log, &gate);
        log.until_handled(54).await;
        let second = Member::start(2, source(), &log);
        let moving = until_revoked(&log, 3).await;
        // only those: the others go on
        gate.open_for(move |message| {
            message.offset() != 7 || moving.contains(&message.partition())
        });
        until_shared([(&first, 3), (&second, 3)]).await;
        assert_eq!(first.books.counts().late, 0);
        gate.open();
        log.until_handled(60).await;
        mock.produce_each(topic, PARTITIONS);
        log.until_handled(66).await;
        second.stop().await.unwrap();
        first.stop().await.unwrap();
        for partition in 0..PARTITIONS {
            assert_eq!(mock.committed("billing", topic, partition), Some(11));
        }
        assert_eq!(log.handled(), once_each(0..PARTITIONS, 0..11));
        let by_second = log.begun().into_iter().filter(|begun| begun.member == 2);
        let by_second: Vec<_> = by_second.map(|begun| begun.message.offset()).collect();
        assert_eq!(by_second, [10; 3]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_may_be_stopped_in_the_midst_of_a_revoke() {
    with_commits_taken("stopped", async |topic| {
        let mock = Mock::new(&[(topic, PARTITIONS)]);
        for partition in 0..PARTITIONS {
            mock.produce(topic, partition, 10);
        }
        let source = || cooperative(&mock, topic).build().unwrap();
        let log = Log::new();
        let gate = Gate::new(|message| message.offset() != 7);
        let held = gate.clone();
        let limit = Duration::from_secs(3);
        let first = Member::start_limited(1, source(), &log, limit, move |message| {
            let gate = held.clone();
            async move {
                gate.pass(&message).await;
                Ok(())
            }
        });
        log.until_handled(54).await;
        let second = Member::start(2, source(), &log);
        until_revoked(&log, 3).await;
        let ending = first.begin_stop();
        until_revoked(&log, 6).await;
        gate.open();
        let summary = ending.end().await.unwrap();
        assert_eq!(summary.partitions.len(), 6);
        for partition in 0..PARTITIONS {
            assert_eq!(summary.committed(topic, partition), Some(10));
        }
        second.until_assigned(6).await;
        mock.produce_each(topic, PARTITIONS);
        log.until_handled(66).await;
        second.stop().await.unwrap();
        assert_eq!(log.handled(), once_each(0..PARTITIONS, 0..11));
    })
    .await;
}

/// Message 7 of every partition does not end before the budget is over, half of max.poll.interval.ms. It ends much
/// later, when the partition has another owner, that has come further.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_end_within_the_budget_is_left_to_the_next_owner() {
    let mock = Mock::new(&[("orders", PARTITIONS)]);
    for partition in 0..PARTITIONS {
        mock.produce("orders", partition, 10);
    }
    let log = Log::new();
    let gate = Gate::new(|message| message.offset() != 7);
    let source = || {
        let source = mock.source("billing").topics(["orders"]);
        let source = source.set("partition.assignment.strategy", "cooperative-sticky");
        source.set("max.poll.interval.ms", "3500").build().unwrap()
    };
    let held = gate.clone();
    // it goes on behind the future that was dropped, as a blocking call would
    let first = Member::start_with(1, source(), &log, move |message| {
        let gate = held.clone();
        async move {
            let guard = message.guard();
            let waited = tokio::spawn(async move {
                gate.pass(&message).await;
                drop(guard);
            });
            Ok(waited.await?)
        }
    });
    log.until_handled(54).await;
    for partition in 0..PARTITIONS {
        mock.wait_committed("billing", "orders", partition, 7);
    }
    let log_of_second = Log::new();
    let second = Member::start(2, source(), &log_of_second);
    let moving = until_revoked(&log, 3).await;
    let began = Instant::now();
    first.until_assigned(3).await;
    let took = began.elapsed();
    assert!(
        took > Duration::from_secs(1) && took < Duration::from_millis(3_000),
        "{took:?}"
    );

    // the next owner begins with it, and with what was finished behind it
    second.until_assigned(3).await;
    log_of_second.until_handled(9).await;
    for &partition in &moving {
        let mut begun = log_of_second.begun_of(partition);
        begun.sort();
        assert_eq!(begun, [7, 8, 9]);
        mock.wait_committed("billing", "orders", partition, 10);
    }
    // the late ends change nothing for those, and free the others
    gate.open();
    for partition in 0..PARTITIONS {
        mock.wait_committed("billing", "orders", partition, 10);
    }
    assert_eq!(first.books.assigned().len(), 3);
    for &partition in &moving {
        assert_eq!(first.books.committed("orders", partition), None);
        mock.produce("orders", partition, 5);
        mock.wait_committed("billing", "orders", partition, 15);
    }
    // and back: the first member begins where the second one left
    second.stop().await.unwrap();
    first.until_assigned(6).await;
    for &partition in &moving {
        mock.produce("orders", partition, 1);
        mock.wait_committed("billing", "orders", partition, 16);
    }
    first.stop().await.unwrap();
    for &partition in &moving {
        let mut begun = log.begun_of(partition);
        begun.sort();
        assert_eq!(begun, Vec::from_iter((0..10).chain([15])));
    }
}

/// The partitions of messages that may not begin any more, when there are that many.
async fn until_revoked(log: &Log, count: usize) -> BTreeSet<i32> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let revoked: BTreeSet<i32> = log
            .begun()
            .iter()
            .filter(|begun| begun.message.offset() == 7)
            .filter(|begun| {
                !begun
                    .message
                    .delivery()
                    .is_some_and(|delivery| delivery.may_start())
            })
            .map(|begun| begun.message.partition())
            .collect();
        if revoked.len() == count {
            return revoked;
        }
        assert!(Instant::now() < deadline, "revoked are {revoked:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// One message for every partition, again and again.
struct Produced<'a> {
    topic: &'a str,
    rounds: Cell<i64>,
}

impl<'a> Produced<'a> {
    fn new(topic: &'a str) -> Self {
        let rounds = Cell::new(0);
        Produced { topic, rounds }
    }

    /// Until this holds.
    async fn until(&self, mock: &Mock, holds: impl Fn() -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !holds() {
            assert!(Instant::now() < deadline, "waited in vain");
            mock.produce_each(self.topic, PARTITIONS);
            self.rounds.set(self.rounds.get() + 1);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn rounds(&self) -> i64 {
        self.rounds.get()
    }

    fn count(&self) -> usize {
        self.rounds() as usize * PARTITIONS as usize
    }

    #[track_caller]
    fn assert_committed(&self, mock: &Mock) {
        for partition in 0..PARTITIONS {
            let committed = mock.committed("billing", self.topic, partition);
            assert_eq!(committed, Some(self.rounds()));
        }
    }
}
