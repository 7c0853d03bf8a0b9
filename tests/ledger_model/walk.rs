//! One random walk; and when it fails, the shortest one that still does.

use std::iter::StepBy;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::pairs::Pairs;
use crate::rng::Rng;
use crate::world::{Checked, World};

const EVENTS: usize = 150;

/// Walks once for each seed below `cases`, on two threads; answers who followed whom.
pub(crate) fn walk_all(cases: u64) -> Checked<Pairs> {
    let failed = AtomicBool::new(false);
    let walk_some = |seeds: StepBy<Range<u64>>| -> Checked<Pairs> {
        let mut pairs = Pairs::default();
        for seed in seeds {
            if failed.load(Ordering::Relaxed) {
                break;
            }
            walk(seed, &mut pairs).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
        }
        Ok(pairs)
    };
    let (even, odd) = thread::scope(|scope| {
        let even = scope.spawn(|| walk_some((0..cases).step_by(2)));
        let odd = walk_some((1..cases).step_by(2));
        (even.join().expect("a walk does not panic"), odd)
    });
    let (mut pairs, odd) = (even?, odd?);
    pairs.add(&odd);
    Ok(pairs)
}

/// Walks; a failure is told with its seed and the shortest story found.
pub(crate) fn walk(seed: u64, pairs: &mut Pairs) -> Checked {
    let mut rng = Rng::new(seed);
    let words: Vec<u64> = (0..EVENTS).map(|_| rng.next()).collect();
    let mut world = World::new(seed);
    match run(&mut world, &words) {
        Ok(()) => {
            pairs.add(&world.pairs);
            Ok(())
        }
        Err(first) => Err(tell(seed, words, first)),
    }
}

/// A panic of the ledger is a failure like any other.
fn run(world: &mut World, words: &[u64]) -> Checked {
    let walked = catch_unwind(AssertUnwindSafe(|| {
        for word in words {
            world.step(*word)?;
        }
        world.finish()
    }));
    walked.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panicked: {}", text.unwrap_or("?")))
    })
}

/// An event is one word, so a shorter walk is a walk with words left out.
fn tell(seed: u64, mut words: Vec<u64>, mut broken: String) -> String {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut step = words.len() / 2;
    while step > 0 {
        let mut at = 0;
        while at < words.len() {
            let mut fewer = words.clone();
            fewer.drain(at..(at + step).min(words.len()));
            match run(&mut World::new(seed), &fewer) {
                Err(still) => (words, broken) = (fewer, still),
                Ok(()) => at += step,
            }
        }
        step /= 2;
    }
    let mut world = World::new(seed);
    world.story = Some(Vec::new());
    let _ = run(&mut world, &words);
    std::panic::set_hook(hook);
    format!(
        "{broken}\n{}\n{:?}\nagain with LEDGER_MODEL_SEED={seed}",
        world.story.unwrap_or_default().join("\n"),
        world.config
    )
}
