//! Events of commits: taken, answered, due.

use std::time::Instant;

use tower_consumer::ledger::{Commit, CommitFailure, CommitOutcome};

use crate::books::{Out, PartitionBook, backoff};
use crate::pairs::Event;
use crate::rng::Rng;
use crate::world::{Checked, World, ensure};

impl World {
    fn is_held(&self) -> bool {
        self.held_until.is_some_and(|until| self.now < until)
    }

    /// Answers whether anything came of it.
    pub(crate) fn take_commits(&mut self) -> Checked<bool> {
        let now = self.now;
        let mut commits = self.ledger.take_commits(now);
        commits.sort_by(|a, b| a.tp.cmp(&b.tp));
        let held = self.is_held();
        let is_due = |book: &PartitionBook| {
            let live = !held && book.due(&self.config, now).is_some_and(|at| at <= now);
            live || book.last_commit(now).is_some()
        };
        let any_is_due = self.partitions.iter().any(is_due);
        for book in &self.partitions {
            let sent = commits.iter().find(|commit| commit.tp == book.tp);
            let backs_off = book.retry_at.is_some_and(|at| now < at);
            let goes_along = !held && !backs_off && book.ready().is_some();
            let must = book.last_commit(now).is_some()
                || goes_along && (any_is_due || !commits.is_empty());
            ensure!(
                sent.is_some() || !must,
                "promise 4: {} has something to commit, and it is due, and it was not sent",
                book.tp
            );
        }
        let refused = self
            .partitions
            .iter()
            .any(|p| p.epoch().is_some_and(|e| e.was_refused));
        ensure!(
            commits.is_empty() || any_is_due || refused,
            "sent before the interval was over: {commits:?}"
        );
        for commit in &commits {
            let p = self.partitions.iter().position(|book| book.tp == commit.tp);
            self.sent(p.ok_or("a commit of a partition that never was")?, commit)?;
        }
        Ok(!commits.is_empty())
    }

    fn sent(&mut self, p: usize, commit: &Commit) -> Checked {
        let (now, held) = (self.now, self.is_held());
        let book = &mut self.partitions[p];
        ensure!(
            book.out.is_none(),
            "promise 4: two commits of {} are out",
            book.tp
        );
        let Some(e) = book.current else {
            return Err(format!(
                "promise 3: a commit of {}, which is not assigned",
                book.tp
            ));
        };
        let last = book.last_commit(now);
        let ready = book.ready();
        let epoch = &mut book.epochs[e];
        ensure!(
            epoch.handle.id() == commit.epoch,
            "promise 3: a commit of an old epoch"
        );
        let (offset, prefix) = match (commit.last, last, ready) {
            (true, Some(last), _) => last,
            (false, _, Some(ready)) => ready,
            _ => return Err(format!("promise 10: {commit:?} is not to be sent now")),
        };
        ensure!(
            commit.offset == offset,
            "promise 4: {} was sent where the newest watermark is {offset}",
            commit.offset
        );
        let unfinished = epoch
            .deliveries
            .iter()
            .find(|d| !d.finished && d.offset < offset);
        ensure!(
            unfinished.is_none(),
            "promise 1: {offset} was sent over {}, which is not finished",
            unfinished.map_or(0, |d| d.offset)
        );
        ensure!(offset >= 0, "a negative offset was committed");
        ensure!(
            epoch.acked.is_none_or(|acked| acked < offset),
            "promise 4: {offset} after {:?} was acknowledged",
            epoch.acked
        );
        if let Some((before, failed)) = epoch.sent.last() {
            let rises = if *failed {
                *before <= offset
            } else {
                *before < offset
            };
            ensure!(rises, "promise 4: {offset} was sent after {before}");
        }
        if !commit.last {
            ensure!(
                !held,
                "promise 10: sent while only the commits of a revoke may go out"
            );
            ensure!(
                book.retry_at.is_none_or(|at| at <= now),
                "sent again before the backoff was over"
            );
        }
        epoch.sent.push((offset, false));
        book.last_sent = now;
        book.out = Some(Out {
            commit: commit.clone(),
            epoch: e,
            prefix,
        });
        let event = if commit.last {
            Event::SendLast
        } else {
            Event::Send
        };
        self.happened(p, event, &|| format!("{offset}"));
        Ok(())
    }

    pub(crate) fn commit_ended(&mut self, p: usize, rng: &mut Rng) -> Checked<bool> {
        let result = rng.pick(&[
            Ok(()),
            Ok(()),
            Ok(()),
            Err(CommitFailure::Transient),
            Err(CommitFailure::Permanent),
            Err(CommitFailure::Permanent),
        ]);
        self.answer(p, result)
    }

