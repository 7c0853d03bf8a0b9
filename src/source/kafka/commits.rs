//! The thread that waits for brokers: it sends commits, one request at a time, and asks for offsets.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::{CommitMode, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::{Offset, TopicPartitionList};
use tracing::{debug, error, warn};

use super::classify::{self, CommitMeaning};
use super::client::StartPolicy;
use super::context::{Consumer, list_of};
use super::link::{Alive, Answer, Job, Link, Seek};
use crate::ledger::{Commit, CommitFailure, Start, TopicPartition};
use crate::source::SourceError;

const TICK: Duration = Duration::from_millis(100);
/// For one question to a broker.
const ASK: Duration = Duration::from_secs(5);
/// And for one that is asked while commits wait.
const ASK_LATER: Duration = Duration::from_secs(1);

pub(super) fn run(link: Arc<Link>, consumer: Arc<Consumer>, policy: StartPolicy) {
    let _alive = Alive {
        link: link.clone(),
        what: "sends commits",
    };
    let commits = Commits {
        link,
        consumer,
        policy,
    };
    while commits.step() {}
}

struct Commits {
    link: Arc<Link>,
    consumer: Arc<Consumer>,
    policy: StartPolicy,
}

impl Commits {
    fn step(&self) -> bool {
        let now = Instant::now();
        let due = self.link.books.next_timeout(now);
        let wait = due.map_or(TICK, |at| at.saturating_duration_since(now).min(TICK));
        // what is due by the group thread (a drain) is not for us: a short wait keeps us from spinning on it
        self.link.bell.wait(wait.max(Duration::from_millis(1)));
        for job in self.link.take_jobs() {
            match job {
                Job::Starts(tps) => {
                    let starts = self.starts(&tps, ASK, false);
                    self.link.answer(Answer::Starts(starts));
                }
                Job::Start(tp) => {
                    let mut starts = self.starts(std::slice::from_ref(&tp), ASK_LATER, true);
                    let start = starts.remove(&tp);
                    self.link.answer(Answer::Start(tp, start));
                }
                Job::Seek(seek) => {
                    let ok = self.seek(&seek);
                    self.link.answer(Answer::Sought(seek, ok));
                }
                Job::Exit => return false,
            }
        }
        // built at the moment of sending
        let commits = self.link.books.take_commits(Instant::now());
        if !commits.is_empty() {
            self.send(&commits);
        }
        true
    }

    /// One bad partition makes the answer of the whole list an error, although the others were stored: then each is
    /// sent alone, once.
    fn send(&self, commits: &[Commit]) {
        match self.send_list(commits) {
            Ok(()) => self.ended(commits, Ok(())),
            Err(error) => match classify::commit(&error) {
                CommitMeaning::Fatal => {
                    self.ended(commits, Err((CommitFailure::Permanent, &error)));
                    self.link.die(SourceError::Fatal(error.to_string()));
                }
                CommitMeaning::Partition(_) if commits.len() > 1 => {
                    for commit in commits.chunks(1) {
                        self.send(commit);
                    }
                }
                CommitMeaning::Partition(kind) | CommitMeaning::Group(kind) => {
                    self.ended(commits, Err((kind, &error)));
                }
            },
        }
    }

    fn send_list(&self, commits: &[Commit]) -> Result<(), KafkaError> {
        let mut list = TopicPartitionList::with_capacity(commits.len());
        for commit in commits {
            list.add_partition_offset(
                &commit.tp.topic,
                commit.tp.partition,
                Offset::Offset(commit.offset),
            )?;
        }
        self.consumer.commit(&list, CommitMode::Sync)
    }

    fn ended(&self, commits: &[Commit], result: Result<(), (CommitFailure, &KafkaError)>) {
        for commit in commits {
            let kind = result.map_err(|(kind, _)| kind);
            let outcome = self.link.books.commit_ended(commit, kind, Instant::now());
            let (topic, partition) = (&*commit.tp.topic, commit.tp.partition);
            match result {
                Ok(()) => debug!(topic, partition, offset = commit.offset, "committed"),
                Err((CommitFailure::Transient, error)) => warn!(
                    topic,
                    partition,
                    offset = commit.offset,
                    failures = outcome.failures,
                    %error,
                    "commit failed; the newest watermark is sent again"
                ),
                Err((CommitFailure::Permanent, error)) if outcome.failures <= 1 => error!(
                    topic,
                    partition,
                    offset = commit.offset,
                    %error,
                    "commit refused; it is tried again rarely"
                ),
                Err((CommitFailure::Permanent, _)) => {}
            }
        }
    }

