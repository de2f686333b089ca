//! An object's row: its fence and what stands at it.

use std::sync::Arc;

use super::{BootMs, Certified, Ended, Fence, Hlc, Incarnation, Lease, ObjectId, Ttl, elected::Elected};

/// Names one advance of one object, so that only the advance that began a drain can end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AdvanceId(pub Hlc);

/// What stands at an object's fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Nobody may write. `last` is the lease that ended at this very fence, if one did.
    Free { last: Option<(Lease, Ended)> },
    /// The fence has moved; writes of older leases may still be on their way to the store.
    Draining {
        advance: AdvanceId,
        /// It opens by itself once it has drained, for whoever has its number by an outside lock service, or by a
        /// Kubernetes Lease. How long that one may be silent then.
        opens: Option<Ttl>,
    },
    /// A lease was granted and has not been ended. It may be past its deadline.
    Open { lease: Lease },
}

/// Whose numbers an object's fence counts in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numbers {
    /// The gate's own, or an issuer's: each lease has a secret.
    #[default]
    Gate,
    /// An outside lock service's.
    External,
}

/// An object's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub object: ObjectId,
    pub fence: Fence,
    pub state: State,
    /// The table's incarnation that `fence` is counted in.
    pub incarnation: Incarnation,
    /// When the table last changed it.
    pub changed: Hlc,
    /// What the newest fence certificate for it says, if there was one.
    pub certified: Option<Arc<Certified>>,
    pub numbers: Numbers,
    /// The term of leadership at its fence, or before it, where a Kubernetes Lease says who may write.
    pub elected: Option<Arc<Elected>>,
    /// How far the table's floor has risen since, where the numbers are not the gate's own, so that no arithmetic can
    /// raise this one.
    pub lost: u64,
}

impl Record {
    /// An object that the table has never heard of.
    #[must_use]
    pub fn unknown(object: ObjectId, incarnation: Incarnation) -> Self {
        Self {
            object,
            fence: incarnation.floor(),
            state: State::Free { last: None },
            incarnation,
            changed: Hlc::default(),
            certified: None,
            numbers: Numbers::Gate,
            elected: None,
            lost: 0,
        }
    }

    /// The record as the table's present incarnation sees it. A newer one raises the floor and
    /// voids whatever lease stood there: part of the past may be missing. Outside numbers know nothing of
    /// that: there the object is locked.
    #[must_use]
    pub fn rebased(mut self, to: Incarnation) -> Self {
        let risen = to.since(self.incarnation);
        if risen > 0 {
            self.state = State::Free { last: None };
            match self.numbers {
                Numbers::External => self.lost = risen,
                Numbers::Gate => {
                    self.fence = self.fence.raised(risen);
                    self.incarnation = to;
                }
            }
        }
        self
    }

    /// The floor for a number of the gate's own.
    pub(super) fn gate_floor(&self) -> Fence {
        self.fence.raised(self.lost)
    }

    /// What was lost of its past has been made up for.
    #[must_use]
    pub(super) fn caught_up(mut self) -> Self {
        let lost = std::mem::take(&mut self.lost);
        self.incarnation = Incarnation::at(self.incarnation.floor().raised(lost).get());
        self
    }

    /// The lease that is open at the fence.
    #[must_use]
    pub fn open_lease(&self) -> Option<&Lease> {
        match &self.state {
            State::Open { lease } => Some(lease),
            State::Free { .. } | State::Draining { .. } => None,
        }
    }

    /// Its lease has been written with, so the answer that granted it did arrive. Not worth a synced
    /// write of its own: a crash that forgets it only lets the same holder ask for the same lease again. `now` may
    /// be a little late.
    pub fn mark_used(&mut self, now: impl FnOnce() -> BootMs) {
        if let State::Open { lease } = &mut self.state {
            lease.used = true;
            if self.numbers == Numbers::External {
                // Its holder was heard of.
                lease.hear(now());
            }
        }
    }

    /// The lease at the fence, open or ended.
    #[must_use]
    pub fn lease(&self) -> Option<(&Lease, Option<&Ended>)> {
        match &self.state {
            State::Open { lease } => Some((lease, None)),
            State::Free { last: Some((lease, ended)) } => Some((lease, Some(ended))),
            State::Free { last: None } | State::Draining { .. } => None,
        }
    }
}
