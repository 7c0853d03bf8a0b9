//! Reported faults of other libraries, each as a scene with literal offsets.

use std::sync::Arc;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use tower_consumer::ledger::{
    Begin, Commit, CommitFailure, Config, DeliverError, Epoch, Kind, Ledger, Reason, Room, Stage,
    Start, Ticket, TopicPartition, Verdict,
};

pub(crate) const DONE: Verdict = Verdict::Finished(Kind::Done);
pub(crate) const FAILED: Verdict = Verdict::NotFinished(Reason::Failed);

/// A ledger that commits whenever it is asked, and its clock.
pub(crate) fn ledger() -> (Ledger, Instant) {
    let mut config = Config::default();
    config.commit_interval = Duration::ZERO;
    (Ledger::new(config), Instant::now())
}

pub(crate) fn partition(n: i32) -> TopicPartition {
    TopicPartition::new("orders", n)
}

pub(crate) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(crate) fn deliver(epoch: &Epoch, offset: i64, now: Instant) -> Ticket {
    let delivered = epoch.deliver(offset, 10, now);
    delivered.expect("there is room").ticket
}

/// An attempt that is running.
pub(crate) fn running(epoch: &Epoch, offset: i64, now: Instant) -> Ticket {
    let ticket = deliver(epoch, offset, now);
    assert_eq!(epoch.begin(ticket), Begin::Started(1));
    ticket
}

/// The running attempt ends `Ok`, and so do the layers around it. Whether the verdict counted.
pub(crate) fn end_well(epoch: &Epoch, ticket: Ticket) -> bool {
    epoch.end(ticket, true);
    epoch.settle(ticket, DONE).verdict == Some(DONE)
}

pub(crate) fn handle(epoch: &Epoch, ticket: Ticket) -> bool {
    assert!(matches!(epoch.begin(ticket), Begin::Started(_)));
    end_well(epoch, ticket)
}

/// Sends what is due and lets it succeed; the offsets.
pub(crate) fn commit(ledger: &mut Ledger, now: Instant) -> Vec<i64> {
    let commits = ledger.take_commits(now);
    for commit in &commits {
        ledger.commit_ended(commit, Ok(()), now);
    }
    commits.iter().map(|commit| commit.offset).collect()
}

pub(crate) fn only(commits: Vec<Commit>) -> Commit {
    assert_eq!(commits.len(), 1, "{commits:?}");
    commits.into_iter().next().expect("one commit")
}

#[test]
fn c01_a_gap_in_the_offsets_never_stops_the_commits() {
    let (mut ledger, now) = ledger();
    let epoch = ledger.assign(&partition(0), Start::Unknown, now);
    let [m0, m2, m4, m6] = [0, 2, 4, 6].map(|offset| deliver(&epoch, offset, now));

    handle(&epoch, m0);
    assert_eq!(commit(&mut ledger, now), [2]);
    handle(&epoch, m2);
    assert_eq!(commit(&mut ledger, now), [4]);
    handle(&epoch, m6);
    assert_eq!(commit(&mut ledger, now), [0; 0]);
    handle(&epoch, m4);
    assert_eq!(commit(&mut ledger, now), [7]);

    assert_eq!(ledger.in_flight(), (0, 0));
    assert_eq!(epoch.uncovered(), 0);
    assert_eq!(epoch.room(), Room::Free);
}

/// Every order in which five things can end.
fn permutations() -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for _ in 0..5 {
        all = all
            .into_iter()
            .flat_map(|order: Vec<usize>| {
                let rest: Vec<usize> = (0..5).filter(|n| !order.contains(n)).collect();
                rest.into_iter()
                    .map(move |n| [order.as_slice(), &[n]].concat())
            })
            .collect();
    }
    all
}

#[test]
fn c02_in_every_order_of_ends_the_watermark_is_the_first_unfinished_delivery() {
    assert_eq!(permutations().len(), 120);
    for offsets in [[0, 1, 2, 3, 4], [0, 3, 4, 9, 10]] {
        for order in permutations() {
            let (mut ledger, now) = ledger();
            let epoch = ledger.assign(&partition(0), Start::Unknown, now);
            let tickets = offsets.map(|offset| deliver(&epoch, offset, now));
            let mut unfinished = offsets.to_vec();
            let mut committed = None;
            for n in order {
                handle(&epoch, tickets[n]);
                unfinished.retain(|offset| *offset != offsets[n]);
                let watermark = unfinished.first().copied().unwrap_or(offsets[4] + 1);
                assert_eq!(epoch.watermark(), Some(watermark));
                committed = commit(&mut ledger, now).pop().or(committed);
                if let Some(committed) = committed {
                    assert_eq!(committed, watermark);
                }
            }
            assert_eq!(committed, Some(offsets[4] + 1));
            assert_eq!(epoch.uncovered(), 0);
        }
    }
}

