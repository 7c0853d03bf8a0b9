//! Kind 17: order per key, key skew, many keys.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tower::ServiceBuilder;
use tower::limit::GlobalConcurrencyLimitLayer;
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::handler_fn;
use tower_consumer::order::OrderLayer;
use tower_consumer::retry::Backoff;
use tower_consumer::source::memory::MemoryBroker;
use tower_consumer::{Message, serve};

use crate::support::{
    Answer, Failed, GROUP, Journal, Random, broker, committed, ms, pass, produce, produce_keys,
    quiet, run, source, with,
};

/// When each message was given to the stack, by offset.
type Called = Arc<Mutex<HashMap<i64, Instant>>>;

/// A flood of one key, mixed with one message each of 1,000 others; answers the journal and the longest time that a
/// message of those others waited between the call of the stack and its handler.
async fn flood(window: usize) -> (Journal, u128) {
    let broker = broker(1);
    let keys = (0..11_000).map(|n| match n % 11 {
        0 => format!("cold-{n}"),
        _ => "hot".to_owned(),
    });
    for key in keys {
        produce_keys(&broker, 0, [key.as_str()]);
    }
    let journal = Journal::new();
    let called = Called::default();
    let waited = Arc::new(Mutex::new(0));
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .map_request({
            let called = called.clone();
            move |message: Message| {
                called.lock().insert(message.offset(), Instant::now());
                message
            }
        })
        .layer(OrderLayer::by_key())
        .concurrency_limit(8)
        .service(handler_fn(with(
            (journal.clone(), called, waited.clone()),
            |(journal, called, waited), message| async move {
                let work = journal.begin(&message);
                let wait = called.lock()[&message.offset()].elapsed().as_millis();
                if message.key() != Some(b"hot") {
                    let mut waited = waited.lock();
                    *waited = wait.max(*waited);
                }
                pass(5).await;
                work.done();
                Answer::Ok(())
            },
        )));
    let source = source(&broker).window(window).in_flight(20_000).until_end();
    serve(source.build().unwrap(), stack).await.unwrap();
    assert_eq!(committed(&broker, 0), Some(11_000));
    assert!(journal.most_live() <= 8);
    (journal, *waited.lock())
}

/// The lines of one key overlap with none of each other and are in offset order.
fn assert_in_order(journal: &Journal) {
    type Lane = (i32, Option<Vec<u8>>);
    let mut lanes: HashMap<Lane, Vec<(i64, u128)>> = HashMap::new();
    for line in journal.start_lines() {
        let lane = lanes.entry((line.partition, line.key)).or_default();
        lane.push((line.offset, line.at));
    }
    let mut ends: HashMap<Lane, Vec<(i64, u128)>> = HashMap::new();
    for line in journal.done_lines() {
        let lane = ends.entry((line.partition, line.key)).or_default();
        lane.push((line.offset, line.at));
    }
    for (lane, starts) in &lanes {
        let ends = &ends[lane];
        assert!(starts.is_sorted_by(|a, b| a.0 < b.0), "{lane:?} {starts:?}");
        assert!(ends.is_sorted_by(|a, b| a.0 < b.0), "{lane:?} {ends:?}");
        for (start, end) in starts.iter().skip(1).zip(ends) {
            assert!(start.1 >= end.1, "{lane:?}: {start:?} before {end:?}");
        }
    }
}

/// C78 (b)
#[tokio::test(start_paused = true)]
async fn a_flood_of_one_key_takes_one_permit_and_leaves_the_others_to_the_others() {
    let (journal, _) = flood(20_000).await;
    let cold = |key: &Option<Vec<u8>>| key.as_deref() != Some(b"hot");
    let lines = journal.done_lines();
    let last_cold = lines
        .iter()
        .filter(|line| cold(&line.key))
        .map(|line| line.at);
    // 1,000 × 5 ms on 7 or 8 permits
    let last_cold = last_cold.max().unwrap();
    assert!((625..=750).contains(&last_cold), "{last_cold} ms");
    assert_in_order(&journal);
}

/// C78 (a)
#[tokio::test(start_paused = true)]
async fn with_a_small_window_the_others_wait_for_the_window_and_not_for_permits() {
    let (journal, waited) = flood(100).await;
    assert!(waited <= 10, "{waited} ms");
    assert_in_order(&journal);
}

