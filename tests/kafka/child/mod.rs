//! The consumer process: one of two programs around the same handler. It is killed, or ends when its parent has ended.

mod handler;
mod library;
mod naive;

use std::io::{self, Read};
use std::process;
use std::thread;

use crate::plan::{Plan, Program};

use handler::Handler;

/// Something that happened in the handler. The process prints it at that moment, a line each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// An attempt has begun.
    Started { partition: i32, offset: i64 },
    /// An attempt has succeeded, and is in the ledger.
    Processed { partition: i32, offset: i64 },
}

impl Event {
    fn print(self) {
        match self {
            Self::Started { partition, offset } => println!("@ started {partition} {offset}"),
            Self::Processed { partition, offset } => println!("@ processed {partition} {offset}"),
        }
    }

    /// `None` if the line is something else, as the test runner's own talk is.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("@ ")?.split(' ');
        let what = words.next()?;
        let partition = words.next()?.parse().ok()?;
        let offset = words.next()?.parse().ok()?;
        match what {
            "started" => Some(Self::Started { partition, offset }),
            "processed" => Some(Self::Processed { partition, offset }),
            _ => None,
        }
    }
}

pub(crate) fn run(plan: Plan) {
    println!(); // the test runner has left its own line open
    end_with_the_parent();
    let handler = Handler::new(&plan);
    match plan.setup.program {
        Program::Library => library::run(&plan, handler),
        Program::Naive(commit) => naive::run(&plan, commit, handler),
    }
}

/// The parent holds the other end of standard input, and never writes.
fn end_with_the_parent() {
    thread::spawn(|| {
        let _ = io::stdin().read(&mut [0]);
        process::exit(3);
    });
}
