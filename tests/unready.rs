//! A stack that cannot become ready is broken, and ends `serve` whatever `on_failure` says; what only looks like it (a
//! deadline, a shed message, retries that gave up) does not.

mod support_layers;

use std::future::pending;
use std::sync::Arc;

use support_layers::doubles::{Breaks, Deadline, NeverReady, Strict, Tries};
use support_layers::{
    Log, Running, committed, logged, ms, refused, sleep_ms, source_until_end, unkeyed,
};
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::{Service, ServiceBuilder};
use tower_consumer::commit::{CommitLayer, Settled};
use tower_consumer::handler::{AttemptLayer, handler_fn};
use tower_consumer::ledger::Reason;
use tower_consumer::order::OrderLayer;
use tower_consumer::retry::Backoff;
use tower_consumer::serve::{OnFailure, ServeErrorKind, Summary};
use tower_consumer::timeout::TimeoutLayer;
use tower_consumer::{BoxError, Message};

/// Serves one message with both policies, and expects that both end with `Unready` and its cause.
async fn ends_unready<S>(stack: impl Fn() -> S)
where
    S: Service<Message, Response = Settled> + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
{
    for on_failure in [OnFailure::Stop, OnFailure::Hold] {
        let broker = unkeyed(1);
        let running = Running::new(source_until_end(&broker), stack(), on_failure);
        let error = running.end().await.unwrap_err();
        assert!(matches!(
            error.kind,
            ServeErrorKind::Unready { offset: 0, .. }
        ));
        assert_eq!(
            error.to_string(),
            "the stack could not become ready for message 0 of orders/0: no connection"
        );
        assert_eq!(error.summary.counts.not_finished(Reason::Unready), 1);
        assert_eq!(committed(&broker, 0), None);
    }
}

/// Serves one message, holds what fails, and expects that it counts as failed and that `serve` goes on to the end.
async fn fails<S>(stack: S) -> Summary
where
    S: Service<Message, Response = Settled> + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
{
    let broker = unkeyed(1);
    let summary = Running::hold(source_until_end(&broker), stack).end().await;
    let summary = summary.unwrap();
    assert_eq!(summary.counts.not_finished(Reason::Failed), 1);
    assert_eq!(committed(&broker, 0), None);
    summary
}

