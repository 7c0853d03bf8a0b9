//! Kind 4: an old assignment meets a new one.

use tower::ServiceBuilder;
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::handler_fn;
use tower_consumer::order::OrderLayer;
use tower_consumer::source::memory::CommitReply;
use tower_consumer::{Message, serve};

use crate::support::{
    Answer, GROUP, Gates, Journal, broker, commits, committed, gated, ms, pass, produce,
    produce_at, produce_keys, quiet, run, source, tp, with,
};

/// C18
#[tokio::test(start_paused = true)]
async fn the_end_of_an_old_assignment_leaves_the_new_one_untouched() {
    let broker = broker(1);
    produce_at(&broker, 0, &[10]);
    let (_, gates, member, serving) = gated(&broker);
    quiet().await;
    member.revoke([tp(0)], ms(0)).await;
    member.assign([tp(0)]).await;
    // again, by name, after the new one began: there is nothing old left to purge
    member.assign([tp(0)]).await;
    quiet().await;
    gates.open(0, 10);
    quiet().await;
    assert_eq!(commits(&broker, 0), [11]);
    serving.kill().await;
}

/// C21
#[tokio::test(start_paused = true)]
async fn completions_after_the_partition_went_elsewhere_commit_nothing() {
    for is_lost in [true, false] {
        let broker = broker(1);
        produce(&broker, 0, 200);
        broker.commit("billing", "orders", 0, 100);
        let (journal, gates, member, serving) = gated(&broker);
        quiet().await;
        assert_eq!(journal.starts(0), Vec::from_iter(100..200));
        // ten ends and the loss come together
        gates.open_all(0, 101..110);
        if is_lost {
            member.lose([tp(0)]).await;
        } else {
            member.revoke([tp(0)], ms(0)).await;
        }
        gates.open(0, 100);
        broker.commit("billing", "orders", 0, 150);
        pass(5_000).await;
        assert_eq!(commits(&broker, 0), [100, 150]);

        member.assign([tp(0)]).await;
        quiet().await;
        assert_eq!(journal.starts(0)[100], 150);
        gates.open_all(0, 150..200);
        quiet().await;
        assert!(commits(&broker, 0).is_sorted());
        assert_eq!(committed(&broker, 0), Some(200));
        serving.kill().await;
    }
}

/// C23
#[tokio::test(start_paused = true)]
async fn after_a_revoke_what_runs_may_end_and_what_waits_is_not_started() {
    let broker = broker(1);
    produce(&broker, 0, 100);
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by(|message| Some(message.offset())))
        .concurrency_limit(1)
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                let work = journal.begin(&message);
                pass(10).await;
                work.done();
                Answer::Ok(())
            },
        )));
    let source = source(&broker).build().unwrap();
    let member = source.member();
    let serving = run(serve(source, stack));
    pass(95).await;
    let released = member.revoke([tp(0)], ms(50)).await;

    assert_eq!(journal.millis(), 100);
    assert_eq!(released[0].committed, Some(10));
    assert_eq!(released[0].cut, 0);
    pass(5_000).await;
    assert_eq!(journal.starts(0), Vec::from_iter(0..10));
    assert_eq!(committed(&broker, 0), Some(10));
    serving.kill().await;
}

/// C24
#[tokio::test(start_paused = true)]
async fn a_revoke_and_a_new_assignment_repeat_what_was_running_or_wait_for_it() {
    for (budget, starts) in [(0, vec![0, 2_000]), (5_000, vec![0])] {
        let broker = broker(1);
        produce(&broker, 0, 1);
        let journal = Journal::new();
        let stack = ServiceBuilder::new()
            .layer(CommitLayer::new())
            .service(handler_fn(with(
                journal.clone(),
                |journal, message| async move {
                    let work = journal.begin(&message);
                    pass(3_000).await;
                    work.done();
                    Answer::Ok(())
                },
            )));
        let source = source(&broker).build().unwrap();
        let member = source.member();
        let serving = run(serve(source, stack));
        pass(1_000).await;
        let revoke = tokio::spawn({
            let member = member.clone();
            async move { member.revoke([tp(0)], ms(budget)).await }
        });
        pass(1_000).await;
        // within the longer budget this comes while the partition is still being given up
        member.assign([tp(0)]).await;
        let released = revoke.await.unwrap();
        assert_eq!(released[0].committed, (budget > 0).then_some(1));
        pass(10_000).await;
        assert_eq!(journal.started_at(0), starts);
        assert_eq!(committed(&broker, 0), Some(1));

        // and the new assignment is alive
        produce(&broker, 0, 1);
        pass(10_000).await;
        assert_eq!(committed(&broker, 0), Some(2), "budget {budget}");
        serving.kill().await;
    }
}

