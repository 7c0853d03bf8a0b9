//! A message that is not finished.

use std::error::Error;
use std::future::{Ready, ready};
use std::task::{Context, Poll};
use std::time::Duration;

use tower::{BoxError, Service, ServiceBuilder};
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::{AttemptLayer, handler_fn};
use tower_consumer::ledger::Reason;
use tower_consumer::order::OrderLayer;
use tower_consumer::retry::Backoff;
use tower_consumer::serve::{OnFailure, ServeErrorKind};
use tower_consumer::{Message, Outcome, serve};

use crate::support::events::Events;
use crate::support::{
    Answer, Failed, Journal, broker, commits, committed, ms, pass, produce, produce_keys, run,
    source, tp, with,
};

#[tokio::test(start_paused = true)]
async fn stop_is_the_default_and_its_error_names_the_message_and_the_cause() {
    let broker = broker(2);
    produce(&broker, 1, 10);
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_partition())
        .retry(Backoff::fixed(ms(10)).max_attempts(2))
        .service(handler_fn(|message: Message| async move {
            match message.offset() {
                3 => Err(Failed("no such customer")),
                _ => Ok(()),
            }
        }));
    let error = serve(source(&broker).build().unwrap(), stack)
        .await
        .unwrap_err();

    let text = "message 3 of orders/1 failed, after 2 attempt(s): no such customer";
    assert_eq!(error.to_string(), text);
    let cause = error.source().unwrap().downcast_ref::<Failed>();
    assert_eq!(cause, Some(&Failed("no such customer")));
    assert_eq!(error.summary.committed("orders", 1), Some(3));
    assert_eq!(commits(&broker, 1), [3]);
    let ServeErrorKind::NotFinished {
        tp: of,
        offset,
        attempts,
        reason,
        ..
    } = error.kind
    else {
        panic!("{text}");
    };
    assert_eq!((of, offset, attempts), (tp(1), 3, 2));
    assert_eq!(reason, Reason::Failed);
}

#[tokio::test(start_paused = true)]
async fn after_a_failure_nothing_new_starts_what_runs_may_end_and_the_prefix_is_committed() {
    let broker = broker(1);
    produce(&broker, 0, 20);
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                let work = journal.begin(&message);
                // 5 fails first; the others that run take longer
                if message.offset() == 5 {
                    pass(100).await;
                    return Err(Failed("five"));
                }
                pass(200).await;
                work.done();
                Answer::Ok(())
            },
        )));
    let source = source(&broker).in_flight(10).build().unwrap();
    let error = serve(source, stack).await.unwrap_err();

    assert!(
        error
            .to_string()
            .starts_with("message 5 of orders/0 failed")
    );
    assert_eq!(journal.millis(), 200);
    assert_eq!(journal.starts(0), Vec::from_iter(0..10));
    assert_eq!(journal.done(0), [0, 1, 2, 3, 4, 6, 7, 8, 9]);
    assert_eq!(committed(&broker, 0), Some(5));
    assert_eq!(error.summary.counts.done, 9);
    assert_eq!(error.summary.counts.not_finished(Reason::Failed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_hangs_delays_the_error_by_the_shutdown_limit_and_no_more() {
    let broker = broker(1);
    produce(&broker, 0, 3);
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                let work = journal.begin(&message);
                match message.offset() {
                    1 => std::future::pending::<()>().await,
                    2 => return Err(Failed("two")),
                    _ => {}
                }
                work.done();
                Answer::Ok(())
            },
        )));
    let error = serve(source(&broker).build().unwrap(), stack)
        .shutdown_limit(Duration::from_secs(10))
        .await
        .unwrap_err();
    assert!((7_000..=10_000).contains(&journal.millis()));
    assert_eq!(error.summary.partitions[0].cut, 1);
    assert_eq!(committed(&broker, 0), Some(1));
    assert_eq!(journal.live(), 0);
}

