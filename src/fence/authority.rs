//! What signed statements do to a record: certificates that move its fence past a lease, and grants that give the
//! object to a holder under a number of the issuer's choice. `crate::authority` checks the signatures before.
//!
//! Certificates may come from any sender, at any time, in any order and any number of times; the record is the same
//! in the end. It keeps the newest certificate: the one with the highest lease_seq, then the latest time, then the
//! larger signature.

use std::{cmp::Ordering, fmt, sync::Arc};

use super::{
    Ended, Fence, Hlc, How, IssuerId, LeaseId, LeaseRow, LeaseSeq, Record, State, WallMs,
    seq::MAX_GATE_SEQ,
    step::{At, Effect, Grant, Kind, LeaseRefusal, Outcome, Step, announce, held, refused},
};

/// The longest text in a statement that is not an id: a reason, or a cluster's name.
pub const TEXT_MAX: usize = 1_024;

/// A certificate's signature. A grant shows it to prove that its predecessor was fenced.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FenceProof(pub [u8; FenceProof::BYTES]);

impl FenceProof {
    pub const BYTES: usize = 96;
}

impl fmt::Debug for FenceProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What the newest certificate of an object says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certified {
    /// The lease that was fenced.
    pub lease_id: LeaseId,
    pub seq: LeaseSeq,
    pub issuer: IssuerId,
    pub time: Hlc,
    pub proof: FenceProof,
}

/// Certificates are ordered by lease_seq, then time, then signature: the highest is the newest.
impl Ord for Certified {
    fn cmp(&self, other: &Self) -> Ordering {
        let rank = |each: &Self| (each.seq, each.time, each.proof);
        rank(self).cmp(&rank(other)).then_with(|| (&self.lease_id, &self.issuer).cmp(&(&other.lease_id, &other.issuer)))
    }
}

impl PartialOrd for Certified {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The lease that a grant says came before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Predecessor {
    pub lease_id: LeaseId,
    pub proof: Option<FenceProof>,
}

/// An issuer's grant, whose signature was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedGrant {
    pub seq: LeaseSeq,
    pub grant: Grant,
    pub predecessor: Option<Predecessor>,
    /// The signatures of all certificates known for the predecessor. Each proves that it was fenced.
    pub proofs: Vec<FenceProof>,
    /// How far the grant may move the fence.
    pub max_jump: u64,
}

impl Record {
    pub(super) fn certify(&self, by: Arc<Certified>, max_jump: u64, at: &At<'_>) -> Step {
        if let Some(known) = &self.certified {
            if known > &by {
                return (Outcome::Superseded, vec![]);
            }
            if *known == by {
                return (Outcome::Fenced, vec![]);
            }
        }
        if Fence::from(by.seq) < self.fence {
            // The lease is stale already. Now the record also says which certificate fenced it.
            let record = Self { certified: Some(by), changed: at.stamp, ..self.clone() };
            return (Outcome::Fenced, vec![Effect::Store(record)]);
        }
        let Some(past) = LeaseSeq::new(by.seq.get().saturating_add(1)).filter(|past| past.get() <= MAX_GATE_SEQ) else {
            return refused(LeaseRefusal::SeqExhausted);
        };
        if past.get() - self.fence.get() > max_jump {
            return refused(LeaseRefusal::Jump { fence: self.fence, to: past });
        }
        let how = How::Fenced { reason: format!("certificate of {}", by.issuer) };
        let certified = Self { certified: Some(by), ..self.clone() };
        certified.advance_to(past, how, None, at)
    }

    pub(super) fn grant(&self, signed: SignedGrant, at: &At<'_>) -> Step {
        let SignedGrant { seq, grant, predecessor, proofs, max_jump } = signed;
        if let Some(step) = self.grant_again(seq, &grant, at) {
            return step;
        }
        if let Some(lease) = self.open_lease().filter(|lease| lease.is_live(at.now)) {
            return held(Some(lease), lease.remaining_ms(at.now));
        }
        if grant.window.is_some_and(|window| window.until <= at.now.wall) {
            let ended = Ended { how: How::Expired, at: at.now.wall, stamp: at.stamp };
            return refused(LeaseRefusal::Expired { ended });
        }
        if let Err(why) = self.follows(predecessor.as_ref(), &proofs) {
            return refused(why);
        }
        if !self.is_unused(seq) {
            return refused(LeaseRefusal::Fenced { fence: self.fence });
        }
        if seq.get() > MAX_GATE_SEQ {
            return refused(LeaseRefusal::SeqExhausted);
        }
        if seq.get() - self.fence.get() > max_jump {
            return refused(LeaseRefusal::Jump { fence: self.fence, to: seq });
        }
        self.advance_to(seq, How::Expired, Some(grant), at)
    }

