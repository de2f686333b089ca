//! Objects that Kubernetes Leases lead: an API server; candidates that take, renew, lose and delete its Leases;
//! routes that change to other Leases; and the gate's reads of them, whose answers may be late.
//!
//! `kubernetes::lease_state`, the ledger and the judge are the product's own. The state of a Lease says what is read
//! and passed on, and in which order. What it asks for is done here some steps later: a caller's turn, the parts of a
//! read, room in the ledger's queue. Any of that may fail, and the watch lags. Only the pace of reads is not kept.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::sync::oneshot;

use super::{
    lease_news::{AskResult, Asker, PassedOn},
    world::{START, World},
};
use fencegate::{
    fence::{
        BootMs, Fence, Now, ObjectId, Refusal, Ttl,
        elected::Claimant,
        election::{Election, LeaseName, Uid},
        outside::Update,
    },
    kubernetes::{
        api::{Away, Seen},
        lease_state::{At, CallerId, Effect, Event, LeaseState, Question, Unknown},
    },
    table::ledger::{Command, LedgerError},
};

/// How many Leases there are.
const LEASES: usize = 2;

/// The Leases, and what the gate knows of them.
pub(super) struct Led {
    leases: Vec<Lease>,
    /// Which Lease governs an object.
    routes: BTreeMap<ObjectId, usize>,
    /// Counts the changes of the routes.
    generation: u64,
    last_uid: u128,
    /// Every term so far, in the order in which they began.
    pub(super) terms: Vec<BegunTerm>,
    /// The answers for the writes that asked.
    answers: BTreeMap<u64, AskResult>,
}

/// A term of leadership, as its winner knows it.
#[derive(Clone)]
pub(super) struct BegunTerm {
    pub(super) election: Election,
    pub(super) holder: usize,
    pub(super) lease: usize,
}

struct Lease {
    name: Arc<LeaseName>,
    /// The Lease at the API server.
    now: Option<Seen>,
    /// Changes that the watch has not shown yet.
    unshown: VecDeque<Option<Seen>>,
    /// What the gate knows, and which writes ask; `None`: none has asked yet. This and the following fields are gone
    /// with the gate.
    state: Option<LeaseState<Asker, ()>>,
    waits: Vec<Wait>,
    read: Option<Read>,
    passed_on: PassedOn,
}

/// What the state of a Lease waits for, besides its read.
#[derive(Clone, Copy)]
enum Wait {
    Turn(CallerId),
    Room,
    Pause,
}

/// A read that is under way.
enum Read {
    Due,
    Sent(Now),
    /// The result of the read, and how many terms had begun by then.
    Found(Now, Option<Seen>, usize),
}

#[derive(Clone, Copy)]
enum LedAction {
    Write,
    OldWrite,
    Take,
    Renew,
    GiveBack,
    Delete,
    Edit,
    Reroute,
    Revoke,
    Sleep,
}

impl Led {
    /// Some Leases, and routes to them.
    pub(super) fn new(objects: &[ObjectId]) -> Self {
        let lease = |n: usize| Lease {
            name: Arc::new(LeaseName { namespace: "left".to_owned(), name: format!("l{n}") }),
            now: None,
            unshown: VecDeque::new(),
            state: None,
            waits: vec![],
            read: None,
            passed_on: PassedOn::default(),
        };
        Self {
            leases: (0..LEASES).map(lease).collect(),
            routes: objects.iter().enumerate().map(|(n, object)| (object.clone(), n % LEASES)).collect(),
            generation: 0,
            last_uid: 0,
            terms: vec![],
            answers: BTreeMap::new(),
        }
    }

    /// Forgets what the gate knew: the gate is gone.
    pub(super) fn forget(&mut self) {
        self.answers.clear();
        for lease in &mut self.leases {
            (lease.state, lease.read, lease.waits) = (None, None, vec![]);
        }
    }

    /// Whether the gate has a read to make or a change to receive.
    pub(super) fn is_busy(&self) -> bool {
        self.leases.iter().any(Lease::is_busy)
    }

