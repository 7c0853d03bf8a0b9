//! The program under test.

use std::time::Duration;

use tower::ServiceBuilder;
use tower::util::option_layer;
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::handler_fn;
use tower_consumer::order::OrderLayer;
use tower_consumer::retry::Backoff;
use tower_consumer::serve::OnFailure;
use tower_consumer::source::kafka::KafkaSource;
use tower_consumer::timeout::TimeoutLayer;
use tower_consumer::{Message, serve};

use super::Handler;
use crate::plan::Plan;

#[tokio::main]
pub(super) async fn run(plan: &Plan, handler: Handler) {
    let setup = plan.setup;
    let mut source = KafkaSource::builder(&plan.bootstrap, &plan.group)
        .topics([&plan.topic])
        .set("session.timeout.ms", "6000")
        .window(setup.window);
    if let Some(interval) = setup.commit_interval {
        source = source.commit_interval(interval);
    }
    let source = source.build().expect("a source");

    let backoff = Backoff::fixed(Duration::from_millis(10)).max_attempts(setup.attempts as u32);
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .layer(option_layer(setup.order.then(OrderLayer::by_key)))
        // outside of the retry: with a limit of 1 the next offset waits for the retries of this one
        .concurrency_limit(setup.concurrency)
        .retry(backoff)
        .layer(option_layer(setup.timeout.map(TimeoutLayer::new)))
        .service(handler_fn(move |message: Message| {
            let handler = handler.clone();
            async move {
                let place = (message.partition(), message.offset());
                handler.handle(place, message.key()).await
            }
        }));
    let end = serve(source, stack).on_failure(OnFailure::Hold).await;
    panic!("serve is not to end: {end:?}");
}
