//! Tokens of a lock service that people already run: an etcd revision, a ZooKeeper zxid, a Redis counter. Such a
//! token is only a number: it does not name its holder, and has no secret.
//!
//! The order of the checks: below the fence; locked; further above it than `max_jump`; above it (the fence has to
//! advance first, and the write is judged from the start); at it: draining, then silence. Where part of the table's
//! past is lost, no arithmetic gives a safe floor for numbers from outside. Such an object is locked until an
//! operator says which number is the lowest that may still write.

use super::{
    Fence, HolderId, Incarnation, LeaseId, LeaseSeq, Now, Record, State, Ttl,
    outside::{Claimed, Jump, Source, Update, unchanged},
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

    /// What a write with this number gets where the ledger does not move the fence to it.
    pub(super) fn refusal(self, why: &LeaseRefusal) -> Option<Refusal> {
        let Self { seq, limits } = self;
        match why {
            LeaseRefusal::Ahead { fence, .. } => Some(Refusal::Jump { seq, fence: *fence, max_jump: limits.max_jump }),
            LeaseRefusal::Expired { ended } => Some(Refusal::Ended { seq, holder: holder(), ended: ended.clone() }),
            LeaseRefusal::Fenced { fence } => {
                Some(Refusal::Stale { seq, fence: *fence, successor: None, certified: None })
            }
            LeaseRefusal::TokenMismatch => Some(Refusal::WrongSecret { seq }),
            _ => None,
        }
    }

    pub(super) fn owner(self) -> (HolderId, LeaseSeq) {
        (holder(), self.seq)
    }

    /// How far this number moves the fence of a record. The first outside number of an object may be any.
    pub(super) fn jump(self, before: &Record) -> Jump {
        let from = (before.numbers == Numbers::External).then_some(before.fence);
        Jump { from, to: self.seq, max: self.limits.max_jump }
    }
}

/// The grant that opens an object for the holder of its number.
#[must_use]
pub fn grant(lease_id: LeaseId, silence: Ttl) -> Grant {
    let source = Source::External;
    Grant { lease_id, holder: holder(), ttl: silence, request: None, tainted: false, window: None, source }
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
enum Compared<'a> {
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
    fn compare(&self, Number { seq, limits }: Number) -> Result<Compared<'_>, Refusal> {
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
            return Ok(Compared::Ahead);
        }
        match &self.state {
            State::Draining { .. } => Err(Refusal::Draining { fence }),
            // An operator has moved the fence to this number, and no holder has used it yet.
            State::Free { last: None } => Ok(Compared::Ahead),
            // The number was a lease of the gate's own, before this object's lock was kept elsewhere.
            _ if self.numbers == Numbers::Gate => Err(Refusal::WrongSecret { seq }),
            State::Free { last: Some((lease, ended)) } => {
                Err(Refusal::Ended { seq, holder: lease.holder.clone(), ended: ended.clone() })
            }
            State::Open { lease } => Ok(Compared::Here(lease)),
        }
    }

    /// The lease that a number writes under.
    pub(super) fn judge_number(&self, sealed: bool, number: Number, now: Now) -> Result<Claimed<'_>, Denial> {
        match self.compare(number)? {
            Compared::Ahead => Err(Denial::Behind(Update::Number(number))),
            Compared::Here(_) if sealed => Err(Refusal::Draining { fence: self.fence }.into()),
            Compared::Here(lease) if !lease.is_live(now) => Err(Denial::Overdue(lease.lease_id.clone())),
            // This write is a sign of life, so the holder's silence begins anew.
            Compared::Here(lease) => Ok(Claimed { lease, remaining_ms: lease.ttl.0, term: None }),
        }
    }

    /// Moves the fence to a number of the outside lock service.
    pub(super) fn follow_number(&self, number: Number, lease_id: LeaseId, at: &At<'_>) -> Step {
        match self.compare(number) {
            Ok(Compared::Here(lease)) if lease.is_live(at.now) => unchanged(),
            Ok(Compared::Here(lease)) => self.expire(lease, at),
            Ok(Compared::Ahead) => {
                let how = How::Fenced { reason: format!("token {}", number.seq) };
                self.advance_to(number.seq, how, Some(grant(lease_id, number.limits.silence)), at)
            }
            // The object will open for the holder of this number.
            Err(Refusal::Draining { .. }) => unchanged(),
            Err(Refusal::Locked { fence }) => refused(LeaseRefusal::Locked { fence }),
            Err(Refusal::Jump { seq, fence, .. }) => refused(LeaseRefusal::Ahead { fence, to: seq }),
            Err(Refusal::Ended { ended, .. }) => refused(LeaseRefusal::Expired { ended }),
            Err(Refusal::WrongSecret { .. }) => refused(LeaseRefusal::TokenMismatch),
            Err(_) => refused(LeaseRefusal::Fenced { fence: self.fence }),
        }
    }

    /// An operator moves the fence past the holder of the lock.
    pub(super) fn revoke_number(&self, reason: String, at: &At<'_>) -> Step {
        if self.is_locked() && !self.is_known() {
            // The floor is the table's own. Outside numbers may never reach it.
            return refused(LeaseRefusal::Locked { fence: self.fence });
        }
        let record = Self { numbers: Numbers::External, ..self.clone() };
        record.advance(How::Fenced { reason }, None, at)
    }

    /// An operator names the lowest outside number that may still write.
    pub(super) fn confirm_number(&self, lowest: LeaseSeq, at: &At<'_>) -> Step {
        if !self.is_locked() {
            return unchanged();
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
    pub fn ends_by_silence(&self, now: super::BootMs) -> bool {
        self.numbers == Numbers::External
            && self.open_lease().is_some_and(|lease| lease.ttl < Ttl::FOR_EVER && now < lease.deadline)
    }
}

#[cfg(test)]
#[path = "external_tests.rs"]
mod tests;
