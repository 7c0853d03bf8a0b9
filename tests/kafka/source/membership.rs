//! The group as the broker sees it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer;
use tower_consumer::Message;
use tower_consumer::serve::ServeErrorKind;
use tower_consumer::source::SourceError;

use super::{Case, REQUEST, sorted};
use crate::member::{Gate, Log, Member};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real Kafka: tests/kafka/run"]
async fn handlers_that_block_every_worker_for_20_s_change_nothing_in_the_group() {
    blocked("blocked-multi", 2).await;
}

#[tokio::test(flavor = "current_thread")]
#[ignore = "needs a real Kafka: tests/kafka/run"]
async fn a_handler_that_blocks_the_only_thread_for_20_s_changes_nothing_in_the_group() {
    blocked("blocked-current", 1).await;
}

async fn blocked(name: &str, workers: i32) {
    let case = Case::new(name, 2);
    let log = Log::new();
    let source = case.source().set("max.poll.interval.ms", "6000");
    let member = Member::start_with(1, source.build().unwrap(), &log, move |message: Message| {
        async move {
            if message.offset() == 0 && message.partition() < workers {
                // not in place, on the driver's task, but each on a worker of its own
                tokio::task::yield_now().await;
                thread::sleep(Duration::from_secs(20));
            }
            Ok(())
        }
    });
    member.until_assigned(2).await;
    let watch = Watch::start(&case);
    let began = Instant::now();
    for partition in 0..2 {
        case.produce(partition, 5);
    }
    log.until_handled(10).await;
    assert!(began.elapsed() >= Duration::from_secs(20));
    case.produce(0, 5);
    log.until_handled(15).await;
    let seen = watch.end();
    assert_eq!(seen.len(), 1, "{seen:?}");
    let group = seen.first().unwrap();
    assert_eq!(group.state, "Stable");
    assert_eq!(group.members.len(), 1);
    assert!(!group.members[0].assignment.is_empty());
    let summary = member.stop().await.unwrap();
    assert_eq!((summary.counts.delivered, summary.counts.late), (15, 0));
    assert_eq!(sorted(log.begun_of(0)), Vec::from_iter(0..10));
    assert_eq!((case.committed(0), case.committed(1)), (Some(10), Some(5)));
}

/// The state of a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    state: String,
    members: Vec<GroupMember>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct GroupMember {
    id: String,
    assignment: Vec<u8>,
}

/// Asks for the state of a group again and again, on a thread of its own.
struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<BTreeSet<Group>>,
}

impl Watch {
    fn start(case: &Case) -> Self {
        let (observer, name) = (case.observer(), case.name.clone());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut seen = BTreeSet::new();
            while !stopped.load(Ordering::Relaxed) {
                let list = observer.fetch_group_list(Some(&name), REQUEST).unwrap();
                let group = &list.groups()[0];
                let members = group.members().iter();
                seen.insert(Group {
                    state: group.state().to_owned(),
                    members: members
                        .map(|member| GroupMember {
                            id: member.id().to_owned(),
                            assignment: member.assignment().unwrap_or_default().to_vec(),
                        })
                        .collect(),
                });
                thread::sleep(Duration::from_millis(100));
            }
            seen
        });
        Watch { stop, thread }
    }

    /// Every state that was seen.
    fn end(self) -> BTreeSet<Group> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Two with the same `group.instance.id`: the broker fences the older one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real Kafka: tests/kafka/run"]
async fn a_member_whose_place_another_takes_ends_and_leaves_its_work_to_that_one() {
    let case = Case::new("fenced", 1);
    case.produce(0, 10);
    let source = || case.source().set("group.instance.id", "1").build().unwrap();
    let log = Log::new();
    let gate = Gate::new(|message| message.offset() < 5);
    let older = Member::start_gated(1, source(), &log, &gate);
    log.until_begun(10).await;
    case.wait_committed(0, 5);
    let log_of_younger = Log::new();
    let younger = Member::start(2, source(), &log_of_younger);
    let error = older.end().await.unwrap_err();
    let fatal = matches!(&error.kind, ServeErrorKind::Source(SourceError::Fatal(_)));
    assert!(fatal, "{error:?}");
    assert!(
        error.to_string().to_lowercase().contains("fenced"),
        "{error}"
    );
    gate.open();
    case.produce(0, 2);
    log_of_younger.until_handled(7).await;
    case.wait_committed(0, 12);
    younger.stop().await.unwrap();
    assert_eq!(sorted(log_of_younger.begun_of(0)), Vec::from_iter(5..12));
    assert_eq!(log.begun().len(), 10);
}
