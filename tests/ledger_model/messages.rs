//! Events of single messages: delivered, begun, ended, held, settled.

use tower_consumer::ledger::{
    Begin, DeliverError, Effects, Kind, Phase, Reason, Room, Stage, Verdict,
};

use crate::books::{Delivery, EpochBook};
use crate::pairs::Event;
use crate::rng::Rng;
use crate::world::{Checked, World, ensure};

impl World {
    /// A delivery that fits, most often one of the current epoch.
    fn choose(
        &self,
        p: usize,
        rng: &mut Rng,
        fits: impl Fn(&EpochBook, &Delivery) -> bool,
    ) -> Option<(usize, usize)> {
        let book = &self.partitions[p];
        let e = match book.current {
            Some(current) if !rng.one_in(4) => current,
            _ if book.epochs.is_empty() => return None,
            _ => book.epochs.len() - 1 - rng.below(book.epochs.len().min(3)),
        };
        let epoch = &book.epochs[e];
        let fitting = |d: &usize| fits(epoch, &epoch.deliveries[*d]);
        let n = (0..epoch.deliveries.len()).filter(fitting).count();
        let nth = if n == 0 { return None } else { rng.below(n) };
        let d = (0..epoch.deliveries.len()).filter(fitting).nth(nth)?;
        Some((e, d))
    }

    fn at(&mut self, p: usize, e: usize, d: usize) -> &mut Delivery {
        &mut self.partitions[p].epochs[e].deliveries[d]
    }

    /// `room` answers what the books say, and is remembered as a refusal where it is one.
    fn ask_for_room(&mut self, p: usize, e: usize) -> Checked<Room> {
        let in_flight = self.in_flight();
        let epoch = &mut self.partitions[p].epochs[e];
        let expected = epoch.room(&self.config, in_flight);
        let room = epoch.handle.room();
        ensure!(
            room == expected,
            "promise 11: room is {room:?} where it is {expected:?}"
        );
        self.refused_in_flight |= room == Room::InFlightFull;
        if matches!(room, Room::WindowFull | Room::InFlightFull) {
            epoch.was_refused = true;
            epoch.refused_full =
                room == Room::WindowFull && epoch.uncovered() >= self.config.window_messages;
        }
        Ok(room)
    }

    pub(crate) fn deliver(&mut self, p: usize, rng: &mut Rng) -> Checked<bool> {
        let Some(e) = self.partitions[p].current else {
            return Ok(false);
        };
        let room = self.ask_for_room(p, e)?;
        let gap = rng.pick(&[0, 0, 0, 1, 4]);
        let epoch = &self.partitions[p].epochs[e];
        let first = match epoch.acked.or(epoch.pin) {
            // most often where the client should begin, sometimes below
            Some(start) => (start - [0, 0, 0, 3][rng.below(4)]).max(0),
            None => rng.pick(&[0, 0, 7, 40]),
        };
        let offset = epoch.last().map_or(first, |last| last + 1) + gap;
        let bytes = rng.pick(&[0, 1, 1, 5, 9, 30]);
        let below = epoch.deliveries.is_empty() && epoch.acked.is_some_and(|at| offset < at);
        let delivered = epoch.handle.deliver(offset, bytes, self.now);
        if room != Room::Free {
            ensure!(
                delivered == Err(DeliverError::NoRoom(room)),
                "promise 11: no room ({room:?}), and {delivered:?}"
            );
            self.happened(p, Event::DeliverRefused, &|| format!("{offset} {room:?}"));
            return Ok(true);
        }
        let delivered = delivered.map_err(|error| format!("room was free: {error}"))?;
        ensure!(
            delivered.below_committed == below,
            "offset {offset}, below committed: {below}"
        );
        self.tally.delivered += 1;
        self.partitions[p].epochs[e].deliveries.push(Delivery {
            offset,
            bytes,
            ticket: delivered.ticket,
            attempts: 0,
            running: 0,
            holds: 0,
            attempt_ok: false,
            finishing: false,
            settled: false,
            finished: false,
        });
        self.happened(p, Event::Deliver, &|| format!("{offset}, {bytes} bytes"));
        Ok(true)
    }

    pub(crate) fn deliver_falling(&mut self, p: usize, rng: &mut Rng) -> Checked<bool> {
        let Some(e) = self.partitions[p].current else {
            return Ok(false);
        };
        let Some(last) = self.partitions[p].epochs[e].last() else {
            return Ok(false);
        };
        if self.ask_for_room(p, e)? != Room::Free {
            return Ok(false);
        }
        let offset = rng.below(last as usize + 1) as i64;
        let answer = self.partitions[p].epochs[e]
            .handle
            .deliver(offset, 1, self.now);
        let expected = DeliverError::Falling { offset, last };
        ensure!(answer == Err(expected), "{offset} after {last}: {answer:?}");
        self.happened(p, Event::Falling, &|| format!("{offset} after {last}"));
        if rng.one_in(2) {
            self.compare()?;
            self.lose(p, rng)?;
            self.compare()?;
            self.assign(p, rng)?;
        }
        Ok(true)
    }

