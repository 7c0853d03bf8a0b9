//! What all scenarios share: a topic, a group and a ledger of their own; kill, restart, drain, count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};
use std::{fs, process, thread};

use crate::broker::{Broker, Offsets, Produced, Watch};
use crate::child::Event;
use crate::ledger::{self, Account, Position};
use crate::plan::{Behaviour, Plan, Setup};
use crate::process::{LIMIT, Process};

/// How long a consumer may take to work off what is left.
const DRAIN_LIMIT: Duration = Duration::from_secs(90);

pub(crate) struct Scenario {
    broker: Broker,
    offsets: Offsets,
    /// Of the topic and of the group.
    name: String,
    partitions: i32,
    sent: BTreeSet<Position>,
    folder: PathBuf,
}

/// How things stood after run 1 was killed.
#[derive(Clone, Debug)]
pub(crate) struct Crash {
    /// Of each partition the committed offset: C.
    pub(crate) committed: Vec<i64>,
    /// What run 1 has processed: H1.
    pub(crate) processed: BTreeSet<Position>,
    /// What its handlers did, in order.
    pub(crate) events: Vec<Event>,
}

impl Crash {
    /// How often the handler was started for this message.
    pub(crate) fn attempts(&self, (partition, offset): Position) -> usize {
        let started = Event::Started { partition, offset };
        self.events
            .iter()
            .filter(|&&event| event == started)
            .count()
    }

    /// Every offset that is committed was processed: the safety property.
    #[track_caller]
    pub(crate) fn assert_safe(&self) {
        let Self {
            committed,
            processed,
            ..
        } = self;
        assert_eq!(
            self.skipped(),
            [],
            "committed {committed:?} and not processed; processed were {processed:?}"
        );
    }

    /// Offsets that are committed and were not processed.
    pub(crate) fn skipped(&self) -> Vec<Position> {
        let below = |(partition, &committed)| (0..committed).map(move |offset| (partition, offset));
        let all = (0..).zip(&self.committed).flat_map(below);
        all.filter(|position| !self.processed.contains(position))
            .collect()
    }

    /// Of each partition how many were processed and not committed: they come again.
    fn to_come_again(&self) -> BTreeMap<i32, usize> {
        let mut counts = BTreeMap::new();
        for &(partition, offset) in &self.processed {
            if offset >= self.committed[partition as usize] {
                *counts.entry(partition).or_default() += 1;
            }
        }
        counts
    }
}

/// How things stood after run 2 had worked off the rest.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) account: Account,
    /// Of each partition the lowest offset that run 2 has processed.
    pub(crate) first_of_run_2: Vec<Option<i64>>,
    pub(crate) committed: Vec<i64>,
    pub(crate) log_end: Vec<i64>,
}

impl End {
    /// What must hold at every end, whatever the scenario.
    #[track_caller]
    pub(crate) fn assert_nothing_lost(&self, crash: &Crash, window: usize) {
        crash.assert_safe();
        assert_eq!(self.account.lost, [], "lost");
        assert_eq!(
            self.committed, self.log_end,
            "the committed offset at the end is the log's end"
        );
        for (partition, (&committed, &log_end)) in
            crash.committed.iter().zip(&self.log_end).enumerate()
        {
            let first = (committed < log_end).then_some(committed);
            assert_eq!(
                self.first_of_run_2[partition], first,
                "run 2 starts at the committed offset"
            );
        }
        let again = crash.to_come_again();
        assert_eq!(
            self.account.duplicated,
            again.values().sum::<usize>(),
            "duplicated"
        );
        assert!(
            again.values().all(|&count| count <= window),
            "more than a window is duplicated: {again:?}"
        );
    }
}

impl Scenario {
    /// A fresh topic of one partition.
    pub(crate) fn new(name: &str) -> Self {
        let broker = Broker::from_env();
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos();
        let name = format!("{name}-{}-{since:x}", process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&name);
        fs::create_dir(&folder).unwrap();
        let partitions = 1;
        broker.create_topic(&name, partitions);
        let offsets = broker.offsets(&name, &name, partitions);
        Self {
            broker,
            offsets,
            name,
            partitions,
            sent: BTreeSet::new(),
            folder,
        }
    }

