//! Objects that Kubernetes Leases lead: an API server; candidates that take, renew, lose and delete its Leases;
//! routes that change to other Leases; and the gate's reads of them, whose answers may be late.
//!
//! `kubernetes::known`, the ledger and the judge are the product's own. What `kubernetes::elections` does with
//! tasks and locks is done here step by step: reads of one Lease follow each other, and the ledger gets each result
//! before the next read begins; the watch lags; a write that asks under older routes is refused.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::sync::oneshot;

use super::world::{START, World};
use fencegate::{
    fence::{
        BootMs, Fence, Now, ObjectId, Refusal, Ttl,
        elected::{Claimant, Term},
        election::{Election, LeaseName, TermStatus, Uid},
    },
    kubernetes::{api::Seen, known::Known},
    table::ledger::{Command, LedgerError, Moved},
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
    /// What the gate knows. This and the following fields are gone with the gate.
    known: Option<Known>,
    told: BTreeSet<ObjectId>,
    asking: Vec<Ask>,
    /// The watch has shown a change.
    is_hinted: bool,
    read: Option<Read>,
}

/// A write that asks whether its term is the present one.
struct Ask {
    write: u64,
    object: ObjectId,
    election: Election,
    generation: u64,
}

/// A read that is under way.
struct Read {
    sent: Now,
    /// The result of the read, and how many terms had begun by then.
    found: Option<(Option<Seen>, usize)>,
    askers: Vec<Ask>,
}

/// The answer to an ask.
pub(super) enum AskResult {
    No(Refusal),
    /// The write's term, and the ledger's answer about its object.
    Moved(Arc<Term>, oneshot::Receiver<Result<Moved, LedgerError>>),
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
            known: None,
            told: BTreeSet::new(),
            asking: vec![],
            is_hinted: false,
            read: None,
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
            (lease.known, lease.read, lease.is_hinted) = (None, None, false);
            lease.told.clear();
            lease.asking.clear();
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
        self.read.is_some() || self.is_hinted || !self.asking.is_empty() || !self.unshown.is_empty()
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
        led.leases.iter_mut().for_each(|lease| lease.told.clear());
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

    /// Does what `LeaseObserver::ask` does: the write is answered after the next read.
    pub(super) fn ask_about(&mut self, write: u64, object: &ObjectId, claim: &TermClaim) {
        let (election, generation) = (claim.claimant.election, claim.generation);
        let led = self.led();
        if let Some(lease) = led.leases.iter_mut().find(|lease| lease.name == claim.claimant.lease) {
            lease.asking.push(Ask { write, object: object.clone(), election, generation });
        }
    }

    /// One step of the API server, the watch or the gate's reader.
    pub(super) fn cluster_step(&mut self) {
        let now = self.now();
        let busy: Vec<usize> = (0..self.led().leases.len()).filter(|n| self.led().leases[*n].is_busy()).collect();
        let Some(place) = busy.get(self.rng.place(busy.len().max(1))).copied() else { return };
        let (shows, begun) = (self.rng.percent(30), self.led().terms.len());
        let lease = &mut self.led().leases[place];
        if shows && let Some(seen) = lease.unshown.pop_front() {
            // Before the first read there is nothing to compare the change with.
            let until = held_until(seen.as_ref(), now);
            lease.is_hinted |= lease.known.as_mut().is_some_and(|known| !known.hear(seen, now));
            if let Some((election, until)) = until {
                self.oracle.term_until(election, until);
            }
            return;
        }
        match &mut lease.read {
            Some(read) if read.found.is_none() => read.found = Some((lease.now.clone(), begun)),
            Some(_) => self.finish_read(place),
            None if lease.is_hinted || !lease.asking.is_empty() => {
                let is_hinted = std::mem::take(&mut lease.is_hinted);
                // A question about a term that is known and held needs no read.
                let is_known = |ask: &Ask| lease.known.as_ref().is_some_and(|known| known.is_in(ask.election, now));
                let (known, askers): (Vec<Ask>, Vec<Ask>) =
                    std::mem::take(&mut lease.asking).into_iter().partition(is_known);
                if is_hinted || !askers.is_empty() {
                    lease.read = Some(Read { sent: now, found: None, askers });
                    self.counts.lease_reads += 1;
                }
                for ask in known {
                    self.tell(place, ask);
                }
            }
            None => {}
        }
    }

