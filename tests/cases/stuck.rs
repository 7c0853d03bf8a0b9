//! Kinds 3, 13, 15 and 18: a message that never finishes, retries without end, clocks, back-pressure.

use std::time::Duration;

use tower::ServiceBuilder;
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::handler_fn;
use tower_consumer::ledger::Phase;
use tower_consumer::message::Timestamp;
use tower_consumer::order::OrderLayer;
use tower_consumer::retry::Backoff;
use tower_consumer::serve::OnStall;
use tower_consumer::{Message, serve};

use crate::support::events::Events;
use crate::support::{
    Answer, Failed, Journal, broker, commits, committed, ms, pass, produce, run, source, with,
};

/// C13 (a)
#[tokio::test(start_paused = true)]
async fn a_forgotten_message_holds_its_partition_says_so_and_is_never_committed_by_the_clock() {
    let events = Events::collect();
    let broker = broker(2);
    produce(&broker, 0, 100);
    produce(&broker, 1, 100);
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                let work = journal.begin(&message);
                if (message.partition(), message.offset()) == (0, 0) {
                    std::future::pending::<()>().await;
                }
                work.done();
                Answer::Ok(())
            },
        )));
    let source = source(&broker).window(50).build().unwrap();
    let books = source.member().books().clone();
    let serving = run(serve(source, stack).stall_after(ms(1_000), OnStall::Report));
    pass(999).await;
    assert_eq!(events.beginning("stalled").len(), 0);
    pass(60_000).await;

    assert_eq!(journal.starts(0), Vec::from_iter(0..50));
    assert_eq!(commits(&broker, 0), [0i64; 0]);
    assert_eq!(committed(&broker, 1), Some(100));
    let head = books.head("orders", 0).unwrap();
    assert_eq!(
        (head.offset, head.phase, head.attempts),
        (0, Phase::Running, 1)
    );
    let stalls = events.beginning("stalled");
    assert_eq!(stalls[0].field("partition"), "0");
    assert_eq!(stalls[0].field("offset"), "0");
    assert_eq!(stalls[0].field("age_ms"), "1000");
    serving.kill().await;
}

/// C15
#[tokio::test(start_paused = true)]
async fn a_verdict_after_the_stall_report_still_counts() {
    let events = Events::collect();
    let broker = broker(1);
    produce(&broker, 0, 2);
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_partition())
        .retry(Backoff::fixed(ms(10)))
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                let work = journal.begin(&message);
                pass(1_500).await;
                let attempt = message.delivery().unwrap().attempt();
                if message.offset() == 1 && attempt == 1 {
                    return Err(Failed("late"));
                }
                work.done();
                Answer::Ok(())
            },
        )));
    let source = source(&broker).commit_interval(ms(0)).until_end().build();
    let summary = serve(source.unwrap(), stack)
        .stall_after(ms(1_000), OnStall::Report)
        .await
        .unwrap();

    assert_eq!(journal.done_at(0), [1_500]);
    assert_eq!(journal.done_at(1), [4_510]);
    assert_eq!(commits(&broker, 0), [1, 2]);
    assert_eq!(summary.counts.done, 2);
    assert_eq!(summary.counts.late, 0);
    let stalls = events.beginning("stalled");
    assert_eq!(stalls[0].field("offset"), "0");
    assert_eq!(stalls[1].field("offset"), "1");
    assert_eq!(summary.stalls, stalls.len() as u64);
}

/// C67
#[tokio::test(start_paused = true)]
async fn a_backoff_of_zero_or_a_nanosecond_retries_at_once_and_goes_on() {
    for delay in [Duration::ZERO, Duration::from_nanos(1)] {
        let broker = broker(1);
        produce(&broker, 0, 10);
        let journal = Journal::new();
        let stack = ServiceBuilder::new()
            .layer(CommitLayer::new())
            .retry(Backoff::fixed(delay))
            .service(handler_fn(with(
                journal.clone(),
                |journal, message| async move {
                    let _work = journal.begin(&message);
                    match message.delivery().unwrap().attempt() {
                        1 if message.offset() == 4 => Err(Failed("once")),
                        _ => Ok(()),
                    }
                },
            )));
        let source = source(&broker).until_end().build().unwrap();
        serve(source, stack).await.unwrap();
        assert_eq!(journal.started_at(4).len(), 2, "{delay:?}");
        assert!(journal.started_at(4)[1] <= 1, "{delay:?}");
        assert_eq!(committed(&broker, 0), Some(10));
    }
}

