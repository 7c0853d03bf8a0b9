//! Kind 6, and C75 and C87: commits that fail, hang, or meet a numbering that fell.

use std::sync::Arc;

use parking_lot::Mutex;
use tower_consumer::source::memory::{CommitReply, MemoryBroker, MemoryMember};

use crate::support::events::Events;
use crate::support::{
    GROUP, Gates, Journal, Run, broker, commits, committed, gated_from, ms, pass, produce, quiet,
    source, tp,
};

fn gated(broker: &MemoryBroker) -> (Journal, Gates, MemoryMember, Run) {
    gated_from(source(broker).window(100))
}

/// Answers commits one after the other as listed, then with success; writes down what was sent, and when.
fn script(broker: &MemoryBroker, journal: &Journal, replies: Vec<CommitReply>) -> Sent {
    let sent = Sent::default();
    let (list, journal) = (sent.clone(), journal.clone());
    let replies = Mutex::new(replies.into_iter());
    broker.on_commit(GROUP, move |tp, offset| {
        list.lock().push((tp.partition, offset, journal.millis()));
        replies.lock().next().unwrap_or(CommitReply::ok())
    });
    sent
}

type Sent = Arc<Mutex<Vec<(i32, i64, u128)>>>;

/// C32
#[tokio::test(start_paused = true)]
async fn a_refused_commit_is_sent_again_with_the_newest_watermark_while_handlers_go_on() {
    let broker = broker(1);
    produce(&broker, 0, 4);
    let (journal, gates, _, serving) = gated(&broker);
    let sent = script(&broker, &journal, vec![CommitReply::transient_error(); 2]);
    for (millis, offset) in [(0, 0), (50, 1), (40, 2), (160, 3)] {
        pass(millis).await;
        gates.open(0, offset);
    }
    pass(1_000).await;
    assert_eq!(journal.done(0), [0, 1, 2, 3]);
    assert_eq!(*sent.lock(), [(0, 1, 0), (0, 3, 100), (0, 4, 300)]);
    assert_eq!(commits(&broker, 0), [4]);
    // nothing is wrong
    let summary = serving.shutdown().await.unwrap();
    assert_eq!(summary.committed("orders", 0), Some(4));
}

/// C32
#[tokio::test(start_paused = true)]
async fn a_refused_commit_goes_with_a_lost_partition() {
    let broker = broker(1);
    produce(&broker, 0, 4);
    let (journal, gates, member, serving) = gated(&broker);
    let sent = script(&broker, &journal, vec![CommitReply::transient_error()]);
    quiet().await;
    gates.open(0, 0);
    quiet().await;
    member.lose([tp(0)]).await;
    pass(10_000).await;
    assert_eq!(sent.lock().len(), 1);
    assert_eq!(commits(&broker, 0), [0i64; 0]);

    member.assign([tp(0)]).await;
    gates.open_all(0, 0..4);
    pass(10_000).await;
    assert_eq!(journal.starts(0), [0, 1, 2, 3, 0, 1, 2, 3]);
    assert_eq!(committed(&broker, 0), Some(4));
    serving.kill().await;
}

/// C101
#[tokio::test(start_paused = true)]
async fn commits_go_on_after_any_number_of_failures() {
    let broker = broker(1);
    let (journal, gates, _, serving) = gated(&broker);
    let sent = script(&broker, &journal, vec![CommitReply::transient_error(); 5]);
    gates.open_all(0, 0..400);
    for _ in 0..400 {
        produce(&broker, 0, 1);
        pass(10).await;
    }
    let sent: Vec<_> = sent.lock().clone();
    // 100 ms, doubling: 0, 100, 300, 700, 1,500, 3,100
    assert_eq!(sent[0], (0, 1, 0));
    let at: Vec<u128> = sent[..6].iter().map(|sent| sent.2).collect();
    assert_eq!(at, [0, 100, 300, 700, 1_500, 3_100]);
    // the window of 100 is full by then: what it lets through is what the first success carries
    assert_eq!(sent[5].1, 100);
    assert_eq!(commits(&broker, 0)[0], 100);
    pass(2_000).await;
    assert_eq!(committed(&broker, 0), Some(400));
    assert!(commits(&broker, 0).len() > 10, "it commits on");
    serving.kill().await;
}

