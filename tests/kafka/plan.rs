//! What a consumer process is to do. Its parent writes it into the environment, one `key=value` a line.

use std::collections::HashMap;
use std::env;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The environment variable that makes this executable a consumer process.
pub(crate) const VARIABLE: &str = "TOWER_CONSUMER_CHILD";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) bootstrap: String,
    pub(crate) topic: String,
    pub(crate) group: String,
    pub(crate) ledger: PathBuf,
    pub(crate) run: u32,
    pub(crate) setup: Setup,
}

/// The part of a plan that a test chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) program: Program,
    pub(crate) behaviour: Behaviour,
    /// Window of the commit layer, in messages.
    pub(crate) window: usize,
    /// Handlers at once.
    pub(crate) concurrency: usize,
    /// One at a time per key.
    pub(crate) order: bool,
    /// 1: no retry, a failure leaves a gap.
    pub(crate) attempts: usize,
    /// Deadline of one attempt.
    pub(crate) timeout: Option<Duration>,
    /// `None`: what the program does by itself.
    pub(crate) commit_interval: Option<Duration>,
}

/// This library, as in the documentation's first example but for what a test changes.
pub(crate) const LIBRARY: Setup = Setup {
    program: Program::Library,
    behaviour: Behaviour::Quick,
    window: 64,
    concurrency: 64,
    order: false,
    attempts: 1,
    timeout: None,
    commit_interval: None,
};

/// The twin that commits what it has finished, and thinks nothing of what is below.
pub(crate) const NAIVE: Setup = Setup {
    program: Program::Naive(Commit::Highest),
    ..LIBRARY
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Library,
    Naive(Commit),
}

/// What the naive program commits after each success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Commit {
    /// The highest offset that has succeeded (sarama's `MarkMessage`).
    Highest,
    /// The offset that has just succeeded, also if it is lower than one before (an explicit offset in kafka-go or
    /// librdkafka).
    Own,
}

/// What the handler does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// Succeeds at once.
    Quick,
    /// Fails at the first attempt of every fifth offset but 0. From offset 32 on it never ends.
    FailEveryFifth,
    /// Sleeps 5 s in offset 35.
    SlowOne,
    /// Sleeps 300 ms at the first attempt of offsets 3, 13, 23, …
    SlowFirstAttempt,
    /// Sleeps up to 20 ms, at random.
    Jitter,
}

/// What one attempt does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Succeed,
    SucceedAfter(Duration),
    Fail,
    NeverEnd,
}

impl Behaviour {
    /// `attempt` counts from 1.
    pub(crate) fn act(self, offset: i64, attempt: usize) -> Act {
        match self {
            Self::FailEveryFifth if offset >= 32 => Act::NeverEnd,
            Self::FailEveryFifth if offset % 5 == 0 && offset != 0 && attempt == 1 => Act::Fail,
            Self::SlowOne if offset == 35 => Act::SucceedAfter(Duration::from_secs(5)),
            Self::SlowFirstAttempt if offset % 10 == 3 && attempt == 1 => {
                Act::SucceedAfter(Duration::from_millis(300))
            }
            Self::Jitter => Act::SucceedAfter(Duration::from_micros(fastrand::u64(..20_000))),
            _ => Act::Succeed,
        }
    }
}

const PROGRAMS: [(&str, Program); 3] = [
    ("library", Program::Library),
    ("naive-highest", Program::Naive(Commit::Highest)),
    ("naive-own", Program::Naive(Commit::Own)),
];

const BEHAVIOURS: [(&str, Behaviour); 5] = [
    ("quick", Behaviour::Quick),
    ("fail-every-fifth", Behaviour::FailEveryFifth),
    ("slow-one", Behaviour::SlowOne),
    ("slow-first-attempt", Behaviour::SlowFirstAttempt),
    ("jitter", Behaviour::Jitter),
];

fn name_of<T: PartialEq>(value: T, names: &[(&'static str, T)]) -> &'static str {
    names.iter().find(|(_, named)| *named == value).unwrap().0
}

fn named<T: Copy>(name: &str, names: &[(&'static str, T)]) -> T {
    names
        .iter()
        .find(|(known, _)| *known == name)
        .unwrap_or_else(|| panic!("unknown: {name:?}"))
        .1
}

impl Plan {
    /// The plan in this process's environment.
    pub(crate) fn from_env() -> Option<Self> {
        env::var(VARIABLE).ok().map(|text| Self::parse(&text))
    }

    pub(crate) fn to_text(&self) -> String {
        let setup = self.setup;
        let mut text = String::new();
        let mut add =
            |key: &str, value: &dyn std::fmt::Display| writeln!(text, "{key}={value}").unwrap();
        add("bootstrap", &self.bootstrap);
        add("topic", &self.topic);
        add("group", &self.group);
        add("ledger", &self.ledger.display());
        add("run", &self.run);
        add("program", &name_of(setup.program, &PROGRAMS));
        add("behaviour", &name_of(setup.behaviour, &BEHAVIOURS));
        add("window", &setup.window);
        add("concurrency", &setup.concurrency);
        add("order", &setup.order);
        add("attempts", &setup.attempts);
        if let Some(timeout) = setup.timeout {
            add("timeout_ms", &timeout.as_millis());
        }
        if let Some(interval) = setup.commit_interval {
            add("commit_interval_ms", &interval.as_millis());
        }
        text
    }

    fn parse(text: &str) -> Self {
        let pairs: HashMap<&str, &str> = text
            .lines()
            .filter_map(|line| line.split_once('='))
            .collect();
        let millis = |key| {
            pairs
                .get(key)
                .map(|value| Duration::from_millis(value.parse().unwrap()))
        };
        Self {
            bootstrap: value(&pairs, "bootstrap"),
            topic: value(&pairs, "topic"),
            group: value(&pairs, "group"),
            ledger: value(&pairs, "ledger"),
            run: value(&pairs, "run"),
            setup: Setup {
                program: named(pairs["program"], &PROGRAMS),
                behaviour: named(pairs["behaviour"], &BEHAVIOURS),
                window: value(&pairs, "window"),
                concurrency: value(&pairs, "concurrency"),
                order: value(&pairs, "order"),
                attempts: value(&pairs, "attempts"),
                timeout: millis("timeout_ms"),
                commit_interval: millis("commit_interval_ms"),
            },
        }
    }
}

fn value<T: FromStr>(pairs: &HashMap<&str, &str>, key: &str) -> T {
    let value = pairs
        .get(key)
        .unwrap_or_else(|| panic!("the plan has no {key}"));
    value
        .parse()
        .unwrap_or_else(|_| panic!("the plan's {key} cannot be {value:?}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Behaviour, LIBRARY, Plan, Setup};

    #[test]
    fn a_plan_comes_back_from_its_text_as_it_was() {
        let plan = Plan {
            bootstrap: "127.0.0.1:9092,127.0.0.1:9094".to_owned(),
            topic: "t".to_owned(),
            group: "g".to_owned(),
            ledger: "a folder/with=signs".into(),
            run: 2,
            setup: Setup {
                behaviour: Behaviour::SlowFirstAttempt,
                order: true,
                timeout: Some(Duration::from_millis(100)),
                ..LIBRARY
            },
        };
        assert_eq!(Plan::parse(&plan.to_text()), plan);
    }
}
