//! Fences that follow terms of leadership by a Kubernetes Lease.
//!
//! A term that is new to an object is an advance like any other. It opens for the elected holder, also where no
//! call waits for it any more, and after a crash.

use super::{
    Moved, Reply,
    advance::AdvanceCaller,
    core::{Changed, Core},
    round::Round,
};
use crate::fence::{Event, ObjectId, elected::LeaseObservation};

impl Core {
    pub(super) fn observe(
        &mut self,
        round: &mut Round,
        object: &ObjectId,
        (observation, begins): (LeaseObservation, bool),
        reply: Reply<Moved>,
    ) {
        let changed = self.apply_observation(round, object, observation, begins);
        self.answer_move(round, object, changed, reply);
    }

    pub(super) fn observe_all(&mut self, round: &mut Round, objects: &[ObjectId], observation: &LeaseObservation) {
        for object in objects {
            match self.apply_observation(round, object, observation.clone(), false) {
                Ok(Changed::Draining(drains)) => {
                    self.keep_advance(drains, AdvanceCaller::Nobody);
                    self.try_finish_advances_of(round, object);
                }
                // Callers that wait for an older drain of this object have been overtaken.
                Ok(Changed::Opened(_)) => self.try_finish_advances_of(round, object),
                // Nothing has changed, or the sighting was refused: then the object's next write gets the reason.
                Ok(Changed::To(_)) | Err(_) => {}
            }
        }
    }

    fn apply_observation(
        &mut self,
        round: &mut Round,
        object: &ObjectId,
        observation: LeaseObservation,
        begins: bool,
    ) -> Result<Changed, super::LedgerError> {
        self.resume_drain(round, object);
        let lease_id = self.new_lease_id();
        self.change(round, object, Event::Observe { observation, begins, lease_id })
    }
}
