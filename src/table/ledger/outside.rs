//! Fences that follow sources of leases outside the gate: the numbers of a lock service, the terms of a Kubernetes
//! Lease.
//!
//! An update that moves a fence is an advance like any other: sealed, made durable, published, drained. The object then
//! opens for the source's holder, also where no call waits for it any more, and after a crash. What an update means to a
//! record is a rule, and in `fence/`.

use std::collections::HashMap;

use super::{
    DrainReport, LedgerError, Moved, Reply,
    advances::AdvanceCaller,
    core::{Changed, Core, answer, unexpected},
    round::Round,
};
use crate::fence::{
    BootMs, Event, Fence, ObjectId, Outcome, State, Ttl,
    outside::{Claim, Jump, Update},
    step::LeaseRefusal,
};

/// How long a jump counts against the next.
const WINDOW: Ttl = Ttl(60_000);

/// Where fences were before they followed updates with a limit within the last minute.
#[derive(Debug, Default)]
pub(super) struct Jumps(HashMap<ObjectId, (BootMs, Fence)>);

impl Jumps {
    pub(super) fn forget_old_ones(&mut self, now: BootMs) {
        self.0.retain(|_, (since, _)| now.since(*since) < WINDOW.0);
    }

    /// Where a fence was a minute ago, or when it first moved within the minute.
    fn from(&self, object: &ObjectId, now: BootMs) -> Option<Fence> {
        self.0.get(object).filter(|(since, _)| now.since(*since) < WINDOW.0).map(|(_, fence)| *fence)
    }
}

impl Core {
    pub(super) fn follow(&mut self, round: &mut Round, object: &ObjectId, update: Update, reply: Reply<Moved>) {
        let jump = match self.may_follow(round, object, &update) {
            Ok(jump) => jump,
            Err(refused) => return answer(round, reply, Err(refused)),
        };
        let changed = self.apply_update(round, object, update);
        if let (Some(jump), Ok(Changed::Opened(_) | Changed::Draining(_))) = (jump, &changed) {
            self.has_jumped(object, jump);
        }
        self.answer_move(round, object, changed, reply);
    }

    /// The same for many objects, of which no limit holds a fence back. No caller waits for it.
    pub(super) fn follow_all(&mut self, round: &mut Round, objects: &[ObjectId], update: &Update) {
        for object in objects {
            match self.apply_update(round, object, update.clone()) {
                Ok(Changed::Draining(drains)) => {
                    self.keep_advance(drains, AdvanceCaller::Gone);
                    self.try_finish_advances_of(round, object);
                }
                // Callers that wait for an older drain of this object have been overtaken.
                Ok(Changed::Opened(_)) => self.try_finish_advances_of(round, object),
                // Nothing has changed, or the update was refused: then the object's next write gets the reason.
                Ok(Changed::To(_)) | Err(_) => {}
            }
        }
    }

    fn apply_update(&mut self, round: &mut Round, object: &ObjectId, update: Update) -> Result<Changed, LedgerError> {
        self.resume_drain(round, object);
        let lease_id = self.new_lease_id();
        self.change(round, object, Event::Follow { update, lease_id })
    }

    /// Answers the callers that moved a fence, once older writes are done or a while has
    /// passed.
    pub(super) fn answer_move(
        &mut self,
        round: &mut Round,
        object: &ObjectId,
        changed: Result<Changed, LedgerError>,
        reply: Reply<Moved>,
    ) {
        let opened = match changed {
            Ok(Changed::Opened(opened)) => opened,
            Ok(Changed::Draining(drains)) => {
                self.keep_advance(drains, AdvanceCaller::Move(vec![reply]));
                return self.try_finish_advances_of(round, object);
            }
            Ok(Changed::To(Outcome::Unchanged | Outcome::Ended)) => vec![],
            Ok(Changed::To(other)) => return answer(round, reply, Err(unexpected(object.clone(), other))),
            Err(refused) => return answer(round, reply, Err(refused)),
        };
        let drain = opened.into_iter().next().map_or_else(DrainReport::default, |(_, _, report)| report);
        let moved = self.newest(round, object).map(|record| Moved { record, drain, is_superseded: false });
        let is_draining = |moved: &Moved| matches!(moved.record.state, State::Draining { .. });
        let reply = if moved.as_ref().is_ok_and(is_draining) {
            // The fence has this number already; writes below it that are on their way are waited for.
            match self.join_move(object, reply) {
                Ok(()) => return,
                Err(reply) => reply,
            }
        } else {
            reply
        };
        answer(round, reply, moved);
        // Callers that wait for an older drain of this object have been overtaken.
        self.try_finish_advances_of(round, object);
    }

    /// How far this update moves the fence, if all updates of this minute together do not go too far; `None` where there
    /// is no limit.
    fn may_follow(&self, round: &Round, object: &ObjectId, update: &Update) -> Result<Option<Jump>, LedgerError> {
        let before = self.newest(round, object)?;
        let Some(jump) = update.jump(&before) else { return Ok(None) };
        let begin = self.jumps.from(object, self.setup.clock.now().boot);
        if begin.is_some_and(|begin| jump.is_too_far_since(begin)) {
            let why = LeaseRefusal::Ahead { fence: before.fence, to: jump.to };
            return Err(LedgerError::Lease { object: object.clone(), why });
        }
        Ok(Some(jump))
    }

    fn has_jumped(&mut self, object: &ObjectId, jump: Jump) {
        let now = self.setup.clock.now().boot;
        if self.jumps.from(object, now).is_none() {
            self.jumps.0.insert(object.clone(), (now, jump.from.unwrap_or(jump.to.into())));
        }
    }

    /// Applies an operator's confirmation for an object whose past is lost.
    pub(super) fn confirm(
        &mut self,
        round: &mut Round,
        object: &ObjectId,
        lowest: Claim,
    ) -> Result<Moved, LedgerError> {
        match self.change(round, object, Event::Confirm { lowest })? {
            Changed::To(Outcome::Freed | Outcome::Unchanged) => {
                let record = self.newest(round, object)?;
                Ok(Moved { record, drain: DrainReport::default(), is_superseded: false })
            }
            Changed::To(other) => Err(unexpected(object.clone(), other)),
            Changed::Opened(_) | Changed::Draining(_) => unreachable!("a confirmation ends no lease"),
        }
    }
}
