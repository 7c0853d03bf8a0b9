//! Guards: work that outlives its future holds the drain, the lane and the next attempt.

mod support_layers;

use std::future::pending;

use support_layers::{
    Log, Running, committed, keyed, logged, ms, refused, sleep_ms, source, tp, unkeyed,
};
use tower::ServiceBuilder;
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::handler_fn;
use tower_consumer::order::OrderLayer;
use tower_consumer::retry::Backoff;
use tower_consumer::{BoxError, Message};

/// Holds a guard in a task of its own that works for so long.
fn work_behind(log: &Log, message: &Message, work_ms: u64) {
    let (guard, log) = (message.guard(), log.clone());
    tokio::spawn(async move {
        sleep_ms(work_ms).await;
        log.add("work over");
        drop(guard);
    });
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_work_that_outlives_its_handler() {
    let broker = unkeyed(1);
    let log = Log::new();
    let work = log.clone();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(move |message: Message| {
            work_behind(&work, &message, 100);
            async { Ok::<(), BoxError>(()) }
        }));
    let running = Running::hold(source(&broker), stack);
    sleep_ms(10).await;
    let released = running.member.revoke([tp(0)], ms(1_000)).await;
    log.add("released");
    assert_eq!(log.timed(), ["100 work over", "100 released"]);
    assert_eq!((released[0].committed, released[0].cut), (Some(1), 0));
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_drain_is_over_at_its_budget_and_counts_the_work_that_lives_on() {
    let broker = unkeyed(1);
    let log = Log::new();
    let work = log.clone();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(move |message: Message| {
            work_behind(&work, &message, 5_000);
            async { Ok::<(), BoxError>(()) }
        }));
    let running = Running::hold(source(&broker), stack);
    sleep_ms(10).await;
    let released = running.member.revoke([tp(0)], ms(1_000)).await;
    log.add("released");
    assert_eq!(log.timed(), ["810 released"]);
    assert_eq!((released[0].committed, released[0].cut), (Some(1), 1));
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_end_of_work_left_behind_cuts_a_message_that_backs_off_during_a_drain() {
    let broker = unkeyed(1);
    let log = Log::new();
    let work = log.clone();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .retry(Backoff::fixed(ms(10_000)))
        .service(handler_fn(move |message: Message| {
            work_behind(&work, &message, 50);
            async { Err::<(), _>(refused()) }
        }));
    let running = Running::hold(source(&broker), stack);
    sleep_ms(10).await;
    running.member.revoke([tp(0)], ms(1_000)).await;
    log.add("released");
    assert_eq!(log.timed(), ["50 work over", "50 released"]);
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_message_whose_work_ended_elsewhere_does_not_wait_for_the_end_of_the_drain() {
    let broker = unkeyed(2);
    let log = Log::new();
    let work = log.clone();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .retry(Backoff::fixed(ms(10_000)))
        .service(handler_fn(move |message: Message| {
            let work = work.clone();
            async move {
                if message.offset() == 0 {
                    sleep_ms(500).await;
                    return Ok(());
                }
                work_behind(&work, &message, 50);
                Err(refused())
            }
        }));
    let running = Running::hold(source(&broker), stack);
    sleep_ms(10).await;
    let member = running.member.clone();
    let revoke = tokio::spawn(async move { member.revoke([tp(0)], ms(1_000)).await });
    sleep_ms(30).await;
    assert_eq!(running.member.books().in_flight().0, 2);
    sleep_ms(20).await;
    assert_eq!(running.member.books().in_flight().0, 1);
    assert_eq!(revoke.await.unwrap()[0].committed, Some(1));
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_next_message_of_a_key_waits_for_work_that_outlives_its_handler() {
    let broker = keyed(&["a", "a", "b"]);
    let log = Log::new();
    let work = log.clone();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .service(handler_fn(logged(&log, move |message| {
            if message.offset() == 0 {
                work_behind(&work, &message, 100);
            }
            async { Ok(()) }
        })));
    let running = Running::hold(source(&broker), stack);
    sleep_ms(200).await;
    assert_eq!(
        log.timed(),
        [
            "0 start 0",
            "0 ok 0",
            "0 start 2",
            "0 ok 2",
            "100 work over",
            "100 start 1",
            "100 ok 1"
        ]
    );
    running.stop().await.unwrap();
    assert_eq!(committed(&broker, 0), Some(3));
}

/// C25, with work that cannot be dropped: it has 1.5 s more to go.
#[tokio::test(start_paused = true)]
async fn a_key_that_is_revoked_and_assigned_at_once_waits_for_work_that_cannot_be_dropped() {
    let broker = keyed(&["a", "a", "b"]);
    let log = Log::new();
    let work = log.clone();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .service(handler_fn(logged(&log, move |message| {
            let is_first = work.count("start") == 1;
            if is_first {
                work_behind(&work, &message, 2_000);
            }
            async move {
                if is_first {
                    pending::<()>().await;
                }
                Ok(())
            }
        })));
    let running = Running::hold(source(&broker), stack);
    sleep_ms(500).await;
    let released = running.member.revoke([tp(0)], ms(0)).await;
    assert_eq!(released[0].cut, 2);
    running.member.assign([tp(0)]).await;
    sleep_ms(5_000).await;
    running.stop().await.unwrap();
    assert_eq!(
        log.timed()[3..],
        [
            "500 drop 0",
            "500 start 2",
            "500 ok 2",
            "2000 work over",
            "2000 start 0",
            "2000 ok 0",
            "2000 start 1",
            "2000 ok 1"
        ]
    );
    assert_eq!(committed(&broker, 0), Some(3));
}
