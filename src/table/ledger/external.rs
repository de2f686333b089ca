//! Fences that follow the numbers of an outside lock service.
//!
//! A higher number is an advance like any other: sealed, made durable, published, drained. The object then opens
//! for the holder of the number, also where no call waits for it any more, and after a crash.

use std::collections::HashMap;

use super::{
    DrainReport, LedgerError, Moved, Reply,
    advance::AdvanceCaller,
    core::{Changed, Core, answer, unexpected},
    round::Round,
};
use crate::fence::{
    BootMs, Event, Fence, LeaseSeq, ObjectId, Outcome, Record, State, Ttl,
    external::{self, Number},
    record::Numbers,
    step::{Grant, LeaseRefusal, Source},
};

/// How long a jump counts against the next.
const WINDOW: Ttl = Ttl(60_000);

/// Where fences were before they followed an outside number within the last minute.
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
    pub(super) fn follow(&mut self, round: &mut Round, object: &ObjectId, number: Number, reply: Reply<Moved>) {
        let before = match self.may_follow(round, object, number) {
            Ok(before) => before,
            Err(refused) => return answer(round, reply, Err(refused)),
        };
        self.resume_drain(round, object);
        let grant = self.external_grant(number.limits.silence);
        let changed = self.change(round, object, Event::Follow { number, grant });
        if let Ok(Changed::Opened(_) | Changed::Draining(_)) = &changed {
            self.has_jumped(object, &before, number.seq);
        }
        self.answer_move(round, object, changed, reply);
    }

    /// Answers the callers that moved a fence to an outside number, once older writes are done or a while has
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

    /// The record before, if this minute's numbers together do not go too far.
    fn may_follow(
        &self,
        round: &Round,
        object: &ObjectId,
        Number { seq, limits }: Number,
    ) -> Result<Record, LedgerError> {
        let before = self.newest(round, object)?;
        let from = self.jumps.from(object, self.setup.clock.now().boot);
        let is_too_far = from.is_some_and(|from| seq.get().saturating_sub(from.get()) > limits.max_jump);
        if before.numbers == Numbers::External && is_too_far && Fence::from(seq) > before.fence {
            let why = LeaseRefusal::Ahead { fence: before.fence, to: seq };
            return Err(LedgerError::Lease { object: object.clone(), why });
        }
        Ok(before)
    }

    fn has_jumped(&mut self, object: &ObjectId, before: &Record, seq: LeaseSeq) {
        let now = self.setup.clock.now().boot;
        if self.jumps.from(object, now).is_none() {
            // The first outside number of an object may be any.
            let from = if before.numbers == Numbers::External { before.fence } else { seq.into() };
            self.jumps.0.insert(object.clone(), (now, from));
        }
    }

    /// Applies an operator's confirmation for an object whose past is lost.
    pub(super) fn confirm(&mut self, round: &mut Round, object: &ObjectId, event: Event) -> Result<Moved, LedgerError> {
        match self.change(round, object, event)? {
            Changed::To(Outcome::Freed | Outcome::Unchanged) => {
                let record = self.newest(round, object)?;
                Ok(Moved { record, drain: DrainReport::default(), is_superseded: false })
            }
            Changed::To(other) => Err(unexpected(object.clone(), other)),
            Changed::Opened(_) | Changed::Draining(_) => unreachable!("a confirmation moves no fence past anyone"),
        }
    }

    /// The grant that opens an object for the holder of its number.
    pub(super) fn external_grant(&mut self, silence: Ttl) -> Grant {
        Grant {
            lease_id: self.new_lease_id(),
            holder: external::holder(),
            ttl: silence,
            request: None,
            tainted: false,
            window: None,
            source: Source::External,
        }
    }
}
