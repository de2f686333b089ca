//! Lease changes: `record.step(event, at) -> (Outcome, Vec<Effect>)`.
//!
//! A step changes nothing itself. Its effects say what has to become durable, what watchers get, and what has to
//! drain. The ledger carries them out in that order, and only then gives the outcome to the caller. An advance is
//! always two steps: the first moves the fence and leaves the object `draining`; [`Event::Drained`] is the second
//! and the only one that opens the object. Where no write was on its way to the store, the ledger takes both in one
//! synced batch.

use std::sync::Arc;

pub use super::outside::Source;
use super::{
    Certified, Ended, Fence, FenceToken, Hlc, HolderId, How, Lease, LeaseId, LeaseRow, LeaseSeq, Now, Record,
    RequestId, State, TableKey, Ttl, WallMs,
    authority::SignedGrant,
    lease::Start,
    outside::{Claim, Update},
    record::{AdvanceId, Numbers},
};

/// When a step happens, and the key that its tokens are made with.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    pub now: Now,
    pub stamp: Hlc,
    pub key: &'a TableKey,
}

/// A lease that may be granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub lease_id: LeaseId,
    pub holder: HolderId,
    pub ttl: Ttl,
    pub request: Option<RequestId>,
    pub tainted: bool,
    /// The times that a signed grant names, which then count instead of `ttl`.
    pub window: Option<Window>,
    pub source: Source,
}

/// From when until when a signed grant counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub start: WallMs,
    pub until: WallMs,
}

/// A caller's claim to a lease that the table remembers: the holder that it names, and its token.
#[derive(Clone, Debug)]
pub struct LeaseProof {
    pub row: LeaseRow,
    /// `None` where the call names no holder (a release: the token is enough).
    pub holder: Option<HolderId>,
    pub token: FenceToken,
}

/// What is asked of a record.
#[derive(Clone, Debug)]
pub enum Event {
    /// `takeover_after_ms`: the holder may take over its own live lease once the lease is that old.
    Acquire {
        grant: Grant,
        takeover_after_ms: Option<u64>,
    },
    /// `rotate`: under a new number and lease id, so that tokens that others have seen stop working.
    Renew {
        proof: LeaseProof,
        ttl: Ttl,
        rotate: Option<LeaseId>,
    },
    Release {
        proof: LeaseProof,
    },
    /// The client of this grant is gone, so no writer has its token.
    Withdraw {
        lease_id: LeaseId,
    },
    /// The lease's deadline has passed: make its end final.
    End {
        lease_id: LeaseId,
    },
    /// An operator moves the fence past the present holder. `source`: of the object's leases, by its routes.
    Revoke {
        reason: String,
        source: Source,
    },
    /// A certificate moves the fence past the lease that it names. Certificates may come at any time, in any order,
    /// and any number of times.
    Fence {
        by: Arc<Certified>,
        /// How far the certificate may move the fence; further needs an operator's confirmation.
        max_jump: u64,
    },
    /// An issuer gives the object to a holder, under a number of the issuer's choice.
    Grant(SignedGrant),
    /// An outside source says who may write, or a writer brings its token.
    Follow {
        update: Update,
        /// The id of the lease, if one begins.
        lease_id: LeaseId,
    },
    /// An operator says which token of an outside source is the lowest that may still write.
    Confirm {
        lowest: Claim,
    },
    /// No older write is on its way to the store any more.
    Drained {
        seq: LeaseSeq,
        advance: AdvanceId,
        then: Option<Grant>,
    },
}

/// What the caller gets, once the effects are durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The fence has moved; the second step follows when the object has drained.
    Advancing,
    Granted(Lease),
    Renewed(Lease),
    /// The fence is already where the certificate wants it, and the certificate is the newest.
    Fenced,
    /// A newer certificate is known.
    Superseded,
    /// The object has no holder.
    Freed,
    /// The lease has ended, now or before.
    Ended,
    /// Nothing to do: the lease lives on, or was no longer this object's.
    Unchanged,
    Refused(LeaseRefusal),
}

