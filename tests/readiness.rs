//! Readiness belongs to the instance that was asked: no layer calls an instance that was not ready, none keeps a
//! reservation that others wait for, and an error of readiness is an error of the stack, not of a message.

mod support_layers;

use support_layers::doubles::{NeverReady, Strict};
use support_layers::{
    GROUP, Log, Running, TOPIC, committed, keyed, logged, ms, name, produce, sleep_ms, source,
    source_until_end, tp, unkeyed,
};
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok};
use tower::{Service, ServiceBuilder, ServiceExt};
use tower_consumer::commit::{CommitLayer, Settled};
use tower_consumer::handler::{AttemptLayer, handler_fn};
use tower_consumer::ledger::Reason;
use tower_consumer::order::OrderLayer;
use tower_consumer::retry::Backoff;
use tower_consumer::serve::ServeErrorKind;
use tower_consumer::source::Source;
use tower_consumer::timeout::TimeoutLayer;
use tower_consumer::{BoxError, Message, serve};
use tower_test::mock;

/// Serves 100 messages of 10 keys and of none, 8 in flight, and expects every one done.
async fn serves_a_hundred<S>(stack: S)
where
    S: Service<Message, Response = Settled> + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
{
    let keys = ["a", "b", "", "c", "d", "e", "", "f", "g", "h"].repeat(10);
    let broker = keyed(&keys);
    let source = broker.source(GROUP, [TOPIC]).in_flight(8).until_end();
    let summary = serve(source.build().unwrap(), stack).await.unwrap();
    assert_eq!(summary.counts.done, 100);
    assert_eq!(committed(&broker, 0), Some(100));
}

#[tokio::test(start_paused = true)]
async fn the_double_panics_when_a_clone_of_a_ready_instance_is_called() {
    let mut strict = Strict::new();
    let mut clone = strict.ready().await.unwrap().clone();
    let call = tokio::spawn(async move { clone.call(Message::builder("orders").build()).await });
    assert!(call.await.unwrap_err().is_panic());
}

#[tokio::test(start_paused = true)]
async fn commit_layer_calls_the_instance_that_was_ready() {
    for strict in [Strict::new(), Strict::new().pending_first()] {
        let watch = strict.watch();
        serves_a_hundred(
            ServiceBuilder::new()
                .layer(CommitLayer::new())
                .layer(AttemptLayer::new())
                .service(strict),
        )
        .await;
        assert_eq!((watch.calls(), watch.most()), (100, 8));
    }
}

#[tokio::test(start_paused = true)]
async fn order_layer_calls_the_instance_that_was_ready() {
    for strict in [Strict::new(), Strict::new().pending_first()] {
        let watch = strict.watch();
        serves_a_hundred(
            ServiceBuilder::new()
                .layer(CommitLayer::new())
                .layer(OrderLayer::by_key())
                .layer(AttemptLayer::new())
                .service(strict),
        )
        .await;
        assert_eq!((watch.calls(), watch.most()), (100, 8));
    }
}

