//! The lanes of OrderLayer: when they close, when they are given on, and what does not hold them.

mod support_layers;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use support_layers::doubles::Tries;
use support_layers::{
    Log, Running, committed, keyed, logged, ms, produce, refused, sleep_ms, source, tp,
};
use tokio::task::JoinHandle;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_consumer::commit::{CommitLayer, Settled};
use tower_consumer::handler::handler_fn;
use tower_consumer::ledger::Reason;
use tower_consumer::order::{OrderError, OrderLayer};
use tower_consumer::serve::{OnFailure, ServeErrorKind};
use tower_consumer::source::Source;
use tower_consumer::source::memory::MemorySource;
use tower_consumer::{BoxError, Message};

type Call = JoinHandle<Result<Settled, BoxError>>;

/// Calls the stack with the next `count` messages, each on a task of its own, in delivery order.
async fn call_next<S>(source: &mut MemorySource, stack: &mut S, count: usize) -> Vec<Call>
where
    S: Service<Message, Response = Settled, Error = BoxError>,
    S::Future: Send + 'static,
{
    let mut calls = Vec::new();
    for _ in 0..count {
        let message = source.next().await.unwrap().unwrap();
        calls.push(tokio::spawn(stack.ready().await.unwrap().call(message)));
    }
    calls
}

async fn lane_closed(call: Call) -> bool {
    let error = call.await.unwrap().unwrap_err();
    matches!(error.downcast_ref(), Some(OrderError::LaneClosed { .. }))
}

#[tokio::test(start_paused = true)]
async fn a_message_that_failed_closes_its_lane_and_no_other() {
    let broker = keyed(&["a", "a", "b", "a", ""]);
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .service(handler_fn(logged(&log, |message| async move {
            sleep_ms(10).await;
            match message.offset() {
                0 => Err(refused()),
                _ => Ok(()),
            }
        })));
    let running = Running::hold(source(&broker), stack);
    sleep_ms(20).await;
    produce(&broker, 0, "a");
    produce(&broker, 0, "b");
    sleep_ms(20).await;
    let counts = running.stop().await.unwrap().counts;
    assert_eq!(
        log.timed(),
        [
            "0 start 0",
            "0 start 2",
            "0 start 4",
            "10 err 0",
            "10 ok 2",
            "10 ok 4",
            "20 start 6",
            "30 ok 6"
        ]
    );
    assert_eq!(counts.not_finished(Reason::Failed), 1);
    assert_eq!(counts.not_finished(Reason::KeyClosed), 3);
    assert_eq!(committed(&broker, 0), None);
}

