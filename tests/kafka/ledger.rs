//! The file in which a consumer process writes down what it has processed, and what can be counted in it.
//!
//! One line a processed message, `run offset key partition`, by one `write` in append mode: it is there, whole, also
//! when the process is killed right after. It is written *before* the offset is offered for commit, so an offset that
//! is committed and not in the file was committed without having been processed.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::{fs, io};

/// Partition and offset.
pub(crate) type Position = (i32, i64);

#[derive(Debug)]
pub(crate) struct Writer {
    file: File,
    run: u32,
}

impl Writer {
    pub(crate) fn append_to(path: &Path, run: u32) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).open(path)?;
        Ok(Self { file, run })
    }

    /// `key` holds no blanks.
    pub(crate) fn processed(&self, (partition, offset): Position, key: &str) -> io::Result<()> {
        let line = format!("{} {offset} {key} {partition}\n", self.run);
        let written = (&self.file).write(line.as_bytes())?;
        assert_eq!(written, line.len(), "a line of the ledger was cut");
        Ok(())
    }
}

/// One processed message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) run: u32,
    pub(crate) position: Position,
    pub(crate) key: String,
}

/// All lines of the file; none if there is no file yet.
pub(crate) fn read(path: &Path) -> Vec<Line> {
    match fs::read_to_string(path) {
        Ok(text) => text.lines().map(parse).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => panic!("the ledger cannot be read: {error}"),
    }
}

fn parse(line: &str) -> Line {
    let fields: Vec<&str> = line.split(' ').collect();
    let [run, offset, key, partition] = fields[..] else {
        panic!("not a line of the ledger: {line:?}");
    };
    Line {
        run: run.parse().unwrap(),
        position: (partition.parse().unwrap(), offset.parse().unwrap()),
        key: key.to_owned(),
    }
}

/// The positions that were processed in `run`.
pub(crate) fn processed_in(run: u32, lines: &[Line]) -> BTreeSet<Position> {
    lines
        .iter()
        .filter(|line| line.run == run)
        .map(|line| line.position)
        .collect()
}

/// What became of the messages that were sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    /// Distinct positions in the ledger.
    pub(crate) processed: usize,
    /// Sent, and not in the ledger.
    pub(crate) lost: Vec<Position>,
    /// Lines of the ledger beyond the first of each position.
    pub(crate) duplicated: usize,
}

impl Account {
    pub(crate) fn of(sent: &BTreeSet<Position>, lines: &[Line]) -> Self {
        let processed: BTreeSet<Position> = lines.iter().map(|line| line.position).collect();
        assert!(
            processed.is_subset(sent),
            "processed, and never sent: {:?}",
            processed.difference(sent)
        );
        Self {
            processed: processed.len(),
            lost: sent.difference(&processed).copied().collect(),
            duplicated: lines.len() - processed.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Account, Line, parse, processed_in};

    fn lines(text: &str) -> Vec<Line> {
        text.lines().map(parse).collect()
    }

    #[test]
    fn what_was_sent_and_is_in_no_line_is_lost() {
        let sent = (0..4).map(|offset| (0, offset)).collect();
        let account = Account::of(&sent, &lines("1 0 - 0\n1 2 - 0\n2 3 - 0"));
        assert_eq!(
            account,
            Account {
                processed: 3,
                lost: vec![(0, 1)],
                duplicated: 0
            }
        );
    }

    #[test]
    fn a_second_line_of_a_position_is_a_duplicate_also_within_a_run() {
        let sent = (0..3).map(|offset| (0, offset)).collect();
        let account = Account::of(&sent, &lines("1 0 - 0\n1 1 - 0\n1 1 - 0\n2 1 - 0\n2 2 - 0"));
        assert_eq!(
            account,
            Account {
                processed: 3,
                lost: vec![],
                duplicated: 2
            }
        );
    }

    #[test]
    fn an_offset_of_another_partition_is_another_message() {
        let sent = [(0, 7), (1, 7)].into();
        let lines = lines("1 7 k07 0\n2 7 k07 1");
        assert_eq!(Account::of(&sent, &lines).duplicated, 0);
        assert_eq!(processed_in(2, &lines), [(1, 7)].into());
    }
}
