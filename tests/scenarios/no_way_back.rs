//! S3: in whatever order messages finish and commits are answered, what is committed only goes up and covers only what
//! is done.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;
use tower::ServiceBuilder;
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::handler_fn;
use tower_consumer::ledger::TopicPartition;
use tower_consumer::serve;
use tower_consumer::source::memory::{CommitReply, MemoryBroker};

use crate::support::{
    Answer, GROUP, Gates, Journal, Random, broker, commits, ms, pass, produce, quiet, run, source,
    with,
};

const N: i64 = 200;

/// A commit as it left the stack.
#[derive(Clone, Copy, Debug)]
struct Sent {
    offset: i64,
    /// The first offset that was not done at that moment.
    watermark: i64,
    at: Instant,
    answered: Instant,
    ok: bool,
}

/// Answers commits as `reply` says, and writes down what was done when each was sent.
fn watch(
    broker: &MemoryBroker,
    journal: &Journal,
    reply: impl FnMut() -> (CommitReply, u64, bool) + Send + 'static,
) -> Arc<Mutex<Vec<Sent>>> {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let (list, journal) = (sent.clone(), journal.clone());
    let reply = Mutex::new(reply);
    broker.on_commit(GROUP, move |_: &TopicPartition, offset| {
        let (reply, delay, ok) = (reply.lock())();
        let done = journal.done_sorted(0);
        let at = Instant::now();
        list.lock().push(Sent {
            offset,
            watermark: (0..).find(|n| done.binary_search(n).is_err()).unwrap_or(0),
            at,
            answered: at + ms(delay),
            ok,
        });
        reply.after(ms(delay))
    });
    sent
}

/// Lets the messages finish in a random order, `pause` ms apart at most, and waits until all is committed.
async fn finish_in_random_order(broker: &MemoryBroker, journal: &Journal, seed: u64, pause: u64) {
    produce(broker, 0, N);
    let gates = Gates::default();
    let stack = ServiceBuilder::new()
        .layer(CommitLayer::new())
        .service(handler_fn(with(
            (journal.clone(), gates.clone()),
            |(journal, gates), message| async move {
                let work = journal.begin(&message);
                gates.wait(&message).await;
                work.done();
                Answer::Ok(())
            },
        )));
    let source = source(broker).commit_interval(ms(0)).until_end().build();
    let serving = run(serve(source.unwrap(), stack));
    quiet().await;
    let mut random = Random::new(seed);
    for offset in random.shuffled(N) {
        gates.open(0, offset);
        pass(random.below(pause + 1)).await;
    }
    let summary = serving.end().await.unwrap();
    assert_eq!(summary.committed("orders", 0), Some(N), "{summary}");
}

#[tokio::test(start_paused = true)]
async fn commits_go_up_strictly_cover_only_what_is_done_and_end_at_the_last_message() {
    for seed in 0..20 {
        let broker = broker(1);
        let journal = Journal::new();
        let sent = watch(&broker, &journal, || (CommitReply::ok(), 0, true));
        finish_in_random_order(&broker, &journal, seed, 1).await;

        let sent = sent.lock();
        assert!(sent.is_sorted_by(|a, b| a.offset < b.offset), "{sent:?}");
        assert!(sent.iter().all(|c| c.offset == c.watermark), "{sent:?}");
        assert_eq!(commits(&broker, 0).last(), Some(&N));
        assert_eq!(commits(&broker, 0).len(), sent.len());
    }
}

#[tokio::test(start_paused = true)]
async fn with_answers_that_take_random_times_two_commits_are_never_out_at_once() {
    let mut waited = 0;
    for seed in 0..20 {
        let broker = broker(1);
        let journal = Journal::new();
        let mut random = Random::new(1_000 + seed);
        let sent = watch(&broker, &journal, move || {
            (CommitReply::ok(), random.below(300), true)
        });
        finish_in_random_order(&broker, &journal, seed, 20).await;

        let sent = sent.lock();
        waited += sent.windows(2).filter(|w| w[0].answered == w[1].at).count();
        assert!(sent.is_sorted_by(|a, b| a.offset < b.offset), "{sent:?}");
        assert!(sent.is_sorted_by(|a, b| a.answered <= b.at), "{sent:?}");
        assert!(sent.iter().all(|c| c.offset == c.watermark), "{sent:?}");
        assert_eq!(commits(&broker, 0).last(), Some(&N));
    }
    assert!(
        waited > 20,
        "{waited} commits had to wait for the one before"
    );
}

#[tokio::test(start_paused = true)]
async fn after_a_failed_commit_the_next_one_is_the_watermark_of_then() {
    let mut failed = 0;
    for seed in 0..20 {
        let broker = broker(1);
        let journal = Journal::new();
        let mut random = Random::new(2_000 + seed);
        let mut in_a_row = 0;
        let sent = watch(&broker, &journal, move || {
            let delay = random.below(100);
            in_a_row = (in_a_row + 1) % 4;
            match random.below(3) {
                1 if in_a_row != 0 => (CommitReply::transient_error(), delay, false),
                2 if in_a_row != 0 => (CommitReply::answer_lost(), delay, false),
                _ => (CommitReply::ok(), delay, true),
            }
        });
        finish_in_random_order(&broker, &journal, seed, 20).await;

        let sent = sent.lock();
        failed += sent.iter().filter(|c| !c.ok).count();
        assert!(sent.is_sorted_by(|a, b| a.offset <= b.offset), "{sent:?}");
        assert!(sent.is_sorted_by(|a, b| a.answered <= b.at), "{sent:?}");
        assert!(sent.iter().all(|c| c.offset == c.watermark), "{sent:?}");
        assert!(commits(&broker, 0).is_sorted());
        assert_eq!(commits(&broker, 0).last(), Some(&N));
    }
    assert!(failed > 50, "{failed} commits failed");
}
