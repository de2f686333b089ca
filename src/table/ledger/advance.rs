//! Advances that wait: the fence has moved, older leases are refused, and their last writes are still on their way
//! to the store. Once those have settled, or the bound on those of unknown outcome has passed, the object opens, or
//! is left without a holder.
//!
//! The callers that asked for the advance are answered then, or get the answer that it takes longer; the drain goes
//! on.

use std::collections::HashMap;

use super::{
    DrainReport, GrantReply, Granted, LedgerError, Moved, Reply, Wanted,
    core::{Core, answer, granted, unreadable},
    round::{Draft, Drain, Round},
    timers::Due,
};
use crate::{
    barrier::flight::{Flying, Tally},
    failpoints::{self, Fault, Point},
    fence::{
        BootMs, Event, LeaseSeq, ObjectId, Outcome, Record, State, Ttl, authority::SignedGrant, order::SecondStep,
        record::Numbers, step::LeaseRefusal,
    },
};

/// How long a caller waits for a drain, at least.
const PATIENCE: Ttl = Ttl(5_000);

/// How often the ledger checks whether writes on a changed route have settled.
const LOOK_AGAIN: Ttl = Ttl(50);

/// An advance whose first step has been taken.
pub(super) struct Advance {
    drains: Vec<Drain>,
    caller: AdvanceCaller,
    begun: BootMs,
}

/// The callers that asked for an advance.
pub(super) enum AdvanceCaller {
    /// Several calls where they are the same request.
    Acquire {
        wanted: Wanted,
        replies: Vec<DrainWaiter>,
    },
    Rotate(Reply<Granted>),
    /// An operator or a certificate, which asked only for the fence to move.
    Move(Vec<Reply<Moved>>),
    /// An issuer's grant. The issuer can ask for it again, so it is kept even where no call waits for it.
    Grant {
        signed: Box<SignedGrant>,
        replies: Vec<(Reply<Granted>, BootMs)>,
    },
    /// No caller is left, or the advance is an earlier run's.
    Nobody,
}

/// A call that waits for a drain, and its deadline.
pub(super) struct DrainWaiter {
    pub(super) reply: GrantReply,
    pub(super) until: BootMs,
}

impl AdvanceCaller {
    /// Whether the lease has a taker.
    fn is_there(&self) -> bool {
        match self {
            Self::Acquire { wanted, replies } => {
                wanted.request.is_some() || replies.iter().any(|waiting| !waiting.reply.is_closed())
            }
            Self::Rotate(reply) => !reply.is_closed(),
            Self::Grant { .. } => true,
            Self::Move(_) | Self::Nobody => false,
        }
    }
}

/// All advances.
#[derive(Default)]
pub(super) struct Advances {
    all: HashMap<u64, Advance>,
    by_object: HashMap<ObjectId, Vec<u64>>,
    last_id: u64,
}

impl Advances {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// How long the oldest advance has waited.
    pub(super) fn oldest_ms(&self, now: BootMs) -> u64 {
        self.all.values().map(|advance| now.since(advance.begun)).max().unwrap_or(0)
    }

    fn add(&mut self, advance: Advance) -> u64 {
        self.last_id += 1;
        for drain in &advance.drains {
            self.by_object.entry(drain.object.clone()).or_default().push(self.last_id);
        }
        self.all.insert(self.last_id, advance);
        self.last_id
    }

    fn remove(&mut self, id: u64) -> Option<Advance> {
        let advance = self.all.remove(&id)?;
        for drain in &advance.drains {
            if let Some(ids) = self.by_object.get_mut(&drain.object) {
                ids.retain(|each| *each != id);
                if ids.is_empty() {
                    self.by_object.remove(&drain.object);
                }
            }
        }
        Some(advance)
    }

    fn of(&self, object: &ObjectId) -> Vec<u64> {
        self.by_object.get(object).cloned().unwrap_or_default()
    }