#[tokio::test(start_paused = true)]
async fn hold_leaves_a_gap_and_goes_on_with_the_rest() {
    let broker = broker(2);
    produce(&broker, 0, 10);
    produce(&broker, 1, 10);
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(|message: Message| async move {
            match (message.partition(), message.offset()) {
                (0, 4) => Err(Failed("four")),
                _ => Ok(()),
            }
        }));
    let source = source(&broker).until_end().build().unwrap();
    let summary = serve(source, stack)
        .on_failure(OnFailure::Hold)
        .await
        .unwrap();
    assert_eq!(summary.counts.done, 19);
    assert_eq!(committed(&broker, 0), Some(4));
    assert_eq!(committed(&broker, 1), Some(10));
    let text = "delivered 20, finished 19, not finished 1 (1 failed); orders/0 committed 4; orders/1 committed 10";
    assert_eq!(summary.to_string(), text);
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_a_handler_is_told_with_its_text() {
    let broker = broker(1);
    produce(&broker, 0, 3);
    for awaits in [false, true] {
        let stack = ServiceBuilder::new()
            .layer(CommitLayer::new())
            .layer(OrderLayer::by_partition())
            .service(handler_fn(move |message: Message| async move {
                if awaits {
                    pass(10).await;
                }
                assert!(message.offset() != 1, "one is a bad number");
                Answer::Ok(())
            }));
        let group = if awaits { "later" } else { "at once" };
        let source = broker.source(group, ["orders"]).build().unwrap();
        let error = serve(source, stack).await.unwrap_err();
        let text = "message 1 of orders/0, after 1 attempt(s): panicked: one is a bad number";
        assert_eq!(error.to_string(), text);
        assert!(error.source().is_some());
        assert_eq!(broker.committed(group, "orders", 0), Some(1));
    }
}

/// A service that is broken in one way or another.
#[derive(Clone)]
enum Broken {
    /// Panics in `call` for message 2.
    Call,
    /// Cannot become ready from the third message on.
    Ready(u32),
}

impl Service<Message> for Broken {
    type Response = ();
    type Error = Failed;
    type Future = Ready<Answer>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Answer> {
        match self {
            Broken::Ready(2) => Poll::Ready(Err(Failed("the connection is gone"))),
            Broken::Ready(n) => {
                *n += 1;
                Poll::Ready(Ok(()))
            }
            Broken::Call => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, message: Message) -> Self::Future {
        if matches!(self, Broken::Call) {
            assert_ne!(message.offset(), 2, "two is a bad number");
        }
        ready(Ok(()))
    }
}

/// `AttemptLayer` calls in its future; so this stands outside of it.
fn in_call(broken: Broken) -> impl tower::Layer<AttemptedHandler, Service = CallFirst> + Clone {
    tower::layer::layer_fn(move |inner| CallFirst {
        broken: broken.clone(),
        inner,
    })
}

type AttemptedHandler = tower_consumer::handler::Attempt<Broken>;

#[derive(Clone)]
struct CallFirst {
    broken: Broken,
    inner: AttemptedHandler,
}

impl Service<Message> for CallFirst {
    type Response = ();
    type Error = BoxError;
    type Future = <AttemptedHandler as Service<Message>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self.broken.poll_ready(cx) {
            Poll::Ready(Ok(())) => self.inner.poll_ready(cx),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
            Poll::Pending => Poll::Pending,
        }
    }

