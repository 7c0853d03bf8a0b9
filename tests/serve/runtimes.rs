//! Where it runs: one thread, several threads, many at once.

use std::collections::HashSet;
use std::error::Error;
use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tower::ServiceBuilder;
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::handler_fn;
use tower_consumer::order::OrderLayer;
use tower_consumer::retry::Backoff;
use tower_consumer::source::memory::{CommitReply, MemoryBroker};
use tower_consumer::{Message, serve};

use crate::support::{
    Answer, Failed, GROUP, Gates, Journal, Random, assert_covered, broker, committed, ms, produce,
    produce_keys, quiet, run, source, tp, with,
};

/// 500 messages of 20 keys on each of 4 partitions, handlers that give way a few times.
async fn all_done_in_key_order() {
    let broker = broker(4);
    let keys: Vec<String> = (0..500).map(|n| format!("k{}", n % 20)).collect();
    for partition in 0..4 {
        produce_keys(&broker, partition, keys.iter().map(String::as_str));
    }
    let journal = Journal::new();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .retry(Backoff::fixed(ms(0)))
        .concurrency_limit(16)
        .service(handler_fn(with(
            journal.clone(),
            |journal, message| async move {
                let work = journal.begin(&message);
                for _ in 0..message.offset() % 4 {
                    tokio::task::yield_now().await;
                }
                if message.offset() % 10 == 0 && message.delivery().unwrap().attempt() == 1 {
                    return Err(Failed("once"));
                }
                work.done();
                Answer::Ok(())
            },
        )));
    let source = source(&broker).until_end().build().unwrap();
    let summary = serve(source, stack).await.unwrap();
    assert_eq!(summary.counts.done, 2_000);
    for partition in 0..4 {
        assert_eq!(committed(&broker, partition), Some(500));
    }
    assert!(journal.most_live() <= 16);
    assert_in_key_order(&journal);
}

fn assert_in_key_order(journal: &Journal) {
    let mut lines = journal.done_lines();
    lines.sort_by(|a, b| (a.partition, &a.key).cmp(&(b.partition, &b.key)));
    for lane in lines.chunk_by(|a, b| (a.partition, &a.key) == (b.partition, &b.key)) {
        assert!(lane.is_sorted_by_key(|line| line.offset), "{lane:?}");
    }
}

#[tokio::test]
async fn on_one_thread() {
    all_done_in_key_order().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_several_threads() {
    all_done_in_key_order().await;
}

/// Outside of any task of the runtime, too.
#[test]
fn from_block_on() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(all_done_in_key_order());
}