#[test]
fn c02_after_the_ends_4_2_0_3_1_the_watermarks_were_0_0_1_1_5() {
    let (mut ledger, now) = ledger();
    let epoch = ledger.assign(&partition(0), Start::Unknown, now);
    let tickets = [0, 1, 2, 3, 4].map(|offset| deliver(&epoch, offset, now));
    let watermarks = [4, 2, 0, 3, 1].map(|n: usize| {
        handle(&epoch, tickets[n]);
        epoch.watermark()
    });
    assert_eq!(watermarks, [Some(0), Some(0), Some(1), Some(1), Some(5)]);
}

#[test]
fn c09_the_committed_offset_itself_is_still_to_be_handled() {
    for (start, offset, committed) in [
        (Start::Committed(1), 1, 2),
        (Start::Committed(0), 0, 1),
        (Start::Unknown, 0, 1),
    ] {
        let (mut ledger, now) = ledger();
        let epoch = ledger.assign(&partition(0), start, now);
        let delivered = epoch.deliver(offset, 10, now).expect("there is room");
        assert!(!delivered.below_committed);
        assert!(handle(&epoch, delivered.ticket));
        assert_eq!(commit(&mut ledger, now), [committed]);
    }
}

#[test]
fn c09_at_the_end_of_the_log_nothing_is_committed_and_nothing_waited_for() {
    let (mut ledger, now) = ledger();
    let epoch = ledger.assign(&partition(0), Start::Committed(2), now);
    assert_eq!(epoch.watermark(), None);
    assert_eq!(commit(&mut ledger, now), [0; 0]);
    assert_eq!(ledger.next_timeout(now), None);
}

#[test]
fn c10_a_message_still_queued_in_the_old_epoch_is_handled_in_the_new_one() {
    let (mut ledger, now) = ledger();
    let p0 = partition(0);
    let old = ledger.assign(&p0, Start::Unknown, now);
    let old_55 = deliver(&old, 55, now);
    let old_56 = deliver(&old, 56, now);
    handle(&old, old_55);
    ledger.revoke([&p0], secs(5), now);
    ledger.drain_step(now);
    assert_eq!(commit(&mut ledger, now), [56]);
    assert_eq!(ledger.drain_step(now).released[0][0].committed, Some(56));

    let new = ledger.assign(&p0, Start::Committed(56), now);
    ledger.rebalanced();
    let [new_56, new_57] = [56, 57].map(|offset| deliver(&new, offset, now));

    assert!(matches!(old.begin(old_56), Begin::Stopped(_)));
    assert_eq!(old.settle(old_56, DONE).verdict, None);
    assert!(handle(&new, new_56));
    assert!(handle(&new, new_57));
    assert_eq!(commit(&mut ledger, now), [58]);
    assert_eq!(ledger.in_flight(), (0, 0));
}

#[test]
fn c24_with_no_budget_a_running_message_comes_again_once() {
    let (mut ledger, start) = ledger();
    let p0 = partition(0);
    let old = ledger.assign(&p0, Start::Committed(0), start);
    let ticket = running(&old, 0, start);
    let now = start + secs(1);
    ledger.revoke([&p0], Duration::ZERO, now);
    let released = ledger.drain_step(now).released.remove(0).remove(0);
    assert_eq!((released.committed, released.cut), (Some(0), 1));

    let new = ledger.assign(&p0, Start::Committed(0), start + secs(2));
    ledger.rebalanced();
    let again = deliver(&new, 0, start + secs(2));
    assert!(!end_well(&old, ticket));
    assert_eq!(ledger.counts().late, 1);
    assert!(handle(&new, again));
    assert_eq!(commit(&mut ledger, start + secs(3)), [1]);
}

#[test]
fn c24_with_a_budget_a_running_message_ends_and_is_committed_before_the_release() {
    let (mut ledger, start) = ledger();
    let p0 = partition(0);
    let epoch = ledger.assign(&p0, Start::Committed(0), start);
    let ticket = running(&epoch, 0, start);
    ledger.revoke([&p0], secs(5), start + secs(1));
    assert!(ledger.drain_step(start + secs(1)).released.is_empty());

    let now = start + secs(3);
    assert!(end_well(&epoch, ticket));
    assert!(ledger.drain_step(now).released.is_empty());
    assert_eq!(commit(&mut ledger, now), [1]);
    let released = ledger.drain_step(now).released.remove(0).remove(0);
    assert_eq!((released.committed, released.cut), (Some(1), 0));
    assert_eq!(released.not_committed, None);
}

