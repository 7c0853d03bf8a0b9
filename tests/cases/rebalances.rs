//! Other faults: rebalances that meet each other, a shutdown, or work that does not end.

use std::collections::HashSet;
use std::future::pending;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;
use tower::ServiceBuilder;
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::handler_fn;
use tower_consumer::order::OrderLayer;
use tower_consumer::source::memory::MemoryMember;
use tower_consumer::{Message, serve};

use crate::support::{
    Answer, Journal, broker, commits, committed, gated, ms, pass, produce, produce_keys, quiet,
    revoke, run, source, tp, with,
};

#[tokio::test(start_paused = true)]
async fn a_second_revoke_of_the_same_partition_changes_nothing_and_both_are_answered() {
    let broker = broker(1);
    produce(&broker, 0, 2);
    let (journal, gates, member, serving) = gated(&broker);
    quiet().await;
    let one = revoke(&member, [0], 1_000);
    pass(100).await;
    let two = revoke(&member, [0], 10_000);
    pass(100).await;
    gates.open(0, 0);
    let ((one, released), (two, _)) = (one.await.unwrap(), two.await.unwrap());
    // the shorter budget holds: 1 runs until four fifths of it are over
    assert_eq!((one, two), (800, 700));
    assert_eq!((released[0].committed, released[0].cut), (Some(1), 1));
    pass(10_000).await;
    assert_eq!(commits(&broker, 0), [1]);
    assert_eq!(journal.live(), 0);
    serving.kill().await;
}

#[tokio::test(start_paused = true)]
async fn a_revoke_of_a_partition_that_was_never_assigned_is_answered_at_once() {
    let broker = broker(1);
    let (_, _, member, serving) = gated(&broker);
    let (took, released) = revoke(&member, [7], 10_000).await.unwrap();
    assert_eq!((took, released.len()), (0, 0));
    member.lose([tp(7)]).await;
    produce(&broker, 0, 1);
    quiet().await;
    assert_eq!(member.books().assigned(), [tp(0)]);
    serving.kill().await;
}

#[tokio::test(start_paused = true)]
async fn an_assignment_of_what_is_assigned_leaves_the_running_work_alone() {
    let broker = broker(1);
    produce(&broker, 0, 2);
    let (journal, gates, member, serving) = gated(&broker);
    quiet().await;
    member.assign([tp(0)]).await;
    gates.open_all(0, [0, 1]);
    quiet().await;
    assert_eq!(journal.starts(0), [0, 1]);
    assert_eq!(committed(&broker, 0), Some(2));
    serving.kill().await;
}

#[tokio::test(start_paused = true)]
async fn a_partition_assigned_while_it_is_being_given_up_comes_back_when_it_is_released() {
    let broker = broker(2);
    produce(&broker, 0, 2);
    produce(&broker, 1, 2);
    let (journal, gates, member, serving) = gated(&broker);
    quiet().await;
    let revoked = revoke(&member, [0], 10_000);
    quiet().await;
    let assigned = tokio::spawn({
        let member = member.clone();
        async move { member.assign([tp(0)]).await }
    });
    pass(100).await;
    assert!(!assigned.is_finished());
    gates.open_all(0, [0, 1]);
    assert_eq!(revoked.await.unwrap().1[0].committed, Some(2));
    assigned.await.unwrap();
    produce(&broker, 0, 1);
    gates.open(0, 2);
    quiet().await;
    assert_eq!(journal.starts(0), [0, 1, 2]);
    assert_eq!(committed(&broker, 0), Some(3));
    serving.kill().await;
}

#[tokio::test(start_paused = true)]
async fn a_loss_during_a_drain_ends_it_at_once_and_commits_nothing() {
    let broker = broker(2);
    produce(&broker, 0, 3);
    produce(&broker, 1, 1);
    let (journal, gates, member, serving) = gated(&broker);
    quiet().await;
    let drain = revoke(&member, [0], 30_000);
    quiet().await;
    gates.open(0, 0);
    pass(100).await;
    member.lose([tp(0)]).await;
    let (took, _) = drain.await.unwrap();
    assert_eq!(took, 101);
    quiet().await;
    assert_eq!(journal.live(), 1, "the work on the other partition");
    gates.open_all(0, [1, 2]);
    pass(60_000).await;
    assert_eq!(commits(&broker, 0), [0i64; 0]);
    assert_eq!(journal.done(0), [0]);
    serving.kill().await;
}

