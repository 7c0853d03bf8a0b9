//! A partition that is given up: what runs may end, what does not run never starts, and what is fenced is dropped.

mod support_layers;

use std::future::{pending, poll_fn};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use support_layers::{
    Log, Running, committed, keyed, logged, ms, not_finished, only_verdict, produce, refused,
    sleep_ms, source, tp, unkeyed,
};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_consumer::commit::{CommitError, CommitLayer};
use tower_consumer::handler::{AttemptLayer, handler_fn};
use tower_consumer::ledger::{Phase, Reason};
use tower_consumer::order::OrderLayer;
use tower_consumer::retry::Backoff;
use tower_consumer::source::Source;
use tower_consumer::source::memory::MemorySource;
use tower_consumer::{BoxError, Message};

#[tokio::test(start_paused = true)]
async fn what_runs_may_end_and_is_committed_and_then_the_partition_is_released() {
    let broker = unkeyed(3);
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(logged(&log, |message| async move {
            sleep_ms(50 + 10 * message.offset() as u64).await;
            Ok(())
        })));
    let running = Running::hold(source(&broker), stack);
    sleep_ms(10).await;
    let released = running.member.revoke([tp(0)], ms(1_000)).await;
    log.add("released");
    assert_eq!(
        log.timed()[3..],
        ["50 ok 0", "60 ok 1", "70 ok 2", "70 released"]
    );
    assert_eq!(released[0].committed, Some(3));
    assert_eq!((released[0].not_committed, released[0].cut), (None, 0));
    assert_eq!(committed(&broker, 0), Some(3));
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_its_lane_or_for_a_permit_is_dropped_at_the_stop_and_never_starts() {
    // 0 runs, 1 waits for its lane, 2 and 3 for the permit
    let broker = keyed(&["a", "a", "b", ""]);
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .concurrency_limit(1)
        .service(handler_fn(logged(&log, |_| async {
            sleep_ms(100).await;
            Ok(())
        })));
    let running = Running::hold(source(&broker), stack);
    sleep_ms(10).await;
    let member = running.member.clone();
    let revoke = tokio::spawn(async move { member.revoke([tp(0)], ms(1_000)).await });
    sleep_ms(1).await;
    assert_eq!(running.counts().not_finished(Reason::Cut), 3);
    assert_eq!(revoke.await.unwrap()[0].committed, Some(1));
    assert_eq!(log.timed(), ["0 start 0", "100 ok 0"]);
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_backs_off_is_dropped_at_the_stop_and_has_no_further_attempt() {
    let broker = unkeyed(2);
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .retry(Backoff::fixed(ms(50)))
        .service(handler_fn(logged(&log, |message| async move {
            if message.offset() == 0 {
                sleep_ms(100).await;
                return Ok(());
            }
            Err(refused())
        })));
    let running = Running::hold(source(&broker), stack);
    sleep_ms(10).await;
    let released = running.member.revoke([tp(0)], ms(1_000)).await;
    assert_eq!(released[0].committed, Some(1));
    assert_eq!(
        log.timed(),
        ["0 start 0", "0 start 1", "0 err 1", "100 ok 0"]
    );
    assert_eq!(running.counts().not_finished(Reason::Cut), 1);
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_fails_during_a_drain_is_not_retried() {
    for delay in [0, 10] {
        let broker = unkeyed(1);
        let log = Log::new();
        let work = logged(&log, |_| async {
            sleep_ms(50).await;
            Err(refused())
        });
        let stack = ServiceBuilder::new()
            .layer(CommitLayer::new())
            .layer(OrderLayer::by_key())
            .retry(Backoff::fixed(ms(delay)))
            .layer(AttemptLayer::new())
            .service(service_fn(work));
        let running = Running::hold(source(&broker), stack);
        sleep_ms(10).await;
        running.member.revoke([tp(0)], ms(1_000)).await;
        log.add("released");
        assert_eq!(log.timed(), ["0 start 0", "50 err 0", "50 released"]);
        running.stop().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn what_ended_ok_is_waited_for_while_the_layers_around_it_have_not_answered() {
    let broker = unkeyed(1);
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .then(|answer: Result<(), BoxError>| async move {
            sleep_ms(50).await;
            answer
        })
        .service(handler_fn(|_: Message| async { Ok::<(), BoxError>(()) }));
    let running = Running::hold(source(&broker), stack);
    sleep_ms(10).await;
    let released = running.member.revoke([tp(0)], ms(1_000)).await;
    assert_eq!(released[0].committed, Some(1));
    running.stop().await.unwrap();
}

/// A handler that ends as soon as its partition is being given up.
async fn until_the_stop(message: Message) -> Result<(), BoxError> {
    poll_fn(|_| match message.delivery().unwrap().may_start() {
        true => Poll::Pending,
        false => Poll::Ready(Ok(())),
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn a_permit_that_becomes_free_at_the_stop_starts_nothing_in_any_layer() {
    let broker = unkeyed(2);
    let log = Log::new();
    let seen = log.clone();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .concurrency_limit(1)
        // a layer of the user's own, with work of its own
        .map_request(move |message: Message| {
            seen.add(format!("look up {}", message.offset()));
            message
        })
        .service(handler_fn(logged(&log, until_the_stop)));
    let running = Running::hold(source(&broker), stack);
    sleep_ms(10).await;
    let released = running.member.revoke([tp(0)], ms(1_000)).await;
    assert_eq!(log.timed(), ["0 look up 0", "0 start 0", "10 ok 0"]);
    assert_eq!(released[0].committed, Some(1));
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_called_after_the_stop_never_starts() {
    let broker = unkeyed(1);
    let mut source = source(&broker);
    let log = Log::new();
    let mut stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(logged(&log, |_| async { Ok(()) })));
    let message = source.next().await.unwrap().unwrap();
    source.start_close(ms(1_000));
    let answer = stack.ready().await.unwrap().call(message).await;
    assert_eq!(
        answer.unwrap_err().to_string(),
        "message 0 of orders/0 was cut off in phase \"delivered\", because its partition is given \
         up; it will be delivered again"
    );
    let verdict = only_verdict(&source.books().counts());
    assert_eq!(verdict, not_finished(Reason::Cut));
    assert_eq!(log.entries(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn what_still_runs_when_the_time_for_it_is_over_is_dropped_and_counted() {
    let broker = unkeyed(2);
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(logged(&log, |message| async move {
            if message.offset() == 1 {
                pending::<()>().await;
            }
            Ok(())
        })));
    let running = Running::hold(source(&broker), stack);
    sleep_ms(10).await;
    let released = running.member.revoke([tp(0)], ms(1_000)).await;
    // four fifths of the budget are for what runs
    assert_eq!(
        log.timed(),
        ["0 start 0", "0 ok 0", "0 start 1", "810 drop 1"]
    );
    assert_eq!((released[0].committed, released[0].cut), (Some(1), 1));
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lost_partition_drops_what_runs_at_once_and_commits_nothing() {
    let broker = unkeyed(2);
    broker.create_topic(support_layers::TOPIC, 2);
    produce(&broker, 0, "");
    produce(&broker, 0, "");
    produce(&broker, 1, "");
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(logged(&log, |message| async move {
            match (message.partition(), message.offset()) {
                (0, 0) => {}
                (0, _) => pending::<()>().await,
                _ => sleep_ms(50).await,
            }
            Ok(())
        })));
    let running = Running::hold(source(&broker), stack);
    sleep_ms(10).await;
    running.member.lose([tp(0)]).await;
    sleep_ms(90).await;
    assert_eq!(log.timed()[4..], ["10 drop 1", "50 ok 1@0"]);
    // what was fenced counts for nothing
    let counts = running.counts();
    assert_eq!((counts.late, counts.not_finished_total()), (1, 0));
    running.stop().await.unwrap();
    assert_eq!(
        (committed(&broker, 0), committed(&broker, 1)),
        (None, Some(1))
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_fenced_is_dropped_without_being_polled_again() {
    let broker = unkeyed(1);
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(logged(&log, until_the_stop)));
    let running = Running::hold(source(&broker), stack);
    sleep_ms(10).await;
    running.member.lose([tp(0)]).await;
    sleep_ms(1).await;
    assert_eq!(log.timed(), ["0 start 0", "10 drop 0"]);
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn success_after_the_fence_is_late_and_commits_nothing() {
    let broker = unkeyed(1);
    let slot: Arc<Mutex<Option<MemorySource>>> = Arc::default();
    let lost = slot.clone();
    let mut stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(move |_: Message| {
            // the source is gone while the handler runs, as on another thread
            drop(lost.lock().unwrap().take());
            async { Ok::<(), BoxError>(()) }
        }));
    let mut source = source(&broker);
    let books = source.books().clone();
    let message = source.next().await.unwrap().unwrap();
    slot.lock().unwrap().replace(source);
    let error = stack.ready().await.unwrap().call(message).await;
    let error = error.unwrap_err();
    assert_eq!(
        error.to_string(),
        "message 0 of orders/0 ended after its partition was given up; it will be delivered again"
    );
    assert!(matches!(
        error.downcast_ref(),
        Some(CommitError::Late { offset: 0, .. })
    ));
    let counts = books.counts();
    assert_eq!((counts.late, counts.done), (1, 0));
    assert_eq!(committed(&broker, 0), None);
}

/// C25: key a at offset 0 runs for 2 s; revoked and assigned again at 0.5 s, without any time to drain.
#[tokio::test(start_paused = true)]
async fn a_key_that_is_revoked_and_assigned_at_once_never_has_two_live_handlers() {
    let broker = keyed(&["a", "a"]);
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .service(handler_fn(logged(&log, |_| async {
            sleep_ms(2_000).await;
            Ok(())
        })));
    let running = Running::hold(source(&broker), stack);
    sleep_ms(500).await;
    running.member.revoke([tp(0)], ms(0)).await;
    running.member.assign([tp(0)]).await;
    sleep_ms(5_000).await;
    running.stop().await.unwrap();
    assert_eq!(
        log.timed(),
        [
            "0 start 0",
            "500 drop 0",
            "500 start 0",
            "2500 ok 0",
            "2500 start 1",
            "4500 ok 1"
        ]
    );
    assert_eq!(committed(&broker, 0), Some(2));
}

#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_drain_is_said_in_the_error_of_each_message() {
    let broker = keyed(&["a", "a"]);
    let mut source = source(&broker);
    let mut stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .service(handler_fn(|_: Message| async {
            sleep_ms(100).await;
            Ok::<(), BoxError>(())
        }));
    let mut calls = Vec::new();
    for _ in 0..2 {
        let message = source.next().await.unwrap().unwrap();
        calls.push(tokio::spawn(stack.ready().await.unwrap().call(message)));
    }
    sleep_ms(10).await;
    source.close(ms(1_000)).await.unwrap();
    let error = calls.remove(1).await.unwrap().unwrap_err();
    assert!(matches!(
        error.downcast_ref(),
        Some(CommitError::Cut {
            phase: Phase::WaitingForLane,
            ..
        })
    ));
    assert!(calls.remove(0).await.unwrap().is_ok());
    assert_eq!(committed(&broker, 0), Some(1));
}
