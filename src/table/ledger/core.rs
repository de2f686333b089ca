//! A round of the ledger: its decisions. `closing` persists, publishes and answers them. An advance that has to
//! drain first is answered by a later round: see `advance`.

use std::sync::Arc;

use super::{
    Command, DrainReport, Granted, LedgerError, Reply,
    advance::Drained,
    advances::Advances,
    authority::{Migrating, forget_migrations},
    faults,
    fingerprint::InUse,
    keyed::Keyed,
    lease_ids::LeaseIds,
    outside::Jumps,
    round::{Draft, Drain, Round},
    sweep::Sweep,
    timers::{Due, Timers},
    waiters::Waiters,
};
use crate::{
    clock::{Clock, StepMeter},
    failpoints::{self, Fault, Point},
    fence::{
        BootMs, Event, Hlc, Lease, LeaseId, ObjectId, Outcome, Record, State, Ttl,
        step::{At, Kind, LeaseRefusal},
    },
    metrics::LedgerMetrics,
    route::RouteFingerprint,
    table::{TableFault, codec::Meta, news::News, open, records::Records},
};

/// What a ledger works with.
pub struct Setup {
    pub records: Arc<Records>,
    pub news: Arc<News>,
    pub clock: Clock,
    pub metrics: LedgerMetrics,
    pub meta: Meta,
    /// Every stamp in the table is at most this one.
    pub mark: Hlc,
    /// How old a lease must be before its own holder may take it over.
    pub takeover_after_ms: u64,
    /// How many acquires may wait for their turn at once.
    pub waiters_max: usize,
    /// The last run did not end in good order: its writes may still land.
    pub unclean: bool,
    /// The routes and the bound of this run's writes.
    pub fingerprint: RouteFingerprint,
    /// How many entries of each journal are kept.
    pub journal_keep: u64,
    /// How long a keyed write is remembered.
    pub keys_keep_ms: u64,
}

/// The ledger without its thread.
pub struct Core {
    pub(super) setup: Setup,
    pub(super) hlc: Hlc,
    pub(super) timers: Timers,
    pub(super) waiters: Waiters,
    pub(super) sweep: Sweep,
    pub(super) advances: Advances,
    pub(super) fingerprint: InUse,
    pub(super) migrating: Migrating,
    pub(super) jumps: Jumps,
    pub(super) keyed: Keyed,
    lease_ids: LeaseIds,
    pub(super) step_meter: StepMeter,
    /// Grants whose clients were gone when the answer came. The next round takes them back.
    pub(super) orphans: Vec<(ObjectId, LeaseId)>,
    /// Objects that this round has freed and that callers wait for.
    freed: Vec<ObjectId>,
    pub(super) last_commit: BootMs,
    /// What the last round has changed.
    last_changes: usize,
    /// Nothing more is granted.
    closed: bool,
    stopped: bool,
}

/// The time between two rounds that look at everything.
pub(super) const SECOND: Ttl = Ttl(1_000);