#[tokio::test(start_paused = true)]
async fn a_loss_during_the_shutdown_ends_it_at_once() {
    let broker = broker(1);
    produce(&broker, 0, 2);
    let (journal, gates, member, serving) = gated(&broker);
    quiet().await;
    gates.open(0, 0);
    quiet().await;
    tokio::spawn(async move {
        pass(100).await;
        member.lose([tp(0)]).await;
    });
    let opened = Instant::now();
    let summary = serving.shutdown().await.unwrap();
    assert_eq!(opened.elapsed(), ms(100));
    assert_eq!(summary.partitions, []);
    assert_eq!(commits(&broker, 0), [1]);
    quiet().await;
    assert_eq!(journal.live(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_revoke_during_the_shutdown_is_answered_within_its_own_budget() {
    let broker = broker(1);
    produce(&broker, 0, 2);
    let (_, gates, member, serving) = gated(&broker);
    quiet().await;
    gates.open(0, 0);
    quiet().await;
    let revoked = tokio::spawn(async move {
        pass(100).await;
        revoke(&member, [0], 1_000).await.unwrap()
    });
    let opened = Instant::now();
    let summary = serving.shutdown().await.unwrap();
    assert_eq!(opened.elapsed(), ms(900));
    assert_eq!(summary.committed("orders", 0), Some(1));
    assert_eq!(summary.partitions[0].cut, 1);
    assert_eq!(revoked.await.unwrap().0, 800);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_during_a_revoke_takes_both_partitions_with_it() {
    let broker = broker(2);
    produce(&broker, 0, 2);
    produce(&broker, 1, 2);
    let (_, gates, member, serving) = gated(&broker);
    quiet().await;
    gates.open(0, 0);
    let revoked = revoke(&member, [0], 1_000);
    pass(100).await;
    tokio::spawn({
        let gates = gates.clone();
        async move {
            pass(10_000).await;
            gates.open_all(1, [0, 1]);
        }
    });
    let opened = Instant::now();
    let summary = serving.shutdown().await.unwrap();
    assert_eq!(opened.elapsed(), ms(10_000));
    assert_eq!(summary.committed("orders", 0), Some(1));
    assert_eq!(summary.committed("orders", 1), Some(2));
    assert_eq!(revoked.await.unwrap().1[0].committed, Some(1));
    assert_eq!(committed(&broker, 0), Some(1));
    assert_eq!(committed(&broker, 1), Some(2));
}

#[tokio::test(start_paused = true)]
async fn overlapping_revokes_do_not_stop_the_world() {
    let broker = broker(3);
    for partition in 0..3 {
        produce(&broker, partition, 2);
    }
    let (journal, gates, member, serving) = gated(&broker);
    quiet().await;
    let one = revoke(&member, [0], 1_000);
    pass(100).await;
    let two = revoke(&member, [0, 1], 10_000);
    // both hang, and the third partition works on
    for n in 0..2 {
        pass(2_000).await;
        gates.open(2, n);
        quiet().await;
        assert_eq!(journal.done(2).len(), n as usize + 1);
    }
    let (one, two) = (one.await.unwrap().0, two.await.unwrap().0);
    assert!(one <= 10_100 && two <= 10_000, "{one} {two}");
    member.assign([]).await;
    quiet().await;
    assert_eq!(committed(&broker, 2), Some(2));
    serving.kill().await;
}

#[tokio::test(start_paused = true)]
async fn three_hundred_partitions_are_revoked_and_come_back_together() {
    let broker = broker(300);
    for partition in 0..300 {
        produce(&broker, partition, 3);
    }
    let seen: Arc<Mutex<HashSet<i32>>> = Arc::default();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(with(
            seen,
            |seen, message: Message| async move {
                // the second message of each partition never ends the first time
                if message.offset() == 1 && seen.lock().insert(message.partition()) {
                    pending::<()>().await;
                }
                Answer::Ok(())
            },
        )));
    let source = source(&broker).build().unwrap();
    let member = source.member();
    let serving = run(serve(source, stack));
    quiet().await;
    let (took, released) = revoke(&member, 0..300, 1_000).await.unwrap();
    assert_eq!(took, 800);
    assert_eq!(released.len(), 300);
    assert!(
        released
            .iter()
            .all(|r| (r.committed, r.cut) == (Some(1), 1))
    );
    member.assign((0..300).map(tp)).await;
    pass(2_000).await;
    assert!((0..300).all(|p| committed(&broker, p) == Some(3)));
    serving.kill().await;
}

/// Work that waits for the drain that waits for it.
#[tokio::test(start_paused = true)]
async fn a_handler_that_revokes_its_own_partition_is_cut_when_the_budget_is_over() {
    let broker = broker(1);
    produce(&broker, 0, 2);
    let journal = Journal::new();
    let source = source(&broker).build().unwrap();
    let member = source.member();
    let revokes = |(journal, member): (Journal, MemoryMember), message: Message| async move {
        let work = journal.begin(&message);
        if message.offset() == 1 && journal.starts(0).len() == 2 {
            member.revoke([tp(0)], ms(1_000)).await;
        }
        work.done();
        Answer::Ok(())
    };
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(with((journal.clone(), member.clone()), revokes)));
    let serving = run(serve(source, stack));
    pass(2_000).await;
    assert_eq!(journal.live(), 0);
    assert_eq!(journal.done(0), [0]);
    assert_eq!(commits(&broker, 0), [1]);
    member.assign([tp(0)]).await;
    pass(2_000).await;
    assert_eq!(journal.done(0), [0, 1]);
    assert_eq!(committed(&broker, 0), Some(2));
    serving.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_is_never_dropped_costs_the_budget_and_its_own_key() {
    let broker = broker(1);
    produce_keys(&broker, 0, ["a", "b"]);
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                let work = journal.begin(&message);
                if message.offset() == 0 {
                    std::mem::forget(message.guard());
                    pending::<()>().await;
                }
                work.done();
                Answer::Ok(())
            },
        )));
    let source = source(&broker).build().unwrap();
    let member = source.member();
    let serving = run(serve(source, stack));
    quiet().await;
    let (took, released) = revoke(&member, [0], 1_000).await.unwrap();
    assert_eq!(took, 800);
    assert_eq!(released[0].cut, 2, "the attempt and its guard");
    member.assign([tp(0)]).await;
    produce_keys(&broker, 0, ["a", "b"]);
    pass(10_000).await;
    // its key stays busy for good, the other one does not
    assert_eq!(journal.starts(0), [0, 1, 1, 3]);
    assert_eq!(committed(&broker, 0), None);
    let summary = serving.shutdown().await.unwrap();
    assert_eq!(
        summary.partitions[0].cut, 0,
        "what waits for a lane is not running"
    );
}

