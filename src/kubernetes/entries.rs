//! The Leases that govern objects in use, one [`LeaseEntry`] each, and which objects follow which Lease. No I/O.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64},
    },
};

use super::{
    api::{Away, LeaseName},
    known::Known,
    lease_observer::Unknown,
};
use crate::{
    fence::{
        BootMs, ObjectId,
        elected::{LeaseObservation, Term},
        election::Election,
    },
    table::ledger,
};

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One Lease that governs objects in use. While this entry is used, there is no second entry of the same name.
pub(super) struct LeaseEntry {
    pub(super) name: Arc<LeaseName>,
    /// `None`: not read yet.
    pub(super) known: Mutex<Option<Known>>,
    /// The objects that follow it: each gets every change.
    pub(super) objects: Mutex<HashSet<ObjectId>>,
    /// How many reads have begun.
    pub(super) begun: AtomicU64,
    /// Locked by the task that reads or that passes the result to the ledger, so that the ledger gets results in
    /// order.
    pub(super) reading: tokio::sync::Mutex<LastRead>,
    /// How often a watch has shown something new.
    pub(super) hints: AtomicU64,
    /// A task is reading after such a change.
    pub(super) is_reading_hint: AtomicBool,
}

impl LeaseEntry {
    fn new(name: &Arc<LeaseName>) -> Arc<Self> {
        Arc::new(Self {
            name: Arc::clone(name),
            known: Mutex::default(),
            objects: Mutex::default(),
            begun: AtomicU64::new(0),
            reading: tokio::sync::Mutex::default(),
            hints: AtomicU64::new(0),
            is_reading_hint: AtomicBool::new(false),
        })
    }

    /// What the ledger gets, and what writes get.
    pub(super) fn observation(&self) -> Result<(LeaseObservation, Option<Election>, Arc<Term>), Unknown> {
        let known = lock(&self.known);
        let known = known.as_ref().ok_or(Unknown::Ledger(ledger::LedgerError::Stopping))?;
        let odd = |what: String| Unknown::Away(Away::Odd(what));
        let observation = known.observation(&self.name).map_err(odd)?;
        Ok((observation, known.election(), Arc::clone(&known.term)))
    }
}

#[derive(Default)]
pub(super) struct LastRead {
    pub(super) number: u64,
    pub(super) at: BootMs,
    pub(super) failed: Option<Away>,
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
    pub(super) fn note(&mut self, entry: &Arc<LeaseEntry>, object: &ObjectId, max: usize) {
        let by_object = &mut self.by_object;
        if by_object.len() >= max && !by_object.contains_key(object) {
            // Any object will do: its next write asks, as its first one did.
            let one = by_object.keys().next().cloned();
            if let Some((one, entry)) = one.and_then(|one| by_object.remove_entry(&one)) {
                lock(&entry.objects).remove(&one);
            }
        }
        if let Some(before) = by_object.insert(object.clone(), Arc::clone(entry)) {
            lock(&before.objects).remove(object);
        }
        lock(&entry.objects).insert(object.clone());
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
            all.retain(|_, entry| Arc::strong_count(entry) > 1 || !lock(&entry.objects).is_empty());
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

    fn told_by(entry: &LeaseEntry) -> Vec<String> {
        let mut all: Vec<String> = lock(&entry.objects).iter().map(ToString::to_string).collect();
        all.sort();
        all
    }

    #[test]
    fn an_object_is_told_of_one_lease_only_and_so_many_are() {
        let object = |name: &str| ObjectId::new(name).unwrap();
        let (mut objects, one, other) = (Objects::default(), entry("one"), entry("other"));
        objects.note(&one, &object("x"), 2);
        objects.note(&one, &object("y"), 2);
        objects.note(&one, &object("x"), 2);
        assert_eq!(told_by(&one), ["x", "y"]);
        objects.note(&other, &object("x"), 2);
        assert_eq!((told_by(&one), told_by(&other)), (vec!["y".to_owned()], vec!["x".to_owned()]));
        objects.note(&other, &object("z"), 2);
        assert_eq!(objects.by_object.len(), 2);
        assert_eq!(told_by(&one).len() + told_by(&other).len(), 2, "whoever has gone is in no list");
    }
}