#[tokio::test(start_paused = true)]
async fn timeout_layer_calls_the_instance_that_was_ready() {
    for strict in [Strict::new(), Strict::new().pending_first()] {
        let watch = strict.watch();
        serves_a_hundred(
            ServiceBuilder::new()
                .layer(CommitLayer::new())
                .layer(TimeoutLayer::new(ms(100)))
                .layer(AttemptLayer::new())
                .service(strict),
        )
        .await;
        assert_eq!((watch.calls(), watch.most()), (100, 8));
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_with_backoff_calls_the_instance_that_was_ready_at_every_attempt() {
    for strict in [Strict::new(), Strict::new().pending_first()] {
        let watch = strict.watch();
        serves_a_hundred(
            ServiceBuilder::new()
                .layer(CommitLayer::new())
                .retry(Backoff::fixed(ms(1)))
                .layer(AttemptLayer::new())
                .service(strict.fails_every(3)),
        )
        .await;
        // every third of them failed: 49
        assert_eq!((watch.calls(), watch.most()), (149, 8));
    }
}

#[tokio::test(start_paused = true)]
async fn the_whole_stack_calls_the_instance_that_was_ready() {
    for strict in [Strict::new(), Strict::new().pending_first()] {
        let watch = strict.watch();
        serves_a_hundred(
            ServiceBuilder::new()
                .layer(CommitLayer::new())
                .layer(OrderLayer::by_key())
                .retry(Backoff::fixed(ms(1)))
                .concurrency_limit(4)
                .layer(TimeoutLayer::new(ms(100)))
                .layer(AttemptLayer::new())
                .service(strict.fails_every(3)),
        )
        .await;
        assert_eq!((watch.calls(), watch.most()), (149, 4));
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_and_a_buffer_around_the_whole_stack_call_the_instance_that_was_ready() {
    for strict in [Strict::new(), Strict::new().pending_first()] {
        let watch = strict.watch();
        serves_a_hundred(
            ServiceBuilder::new()
                .buffer(10)
                .concurrency_limit(6)
                .layer(CommitLayer::new())
                .layer(TimeoutLayer::new(ms(100)))
                .concurrency_limit(4)
                .retry(Backoff::fixed(ms(1)))
                .layer(AttemptLayer::new())
                .service(strict.fails_every(3)),
        )
        .await;
        assert_eq!((watch.calls(), watch.most()), (149, 4));
    }
}

#[tokio::test(start_paused = true)]
async fn commit_timeout_and_attempt_layer_pass_the_readiness_of_the_service_inside_on() {
    macro_rules! passes_readiness_on {
        ($layer:expr) => {
            let (mut service, mut inner) = mock::spawn_layer::<Message, (), _>($layer);
            inner.allow(0);
            assert_pending!(service.poll_ready());
            inner.allow(1);
            assert!(service.is_woken());
            assert_ready_ok!(service.poll_ready());
            inner.allow(0);
            inner.send_error("no connection");
            assert_eq!(
                assert_ready_err!(service.poll_ready()).to_string(),
                "no connection"
            );
        };
    }
    passes_readiness_on!(CommitLayer::new());
    passes_readiness_on!(TimeoutLayer::new(ms(100)));
    passes_readiness_on!(AttemptLayer::new());
}

#[tokio::test(start_paused = true)]
async fn order_layer_is_always_ready_and_asks_the_service_inside_in_its_future() {
    let (mut service, mut inner) = mock::spawn_layer::<Message, (), _>(OrderLayer::by_partition());
    inner.allow(0);
    assert_ready_ok!(service.poll_ready());
    let mut call = tokio_test::task::spawn(service.call(Message::builder("orders").build()));
    assert_pending!(call.poll());
    inner.allow(1);
    assert!(call.is_woken());
    assert_pending!(call.poll());
    let (_, respond) = inner.next_request().await.unwrap();
    respond.send_response(());
    assert_ready_ok!(call.poll());
}

#[tokio::test(start_paused = true)]
async fn an_error_of_readiness_ends_serve_and_the_message_is_delivered_again() {
    let broker = unkeyed(20);
    let strict = Strict::new().unready_after(12);
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(AttemptLayer::new())
        .service(strict);
    let error = serve(source_until_end(&broker), stack).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the stack could not become ready for message 12 of orders/0: no connection"
    );
    assert_eq!(error.summary.counts.done, 12);
    assert_eq!(error.summary.counts.not_finished(Reason::Unready), 1);
    assert_eq!(committed(&broker, 0), Some(12));
    let again = source(&broker).next().await.unwrap().unwrap();
    assert_eq!(again.offset(), 12);
}

/// C95, without OrderLayer: `serve` itself waits for the permit with a message of p0 in hand.
#[tokio::test(start_paused = true)]
async fn a_permit_that_serve_waited_for_on_behalf_of_a_lost_partition_serves_another_partition() {
    let broker = unkeyed(2);
    broker.create_topic(TOPIC, 2);
    produce(&broker, 0, "");
    produce(&broker, 0, "");
    let log = Log::new();
    let called = log.clone();
    let handler = logged(&log, |message| async move {
        if message.partition() == 0 {
            std::future::pending::<()>().await;
        }
        Ok(())
    });
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .concurrency_limit(1)
        .map_request(move |message: Message| {
            called.add(format!("call {}", name(&message)));
            message
        })
        .service(handler_fn(handler));
    let running = Running::hold(source(&broker), stack);
    sleep_ms(10).await;
    running.member.lose([tp(0)]).await;
    sleep_ms(10).await;
    produce(&broker, 1, "");
    sleep_ms(10).await;
    running.stop().await.unwrap();
    assert_eq!(
        log.timed(),
        [
            "0 call 0",
            "0 start 0",
            "10 drop 0",
            "20 call 1@0",
            "20 start 1@0",
            "20 ok 1@0"
        ]
    );
    assert_eq!(
        (committed(&broker, 0), committed(&broker, 1)),
        (None, Some(1))
    );
}

/// C95, with OrderLayer: a message of p0 is the first that waits for the permit, and is revoked.
#[tokio::test(start_paused = true)]
async fn a_revoked_message_that_waited_for_the_permit_gives_its_turn_away() {
    let broker = unkeyed(0);
    broker.create_topic(TOPIC, 2);
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
    produce(&broker, 1, "a");
    sleep_ms(1).await;
    produce(&broker, 0, "b");
    sleep_ms(1).await;
    produce(&broker, 1, "c");
    sleep_ms(1).await;
    running.member.revoke([tp(0)], ms(1_000)).await;
    sleep_ms(300).await;
    running.stop().await.unwrap();
    assert_eq!(
        log.timed(),
        ["0 start 1@0", "100 ok 1@0", "100 start 1@1", "200 ok 1@1"]
    );
    assert_eq!(
        (committed(&broker, 0), committed(&broker, 1)),
        (None, Some(2))
    );
}

/// C96. OrderLayer asks for readiness in its future, so that the deadline around it counts the wait.
#[tokio::test(start_paused = true)]
async fn a_deadline_frees_a_hundred_messages_from_a_service_that_is_never_ready() {
    let broker = unkeyed(100);
    let inner = NeverReady::default();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(TimeoutLayer::new(ms(100)))
        .layer(OrderLayer::by_key())
        .layer(AttemptLayer::new())
        .service(inner.clone());
    let running = Running::hold(source(&broker), stack);
    sleep_ms(99).await;
    assert_eq!(running.member.books().in_flight().0, 100);
    sleep_ms(2).await;
    assert_eq!(running.member.books().in_flight().0, 0);
    let summary = running.stop().await.unwrap();
    assert_eq!(summary.counts.not_finished(Reason::Failed), 100);
    assert_eq!(summary.counts.finished(), 0);
    assert_eq!(committed(&broker, 0), None);
    assert_eq!(inner.instances(), 1);
}

/// C96, with a queue of 10 in between.
#[tokio::test(start_paused = true)]
async fn a_deadline_frees_a_hundred_messages_from_a_buffer_over_a_service_that_is_never_ready() {
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let before = tasks();
    let broker = unkeyed(100);
    let inner = NeverReady::default();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(TimeoutLayer::new(ms(100)))
        .layer(OrderLayer::by_key())
        .buffer(10)
        .layer(AttemptLayer::new())
        .service(inner.clone());
    let running = Running::hold(source(&broker), stack);
    sleep_ms(101).await;
    assert_eq!(running.member.books().in_flight().0, 0);
    let summary = running.stop().await.unwrap();
    assert_eq!(summary.counts.not_finished(Reason::Failed), 100);
    assert_eq!(committed(&broker, 0), None);
    // the worker of tower's buffer ends when the service inside wakes it once more: it does not watch its queue meanwhile
    assert_eq!((inner.instances(), tasks()), (2, before + 1));
    inner.wake();
    sleep_ms(1).await;
    assert_eq!((inner.instances(), tasks()), (1, before));
}

#[tokio::test(start_paused = true)]
async fn an_error_of_readiness_is_kept_apart_from_a_failed_message() {
    let broker = unkeyed(3);
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(AttemptLayer::new())
        .service(Strict::new().fails_every(2));
    let error = serve(source_until_end(&broker), stack).await.unwrap_err();
    let ServeErrorKind::NotFinished { offset, reason, .. } = error.kind else {
        panic!("{error}");
    };
    assert_eq!((offset, reason), (1, Reason::Failed));
}
