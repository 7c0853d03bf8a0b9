//! Kind 22: readiness belongs to the instance that was polled, and is given back by whoever does not use it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::{BoxError, Service, ServiceBuilder};
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::{AttemptLayer, handler_fn};
use tower_consumer::ledger::Reason;
use tower_consumer::order::OrderLayer;
use tower_consumer::retry::Backoff;
use tower_consumer::serve::{OnFailure, ServeErrorKind};
use tower_consumer::timeout::TimeoutLayer;
use tower_consumer::{Message, serve};

use crate::support::{
    Answer, Failed, Gates, Journal, broker, commits, committed, ms, pass, produce, produce_keys,
    quiet, run, source, tp, with,
};

/// Panics unless this very instance was polled ready; every second `poll_ready` is pending first. Its readiness fails
/// for good after `good_for` calls, and until then each message fails as often as `failures` says.
struct Strict {
    shared: Arc<Mutex<Shared>>,
    ready: bool,
    asked: bool,
}

struct Shared {
    called: Vec<i64>,
    good_for: usize,
    failures: u32,
}

impl Strict {
    fn new(good_for: usize, failures: u32) -> Self {
        let shared = Shared {
            called: Vec::new(),
            good_for,
            failures,
        };
        Strict {
            shared: Arc::new(Mutex::new(shared)),
            ready: false,
            asked: false,
        }
    }
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Strict {
            shared: self.shared.clone(),
            ready: false,
            asked: false,
        }
    }
}

impl Service<Message> for Strict {
    type Response = ();
    type Error = Failed;
    type Future = Pin<Box<dyn Future<Output = Answer> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        let shared = self.shared.lock();
        if shared.called.len() >= shared.good_for {
            return Poll::Ready(Err(Failed("the connection is gone")));
        }
        if !self.asked {
            self.asked = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, message: Message) -> Self::Future {
        assert!(self.ready, "poll_ready must be called first");
        (self.ready, self.asked) = (false, false);
        let mut shared = self.shared.lock();
        shared.called.push(message.offset());
        let failures = shared.failures;
        Box::pin(async move {
            pass(message.offset() as u64 % 7).await;
            match message.delivery().unwrap().attempt() {
                attempt if attempt <= failures => Err(Failed("not yet")),
                _ => Ok(()),
            }
        })
    }
}

/// C94
#[tokio::test(start_paused = true)]
async fn no_layer_calls_an_instance_that_was_not_ready() {
    let broker = broker(2);
    let keys: Vec<String> = (0..500).map(|n| format!("k{}", n % 20)).collect();
    for partition in [0, 1] {
        produce_keys(&broker, partition, keys.iter().map(String::as_str));
    }
    for has_order in [true, false] {
        let strict = Strict::new(usize::MAX, 1);
        let shared = strict.shared.clone();
        let around = ServiceBuilder::new()
            .retry(Backoff::fixed(ms(5)))
            .concurrency_limit(8)
            .layer(TimeoutLayer::new(ms(1_000)))
            .layer(AttemptLayer::new());
        let group = if has_order { "ordered" } else { "unordered" };
        let source = broker
            .source(group, ["orders"])
            .until_end()
            .build()
            .unwrap();
        let summary = if has_order {
            let order = OrderLayer::by_key();
            let stack = ServiceBuilder::new().layer(CommitLayer::new()).layer(order);
            serve(source, stack.layer(around).service(strict)).await
        } else {
            let stack = ServiceBuilder::new().layer(CommitLayer::new());
            serve(source, stack.layer(around).service(strict)).await
        };
        assert_eq!(summary.unwrap().counts.done, 1_000, "{group}");
        assert_eq!(shared.lock().called.len(), 2_000, "{group}");
        assert_eq!(broker.committed(group, "orders", 0), Some(500));
        assert_eq!(broker.committed(group, "orders", 1), Some(500));
    }
}

/// C94: a broken stack is not a bad message, and the message that waited is not lost.
#[tokio::test(start_paused = true)]
async fn a_readiness_error_ends_serve_and_the_message_is_delivered_again() {
    for has_order in [true, false] {
        let broker = broker(1);
        produce(&broker, 0, 100);
        let strict = Strict::new(20, 0);
        let attempts = ServiceBuilder::new()
            .retry(Backoff::fixed(ms(0)))
            .layer(AttemptLayer::new());
        let source = source(&broker).build().unwrap();
        let serving = if has_order {
            let order = OrderLayer::by_partition();
            let stack = ServiceBuilder::new().layer(CommitLayer::new()).layer(order);
            serve(source, stack.layer(attempts).service(strict))
                .on_failure(OnFailure::Hold)
                .await
        } else {
            let stack = ServiceBuilder::new().layer(CommitLayer::new());
            serve(
                source,
                stack.layer(attempts).concurrency_limit(1).service(strict),
            )
            .on_failure(OnFailure::Hold)
            .await
        };
        let error = serving.unwrap_err();
        let ServeErrorKind::Unready { offset, cause, .. } = &error.kind else {
            panic!("{error}");
        };
        assert_eq!(*offset, 20);
        let cause = cause.as_ref().unwrap().to_string();
        assert_eq!(cause, "the connection is gone");
        assert_eq!(commits(&broker, 0).last(), Some(&20));
        assert_eq!(error.summary.counts.not_finished(Reason::Failed), 0);
    }
}

