//! The verdict table: what a message's books say after each way in which a stack can end.

mod support_layers;

use std::collections::HashMap;
use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use futures_util::FutureExt;
use support_layers::doubles::{NeverReady, Race, Tries};
use support_layers::{
    DONE, Log, SKIPPED, committed, hand, logged, ms, not_finished, only_verdict, refused, sleep_ms,
    source, unkeyed,
};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_consumer::commit::{CommitError, CommitLayer};
use tower_consumer::handler::{AttemptLayer, handler_fn};
use tower_consumer::ledger::{Kind, Phase, Reason};
use tower_consumer::order::OrderLayer;
use tower_consumer::source::Source;
use tower_consumer::{BoxError, Message, Outcome};

#[tokio::test(start_paused = true)]
async fn ok_from_a_handler_is_finished() {
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(|_: Message| async { Ok::<(), BoxError>(()) }));
    let handed = hand(stack).await;
    assert_eq!(handed.answer.unwrap().kind(), Kind::Done);
    assert_eq!((handed.verdict, handed.committed), (DONE, Some(1)));
}

#[tokio::test(start_paused = true)]
async fn the_outcome_done_from_a_handler_is_finished() {
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(|_: Message| async {
            Ok::<_, BoxError>(Outcome::Done)
        }));
    let handed = hand(stack).await;
    assert_eq!((handed.verdict, handed.committed), (DONE, Some(1)));
}

#[tokio::test(start_paused = true)]
async fn a_skip_is_finished_without_any_attempt_and_says_why() {
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(service_fn(|_: Message| async {
            Ok::<_, BoxError>(Outcome::skipped("a test order"))
        }));
    let handed = hand(stack).await;
    let settled = handed.answer.unwrap();
    assert_eq!(settled.kind(), Kind::Skipped);
    assert_eq!(settled.why(), Some("a test order"));
    assert_eq!((handed.verdict, handed.committed), (SKIPPED, Some(1)));
}

#[tokio::test(start_paused = true)]
async fn an_error_is_not_finished_and_passes_through_unchanged() {
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(|_: Message| async {
            Err::<(), _>(std::io::Error::other("disk full"))
        }));
    let handed = hand(stack).await;
    assert!(handed.answer.as_ref().unwrap_err().is::<std::io::Error>());
    assert_eq!(handed.verdict, not_finished(Reason::Failed));
    assert_eq!(handed.committed, None);
}

#[tokio::test(start_paused = true)]
async fn success_of_a_plain_service_without_attempt_layer_is_not_finished_and_the_error_says_what_to_do()
 {
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(service_fn(|_: Message| async { Ok::<(), BoxError>(()) }));
    let handed = hand(stack).await;
    assert_eq!(
        handed.error(),
        "message 0 of orders/0: the stack answered success, but no attempt of this delivery ended \
         Ok, so it does not count as finished: wrap the innermost service in AttemptLayer \
         (handler_fn does that by itself), or answer Outcome::skipped(why) to pass the message \
         over on purpose"
    );
    assert_eq!(handed.verdict, not_finished(Reason::OkWithoutAttempt));
    assert_eq!(handed.committed, None);
}

#[tokio::test(start_paused = true)]
async fn success_of_a_plain_service_under_attempt_layer_is_finished() {
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(AttemptLayer::new())
        .service(service_fn(|_: Message| async { Ok::<(), BoxError>(()) }));
    let handed = hand(stack).await;
    assert_eq!((handed.verdict, handed.committed), (DONE, Some(1)));
}

#[tokio::test(start_paused = true)]
async fn an_error_mapped_into_ok_is_not_finished() {
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .map_result(|_: Result<(), BoxError>| Ok::<(), BoxError>(()))
        .service(handler_fn(|_: Message| async { Err::<(), _>(refused()) }));
    let handed = hand(stack).await;
    assert_eq!(handed.verdict, not_finished(Reason::OkWithoutAttempt));
    assert_eq!(handed.committed, None);
}

