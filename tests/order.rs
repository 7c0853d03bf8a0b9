//! OrderLayer: who waits for whom, and who does not.

mod support_layers;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use support_layers::{
    GROUP, Log, Running, TOPIC, committed, keyed, logged, ms, produce, refused, sleep_ms, source,
    source_until_end, unkeyed,
};
use tokio::time::Instant;
use tower::{Layer, ServiceBuilder};
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::handler_fn;
use tower_consumer::order::OrderLayer;
use tower_consumer::retry::Backoff;
use tower_consumer::source::memory::MemoryBroker;
use tower_consumer::{BoxError, Message, serve};

/// Topic, partition and key: what one lane of `by_key` is about.
type Place = (String, i32, Option<Vec<u8>>);

fn place(message: &Message) -> Place {
    let key = message.key().map(<[u8]>::to_vec);
    (message.topic().to_owned(), message.partition(), key)
}

/// Which messages run, and in which order they ran; panics when two of one place overlap.
#[derive(Clone, Default)]
struct Runs {
    running: Arc<Mutex<HashSet<Place>>>,
    ran: Arc<Mutex<HashMap<Place, Vec<i64>>>>,
    most: Arc<Mutex<usize>>,
}

impl Runs {
    async fn run(&self, message: Message, delay: u64) -> Result<(), BoxError> {
        let place = place(&message);
        {
            let mut running = self.running.lock().unwrap();
            let alone = running.insert(place.clone());
            assert!(alone || place.2.is_none(), "two of {place:?} at a time");
            let mut most = self.most.lock().unwrap();
            *most = running.len().max(*most);
        }
        sleep_ms(delay).await;
        let mut ran = self.ran.lock().unwrap();
        ran.entry(place.clone()).or_default().push(message.offset());
        self.running.lock().unwrap().remove(&place);
        Ok(())
    }

    fn assert_offsets_rise(&self) {
        for (place, offsets) in &*self.ran.lock().unwrap() {
            assert!(offsets.is_sorted(), "{place:?}: {offsets:?}");
        }
    }
}

