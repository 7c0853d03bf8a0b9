//! Kinds 7 and 12: giving partitions up, one by one or all at shutdown: in which order, and for how long.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tower::ServiceBuilder;
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::handler_fn;
use tower_consumer::ledger::Reason;
use tower_consumer::order::OrderLayer;
use tower_consumer::retry::Backoff;
use tower_consumer::{Message, serve};

use crate::support::{
    Answer, Failed, Gates, Journal, broker, commits, committed, ms, pass, produce, produce_keys,
    quiet, revoke, run, source, tp, with,
};

/// C36
#[tokio::test(start_paused = true)]
async fn the_finished_prefix_is_committed_before_the_partition_is_released() {
    let broker = broker(2);
    produce(&broker, 0, 5);
    produce(&broker, 1, 5);
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                let work = journal.begin(&message);
                let is_slow = (message.partition(), message.offset()) == (0, 2);
                pass(if is_slow { 3_000 } else { 300 }).await;
                work.done();
                Answer::Ok(())
            },
        )));
    let source = source(&broker).build().unwrap();
    let member = source.member();
    let serving = run(serve(source, stack));
    quiet().await;
    let released = member.revoke([tp(0)], ms(1_000)).await;

    assert_eq!(committed(&broker, 0), Some(2));
    assert_eq!(released.len(), 1);
    assert_eq!(released[0].tp, tp(0));
    assert_eq!(released[0].committed, Some(2));
    assert_eq!((released[0].not_committed, released[0].cut), (None, 1));
    assert!(journal.millis() <= 1_001, "within the budget");
    assert_eq!(journal.live(), 0, "the slow one is dropped");
    // the other partition keeps its work; its commit is 5 s late at most
    assert_eq!(journal.done(1).len(), 5);
    member.assign([]).await;
    pass(1_000).await;
    assert_eq!(committed(&broker, 1), Some(5));
    assert_eq!(commits(&broker, 0), [2]);
    serving.kill().await;
}

/// C38
#[tokio::test(start_paused = true)]
async fn partitions_without_work_add_nothing_to_a_drain() {
    let broker = broker(4);
    produce(&broker, 0, 1);
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                let work = journal.begin(&message);
                pass(2_000).await;
                work.done();
                Answer::Ok(())
            },
        )));
    let source = source(&broker).build().unwrap();
    let member = source.member();
    let serving = run(serve(source, stack));
    quiet().await;
    let released = member.revoke((0..4).map(tp), ms(60_000)).await;
    assert_eq!(journal.millis(), 2_000);
    let committed: Vec<_> = released.iter().map(|released| released.committed).collect();
    assert_eq!(committed, [Some(1), None, None, None]);

    // assigned and revoked with no poll in between
    let (_, released) = tokio::join!(
        member.assign([tp(0), tp(1)]),
        member.revoke([tp(0), tp(1)], ms(60_000))
    );
    assert_eq!(released.len(), 2);
    assert_eq!(journal.millis(), 2_000);
    serving.kill().await;
}

/// C41: a handler that collects messages and answers a hundred at a time.
#[tokio::test(start_paused = true)]
async fn a_half_filled_batch_of_a_revoked_partition_is_neither_handled_nor_committed() {
    let broker = broker(1);
    produce(&broker, 0, 60);
    let batch: Arc<Mutex<Vec<oneshot::Sender<()>>>> = Arc::default();
    let journal = Journal::new();
    let collects = |(journal, batch): (Journal, Arc<Mutex<Vec<_>>>), message: Message| async move {
        let (done, wait) = oneshot::channel();
        let full = {
            let mut batch = batch.lock();
            batch.retain(|other: &oneshot::Sender<()>| !other.is_closed());
            batch.push(done);
            (batch.len() == 100).then(|| std::mem::take(&mut *batch))
        };
        for done in full.into_iter().flatten() {
            let _ = done.send(());
        }
        wait.await.map_err(|_| Failed("the batch is gone"))?;
        journal.begin(&message).done();
        Answer::Ok(())
    };
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(with((journal.clone(), batch), collects)));
    let source_1 = source(&broker).build().unwrap();
    let member = source_1.member();
    let serving = run(serve(source_1, stack.clone()));
    quiet().await;
    let released = member.revoke([tp(0)], ms(1_000)).await;
    assert_eq!((released[0].committed, released[0].cut), (None, 60));
    assert_eq!(journal.done(0), [0i64; 0]);

    // another member takes over
    produce(&broker, 0, 140);
    let source_2 = source(&broker).until_end().build().unwrap();
    serve(source_2, stack).await.unwrap();
    assert_eq!(journal.done_sorted(0), Vec::from_iter(0..200));
    assert_eq!(committed(&broker, 0), Some(200));
    serving.kill().await;
}

