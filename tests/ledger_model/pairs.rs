//! Which events followed which, in the life of one partition: the proof that the random walk goes everywhere.

use std::fmt::Write;

macro_rules! events {
    ($($name:ident: $label:literal, $needs:expr => $leaves:expr;)*) => {
        /// What happened to a partition. Events of the whole ledger (time, the end of a rebalance) happen to each.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Event { $($name),* }

        impl Event {
            pub(crate) const ALL: &[Event] = &[$(Event::$name),*];

            pub(crate) fn label(self) -> &'static str {
                match self { $(Event::$name => $label),* }
            }

            /// In which states of the partition it can happen, and in which states it can leave it.
            fn states(self) -> (State, State) {
                match self { $(Event::$name => ($needs, $leaves)),* }
            }
        }
    };
}

/// A set of states of a partition: how far its epoch has come, whose commit is out, whether anything was delivered.
#[derive(Clone, Copy)]
struct State {
    stage: u8,
    out: u8,
    delivered: u8,
}

const ABSENT: u8 = 1;
const LIVE: u8 = 2;
const STOPPED: u8 = 4;
const FENCED: u8 = 8;
const ENDING: u8 = STOPPED | FENCED;
const ASSIGNED: u8 = LIVE | ENDING;

const NONE: u8 = 1;
const CURRENT: u8 = 2;
const OLD: u8 = 4;

const ANY: u8 = u8::MAX;
const EMPTY: u8 = 1;
const SOME: u8 = 2;

const fn state(stage: u8, out: u8, delivered: u8) -> State {
    State {
        stage,
        out,
        delivered,
    }
}

events! {
    Assign: "assign", state(ABSENT, NONE | OLD, ANY) => state(LIVE, NONE | OLD, EMPTY);
    AssignLive: "assign again", state(LIVE, ANY, ANY) => state(LIVE, ANY, ANY);
    AssignDraining: "assign while drained", state(ENDING, ANY, ANY) => state(LIVE, NONE | OLD, EMPTY);
    Deliver: "deliver", state(LIVE, ANY, ANY) => state(LIVE, ANY, SOME);
    DeliverRefused: "deliver: no room", state(ASSIGNED, ANY, ANY) => state(ASSIGNED, ANY, ANY);
    Falling: "deliver: falling", state(LIVE, ANY, SOME) => state(LIVE, ANY, SOME);
    Begin: "begin", state(LIVE, ANY, SOME) => state(LIVE, ANY, SOME);
    BeginStopped: "begin: stopped", state(ANY, ANY, ANY) => state(ANY, ANY, ANY);
    EndOk: "end ok", state(ANY, ANY, ANY) => state(ANY, ANY, ANY);
    EndFailed: "end failed", state(ANY, ANY, ANY) => state(ANY, ANY, ANY);
    Hold: "hold", state(ANY, ANY, ANY) => state(ANY, ANY, ANY);
    Unhold: "unhold", state(ANY, ANY, ANY) => state(ANY, ANY, ANY);
    SettleFinished: "settle finished", state(LIVE, ANY, SOME) => state(LIVE, ANY, SOME);
    SettleNotFinished: "settle not finished", state(LIVE, ANY, SOME) => state(LIVE, ANY, SOME);
    SettleWithoutAttempt: "settle done without attempt", state(LIVE, ANY, SOME) => state(LIVE, ANY, SOME);
    SettleStopped: "settle while stopped", state(STOPPED, ANY, SOME) => state(STOPPED, ANY, SOME);
    SettleLate: "settle after the fence", state(ANY, ANY, ANY) => state(ANY, ANY, ANY);
    SettleTwice: "settle twice", state(ANY, ANY, ANY) => state(ANY, ANY, ANY);
    Send: "commit sent", state(LIVE, NONE, ANY) => state(LIVE, CURRENT, ANY);
    SendLast: "last commit sent", state(FENCED, NONE, ANY) => state(FENCED, CURRENT, ANY);
    CommitOk: "commit ok", state(ASSIGNED, CURRENT, ANY) => state(ASSIGNED, NONE, ANY);
    CommitFailed: "commit failed", state(LIVE, CURRENT, ANY) => state(LIVE, NONE, ANY);
    CommitRefused: "commit failed for good", state(LIVE, CURRENT, ANY) => state(LIVE, NONE, ANY);
    CommitFailedEnding: "commit failed during revoke", state(ENDING, CURRENT, ANY) => state(ENDING, NONE, ANY);
    CommitOkLate: "commit ok, old epoch", state(ANY, OLD, ANY) => state(ANY, NONE, ANY);
    CommitFailedLate: "commit failed, old epoch", state(ANY, OLD, ANY) => state(ANY, NONE, ANY);
    AnswerTwice: "commit answered twice", state(ANY, ANY, ANY) => state(ANY, ANY, ANY);
    Revoke: "revoke", state(LIVE, ANY, ANY) => state(STOPPED, ANY, ANY);
    RevokeAgain: "revoke again", state(ENDING, ANY, ANY) => state(ENDING, ANY, ANY);
    Fence: "fence", state(STOPPED, ANY, ANY) => state(FENCED, ANY, ANY);
    Release: "release", state(FENCED, ANY, ANY) => state(ABSENT, NONE | OLD, ANY);
    Lose: "lose", state(ASSIGNED, ANY, ANY) => state(ABSENT, NONE | OLD, ANY);
    Rebalanced: "rebalanced", state(ANY, ANY, ANY) => state(ANY, ANY, ANY);
    Time: "time", state(ANY, ANY, ANY) => state(ANY, ANY, ANY);
}

