//! Stock layers of tower around `CommitLayer`: they compile with `serve`, and what they refuse is not finished.

mod support_layers;

use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use support_layers::doubles::{NeverReady, Tries};
use support_layers::{
    Log, Running, committed, logged, ms, refused, sleep_ms, source, source_until_end, unkeyed,
};
use tower::buffer::BufferLayer;
use tower::{Service, ServiceBuilder, service_fn};
use tower_consumer::commit::{CommitLayer, Settled};
use tower_consumer::handler::{AttemptLayer, handler_fn};
use tower_consumer::ledger::Reason;
use tower_consumer::order::OrderLayer;
use tower_consumer::serve::{OnFailure, ServeErrorKind};
use tower_consumer::{BoxError, Message, serve};

#[tokio::test(start_paused = true)]
async fn a_timeout_outside_drops_the_work_and_the_message_is_not_finished() {
    let broker = unkeyed(2);
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .timeout(ms(100))
        .layer(CommitLayer::new())
        .service(handler_fn(logged(&log, |message| async move {
            sleep_ms(90 + 20 * message.offset() as u64).await;
            Ok(())
        })));
    let summary = Running::hold(source_until_end(&broker), stack).end().await;
    let counts = summary.unwrap().counts;
    assert_eq!((counts.done, counts.not_finished(Reason::Dropped)), (1, 1));
    assert_eq!(committed(&broker, 0), Some(1));
    assert_eq!(
        log.timed(),
        ["0 start 0", "0 start 1", "90 ok 0", "100 drop 1"]
    );
}

#[tokio::test(start_paused = true)]
async fn what_load_shed_refuses_outside_is_not_finished_and_serve_says_why() {
    for on_failure in [OnFailure::Hold, OnFailure::Stop] {
        let broker = unkeyed(2);
        let stack = ServiceBuilder::new()
            .load_shed()
            .concurrency_limit(1)
            .layer(CommitLayer::new())
            .service(handler_fn(|_: Message| async {
                sleep_ms(10).await;
                Ok::<(), BoxError>(())
            }));
        let answer = Running::new(source_until_end(&broker), stack, on_failure);
        match answer.end().await {
            Ok(summary) => {
                assert_eq!(on_failure, OnFailure::Hold);
                assert_eq!(summary.counts.not_finished(Reason::Failed), 1);
            }
            Err(error) => {
                assert_eq!(on_failure, OnFailure::Stop);
                assert_eq!(
                    error.to_string(),
                    "message 1 of orders/0 failed, after 0 attempt(s): service overloaded"
                );
            }
        }
        assert_eq!(committed(&broker, 0), Some(1));
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_filter_refuses_outside_is_not_finished_and_not_handled() {
    let broker = unkeyed(3);
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .filter(|message: Message| match message.offset() {
            1 => Err(refused()),
            _ => Ok(message),
        })
        .layer(CommitLayer::new())
        .service(handler_fn(logged(&log, |_| async { Ok(()) })));
    let summary = Running::hold(source_until_end(&broker), stack).end().await;
    let counts = summary.unwrap().counts;
    assert_eq!((counts.done, counts.not_finished(Reason::Failed)), (2, 1));
    assert_eq!(log.entries(), ["start 0", "ok 0", "start 2", "ok 2"]);
    assert_eq!(committed(&broker, 0), Some(1));
}

/// Answers for each second message with what the service inside answered for the one before.
struct Repeats<S> {
    inner: S,
    last: Option<Settled>,
}

impl<S> Service<Message> for Repeats<S>
where
    S: Service<Message, Response = Settled, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = Settled;
    type Error = BoxError;
    type Future = std::future::Ready<Result<Settled, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, message: Message) -> Self::Future {
        if let Some(last) = self.last.take() {
            return std::future::ready(Ok(last));
        }
        let settled = self.inner.call(message).now_or_never().unwrap();
        self.last = settled.as_ref().ok().cloned();
        std::future::ready(settled)
    }
}

