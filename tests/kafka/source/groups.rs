//! Members that come and go, by each way in which a group may rebalance.

use std::time::{Duration, Instant};

use tower_consumer::source::kafka::KafkaSourceBuilder;

use super::Case;
use crate::LIMIT;
use crate::member::{Log, Member};

const PARTITIONS: i32 = 6;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real Kafka: tests/kafka/run"]
async fn members_come_and_go_with_range() {
    come_and_go("range", |case| {
        case.source().set("partition.assignment.strategy", "range")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real Kafka: tests/kafka/run"]
async fn members_come_and_go_with_cooperative_sticky() {
    come_and_go("cooperative", |case| {
        let strategy = "cooperative-sticky";
        case.source().set("partition.assignment.strategy", strategy)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real Kafka: tests/kafka/run"]
async fn members_come_and_go_with_the_protocol_of_kip_848() {
    come_and_go("kip-848", Case::source_kip_848).await;
}

/// Three members, with messages under way all the time that take 50 ms each: every one is handled once.
async fn come_and_go(name: &str, source: fn(&Case) -> KafkaSourceBuilder) {
    let case = Case::new(name, PARTITIONS);
    let log = Log::new();
    let start = |number| {
        Member::start_with(number, source(&case).build().unwrap(), &log, |_| async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok(())
        })
    };
    let mut rounds = 0;
    // a message for each partition again and again, until the members have that many partitions
    let mut until_shared = async |members: &[(&Member, usize)]| {
        let deadline = Instant::now() + LIMIT;
        let is_shared = || {
            let shared = |(member, count): &(&Member, usize)| {
                member.is_running() && member.books.assigned().len() == *count
            };
            members.iter().all(shared)
        };
        while !is_shared() {
            assert!(Instant::now() < deadline, "{name}: not shared");
            for partition in 0..PARTITIONS {
                case.send(&case.producer, partition, b"payload");
            }
            case.flush();
            rounds += 1;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let count = rounds * PARTITIONS as usize;
        log.until_handled(count).await;
    };

    let first = start(1);
    until_shared(&[(&first, 6)]).await;
    let second = start(2);
    until_shared(&[(&first, 3), (&second, 3)]).await;
    let third = start(3);
    until_shared(&[(&first, 2), (&second, 2), (&third, 2)]).await;
    let leaving = first.begin_stop();
    until_shared(&[(&second, 3), (&third, 3)]).await;
    leaving.end().await.unwrap();
    let leaving = second.begin_stop();
    until_shared(&[(&third, 6)]).await;
    leaving.end().await.unwrap();
    third.stop().await.unwrap();

    let handled = log.handled();
    let twice: Vec<_> = handled.iter().filter(|(_, times)| **times != 1).collect();
    assert_eq!(twice, []);
    assert_eq!(handled.len(), rounds * PARTITIONS as usize);
    for partition in 0..PARTITIONS {
        assert_eq!(case.committed(partition), Some(rounds as i64));
    }
    for member in 1..=3 {
        assert!(log.begun().iter().any(|begun| begun.member == member));
    }
}
