//! Topics that change under a running member.

use std::thread;
use std::time::{Duration, Instant};

use rdkafka::admin::NewPartitions;
use rdkafka::consumer::Consumer;
use rdkafka::producer::{BaseProducer, Producer};

use super::{Case, REQUEST, sorted};
use crate::LIMIT;
use crate::member::{Gate, Log, Member};
use crate::said;

/// The client learns of it by the answer to a fetch: its offset is out of range, and the reset goes to 0.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real Kafka: tests/kafka/run"]
async fn a_topic_made_anew_is_read_from_its_start_in_a_new_assignment() {
    let case = Case::new("anew", 1);
    case.produce(0, 100);
    let log = Log::new();
    let gate = Gate::new(|message| message.offset() < 98);
    let member = Member::start_gated(1, case.source().build().unwrap(), &log, &gate);
    log.until_begun(100).await;
    case.wait_committed(0, 98);
    let old = log.begun()[0].epoch;

    delete_topic(&case).await;
    case.create_topic(1);
    case.produce(0, 7);
    log.until_begun(107).await;
    // those of the old numbering end now: they change nothing
    gate.open();
    case.wait_committed(0, 7);
    case.produce(0, 3);
    log.until_begun(110).await;
    case.wait_committed(0, 10);
    let summary = member.stop().await.unwrap();
    let (before, after) = log
        .begun()
        .into_iter()
        .partition::<Vec<_>, _>(|b| b.epoch == old);
    assert_eq!(before.len(), 100);
    let after = after.iter().map(|begun| begun.message.offset()).collect();
    assert_eq!(sorted(after), Vec::from_iter(0..10));
    assert_eq!(summary.counts.late, 2);
    let said = said::warnings(&case.name);
    for warning in ["offsets fell", "a new epoch begins"] {
        assert!(
            said.iter().any(|said| said.starts_with(warning)),
            "{said:?}"
        );
    }
}

/// The client learns of it by its metadata, which is asked for often: the partition is revoked and assigned.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real Kafka: tests/kafka/run"]
async fn a_topic_whose_end_was_noticed_is_read_from_the_start_of_the_next_one() {
    let case = Case::new("noticed", 1);
    noticed(case, "200").await;
}

/// The same, as long as nobody has asked for the metadata of the whole subscription: the partition stays assigned.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real Kafka: tests/kafka/run"]
async fn a_partition_that_is_gone_and_comes_back_is_read_from_its_start_without_a_rebalance() {
    let case = Case::new("gone", 1);
    let name = case.name.clone();
    noticed(case, "300000").await;
    let said = said::warnings(&name);
    for warning in ["the partition is gone", "a new epoch begins"] {
        assert!(
            said.iter().any(|said| said.starts_with(warning)),
            "{said:?}"
        );
    }
}

async fn noticed(case: Case, refresh: &str) {
    case.produce(0, 12);
    let log = Log::new();
    let gate = Gate::new(|message| message.offset() < 10);
    let source = case
        .source()
        .set("topic.metadata.refresh.interval.ms", refresh)
        // a topic that is younger than this may be one that is not known everywhere yet
        .set("topic.metadata.propagation.max.ms", "0");
    let member = Member::start_gated(1, source.build().unwrap(), &log, &gate);
    log.until_begun(12).await;
    case.wait_committed(0, 10);
    delete_topic(&case).await;
    member.until_assigned(0).await;
    case.create_topic(1);
    gate.open();
    // more than there were: nothing shows in the offsets
    case.produce(0, 25);
    log.until_begun(12 + 25).await;
    case.wait_committed(0, 25);
    assert_eq!(
        sorted(log.begun_of(0)[12..].to_vec()),
        Vec::from_iter(0..25)
    );
    assert!(member.is_running());
    member.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real Kafka: tests/kafka/run"]
async fn messages_of_partitions_that_are_added_all_arrive() {
    let case = Case::new("added", 2);
    case.produce(0, 5);
    let log = Log::new();
    let source = case
        .source()
        .set("topic.metadata.refresh.interval.ms", "200");
    let member = Member::start(1, source.build().unwrap(), &log);
    case.wait_committed(0, 5);
    let more = NewPartitions::new(&case.name, 4);
    let added = case
        .admin()
        .create_partitions([&more], &Case::options())
        .await;
    added.unwrap().remove(0).unwrap();
    produce_to_added(&case, 3, 10);
    log.until_handled(15).await;
    case.wait_committed(3, 10);
    assert_eq!(sorted(log.begun_of(3)), Vec::from_iter(0..10));
    assert_eq!(member.books.assigned().len(), 4);
    member.stop().await.unwrap();
    assert_eq!(case.committed(2), None);
}

async fn delete_topic(case: &Case) {
    let admin = case.admin();
    let deleted = admin.delete_topics(&[&case.name], &Case::options()).await;
    deleted.unwrap().remove(0).unwrap();
}

/// By a producer that has asked for the partitions since they were added.
fn produce_to_added(case: &Case, partition: i32, count: usize) {
    let observer = case.observer();
    let is_known = || {
        let metadata = observer.fetch_metadata(Some(&case.name), REQUEST).unwrap();
        metadata.topics()[0].partitions().len() > partition as usize
    };
    let deadline = Instant::now() + LIMIT;
    while !is_known() {
        assert!(Instant::now() < deadline, "the partitions are not there");
        thread::sleep(Duration::from_millis(10));
    }
    let producer: BaseProducer = case.client().create().unwrap();
    for _ in 0..count {
        case.send(&producer, partition, b"payload");
    }
    producer.flush(REQUEST).unwrap();
}
