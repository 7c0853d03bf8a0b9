use std::collections::BTreeSet;
use std::future::{IntoFuture, Pending};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tower::BoxError;
use tower::Service;
use tower_consumer::Message;
use tower_consumer::commit::Settlement;
use tower_consumer::serve::{Serve, ServeError, Summary};
use tower_consumer::source::Source;

use super::Journal;

/// A run of `serve` as a task of its own.
pub(crate) struct Run {
    task: JoinHandle<Result<Summary, ServeError>>,
    stop: oneshot::Sender<()>,
}

pub(crate) fn run<Src, Svc>(serve: Serve<Src, Svc, Pending<()>>) -> Run
where
    Src: Source + Send + 'static,
    Svc: Service<Message> + Send + 'static,
    Svc::Response: Settlement,
    Svc::Error: Into<BoxError>,
    Svc::Future: Send + 'static,
{
    let (stop, stopped) = oneshot::channel::<()>();
    // a run whose `Run` is gone goes on
    let stopped = async move {
        if stopped.await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let task = tokio::spawn(serve.with_graceful_shutdown(stopped).into_future());
    Run { task, stop }
}

impl Run {
    /// Drops the future of `serve`: a crash in small.
    pub(crate) async fn kill(self) {
        self.task.abort();
        let error = self.task.await.expect_err("it was still running");
        assert!(error.is_cancelled(), "{error}");
        super::quiet().await;
    }

    /// Asks for an orderly end, and waits for it.
    pub(crate) async fn shutdown(self) -> Result<Summary, ServeError> {
        let _ = self.stop.send(());
        self.task.await.expect("serve does not panic")
    }

    /// Waits until it ends by itself.
    pub(crate) async fn end(self) -> Result<Summary, ServeError> {
        self.task.await.expect("serve does not panic")
    }

    pub(crate) fn is_over(&self) -> bool {
        self.task.is_finished()
    }
}

/// What a crash and a restart came to, over one partition.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Restart {
    pub(crate) lost: usize,
    pub(crate) duplicated: usize,
}

/// Counts what two runs over partition 0 came to, with `committed` at the restart between them.
pub(crate) fn restart(
    sent: i64,
    first: &Journal,
    committed: Option<i64>,
    second: &Journal,
) -> Restart {
    let committed = committed.unwrap_or(0);
    let run_1: BTreeSet<i64> = first.done(0).into_iter().collect();
    let run_2: BTreeSet<i64> = second.done(0).into_iter().collect();
    if let Some(start) = second.starts(0).first() {
        assert_eq!(*start, committed, "run 2 starts at what was committed");
    }
    let distinct = run_1.union(&run_2).count();
    Restart {
        lost: sent as usize - distinct,
        duplicated: first.done(0).len() + second.done(0).len() - distinct,
    }
}

impl Restart {
    pub(crate) const fn new(lost: usize, duplicated: usize) -> Self {
        Restart { lost, duplicated }
    }
}

/// The safety property on its own: everything below what is committed was processed.
pub(crate) fn assert_covered(first: &Journal, committed: Option<i64>) {
    let done: BTreeSet<i64> = first.done(0).into_iter().collect();
    for offset in 0..committed.unwrap_or(0) {
        assert!(
            done.contains(&offset),
            "{committed:?} is committed, but {offset} was not processed"
        );
    }
}
