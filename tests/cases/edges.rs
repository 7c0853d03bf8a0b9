//! Other faults: bounds at their edges, and ends with little time.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tower::ServiceBuilder;
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::handler_fn;
use tower_consumer::order::OrderLayer;
use tower_consumer::serve::OnStall;
use tower_consumer::source::memory::{CommitReply, MemoryBroker};
use tower_consumer::timeout::TimeoutLayer;
use tower_consumer::{Message, serve};

use crate::support::{
    Answer, GROUP, Gates, Journal, broker, commits, committed, gated, ms, pass, produce, quiet,
    revoke, run, source, with,
};

#[tokio::test(start_paused = true)]
async fn windows_smaller_than_a_batch_let_everything_through() {
    for window in [1, 2, 3, 63, 64, 65] {
        let broker = broker(2);
        produce(&broker, 0, 200);
        produce(&broker, 1, 200);
        let journal = Journal::new();
        let stack = ServiceBuilder::new()
            .layer(CommitLayer::new())
            .service(handler_fn(with(
                journal.clone(),
                |journal, message| async move {
                    let work = journal.begin(&message);
                    pass(message.offset() as u64 % 3).await;
                    work.done();
                    Answer::Ok(())
                },
            )));
        let source = source(&broker).window(window).until_end().build().unwrap();
        serve(source, stack).await.unwrap();
        assert_eq!(committed(&broker, 0), Some(200));
        assert_eq!(committed(&broker, 1), Some(200));
        assert_eq!(journal.done(0).len() + journal.done(1).len(), 400);
        assert!(journal.most_live() <= 2 * window);
    }
}

#[tokio::test(start_paused = true)]
async fn one_in_flight_over_many_partitions_starves_none() {
    let broker = broker(50);
    for partition in 0..50 {
        produce(&broker, partition, 20);
    }
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                let work = journal.begin(&message);
                // one partition hangs
                match message.partition() {
                    7 => std::future::pending::<()>().await,
                    _ => pass(10).await,
                }
                work.done();
                Answer::Ok(())
            },
        )));
    let source = source(&broker).in_flight(1).build().unwrap();
    let serving = run(serve(source, stack));
    pass(60_000).await;
    assert!(journal.most_live() <= 50);
    for partition in (0..50).filter(|p| *p != 7) {
        assert_eq!(
            committed(&broker, partition),
            Some(20),
            "partition {partition}"
        );
    }
    assert_eq!(committed(&broker, 7), None);
    let last = journal.done_lines().last().unwrap().at;
    assert!(
        last <= 20 * 10 * 2,
        "each has its share at all times: {last} ms"
    );
    serving.kill().await;
}

