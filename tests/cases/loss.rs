//! Kinds 2, 16 and 20: commits past a message that is not done, commits by others, offset metadata.

use tower::ServiceBuilder;
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::handler_fn;
use tower_consumer::ledger::Reason;
use tower_consumer::order::OrderLayer;
use tower_consumer::retry::Backoff;
use tower_consumer::serve::{OnFailure, ServeErrorKind};
use tower_consumer::source::memory::{CommitReply, MemoryBroker};
use tower_consumer::{Message, Outcome, serve};

use crate::support::{
    Answer, Failed, GROUP, Gates, Journal, broker, commits, committed, ms, pass, produce,
    produce_at, quiet, run, source, tp, with,
};

/// Fails for one offset.
async fn fails_for(bad: i64, journal: Journal, message: Message) -> Answer {
    let work = journal.begin(&message);
    if message.offset() == bad {
        return Err(Failed("rejected"));
    }
    work.done();
    Ok(())
}

/// Handles everything that is there, and answers what was handled.
async fn everything(broker: &MemoryBroker) -> Vec<i64> {
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(with(journal.clone(), |journal, message| {
            fails_for(-1, journal, message)
        })));
    serve(source(broker).until_end().build().unwrap(), stack)
        .await
        .unwrap();
    journal.done(0)
}

/// C07
#[tokio::test(start_paused = true)]
async fn a_success_behind_a_rejected_message_does_not_move_the_commit_over_it() {
    for (on_failure, handled) in [
        (OnFailure::Hold, [0, 2].as_slice()),
        (OnFailure::Stop, [0].as_slice()),
    ] {
        let broker = broker(1);
        produce(&broker, 0, 3);
        let journal = Journal::new();
        let stack = ServiceBuilder::new()
            .layer(CommitLayer::new())
            .service(handler_fn(with(journal.clone(), |journal, message| {
                fails_for(1, journal, message)
            })));
        let source = source(&broker).until_end().build().unwrap();
        let ended = serve(source, stack).on_failure(on_failure).await;

        assert_eq!(ended.is_ok(), on_failure == OnFailure::Hold);
        assert_eq!(journal.done(0), handled);
        assert_eq!(commits(&broker, 0), [1]);
        assert_eq!(everything(&broker).await, [1, 2]);
        assert_eq!(committed(&broker, 0), Some(3));
    }
}

/// C07: the verdict over the rejected message must be asked for.
#[tokio::test(start_paused = true)]
async fn only_a_skip_by_a_named_policy_moves_the_commit_over_a_rejected_message() {
    let broker = broker(1);
    produce(&broker, 0, 3);
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(|message: Message| async move {
            Ok::<_, Failed>(match message.offset() {
                1 => Outcome::skipped("rejected"),
                _ => Outcome::Done,
            })
        }));
    let source = source(&broker).until_end().build().unwrap();
    let summary = serve(source, stack).await.unwrap();
    assert_eq!(committed(&broker, 0), Some(3));
    assert_eq!((summary.counts.done, summary.counts.skipped), (2, 1));
}

/// C08
#[tokio::test(start_paused = true)]
async fn whether_a_failed_message_comes_back_does_not_depend_on_a_later_success() {
    for sent in [1, 2] {
        let broker = broker(1);
        produce(&broker, 0, sent);
        let journal = Journal::new();
        let stack = ServiceBuilder::new()
            .layer(CommitLayer::new())
            .service(handler_fn(with(journal.clone(), |journal, message| {
                fails_for(0, journal, message)
            })));
        let source = source(&broker).build().unwrap();
        let serving = run(serve(source, stack).on_failure(OnFailure::Hold));
        pass(5_000).await;
        serving.shutdown().await.unwrap();

        assert_eq!(journal.done(0).len() as i64, sent - 1);
        assert_eq!(commits(&broker, 0), [0i64; 0]);
        assert_eq!(everything(&broker).await[0], 0);
    }
}

/// C08: a third state besides success and failure does not exist.
#[tokio::test(start_paused = true)]
async fn a_success_that_no_attempt_stands_for_is_not_one() {
    let broker = broker(1);
    produce(&broker, 0, 2);
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .map_result(|answer: Result<(), _>| answer.or(Ok::<_, tower::BoxError>(())))
        .service(handler_fn(|message: Message| async move {
            match message.offset() {
                0 => Err(Failed("swallowed by the layer around")),
                _ => Ok(()),
            }
        }));
    let source = source(&broker).until_end().build().unwrap();
    let summary = serve(source, stack)
        .on_failure(OnFailure::Hold)
        .await
        .unwrap();
    assert_eq!(summary.counts.not_finished(Reason::OkWithoutAttempt), 1);
    assert_eq!(commits(&broker, 0), [0i64; 0]);
}