/// Why a lease call is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseRefusal {
    /// Another lease is live, or the object is draining: then no holder is named. Ask again after so long.
    Held {
        lease: Option<(LeaseId, HolderId, LeaseSeq)>,
        retry_ms: u64,
        /// The caller holds the lease itself, and may take it over once the lease is this old.
        takeover_after_ms: Option<u64>,
    },
    NotHolder,
    TokenMismatch,
    Fenced {
        fence: Fence,
    },
    Expired {
        ended: Ended,
    },
    SeqExhausted,
    ClockUntrusted,
    /// The fence would move further than it may without an operator's confirmation.
    Jump {
        fence: Fence,
        to: LeaseSeq,
    },
    /// A grant names another predecessor than this one, or names none.
    Predecessor {
        expected: Option<LeaseId>,
    },
    /// A grant's fence_proof is not the signature of the certificate that fenced its predecessor.
    FenceProof,
    /// The grant's token was handed out and used, or its lease is another holder's.
    GrantUsed,
    /// An outside number is further above the fence than its route allows.
    Ahead {
        fence: Fence,
        to: LeaseSeq,
    },
    /// The lowest outside number that may still write is not known.
    Locked {
        fence: Fence,
    },
}

/// What the ledger has to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The object's new row.
    Store(Record),
    /// A lease's row, new or ended.
    Remember(Arc<LeaseRow>),
    /// What watchers get.
    Announce(Announcement),
    /// Seal the object; feed [`Event::Drained`] with these when no older write is on its way.
    Drain { seq: LeaseSeq, advance: AdvanceId, then: Option<Grant> },
}

/// One event for watchers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    pub kind: Kind,
    pub row: Arc<LeaseRow>,
    /// The object's fence as this change left it.
    pub fence: Fence,
}

/// What happened to a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Granted,
    Renewed,
    Released,
    Fenced,
    Expired,
}

impl Kind {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Renewed => "renewed",
            Self::Released => "released",
            Self::Fenced => "fenced",
            Self::Expired => "expired",
        }
    }
}

/// How long a caller waits before it asks for a draining object again: the end of the drain cannot be foreseen.
const DRAIN_RETRY_MS: u64 = 1_000;

pub(super) type Step = (Outcome, Vec<Effect>);

impl Record {
    /// Decides one event against this record.
    #[must_use]
    pub fn step(&self, event: Event, at: &At<'_>) -> Step {
        match event {
            Event::Acquire { grant, takeover_after_ms } => self.acquire(grant, takeover_after_ms, at),
            Event::Renew { proof, ttl, rotate } => self.renew(&proof, ttl, rotate, at),
            Event::Release { proof } => match self.holds(&proof, at) {
                Ok(lease) => self.free(lease, How::Released, at, Outcome::Freed),
                Err(step) => step,
            },
            Event::Withdraw { lease_id } => match self.open_lease() {
                Some(lease) if lease.lease_id == lease_id => self.free(lease, How::Released, at, Outcome::Freed),
                Some(_) | None => (Outcome::Unchanged, vec![]),
            },
            Event::End { lease_id } => self.end(&lease_id, at),
            Event::Revoke { reason, source } => self.revoke(reason, source, at),
            Event::Fence { by, max_jump } => self.certify(by, max_jump, at),
            Event::Grant(signed) => self.grant(signed, at),
            Event::Follow { update, lease_id } => self.follow(update, lease_id, at),
            Event::Confirm { lowest } => self.confirm(&lowest, at),
            Event::Drained { seq, advance, then } => self.open(seq, advance, then, at),
        }
    }

    fn acquire(&self, grant: Grant, takeover_after_ms: Option<u64>, at: &At<'_>) -> Step {
        let lease = match &self.state {
            State::Draining { .. } => return held(None, DRAIN_RETRY_MS),
            State::Free { .. } => return self.advance(How::Expired, Some(grant), at),
            // The object's lock was kept elsewhere; from here on it is the gate's.
            State::Open { .. } if self.source().is_outside() => {
                let how = How::Fenced { reason: "leases are the gate's own now".to_owned() };
                return self.advance(how, Some(grant), at);
            }
            State::Open { lease } => lease,
        };
        if !lease.is_live(at.now) {
            return self.advance(How::Expired, Some(grant), at);
        }
        match takeover_after_ms {
            Some(after) if lease.holder == grant.holder => {
                let age = at.now.wall.0.saturating_sub(lease.acquired_at.0);
                if age < after {
                    return held_for(Some(lease), after - age, Some(after));
                }
                self.advance(How::Fenced { reason: "takeover".to_owned() }, Some(grant), at)
            }
            Some(_) | None => held(Some(lease), lease.remaining_ms(at.now)),
        }
    }