impl Core {
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        let now = setup.clock.now();
        let mut timers = Timers::default();
        timers.push(now.boot.after(SECOND), Due::Second);
        setup.records.stripes.tick(now.boot);
        if setup.unclean {
            let start = setup.records.context.frame.start.boot;
            setup.records.stripes.set_all_unknown(start.after(Ttl(setup.meta.fingerprint.bound_ms)));
        }
        Self {
            hlc: setup.mark,
            timers,
            waiters: Waiters::default(),
            sweep: Sweep::default(),
            advances: Advances::default(),
            fingerprint: InUse::new(setup.fingerprint),
            migrating: Migrating::default(),
            jumps: Jumps::default(),
            keyed: Keyed::default(),
            lease_ids: LeaseIds::default(),
            step_meter: StepMeter::new(now),
            orphans: vec![],
            freed: vec![],
            last_commit: now.boot,
            last_changes: 0,
            closed: false,
            stopped: false,
            setup,
        }
    }

    /// The table for readers.
    pub(super) fn records(&self) -> Arc<Records> {
        Arc::clone(&self.setup.records)
    }

    /// The next instant at which a round is due without a call.
    #[must_use]
    pub fn next_at(&self) -> Option<BootMs> {
        self.timers.next_at()
    }

    /// Whether a round is due at once.
    #[must_use]
    pub fn has_backlog(&self) -> bool {
        !self.orphans.is_empty() || self.next_at().is_some_and(|at| at <= self.setup.clock.now().boot)
    }

    /// The instant from which nothing of an earlier run can land.
    pub(super) fn bound_from_start(&self) -> BootMs {
        self.setup.records.context.frame.start.boot.after(Ttl(self.setup.meta.fingerprint.bound_ms))
    }

    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Carries out one round: these calls, and all that is due. Each call is taken when the one before it has been
    /// decided, so calls that come meanwhile can join the round.
    pub fn run(&mut self, calls: impl IntoIterator<Item = Command>) {
        // About as many changes as in the last round.
        let mut round = Round::for_changes(self.last_changes);
        let mut stop = None;
        self.take_back_orphans(&mut round);
        self.try_finish_drained(&mut round);
        self.serve_freed(&mut round);
        self.do_what_is_due(&mut round);
        for call in calls {
            self.decide(&mut round, call, &mut stop);
            self.serve_freed(&mut round);
            if stop.is_some() {
                break;
            }
        }
        self.last_changes = round.changes;
        self.finish(round);
        if let Some(reply) = stop {
            self.stop(reply);
        }
    }

    /// Why a call is refused without a decision, if it is.
    fn turns_away(&self, call: &Command) -> Option<LedgerError> {
        match call {
            Command::Tick | Command::Stop { .. } | Command::Close { .. } | Command::Adopt { .. } => None,
            Command::Acquire { .. } | Command::Grant { .. } | Command::Follow { .. } if self.closed => {
                Some(LedgerError::Stopping)
            }
            _ => self.setup.records.latched().map(|_| LedgerError::Unavailable),
        }
    }

    /// Answers a call that is refused without a decision.
    fn turn_away(&mut self, round: &mut Round, call: Command, why: LedgerError) {
        match call {
            Command::Tick | Command::FollowAll { .. } => {}
            Command::Acquire { reply, .. } => answer(round, reply, Err(why)),
            Command::Renew { reply, .. } => self.answer_renewal(round, reply, Err(why), false),
            Command::Release { reply, .. } => answer(round, reply, Err(why)),
            Command::Grant { reply, .. } => answer(round, reply, Err(why)),
            Command::BeginKeyed { reply, .. } => answer(round, reply, Err(why)),
            Command::Revoke { reply, .. }
            | Command::Certify { reply, .. }
            | Command::Follow { reply, .. }
            | Command::Confirm { reply, .. } => answer(round, reply, Err(why)),
            Command::End { reply, .. }
            | Command::Withdraw { reply, .. }
            | Command::Migrate { reply, .. }
            | Command::Unpark { reply, .. }
            | Command::ForgetMigrations { reply, .. }
            | Command::EndKeyed { reply, .. }
            | Command::Journal { reply, .. }
            | Command::Announce { reply, .. }
            | Command::Adopt { reply, .. }
            | Command::Close { reply }
            | Command::Stop { reply } => answer(round, reply, Err(why)),
        }
    }

    /// Decides one call. Long because it has one arm for each command, and no more than a line or two in each.
    fn decide(&mut self, round: &mut Round, call: Command, stop: &mut Option<Reply<()>>) {
        if let Some(why) = self.turns_away(&call) {
            return self.turn_away(round, call, why);
        }
        match call {
            // An object may have drained after the round's own check. What is due by now is for the next round,
            // which then begins at once.
            Command::Tick => self.try_finish_drained(round),
            Command::Stop { reply } => *stop = Some(reply),
            Command::Close { reply } => {
                self.closed = true;
                self.dismiss_waiters(&LedgerError::Stopping);
                self.answer_operators(round);
                self.dismiss_advances(&LedgerError::Stopping);
                answer(round, reply, Ok(()));
            }
            Command::Announce { fingerprint, reply } => {
                self.announce(round, fingerprint);
                answer(round, reply, Ok(()));
            }
            Command::Adopt { fingerprint, reply } => {
                self.fingerprint.adopt(fingerprint);
                answer(round, reply, Ok(()));
            }
            Command::Acquire { wanted, reply } => self.acquire(round, wanted, reply),
            Command::Renew { lease_id, holder, token, ttl, rotate, reply } => {
                let rotate = rotate.then(|| self.new_lease_id());
                self.renew(round, &lease_id, (holder, token), ttl, rotate, reply);
            }
            Command::Release { lease_id, holder, token, reply } => {
                let released = self.release(round, &lease_id, holder, token);
                answer(round, reply, released);
            }
            Command::End { leases, reply } => {
                let ended = leases.into_iter().try_for_each(|(object, lease)| {
                    self.change(round, &object, Event::End { lease_id: lease }).map(|_| ())
                });
                answer(round, reply, ended);
            }
            Command::Withdraw { leases, reply } => {
                let withdrawn = leases.into_iter().try_for_each(|(object, lease_id)| {
                    self.change(round, &object, Event::Withdraw { lease_id }).map(|_| ())
                });
                answer(round, reply, withdrawn);
            }
            Command::Revoke { object, reason, force, source, reply } => {
                self.revoke(round, &object, Event::Revoke { reason, source }, force, reply);
            }
            Command::Certify { certificate, max_jump, migration, reply } => {
                self.certify(round, &certificate, max_jump, migration.map(|each| *each), reply);
            }
            Command::Grant { domain, signed, migration, reply } => {
                self.grant_signed(round, &domain, *signed, migration.map(|each| *each), reply);
            }
            Command::Follow { object, update, reply } => self.follow(round, &object, update, reply),
            Command::FollowAll { objects, update } => self.follow_all(round, &objects, &update),
            Command::Confirm { object, lowest, reply } => {
                let confirmed = self.confirm(round, &object, lowest);
                answer(round, reply, confirmed);
            }
            Command::Migrate { progress, grant_action, reply } => {
                let done = self.migrate(round, *progress, grant_action);
                answer(round, reply, done);
            }
            Command::Unpark { certificate, reply } => {
                let done = self.unpark(round, &certificate);
                answer(round, reply, done);
            }
            Command::ForgetMigrations { ids, reply } => {
                forget_migrations(round, ids);
                answer(round, reply, Ok(()));
            }
            Command::BeginKeyed { attempt, reply } => {
                let begun = self.begin_keyed(round, *attempt);
                answer(round, reply, begun);
            }
            Command::EndKeyed { scope, attempt, entry, reply } => {
                let done = self.end_keyed(round, scope, attempt, entry.map(|entry| *entry));
                answer(round, reply, done);
            }
            Command::Journal { lines, reply } => {
                let done = self.journal(round, lines);
                answer(round, reply, done);
            }
        }
    }

    pub(super) fn newest(&self, round: &Round, object: &ObjectId) -> Result<Record, LedgerError> {
        round.newest(&self.setup.records, &Draft::default(), object).map_err(|fault| unreadable(&fault))
    }

    /// One event on one object, taken into the round.
    pub(super) fn change(
        &mut self,
        round: &mut Round,
        object: &ObjectId,
        event: Event,
    ) -> Result<Changed, LedgerError> {
        self.change_by_force(round, object, event, false)
    }

    /// The same; `force`: writes that are on their way now are not waited for.
    pub(super) fn change_by_force(
        &mut self,
        round: &mut Round,
        object: &ObjectId,
        event: Event,
        force: bool,
    ) -> Result<Changed, LedgerError> {
        let mut draft = Draft::default();
        let decided = self.step(round, &mut draft, object, event)?;
        let changed = match decided {
            Outcome::Advancing => match self.drain(round, &mut draft, force)? {
                Drained::Now(opened) => Changed::Opened(opened),
                Drained::Later(drains) => Changed::Draining(drains),
            },
            other => Changed::To(other),
        };
        self.apply(round, draft);
        Ok(changed)
    }

    /// Decides one event against the newest record.
    pub(super) fn step(
        &mut self,
        round: &Round,
        draft: &mut Draft,
        object: &ObjectId,
        event: Event,
    ) -> Result<Outcome, LedgerError> {
        let newest = round.newest(&self.setup.records, draft, object).map_err(|fault| unreadable(&fault))?;
        let now = self.setup.clock.now();
        self.hlc = self.hlc.tick(now);
        let key = &self.setup.records.context.key;
        let newest = faults::shown(newest, &event);
        let (outcome, effects) = newest.step(event, &At { now, stamp: self.hlc, key });
        draft.add(object, faults::said(&newest, effects));
        Ok(outcome)
    }

    /// Adds a draft to the round, with its timers and waiters.
    pub(super) fn apply(&mut self, round: &mut Round, draft: Draft) {
        for line in &draft.news {
            match line.kind {
                Kind::Granted | Kind::Renewed => {}
                Kind::Released | Kind::Fenced | Kind::Expired => self.timers.disarm(&line.row.lease_id),
            }
        }
        for record in &draft.records {
            match &record.state {
                // A lease without an end needs no timer.
                State::Open { lease } if lease.ttl >= Ttl::FOR_EVER => {}
                State::Open { lease } => self.timers.arm(lease.deadline, &record.object, &lease.lease_id),
                State::Free { .. } if self.waiters.is_waiting(&record.object) => {
                    self.freed.push(record.object.clone());
                }
                State::Free { .. } | State::Draining { .. } => {}
            }
        }
        round.apply(draft);
    }

    /// Notes that an object is free for the callers that wait for it.
    pub(super) fn is_free_again(&mut self, object: &ObjectId) {
        if self.waiters.is_waiting(object) {
            self.freed.push(object.clone());
        }
    }

    pub(super) fn serve_freed(&mut self, round: &mut Round) {
        while let Some(object) = self.freed.pop() {
            self.serve(round, &object);
        }
    }

    fn take_back_orphans(&mut self, round: &mut Round) {
        for (object, lease_id) in std::mem::take(&mut self.orphans) {
            // Where this fails, the lease runs out by itself.
            let _ = self.change(round, &object, Event::Withdraw { lease_id });
        }
        self.serve_freed(round);
    }

    pub(super) fn dismiss_waiters(&mut self, why: &LedgerError) {
        for waiter in self.waiters.take_all() {
            // A caller that has hung up needs no answer.
            let _ = waiter.reply.send(Err(why.clone()));
        }
    }

    fn stop(&mut self, reply: Reply<()>) {
        self.stopped = true;
        self.dismiss_waiters(&LedgerError::Stopping);
        self.dismiss_advances(&LedgerError::Stopping);
        let closed = match self.setup.records.latched() {
            Some(_) => Err(LedgerError::Unavailable),
            None if (!self.setup.records.stripes.is_all_settled(self.setup.clock.now().boot)
                || self.setup.records.has_lost_track())
                && !failpoints::on(Fault::EarlyCleanFlag) =>
            {
                tracing::warn!("writes that may still land are left behind; the next start waits for them");
                Err(LedgerError::Unavailable)
            }
            None => {
                self.hlc = self.hlc.tick(self.setup.clock.now());
                failpoints::reach(Point::Stopping);
                let closed = open::end(&*self.setup.records.table, &self.setup.meta, self.hlc).map_err(|fault| {
                    tracing::error!(%fault, "the clean flag could not be set; the next start counts as unclean");
                    LedgerError::Unavailable
                });
                failpoints::reach(Point::Stopped);
                closed
            }
        };
        let _ = reply.send(closed);
    }

    pub(super) fn new_lease_id(&mut self) -> LeaseId {
        self.lease_ids.next(self.setup.clock.wall())
    }
}