/// Pairs that the states would allow, but not the rules.
const IMPOSSIBLE: &[(Event, Event, &str)] = &[
    (Event::CommitFailed, Event::Send, "a backoff lies between"),
    (Event::CommitRefused, Event::Send, "a backoff lies between"),
    (
        Event::SendLast,
        Event::Release,
        "the answer or the deadline lies between",
    ),
];

/// Why `second` cannot come right after `first`, if so.
fn impossible(first: Event, second: Event) -> Option<&'static str> {
    let (left, needed) = (first.states().1, second.states().0);
    if left.stage & needed.stage == 0 {
        return Some("the first leaves the epoch in a stage in which the second cannot happen");
    }
    if left.out & needed.out == 0 {
        return Some("the first leaves no commit out (or one) and the second needs one (or none)");
    }
    if left.delivered & needed.delivered == 0 {
        return Some("the second needs a delivery of the epoch that the first has just opened");
    }
    let rule = IMPOSSIBLE
        .iter()
        .find(|rule| (rule.0, rule.1) == (first, second));
    rule.map(|rule| rule.2)
}

const N: usize = Event::ALL.len();

/// How often each ordered pair of neighbours occurred.
#[derive(Clone, Debug)]
pub(crate) struct Pairs(Vec<u64>);

impl Default for Pairs {
    fn default() -> Self {
        Pairs(vec![0; N * N])
    }
}

impl Pairs {
    pub(crate) fn count(&mut self, first: Event, second: Event) {
        self.0[first as usize * N + second as usize] += 1;
    }

    pub(crate) fn add(&mut self, other: &Pairs) {
        for (n, more) in self.0.iter_mut().zip(&other.0) {
            *n += more;
        }
    }

    fn get(&self, first: Event, second: Event) -> u64 {
        self.0[first as usize * N + second as usize]
    }

    fn all() -> impl Iterator<Item = (Event, Event)> {
        let seconds = |first: &Event| Event::ALL.iter().map(|second| (*first, *second)).collect();
        Event::ALL.iter().flat_map(seconds as fn(&Event) -> Vec<_>)
    }

    /// Pairs that can occur and did not.
    pub(crate) fn missing(&self) -> Vec<String> {
        let missing =
            Self::all().filter(|(a, b)| self.get(*a, *b) == 0 && impossible(*a, *b).is_none());
        missing
            .map(|(a, b)| format!("{} → {}", a.label(), b.label()))
            .collect()
    }

    /// Pairs that occurred although they were said to be impossible.
    pub(crate) fn surprises(&self) -> Vec<String> {
        let surprises =
            Self::all().filter(|(a, b)| self.get(*a, *b) > 0 && impossible(*a, *b).is_some());
        surprises
            .map(|(a, b)| format!("{} → {}", a.label(), b.label()))
            .collect()
    }

    /// The whole table: rows are the first event, columns the second; a dot is a pair that cannot occur.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        for (n, event) in Event::ALL.iter().enumerate() {
            let _ = writeln!(text, "{n:>3} {}", event.label());
        }
        let _ = write!(text, "{:>4}", "");
        for n in 0..N {
            let _ = write!(text, " {n:>5}");
        }
        for (n, first) in Event::ALL.iter().enumerate() {
            let _ = write!(text, "\n{n:>4}");
            for second in Event::ALL {
                let _ = match impossible(*first, *second) {
                    Some(_) => write!(text, " {:>5}", "."),
                    None => write!(text, " {:>5}", self.get(*first, *second)),
                };
            }
        }
        let possible: Vec<u64> = Self::all()
            .filter(|(a, b)| impossible(*a, *b).is_none())
            .map(|(a, b)| self.get(a, b))
            .collect();
        let _ = write!(
            text,
            "\n{} pairs can occur, the rarest occurred {} times; {} cannot",
            possible.len(),
            possible.iter().min().unwrap_or(&0),
            N * N - possible.len(),
        );
        text
    }
}
