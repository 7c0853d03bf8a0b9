//! Track and settle one offset: alone at window sizes from 10 to 1,000,000, and with two threads at the same partition.
//! `cargo bench --no-default-features --bench ledger`

use std::hint::black_box;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use tower_consumer::ledger::{Config, Epoch, Kind, Ledger, Start, Ticket, TopicPartition, Verdict};

fn epoch(window: usize) -> (Ledger, Arc<Epoch>) {
    let mut config = Config::default();
    config.window_messages = window.max(1) * 4;
    config.in_flight_messages = window.max(1) * 4;
    config.window_bytes = u64::MAX;
    config.in_flight_bytes = u64::MAX;
    let mut ledger = Ledger::new(config);
    let tp = TopicPartition::new("orders", 0);
    let epoch = ledger.assign(&tp, Start::Unknown, Instant::now());
    (ledger, epoch)
}

fn finish(epoch: &Epoch, ticket: Ticket) {
    epoch.begin(ticket);
    epoch.end(ticket, true);
    black_box(epoch.settle(ticket, Verdict::Finished(Kind::Done)));
}

fn commit(ledger: &mut Ledger, now: Instant) {
    for commit in ledger.take_commits(now) {
        ledger.commit_ended(&commit, Ok(()), now);
    }
}

/// Deliver and settle, with so many others unsettled in the window all the while.
fn track_and_settle(c: &mut Criterion) {
    let mut group = c.benchmark_group("track_and_settle");
    for window in [10usize, 1_000, 100_000, 1_000_000] {
        group.bench_with_input(
            BenchmarkId::from_parameter(window),
            &window,
            |b, &window| {
                b.iter_custom(|iterations| {
                    let (mut ledger, epoch) = epoch(window);
                    let now = Instant::now();
                    let mut offset = 0;
                    let mut tickets = std::collections::VecDeque::with_capacity(window + 1);
                    for _ in 0..window {
                        tickets.push_back(epoch.deliver(offset, 100, now).unwrap().ticket);
                        offset += 1;
                    }
                    let mut spent = Duration::ZERO;
                    let mut left = iterations;
                    while left > 0 {
                        let batch = left.min(window as u64);
                        let begin = Instant::now();
                        for _ in 0..batch {
                            tickets.push_back(epoch.deliver(offset, 100, now).unwrap().ticket);
                            offset += 1;
                            let ticket = tickets.pop_front().unwrap();
                            // the verdict alone: attempts are measured with the layers
                            black_box(epoch.settle(ticket, Verdict::Finished(Kind::Skipped)));
                        }
                        spent += begin.elapsed();
                        commit(&mut ledger, now + Duration::from_secs(10));
                        left -= batch;
                    }
                    spent
                });
            },
        );
    }
    group.finish();
}

/// One thread delivers, another settles, as a driver and a worker do.
fn contended(c: &mut Criterion) {
    c.bench_function("track_and_settle/two threads", |b| {
        b.iter_custom(|iterations| {
            let (_ledger, epoch) = epoch(iterations as usize + 128);
            let now = Instant::now();
            let (send, receive) = mpsc::sync_channel::<Vec<Ticket>>(64);
            let settler = std::thread::spawn({
                let epoch = epoch.clone();
                move || {
                    for batch in receive {
                        for ticket in batch {
                            black_box(epoch.settle(ticket, Verdict::Finished(Kind::Skipped)));
                        }
                    }
                }
            });
            let begin = Instant::now();
            let mut offset = 0;
            while offset < iterations as i64 {
                let batch = (0..64)
                    .map(|n| epoch.deliver(offset + n, 100, now).unwrap().ticket)
                    .collect();
                offset += 64;
                send.send(batch).unwrap();
                if offset as u64 + 64 > iterations {
                    break;
                }
            }
            drop(send);
            settler.join().unwrap();
            begin.elapsed()
        });
    });
}

/// Deliver, begin, end, settle: what a message costs in the books when all layers note what they do.
fn whole_way(c: &mut Criterion) {
    c.bench_function("whole_way", |b| {
        b.iter_custom(|iterations| {
            let (mut ledger, epoch) = epoch(1_000);
            let now = Instant::now();
            let begin = Instant::now();
            for offset in 0..iterations as i64 {
                let ticket = epoch.deliver(offset, 100, now).unwrap().ticket;
                finish(&epoch, ticket);
                if offset % 1_000 == 999 {
                    commit(&mut ledger, now + Duration::from_secs(10));
                }
            }
            begin.elapsed()
        });
    });
}

criterion_group!(benches, track_and_settle, contended, whole_way);
criterion_main!(benches);
