//! Backoff: when the next attempt begins, and when there is none.

mod support_layers;

use std::time::Duration;

use support_layers::doubles::Breaks;
use support_layers::{
    GROUP, Log, Running, TOPIC, committed, hand, keyed, logged, ms, not_finished, refused,
    sleep_ms, source, unkeyed,
};
use tokio::time::Instant;
use tower::{ServiceBuilder, ServiceExt};
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::handler_fn;
use tower_consumer::ledger::Reason;
use tower_consumer::order::OrderLayer;
use tower_consumer::retry::Backoff;
use tower_consumer::source::Source;
use tower_consumer::{BoxError, Message, serve};

/// When the attempts of a message begin that fails until the `ok`-th one, in milliseconds; 0 is never.
async fn attempts(backoff: Backoff, ok: u32) -> Vec<u64> {
    let log = Log::new();
    let seen = log.clone();
    let service = ServiceBuilder::new()
        .retry(backoff)
        .service(handler_fn(move |_: Message| {
            seen.add("start");
            let is_ok = seen.count("start") == ok as usize;
            async move { if is_ok { Ok(()) } else { Err(refused()) } }
        }));
    let answer = service.oneshot(Message::builder("orders").build()).await;
    assert_eq!(answer.is_ok(), ok > 0);
    let at = |line: String| line.trim_end_matches(" start").parse().unwrap();
    log.timed().into_iter().map(at).collect()
}

#[tokio::test(start_paused = true)]
async fn a_fixed_delay_is_the_same_before_each_retry() {
    let backoff = Backoff::fixed(ms(70));
    assert_eq!(attempts(backoff, 5).await, [0, 70, 140, 210, 280]);
}

/// C67.
#[tokio::test(start_paused = true)]
async fn a_delay_of_zero_retries_at_once() {
    let began = Instant::now();
    assert_eq!(attempts(Backoff::fixed(Duration::ZERO), 3).await, [0, 0, 0]);
    assert_eq!(began.elapsed(), Duration::ZERO);
}

/// C67: the timer rounds up to a millisecond.
#[tokio::test(start_paused = true)]
async fn a_delay_of_a_nanosecond_retries_within_a_millisecond() {
    let began = Instant::now();
    assert_eq!(
        attempts(Backoff::fixed(Duration::from_nanos(1)), 2)
            .await
            .len(),
        2
    );
    assert!(began.elapsed() <= ms(1));
}

/// C67: held, without a panic, and reported; the other messages go on.
#[tokio::test(start_paused = true)]
async fn the_longest_delay_holds_the_message_after_its_first_failure_and_the_stall_is_reported() {
    for backoff in [
        Backoff::fixed(Duration::MAX),
        Backoff::fixed(Duration::MAX).full_jitter(),
        Backoff::exponential(Duration::MAX).cap(Duration::MAX),
    ] {
        let broker = keyed(&["a", "b", "a"]);
        let log = Log::new();
        let stack = ServiceBuilder::new()
            .layer(CommitLayer::new())
            .layer(OrderLayer::by_key())
            .retry(backoff)
            .service(handler_fn(logged(&log, |message| async move {
                match message.offset() {
                    0 => Err(refused()),
                    _ => Ok(()),
                }
            })));
        let running = Running::hold(source(&broker), stack);
        tokio::time::sleep(Duration::from_secs(100)).await;
        let head = running.member.books().head(TOPIC, 0).unwrap();
        assert_eq!((head.offset, head.attempts), (0, 1));
        let summary = running.stop().await.unwrap();
        // after 60 s; the next report would come at 120 s
        assert_eq!(summary.stalls, 1);
        assert_eq!(log.entries(), ["start 0", "err 0", "start 1", "ok 1"]);
        // nothing ran, so the partition was fenced at once: their verdicts changed nothing any more
        assert_eq!((summary.counts.done, summary.counts.late), (1, 2));
        assert_eq!(committed(&broker, 0), None);
    }
}

#[tokio::test(start_paused = true)]
async fn an_exponential_delay_doubles_up_to_its_cap() {
    let backoff = Backoff::exponential(ms(100)).cap(ms(1_000));
    assert_eq!(
        attempts(backoff, 8).await,
        [0, 100, 300, 700, 1_500, 2_500, 3_500, 4_500]
    );
}

#[tokio::test(start_paused = true)]
async fn the_cap_is_thirty_seconds_unless_said_otherwise() {
    let backoff = Backoff::exponential(Duration::from_secs(10));
    assert_eq!(
        attempts(backoff, 5).await,
        [0, 10_000, 30_000, 60_000, 90_000]
    );
}