    fn renew(&self, proof: &LeaseProof, ttl: Ttl, rotate: Option<LeaseId>, at: &At<'_>) -> Step {
        let lease = match self.holds(proof, at) {
            Ok(lease) => lease,
            Err(step) => return step,
        };
        if let Some(lease_id) = rotate {
            let (holder, tainted) = (lease.holder.clone(), lease.tainted);
            let grant = Grant { lease_id, holder, ttl, request: None, tainted, window: None, source: Source::Gate };
            return self.advance(How::Fenced { reason: "rotated".to_owned() }, Some(grant), at);
        }
        let mut lease = lease.clone();
        lease.extend(ttl, at.now);
        lease.used = true;
        let record = self.with(self.fence, State::Open { lease: lease.clone() }, at);
        let row = Arc::new(LeaseRow::new(&self.object, &lease, None));
        let effects = vec![announce(Kind::Renewed, row, self.fence), Effect::Store(record)];
        (Outcome::Renewed(lease), effects)
    }

    /// The claim's lease, if it is open, live and at the fence; else the refusal. The order of the checks is part
    /// of the api.
    fn holds(&self, proof: &LeaseProof, at: &At<'_>) -> Result<&Lease, Step> {
        let row = &proof.row;
        if proof.holder.as_ref().is_some_and(|holder| *holder != row.holder) {
            return Err(refused(LeaseRefusal::NotHolder));
        }
        let secret = at.key.secret(&row.object, row.seq, &row.lease_id);
        if proof.token.object != row.object || proof.token.seq != row.seq || proof.token.secret != secret {
            return Err(refused(LeaseRefusal::TokenMismatch));
        }
        match self.lease() {
            Some((lease, ended)) if lease.lease_id == row.lease_id => match ended {
                Some(ended) => Err(refused(LeaseRefusal::Expired { ended: ended.clone() })),
                None if lease.is_live(at.now) => Ok(lease),
                None => Err(self.expire(lease, at)),
            },
            Some(_) | None => Err(refused(LeaseRefusal::Fenced { fence: self.fence })),
        }
    }

    /// Ends the open lease, which is past its deadline, and refuses the caller for that reason.
    pub(super) fn expire(&self, lease: &Lease, at: &At<'_>) -> Step {
        let ended = Ended { how: How::Expired, at: at.now.wall, stamp: at.stamp };
        self.free(lease, How::Expired, at, Outcome::Refused(LeaseRefusal::Expired { ended }))
    }

    fn end(&self, lease_id: &LeaseId, at: &At<'_>) -> Step {
        match self.lease() {
            Some((lease, ended)) if lease.lease_id == *lease_id => match ended {
                Some(_) => (Outcome::Ended, vec![]),
                None if lease.is_live(at.now) => (Outcome::Unchanged, vec![]),
                None => self.free(lease, How::Expired, at, Outcome::Ended),
            },
            Some(_) | None => (Outcome::Ended, vec![]),
        }
    }

    /// Ends the open lease at its fence: the object has no holder then, and the floor stays.
    pub(super) fn free(&self, lease: &Lease, how: How, at: &At<'_>, outcome: Outcome) -> Step {
        let ended = Ended { how, at: at.now.wall, stamp: at.stamp };
        let row = Arc::new(LeaseRow::new(&self.object, lease, Some(ended.clone())));
        let effects = vec![
            Effect::Remember(Arc::clone(&row)),
            announce(kind_of_end(&ended.how), row, self.fence),
            Effect::Store(self.with(self.fence, State::Free { last: Some((lease.clone(), ended)) }, at)),
        ];
        (outcome, effects)
    }

    /// Moves the fence up by one. An open lease ends, as `how` says (or expired, where it was).
    pub(super) fn advance(&self, how: How, then: Option<Grant>, at: &At<'_>) -> Step {
        let next = match self.numbers {
            // The number has no holder: only the outside lock service can give it.
            Numbers::External if then.is_none() => self.fence.get().checked_add(1).and_then(LeaseSeq::new),
            Numbers::Gate | Numbers::External => self.gate_floor().next(),
        };
        match next {
            Some(seq) => self.advance_to(seq, how, then, at),
            None => refused(LeaseRefusal::SeqExhausted),
        }
    }

    /// Moves the fence to a number that is not below the fence and that was never granted.
    pub(super) fn advance_to(&self, seq: LeaseSeq, how: How, then: Option<Grant>, at: &At<'_>) -> Step {
        if !at.now.is_plausible() {
            return refused(LeaseRefusal::ClockUntrusted);
        }
        let mut effects = vec![];
        if let State::Open { lease } = &self.state {
            let how = if lease.is_live(at.now) { how } else { How::Expired };
            let ended = Ended { how, at: at.now.wall, stamp: at.stamp };
            let kind = kind_of_end(&ended.how);
            let row = Arc::new(LeaseRow::new(&self.object, lease, Some(ended)));
            effects.push(Effect::Remember(Arc::clone(&row)));
            effects.push(announce(kind, row, seq.into()));
        }
        let advance = AdvanceId(at.stamp);
        let opens = then.as_ref().filter(|grant| grant.source.is_outside()).map(|grant| grant.ttl);
        let record = self.with(seq.into(), State::Draining { advance, opens }, at);
        effects.push(Effect::Store(match &then {
            None => record,
            Some(grant) => record.counted_by(grant.source),
        }));
        effects.push(Effect::Drain { seq, advance, then });
        (Outcome::Advancing, effects)
    }

