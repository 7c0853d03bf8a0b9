//! What `serve` says at its end, and what it keeps until then.

mod support_layers;

use std::sync::Arc;
use std::time::Duration;

use support_layers::doubles::NeverReady;
use support_layers::{
    Running, committed, ms, refused, sleep_ms, source, source_until_end, tp, unkeyed,
};
use tower::ServiceBuilder;
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::{AttemptLayer, handler_fn};
use tower_consumer::ledger::Reason;
use tower_consumer::serve::{OnFailure, ServeErrorKind};
use tower_consumer::{BoxError, Message, serve};

#[tokio::test(start_paused = true)]
async fn a_failure_of_the_last_message_before_the_end_of_the_source_is_an_error() {
    let broker = unkeyed(3);
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(|message: Message| async move {
            match message.offset() {
                2 => Err(refused()),
                _ => Ok(()),
            }
        }));
    let error = serve(source_until_end(&broker), stack).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "message 2 of orders/0 failed, after 1 attempt(s): refused"
    );
    assert_eq!(committed(&broker, 0), Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_failure_right_before_a_shutdown_is_an_error() {
    let broker = unkeyed(1);
    let stop = Arc::new(tokio::sync::Notify::new());
    let stopped = stop.clone();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(move |_: Message| {
            let stop = stop.clone();
            async move {
                sleep_ms(10).await;
                stop.notify_one();
                Err::<(), _>(refused())
            }
        }));
    let error = serve(source(&broker), stack)
        .with_graceful_shutdown(async move { stopped.notified().await })
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "message 0 of orders/0 failed, after 1 attempt(s): refused"
    );
}

#[tokio::test(start_paused = true)]
async fn a_failure_after_the_shutdown_began_is_none() {
    let broker = unkeyed(1);
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(|_: Message| async {
            sleep_ms(20).await;
            Err::<(), _>(refused())
        }));
    let running = Running::new(source(&broker), stack, OnFailure::Stop);
    sleep_ms(10).await;
    let summary = running.stop().await.unwrap();
    assert_eq!(summary.counts.not_finished(Reason::Failed), 1);
    assert_eq!(committed(&broker, 0), None);
}

#[tokio::test(start_paused = true)]
async fn serve_waits_for_a_pending_service_and_a_shutdown_cuts_the_message_in_hand() {
    let broker = unkeyed(1);
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(AttemptLayer::new())
        .service(NeverReady::default());
    let running = Running::new(source(&broker), stack, OnFailure::Stop);
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    assert_eq!(running.member.books().in_flight().0, 1);
    let summary = running.stop().await.unwrap();
    assert_eq!(summary.counts.not_finished(Reason::Cut), 1);
    // after 1, 2, 4, 8, 16 and 32 minutes
    assert_eq!(summary.stalls, 6);
}

#[derive(Debug, thiserror::Error)]
#[error("refused")]
struct Counted(Arc<()>);

#[tokio::test(start_paused = true)]
async fn errors_of_messages_that_failed_during_a_drain_are_not_kept() {
    let broker = unkeyed(10);
    let count = Arc::new(());
    let error = count.clone();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(move |_: Message| {
            let error = Counted(error.clone());
            async move {
                sleep_ms(10).await;
                Err::<(), BoxError>(error.into())
            }
        }));
    let running = Running::new(source(&broker), stack, OnFailure::Stop);
    sleep_ms(1).await;
    running.member.revoke([tp(0)], ms(1_000)).await;
    sleep_ms(100).await;
    assert_eq!(running.counts().not_finished(Reason::Failed), 10);
    // this one and the handler's
    assert_eq!(Arc::strong_count(&count), 2);
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_error_of_serve_is_the_first_failure() {
    let broker = unkeyed(10);
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(|message: Message| async move {
            sleep_ms(100 - message.offset() as u64 * 10).await;
            match message.offset() {
                3 | 7 => Err(refused()),
                _ => Ok(()),
            }
        }));
    let error = serve(source(&broker), stack).await.unwrap_err();
    let ServeErrorKind::NotFinished { offset, .. } = error.kind else {
        panic!("{error}");
    };
    assert_eq!(offset, 7);
    // 3 failed during the drain
    assert_eq!(committed(&broker, 0), Some(3));
}