#[tokio::test(start_paused = true)]
async fn an_exponential_delay_doubles_on_from_a_very_short_one() {
    // 1 ns doubles 42 times until it is above an hour
    let backoff = Backoff::exponential(Duration::from_nanos(1)).cap(Duration::from_secs(3_600));
    let attempts = attempts(backoff, 50).await;
    let last: Vec<_> = attempts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(last[44..], [3_600_000; 5]);
}

#[tokio::test(start_paused = true)]
async fn a_delay_with_full_jitter_lies_between_zero_and_the_delay_without() {
    let mut delays = Vec::new();
    for _ in 0..20 {
        let backoff = Backoff::exponential(ms(100)).cap(ms(400)).full_jitter();
        let at = attempts(backoff, 6).await;
        let drawn: Vec<_> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
        for (drawn, most) in drawn.iter().zip([100, 200, 400, 400, 400]) {
            assert!(*drawn <= most, "{drawn} of {most}");
        }
        delays.extend(drawn);
    }
    // 60 of them are drawn from 0 to 400: not all of a kind
    assert!(delays.iter().any(|delay| *delay < 100));
    assert!(delays.iter().any(|delay| *delay > 300));
}

#[tokio::test(start_paused = true)]
async fn messages_that_failed_together_do_not_come_back_together() {
    let broker = unkeyed(100);
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .retry(Backoff::fixed(ms(1_000)).full_jitter())
        .service(handler_fn(logged(&log, |message| async move {
            match message.delivery().unwrap().attempt() {
                1 => Err(refused()),
                _ => Ok(()),
            }
        })));
    let running = Running::hold(source(&broker), stack);
    sleep_ms(500).await;
    let early = log.count("ok");
    sleep_ms(501).await;
    assert_eq!(log.count("ok"), 100);
    // about a half of them
    assert!((20..80).contains(&early), "{early}");
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn at_most_so_many_attempts_are_made_the_first_one_included() {
    let backoff = Backoff::fixed(ms(10));
    assert_eq!(attempts(backoff.clone().max_attempts(0), 0).await, [0]);
    assert_eq!(attempts(backoff.clone().max_attempts(1), 0).await, [0]);
    assert_eq!(attempts(backoff.max_attempts(3), 0).await, [0, 10, 20]);
}

#[tokio::test(start_paused = true)]
async fn no_attempt_begins_after_the_time_for_all_of_them() {
    let backoff = Backoff::fixed(ms(10)).max_elapsed(ms(30));
    assert_eq!(attempts(backoff, 0).await, [0, 10, 20, 30]);
    let backoff = Backoff::fixed(ms(10)).max_elapsed(ms(29));
    assert_eq!(attempts(backoff, 0).await, [0, 10, 20]);
    let backoff = Backoff::fixed(ms(10)).max_elapsed(Duration::ZERO);
    assert_eq!(attempts(backoff, 0).await, [0]);
    let backoff = Backoff::fixed(ms(10)).max_elapsed(Duration::MAX);
    assert_eq!(attempts(backoff, 4).await, [0, 10, 20, 30]);
}

#[tokio::test(start_paused = true)]
async fn the_time_and_the_attempts_of_a_message_are_its_own() {
    let broker = unkeyed(0);
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .retry(Backoff::fixed(ms(10)).max_attempts(2).max_elapsed(ms(15)))
        .service(handler_fn(logged(&log, |_| async { Err(refused()) })));
    let running = Running::hold(source(&broker), stack);
    for _ in 0..3 {
        support_layers::produce(&broker, 0, "");
        sleep_ms(100).await;
    }
    running.stop().await.unwrap();
    assert_eq!(log.count("start 0"), 2);
    assert_eq!(log.count("start 1"), 2);
    assert_eq!(log.count("start 2"), 2);
}

/// C69: an outage of 10 s, seen by 10 keys with 10 messages each.
#[tokio::test(start_paused = true)]
async fn an_outage_is_met_with_few_attempts_and_then_everything_is_done() {
    let broker = unkeyed(0);
    for n in 0..100 {
        support_layers::produce(&broker, 0, &format!("customer-{}", n % 10));
    }
    let log = Log::new();
    let began = Instant::now();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .retry(Backoff::exponential(ms(100)))
        .concurrency_limit(8)
        .service(handler_fn(logged(&log, move |_| async move {
            match began.elapsed() < Duration::from_secs(10) {
                true => Err(refused()),
                false => Ok(()),
            }
        })));
    let source = broker.source(GROUP, [TOPIC]).until_end().build().unwrap();
    let summary = serve(source, stack).await.unwrap();
    assert_eq!(summary.counts.done, 100);
    // at 0, 0.1, 0.3, 0.7, 1.5, 3.1 and 6.3 s for the first message of each key
    assert_eq!(log.count("err"), 70);
    assert_eq!(began.elapsed(), ms(12_700));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_backs_off_holds_no_permit() {
    let broker = unkeyed(2);
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .retry(Backoff::fixed(ms(1_000)))
        .concurrency_limit(1)
        .service(handler_fn(logged(&log, |message| async move {
            match message.offset() {
                0 => Err(refused()),
                _ => Ok(()),
            }
        })));
    let running = Running::hold(source(&broker), stack);
    sleep_ms(10).await;
    assert_eq!(log.entries(), ["start 0", "err 0", "start 1", "ok 1"]);
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_closed_lane_is_not_retried() {
    let broker = keyed(&["a", "a"]);
    let mut source = source(&broker);
    let log = Log::new();
    let mut stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .retry(Backoff::fixed(ms(10)))
        .layer(OrderLayer::by_key())
        .service(handler_fn(logged(&log, |_| async {
            sleep_ms(10).await;
            Ok(())
        })));
    let mut calls = Vec::new();
    for _ in 0..2 {
        use tower::Service;
        let message = source.next().await.unwrap().unwrap();
        calls.push(tokio::spawn(stack.ready().await.unwrap().call(message)));
    }
    sleep_ms(5).await;
    calls[0].abort();
    sleep_ms(1).await;
    // at once, and for good
    assert_eq!(source.books().counts().not_finished(Reason::KeyClosed), 1);
    assert_eq!(log.timed(), ["0 start 0", "5 drop 0"]);
}

#[tokio::test(start_paused = true)]
async fn an_unready_service_is_not_retried() {
    let handler = handler_fn(|_: Message| async { Err::<(), _>(refused()) });
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .retry(Backoff::fixed(ms(10)))
        .service(Breaks::after(1, handler));
    let began = Instant::now();
    let handed = hand(stack).await;
    assert_eq!(handed.error(), "no connection");
    assert_eq!(handed.verdict, not_finished(Reason::Unready));
    assert_eq!(began.elapsed(), ms(10));
}

#[tokio::test(start_paused = true)]
async fn success_is_not_retried() {
    assert_eq!(attempts(Backoff::fixed(ms(10)), 1).await, [0]);
    let service = ServiceBuilder::new()
        .retry(Backoff::fixed(ms(10)))
        .service(handler_fn(|_: Message| async { Ok::<(), BoxError>(()) }));
    service
        .oneshot(Message::builder("orders").build())
        .await
        .unwrap();
}

/// Permanent, or not.
#[derive(Debug, thiserror::Error)]
#[error("permanent: {0}")]
struct Declined(bool);

/// An error around another.
#[derive(Debug, thiserror::Error)]
#[error("charging failed")]
struct Charging(#[source] Declined);

/// How many attempts there are of a message that always fails with this error.
async fn attempts_at<E>(error: impl Fn() -> E + Clone + Send + 'static) -> usize
where
    E: Into<BoxError> + Send + 'static,
{
    let log = Log::new();
    let seen = log.clone();
    let service = ServiceBuilder::new()
        .retry(
            Backoff::fixed(ms(10))
                .max_attempts(3)
                .retry_if(|error: &Declined| !error.0),
        )
        .service(handler_fn(move |_: Message| {
            seen.add("start");
            let error = error();
            async move { Err::<(), E>(error) }
        }));
    let answer = service.oneshot(Message::builder("orders").build()).await;
    assert!(answer.is_err());
    log.count("start")
}

#[tokio::test(start_paused = true)]
async fn an_error_that_the_user_says_is_permanent_is_not_retried_and_others_are() {
    assert_eq!(attempts_at(|| Declined(true)).await, 1);
    assert_eq!(attempts_at(|| Declined(false)).await, 3);
    assert_eq!(attempts_at(|| Charging(Declined(true))).await, 1);
    assert_eq!(attempts_at(refused).await, 3);
}

#[tokio::test(start_paused = true)]
async fn an_error_that_is_not_boxed_is_asked_about_as_well() {
    let log = Log::new();
    let seen = log.clone();
    let service = ServiceBuilder::new()
        .retry(
            Backoff::fixed(ms(10))
                .max_attempts(3)
                .retry_if(|error: &Declined| !error.0),
        )
        .service(tower::service_fn(move |_: Message| {
            seen.add("start");
            async { Err::<(), _>(Declined(true)) }
        }));
    assert!(
        service
            .oneshot(Message::builder("orders").build())
            .await
            .is_err()
    );
    assert_eq!(log.count("start"), 1);
}