#[test]
fn c36_a_revoke_stops_waits_fences_commits_the_prefix_and_then_releases() {
    let (mut ledger, start) = ledger();
    let (p0, p1) = (partition(0), partition(1));
    let given_up = ledger.assign(&p0, Start::Unknown, start);
    let kept = ledger.assign(&p1, Start::Unknown, start);
    let [m0, m1, m2, slow, m4] = [0, 1, 2, 3, 4].map(|offset| running(&given_up, offset, start));
    let others = [0, 1, 2, 3, 4].map(|offset| running(&kept, offset, start));
    let not_begun = deliver(&given_up, 5, start);

    ledger.revoke([&p0], secs(1), start);
    assert!(matches!(given_up.begin(not_begun), Begin::Stopped(_)));
    for ticket in [m0, m1, m2, m4] {
        assert!(end_well(&given_up, ticket));
    }
    for ticket in others {
        assert!(end_well(&kept, ticket));
    }
    // four fifths of the budget are for what runs
    assert!(ledger.drain_step(start + ms(799)).fenced.is_empty());
    assert_eq!(ledger.next_timeout(start), Some(start + ms(800)));
    let now = start + ms(800);
    assert_eq!(ledger.drain_step(now).fenced[0].id(), given_up.id());
    assert!(!end_well(&given_up, slow));

    let last = only(ledger.take_commits(now));
    assert_eq!((&last.tp, last.offset, last.last), (&p0, 3, true));
    assert!(ledger.drain_step(now).released.is_empty());
    ledger.commit_ended(&last, Ok(()), now);
    let released = ledger.drain_step(now).released.remove(0).remove(0);
    assert_eq!((released.committed, released.cut), (Some(3), 1));

    // the other partition keeps its work, and its commits go on when the rebalance is over
    assert_eq!(kept.stage(), Stage::Live);
    assert_eq!(commit(&mut ledger, now), [0; 0]);
    ledger.rebalanced();
    assert_eq!(commit(&mut ledger, now), [5]);
}

#[test]
fn c38_partitions_that_delivered_nothing_add_no_wait() {
    let (mut ledger, start) = ledger();
    let all = [0, 1, 2, 3].map(partition);
    let epochs = all
        .clone()
        .map(|tp| ledger.assign(&tp, Start::Unknown, start));
    let ticket = running(&epochs[0], 0, start);
    ledger.revoke(&all, secs(60), start);
    assert_eq!(ledger.next_timeout(start), Some(start));
    assert_eq!(ledger.drain_step(start).fenced.len(), 3);

    let now = start + secs(2);
    end_well(&epochs[0], ticket);
    ledger.drain_step(now);
    assert_eq!(commit(&mut ledger, now), [1]);
    assert_eq!(ledger.drain_step(now).released[0].len(), 4);
}

#[test]
fn c38_assigned_and_taken_away_at_once_is_released_at_once() {
    let (mut ledger, now) = ledger();
    let all = [0, 1, 2, 3].map(partition);
    for tp in &all {
        ledger.assign(tp, Start::Unknown, now);
    }
    ledger.revoke(&all, secs(60), now);
    assert_eq!(ledger.drain_step(now).released[0].len(), 4);
}

#[test]
fn c44_nothing_below_the_offset_committed_at_assign_is_committed_again() {
    let (mut ledger, now) = ledger();
    let epoch = ledger.assign(&partition(0), Start::Committed(200), now);
    let first = epoch.deliver(100, 10, now).expect("there is room");
    assert!(first.below_committed);
    handle(&epoch, first.ticket);
    for offset in 101..200 {
        let ticket = deliver(&epoch, offset, now);
        handle(&epoch, ticket);
        assert_eq!(commit(&mut ledger, now), [0; 0]);
    }
    let ticket = deliver(&epoch, 200, now);
    handle(&epoch, ticket);
    assert_eq!(commit(&mut ledger, now), [201]);
}

#[test]
fn c87_a_topic_made_anew_is_committed_by_its_own_numbering() {
    let (mut ledger, now) = ledger();
    let p0 = partition(0);
    let old = ledger.assign(&p0, Start::Unknown, now);
    for offset in 0..100 {
        let ticket = deliver(&old, offset, now);
        handle(&old, ticket);
    }
    assert_eq!(commit(&mut ledger, now), [100]);
    let in_work = running(&old, 100, now);

    let answer = old.deliver(0, 10, now);
    assert_eq!(
        answer,
        Err(DeliverError::Falling {
            offset: 0,
            last: 100
        })
    );
    ledger.lose([&p0]);
    let new = ledger.assign(&p0, Start::Unknown, now);
    let tickets = [0, 1, 2].map(|offset| deliver(&new, offset, now));
    assert!(!end_well(&old, in_work));
    assert_eq!(commit(&mut ledger, now), [0; 0]);
    for ticket in tickets {
        handle(&new, ticket);
    }
    assert_eq!(commit(&mut ledger, now), [3]);
}

