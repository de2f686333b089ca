//! A write that was admitted and is not settled: its permits, its place among those in flight, and how
//! far it is. Whoever drops it before it has come to an end makes it unknown, unless nothing was sent.
//!
//! Nearly every write goes to one object. One that goes to several is admitted, and let go on, for all of
//! them or for none, and what is unknown of it is unknown of each.

use std::{cell::Cell, rc::Rc, sync::Arc};

use crate::{
    api::Gate,
    failpoints::{self, Fault},
    fence::{
        Denial, Now, ObjectId, Permit, Record, Refusal, Ttl,
        verdict::{self, Unusable, View},
    },
    table::{
        flight::{Cancel, End, Stage},
        stripes::{Place, Stripes},
    },
};

/// A worker's own handle on what all share: cloning it touches nothing that other workers count in.
#[allow(clippy::redundant_allocation, reason = "the outer count is one worker's own")]
pub type Own<T> = Rc<Arc<T>>;

/// An admitted write.
pub struct InFlight {
    /// The worker's own handle, so that no count is shared between workers.
    gate: Own<Gate>,
    leg: Leg,
    others: Box<[Leg]>,
    /// How long it may still land once its connection is gone.
    bound: Ttl,
    /// A route that only looks lets it go on whatever the second look says, and promises nothing.
    enforced: bool,
}

/// What a write does to one object.
pub struct Leg {
    permit: Permit,
    place: Place,
    /// `None` once it has come to its end.
    stage: Cell<Option<Stage>>,
}

/// Why a write may not go on, and which of its objects says so.
#[derive(Clone, Debug)]
pub struct Denied {
    pub object: ObjectId,
    pub why: Denial,
}

impl Leg {
    #[must_use]
    pub fn new((permit, place): (Permit, Place)) -> Self {
        Self { permit, place, stage: Cell::new(Some(Stage::Waiting)) }
    }

    /// Of a write that was committed when it was admitted.
    #[inline]
    #[must_use]
    pub fn committed((permit, place, stage): (Permit, Place, Stage)) -> Self {
        Self { permit, place, stage: Cell::new(Some(stage)) }
    }

    /// How far it is.
    fn stage(&self) -> Option<Stage> {
        let stage = self.stage.take();
        self.stage.set(stage.clone());
        stage
    }

    fn judge(&self, record: &Record, sealed: bool, now: Now) -> Result<(), Denial> {
        verdict::judge_again(View::Known { record, sealed }, &self.permit, now)
    }

    fn denied(&self, why: Denial) -> Denied {
        Denied { object: self.permit.object().clone(), why }
    }

    fn go_on(&self, stripes: &Stripes, mut to: Stage, now: Now) -> Result<(), Denied> {
        let Some(from) = self.stage() else { return Err(self.is_over()) };
        let judged = stripes.go_on(self.place, (&from, &mut to), |record, sealed| self.judge(record, sealed, now));
        if !failpoints::on(Fault::NoCommitCheck) {
            judged.map_err(|why| self.denied(why))?;
        }
        self.stage.set(Some(to));
        Ok(())
    }

    fn is_over(&self) -> Denied {
        self.denied(Refusal::Draining { fence: self.permit.seq().into() }.into())
    }

    fn back_out(&self, stripes: &Stripes) {
        if let Some(from @ (Stage::Streaming(_) | Stage::Committed(_))) = self.stage() {
            stripes.back_out(self.place, &from);
            self.stage.set(Some(Stage::Waiting));
        }
    }

    fn end(&self, stripes: &Stripes, how: End) {
        if let Some(from) = self.stage.take()
            && !failpoints::on(Fault::NoBarrier)
        {
            stripes.end(self.place, &from, how);
        }
    }

    fn lose(&self, stripes: &Stripes, until: End) {
        let is_partial = matches!(self.stage(), Some(Stage::Streaming(_)));
        if failpoints::on(Fault::NoUnknownWait) || (is_partial && failpoints::on(Fault::PartialIsNone)) {
            return self.end(stripes, End::Nothing);
        }
        self.end(stripes, until);
    }
}

impl InFlight {
    #[inline]
    #[must_use]
    pub fn new(gate: Own<Gate>, leg: Leg, others: Vec<Leg>, bound: Ttl) -> Self {
        Self { gate, leg, others: others.into_boxed_slice(), bound, enforced: true }
    }

    /// For a route that only looks.
    pub fn unenforce(&mut self) {
        self.enforced = false;
    }

