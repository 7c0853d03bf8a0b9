//! Commits that are refused, that get lost, that are slow.

use std::time::Duration;

use rdkafka::types::RDKafkaApiKey::OffsetCommit;
use rdkafka::types::RDKafkaRespErr::{self, *};
use tower_consumer::serve::ServeErrorKind;
use tower_consumer::source::SourceError;

use crate::content::once_each;
use crate::member::{Gate, Log, Member};
use crate::mock::Mock;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_refusal_the_newest_watermark_is_sent() {
    let mock = Mock::new(&[("orders", 1)]);
    let log = Log::new();
    let source = mock.source("billing").topics(["orders"]).build().unwrap();
    let member = Member::start(1, source, &log);
    member.until_assigned(1).await;
    // again after 0.1, 0.2 and 0.4 s
    mock.fail(OffsetCommit, &[RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS; 3]);
    mock.produce("orders", 0, 10);
    log.until_handled(10).await;
    mock.produce("orders", 0, 10);
    log.until_handled(20).await;
    let seen = mock.watch_committed("billing", "orders", 0, 20);
    assert_eq!(seen, [20], "only the newest");
    assert!(member.is_running());
    let summary = member.stop().await.unwrap();
    assert_eq!(summary.counts.done, 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_refusal_of_a_commit_ends_serve() {
    let mock = Mock::new(&[("orders", 1)]);
    let log = Log::new();
    let source = mock.source("billing").topics(["orders"]).build().unwrap();
    let member = Member::start(1, source, &log);
    member.until_assigned(1).await;
    let errors = [
        RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS,
        RD_KAFKA_RESP_ERR_NOT_COORDINATOR,
        RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE,
        RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS,
        RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
        RD_KAFKA_RESP_ERR_NETWORK_EXCEPTION,
        RD_KAFKA_RESP_ERR_UNKNOWN, // the broker's "unknown server error"
        RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
        RD_KAFKA_RESP_ERR_STALE_MEMBER_EPOCH,
        RD_KAFKA_RESP_ERR__TRANSPORT, // the connection is closed
    ];
    for (round, error) in (1..).zip(errors) {
        mock.fail(OffsetCommit, &[error]);
        mock.produce("orders", 0, 2);
        mock.wait_committed("billing", "orders", 0, 2 * round);
        assert!(member.is_running(), "after {error:?}");
    }
    let summary = member.stop().await.unwrap();
    let count = 2 * errors.len() as i64;
    assert_eq!(log.handled(), once_each(0..1, 0..count));
    assert_eq!(summary.committed("orders", 0), Some(count));
}

/// What will not heal by itself is tried again after 30 s; the last commit of a shutdown does not wait for that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_for_good_is_forgotten_by_the_last_commit() {
    let errors = [
        RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED,
        RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED,
        RD_KAFKA_RESP_ERR_OFFSET_METADATA_TOO_LARGE,
    ];
    for error in errors {
        let mock = Mock::new(&[("orders", 1)]);
        let log = Log::new();
        let source = mock.source_kip_848("billing").topics(["orders"]);
        let member = Member::start(1, source.build().unwrap(), &log);
        member.until_assigned(1).await;
        mock.fail(OffsetCommit, &[error]);
        mock.produce("orders", 0, 5);
        log.until_handled(5).await;
        // the refusal has come, and a newer watermark does not go out by itself
        tokio::time::sleep(Duration::from_millis(300)).await;
        mock.produce("orders", 0, 5);
        log.until_handled(10).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(mock.committed("billing", "orders", 0), None, "{error:?}");
        assert!(member.is_running(), "after {error:?}");
        let summary = member.stop().await.unwrap();
        assert_eq!(summary.committed("orders", 0), Some(10), "{error:?}");
        assert_eq!(mock.committed("billing", "orders", 0), Some(10));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_bad_partition_does_not_keep_the_others_from_being_committed() {
    let mock = Mock::new(&[("orders", 3)]);
    for partition in 0..3 {
        mock.produce("orders", partition, 5);
    }
    // the answer to the list, and to the first of those that are then sent alone
    mock.fail(
        OffsetCommit,
        &[RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED; 2],
    );
    let log = Log::new();
    let source = mock
        .source("billing")
        .topics(["orders"])
        .commit_interval(Duration::from_millis(500));
    let member = Member::start(1, source.build().unwrap(), &log);
    log.until_handled(15).await;
    let committed = || (0..3).map(|partition| mock.committed("billing", "orders", partition));
    mock.wait(|| committed().flatten().count() == 2);
    let mut seen: Vec<_> = committed().collect();
    seen.sort();
    assert_eq!(seen, [None, Some(5), Some(5)]);
    assert!(member.is_running());
    member.stop().await.unwrap();
    assert_eq!(committed().collect::<Vec<_>>(), [Some(5); 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_commit_is_sent_again_within_the_budget() {
    let mock = Mock::new(&[("orders", 1)]);
    mock.produce("orders", 0, 5);
    let log = Log::new();
    let gate = Gate::closed();
    let source = mock.source("billing").topics(["orders"]).build().unwrap();
    let member = Member::start_gated(1, source, &log, &gate);
    log.until_begun(5).await;
    let ending = member.begin_stop();
    mock.fail(OffsetCommit, &[RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS; 3]);
    gate.open();
    let summary = ending.end().await.unwrap();
    assert_eq!(summary.committed("orders", 0), Some(5));
    assert_eq!(summary.partitions[0].not_committed, None);
    assert_eq!(mock.committed("billing", "orders", 0), Some(5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_commits_go_out_one_at_a_time_and_only_up() {
    let mock = Mock::new(&[("orders", 1)]);
    let log = Log::new();
    // a window that many commits have to open
    let source = mock.source("billing").topics(["orders"]).window(4);
    let member = Member::start(1, source.build().unwrap(), &log);
    member.until_assigned(1).await;
    mock.produce("orders", 0, 20);
    mock.cluster()
        .broker_round_trip_time(1, Duration::from_millis(200))
        .unwrap();
    let seen = mock.watch_committed("billing", "orders", 0, 20);
    assert!(seen.is_sorted(), "{seen:?}");
    // one that is out when the shutdown begins is waited for
    mock.produce("orders", 0, 3);
    log.until_handled(23).await;
    let summary = member.stop().await.unwrap();
    assert_eq!(summary.committed("orders", 0), Some(23));
    assert_eq!(mock.committed("billing", "orders", 0), Some(23));
    assert_eq!(log.handled(), once_each(0..1, 0..23));
}

/// A commit is out while the broker is away; it is answered when that is back, or given up by the client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_comes_back_is_sent_the_newest_watermark_and_read_on() {
    let mock = Mock::new(&[("orders", 2)]);
    let log = Log::new();
    let gate = Gate::new(|message| message.offset() < 5);
    let source = mock.source("billing").topics(["orders"]).build().unwrap();
    let member = Member::start_gated(1, source, &log, &gate);
    mock.produce("orders", 0, 20);
    mock.wait_committed("billing", "orders", 0, 5);
    log.until_begun(20).await;
    mock.cluster().broker_down(1).unwrap();
    gate.open_for(|message| message.offset() < 10);
    log.until_handled(10).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    gate.open();
    log.until_handled(20).await;
    assert_eq!(member.books.committed("orders", 0), Some(5));
    mock.cluster().broker_up(1).unwrap();
    mock.wait_committed("billing", "orders", 0, 20);
    mock.produce("orders", 0, 5);
    mock.produce("orders", 1, 5);
    mock.wait_committed("billing", "orders", 0, 25);
    mock.wait_committed("billing", "orders", 1, 5);
    let summary = member.stop().await.unwrap();
    assert_eq!(summary.counts.delivered, 30);
    assert_eq!(log.handled().len(), 30);
}

/// The broker has forgotten the member: what it had is lost, and it joins again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_the_group_does_not_know_joins_again_and_loses_nothing() {
    rejoins_after(RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_of_another_generation_joins_again_and_loses_nothing() {
    rejoins_after(RD_KAFKA_RESP_ERR_ILLEGAL_GENERATION).await;
}

async fn rejoins_after(error: RDKafkaRespErr) {
    let mock = Mock::new(&[("orders", 1)]);
    let log = Log::new();
    let gate = Gate::new(|message| message.offset() < 5);
    let source = mock.source("billing").topics(["orders"]);
    let source = source.commit_interval(Duration::from_millis(500));
    mock.produce("orders", 0, 10);
    mock.fail(OffsetCommit, &[error]);
    let member = Member::start_gated(1, source.build().unwrap(), &log, &gate);
    // again from the start: nothing was committed
    log.until_begun(20).await;
    mock.wait_committed("billing", "orders", 0, 5);
    gate.open();
    mock.wait_committed("billing", "orders", 0, 10);
    assert!(member.is_running(), "after {error:?}");
    let summary = member.stop().await.unwrap();
    // 0 to 4 twice; 5 to 9 were cut in the assignment that was lost
    assert_eq!(log.handled().values().sum::<usize>(), 15, "{error:?}");
    assert_eq!(log.handled().len(), 10);
    assert_eq!(summary.counts.late, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_was_fenced_ends_with_a_fatal_error_and_commits_nothing_more() {
    let mock = Mock::new(&[("orders", 1)]);
    let log = Log::new();
    let source = mock
        .source("billing")
        .topics(["orders"])
        .set("group.instance.id", "billing-1");
    let member = Member::start(1, source.build().unwrap(), &log);
    mock.produce("orders", 0, 3);
    mock.wait_committed("billing", "orders", 0, 3);
    mock.fail(OffsetCommit, &[RD_KAFKA_RESP_ERR_FENCED_INSTANCE_ID]);
    mock.produce("orders", 0, 3);
    let error = member.end().await.unwrap_err();
    let ServeErrorKind::Source(SourceError::Fatal(reason)) = &error.kind else {
        panic!("{error:?}");
    };
    assert!(reason.to_lowercase().contains("fenced"), "{reason}");
    assert_eq!(mock.committed("billing", "orders", 0), Some(3));
}