    /// Takes the answer to a write's question.
    pub(super) fn answer(&mut self, write: u64) -> Option<AskResult> {
        self.answers.remove(&write)
    }

    /// Adds what is known of a write's term without a read.
    fn attach_term(&self, object: &ObjectId, lease: usize, claimant: &mut Claimant) {
        let state = self.leases[lease].state.as_ref().filter(|state| state.followers().contains(object));
        claimant.term = state.and_then(|state| state.term_of(claimant.election));
    }

    /// The Lease that a term is of.
    fn lease_of(&self, election: Election) -> Option<usize> {
        self.terms.iter().find(|term| term.election.uid == election.uid).map(|term| term.lease)
    }

    /// Whether a term is of the Lease that its write was judged by. If not, an answer about it is not final.
    pub(super) fn is_of(&self, claimant: &Claimant) -> bool {
        self.lease_of(claimant.election).is_some_and(|lease| self.leases[lease].name == claimant.lease)
    }
}

impl Lease {
    fn is_busy(&self) -> bool {
        self.read.is_some() || !self.waits.is_empty() || !self.unshown.is_empty()
    }

    fn change(&mut self, now: Option<Seen>) {
        self.now.clone_from(&now);
        self.unshown.push_back(now);
    }
}

/// A write by a term.
pub(super) struct TermClaim {
    pub(super) claimant: Claimant,
    /// The version of the routes that the write uses.
    generation: u64,
}

impl World {
    fn led(&mut self) -> &mut Led {
        self.led.as_mut().expect("this seed has Leases")
    }

    /// One step of a candidate or of an administrator.
    pub(super) fn candidate_step(&mut self, place: usize) {
        let own = self.led().terms.iter().any(|term| term.holder == place);
        let has_room = self.writes.len() < 12 && self.run.as_ref().is_some_and(|run| !run.closing);
        let writes = u64::from(own && has_room);
        let action = self.rng.pick(&[
            (writes * 200, LedAction::Write),
            (writes * 40, LedAction::OldWrite),
            (20, LedAction::Take),
            (100, LedAction::Renew),
            (4, LedAction::GiveBack),
            (3, LedAction::Delete),
            (3, LedAction::Edit),
            (4, LedAction::Reroute),
            (4, LedAction::Revoke),
            (8, LedAction::Sleep),
        ]);
        let lease = self.rng.place(LEASES);
        match action {
            LedAction::Write => self.write_by_term(place, false),
            LedAction::OldWrite => self.write_by_term(place, true),
            LedAction::Take => self.take(place, lease),
            LedAction::Renew => self.renew_lease(place, lease),
            LedAction::GiveBack => self.give_back(place, lease),
            LedAction::Delete => self.delete(lease),
            LedAction::Edit => self.edit(place, lease),
            LedAction::Reroute => self.reroute(),
            LedAction::Revoke => self.revoke(place),
            LedAction::Sleep => self.clients[place].asleep_until = self.step + self.rng.range(20, 200),
        }
    }

    /// The candidates' clock, in microseconds. It is always right.
    fn renewed_us(&self) -> i64 {
        let since = self.now().boot.since(START.boot);
        i64::try_from((START.wall.0 + since) * 1_000).unwrap_or(i64::MAX)
    }

    /// Takes a Lease that has no holder or is not renewed any more; or takes it by force.
    fn take(&mut self, place: usize, lease: usize) {
        let (now, ttl, renewed_us) = (self.now().boot, Duration::from_millis(self.lot.ttl_ms), self.renewed_us());
        let by_force = self.rng.percent(10);
        let led = self.led();
        let (uid, transitions) = match &led.leases[lease].now {
            None => {
                led.last_uid += 1;
                (Uid(led.last_uid), 0)
            }
            Some(seen) => {
                let age = (START.wall.0 + now.since(START.boot)).saturating_sub(seen.renewed_us.unsigned_abs() / 1_000);
                let is_over = seen.holder.is_none() || u128::from(age) >= ttl.as_millis();
                if !is_over && !by_force {
                    return;
                }
                (seen.election.uid, seen.election.transitions + 1)
            }
        };
        let election = Election { uid, transitions };
        led.terms.push(BegunTerm { election, holder: place, lease });
        let holder = Some(format!("h{place}"));
        led.leases[lease].change(Some(Seen { election, holder, duration: ttl, renewed_us }));
        self.counts.terms += 1;
        self.say(format!("client {place} takes Lease {lease}: {}.{transitions}", uid.0));
    }