#[tokio::test(start_paused = true)]
async fn a_member_whose_source_is_gone_answers_all_the_same() {
    let broker = broker(1);
    produce(&broker, 0, 1);
    let (_, _, member, serving) = gated(&broker);
    quiet().await;
    // asked for, and not looked at before the end
    let (took, released) = {
        let revoked = revoke(&member, [0], 10_000);
        serving.kill().await;
        revoked.await.unwrap()
    };
    assert!(took <= 1, "{took} ms");
    assert_eq!(released, []);
    let asked = Instant::now();
    assert_eq!(member.revoke([tp(0)], ms(1_000)).await, []);
    member.assign([tp(0)]).await;
    member.lose([tp(0)]).await;
    assert_eq!(asked.elapsed(), ms(0));
    assert_eq!(member.books().assigned(), []);
}

/// A partition that was added to the topic while the source was running.
#[tokio::test(start_paused = true)]
async fn an_added_partition_is_read_from_its_start() {
    let broker = broker(1);
    let (journal, gates, member, serving) = gated(&broker);
    quiet().await;
    produce(&broker, 3, 5);
    pass(1_000).await;
    assert_eq!(journal.starts(3), [0i64; 0]);
    member.assign([tp(3)]).await;
    gates.open_all(3, 0..5);
    quiet().await;
    assert_eq!(journal.done(3), [0, 1, 2, 3, 4]);
    assert_eq!(committed(&broker, 3), Some(5));
    assert_eq!(committed(&broker, 0), None);
    serving.kill().await;
}