    pub(crate) fn answer(&mut self, p: usize, result: Result<(), CommitFailure>) -> Checked<bool> {
        let now = self.now;
        let book = &mut self.partitions[p];
        let Some(out) = book.out.take() else {
            return Ok(false);
        };
        let outcome = self.ledger.commit_ended(&out.commit, result, now);
        let is_current = book.current == Some(out.epoch);
        let epoch = &mut book.epochs[out.epoch];
        match result {
            Ok(()) => {
                epoch.acknowledge(out.commit.offset, out.prefix);
                ensure!(
                    epoch.handle.committed() == epoch.acked,
                    "acknowledged {:?}, and {:?} counts as committed",
                    epoch.acked,
                    epoch.handle.committed()
                );
                if outcome.effects.room {
                    epoch.refused_full = false;
                }
                book.failures = 0;
                book.retry_at = None;
            }
            Err(kind) => {
                if let Some(sent) = epoch.sent.last_mut() {
                    sent.1 = true;
                }
                book.failures += 1;
                // what an old epoch met with says nothing of this one
                if is_current {
                    book.retry_at = Some(now + backoff(kind, book.failures));
                }
            }
        }
        ensure!(
            outcome.failures == book.failures * u32::from(result.is_err()),
            "{} failures where it is {}",
            outcome.failures,
            book.failures
        );
        if let Some(fenced) = book.drain.as_mut().and_then(|drain| drain.fenced.as_mut())
            && is_current
        {
            match result {
                Ok(()) => {
                    fenced.last.take_if(|last| last.0 <= out.commit.offset);
                }
                // the last commit backs off by its own failures alone
                Err(kind) if out.commit.last => {
                    fenced.failures += 1;
                    fenced.not_before = Some(now + backoff(kind, fenced.failures));
                }
                Err(_) => {}
            }
        }
        let event = match (result, is_current) {
            (Ok(()), true) => Event::CommitOk,
            (Ok(()), false) => Event::CommitOkLate,
            (Err(_), false) => Event::CommitFailedLate,
            (Err(_), true) if book.drain.is_some() => Event::CommitFailedEnding,
            (Err(CommitFailure::Transient), true) => Event::CommitFailed,
            (Err(CommitFailure::Permanent), true) => Event::CommitRefused,
        };
        let offset = out.commit.offset;
        self.partitions[p].answered = Some(out.commit);
        self.happened(p, event, &|| format!("{offset}"));
        Ok(true)
    }

    /// An answer to a commit that is not out changes nothing.
    pub(crate) fn answer_twice(&mut self, p: usize) -> Checked<bool> {
        let book = &self.partitions[p];
        let Some(answered) = &book.answered else {
            return Ok(false);
        };
        let same =
            |out: &Out| (out.commit.epoch, out.commit.offset) == (answered.epoch, answered.offset);
        if book.out.as_ref().is_some_and(same) {
            return Ok(false);
        }
        for result in [Ok(()), Err(CommitFailure::Permanent)] {
            let outcome = self.ledger.commit_ended(answered, result, self.now);
            ensure!(
                outcome == CommitOutcome::default(),
                "a commit was answered twice: {outcome:?}"
            );
        }
        self.happened(p, Event::AnswerTwice, &String::new);
        Ok(true)
    }

    /// What a driver does when its timer fires. The timer is never late, and never fires for nothing.
    pub(crate) fn wake(&mut self) -> Checked<bool> {
        let now = self.now;
        let expected = self.next_change();
        let next = self.ledger.next_timeout(now);
        ensure!(
            expected.is_none_or(|at| next.is_some_and(|next| next <= at)),
            "promises 4, 10: {:?} is too late, something is due in {:?}",
            next.map(|at| at.saturating_duration_since(now)),
            expected.map(|at| at.saturating_duration_since(now))
        );
        let drained = self.drain_step()?;
        let sent = self.take_commits()?;
        ensure!(
            drained || sent || next.is_none_or(|at| at > now),
            "a timer that is over, and nothing came of it: a driver would spin"
        );
        let again = self.ledger.next_timeout(now);
        ensure!(
            again.is_none_or(|at| at > now),
            "a timer that is over although all was done: a driver would spin"
        );
        Ok(drained || sent)
    }

    /// When time alone changes something, at the latest.
    fn next_change(&self) -> Option<Instant> {
        let commits = self.partitions.iter().filter_map(|book| {
            let due = book.due(&self.config, self.now)?;
            Some(due.max(self.held_until.unwrap_or(due)))
        });
        let drains = self.partitions.iter().filter_map(|book| {
            let drain = book.drain.as_ref()?;
            let busy = book.epoch()?.busy() > 0;
            match &drain.fenced {
                None if busy => Some(drain.wait_until),
                None => Some(self.now),
                _ if book.is_over(self.now) => None,
                Some(fenced) if fenced.last.is_some() && book.out.is_none() => {
                    Some(fenced.not_before.unwrap_or(self.now).min(drain.deadline))
                }
                Some(_) => Some(drain.deadline),
            }
        });
        let released = self.group_that_is_over().map(|_| self.now);
        let changes = commits.chain(drains).chain(released);
        changes.map(|at| at.max(self.now)).min()
    }
}
