//! The Leases that govern objects in use, one [`LeaseEntry`] each, and which objects follow which Lease. No I/O.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{
    api::LeaseName,
    lease_state::{LeaseState, Present, Unknown},
};
use crate::{
    fence::ObjectId,
    table::ledger::{Moved, ReplyRx},
};

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The present term of a Lease, and the ledger's reply for the object that the ledger got it for.
pub(super) type PendingReply = (Present, Option<ReplyRx<Moved>>);

/// A caller that waits for an answer. It may have hung up.
pub(super) struct Caller {
    pub(super) reply: oneshot::Sender<Result<PendingReply, Unknown>>,
    /// One of the places for callers that wait.
    pub(super) _place: OwnedSemaphorePermit,
}

/// One Lease that governs objects in use. While this entry is used, there is no second entry of the same name.
pub(super) struct LeaseEntry {
    pub(super) name: Arc<LeaseName>,
    /// Locked for a moment only, and after [`Objects`], where both are locked.
    pub(super) state: Mutex<LeaseState<Caller, OwnedSemaphorePermit>>,
}

impl LeaseEntry {
    fn new(name: &Arc<LeaseName>) -> Arc<Self> {
        Arc::new(Self { name: Arc::clone(name), state: Mutex::new(LeaseState::new(name)) })
    }
}

/// The objects that follow their Lease. Each is in the list of exactly one entry.
#[derive(Default)]
pub(super) struct Objects {
    pub(super) by_object: HashMap<ObjectId, Arc<LeaseEntry>>,
    /// The number of the routes that assign a Lease to each object: a new one for each reload.
    pub(super) generation: u64,
}

impl Objects {
    /// From now on an object follows this Lease, and no other.
    pub(super) fn follow(&mut self, entry: &Arc<LeaseEntry>, object: &ObjectId, max: usize) {
        let by_object = &mut self.by_object;
        if by_object.len() >= max && !by_object.contains_key(object) {
            // Any object will do: its next write asks, as its first one did.
            let one = by_object.keys().next().cloned();
            if let Some((one, entry)) = one.and_then(|one| by_object.remove_entry(&one)) {
                lock(&entry.state).unfollow(&one);
            }
        }
        let before = by_object.insert(object.clone(), Arc::clone(entry));
        if let Some(before) = before.filter(|before| !Arc::ptr_eq(before, entry)) {
            lock(&before.state).unfollow(object);
        }
        // The state has noted it already, but may have lost it since, to make room for another object.
        lock(&entry.state).follow(object);
    }

    /// No object follows a Lease any more: each may have another one by the routes of this generation.
    pub(super) fn begin_generation(&mut self, generation: u64) {
        self.generation = generation;
        self.by_object.drain().for_each(|(_, entry)| lock(&entry.state).unfollow_all());
    }
}

/// The Leases that govern objects in use, and those that callers have asked about.
#[derive(Default)]
pub(super) struct Entries {
    pub(super) all: HashMap<Arc<LeaseName>, Arc<LeaseEntry>>,
    /// The number of entries at which unused ones are searched for.
    sweep_at: usize,
}

impl Entries {
    /// The entry of this name. `max`: about how many unused entries there may be.
    pub(super) fn of(&mut self, name: &Arc<LeaseName>, max: usize) -> Arc<LeaseEntry> {
        let Self { all, sweep_at } = self;
        if all.len() >= (*sweep_at).max(max) {
            // Keeps entries with objects and entries in use. A caller that asks for another one again gets a new
            // entry.
            all.retain(|_, entry| Arc::strong_count(entry) > 1 || !lock(&entry.state).is_unused());
            // Avoids a search on each call when most entries are needed.
            *sweep_at = all.len() + max / 2 + 1;
        }
        Arc::clone(all.entry(Arc::clone(name)).or_insert_with(|| LeaseEntry::new(name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str) -> Arc<LeaseEntry> {
        LeaseEntry::new(&Arc::new(LeaseName { namespace: "left".to_owned(), name: name.to_owned() }))
    }

    fn followers(entry: &LeaseEntry) -> Vec<String> {
        lock(&entry.state).followers().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_object_follows_one_lease_only_and_so_many_do() {
        let max = 2;
        let (mut objects, one, other) = (Objects::default(), entry("one"), entry("other"));
        let mut follow = |entry: &Arc<LeaseEntry>, name: &str| {
            objects.follow(entry, &ObjectId::new(name).unwrap(), max);
            objects.by_object.len()
        };
        assert_eq!([follow(&one, "x"), follow(&one, "y"), follow(&one, "x")], [1, 2, 2]);
        assert_eq!(followers(&one), ["x", "y"]);
        follow(&other, "x");
        assert_eq!((followers(&one), followers(&other)), (vec!["y".to_owned()], vec!["x".to_owned()]));
        assert_eq!(follow(&other, "z"), max);
        assert_eq!(followers(&one).len() + followers(&other).len(), max, "an object that was evicted is in no list");
    }
}
