//! Wake-ups, partition queues, and threads that nobody may block.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc;
use tower_consumer::Message;
use tower_consumer::source::Source;

use crate::content::once_each;
use crate::member::{Log, Member};
use crate::mock::{Mock, Produced};

/// Eleven members of groups of their own, each with 1,000 messages waiting when its partition is assigned.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_wait_at_assign_come_in_the_order_of_the_log() {
    let mock = Mock::new(&[("orders", 1)]);
    mock.produce("orders", 0, 1_000);
    let rounds: Vec<_> = (0..11)
        .map(|round| {
            let mut source = mock
                .source(&format!("billing-{round}"))
                .topics(["orders"])
                .build()
                .unwrap();
            tokio::spawn(async move {
                let mut offsets = Vec::new();
                while offsets.len() < 1_000 {
                    let message = source.next().await.unwrap().unwrap();
                    offsets.push(message.offset());
                }
                assert_eq!(source.books().counts().late, 0);
                source.close(Duration::from_secs(10)).await.unwrap();
                offsets
            })
        })
        .collect();
    for round in rounds {
        assert_eq!(round.await.unwrap(), Vec::from_iter(0..1_000));
    }
}

/// Statistics every 5 ms are events between the messages, each of which may eat a wake-up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_is_left_lying_between_events_of_the_client() {
    const COUNT: usize = 100;
    let mock = Mock::new(&[("orders", 4)]);
    let log = Log::new();
    let (latency, mut latencies) = mpsc::unbounded_channel();
    let source = mock
        .source("billing")
        .topics(["orders"])
        .set("statistics.interval.ms", "5")
        .build()
        .unwrap();
    let member = Member::start_with(1, source, &log, move |message: Message| {
        let sent = message.timestamp().to_millis().unwrap();
        let _ = latency.send(since_1970() - sent);
        async { Ok(()) }
    });
    member.until_assigned(4).await;
    for _ in 0..COUNT {
        let now = since_1970();
        mock.produce_all(
            "orders",
            (0..4).map(|partition| Produced {
                partition,
                payload: Some(b"a"),
                timestamp: Some(now),
                ..Produced::default()
            }),
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    log.until_handled(4 * COUNT).await;
    member.stop().await.unwrap();
    assert_eq!(log.handled(), once_each(0..4, 0..COUNT as i64));
    latencies.close();
    let mut slowest = 0;
    while let Some(latency) = latencies.recv().await {
        slowest = slowest.max(latency);
    }
    // a lost wake-up costs a tick, 100 ms; the rest is for a machine that does other things
    assert!(slowest < 1_000, "{slowest} ms");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_was_idle_for_long_is_read_when_a_message_comes() {
    let mock = Mock::new(&[("orders", 2)]);
    let log = Log::new();
    let source = mock.source("billing").topics(["orders"]).build().unwrap();
    let member = Member::start(1, source, &log);
    // the other one is busy: two seconds of it
    for count in 1..=20 {
        mock.produce("orders", 1, 1);
        log.until_handled(count).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    mock.produce("orders", 0, 1);
    log.until_handled(21).await;
    member.stop().await.unwrap();
    assert_eq!(log.begun_of(0), [0]);
    assert_eq!(mock.committed("billing", "orders", 0), Some(1));
}

/// Both workers are blocked for longer than the group would wait for a poll, and for a heartbeat.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_that_block_every_worker_do_not_cost_the_membership() {
    blocked(2).await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_handler_that_blocks_the_only_thread_does_not_cost_the_membership() {
    blocked(1).await;
}

async fn blocked(workers: i32) {
    let mock = Mock::new(&[("orders", 2)]);
    for partition in 0..2 {
        mock.produce("orders", partition, 3);
    }
    let log = Log::new();
    let source = mock
        .source("billing")
        .topics(["orders"])
        .set("max.poll.interval.ms", "3500")
        .build()
        .unwrap();
    let began = Instant::now();
    let member = Member::start_with(1, source, &log, move |message: Message| async move {
        if message.offset() == 0 && message.partition() < workers {
            // not in place, on the driver's task, but each on a worker of its own
            tokio::task::yield_now().await;
            thread::sleep(Duration::from_secs(5));
        }
        Ok(())
    });
    log.until_handled(6).await;
    assert!(began.elapsed() > Duration::from_secs(5));
    // and it is still a member, that is given what comes
    mock.produce("orders", 0, 1);
    log.until_handled(7).await;
    let summary = member.stop().await.unwrap();
    assert_eq!(summary.counts.delivered, 7);
    assert_eq!(summary.counts.late, 0);
    // one assignment from beginning to end
    let mut epochs = BTreeMap::new();
    for begun in log.begun() {
        epochs
            .entry(begun.message.partition())
            .or_insert_with(Vec::new)
            .push(begun.epoch);
    }
    for (partition, mut epochs) in epochs {
        epochs.dedup();
        assert_eq!(epochs.len(), 1, "assignments of {partition}");
    }
    assert_eq!(mock.committed("billing", "orders", 0), Some(4));
    assert_eq!(mock.committed("billing", "orders", 1), Some(3));
}

fn since_1970() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_millis() as i64
}
