//! `handler_fn`, `AttemptLayer` and guards: when a handler is called, and what an attempt leaves in the books.

mod support_layers;

use std::task::{Context, Poll};

use support_layers::doubles::Tries;
use support_layers::{
    Answer, DONE, Log, Running, SKIPPED, committed, hand, logged, ms, not_finished, refused,
    sleep_ms, source, unkeyed,
};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::{AttemptLayer, handler_fn};
use tower_consumer::ledger::{Phase, Reason};
use tower_consumer::retry::Backoff;
use tower_consumer::source::Source;
use tower_consumer::timeout::TimeoutLayer;
use tower_consumer::{BoxError, Message, Outcome};

fn by_hand() -> Message {
    Message::builder("orders").build()
}

/// Phase and attempts of the message at the head of partition 0.
fn head(running: &Running) -> (Phase, u32) {
    let head = running.member.books().head("orders", 0).unwrap();
    (head.phase, head.attempts)
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_called_at_the_first_poll_and_not_before() {
    let log = Log::new();
    let mut service = handler_fn(logged(&log, |_| async { Ok(()) }));
    let call = service.ready().await.unwrap().call(by_hand());
    assert_eq!(log.entries(), [""; 0]);
    call.await.unwrap();
    assert_eq!(log.entries(), ["start 0", "ok 0"]);
}

#[tokio::test(start_paused = true)]
async fn a_service_under_attempt_layer_is_called_at_the_first_poll_and_not_before() {
    let log = Log::new();
    let mut service = ServiceBuilder::new()
        .layer(AttemptLayer::new())
        .service(service_fn(logged(&log, |_| async { Ok(()) })));
    let call = service.ready().await.unwrap().call(by_hand());
    assert_eq!(log.entries(), [""; 0]);
    call.await.unwrap();
    assert_eq!(log.entries(), ["start 0", "ok 0"]);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_answers_errors_of_its_own_type_answers_boxed_ones_under_attempt_layer() {
    let service = ServiceBuilder::new()
        .layer(AttemptLayer::new())
        .service(service_fn(|_: Message| async {
            Err::<(), _>(std::io::Error::other("disk full"))
        }));
    let error: BoxError = service.oneshot(by_hand()).await.unwrap_err();
    assert!(error.is::<std::io::Error>());
}

#[tokio::test(start_paused = true)]
async fn each_attempt_sees_its_number() {
    let log = Log::new();
    let seen = log.clone();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .retry(Tries(2))
        .service(handler_fn(move |message: Message| {
            seen.add(format!("{:?}", message.delivery().unwrap().attempt()));
            async { Err::<(), _>(refused()) }
        }));
    let handed = hand(stack).await;
    assert_eq!(handed.verdict, not_finished(Reason::Failed));
    assert_eq!(log.entries(), ["1", "2", "3"]);
}

#[tokio::test(start_paused = true)]
async fn a_handler_may_skip_a_message() {
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(|_: Message| async {
            Ok::<_, BoxError>(Outcome::skipped("a test order"))
        }));
    let handed = hand(stack).await;
    assert_eq!((handed.verdict, handed.committed), (SKIPPED, Some(1)));
}

#[tokio::test(start_paused = true)]
async fn what_a_layer_attaches_to_the_message_reaches_the_handler_at_every_attempt() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Tenant(u32);
    let log = Log::new();
    let seen = log.clone();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .map_request(|mut message: Message| {
            message.extensions_mut().insert(Tenant(7));
            message
        })
        .retry(Tries(1))
        .service(handler_fn(move |mut message: Message| {
            seen.add(format!("{:?}", message.extensions_mut().remove::<Tenant>()));
            async { Err::<(), _>(refused()) }
        }));
    hand(stack).await;
    assert_eq!(log.entries(), ["Some(Tenant(7))", "Some(Tenant(7))"]);
}

/// Panics when it is called.
#[derive(Clone)]
struct PanicsInCall;

