//! What the tests of the layers share: a broker with messages, a log of what handlers did, one message handed to a
//! stack, and doubles of services.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses its own part of it"
)]

pub mod doubles;

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tower::{Service, ServiceExt};
use tower_consumer::commit::Settled;
use tower_consumer::ledger::{Counts, Kind, Reason, TopicPartition, Verdict};
use tower_consumer::serve::{OnFailure, ServeError, Summary};
use tower_consumer::source::Source;
use tower_consumer::source::memory::{MemoryBroker, MemoryMember, MemorySource};
use tower_consumer::{BoxError, Message, serve};

pub const GROUP: &str = "billing";
pub const TOPIC: &str = "orders";

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub async fn sleep_ms(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

pub fn tp(partition: i32) -> TopicPartition {
    TopicPartition::new(TOPIC, partition)
}

/// A broker with one topic, and in partition 0 a message for each key, from offset 0; the empty key is a null key.
pub fn keyed(keys: &[&str]) -> MemoryBroker {
    let broker = MemoryBroker::new();
    broker.create_topic(TOPIC, 1);
    keys.iter().for_each(|key| produce(&broker, 0, key));
    broker
}

/// A broker with one topic, and `messages` messages without a key in partition 0.
pub fn unkeyed(messages: usize) -> MemoryBroker {
    keyed(&vec![""; messages])
}

pub fn produce(broker: &MemoryBroker, partition: i32, key: &str) {
    let message = Message::builder(TOPIC).partition(partition).payload("x");
    broker.produce(if key.is_empty() {
        message
    } else {
        message.key(key.to_owned())
    });
}

pub fn source(broker: &MemoryBroker) -> MemorySource {
    broker.source(GROUP, [TOPIC]).build().unwrap()
}

pub fn source_until_end(broker: &MemoryBroker) -> MemorySource {
    broker.source(GROUP, [TOPIC]).until_end().build().unwrap()
}

pub fn committed(broker: &MemoryBroker, partition: i32) -> Option<i64> {
    broker.committed(GROUP, TOPIC, partition)
}

/// The error of handlers that fail.
pub fn refused() -> BoxError {
    "refused".into()
}

/// `0@5` is offset 5 of partition 0; partition 0 goes without saying.
pub fn name(message: &Message) -> String {
    match message.partition() {
        0 => message.offset().to_string(),
        partition => format!("{partition}@{}", message.offset()),
    }
}

/// What happened, in order, and when.
#[derive(Clone)]
pub struct Log {
    began: Instant,
    entries: Arc<Mutex<Vec<(u128, String)>>>,
}

impl Log {
    pub fn new() -> Self {
        Log {
            began: Instant::now(),
            entries: Arc::default(),
        }
    }

    pub fn add(&self, entry: impl Into<String>) {
        let at = self.began.elapsed().as_millis();
        self.entries.lock().unwrap().push((at, entry.into()));
    }

    /// An entry when the value is dropped.
    pub fn on_drop(&self, entry: impl Into<String>) -> OnDrop {
        OnDrop(Some((self.clone(), entry.into())))
    }

    pub fn entries(&self) -> Vec<String> {
        let entries = self.entries.lock().unwrap();
        entries.iter().map(|(_, entry)| entry.clone()).collect()
    }

    /// The entries with the milliseconds since the log began.
    pub fn timed(&self) -> Vec<String> {
        let entries = self.entries.lock().unwrap();
        entries
            .iter()
            .map(|(at, entry)| format!("{at} {entry}"))
            .collect()
    }

    /// How many entries begin with this.
    pub fn count(&self, prefix: &str) -> usize {
        let entries = self.entries.lock().unwrap();
        entries
            .iter()
            .filter(|(_, e)| e.starts_with(prefix))
            .count()
    }
}

pub struct OnDrop(Option<(Log, String)>);

impl OnDrop {
    pub fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for OnDrop {
    fn drop(&mut self) {
        if let Some((log, entry)) = self.0.take() {
            log.add(entry);
        }
    }
}

pub type Answer = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;

/// A handler that logs `start n`, and `ok n`, `err n` or `drop n`, around `work`.
pub fn logged<F, Fut>(
    log: &Log,
    work: F,
) -> impl Fn(Message) -> Answer + Clone + Send + Sync + use<F, Fut>
where
    F: Fn(Message) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<(), BoxError>> + Send + 'static,
{
    let log = log.clone();
    move |message| {
        let (log, work) = (log.clone(), work.clone());
        Box::pin(async move {
            let name = name(&message);
            log.add(format!("start {name}"));
            let dropped = log.on_drop(format!("drop {name}"));
            let answer = work(message).await;
            dropped.disarm();
            log.add(match answer {
                Ok(()) => format!("ok {name}"),
                Err(_) => format!("err {name}"),
            });
            answer
        })
    }
}

/// One delivered message that was handed to a stack, as a loop of one's own does.
#[derive(Debug)]
pub struct Handed {
    pub answer: Result<Settled, BoxError>,
    pub verdict: Option<Verdict>,
    pub committed: Option<i64>,
}

impl Handed {
    pub fn error(&self) -> String {
        self.answer.as_ref().unwrap_err().to_string()
    }
}

/// Takes one message from a source, calls the stack with it, waits for the answer, closes the source.
pub async fn hand<S>(mut stack: S) -> Handed
where
    S: Service<Message, Response = Settled>,
    S::Error: Into<BoxError>,
{
    let broker = unkeyed(1);
    let mut source = source(&broker);
    let message = source.next().await.unwrap().unwrap();
    let stack = stack.ready().await.map_err(Into::into).unwrap();
    let answer = stack.call(message).await.map_err(Into::into);
    let verdict = only_verdict(&source.books().counts());
    source.close(ms(1_000)).await.unwrap();
    Handed {
        answer,
        verdict,
        committed: committed(&broker, 0),
    }
}

/// The verdict of the only message there was.
pub fn only_verdict(counts: &Counts) -> Option<Verdict> {
    assert_eq!(counts.delivered, 1);
    let mut verdicts = Vec::new();
    let finished = [
        (counts.done, Kind::Done),
        (counts.skipped, Kind::Skipped),
        (counts.dead_lettered, Kind::DeadLettered),
    ];
    for (count, kind) in finished {
        verdicts.extend((0..count).map(|_| Verdict::Finished(kind)));
    }
    for reason in Reason::ALL {
        let count = counts.not_finished(reason);
        verdicts.extend((0..count).map(|_| Verdict::NotFinished(reason)));
    }
    assert!(verdicts.len() <= 1, "two verdicts: {verdicts:?}");
    verdicts.pop()
}

pub const DONE: Option<Verdict> = Some(Verdict::Finished(Kind::Done));
pub const SKIPPED: Option<Verdict> = Some(Verdict::Finished(Kind::Skipped));

pub const fn not_finished(reason: Reason) -> Option<Verdict> {
    Some(Verdict::NotFinished(reason))
}

/// A `serve` on a task of its own.
pub struct Running {
    pub member: MemoryMember,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<Summary, ServeError>>,
}

impl Running {
    /// With `OnFailure::Hold`: what does not finish stays in the books, and the rest goes on.
    pub fn hold<S>(source: MemorySource, stack: S) -> Self
    where
        S: Service<Message, Response = Settled> + Send + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send + 'static,
    {
        Running::new(source, stack, OnFailure::Hold)
    }

    pub fn new<S>(source: MemorySource, stack: S, on_failure: OnFailure) -> Self
    where
        S: Service<Message, Response = Settled> + Send + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send + 'static,
    {
        let member = source.member();
        let (stop, stopped) = oneshot::channel::<()>();
        let serve = serve(source, stack)
            .on_failure(on_failure)
            .with_graceful_shutdown(stopped);
        Running {
            member,
            stop,
            task: tokio::spawn(serve.into_future()),
        }
    }

    pub fn counts(&self) -> Counts {
        self.member.books().counts()
    }

    /// Shuts down in order.
    pub async fn stop(self) -> Result<Summary, ServeError> {
        drop(self.stop);
        self.task.await.unwrap()
    }

    /// Waits until it ends by itself.
    pub async fn end(self) -> Result<Summary, ServeError> {
        let answer = self.task.await.unwrap();
        drop(self.stop);
        answer
    }
}
