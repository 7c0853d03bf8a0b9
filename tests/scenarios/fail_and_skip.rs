//! S1: a handler that fails for some messages while later ones succeed.

use std::time::Duration;

use tower::ServiceBuilder;
use tower_consumer::Message;
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::handler_fn;
use tower_consumer::retry::Backoff;
use tower_consumer::serve;
use tower_consumer::serve::OnFailure;
use tower_consumer::source::memory::MemoryBroker;

use crate::support::{
    Answer, Failed, Journal, Restart, Run, assert_covered, broker, commits, committed, pass,
    produce, restart, run, source, with,
};

/// Fails for 5, 10, 15, …, at every attempt up to `failures`; succeeds otherwise; stands still after 31.
async fn fail_and_skip(journal: Journal, failures: u32, message: Message) -> Answer {
    let work = journal.begin(&message);
    let offset = message.offset();
    if offset > 31 {
        std::future::pending::<()>().await;
    }
    let attempt = message.delivery().map_or(0, |delivery| delivery.attempt());
    if offset % 5 == 0 && offset != 0 && attempt <= failures {
        return Err(Failed("skipped"));
    }
    work.done();
    Ok(())
}

fn leaves_a_gap(broker: &MemoryBroker, window: usize) -> (Journal, Run) {
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .concurrency_limit(1)
        .service(handler_fn(with(journal.clone(), |journal, message| {
            fail_and_skip(journal, u32::MAX, message)
        })));
    let source = source(broker).window(window).build().unwrap();
    let run = run(serve(source, stack).on_failure(OnFailure::Hold));
    (journal, run)
}

/// Run 2, in which nothing fails, until all is committed.
async fn run_2(broker: &MemoryBroker) -> Journal {
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .concurrency_limit(1)
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                journal.begin(&message).done();
                Answer::Ok(())
            },
        )));
    let source = source(broker).until_end().build().unwrap();
    serve(source, stack).await.unwrap();
    assert_eq!(committed(broker, 0), Some(64));
    journal
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_leaves_a_gap_holds_the_commit_while_later_messages_are_processed() {
    let broker = broker(1);
    produce(&broker, 0, 64);
    let (run_1, serving) = leaves_a_gap(&broker, 64);
    pass(2_000).await;
    assert_eq!(run_1.done(0).last(), Some(&31));
    serving.kill().await;

    assert_eq!(committed(&broker, 0), Some(5));
    assert_covered(&run_1, Some(5));
    let run_2 = run_2(&broker).await;
    assert_eq!(run_2.starts(0)[0], 5);
    assert_eq!(restart(64, &run_1, Some(5), &run_2), Restart::new(0, 21));
}

#[tokio::test(start_paused = true)]
async fn a_window_of_8_stops_the_source_8_messages_after_the_failed_one() {
    let broker = broker(1);
    produce(&broker, 0, 64);
    let (run_1, serving) = leaves_a_gap(&broker, 8);
    pass(2_000).await;
    assert_eq!(run_1.done(0), [0, 1, 2, 3, 4, 6, 7, 8, 9, 11, 12]);
    assert_eq!(run_1.starts(0).into_iter().max(), Some(12));
    serving.kill().await;

    assert_eq!(committed(&broker, 0), Some(5));
    assert_covered(&run_1, Some(5));
    let run_2 = run_2(&broker).await;
    assert_eq!(run_2.starts(0)[0], 5);
    assert_eq!(restart(64, &run_1, Some(5), &run_2), Restart::new(0, 6));
}

#[tokio::test(start_paused = true)]
async fn a_retry_in_place_leaves_no_gap() {
    let broker = broker(1);
    produce(&broker, 0, 64);
    let run_1 = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .retry(Backoff::fixed(Duration::ZERO))
        .concurrency_limit(1)
        .service(handler_fn(with(run_1.clone(), |journal, message| {
            fail_and_skip(journal, 1, message)
        })));
    let serving = run(serve(source(&broker).window(64).build().unwrap(), stack));
    pass(2_000).await;
    serving.kill().await;

    assert_eq!(committed(&broker, 0), Some(32));
    assert_covered(&run_1, Some(32));
    for offset in 0..32 {
        let attempts = if offset % 5 == 0 && offset != 0 { 2 } else { 1 };
        assert_eq!(run_1.started_at(offset).len(), attempts, "offset {offset}");
    }
    let run_2 = run_2(&broker).await;
    assert_eq!(restart(64, &run_1, Some(32), &run_2), Restart::new(0, 0));
}

/// The twin delivers on behalf of another group and commits by hand what it has just finished.
#[tokio::test(start_paused = true)]
async fn a_naive_consumer_in_the_same_harness_loses_6() {
    let broker = broker(1);
    produce(&broker, 0, 64);
    let run_1 = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .concurrency_limit(1)
        .service(handler_fn(with(
            (run_1.clone(), broker.clone()),
            |(journal, broker), message| async move {
                let offset = message.offset();
                fail_and_skip(journal, u32::MAX, message).await?;
                broker.commit("billing", "orders", 0, offset + 1);
                Answer::Ok(())
            },
        )));
    let source = broker.source("twin", ["orders"]).build().unwrap();
    let serving = run(serve(source, stack).on_failure(OnFailure::Hold));
    pass(2_000).await;
    serving.kill().await;

    assert_eq!(committed(&broker, 0), Some(32));
    assert_eq!(commits(&broker, 0)[4..7], [5, 7, 8]);
    let run_2 = run_2(&broker).await;
    assert_eq!(restart(64, &run_1, Some(32), &run_2), Restart::new(6, 0));
}