/// C67
#[tokio::test(start_paused = true)]
async fn a_backoff_without_end_holds_the_message_and_is_reported() {
    let events = Events::collect();
    for backoff in [
        Backoff::fixed(Duration::MAX),
        Backoff::exponential(Duration::MAX).cap(Duration::MAX),
        Backoff::fixed(Duration::MAX)
            .max_elapsed(Duration::MAX)
            .max_attempts(u32::MAX),
    ] {
        let broker = broker(1);
        produce(&broker, 0, 10);
        let journal = Journal::new();
        let stack = ServiceBuilder::new()
            .layer(CommitLayer::new())
            .retry(backoff)
            .service(handler_fn(with(
                journal.clone(),
                |journal, message| async move {
                    let work = journal.begin(&message);
                    if message.offset() == 4 {
                        return Err(Failed("once"));
                    }
                    work.done();
                    Answer::Ok(())
                },
            )));
        let source = source(&broker).build().unwrap();
        let books = source.member().books().clone();
        let serving = run(serve(source, stack));
        pass(61_000).await;

        assert_eq!(journal.started_at(4).len(), 1);
        assert_eq!(journal.done(0).len(), 9);
        assert_eq!(committed(&broker, 0), Some(4));
        assert_eq!(books.head("orders", 0).unwrap().phase, Phase::BackingOff);
        let summary = serving.shutdown().await.unwrap();
        assert_eq!(summary.stalls, 1);
        assert_eq!(summary.committed("orders", 0), Some(4));
    }
    let stalls = events.beginning("stalled");
    assert_eq!(stalls.len(), 3);
    assert_eq!(stalls[2].field("offset"), "4");
    assert_eq!(stalls[2].field("phase"), "backing off");
    assert_eq!(stalls[2].field("attempts"), "1");
}

/// C68 (b)
#[tokio::test(start_paused = true)]
async fn retries_without_end_hold_no_permit_and_only_their_own_window() {
    let events = Events::collect();
    let broker = broker(4);
    for n in 0..4_000 {
        let key = format!("k{}", n % 100);
        broker.produce(Message::builder("orders").partition(n % 4).key(key));
    }
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .retry(Backoff::fixed(ms(1_000)))
        .concurrency_limit(5)
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                let work = journal.begin(&message);
                pass(1).await;
                // 5 keys, all of them on partition 0
                match message.key() {
                    Some(b"k0" | b"k4" | b"k8" | b"k12" | b"k16") => Err(Failed("always")),
                    _ => {
                        work.done();
                        Ok(())
                    }
                }
            },
        )));
    let source = source(&broker).window(500).build().unwrap();
    let serving = run(serve(source, stack));
    pass(61_000).await;

    // 500 of partition 0 are handed out; a fifth of them has a bad key
    assert_eq!(journal.done(0).len(), 400);
    for partition in 1..4 {
        assert_eq!(journal.done(partition).len(), 1_000);
        assert_eq!(committed(&broker, partition), Some(1_000));
    }
    let last = journal.done_lines().last().unwrap().at;
    assert!(last < 1_000, "3,400 × 1 ms on 5 permits took {last} ms");
    assert_eq!(committed(&broker, 0), None);
    let stalls = events.beginning("stalled");
    assert_eq!(stalls.len(), 1);
    assert_eq!(stalls[0].field("offset"), "0");
    serving.kill().await;
}

/// C73
#[tokio::test(start_paused = true)]
async fn record_timestamps_decide_nothing() {
    let broker = broker(1);
    let timestamps = [
        Timestamp::CreateTime(i64::MAX),
        Timestamp::CreateTime(-1),
        Timestamp::LogAppendTime(i64::MIN),
        Timestamp::NotAvailable,
        Timestamp::CreateTime(0),
    ];
    for timestamp in timestamps {
        broker.produce(Message::builder("orders").key("k").timestamp(timestamp));
    }
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .retry(Backoff::fixed(ms(1_000)))
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                let work = journal.begin(&message);
                if message.delivery().unwrap().attempt() == 1 {
                    return Err(Failed("once"));
                }
                work.done();
                Answer::Ok(())
            },
        )));
    let source = source(&broker).until_end().build().unwrap();
    let summary = serve(source, stack).await.unwrap();
    assert_eq!(journal.done(0), [0, 1, 2, 3, 4]);
    assert_eq!(journal.started_at(4), [4_000, 5_000]);
    assert_eq!(committed(&broker, 0), Some(5));
    assert_eq!(summary.stalls, 0);
}

/// C83
#[tokio::test(start_paused = true)]
async fn behind_a_head_that_fails_for_ever_a_window_is_handed_out_and_the_other_partition_goes_on()
{
    let broker = broker(2);
    produce(&broker, 0, 2_000);
    produce(&broker, 1, 2_000);
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .retry(Backoff::fixed(ms(100)))
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                let work = journal.begin(&message);
                if (message.partition(), message.offset()) == (0, 0) {
                    return Err(Failed("for ever"));
                }
                work.done();
                Answer::Ok(())
            },
        )));
    let source = source(&broker).window(100).build().unwrap();
    let books = source.member().books().clone();
    let serving = run(serve(source, stack));
    pass(10_000).await;

    assert_eq!(journal.done(0), Vec::from_iter(1..100));
    assert_eq!(journal.done(1).len(), 2_000);
    assert_eq!(committed(&broker, 0), None);
    assert_eq!(committed(&broker, 1), Some(2_000));
    assert_eq!(books.in_flight().0, 1);
    assert_eq!(books.counts().delivered, 2_100);
    // one attempt each 100 ms, and none of them lost
    assert_eq!(journal.started_at(0).len(), 101);
    serving.kill().await;
}