#[tokio::test(start_paused = true)]
async fn an_unready_service_directly_under_commit_layer_ends_serve() {
    ends_unready(|| {
        ServiceBuilder::new()
            .layer(CommitLayer::new())
            .layer(AttemptLayer::new())
            .service(Strict::new().unready_after(0))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_unready_service_under_order_layer_ends_serve() {
    ends_unready(|| {
        ServiceBuilder::new()
            .layer(CommitLayer::new())
            .layer(OrderLayer::by_key())
            .layer(AttemptLayer::new())
            .service(Strict::new().unready_after(0))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_unready_at_the_second_attempt_ends_serve_though_the_retry_hides_it() {
    ends_unready(|| {
        ServiceBuilder::new()
            .layer(CommitLayer::new())
            .retry(Backoff::fixed(ms(10)))
            .layer(AttemptLayer::new())
            .service(Strict::new().fails_every(1).unready_after(1))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_same_without_any_delay_before_the_second_attempt() {
    ends_unready(|| {
        ServiceBuilder::new()
            .layer(CommitLayer::new())
            .layer(OrderLayer::by_key())
            .retry(Backoff::fixed(ms(0)))
            .concurrency_limit(8)
            .layer(TimeoutLayer::new(ms(100)))
            .layer(AttemptLayer::new())
            .service(Strict::new().fails_every(1).unready_after(1))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_unready_service_at_the_first_attempt_is_not_retried() {
    let strict = Strict::new().unready_after(0);
    ends_unready(|| {
        ServiceBuilder::new()
            .layer(CommitLayer::new())
            .retry(Backoff::fixed(ms(10)))
            .layer(OrderLayer::by_key())
            .layer(AttemptLayer::new())
            .service(strict.clone())
    })
    .await;
    assert_eq!(strict.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn work_that_outlives_the_failed_attempt_does_not_hide_that_the_next_one_finds_no_service() {
    ends_unready(|| {
        let handler = handler_fn(|message: Message| async move {
            let guard = message.guard();
            tokio::spawn(async move {
                let _guard = guard;
                sleep_ms(100).await;
            });
            Err::<(), _>(refused())
        });
        ServiceBuilder::new()
            .layer(CommitLayer::new())
            .retry(Backoff::fixed(ms(10)))
            .service(Breaks::after(1, handler))
    })
    .await;
}

/// As the docs say: only a policy of ours leaves the note by which it is told.
#[tokio::test(start_paused = true)]
async fn an_unready_service_hidden_behind_a_foreign_policy_is_an_ordinary_failure() {
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .retry(Tries(1))
        .layer(AttemptLayer::new())
        .service(Strict::new().fails_every(1).unready_after(1));
    fails(stack).await;
}

#[tokio::test(start_paused = true)]
async fn a_deadline_around_a_retry_that_ends_during_a_backoff_is_a_failure() {
    let handler = || handler_fn(|_: Message| async { Err::<(), _>(refused()) });
    let retry = Backoff::fixed(ms(1_000));
    let ours = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(TimeoutLayer::new(ms(100)))
        .retry(retry.clone())
        .service(handler());
    fails(ours).await;
    let towers = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .timeout(ms(100))
        .retry(retry)
        .service(handler());
    fails(towers).await;
}

#[tokio::test(start_paused = true)]
async fn a_deadline_around_a_retry_that_ends_while_it_waits_for_a_permit_is_a_failure() {
    // the permit goes to somebody else for good after the first attempt
    for limit in ["ours", "of tower", "of tokio"] {
        let permits = Arc::new(tokio::sync::Semaphore::new(1));
        let taken = permits.clone();
        let handler = handler_fn(move |_: Message| {
            let taken = taken.clone();
            async move {
                tokio::spawn(async move {
                    let _permit = taken.acquire_owned().await;
                    pending::<()>().await;
                });
                sleep_ms(1).await;
                Err::<(), _>(refused())
            }
        });
        let retry = ServiceBuilder::new()
            .retry(Backoff::fixed(ms(10)))
            .layer(GlobalConcurrencyLimitLayer::with_semaphore(permits))
            .service(handler);
        let commit = ServiceBuilder::new().layer(CommitLayer::new());
        let summary = match limit {
            "ours" => fails(commit.layer(TimeoutLayer::new(ms(100))).service(retry)).await,
            "of tower" => fails(commit.timeout(ms(100)).service(retry)).await,
            _ => fails(commit.service(Deadline(ms(100), retry))).await,
        };
        assert_eq!(summary.counts.delivered, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_shed_inside_a_retry_is_a_failure() {
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .retry(Backoff::fixed(ms(10)).max_attempts(3))
        .load_shed()
        .layer(AttemptLayer::new())
        .service(NeverReady::default());
    fails(stack).await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_a_filter_inside_a_retry_refuses_each_time_is_a_failure() {
    let log = Log::new();
    let retry = Backoff::fixed(ms(10));
    for retry in [retry.clone().max_attempts(3), retry.max_elapsed(ms(25))] {
        let stack = ServiceBuilder::new()
            .layer(CommitLayer::new())
            .retry(retry)
            .filter(|_: Message| Err::<Message, _>(refused()))
            .service(handler_fn(logged(&log, |_| async { Ok(()) })));
        fails(stack).await;
    }
    assert_eq!(log.entries(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn retries_that_gave_up_are_a_failure() {
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .retry(Backoff::fixed(ms(10)).max_attempts(3))
        .service(handler_fn(logged(&log, |_| async { Err(refused()) })));
    fails(stack).await;
    assert_eq!(
        log.timed(),
        [
            "0 start 0",
            "0 err 0",
            "10 start 0",
            "10 err 0",
            "20 start 0",
            "20 err 0"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn retries_that_ran_out_of_time_are_a_failure() {
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .retry(Backoff::fixed(ms(10)).max_elapsed(ms(25)))
        .layer(AttemptLayer::new())
        .service(Strict::new().fails_every(1));
    fails(stack).await;
}
