//! Faults that the random walks found in this ledger, each as a scene.

use std::time::Duration;

use tower_consumer::ledger::{
    Begin, CommitFailure, Config, DeliverError, Kind, Ledger, Room, Start, Verdict,
};

use crate::cases::{
    DONE, FAILED, commit, deliver, end_well, handle, ledger, ms, only, partition, running, secs,
};

#[test]
fn a_slow_commit_of_the_old_epoch_does_not_stand_for_the_last_commit_of_the_new_one() {
    let (mut ledger, now) = ledger();
    let p0 = partition(0);
    let old = ledger.assign(&p0, Start::Unknown, now);
    let ticket = deliver(&old, 99, now);
    handle(&old, ticket);
    let slow = only(ledger.take_commits(now));
    assert_eq!(slow.offset, 100);
    ledger.lose([&p0]);

    // the topic was made anew
    let new = ledger.assign(&p0, Start::Unknown, now);
    let ticket = deliver(&new, 0, now);
    handle(&new, ticket);
    ledger.revoke([&p0], secs(5), now);
    ledger.drain_step(now);
    assert_eq!(ledger.take_commits(now), [], "one commit at a time");
    ledger.commit_ended(&slow, Ok(()), now);
    assert!(ledger.drain_step(now).released.is_empty());
    assert_eq!(commit(&mut ledger, now), [1]);
    assert_eq!(ledger.drain_step(now).released[0][0].committed, Some(1));
}

#[test]
fn a_late_failure_of_the_old_epochs_commit_does_not_delay_the_new_one() {
    let (mut ledger, now) = ledger();
    let p0 = partition(0);
    let old = ledger.assign(&p0, Start::Unknown, now);
    let ticket = deliver(&old, 0, now);
    handle(&old, ticket);
    let slow = only(ledger.take_commits(now));
    ledger.lose([&p0]);
    let new = ledger.assign(&p0, Start::Pin(5), now);
    assert_eq!(new.room(), Room::NotPinned);
    ledger.commit_ended(&slow, Err(CommitFailure::Permanent), now);
    assert_eq!(commit(&mut ledger, now), [5]);
    assert_eq!(new.room(), Room::Free);
}

#[test]
fn the_last_commit_backs_off_by_its_own_failures_alone() {
    let (mut ledger, start) = ledger();
    let p0 = partition(0);
    let epoch = ledger.assign(&p0, Start::Unknown, start);
    let ticket = deliver(&epoch, 0, start);
    handle(&epoch, ticket);
    let mut now = start;
    for _ in 0..6 {
        now = ledger.next_timeout(now).expect("due again");
        let sent = only(ledger.take_commits(now));
        ledger.commit_ended(&sent, Err(CommitFailure::Transient), now);
    }
    ledger.revoke([&p0], secs(5), now);
    ledger.drain_step(now);
    let last = only(ledger.take_commits(now));
    assert!(last.last);
    ledger.commit_ended(&last, Err(CommitFailure::Transient), now);
    assert_eq!(ledger.next_timeout(now), Some(now + ms(100)));
    assert_eq!(commit(&mut ledger, now + ms(100)), [1]);
}

#[test]
fn a_drain_that_ends_by_loss_lets_the_commits_of_others_go() {
    let (mut ledger, now) = ledger();
    let (p0, p1) = (partition(0), partition(1));
    let drained = ledger.assign(&p0, Start::Unknown, now);
    let kept = ledger.assign(&p1, Start::Unknown, now);
    let ticket = deliver(&kept, 0, now);
    handle(&kept, ticket);
    running(&drained, 0, now);
    ledger.revoke([&p0], secs(30), now);
    assert_eq!(ledger.take_commits(now), []);
    ledger.lose([&p0]);
    assert_eq!(commit(&mut ledger, now), [1]);
}

#[test]
fn the_commits_of_others_are_at_most_5_s_late_however_many_revokes_there_are_and_however_long_they_take()
 {
    let (mut ledger, now) = ledger();
    let [p0, p1, p2] = [0, 1, 2].map(partition);
    let [slow, _, kept] = [&p0, &p1, &p2].map(|tp| ledger.assign(tp, Start::Unknown, now));
    let ticket = deliver(&kept, 0, now);
    handle(&kept, ticket);
    running(&slow, 0, now);
    ledger.revoke([&p0], secs(30), now);
    ledger.revoke([&p1], Duration::ZERO, now + secs(3));
    assert_eq!(ledger.drain_step(now + secs(3)).released.len(), 1);
    assert_eq!(ledger.take_commits(now + ms(4_999)), []);
    assert_eq!(ledger.next_timeout(now + ms(4_999)), Some(now + secs(5)));
    assert_eq!(commit(&mut ledger, now + secs(5)), [1]);
}

/// It was answered with the later one, past its own budget.
#[test]
fn a_later_revoke_does_not_take_a_partition_along_that_is_being_drained_already() {
    let (mut ledger, now) = ledger();
    let [p0, p1] = [0, 1].map(partition);
    let [first, second] = [&p0, &p1].map(|tp| ledger.assign(tp, Start::Unknown, now));
    running(&first, 0, now);
    running(&second, 0, now);
    ledger.revoke([&p0], secs(5), now);
    ledger.revoke([&p0, &p1], secs(30), now + secs(1));
    // four fifths of its own budget
    assert_eq!(ledger.drain_step(now + ms(3_999)).released.len(), 0);
    let released = ledger.drain_step(now + secs(4)).released;
    assert_eq!(released.len(), 1);
    assert_eq!(released[0].len(), 1);
    assert_eq!(released[0][0].tp, p0);
}

