//! S4: a deadline ends a wait. It never commits, and never takes a message from anyone.

use std::sync::Arc;

use parking_lot::Mutex;
use tower::ServiceBuilder;
use tower_consumer::Message;
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::handler_fn;
use tower_consumer::ledger::Reason;
use tower_consumer::order::OrderLayer;
use tower_consumer::retry::Backoff;
use tower_consumer::serve;
use tower_consumer::serve::OnFailure;
use tower_consumer::source::memory::{CommitReply, MemoryBroker};
use tower_consumer::timeout::TimeoutLayer;

use crate::support::{
    Answer, GROUP, Journal, Restart, assert_covered, broker, commits, committed, ms, pass, produce,
    produce_keys, quiet, restart, run, source, with,
};

/// 3, 13, 23, … take 300 ms at their first attempt and less at the second; the others take no time.
async fn slow_at_first(journal: Journal, message: Message) -> Answer {
    let work = journal.begin(&message);
    if message.offset() % 10 == 3 {
        let is_first = message.delivery().is_none_or(|d| d.attempt() == 1);
        pass(if is_first {
            300
        } else {
            message.offset() as u64
        })
        .await;
    }
    work.done();
    Ok(())
}

async fn run_2(broker: &MemoryBroker) -> Journal {
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
    serve(source(broker).until_end().build().unwrap(), stack)
        .await
        .unwrap();
    assert_eq!(committed(broker, 0), Some(100));
    journal
}

#[tokio::test(start_paused = true)]
async fn a_message_that_timed_out_counts_as_failed() {
    let broker = broker(1);
    produce(&broker, 0, 100);
    let run_1 = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(TimeoutLayer::new(ms(100)))
        .service(handler_fn(with(run_1.clone(), slow_at_first)));
    let source = source(&broker).window(128).build().unwrap();
    let serving = run(serve(source, stack).on_failure(OnFailure::Hold));
    pass(2_000).await;
    serving.kill().await;

    assert_eq!(run_1.done(0).len(), 90);
    assert_eq!(commits(&broker, 0), [3]);
    assert_covered(&run_1, Some(3));
    let run_2 = run_2(&broker).await;
    assert_eq!(run_2.starts(0)[0], 3);
    assert_eq!(restart(100, &run_1, Some(3), &run_2), Restart::new(0, 87));
}

/// The same with tower's own deadline, and with one outside of `CommitLayer`.
#[tokio::test(start_paused = true)]
async fn towers_own_timeout_is_as_safe_inside_and_outside() {
    let broker = broker(2);
    produce(&broker, 0, 100);
    produce(&broker, 1, 100);
    let journal = Journal::new();
    let handler = handler_fn(with(journal.clone(), slow_at_first));
    let inside = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .timeout(ms(100))
        .service(handler.clone());
    let outside = ServiceBuilder::new()
        .timeout(ms(100))
        .layer(CommitLayer::new())
        .service(handler);
    for (group, summary) in [
        ("inside", {
            let source = broker.source("inside", ["orders"]).until_end();
            serve(source.build().unwrap(), inside)
                .on_failure(OnFailure::Hold)
                .await
        }),
        ("outside", {
            let source = broker.source("outside", ["orders"]).until_end();
            serve(source.build().unwrap(), outside)
                .on_failure(OnFailure::Hold)
                .await
        }),
    ] {
        let counts = summary.unwrap().counts;
        assert_eq!(counts.done, 180, "{group}");
        assert_eq!(counts.not_finished_total(), 20, "{group}");
        assert_eq!(broker.committed(group, "orders", 0), Some(3));
        assert_eq!(broker.committed(group, "orders", 1), Some(3));
    }
}

#[tokio::test(start_paused = true)]
async fn with_a_retry_all_is_committed_and_no_commit_ever_covers_a_timed_out_message() {
    let broker = broker(1);
    produce(&broker, 0, 100);
    let journal = Journal::new();
    let uncovered = Arc::new(Mutex::new(Vec::new()));
    broker.on_commit(GROUP, {
        let (journal, uncovered) = (journal.clone(), uncovered.clone());
        move |_, offset| {
            let done = journal.done_sorted(0);
            let missing = (0..offset).filter(|n| done.binary_search(n).is_err());
            uncovered.lock().extend(missing);
            CommitReply::ok()
        }
    });
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .retry(Backoff::fixed(ms(50)))
        .layer(TimeoutLayer::new(ms(100)))
        .service(handler_fn(with(journal.clone(), slow_at_first)));
    let source = source(&broker).commit_interval(ms(0)).until_end().build();
    let summary = serve(source.unwrap(), stack).await.unwrap();

    assert_eq!(summary.counts.done, 100);
    let expected = [1, 2, 3, 13, 23, 33, 43, 53, 63, 73, 83, 93, 100];
    assert_eq!(commits(&broker, 0), expected);
    assert_eq!(*uncovered.lock(), [0i64; 0]);
    assert_eq!(journal.done(0).len(), 100);
    assert_eq!(journal.started_at(3), [0, 150]);
    assert_eq!(journal.started_at(4), [0]);
}