/// C09
#[tokio::test(start_paused = true)]
async fn a_restart_handles_the_message_at_the_committed_offset_and_none_before_it() {
    let broker = broker(1);
    produce(&broker, 0, 1);
    assert_eq!(everything(&broker).await, [0]);
    assert_eq!(committed(&broker, 0), Some(1));
    // committed = log end: nothing to do, nothing to commit
    assert_eq!(everything(&broker).await, [0i64; 0]);
    assert_eq!(commits(&broker, 0), [1]);
    produce(&broker, 0, 1);
    assert_eq!(everything(&broker).await, [1]);
    assert_eq!(commits(&broker, 0), [1, 2]);
    // committed 0 is not "nothing committed", and not "0 is done"
    broker.commit("billing", "orders", 0, 0);
    assert_eq!(everything(&broker).await, [0, 1]);
    assert_eq!(committed(&broker, 0), Some(2));
}

/// C09
#[tokio::test(start_paused = true)]
async fn a_partition_without_a_message_commits_nothing() {
    let broker = broker(3);
    produce(&broker, 1, 1);
    assert_eq!(everything(&broker).await, [0i64; 0]);
    assert_eq!(committed(&broker, 0), None);
    assert_eq!(committed(&broker, 1), Some(1));
    assert_eq!(committed(&broker, 2), None);
}

/// C10
#[tokio::test(start_paused = true)]
async fn a_message_that_was_queued_when_its_partition_was_revoked_is_handled_in_the_next_assignment()
 {
    let broker = broker(1);
    produce_at(&broker, 0, &[55, 56]);
    let (journal, gates) = (Journal::new(), Gates::default());
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_partition())
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
    assert_eq!(journal.starts(0), [55]);

    let revoke = tokio::spawn({
        let member = member.clone();
        async move { member.revoke([tp(0)], ms(1_000)).await }
    });
    quiet().await;
    gates.open_all(0, [55, 56, 57]);
    let released = revoke.await.unwrap();
    assert_eq!(released[0].committed, Some(56));
    produce(&broker, 0, 1);
    member.assign([tp(0)]).await;
    pass(2_000).await;

    assert_eq!(journal.starts(0), [55, 56, 57]);
    assert_eq!(commits(&broker, 0), [56, 58]);
    serving.kill().await;
}

/// C11
#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failure_and_its_permit_and_lane_are_given_back() {
    for on_failure in [OnFailure::Hold, OnFailure::Stop] {
        let broker = broker(1);
        produce(&broker, 0, 6);
        let journal = Journal::new();
        let limit = tower::limit::GlobalConcurrencyLimitLayer::new(3);
        let permits = std::sync::Arc::new(tokio::sync::Semaphore::new(3));
        let limit = match on_failure {
            OnFailure::Stop => limit,
            _ => tower::limit::GlobalConcurrencyLimitLayer::with_semaphore(permits.clone()),
        };
        let stack = ServiceBuilder::new()
            .layer(CommitLayer::new())
            .layer(OrderLayer::by(|message| Some(message.offset())))
            .layer(limit)
            .service(handler_fn(with(
                journal.clone(),
                |journal, message| async move {
                    let work = journal.begin(&message);
                    pass(10).await;
                    assert_ne!(message.offset(), 3, "three is no good");
                    work.done();
                    Answer::Ok(())
                },
            )));
        let lanes = stack.get_ref().clone();
        let source = source(&broker).until_end().build().unwrap();
        let ended = serve(source, stack).on_failure(on_failure).await;

        assert_eq!(committed(&broker, 0), Some(3));
        assert_eq!(lanes.lanes(), 0);
        assert_eq!(permits.available_permits(), 3);
        if on_failure == OnFailure::Hold {
            assert_eq!(journal.done_sorted(0), [0, 1, 2, 4, 5]);
            assert_eq!(ended.unwrap().counts.not_finished(Reason::Panicked), 1);
            continue;
        }
        let error = ended.unwrap_err();
        let ServeErrorKind::NotFinished { reason, .. } = error.kind else {
            panic!("{error}");
        };
        assert_eq!(reason, Reason::Panicked);
        let text = error.to_string();
        assert!(text.contains("message 3 of orders/0"), "{text}");
        assert!(text.contains("three is no good"), "{text}");
    }
}

