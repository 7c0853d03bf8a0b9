//! A stall is never silent.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tower::ServiceBuilder;
use tower::limit::GlobalConcurrencyLimitLayer;
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::handler_fn;
use tower_consumer::order::OrderLayer;
use tower_consumer::serve::{OnFailure, OnStall};
use tower_consumer::{Message, serve};

use crate::support::events::{Events, Said};
use crate::support::{
    Answer, Failed, Gates, broker, committed, ms, pass, produce, quiet, run, source,
};

fn ages(stalls: &[Said]) -> Vec<u64> {
    stalls
        .iter()
        .map(|said| said.field("age_ms").parse().unwrap())
        .collect()
}

fn gated(
    gates: &Gates,
) -> impl Fn(Message) -> std::pin::Pin<Box<dyn Future<Output = Answer> + Send>> + Clone + use<> {
    let gates = gates.clone();
    move |message| {
        let gates = gates.clone();
        Box::pin(async move {
            gates.wait(&message).await;
            Ok(())
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_stall_is_reported_after_a_minute_and_again_at_doubling_ages() {
    let events = Events::collect();
    let broker = broker(1);
    produce(&broker, 0, 3);
    let gates = Gates::default();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(gated(&gates)));
    let serving = run(serve(source(&broker).build().unwrap(), stack));
    gates.open_all(0, [0, 2]);
    pass(500_000).await;

    let stalls = events.beginning("stalled");
    assert_eq!(ages(&stalls), [60_000, 120_000, 240_000, 480_000]);
    for said in &stalls {
        assert_eq!(said.level, tracing::Level::WARN);
        let fields = [
            "topic",
            "partition",
            "offset",
            "phase",
            "attempts",
            "reason",
        ];
        let fields = fields.map(|name| said.field(name));
        assert_eq!(fields, ["orders", "0", "1", "running", "1", ""]);
    }
    gates.open(0, 1);
    let summary = serving.shutdown().await.unwrap();
    assert_eq!(summary.stalls, 4);
    assert_eq!(committed(&broker, 0), Some(3));
}

#[tokio::test(start_paused = true)]
async fn the_next_head_has_its_own_age_and_its_own_reports() {
    let events = Events::collect();
    let broker = broker(1);
    let gates = Gates::default();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(gated(&gates)));
    let serve = serve(source(&broker).build().unwrap(), stack);
    let serving = run(serve.stall_after(ms(10_000), OnStall::Report));
    quiet().await;
    produce(&broker, 0, 1);
    pass(8_000).await;
    produce(&broker, 0, 1);
    pass(8_000).await;
    gates.open(0, 0);
    pass(60_000).await;

    let stalls = events.beginning("stalled");
    let offsets: Vec<_> = stalls.iter().map(|said| said.field("offset")).collect();
    assert_eq!(offsets, ["0", "1", "1", "1"]);
    // handed out in the resolution of the books, 8 ms
    for (age, at) in ages(&stalls)
        .into_iter()
        .zip([10_000, 10_000, 20_000, 40_000])
    {
        assert!((at..at + 10).contains(&age), "{age}");
    }
    serving.kill().await;
}

#[tokio::test(start_paused = true)]
async fn each_stalled_partition_is_reported_and_one_that_moves_is_not() {
    let events = Events::collect();
    let broker = broker(3);
    let gates = Gates::default();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(gated(&gates)));
    let serving = run(serve(source(&broker).build().unwrap(), stack));
    for partition in 0..3 {
        produce(&broker, partition, 10);
    }
    for offset in 0..10 {
        pass(20_000).await;
        gates.open(2, offset);
        produce(&broker, 2, 1);
    }
    let mut partitions: Vec<_> = events
        .beginning("stalled")
        .iter()
        .map(|said| said.field("partition").to_owned())
        .collect();
    partitions.sort();
    // 0 and 1 at 60 s and at 120 s; the head of 2 is always younger or newly the head
    let of = |partition: &str| partitions.iter().filter(|p| *p == partition).count();
    assert_eq!((of("0"), of("1")), (2, 2));
    serving.kill().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_waits_for_the_service_is_reported_as_delivered() {
    let events = Events::collect();
    let broker = broker(1);
    produce(&broker, 0, 3);
    let none = GlobalConcurrencyLimitLayer::with_semaphore(Arc::new(Semaphore::new(0)));
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(none)
        .service(handler_fn(|_: Message| async { Answer::Ok(()) }));
    let serving = run(serve(source(&broker).build().unwrap(), stack));
    pass(61_000).await;
    let stalls = events.beginning("stalled");
    assert_eq!(ages(&stalls), [60_000]);
    assert_eq!(stalls[0].field("phase"), "delivered");
    assert_eq!(stalls[0].field("attempts"), "0");
    serving.kill().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_waits_for_a_permit_is_reported_so() {
    let events = Events::collect();
    let broker = broker(1);
    produce(&broker, 0, 3);
    let none = GlobalConcurrencyLimitLayer::with_semaphore(Arc::new(Semaphore::new(0)));
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(OrderLayer::by_key())
        .layer(none)
        .service(handler_fn(|_: Message| async { Answer::Ok(()) }));
    let serving = run(serve(source(&broker).build().unwrap(), stack));
    pass(61_000).await;
    let stalls = events.beginning("stalled");
    assert_eq!(stalls[0].field("phase"), "waiting for a permit");
    serving.kill().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_failed_and_is_held_is_reported_with_its_reason() {
    let events = Events::collect();
    let broker = broker(1);
    produce(&broker, 0, 3);
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(|_: Message| async {
            Err::<(), _>(Failed("no"))
        }));
    let serve = serve(source(&broker).build().unwrap(), stack);
    let serving = run(serve.on_failure(OnFailure::Hold));
    pass(61_000).await;
    let stalls = events.beginning("stalled");
    assert_eq!(stalls.len(), 1);
    assert_eq!(stalls[0].field("phase"), "settled");
    assert_eq!(stalls[0].field("reason"), "failed");
    assert_eq!(stalls[0].field("attempts"), "1");
    serving.kill().await;
}

#[tokio::test(start_paused = true)]
async fn it_can_be_turned_off_and_turned_up() {
    let events = Events::collect();
    for (after, expected) in [(Duration::MAX, 0), (Duration::ZERO, 17)] {
        let broker = broker(1);
        produce(&broker, 0, 1);
        let gates = Gates::default();
        let stack = ServiceBuilder::new()
            .layer(CommitLayer::new())
            .service(handler_fn(gated(&gates)));
        let serve = serve(source(&broker).build().unwrap(), stack);
        let serving = run(serve.stall_after(after, OnStall::Report));
        pass(100_000).await;
        serving.kill().await;
        // from a millisecond on, doubling
        assert_eq!(events.beginning("stalled").len(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_reported_while_nothing_is_there_or_all_goes_well() {
    let events = Events::collect();
    let broker = broker(2);
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(|_: Message| async {
            pass(50_000).await;
            Answer::Ok(())
        }));
    let serving = run(serve(source(&broker).build().unwrap(), stack));
    pass(1_000_000).await;
    for _ in 0..10 {
        produce(&broker, 0, 5);
        pass(70_000).await;
    }
    assert_eq!(events.beginning("stalled").len(), 0);
    let summary = serving.shutdown().await.unwrap();
    assert_eq!(summary.stalls, 0);
    assert_eq!(summary.committed("orders", 0), Some(50));
}