/// C60: 0 and 3 of key a, 1 and 2 of key b; 2 is queued when the shutdown comes.
#[tokio::test(start_paused = true)]
async fn what_is_queued_at_shutdown_does_not_start_and_holds_the_commit() {
    for limit in [30_000, 0] {
        let broker = broker(1);
        produce_keys(&broker, 0, ["a", "b", "b", "a"]);
        let (journal, gates) = (Journal::new(), Gates::default());
        let stack = ServiceBuilder::new()
            .layer(CommitLayer::new())
            .layer(OrderLayer::by_key())
            // the queue of a worker
            .filter_async(with(gates.clone(), |gates, message: Message| async move {
                if message.offset() == 2 {
                    gates.wait(&message).await;
                }
                Ok::<_, Failed>(message)
            }))
            .service(handler_fn(with(
                journal.clone(),
                |journal, message| async move {
                    journal.begin(&message).done();
                    Answer::Ok(())
                },
            )));
        let source_1 = source(&broker).commit_interval(ms(0)).build().unwrap();
        let serving = run(serve(source_1, stack.clone()).shutdown_limit(ms(limit)));
        quiet().await;
        let opened = tokio::time::Instant::now();
        let summary = serving.shutdown().await.unwrap();
        assert_eq!(opened.elapsed(), ms(0), "there is nothing to wait for");
        assert_eq!(journal.done(0), [0, 1, 3]);
        assert_eq!(summary.committed("orders", 0), Some(2));
        assert_eq!(committed(&broker, 0), Some(2));

        gates.open(0, 2);
        let source_2 = source(&broker).until_end().build().unwrap();
        serve(source_2, stack).await.unwrap();
        assert_eq!(journal.done(0)[3..], [2, 3]);
        assert_eq!(committed(&broker, 0), Some(4));
    }
}

/// C62
#[tokio::test(start_paused = true)]
async fn a_shutdown_is_no_failure_of_what_it_cuts() {
    for limit in [0, 100] {
        let broker = broker(1);
        produce(&broker, 0, 4);
        let journal = Journal::new();
        let stack = ServiceBuilder::new()
            .layer(CommitLayer::new())
            .layer(OrderLayer::by_key())
            .retry(Backoff::fixed(ms(0)).max_attempts(4))
            .service(handler_fn(with(
                journal.clone(),
                |journal, message| async move {
                    let work = journal.begin(&message);
                    pass(1_000).await;
                    work.done();
                    Answer::Ok(())
                },
            )));
        let source_1 = source(&broker).build().unwrap();
        let serving = run(serve(source_1, stack.clone()).shutdown_limit(ms(limit)));
        quiet().await;
        let summary = serving.shutdown().await.unwrap();
        quiet().await;
        assert_eq!(journal.live(), 0);
        assert_eq!(journal.starts(0), [0, 1, 2, 3], "no retry");
        assert_eq!(summary.partitions[0].cut, 4);
        assert_eq!(summary.counts.finished(), 0);
        assert_eq!(commits(&broker, 0), [0i64; 0]);

        let source_2 = source(&broker).until_end().build().unwrap();
        serve(source_2, stack).await.unwrap();
        assert_eq!(journal.done(0), [0, 1, 2, 3]);
        assert_eq!(committed(&broker, 0), Some(4));
    }
}

/// C63
#[tokio::test(start_paused = true)]
async fn a_handler_that_ends_within_the_shutdown_limit_is_committed() {
    let broker = broker(1);
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
    let serving = run(serve(source, stack));
    quiet().await;
    tokio::spawn({
        let gates = gates.clone();
        async move {
            pass(500).await;
            gates.open_all(0, [0, 1]);
        }
    });
    let summary = serving.shutdown().await.unwrap();
    assert_eq!(journal.millis(), 501);
    assert_eq!(journal.starts(0), [0], "the queued one is delivered again");
    assert_eq!(summary.committed("orders", 0), Some(1));
    assert_eq!(committed(&broker, 0), Some(1));
}

