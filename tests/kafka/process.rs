//! A consumer process, as its parent sees it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{env, thread};

use crate::child::Event;
use crate::ledger::Position;
use crate::plan::{self, Plan};

/// How long anything may take that a test waits for. Long: a member that was killed holds its partitions until its
/// session ends (6 s), and the machine may be busy.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Killed when dropped.
pub(crate) struct Process {
    child: Child,
    output: Arc<Output>,
    /// The process ends by itself when this closes: when its parent was killed too.
    _stdin: ChildStdin,
}

#[derive(Default)]
struct Output {
    said: Mutex<Said>,
    more: Condvar,
}

#[derive(Default)]
struct Said {
    events: Vec<Event>,
    /// Lines that are no event: a panic, for the most part.
    text: Vec<String>,
    ended: bool,
}

impl Process {
    pub(crate) fn start(plan: &Plan) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args([
                "--exact",
                "consumer_process",
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(plan::VARIABLE, plan.to_text())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = Arc::new(Output::default());
        output.collect(child.stdout.take().unwrap(), true);
        output.collect(child.stderr.take().unwrap(), false);
        let stdin = child.stdin.take().unwrap();
        Self {
            child,
            output,
            _stdin: stdin,
        }
    }

    /// Waits until the handler has succeeded for this position.
    pub(crate) fn wait_processed(&self, (partition, offset): Position) {
        let processed = Event::Processed { partition, offset };
        self.wait(&format!("{processed:?}"), |events| {
            events.contains(&processed)
        });
    }

    /// Waits until `enough` holds for all that was said so far.
    pub(crate) fn wait(&self, what: &str, enough: impl Fn(&[Event]) -> bool) {
        let deadline = Instant::now() + LIMIT;
        let mut said = self.output.said();
        while !enough(&said.events) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || said.ended {
                let why = if said.ended {
                    "it has ended"
                } else {
                    "time is over"
                };
                panic!("waited for {what}: {why}; events: {:?}", said.events);
            }
            let waited = self.output.more.wait_timeout(said, left);
            said = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// SIGKILL, and wait for its end: all that happened, in order.
    pub(crate) fn kill(mut self) -> Vec<Event> {
        let ended = self.child.try_wait().unwrap();
        assert_eq!(ended, None, "it has ended before it was killed");
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let mut said = self.output.said();
        while !said.ended {
            said = self
                .output
                .more
                .wait(said)
                .unwrap_or_else(PoisonError::into_inner);
        }
        said.events.clone()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!(
                "the consumer process said:\n{}",
                self.output.said().text.join("\n")
            );
        }
    }
}

impl Output {
    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads `from` on a thread of its own, until its end.
    fn collect(self: &Arc<Self>, from: impl Read + Send + 'static, events: bool) {
        let output = Arc::clone(self);
        thread::spawn(move || {
            for line in BufReader::new(from).lines() {
                let Ok(line) = line else { break };
                let mut said = output.said();
                match Event::parse(&line) {
                    Some(event) => said.events.push(event),
                    None => said.text.push(line),
                }
                drop(said);
                output.more.notify_all();
            }
            if events {
                output.said().ended = true;
                output.more.notify_all();
            }
        });
    }
}