    /// Changes a Lease that this candidate holds.
    fn change_own(&mut self, place: usize, lease: usize, change: impl FnOnce(&mut Seen)) -> bool {
        let found = self.led().leases[lease].now.clone();
        let Some(mut seen) = found.filter(|seen| seen.holder.as_deref() == Some(&*format!("h{place}"))) else {
            return false;
        };
        change(&mut seen);
        self.led().leases[lease].change(Some(seen));
        true
    }

    fn renew_lease(&mut self, place: usize, lease: usize) {
        let renewed_us = self.renewed_us();
        self.change_own(place, lease, |seen| seen.renewed_us = renewed_us);
    }

    fn give_back(&mut self, place: usize, lease: usize) {
        if self.change_own(place, lease, |seen| seen.holder = None) {
            self.say(format!("client {place} gives Lease {lease} back"));
        }
    }

    /// An administrator gives the Lease to another holder without a transition.
    fn edit(&mut self, place: usize, lease: usize) {
        let other = self.rng.place(self.clients.len());
        if self.change_own(place, lease, |seen| seen.holder = Some(format!("h{other}"))) {
            let led = self.led();
            let shared = led.leases[lease].now.as_ref().map(|seen| seen.election);
            led.terms.extend(shared.map(|election| BegunTerm { election, holder: other, lease }));
            self.say(format!("Lease {lease} of client {place} is edited to be {other}'s"));
        }
    }

    fn delete(&mut self, lease: usize) {
        if self.led().leases[lease].now.is_some() {
            self.led().leases[lease].change(None);
            self.say(format!("Lease {lease} is deleted"));
        }
    }

    /// A reload names another Lease for an object. From then on no object gets the changes of its old Lease.
    fn reroute(&mut self) {
        let object = self.any_object();
        let lease = self.rng.place(LEASES);
        let led = self.led();
        led.generation += 1;
        led.routes.insert(object.clone(), lease);
        led.leases.iter_mut().filter_map(|lease| lease.state.as_mut()).for_each(LeaseState::unfollow_all);
        self.counts.reroutes += 1;
        self.say(format!("{object} is led by Lease {lease} from now on"));
    }

    /// A write by the last term that this client has won, or by any of all terms: mostly to an object that its
    /// Lease leads.
    fn write_by_term(&mut self, place: usize, is_old: bool) {
        let own: Vec<BegunTerm> = self.led().terms.iter().filter(|term| term.holder == place).cloned().collect();
        let term = if is_old { own[self.rng.place(own.len())].clone() } else { own[own.len() - 1].clone() };
        let routes = self.led().routes.iter().filter(|(_, lease)| **lease == term.lease);
        let ruled: Vec<ObjectId> = routes.map(|(object, _)| object.clone()).collect();
        let object = match ruled.len() {
            0 => self.any_object(),
            _ if self.rng.percent(10) => self.any_object(),
            count => ruled[self.rng.place(count)].clone(),
        };
        let led = self.led();
        let (route, generation) = (led.routes[&object], led.generation);
        let lease = Arc::clone(&led.leases[route].name);
        let mut claimant = Claimant { election: term.election, lease, term: None, holder: None };
        led.attach_term(&object, route, &mut claimant);
        let claim = TermClaim { claimant, generation };
        self.begin_write_by_term(place, object, claim);
    }

    /// The write asks whether its term is the present one.
    pub(super) fn ask_about(&mut self, write: u64, object: &ObjectId, claim: &TermClaim) {
        let election = claim.claimant.election;
        let question = Question { election: Some(election), object: Some((object.clone(), claim.generation)) };
        let place = self.led().leases.iter().position(|lease| lease.name == claim.claimant.lease);
        let Some(place) = place else { return };
        let Lease { state, name, .. } = &mut self.led().leases[place];
        state.get_or_insert_with(|| LeaseState::new(name));
        self.report(place, Event::Asked(question, Asker { write, election }));
    }