#[test]
fn the_future_is_send_and_static() {
    fn is_send(_: impl Future + Send + 'static) {}
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        // not `Sync`, and not `Clone` once it stands outside
        .service(handler_fn(|_: Message| async { Answer::Ok(()) }));
    is_send(serve(source(&broker(1)).build().unwrap(), stack).into_future());
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_in_flight() {
    let broker = broker(2);
    produce(&broker, 0, 8_000);
    produce(&broker, 1, 8_000);
    let (journal, gates) = (Journal::new(), Gates::default());
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .service(handler_fn(with(
            (journal.clone(), gates.clone()),
            |(journal, gates), message| async move {
                let work = journal.begin(&message);
                gates.wait(&message).await;
                work.done();
                Answer::Ok(())
            },
        )));
    let source = source(&broker).until_end().build().unwrap();
    let books = source.member().books().clone();
    let serving = run(serve(source, stack));
    quiet().await;
    assert_eq!(journal.live(), 10_000, "the default bound");
    assert_eq!(books.in_flight().0, 10_000);
    for partition in [0, 1] {
        gates.open_all(partition, (0..8_000).rev());
    }
    serving.end().await.unwrap();
    assert_eq!(journal.most_live(), 10_000);
    assert_eq!(committed(&broker, 0), Some(8_000));
    assert_eq!(committed(&broker, 1), Some(8_000));
    assert_eq!(journal.live(), 0);
}

/// Work that takes a worker for a while is left to the other workers unpolled; the order of keys is that of the calls
/// all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_that_compute_are_handed_to_the_other_workers_in_key_order() {
    let broker = broker(1);
    let keys: Vec<String> = (0..600).map(|n| format!("k{}", n % 7)).collect();
    produce_keys(&broker, 0, keys.iter().map(String::as_str));
    let journal = Journal::new();
    let threads = Arc::new(Mutex::new(HashSet::new()));
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .service(handler_fn(with(
            (journal.clone(), threads.clone()),
            |(journal, threads), message: Message| async move {
                let work = journal.begin(&message);
                let begun = std::time::Instant::now();
                while begun.elapsed().as_micros() < 200 {
                    std::hint::spin_loop();
                }
                threads.lock().insert(std::thread::current().id());
                work.done();
                Answer::Ok(())
            },
        )));
    let source = source(&broker).until_end().build().unwrap();
    let serving = tokio::spawn(serve(source, stack).into_future());
    serving.await.unwrap().unwrap();
    assert_eq!(committed(&broker, 0), Some(600));
    assert_in_key_order(&journal);
    assert!(!threads.lock().is_empty());
}

/// A wake-up that is lost would leave a message lying until the next one comes, or the next tick.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_several_threads_no_message_waits_for_the_next_one() {
    for window in [1, 2, 64] {
        let broker = broker(1);
        let (handled, mut wait) = tokio::sync::mpsc::unbounded_channel();
        let stack = ServiceBuilder::new()
            .layer(CommitLayer::new())
            .service(handler_fn(with(
                handled,
                |handled, message: Message| async move {
                    for _ in 0..message.offset() % 3 {
                        tokio::task::yield_now().await;
                    }
                    handled
                        .send(message.offset())
                        .map_err(|_| Failed("the test is over"))
                },
            )));
        let source = source(&broker)
            .window(window)
            .commit_interval(ms(0))
            .build();
        let serving = run(serve(source.unwrap(), stack));
        let began = std::time::Instant::now();
        for n in 0..1_000 {
            produce(&broker, 0, 1);
            assert_eq!(wait.recv().await, Some(n));
        }
        let summary = serving.shutdown().await.unwrap();
        assert_eq!(summary.committed("orders", 0), Some(1_000));
        // a single lost one costs a tenth of a second, the tick of the source
        let took = began.elapsed();
        assert!(took < ms(5_000), "window {window}: {took:?}");
    }
}

/// The verdict is given on one thread, the error comes out on it later, and the driver looks on another.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_several_threads_a_failure_always_comes_with_its_error() {
    for turns in 0..200 {
        let broker = broker(1);
        produce(&broker, 0, 40);
        let stack = ServiceBuilder::new()
            .layer(CommitLayer::new())
            .service(handler_fn(move |message: Message| async move {
                for _ in 0..turns % 5 {
                    tokio::task::yield_now().await;
                }
                match message.offset() {
                    17 => Err(Failed("seventeen")),
                    _ => Ok(()),
                }
            }));
        let source = source(&broker).until_end().build().unwrap();
        let error = serve(source, stack).await.unwrap_err();
        let text = "message 17 of orders/0 failed, after 1 attempt(s): seventeen";
        assert_eq!(error.to_string(), text);
        assert!(error.source().unwrap().is::<Failed>());
        assert!(committed(&broker, 0).is_none_or(|offset| offset <= 17));
    }
}

/// Shut down at any moment: what is committed was done, what was not done comes again, and nothing is left running.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_several_threads_a_shutdown_at_any_moment_loses_nothing() {
    let broker = broker(1);
    produce(&broker, 0, 2_000);
    let mut random = Random::new(12);
    let journal = Journal::new();
    let mut runs = 0;
    while committed(&broker, 0) != Some(2_000) {
        let stack = ServiceBuilder::new()
            .layer(CommitLayer::new())
            .layer(OrderLayer::by(|message| Some(message.offset() % 5)))
            .concurrency_limit(8)
            .service(handler_fn(with(
                journal.clone(),
                |journal, message| async move {
                    let work = journal.begin(&message);
                    for _ in 0..message.offset() % 3 {
                        tokio::task::yield_now().await;
                    }
                    work.done();
                    Answer::Ok(())
                },
            )));
        let before = committed(&broker, 0);
        let serving = run(serve(source(&broker).build().unwrap(), stack));
        for _ in 0..random.below(300) {
            tokio::task::yield_now().await;
        }
        let summary = serving.shutdown().await.unwrap();
        assert_eq!(journal.live(), 0);
        assert_covered(&journal, committed(&broker, 0));
        assert!(committed(&broker, 0) >= before);
        assert_eq!(summary.partitions[0].cut, 0);
        assert_eq!(summary.partitions[0].not_committed, None);
        runs += 1;
        assert!(runs < 10_000, "it does not come to an end");
    }
    assert!(runs > 1);
}

