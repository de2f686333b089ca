//! Advances that wait: the fence has moved, older leases are refused, and their last writes are still on their way
//! to the store. Once those have settled, or the bound on those of unknown outcome has passed, the object opens, or
//! is left without a holder.
//!
//! The callers that asked for the advance are answered then, or get the answer that it takes longer; the drain goes
//! on.

use super::{
    DrainReport, LedgerError,
    advances::{Advance, AdvanceCaller},
    core::{Core, unreadable},
    round::{Draft, Drain, Round},
    timers::Due,
};
use crate::{
    barrier::flight::{Flying, Tally},
    failpoints::{self, Fault, Point},
    fence::{Event, LeaseSeq, ObjectId, Outcome, Record, State, Ttl, order::SecondStep, step::LeaseRefusal},
};

/// How long a caller waits for a drain, at least.
pub(super) const PATIENCE: Ttl = Ttl(5_000);

/// How often the ledger checks whether writes on a changed route have settled.
const LOOK_AGAIN: Ttl = Ttl(50);

/// The result of sealing the objects of an advance.
pub(super) enum Drained {
    /// No older write was on its way: both steps are one.
    Now(Vec<(ObjectId, Outcome, DrainReport)>),
    Later(Vec<Drain>),
}

impl Core {
    /// Seals the objects whose fences the draft moves. Where no write is on its way to the store, the second step
    /// is taken at once, in the same synced batch.
    pub(super) fn drain(&mut self, round: &Round, draft: &mut Draft, force: bool) -> Result<Drained, LedgerError> {
        let drains = draft.take_drains();
        let published: Result<Vec<Record>, _> =
            drains.iter().map(|drain| self.setup.records.read(&drain.object)).collect();
        let now = self.setup.clock.now().boot;
        // All records are read before any object is sealed: after this point only the table itself can fail.
        let flying: Vec<Flying> =
            published.map_err(|fault| unreadable(&fault))?.iter().map(|record| self.seal(record, force)).collect();
        failpoints::reach(Point::Sealed);
        let is_drained = flying.iter().all(|flying| flying.is_drained(now)) || failpoints::on(Fault::NoDrainingState);
        if SecondStep::of(false, is_drained) == SecondStep::Wait {
            return Ok(Drained::Later(drains));
        }
        let open = |drain: Drain| {
            let object = drain.object.clone();
            let (outcome, tally) = self.open(round, draft, drain, true)?;
            Ok((object, outcome, report(tally, 0)))
        };
        drains.into_iter().map(open).collect::<Result<_, _>>().map(Drained::Now)
    }

    /// `force`: writes that are on their way now are not waited for.
    fn seal(&self, record: &Record, force: bool) -> Flying {
        let stripes = &self.setup.records.stripes;
        let found = stripes.seal(record);
        if !force {
            return found;
        }
        stripes.force(&record.object);
        stripes.flying(&record.object)
    }

    /// The second step of one object's advance.
    fn open(
        &mut self,
        round: &Round,
        draft: &mut Draft,
        drain: Drain,
        is_wanted: bool,
    ) -> Result<(Outcome, Tally), LedgerError> {
        let Drain { object, seq, advance, then } = drain;
        let stripes = &self.setup.records.stripes;
        let (tally, flying) = stripes.end_drain(&object);
        let is_tainted = flying.is_tainted(self.setup.clock.now().boot);
        // A grant for the holder of an outside number, or for an elected holder, has a taker even where no call
        // waits.
        let then = then.filter(|grant| is_wanted || grant.source.is_outside()).map(|mut grant| {
            grant.tainted |= is_tainted;
            grant
        });
        let outcome = self.step(round, draft, &object, Event::Drained { seq, advance, then })?;
        Ok((outcome, tally))
    }

    /// Keeps an advance whose objects have yet to drain. Its first step is in this round.
    pub(super) fn keep_advance(&mut self, drains: Vec<Drain>, caller: AdvanceCaller) {
        let now = self.setup.clock.now().boot;
        let patience = match &caller {
            AdvanceCaller::Acquire { replies, .. } => replies.iter().map(|waiting| waiting.until).max(),
            AdvanceCaller::Move(_) => Some(now.after(PATIENCE)),
            AdvanceCaller::Grant { replies, .. } => replies.iter().map(|(_, until)| *until).max(),
            AdvanceCaller::Rotate(_) | AdvanceCaller::Gone => None,
        };
        let id = self.advances.add(Advance { drains, caller, begun: now });
        if let Some(patience) = patience {
            self.timers.push(patience, Due::Answer(id));
        }
        // The bound of unknown writes ends without an event, so this sets the timer for it.
        self.timers.push(now, Due::Advance(id));
    }

