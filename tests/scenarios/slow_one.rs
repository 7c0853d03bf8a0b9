//! S2: one slow message, its successors done before it.

use tower::ServiceBuilder;
use tower_consumer::Message;
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::handler_fn;
use tower_consumer::order::OrderLayer;
use tower_consumer::serve;
use tower_consumer::source::memory::MemoryBroker;

use crate::support::{
    Answer, Journal, Restart, Run, assert_covered, broker, commits, committed, ms, pass, produce,
    produce_keys, restart, run, source, with,
};

/// 35 takes 5 s, the others no time.
async fn slow_one(journal: Journal, message: Message) -> Answer {
    let work = journal.begin(&message);
    if message.offset() == 35 {
        pass(5_000).await;
    }
    work.done();
    Ok(())
}

fn run_1(broker: &MemoryBroker) -> (Journal, Run) {
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(with(journal.clone(), slow_one)));
    let source = source(broker).window(64).commit_interval(ms(100)).build();
    (journal, run(serve(source.unwrap(), stack)))
}

/// Run 2, in which nothing is slow, until all is committed.
async fn run_2(broker: &MemoryBroker) -> Journal {
    produce(broker, 0, 27);
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
    assert_eq!(committed(broker, 0), Some(64));
    journal
}

#[tokio::test(start_paused = true)]
async fn a_slow_message_is_not_covered_by_the_success_of_a_later_one() {
    let broker = broker(1);
    produce(&broker, 0, 37);
    let (run_1, serving) = run_1(&broker);
    pass(1_000).await;
    assert_eq!(run_1.done(0).last(), Some(&36));
    serving.kill().await;

    assert_eq!(committed(&broker, 0), Some(35));
    assert_covered(&run_1, Some(35));
    let run_2 = run_2(&broker).await;
    assert_eq!(run_2.starts(0)[0], 35);
    assert_eq!(restart(64, &run_1, Some(35), &run_2), Restart::new(0, 1));
}

#[tokio::test(start_paused = true)]
async fn its_late_success_moves_the_watermark_by_two() {
    let broker = broker(1);
    produce(&broker, 0, 37);
    let (run_1, serving) = run_1(&broker);
    pass(5_200).await;
    serving.kill().await;

    assert_eq!(commits(&broker, 0), [32, 35, 37]);
    assert_covered(&run_1, Some(37));
    let run_2 = run_2(&broker).await;
    assert_eq!(run_2.starts(0)[0], 37);
    assert_eq!(restart(64, &run_1, Some(37), &run_2), Restart::new(0, 0));
}

#[tokio::test(start_paused = true)]
async fn the_next_message_of_its_key_does_not_start_before_it_ended() {
    let broker = broker(1);
    let keys: Vec<String> = (0..37).map(|n| format!("k{}", n.min(35))).collect();
    produce_keys(&broker, 0, keys.iter().map(String::as_str));
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .service(handler_fn(with(journal.clone(), slow_one)));
    serve(source(&broker).until_end().build().unwrap(), stack)
        .await
        .unwrap();

    assert_eq!(journal.started_at(34), [0]);
    assert_eq!(journal.done_at(35), [5_000]);
    assert_eq!(journal.started_at(36), [5_000]);
    assert_eq!(committed(&broker, 0), Some(37));
}

/// The twin delivers on behalf of another group and commits by hand what it has just finished.
#[tokio::test(start_paused = true)]
async fn a_naive_consumer_in_the_same_harness_loses_the_slow_message() {
    let broker = broker(1);
    produce(&broker, 0, 37);
    let run_1 = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(with(
            (run_1.clone(), broker.clone()),
            |(journal, broker), message| async move {
                let offset = message.offset();
                slow_one(journal, message).await?;
                broker.commit("billing", "orders", 0, offset + 1);
                Answer::Ok(())
            },
        )));
    let source = broker.source("twin", ["orders"]).build().unwrap();
    let serving = run(serve(source, stack));
    pass(1_000).await;
    serving.kill().await;

    assert_eq!(committed(&broker, 0), Some(37));
    let run_2 = run_2(&broker).await;
    assert_eq!(restart(64, &run_1, Some(37), &run_2), Restart::new(1, 0));
}
