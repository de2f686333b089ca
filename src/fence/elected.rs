//! What a Kubernetes Lease does to a record. The gate keeps its own numbers: each term of leadership that it sees
//! is an advance to the next one. So a Lease that was deleted and made anew, and counts from 0 again, still gets a
//! higher number.
//!
//! A record knows the term at its fence. A token of an earlier term is stale. A token of any other term is not
//! known, and is not answered before the API server has been asked: [`Denial::Unseen`]. The result of that read
//! comes as a [`LeaseObservation`], each later than the one before it.
//!
//! The order of the checks: an earlier term, or one whose Lease is gone; locked; not known; another holder's;
//! draining; ended; its Lease not seen renewed for as long as it lasts ([`Denial::Lapsed`]).

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    BootMs, Fence, HolderId, How, Incarnation, Lease, LeaseId, LeaseSeq, Now, Record, State, Ttl,
    election::{Election, LeaseName, Uid},
    outside::{Claimed, Source, unchanged},
    step::{At, Effect, Grant, LeaseRefusal, Outcome, Step, refused},
    verdict::{Denial, Refusal, Successor},
};

/// How many Leases that led an object before a record remembers. Older ones need not be kept: the API server's
/// answers about one Lease are read in order.
const FLOORS_MAX: usize = 256;

/// The term of leadership at a record's fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elected {
    /// The Lease that this is a term of.
    pub lease: Arc<LeaseName>,
    pub election: Election,
    /// The term's number. A fence above it means that the term is over, whatever the Lease says.
    pub seq: LeaseSeq,
    /// The elected holder; `None` where the Lease had been given back when it was read.
    pub holder: Option<HolderId>,
    /// The table's incarnation in which the term was noted. In a later one, later terms may be missing.
    pub incarnation: Incarnation,
    /// An operator has said that this term may write, and no write of it has come yet.
    pub confirmed: bool,
    /// Leases that led the object before, the newest last.
    pub floors: Vec<Floor>,
}

/// Up to which term a Lease is over, whatever the API server says of it: the present Lease has replaced it under
/// the same name, or another route now leads to the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Floor {
    pub uid: Uid,
    /// The first term of this Lease that may write again; or [`Floor::GONE`].
    pub first: u32,
}

impl Floor {
    /// No term of the Lease may write again: leaseTransitions never gets this high.
    pub const GONE: u32 = u32::MAX;
}

/// What the API server says of an object's Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseObservation {
    /// There is no such Lease.
    Gone { lease: Arc<LeaseName> },
    Held {
        lease: Arc<LeaseName>,
        election: Election,
        /// `None`: the Lease was given back.
        holder: Option<HolderId>,
        /// The Lease has not been seen renewed for as long as it lasts.
        lapsed: bool,
    },
}

/// Until when a Lease counts as held, by the renewals that were seen. Shared by the watch of the Lease and every
/// write that is judged by it.
#[derive(Default)]
pub struct Term(AtomicU64);

impl Term {
    #[must_use]
    pub fn until(deadline: BootMs) -> Self {
        Self(AtomicU64::new(deadline.0))
    }

    /// Sets the deadline after a renewal was seen. It may be earlier than before.
    pub fn renew(&self, deadline: BootMs) {
        self.0.store(deadline.0, Ordering::Relaxed);
    }

    /// Ends the term.
    pub fn end(&self) {
        self.0.store(BootMs::PAST.0, Ordering::Relaxed);
    }

    #[must_use]
    pub fn deadline(&self) -> BootMs {
        BootMs(self.0.load(Ordering::Relaxed))
    }

    /// `now == deadline` is expired, everywhere.
    #[must_use]
    pub fn is_live(&self, now: Now) -> bool {
        now.boot < self.deadline()
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.deadline().fmt(f)
    }
}

/// A write by a term of leadership: its token, and what is known of the term.
#[derive(Clone, Debug)]
pub struct Claimant {
    pub election: Election,
    /// The Lease that governs the object.
    pub lease: Arc<LeaseName>,
    /// The term as far as it is known without asking; `None` where it is not.
    pub term: Option<Arc<Term>>,
    /// The holder that the write names, where its route asks for one.
    pub holder: Option<HolderId>,
}