/// C80
#[tokio::test(start_paused = true)]
async fn keys_stay_in_order_while_the_concurrency_changes_and_no_permit_is_lost() {
    let broker = broker(1);
    let keys: Vec<String> = (0..4_000).map(|n| format!("k{}", n % 4)).collect();
    produce_keys(&broker, 0, keys.iter().map(String::as_str));
    let permits = Arc::new(Semaphore::new(2));
    let journal = Journal::new();
    let live = Arc::new(Mutex::new(Vec::new()));
    let random = Arc::new(Mutex::new(Random::new(80)));
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .layer(GlobalConcurrencyLimitLayer::with_semaphore(permits.clone()))
        .service(handler_fn(with(
            (journal.clone(), live.clone(), random),
            |(journal, live, random), message| async move {
                let work = journal.begin(&message);
                live.lock().push((journal.millis(), journal.live()));
                let time = random.lock().below(5);
                pass(time).await;
                work.done();
                Answer::Ok(())
            },
        )));
    let serving = run(serve(source(&broker).until_end().build().unwrap(), stack));
    pass(500).await;
    permits.add_permits(6);
    pass(500).await;
    for _ in 0..7 {
        permits.acquire().await.unwrap().forget();
    }
    let changed = journal.millis();
    serving.end().await.unwrap();

    assert_in_order(&journal);
    assert_eq!(journal.done(0).len(), 4_000);
    assert_eq!(permits.available_permits(), 1);
    let most = |from, to| {
        let live = live.lock();
        let of = live.iter().filter(|(at, _)| (from..to).contains(at));
        of.map(|(_, live)| *live).max()
    };
    assert_eq!(most(0, 500), Some(2));
    assert_eq!(most(501, 1_000), Some(4), "no more than there are keys");
    assert_eq!(most(changed + 1, u128::MAX), Some(1));
}

/// What was handled of each topic, partition and key.
type Lists = HashMap<(String, i32, Vec<u8>), Vec<i64>>;

/// C81
#[tokio::test(start_paused = true)]
async fn the_lists_of_all_keys_are_the_same_with_every_concurrency() {
    for concurrency in [1, 6, 64] {
        for seed in 0..5 {
            let broker = broker(4);
            broker.create_topic("refunds", 1);
            let mut random = Random::new(seed);
            for _ in 0..1_000 {
                // one partition with one key, one with five, two with twenty; the same bytes on each
                let (topic, partition, keys) = match random.below(5) {
                    0 => ("orders", 0, 1),
                    1 => ("orders", 1, 5),
                    2 => ("orders", 2, 20),
                    3 => ("orders", 3, 20),
                    _ => ("refunds", 0, 20),
                };
                let key = format!("key-{}", random.below(keys));
                broker.produce(Message::builder(topic).partition(partition).key(key));
            }
            let lists: Arc<Mutex<Lists>> = Arc::default();
            let random = Arc::new(Mutex::new(random));
            let stack = ServiceBuilder::new()
                .layer(CommitLayer::new())
                .layer(OrderLayer::by_key())
                .concurrency_limit(concurrency)
                .service(handler_fn(with(
                    (lists.clone(), random),
                    |(lists, random), message| async move {
                        let time = random.lock().below(10);
                        pass(time).await;
                        let key = message.key().unwrap().to_vec();
                        let list = (message.topic().to_owned(), message.partition(), key);
                        lists.lock().entry(list).or_default().push(message.offset());
                        Answer::Ok(())
                    },
                )));
            let source = broker.source(GROUP, ["orders", "refunds"]).until_end();
            serve(source.build().unwrap(), stack).await.unwrap();

            let lists = lists.lock();
            assert_eq!(lists.values().map(Vec::len).sum::<usize>(), 1_000);
            for (key, list) in &*lists {
                assert!(list.is_sorted_by(|a, b| a < b), "{key:?} {list:?}");
            }
        }
    }
}

/// C81: the scope of an order is (topic, partition, key).
#[tokio::test(start_paused = true)]
async fn equal_keys_of_other_partitions_and_topics_do_not_wait_for_each_other() {
    let broker = broker(2);
    broker.create_topic("refunds", 1);
    for (topic, partition) in [("orders", 0), ("orders", 1), ("refunds", 0)] {
        broker.produce(Message::builder(topic).partition(partition).key("same"));
    }
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                let _work = journal.begin(&message);
                pass(100).await;
                Answer::Ok(())
            },
        )));
    let source = broker.source(GROUP, ["orders", "refunds"]).until_end();
    serve(source.build().unwrap(), stack).await.unwrap();
    assert_eq!(journal.most_live(), 3);
    assert_eq!(journal.millis(), 100);
}