#[test]
fn a_drain_that_waits_for_another_of_its_group_does_not_make_the_driver_spin() {
    let (mut ledger, now) = ledger();
    let (p0, p1) = (partition(0), partition(1));
    ledger.assign(&p0, Start::Unknown, now);
    let slow = ledger.assign(&p1, Start::Unknown, now);
    running(&slow, 0, now);
    ledger.revoke([&p0], secs(1), now);
    ledger.revoke([&p0, &p1], secs(10), now);
    ledger.drain_step(now);
    assert_eq!(ledger.next_timeout(now + secs(2)), Some(now + secs(8)));
}

#[test]
fn a_drain_whose_last_companion_was_lost_is_released_at_once() {
    let (mut ledger, now) = ledger();
    let (p0, p1) = (partition(0), partition(1));
    ledger.assign(&p0, Start::Unknown, now);
    let slow = ledger.assign(&p1, Start::Unknown, now);
    running(&slow, 0, now);
    ledger.revoke([&p0, &p1], secs(10), now);
    assert!(ledger.drain_step(now).released.is_empty());
    ledger.lose([&p1]);
    assert_eq!(ledger.next_timeout(now), Some(now));
    assert_eq!(ledger.drain_step(now).released[0][0].tp, p0);
}

#[test]
fn a_partition_whose_share_is_free_is_told_so_although_others_hold_everything() {
    let mut config = Config::default();
    config.in_flight_messages = 1;
    let (mut ledger, now) = (Ledger::new(config), ledger().1);
    let hung = ledger.assign(&partition(0), Start::Unknown, now);
    let healthy = ledger.assign(&partition(1), Start::Unknown, now);
    running(&hung, 0, now);
    let ticket = running(&healthy, 0, now);
    assert_eq!(healthy.room(), Room::InFlightFull);
    healthy.end(ticket, true);
    assert!(healthy.settle(ticket, DONE).effects.room);
    assert_eq!(healthy.room(), Room::Free);
}

#[test]
fn a_verdict_after_the_fence_moves_no_watermark() {
    let (mut ledger, now) = ledger();
    let p0 = partition(0);
    let epoch = ledger.assign(&p0, Start::Unknown, now);
    let ticket = running(&epoch, 0, now);
    ledger.lose([&p0]);
    assert!(!end_well(&epoch, ticket));
    assert_eq!(epoch.watermark(), Some(0));
    assert_eq!(ledger.in_flight(), (0, 0));
}

#[test]
fn more_guards_than_a_byte_can_count_are_all_given_back() {
    let (mut ledger, now) = ledger();
    let epoch = ledger.assign(&partition(0), Start::Unknown, now);
    let ticket = running(&epoch, 0, now);
    for _ in 0..300 {
        epoch.hold(ticket, None);
    }
    assert_eq!(epoch.busy(), 301);
    for _ in 0..300 {
        epoch.unhold(ticket);
    }
    assert_eq!(epoch.busy(), 1);
    assert!(end_well(&epoch, ticket));
    assert_eq!(epoch.busy(), 0);
}

#[test]
fn an_attempt_beside_more_guards_than_a_byte_can_count_still_begins() {
    let (mut ledger, now) = ledger();
    let epoch = ledger.assign(&partition(0), Start::Unknown, now);
    let ticket = deliver(&epoch, 0, now);
    for _ in 0..300 {
        epoch.hold(ticket, None);
    }
    assert_eq!(epoch.begin(ticket), Begin::Started(1));
}

#[test]
fn an_interval_without_end_commits_only_what_is_urgent() {
    let mut config = Config::default();
    config.commit_interval = Duration::MAX;
    config.window_messages = 4;
    let (mut ledger, now) = (Ledger::new(config), ledger().1);
    let epoch = ledger.assign(&partition(0), Start::Unknown, now);
    let [m0, m1] = [0, 1].map(|offset| deliver(&epoch, offset, now));
    handle(&epoch, m0);
    assert_eq!(ledger.take_commits(now + secs(86_400)), []);
    handle(&epoch, m1);
    assert_eq!(commit(&mut ledger, now + secs(86_400)), [2]);
}

#[test]
fn a_negative_offset_is_refused_and_enters_no_books() {
    let (mut ledger, now) = ledger();
    let epoch = ledger.assign(&partition(0), Start::Unknown, now);
    assert_eq!(epoch.deliver(-1, 10, now), Err(DeliverError::Negative(-1)));
    assert_eq!((ledger.in_flight(), epoch.watermark()), ((0, 0), None));
}

#[test]
fn what_did_not_finish_holds_the_watermark_for_the_rest_of_its_epoch() {
    let (mut ledger, now) = ledger();
    let epoch = ledger.assign(&partition(0), Start::Unknown, now);
    let [m0, m1, m2] = [0, 1, 2].map(|offset| deliver(&epoch, offset, now));
    handle(&epoch, m0);
    epoch.settle(m1, FAILED);
    handle(&epoch, m2);
    // a better answer comes too late
    assert_eq!(
        epoch.settle(m1, Verdict::Finished(Kind::Skipped)).verdict,
        None
    );
    assert_eq!(commit(&mut ledger, now), [1]);
    assert_eq!((epoch.watermark(), ledger.counts().late), (Some(1), 1));
}