#[tokio::test(start_paused = true)]
async fn an_error_recovered_into_the_outcome_done_is_not_finished() {
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .then(|_: Result<(), BoxError>| async { Ok::<_, BoxError>(Outcome::Done) })
        .service(handler_fn(|_: Message| async { Err::<(), _>(refused()) }));
    let handed = hand(stack).await;
    assert_eq!(handed.verdict, not_finished(Reason::OkWithoutAttempt));
    assert_eq!(handed.committed, None);
}

#[tokio::test(start_paused = true)]
async fn a_response_that_hides_an_error_mapped_into_ok_is_not_finished() {
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .map_response(|_: Result<(), &str>| ())
        .service(service_fn(|_: Message| async {
            Ok::<_, BoxError>(Err::<(), _>("refused"))
        }));
    let handed = hand(stack).await;
    assert_eq!(handed.verdict, not_finished(Reason::OkWithoutAttempt));
    assert_eq!(handed.committed, None);
}

#[tokio::test(start_paused = true)]
async fn an_error_mapped_into_ok_is_not_finished_though_an_attempt_layer_stands_outside_of_the_mapping()
 {
    let around_a_handler = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(AttemptLayer::new())
        .map_result(|_: Result<(), BoxError>| Ok::<(), BoxError>(()))
        .service(handler_fn(|_: Message| async { Err::<(), _>(refused()) }));
    let around_another = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(AttemptLayer::new())
        .map_result(|_: Result<(), BoxError>| Ok::<(), BoxError>(()))
        .layer(AttemptLayer::new())
        .service(service_fn(|_: Message| async { Err::<(), _>(refused()) }));
    for handed in [hand(around_a_handler).await, hand(around_another).await] {
        assert_eq!(handed.verdict, not_finished(Reason::OkWithoutAttempt));
        assert_eq!(handed.committed, None);
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_layer_around_a_handler_is_needless_and_does_no_harm() {
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .retry(Tries(1))
        .layer(AttemptLayer::new())
        .service(handler_fn(|message: Message| async move {
            // two are noted for each
            match message.delivery().unwrap().attempt() {
                2 => Err(refused()),
                _ => Ok(()),
            }
        }));
    let handed = hand(stack).await;
    assert_eq!((handed.verdict, handed.committed), (DONE, Some(1)));
}

#[tokio::test(start_paused = true)]
async fn an_error_recovered_into_a_skip_is_finished_because_a_policy_is_named() {
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .map_result(|answer: Result<(), BoxError>| {
            answer
                .map(|()| Outcome::Done)
                .or_else(|error| Ok::<_, BoxError>(Outcome::skipped(format!("poison: {error}"))))
        })
        .service(handler_fn(|_: Message| async { Err::<(), _>(refused()) }));
    let handed = hand(stack).await;
    assert_eq!(handed.answer.unwrap().why(), Some("poison: refused"));
    assert_eq!((handed.verdict, handed.committed), (SKIPPED, Some(1)));
}

#[tokio::test(start_paused = true)]
async fn a_timeout_of_tower_inside_is_not_finished() {
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .timeout(ms(100))
        .service(handler_fn(logged(&log, |_| pending())));
    let handed = hand(stack).await;
    assert_eq!(handed.verdict, not_finished(Reason::Failed));
    assert_eq!(handed.committed, None);
    assert_eq!(log.timed(), ["0 start 0", "100 drop 0"]);
}

#[tokio::test(start_paused = true)]
async fn a_retry_of_tower_inside_counts_the_attempt_that_ended_ok() {
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .retry(Tries(5))
        .service(handler_fn(logged(&log, |message| async move {
            match message.delivery().unwrap().attempt() {
                3 => Ok(()),
                _ => Err(refused()),
            }
        })));
    let handed = hand(stack).await;
    assert_eq!((handed.verdict, handed.committed), (DONE, Some(1)));
    assert_eq!(log.count("start"), 3);
}

#[tokio::test(start_paused = true)]
async fn a_retry_of_tower_that_gives_up_is_not_finished() {
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .retry(Tries(5))
        .service(handler_fn(logged(&log, |_| async { Err(refused()) })));
    let handed = hand(stack).await;
    assert_eq!(handed.error(), "refused");
    assert_eq!(handed.verdict, not_finished(Reason::Failed));
    assert_eq!(log.count("start"), 6);
}

#[tokio::test(start_paused = true)]
async fn a_message_shed_inside_is_not_finished() {
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .load_shed()
        .service(NeverReady::default());
    let handed = hand(stack).await;
    let error = handed.answer.unwrap_err();
    assert!(error.is::<tower::load_shed::error::Overloaded>());
    assert_eq!(handed.verdict, not_finished(Reason::Failed));
    assert_eq!(handed.committed, None);
}

#[tokio::test(start_paused = true)]
async fn a_message_refused_by_a_filter_inside_is_not_finished_and_not_handled() {
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .filter(|_: Message| Err::<Message, _>(refused()))
        .service(handler_fn(logged(&log, |_| async { Ok(()) })));
    let handed = hand(stack).await;
    assert_eq!(handed.error(), "refused");
    assert_eq!(handed.verdict, not_finished(Reason::Failed));
    assert_eq!(log.entries(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_future_is_not_finished_and_its_work_is_gone_before_the_verdict() {
    let broker = unkeyed(1);
    let mut source = source(&broker);
    let log = Log::new();
    let seen = log.clone();
    let mut stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(move |message: Message| {
            let log = seen.clone();
            async move {
                // says in which phase the message is when the work is dropped
                let _dropped = scopeguard(move || {
                    log.add(format!("dropped {:?}", message.delivery().unwrap().phase()));
                });
                pending::<Result<(), BoxError>>().await
            }
        }));
    let message = source.next().await.unwrap().unwrap();
    let call = stack.ready().await.unwrap().call(message);
    assert!(tokio::time::timeout(ms(10), call).await.is_err());
    assert_eq!(log.timed(), ["10 dropped Running"]);
    let verdict = only_verdict(&source.books().counts());
    assert_eq!(verdict, not_finished(Reason::Dropped));
    source.close(ms(1_000)).await.unwrap();
    assert_eq!(committed(&broker, 0), None);
}

fn scopeguard<F: FnOnce()>(f: F) -> impl Drop {
    struct Guard<F: FnOnce()>(Option<F>);
    impl<F: FnOnce()> Drop for Guard<F> {
        fn drop(&mut self) {
            if let Some(f) = self.0.take() {
                f();
            }
        }
    }
    Guard(Some(f))
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_future_is_not_finished() {
    let broker = unkeyed(1);
    let mut source = source(&broker);
    let mut stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(|_: Message| async {
            sleep_ms(1).await;
            panic!("no such customer");
            #[allow(unreachable_code, reason = "for the type")]
            Ok::<(), BoxError>(())
        }));
    let message = source.next().await.unwrap().unwrap();
    let call = stack.ready().await.unwrap().call(message);
    assert!(AssertUnwindSafe(call).catch_unwind().await.is_err());
    let verdict = only_verdict(&source.books().counts());
    assert_eq!(verdict, not_finished(Reason::Panicked));
    assert_eq!(source.books().head("orders", 0).unwrap().attempts, 1);
}

/// Panics when it is called, as a service does that breaks the readiness contract.
#[derive(Clone)]
struct PanicsInCall;

impl Service<Message> for PanicsInCall {
    type Response = ();
    type Error = BoxError;
    type Future = std::future::Ready<Result<(), BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Message) -> Self::Future {
        panic!("poll_ready must be called first")
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_call_is_not_finished() {
    let broker = unkeyed(1);
    let mut source = source(&broker);
    let mut stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(PanicsInCall);
    let message = source.next().await.unwrap().unwrap();
    let stack = stack.ready().await.unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| drop(stack.call(message))));
    assert!(panicked.is_err());
    let verdict = only_verdict(&source.books().counts());
    assert_eq!(verdict, not_finished(Reason::Panicked));
}

#[tokio::test(start_paused = true)]
async fn a_retry_outside_is_told_already_settled_and_the_service_inside_is_not_called_again() {
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .retry(Tries(1))
        .layer(CommitLayer::new())
        .service(handler_fn(logged(&log, |_| async { Err(refused()) })));
    let handed = hand(stack).await;
    let error = handed.answer.unwrap_err();
    assert_eq!(
        error.to_string(),
        "message 0 of orders/0 was given to CommitLayer before: place the layer that calls twice \
         (a retry?) inside of it"
    );
    assert!(matches!(
        error.downcast_ref(),
        Some(CommitError::AlreadySettled { offset: 0, .. })
    ));
    assert_eq!(handed.verdict, not_finished(Reason::Failed));
    assert_eq!(log.entries(), ["start 0", "err 0"]);
}

#[tokio::test(start_paused = true)]
async fn two_racing_attempts_are_judged_by_the_one_that_ended_ok() {
    // the first attempt ends after 10 ms, the second after 20 ms
    for fails in [1, 2] {
        let stack = ServiceBuilder::new()
            .layer(CommitLayer::new())
            .layer_fn(Race)
            .service(handler_fn(move |message: Message| async move {
                let attempt = message.delivery().unwrap().attempt();
                sleep_ms(u64::from(attempt) * 10).await;
                match attempt == fails {
                    true => Err(refused()),
                    false => Ok(()),
                }
            }));
        let handed = hand(stack).await;
        assert_eq!((handed.verdict, handed.committed), (DONE, Some(1)));
    }
}

#[tokio::test(start_paused = true)]
async fn two_racing_attempts_that_both_fail_are_not_finished() {
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer_fn(Race)
        .service(handler_fn(|_: Message| async { Err::<(), _>(refused()) }));
    let handed = hand(stack).await;
    assert_eq!(handed.verdict, not_finished(Reason::Failed));
}

#[tokio::test(start_paused = true)]
async fn a_clone_that_is_kept_in_a_map_does_not_hold_the_watermark() {
    let kept = Arc::new(Mutex::new(HashMap::new()));
    let map = kept.clone();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(move |message: Message| {
            map.lock().unwrap().insert(message.offset(), message);
            async { Ok::<(), BoxError>(()) }
        }));
    let handed = hand(stack).await;
    assert_eq!((handed.verdict, handed.committed), (DONE, Some(1)));
    let kept = kept.lock().unwrap();
    let delivery = kept[&0].delivery().unwrap();
    assert_eq!(
        (delivery.phase(), delivery.may_start()),
        (Phase::Settled, false)
    );
}

#[tokio::test(start_paused = true)]
async fn a_message_that_commit_layer_never_took_is_settled_when_its_last_clone_goes() {
    let broker = unkeyed(2);
    let mut source = source(&broker);
    let message = source.next().await.unwrap().unwrap();
    let clone = message.clone();
    drop(message);
    assert_eq!(source.books().in_flight().0, 1);
    drop(clone);
    assert_eq!(source.books().in_flight().0, 0);
    let verdict = only_verdict(&source.books().counts());
    assert_eq!(verdict, not_finished(Reason::Dropped));
    assert_eq!(source.books().watermark("orders", 0), Some(0));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_was_built_by_hand_passes_freely_again_and_again() {
    let mut stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .service(service_fn(|_: Message| async { Ok::<(), BoxError>(()) }));
    let message = Message::builder("orders").key("a").build();
    for _ in 0..2 {
        let answer = stack.ready().await.unwrap().call(message.clone()).await;
        assert_eq!(answer.unwrap().kind(), Kind::Done);
    }
}
