//! A member of a group, as an application would run it: a `KafkaSource`, `serve`, and a handler that writes down what it
//! was given.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tower::{BoxError, ServiceBuilder};
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::handler_fn;
use tower_consumer::ledger::EpochId;
use tower_consumer::serve::{OnFailure, ServeError, Summary};
use tower_consumer::source::{Books, Source, kafka::KafkaSource};
use tower_consumer::{Message, serve};

use crate::LIMIT;

/// What the handlers of one test did, in order, over all members.
#[derive(Clone)]
pub(crate) struct Log {
    state: Arc<Mutex<State>>,
    changed: Arc<watch::Sender<()>>,
}

#[derive(Default)]
struct State {
    begun: Vec<Begun>,
    ended: Vec<(i32, i64)>,
}

/// A handler was called.
#[derive(Clone, Debug)]
pub(crate) struct Begun {
    pub(crate) member: u32,
    pub(crate) epoch: EpochId,
    pub(crate) message: Message,
}

impl Log {
    pub(crate) fn new() -> Self {
        Log {
            state: Arc::default(),
            changed: Arc::new(watch::Sender::new(())),
        }
    }

    fn note(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.changed.send_replace(());
    }

    pub(crate) fn begun(&self) -> Vec<Begun> {
        self.state.lock().begun.clone()
    }

    /// Offsets of a partition in the order in which their handlers were called.
    pub(crate) fn begun_of(&self, partition: i32) -> Vec<i64> {
        let state = self.state.lock();
        let of_partition = state
            .begun
            .iter()
            .filter(|b| b.message.partition() == partition);
        of_partition.map(|b| b.message.offset()).collect()
    }

    /// How often each message's handler ended with `Ok`.
    pub(crate) fn handled(&self) -> BTreeMap<(i32, i64), usize> {
        let mut handled = BTreeMap::new();
        for place in &self.state.lock().ended {
            *handled.entry(*place).or_default() += 1;
        }
        handled
    }

    /// Waits until what was done satisfies this.
    #[track_caller]
    pub(crate) fn until(
        &self,
        what: impl Into<String>,
        enough: impl Fn(&Log) -> bool,
    ) -> impl Future<Output = ()> {
        let (what, at) = (what.into(), std::panic::Location::caller());
        let mut changed = self.changed.subscribe();
        async move {
            let reached = async {
                while !enough(self) {
                    changed.changed().await.expect("the log lives");
                }
            };
            if timeout(LIMIT, reached).await.is_err() {
                let state = self.state.lock();
                panic!(
                    "{at}: waited for {what}; {} begun, {} ended",
                    state.begun.len(),
                    state.ended.len()
                );
            }
        }
    }

    /// Waits until that many different messages were handled.
    #[track_caller]
    pub(crate) fn until_handled(&self, count: usize) -> impl Future<Output = ()> {
        self.until(format!("{count} messages"), move |log| {
            log.handled().len() >= count
        })
    }

    /// Waits until that many handlers were called.
    #[track_caller]
    pub(crate) fn until_begun(&self, count: usize) -> impl Future<Output = ()> {
        self.until(format!("{count} calls"), move |log| {
            log.state.lock().begun.len() >= count
        })
    }
}

/// Holds handlers until it opens for their message.
#[derive(Clone)]
pub(crate) struct Gate(Arc<watch::Sender<Open>>);

type Open = Arc<dyn Fn(&Message) -> bool + Send + Sync>;

impl Gate {
    /// Open for these messages.
    pub(crate) fn new(open: impl Fn(&Message) -> bool + Send + Sync + 'static) -> Self {
        Gate(Arc::new(watch::Sender::new(Arc::new(open))))
    }

    pub(crate) fn closed() -> Self {
        Self::new(|_| false)
    }

    pub(crate) fn open(&self) {
        self.open_for(|_| true);
    }

    pub(crate) fn open_for(&self, open: impl Fn(&Message) -> bool + Send + Sync + 'static) {
        self.0.send_replace(Arc::new(open));
    }

