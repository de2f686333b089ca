//! One admitted write: its permits, its place among the writes in flight, and the life of a write (`fence::write`),
//! which drives both.
//!
//! Most writes go to one object. A write to several objects is judged, counted and ended for all of them or for none.
//! If its outcome is unknown, it is unknown for each of them.
//!
//! [`InFlight`] is the only guard of an outcome. Dropped before its end, it ends the write as the life of a write says.

use std::{
    cell::{Cell, RefCell},
    sync::Arc,
};

use super::{
    flight::{Cancel, Counted, End},
    generation::RouteGuard,
    stripes::{Place, Stripes},
};
use crate::{
    failpoints::{self, Fault},
    fence::{
        Denial, Now, ObjectId, Permit, Record, Refusal,
        verdict::{self, Unusable, View},
        write::{Effect, Event, Obstacle, Outcome, Stage, Write},
    },
};

/// What a write in flight needs from its gate.
pub trait Barrier {
    fn stripes(&self) -> &Stripes;
    fn now(&self) -> Now;
    /// Whether the fence table was shut, after a failed write or sync.
    fn is_latched(&self) -> bool;
    /// Notes that a write was dropped with an unknown outcome: this run does not end cleanly.
    fn lose_track(&self);
}

/// An idempotency key that is reserved for a write.
pub trait KeyReservation {
    /// Frees the key where nothing was sent; otherwise its outcome stays unknown.
    fn end(self, outcome: Outcome);
}

/// The key of writes that never have one.
#[derive(Debug)]
pub enum NoKey {}

impl KeyReservation for NoKey {
    fn end(self, _: Outcome) {
        match self {}
    }
}

/// The right of a write to be forwarded.
pub enum Admission {
    /// It was judged.
    Permitted(Permitted),
    /// Its route does not judge (`off`), or does not enforce (`audit`).
    Unfenced(ObjectId),
}

/// The permits of a judged write, and where it is counted.
pub struct Permitted {
    leg: Leg,
    others: Box<[Leg]>,
}

/// A write's part for one object.
struct Leg {
    permit: Permit,
    place: Place,
    /// The stage it is counted at; `None` after its end.
    counted: Cell<Option<Counted>>,
}

/// Why a write may not go on, and the object that this is about.
#[derive(Clone, Debug)]
pub struct Denied {
    pub object: ObjectId,
    pub why: Denial,
}

/// An admitted write.
pub struct InFlight<B: Barrier, K: KeyReservation> {
    life: Cell<Write>,
    barrier: B,
    admission: Admission,
    route: RouteGuard,
    key: RefCell<Option<K>>,
    /// The last denial.
    denied: Cell<Option<Box<Denied>>>,
    /// When the write was committed: for the fault [`Fault::BoundFromCommit`].
    #[cfg(feature = "failpoints")]
    committed_at: Cell<Option<crate::fence::BootMs>>,
}

impl Permitted {
    /// A write to one object that was admitted, and counted as waiting.
    #[must_use]
    pub fn waiting((permit, place): (Permit, Place)) -> Self {
        Self { leg: Leg::new(permit, place, Counted::Waiting), others: Box::default() }
    }

    /// A write to one object that was committed when it was admitted.
    #[inline]
    #[must_use]
    pub fn committed((permit, place, counted): (Permit, Place, Counted)) -> Self {
        Self { leg: Leg::new(permit, place, counted), others: Box::default() }
    }

    /// A write to several objects, each counted as waiting.
    #[must_use]
    pub fn together(mut admitted: Vec<(Permit, Place)>) -> Self {
        let (permit, place) = admitted.remove(0);
        let others = admitted.into_iter().map(|(permit, place)| Leg::new(permit, place, Counted::Waiting)).collect();
        Self { leg: Leg::new(permit, place, Counted::Waiting), others }
    }

    fn legs(&self) -> impl Iterator<Item = &Leg> {
        std::iter::once(&self.leg).chain(&self.others)
    }

