//! Tokens of a lock service that people already run: an etcd revision, a ZooKeeper zxid, a Redis counter. Such a
//! token is only a number: it does not name its holder, and has no secret.
//!
//! The order of the checks: below the fence; locked; further above it than `max_jump`; above it (the fence has to
//! advance first, and the write is judged from the start); at it: draining, then silence. Where part of the table's
//! past is lost, no arithmetic gives a safe floor for numbers from outside. Such an object is locked until an
//! operator says which number is the lowest that may still write.

use super::{
    Fence, HolderId, Incarnation, LeaseSeq, Now, Record, State, Ttl,
    record::Numbers,
    step::{At, Effect, Grant, LeaseRefusal, Outcome, Step, refused},
    token::{TokenFault, parse_seq},
    verdict::{Denial, Refusal},
};
use crate::fence::{How, Lease};

/// How far one token may move a fence, unless a route says otherwise.
pub const MAX_JUMP: u64 = 1 << 33;

/// The holder's name for an object whose lock is kept elsewhere: the gate cannot know the real one.
pub const HOLDER: &str = "external";

/// A token of an outside lock service, and its route's limits for such tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    pub seq: LeaseSeq,
    pub limits: ExternalLimits,
}

/// A route's limits for the tokens of an outside lock service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExternalLimits {
    /// How far one token, or all tokens of a minute, may move the fence.
    pub max_jump: u64,
    /// How long a holder may be silent; [`Ttl::FOR_EVER`] where that has no limit.
    pub silence: Ttl,
}

impl Number {
    /// Reads a decimal number from 1 to 2^64-1, in its one spelling.
    ///
    /// # Errors
    /// When the text is not such a number.
    pub fn parse(text: &str, limits: ExternalLimits) -> Result<Self, TokenFault> {
        let seq = parse_seq(text.as_bytes()).map_err(|_| TokenFault::Number)?;
        Ok(Self { seq, limits })
    }
}

/// The holder of a lock that is kept elsewhere.
///
/// # Panics
/// Never: [`HOLDER`] is a valid id.
#[must_use]
pub fn holder() -> HolderId {
    HolderId::new(HOLDER).expect("a valid id")
}

/// Where a number is, compared with a record.
enum Place<'a> {
    /// The number of the open lease.
    Here(&'a Lease),
    /// No write has used this number: the fence has to move to it first.
    Ahead,
}

impl Record {
    /// Whether the lowest outside number that may still write is unknown.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.lost > 0 || (self.numbers == Numbers::Gate && self.incarnation > Incarnation::default())
    }

    /// Whether the table has a row of this object.
    fn is_known(&self) -> bool {
        self.changed != super::Hlc::default()
    }

    /// Compares a number with the record. Does not check the time.
    fn place(&self, Number { seq, limits }: Number) -> Result<Place<'_>, Refusal> {
        let (fence, stale) = (self.fence, Fence::from(seq) < self.fence);
        // An object without a row has the table's own floor, which says nothing of outside numbers.
        if stale && (self.is_known() || !self.is_locked()) {
            return Err(Refusal::Stale { seq, fence, successor: None, certified: None });
        }
        if self.is_locked() {
            return Err(Refusal::Locked { fence });
        }
        if Fence::from(seq) > fence {
            let is_first = self.numbers == Numbers::Gate;
            if !is_first && seq.get() - fence.get() > limits.max_jump {
                return Err(Refusal::Jump { seq, fence, max_jump: limits.max_jump });
            }
            return Ok(Place::Ahead);
        }
        match &self.state {
            State::Draining { .. } => Err(Refusal::Draining { fence }),
            // An operator has moved the fence to this number, and no holder has used it yet.
            State::Free { last: None } => Ok(Place::Ahead),
            // The number was a lease of the gate's own, before this object's lock was kept elsewhere.
            _ if self.numbers == Numbers::Gate => Err(Refusal::WrongSecret { seq }),
            State::Free { last: Some((lease, ended)) } => {
                Err(Refusal::Ended { seq, holder: lease.holder.clone(), ended: ended.clone() })
            }
            State::Open { lease } => Ok(Place::Here(lease)),
        }
    }

    /// The lease that a number writes under.
    pub(super) fn judge_number(&self, sealed: bool, number: Number, now: Now) -> Result<&Lease, Denial> {
        match self.place(number)? {
            Place::Ahead => Err(Denial::Behind(number)),
            Place::Here(_) if sealed => Err(Refusal::Draining { fence: self.fence }.into()),
            Place::Here(lease) if !lease.is_live(now) => Err(Denial::Overdue(lease.lease_id.clone())),
            Place::Here(lease) => Ok(lease),
        }
    }

    /// Moves the fence to a number of the outside lock service.
    pub(super) fn follow(&self, number: Number, grant: Grant, at: &At<'_>) -> Step {
        match self.place(number) {
            Ok(Place::Here(lease)) if lease.is_live(at.now) => (Outcome::Unchanged, vec![]),
            Ok(Place::Here(lease)) => self.expire(lease, at),
            Ok(Place::Ahead) => {
                let how = How::Fenced { reason: format!("token {}", number.seq) };
                self.advance_to(number.seq, how, Some(grant), at)
            }
            // The object will open for the holder of this number.
            Err(Refusal::Draining { .. }) => (Outcome::Unchanged, vec![]),
            Err(Refusal::Locked { fence }) => refused(LeaseRefusal::Locked { fence }),
            Err(Refusal::Jump { seq, fence, .. }) => refused(LeaseRefusal::Ahead { fence, to: seq }),
            Err(Refusal::Ended { ended, .. }) => refused(LeaseRefusal::Expired { ended }),
            Err(Refusal::WrongSecret { .. }) => refused(LeaseRefusal::TokenMismatch),
            Err(_) => refused(LeaseRefusal::Fenced { fence: self.fence }),
        }
    }

    /// An operator moves the fence past the holder of the lock.
    pub(super) fn revoke_external(&self, reason: String, at: &At<'_>) -> Step {
        if self.is_locked() && !self.is_known() {
            // The floor is the table's own. Outside numbers may never reach it.
            return refused(LeaseRefusal::Locked { fence: self.fence });
        }
        let record = Self { numbers: Numbers::External, ..self.clone() };
        record.advance(How::Fenced { reason }, None, at)
    }

    /// An operator names the lowest outside number that may still write.
    pub(super) fn confirm(&self, lowest: LeaseSeq, at: &At<'_>) -> Step {
        if !self.is_locked() {
            return (Outcome::Unchanged, vec![]);
        }
        if self.is_known() && Fence::from(lowest) < self.fence {
            return refused(LeaseRefusal::Fenced { fence: self.fence });
        }
        let record = self.with(lowest.into(), State::Free { last: None }, at);
        let record = Self { numbers: Numbers::External, ..record.caught_up() };
        (Outcome::Freed, vec![Effect::Store(record)])
    }

    /// Whether the lease ends by its holder's silence and has not ended. When the holder last wrote is in memory
    /// only.
    #[must_use]
    pub fn is_listened_for(&self, now: super::BootMs) -> bool {
        self.numbers == Numbers::External
            && self.open_lease().is_some_and(|lease| lease.ttl < Ttl::FOR_EVER && now < lease.deadline)
    }
}

#[cfg(test)]
#[path = "external_tests.rs"]
mod tests;