    pub(crate) async fn pass(&self, message: &Message) {
        let mut open = self.0.subscribe();
        let passed = open.wait_for(|open| open(message)).await;
        passed.expect("the gate lives");
    }
}

pub(crate) struct Member {
    pub(crate) books: Books,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<Summary, ServeError>>,
}

impl Member {
    /// Every message is finished at once.
    pub(crate) fn start(number: u32, source: KafkaSource, log: &Log) -> Self {
        Self::start_with(number, source, log, |_| async { Ok(()) })
    }

    /// A message is finished when the gate opens for it.
    pub(crate) fn start_gated(number: u32, source: KafkaSource, log: &Log, gate: &Gate) -> Self {
        let gate = gate.clone();
        Self::start_with(number, source, log, move |message| {
            let gate = gate.clone();
            async move {
                gate.pass(&message).await;
                Ok(())
            }
        })
    }

    pub(crate) fn start_with<F, Fut>(
        number: u32,
        source: KafkaSource,
        log: &Log,
        handler: F,
    ) -> Self
    where
        F: Fn(Message) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        Self::start_limited(number, source, log, Duration::from_secs(30), handler)
    }

    /// The same, with a limit for the shutdown.
    pub(crate) fn start_limited<F, Fut>(
        number: u32,
        source: KafkaSource,
        log: &Log,
        shutdown_limit: Duration,
        handler: F,
    ) -> Self
    where
        F: Fn(Message) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        let log = log.clone();
        let stack = ServiceBuilder::new()
            .layer(CommitLayer::new())
            .service(handler_fn(move |message: Message| {
                let (log, handler) = (log.clone(), handler.clone());
                async move {
                    let place = (message.partition(), message.offset());
                    log.note(|state| {
                        state.begun.push(Begun {
                            member: number,
                            epoch: message.delivery().expect("it was delivered").epoch(),
                            message: message.clone(),
                        });
                    });
                    handler(message).await?;
                    log.note(|state| state.ended.push(place));
                    Ok::<(), BoxError>(())
                }
            }));
        let books = source.books().clone();
        let (stop, stopped) = oneshot::channel();
        let serve = serve(source, stack)
            .on_failure(OnFailure::Stop)
            .shutdown_limit(shutdown_limit)
            .with_graceful_shutdown(stopped);
        let task = tokio::spawn(async move { serve.await });
        Member { books, stop, task }
    }

    /// Waits until that many partitions are assigned.
    pub(crate) async fn until_assigned(&self, count: usize) {
        let assigned = async {
            while self.books.assigned().len() != count {
                sleep(Duration::from_millis(5)).await;
            }
        };
        let reached = timeout(LIMIT, assigned).await;
        reached.unwrap_or_else(|_| panic!("assigned are {:?}", self.books.assigned()));
    }

    /// Asks for an orderly end, and waits for it.
    pub(crate) async fn stop(self) -> Result<Summary, ServeError> {
        self.begin_stop().end().await
    }

    /// Asks for an orderly end.
    pub(crate) fn begin_stop(self) -> Ending {
        let _ = self.stop.send(());
        Ending(self.task)
    }

    /// Waits for an end that nobody asked for.
    pub(crate) async fn end(self) -> Result<Summary, ServeError> {
        let Member { stop, task, .. } = self;
        let end = Ending(task).end().await;
        drop(stop);
        end
    }

    /// Drops `serve`.
    pub(crate) async fn kill(self) {
        self.task.abort();
        let ended = self.task.await;
        assert!(
            ended.is_err_and(|error| error.is_cancelled()),
            "serve had ended"
        );
    }

    pub(crate) fn is_running(&self) -> bool {
        !self.task.is_finished()
    }
}

pub(crate) struct Ending(JoinHandle<Result<Summary, ServeError>>);

impl Ending {
    pub(crate) async fn end(self) -> Result<Summary, ServeError> {
        timeout(LIMIT, self.0)
            .await
            .expect("serve ends")
            .expect("serve does not panic")
    }
}