    /// Judges the write again, under the locks of its objects, and counts it at `to` if all of them permit it.
    fn judge(&self, stripes: &Stripes, to: &Counted, now: Now) -> Result<(), Denied> {
        if self.others.is_empty() { self.leg.judge(stripes, to.clone(), now) } else { self.judge_all(stripes, to, now) }
    }

    fn judge_all(&self, stripes: &Stripes, to: &Counted, now: Now) -> Result<(), Denied> {
        let legs: Vec<&Leg> = self.legs().collect();
        let counted: Vec<Counted> =
            legs.iter().map(|leg| leg.counted().ok_or_else(|| leg.is_over())).collect::<Result<_, _>>()?;
        let mut moves: Vec<_> = legs.iter().zip(&counted).map(|(leg, from)| (leg.place, from, to.clone())).collect();
        let judged = stripes.go_on_all(&mut moves, |n, record, sealed| legs[n].judge_again(record, sealed, now));
        if !failpoints::on(Fault::NoCommitCheck) {
            judged.map_err(|denied| first(denied, |n| legs[n].permit.object().clone()))?;
        }
        for (leg, (_, _, to)) in legs.iter().zip(moves) {
            leg.counted.set(Some(to));
        }
        Ok(())
    }

    fn end(&self, stripes: &Stripes, how: End) {
        self.legs().for_each(|leg| leg.end(stripes, how));
    }
}

impl Leg {
    fn new(permit: Permit, place: Place, counted: Counted) -> Self {
        Self { permit, place, counted: Cell::new(Some(counted)) }
    }

    fn counted(&self) -> Option<Counted> {
        let counted = self.counted.take();
        self.counted.set(counted.clone());
        counted
    }

    fn judge_again(&self, record: &Record, sealed: bool, now: Now) -> Result<(), Denial> {
        verdict::judge_again(View::Known { record, sealed }, &self.permit, now)
    }

    fn denied(&self, why: Denial) -> Denied {
        Denied { object: self.permit.object().clone(), why }
    }

    fn is_over(&self) -> Denied {
        self.denied(Refusal::Draining { fence: self.permit.seq().into() }.into())
    }

    fn judge(&self, stripes: &Stripes, mut to: Counted, now: Now) -> Result<(), Denied> {
        let Some(from) = self.counted() else { return Err(self.is_over()) };
        let judged =
            stripes.go_on(self.place, (&from, &mut to), |record, sealed| self.judge_again(record, sealed, now));
        if !failpoints::on(Fault::NoCommitCheck) {
            judged.map_err(|why| self.denied(why))?;
        }
        self.counted.set(Some(to));
        Ok(())
    }

    fn back_out(&self, stripes: &Stripes) {
        if let Some(from @ (Counted::Streaming(_) | Counted::Committed(_))) = self.counted() {
            stripes.back_out(self.place, &from);
            self.counted.set(Some(Counted::Waiting));
        }
    }

    fn end(&self, stripes: &Stripes, how: End) {
        if let Some(from) = self.counted.take()
            && !failpoints::on(Fault::NoBarrier)
        {
            stripes.end(self.place, &from, how);
        }
    }
}

impl<B: Barrier, K: KeyReservation> InFlight<B, K> {
    /// A write that was admitted. `life`: up to its admission.
    #[inline]
    #[must_use]
    pub fn new(barrier: B, life: Write, admission: Admission, route: RouteGuard) -> Self {
        Self {
            #[cfg(feature = "failpoints")]
            committed_at: Cell::new((life.stage() == Stage::Committed).then(|| barrier.now().boot)),
            life: Cell::new(life),
            barrier,
            admission,
            route,
            key: RefCell::new(None),
            denied: Cell::new(None),
        }
    }