    /// The step for a grant of the lease that this record already has: the grant came again, or with a later end.
    fn grant_again(&self, seq: LeaseSeq, grant: &Grant, at: &At<'_>) -> Option<Step> {
        let (lease, ended) = self.lease().filter(|(lease, _)| lease.lease_id == grant.lease_id && lease.seq == seq)?;
        if lease.holder != grant.holder {
            return Some(refused(LeaseRefusal::GrantUsed));
        }
        if let Some(ended) = ended {
            return Some(refused(LeaseRefusal::Expired { ended: ended.clone() }));
        }
        if !lease.is_live(at.now) {
            return Some(self.expire(lease, at));
        }
        if lease.request != grant.request {
            // Another way of granting hands out this lease's token.
            return Some(refused(LeaseRefusal::GrantUsed));
        }
        let until = grant.window.map_or(WallMs(0), |window| window.until);
        if until <= lease.expires_at {
            let again =
                if lease.used { refused(LeaseRefusal::GrantUsed) } else { (Outcome::Granted(lease.clone()), vec![]) };
            return Some(again);
        }
        let mut lease = lease.clone();
        lease.extend(super::Ttl(until.0.saturating_sub(at.now.wall.0)), at.now);
        let row = Arc::new(LeaseRow::new(&self.object, &lease, None));
        let record = self.with(self.fence, State::Open { lease: lease.clone() }, at);
        let effects = vec![announce(Kind::Renewed, row, self.fence), Effect::Store(record)];
        Some((Outcome::Renewed(lease), effects))
    }

    /// The certificate that moved the fence to its present number, if there is one.
    #[must_use]
    pub fn fenced_by(&self) -> Option<&Arc<Certified>> {
        self.certified.as_ref().filter(|certified| certified.seq.get() + 1 == self.fence.get())
    }

    /// Checks that a grant names the last lease here, with a proof that it was fenced if a certificate did that.
    fn follows(&self, predecessor: Option<&Predecessor>, proofs: &[FenceProof]) -> Result<(), LeaseRefusal> {
        let proof = predecessor.and_then(|named| named.proof);
        let is_proved = || proof.is_some_and(|proof| proofs.contains(&proof));
        let (expected, holds) = match (self.lease(), self.fenced_by()) {
            // The last lease ran out or was released, so there is nothing to prove.
            (Some((last, _)), _) => (Some(&last.lease_id), proof.is_none()),
            (None, Some(by)) => (Some(&by.lease_id), is_proved()),
            // No lease is here, and the last one is not known. Every older lease is stale.
            (None, None) => (None, proof.is_none() || is_proved()),
        };
        if expected.is_some_and(|expected| predecessor.is_none_or(|named| named.lease_id != *expected)) {
            return Err(LeaseRefusal::Predecessor { expected: expected.cloned() });
        }
        if holds { Ok(()) } else { Err(LeaseRefusal::FenceProof) }
    }

    /// Whether this number was never granted: it is above the fence, or at a fence that a certificate moved or that
    /// drains.
    fn is_unused(&self, seq: LeaseSeq) -> bool {
        let fence = self.fence;
        match &self.state {
            _ if Fence::from(seq) != fence => Fence::from(seq) > fence,
            State::Draining { .. } => true,
            State::Free { last: None } => self.fenced_by().is_some(),
            State::Free { last: Some(_) } | State::Open { .. } => false,
        }
    }
}

/// How far a migration is. A final state says how the migration ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MigrationState {
    /// The certificate is signed; the fence has moved or is about to, and older writes drain.
    Fencing,
    /// Nothing older is on its way, so the final state of the data is known.
    Acknowledged,
    /// The lease is the next holder's, which has not confirmed the final state yet.
    Granted,
    /// The next holder has its token.
    Active,
    /// The old holder is fenced, but its last writes did not settle in time.
    DrainTimedOut,
    /// The next holder did not confirm in time.
    ActivationTimedOut,
    /// The next holder confirmed another state than the old holder left.
    HashMismatch,
    /// Another certificate, grant or revocation came between.
    Overtaken,
}

impl MigrationState {
    pub const ALL: [Self; 8] = [
        Self::Fencing,
        Self::Acknowledged,
        Self::Granted,
        Self::Active,
        Self::DrainTimedOut,
        Self::ActivationTimedOut,
        Self::HashMismatch,
        Self::Overtaken,
    ];

    /// The name that the api uses.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fencing => "fencing",
            Self::Acknowledged => "acknowledged",
            Self::Granted => "granted",
            Self::Active => "active",
            Self::DrainTimedOut => "drain_timed_out",
            Self::ActivationTimedOut => "activation_timed_out",
            Self::HashMismatch => "hash_mismatch",
            Self::Overtaken => "overtaken",
        }
    }

    /// Whether the migration stays in this state.
    #[must_use]
    pub const fn is_over(self) -> bool {
        match self {
            Self::Fencing | Self::Acknowledged | Self::Granted => false,
            Self::Active | Self::DrainTimedOut | Self::ActivationTimedOut | Self::HashMismatch | Self::Overtaken => {
                true
            }
        }
    }
}

#[cfg(test)]
#[path = "authority_tests.rs"]
mod tests;