#[tokio::test(start_paused = true)]
async fn the_error_of_a_closed_lane_says_that_the_message_comes_again() {
    let broker = keyed(&["a", "a"]);
    let mut source = source(&broker);
    let mut stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .service(handler_fn(|_: Message| async { Err::<(), _>(refused()) }));
    let calls = call_next(&mut source, &mut stack, 2).await;
    let mut answers = Vec::new();
    for call in calls {
        answers.push(call.await.unwrap().unwrap_err().to_string());
    }
    assert_eq!(
        answers,
        [
            "refused",
            "message 1 of orders/0 was not handled, because message 0 of the same lane did not finish \
             (if a retry is to help it, place the retry inside of OrderLayer); it will be delivered again"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_lane_closes_only_in_the_assignment_in_which_its_message_failed() {
    let broker = keyed(&["a", "a"]);
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .service(handler_fn(logged(&log, {
            let log = log.clone();
            move |_| {
                let first = log.count("start") == 1;
                async move { if first { Err(refused()) } else { Ok(()) } }
            }
        })));
    let running = Running::hold(source(&broker), stack);
    sleep_ms(10).await;
    assert_eq!(log.entries(), ["start 0", "err 0"]);
    running.member.revoke([tp(0)], ms(1_000)).await;
    running.member.assign([tp(0)]).await;
    sleep_ms(10).await;
    assert_eq!(log.entries()[2..], ["start 0", "ok 0", "start 1", "ok 1"]);
    running.stop().await.unwrap();
    assert_eq!(committed(&broker, 0), Some(2));
}

#[tokio::test(start_paused = true)]
async fn success_without_a_successful_attempt_closes_the_lane() {
    let broker = keyed(&["a", "a"]);
    let mut source = source(&broker);
    let log = Log::new();
    let mut stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .map_result(|_: Result<(), BoxError>| Ok::<(), BoxError>(()))
        .service(handler_fn(logged(&log, |_| async { Err(refused()) })));
    let mut calls = call_next(&mut source, &mut stack, 2).await;
    assert!(lane_closed(calls.remove(1)).await);
    assert_eq!(log.entries(), ["start 0", "err 0"]);
}

#[tokio::test(start_paused = true)]
async fn a_running_message_that_is_dropped_closes_its_lane_for_later_ones() {
    let broker = keyed(&["a", "a", "a"]);
    let mut source = source(&broker);
    let log = Log::new();
    let mut stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .service(handler_fn(logged(&log, |_| std::future::pending())));
    let mut calls = call_next(&mut source, &mut stack, 2).await;
    sleep_ms(10).await;
    calls[0].abort();
    assert!(lane_closed(calls.remove(1)).await);
    let mut later = call_next(&mut source, &mut stack, 1).await;
    assert!(lane_closed(later.remove(0)).await);
    assert_eq!(log.timed(), ["0 start 0", "10 drop 0"]);
}

#[tokio::test(start_paused = true)]
async fn earlier_messages_of_a_lane_still_run_when_a_later_one_was_dropped() {
    let broker = keyed(&["a", "a", "a", "a"]);
    let mut source = source(&broker);
    let log = Log::new();
    let mut stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .service(handler_fn(logged(&log, |_| async {
            sleep_ms(10).await;
            Ok(())
        })));
    let mut calls = call_next(&mut source, &mut stack, 4).await;
    sleep_ms(5).await;
    calls[2].abort();
    assert!(lane_closed(calls.remove(3)).await);
    assert_eq!(
        log.timed(),
        ["0 start 0", "10 ok 0", "10 start 1", "20 ok 1"]
    );
    assert_eq!(source.books().watermark("orders", 0), Some(2));
}

#[tokio::test(start_paused = true)]
async fn waiters_that_are_dropped_do_not_block_the_lane() {
    let by_hand = || Message::builder("orders").key("a").build();
    let order = OrderLayer::by_key().layer(handler_fn(|_: Message| async {
        sleep_ms(10).await;
        Ok::<(), BoxError>(())
    }));
    let mut calls: Vec<_> = (0..100)
        .map(|_| tokio::spawn(order.clone().oneshot(by_hand())))
        .collect();
    sleep_ms(1).await;
    let last = calls.pop().unwrap();
    calls[1..].iter().for_each(JoinHandle::abort);
    last.await.unwrap().unwrap();
    assert_eq!(order.lanes(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_was_given_the_lane_and_is_dropped_gives_it_on() {
    let by_hand = || Message::builder("orders").key("a").build();
    let mut order =
        OrderLayer::by_key().layer(handler_fn(|_: Message| async { Ok::<(), BoxError>(()) }));
    let mut call = || tokio_test::task::spawn(order.call(by_hand()));
    let (first, mut second, mut third) = (call(), call(), call());
    assert!(second.poll().is_pending() && third.poll().is_pending());
    drop(first);
    assert!(second.is_woken());
    // never polled again
    drop(second);
    assert!(third.is_woken());
    assert!(third.poll().is_ready());
    assert_eq!(order.lanes(), 0);
}

struct Wakes(Log);

impl futures_util::task::ArcWake for Wakes {
    fn wake_by_ref(wakes: &Arc<Self>) {
        wakes.0.add("next");
    }
}

#[tokio::test(start_paused = true)]
async fn the_work_of_a_dropped_message_is_gone_before_the_lane_is_given_on() {
    let by_hand = || Message::builder("orders").key("a").build();
    let log = Log::new();
    let mut order =
        OrderLayer::by_key().layer(handler_fn(logged(&log, |_| std::future::pending())));
    let mut first = tokio_test::task::spawn(order.call(by_hand()));
    assert!(first.poll().is_pending());
    let second = std::pin::pin!(order.call(by_hand()));
    let waker = futures_util::task::waker(Arc::new(Wakes(log.clone())));
    assert!(second.poll(&mut Context::from_waker(&waker)).is_pending());
    drop(first);
    assert_eq!(log.entries(), ["start 0", "drop 0", "next"]);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_message_wakes_the_next_of_its_lane_and_nobody_else() {
    let by_hand = || Message::builder("orders").key("a").build();
    let mut order =
        OrderLayer::by_key().layer(handler_fn(|_: Message| async { Ok::<(), BoxError>(()) }));
    let mut calls: Vec<_> = (0..10)
        .map(|_| tokio_test::task::spawn(order.call(by_hand())))
        .collect();
    for call in &mut calls[1..] {
        assert!(call.poll().is_pending());
    }
    assert!(calls[0].poll().is_ready());
    let woken: Vec<_> = calls[1..].iter().map(|call| call.is_woken()).collect();
    assert_eq!(woken.iter().filter(|woken| **woken).count(), 1);
    assert!(woken[0]);
}

#[tokio::test(start_paused = true)]
async fn messages_built_by_hand_never_close_a_lane_and_may_come_in_any_order() {
    let log = Log::new();
    let mut order = ServiceBuilder::new()
        .layer(OrderLayer::by_key())
        .service(handler_fn(logged(&log, |message| async move {
            match message.offset() {
                7 => Err(refused()),
                _ => Ok(()),
            }
        })));
    for offset in [7, 8, 3] {
        let message = Message::builder("orders").key("a").offset(offset).build();
        let _ = order.ready().await.unwrap().call(message).await;
    }
    assert_eq!(
        log.entries(),
        ["start 7", "err 7", "start 8", "ok 8", "start 3", "ok 3"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_panic_inside_gives_the_lane_on() {
    let order = OrderLayer::by_key().layer(handler_fn(|message: Message| async move {
        sleep_ms(10).await;
        assert!(message.offset() != 0, "no such customer");
        Ok::<(), BoxError>(())
    }));
    let by_hand = |offset| Message::builder("orders").key("a").offset(offset).build();
    let mut calls: Vec<_> = (0..2)
        .map(|offset| tokio::spawn(order.clone().oneshot(by_hand(offset))))
        .collect();
    calls.remove(1).await.unwrap().unwrap();
    assert!(calls.remove(0).await.unwrap_err().is_panic());
    assert_eq!(order.lanes(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_a_delivered_message_closes_its_lane_and_leaves_none_behind() {
    let broker = keyed(&["a", "a", "b"]);
    let log = Log::new();
    let order = OrderLayer::by_key().layer(handler_fn(logged(&log, |message| async move {
        sleep_ms(10).await;
        assert!(message.offset() != 0, "no such customer");
        Ok(())
    })));
    let running = Running::hold(source(&broker), CommitLayer::new().layer(order.clone()));
    sleep_ms(50).await;
    assert_eq!(order.lanes(), 0);
    let counts = running.stop().await.unwrap().counts;
    assert_eq!(counts.not_finished(Reason::Panicked), 1);
    assert_eq!(counts.not_finished(Reason::KeyClosed), 1);
    assert_eq!(log.entries(), ["start 0", "start 2", "drop 0", "ok 2"]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_lane_function_is_one_in_call_and_ends_serve() {
    let broker = keyed(&["a", "b"]);
    let order = OrderLayer::by(|message| {
        assert!(message.offset() != 1, "no such tenant");
        Some(())
    })
    .layer(handler_fn(|_: Message| async {
        sleep_ms(10).await;
        Ok::<(), BoxError>(())
    }));
    let stack = CommitLayer::new().layer(order.clone());
    let running = Running::new(source(&broker), stack, OnFailure::Hold);
    let error = running.end().await.unwrap_err();
    let ServeErrorKind::CallPanicked { offset, text, .. } = &error.kind else {
        panic!("{error}");
    };
    assert_eq!((*offset, &**text), (1, "no such tenant"));
    assert_eq!(order.lanes(), 0);
    // the one that ran was waited for
    assert_eq!(committed(&broker, 0), Some(1));
}

/// Calls the service inside only after a while: 10 ms for offset 0, 1 ms for the others. As a buffer might.
#[derive(Clone)]
struct Defers<S>(S);

impl<S> Service<Message> for Defers<S>
where
    S: Service<Message, Response = (), Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = ();
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, message: Message) -> Self::Future {
        let inner = self.0.clone();
        Box::pin(async move {
            sleep_ms(if message.offset() == 0 { 10 } else { 1 }).await;
            inner.oneshot(message).await
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_layer_outside_that_defers_calls_is_told_to_move_inside() {
    let broker = keyed(&["a", "b"]);
    let mut source = source(&broker);
    let log = Log::new();
    let mut stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer_fn(Defers)
        .layer(OrderLayer::by_key())
        .service(handler_fn(logged(&log, |_| async { Ok(()) })));
    let mut calls = call_next(&mut source, &mut stack, 2).await;
    let error = calls.remove(0).await.unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        "message 0 of orders/0 came to OrderLayer after message 1: a layer outside of it (a \
         retry, a buffer) defers calls; move it inside of OrderLayer"
    );
    assert_eq!(log.entries(), ["start 1", "ok 1"]);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_came_out_of_order_closes_its_lane() {
    let broker = keyed(&["a", "b", "a"]);
    let mut source = source(&broker);
    let log = Log::new();
    let mut stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer_fn(Defers)
        .layer(OrderLayer::by_key())
        .service(handler_fn(logged(&log, |_| async { Ok(()) })));
    call_next(&mut source, &mut stack, 2).await;
    sleep_ms(20).await;
    let mut later = call_next(&mut source, &mut stack, 1).await;
    assert!(lane_closed(later.remove(0)).await);
    assert_eq!(log.entries(), ["start 1", "ok 1"]);
}

#[tokio::test(start_paused = true)]
async fn a_retry_outside_comes_out_of_order_once_a_later_message_was_called() {
    let broker = keyed(&["a", "b"]);
    let mut source = source(&broker);
    let mut stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .retry(Tries(1))
        .layer(OrderLayer::by_key())
        .service(handler_fn(|_: Message| async {
            sleep_ms(10).await;
            Err::<(), _>(refused())
        }));
    let mut calls = call_next(&mut source, &mut stack, 2).await;
    let error = calls.remove(0).await.unwrap().unwrap_err();
    assert!(matches!(
        error.downcast_ref(),
        Some(OrderError::OutOfOrder {
            offset: 0,
            highest: 1,
            ..
        })
    ));
}
