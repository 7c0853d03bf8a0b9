//! How a member ends: in order, without a broker, dropped, for good.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::types::RDKafkaApiKey;
use rdkafka::types::RDKafkaRespErr::*;
use tower_consumer::ledger::TopicPartition;
use tower_consumer::serve::{ServeError, ServeErrorKind};
use tower_consumer::source::SourceError;

use crate::content::once_each;
use crate::member::{Gate, Log, Member};
use crate::mock::Mock;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_runs_at_the_shutdown_may_end_and_is_committed() {
    let mock = Mock::new(&[("orders", 2)]);
    mock.produce("orders", 0, 5);
    mock.produce("orders", 1, 1);
    let log = Log::new();
    let gate = Gate::new(|message| message.partition() == 1);
    let source = mock.source("billing").topics(["orders"]).build().unwrap();
    let member = Member::start_gated(1, source, &log, &gate);
    log.until_begun(6).await;
    let ending = member.begin_stop();
    mock.produce("orders", 1, 3); // nobody takes them
    gate.open_for(|message| message.offset() < 4);
    log.until_handled(5).await;
    gate.open();
    let summary = ending.end().await.unwrap();
    assert_eq!(summary.counts.delivered, 6);
    assert_eq!(summary.committed("orders", 0), Some(5));
    assert_eq!(mock.committed("billing", "orders", 0), Some(5));
    assert_eq!(mock.committed("billing", "orders", 1), Some(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_does_not_end_is_left_behind_and_the_prefix_is_committed() {
    let mock = Mock::new(&[("orders", 1)]);
    mock.produce("orders", 0, 10);
    let log = Log::new();
    let source = mock.source("billing").topics(["orders"]).build().unwrap();
    let limit = Duration::from_secs(2);
    let member = Member::start_limited(1, source, &log, limit, |message| async move {
        if message.offset() == 7 {
            std::future::pending::<()>().await;
        }
        Ok(())
    });
    log.until_handled(9).await;
    let began = Instant::now();
    let summary = member.stop().await.unwrap();
    assert!(began.elapsed() < limit + Duration::from_millis(500));
    assert_eq!(summary.partitions[0].committed, Some(7));
    assert_eq!(summary.partitions[0].cut, 1);
    assert_eq!(mock.committed("billing", "orders", 0), Some(7));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_broker_the_shutdown_ends_within_its_limit_and_says_what_is_not_committed() {
    let mock = Mock::new(&[("orders", 2)]);
    let log = Log::new();
    let gate = Gate::new(|message| message.offset() < 3);
    let source = mock.source("billing").topics(["orders"]).build().unwrap();
    let limit = Duration::from_secs(2);
    let held = gate.clone();
    let member = Member::start_limited(1, source, &log, limit, move |message| {
        let gate = held.clone();
        async move {
            gate.pass(&message).await;
            Ok(())
        }
    });
    mock.produce("orders", 0, 5);
    mock.wait_committed("billing", "orders", 0, 3);
    log.until_begun(5).await;
    mock.cluster().broker_down(1).unwrap();
    gate.open();
    log.until_handled(5).await;

    let began = Instant::now();
    let ended = member.stop().await;
    let took = began.elapsed();
    assert!(took < limit + Duration::from_millis(500), "{took:?}");
    let summary = match ended {
        Ok(summary) | Err(ServeError { summary, .. }) => summary,
    };
    let partition = &summary.partitions[0];
    assert_eq!(partition.tp, TopicPartition::new("orders", 0));
    assert_eq!(partition.committed, Some(3));
    assert_eq!(partition.not_committed, Some(5));
    assert_eq!(summary.partitions[1].not_committed, None);
    let said = summary.to_string();
    assert!(
        said.contains("orders/0 committed 3 (not committed: 5)"),
        "{said}"
    );

    mock.cluster().broker_up(1).unwrap();
    assert_eq!(mock.committed("billing", "orders", 0), Some(3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn before_it_was_given_anything_it_ends_at_once() {
    let mock = Mock::new(&[("orders", 1)]);
    mock.produce("orders", 0, 1);
    let log = Log::new();
    let source = mock.source("billing").topics(["orders"]).build().unwrap();
    let member = Member::start(1, source, &log);
    let began = Instant::now();
    let summary = member.stop().await.unwrap();
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(summary.partitions, []);
    assert_eq!(log.begun().len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_any_broker_it_ends_within_its_limit() {
    let log = Log::new();
    let source = tower_consumer::source::kafka::KafkaSource::builder("127.0.0.1:1", "billing")
        .topics(["orders"])
        .build()
        .unwrap();
    let limit = Duration::from_secs(1);
    let member = Member::start_limited(1, source, &log, limit, |_| async { Ok(()) });
    let began = Instant::now();
    let _ = member.stop().await;
    assert!(
        began.elapsed() < limit + Duration::from_millis(500),
        "{:?}",
        began.elapsed()
    );
}

/// Dropping `serve` is a crash in small.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_serve_is_dropped_nothing_more_is_committed_and_the_group_goes_on_without_it() {
    let mock = Mock::new(&[("orders", 1)]);
    let log = Log::new();
    let gate = Gate::new(|message| message.offset() < 3);
    let source = || {
        mock.source_kip_848("billing")
            .topics(["orders"])
            .build()
            .unwrap()
    };
    let member = Member::start_gated(1, source(), &log, &gate);
    mock.produce("orders", 0, 10);
    mock.wait_committed("billing", "orders", 0, 3);
    log.until_begun(10).await;
    let books = member.books.clone();
    member.kill().await;
    assert_eq!(books.assigned(), []);
    gate.open();

    // it has left: else the group would wait for its session, 30 s
    let second = Log::new();
    let began = Instant::now();
    let member = Member::start(2, source(), &second);
    second.until_handled(7).await;
    assert!(began.elapsed() < Duration::from_secs(10));
    member.stop().await.unwrap();
    assert_eq!(second.handled(), once_each(0..1, 3..10));
    assert_eq!(log.handled(), once_each(0..1, 0..3));
    assert_eq!(mock.committed("billing", "orders", 0), Some(10));
}

/// 50 members, one after the other, on the only thread of a runtime, on which a task watches the time.
#[tokio::test(flavor = "current_thread")]
async fn neither_start_nor_end_blocks_the_runtime() {
    let mock = Mock::new(&[("orders", 1)]);
    let noise = Noise::start();
    let drift = Arc::new(AtomicU64::new(0));
    let watch = tokio::spawn({
        let drift = drift.clone();
        async move {
            loop {
                let began = Instant::now();
                tokio::time::sleep(Duration::from_millis(5)).await;
                let late = began.elapsed().as_millis() as u64;
                drift.fetch_max(late.saturating_sub(5), Ordering::Relaxed);
            }
        }
    });
    for round in 0..50 {
        let log = Log::new();
        // librdkafka waits for its threads to start: that is neither start nor end of the member
        let source = mock
            .source_kip_848(&format!("billing-{round}"))
            .topics(["orders"]);
        let source = tokio::task::spawn_blocking(move || source.build().unwrap());
        let source = source.await.unwrap();
        let member = Member::start(1, source, &log);
        if round % 3 == 0 {
            member.kill().await;
            continue;
        }
        member.until_assigned(1).await;
        match round % 3 {
            1 => drop(member.stop().await.unwrap()),
            _ => member.kill().await,
        }
    }
    watch.abort();
    let (drift, noise) = (drift.load(Ordering::Relaxed), noise.end());
    assert!(
        drift < 50 + noise,
        "{drift} ms; of a thread that does nothing else {noise} ms"
    );
}

/// How late a thread is woken on this machine.
struct Noise {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<u64>,
}

impl Noise {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut most = 0;
            while !stopped.load(Ordering::Relaxed) {
                let began = Instant::now();
                thread::sleep(Duration::from_millis(5));
                most = most.max((began.elapsed().as_millis() as u64).saturating_sub(5));
            }
            most
        });
        Noise { stop, thread }
    }

    fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fatal_error_ends_serve() {
    let mock = Mock::new(&[("orders", 1)]);
    let log = Log::new();
    let gate = Gate::new(|message| message.offset() < 3);
    let source = mock
        .source("billing")
        .topics(["orders"])
        .set("group.instance.id", "billing-1");
    let member = Member::start_gated(1, source.build().unwrap(), &log, &gate);
    mock.produce("orders", 0, 5);
    mock.wait_committed("billing", "orders", 0, 3);
    log.until_begun(5).await;
    mock.fail(
        RDKafkaApiKey::Heartbeat,
        &[RD_KAFKA_RESP_ERR_FENCED_INSTANCE_ID],
    );
    let error = member.end().await.unwrap_err();
    let ServeErrorKind::Source(SourceError::Fatal(reason)) = &error.kind else {
        panic!("{error:?}");
    };
    assert!(reason.to_lowercase().contains("fenced"), "{reason}");
    gate.open();
    assert_eq!(mock.committed("billing", "orders", 0), Some(3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_may_not_be_joined_ends_serve() {
    let mock = Mock::new(&[("orders", 1)]);
    mock.fail(
        RDKafkaApiKey::JoinGroup,
        &[RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED],
    );
    let log = Log::new();
    let source = mock.source("billing").topics(["orders"]).build().unwrap();
    let error = Member::start(1, source, &log).end().await.unwrap_err();
    let ServeErrorKind::Source(SourceError::Fatal(reason)) = &error.kind else {
        panic!("{error:?}");
    };
    assert!(reason.contains("authorization failed"), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_may_not_be_read_ends_serve_and_is_named() {
    let mock = Mock::new(&[("orders", 1)]);
    mock.produce("orders", 0, 3);
    let log = Log::new();
    let source = mock.source("billing").topics(["orders"]).build().unwrap();
    let member = Member::start(1, source, &log);
    mock.wait_committed("billing", "orders", 0, 3);
    mock.fail(
        RDKafkaApiKey::Fetch,
        &[RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED],
    );
    let error = member.end().await.unwrap_err();
    let ServeErrorKind::Source(SourceError::Partition { tp, .. }) = &error.kind else {
        panic!("{error:?}");
    };
    assert_eq!(*tp, TopicPartition::new("orders", 0));
    assert_eq!(error.summary.committed("orders", 0), Some(3));
}