/// Waiting is not running: a drain does not wait for what waits for a lane, a permit or its next attempt.
#[tokio::test(start_paused = true)]
async fn a_drain_waits_only_for_what_runs() {
    let broker = broker(1);
    produce_keys(&broker, 0, ["a", "a", "b", "c", "d"]);
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .retry(Backoff::fixed(ms(10_000)))
        .concurrency_limit(2)
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                let work = journal.begin(&message);
                match message.offset() {
                    // backs off for 10 s
                    2 => return Err(Failed("not now")),
                    _ => pass(300).await,
                }
                work.done();
                Answer::Ok(())
            },
        )));
    let source = source(&broker).build().unwrap();
    let member = source.member();
    let serving = run(serve(source, stack));
    pass(100).await;
    assert_eq!(journal.starts(0), [0, 2, 3]);
    let released = member.revoke([tp(0)], ms(60_000)).await;
    assert_eq!(journal.millis(), 300);
    assert_eq!((released[0].committed, released[0].cut), (Some(1), 0));
    pass(60_000).await;
    assert_eq!(journal.starts(0), [0, 2, 3]);
    serving.kill().await;
}

/// An attempt that fails while its partition is given up is not followed by another.
#[tokio::test(start_paused = true)]
async fn a_failure_during_a_drain_is_neither_retried_nor_an_error_of_serve() {
    let broker = broker(2);
    produce(&broker, 0, 1);
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .retry(Backoff::fixed(ms(0)))
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                let work = journal.begin(&message);
                pass(300).await;
                if message.partition() == 0 {
                    return Err(Failed("during the drain"));
                }
                work.done();
                Answer::Ok(())
            },
        )));
    let source = source(&broker).build().unwrap();
    let member = source.member();
    let serving = run(serve(source, stack));
    quiet().await;
    let released = member.revoke([tp(0)], ms(60_000)).await;
    assert_eq!(journal.millis(), 300);
    assert_eq!((released[0].committed, released[0].cut), (None, 0));
    produce(&broker, 1, 1);
    pass(10_000).await;
    assert_eq!(journal.starts(0), [0]);
    assert_eq!(committed(&broker, 1), Some(1));
    serving.shutdown().await.unwrap();
}

/// What a layer outside of `CommitLayer` holds back has not begun, and nobody inside can tell it of the end.
#[tokio::test(start_paused = true)]
async fn what_waits_outside_of_the_commit_layer_does_not_delay_the_shutdown() {
    let broker = broker(1);
    produce(&broker, 0, 3);
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .filter_async(|message: Message| async move {
            if message.offset() == 1 {
                std::future::pending::<()>().await;
            }
            Ok::<_, Failed>(message)
        })
        .layer(CommitLayer::new())
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                journal.begin(&message).done();
                Answer::Ok(())
            },
        )));
    let serving = run(serve(source(&broker).build().unwrap(), stack));
    quiet().await;
    let summary = serving.shutdown().await.unwrap();
    assert_eq!(journal.millis(), 1);
    assert_eq!(journal.done(0), [0, 2]);
    assert_eq!(summary.committed("orders", 0), Some(1));
    assert_eq!(committed(&broker, 0), Some(1));
}

/// It is cut when its own work is over, not when the partition's is: what it holds is given back.
#[tokio::test(start_paused = true)]
async fn a_message_whose_background_work_ends_during_a_drain_does_not_wait_for_the_others() {
    let broker = broker(1);
    produce(&broker, 0, 2);
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .retry(Backoff::fixed(ms(60_000)))
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
                    return Err(Failed("goes on in the background"));
                }
                pass(600).await;
                work.done();
                Answer::Ok(())
            },
        )));
    let source = source(&broker).build().unwrap();
    let member = source.member();
    let serving = run(serve(source, stack));
    quiet().await;
    let revoked = revoke(&member, [0], 10_000);
    pass(200).await;
    assert_eq!(member.books().counts().not_finished(Reason::Cut), 0);
    pass(200).await;
    assert_eq!(member.books().counts().not_finished(Reason::Cut), 1);
    assert_eq!(revoked.await.unwrap().0, 599);
    assert_eq!(journal.starts(0), [0, 1]);
    serving.kill().await;
}