    /// One step of the API server, the watch or the gate's reader.
    pub(super) fn cluster_step(&mut self) {
        let busy: Vec<usize> = (0..self.led().leases.len()).filter(|n| self.led().leases[*n].is_busy()).collect();
        let Some(place) = busy.get(self.rng.place(busy.len().max(1))).copied() else { return };
        let shows = self.rng.percent(30);
        let lease = &mut self.led().leases[place];
        if shows && let Some(seen) = lease.unshown.pop_front() {
            return self.show(place, seen);
        }
        let (waits, is_reading) = (lease.waits.len(), lease.read.is_some());
        let next = self.rng.place((waits + usize::from(is_reading)).max(1));
        if next < waits {
            let wait = self.led().leases[place].waits.swap_remove(next);
            self.end_wait(place, wait);
        } else if let Some(read) = self.led().leases[place].read.take() {
            self.read_on(place, read);
        }
    }

    /// The watch shows a change.
    fn show(&mut self, place: usize, seen: Option<Seen>) {
        let (now, until) = (self.now(), held_until(seen.as_ref(), self.now()));
        let state = self.led().leases[place].state.as_mut();
        let is_hint = state.is_some_and(|state| state.watch_shows(seen, now));
        if let Some((election, until)) = until {
            self.oracle.term_until(election, until);
        }
        if is_hint {
            self.report(place, Event::Hinted);
        }
    }

    /// Ends a wait, mostly well.
    fn end_wait(&mut self, place: usize, wait: Wait) {
        let fails = self.rng.percent(2);
        let event = match wait {
            Wait::Turn(id) if fails => Event::NoTurn(id, Away::late(Duration::ZERO)),
            Wait::Turn(id) => Event::Turn(id, ()),
            Wait::Room if fails => Event::NoRoom(LedgerError::Overloaded),
            Wait::Room => Event::Room,
            Wait::Pause => Event::PauseOver,
        };
        self.report(place, event);
    }

    /// The next part of a read: its request, what the API server finds, its answer.
    fn read_on(&mut self, place: usize, read: Read) {
        let (now, fails) = (self.now(), self.rng.percent(2));
        let (begun, lease) = (self.led().terms.len(), &mut self.led().leases[place]);
        match read {
            Read::Due => {
                lease.read = Some(Read::Sent(now));
                self.counts.lease_reads += 1;
                self.report(place, Event::ReadBegins);
            }
            Read::Sent(sent) => lease.read = Some(Read::Found(sent, lease.now.clone(), begun)),
            Read::Found(..) if fails => self.report(place, Event::ReadEnded(Err(Away::late(Duration::ZERO)))),
            Read::Found(sent, seen, begun) => {
                self.inform_oracle(place, sent, (seen.as_ref(), begun));
                self.report(place, Event::ReadEnded(Ok(seen)));
            }
        }
    }

    /// The oracle learns what the gate is about to learn by a read.
    fn inform_oracle(&mut self, place: usize, sent: Now, (seen, begun): (Option<&Seen>, usize)) {
        let led = self.led();
        let present = seen.map(|seen| seen.election);
        let holder = seen.and_then(|seen| seen.holder.as_ref());
        // Another holder without a transition: neither may write what was open to the first.
        let state = led.leases[place].state.as_ref();
        let before = state.and_then(LeaseState::known).and_then(|known| known.seen.as_ref());
        let is_shared = before.is_some_and(|before| {
            let was_held = before.holder.is_some() && holder.is_some();
            was_held && Some(before.election) == present && before.holder.as_ref() != holder
        });
        let followers = state.filter(|_| is_shared).into_iter().flat_map(LeaseState::followers);
        let shared: Vec<ObjectId> = followers.cloned().collect();
        let over = led.terms[..begun].iter().filter(|term| term.lease == place && Some(term.election) != present);
        let over: Vec<Election> = over.map(|term| term.election).collect();
        self.oracle.terms_over(&over);
        if let Some((election, until)) = held_until(seen, sent) {
            self.oracle.term_until(election, until);
        }
        if let Some(election) = present {
            for object in &shared {
                self.oracle.term_shared(object, election);
            }
            if is_shared {
                self.oracle.two_holders(election);
            }
            if holder.is_none() {
                // The Lease was given back, and cannot be taken again without a transition.
                self.oracle.terms_over(&[election]);
            }
        }
    }

