//! Kind 1: offset gaps, from compaction, transaction markers and aborted records.

use tower::ServiceBuilder;
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::handler_fn;
use tower_consumer::serve;

use crate::support::{
    Answer, Journal, broker, commits, committed, gated, pass, produce, produce_at, quiet, run,
    source, with,
};

/// Finishes the delivered offsets in this order, and compares what is committed after each with the first delivered
/// one that is not finished.
async fn finish(delivered: &[i64], order: &[i64]) {
    let broker = broker(1);
    produce_at(&broker, 0, delivered);
    let (_, gates, member, serving) = gated(&broker);
    let books = member.books();
    quiet().await;
    assert_eq!(books.in_flight().0, delivered.len() as u64);
    let mut finished = Vec::new();
    for offset in order {
        gates.open(0, *offset);
        quiet().await;
        finished.push(*offset);
        let first = delivered.iter().position(|o| !finished.contains(o));
        let expected = match first {
            Some(0) => None,
            Some(n) => Some(delivered[n]),
            None => delivered.last().map(|last| last + 1),
        };
        assert_eq!(
            committed(&broker, 0),
            expected,
            "{delivered:?} {finished:?}"
        );
    }
    assert_eq!(books.in_flight(), (0, 0));
    assert_eq!(books.head("orders", 0), None);
    assert!(commits(&broker, 0).is_sorted_by(|a, b| a < b));
    serving.kill().await;
}

fn permutations(list: &[i64]) -> Vec<Vec<i64>> {
    let [first, rest @ ..] = list else {
        return vec![Vec::new()];
    };
    let mut all = Vec::new();
    for shorter in permutations(rest) {
        for n in 0..=shorter.len() {
            let mut longer = shorter.clone();
            longer.insert(n, *first);
            all.push(longer);
        }
    }
    all
}

/// C01
#[tokio::test(start_paused = true)]
async fn the_watermark_walks_over_markers_as_if_they_were_not_there() {
    let broker = broker(1);
    produce_at(&broker, 0, &[0, 2, 4, 6]);
    let (_, gates, member, serving) = gated(&broker);
    let books = member.books();
    quiet().await;
    let mut after = Vec::new();
    for offset in [0, 2, 6, 4] {
        gates.open(0, offset);
        quiet().await;
        after.push(committed(&broker, 0));
    }
    assert_eq!(after, [Some(2), Some(4), Some(4), Some(7)]);
    assert_eq!(books.in_flight(), (0, 0));

    // not paused: what comes next is handled
    gates.open(0, 7);
    produce(&broker, 0, 1);
    quiet().await;
    assert_eq!(committed(&broker, 0), Some(8));
    serving.kill().await;
}

/// C02
#[tokio::test(start_paused = true)]
async fn what_finished_early_waits_for_what_lies_before_it() {
    let broker = broker(1);
    produce(&broker, 0, 5);
    let (_, gates, _, serving) = gated(&broker);
    quiet().await;
    let mut after = Vec::new();
    for offset in [4, 2, 0, 3, 1] {
        gates.open(0, offset);
        quiet().await;
        after.push(committed(&broker, 0));
    }
    assert_eq!(after, [None, None, Some(1), Some(1), Some(5)]);
    serving.kill().await;
}

/// C02
#[tokio::test(start_paused = true)]
async fn in_each_of_the_120_orders_the_first_unfinished_delivered_offset_is_committed() {
    for order in permutations(&[0, 1, 2, 3, 4]) {
        finish(&[0, 1, 2, 3, 4], &order).await;
    }
}

/// C02
#[tokio::test(start_paused = true)]
async fn the_same_with_holes_between_in_front_and_both() {
    for delivered in [
        [0, 3, 4, 9, 10],
        [7, 8, 9, 10, 11],
        [3, 5, 100, 101, 1_000_000],
    ] {
        for order in permutations(&delivered) {
            finish(&delivered, &order).await;
        }
    }
}

/// C04: one transaction of 100 records and its marker.
#[tokio::test(start_paused = true)]
async fn the_drain_does_not_wait_for_a_marker_at_the_end_of_the_log() {
    let broker = broker(1);
    produce(&broker, 0, 100);
    broker.skip_offsets("orders", 0, 1);
    assert_eq!(broker.log_end("orders", 0), Some(101));
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

    let serving = run(serve(source(&broker).build().unwrap(), stack.clone()));
    quiet().await;
    let summary = serving.shutdown().await.unwrap();
    assert_eq!(journal.millis(), 1);
    assert_eq!(summary.committed("orders", 0), Some(100));

    // and "caught up" is reached without it
    let source = source(&broker).until_end().build().unwrap();
    let summary = serve(source, stack).await.unwrap();
    assert_eq!(journal.millis(), 1);
    assert_eq!(summary.counts.delivered, 0);
    assert_eq!(committed(&broker, 0), Some(100));
}

/// C05: a compacted topic of which 0 and 2 remain, with a high watermark of 4.
#[tokio::test(start_paused = true)]
async fn a_lag_of_messages_that_do_not_exist_is_not_a_message_in_flight() {
    let broker = broker(1);
    produce_at(&broker, 0, &[0, 2]);
    broker.skip_offsets("orders", 0, 1);
    assert_eq!(broker.log_end("orders", 0), Some(4));
    let (_, gates, member, serving) = gated(&broker);
    let books = member.books();
    gates.open_all(0, [0, 2]);
    quiet().await;

    assert_eq!(committed(&broker, 0), Some(3));
    assert_eq!(books.in_flight(), (0, 0));
    assert_eq!(books.watermark("orders", 0), Some(3));
    assert_eq!(books.head("orders", 0), None);
    serving.kill().await;
}

#[tokio::test(start_paused = true)]
async fn a_first_message_behind_a_gap_commits_nothing_before_it_is_finished() {
    let broker = broker(1);
    broker.commit("billing", "orders", 0, 3);
    produce_at(&broker, 0, &[7, 8]);
    let (_, gates, member, serving) = gated(&broker);
    let books = member.books();
    quiet().await;
    assert_eq!(books.watermark("orders", 0), Some(7));
    gates.open(0, 8);
    pass(10_000).await;
    assert_eq!(commits(&broker, 0), [3]);
    gates.open(0, 7);
    quiet().await;
    assert_eq!(commits(&broker, 0), [3, 9]);
    serving.kill().await;
}

#[tokio::test(start_paused = true)]
async fn a_window_counts_messages_and_not_offsets() {
    let broker = broker(1);
    let sparse: Vec<i64> = (0..20).map(|n| n * 1_000).collect();
    produce_at(&broker, 0, &sparse);
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                let _work = journal.begin(&message);
                std::future::pending::<Answer>().await
            },
        )));
    let serving = run(serve(source(&broker).window(8).build().unwrap(), stack));
    pass(5_000).await;
    assert_eq!(journal.starts(0), sparse[..8]);
    serving.kill().await;
}
