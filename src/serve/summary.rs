use std::fmt;

use crate::ledger::{Counts, Reason, Released, TopicPartition};

/// What became of everything that [`serve`](crate::serve()) took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// How the verdicts came out.
    pub counts: Counts,
    /// The partitions that were assigned at the end, and what was committed for each.
    pub partitions: Vec<Released>,
    /// How many stalls were reported.
    pub stalls: u64,
}

impl Summary {
    /// The offset committed for a partition that was assigned at the end.
    pub fn committed(&self, topic: &str, partition: i32) -> Option<i64> {
        let tp = TopicPartition::new(topic, partition);
        self.partitions.iter().find(|p| p.tp == tp)?.committed
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = &self.counts;
        write!(
            f,
            "delivered {}, finished {}",
            counts.delivered,
            counts.finished()
        )?;
        if counts.skipped > 0 {
            write!(f, " ({} skipped)", counts.skipped)?;
        }
        write!(f, ", not finished {}", counts.not_finished_total())?;
        for reason in Reason::ALL {
            let count = counts.not_finished(reason);
            if count > 0 {
                write!(f, " ({count} {reason})")?;
            }
        }
        if counts.late > 0 {
            write!(f, ", late {}", counts.late)?;
        }
        for partition in &self.partitions {
            write!(f, "; {}", partition.tp)?;
            match partition.committed {
                Some(offset) => write!(f, " committed {offset}")?,
                None => write!(f, " nothing committed")?,
            }
            if let Some(offset) = partition.not_committed {
                write!(f, " (not committed: {offset})")?;
            }
            if partition.cut > 0 {
                write!(f, " ({} still running)", partition.cut)?;
            }
        }
        Ok(())
    }
}
