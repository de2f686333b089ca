//! A write that was admitted and is not settled: its permit, its place among those in flight, and how
//! far it is. Whoever drops it before it has come to an end makes it unknown, unless nothing was sent.

use std::{cell::RefCell, sync::Arc};

use crate::{
    api::Gate,
    failpoints::{self, Fault},
    fence::{
        Denial, Permit, Refusal, Ttl,
        verdict::{self, Presented, Unusable, View},
    },
    table::{
        flight::{Cancel, End, Stage},
        stripes::Place,
    },
};

/// An admitted write.
pub struct InFlight {
    gate: Arc<Gate>,
    pub permit: Permit,
    presented: Presented,
    place: Place,
    /// `None` once it has come to its end.
    stage: RefCell<Option<Stage>>,
    /// How long it may still land once its connection is gone.
    bound: Ttl,
    /// A route that only looks lets it go on whatever the second look says, and promises nothing.
    enforced: bool,
}

impl InFlight {
    #[must_use]
    pub fn new(gate: Arc<Gate>, (permit, place): (Permit, Place), presented: Presented, bound: Ttl) -> Self {
        Self { gate, permit, presented, place, stage: RefCell::new(Some(Stage::Waiting)), bound, enforced: true }
    }

    /// For a route that only looks.
    #[must_use]
    pub fn unenforced(mut self) -> Self {
        self.enforced = false;
        self
    }

    /// The commit point: judges the write once more, under its object's lock. From here on it may land.
    ///
    /// # Errors
    /// With why it may not go on; nothing that completes it may be sent then.
    pub fn commit(&self) -> Result<(), Denial> {
        // The stripe says since when.
        self.go_on(Stage::Committed(0))
    }

    /// Judges the write once more before part of it is sent, but not its end. An advance tells it to stop.
    ///
    /// # Errors
    /// With why it may not go on; nothing of it may be sent then.
    pub fn begin_stream(&self) -> Result<Cancel, Denial> {
        let cancel = Cancel::default();
        self.go_on(Stage::Streaming(Arc::clone(&cancel)))?;
        Ok(cancel)
    }

    fn go_on(&self, mut to: Stage) -> Result<(), Denial> {
        if self.enforced && self.gate.records.latched().is_some() {
            return Err(Refusal::Unusable(Unusable::Table).into());
        }
        let (now, object) = (self.gate.now(), self.permit.object());
        let mut stage = self.stage.borrow_mut();
        if !self.enforced {
            return Ok(());
        }
        let Some(from) = &*stage else { return Err(Refusal::Draining { fence: self.permit.seq().into() }.into()) };
        let judge = |record: &_, sealed| verdict::judge(object, View::Known { record, sealed }, &self.presented, now);
        let judged = self.gate.records.stripes.go_on(self.place, (from, &mut to), judge);
        if !failpoints::on(Fault::NoCommitCheck) {
            let _same_again = judged?;
        }
        *stage = Some(to);
        Ok(())
    }

    /// Nothing of it has left, and nothing will: it may be tried on another connection.
    pub fn back_out(&self) {
        let mut stage = self.stage.borrow_mut();
        if let Some(from @ (Stage::Streaming(_) | Stage::Committed(_))) = &*stage {
            self.gate.records.stripes.back_out(self.place, from);
            *stage = Some(Stage::Waiting);
        }
    }

    /// The store has answered for it.
    pub fn settle(&self) {
        self.end(End::Settled);
    }

    /// Nothing of it can land: nothing was sent, or the store throws away what is not whole.
    pub fn cancel(&self) {
        self.end(End::Nothing);
    }

    /// Its connection is gone, and nobody knows what became of it.
    pub fn lose(&self) {
        let is_partial = matches!(*self.stage.borrow(), Some(Stage::Streaming(_)));
        if failpoints::on(Fault::NoUnknownWait) || (is_partial && failpoints::on(Fault::PartialIsNone)) {
            return self.end(End::Nothing);
        }
        self.end(End::Unknown { until: self.gate.now().boot.after(self.bound) });
    }

    fn end(&self, how: End) {
        if let Some(from) = self.stage.borrow_mut().take() {
            self.gate.records.stripes.end(self.place, &from, how);
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let stage = self.stage.borrow().clone();
        match stage {
            None => {}
            Some(Stage::Waiting) => self.cancel(),
            Some(Stage::Streaming(_) | Stage::Committed(_)) => self.lose(),
        }
    }
}
