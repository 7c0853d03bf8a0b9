//! Partitions whose numbering falls, and whose start cannot be found out.

use std::time::{Duration, Instant};

use rdkafka::types::RDKafkaApiKey;
use rdkafka::types::RDKafkaRespErr::*;

use crate::LIMIT;
use crate::content::once_each;
use crate::member::{Gate, Log, Member};
use crate::mock::Mock;
use crate::said;

/// As after a truncation: the broker says that the offset asked for is out of range, and the client begins again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_that_fall_begin_a_new_assignment_and_end_the_old_one() {
    let topic = "fallen";
    let mock = Mock::new(&[(topic, 2)]);
    mock.produce(topic, 0, 10);
    let log = Log::new();
    let gate = Gate::new(|message| message.offset() < 8);
    let source = mock.source("billing").topics([topic]).build().unwrap();
    let member = Member::start_gated(1, source, &log, &gate);
    mock.wait_committed("billing", topic, 0, 8);
    log.until_begun(10).await;
    let old = log.begun()[0].epoch;

    mock.fail(
        RDKafkaApiKey::Fetch,
        &[RD_KAFKA_RESP_ERR_OFFSET_OUT_OF_RANGE],
    );
    log.until_begun(20).await;
    // those of the old numbering end now, and it changes nothing: 8 of the new one holds the watermark
    gate.open_for(move |message| {
        message.offset() != 8 || message.delivery().is_some_and(|d| d.epoch() == old)
    });
    log.until("all but one", |log| {
        log.begun_of(0).len() == 20 && log.handled().len() == 9
    })
    .await;
    mock.produce(topic, 0, 2);
    log.until_handled(11).await;
    assert_eq!(member.books.watermark(topic, 0), Some(8));
    assert_eq!(mock.committed("billing", topic, 0), Some(8));
    gate.open();
    mock.wait_committed("billing", topic, 0, 12);
    let summary = member.stop().await.unwrap();
    assert_eq!(summary.counts.delivered, 22);
    assert!(log.begun().iter().skip(10).all(|begun| begun.epoch > old));
    let said = said::warnings(topic);
    assert!(
        said.iter().any(|said| said.starts_with("offsets fell")),
        "{said:?}"
    );
    assert!(
        said.iter()
            .any(|said| said.starts_with("a new epoch begins")),
        "{said:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_latest_a_start_that_cannot_be_found_out_at_assign_is_pinned_later() {
    let mock = Mock::new(&[("orders", 2)]);
    mock.produce("orders", 0, 3);
    mock.produce("orders", 1, 3);
    mock.commit("billing", "orders", 1, 1);
    for refused in [RDKafkaApiKey::ListOffsets, RDKafkaApiKey::OffsetFetch] {
        mock.fail(refused, &[RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED]);
    }
    let source = || {
        let source = mock.source("billing").topics(["orders"]);
        source.set("auto.offset.reset", "latest").build().unwrap()
    };
    let log = Log::new();
    let member = Member::start(1, source(), &log);
    member.until_assigned(2).await;
    mock.wait_committed("billing", "orders", 0, 3);
    mock.wait_committed("billing", "orders", 1, 3);
    member.stop().await.unwrap();
    assert_eq!(log.handled(), once_each(1..2, 1..3));
    mock.produce("orders", 0, 2);
    let member = Member::start(1, source(), &log);
    log.until_handled(4).await;
    member.stop().await.unwrap();
    assert_eq!(log.begun_of(0).len(), 2);
    assert_eq!(mock.committed("billing", "orders", 0), Some(5));
}

/// The metadata said that the topic does not exist, and then that it does: it goes on at the committed offset.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_was_gone_for_a_while_is_read_on_when_it_is_back() {
    let topic = "gone";
    let mock = Mock::new(&[(topic, 1), ("orders", 1)]);
    mock.produce(topic, 0, 10);
    let log = Log::new();
    // a topic that is younger than this may be one that is not known everywhere yet
    let source = mock
        .source("billing")
        .set("topic.metadata.propagation.max.ms", "0");
    let member = Member::start(1, source.topics([topic, "orders"]).build().unwrap(), &log);
    mock.wait_committed("billing", topic, 0, 10);
    let gone = |error| mock.cluster().topic_error(topic, error).unwrap();
    gone(RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART);
    // a leader that is none any more makes the client ask for the metadata, if it has not just asked
    let deadline = Instant::now() + LIMIT;
    while member.books.assigned().len() == 2 {
        assert!(Instant::now() < deadline && member.is_running());
        let error = RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION;
        mock.fail(RDKafkaApiKey::Fetch, &[error]);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    // the other one goes on meanwhile
    mock.produce("orders", 0, 5);
    mock.wait_committed("billing", "orders", 0, 5);
    gone(RD_KAFKA_RESP_ERR_NO_ERROR);
    mock.produce(topic, 0, 5);
    mock.wait_committed("billing", topic, 0, 15);
    assert!(member.is_running());
    let summary = member.stop().await.unwrap();
    assert_eq!(summary.counts.delivered, 20);
    // the client has said it every second, and left it in the queue
    let said = said::warnings(topic);
    let gone = said
        .iter()
        .filter(|said| said.starts_with("the partition is gone"));
    assert_eq!(gone.count(), 1, "{said:?}");
}
