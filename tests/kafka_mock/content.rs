//! What is in the log reaches the handler as it was written, once, and is committed.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use tower_consumer::Message;
use tower_consumer::message::Timestamp;

use crate::member::{Log, Member};
use crate::mock::{Mock, Produced};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_message_of_six_partitions_is_handled_once_and_committed() {
    let mock = Mock::new(&[("orders", 6)]);
    for partition in 0..6 {
        mock.produce("orders", partition, 100);
    }
    let log = Log::new();
    let source = mock.source("billing").topics(["orders"]).build().unwrap();
    let member = Member::start(1, source, &log);
    log.until_handled(600).await;
    let summary = member.stop().await.unwrap();

    assert_eq!(log.handled(), once_each(0..6, 0..100));
    assert_eq!(summary.counts.delivered, 600);
    assert_eq!(summary.counts.done, 600);
    for partition in 0..6 {
        assert_eq!(summary.committed("orders", partition), Some(100));
        assert_eq!(mock.committed("billing", "orders", partition), Some(100));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_are_found_by_name_and_by_pattern() {
    let mock = Mock::new(&[
        ("orders", 1),
        ("paid.eu", 1),
        ("paid.us", 1),
        ("unpaid.eu", 1),
    ]);
    for topic in ["orders", "paid.eu", "paid.us", "unpaid.eu"] {
        mock.produce(topic, 0, 1);
    }
    let log = Log::new();
    let source = mock
        .source("billing")
        .topics(["orders"])
        .pattern("paid\\..*");
    let member = Member::start(1, source.build().unwrap(), &log);
    log.until_begun(3).await;
    let mut topics = topics(&log);
    topics.sort();
    assert_eq!(topics, ["orders", "paid.eu", "paid.us"]);
    member.stop().await.unwrap();
    assert_eq!(log.begun().len(), 3);
    assert_eq!(mock.committed("billing", "paid.us", 0), Some(1));
    assert_eq!(mock.committed("billing", "unpaid.eu", 0), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_made_later_that_matches_the_pattern_is_read_from_its_start() {
    let mock = Mock::new(&[("paid.eu", 1)]);
    mock.produce("paid.eu", 0, 1);
    let log = Log::new();
    let source = mock
        .source("billing")
        .pattern("^paid")
        .set("topic.metadata.refresh.interval.ms", "200");
    let member = Member::start(1, source.build().unwrap(), &log);
    log.until_handled(1).await;

    mock.cluster().create_topic("paid.us", 1, 1).unwrap();
    mock.produce("paid.us", 0, 3);
    log.until_begun(4).await;
    member.stop().await.unwrap();
    assert_eq!(topics(&log), ["paid.eu", "paid.us", "paid.us", "paid.us"]);
    assert_eq!(mock.committed("billing", "paid.us", 0), Some(3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn null_and_empty_stay_different_in_keys_and_payloads() {
    let mock = Mock::new(&[("orders", 1)]);
    let null: Option<&[u8]> = None;
    let written = [
        (null, null),
        (null, Some(&b""[..])),
        (Some(&b""[..]), null),
        (Some(b""), Some(b"")),
        (Some(b"key"), null),
        (Some(b"key"), Some(b"")),
        (null, Some(b"payload")),
        (Some(b"\x00\xff"), Some(b"\xff\x00")),
    ];
    mock.produce_all(
        "orders",
        written.map(|(key, payload)| Produced {
            key,
            payload,
            ..Produced::default()
        }),
    );
    for (message, written) in read(&mock, written.len()).await.iter().zip(written) {
        assert_eq!((message.key(), message.payload()), written);
        assert_eq!(message.key_bytes().as_deref(), written.0);
        assert_eq!(message.payload_bytes().as_deref(), written.1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_keep_their_order_repeated_names_and_null_values() {
    let mock = Mock::new(&[("orders", 1)]);
    let headers: [(&str, Option<&[u8]>); 6] = [
        ("trace", Some(b"1")),
        ("empty", Some(b"")),
        ("null", None),
        ("trace", Some(b"2")),
        ("", Some(b"no name")),
        ("bytes", Some(b"\x00\xff")),
    ];
    let plain = Produced {
        payload: Some(b"a"),
        ..Produced::default()
    };
    let with_headers = Produced {
        headers: &headers,
        ..plain
    };
    mock.produce_all("orders", [with_headers, plain]);
    let messages = read(&mock, 2).await;
    let read: Vec<_> = messages[0]
        .headers()
        .iter()
        .map(|h| (&*h.name, h.value.as_deref()))
        .collect();
    assert_eq!(read, headers);
    assert_eq!(messages[0].headers().last("trace"), Some(Some(&b"2"[..])));
    assert_eq!(messages[0].headers().last("null"), Some(None));
    assert!(messages[1].headers().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timestamps_are_those_of_the_log_and_decide_nothing() {
    let mock = Mock::new(&[("orders", 1)]);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_millis() as i64;
    // yesterday's, the one of a clock that is wrong, and an old one again
    let written = [1_600_000_000_000, now + 86_400_000 * 365, 1];
    mock.produce_all(
        "orders",
        written.map(|timestamp| Produced {
            payload: Some(b"a"),
            timestamp: Some(timestamp),
            ..Produced::default()
        }),
    );
    let messages = read(&mock, 3).await;
    let read: Vec<_> = messages.iter().map(Message::timestamp).collect();
    assert_eq!(read, written.map(Timestamp::CreateTime));
}

/// The messages of `orders`/0 in the order of the log; all of them are committed then.
async fn read(mock: &Mock, count: usize) -> Vec<Message> {
    let log = Log::new();
    // without waiting for a first assignment
    let source = mock
        .source_kip_848("billing")
        .topics(["orders"])
        .build()
        .unwrap();
    let member = Member::start(1, source, &log);
    log.until_handled(count).await;
    member.stop().await.unwrap();
    assert_eq!(mock.committed("billing", "orders", 0), Some(count as i64));
    let mut messages: Vec<Message> = log.begun().into_iter().map(|begun| begun.message).collect();
    messages.sort_by_key(Message::offset);
    messages
}

fn topics(log: &Log) -> Vec<String> {
    log.begun()
        .iter()
        .map(|begun| begun.message.topic().to_owned())
        .collect()
}

/// Each of these offsets of each of these partitions, once.
pub(crate) fn once_each(
    partitions: std::ops::Range<i32>,
    offsets: std::ops::Range<i64>,
) -> BTreeMap<(i32, i64), usize> {
    let places =
        partitions.flat_map(|partition| offsets.clone().map(move |offset| (partition, offset)));
    places.map(|place| (place, 1)).collect()
}