    /// Reports an event to the state of a Lease, and carries out what follows.
    fn report(&mut self, place: usize, event: Event<Asker, ()>) {
        let now = self.now();
        let led = self.led();
        let at = At { now, generation: led.generation };
        let Lease { state, passed_on, .. } = &mut led.leases[place];
        passed_on.keep(state.as_ref().map(LeaseState::followers));
        let effects = state.as_mut().map(|state| state.on(event, at)).unwrap_or_default();
        let begins = |effect: &Effect<Asker, ()>| match effect {
            Effect::Follow(object) => Some(object.clone()),
            _ => None,
        };
        let new: Vec<ObjectId> = effects.iter().filter_map(begins).collect();
        for effect in effects {
            self.carry_out(place, effect, &new);
        }
    }

    /// `new`: objects that begin to follow by the effects of the same event.
    fn carry_out(&mut self, place: usize, effect: Effect<Asker, ()>, new: &[ObjectId]) {
        let led = self.led();
        let lease = &mut led.leases[place];
        match effect {
            Effect::WaitForTurn(id) => lease.waits.push(Wait::Turn(id)),
            Effect::WaitForRoom => lease.waits.push(Wait::Room),
            Effect::Pause => lease.waits.push(Wait::Pause),
            Effect::Read { .. } => {
                let passes_on = lease.waits.iter().any(|wait| matches!(wait, Wait::Room));
                assert!(lease.read.is_none() && !passes_on, "the ledger has a result before the next read");
                lease.read = Some(Read::Due);
            }
            Effect::Follow(object) => {
                let others = led.leases.iter_mut().enumerate().filter(|(other, _)| *other != place);
                others.filter_map(|(_, lease)| lease.state.as_mut()).for_each(|state| state.unfollow(&object));
            }
            Effect::Observe { caller, object, observation, begins, present: (present, term) } => {
                let followers = lease.state.as_ref().map(LeaseState::followers);
                let kept = followers.map_or(Ok(()), |all| lease.passed_on.answered(&observation, all, new));
                lease.passed_on.note(std::slice::from_ref(&object), &observation);
                let (reply, moved) = oneshot::channel();
                let answer = AskResult::of(caller.election, present, || AskResult::Moved(term, moved));
                led.answers.insert(caller.write, answer);
                self.calls.push(Command::Follow { object, update: Update::Lease { observation, begins }, reply });
                self.judge(kept);
            }
            Effect::Refuse(caller, why) => {
                let refusal = match why {
                    Unknown::Away(_) => Refusal::SourceUnavailable { fence: Fence::default() },
                    Unknown::Ledger(_) => Refusal::Busy { stops: false },
                };
                led.answers.insert(caller.write, AskResult::No(refusal));
            }
            Effect::ObserveAll(objects, observation) => {
                lease.passed_on.note(&objects, &observation);
                self.counts.passed_on += 1;
                self.calls.push(Command::FollowAll { objects, update: Update::Lease { observation, begins: false } });
            }
            Effect::Answer(..) => unreachable!("each write asks for its object"),
            Effect::GiveUp => {}
        }
    }
}

/// Until when a term can be held, if its Lease was renewed at this moment.
fn held_until(seen: Option<&Seen>, at: Now) -> Option<(Election, BootMs)> {
    let seen = seen.filter(|seen| seen.holder.is_some())?;
    let ms = u64::try_from(seen.duration.as_millis()).unwrap_or(u64::MAX);
    Some((seen.election, at.boot.after(Ttl(ms))))
}