    fn call(&mut self, message: Message) -> Self::Future {
        drop(self.broken.call(message.clone()));
        self.inner.call(message)
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_call_ends_serve_whatever_on_failure_says() {
    for on_failure in [OnFailure::Stop, OnFailure::Hold] {
        let broker = broker(1);
        produce(&broker, 0, 5);
        let stack = ServiceBuilder::new()
            .layer(CommitLayer::new())
            .layer(in_call(Broken::Call))
            .layer(AttemptLayer::new())
            .service(Broken::Ready(100));
        let error = serve(source(&broker).build().unwrap(), stack)
            .on_failure(on_failure)
            .await
            .unwrap_err();
        let text = "the stack panicked in `call` with message 2 of orders/0: ";
        assert!(error.to_string().starts_with(text), "{error}");
        assert!(error.to_string().contains("two is a bad number"), "{error}");
        let ServeErrorKind::CallPanicked { offset, .. } = error.kind else {
            panic!("{error}");
        };
        assert_eq!(offset, 2);
        assert_eq!(error.summary.counts.not_finished(Reason::Panicked), 1);
        assert_eq!(commits(&broker, 0), [2]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stack_that_cannot_become_ready_ends_serve_whatever_on_failure_says() {
    for on_failure in [OnFailure::Stop, OnFailure::Hold] {
        let broker = broker(1);
        produce(&broker, 0, 5);
        let stack = ServiceBuilder::new()
            .layer(CommitLayer::new())
            .layer(in_call(Broken::Ready(0)))
            .layer(AttemptLayer::new())
            .service(Broken::Ready(100));
        let error = serve(source(&broker).build().unwrap(), stack)
            .on_failure(on_failure)
            .await
            .unwrap_err();
        let text =
            "the stack could not become ready for message 2 of orders/0: the connection is gone";
        assert_eq!(error.to_string(), text);
        assert!(error.source().unwrap().is::<Failed>());
        assert_eq!(error.summary.counts.not_finished(Reason::Unready), 1);
        assert_eq!(commits(&broker, 0), [2]);
    }
}

#[tokio::test(start_paused = true)]
async fn every_message_that_is_not_finished_is_one_event_that_says_which_and_why() {
    let events = Events::collect();
    let broker = broker(1);
    let keys = [
        "ok",
        "fails",
        "fails",
        "panics",
        "hangs",
        "no attempt",
        "swallowed",
        "skipped",
    ];
    produce_keys(&broker, 0, keys);
    let stack = ServiceBuilder::new()
        // drops what hangs, from outside
        .timeout(ms(1_000))
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .retry(Backoff::fixed(ms(1)).max_attempts(3))
        .map_result(|answer: Result<Outcome, BoxError>| match answer {
            Err(error) if error.to_string() == "swallow me" => Ok(Outcome::Done),
            answer => answer,
        })
        .service(handler_fn(|message: Message| async move {
            match message.key().unwrap() {
                b"fails" => Err(Failed("no")),
                b"panics" => panic!("a bad number"),
                b"hangs" => std::future::pending().await,
                b"no attempt" | b"swallowed" => Err(Failed("swallow me")),
                b"skipped" => Ok(Outcome::skipped("on purpose")),
                _ => Ok(Outcome::Done),
            }
        }));
    let source = source(&broker).until_end().build().unwrap();
    let summary = serve(source, stack)
        .on_failure(OnFailure::Hold)
        .await
        .unwrap();

    let mut said: Vec<_> = events
        .beginning("message not finished")
        .iter()
        .map(|said| {
            assert_eq!(said.level, tracing::Level::WARN);
            assert_eq!(
                (said.field("topic"), said.field("partition")),
                ("orders", "0")
            );
            let [offset, attempts, reason, error] =
                ["offset", "attempts", "reason", "error"].map(|name| said.field(name).to_owned());
            (offset, attempts, reason, error)
        })
        .collect();
    said.sort();
    let expected = [
        ("1", "3", "failed", "no"),
        (
            "2",
            "0",
            "key_closed",
            "message 2 of orders/0 was not handled, because message 1 of the same lane did not finish (if a retry is to help it, place the retry inside of OrderLayer); it will be delivered again",
        ),
        ("3", "1", "panicked", "a bad number"),
        ("4", "1", "dropped", ""),
        (
            "5",
            "1",
            "ok_without_attempt",
            "wrap the innermost service in AttemptLayer, or answer Outcome::skipped(why)",
        ),
        (
            "6",
            "1",
            "ok_without_attempt",
            "wrap the innermost service in AttemptLayer, or answer Outcome::skipped(why)",
        ),
    ];
    let said: Vec<_> = said
        .iter()
        .map(|(a, b, c, d)| (a.as_str(), b.as_str(), c.as_str(), d.as_str()))
        .collect();
    assert_eq!(said, expected);
    assert_eq!(summary.counts.not_finished_total(), 6);
    assert_eq!((summary.counts.done, summary.counts.skipped), (1, 1));
    assert_eq!(commits(&broker, 0), [1]);
}

#[tokio::test(start_paused = true)]
async fn of_many_failures_at_once_one_is_the_error_and_each_is_an_event() {
    let events = Events::collect();
    let broker = broker(1);
    produce(&broker, 0, 30);
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(|_: Message| async {
            pass(10).await;
            Err::<(), _>(Failed("all of them"))
        }));
    let serving = run(serve(source(&broker).build().unwrap(), stack));
    let error = serving.end().await.unwrap_err();
    let text = "message 0 of orders/0 failed, after 1 attempt(s): all of them";
    assert_eq!(error.to_string(), text);
    assert_eq!(events.beginning("message not finished").len(), 30);
    assert_eq!(error.summary.counts.not_finished(Reason::Failed), 30);
    assert_eq!(commits(&broker, 0), [0i64; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_skipped_is_one_event_that_says_why() {
    let events = Events::collect();
    let broker = broker(1);
    produce(&broker, 0, 2);
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(|message: Message| async move {
            Ok::<_, Failed>(match message.offset() {
                1 => Outcome::skipped("a test order"),
                _ => Outcome::Done,
            })
        }));
    serve(source(&broker).until_end().build().unwrap(), stack)
        .await
        .unwrap();
    let said = events.beginning("message skipped");
    assert_eq!(said.len(), 1);
    assert_eq!(said[0].field("topic"), "orders");
    assert_eq!(said[0].field("offset"), "1");
    assert_eq!(said[0].field("why"), "a test order");
}
