//! Acquiring: one object or a batch, at once or in turn, once per request.

use super::{
    GrantReply, Granted, Refused, Wanted,
    core::{Core, granted, unexpected, unreadable},
    round::{Draft, Round},
    timers::Due,
    waiters::Waiter,
};
use crate::{
    fence::{
        Event, ObjectId, Outcome, State, Ttl,
        step::{Grant, LeaseRefusal},
    },
    table::codec::RequestRow,
};

/// How an attempt ended.
enum Attempt {
    Done(Result<Vec<Granted>, Refused>),
    /// This object is someone else's for now.
    Blocked {
        object: ObjectId,
        why: LeaseRefusal,
    },
}

impl Core {
    /// Grants what is wanted, or lets the caller wait for its turn, or says why not.
    pub(super) fn acquire(&mut self, round: &mut Round, wanted: Wanted, reply: GrantReply) {
        for object in &wanted.objects {
            // Whoever waits goes first, also where the old lease has just run out.
            if self.waiters.is_waiting(object) {
                self.serve(round, object);
            }
        }
        let until = self.setup.clock.now().boot.after(Ttl(wanted.wait_ms));
        let id = self.waiters.next_id();
        self.acquire_or_wait(round, Waiter { id, wanted, until, reply }, true);
    }

    /// The last attempt of a waiter whose time is up.
    pub(super) fn acquire_now(&mut self, round: &mut Round, wanted: &Wanted, reply: GrantReply) {
        let result = match self.attempt(round, wanted) {
            Attempt::Done(result) => result,
            Attempt::Blocked { object, why } => Err(Refused::Lease { object, why }),
        };
        self.answer_grant(round, wanted, reply, result);
    }

    fn acquire_or_wait(&mut self, round: &mut Round, waiter: Waiter, is_new: bool) {
        let now = self.setup.clock.now().boot;
        match self.attempt(round, &waiter.wanted) {
            Attempt::Done(result) => self.answer_grant(round, &waiter.wanted, waiter.reply, result),
            Attempt::Blocked { object, .. } if waiter.until > now => {
                if is_new && self.waiters.len() >= self.setup.waiters_max {
                    self.answer_grant(round, &waiter.wanted, waiter.reply, Err(Refused::Overloaded));
                    return;
                }
                self.timers.push(waiter.until, Due::Waiter(object.clone(), waiter.id));
                self.waiters.push(&object, waiter);
            }
            Attempt::Blocked { object, why } => {
                self.answer_grant(round, &waiter.wanted, waiter.reply, Err(Refused::Lease { object, why }));
            }
        }
    }

    /// Gives an object that nobody holds to whoever has waited longest for it.
    pub(super) fn serve(&mut self, round: &mut Round, object: &ObjectId) {
        while self.is_to_be_had(round, object) {
            let Some(waiter) = self.waiters.pop(object) else { return };
            self.acquire_or_wait(round, waiter, false);
        }
    }

    fn is_to_be_had(&self, round: &Round, object: &ObjectId) -> bool {
        match round.newest(&self.setup.records, &Draft::default(), object) {
            Ok(record) => match record.state {
                State::Free { .. } => true,
                State::Open { lease } => !lease.is_live(self.setup.clock.now()),
                State::Draining { .. } => false,
            },
            // Nobody can be served; each will be told so when its time is up.
            Err(_) => false,
        }
    }

    fn attempt(&mut self, round: &mut Round, wanted: &Wanted) -> Attempt {
        match self.replayed(round, wanted) {
            Some(result) => Attempt::Done(result),
            None => match self.grant_all(round, wanted) {
                Ok(attempt) => attempt,
                Err(refused) => Attempt::Done(Err(refused)),
            },
        }
    }

    /// The answer that this request got before, if it did.
    fn replayed(&self, round: &Round, wanted: &Wanted) -> Option<Result<Vec<Granted>, Refused>> {
        let request = wanted.request.as_ref()?;
        let row = match round.request(&self.setup.records, &wanted.holder, request) {
            Ok(row) => row?,
            Err(fault) => return Some(Err(unreadable(&fault))),
        };
        if !row.leases.iter().map(|(object, _)| object).eq(&wanted.objects) {
            return Some(Err(Refused::RequestIdUsed));
        }
        let now = self.setup.clock.now();
        let again = row.leases.iter().map(|(object, lease_id)| {
            let record =
                round.newest(&self.setup.records, &Draft::default(), object).map_err(|fault| unreadable(&fault))?;
            record
                .replay(lease_id, now)
                .map(|lease| granted(object.clone(), lease.clone()))
                .ok_or(Refused::RequestIdUsed)
        });
        Some(again.collect())
    }

    /// Moves all fences, then opens all objects; or does nothing.
    fn grant_all(&mut self, round: &mut Round, wanted: &Wanted) -> Result<Attempt, Refused> {
        let mut draft = Draft::default();
        for object in &wanted.objects {
            let grant = Grant {
                lease_id: self.new_lease_id(),
                holder: wanted.holder.clone(),
                ttl: wanted.ttl,
                request: wanted.request.clone(),
                tainted: false,
            };
            let takeover_after_ms = wanted.takeover.then_some(self.setup.takeover_after_ms);
            match self.step(round, &mut draft, object, Event::Acquire { grant, takeover_after_ms })? {
                Outcome::Refused(why @ LeaseRefusal::Held { .. }) => {
                    return Ok(Attempt::Blocked { object: object.clone(), why });
                }
                Outcome::Refused(why) => return Err(Refused::Lease { object: object.clone(), why }),
                _ => {}
            }
        }
        let opened = self.drain(round, &mut draft)?;
        let leases: Vec<Granted> = opened
            .into_iter()
            .map(|(object, outcome)| match outcome {
                Outcome::Granted(lease) => Ok(granted(object, lease)),
                other => Err(unexpected(object, other)),
            })
            .collect::<Result<_, _>>()?;
        if let Some(request) = &wanted.request {
            let leases = leases.iter().map(|lease| (lease.object.clone(), lease.lease.lease_id.clone())).collect();
            round.put_request(&wanted.holder, request, &RequestRow { leases });
        }
        self.apply(round, draft);
        Ok(Attempt::Done(Ok(leases)))
    }

    /// Answers an acquire. A grant that nobody is there to take is given back, unless its request
    /// can be asked for again; twins of the same request get the same answer.
    fn answer_grant(
        &mut self,
        round: &mut Round,
        wanted: &Wanted,
        reply: GrantReply,
        result: Result<Vec<Granted>, Refused>,
    ) {
        let was_granted = result.is_ok();
        let keep = wanted.request.is_some();
        round.answers.push(Box::new(move |committed| {
            let result = if committed { result } else { Err(Refused::Unavailable) };
            match reply.send(result) {
                Err(Ok(unwanted)) if !keep => {
                    unwanted.into_iter().map(|granted| (granted.object, granted.lease.lease_id)).collect()
                }
                Ok(()) | Err(_) => vec![],
            }
        }));
        if was_granted {
            for object in &wanted.objects {
                while let Some(twin) = self.waiters.take_twin(object, wanted) {
                    self.acquire_now(round, &twin.wanted, twin.reply);
                }
            }
        }
    }
}