impl Service<Message> for PanicsInCall {
    type Response = ();
    type Error = BoxError;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Message) -> Answer {
        panic!("no connection")
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_call_of_a_service_under_attempt_layer_ends_the_attempt() {
    let broker = unkeyed(1);
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(AttemptLayer::new())
        .service(PanicsInCall);
    let running = Running::hold(source(&broker), stack);
    sleep_ms(1).await;
    let summary = running.stop().await.unwrap();
    assert_eq!(summary.counts.not_finished(Reason::Panicked), 1);
    // nothing runs: the partition was released at once
    assert_eq!(summary.partitions[0].cut, 0);
}

#[tokio::test(start_paused = true)]
async fn the_books_show_where_a_message_is() {
    let broker = unkeyed(1);
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .then(|answer: Result<(), BoxError>| async move {
            sleep_ms(10).await;
            answer
        })
        .retry(Backoff::fixed(ms(10)).max_attempts(2))
        .concurrency_limit(1)
        .layer(TimeoutLayer::new(ms(10)))
        .service(handler_fn(|message: Message| async move {
            if message.delivery().unwrap().attempt() == 1 {
                sleep_ms(1_000).await;
            }
            sleep_ms(5).await;
            Ok::<(), BoxError>(())
        }));
    let running = Running::hold(source(&broker), stack);
    sleep_ms(5).await;
    assert_eq!(head(&running), (Phase::Running, 1));
    sleep_ms(10).await;
    assert_eq!(head(&running), (Phase::BackingOff, 1));
    sleep_ms(7).await;
    assert_eq!(head(&running), (Phase::Running, 2));
    sleep_ms(10).await;
    assert_eq!(head(&running), (Phase::Finishing, 2));
    sleep_ms(10).await;
    assert_eq!(running.member.books().head("orders", 0), None);
    running.stop().await.unwrap();
    assert_eq!(committed(&broker, 0), Some(1));
}

/// Fails its first attempt at once and leaves work behind that takes 50 ms.
fn leaves_work_behind(log: &Log) -> impl Fn(Message) -> Answer + Clone + Send + Sync + use<> {
    let log = log.clone();
    logged(&log.clone(), move |message| {
        let log = log.clone();
        async move {
            if message.delivery().is_none_or(|d| d.attempt() > 1) && log.count("start") > 1 {
                return Ok(());
            }
            let guard = message.guard();
            tokio::spawn(async move {
                sleep_ms(50).await;
                log.add("work over");
                drop(guard);
            });
            Err(refused())
        }
    })
}

const AFTER_THE_WORK: [&str; 5] = [
    "0 start 0",
    "0 err 0",
    "50 work over",
    "50 start 0",
    "50 ok 0",
];

#[tokio::test(start_paused = true)]
async fn the_next_attempt_waits_for_the_guard_of_the_one_before() {
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .retry(Backoff::fixed(ms(10)))
        .service(handler_fn(leaves_work_behind(&log)));
    let handed = hand(stack).await;
    assert_eq!((handed.verdict, handed.committed), (DONE, Some(1)));
    assert_eq!(log.timed(), AFTER_THE_WORK);
}

#[tokio::test(start_paused = true)]
async fn the_next_attempt_under_attempt_layer_waits_for_the_guard_of_the_one_before() {
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .retry(Backoff::fixed(ms(10)))
        .layer(AttemptLayer::new())
        .service(service_fn(leaves_work_behind(&log)));
    let handed = hand(stack).await;
    assert_eq!((handed.verdict, handed.committed), (DONE, Some(1)));
    assert_eq!(log.timed(), AFTER_THE_WORK);
}

#[tokio::test(start_paused = true)]
async fn a_message_built_by_hand_waits_for_its_guard_all_the_same() {
    let log = Log::new();
    let service = ServiceBuilder::new()
        .retry(Backoff::fixed(ms(10)))
        .service(handler_fn(leaves_work_behind(&log)));
    service.oneshot(by_hand()).await.unwrap();
    assert_eq!(log.timed(), AFTER_THE_WORK);
}

#[tokio::test(start_paused = true)]
async fn the_next_attempt_waits_for_the_last_clone_of_a_guard() {
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .retry(Backoff::fixed(ms(10)))
        .service(handler_fn(logged(&log, |message| async move {
            if message.delivery().unwrap().attempt() == 2 {
                return Ok(());
            }
            let guard = message.guard();
            for after in [20, 40, 60] {
                let guard = guard.clone();
                tokio::spawn(async move {
                    sleep_ms(after).await;
                    drop(guard);
                });
            }
            Err(refused())
        })));
    hand(stack).await;
    assert_eq!(
        log.timed(),
        ["0 start 0", "0 err 0", "60 start 0", "60 ok 0"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_guard_does_not_decide_whether_a_message_is_finished() {
    let broker = unkeyed(1);
    let mut source = source(&broker);
    let message = source.next().await.unwrap().unwrap();
    let guard = message.guard();
    let mut stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(service_fn(|_: Message| async {
            Ok::<_, BoxError>(Outcome::skipped("a test order"))
        }));
    stack.ready().await.unwrap().call(message).await.unwrap();
    assert_eq!(source.books().watermark("orders", 0), Some(1));
    drop(guard);
    source.close(ms(1_000)).await.unwrap();
    assert_eq!(committed(&broker, 0), Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_backs_off_is_shown_so_once_the_work_it_left_behind_is_over() {
    let broker = unkeyed(1);
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .retry(Backoff::fixed(ms(100)))
        .service(handler_fn(leaves_work_behind(&Log::new())));
    let running = Running::hold(source(&broker), stack);
    sleep_ms(40).await;
    assert_eq!(head(&running), (Phase::Running, 1));
    sleep_ms(20).await;
    assert_eq!(head(&running), (Phase::BackingOff, 1));
    sleep_ms(50).await;
    running.stop().await.unwrap();
    assert_eq!(committed(&broker, 0), Some(1));
}