#[test]
fn c88_after_a_reset_the_committed_offset_may_go_down() {
    let (mut ledger, now) = ledger();
    let p0 = partition(0);
    let old = ledger.assign(&p0, Start::Unknown, now);
    let ticket = deliver(&old, 1_999, now);
    handle(&old, ticket);
    assert_eq!(commit(&mut ledger, now), [2_000]);
    ledger.lose([&p0]);
    let new = ledger.assign(&p0, Start::Unknown, now);
    let ticket = deliver(&new, 44, now);
    handle(&new, ticket);
    assert_eq!(commit(&mut ledger, now), [45]);
}

#[test]
fn c97_a_completion_is_in_the_last_commit_or_nowhere() {
    // the completion comes before the n-th step of the revoke: stop, fence, send, answer, release
    for (n, committed) in [(0, 8), (1, 8), (2, 7), (3, 7), (4, 7), (5, 7)] {
        let (mut ledger, start) = ledger();
        let p0 = partition(0);
        let epoch = ledger.assign(&p0, Start::Committed(6), start);
        let before = deliver(&epoch, 6, start);
        handle(&epoch, before);
        let seven = running(&epoch, 7, start);
        let fenced_at = start + secs(4);
        let mut last = None;
        for step in 0..=5 {
            if step == n {
                assert_eq!(end_well(&epoch, seven), n < 2);
            }
            match step {
                0 => assert_eq!(ledger.revoke([&p0], secs(5), start).len(), 1),
                1 => assert_eq!(ledger.drain_step(fenced_at).fenced.len(), 1),
                2 => last = Some(only(ledger.take_commits(fenced_at))),
                3 => {
                    let last = last.as_ref().expect("sent");
                    assert_eq!(last.offset, committed, "completed before step {n}");
                    ledger.commit_ended(last, Ok(()), fenced_at);
                }
                4 => assert_eq!(ledger.drain_step(fenced_at).released.len(), 1),
                _ => {}
            }
        }
        assert_eq!(ledger.take_commits(start + secs(60)), []);
        assert_eq!(ledger.in_flight(), (0, 0));
    }
}

#[test]
fn c97_a_completion_on_another_thread_is_in_the_last_commit_or_nowhere() {
    for _ in 0..500 {
        let (mut ledger, start) = ledger();
        let p0 = partition(0);
        let epoch = ledger.assign(&p0, Start::Committed(7), start);
        let seven = running(&epoch, 7, start);
        epoch.end(seven, true);
        ledger.revoke([&p0], secs(5), start);
        let (barrier, other) = (Barrier::new(2), Arc::clone(&epoch));
        let (fenced_at, counted) = thread::scope(|scope| {
            let handler = scope.spawn(|| {
                barrier.wait();
                other.settle(seven, DONE).verdict.is_some()
            });
            barrier.wait();
            let fenced_at = start + secs(4);
            ledger.drain_step(fenced_at);
            (fenced_at, handler.join().expect("no panic"))
        });
        let expected: &[i64] = if counted { &[8] } else { &[] };
        assert_eq!(commit(&mut ledger, fenced_at), expected);
        assert_eq!(ledger.in_flight(), (0, 0));
    }
}

#[test]
fn c101_after_five_failures_the_next_commit_carries_the_newest_watermark() {
    let (mut ledger, start) = ledger();
    let (p0, p1) = (partition(0), partition(1));
    let epoch = ledger.assign(&p0, Start::Unknown, start);
    let other = ledger.assign(&p1, Start::Unknown, start);
    let ticket = deliver(&epoch, 0, start);
    handle(&epoch, ticket);
    let mut now = start;
    for (offset, backoff) in [(1, 100), (2, 200), (3, 400), (4, 800), (5, 1_600)] {
        let sent = only(ledger.take_commits(now));
        assert_eq!(sent.offset, offset);
        ledger.commit_ended(&sent, Err(CommitFailure::Transient), now);
        assert_eq!(ledger.next_timeout(now), Some(now + ms(backoff)));
        let ticket = deliver(&epoch, offset, now);
        handle(&epoch, ticket);
        assert_eq!(ledger.take_commits(now + ms(backoff - 1)), []);
        now += ms(backoff);
    }
    assert_eq!(commit(&mut ledger, now), [6]);

    // one that will not heal is sent again too, rarely, and does not stop the others
    let ticket = deliver(&epoch, 6, now);
    handle(&epoch, ticket);
    let sent = only(ledger.take_commits(now));
    ledger.commit_ended(&sent, Err(CommitFailure::Permanent), now);
    let ticket = deliver(&other, 0, now);
    handle(&other, ticket);
    assert_eq!(commit(&mut ledger, now), [1]);
    assert_eq!(ledger.next_timeout(now), Some(now + secs(30)));
    assert_eq!(commit(&mut ledger, now + secs(30)), [7]);
}
