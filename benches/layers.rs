//! What the layers cost a message, in memory: a do-nothing handler, its future polled once, the verdict in the books.
//! `cargo bench --no-default-features --bench layers`

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use tower::{Service, ServiceBuilder};
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::handler_fn;
use tower_consumer::order::OrderLayer;
use tower_consumer::source::Source;
use tower_consumer::source::memory::{MemoryBroker, MemorySource};
use tower_consumer::timeout::TimeoutLayer;
use tower_consumer::{BoxError, Message};

const MESSAGES: usize = 10_000;

async fn nothing(_: Message) -> Result<(), std::io::Error> {
    Ok(())
}

/// Messages of a source, each with a key of its own.
fn messages(runtime: &tokio::runtime::Runtime) -> (MemorySource, Vec<Message>) {
    let broker = MemoryBroker::new();
    broker.create_topic("orders", 1);
    for n in 0..MESSAGES {
        broker.produce(
            Message::builder("orders")
                .key(format!("{n:08}"))
                .payload(vec![0; 92]),
        );
    }
    let source = broker
        .source("bench", ["orders"])
        .window(4 * MESSAGES)
        .in_flight(4 * MESSAGES);
    let mut source = source.build().unwrap();
    let messages = runtime.block_on(async {
        let mut messages = Vec::with_capacity(MESSAGES);
        for _ in 0..MESSAGES {
            messages.push(source.next().await.unwrap().unwrap());
        }
        messages
    });
    (source, messages)
}

fn run<S>(service: &mut S, messages: Vec<Message>)
where
    S: Service<Message>,
    S::Error: Into<BoxError>,
{
    let mut cx = Context::from_waker(Waker::noop());
    for message in messages {
        assert!(matches!(service.poll_ready(&mut cx), Poll::Ready(Ok(()))));
        let future = pin!(service.call(message));
        assert!(future.poll(&mut cx).is_ready());
    }
}

fn layers(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let _guard = runtime.enter();
    let mut group = c.benchmark_group("layers");
    group.throughput(Throughput::Elements(MESSAGES as u64));
    macro_rules! stack {
        ($name:literal, $service:expr) => {
            group.bench_function($name, |b| {
                b.iter_batched(
                    || (messages(&runtime), $service),
                    |((source, messages), mut service)| {
                        run(&mut service, messages);
                        source
                    },
                    BatchSize::PerIteration,
                );
            });
        };
    }
    stack!("handler", handler_fn(nothing));
    stack!(
        "commit",
        ServiceBuilder::new()
            .layer(CommitLayer::new())
            .service(handler_fn(nothing))
    );
    stack!(
        "commit, order",
        ServiceBuilder::new()
            .layer(CommitLayer::new())
            .layer(OrderLayer::by_key())
            .service(handler_fn(nothing))
    );
    stack!(
        "commit, order, limit",
        ServiceBuilder::new()
            .layer(CommitLayer::new())
            .layer(OrderLayer::by_key())
            .concurrency_limit(64)
            .service(handler_fn(nothing))
    );
    stack!(
        "commit, order, limit, timeout",
        ServiceBuilder::new()
            .layer(CommitLayer::new())
            .layer(OrderLayer::by_key())
            .concurrency_limit(64)
            .layer(TimeoutLayer::new(Duration::from_secs(30)))
            .service(handler_fn(nothing))
    );
    group.finish();
}

criterion_group!(benches, layers);
criterion_main!(benches);
