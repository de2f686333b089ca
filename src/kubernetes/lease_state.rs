//! One Lease, as the gate follows it: events in, effects out.
//!
//! ```text
//! Idle -> Due -> Reading -> (PassingOn) -> Idle
//! ```
//!
//! [`LeaseState::on`] takes what has happened and returns what to do, in this order. The caller does it and reports the
//! results. The gate ([`super::lease_observer`]) and the simulation drive this code, so the order exists only here:
//!
//! - Reads of one Lease follow each other. The ledger gets the result of each, for all objects that follow the Lease,
//!   before any caller is answered by it and before the next read begins. So a new leader's first write comes after the
//!   fences of all these objects are on their way. Where the ledger has no room, the callers are refused, the result is
//!   passed on later, and another read may begin meanwhile.
//! - A caller that comes during a read waits for the next one, which all such callers share, also if it fails. A caller
//!   whose term is known to be present and held needs no read.
//! - A caller has to wait for its turn to cause a read. A read for a hint of the watch waits for no turn.
//! - A hint that comes during a read causes one more read. Reads for a hint are tried again, but not for ever.
//! - An object follows the Lease from the present term's first write on. A question that was asked under older routes
//!   is refused: another Lease may govern the object by now.
//!
//! No I/O. Time and the generation of the routes are arguments.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

pub use super::lease_event::{At, CallerId, Effect, Event, Present, Question, Unknown};
use super::{
    api::{Away, LeaseName, Seen},
    known::Known,
};
use crate::{
    failpoints::{self, Fault},
    fence::{
        BootMs, Now, ObjectId, Ttl,
        elected::{LeaseObservation, Term},
        election::Election,
    },
    table::ledger::LedgerError,
};

/// The least time between reads of one Lease, so that tokens cannot cause a flood of reads.
const READ_INTERVAL: Ttl = Ttl(100);
/// Objects that one message to the ledger names.
const OBJECTS_AT_ONCE: usize = 256;
/// How many times to try to read a Lease after a hint, or to pass a result on.
const TRIES: u32 = 30;

/// A caller that has no answer yet.
struct LeaseCaller<C, P> {
    question: Question,
    caller: C,
    /// How many reads had begun when the caller came.
    arrived: u64,
    turn: Turn<P>,
}

/// A caller's turn to cause a read.
enum Turn<P> {
    /// The caller was not found to need one.
    Unasked,
    Awaited,
    Given(P),
}

/// What is under way.
enum Work {
    Idle,
    /// A read is to be made. Its request was not sent, so it is for those too that come now.
    Due,
    /// Since this time.
    Reading(Now),
    /// The ledger gets what is known for all objects that follow the Lease; `after`: the last one that has it.
    PassingOn {
        after: Option<ObjectId>,
    },
}

/// A Lease, and who waits for it.
pub struct LeaseState<C, P> {
    name: Arc<LeaseName>,
    /// `None`: not read yet.
    known: Option<Known>,
    /// The objects that follow it: each gets every change.
    followers: BTreeSet<ObjectId>,
    work: Work,
    /// How many reads have begun.
    begun: u64,
    /// When the last read was sent.
    sent_at: BootMs,
    /// Why the last read failed, if it did.
    failed: Option<Away>,
    /// In the order in which they came.
    waiting: BTreeMap<CallerId, LeaseCaller<C, P>>,
    last_id: CallerId,
    /// Those of them that have their turn, and have caused no read yet.
    with_turn: BTreeSet<CallerId>,
    /// What is known is to be passed on, if it was not yet.
    is_pass_on_due: bool,
    /// How many reads had begun when the last hint came. A later read has to confirm the hint.
    hint: Option<u64>,
    /// How often a read for a hint, or passing on, has failed since it last succeeded.
    tries: u32,
    is_pausing: bool,
}

impl<C, P> LeaseState<C, P> {
    /// A Lease that was not read yet.
    #[must_use]
    pub fn new(name: &Arc<LeaseName>) -> Self {
        Self {
            name: Arc::clone(name),
            known: None,
            followers: BTreeSet::new(),
            work: Work::Idle,
            begun: 0,
            sent_at: BootMs::PAST,
            failed: None,
            waiting: BTreeMap::new(),
            last_id: 0,
            with_turn: BTreeSet::new(),
            is_pass_on_due: false,
            hint: None,
            tries: 0,
            is_pausing: false,
        }
    }

    #[must_use]
    pub fn known(&self) -> Option<&Known> {
        self.known.as_ref()
    }

