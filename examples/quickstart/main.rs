//! The main job, end to end: some thousands of orders over 6 partitions are handled concurrently, in key order, with
//! deadlines and retries; then what came of them is counted by others than the library.
//!
//! `cargo run --example quickstart` needs no service: it starts an embedded Kafka in this process.
//! `-- --naive` does the same work with a hand-written loop that commits the highest finished offset, stops midway and
//! starts again.
//! `-- --crash` drops the program midway, with all that is in hand, and starts it again: what was in hand comes again.
//! `-- --bootstrap HOST:PORT --topic T` runs against a real Kafka until Ctrl-C or SIGTERM.

mod arguments;
mod kafka;
mod naive;
mod shop;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tower::ServiceBuilder;
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::handler_fn;
use tower_consumer::order::OrderLayer;
use tower_consumer::retry::Backoff;
use tower_consumer::source::kafka::KafkaSource;
use tower_consumer::timeout::TimeoutLayer;
use tower_consumer::{BoxError, Message, serve};

use crate::arguments::Arguments;
use crate::kafka::Kafka;
use crate::shop::Shop;

/// Longest time for one attempt to charge an order.
const DEADLINE: Duration = Duration::from_millis(250);
const CONCURRENCY: usize = 64;

#[tokio::main]
async fn main() -> Result<ExitCode, BoxError> {
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(usage) if std::env::args().any(|word| word == "--help" || word == "-h") => {
            println!("{usage}");
            return Ok(ExitCode::SUCCESS);
        }
        Err(usage) => {
            eprintln!("{usage}");
            return Ok(ExitCode::from(2));
        }
    };
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::ERROR)
        .with_writer(std::io::stderr)
        .init();

    let kafka = match &arguments.bootstrap {
        Some(bootstrap) => Kafka::real(bootstrap, &arguments.topic).await?,
        None => Kafka::embedded(&arguments.topic).await?,
    };
    let shop = Arc::new(Shop::new(kafka.orders()?));
    let progress = tokio::spawn(shop.clone().show_progress());
    if arguments.naive {
        naive::run(&kafka, &shop).await?;
    } else {
        if arguments.crash {
            tokio::select! {
                ended = consume(&kafka, &shop) => ended?,
                () = shop.half_handled() => println!("dropped midway; starting again"),
            }
            shop.restarted();
        }
        consume(&kafka, &shop).await?;
    }
    progress.abort();

    let report = shop.report(kafka.committed()?);
    println!("\n{report}");
    match (arguments.naive, report.is_clean()) {
        (true, _) => println!(
            "\nThe naive loop commits n+1 before n is done: whatever it had in hand when it stopped is lost."
        ),
        (false, true) => {}
        (false, false) => return Ok(ExitCode::FAILURE),
    }
    Ok(ExitCode::SUCCESS)
}

/// The whole program of a user.
async fn consume(kafka: &Kafka, shop: &Arc<Shop>) -> Result<(), BoxError> {
    let source = KafkaSource::builder(kafka.bootstrap(), kafka.group())
        .topics([kafka.topic()])
        .in_flight(4 * CONCURRENCY)
        .commit_interval(Duration::from_millis(100))
        // short: the embedded Kafka takes about this long to let a second member in
        .set("session.timeout.ms", "6000")
        .build()?;

    let charge = {
        let shop = shop.clone();
        move |order: Message| {
            let shop = shop.clone();
            async move {
                shop.charge(order.partition(), order.offset(), order.key())
                    .await
            }
        }
    };
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new()) //                decides what may be committed
        .layer(OrderLayer::by_key()) //              one at a time per key, in offset order
        .retry(Backoff::exponential(Duration::from_millis(20)).max_attempts(5))
        .concurrency_limit(CONCURRENCY) //           tower's own
        .layer(TimeoutLayer::new(DEADLINE)) //       a deadline never commits
        .service(handler_fn(charge));

    let summary = serve(source, stack)
        .with_graceful_shutdown(stop(kafka.is_embedded(), shop.clone()))
        .await?;
    println!("serve ended: {summary}");
    Ok(())
}

/// Embedded: when every order was handled. On a real Kafka: at Ctrl-C or SIGTERM.
async fn stop(embedded: bool, shop: Arc<Shop>) {
    let interrupted = async {
        let mut terminate = terminate();
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            () = &mut terminate => {}
        }
    };
    if embedded {
        tokio::select! {
            () = interrupted => {}
            all = timeout(Duration::from_secs(15), shop.all_handled()) => {
                if all.is_err() {
                    eprintln!("not all orders were handled within 15 s");
                }
            }
        }
    } else {
        println!("consuming until Ctrl-C or SIGTERM");
        interrupted.await;
    }
}

#[cfg(unix)]
fn terminate() -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
    use tokio::signal::unix::{SignalKind, signal};
    Box::pin(async {
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => {
                terminate.recv().await;
            }
            Err(_) => std::future::pending().await,
        }
    })
}

#[cfg(not(unix))]
fn terminate() -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(std::future::pending())
}
