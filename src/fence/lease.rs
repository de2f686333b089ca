//! A lease: the right of one holder to write one object until its deadline.

use super::{BootMs, FenceToken, Hlc, HolderId, LeaseId, LeaseSeq, Now, ObjectId, Proof, RequestId, Ttl, WallMs};

/// The lease at an object's fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub lease_id: LeaseId,
    pub seq: LeaseSeq,
    pub holder: HolderId,
    pub acquired_at: WallMs,
    /// For people, and for a process that starts again.
    pub expires_at: WallMs,
    /// The end that decides. It is on the boot clock, so no step of the wall clock moves it.
    pub deadline: BootMs,
    /// The lifetime that the deadline was set from.
    pub ttl: Ttl,
    pub request: Option<RequestId>,
    /// The lease was renewed or written with, so the answer that granted it did arrive.
    pub used: bool,
    /// The lease was granted by force, while an older write's outcome was unknown.
    pub tainted: bool,
    /// The instant from which a signed grant counts, where the grant names one.
    pub start: Option<Start>,
    /// Kept beside the lease in memory, never stored.
    pub proof: Proof,
}

/// When a lease begins to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// For people, and for a process that starts again.
    pub at: WallMs,
    /// The instant that decides.
    pub boot: BootMs,
}

impl Lease {
    /// How long until the lease begins to count; `None` where it has begun.
    #[must_use]
    pub fn begins_in(&self, now: Now) -> Option<u64> {
        self.start.map(|start| start.boot.since(now.boot)).filter(|ms| *ms > 0)
    }

    /// `now == deadline` is expired, everywhere.
    #[must_use]
    pub fn is_live(&self, now: Now) -> bool {
        now.boot < self.deadline
    }

    /// How many milliseconds of the lease are left.
    #[must_use]
    pub fn remaining_ms(&self, now: Now) -> u64 {
        self.deadline.since(now.boot)
    }

    /// The token its holder writes with.
    #[must_use]
    pub fn token(&self, object: &ObjectId) -> FenceToken {
        FenceToken { seq: self.seq, object: object.clone(), secret: self.proof.secret() }
    }

    /// Counts the allowed silence from `now` on, because the holder gave a sign of life. Never makes the deadline
    /// earlier.
    pub fn note_sign_of_life(&mut self, now: BootMs) {
        let deadline = now.after(self.ttl);
        let more = deadline.since(self.deadline);
        if more > 0 {
            self.deadline = deadline;
            self.expires_at = self.expires_at.after(Ttl(more));
        }
    }

    /// Makes the lease run until at least `ttl` from now. Never makes it shorter, also after a restart: `ttl` stays
    /// the lifetime that the deadline was last set from.
    pub fn extend(&mut self, ttl: Ttl, now: Now) {
        let deadline = now.boot.after(ttl);
        if deadline > self.deadline {
            self.ttl = ttl;
            self.deadline = deadline;
            self.expires_at = now.wall.after(ttl);
        }
    }
}

/// How a lease came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    Expired,
    Released,
    /// A newer lease, or an operator, moved the fence past it.
    Fenced {
        reason: String,
    },
}

/// A lease's end: final, and durable before any answer mentions it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub how: How,
    pub at: WallMs,
    pub stamp: Hlc,
}

/// A lease as the table remembers it: while it is live, and for a day after its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRow {
    pub object: ObjectId,
    pub lease_id: LeaseId,
    pub seq: LeaseSeq,
    pub holder: HolderId,
    pub acquired_at: WallMs,
    /// As granted, or as of the end. The newest value of a live lease is in its record.
    pub expires_at: WallMs,
    pub ttl: Ttl,
    pub request: Option<RequestId>,
    pub tainted: bool,
    pub ended: Option<Ended>,
}

impl LeaseRow {
    #[must_use]
    pub fn new(object: &ObjectId, lease: &Lease, ended: Option<Ended>) -> Self {
        Self {
            object: object.clone(),
            lease_id: lease.lease_id.clone(),
            seq: lease.seq,
            holder: lease.holder.clone(),
            acquired_at: lease.acquired_at,
            expires_at: lease.expires_at,
            ttl: lease.ttl,
            request: lease.request.clone(),
            tainted: lease.tainted,
            ended,
        }
    }
}
