//! Sources of leases outside the gate: what each is to the rules. The seam of `fence/`.
//!
//! A source is one module beside this one ([`external`], [`elected`]). It has a token, which a write brings as a
//! [`Claim`]; checks of that token against a record, in order; and updates on who may write, which move a fence. This
//! file names every source once in each place where the rules differ, so that a new source does not compile before
//! each of its parts is there.
//!
//! [`external`]: super::external
//! [`elected`]: super::elected

use std::{fmt, sync::Arc};

use super::{
    Fence, HolderId, Lease, LeaseId, LeaseSeq, Now, Record,
    elected::{Claimant, LeaseObservation, Term},
    external::Number,
    record::Numbers,
    step::{At, Grant, LeaseRefusal, Outcome, Step},
    verdict::{Denial, Refusal},
};

/// Which service says that a lease is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The lease api, or an issuer.
    Gate,
    /// An outside lock service: the lease is for the holder of its number.
    External,
    /// A Kubernetes Lease: the lease is for the holder that it names.
    Kubernetes,
}

impl Source {
    /// Whether the lease has a holder even where no caller waits for it.
    #[must_use]
    pub fn is_outside(self) -> bool {
        self != Self::Gate
    }
}

/// A token of an outside source, as a write or a call brings it.
#[derive(Clone, Debug)]
pub enum Claim {
    /// A number of an outside lock service.
    Number(Number),
    /// A term of leadership by a Kubernetes Lease.
    Term(Claimant),
}

/// The lease that a claim was permitted under.
pub(super) struct Claimed<'a> {
    pub(super) lease: &'a Lease,
    pub(super) remaining_ms: u64,
    pub(super) term: Option<Arc<Term>>,
}

impl Claim {
    /// Judges the claim against the record of its object. `sealed`: an advance is being made durable.
    pub(super) fn judge<'a>(&self, record: &'a Record, sealed: bool, now: Now) -> Result<Claimed<'a>, Denial> {
        match self {
            Self::Number(number) => record.judge_number(sealed, *number, now),
            Self::Term(claimant) => record.judge_claimant(sealed, claimant, now),
        }
    }

    /// What a write of this claim gets where the ledger refuses the claim's update; `None` where that is the same for
    /// every source. `fence`: the object's.
    #[must_use]
    pub fn refusal(&self, why: &LeaseRefusal, fence: impl FnOnce() -> Fence) -> Option<Refusal> {
        match self {
            Self::Number(number) => number.refusal(why),
            Self::Term(claimant) => claimant.refusal(why, fence),
        }
    }

    /// Whether each write shows that the holder is alive, so that the record notes the time.
    #[must_use]
    pub fn is_sign_of_life(&self) -> bool {
        match self {
            Self::Number(_) => true,
            Self::Term(_) => false,
        }
    }

    /// Who writes with this claim, and under which number, as far as that is known. `record`: of its object.
    ///
    /// # Errors
    /// Where the record is needed and cannot be read.
    pub fn owner<E>(&self, record: impl FnOnce() -> Result<Record, E>) -> Result<Option<(HolderId, LeaseSeq)>, E> {
        match self {
            Self::Number(number) => Ok(Some(number.owner())),
            Self::Term(claimant) => record().map(|record| claimant.owner(&record)),
        }
    }
}

/// The token, as an operator reads it.
impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.seq.fmt(f),
            Self::Term(claimant) => claimant.election.fmt(f),
        }
    }
}

/// What an outside source says of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// A number of an outside lock service that a writer brings.
    Number(Number),
    /// What the API server says of the object's Kubernetes Lease. `begins`: a writer has come with the Lease's
    /// present term, so that the term may be new to the object.
    Lease { observation: LeaseObservation, begins: bool },
}

/// How far an update moves a fence, where that is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jump {
    /// The fence before; `None` where the number is the object's first, which may be any.
    pub from: Option<Fence>,
    pub to: LeaseSeq,
    /// How far all updates of a minute may move the fence.
    pub max: u64,
}

impl Jump {
    /// Whether the update goes further up than is allowed, counted from where the fence was when the minute began.
    #[must_use]
    pub fn is_too_far_since(&self, begin: Fence) -> bool {
        let is_above = self.from.is_some_and(|from| Fence::from(self.to) > from);
        is_above && self.to.get().saturating_sub(begin.get()) > self.max
    }
}

impl Update {
    /// The number that the fence is to move to, where the source gives it.
    #[must_use]
    pub fn seq(&self) -> Option<LeaseSeq> {
        match self {
            Self::Number(number) => Some(number.seq),
            Self::Lease { .. } => None,
        }
    }

    /// How far this update moves the fence of a record; `None` where the gate gives the numbers itself.
    #[must_use]
    pub fn jump(&self, before: &Record) -> Option<Jump> {
        match self {
            Self::Number(number) => Some(number.jump(before)),
            Self::Lease { .. } => None,
        }
    }
}

impl Record {
    /// The source of the lease at the fence.
    #[must_use]
    pub fn source(&self) -> Source {
        match self.numbers {
            Numbers::External => Source::External,
            Numbers::Gate if self.is_led() => Source::Kubernetes,
            Numbers::Gate => Source::Gate,
        }
    }

    /// The record where this source numbers the lease at its fence.
    #[must_use]
    pub(super) fn counted_by(self, source: Source) -> Self {
        match source {
            Source::External => Self { numbers: Numbers::External, ..self },
            Source::Gate | Source::Kubernetes => Self { numbers: Numbers::Gate, ..self.caught_up() },
        }
    }

    /// Whether the object is locked for writes by this source: part of the table's past is lost, and no arithmetic
    /// gives a floor for the source's tokens.
    #[must_use]
    pub fn is_locked_for(&self, source: Source) -> bool {
        match source {
            Source::Gate => false,
            Source::External => self.is_locked(),
            Source::Kubernetes => self.is_term_locked(),
        }
    }

    /// Carries out [`Event::Follow`](super::Event::Follow).
    pub(super) fn follow(&self, update: Update, lease_id: LeaseId, at: &At<'_>) -> Step {
        match update {
            Update::Number(number) => self.follow_number(number, lease_id, at),
            Update::Lease { observation, begins } => self.observe(observation, begins, lease_id, at),
        }
    }

    /// Carries out [`Event::Confirm`](super::Event::Confirm).
    pub(super) fn confirm(&self, lowest: &Claim, at: &At<'_>) -> Step {
        match lowest {
            Claim::Number(number) => self.confirm_number(number.seq, at),
            Claim::Term(claimant) => self.confirm_term(Arc::clone(&claimant.lease), claimant.election, at),
        }
    }

    /// Carries out [`Event::Revoke`](super::Event::Revoke).
    pub(super) fn revoke(&self, reason: String, source: Source, at: &At<'_>) -> Step {
        match source {
            Source::External => self.revoke_number(reason, at),
            Source::Gate | Source::Kubernetes => self.advance(super::How::Fenced { reason }, None, at),
        }
    }

    /// The grant that opens the object once it has drained, where an earlier run has begun the drain. `None` where
    /// the object does not open by itself.
    #[must_use]
    pub fn outside_grant(&self, lease_id: LeaseId) -> Option<Grant> {
        let super::State::Draining { opens: Some(silence), .. } = self.state else { return None };
        match self.numbers {
            Numbers::External => Some(super::external::grant(lease_id, silence)),
            Numbers::Gate => self.elected_grant(lease_id),
        }
    }
}

/// The outcome where an update changes nothing.
pub(super) fn unchanged() -> Step {
    (Outcome::Unchanged, vec![])
}