/// C101
#[tokio::test(start_paused = true)]
async fn an_error_that_does_not_heal_is_tried_rarely_and_stops_no_other_partition() {
    let events = Events::collect();
    let broker = broker(2);
    let (_, gates, _, serving) = gated(&broker);
    broker.on_commit(GROUP, |tp, _| match tp.partition {
        0 => CommitReply::permanent_error(),
        _ => CommitReply::ok(),
    });
    for partition in [0, 1] {
        gates.open_all(partition, 0..50);
    }
    for _ in 0..50 {
        produce(&broker, 0, 1);
        produce(&broker, 1, 1);
        pass(1_000).await;
    }
    assert_eq!(commits(&broker, 0), [0i64; 0]);
    assert_eq!(commits(&broker, 1), Vec::from_iter(1..=50));
    let failed = events.beginning("commit failed");
    assert_eq!(failed.len(), 2, "at 0 s and at 30 s");
    assert_eq!(failed[0].field("failure"), "Permanent");
    assert_eq!(failed[0].field("partition"), "0");
    serving.kill().await;
}

/// C75
#[tokio::test(start_paused = true)]
async fn while_a_commit_hangs_no_other_is_sent_so_a_late_one_cannot_set_the_offset_back() {
    let broker = broker(1);
    produce(&broker, 0, 3);
    let (journal, gates, _, serving) = gated(&broker);
    let sent = script(&broker, &journal, vec![CommitReply::ok().after(ms(2_000))]);
    for offset in 0..3 {
        gates.open(0, offset);
        pass(500).await;
    }
    pass(5_000).await;
    assert_eq!(*sent.lock(), [(0, 1, 0), (0, 3, 2_000)]);
    assert_eq!(commits(&broker, 0), [1, 3]);
    serving.kill().await;
}

/// C75: across assignments too.
#[tokio::test(start_paused = true)]
async fn a_commit_that_hangs_across_a_loss_is_waited_for_by_the_next_assignment() {
    let broker = broker(1);
    produce(&broker, 0, 3);
    let (journal, gates, member, serving) = gated(&broker);
    let sent = script(&broker, &journal, vec![CommitReply::ok().after(ms(2_000))]);
    quiet().await;
    gates.open(0, 0);
    quiet().await;
    member.lose([tp(0)]).await;
    member.assign([tp(0)]).await;
    gates.open_all(0, 0..3);
    pass(5_000).await;
    assert_eq!(*sent.lock(), [(0, 1, 1), (0, 3, 2_001)]);
    assert_eq!(commits(&broker, 0), [1, 3]);
    serving.kill().await;
}

/// C87
#[tokio::test(start_paused = true)]
async fn a_topic_made_anew_starts_a_new_assignment_and_the_old_numbers_count_for_nothing() {
    let events = Events::collect();
    let broker = broker(1);
    produce(&broker, 0, 100);
    let (journal, gates, member, serving) = gated(&broker);
    quiet().await;
    gates.open_all(0, 0..99);
    quiet().await;
    assert_eq!(committed(&broker, 0), Some(99));

    broker.create_topic("orders", 1);
    produce(&broker, 0, 3);
    quiet().await;
    assert_eq!(journal.starts(0)[100..], [0, 1, 2]);
    gates.open(0, 99);
    pass(5_000).await;
    assert_eq!(committed(&broker, 0), Some(99));
    gates.open_all(0, 0..3);
    quiet().await;
    assert_eq!(commits(&broker, 0).last(), Some(&3));
    assert_eq!(member.books().counts().late, 1);
    assert_eq!(events.beginning("offsets fell").len(), 1);

    // and a restart goes on with the new numbers
    serving.kill().await;
    produce(&broker, 0, 1);
    let (journal, ..) = gated(&broker);
    quiet().await;
    assert_eq!(journal.starts(0), [3]);
}

/// C88 (a)
#[tokio::test(start_paused = true)]
async fn a_committed_offset_outside_of_the_log_starts_over_and_lower_commits_are_sent() {
    let broker = broker(1);
    produce(&broker, 0, 45);
    broker.commit("billing", "orders", 0, 2_000);
    let (journal, gates, _, serving) = gated(&broker);
    gates.open_all(0, 0..45);
    quiet().await;
    assert_eq!(journal.starts(0), Vec::from_iter(0..45));
    assert_eq!(committed(&broker, 0), Some(45));
    serving.kill().await;
}

/// A commit whose answer is lost is sent again, and is not sent for ever.
#[tokio::test(start_paused = true)]
async fn a_lost_answer_costs_one_commit_more() {
    let broker = broker(1);
    produce(&broker, 0, 1);
    let (journal, gates, _, serving) = gated(&broker);
    let sent = script(&broker, &journal, vec![CommitReply::answer_lost()]);
    gates.open(0, 0);
    pass(60_000).await;
    assert_eq!(*sent.lock(), [(0, 1, 0), (0, 1, 100)]);
    assert_eq!(commits(&broker, 0), [1, 1]);
    serving.kill().await;
}