    /// Where the record of the first of its objects is.
    #[must_use]
    pub fn place(&self) -> Place {
        self.leg.place
    }

    /// The permit for the first of its objects.
    pub fn permit(&self) -> &Permit {
        &self.leg.permit
    }

    /// The permits for all of its objects, one by one.
    pub fn each_permit(&self, mut told: impl FnMut(&Permit)) {
        told(&self.leg.permit);
        self.others.iter().for_each(|leg| told(&leg.permit));
    }

    fn legs(&self) -> impl Iterator<Item = &Leg> {
        std::iter::once(&self.leg).chain(&self.others)
    }

    /// The commit point: judges the write once more, under its objects' locks. From here on it may land.
    ///
    /// # Errors
    /// With why it may not go on; nothing that completes it may be sent then.
    pub fn commit(&self) -> Result<(), Denied> {
        // The stripe says since when.
        self.go_on(Stage::Committed(0))
    }

    /// Judges the write once more before part of it is sent, but not its end. An advance tells it to stop.
    ///
    /// # Errors
    /// With why it may not go on; nothing of it may be sent then.
    pub fn begin_stream(&self) -> Result<Cancel, Denied> {
        let cancel = Cancel::default();
        self.go_on(Stage::Streaming(Arc::clone(&cancel)))?;
        Ok(cancel)
    }

    fn go_on(&self, to: Stage) -> Result<(), Denied> {
        if !self.enforced || failpoints::on(Fault::NoBarrier) {
            return Ok(());
        }
        if self.gate.records.latched().is_some() {
            return Err(self.leg.denied(Refusal::Unusable(Unusable::Table).into()));
        }
        let now = self.gate.now();
        if self.others.is_empty() {
            return self.leg.go_on(self.stripes(), to, now);
        }
        self.go_on_together(&to, now)
    }

    fn go_on_together(&self, to: &Stage, now: Now) -> Result<(), Denied> {
        let legs: Vec<&Leg> = self.legs().collect();
        let stages = legs.iter().map(|leg| leg.stage().ok_or_else(|| leg.is_over()));
        let stages: Vec<Stage> = stages.collect::<Result<_, _>>()?;
        let mut moves: Vec<_> = legs.iter().zip(&stages).map(|(leg, from)| (leg.place, from, to.clone())).collect();
        let judged = self.stripes().go_on_all(&mut moves, |n, record, sealed| legs[n].judge(record, sealed, now));
        if !failpoints::on(Fault::NoCommitCheck) {
            judged.map_err(|denied| first(denied, |n| legs[n].permit.object().clone()))?;
        }
        for (leg, (_, _, to)) in legs.iter().zip(&moves) {
            leg.stage.set(Some(to.clone()));
        }
        Ok(())
    }

    fn stripes(&self) -> &Stripes {
        &self.gate.records.stripes
    }

    /// Nothing of it has left, and nothing will: it may be tried on another connection.
    pub fn back_out(&self) {
        self.legs().for_each(|leg| leg.back_out(self.stripes()));
    }

    /// The store has answered for it.
    pub fn settle(&self) {
        self.leg.end(self.stripes(), End::Settled);
        self.others.iter().for_each(|leg| leg.end(self.stripes(), End::Settled));
    }

    /// Nothing of it can land: nothing was sent, or the store throws away what is not whole.
    pub fn cancel(&self) {
        self.legs().for_each(|leg| leg.end(self.stripes(), End::Nothing));
    }

    /// Its connection is gone, and nobody knows what became of it.
    pub fn lose(&self) {
        let until = self.gate.now().boot.after(self.bound);
        self.legs().for_each(|leg| leg.lose(self.stripes(), End::Unknown { until }));
    }
}

/// Of several denials the one that is told: the first in the order of the checks, then of the objects.
pub fn first(denied: Vec<(usize, Denial)>, object: impl Fn(usize) -> ObjectId) -> Denied {
    let told = denied.into_iter().min_by_key(|(n, why)| (why.place(), *n));
    let (n, why) = told.expect("whoever denies says why");
    Denied { object: object(n), why }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let Some(stage) = self.leg.stage.take() else { return };
        let is_unsent = matches!(stage, Stage::Waiting);
        self.leg.stage.set(Some(stage));
        if is_unsent {
            return self.cancel();
        }
        // Nobody has said what became of it, nor written it down: this run does not end in good order.
        self.gate.records.lose_track();
        self.lose();
    }
}
