//! Memory is bounded: how many payloads are alive is counted by the drops of their owner, and the resident memory of
//! the process is read from the system.
//!
//! The broker in memory keeps its log, so it is made to forget what was read: the topic is made anew and its numbering
//! goes on where it was, as after a deletion of records.

#[path = "support_memory/mod.rs"]
mod support;

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Mutex;
use tower::ServiceBuilder;
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::handler_fn;
use tower_consumer::order::OrderLayer;
use tower_consumer::source::memory::MemoryBroker;
use tower_consumer::{Message, serve};

use support::{Answer, Gates, Journal, broker, committed, ms, pass, quiet, run, source, tp, with};

/// One test at a time: they share the memory of the process.
static ALONE: Mutex<()> = Mutex::const_new(());

/// A payload whose owner is counted while it lives.
struct Payload {
    bytes: Vec<u8>,
    _alive: Arc<()>,
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[derive(Default)]
struct Payloads(Arc<()>);

impl Payloads {
    /// Appends messages with a payload of their own and nothing else: such a payload is shared, never copied.
    fn produce(&self, broker: &MemoryBroker, partition: i32, count: usize, len: usize) {
        for _ in 0..count {
            let payload = Bytes::from_owner(Payload {
                bytes: vec![7; len],
                _alive: self.0.clone(),
            });
            broker.produce(
                Message::builder("orders")
                    .partition(partition)
                    .payload(payload),
            );
        }
    }

