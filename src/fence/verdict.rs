//! `judge`: may this token write this object now?
//!
//! The checks run in one fixed order, which callers may rely on: no token; unreadable; another object's; table or
//! clock not usable; below the fence; above it; wrong secret; draining; ended or past its deadline; not begun. The
//! object is checked before the numbers, since counters of two objects cannot be compared. Only `judge` can build a
//! [`Permit`], and forwarding takes one.

use std::sync::Arc;

use super::{
    Certified, Code, Ended, Fence, FenceToken, HolderId, Lease, LeaseId, LeaseSeq, Now, ObjectId, Record, Secret,
    State,
    elected::Term,
    election::Election,
    outside::{Claim, Claimed, Update},
    token::{TokenClaim, TokenFault},
};

/// What a write presents for the object that it goes to.
#[derive(Clone, Debug)]
pub enum Presented {
    Nothing,
    Unreadable(TokenFault),
    Token(TokenClaim),
    /// A token of a source of leases outside the gate.
    Outside(Claim),
}

impl Presented {
    /// Reads a token's text, for a write to `target`.
    #[must_use]
    pub fn read(text: &str, target: &str) -> Self {
        TokenClaim::parse(text, target).map_or_else(Self::Unreadable, Self::Token)
    }

    /// Takes a token that was read, for a write to `target`.
    #[must_use]
    pub fn of(token: &FenceToken, target: &ObjectId) -> Self {
        Self::Token(TokenClaim::of(token, target))
    }
}

/// What the gate knows of the target.
#[derive(Clone, Copy, Debug)]
pub enum View<'a> {
    /// The object's record; `sealed` while an advance of it is being made durable.
    Known { record: &'a Record, sealed: bool },
    /// The object's state cannot be known now, so no write is permitted.
    Unusable(Unusable),
}

/// Why the object's state cannot be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// The table is latched, cannot be read, or the object's block is corrupt.
    Table,
    /// The wall clock has not been set.
    Clock,
}

/// The right to forward one write of one object, once. Only this module can make one.
#[derive(Debug)]
#[must_use = "a permit is the only way to forward a write"]
pub struct Permit {
    object: ObjectId,
    seq: LeaseSeq,
    secret: Secret,
    holder: HolderId,
    remaining_ms: u64,
    /// The term of leadership that the write was judged by, if there is one.
    term: Option<Arc<Term>>,
}

impl Permit {
    #[must_use]
    pub fn object(&self) -> &ObjectId {
        &self.object
    }

    #[must_use]
    pub fn seq(&self) -> LeaseSeq {
        self.seq
    }

    #[must_use]
    pub fn holder(&self) -> &HolderId {
        &self.holder
    }

    /// What was left of the lease when the write was judged.
    #[must_use]
    pub fn remaining_ms(&self) -> u64 {
        self.remaining_ms
    }
}

/// Why a write is not forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    Unfenced,
    Malformed(TokenFault),
    Mismatch {
        token_object: ObjectId,
    },
    Unusable(Unusable),
    Stale {
        seq: LeaseSeq,
        fence: Fence,
        successor: Option<Successor>,
        certified: Option<Arc<Certified>>,
    },
    Ahead {
        seq: LeaseSeq,
        fence: Fence,
    },
    WrongSecret {
        seq: LeaseSeq,
    },
    /// An outside number is further above the fence than its route allows.
    Jump {
        seq: LeaseSeq,
        fence: Fence,
        max_jump: u64,
    },
    /// The lowest outside number that may still write is not known.
    Locked {
        fence: Fence,
    },
    /// The term of leadership is over, by the Kubernetes Lease that it was of.
    Deposed {
        election: Election,
        fence: Fence,
        successor: Option<Successor>,
    },
    /// The Kubernetes Lease has not come to this term yet.
    NotElected {
        election: Election,
        fence: Fence,
    },
    /// The elected holder is not the holder that the write names.
    OtherHolder {
        seq: LeaseSeq,
        holder: HolderId,
    },
    /// The API server cannot be asked about a term, and nothing else says that it is the present one.
    SourceUnavailable {
        fence: Fence,
    },
    Draining {
        fence: Fence,
    },
    Ended {
        seq: LeaseSeq,
        holder: HolderId,
        ended: Ended,
    },
    /// The gate's numbers for this object are used up.
    Exhausted {
        fence: Fence,
    },
    /// The gate cannot take the write now, or is about to stop.
    Busy {
        stops: bool,
    },
    /// A signed grant counts only from a later instant.
    NotYet {
        seq: LeaseSeq,
        holder: HolderId,
        begins_in_ms: u64,
    },
}

