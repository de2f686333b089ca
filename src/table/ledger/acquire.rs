//! Acquiring: one object or a batch, at once or after waiting, once per request.

use super::{
    GrantReply, Granted, LedgerError, Wanted,
    advance::Drained,
    advance_callers::{all_granted, remember_request},
    advances::{AdvanceCaller, DrainWaiter},
    core::{Core, granted, not_committed, unreadable},
    pending::answer_leases,
    round::{Draft, Drain, Round},
    timers::Due,
    waiters::Waiter,
};
use crate::fence::{
    Event, Lease, ObjectId, Outcome, Record, State, Ttl,
    step::{Grant, LeaseRefusal, Source},
};

/// How long a caller waits before it asks again for an object that is being migrated.
const MIGRATION_RETRY_MS: u64 = 1_000;

/// How an attempt ended.
enum GrantAttempt {
    Done(Result<Vec<Granted>, LedgerError>),
    /// This object has another holder for now.
    Blocked {
        object: ObjectId,
        why: LeaseRefusal,
    },
    /// The fences have moved; older writes have to drain first.
    Draining(Vec<Drain>),
}

impl Core {
    /// Grants what is wanted, lets the caller wait for its turn, or refuses with the reason.
    pub(super) fn acquire(&mut self, round: &mut Round, wanted: Wanted, reply: GrantReply) {
        for object in &wanted.objects {
            // Waiting callers go first, also where the old lease has just run out.
            if self.waiters.is_waiting(object) {
                self.serve(round, object);
            }
        }
        let until = self.setup.clock.now().boot.after(Ttl(wanted.wait_ms));
        let id = self.waiters.next_id();
        self.acquire_or_wait(round, Waiter { id, wanted, until, reply }, true);
    }

    /// Handles a waiter's timer: its time is up, or its object may be free. The caller that has waited longest goes
    /// first, and a caller that has hung up gets nothing.
    pub(super) fn wake(&mut self, round: &mut Round, object: &ObjectId, id: u64) {
        self.serve(round, object);
        match self.waiters.take(object, id) {
            Some(waiter) if !waiter.reply.is_closed() => self.acquire_or_wait(round, waiter, false),
            Some(_) | None => {}
        }
    }

    fn acquire_or_wait(&mut self, round: &mut Round, waiter: Waiter, is_new: bool) {
        let Waiter { id, wanted, until, reply } = waiter;
        let reply = match self.join_advance(&wanted, reply, until) {
            Ok(()) => return,
            Err(reply) => reply,
        };
        let waiter = Waiter { id, wanted, until, reply };
        match self.attempt(round, &waiter.wanted) {
            GrantAttempt::Draining(drains) => {
                let until = self.patience(waiter.until);
                let replies = vec![DrainWaiter { reply: waiter.reply, until }];
                self.keep_advance(drains, AdvanceCaller::Acquire { wanted: waiter.wanted, replies });
            }
            GrantAttempt::Done(result) => self.answer_grant(round, &waiter.wanted, waiter.reply, result),
            GrantAttempt::Blocked { object, why } if waiter.until > self.setup.clock.now().boot => {
                if is_new && self.waiters.is_full(self.setup.waiters_max) {
                    self.answer_grant(round, &waiter.wanted, waiter.reply, Err(LedgerError::Overloaded));
                    return;
                }
                self.wait(round, &object, &why, waiter);
            }
            GrantAttempt::Blocked { object, why } => {
                self.answer_grant(round, &waiter.wanted, waiter.reply, Err(LedgerError::Lease { object, why }));
            }
        }
    }

    fn wait(&mut self, round: &Round, object: &ObjectId, why: &LeaseRefusal, waiter: Waiter) {
        let now = self.setup.clock.now().boot;
        // The blocking lease may be an earlier run's, whose deadline has no timer yet.
        let end = |record: &Record| record.open_lease().map(|lease| (lease.deadline, lease.lease_id.clone()));
        if let Ok(Some((deadline, lease_id))) = round.with_record(&self.setup.records, object, end) {
            self.timers.arm(deadline, object, &lease_id);
        }
        let wake_at = match why {
            // A takeover that came too early becomes possible before the lease ends.
            LeaseRefusal::Held { retry_ms, .. } if waiter.wanted.takeover => {
                waiter.until.min(now.after(Ttl(*retry_ms)))
            }
            _ => waiter.until,
        };
        self.timers.push(wake_at, Due::Waiter(object.clone(), waiter.id));
        self.waiters.push(object, waiter);
    }

    /// Gives an object without a holder to the caller that has waited longest for it.
    pub(super) fn serve(&mut self, round: &mut Round, object: &ObjectId) {
        while self.is_to_be_had(round, object) {
            let Some(waiter) = self.waiters.pop(object) else { return };
            self.acquire_or_wait(round, waiter, false);
        }
    }

    fn is_to_be_had(&mut self, round: &Round, object: &ObjectId) -> bool {
        // Where that cannot be read, no waiter is served.
        if self.migration_of(object).map_or(true, |migration| migration.is_some()) {
            return false;
        }
        let now = self.setup.clock.now();
        let is_free = |record: &Record| match &record.state {
            State::Free { .. } => true,
            State::Open { lease } => !lease.is_live(now),
            State::Draining { .. } => false,
        };
        // Where no waiter can be served, each gets that answer when its time is up.
        round.with_record(&self.setup.records, object, is_free).unwrap_or(false)
    }