/// C16 and C17 in the shape that needs no batch and no dead letter: whatever step fails, the message has a verdict, and
/// a later attempt moves the commit.
#[tokio::test(start_paused = true)]
async fn a_failure_in_a_layer_around_the_handler_is_no_dead_end() {
    let broker = broker(1);
    produce(&broker, 0, 50);
    let tries = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .retry(Backoff::fixed(ms(10)))
        .filter_async(with(tries, |tries, message: Message| async move {
            // the step before the handler: broken 3 times for message 30
            let is_bad = message.offset() == 30;
            match is_bad && tries.fetch_add(1, std::sync::atomic::Ordering::SeqCst) < 3 {
                true => Err(Failed("the step before the handler")),
                false => Ok(message),
            }
        }))
        .service(handler_fn(|_: Message| async { Answer::Ok(()) }));
    let source = source(&broker).until_end().build().unwrap();
    let books = source.member().books().clone();
    let summary = serve(source, stack).await.unwrap();
    assert_eq!(summary.counts.done, 50);
    assert_eq!(committed(&broker, 0), Some(50));
    assert_eq!(books.in_flight(), (0, 0));
}

/// C77: handlers are given nothing that commits. Somebody else may commit all the same.
#[tokio::test(start_paused = true)]
async fn the_next_watermark_repairs_a_lower_commit_by_somebody_else() {
    let broker = broker(1);
    produce(&broker, 0, 50);
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(|_: Message| async { Answer::Ok(()) }));
    let serving = run(serve(source(&broker).build().unwrap(), stack));
    pass(2_000).await;
    assert_eq!(committed(&broker, 0), Some(50));

    broker.commit("billing", "orders", 0, 0);
    produce(&broker, 0, 1);
    pass(2_000).await;
    assert_eq!(committed(&broker, 0), Some(51));

    // with nothing new there is no commit, not even the last one: the price is delivery again, not loss
    broker.commit("billing", "orders", 0, 0);
    pass(2_000).await;
    serving.shutdown().await.unwrap();
    assert_eq!(committed(&broker, 0), Some(0));
    assert_eq!(everything(&broker).await.len(), 51);
}

/// C90: what another tool committed is an offset, whatever else it wrote.
#[tokio::test(start_paused = true)]
async fn a_group_that_another_tool_has_used_goes_on_at_its_offset() {
    let broker = broker(1);
    produce(&broker, 0, 20);
    broker.commit("billing", "orders", 0, 10);
    assert_eq!(everything(&broker).await, Vec::from_iter(10..20));
    assert_eq!(committed(&broker, 0), Some(20));
}

/// C91
#[tokio::test(start_paused = true)]
async fn a_slow_head_with_every_second_message_finished_behind_it_commits_nothing() {
    let broker = broker(1);
    produce(&broker, 0, 20_001);
    let gates = Gates::default();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(with(
            gates.clone(),
            |gates, message| async move {
                match message.offset() {
                    0 => gates.wait(&message).await,
                    n if n % 2 == 0 => return Err(Failed("even")),
                    _ => {}
                }
                Answer::Ok(())
            },
        )));
    let source = source(&broker).window(30_000).in_flight(30_000).build();
    let source = source.unwrap();
    let books = source.member().books().clone();
    let serving = run(serve(source, stack).on_failure(OnFailure::Hold));
    pass(5_000).await;
    assert_eq!(commits(&broker, 0), [0i64; 0]);
    assert_eq!(books.in_flight().0, 1);
    gates.open(0, 0);
    pass(5_000).await;
    assert_eq!(commits(&broker, 0), [2]);
    serving.kill().await;

    // the price: everything finished above is delivered again
    assert_eq!(everything(&broker).await.len(), 19_999);
}

/// A commit that nobody can send is no reason to stop handling, and no reason to believe it.
#[tokio::test(start_paused = true)]
async fn while_every_commit_fails_the_window_bounds_what_is_handled() {
    let broker = broker(1);
    produce(&broker, 0, 1_000);
    broker.on_commit(GROUP, |_, _| CommitReply::transient_error());
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(with(journal.clone(), |journal, message| {
            fails_for(-1, journal, message)
        })));
    let serving = run(serve(source(&broker).window(50).build().unwrap(), stack));
    pass(60_000).await;
    assert_eq!(journal.done(0).len(), 50);
    broker.on_commit(GROUP, |_, _| CommitReply::ok());
    pass(10_000).await;
    assert_eq!(journal.done(0).len(), 1_000);
    assert_eq!(committed(&broker, 0), Some(1_000));
    assert_eq!(commits(&broker, 0)[0], 50);
    serving.kill().await;
}
