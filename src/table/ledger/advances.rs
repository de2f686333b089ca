//! The advances that wait for a drain, and the callers that asked for each. Data only: [`super::advance`] has the steps.

use std::collections::HashMap;

use super::{GrantReply, Granted, Moved, Reply, Wanted, round::Drain};
use crate::fence::{BootMs, ObjectId, authority::SignedGrant};

/// An advance whose first step has been taken.
pub(super) struct Advance {
    pub(super) drains: Vec<Drain>,
    pub(super) caller: AdvanceCaller,
    pub(super) begun: BootMs,
}

/// The callers that asked for an advance.
pub(super) enum AdvanceCaller {
    /// Several calls where they are the same request.
    Acquire {
        wanted: Wanted,
        replies: Vec<DrainWaiter>,
    },
    Rotate(Reply<Granted>),
    /// An operator or a certificate, which asked only for the fence to move.
    Move(Vec<Reply<Moved>>),
    /// An issuer's grant. The issuer can ask for it again, so it is kept even where no call waits for it.
    Grant {
        signed: Box<SignedGrant>,
        replies: Vec<(Reply<Granted>, BootMs)>,
    },
    /// No caller is left, or the advance is an earlier run's.
    Gone,
}

/// A call that waits for a drain, and its deadline.
pub(super) struct DrainWaiter {
    pub(super) reply: GrantReply,
    pub(super) until: BootMs,
}

impl AdvanceCaller {
    /// Whether the lease has a taker.
    pub(super) fn is_there(&self) -> bool {
        match self {
            Self::Acquire { wanted, replies } => {
                wanted.request.is_some() || replies.iter().any(|waiting| !waiting.reply.is_closed())
            }
            Self::Rotate(reply) => !reply.is_closed(),
            Self::Grant { .. } => true,
            Self::Move(_) | Self::Gone => false,
        }
    }
}

/// All advances.
#[derive(Default)]
pub(super) struct Advances {
    pub(super) all: HashMap<u64, Advance>,
    pub(super) by_object: HashMap<ObjectId, Vec<u64>>,
    last_id: u64,
}

impl Advances {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// How long the oldest advance has waited.
    pub(super) fn oldest_ms(&self, now: BootMs) -> u64 {
        self.all.values().map(|advance| now.since(advance.begun)).max().unwrap_or(0)
    }

    pub(super) fn add(&mut self, advance: Advance) -> u64 {
        self.last_id += 1;
        for drain in &advance.drains {
            self.by_object.entry(drain.object.clone()).or_default().push(self.last_id);
        }
        self.all.insert(self.last_id, advance);
        self.last_id
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Advance> {
        let advance = self.all.remove(&id)?;
        for drain in &advance.drains {
            if let Some(ids) = self.by_object.get_mut(&drain.object) {
                ids.retain(|each| *each != id);
                if ids.is_empty() {
                    self.by_object.remove(&drain.object);
                }
            }
        }
        Some(advance)
    }

    pub(super) fn of(&self, object: &ObjectId) -> Vec<u64> {
        self.by_object.get(object).cloned().unwrap_or_default()
    }

    /// The advance that the same request has begun.
    pub(super) fn of_request(&self, wanted: &Wanted) -> Option<u64> {
        wanted.request.as_ref()?;
        let is_same = |advance: &Advance| match &advance.caller {
            AdvanceCaller::Acquire { wanted: other, .. } => {
                (&other.holder, &other.request, &other.objects) == (&wanted.holder, &wanted.request, &wanted.objects)
            }
            AdvanceCaller::Rotate(_) | AdvanceCaller::Move(_) | AdvanceCaller::Grant { .. } | AdvanceCaller::Gone => {
                false
            }
        };
        let ids = self.by_object.get(wanted.objects.first()?)?;
        ids.iter().copied().find(|id| self.all.get(id).is_some_and(is_same))
    }
}