/// Between 0 and 19 ms, without any order.
fn delay(message: &Message) -> u64 {
    let seed = message.offset() as u64 + 31 * message.partition() as u64;
    (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % 20
}

/// C81: 20 keys, unevenly over three partitions and two topics, for limits 1, 6 and 64.
#[tokio::test(start_paused = true)]
async fn messages_of_a_key_run_one_at_a_time_in_offset_order_whatever_the_delays_are() {
    for limit in [1, 6, 64] {
        let broker = MemoryBroker::new();
        broker.create_topic(TOPIC, 3);
        broker.create_topic("refunds", 1);
        for n in 0..600_i32 {
            let (topic, partition, keys) = match n % 4 {
                0 => (TOPIC, 0, 1),
                1 => (TOPIC, 1, 5),
                2 => (TOPIC, 2, 20),
                _ => ("refunds", 0, 5),
            };
            let key = format!("customer-{}", n / 4 % keys);
            broker.produce(Message::builder(topic).partition(partition).key(key));
        }
        let runs = Runs::default();
        let run = runs.clone();
        let stack = ServiceBuilder::new()
            .layer(CommitLayer::new())
            .layer(OrderLayer::by_key())
            .concurrency_limit(limit)
            .service(handler_fn(move |message: Message| {
                let (run, delay) = (run.clone(), delay(&message));
                async move { run.run(message, delay).await }
            }));
        let source = broker.source(GROUP, [TOPIC, "refunds"]).until_end();
        let summary = serve(source.build().unwrap(), stack).await.unwrap();
        assert_eq!(summary.counts.done, 600);
        runs.assert_offsets_rise();
        // 1 + 5 + 20 + 5 places
        assert_eq!(runs.ran.lock().unwrap().len(), 31);
        assert_eq!(*runs.most.lock().unwrap(), limit.min(31));
    }
}

#[tokio::test(start_paused = true)]
async fn equal_keys_of_other_partitions_topics_and_sources_do_not_wait_for_each_other() {
    let broker = MemoryBroker::new();
    broker.create_topic(TOPIC, 2);
    produce(&broker, 0, "a");
    produce(&broker, 1, "a");
    broker.produce(Message::builder("refunds").key("a"));
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .service(handler_fn(logged(&log, |_| async {
            sleep_ms(10).await;
            Ok(())
        })));
    let sources = |group| broker.source(group, [TOPIC, "refunds"]).build().unwrap();
    let one = Running::hold(sources("billing"), stack.clone());
    let other = Running::hold(sources("audit"), stack);
    sleep_ms(1).await;
    assert_eq!(log.count("start"), 6);
    sleep_ms(10).await;
    one.stop().await.unwrap();
    other.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn by_partition_runs_one_message_of_a_partition_at_a_time() {
    let broker = unkeyed(0);
    broker.create_topic(TOPIC, 2);
    for key in ["a", "", "b"] {
        produce(&broker, 0, key);
        produce(&broker, 1, key);
    }
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_partition())
        .service(handler_fn(logged(&log, |message| async move {
            sleep_ms(10 + 5 * message.partition() as u64).await;
            Ok(())
        })));
    serve(source_until_end(&broker), stack).await.unwrap();
    let of = |prefix: &str| -> Vec<String> {
        let timed = log.timed();
        let ours = |line: &&String| line.contains("1@") == (prefix == "1@");
        timed.iter().filter(ours).cloned().collect()
    };
    assert_eq!(
        of(""),
        [
            "0 start 0",
            "10 ok 0",
            "10 start 1",
            "20 ok 1",
            "20 start 2",
            "30 ok 2"
        ]
    );
    assert_eq!(
        of("1@"),
        [
            "0 start 1@0",
            "15 ok 1@0",
            "15 start 1@1",
            "30 ok 1@1",
            "30 start 1@2",
            "45 ok 1@2"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn by_a_function_runs_one_message_of_whatever_it_answers_at_a_time() {
    let broker = unkeyed(0);
    for tenant in ["x", "y", "x", "none", "none"] {
        let message = Message::builder(TOPIC).key("same");
        broker.produce(match tenant {
            "none" => message,
            tenant => message.header("tenant", tenant),
        });
    }
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by(|message| {
            let tenant = message.headers().last("tenant").flatten();
            tenant.map(<[u8]>::to_vec)
        }))
        .service(handler_fn(logged(&log, |_| async {
            sleep_ms(10).await;
            Ok(())
        })));
    let running = Running::hold(source(&broker), stack);
    sleep_ms(1).await;
    assert_eq!(log.entries(), ["start 0", "start 1", "start 3", "start 4"]);
    sleep_ms(10).await;
    assert_eq!(log.entries().last().unwrap(), "start 2");
    sleep_ms(10).await;
    running.stop().await.unwrap();
    assert_eq!(committed(&broker, 0), Some(5));
}

#[tokio::test(start_paused = true)]
async fn messages_with_a_null_key_wait_for_nobody_and_an_empty_key_is_a_key() {
    let broker = unkeyed(3);
    broker.produce(Message::builder(TOPIC).key(""));
    broker.produce(Message::builder(TOPIC).key(""));
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .service(handler_fn(logged(&log, |_| async {
            sleep_ms(10).await;
            Ok(())
        })));
    let running = Running::hold(source(&broker), stack);
    sleep_ms(1).await;
    assert_eq!(log.entries(), ["start 0", "start 1", "start 2", "start 3"]);
    sleep_ms(20).await;
    running.stop().await.unwrap();
    assert_eq!(log.timed()[8..], ["10 start 4", "20 ok 4"]);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_waits_for_its_lane_holds_no_permit() {
    let broker = keyed(&["a", "a", "a", "b"]);
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .concurrency_limit(2)
        .service(handler_fn(logged(&log, |_| async {
            sleep_ms(10).await;
            Ok(())
        })));
    let running = Running::hold(source(&broker), stack);
    sleep_ms(1).await;
    assert_eq!(log.entries(), ["start 0", "start 3"]);
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_next_message_of_a_key_waits_for_the_retries_of_the_one_before() {
    let broker = keyed(&["a", "a", "b"]);
    let log = Log::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .retry(Backoff::fixed(ms(100)))
        .service(handler_fn(logged(&log, |message| async move {
            match (message.offset(), message.delivery().unwrap().attempt()) {
                (0, 1) => Err(refused()),
                _ => Ok(()),
            }
        })));
    serve(source_until_end(&broker), stack).await.unwrap();
    assert_eq!(
        log.timed(),
        [
            "0 start 0",
            "0 err 0",
            "0 start 2",
            "0 ok 2",
            "100 start 0",
            "100 ok 0",
            "100 start 1",
            "100 ok 1"
        ]
    );
    assert_eq!(committed(&broker, 0), Some(3));
}

/// C78: 10,000 messages of one key between 1,000 cold keys, 5 ms each, 8 permits.
#[tokio::test(start_paused = true)]
async fn a_hot_key_takes_one_permit_at_most_and_cold_keys_wait_for_nothing_but_the_window() {
    for window in [20_000, 100] {
        let broker = unkeyed(0);
        for n in 0..1_000 {
            produce(&broker, 0, &format!("cold-{n}"));
            (0..10).for_each(|_| produce(&broker, 0, "hot"));
        }
        let runs = Runs::default();
        let run = runs.clone();
        let began = Instant::now();
        let cold_done = Arc::new(Mutex::new((0, ms(0), ms(0))));
        let cold = cold_done.clone();
        let stack = ServiceBuilder::new()
            .layer(CommitLayer::new())
            .map_request(|mut message: Message| {
                message.extensions_mut().insert(Instant::now());
                message
            })
            .layer(OrderLayer::by_key())
            .concurrency_limit(8)
            .service(handler_fn(move |message: Message| {
                let (run, cold) = (run.clone(), cold.clone());
                let waited = message.extensions().get::<Instant>().unwrap().elapsed();
                async move {
                    let is_cold = message.key() != Some(b"hot");
                    run.run(message, 5).await?;
                    if is_cold {
                        let mut cold = cold.lock().unwrap();
                        *cold = (cold.0 + 1, began.elapsed(), waited.max(cold.2));
                    }
                    Ok::<(), BoxError>(())
                }
            }));
        let source = broker
            .source(GROUP, [TOPIC])
            .window(window)
            .in_flight(window);
        let summary = serve(source.until_end().build().unwrap(), stack).await;
        assert_eq!(summary.unwrap().counts.done, 11_000);
        runs.assert_offsets_rise();
        assert_eq!(*runs.most.lock().unwrap(), 8);
        let (count, last, longest_wait) = *cold_done.lock().unwrap();
        assert_eq!(count, 1_000);
        if window == 20_000 {
            // 1,000 × 5 / 8: waiting hot messages are not in the way at all
            assert_eq!(last, ms(630));
        } else {
            assert_eq!(longest_wait, ms(5));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_hundred_thousand_distinct_keys_leave_no_lane_behind() {
    let broker = unkeyed(0);
    for n in 0..100_000 {
        produce(&broker, 0, &format!("customer-{n}"));
    }
    let order = OrderLayer::by_key().layer(handler_fn(|_: Message| async {
        sleep_ms(1).await;
        Ok::<(), BoxError>(())
    }));
    let source = broker.source(GROUP, [TOPIC]).window(200_000).until_end();
    let stack = CommitLayer::new().layer(order.clone());
    let running = Running::hold(source.build().unwrap(), stack);
    tokio::task::yield_now().await;
    let most = order.lanes();
    let summary = running.end().await.unwrap();
    assert_eq!(summary.counts.done, 100_000);
    assert!(most > 0);
    assert_eq!(order.lanes(), 0);
}