    /// Handles an event, and does what can be done at once: judges, counts, ends. Returns what is left to do.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "each caller has one event, and most of the rest falls away")]
    pub fn on(&self, event: Event) -> Effect {
        let mut event = match event {
            // What was not sent under the old generation of a route is not sent.
            Event::Connected { .. } | Event::Cleared(true) if self.route.is_retired() => Event::Interrupted,
            // Only the judge below makes these events.
            Event::Permitted(_) | Event::Denied(_) => return Effect::Nothing,
            event => event,
        };
        loop {
            let mut life = self.life.get();
            let effect = life.on(event);
            self.life.set(life);
            event = match effect {
                Effect::Judge(to) => self.judge(to),
                Effect::BackOut => {
                    self.back_out();
                    return Effect::Connect;
                }
                Effect::End(outcome) => {
                    self.end(outcome);
                    Event::Ended
                }
                other => return other,
            };
        }
    }

    /// Its life so far.
    #[must_use]
    pub fn life(&self) -> Write {
        self.life.get()
    }

    /// Its stage.
    #[must_use]
    pub fn stage(&self) -> Stage {
        self.life.get().stage()
    }

    /// Whether part of it may be on its way to the store.
    #[must_use]
    pub fn is_at_risk(&self) -> bool {
        self.life.get().is_at_risk()
    }

    /// Lets no later judgement stop the write: its route does not enforce.
    pub fn unfence(&self) {
        let mut life = self.life.get();
        life.unfence();
        self.life.set(life);
    }

    /// Judges the write again without moving it.
    ///
    /// # Errors
    /// With the reason why it would not be permitted.
    pub fn check_permit(&self) -> Result<(), Denied> {
        if self.life.get().options().unfenced { Ok(()) } else { self.try_judge(&Counted::Waiting) }
    }

    fn judge(&self, to: Stage) -> Event {
        // The stripe fills in the count of forced handovers.
        let counted =
            if to == Stage::Streaming { Counted::Streaming(Cancel::default()) } else { Counted::Committed(0) };
        match self.try_judge(&counted) {
            Ok(()) => {
                #[cfg(feature = "failpoints")]
                self.committed_at.set((to == Stage::Committed).then(|| self.barrier.now().boot));
                Event::Permitted(to)
            }
            Err(denied) => {
                let obstacle = Obstacle::from(&denied.why);
                self.denied.set(Some(Box::new(denied)));
                Event::Denied(obstacle)
            }
        }
    }

    fn try_judge(&self, to: &Counted) -> Result<(), Denied> {
        let Admission::Permitted(permitted) = &self.admission else { return Ok(()) };
        if failpoints::on(Fault::NoBarrier) {
            return Ok(());
        }
        if self.barrier.is_latched() {
            return Err(permitted.leg.denied(Refusal::Unusable(Unusable::Table).into()));
        }
        permitted.judge(self.barrier.stripes(), to, self.barrier.now())
    }

    fn back_out(&self) {
        if let Admission::Permitted(permitted) = &self.admission {
            permitted.legs().for_each(|leg| leg.back_out(self.barrier.stripes()));
        }
    }

    fn end(&self, outcome: Outcome) {
        let how = match outcome {
            Outcome::Settled => End::Settled,
            Outcome::Cancelled => End::Nothing,
            Outcome::Unknown => {
                self.route.lose();
                self.unknown()
            }
        };
        if let Admission::Permitted(permitted) = &self.admission {
            permitted.end(self.barrier.stripes(), how);
        }
        if outcome != Outcome::Settled
            && let Some(key) = self.key.take()
        {
            key.end(outcome);
        }
    }

    /// Ends a write that is dropped before its end.
    #[cold]
    fn abandon(&self) {
        let _ = self.on(Event::Dropped);
        let is_fenced = self.is_judged() && !self.life.get().options().unfenced;
        if is_fenced && self.stage() == Stage::Over(Outcome::Unknown) {
            self.barrier.lose_track();
        }
    }