    pub(crate) fn begin(&mut self, p: usize, rng: &mut Rng) -> Checked<bool> {
        let Some((e, d)) = self.choose(p, rng, |_, d| d.running < 2) else {
            return Ok(false);
        };
        let epoch = &mut self.partitions[p].epochs[e];
        let answer = epoch.handle.begin(epoch.deliveries[d].ticket);
        let live = epoch.stage == Stage::Live;
        let delivery = &mut epoch.deliveries[d];
        let offset = delivery.offset;
        if live && !delivery.settled {
            delivery.attempts += 1;
            delivery.running += 1;
            delivery.finishing = false;
            let attempt = delivery.attempts;
            ensure!(
                answer == Begin::Started(attempt),
                "begin {offset}: {answer:?}"
            );
            self.happened(p, Event::Begin, &|| format!("{offset}, attempt {attempt}"));
            return Ok(true);
        }
        // what an ended attempt still held for the layers around it is given back: they have begun anew
        let gave_back = std::mem::take(&mut delivery.finishing);
        let effects = Effects {
            idle: gave_back && !live && epoch.busy() == 0,
            ..Effects::default()
        };
        ensure!(
            answer == Begin::Stopped(effects),
            "promise 10: begin {offset} after the stop: {answer:?}"
        );
        self.happened(p, Event::BeginStopped, &|| format!("{offset}"));
        Ok(true)
    }

    pub(crate) fn end(&mut self, p: usize, rng: &mut Rng) -> Checked<bool> {
        let Some((e, d)) = self.choose(p, rng, |_, d| d.running > 0) else {
            return Ok(false);
        };
        self.end_attempt(p, e, d, !rng.one_in(2))?;
        Ok(true)
    }

    pub(crate) fn end_attempt(&mut self, p: usize, e: usize, d: usize, ok: bool) -> Checked {
        let delivery = self.at(p, e, d);
        delivery.running -= 1;
        if ok && !delivery.settled {
            delivery.attempt_ok = true;
            delivery.finishing = true;
        }
        let (ticket, offset) = (delivery.ticket, delivery.offset);
        let epoch = &self.partitions[p].epochs[e];
        let effects = epoch.handle.end(ticket, ok);
        self.ensure_idle(p, e, effects)?;
        let event = if ok { Event::EndOk } else { Event::EndFailed };
        self.happened(p, event, &|| format!("{offset}"));
        Ok(())
    }

    /// The call that ends the last work of a stopped epoch says so, and only that one.
    fn ensure_idle(&self, p: usize, e: usize, effects: Effects) -> Checked {
        let epoch = &self.partitions[p].epochs[e];
        let expected = Effects {
            idle: epoch.stage != Stage::Live && epoch.busy() == 0,
            ..Effects::default()
        };
        ensure!(
            effects == expected,
            "promise 10: {effects:?} where it is {expected:?}"
        );
        Ok(())
    }

    pub(crate) fn hold(&mut self, p: usize, rng: &mut Rng) -> Checked<bool> {
        let Some((e, d)) = self.choose(p, rng, |_, d| d.holds < 2) else {
            return Ok(false);
        };
        let delivery = self.at(p, e, d);
        delivery.holds += 1;
        let (ticket, offset) = (delivery.ticket, delivery.offset);
        let phase = rng.pick(&[None, Some(Phase::DeadLettering)]);
        self.partitions[p].epochs[e].handle.hold(ticket, phase);
        self.happened(p, Event::Hold, &|| format!("{offset}"));
        Ok(true)
    }

    pub(crate) fn unhold(&mut self, p: usize, rng: &mut Rng) -> Checked<bool> {
        let Some((e, d)) = self.choose(p, rng, |_, d| d.holds > 0) else {
            return Ok(false);
        };
        self.unhold_one(p, e, d)?;
        Ok(true)
    }

    pub(crate) fn unhold_one(&mut self, p: usize, e: usize, d: usize) -> Checked {
        let delivery = self.at(p, e, d);
        delivery.holds -= 1;
        let (ticket, offset) = (delivery.ticket, delivery.offset);
        let effects = self.partitions[p].epochs[e].handle.unhold(ticket);
        self.ensure_idle(p, e, effects)?;
        self.happened(p, Event::Unhold, &|| format!("{offset}"));
        Ok(())
    }