#[tokio::test(start_paused = true)]
async fn the_settled_of_another_message_does_not_finish_one_that_commit_layer_never_took() {
    let broker = unkeyed(3);
    let stack = ServiceBuilder::new()
        .layer_fn(|inner| Repeats { inner, last: None })
        .layer(CommitLayer::new())
        .service(handler_fn(|_: Message| async { Ok::<(), BoxError>(()) }));
    let summary = Running::hold(source_until_end(&broker), stack).end().await;
    let counts = summary.unwrap().counts;
    assert_eq!((counts.done, counts.not_finished(Reason::Dropped)), (2, 1));
    assert_eq!(committed(&broker, 0), Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_concurrency_limit_outside_limits_what_is_called() {
    let broker = unkeyed(5);
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .concurrency_limit(2)
        .layer(CommitLayer::new())
        .service(handler_fn(logged(&log, |_| async {
            sleep_ms(10).await;
            Ok(())
        })));
    let running = Running::hold(source(&broker), stack);
    sleep_ms(1).await;
    assert_eq!(log.entries(), ["start 0", "start 1"]);
    sleep_ms(30).await;
    running.stop().await.unwrap();
    assert_eq!(log.timed().last().unwrap(), "30 ok 4");
    assert_eq!(committed(&broker, 0), Some(5));
}

#[tokio::test(start_paused = true)]
async fn a_rate_limit_outside_limits_how_often_the_stack_is_called() {
    let broker = unkeyed(5);
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .rate_limit(2, Duration::from_secs(1))
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .service(handler_fn(logged(&log, |_| async { Ok(()) })));
    let summary = serve(source_until_end(&broker), stack).await.unwrap();
    assert_eq!(summary.counts.done, 5);
    assert_eq!(
        log.timed()[2..6],
        ["0 start 1", "0 ok 1", "1000 start 2", "1000 ok 2"]
    );
    assert_eq!(log.timed().last().unwrap(), "2000 ok 4");
    assert_eq!(committed(&broker, 0), Some(5));
}

#[tokio::test(start_paused = true)]
async fn a_buffer_outside_keeps_the_order() {
    let broker = support_layers::keyed(&["a"; 20]);
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(BufferLayer::new(10))
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .service(handler_fn(logged(&log, |_| async { Ok(()) })));
    let summary = serve(source_until_end(&broker), stack).await.unwrap();
    assert_eq!(summary.counts.done, 20);
    let starts: Vec<_> = log.entries().into_iter().step_by(2).collect();
    let expected: Vec<_> = (0..20).map(|n| format!("start {n}")).collect();
    assert_eq!(starts, expected);
}

#[tokio::test(start_paused = true)]
async fn a_rate_limit_under_a_buffer_goes_under_order_layer() {
    let broker = unkeyed(3);
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .buffer(10)
        .rate_limit(1, Duration::from_secs(1))
        .service(handler_fn(logged(&log, |_| async { Ok(()) })));
    let summary = serve(source_until_end(&broker), stack).await.unwrap();
    assert_eq!(summary.counts.done, 3);
    assert_eq!(log.timed().last().unwrap(), "2000 ok 2");
}

#[tokio::test(start_paused = true)]
async fn an_error_mapped_outside_is_what_serve_says() {
    let broker = unkeyed(1);
    let stack = ServiceBuilder::new()
        .map_err(|error: BoxError| std::io::Error::other(format!("charging: {error}")))
        .layer(CommitLayer::new())
        .service(handler_fn(|_: Message| async { Err::<(), _>(refused()) }));
    let error = serve(source_until_end(&broker), stack).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "message 0 of orders/0 failed, after 1 attempt(s): charging: refused"
    );
    let ServeErrorKind::NotFinished { cause, .. } = error.kind else {
        panic!("{error}");
    };
    assert!(cause.unwrap().is::<std::io::Error>());
}

#[tokio::test(start_paused = true)]
async fn a_retry_outside_does_not_call_the_stack_a_second_time_and_ends_serve() {
    let broker = unkeyed(1);
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .retry(Tries(3))
        .layer(CommitLayer::new())
        .service(handler_fn(logged(&log, |_| async { Err(refused()) })));
    let error = serve(source_until_end(&broker), stack).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "message 0 of orders/0 failed, after 1 attempt(s): message 0 of orders/0 was given to \
         CommitLayer before: place the layer that calls twice (a retry?) inside of it"
    );
    assert_eq!(log.entries(), ["start 0", "err 0"]);
}

#[tokio::test(start_paused = true)]
async fn all_of_them_together_serve_a_stack() {
    let broker = unkeyed(20);
    let stack = ServiceBuilder::new()
        .map_err(|error: BoxError| error)
        .load_shed()
        .timeout(Duration::from_secs(60))
        .buffer(32)
        .rate_limit(1_000, ms(1))
        .concurrency_limit(32)
        .layer(CommitLayer::new())
        .layer(AttemptLayer::new())
        .service(service_fn(|_: Message| async {
            sleep_ms(10).await;
            Ok::<(), BoxError>(())
        }));
    let summary = serve(source_until_end(&broker), stack).await.unwrap();
    assert_eq!(summary.counts.done, 20);
    assert_eq!(committed(&broker, 0), Some(20));
}

#[tokio::test(start_paused = true)]
async fn a_timeout_around_a_stack_that_is_never_ready_does_not_count_the_wait_of_serve() {
    let broker = unkeyed(1);
    let stack = ServiceBuilder::new()
        .timeout(ms(100))
        .layer(CommitLayer::new())
        .layer(AttemptLayer::new())
        .service(NeverReady::default());
    let running = Running::hold(source(&broker), stack);
    sleep_ms(1_000).await;
    // in hand, not called
    assert_eq!(running.member.books().in_flight().0, 1);
    running.stop().await.unwrap();
}