/// The result of an event.
pub(super) enum Changed {
    To(Outcome),
    /// A fence has moved, and no older write was on its way.
    Opened(Vec<(ObjectId, Outcome, DrainReport)>),
    /// A fence has moved; older writes are waited for.
    Draining(Vec<Drain>),
}

/// A lease as an answer has it.
pub(super) fn granted(object: ObjectId, lease: Lease) -> Granted {
    Granted { object, lease, drain: DrainReport::default(), is_again: false }
}

/// Sends an answer that has no lease to take back.
pub(super) fn answer<T: Send + 'static>(round: &mut Round, reply: Reply<T>, result: Result<T, LedgerError>) {
    round.answers.push(Box::new(move |committed| {
        let result = if committed { result } else { Err(not_committed(&result)) };
        let _ = reply.send(result);
        vec![]
    }));
}

/// The refusal when the round was not made durable. Whether a change was made is then unknown.
pub(super) fn not_committed<T>(result: &Result<T, LedgerError>) -> LedgerError {
    if result.is_ok() { LedgerError::Unsure } else { LedgerError::Unavailable }
}

pub(super) fn unexpected(object: ObjectId, outcome: Outcome) -> LedgerError {
    match outcome {
        Outcome::Refused(why) => LedgerError::Lease { object, why },
        Outcome::Advancing
        | Outcome::Granted(_)
        | Outcome::Renewed(_)
        | Outcome::Fenced
        | Outcome::Superseded
        | Outcome::Freed
        | Outcome::Ended
        | Outcome::Unchanged => {
            let why = LeaseRefusal::Held { lease: None, retry_ms: SECOND.0, takeover_after_ms: None };
            LedgerError::Lease { object, why }
        }
    }
}

pub(super) fn unreadable(fault: &TableFault) -> LedgerError {
    tracing::error!(%fault, "a row of the fence table cannot be read");
    LedgerError::Unavailable
}
