//! An object's row: its fence, and the state at that fence.

use std::sync::Arc;

use super::{BootMs, Certified, Ended, Fence, Hlc, Incarnation, Lease, ObjectId, Ttl, elected::Elected};

/// Names one advance of one object, so that only the advance that began a drain can end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AdvanceId(pub Hlc);

/// The state of an object at its fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// No holder may write. `last` is the lease that ended at this fence, if there was one.
    Free { last: Option<(Lease, Ended)> },
    /// The fence has moved; writes of older leases may still be on their way to the store.
    Draining {
        advance: AdvanceId,
        /// Set where the object opens by itself once it has drained: its next holder has the number from an outside
        /// lock service, or was elected by a Kubernetes Lease. The value is how long that holder may be silent.
        opens: Option<Ttl>,
    },
    /// A lease was granted and has not been ended. Its deadline may have passed.
    Open { lease: Lease },
}

/// Which service counts an object's numbers.
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
    /// When the table last changed this record.
    pub changed: Hlc,
    /// What the newest fence certificate for the object says, if there was one.
    pub certified: Option<Arc<Certified>>,
    pub numbers: Numbers,
    /// The term of leadership at the fence, or before it, where a Kubernetes Lease says who may write.
    pub elected: Option<Arc<Elected>>,
    /// How far the table's floor has risen since, where the numbers are not the gate's own. No arithmetic can raise
    /// such a fence.
    pub lost: u64,
}

impl Record {
    /// The record of an object that has no row in the table.
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

    /// The record as the table's present incarnation sees it. A newer incarnation raises the floor and voids the
    /// lease at the old fence, because part of the past may be missing. An outside lock service does not know of
    /// the new floor, so an object with outside numbers is locked.
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

    /// The record with nothing lost any more: the missing part of its past has been made up for.
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

    /// Notes that a write has used the lease, so the answer that granted it did arrive. This needs no synced write:
    /// after a crash that forgets it, the same holder can only ask for the same lease again. `now` may be a little
    /// late.
    pub fn mark_used(&mut self, now: impl FnOnce() -> BootMs) {
        if let State::Open { lease } = &mut self.state {
            lease.used = true;
            if self.numbers == Numbers::External {
                // The write is a sign of life of the holder.
                lease.note_sign_of_life(now());
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