    /// What is committed for partitions that are assigned, and whether it counts. What could not be found out is not
    /// in the answer; with `strict` neither is a partition whose log did not answer.
    fn starts(
        &self,
        tps: &[TopicPartition],
        limit: Duration,
        strict: bool,
    ) -> HashMap<TopicPartition, Start> {
        let mut starts = HashMap::new();
        let committed = match self.consumer.committed_offsets(list_of(tps), limit) {
            Ok(committed) => offsets(&committed),
            Err(error) => {
                warn!(%error, "committed offsets could not be read");
                return starts;
            }
        };
        let ends = self.log_offsets(tps, Offset::End, limit);
        let pins = self.policy == StartPolicy::PinLatest;
        // only where a reset would go to the end it matters that retention has passed the committed offset
        let begins = match pins {
            true => self.log_offsets(tps, Offset::Beginning, limit),
            false => HashMap::new(),
        };
        let of = |offsets: &HashMap<_, _>, tp| offsets.get(tp).copied().flatten();
        for tp in tps {
            // neither an offset nor "none": it could not be read, which is not the same as none
            let Some(committed) = committed.get(tp) else {
                continue;
            };
            let end = of(&ends, tp);
            if strict && end.is_none() {
                continue;
            }
            let is_kept = |committed: &i64| {
                end.is_none_or(|end| *committed <= end)
                    && of(&begins, tp).is_none_or(|begin| begin <= *committed)
            };
            let start = match (committed, end) {
                (Some(committed), _) if is_kept(committed) => Start::Committed(*committed),
                (committed, Some(end)) => {
                    if let Some(committed) = committed {
                        warn!(
                            topic = &*tp.topic,
                            partition = tp.partition,
                            committed,
                            end,
                            "the committed offset lies outside of the log: the client resets"
                        );
                    }
                    match pins {
                        true => Start::Pin(end),
                        false => Start::Unknown,
                    }
                }
                (_, None) if pins => continue,
                (_, None) => Start::Unknown,
            };
            starts.insert(tp.clone(), start);
        }
        starts
    }

    /// Where the logs begin or end (ListOffsets with timestamp -2 or -1).
    fn log_offsets(
        &self,
        tps: &[TopicPartition],
        which: Offset,
        limit: Duration,
    ) -> HashMap<TopicPartition, Option<i64>> {
        let mut list = TopicPartitionList::with_capacity(tps.len());
        for tp in tps {
            let _ = list.add_partition_offset(&tp.topic, tp.partition, which);
        }
        match self.consumer.offsets_for_times(list, limit) {
            Ok(list) => offsets(&list),
            Err(error) => {
                warn!(%error, ?which, "the logs' offsets could not be read");
                HashMap::new()
            }
        }
    }

    fn seek(&self, Seek { tp, offset, .. }: &Seek) -> bool {
        let mut list = TopicPartitionList::with_capacity(1);
        // to "invalid" is as the policy says
        let to = offset.map_or(Offset::Invalid, Offset::Offset);
        let sought = list
            .add_partition_offset(&tp.topic, tp.partition, to)
            .and_then(|()| self.consumer.seek_partitions(list, ASK))
            .and_then(|list| {
                list.elements()
                    .iter()
                    .try_for_each(|element| element.error())
            });
        if let Err(error) = &sought {
            warn!(topic = &*tp.topic, partition = tp.partition, offset, %error, "seek failed");
        }
        sought.is_ok()
    }
}

/// The offsets of a list: those that are numbers, `None` where there is none, nothing where the broker answered an error.
/// Metadata is not touched: it may be anything.
fn offsets(list: &TopicPartitionList) -> HashMap<TopicPartition, Option<i64>> {
    list.elements()
        .iter()
        .filter(|element| element.error().is_ok())
        .map(|element| {
            let offset = match element.offset() {
                Offset::Offset(offset) => Some(offset),
                _ => None,
            };
            let tp = TopicPartition::new(element.topic(), element.partition());
            (tp, offset)
        })
        .collect()
}