    /// Goes on with the drain of a record that an earlier run left. It is unknown which writes were on their way
    /// then, so the full bound is waited for. Then the object has no holder, or opens for the holder of its outside
    /// number.
    pub(super) fn resume_drain(&mut self, round: &mut Round, object: &ObjectId) {
        if self.advances.by_object.contains_key(object) {
            return;
        }
        let draining = |record: &Record| match &record.state {
            State::Draining { advance, opens } => {
                let opens = opens.map(|_| record.clone());
                LeaseSeq::new(record.fence.get()).map(|seq| (*advance, seq, opens))
            }
            State::Free { .. } | State::Open { .. } => None,
        };
        let Ok(Some((advance, seq, opens))) = round.with_record(&self.setup.records, object, draining) else { return };
        // The record is in memory: it was just read.
        self.setup.records.stripes.set_unknown(object, self.bound_from_start());
        let then = opens.and_then(|record| record.outside_grant(self.new_lease_id()));
        let drain = Drain { object: object.clone(), seq, advance, then };
        let begun = self.setup.clock.now().boot;
        let id = self.advances.add(Advance { drains: vec![drain], caller: AdvanceCaller::Gone, begun });
        self.try_finish_advance(round, id);
    }

    /// Checks the advances of every object that has drained.
    pub(super) fn try_finish_drained(&mut self, round: &mut Round) {
        if self.setup.records.latched().is_some() {
            return;
        }
        for object in self.setup.records.stripes.take_drained() {
            self.try_finish_advances_of(round, &object);
            self.resume_drain(round, &object);
        }
    }

    /// Checks every advance of one object.
    pub(super) fn try_finish_advances_of(&mut self, round: &mut Round, object: &ObjectId) {
        for id in self.advances.of(object) {
            self.try_finish_advance(round, id);
        }
    }

    /// Ends an advance if all its objects have drained, or if another one has overtaken it.
    pub(super) fn try_finish_advance(&mut self, round: &mut Round, id: u64) {
        let Some(advance) = self.advances.all.get(&id) else { return };
        if self.setup.records.latched().is_some() {
            return;
        }
        let overtaken = advance.drains.iter().find(|drain| !self.is_current(round, drain));
        let overtaken = overtaken.map(|drain| drain.object.clone());
        let now = self.setup.clock.now().boot;
        let stripes = &self.setup.records.stripes;
        let flying: Vec<Flying> = advance.drains.iter().map(|drain| stripes.flying(&drain.object)).collect();
        let is_drained = flying.iter().all(|flying| flying.is_drained(now));
        if SecondStep::of(overtaken.is_some(), is_drained) == SecondStep::Wait {
            if flying.iter().any(|flying| flying.retiring) {
                // No event comes when the last of them has settled.
                self.timers.push(now.after(LOOK_AGAIN), Due::Advance(id));
            }
            if let Some(until) = flying.iter().filter_map(|flying| flying.unknown_until).max()
                && flying.iter().all(|flying| !flying.in_flight)
            {
                self.timers.push(until, Due::Advance(id));
            }
            return;
        }
        if let Some(advance) = self.advances.remove(id) {
            self.end_advance(round, advance, overtaken);
        }
    }

    fn is_current(&self, round: &Round, drain: &Drain) -> bool {
        if failpoints::on(Fault::NoStep4Check) {
            return true;
        }
        let is_current = |record: &Record| record.is_draining_at(drain.seq, drain.advance);
        // Where it cannot be read, the step itself fails with that error.
        round.with_record(&self.setup.records, &drain.object, is_current).unwrap_or(true)
    }

    fn end_advance(&mut self, round: &mut Round, advance: Advance, overtaken: Option<ObjectId>) {
        let Advance { drains, caller, begun } = advance;
        let waited_ms = self.setup.clock.now().boot.since(begun);
        let is_wanted = caller.is_there() && overtaken.is_none();
        let mut draft = Draft::default();
        // The advance that overtook this one ends these.
        let (ours, _): (Vec<_>, Vec<_>) = drains.into_iter().partition(|drain| self.is_current(round, drain));
        let opened: Result<Vec<_>, LedgerError> = ours
            .into_iter()
            .map(|drain| {
                let object = drain.object.clone();
                let (outcome, tally) = self.open(round, &mut draft, drain, is_wanted)?;
                Ok((object, outcome, report(tally, waited_ms)))
            })
            .collect();
        let opened = match (opened, overtaken) {
            (Ok(_), Some(object)) => {
                let fence = self.newest(round, &object).map(|record| record.fence).unwrap_or_default();
                Err(LedgerError::Lease { object, why: LeaseRefusal::Fenced { fence } })
            }
            (opened, _) => opened,
        };
        failpoints::reach(Point::Drained);
        self.setup.metrics.drained(waited_ms);
        self.apply(round, draft);
        self.answer_advance(round, caller, opened);
    }
}

pub(super) fn report(tally: Tally, waited_ms: u64) -> DrainReport {
    let Tally { settled, cancelled, unknown } = tally;
    DrainReport { settled, cancelled, unknown, waited_ms }
}