/// The work goes on in a task of its own when its future is dropped. What comes of it is nobody's success.
#[tokio::test(start_paused = true)]
async fn work_that_goes_on_in_the_background_does_not_count_when_it_ends() {
    let broker = broker(1);
    produce(&broker, 0, 100);
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(TimeoutLayer::new(ms(100)))
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                let _ = tokio::spawn(slow_at_first(journal, message)).await;
                Answer::Ok(())
            },
        )));
    let source = source(&broker).commit_interval(ms(0)).until_end().build();
    let summary = serve(source.unwrap(), stack)
        .on_failure(OnFailure::Hold)
        .await
        .unwrap();
    pass(1_000).await;

    assert_eq!(journal.done_at(3), [300], "the background has ended");
    assert_eq!(summary.counts.done, 90);
    assert_eq!(summary.counts.not_finished(Reason::Failed), 10);
    assert_eq!(commits(&broker, 0), [3]);
}

#[tokio::test(start_paused = true)]
async fn the_next_attempt_waits_for_background_work_that_holds_a_guard() {
    let mut second_attempts = Vec::new();
    for guarded in [false, true] {
        let broker = broker(1);
        produce(&broker, 0, 100);
        let journal = Journal::new();
        let handler = move |journal: Journal, message: Message| async move {
            let guard = guarded.then(|| message.guard());
            let work = tokio::spawn(async move {
                let answer = slow_at_first(journal, message).await;
                drop(guard);
                answer
            });
            let _ = work.await;
            Answer::Ok(())
        };
        let stack = ServiceBuilder::new()
            .layer(CommitLayer::new())
            .retry(Backoff::fixed(ms(50)))
            .layer(TimeoutLayer::new(ms(200)))
            .service(handler_fn(with(journal.clone(), handler)));
        let source = source(&broker).until_end().build().unwrap();
        serve(source, stack).await.unwrap();
        second_attempts.push(journal.started_at(13)[1]);
        assert_eq!(committed(&broker, 0), Some(100));
    }
    assert_eq!(second_attempts, [250, 300]);
}

#[tokio::test(start_paused = true)]
async fn the_lane_waits_for_background_work_that_holds_a_guard() {
    let broker = broker(1);
    produce_keys(&broker, 0, ["a", "a", "b"]);
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                let work = journal.begin(&message);
                if message.offset() == 0 {
                    let guard = message.guard();
                    tokio::spawn(async move {
                        pass(300).await;
                        drop(guard);
                    });
                }
                work.done();
                Answer::Ok(())
            },
        )));
    let source = source(&broker).commit_interval(ms(0)).build().unwrap();
    let serving = run(serve(source, stack));
    quiet().await;
    // what the handler answered counts at once; the guard is about who comes next
    assert_eq!(committed(&broker, 0), Some(1));
    pass(1_000).await;
    assert_eq!(journal.started_at(1), [300]);
    assert_eq!(journal.started_at(2), [0]);
    assert_eq!(committed(&broker, 0), Some(3));
    serving.shutdown().await.unwrap();
}

/// S4c: what the commit was for has been processed. After the restart it is processed again or not, never skipped.
#[tokio::test(start_paused = true)]
async fn a_crash_while_a_commit_is_out_skips_nothing_whether_it_lands_or_not() {
    for lands in [false, true] {
        let broker = broker(1);
        produce(&broker, 0, 100);
        let run_1 = Journal::new();
        let sent = Arc::new(Mutex::new(Vec::new()));
        broker.on_commit(GROUP, {
            let sent = sent.clone();
            move |_, offset| {
                sent.lock().push(offset);
                CommitReply::ok().after(ms(10_000))
            }
        });
        let stack = ServiceBuilder::new()
            .layer(CommitLayer::new())
            .service(handler_fn(with(
                run_1.clone(),
                |journal, message| async move {
                    let work = journal.begin(&message);
                    pass(message.offset() as u64 * 10 + 5).await;
                    work.done();
                    Answer::Ok(())
                },
            )));
        let source = source(&broker).commit_interval(ms(100)).build().unwrap();
        let serving = run(serve(source, stack));
        pass(500).await;
        serving.kill().await;
        assert_eq!(*sent.lock(), [10], "one is out, and the next waits for it");
        if lands {
            broker.commit("billing", "orders", 0, 10);
        }
        broker.on_commit(GROUP, |_, _| CommitReply::ok());

        let committed = committed(&broker, 0);
        assert_eq!(committed, lands.then_some(10));
        assert_covered(&run_1, committed);
        let run_2 = run_2(&broker).await;
        let again = if lands { 50 - 10 } else { 50 };
        assert_eq!(
            restart(100, &run_1, committed, &run_2),
            Restart::new(0, again)
        );
    }
}