#[tokio::test(start_paused = true)]
async fn a_bound_on_bytes_stops_the_intake_and_opens_again() {
    let broker = broker(1);
    for _ in 0..100 {
        broker.produce(Message::builder("orders").payload(vec![0_u8; 1_000]));
    }
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                let work = journal.begin(&message);
                pass(10).await;
                work.done();
                Answer::Ok(())
            },
        )));
    for (group, source) in [
        (
            "window",
            broker.source("window", ["orders"]).window_bytes(4_500),
        ),
        (
            "in flight",
            broker
                .source("in flight", ["orders"])
                .in_flight_bytes(4_500),
        ),
        // smaller than any message: one at a time
        ("tiny", broker.source("tiny", ["orders"]).window_bytes(1)),
    ] {
        let before = journal.millis();
        serve(source.until_end().build().unwrap(), stack.clone())
            .await
            .unwrap();
        assert_eq!(broker.committed(group, "orders", 0), Some(100));
        assert!(journal.most_live() <= 5, "{group}");
        let took = journal.millis() - before;
        assert!(
            took <= if group == "tiny" { 1_000 } else { 500 },
            "{group}: {took} ms"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_commit_interval_without_end_leaves_commits_to_the_window_and_the_shutdown() {
    let broker = broker(1);
    produce(&broker, 0, 100);
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(|_: Message| async { Answer::Ok(()) }));
    let source = source(&broker).window(64).commit_interval(Duration::MAX);
    let serving = run(serve(source.build().unwrap(), stack));
    pass(3_600_000).await;
    let before = commits(&broker, 0);
    assert!(before.iter().all(|offset| *offset < 100), "{before:?}");
    let summary = serving.shutdown().await.unwrap();
    assert_eq!(summary.committed("orders", 0), Some(100));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_without_time_commits_nothing_more_and_says_so() {
    let broker = broker(1);
    produce(&broker, 0, 5);
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                let work = journal.begin(&message);
                if message.offset() == 3 {
                    std::future::pending::<()>().await;
                }
                work.done();
                Answer::Ok(())
            },
        )));
    let source = source(&broker).build().unwrap();
    let serving = run(serve(source, stack).shutdown_limit(ms(0)));
    quiet().await;
    let opened = Instant::now();
    let summary = serving.shutdown().await.unwrap();
    assert_eq!(opened.elapsed(), ms(0));
    let partition = &summary.partitions[0];
    assert_eq!(partition.committed, None);
    assert_eq!((partition.not_committed, partition.cut), (Some(3), 1));
    assert_eq!(commits(&broker, 0), [0i64; 0]);
    quiet().await;
    assert_eq!(journal.live(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_hangs_beyond_the_shutdown_limit_is_reported_and_not_waited_for() {
    let broker = broker(1);
    produce(&broker, 0, 5);
    broker.on_commit(GROUP, |_, _| CommitReply::ok().after(ms(3_600_000)));
    let (journal, gates, _, serving) = gated(&broker);
    gates.open_all(0, 0..5);
    quiet().await;
    assert_eq!(journal.done(0).len(), 5);
    let opened = Instant::now();
    let summary = serving.shutdown().await.unwrap();
    assert_eq!(opened.elapsed(), ms(29_750));
    let partition = &summary.partitions[0];
    assert_eq!(
        (partition.committed, partition.not_committed),
        (None, Some(5))
    );
    assert_eq!(commits(&broker, 0), [0i64; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_last_commit_that_fails_is_tried_again_within_the_limit() {
    let broker = broker(1);
    produce(&broker, 0, 5);
    let opened = Instant::now();
    broker.on_commit(GROUP, move |_, _| match opened.elapsed() {
        elapsed if elapsed < ms(10_000) => CommitReply::transient_error(),
        _ => CommitReply::ok(),
    });
    let (_, gates, _, serving) = gated(&broker);
    gates.open_all(0, 0..5);
    quiet().await;
    let summary = serving.shutdown().await.unwrap();
    assert_eq!(summary.committed("orders", 0), Some(5));
    assert!(opened.elapsed() < ms(20_000));
}

#[tokio::test(start_paused = true)]
async fn limits_without_end_are_no_limits() {
    let broker = broker(1);
    produce(&broker, 0, 1);
    let (journal, gates) = (Journal::new(), Gates::default());
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(TimeoutLayer::new(Duration::MAX))
        .service(handler_fn(with(
            (journal.clone(), gates.clone()),
            |(journal, gates), message| async move {
                let work = journal.begin(&message);
                gates.wait(&message).await;
                work.done();
                Answer::Ok(())
            },
        )));
    let source = source(&broker)
        .window(usize::MAX)
        .window_bytes(u64::MAX)
        .in_flight(usize::MAX)
        .in_flight_bytes(u64::MAX)
        .commit_interval(Duration::MAX);
    let source = source.build().unwrap();
    let serving = run(serve(source, stack)
        .shutdown_limit(Duration::MAX)
        .stall_after(Duration::MAX, OnStall::Report));
    quiet().await;
    tokio::spawn(async move {
        pass(3_600_000).await;
        gates.open(0, 0);
    });
    let summary = serving.shutdown().await.unwrap();
    assert_eq!(journal.done_at(0), [3_600_001]);
    assert_eq!(summary.committed("orders", 0), Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_topic_without_partitions_is_at_its_end() {
    let broker = MemoryBroker::new();
    broker.create_topic("orders", 0);
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(|_: Message| async { Answer::Ok(()) }));
    for topic in ["orders", "nowhere"] {
        let source = broker.source(GROUP, [topic]).until_end().build().unwrap();
        let summary = serve(source, stack.clone()).await.unwrap();
        assert_eq!(
            summary.to_string(),
            "delivered 0, finished 0, not finished 0"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn while_the_service_is_not_ready_commits_and_revokes_go_on() {
    let broker = broker(2);
    produce(&broker, 0, 3);
    let (journal, gates) = (Journal::new(), Gates::default());
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .concurrency_limit(2)
        .service(handler_fn(with(
            (journal.clone(), gates.clone()),
            |(journal, gates), message| async move {
                let work = journal.begin(&message);
                gates.wait(&message).await;
                work.done();
                Answer::Ok(())
            },
        )));
    let source = source(&broker).commit_interval(ms(1_000)).build().unwrap();
    let member = source.member();
    let serving = run(serve(source, stack));
    produce(&broker, 0, 10);
    quiet().await;
    gates.open(0, 0);
    quiet().await;
    // two run, the next one is in hand
    assert_eq!(journal.starts(0), [0, 1, 2]);
    assert_eq!(member.books().in_flight().0, 3);
    pass(1_000).await;
    assert_eq!(commits(&broker, 0), [1]);
    let (took, _) = revoke(&member, [1], 1_000).await.unwrap();
    assert_eq!(took, 0);
    gates.open_all(0, 1..13);
    pass(10_000).await;
    assert_eq!(committed(&broker, 0), Some(13));
    serving.shutdown().await.unwrap();
}

/// A clone in somebody's hands holds neither the watermark nor the window.
#[tokio::test(start_paused = true)]
async fn messages_kept_by_a_handler_hold_nothing() {
    let broker = broker(1);
    produce(&broker, 0, 100);
    let kept: Arc<Mutex<Vec<Message>>> = Arc::default();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_partition())
        .service(handler_fn(with(kept.clone(), |kept, message| async move {
            kept.lock().push(message);
            Answer::Ok(())
        })));
    let source = source(&broker).window(10).in_flight(10).until_end().build();
    let summary = serve(source.unwrap(), stack).await.unwrap();
    assert_eq!(summary.committed("orders", 0), Some(100));
    assert_eq!(kept.lock().len(), 100);
    // and their end changes nothing
    kept.lock().clear();
    assert_eq!(commits(&broker, 0).last(), Some(&100));
}