/// C25
#[tokio::test(start_paused = true)]
async fn two_messages_of_a_key_never_overlap_when_a_partition_comes_straight_back() {
    for goes_on in [false, true] {
        let broker = broker(1);
        broker.skip_offsets("orders", 0, 10);
        produce_keys(&broker, 0, ["A", "A"]);
        let journal = Journal::new();
        let handler = move |journal: Journal, message: Message| async move {
            let work = journal.begin(&message);
            let guard = goes_on.then(|| message.guard());
            let task = async move {
                pass(2_000).await;
                work.done();
                drop((work, guard));
            };
            if goes_on {
                // dropping the future does not end this
                let _ = tokio::spawn(task).await;
            } else {
                task.await;
            }
            Answer::Ok(())
        };
        let stack = ServiceBuilder::new()
            .layer(CommitLayer::new())
            .layer(OrderLayer::by_key())
            .service(handler_fn(with(journal.clone(), handler)));
        let source = source(&broker).build().unwrap();
        let member = source.member();
        let serving = run(serve(source, stack));
        pass(500).await;
        let released = member.revoke([tp(0)], ms(0)).await;
        // the attempt, and its guard
        assert_eq!(released[0].cut, 1 + usize::from(goes_on));
        member.assign([tp(0)]).await;
        pass(10_000).await;

        assert_eq!(journal.most_live(), 1);
        assert_eq!(journal.starts(0), [10, 10, 11]);
        let again = if goes_on { 2_000 } else { 500 };
        assert_eq!(journal.started_at(10), [0, again]);
        assert_eq!(journal.started_at(11), [again + 2_000]);
        assert_eq!(committed(&broker, 0), Some(12));
        serving.kill().await;
    }
}

/// C97: the end of 7 before the fence, between fence and last commit, and after the release.
#[tokio::test(start_paused = true)]
async fn a_completion_is_in_the_last_commit_or_nowhere() {
    for (ends_at, expected) in [(799, 8), (801, 7), (850, 7), (2_000, 7)] {
        let broker = broker(1);
        produce_at(&broker, 0, &[6, 7]);
        let (_, gates, member, serving) = gated(&broker);
        quiet().await;
        broker.on_commit(GROUP, |_, _| CommitReply::ok().after(ms(100)));
        tokio::spawn({
            let gates = gates.clone();
            async move {
                pass(ends_at).await;
                gates.open(0, 7);
            }
        });
        let revoke = member.revoke([tp(0)], ms(1_000));
        gates.open(0, 6);
        let released = revoke.await;
        assert_eq!(released[0].committed, Some(expected), "{ends_at}");
        pass(10_000).await;
        assert_eq!(commits(&broker, 0), [expected], "{ends_at}");
        assert_eq!(member.books().assigned(), []);
        serving.kill().await;
    }
}

/// C98
#[tokio::test(start_paused = true)]
async fn an_empty_assignment_wipes_nothing_that_is_owned() {
    let broker = broker(1);
    produce(&broker, 0, 10);
    let (journal, gates) = (Journal::new(), Gates::default());
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by(|message| Some(message.offset() % 3)))
        .service(handler_fn(with(
            (journal.clone(), gates.clone()),
            |(journal, gates), message| async move {
                let work = journal.begin(&message);
                gates.wait(&message).await;
                work.done();
                Answer::Ok(())
            },
        )));
    let source = source(&broker).commit_interval(ms(0)).build().unwrap();
    let member = source.member();
    let serving = run(serve(source, stack));
    member.revoke([tp(0)], ms(0)).await;
    member.assign([tp(0)]).await;
    quiet().await;
    let before = journal.starts(0).len();
    member.assign([]).await;
    member.revoke([], ms(0)).await;
    member.lose([]).await;
    gates.open_all(0, 0..10);
    quiet().await;

    // 3 to 9 waited for their lanes
    assert_eq!(journal.starts(0)[before..], [3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(journal.done(0).len(), 10);
    assert_eq!(committed(&broker, 0), Some(10));
    serving.kill().await;
}