    /// Sends the next `count` messages, without a key.
    pub(crate) fn produce(&mut self, count: usize) {
        self.produce_keyed(count, |_| None);
    }

    /// Sends the next `count` messages; message i gets the key that `key` says.
    pub(crate) fn produce_keyed(&mut self, count: usize, key: impl Fn(usize) -> Option<String>) {
        let partitions = self.partitions as usize;
        let messages: Vec<Produced> = (self.sent.len()..self.sent.len() + count)
            .map(|i| Produced {
                partition: (i % partitions) as i32,
                offset: (i / partitions) as i64,
                key: key(i),
                value: format!("m-{i}"),
            })
            .collect();
        self.sent.extend(
            messages
                .iter()
                .map(|message| (message.partition, message.offset)),
        );
        self.broker.produce(&self.name, messages);
    }

    /// Starts run 1.
    pub(crate) fn start(&self, setup: Setup) -> Process {
        self.start_run(1, setup)
    }

    fn start_run(&self, run: u32, setup: Setup) -> Process {
        Process::start(&Plan {
            bootstrap: self.broker.bootstrap().to_owned(),
            topic: self.name.clone(),
            group: self.name.clone(),
            ledger: self.ledger(),
            run,
            setup,
        })
    }

    fn ledger(&self) -> PathBuf {
        self.folder.join("ledger")
    }

    fn ledger_size(&self) -> u64 {
        fs::metadata(self.ledger()).map_or(0, |metadata| metadata.len())
    }

    /// Reads the committed offset in a loop from now on.
    pub(crate) fn watch(&self) -> Watch {
        self.broker
            .offsets(&self.name, &self.name, self.partitions)
            .watch()
    }

    /// Waits until the broker has this committed offset (of partition 0). A higher one is a failure at once.
    #[track_caller]
    pub(crate) fn wait_committed(&self, offset: i64) {
        let deadline = Instant::now() + LIMIT;
        loop {
            let committed = self.offsets.committed()[0];
            assert!(
                committed <= offset,
                "committed is {committed}, past {offset}"
            );
            if committed == offset {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "committed is {committed}, waited for {offset}"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until neither the ledger nor a committed offset has moved for `time`.
    pub(crate) fn wait_still(&self, time: Duration) {
        self.wait_still_and(time, |_| true);
    }

    /// The same, and `enough` has held of the committed offsets all that time.
    fn wait_still_and(&self, time: Duration, enough: impl Fn(&[i64]) -> bool) {
        let deadline = Instant::now() + DRAIN_LIMIT;
        let mut last = None;
        let mut since = Instant::now();
        loop {
            let now = (self.ledger_size(), self.offsets.committed());
            if last.as_ref() != Some(&now) || !enough(&now.1) {
                since = Instant::now();
            } else if since.elapsed() >= time {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "not still: committed {:?} of {:?}",
                now.1,
                self.offsets.log_end()
            );
            last = Some(now);
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// SIGKILL; half a second later, when whatever was under way has arrived, the committed offset.
    pub(crate) fn kill(&self, process: Process) -> Crash {
        let events = process.kill();
        thread::sleep(Duration::from_millis(500));
        Crash {
            committed: self.offsets.committed(),
            processed: ledger::processed_in(1, &ledger::read(&self.ledger())),
            events,
        }
    }

    /// Run 2, in which no handler fails or sleeps: until all is committed and the ledger has been still for 3 s.
    pub(crate) fn restart(&self, setup: Setup) -> End {
        let log_end = self.offsets.log_end();
        let run_2 = self.start_run(
            2,
            Setup {
                behaviour: Behaviour::Quick,
                ..setup
            },
        );
        self.wait_still_and(Duration::from_secs(3), |committed| committed == log_end);
        run_2.kill();
        let lines = ledger::read(&self.ledger());
        let second = ledger::processed_in(2, &lines);
        let first = |partition| {
            second
                .range((partition, 0)..(partition + 1, 0))
                .next()
                .map(|&(_, offset)| offset)
        };
        End {
            account: Account::of(&self.sent, &lines),
            first_of_run_2: (0..self.partitions).map(first).collect(),
            committed: self.offsets.committed(),
            log_end,
        }
    }
}

impl Drop for Scenario {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("what was processed is in {}", self.ledger().display());
        } else {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}
