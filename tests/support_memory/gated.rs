use tokio::task::JoinHandle;
use tokio::time::Instant;
use tower::ServiceBuilder;
use tower_consumer::commit::CommitLayer;
use tower_consumer::handler::handler_fn;
use tower_consumer::ledger::Released;
use tower_consumer::serve;
use tower_consumer::source::memory::{MemoryBroker, MemoryMember, MemorySourceBuilder};

use super::{Answer, Gates, Journal, Run, ms, run, source, tp, with};

/// A run of gated handlers.
pub(crate) type Gated = (Journal, Gates, MemoryMember, Run);

/// A run whose handlers wait for their gates, and which commits at once.
pub(crate) fn gated(broker: &MemoryBroker) -> Gated {
    gated_from(source(broker))
}

pub(crate) fn gated_from(source: MemorySourceBuilder) -> Gated {
    let (journal, gates) = (Journal::new(), Gates::default());
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
    let source = source.commit_interval(ms(0)).build().unwrap();
    let member = source.member();
    (journal, gates, member, run(serve(source, stack)))
}

/// Asks for a revoke, and answers how many milliseconds it took and what was released.
pub(crate) fn revoke(
    member: &MemoryMember,
    partitions: impl IntoIterator<Item = i32>,
    budget: u64,
) -> JoinHandle<(u128, Vec<Released>)> {
    let member = member.clone();
    let tps: Vec<_> = partitions.into_iter().map(tp).collect();
    let asked = Instant::now();
    tokio::spawn(async move {
        let released = member.revoke(tps, ms(budget)).await;
        (asked.elapsed().as_millis(), released)
    })
}
