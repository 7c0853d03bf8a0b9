//! Makes the client and starts the threads.

use std::sync::Arc;

use rdkafka::ClientConfig;
use rdkafka::consumer::Consumer as _;
use rdkafka::error::KafkaError;

use super::KafkaSource;
use super::context::{Consumer, Recorder};
use super::link::Link;
use super::reports::Reports;
use super::settings::Settings;
use super::{commits, group};
use crate::ledger::Config;

pub(super) fn start(
    client: &ClientConfig,
    topics: &[String],
    config: Config,
    settings: Settings,
) -> Result<KafkaSource, KafkaError> {
    let consumer: Arc<Consumer> = Arc::new(client.create_with_context(Recorder::default())?);
    let bootstrap = client
        .get("bootstrap.servers")
        .or(client.get("metadata.broker.list"));
    let reports = Reports::new(bootstrap.unwrap_or_default().to_owned(), topics);
    let names: Vec<&str> = topics.iter().map(String::as_str).collect();
    consumer.subscribe(&names).map_err(|error| {
        KafkaError::ClientCreation(format!("cannot subscribe to {names:?}: {error}"))
    })?;
    let link = Link::new(config);
    spawn("kafka-commits", {
        let (link, consumer) = (link.clone(), consumer.clone());
        move || commits::run(link, consumer, settings.start)
    })?;
    let group = spawn("kafka-group", {
        let link = link.clone();
        move || group::run(link, consumer, settings, reports)
    });
    if let Err(error) = group {
        link.ask(super::link::Job::Exit);
        return Err(error);
    }
    Ok(KafkaSource::new(link))
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), KafkaError> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    match thread {
        Ok(_) => Ok(()),
        Err(error) => Err(KafkaError::ClientCreation(format!(
            "no thread for it: {error}"
        ))),
    }
}
