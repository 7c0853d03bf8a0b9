//! Kind 5: what was taken for a message is given back when its partition goes.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tower::ServiceBuilder;
use tower::limit::GlobalConcurrencyLimitLayer;
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::handler_fn;
use tower_consumer::ledger::Reason;
use tower_consumer::order::OrderLayer;
use tower_consumer::serve;
use tower_consumer::serve::OnFailure;

use crate::support::{
    Answer, Failed, Gates, Journal, Random, broker, commits, committed, ms, pass, produce,
    produce_keys, quiet, run, source, tp, with,
};

/// C26
#[tokio::test(start_paused = true)]
async fn after_1000_revokes_every_permit_lane_and_count_is_back() {
    let broker = broker(2);
    produce_keys(&broker, 0, ["a", "b", "c", "d"]);
    let journal = Journal::new();
    let permits = Arc::new(Semaphore::new(4));
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .layer(GlobalConcurrencyLimitLayer::with_semaphore(permits.clone()))
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                let work = journal.begin(&message);
                // the work on partition 0 never lasts for good: only the first ends, and it fails
                match (message.partition(), message.offset()) {
                    (0, 0) => {
                        pass(5).await;
                        return Err(Failed("again, please"));
                    }
                    (0, _) => pass(10).await,
                    _ => {}
                }
                work.done();
                Answer::Ok(())
            },
        )));
    let lanes = stack.get_ref().clone();
    let source = source(&broker).in_flight(6).build().unwrap();
    let member = source.member();
    let serving = run(serve(source, stack).on_failure(OnFailure::Hold));
    quiet().await;
    let mut random = Random::new(26);
    for round in 0..1_000 {
        pass(random.below(12)).await;
        produce(&broker, 1, 1);
        // by drop, or by waiting for what runs
        let budget = if round % 2 == 0 { 0 } else { 1_000 };
        member.revoke([tp(0)], ms(budget)).await;
        quiet().await;
        assert_eq!(permits.available_permits(), 4, "round {round}");
        assert_eq!(member.books().in_flight(), (0, 0), "round {round}");
        assert_eq!(lanes.lanes(), 0, "round {round}");
        assert_eq!(journal.live(), 0, "round {round}");
        assert_eq!(member.books().assigned(), [tp(1)]);
        assert_eq!(journal.done(1).len(), round + 1);
        member.assign([tp(0)]).await;
    }
    pass(2_000).await;
    assert_eq!(committed(&broker, 0), None);
    assert_eq!(committed(&broker, 1), Some(1_000));
    serving.kill().await;
}

/// C27
#[tokio::test(start_paused = true)]
async fn what_finished_out_of_order_is_forgotten_with_its_assignment() {
    let broker = broker(2);
    produce(&broker, 0, 30);
    produce(&broker, 1, 30);
    let (journal, gates) = (Journal::new(), Gates::default());
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(with(
            (journal.clone(), gates.clone()),
            |(journal, gates), message| async move {
                let work = journal.begin(&message);
                if (message.partition(), message.offset()) == (1, 0) {
                    gates.wait(&message).await;
                }
                work.done();
                Answer::Ok(())
            },
        )));
    let source = source(&broker).window(10).build().unwrap();
    let member = source.member();
    let serving = run(serve(source, stack));
    for round in 1..=20 {
        quiet().await;
        assert_eq!(journal.starts(1).len(), 10 * round, "10 are handed out");
        assert_eq!(member.books().in_flight().0, 1);
        let released = member.revoke([tp(1)], ms(0)).await;
        assert_eq!((released[0].committed, released[0].cut), (None, 1));
        quiet().await;
        assert_eq!(member.books().in_flight().0, 0);
        member.assign([tp(1)]).await;
    }
    gates.open(1, 0);
    pass(2_000).await;
    assert_eq!(committed(&broker, 0), Some(30));
    assert_eq!(committed(&broker, 1), Some(30));
    serving.kill().await;
}

/// C28
#[tokio::test(start_paused = true)]
async fn a_new_assignment_does_not_let_more_through_than_the_limit() {
    let broker = broker(1);
    produce(&broker, 0, 1_000);
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                let work = journal.begin(&message);
                pass(10).await;
                work.done();
                Answer::Ok(())
            },
        )));
    let source = source(&broker).in_flight(5).build().unwrap();
    let member = source.member();
    let serving = run(serve(source, stack));
    for round in 0..20 {
        pass(35).await;
        assert_eq!(journal.live(), 5);
        member.revoke([tp(0)], ms(round % 2 * 100)).await;
        member.assign([tp(0)]).await;
    }
    pass(5_000).await;
    assert_eq!(journal.most_live(), 5);
    assert_eq!(committed(&broker, 0), Some(1_000));
    assert!(commits(&broker, 0).is_sorted());
    serving.kill().await;
}

/// The same when everything is lost at once, with nothing waited for.
#[tokio::test(start_paused = true)]
async fn a_lost_partition_gives_everything_back_too() {
    let broker = broker(3);
    for partition in 0..3 {
        produce_keys(&broker, partition, ["a", "a", "b", "c"]);
    }
    let journal = Journal::new();
    let permits = Arc::new(Semaphore::new(2));
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .layer(GlobalConcurrencyLimitLayer::with_semaphore(permits.clone()))
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                let _work = journal.begin(&message);
                std::future::pending::<Answer>().await
            },
        )));
    let lanes = stack.get_ref().clone();
    let source = source(&broker).build().unwrap();
    let member = source.member();
    let serving = run(serve(source, stack));
    quiet().await;
    assert_eq!((journal.live(), lanes.lanes()), (2, 9));
    member.lose([tp(0), tp(1), tp(2)]).await;
    quiet().await;
    assert_eq!((journal.live(), lanes.lanes()), (0, 0));
    assert_eq!(permits.available_permits(), 2);
    assert_eq!(member.books().in_flight(), (0, 0));
    let counts = member.books().counts();
    assert_eq!((counts.delivered, counts.late), (12, 12));
    assert_eq!(counts.not_finished(Reason::Failed), 0);
    serving.kill().await;
}
