//! How `serve` ends.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep};
use tower::ServiceBuilder;
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::handler_fn;
use tower_consumer::order::OrderLayer;
use tower_consumer::source::memory::MemoryBroker;
use tower_consumer::{Message, serve};

use crate::support::events::Events;
use crate::support::{
    Answer, Gates, Journal, broker, commits, committed, ms, pass, produce, produce_keys, quiet,
    run, source, with,
};

#[tokio::test(start_paused = true)]
async fn a_graceful_shutdown_ends_within_its_limit_and_reports_what_it_cut() {
    let events = Events::collect();
    for (limit, at_least) in [
        (ms(10_000), ms(7_500)),
        (Duration::from_secs(30), ms(23_000)),
    ] {
        let broker = broker(1);
        produce(&broker, 0, 4);
        let journal = Journal::new();
        let stack = ServiceBuilder::new()
            .layer(CommitLayer::new())
            .service(handler_fn(with(
                journal.clone(),
                |journal, message| async move {
                    let work = journal.begin(&message);
                    if message.offset() == 2 {
                        std::future::pending::<()>().await;
                    }
                    work.done();
                    Answer::Ok(())
                },
            )));
        let source = source(&broker).build().unwrap();
        let serving = run(serve(source, stack).shutdown_limit(limit));
        quiet().await;
        let asked = Instant::now();
        let summary = serving.shutdown().await.unwrap();
        let took = asked.elapsed();
        assert!(took >= at_least && took <= limit, "{took:?}");
        assert_eq!(summary.partitions[0].cut, 1);
        let text = "delivered 4, finished 3, not finished 0, late 1; orders/0 committed 2 (1 still running)";
        assert_eq!(summary.to_string(), text);
        assert_eq!(committed(&broker, 0), Some(2));
        assert_eq!(journal.live(), 0);
    }
    let said = events.beginning("released over work that did not end");
    assert_eq!(said.len(), 2);
    assert_eq!(said[0].field("running"), "1");
}

#[tokio::test(start_paused = true)]
async fn the_shutdown_is_any_future() {
    fn stack() -> impl tower::Service<
        Message,
        Response = tower_consumer::commit::Settled,
        Error = tower::BoxError,
        Future: Send,
    > + Send {
        ServiceBuilder::new()
            .layer(CommitLayer::new())
            .service(handler_fn(|_: Message| async { Answer::Ok(()) }))
    }
    let broker = broker(1);
    produce(&broker, 0, 3);
    let source = |group: &str| broker.source(group, ["orders"]).build().unwrap();

    let opened = Instant::now();
    serve(source("a sleep"), stack())
        .with_graceful_shutdown(sleep(ms(1_000)))
        .await
        .unwrap();
    assert_eq!(opened.elapsed(), ms(1_000));

    let (stop, stopped) = oneshot::channel::<()>();
    let serving = serve(source("a oneshot"), stack()).with_graceful_shutdown(stopped);
    let serving = tokio::spawn(serving.into_future());
    quiet().await;
    assert!(!serving.is_finished());
    stop.send(()).unwrap();
    serving.await.unwrap().unwrap();

    let (stop, mut stopped) = watch::channel(false);
    let serving = tokio::spawn(
        serve(source("a flag"), stack())
            .with_graceful_shutdown(async move { stopped.wait_for(|stop| *stop).await.is_ok() })
            .into_future(),
    );
    quiet().await;
    assert!(!serving.is_finished());
    stop.send_replace(true);
    serving.await.unwrap().unwrap();

    let stop = Arc::new(Notify::new());
    let serving = tokio::spawn(
        serve(source("a notify"), stack())
            .with_graceful_shutdown(stop.clone().notified_owned())
            .into_future(),
    );
    quiet().await;
    stop.notify_one();
    serving.await.unwrap().unwrap();

    for group in ["a sleep", "a oneshot", "a flag", "a notify"] {
        assert_eq!(broker.committed(group, "orders", 0), Some(3), "{group}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_that_is_ready_from_the_start_takes_nothing() {
    let broker = broker(1);
    produce(&broker, 0, 3);
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                journal.begin(&message).done();
                Answer::Ok(())
            },
        )));
    let summary = serve(source(&broker).build().unwrap(), stack)
        .with_graceful_shutdown(std::future::ready(()))
        .await
        .unwrap();
    assert_eq!(summary.counts.delivered, 0);
    assert_eq!(
        summary.to_string(),
        "delivered 0, finished 0, not finished 0; orders/0 nothing committed"
    );
    assert_eq!(journal.starts(0), [0i64; 0]);
    assert_eq!(commits(&broker, 0), [0i64; 0]);
}