    /// The unknown end of a write. Its bound counts from now: its connection has just been closed.
    fn unknown(&self) -> End {
        #[cfg(feature = "failpoints")]
        {
            let is_partial = self.committed_at.get().is_none();
            if failpoints::on(Fault::NoUnknownWait) || (is_partial && failpoints::on(Fault::PartialIsNone)) {
                return End::Nothing;
            }
            if let Some(since) = self.committed_at.get().filter(|_| failpoints::on(Fault::BoundFromCommit)) {
                return End::Unknown { until: since.after(self.route.bound()) };
            }
        }
        End::Unknown { until: self.barrier.now().boot.after(self.route.bound()) }
    }

    /// The notification for a streaming body to stop because an advance has begun; `None` unless a
    /// judged write is streaming.
    #[must_use]
    pub fn cancel(&self) -> Option<Cancel> {
        match &self.admission {
            Admission::Permitted(permitted) => match permitted.leg.counted()? {
                Counted::Streaming(cancel) => Some(Arc::clone(&cancel)),
                Counted::Waiting | Counted::Committed(_) => None,
            },
            Admission::Unfenced(_) => None,
        }
    }

    /// Takes the last denial.
    #[must_use]
    pub fn take_denied(&self) -> Option<Denied> {
        self.denied.take().map(|denied| *denied)
    }

    /// Reserves an idempotency key. The key is ended with the write.
    pub fn attach_key(&self, key: K) {
        *self.key.borrow_mut() = Some(key);
    }

    /// Calls `look` with the write's key, if it has one.
    pub fn with_key<T>(&self, look: impl FnOnce(&mut K) -> T) -> Option<T> {
        self.key.borrow_mut().as_mut().map(look)
    }

    /// Takes the write's key, to keep the answer under it.
    #[must_use]
    pub fn take_key(&self) -> Option<K> {
        self.key.borrow_mut().take()
    }

    /// The generation of its route that it was admitted under.
    #[must_use]
    pub fn route(&self) -> &RouteGuard {
        &self.route
    }

    /// The first of its objects.
    #[must_use]
    pub fn object(&self) -> &ObjectId {
        match &self.admission {
            Admission::Permitted(permitted) => permitted.leg.permit.object(),
            Admission::Unfenced(object) => object,
        }
    }

    /// The place of its first object's record, if the write was judged.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        match &self.admission {
            Admission::Permitted(permitted) => Some(permitted.leg.place),
            Admission::Unfenced(_) => None,
        }
    }

    /// The permit for its first object, if the write was judged.
    #[must_use]
    pub fn permit(&self) -> Option<&Permit> {
        match &self.admission {
            Admission::Permitted(permitted) => Some(&permitted.leg.permit),
            Admission::Unfenced(_) => None,
        }
    }

    /// Calls `look` with the permit for each of its objects.
    pub fn each_permit(&self, mut look: impl FnMut(&Permit)) {
        if let Admission::Permitted(permitted) = &self.admission {
            permitted.legs().for_each(|leg| look(&leg.permit));
        }
    }

    /// Whether it was judged, and counts as in flight.
    #[must_use]
    pub fn is_judged(&self) -> bool {
        matches!(self.admission, Admission::Permitted(_))
    }
}

/// The denial that the client gets: the first in the order of the checks, then of the objects.
///
/// # Panics
/// If `denied` is empty.
pub fn first(denied: Vec<(usize, Denial)>, object: impl Fn(usize) -> ObjectId) -> Denied {
    let earliest = denied.into_iter().min_by_key(|(n, why)| (why.place(), *n));
    let (n, why) = earliest.expect("a judge that denies says why");
    Denied { object: object(n), why }
}

impl<B: Barrier, K: KeyReservation> Drop for InFlight<B, K> {
    fn drop(&mut self) {
        if !matches!(self.stage(), Stage::Over(_)) {
            self.abandon();
        }
        // The write has settled, but its answer was not kept.
        if let Some(key) = self.key.get_mut().take() {
            key.end(Outcome::Unknown);
        }
    }
}

#[cfg(test)]
#[path = "in_flight_tests.rs"]
mod tests;