    pub(crate) fn settle(&mut self, p: usize, rng: &mut Rng) -> Checked<bool> {
        let Some((e, d)) = self.choose(p, rng, |_, d| !d.settled) else {
            return Ok(false);
        };
        let verdict = match rng.below(10) {
            0 => Verdict::NotFinished(rng.pick(&Reason::ALL)),
            1 => Verdict::Finished(Kind::Skipped),
            2 => Verdict::Finished(Kind::DeadLettered),
            3 => Verdict::Finished(Kind::Done),
            // an answer that fits to how far it has come
            _ if self.at(p, e, d).attempt_ok => Verdict::Finished(Kind::Done),
            _ => return Ok(false),
        };
        self.give_verdict(p, e, d, verdict)?;
        Ok(true)
    }

    pub(crate) fn settle_twice(&mut self, p: usize, rng: &mut Rng) -> Checked<bool> {
        let Some((e, d)) = self.choose(p, rng, |_, d| d.settled) else {
            return Ok(false);
        };
        let verdict = rng.pick(&[
            Verdict::Finished(Kind::Done),
            Verdict::Finished(Kind::Skipped),
            Verdict::NotFinished(Reason::Failed),
        ]);
        self.give_verdict(p, e, d, verdict)?;
        Ok(true)
    }

    /// Settles, and checks the answer against the books.
    pub(crate) fn give_verdict(&mut self, p: usize, e: usize, d: usize, asked: Verdict) -> Checked {
        let window = self.config.window_messages;
        let epoch = &mut self.partitions[p].epochs[e];
        let stage = epoch.stage;
        let delivery = epoch.deliveries[d].clone();
        let before = epoch.to_commit();
        let was_urgent = epoch.prefix().saturating_sub(epoch.covered) >= window.div_ceil(2);
        let twice = delivery.settled;
        let counts = !twice && stage != Stage::Fenced;
        let written = match asked {
            Verdict::Finished(Kind::Done) if !delivery.attempt_ok => {
                Verdict::NotFinished(Reason::OkWithoutAttempt)
            }
            verdict => verdict,
        };
        epoch.deliveries[d].settled = true;
        epoch.deliveries[d].finishing = false;
        if counts {
            epoch.deliveries[d].finished = written.is_finished();
            epoch.cover();
        }
        let gave_back = delivery.finishing;

        let settlement = epoch.handle.settle(delivery.ticket, asked);
        let expected = counts.then_some(written);
        ensure!(
            settlement.verdict == expected,
            "promises 3, 5: {asked:?} for {} of a {stage:?} epoch was written as {:?}",
            delivery.offset,
            settlement.verdict
        );
        ensure!(
            settlement.live == (stage == Stage::Live),
            "live: {}",
            settlement.live
        );
        let effects = settlement.effects;
        let idle = gave_back && stage != Stage::Live && epoch.busy() == 0;
        ensure!(
            effects.idle == idle,
            "promise 10: idle {} where it is {idle}",
            effects.idle
        );
        let dirty = counts && before.is_none() && epoch.to_commit().is_some();
        ensure!(
            effects.dirty == dirty,
            "dirty {} where it is {dirty}",
            effects.dirty
        );
        let urgent = counts
            && epoch.to_commit().is_some()
            && !was_urgent
            && epoch.prefix() - epoch.covered >= window.div_ceil(2);
        ensure!(
            effects.urgent || !urgent,
            "half a window is finished, and nobody was told"
        );
        if effects.room {
            epoch.refused_full = false;
        }
        self.ensure_room_is_told(!twice, effects)?;
        if counts {
            self.tally.count(written);
        } else {
            self.tally.late += 1;
        }
        let event = match (stage, written) {
            _ if twice => Event::SettleTwice,
            (Stage::Fenced, _) => Event::SettleLate,
            (Stage::Stopped, _) => Event::SettleStopped,
            _ if written != asked => Event::SettleWithoutAttempt,
            (_, Verdict::Finished(_)) => Event::SettleFinished,
            _ => Event::SettleNotFinished,
        };
        self.happened(p, event, &|| format!("{} {written:?}", delivery.offset));
        Ok(())
    }

    /// When an eighth of what may be in flight is free, the verdict that freed it says so to those who were refused.
    fn ensure_room_is_told(&mut self, gave_back: bool, effects: Effects) -> Checked {
        let (messages, bytes) = self.in_flight();
        let config = &self.config;
        let step = (config.in_flight_messages as u64 / 8).max(1);
        let free = messages + step <= config.in_flight_messages as u64
            && bytes <= config.in_flight_bytes - config.in_flight_bytes / 8;
        if gave_back && free && std::mem::take(&mut self.refused_in_flight) {
            ensure!(
                effects.room,
                "promise 11: there is room again, and nobody was told"
            );
        }
        Ok(())
    }
}