/// C95
#[tokio::test(start_paused = true)]
async fn a_reservation_made_for_a_partition_that_went_away_serves_the_next_one() {
    let broker = broker(2);
    produce(&broker, 0, 2);
    let (journal, gates) = (Journal::new(), Gates::default());
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .concurrency_limit(1)
        .service(handler_fn(with(
            (journal.clone(), gates.clone()),
            |(journal, gates), message| async move {
                let work = journal.begin(&message);
                gates.wait(&message).await;
                work.done();
                Answer::Ok(())
            },
        )));
    let source = source(&broker).build().unwrap();
    let member = source.member();
    let serving = run(serve(source, stack));
    quiet().await;
    // message 1 is in hand and the service is asked for its sake; the partition goes
    member.revoke([tp(0)], ms(0)).await;
    gates.open_all(1, [0, 1]);
    produce(&broker, 1, 2);
    pass(10_000).await;
    assert_eq!(journal.starts(0), [0]);
    assert_eq!(journal.done(1), [0, 1]);
    assert_eq!(committed(&broker, 0), None);
    assert_eq!(committed(&broker, 1), Some(2));
    serving.shutdown().await.unwrap();
}

/// C95: with `OrderLayer` readiness is asked for by the message itself, so what it held goes with it.
#[tokio::test(start_paused = true)]
async fn a_permit_awaited_for_a_partition_that_went_away_serves_another_consumer() {
    let (left, right) = (broker(1), broker(1));
    produce(&left, 0, 1);
    produce(&right, 0, 1);
    let (journal, gates) = (Journal::new(), Gates::default());
    let permits = Arc::new(Semaphore::new(1));
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .layer(GlobalConcurrencyLimitLayer::with_semaphore(permits.clone()))
        .service(handler_fn(with(
            (journal.clone(), gates.clone()),
            |(journal, gates), message| async move {
                let _work = journal.begin(&message);
                gates.wait(&message).await;
                Answer::Ok(())
            },
        )));
    let first = run(serve(source(&left).build().unwrap(), stack.clone()));
    quiet().await;
    let source = source(&right).build().unwrap();
    let member = source.member();
    let second = run(serve(source, stack));
    quiet().await;
    assert_eq!(journal.live(), 1);
    // the second waits for the permit that the first holds, and loses its partition
    member.lose([tp(0)]).await;
    gates.open(0, 0);
    quiet().await;
    assert_eq!(permits.available_permits(), 1);
    gates.open(0, 1);
    produce(&left, 0, 1);
    quiet().await;
    assert_eq!(journal.starts(0), [0, 1]);
    first.kill().await;
    second.kill().await;
}

/// Never ready.
#[derive(Clone)]
struct NeverReady {
    _alive: Arc<()>,
}

impl Service<Message> for NeverReady {
    type Response = ();
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Pending
    }

    fn call(&mut self, _: Message) -> Self::Future {
        panic!("it was never ready");
    }
}

/// C96, with the queue of this library (what waits in `OrderLayer`, bounded by `in_flight`). The worker of tower's own
/// `buffer` outlives its handles when the service inside never wakes it.
#[tokio::test(start_paused = true)]
async fn a_deadline_over_a_queue_over_a_service_that_is_never_ready_frees_every_slot() {
    let broker = broker(1);
    produce(&broker, 0, 100);
    let alive = Arc::new(());
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(TimeoutLayer::new(ms(100)))
        .layer(OrderLayer::by(|message| Some(message.offset())))
        .layer(AttemptLayer::new())
        .service(NeverReady {
            _alive: alive.clone(),
        });
    let source = source(&broker).in_flight(10).until_end().build().unwrap();
    let books = source.member().books().clone();
    let opened = Instant::now();
    let serving = run(serve(source, stack).on_failure(OnFailure::Hold));
    pass(50).await;
    assert_eq!(books.in_flight().0, 10);
    let summary = serving.end().await.unwrap();

    assert_eq!(opened.elapsed(), ms(1_000));
    assert_eq!(summary.counts.not_finished(Reason::Failed), 100);
    assert_eq!(books.in_flight(), (0, 0));
    assert_eq!(commits(&broker, 0), [0i64; 0]);
    assert_eq!(Arc::strong_count(&alive), 1);
}

/// C96: with tower's queue each message has its deadline, too.
#[tokio::test(start_paused = true)]
async fn a_deadline_over_towers_buffer_times_every_message_out() {
    let broker = broker(1);
    produce(&broker, 0, 100);
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(TimeoutLayer::new(ms(100)))
        .layer(OrderLayer::by_key())
        .buffer(10)
        .layer(AttemptLayer::new())
        .service(NeverReady {
            _alive: Arc::default(),
        });
    let source = source(&broker).until_end().build().unwrap();
    let opened = Instant::now();
    let summary = serve(source, stack)
        .on_failure(OnFailure::Hold)
        .await
        .unwrap();
    assert_eq!(opened.elapsed(), ms(100));
    assert_eq!(summary.counts.not_finished(Reason::Failed), 100);
    assert_eq!(commits(&broker, 0), [0i64; 0]);
}

/// What `load_shed` and a filter turn away outside of `CommitLayer` is not finished either.
#[tokio::test(start_paused = true)]
async fn what_a_layer_outside_turns_away_is_delivered_again() {
    let broker = broker(1);
    produce(&broker, 0, 3);
    let stack = ServiceBuilder::new()
        .load_shed()
        .layer(CommitLayer::new())
        .concurrency_limit(1)
        .service(handler_fn(|_: Message| async {
            pass(10).await;
            Answer::Ok(())
        }));
    let source = source(&broker).until_end().build().unwrap();
    let summary = serve(source, stack)
        .on_failure(OnFailure::Hold)
        .await
        .unwrap();
    assert_eq!(summary.counts.done, 1);
    assert_eq!(summary.counts.not_finished(Reason::Failed), 2);
    assert_eq!(commits(&broker, 0), [1]);
}
