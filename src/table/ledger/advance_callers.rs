//! The callers of an advance: more of them may join while the object drains, each waits as long as it is worth to it, and
//! each is answered when the drain ends, its time is up, or the ledger stops. The drain goes on without them.

use super::{
    GrantReply, Granted, LedgerError, Moved, Reply, Wanted,
    advance::{PATIENCE, report},
    advances::{Advance, AdvanceCaller, DrainWaiter},
    core::{Core, answer, granted, unexpected},
    round::Round,
    timers::Due,
};
use crate::{
    barrier::flight::DrainReport,
    fence::{BootMs, ObjectId, Outcome, authority::SignedGrant},
    table::codec::RequestRow,
};

impl Core {
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
                caller @ AdvanceCaller::Gone => *caller = AdvanceCaller::Move(vec![reply]),
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

    pub(super) fn answer_advance(
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
            AdvanceCaller::Gone => {}
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
                    advance.caller = AdvanceCaller::Gone;
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
            AdvanceCaller::Move(_) => self.answer_operator(round, id),
            AdvanceCaller::Rotate(_) | AdvanceCaller::Gone => {}
        }
    }

    /// Answers a caller that moved a fence: the fence has moved, and the answer says how far the drain is.
    fn answer_operator(&mut self, round: &mut Round, id: u64) {
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
    pub(super) fn answer_operators(&mut self, round: &mut Round) {
        let mut ids: Vec<u64> = self.advances.all.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.answer_operator(round, id);
        }
    }

    /// Nothing more is granted: refuses all callers that wait for a drain. The drains go on without them.
    pub(super) fn dismiss_advances(&mut self, why: &LedgerError) {
        for advance in self.advances.all.values_mut() {
            match std::mem::replace(&mut advance.caller, AdvanceCaller::Gone) {
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
                AdvanceCaller::Gone => {}
            }
        }
    }
}

/// All leases, or the reason why there are none.
pub(super) fn all_granted(opened: Vec<(ObjectId, Outcome, DrainReport)>) -> Result<Vec<Granted>, LedgerError> {
    let each = |(object, outcome, drain)| match outcome {
        Outcome::Granted(lease) => Ok(Granted { drain, ..granted(object, lease) }),
        other => Err(unexpected(object, other)),
    };
    opened.into_iter().map(each).collect()
}

/// Notes what a request was granted.
pub(super) fn remember_request(round: &mut Round, wanted: &Wanted, granted: &[Granted]) {
    if let Some(request) = &wanted.request {
        let lease = |granted: &Granted| (granted.object.clone(), granted.lease.lease_id.clone(), granted.drain);
        let leases = granted.iter().map(lease).collect();
        round.put_request(&wanted.holder, request, RequestRow { leases });
    }
}
