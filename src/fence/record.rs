//! An object's row: its fence and what stands at it.

use std::sync::Arc;

use super::{Certified, Ended, Fence, Hlc, Incarnation, Lease, ObjectId};

/// Names one advance of one object, so that only the advance that began a drain can end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AdvanceId(pub Hlc);

/// What stands at an object's fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Nobody may write. `last` is the lease that ended at this very fence, if one did.
    Free { last: Option<(Lease, Ended)> },
    /// The fence has moved; writes of older leases may still be on their way to the store.
    Draining { advance: AdvanceId },
    /// A lease was granted and has not been ended. It may be past its deadline.
    Open { lease: Lease },
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
}

impl Record {
    /// An object that the table has never heard of.
    #[must_use]
    pub fn unknown(object: ObjectId, incarnation: Incarnation) -> Self {
        Self {
            object,
            fence: incarnation.default_floor(),
            state: State::Free { last: None },
            incarnation,
            changed: Hlc::default(),
            certified: None,
        }
    }

    /// The record as the table's present incarnation sees it. A newer one raises the floor and
    /// voids whatever lease stood there: part of the past may be missing.
    #[must_use]
    pub fn rebased(mut self, to: Incarnation) -> Self {
        let passed = to.since(self.incarnation);
        if passed > 0 {
            self.fence = self.fence.raised(passed);
            self.state = State::Free { last: None };
            self.incarnation = to;
        }
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
    /// write of its own: a crash that forgets it only lets the same holder ask for the same lease again.
    pub fn mark_used(&mut self) {
        if let State::Open { lease } = &mut self.state {
            lease.used = true;
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