    /// Opens the object for the grant that its drain was for, or leaves it without a holder.
    fn open(&self, seq: LeaseSeq, advance: AdvanceId, then: Option<Grant>, at: &At<'_>) -> Step {
        if !self.is_draining_at(seq, advance) {
            return refused(LeaseRefusal::Fenced { fence: self.fence });
        }
        let Some(grant) = then else {
            return (Outcome::Freed, vec![Effect::Store(self.with(self.fence, State::Free { last: None }, at))]);
        };
        let ttl = match grant.window {
            None => grant.ttl,
            Some(window) if window.until > at.now.wall => Ttl(window.until.0 - at.now.wall.0),
            // The drain took longer than the grant's time, so the object gets no holder.
            Some(_) => {
                let ended = Ended { how: How::Expired, at: at.now.wall, stamp: at.stamp };
                let free = self.with(self.fence, State::Free { last: None }, at);
                return (Outcome::Refused(LeaseRefusal::Expired { ended }), vec![Effect::Store(free)]);
            }
        };
        let start = grant
            .window
            .filter(|window| window.start > at.now.wall)
            .map(|window| Start { at: window.start, boot: at.now.boot.after(Ttl(window.start.0 - at.now.wall.0)) });
        let lease = Lease {
            proof: at.key.proof(&self.object, seq, &grant.lease_id),
            lease_id: grant.lease_id,
            seq,
            holder: grant.holder,
            acquired_at: at.now.wall,
            expires_at: at.now.wall.after(ttl),
            deadline: at.now.boot.after(ttl),
            ttl,
            request: grant.request,
            used: false,
            tainted: grant.tainted,
            start,
        };
        let row = Arc::new(LeaseRow::new(&self.object, &lease, None));
        let effects = vec![
            Effect::Remember(Arc::clone(&row)),
            announce(Kind::Granted, row, self.fence),
            Effect::Store(self.with(self.fence, State::Open { lease: lease.clone() }, at)),
        ];
        (Outcome::Granted(lease), effects)
    }

    pub(super) fn with(&self, fence: Fence, state: State, at: &At<'_>) -> Self {
        let (object, certified, elected) = (self.object.clone(), self.certified.clone(), self.elected.clone());
        let Self { incarnation, numbers, lost, .. } = *self;
        Self { object, fence, state, incarnation, changed: at.stamp, certified, numbers, elected, lost }
    }

    /// Whether this advance has yet to end.
    #[must_use]
    pub fn is_draining_at(&self, seq: LeaseSeq, by: AdvanceId) -> bool {
        let is_by_it = matches!(self.state, State::Draining { advance, .. } if advance == by);
        self.fence == Fence::from(seq) && is_by_it
    }

    /// The lease that a repeated request gets again: it is open and live, and no write or renewal has shown that it
    /// reached its holder.
    #[must_use]
    pub fn replay(&self, lease_id: &LeaseId, now: Now) -> Option<&Lease> {
        self.open_lease().filter(|lease| lease.lease_id == *lease_id && !lease.used && lease.is_live(now))
    }
}

pub(super) fn announce(kind: Kind, row: Arc<LeaseRow>, fence: Fence) -> Effect {
    Effect::Announce(Announcement { kind, row, fence })
}

fn kind_of_end(how: &How) -> Kind {
    match how {
        How::Expired => Kind::Expired,
        How::Released => Kind::Released,
        How::Fenced { .. } => Kind::Fenced,
    }
}

pub(super) fn refused(refusal: LeaseRefusal) -> Step {
    (Outcome::Refused(refusal), vec![])
}

pub(super) fn held(lease: Option<&Lease>, retry_ms: u64) -> Step {
    held_for(lease, retry_ms, None)
}

fn held_for(lease: Option<&Lease>, retry_ms: u64, takeover_after_ms: Option<u64>) -> Step {
    let lease = lease.map(|lease| (lease.lease_id.clone(), lease.holder.clone(), lease.seq));
    refused(LeaseRefusal::Held { lease, retry_ms, takeover_after_ms })
}

#[cfg(test)]
#[path = "step_tests.rs"]
mod tests;