#[tokio::test(start_paused = true)]
async fn a_null_key_is_no_key_and_an_empty_one_is() {
    let broker = broker(1);
    for _ in 0..2 {
        broker.produce(Message::builder("orders").payload("null"));
        broker.produce(Message::builder("orders").key("").payload("empty"));
    }
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                let work = journal.begin(&message);
                pass(100).await;
                work.done();
                Answer::Ok(())
            },
        )));
    serve(source(&broker).until_end().build().unwrap(), stack)
        .await
        .unwrap();
    assert_eq!(journal.started_at(0), [0]);
    assert_eq!(journal.started_at(1), [0]);
    assert_eq!(journal.started_at(2), [0]);
    assert_eq!(journal.started_at(3), [100]);
}

/// The retries of a message keep its key, and nobody else's.
#[tokio::test(start_paused = true)]
async fn a_key_waits_for_the_retries_of_its_message() {
    let broker = broker(1);
    produce_keys(&broker, 0, ["a", "a", "b"]);
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .retry(Backoff::fixed(ms(100)))
        .concurrency_limit(1)
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                let work = journal.begin(&message);
                let attempt = message.delivery().unwrap().attempt();
                if message.offset() == 0 && attempt < 4 {
                    return Err(Failed("not yet"));
                }
                work.done();
                Answer::Ok(())
            },
        )));
    serve(source(&broker).until_end().build().unwrap(), stack)
        .await
        .unwrap();
    assert_eq!(journal.started_at(0), [0, 100, 200, 300]);
    assert_eq!(journal.started_at(1), [300]);
    assert_eq!(journal.started_at(2), [0]);
}

/// A message that did not finish closes its key for the assignment: nothing of the key is handled before it.
#[tokio::test(start_paused = true)]
async fn behind_a_failure_nothing_of_its_key_is_handled_and_the_next_assignment_begins_with_it() {
    let broker = broker(1);
    produce_keys(&broker, 0, ["b", "a", "a", "b", "a"]);
    let journal = Journal::new();
    let failing = Arc::new(Mutex::new(true));
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .service(handler_fn(with(
            (journal.clone(), failing.clone()),
            |(journal, failing), message| async move {
                let work = journal.begin(&message);
                pass(1).await;
                if message.offset() == 1 && *failing.lock() {
                    return Err(Failed("a"));
                }
                work.done();
                Answer::Ok(())
            },
        )));
    let source = source(&broker).build().unwrap();
    let member = source.member();
    let serving = run(serve(source, stack).on_failure(serve::OnFailure::Hold));
    pass(2_000).await;
    assert_eq!(journal.done(0), [0, 3]);
    assert_eq!(journal.starts(0), [0, 1, 3]);
    assert_eq!(committed(&broker, 0), Some(1));

    *failing.lock() = false;
    let tp = crate::support::tp(0);
    member.revoke([tp.clone()], ms(100)).await;
    member.assign([tp]).await;
    pass(2_000).await;
    assert_eq!(journal.done(0), [0, 3, 1, 3, 2, 4]);
    assert_eq!(committed(&broker, 0), Some(5));
    serving.kill().await;
}

/// Lanes belong to a stack, not to a source: two sources over clones of one stack share the limit and nothing else.
#[tokio::test(start_paused = true)]
async fn two_sources_that_share_one_stack_keep_their_orders_and_their_books_apart() {
    let (left, right) = (broker(1), broker(1));
    for broker in [&left, &right] {
        produce_keys(broker, 0, ["a"; 10]);
    }
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .layer(GlobalConcurrencyLimitLayer::new(2))
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                let work = journal.begin(&message);
                pass(10).await;
                // one of the two sources meets with a failure at its 5th message
                if message.payload() == Some(b"bad") {
                    return Err(Failed("bad"));
                }
                work.done();
                Answer::Ok(())
            },
        )));
    left.produce(Message::builder("orders").key("a").payload("bad"));
    for broker in [&left, &right] {
        produce_keys(broker, 0, ["a"; 5]);
    }
    let serve_one = |broker: &MemoryBroker| {
        let source = source(broker).until_end().build().unwrap();
        run(serve(source, stack.clone()).on_failure(serve::OnFailure::Hold))
    };
    let (one, two) = (serve_one(&left), serve_one(&right));
    let (one, two) = (one.end().await.unwrap(), two.end().await.unwrap());
    quiet().await;

    assert_eq!(one.counts.done, 10);
    assert_eq!(two.counts.done, 15);
    assert_eq!(committed(&left, 0), Some(10));
    assert_eq!(committed(&right, 0), Some(15));
    assert_eq!(journal.most_live(), 2);
    assert_eq!(stack.get_ref().lanes(), 0);
    // side by side: 11 and 15 messages of 10 ms each
    assert_eq!(journal.millis(), 151);
    produce(&left, 0, 0);
}
