//! Logs with holes, and offsets that others have committed.

use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer;
use rdkafka::producer::{BaseProducer, Producer};
use rdkafka::{Offset, TopicPartitionList};

use super::{Case, REQUEST, sorted};
use crate::member::{Log, Member};
use crate::said;

/// Offsets 0 to 99, marker 100; aborted 101 to 110, marker 111; 112 to 116, marker 117.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real Kafka: tests/kafka/run"]
async fn markers_and_aborted_records_are_neither_handled_nor_waited_for() {
    let case = Case::new("transactions", 1);
    let producer = transactional(&case);
    transaction(&case, &producer, 100, true);
    let log = Log::new();
    let member = Member::start(1, case.source().build().unwrap(), &log);
    log.until_handled(100).await;
    case.wait_committed(0, 100);
    transaction(&case, &producer, 10, false);
    transaction(&case, &producer, 5, true);
    log.until_handled(105).await;
    let began = Instant::now();
    let summary = member.stop().await.unwrap();
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(summary.partitions[0].committed, Some(117));
    assert_eq!(case.committed(0), Some(117));
    let handled = Vec::from_iter((0..100).chain(112..117));
    assert_eq!(sorted(log.begun_of(0)), handled);
    assert_eq!(end(&case), 118);

    // a restart begins with the next message, behind the marker
    case.produce(0, 1);
    let log = Log::new();
    let member = Member::start(1, case.source().build().unwrap(), &log);
    log.until_handled(1).await;
    member.stop().await.unwrap();
    assert_eq!(log.begun_of(0), [118]);
    assert_eq!(case.committed(0), Some(119));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real Kafka: tests/kafka/run"]
async fn a_log_whose_beginning_was_deleted_is_read_from_what_is_left() {
    let case = Case::new("deleted", 2);
    for partition in 0..2 {
        case.produce(partition, 45);
        let mut before = TopicPartitionList::new();
        let added = before.add_partition_offset(&case.name, partition, Offset::Offset(30));
        added.unwrap();
        let deleted = case.admin().delete_records(&before, &Case::options()).await;
        deleted.unwrap();
    }
    // of one partition something that is gone was committed
    case.commit(1, 10, b"");
    let log = Log::new();
    let member = Member::start(1, case.source().build().unwrap(), &log);
    log.until_handled(30).await;
    member.stop().await.unwrap();
    for partition in 0..2 {
        assert_eq!(sorted(log.begun_of(partition)), Vec::from_iter(30..45));
        assert_eq!(case.committed(partition), Some(45));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real Kafka: tests/kafka/run"]
async fn a_committed_offset_beyond_the_log_is_reset_and_lower_commits_are_sent() {
    let case = Case::new("beyond", 1);
    case.produce(0, 45);
    case.commit(0, 2_000, b"");
    let log = Log::new();
    let member = Member::start(1, case.source().build().unwrap(), &log);
    log.until_handled(45).await;
    case.wait_committed(0, 45);
    member.stop().await.unwrap();
    assert_eq!(sorted(log.begun_of(0)), Vec::from_iter(0..45));
    let said = said::warnings(&case.name);
    assert!(said[0].contains("outside of the log"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real Kafka: tests/kafka/run"]
async fn metadata_that_another_tool_left_changes_nothing() {
    let case = Case::new("metadata", 4);
    let random: Vec<u8> = (0..200).map(|_| fastrand::u8(..)).collect();
    let metadata: [&[u8]; 4] = [&random, b"\xff\xfe\x00\x80", &[b'x'; 4_096], b""];
    for (partition, metadata) in (0..).zip(metadata) {
        case.produce(partition, 12);
        case.commit(partition, 10, metadata);
    }
    let log = Log::new();
    let member = Member::start(1, case.source().build().unwrap(), &log);
    log.until_handled(8).await;
    member.stop().await.unwrap();
    for partition in 0..4 {
        assert_eq!(sorted(log.begun_of(partition)), [10, 11]);
        assert_eq!(case.committed(partition), Some(12));
    }
}

/// A transaction is about to commit 7 for the group: until it ends the broker does not say what is committed. That is
/// not "nothing", for which `latest` would commit the end of the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real Kafka: tests/kafka/run"]
async fn with_latest_a_committed_offset_that_is_not_known_yet_is_waited_for() {
    let case = Case::new("unstable", 1);
    case.produce(0, 10);
    case.commit(0, 5, b"");
    let producer = transactional(&case);
    producer.begin_transaction().unwrap();
    let mut offsets = TopicPartitionList::new();
    let added = offsets.add_partition_offset(&case.name, 0, Offset::Offset(7));
    added.unwrap();
    let group = case.observer().group_metadata().unwrap();
    let sent = producer.send_offsets_to_transaction(&offsets, &group, REQUEST);
    sent.unwrap();

    let log = Log::new();
    let source = case.source().set("auto.offset.reset", "latest");
    let member = Member::start(1, source.build().unwrap(), &log);
    // longer than an assign waits for the answer
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert_eq!(log.begun().len(), 0);
    producer.abort_transaction(REQUEST).unwrap();
    log.until_handled(5).await;
    member.stop().await.unwrap();
    assert_eq!(sorted(log.begun_of(0)), Vec::from_iter(5..10));
    assert_eq!(case.committed(0), Some(10));
}

/// 600 kB where a fetch asks for 10 kB of a partition and 20 kB in all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real Kafka: tests/kafka/run"]
async fn a_message_larger_than_a_fetch_is_handled_like_any_other() {
    let case = Case::new("large", 2);
    let large = vec![b'x'; 600_000];
    for partition in 0..2 {
        case.produce_payloads(partition, [&b"a"[..], &large, b"b", &large, b"c"]);
    }
    let log = Log::new();
    let source = case
        .source()
        .set("fetch.message.max.bytes", "10000")
        .set("fetch.max.bytes", "20000")
        .set("message.max.bytes", "20000")
        .set("queued.max.messages.kbytes", "10")
        .window_bytes(1_000);
    let member = Member::start(1, source.build().unwrap(), &log);
    log.until_handled(10).await;
    member.stop().await.unwrap();
    let bytes = |begun: &crate::member::Begun| begun.message.payload().map_or(0, <[u8]>::len);
    assert_eq!(
        log.begun().iter().map(bytes).sum::<usize>(),
        4 * 600_000 + 6
    );
    assert_eq!((case.committed(0), case.committed(1)), (Some(5), Some(5)));
}

fn transactional(case: &Case) -> BaseProducer {
    let mut config = case.client();
    let producer: BaseProducer = config.set("transactional.id", &case.name).create().unwrap();
    producer.init_transactions(REQUEST).unwrap();
    producer
}

fn transaction(case: &Case, producer: &BaseProducer, count: usize, commit: bool) {
    producer.begin_transaction().unwrap();
    for _ in 0..count {
        case.send(producer, 0, b"payload");
    }
    producer.flush(REQUEST).unwrap();
    match commit {
        true => producer.commit_transaction(REQUEST).unwrap(),
        false => producer.abort_transaction(REQUEST).unwrap(),
    }
}

/// The end of the log, markers included.
fn end(case: &Case) -> i64 {
    let watermarks = case.observer().fetch_watermarks(&case.name, 0, REQUEST);
    watermarks.unwrap().1
}