impl Claimant {
    /// Whether the Lease is known to be in this term, and held.
    #[must_use]
    pub fn is_live(&self, now: Now) -> bool {
        self.term.as_ref().is_some_and(|term| term.is_live(now))
    }

    /// What a write of this term gets where the ledger does not follow its Lease.
    pub(super) fn refusal(&self, why: &LeaseRefusal, fence: impl FnOnce() -> Fence) -> Option<Refusal> {
        let election = self.election;
        match why {
            // The API server has gone back to a term that is over.
            LeaseRefusal::Fenced { fence } => Some(Refusal::Deposed { election, fence: *fence, successor: None }),
            LeaseRefusal::SeqExhausted => Some(Refusal::Exhausted { fence: fence() }),
            _ => None,
        }
    }

    /// The holder of the write's term and its number, where the record knows the term. The holder of an earlier
    /// term is not stored any more.
    pub(super) fn owner(&self, record: &Record) -> Option<(HolderId, LeaseSeq)> {
        let elected = record.elected.as_deref().filter(|elected| elected.election == self.election)?;
        let holder = elected.holder.as_ref()?;
        let is_own = self.holder.as_ref().is_none_or(|own| own == holder);
        is_own.then(|| (holder.clone(), elected.seq))
    }
}

impl Record {
    /// The lease that a term of leadership writes under.
    pub(super) fn judge_claimant(&self, sealed: bool, claimant: &Claimant, now: Now) -> Result<Claimed<'_>, Denial> {
        let Some((lease, ended)) = self.place_of(claimant)? else {
            return Err(Denial::Unseen(claimant.election));
        };
        let (seq, fence) = (lease.seq, self.fence);
        if claimant.holder.as_ref().is_some_and(|holder| *holder != lease.holder) {
            return Err(Refusal::OtherHolder { seq, holder: lease.holder.clone() }.into());
        }
        if sealed {
            return Err(Refusal::Draining { fence }.into());
        }
        if let Some(ended) = ended {
            return Err(Refusal::Ended { seq, holder: lease.holder.clone(), ended: ended.clone() }.into());
        }
        match claimant.term.as_ref().filter(|term| term.is_live(now)) {
            Some(term) => {
                Ok(Claimed { lease, remaining_ms: term.deadline().since(now.boot), term: Some(Arc::clone(term)) })
            }
            None => Err(Denial::Lapsed(lease.lease_id.clone())),
        }
    }

    /// The lease of a term, and its end if it has ended; `None` where the API server has to be asked.
    fn place_of(
        &self,
        Claimant { election, holder, .. }: &Claimant,
    ) -> Result<Option<(&Lease, Option<&super::Ended>)>, Refusal> {
        let (election, holder) = (*election, holder.as_ref());
        let stale = || {
            let heir = self.open_lease().map(|lease| (&lease.holder, &lease.lease_id));
            let successor = heir.map(|(holder, id)| Successor { holder: holder.clone(), lease_id: id.clone() });
            Refusal::Deposed { election, fence: self.fence, successor }
        };
        let elected = self.elected.as_deref();
        if elected.is_some_and(|elected| self.is_over(elected, election)) {
            return Err(stale());
        }
        if self.is_term_locked() {
            return Err(Refusal::Locked { fence: self.fence });
        }
        if elected.is_none_or(|elected| elected.election != election) {
            return Ok(None);
        }
        match &self.state {
            State::Draining { .. } => {
                match elected.and_then(|elected| elected.holder.as_ref().zip(Some(elected.seq))) {
                    Some((elect, seq)) if holder.is_some_and(|holder| holder != elect) => {
                        Err(Refusal::OtherHolder { seq, holder: elect.clone() })
                    }
                    Some(_) | None => Err(Refusal::Draining { fence: self.fence }),
                }
            }
            // An operator has confirmed the term, or its Lease had been given back when it was read.
            State::Free { last: None } => Ok(None),
            State::Free { last: Some((lease, ended)) } => Ok(Some((lease, Some(ended)))),
            State::Open { lease } => Ok(Some((lease, None))),
        }
    }

    /// Whether a term is known to be over.
    fn is_over(&self, elected: &Elected, election: Election) -> bool {
        // Where part of the past is lost, the floor was raised for that reason.
        let has_passed = self.fence > Fence::from(elected.seq) && !self.is_term_locked();
        (elected.election == election && has_passed)
            || election.is_before(elected.election)
            || elected.floors.iter().any(|floor| floor.uid == election.uid && election.transitions < floor.first)
    }

    /// Whether the terms that are over are not all known, because part of the table's past is lost.
    #[must_use]
    pub fn is_term_locked(&self) -> bool {
        let known = self.elected.as_ref().map(|elected| elected.incarnation);
        self.incarnation > known.unwrap_or_default()
    }

    /// Takes in what the API server says of the object's Lease. `begins`: also where no term of that Lease is
    /// known.
    pub(super) fn observe(&self, observation: LeaseObservation, begins: bool, lease_id: LeaseId, at: &At<'_>) -> Step {
        if self.is_term_locked() {
            return refused(LeaseRefusal::Locked { fence: self.fence });
        }
        let (lease, election, holder, lapsed) = match observation {
            LeaseObservation::Gone { lease } => return self.lose_its_lease(&lease, at),
            LeaseObservation::Held { lease, election, holder, lapsed } => (lease, election, holder, lapsed),
        };
        match self.elected.as_deref() {
            Some(elected) if self.is_over(elected, election) => refused(LeaseRefusal::Fenced { fence: self.fence }),
            Some(elected) if elected.election == election => {
                self.observe_same_term(elected, holder, lapsed, lease_id, at)
            }
            Some(elected) if elected.lease == lease || begins => {
                self.begin_term((lease, election), holder.as_ref(), lease_id, at)
            }
            None if begins => self.begin_term((lease, election), holder.as_ref(), lease_id, at),
            Some(_) | None => unchanged(),
        }
    }

    /// The step where the Lease is in the term that is known.
    fn observe_same_term(
        &self,
        known: &Elected,
        holder: Option<HolderId>,
        lapsed: bool,
        lease_id: LeaseId,
        at: &At<'_>,
    ) -> Step {
        // Two holders would share one token, and their writes could not be kept apart.
        let two_holders = |holder: &HolderId| {
            let reason = format!("its Lease went to {holder} without a transition");
            self.advance(How::Fenced { reason }, None, at)
        };
        match (&self.state, holder) {
            // The term was confirmed, or the drain that was to open it was cut short. A term that had no holder
            // when it was first read stays without one: its writers got the answer that it is over.
            (State::Free { last: None }, Some(holder)) if known.confirmed || known.holder.as_ref() == Some(&holder) => {
                self.begin_term((Arc::clone(&known.lease), known.election), Some(&holder), lease_id, at)
            }
            (State::Draining { .. }, Some(holder)) if known.holder.as_ref() != Some(&holder) => two_holders(&holder),
            (State::Draining { .. }, None) if known.holder.is_some() => self.advance(How::Released, None, at),
            (State::Open { lease }, None) => self.free(lease, How::Released, at, Outcome::Ended),
            (State::Open { lease }, Some(holder)) if holder != lease.holder => two_holders(&holder),
            (State::Open { lease }, Some(_)) if lapsed => self.free(lease, How::Expired, at, Outcome::Ended),
            (State::Free { .. } | State::Draining { .. } | State::Open { .. }, _) => unchanged(),
        }
    }

    /// The step for a term that is new to this record.
    fn begin_term(
        &self,
        (lease, election): (Arc<LeaseName>, Election),
        holder: Option<&HolderId>,
        lease_id: LeaseId,
        at: &At<'_>,
    ) -> Step {
        let grant = holder.map(|holder| grant(lease_id, holder.clone()));
        let (outcome, mut effects) = self.advance(How::Fenced { reason: format!("{election}") }, grant, at);
        let mut floors = self.floors_below(&lease, election);
        for effect in &mut effects {
            if let Effect::Store(record) = effect
                && let Some(seq) = LeaseSeq::new(record.fence.get())
            {
                let (lease, incarnation) = (Arc::clone(&lease), record.incarnation);
                let (holder, floors) = (holder.cloned(), std::mem::take(&mut floors));
                let elected = Elected { lease, election, seq, holder, incarnation, confirmed: false, floors };
                record.elected = Some(Arc::new(elected));
            }
        }
        (outcome, effects)
    }

    /// The floors to remember of the Leases before this term's.
    fn floors_below(&self, lease: &LeaseName, election: Election) -> Vec<Floor> {
        let Some(before) = self.elected.as_deref() else { return vec![] };
        let mut floors = before.floors.clone();
        let Election { uid, transitions } = before.election;
        if uid != election.uid {
            // A Lease of another name can lead the object again when its route is changed back. Its term then goes
            // on, unless an answer has said that the term is over.
            let is_gone = *before.lease == *lease;
            let first = if is_gone { Floor::GONE } else { transitions + u32::from(self.has_ended(before)) };
            raise(&mut floors, Floor { uid, first });
        }
        floors
    }

    /// Whether the known term is over, though its Lease may still be in it.
    fn has_ended(&self, known: &Elected) -> bool {
        self.fence > Fence::from(known.seq)
            || match &self.state {
                State::Free { last: Some(_) } => true,
                State::Free { last: None } => known.holder.is_none() && !known.confirmed,
                State::Draining { .. } | State::Open { .. } => false,
            }
    }

    /// Ends the known term where its Lease is deleted: its holder may write no longer, and no term of it comes
    /// back.
    fn lose_its_lease(&self, lease: &LeaseName, at: &At<'_>) -> Step {
        // A deleted Lease of another name says nothing about this term: its route has changed, and the holder of
        // the new Lease will begin a term.
        let Some(elected) = self.elected.as_deref().filter(|elected| *elected.lease == *lease) else {
            return unchanged();
        };
        let gone = Floor { uid: elected.election.uid, first: Floor::GONE };
        if elected.floors.contains(&gone) {
            return unchanged();
        }
        let (outcome, mut effects) = self.advance(How::Fenced { reason: "its Lease is gone".to_owned() }, None, at);
        for effect in &mut effects {
            if let Effect::Store(record) = effect {
                let mut elected = elected.clone();
                raise(&mut elected.floors, gone);
                record.elected = Some(Arc::new(elected));
            }
        }
        (outcome, effects)
    }

    /// An operator names the earliest term that may still write.
    pub(super) fn confirm_term(&self, lease: Arc<LeaseName>, election: Election, at: &At<'_>) -> Step {
        if !self.is_term_locked() {
            return unchanged();
        }
        let is_stale = self.elected.as_deref().is_some_and(|known| self.is_over(known, election));
        let Some(seq) = LeaseSeq::new(self.fence.get()).filter(|_| !is_stale) else {
            return refused(LeaseRefusal::Fenced { fence: self.fence });
        };
        let floors = self.floors_below(&lease, election);
        let mut record = self.with(self.fence, State::Free { last: None }, at);
        let (incarnation, confirmed) = (record.incarnation, true);
        let elected = Elected { lease, election, seq, holder: None, incarnation, confirmed, floors };
        record.elected = Some(Arc::new(elected));
        (Outcome::Freed, vec![Effect::Store(record)])
    }

    /// The grant that opens the object for the elected holder.
    pub(super) fn elected_grant(&self, lease_id: LeaseId) -> Option<Grant> {
        let elected = self.elected.as_deref().filter(|elected| self.fence == Fence::from(elected.seq))?;
        Some(grant(lease_id, elected.holder.clone()?))
    }

    /// Whether the lease at the fence is a term of leadership, which no lease call can end.
    pub(super) fn is_led(&self) -> bool {
        let is_at_fence = |elected: &Elected| self.fence == Fence::from(elected.seq);
        self.elected.as_deref().is_some_and(is_at_fence)
    }
}

fn grant(lease_id: LeaseId, holder: HolderId) -> Grant {
    let (ttl, source) = (Ttl::FOR_EVER, Source::Kubernetes);
    Grant { lease_id, holder, ttl, request: None, tainted: false, window: None, source }
}

fn raise(floors: &mut Vec<Floor>, Floor { uid, first }: Floor) {
    let before = floors.iter().find(|floor| floor.uid == uid).map_or(0, |floor| floor.first);
    floors.retain(|floor| floor.uid != uid);
    if floors.len() == FLOORS_MAX {
        floors.remove(0);
    }
    floors.push(Floor { uid, first: first.max(before) });
}

#[cfg(test)]
#[path = "elected_tests.rs"]
mod tests;