    fn attempt(&mut self, round: &mut Round, wanted: &Wanted) -> GrantAttempt {
        if wanted.request.is_some() {
            // Leases that have run out are ended first, so that no answer depends on an end that a crash could
            // forget. Where that fails, the next steps fail too.
            for object in &wanted.objects {
                let _ = self.end_if_over(round, object);
            }
        }
        for object in &wanted.objects {
            self.resume_drain(round, object);
        }
        match self.replayed(round, wanted) {
            Some(result) => GrantAttempt::Done(result),
            None => match self.grant_all(round, wanted) {
                Ok(attempt) => attempt,
                Err(refused) => GrantAttempt::Done(Err(refused)),
            },
        }
    }

    fn end_if_over(&mut self, round: &mut Round, object: &ObjectId) -> Result<(), LedgerError> {
        let now = self.setup.clock.now();
        let is_over = |lease: &&Lease| !lease.is_live(now);
        let over = |record: &Record| record.open_lease().filter(is_over).map(|lease| lease.lease_id.clone());
        match round.with_record(&self.setup.records, object, over).map_err(|fault| unreadable(&fault))? {
            Some(lease_id) => self.change(round, object, Event::End { lease_id }).map(|_| ()),
            None => Ok(()),
        }
    }

    /// The answer that this request got before, if there is one.
    fn replayed(&self, round: &Round, wanted: &Wanted) -> Option<Result<Vec<Granted>, LedgerError>> {
        let request = wanted.request.as_ref()?;
        let row = match round.request(&self.setup.records, &wanted.holder, request) {
            Ok(row) => row?,
            Err(fault) => return Some(Err(unreadable(&fault))),
        };
        if !row.leases.iter().map(|(object, ..)| object).eq(&wanted.objects) {
            return Some(Err(LedgerError::RequestIdUsed));
        }
        let now = self.setup.clock.now();
        let again = row.leases.iter().map(|(object, lease_id, drain)| {
            let again = |record: &Record| record.replay(lease_id, now).cloned();
            let lease = round.with_record(&self.setup.records, object, again).map_err(|fault| unreadable(&fault))?;
            let lease = lease.ok_or(LedgerError::RequestIdUsed)?;
            Ok(Granted { drain: *drain, is_again: true, ..granted(object.clone(), lease) })
        });
        Some(again.collect())
    }

    /// Moves all fences, then opens all objects; or does nothing.
    fn grant_all(&mut self, round: &mut Round, wanted: &Wanted) -> Result<GrantAttempt, LedgerError> {
        let mut draft = Draft::default();
        for object in &wanted.objects {
            if self.migration_of(object)?.is_some() {
                // The object is being handed over to a holder.
                let why = LeaseRefusal::Held { lease: None, retry_ms: MIGRATION_RETRY_MS, takeover_after_ms: None };
                return Ok(GrantAttempt::Blocked { object: object.clone(), why });
            }
            let grant = Grant {
                lease_id: self.new_lease_id(),
                holder: wanted.holder.clone(),
                ttl: wanted.ttl,
                request: wanted.request.clone(),
                tainted: false,
                window: None,
                source: Source::Gate,
            };
            let takeover_after_ms = wanted.takeover.then_some(self.setup.takeover_after_ms);
            match self.step(round, &mut draft, object, Event::Acquire { grant, takeover_after_ms })? {
                Outcome::Refused(why @ LeaseRefusal::Held { .. }) => {
                    return Ok(GrantAttempt::Blocked { object: object.clone(), why });
                }
                Outcome::Refused(why) => return Err(LedgerError::Lease { object: object.clone(), why }),
                _ => {}
            }
        }
        let opened = match self.drain(round, &mut draft, false)? {
            Drained::Now(opened) => opened,
            Drained::Later(drains) => {
                self.apply(round, draft);
                return Ok(GrantAttempt::Draining(drains));
            }
        };
        let leases = all_granted(opened)?;
        remember_request(round, wanted, &leases);
        self.apply(round, draft);
        Ok(GrantAttempt::Done(Ok(leases)))
    }

    /// Answers an acquire, and other calls with the same request.
    pub(super) fn answer_grant(
        &mut self,
        round: &mut Round,
        wanted: &Wanted,
        reply: GrantReply,
        result: Result<Vec<Granted>, LedgerError>,
    ) {
        let was_granted = result.is_ok();
        push_answer(round, wanted, reply, result);
        if !was_granted {
            return;
        }
        for object in &wanted.objects {
            while let Some(twin) = self.waiters.take_twin(object, wanted) {
                let result = match self.attempt(round, &twin.wanted) {
                    GrantAttempt::Done(result) => result,
                    GrantAttempt::Blocked { object, why } => Err(LedgerError::Lease { object, why }),
                    GrantAttempt::Draining(drains) => {
                        let until = self.patience(twin.until);
                        let replies = vec![DrainWaiter { reply: twin.reply, until }];
                        self.keep_advance(drains, AdvanceCaller::Acquire { wanted: twin.wanted, replies });
                        continue;
                    }
                };
                push_answer(round, &twin.wanted, twin.reply, result);
            }
        }
    }
}

/// Answers an acquire. A grant whose caller is gone is given back, unless the caller can repeat its request.
fn push_answer(round: &mut Round, wanted: &Wanted, reply: GrantReply, result: Result<Vec<Granted>, LedgerError>) {
    let gives_back = wanted.request.is_none();
    round.answers.push(Box::new(move |committed| {
        let result = if committed { result } else { Err(not_committed(&result)) };
        answer_leases(reply, result, gives_back)
    }));
}