#[tokio::test(start_paused = true)]
async fn an_idle_shutdown_takes_no_time() {
    let broker = broker(3);
    produce(&broker, 0, 3);
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(|_: Message| async { Answer::Ok(()) }));
    let serving = run(serve(source(&broker).build().unwrap(), stack));
    pass(10_000).await;
    let asked = Instant::now();
    let summary = serving.shutdown().await.unwrap();
    assert_eq!(asked.elapsed(), ms(0));
    assert_eq!(summary.committed("orders", 0), Some(3));
    assert_eq!(summary.committed("orders", 1), None);
    assert_eq!(summary.partitions.len(), 3);
}

/// Everything that runs, waits for its lane, or waits for a permit.
fn busy(broker: &MemoryBroker) -> (Journal, Gates, crate::support::Run) {
    produce_keys(broker, 0, ["a", "a", "b", "c", "d", "e"]);
    let (journal, gates) = (Journal::new(), Gates::default());
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .concurrency_limit(3)
        .service(handler_fn(with(
            (journal.clone(), gates.clone()),
            |(journal, gates), message| async move {
                let work = journal.begin(&message);
                gates.wait(&message).await;
                work.done();
                Answer::Ok(())
            },
        )));
    let source = source(broker).commit_interval(ms(0)).build().unwrap();
    (journal, gates, run(serve(source, stack)))
}

#[tokio::test(start_paused = true)]
async fn dropping_serve_loses_nothing_and_leaves_no_task() {
    let broker = broker(1);
    let (journal, gates, serving) = busy(&broker);
    quiet().await;
    assert_eq!(journal.live(), 3);
    gates.open(0, 0);
    quiet().await;
    assert_eq!(committed(&broker, 0), Some(1));
    let alive = tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks();
    assert!(alive > 0);
    serving.kill().await;

    assert_eq!(
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks(),
        0
    );
    assert_eq!(journal.live(), 0);
    gates.open_all(0, 1..6);
    pass(60_000).await;
    assert_eq!(journal.done(0), [0]);
    assert_eq!(commits(&broker, 0), [1]);

    let (journal, gates) = (Journal::new(), gates);
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                journal.begin(&message).done();
                Answer::Ok(())
            },
        )));
    drop(gates);
    serve(source(&broker).until_end().build().unwrap(), stack)
        .await
        .unwrap();
    assert_eq!(journal.done(0), [1, 2, 3, 4, 5]);
    assert_eq!(committed(&broker, 0), Some(6));
}

#[tokio::test(start_paused = true)]
async fn after_a_shutdown_no_task_is_left_either() {
    let broker = broker(1);
    let (journal, _, serving) = busy(&broker);
    quiet().await;
    serving.shutdown().await.unwrap();
    quiet().await;
    assert_eq!(journal.live(), 0);
    assert_eq!(
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks(),
        0
    );
}

#[tokio::test(start_paused = true)]
async fn what_waits_at_the_shutdown_is_accounted_for() {
    let broker = broker(1);
    let (journal, gates, serving) = busy(&broker);
    quiet().await;
    gates.open_all(0, [0, 2, 3]);
    let summary = serving.shutdown().await.unwrap();
    // 0, 2 and 3 ran; 1 waited for its lane, 4 and 5 for a permit
    assert_eq!(journal.done_sorted(0), [0, 2, 3]);
    assert_eq!(journal.starts(0).len(), 3);
    assert_eq!(committed(&broker, 0), Some(1));
    let counts = &summary.counts;
    assert_eq!((counts.delivered, counts.finished()), (6, 3));
    assert_eq!(counts.not_finished_total() + counts.late, 3);
}