    /// The term by which a write of `election` is judged; `None` where the API server must be asked.
    #[must_use]
    pub fn term_of(&self, election: Election) -> Option<Arc<Term>> {
        self.known.as_ref().and_then(|known| known.term_of(election))
    }

    /// The objects that follow the Lease.
    #[must_use]
    pub fn followers(&self) -> &BTreeSet<ObjectId> {
        &self.followers
    }

    /// The object gets every change of this Lease from now on.
    pub(super) fn follow(&mut self, object: &ObjectId) {
        self.followers.insert(object.clone());
    }

    /// The object gets no more changes of this Lease.
    pub fn unfollow(&mut self, object: &ObjectId) {
        self.followers.remove(object);
    }

    /// The same for all objects: the routes have changed.
    pub fn unfollow_all(&mut self) {
        self.followers.clear();
    }

    /// Whether no caller, hint or message waits for anything of this Lease.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        let is_idle = matches!(self.work, Work::Idle) && !self.is_pausing;
        is_idle && self.waiting.is_empty() && self.followers.is_empty()
    }

    /// Takes what a watch shows; `None`: the Lease is deleted. Returns whether that is a hint, which is to be reported
    /// by [`Event::Hinted`].
    #[must_use]
    pub fn watch_shows(&mut self, seen: Option<Seen>, now: Now) -> bool {
        // Before the first read there is no state to compare with, and that read may have begun too early.
        !self.known.as_mut().is_some_and(|known| known.watch_shows(seen, now))
    }

    /// Whether it is a hint that a watch's list of all Leases lacks this one.
    #[must_use]
    pub fn was_there(&self) -> bool {
        self.known.as_ref().is_some_and(|known| known.seen.is_some())
    }

    /// Takes an event, and returns what to do next.
    #[must_use = "an effect that is not done leaves callers without an answer"]
    pub fn on(&mut self, event: Event<C, P>, at: At) -> Vec<Effect<C, P>> {
        let mut effects = vec![];
        match event {
            Event::Asked(question, caller) => self.asked(question, caller, at, &mut effects),
            Event::Turn(id, permit) => {
                // A caller that a read serves already gives its permit back at once.
                let is_served = matches!(self.work, Work::Due);
                if let Some(waiting) = self.waiting.get_mut(&id) {
                    let needs_read = self.begun <= waiting.arrived && !is_served;
                    waiting.turn = if needs_read { Turn::Given(permit) } else { Turn::Unasked };
                    if needs_read {
                        self.with_turn.insert(id);
                    }
                    self.look_at(id, at, &mut effects);
                }
            }
            Event::NoTurn(id, away) => {
                let refused = self.remove(id);
                effects.extend(refused.map(|waiting| Effect::Refuse(waiting.caller, Unknown::Away(away))));
            }
            Event::Hinted => self.hint = Some(self.begun),
            Event::PauseOver => (self.is_pausing, self.is_pass_on_due) = (false, true),
            Event::ReadBegins => {
                debug_assert!(matches!(self.work, Work::Due), "only a read that is due begins");
                (self.begun, self.sent_at) = (self.begun + 1, at.now.boot);
                self.work = Work::Reading(at.now);
            }
            Event::ReadEnded(result) => {
                self.end_read(result, &mut effects);
                self.look_at_all(at, &mut effects);
            }
            Event::Room => {
                self.pass_on_some(&mut effects);
                self.look_at_all(at, &mut effects);
            }
            Event::NoRoom(why) => self.stop_passing_on(&why, at, &mut effects),
        }
        self.begin_passing_on(&mut effects);
        if let Work::Idle = self.work {
            self.drop_confirmed_hint();
            self.begin_read(&mut effects);
        }
        effects
    }

    fn is_reading(&self) -> bool {
        matches!(self.work, Work::Due | Work::Reading(_))
    }

    /// Whether all objects that follow the Lease have what is known, or can never have it.
    fn is_shared(&self) -> bool {
        self.known.as_ref().is_none_or(|known| known.is_passed_on || known.observation(&self.name).is_err())
    }

    fn remove(&mut self, id: CallerId) -> Option<LeaseCaller<C, P>> {
        self.with_turn.remove(&id);
        self.waiting.remove(&id)
    }

    fn asked(&mut self, question: Question, caller: C, at: At, effects: &mut Vec<Effect<C, P>>) {
        let waiting = LeaseCaller { question, caller, arrived: self.begun, turn: Turn::Unasked };
        if waiting.is_present(self.known.as_ref(), at.now) && self.is_shared() {
            return self.answer(waiting, at, effects);
        }
        self.last_id += 1;
        self.waiting.insert(self.last_id, waiting);
        self.look_at(self.last_id, at, effects);
    }

    /// Whether a caller waits for no read any more. One that waits for its turn is answered when that has come.
    fn is_ready(&self, waiting: &LeaseCaller<C, P>, now: Now) -> bool {
        let needs_read = self.begun <= waiting.arrived && !waiting.is_present(self.known.as_ref(), now);
        !needs_read && !matches!(waiting.turn, Turn::Awaited)
    }

    /// Asks for this caller's turn, or answers it if that can be done now.
    fn look_at(&mut self, id: CallerId, at: At, effects: &mut Vec<Effect<C, P>>) {
        if self.is_reading() {
            return;
        }
        let Some(waiting) = self.waiting.get(&id) else { return };
        if self.is_ready(waiting, at.now) {
            self.is_pass_on_due = true;
            self.begin_passing_on(effects);
            self.answer_if_shared(id, at, effects);
        } else if matches!(waiting.turn, Turn::Unasked) {
            effects.push(Effect::WaitForTurn(id));
            self.waiting.get_mut(&id).into_iter().for_each(|waiting| waiting.turn = Turn::Awaited);
        }
    }

    /// The same for all callers, after what they wait for may have come.
    fn look_at_all(&mut self, at: At, effects: &mut Vec<Effect<C, P>>) {
        let all: Vec<CallerId> = self.waiting.keys().copied().collect();
        for id in all {
            self.look_at(id, at, effects);
        }
    }

    /// A caller gets nothing that the objects of its Lease do not have.
    fn answer_if_shared(&mut self, id: CallerId, at: At, effects: &mut Vec<Effect<C, P>>) {
        let has_failed = |waiting: &LeaseCaller<C, P>| self.failed.is_some() && self.begun > waiting.arrived;
        if (self.is_shared() || self.waiting.get(&id).is_some_and(has_failed))
            && let Some(waiting) = self.remove(id)
        {
            self.answer(waiting, at, effects);
        }
    }

    fn answer(&mut self, waiting: LeaseCaller<C, P>, at: At, effects: &mut Vec<Effect<C, P>>) {
        let LeaseCaller { question, caller, arrived, .. } = waiting;
        if let Some(away) = self.failed.clone().filter(|_| self.begun > arrived) {
            return effects.push(Effect::Refuse(caller, Unknown::Away(away)));
        }
        let (observation, present) = match self.observation() {
            Ok(observed) => observed,
            Err(why) => return effects.push(Effect::Refuse(caller, why)),
        };
        let Some((object, generation)) = question.object else { return effects.push(Effect::Answer(caller, present)) };
        if generation != at.generation {
            // Another Lease may govern the object by now.
            return effects.push(Effect::Refuse(caller, Unknown::Ledger(LedgerError::Overloaded)));
        }
        // A token of another term than the present one leaves no state behind.
        let begins = question.election.is_none_or(|own| Some(own) == present.0);
        if begins {
            self.follow(&object);
            effects.push(Effect::Follow(object.clone()));
        }
        effects.push(Effect::Observe { caller, object, observation, begins, present });
    }

    /// What the ledger gets, and what writes get.
    fn observation(&self) -> Result<(LeaseObservation, Present), Unknown> {
        let known = self.known.as_ref().ok_or(Unknown::Ledger(LedgerError::Stopping))?;
        let observation = known.observation(&self.name).map_err(|what| Unknown::Away(Away::Odd(what)))?;
        Ok((observation, (known.election(), Arc::clone(&known.term))))
    }

    /// With [`Fault::NoPassOn`], nothing is passed on.
    fn begin_passing_on(&mut self, effects: &mut Vec<Effect<C, P>>) {
        if !matches!(self.work, Work::Idle) || !std::mem::take(&mut self.is_pass_on_due) || self.is_shared() {
            return;
        }
        if self.followers.is_empty() || failpoints::on(Fault::NoPassOn) {
            self.known.as_mut().into_iter().for_each(|known| known.is_passed_on = true);
        } else {
            self.work = Work::PassingOn { after: None };
            effects.push(Effect::WaitForRoom);
        }
    }

    /// Uses the room for one message. Objects that have left since then are not named.
    fn pass_on_some(&mut self, effects: &mut Vec<Effect<C, P>>) {
        let Work::PassingOn { after } = &self.work else { return };
        let Ok((observation, _)) = self.observation() else { return self.work = Work::Idle };
        let from = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut left = self.followers.range::<ObjectId, _>((from, Bound::Unbounded));
        let objects: Vec<ObjectId> = left.by_ref().take(OBJECTS_AT_ONCE).cloned().collect();
        let is_last = left.next().is_none();
        let after = objects.last().cloned();
        if !objects.is_empty() {
            effects.push(Effect::ObserveAll(objects, observation));
        }
        if is_last {
            self.work = Work::Idle;
            self.known.as_mut().into_iter().for_each(|known| known.is_passed_on = true);
        } else {
            self.work = Work::PassingOn { after };
            effects.push(Effect::WaitForRoom);
        }
    }

    /// Refuses the callers that waited for it.
    fn stop_passing_on(&mut self, why: &LedgerError, at: At, effects: &mut Vec<Effect<C, P>>) {
        if !matches!(self.work, Work::PassingOn { .. }) {
            return;
        }
        (self.work, self.is_pass_on_due) = (Work::Idle, false);
        let ready = self.waiting.iter().filter(|(_, waiting)| self.is_ready(waiting, at.now));
        for id in ready.map(|(id, _)| *id).collect::<Vec<_>>() {
            let refused = self.remove(id);
            effects.extend(refused.map(|waiting| Effect::Refuse(waiting.caller, Unknown::Ledger(why.clone()))));
        }
        self.try_again_later(effects);
        // A caller whose term has run out meanwhile needs a read.
        self.look_at_all(at, effects);
    }

    /// Begins a read if a caller that needs one has its turn, or if a hint has to be confirmed.
    fn begin_read(&mut self, effects: &mut Vec<Effect<C, P>>) {
        let first = self.with_turn.pop_first();
        let permit = first.and_then(|id| self.waiting.get_mut(&id).and_then(LeaseCaller::take_permit));
        let is_hinted = self.hint.is_some() && !self.is_pausing;
        if permit.is_none() && !is_hinted {
            return;
        }
        let not_before = if self.begun == 0 { BootMs::PAST } else { self.sent_at.after(READ_INTERVAL) };
        self.work = Work::Due;
        effects.push(Effect::Read { not_before, permit });
    }

    fn end_read(&mut self, result: Result<Option<Seen>, Away>, effects: &mut Vec<Effect<C, P>>) {
        let Work::Reading(sent) = self.work else { return };
        (self.work, self.is_pass_on_due) = (Work::Idle, true);
        self.failed = result.as_ref().err().cloned();
        match (result, &mut self.known) {
            (Ok(seen), Some(known)) => known.again(seen, sent),
            (Ok(seen), None) => self.known = Some(Known::first(seen, sent)),
            (Err(_), _) if self.hint.is_some_and(|hint| hint < self.begun) => self.try_again_later(effects),
            (Err(_), _) => {}
        }
    }

    /// A hint is confirmed by a read that began after it, once the result is passed on.
    fn drop_confirmed_hint(&mut self) {
        let is_confirmed = self.hint.is_none_or(|hint| hint < self.begun);
        if is_confirmed && self.failed.is_none() && !self.is_pausing {
            (self.hint, self.tries) = (None, 0);
        }
    }

    fn try_again_later(&mut self, effects: &mut Vec<Effect<C, P>>) {
        if self.is_pausing {
            return;
        }
        self.tries += 1;
        if self.tries < TRIES {
            self.is_pausing = true;
            effects.push(Effect::Pause);
        } else {
            // The known term runs out, and a write with another token causes a read. A newer hint is still read for.
            (self.hint, self.tries) = (self.hint.filter(|hint| *hint >= self.begun), 0);
            effects.push(Effect::GiveUp);
        }
    }
}

impl<C, P> LeaseCaller<C, P> {
    /// Whether the Lease is known to be in the caller's term, and held.
    fn is_present(&self, known: Option<&Known>, now: Now) -> bool {
        known.zip(self.question.election).is_some_and(|(known, election)| known.is_in(election, now))
    }

    /// The permit, if the caller has its turn. One read is enough for the caller, so it has no other turn.
    fn take_permit(&mut self) -> Option<P> {
        match std::mem::replace(&mut self.turn, Turn::Unasked) {
            Turn::Given(permit) => Some(permit),
            turn => {
                self.turn = turn;
                None
            }
        }
    }
}

#[cfg(test)]
#[path = "lease_state_tests.rs"]
mod tests;