    /// Takes the result of a read: updates what is known, and answers the writes that asked.
    fn finish_read(&mut self, place: usize) {
        let led = self.led();
        let lease = &mut led.leases[place];
        let Some(Read { sent, found: Some((seen, begun)), askers }) = lease.read.take() else { return };
        let present = seen.as_ref().map(|seen| seen.election);
        let holder = seen.as_ref().and_then(|seen| seen.holder.clone());
        let until = held_until(seen.as_ref(), sent);
        // Another holder without a transition: neither may write what was open to the first.
        let before = lease.known.as_ref().and_then(|known| known.seen.clone());
        let is_shared = before.is_some_and(|before| {
            Some(before.election) == present && before.holder.is_some() && before.holder != holder && holder.is_some()
        });
        let shared: Vec<ObjectId> = if is_shared { lease.told.iter().cloned().collect() } else { vec![] };
        match &mut lease.known {
            None => lease.known = Some(Known::first(seen, sent)),
            Some(known) => known.again(seen, sent),
        }
        let over = led.terms[..begun].iter().filter(|term| term.lease == place && Some(term.election) != present);
        let over: Vec<Election> = over.map(|term| term.election).collect();
        self.oracle.terms_over(&over);
        if let Some((election, until)) = until {
            self.oracle.term_until(election, until);
        }
        if let Some(election) = present {
            for object in &shared {
                self.oracle.term_shared(object, election);
            }
            if holder.is_none() {
                // The Lease was given back, and cannot be taken again without a transition.
                self.oracle.terms_over(&[election]);
            }
        }
        for ask in askers {
            self.tell(place, ask);
        }
        let lease = &mut self.led().leases[place];
        let Some(known) = lease.known.as_mut().filter(|known| !known.is_told) else { return };
        known.is_told = true;
        if let Ok(observation) = known.observation(&lease.name) {
            let objects = lease.told.iter().cloned().collect();
            self.calls.push(Command::ObserveAll { objects, observation });
        }
    }

    /// Does what `LeaseObserver::tell` and `elect::attach_present_term` do.
    fn tell(&mut self, place: usize, Ask { write, object, election, generation }: Ask) {
        let led = self.led();
        let lease = &mut led.leases[place];
        let Some(known) = &lease.known else { return };
        let (present, term, observation) = (known.election(), Arc::clone(&known.term), known.observation(&lease.name));
        let Ok(observation) = observation else { return };
        if generation != led.generation {
            led.answers.insert(write, AskResult::No(Refusal::Busy { stops: false }));
            return;
        }
        let begins = present == Some(election);
        if begins {
            led.leases.iter_mut().for_each(|lease| {
                lease.told.remove(&object);
            });
            led.leases[place].told.insert(object.clone());
        }
        let (reply, moved) = oneshot::channel();
        let asked = match election.status(present) {
            TermStatus::Present => AskResult::Moved(term, moved),
            TermStatus::Ahead => AskResult::No(Refusal::NotElected { election, fence: Fence::default() }),
            TermStatus::Over => AskResult::No(Refusal::Deposed { election, fence: Fence::default(), successor: None }),
        };
        led.answers.insert(write, asked);
        self.calls.push(Command::Observe { object, observation, begins, reply });
    }
}

/// Until when a term can be held, if its Lease was renewed at this moment.
fn held_until(seen: Option<&Seen>, at: Now) -> Option<(Election, BootMs)> {
    let seen = seen.filter(|seen| seen.holder.is_some())?;
    let ms = u64::try_from(seen.duration.as_millis()).unwrap_or(u64::MAX);
    Some((seen.election, at.boot.after(Ttl(ms))))
}

impl Led {
    /// Does what `LeaseObserver::stand` does: fills in what is known without a read.
    fn attach_term(&self, object: &ObjectId, lease: usize, claimant: &mut Claimant) {
        let Lease { told, known, .. } = &self.leases[lease];
        let known = known.as_ref().filter(|_| told.contains(object));
        claimant.term = known.and_then(|known| known.term_of(claimant.election));
    }
}
