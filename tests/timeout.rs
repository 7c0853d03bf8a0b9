//! TimeoutLayer: when the time of a message is over, and what becomes of its work.

mod support_layers;

use std::future::pending;
use std::time::Duration;

use support_layers::{DONE, Log, hand, logged, ms, not_finished, sleep_ms};
use tokio::time::Instant;
use tokio_test::{assert_pending, assert_ready};
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::handler_fn;
use tower_consumer::ledger::Reason;
use tower_consumer::retry::Backoff;
use tower_consumer::timeout::{Elapsed, TimeoutLayer};
use tower_consumer::{BoxError, Message};
use tower_test::mock;

fn by_hand() -> Message {
    Message::builder("orders").build()
}

#[tokio::test(start_paused = true)]
async fn the_work_is_dropped_at_the_deadline_and_the_message_is_not_finished() {
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(TimeoutLayer::new(ms(100)))
        .service(handler_fn(logged(&log, |_| pending())));
    let handed = hand(stack).await;
    let error = handed.answer.unwrap_err();
    assert_eq!(error.to_string(), "not finished after 100ms");
    assert_eq!(error.downcast_ref::<Elapsed>().unwrap().limit, ms(100));
    assert_eq!(handed.verdict, not_finished(Reason::Failed));
    assert_eq!(handed.committed, None);
    assert_eq!(log.timed(), ["0 start 0", "100 drop 0"]);
}

#[tokio::test(start_paused = true)]
async fn the_work_is_gone_before_the_error_is_out() {
    let log = Log::new();
    let service = TimeoutLayer::new(ms(100)).layer(handler_fn(logged(&log, |_| pending())));
    let mut call = tokio_test::task::spawn(service.oneshot(by_hand()));
    assert_pending!(call.poll());
    tokio::time::advance(ms(101)).await;
    // the future itself lives on
    assert!(assert_ready!(call.poll()).is_err());
    assert_eq!(log.count("drop"), 1);
}

#[tokio::test(start_paused = true)]
async fn work_that_ends_before_the_deadline_is_finished() {
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(TimeoutLayer::new(ms(100)))
        .service(handler_fn(|_: Message| async {
            sleep_ms(99).await;
            Ok::<(), BoxError>(())
        }));
    let handed = hand(stack).await;
    assert_eq!((handed.verdict, handed.committed), (DONE, Some(1)));
}

#[tokio::test(start_paused = true)]
async fn work_that_is_ready_at_the_deadline_counts() {
    let service = TimeoutLayer::new(ms(100)).layer(handler_fn(|_: Message| async {
        sleep_ms(100).await;
        Ok::<(), BoxError>(())
    }));
    service.clone().oneshot(by_hand()).await.unwrap();

    // also when nobody looks before a long time after it
    let mut call = tokio_test::task::spawn(service.oneshot(by_hand()));
    assert_pending!(call.poll());
    tokio::time::advance(Duration::from_secs(60)).await;
    assert!(assert_ready!(call.poll()).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_deadline_of_zero_lets_through_what_is_ready_at_the_first_poll() {
    let layer = TimeoutLayer::new(Duration::ZERO);
    let ready = layer.layer(handler_fn(|_: Message| async { Ok::<(), BoxError>(()) }));
    ready.oneshot(by_hand()).await.unwrap();

    let began = Instant::now();
    let yields = layer.layer(handler_fn(|_: Message| async {
        sleep_ms(1).await;
        Ok::<(), BoxError>(())
    }));
    let error = yields.oneshot(by_hand()).await.unwrap_err();
    assert_eq!(error.to_string(), "not finished after 0ns");
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn the_longest_duration_is_no_deadline() {
    let service = TimeoutLayer::new(Duration::MAX).layer(handler_fn(|_: Message| async {
        tokio::time::sleep(Duration::from_secs(365 * 86_400)).await;
        Ok::<(), BoxError>(())
    }));
    service.oneshot(by_hand()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_deadline_too_far_for_the_clock_is_none() {
    let service = TimeoutLayer::new(Duration::MAX - ms(1)).layer(handler_fn(|_: Message| async {
        tokio::time::sleep(Duration::from_secs(365 * 86_400)).await;
        Ok::<(), BoxError>(())
    }));
    service.oneshot(by_hand()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_time_begins_when_the_future_is_first_polled() {
    let (mut service, _inner) = mock::spawn_layer::<Message, (), _>(TimeoutLayer::new(ms(100)));
    assert!(assert_ready!(service.poll_ready()).is_ok());
    let mut call = tokio_test::task::spawn(service.call(by_hand()));
    tokio::time::advance(ms(500)).await;
    assert_pending!(call.poll());
    tokio::time::advance(ms(99)).await;
    assert_pending!(call.poll());
    tokio::time::advance(ms(2)).await;
    let error = assert_ready!(call.poll()).unwrap_err();
    assert!(error.is::<Elapsed>());
}

/// A timer would panic here.
#[test]
fn work_that_is_ready_at_the_first_poll_needs_no_timer_and_no_runtime() {
    let service =
        TimeoutLayer::new(ms(100)).layer(handler_fn(|_: Message| async { Ok::<(), BoxError>(()) }));
    let mut call = tokio_test::task::spawn(service.oneshot(by_hand()));
    assert!(assert_ready!(call.poll()).is_ok());
}

#[tokio::test(start_paused = true)]
async fn inside_of_a_retry_each_attempt_has_its_own_deadline() {
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .retry(Backoff::fixed(ms(10)))
        .layer(TimeoutLayer::new(ms(100)))
        .service(handler_fn(logged(&log, |message| async move {
            if message.delivery().unwrap().attempt() < 3 {
                pending::<()>().await;
            }
            sleep_ms(50).await;
            Ok(())
        })));
    let handed = hand(stack).await;
    assert_eq!((handed.verdict, handed.committed), (DONE, Some(1)));
    assert_eq!(
        log.timed(),
        [
            "0 start 0",
            "100 drop 0",
            "110 start 0",
            "210 drop 0",
            "220 start 0",
            "270 ok 0"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn outside_of_a_retry_all_attempts_together_have_one_deadline() {
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(TimeoutLayer::new(ms(100)))
        .retry(Backoff::fixed(ms(40)))
        .service(handler_fn(logged(&log, |_| async {
            Err("refused".into())
        })));
    let handed = hand(stack).await;
    assert_eq!(handed.error(), "not finished after 100ms");
    assert_eq!(handed.verdict, not_finished(Reason::Failed));
    assert_eq!(
        log.timed(),
        [
            "0 start 0",
            "0 err 0",
            "40 start 0",
            "40 err 0",
            "80 start 0",
            "80 err 0"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn work_that_goes_on_elsewhere_after_the_deadline_does_not_count() {
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(TimeoutLayer::new(ms(100)))
        .service(handler_fn(|_: Message| async {
            let elsewhere = tokio::spawn(sleep_ms(150));
            elsewhere.await?;
            Ok::<(), BoxError>(())
        }));
    let handed = hand(stack).await;
    sleep_ms(100).await;
    assert_eq!(handed.verdict, not_finished(Reason::Failed));
    assert_eq!(handed.committed, None);
}
