//! Where a partition is begun: at the committed offset, whatever else is stored with it, or where the policy says.

use std::time::Duration;

use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use tower_consumer::ledger::TopicPartition;
use tower_consumer::serve::ServeErrorKind;
use tower_consumer::source::SourceError;
use tower_consumer::source::kafka::{KafkaSource, KafkaSourceBuilder};

use crate::content::once_each;
use crate::member::{Log, Member};
use crate::mock::{Mock, Produced};
use crate::{LIMIT, said};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_begins_with_the_first_message_that_was_not_committed() {
    let mock = Mock::new(&[("orders", 1)]);
    mock.produce("orders", 0, 1);
    for handled in 1..=3 {
        let log = Log::new();
        let member = Member::start(1, build(mock.source("billing")), &log);
        log.until_begun(1).await;
        member.stop().await.unwrap();
        assert_eq!(log.begun_of(0), [handled - 1]);
        assert_eq!(mock.committed("billing", "orders", 0), Some(handled));
        mock.produce("orders", 0, 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn committed_0_is_a_commit_like_any_other() {
    let mock = Mock::new(&[("orders", 1)]);
    mock.produce("orders", 0, 5);
    mock.commit("billing", "orders", 0, 0);
    assert_eq!(run(&mock, mock.source("billing"), 5).await, [0, 1, 2, 3, 4]);
    assert_eq!(mock.committed("billing", "orders", 0), Some(5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_the_end_of_the_log_it_waits_for_the_next_message() {
    let mock = Mock::new(&[("orders", 1)]);
    mock.produce("orders", 0, 5);
    mock.commit("billing", "orders", 0, 5);
    let log = Log::new();
    let member = Member::start(1, build(mock.source("billing")), &log);
    member.until_assigned(1).await;
    assert_eq!(member.books.committed("orders", 0), Some(5));
    mock.produce("orders", 0, 1);
    log.until_handled(1).await;
    member.stop().await.unwrap();
    assert_eq!(log.begun_of(0), [5]);
    assert_eq!(mock.committed("billing", "orders", 0), Some(6));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_committed_for_a_partition_without_a_message() {
    let mock = Mock::new(&[("orders", 3)]);
    mock.produce("orders", 1, 10);
    let log = Log::new();
    let member = Member::start(1, build(mock.source("billing")), &log);
    log.until_handled(10).await;
    let summary = member.stop().await.unwrap();
    assert_eq!(summary.partitions.len(), 3);
    for (partition, committed) in [(0, None), (1, Some(10)), (2, None)] {
        assert_eq!(mock.committed("billing", "orders", partition), committed);
        assert_eq!(summary.committed("orders", partition), committed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_begins_above_0_is_read_from_where_it_begins() {
    let (mock, first) = trimmed();
    let begun = run(&mock, mock.source("billing"), (800 - first) as usize).await;
    assert_eq!(begun, Vec::from_iter(first..800));
    assert_eq!(mock.committed("billing", "orders", 0), Some(800));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_committed_offset_that_retention_has_passed_is_reset_to_the_start_of_the_log() {
    let (mock, first) = trimmed();
    mock.commit("billing", "orders", 0, 1);
    let begun = run(&mock, mock.source("billing"), (800 - first) as usize).await;
    assert_eq!(begun, Vec::from_iter(first..800));
    assert_eq!(mock.committed("billing", "orders", 0), Some(800));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_committed_offset_beyond_the_log_is_reset_to_its_start_and_lower_commits_are_sent() {
    let mock = Mock::new(&[("orders", 1)]);
    mock.produce("orders", 0, 45);
    mock.commit("billing", "orders", 0, 2_000);
    assert_eq!(
        run(&mock, mock.source("billing"), 45).await,
        Vec::from_iter(0..45)
    );
    assert_eq!(mock.committed("billing", "orders", 0), Some(45));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_latest_a_committed_offset_beyond_the_log_is_reset_to_its_end() {
    let mock = Mock::new(&[("orders", 1)]);
    mock.produce("orders", 0, 45);
    mock.commit("billing", "orders", 0, 2_000);
    let log = Log::new();
    let source = mock.source("billing").set("auto.offset.reset", "latest");
    let member = Member::start(1, build(source), &log);
    // what is produced before a restart must not be skipped by another reset
    mock.wait_committed_of("billing", "orders", 0, |committed| committed == Some(45));
    member.stop().await.unwrap();
    mock.produce("orders", 0, 1);
    let source = mock.source("billing").set("auto.offset.reset", "latest");
    assert_eq!(run(&mock, source, 1).await, [45]);
    assert_eq!(mock.committed("billing", "orders", 0), Some(46));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_error_policy_serve_ends_and_names_the_partition() {
    let mock = Mock::new(&[("orders", 2)]);
    mock.produce("orders", 0, 45);
    mock.produce("orders", 1, 45);
    mock.commit("billing", "orders", 0, 2_000);
    mock.commit("billing", "orders", 1, 0);
    let log = Log::new();
    let source = mock.source("billing").set("auto.offset.reset", "error");
    let member = Member::start(1, build(source), &log);
    let error = member.end().await.unwrap_err();
    let ServeErrorKind::Source(SourceError::Partition { tp, error: reason }) = &error.kind else {
        panic!("{error:?}");
    };
    assert_eq!(*tp, TopicPartition::new("orders", 0));
    assert!(
        reason.contains("out of range") || reason.contains("AutoOffsetReset"),
        "{reason}"
    );
    assert!(error.to_string().contains("orders/0"), "{error}");
    assert_eq!(log.begun_of(0), [0; 0]);
    // what was handled of the other one is committed
    let handled = log.handled();
    let prefix = (0..).take_while(|offset| handled.contains_key(&(1, *offset)));
    let prefix = prefix.count() as i64;
    assert_eq!(mock.committed("billing", "orders", 1), Some(prefix));
    assert_eq!(mock.committed("billing", "orders", 0), Some(2_000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_latest_the_start_of_an_untouched_partition_is_pinned() {
    for latest in ["latest", "LARGEST"] {
        let mock = Mock::new(&[("orders", 3)]);
        mock.produce("orders", 2, 7);
        let source = || {
            mock.source_kip_848("billing")
                .set("auto.offset.reset", latest)
        };
        let log = Log::new();
        let member = Member::start(1, build(source()), &log);
        for (partition, end) in [(0, 0), (1, 0), (2, 7)] {
            mock.wait_committed("billing", "orders", partition, end);
        }
        mock.produce("orders", 0, 1);
        mock.produce("orders", 1, 1);
        log.until_handled(2).await;
        member.stop().await.unwrap();

        mock.produce("orders", 2, 5);
        let log = Log::new();
        let member = Member::start(1, build(source()), &log);
        log.until_handled(5).await;
        member.stop().await.unwrap();
        assert_eq!(log.handled(), once_each(2..3, 7..12));
        for (partition, end) in [(0, 1), (1, 1), (2, 12)] {
            assert_eq!(mock.committed("billing", "orders", partition), Some(end));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_latest_nothing_is_taken_before_the_start_is_committed() {
    let mock = Mock::new(&[("orders", 1)]);
    mock.produce("orders", 0, 7);
    mock.fail(
        RDKafkaApiKey::OffsetCommit,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT; 2],
    );
    let log = Log::new();
    let source = mock.source("billing").set("auto.offset.reset", "latest");
    let member = Member::start(1, build(source), &log);
    member.until_assigned(1).await;
    mock.produce("orders", 0, 3);
    assert_eq!(log.begun_of(0), [0; 0]);
    assert_eq!(mock.committed("billing", "orders", 0), None);
    log.until_handled(3).await;
    member.stop().await.unwrap();
    assert_eq!(log.handled(), once_each(0..1, 7..10));
    assert_eq!(mock.committed("billing", "orders", 0), Some(10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_that_another_tool_left_changes_nothing() {
    let random: Vec<u8> = (0..200).map(|_| fastrand::u8(..)).collect();
    let metadata: [&[u8]; 5] = [
        &random,
        b"\xff\xfe\x00\x80",
        &[b'x'; 4_096],
        "{\"done\":[11]}".as_bytes(),
        b"",
    ];
    let mock = Mock::new(&[("orders", 5)]);
    for (partition, metadata) in (0..).zip(metadata) {
        mock.produce("orders", partition, 12);
        mock.commit_with("billing", "orders", partition, 10, metadata);
    }
    let log = Log::new();
    let member = Member::start(1, build(mock.source("billing")), &log);
    log.until_handled(10).await;
    member.stop().await.unwrap();
    assert_eq!(log.handled(), once_each(0..5, 10..12));
    for partition in 0..5 {
        assert_eq!(mock.committed("billing", "orders", partition), Some(12));
    }
}

fn build(builder: KafkaSourceBuilder) -> tower_consumer::source::kafka::KafkaSource {
    builder.topics(["orders"]).build().unwrap()
}

/// Handles that many messages of `orders`/0 and stops; answers their offsets, in order.
async fn run(mock: &Mock, source: KafkaSourceBuilder, count: usize) -> Vec<i64> {
    let log = Log::new();
    let member = Member::start(1, build(source), &log);
    log.until_handled(count).await;
    member.stop().await.unwrap();
    let _ = mock;
    let mut begun = log.begun_of(0);
    begun.sort();
    begun
}

/// 800 messages of 10 kB, of which the cluster keeps the newest 5 MiB: the cluster, and the first offset kept.
fn trimmed() -> (Mock, i64) {
    let mock = Mock::new(&[("orders", 1)]);
    let payload = vec![b'x'; 10_000];
    let message = Produced {
        payload: Some(&payload),
        ..Produced::default()
    };
    mock.produce_all("orders", std::iter::repeat_n(message, 800));
    let (first, end) = mock.log("orders", 0);
    assert!(first > 0, "the log begins at {first}");
    assert_eq!(end, 800);
    (mock, first)
}

/// The client repeats its error some 20 times a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_cannot_be_reached_is_named_now_and_then_and_not_in_a_flood() {
    said::listen();
    let topic = "nobody-is-there";
    let source = KafkaSource::builder("127.0.0.1:1", "billing")
        .topics([topic])
        .build()
        .unwrap();
    let member = Member::start(1, source, &Log::new());
    let idle = |said: &String| said.starts_with("no partition is assigned");
    let waited = tokio::time::Instant::now();
    while !said::warnings(topic).iter().any(idle) {
        assert!(waited.elapsed() < LIMIT, "nothing is said");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let said = said::warnings(topic);
    let errors = said
        .iter()
        .filter(|said| said.starts_with("client error"))
        .count();
    assert!((1..=20).contains(&errors), "{errors} lines in 10 s");
    member.stop().await.unwrap();
}
