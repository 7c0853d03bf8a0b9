//! Other faults: failures that nobody looks at, and user code that misbehaves on its way out.

use std::sync::Arc;

use bytes::Bytes;
use tower::ServiceBuilder;
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::handler_fn;
use tower_consumer::ledger::Reason;
use tower_consumer::order::OrderLayer;
use tower_consumer::serve::{OnFailure, ServeErrorKind};
use tower_consumer::source::memory::MemoryBroker;
use tower_consumer::{Message, serve};

use crate::support::{
    Answer, Failed, Gates, Journal, broker, commits, committed, gated, ms, pass, produce,
    produce_keys, quiet, revoke, run, source, tp, with,
};

#[tokio::test(start_paused = true)]
async fn a_failure_just_before_the_end_of_the_source_is_not_forgotten() {
    let broker = broker(1);
    produce(&broker, 0, 3);
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(|message: Message| async move {
            match message.offset() {
                1 => Err(Failed("the second of three")),
                _ => Ok(()),
            }
        }));
    let source = source(&broker).until_end().build().unwrap();
    let error = serve(source, stack).await.unwrap_err();
    let ServeErrorKind::NotFinished { offset, cause, .. } = error.kind else {
        panic!("{error}");
    };
    assert_eq!(offset, 1);
    assert_eq!(cause.unwrap().to_string(), "the second of three");
    assert_eq!(commits(&broker, 0), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_in_the_same_instant_as_the_shutdown_is_not_forgotten() {
    let broker = broker(1);
    produce(&broker, 0, 3);
    let stop = Arc::new(tokio::sync::Notify::new());
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(with(
            stop.clone(),
            |stop, message: Message| async move {
                pass(100).await;
                match message.offset() {
                    1 => {
                        stop.notify_one();
                        Err(Failed("the second of three"))
                    }
                    _ => Ok(()),
                }
            },
        )));
    let serve = serve(source(&broker).build().unwrap(), stack);
    let error = serve
        .with_graceful_shutdown(async move { stop.notified().await })
        .await
        .unwrap_err();
    let ServeErrorKind::NotFinished { offset, cause, .. } = error.kind else {
        panic!("{error}");
    };
    assert_eq!(offset, 1);
    assert_eq!(cause.unwrap().to_string(), "the second of three");
    assert_eq!(commits(&broker, 0), [1]);
}

/// An error that counts how many of it there are.
#[derive(Debug, thiserror::Error)]
#[error("the partition went away meanwhile")]
struct Counted(#[allow(dead_code)] Arc<()>);

#[tokio::test(start_paused = true)]
async fn errors_of_messages_whose_partition_went_away_are_not_kept() {
    let broker = broker(1);
    produce(&broker, 0, 10);
    let alive = Arc::new(());
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(with(
            alive.clone(),
            |alive, _: Message| async move {
                pass(100).await;
                Err::<(), _>(Counted(alive))
            },
        )));
    let handler_alone = 3;
    let source = source(&broker).build().unwrap();
    let member = source.member();
    let serving = run(serve(source, stack));
    for _ in 0..100 {
        pass(50).await;
        // the handlers fail while it is being given up: that is no failure of the run
        member.revoke([tp(0)], ms(1_000)).await;
        quiet().await;
        assert!(Arc::strong_count(&alive) <= handler_alone);
        member.assign([tp(0)]).await;
    }
    serving.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_while_the_service_is_not_ready_cuts_the_message_in_hand() {
    let broker = broker(1);
    produce(&broker, 0, 3);
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
    let serving = run(serve(source(&broker).build().unwrap(), stack));
    quiet().await;
    gates.open(0, 0);
    let summary = serving.shutdown().await.unwrap();
    assert_eq!(journal.starts(0), [0]);
    assert_eq!(summary.committed("orders", 0), Some(1));
    // neither dropped by anybody nor a failure: given up with its partition
    assert_eq!(summary.counts.not_finished(Reason::Dropped), 0);
    assert_eq!(summary.counts.delivered, 2);
    assert_eq!(
        summary.counts.not_finished(Reason::Cut) + summary.counts.late,
        1
    );
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("a drop that panics");
    }
}

impl AsRef<[u8]> for PanicsWhenDropped {
    fn as_ref(&self) -> &[u8] {
        b"payload"
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_while_it_is_cut_releases_its_partition_all_the_same() {
    let broker = broker(2);
    produce_keys(&broker, 0, ["a", "a"]);
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                let work = journal.begin(&message);
                if (message.partition(), journal.starts(0).len()) == (0, 1) {
                    let _bomb = PanicsWhenDropped;
                    std::future::pending::<()>().await;
                }
                work.done();
                Answer::Ok(())
            },
        )));
    let lanes = stack.get_ref().clone();
    let source = source(&broker).build().unwrap();
    let member = source.member();
    let serving = run(serve(source, stack));
    quiet().await;
    let (took, released) = revoke(&member, [0], 1_000).await.unwrap();
    assert_eq!(took, 800);
    assert_eq!((released[0].committed, released[0].cut), (None, 1));
    quiet().await;
    assert_eq!((journal.live(), lanes.lanes()), (0, 0));
    member.assign([tp(0)]).await;
    pass(2_000).await;
    assert_eq!(journal.starts(0), [0, 0, 1]);
    assert_eq!(committed(&broker, 0), Some(2));
    serving.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_after_its_last_line_has_not_finished_its_message() {
    let broker = broker(1);
    produce(&broker, 0, 3);
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .service(handler_fn(|message: Message| async move {
            let _bomb = (message.offset() == 1).then(|| PanicsWhenDropped);
            Answer::Ok(())
        }));
    let source = source(&broker).until_end().build().unwrap();
    let summary = serve(source, stack)
        .on_failure(OnFailure::Hold)
        .await
        .unwrap();
    assert_eq!(summary.counts.done, 2);
    assert_eq!(summary.counts.not_finished(Reason::Panicked), 1);
    assert_eq!(commits(&broker, 0), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_payload_that_panics_when_it_is_dropped_does_not_take_serve_with_it() {
    let broker = broker(1);
    for n in 0..3 {
        let payload = match n {
            1 => Bytes::from_owner(PanicsWhenDropped),
            _ => Bytes::from_static(b"payload"),
        };
        broker.produce(Message::builder("orders").payload(payload));
    }
    let (journal, gates, _, serving) = gated(&broker);
    quiet().await;
    // the broker lets go of the log, so the last who holds the payload is the stack
    broker.create_topic("orders", 1);
    for offset in 0..3 {
        gates.open(0, offset);
        quiet().await;
    }
    assert_eq!(journal.done(0), [0, 1, 2]);
    assert!(!serving.is_over());
    let summary = serving.shutdown().await.unwrap();
    assert_eq!(summary.counts.delivered, 3);
    assert_eq!(committed(&broker, 0), Some(3));
}

/// A payload that asks the broker for something when it is dropped.
struct AsksTheBroker(MemoryBroker);

impl Drop for AsksTheBroker {
    fn drop(&mut self) {
        assert_eq!(self.0.log_end("elsewhere", 0), None);
    }
}

impl AsRef<[u8]> for AsksTheBroker {
    fn as_ref(&self) -> &[u8] {
        b"payload"
    }
}

#[tokio::test(start_paused = true)]
async fn a_payload_is_never_dropped_under_the_brokers_lock() {
    let broker = broker(1);
    let payload = Bytes::from_owner(AsksTheBroker(broker.clone()));
    broker.produce(Message::builder("orders").payload(payload));
    broker.create_topic("orders", 1);
    assert_eq!(broker.log_end("orders", 0), Some(0));
}