    fn alive(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

/// The broker lets go of everything in its log. The next offsets go on from there.
fn forget_log(broker: &MemoryBroker, partitions: i32) {
    let ends: Vec<_> = (0..partitions)
        .map(|p| broker.log_end("orders", p).unwrap())
        .collect();
    broker.create_topic("orders", ends.len());
    for (partition, end) in ends.into_iter().enumerate() {
        broker.skip_offsets("orders", partition as i32, end);
    }
}

/// Handlers that wait for their gates; those of `free` offsets are done at once.
fn stack(
    journal: Journal,
    gates: Gates,
    free: impl Fn(i64) -> bool + Clone + Send + Sync + 'static,
) -> impl tower::Service<
    Message,
    Response = tower_consumer::commit::Settled,
    Error = tower::BoxError,
    Future: Send,
> + Send {
    ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .service(handler_fn(with(
            (journal, gates),
            move |(journal, gates), message: Message| {
                let is_free = free(message.offset());
                async move {
                    if is_free {
                        return Answer::Ok(());
                    }
                    let work = journal.begin(&message);
                    gates.wait(&message).await;
                    work.done();
                    Answer::Ok(())
                }
            },
        )))
}

#[tokio::test(start_paused = true)]
async fn behind_a_stuck_head_a_window_of_payloads_is_alive_and_not_one_more() {
    let _alone = ALONE.lock().await;
    let broker = broker(1);
    let payloads = Payloads::default();
    payloads.produce(&broker, 0, 100_001, 16);
    let (journal, gates) = (Journal::new(), Gates::default());
    let source = source(&broker).window(64).build().unwrap();
    let serving = run(serve(
        source,
        stack(journal.clone(), gates.clone(), |_| false),
    ));
    pass(60_000).await;
    assert_eq!(payloads.alive(), 100_001, "the log of the broker");
    forget_log(&broker, 1);
    assert_eq!(payloads.alive(), 64);
    assert_eq!(journal.live(), 64);

    // what ends behind the head is freed at once, although the watermark does not move
    for offset in 1..64 {
        gates.open(0, offset);
        quiet().await;
        assert_eq!(payloads.alive(), 64 - offset as usize);
    }
    assert_eq!(committed(&broker, 0), None);
    serving.kill().await;
    assert_eq!(payloads.alive(), 0);
}

#[tokio::test(start_paused = true)]
async fn of_100_000_messages_finished_behind_a_stuck_head_no_payload_is_kept() {
    let _alone = ALONE.lock().await;
    let broker = broker(1);
    let payloads = Payloads::default();
    payloads.produce(&broker, 0, 1, 4_096);
    let (journal, gates) = (Journal::new(), Gates::default());
    let source = source(&broker).window(200_000).build().unwrap();
    let member = source.member();
    let serving = run(serve(
        source,
        stack(journal.clone(), gates.clone(), |offset| offset > 0),
    ));
    quiet().await;
    let before = resident();
    for _ in 0..500 {
        payloads.produce(&broker, 0, 200, 4_096);
        quiet().await;
        forget_log(&broker, 1);
        assert_eq!(payloads.alive(), 1, "the head");
    }
    assert_eq!(member.books().in_flight(), (1, 4_096));
    assert_eq!(member.books().counts().done, 100_000);
    assert_eq!(committed(&broker, 0), None);
    // 400 MB went through; what is kept is 16 bytes for each message
    assert_below(before, 6 << 20);

    gates.open(0, 0);
    pass(2_000).await;
    assert_eq!(committed(&broker, 0), Some(100_001));
    assert_eq!(payloads.alive(), 0);
    serving.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_bound_on_messages_in_flight_holds_over_all_partitions() {
    let _alone = ALONE.lock().await;
    let broker = broker(10);
    let payloads = Payloads::default();
    for partition in 0..10 {
        payloads.produce(&broker, partition, 1_000, 16);
    }
    let (journal, gates) = (Journal::new(), Gates::default());
    let source = source(&broker).in_flight(100).build().unwrap();
    let member = source.member();
    let serving = run(serve(
        source,
        stack(journal.clone(), gates.clone(), |_| false),
    ));
    pass(5_000).await;
    // one partition after the other takes up to 64 in a row; each has its share of one
    let delivered = member.books().in_flight().0;
    assert!((100..110).contains(&delivered), "{delivered}");
    forget_log(&broker, 10);
    assert_eq!(payloads.alive() as u64, delivered);
    member.lose((0..10).map(tp)).await;
    quiet().await;
    assert_eq!(payloads.alive(), 0);
    serving.kill().await;
}

/// The key makes each delivered message own a copy of its 10 KiB; in the log they share one. So what grows is ours.
#[tokio::test(start_paused = true)]
async fn with_1_gb_behind_a_stuck_head_resident_memory_does_not_grow() {
    let _alone = ALONE.lock().await;
    let broker = broker(1);
    let payload = Bytes::from(vec![7; 10 << 10]);
    for _ in 0..100_000 {
        let message = Message::builder("orders").key("k");
        broker.produce(message.payload(payload.clone()));
    }
    let (journal, gates) = (Journal::new(), Gates::default());
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(with(
            (journal.clone(), gates.clone()),
            |(journal, gates), message: Message| async move {
                if message.offset() == 0 {
                    gates.wait(&message).await;
                }
                assert_eq!(message.payload().map(<[u8]>::len), Some(10 << 10));
                // all are alive for a while
                pass(1).await;
                if message.offset() % 1_000 == 0 {
                    journal.begin(&message).done();
                }
                Answer::Ok(())
            },
        )));
    let source = source(&broker)
        .window(64)
        .commit_interval(ms(0))
        .build()
        .unwrap();
    let member = source.member();
    let before = resident();
    let serving = run(serve(source, stack));
    pass(60_000).await;
    assert_eq!(member.books().counts().delivered, 64);
    assert_below(before, 8 << 20);

    // and none of it grows while all of it passes
    gates.open(0, 0);
    while committed(&broker, 0) != Some(100_000) {
        pass(10).await;
        assert!(member.books().in_flight().0 <= 64);
    }
    assert_eq!(journal.done(0).len(), 100);
    assert_below(before, 8 << 20);
    serving.shutdown().await.unwrap();
}

/// Resident memory in bytes.
#[cfg(target_os = "linux")]
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    kib.unwrap().parse::<u64>().unwrap() << 10
}

#[cfg(not(target_os = "linux"))]
fn resident() -> u64 {
    0
}

fn assert_below(before: u64, bytes: u64) {
    let grown = resident().saturating_sub(before);
    assert!(grown < bytes, "resident memory grew by {grown} bytes");
}