/// The holder of the lease at the fence by now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Successor {
    pub holder: HolderId,
    pub lease_id: LeaseId,
}

impl Refusal {
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Unfenced => Code::WriteUnfenced,
            Self::Malformed(_) => Code::FenceTokenMalformed,
            Self::Mismatch { .. } => Code::LeaseObjectMismatch,
            Self::Unusable(Unusable::Table) => Code::TableUnavailable,
            Self::Unusable(Unusable::Clock) => Code::ClockUntrusted,
            Self::Stale { .. } | Self::Deposed { .. } => Code::WriteStaleFence,
            Self::SourceUnavailable { .. } => Code::LeaseSourceUnavailable,
            Self::Ahead { .. } | Self::Jump { .. } | Self::NotElected { .. } => Code::WriteFenceAhead,
            Self::Locked { .. } => Code::ObjectLocked,
            Self::Exhausted { .. } => Code::SeqExhausted,
            Self::Busy { stops: true } => Code::GateStopping,
            Self::Busy { stops: false } => Code::GateOverloaded,
            Self::WrongSecret { .. } | Self::OtherHolder { .. } => Code::FenceTokenInvalid,
            Self::Draining { .. } => Code::FenceDraining,
            Self::Ended { .. } => Code::LeaseExpired,
            Self::NotYet { .. } => Code::LeaseNotYetValid,
        }
    }
}

/// The outcome of [`judge`] where it is not a permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The client gets this refusal.
    Refused(Refusal),
    /// The lease is past its deadline, but its end is not in the table yet. No answer may mention the end before it
    /// is durable: end the lease through the ledger, then judge again.
    Overdue(LeaseId),
    /// The fence has to follow this update of an outside source: move it through the ledger, then judge again.
    Behind(Update),
    /// This term of leadership is not known: ask the API server, then judge again.
    Unseen(Election),
    /// The term is the present one, but its Lease was not seen renewed for as long as it lasts. Ask the API server;
    /// if it says the same, end the lease through the ledger; then judge again.
    Lapsed(LeaseId),
}

impl Denial {
    /// The place of this denial in the order of the checks: of several, the client gets the first.
    #[must_use]
    pub fn place(&self) -> u8 {
        match self {
            Self::Refused(Refusal::Unfenced) => 0,
            Self::Refused(Refusal::Malformed(_)) => 1,
            Self::Refused(Refusal::Mismatch { .. }) => 2,
            Self::Refused(Refusal::Unusable(_)) => 3,
            Self::Refused(Refusal::Stale { .. } | Refusal::Deposed { .. }) => 4,
            Self::Refused(
                Refusal::Ahead { .. }
                | Refusal::Jump { .. }
                | Refusal::Locked { .. }
                | Refusal::NotElected { .. }
                | Refusal::Exhausted { .. }
                | Refusal::SourceUnavailable { .. },
            )
            | Self::Behind(_)
            | Self::Unseen(_) => 5,
            Self::Refused(Refusal::WrongSecret { .. } | Refusal::OtherHolder { .. }) => 6,
            Self::Refused(Refusal::Draining { .. } | Refusal::Busy { .. }) => 7,
            Self::Refused(Refusal::Ended { .. }) | Self::Overdue(_) | Self::Lapsed(_) => 8,
            Self::Refused(Refusal::NotYet { .. }) => 9,
        }
    }
}