    /// The advance that the same request has begun.
    fn of_request(&self, wanted: &Wanted) -> Option<u64> {
        wanted.request.as_ref()?;
        let is_same = |advance: &Advance| match &advance.caller {
            AdvanceCaller::Acquire { wanted: other, .. } => {
                (&other.holder, &other.request, &other.objects) == (&wanted.holder, &wanted.request, &wanted.objects)
            }
            AdvanceCaller::Rotate(_) | AdvanceCaller::Move(_) | AdvanceCaller::Grant { .. } | AdvanceCaller::Nobody => {
                false
            }
        };
        let ids = self.by_object.get(wanted.objects.first()?)?;
        ids.iter().copied().find(|id| self.all.get(id).is_some_and(is_same))
    }
}

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
            AdvanceCaller::Rotate(_) | AdvanceCaller::Nobody => None,
        };
        let id = self.advances.add(Advance { drains, caller, begun: now });
        if let Some(patience) = patience {
            self.timers.push(patience, Due::Answer(id));
        }
        // The bound of unknown writes ends without an event, so this sets the timer for it.
        self.timers.push(now, Due::Advance(id));
    }

    /// Until when a call waits for a drain, where it would wait until `until` in any case.
    pub(super) fn patience(&self, until: BootMs) -> BootMs {
        self.setup.clock.now().boot.after(PATIENCE).max(until)
    }

    /// Lets another call with the request of a running advance wait for the same result.
    pub(super) fn join_advance(&mut self, wanted: &Wanted, reply: GrantReply, until: BootMs) -> Result<(), GrantReply> {
        let Some(id) = self.advances.of_request(wanted) else { return Err(reply) };
        let until = self.patience(until);
        if let Some(Advance { caller: AdvanceCaller::Acquire { replies, .. }, .. }) = self.advances.all.get_mut(&id) {
            replies.push(DrainWaiter { reply, until });
        }
        self.timers.push(until, Due::Answer(id));
        Ok(())
    }

    /// Lets another call for the same move wait for its drain, if that is under way.
    pub(super) fn join_move(&mut self, object: &ObjectId, reply: Reply<Moved>) -> Result<(), Reply<Moved>> {
        let until = self.patience(BootMs::PAST);
        for id in self.advances.of(object) {
            let Some(advance) = self.advances.all.get_mut(&id) else { continue };
            match &mut advance.caller {
                AdvanceCaller::Move(replies) => replies.push(reply),
                caller @ AdvanceCaller::Nobody => *caller = AdvanceCaller::Move(vec![reply]),
                AdvanceCaller::Acquire { .. } | AdvanceCaller::Rotate(_) | AdvanceCaller::Grant { .. } => continue,
            }
            self.timers.push(until, Due::Answer(id));
            return Ok(());
        }
        Err(reply)
    }

    /// Lets another call with the same grant wait for its drain, if that is under way.
    pub(super) fn join_grant(
        &mut self,
        object: &ObjectId,
        signed: &SignedGrant,
        reply: Reply<Granted>,
    ) -> Result<(), Reply<Granted>> {
        let until = self.patience(BootMs::PAST);
        for id in self.advances.of(object) {
            if let Some(Advance { caller: AdvanceCaller::Grant { signed: of, replies }, .. }) =
                self.advances.all.get_mut(&id)
                && **of == *signed
            {
                replies.push((reply, until));
                self.timers.push(until, Due::Answer(id));
                return Ok(());
            }
        }
        Err(reply)
    }

    /// Goes on with the drain of a record that an earlier run left. It is unknown which writes were on their way
    /// then, so the full bound is waited for. Then the object has no holder, or opens for the holder of its outside
    /// number.
    pub(super) fn resume_drain(&mut self, round: &mut Round, object: &ObjectId) {
        if self.advances.by_object.contains_key(object) {
            return;
        }
        let draining = |record: &Record| match &record.state {
            State::Draining { advance, opens } => LeaseSeq::new(record.fence.get())
                .map(|seq| (*advance, seq, opens.map(|silence| (silence, record.numbers, record.clone())))),
            State::Free { .. } | State::Open { .. } => None,
        };
        let Ok(Some((advance, seq, opens))) = round.with_record(&self.setup.records, object, draining) else { return };
        // The record is in memory: it was just read.
        self.setup.records.stripes.set_unknown(object, self.bound_from_start());
        let then = opens.and_then(|(silence, numbers, record)| match numbers {
            Numbers::External => Some(self.external_grant(silence)),
            Numbers::Gate => record.elected_grant(self.new_lease_id()),
        });
        let drain = Drain { object: object.clone(), seq, advance, then };
        let begun = self.setup.clock.now().boot;
        let id = self.advances.add(Advance { drains: vec![drain], caller: AdvanceCaller::Nobody, begun });
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

    fn answer_advance(
        &mut self,
        round: &mut Round,
        caller: AdvanceCaller,
        opened: Result<Vec<(ObjectId, Outcome, DrainReport)>, LedgerError>,
    ) {
        match caller {
            AdvanceCaller::Acquire { wanted, replies } => {
                let granted = opened.and_then(all_granted);
                if let Ok(granted) = &granted {
                    remember_request(round, &wanted, granted);
                }
                for waiting in replies {
                    self.answer_grant(round, &wanted, waiting.reply, granted.clone());
                }
            }
            AdvanceCaller::Rotate(reply) => {
                let granted =
                    opened.and_then(all_granted).and_then(|mut granted| granted.pop().ok_or(LedgerError::NotFound));
                self.answer_renewal(round, reply, granted, true);
            }
            AdvanceCaller::Grant { replies, .. } => {
                let granted =
                    opened.and_then(all_granted).and_then(|mut granted| granted.pop().ok_or(LedgerError::NotFound));
                for (reply, _) in replies {
                    answer(round, reply, granted.clone());
                }
            }
            AdvanceCaller::Move(replies) => {
                let (object, drain) = match opened {
                    Ok(opened) => opened.into_iter().next().map(|(object, _, report)| (object, report)).unzip(),
                    // Another advance has overtaken this one; its fence has moved all the same.
                    Err(LedgerError::Lease { object, .. }) => (Some(object), None),
                    Err(refused) => {
                        return replies.into_iter().for_each(|reply| answer(round, reply, Err(refused.clone())));
                    }
                };
                let moved = object.ok_or(LedgerError::NotFound).and_then(|object| self.newest(round, &object));
                let moved =
                    moved.map(|record| Moved { record, drain: drain.unwrap_or_default(), is_superseded: false });
                for reply in replies {
                    answer(round, reply, moved.clone());
                }
            }
            AdvanceCaller::Nobody => {}
        }
    }

    /// Answers a caller that has waited long enough for a drain: the drain goes on without it.
    pub(super) fn stop_waiting(&mut self, round: &mut Round, id: u64) {
        let now = self.setup.clock.now().boot;
        let Some(advance) = self.advances.all.get_mut(&id) else { return };
        let Some(object) = advance.drains.first().map(|drain| drain.object.clone()) else { return };
        match &mut advance.caller {
            AdvanceCaller::Acquire { wanted, replies } => {
                let (over, waiting): (Vec<_>, Vec<_>) =
                    std::mem::take(replies).into_iter().partition(|waiting| waiting.until <= now);
                *replies = waiting;
                let wanted = wanted.clone();
                if wanted.request.is_none() && replies.is_empty() {
                    advance.caller = AdvanceCaller::Nobody;
                }
                for DrainWaiter { reply, .. } in over {
                    self.answer_grant(round, &wanted, reply, Err(LedgerError::Draining { object: object.clone() }));
                }
            }
            AdvanceCaller::Grant { replies, .. } => {
                let (over, waiting): (Vec<_>, Vec<_>) =
                    std::mem::take(replies).into_iter().partition(|(_, until)| *until <= now);
                *replies = waiting;
                for (reply, _) in over {
                    answer(round, reply, Err(LedgerError::Draining { object: object.clone() }));
                }
            }
            AdvanceCaller::Move(_) => self.tell_operator(round, id),
            AdvanceCaller::Rotate(_) | AdvanceCaller::Nobody => {}
        }
    }

    /// Answers a caller that moved a fence: the fence has moved, and the answer says how far the drain is.
    fn tell_operator(&mut self, round: &mut Round, id: u64) {
        let now = self.setup.clock.now().boot;
        let Some(Advance { caller: AdvanceCaller::Move(replies), drains, begun }) = self.advances.all.get_mut(&id)
        else {
            return;
        };
        let (replies, Some(drain)) = (std::mem::take(replies), drains.first()) else { return };
        let tally = self.setup.records.stripes.drained_so_far(&drain.object);
        let (object, drain) = (drain.object.clone(), report(tally, now.since(*begun)));
        let so_far = self.newest(round, &object).map(|record| Moved { record, drain, is_superseded: false });
        for reply in replies {
            answer(round, reply, so_far.clone());
        }
    }

    /// Answers the callers that wait for a revocation with the state of its drain.
    pub(super) fn tell_operators(&mut self, round: &mut Round) {
        let mut ids: Vec<u64> = self.advances.all.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.tell_operator(round, id);
        }
    }

    /// Nothing more is granted: refuses all callers that wait for a drain. The drains go on without them.
    pub(super) fn dismiss_advances(&mut self, why: &LedgerError) {
        for advance in self.advances.all.values_mut() {
            match std::mem::replace(&mut advance.caller, AdvanceCaller::Nobody) {
                AdvanceCaller::Acquire { replies, .. } => {
                    for DrainWaiter { reply, .. } in replies {
                        // A caller that has hung up needs no answer.
                        let _ = reply.send(Err(why.clone()));
                    }
                }
                AdvanceCaller::Rotate(reply) => {
                    let _ = reply.send(Err(why.clone()));
                }
                AdvanceCaller::Move(replies) => {
                    for reply in replies {
                        let _ = reply.send(Err(why.clone()));
                    }
                }
                AdvanceCaller::Grant { replies, .. } => {
                    for (reply, _) in replies {
                        let _ = reply.send(Err(why.clone()));
                    }
                }
                AdvanceCaller::Nobody => {}
            }
        }
    }
}

fn report(tally: Tally, waited_ms: u64) -> DrainReport {
    let Tally { settled, cancelled, unknown } = tally;
    DrainReport { settled, cancelled, unknown, waited_ms }
}

/// All leases, or the reason why there are none.
pub(super) fn all_granted(opened: Vec<(ObjectId, Outcome, DrainReport)>) -> Result<Vec<Granted>, LedgerError> {
    let each = |(object, outcome, drain)| match outcome {
        Outcome::Granted(lease) => Ok(Granted { drain, ..granted(object, lease) }),
        other => Err(super::core::unexpected(object, other)),
    };
    opened.into_iter().map(each).collect()
}

/// Notes what a request was granted.
pub(super) fn remember_request(round: &mut Round, wanted: &Wanted, granted: &[Granted]) {
    if let Some(request) = &wanted.request {
        let lease = |granted: &Granted| (granted.object.clone(), granted.lease.lease_id.clone(), granted.drain);
        let leases = granted.iter().map(lease).collect();
        round.put_request(&wanted.holder, request, crate::table::codec::RequestRow { leases });
    }
}