/// Real threads, partitions that come and go, failures and retries: at no time a commit covers what was not done, and
/// in the end everything was.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_several_threads_no_commit_ever_covers_what_was_not_done_while_partitions_come_and_go() {
    for seed in 0..4 {
        disturbed(seed).await;
    }
}

async fn disturbed(seed: u64) {
    const N: i64 = 600;
    let broker = broker(3);
    let keys: Vec<String> = (0..N).map(|n| format!("k{}", n % 9)).collect();
    for partition in 0..3 {
        produce_keys(&broker, partition, keys.iter().map(String::as_str));
    }
    // what is done, by partition
    let done: Arc<[Mutex<HashSet<i64>>; 3]> = Arc::default();
    let uncovered = watch(&broker, &done);
    let overlaps = Arc::new(AtomicU64::new(0));
    let live: Arc<Mutex<HashSet<Lane>>> = Arc::default();
    let random = Arc::new(Mutex::new(Random::new(seed)));
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .retry(Backoff::fixed(ms(0)))
        .concurrency_limit(32)
        .service(handler_fn(with(
            (done.clone(), live, overlaps.clone(), random.clone()),
            |(done, live, overlaps, random), message: Message| async move {
                let lane = (message.partition(), message.key().unwrap().to_vec());
                if !live.lock().insert(lane.clone()) {
                    overlaps.fetch_add(1, Ordering::SeqCst);
                }
                let leave = Leave(live, lane);
                let (turns, fails) = {
                    let mut random = random.lock();
                    (random.below(8), random.below(10) == 0)
                };
                for _ in 0..turns {
                    tokio::task::yield_now().await;
                }
                if fails {
                    return Err(Failed("try again"));
                }
                done[message.partition() as usize]
                    .lock()
                    .insert(message.offset());
                drop(leave);
                Ok(())
            },
        )));
    let source = source(&broker)
        .window(100)
        .commit_interval(ms(0))
        .build()
        .unwrap();
    let member = source.member();
    let serving = run(serve(source, stack));
    let mut disturbances = 0;
    while (0..3).any(|partition| committed(&broker, partition) != Some(N)) {
        let (which, how, turns) = {
            let mut random = random.lock();
            (random.below(3) as i32, random.below(3), random.below(200))
        };
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        match how {
            0 => drop(member.revoke([tp(which)], ms(0)).await),
            1 => drop(member.revoke([tp(which)], ms(10_000)).await),
            _ => member.lose([tp(which)]).await,
        }
        member.assign([tp(which)]).await;
        disturbances += 1;
        assert!(disturbances < 100_000, "it does not come to an end");
    }
    let summary = serving.shutdown().await.unwrap();
    assert_eq!(*uncovered.lock(), [], "seed {seed}");
    assert_eq!(overlaps.load(Ordering::SeqCst), 0, "seed {seed}");
    assert!(done.iter().all(|done| done.lock().len() == N as usize));
    assert_eq!(summary.committed("orders", 0), Some(N));
}

type Lane = (i32, Vec<u8>);

struct Leave(Arc<Mutex<HashSet<Lane>>>, Lane);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}

/// Writes down each commit that covers something that was not done when it was sent.
fn watch(
    broker: &MemoryBroker,
    done: &Arc<[Mutex<HashSet<i64>>; 3]>,
) -> Arc<Mutex<Vec<(i32, i64, i64)>>> {
    let uncovered = Arc::new(Mutex::new(Vec::new()));
    let (list, done) = (uncovered.clone(), done.clone());
    broker.on_commit(GROUP, move |tp, offset| {
        let done = done[tp.partition as usize].lock();
        let missing = (0..offset).find(|n| !done.contains(n));
        list.lock()
            .extend(missing.map(|missing| (tp.partition, offset, missing)));
        CommitReply::ok()
    });
    uncovered
}