impl From<Refusal> for Denial {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Judges what a write presents.
///
/// # Errors
/// With the first check that fails, in the order at the head of this module.
pub fn judge(view: View<'_>, presented: &Presented, now: Now) -> Result<Permit, Denial> {
    match presented {
        Presented::Nothing => Err(Refusal::Unfenced.into()),
        Presented::Unreadable(fault) => Err(Refusal::Malformed(*fault).into()),
        Presented::Token(claim) => {
            if let Some(other) = &claim.other {
                return Err(Refusal::Mismatch { token_object: other.clone() }.into());
            }
            check(view, (claim.seq, claim.secret), now).map(|found| permit(found, now))
        }
        Presented::Outside(claim) => {
            let (record, sealed) = known(view, now)?;
            let Claimed { lease, remaining_ms, term } = claim.judge(record, sealed, now)?;
            Ok(Permit { remaining_ms, term, ..permit((record, lease), now) })
        }
    }
}

/// The record to judge by, or why there is none now.
fn known(view: View<'_>, now: Now) -> Result<(&Record, bool), Refusal> {
    match view {
        View::Unusable(why) => Err(Refusal::Unusable(why)),
        View::Known { .. } if !now.is_plausible() => Err(Refusal::Unusable(Unusable::Clock)),
        View::Known { record, sealed } => Ok((record, sealed)),
    }
}

/// Judges a token's text that was not parsed yet. A token has one spelling, so the text is compared with the
/// lease's own.
///
/// # Errors
/// As [`judge`].
pub fn judge_text(record: &Record, sealed: bool, text: &str, now: Now) -> Result<Permit, Denial> {
    let view = View::Known { record, sealed };
    match record.lease().filter(|(lease, _)| lease.proof.is_spelled(text)) {
        Some((lease, _)) => check(view, (lease.seq, lease.proof.secret()), now).map(|found| permit(found, now)),
        None => judge(view, &Presented::read(text, record.object.as_str()), now),
    }
}

fn permit((record, lease): (&Record, &Lease), now: Now) -> Permit {
    let (object, holder) = (record.object.clone(), lease.holder.clone());
    let (seq, secret) = (lease.seq, lease.proof.secret());
    Permit { object, seq, secret, holder, remaining_ms: lease.remaining_ms(now), term: None }
}

/// Judges a write again that has its permit.
///
/// # Errors
/// As [`judge`].
pub fn judge_again(view: View<'_>, permit: &Permit, now: Now) -> Result<(), Denial> {
    let (_, lease) = check(view, (permit.seq, permit.secret), now)?;
    match &permit.term {
        Some(term) if !term.is_live(now) => Err(Denial::Lapsed(lease.lease_id.clone())),
        Some(_) | None => Ok(()),
    }
}

/// The parts of a token for the object that is to be written.
type Linked = (LeaseSeq, Secret);

/// The checks of such a token, in their order. Returns the record and the lease that a permit is for.
fn check(view: View<'_>, token: Linked, now: Now) -> Result<(&Record, &Lease), Denial> {
    let (record, sealed) = known(view, now)?;
    let (seq, fence) = (token.0, record.fence);
    if Fence::from(seq) < fence {
        let heir = record.open_lease();
        let successor = heir.map(|lease| Successor { holder: lease.holder.clone(), lease_id: lease.lease_id.clone() });
        let certified = record.certified.as_ref().filter(|certified| seq <= certified.seq).map(Arc::clone);
        return Err(Refusal::Stale { seq, fence, successor, certified }.into());
    }
    if Fence::from(seq) > fence {
        return Err(Refusal::Ahead { seq, fence }.into());
    }
    at_the_fence(record, sealed, token, now)
}

/// The rest of the checks, for a token whose number is the fence.
fn at_the_fence(record: &Record, sealed: bool, (seq, secret): Linked, now: Now) -> Result<(&Record, &Lease), Denial> {
    let (lease, ended) = match &record.state {
        // The next holder of this number has no token yet, so there is no secret to compare.
        State::Draining { .. } => return Err(Refusal::Draining { fence: record.fence }.into()),
        // No lease was granted at this fence, so every secret is wrong.
        State::Free { last: None } => return Err(Refusal::WrongSecret { seq }.into()),
        State::Free { last: Some((lease, ended)) } => (lease, Some(ended)),
        State::Open { lease } => (lease, None),
    };
    if lease.proof.secret() != secret {
        return Err(Refusal::WrongSecret { seq }.into());
    }
    if sealed {
        return Err(Refusal::Draining { fence: record.fence }.into());
    }
    if let Some(ended) = ended {
        return Err(Refusal::Ended { seq, holder: lease.holder.clone(), ended: ended.clone() }.into());
    }
    if !lease.is_live(now) {
        return Err(Denial::Overdue(lease.lease_id.clone()));
    }
    if let Some(begins_in_ms) = lease.begins_in(now) {
        return Err(Refusal::NotYet { seq, holder: lease.holder.clone(), begins_in_ms }.into());
    }
    Ok((record, lease))
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
