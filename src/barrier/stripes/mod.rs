//! The records in memory, under a fixed array of locks.
//!
//! An object belongs to one stripe for ever, so its lock can never be dropped and made anew. Only the ledger publishes.
//! A reader that finds no record loads the row from the table and offers it. The offer is taken only if nothing was
//! published in that stripe since before the row was read. So a slow load can never put an old fence back.
//!
//! Memory is bounded by the objects in use. Each stripe (`stripe.rs`) keeps a share of the capacity and replaces records
//! that were not used lately. Records that are sealed or have writes in flight are pinned.

mod several;
mod shown;
mod stripe;

pub use several::Together;

use std::{
    hash::{BuildHasher, Hasher as _},
    sync::{OnceLock, PoisonError},
};

use shown::show;
use stripe::{Slot, Stripe};

use super::{
    flight::{Counted, End, Flight, Flying, Tally},
    generation::Generations,
};
use crate::{
    failpoints::{self, Fault},
    fence::{BootMs, ObjectId, Record, Ttl},
    sync::{
        Hasher, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

/// Room for two records in each stripe, which a write to two objects may need at once.
pub const LEAST: usize = 2 * STRIPES;

/// How old the stripes' own clock may be.
const TICK: Ttl = Ttl(1_000);

// Few under shuttle, so that objects share stripes there.
const STRIPES: usize = if cfg!(feature = "shuttle") { 2 } else { 1024 };

/// All stripes.
pub struct Stripes {
    all: Box<[Mutex<Stripe>]>,
    hasher: Hasher,
    capacity_each: usize,
    /// The boot clock, at most a second old. Exact enough to know which records are pinned.
    now: AtomicU64,
    /// Until then the outcome of any object's writes may be unknown: the last run did not end cleanly.
    unknown_until: AtomicU64,
    /// Objects that the ledger has to check: the last write in flight has ended while an advance waited for it, or an
    /// earlier run has left the object draining.
    drained: Mutex<Vec<ObjectId>>,
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// The generations of routes that writes use.
    pub generations: Generations,
}

/// An object's hash, made once: one half gives its stripe, the other is its tag in there.
#[derive(Clone, Copy, Debug)]
struct Hashed {
    stripe: usize,
    tag: u32,
}

/// The place of a record. It does not change while the record has a write in flight.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    stripe: u32,
    slot: u32,
}

impl Place {
    fn new(stripe: usize, slot: usize) -> Self {
        let narrow = |each| u32::try_from(each).expect("a stripe holds fewer than 2^32 records");
        Self { stripe: narrow(stripe), slot: narrow(slot) }
    }

    /// A number that no other record has while this one has a write in flight.
    #[must_use]
    pub fn number(self) -> u64 {
        u64::from(self.stripe) << 32 | u64::from(self.slot)
    }

    fn stripe(self) -> usize {
        self.stripe as usize
    }

    fn slot(self) -> usize {
        self.slot as usize
    }
}

/// A load in progress: valid while nothing is published in its stripe.
#[derive(Debug)]
pub struct Ticket {
    published: u64,
}

impl Stripes {
    /// Room for about `capacity` records.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            all: (0..STRIPES).map(|_| Mutex::default()).collect(),
            hasher: Hasher::default(),
            capacity_each: capacity.div_ceil(STRIPES).max(1),
            now: AtomicU64::new(0),
            unknown_until: AtomicU64::new(0),
            drained: Mutex::default(),
            wake: OnceLock::new(),
            generations: Generations::default(),
        }
    }

    /// Calls `wake` when an object has drained: see [`Self::take_drained`].
    pub fn on_drained(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.wake.set(Box::new(wake));
    }

    /// Objects that have drained since the last call.
    #[must_use]
    pub fn take_drained(&self) -> Vec<ObjectId> {
        std::mem::take(&mut self.drained.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes the outcome of all objects' writes unknown until then.
    pub fn set_all_unknown(&self, until: BootMs) {
        self.unknown_until.store(until.0, Ordering::Relaxed);
    }

    /// Moves the stripes' own clock forward.
    pub fn tick(&self, now: BootMs) {
        self.now.fetch_max(now.0, Ordering::Relaxed);
    }

    #[allow(clippy::cast_possible_truncation, reason = "any bits of the hash will do")]
    fn hash(&self, object: &str) -> Hashed {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(object.as_bytes());
        let hash = hasher.finish();
        Hashed { stripe: hash as u32 as usize % STRIPES, tag: (hash >> 32) as u32 }
    }

    /// Whether two objects share a stripe: publishing one then makes a load of the other invalid. For tests that have
    /// to know which objects share one.
    #[must_use]
    pub fn are_together(&self, one: &ObjectId, other: &ObjectId) -> bool {
        self.hash(one.as_str()).stripe == self.hash(other.as_str()).stripe
    }

    fn lock(&self, stripe: usize) -> MutexGuard<'_, Stripe> {
        self.all[stripe].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An object's stripe, locked, and the object's place in it.
    fn find(&self, object: &ObjectId) -> (MutexGuard<'_, Stripe>, Option<usize>) {
        let hashed = self.hash(object.as_str());
        let stripe = self.lock(hashed.stripe);
        let place = stripe.find(hashed.tag, object.as_str());
        (stripe, place)
    }

    /// Judges a write under its object's lock, and counts it in flight if it is permitted. `None`: the record is not in
    /// memory.
    pub fn admit<P, E>(
        &self,
        object: &str,
        judge: impl FnOnce(&Record, bool) -> Result<P, E>,
    ) -> Option<Result<(P, Place), E>> {
        let admitted = self.admit_as(object, None, judge, Flight::admit)?;
        Some(admitted.map(|(permit, place, ())| (permit, place)))
    }

    /// The same for a write that is complete: it may land from this moment on. `near`: the place of an object that is
    /// likely to be the same.
    pub fn admit_committed<P, E>(
        &self,
        object: &str,
        near: Option<Place>,
        judge: impl FnOnce(&Record, bool) -> Result<P, E>,
    ) -> Option<Result<(P, Place, Counted), E>> {
        self.admit_as(object, near, judge, Flight::admit_committed)
    }

    fn admit_as<P, E, S>(
        &self,
        object: &str,
        near: Option<Place>,
        judge: impl FnOnce(&Record, bool) -> Result<P, E>,
        count: impl FnOnce(&mut Flight) -> S,
    ) -> Option<Result<(P, Place, S), E>> {
        let (mut held, place) = match near.and_then(|place| self.find_at(place, object)) {
            Some(found) => found,
            None => self.find_by_hash(object)?,
        };
        let found = &mut held.slots[place.slot()];
        found.touched = true;
        Some(show(&found.record, |record| judge(record, found.sealed)).map(|permit| {
            let stage = count(&mut found.flight);
            found.record.mark_used(|| self.clock().after(TICK));
            (permit, place, stage)
        }))
    }

    /// An object's stripe, locked; `None` if the object is not at this place.
    fn find_at(&self, place: Place, object: &str) -> Option<(MutexGuard<'_, Stripe>, Place)> {
        let held = self.lock(place.stripe());
        // An object is in one stripe only, so a slot with its name is the right one.
        let is_there = held.slots.get(place.slot()).is_some_and(|slot| slot.record.object.as_str() == object);
        is_there.then_some((held, place))
    }

    fn find_by_hash(&self, object: &str) -> Option<(MutexGuard<'_, Stripe>, Place)> {
        let Hashed { stripe, tag } = self.hash(object);
        let held = self.lock(stripe);
        let slot = held.find(tag, object)?;
        Some((held, Place::new(stripe, slot)))
    }

    /// Judges a write again, and moves it to another stage if it is permitted.
    ///
    /// # Errors
    /// With the denial. The write stays at its stage.
    pub fn go_on<P, E>(
        &self,
        place: Place,
        (from, to): (&Counted, &mut Counted),
        judge: impl FnOnce(&Record, bool) -> Result<P, E>,
    ) -> Result<P, E> {
        let mut held = self.lock(place.stripe());
        let found = &mut held.slots[place.slot()];
        let judged = show(&found.record, |record| judge(record, found.sealed));
        if judged.is_ok() || failpoints::on(Fault::NoCommitCheck) {
            if matches!(to, Counted::Committed(_)) {
                *to = found.flight.committed_now();
            }
            found.flight.go_on(from, to);
            found.record.mark_used(|| self.clock().after(TICK));
        }
        judged
    }

    /// Moves a write back to the stage where nothing of it was sent.
    pub fn back_out(&self, place: Place, from: &Counted) {
        let mut held = self.lock(place.stripe());
        let found = &mut held.slots[place.slot()];
        found.flight.back_out(from);
        if found.flight.is_drained_of_writes() {
            let object = found.record.object.clone();
            drop(held);
            self.wake_ledger_for(object);
        }
    }

    /// Has the ledger check an object that an advance may be waiting for.
    pub fn wake_ledger_for(&self, object: ObjectId) {
        self.drained.lock().unwrap_or_else(PoisonError::into_inner).push(object);
        self.wake.get().inspect(|wake| wake());
    }

    /// Counts a write out that has ended.
    pub fn end(&self, place: Place, from: &Counted, how: End) {
        let mut held = self.lock(place.stripe());
        let found = &mut held.slots[place.slot()];
        if found.flight.end(from, how) {
            let object = found.record.object.clone();
            drop(held);
            self.wake_ledger_for(object);
        }
    }

    /// Calls `look` with an object's record and whether it is sealed, under its stripe's lock.
    pub fn view<R>(&self, object: &ObjectId, look: impl FnOnce(Option<(&Record, bool)>) -> R) -> R {
        let (mut stripe, place) = self.find(object);
        look(place.map(|place| {
            let slot = &mut stripe.slots[place];
            slot.touched = true;
            (&slot.record, slot.sealed)
        }))
    }

    /// Begins a load. Take the ticket before reading the table.
    #[must_use]
    pub fn ticket(&self, object: &ObjectId) -> Ticket {
        Ticket { published: self.lock(self.hash(object.as_str()).stripe).published }
    }

    /// Offers a loaded record. `false`: a record was published meanwhile, so the caller must read again.
    pub fn offer(&self, record: Record, ticket: &Ticket) -> bool {
        let hashed = self.hash(record.object.as_str());
        let mut stripe = self.lock(hashed.stripe);
        if let Some(place) = stripe.find(hashed.tag, record.object.as_str()) {
            if failpoints::on(Fault::StaleLoad) {
                stripe.slots[place].record = record;
            }
            return true;
        }
        if stripe.published != ticket.published && !failpoints::on(Fault::StaleLoad) {
            return false;
        }
        stripe.insert(record, hashed.tag, false, (self.capacity_each, self.clock()));
        true
    }

    /// Closes an object to new writes while its fence moves, and stops the writes that can be stopped. Returns what is
    /// on its way, read under the same lock. `newest` is the record that the ledger decided on, in case the object is
    /// not in memory.
    pub fn seal(&self, newest: &Record) -> Flying {
        let hashed = self.hash(newest.object.as_str());
        let mut stripe = self.lock(hashed.stripe);
        let place = match stripe.find(hashed.tag, newest.object.as_str()) {
            Some(place) => place,
            None => stripe.insert(newest.clone(), hashed.tag, true, (self.capacity_each, self.clock())),
        };
        let slot = &mut stripe.slots[place];
        slot.sealed = !failpoints::on(Fault::NoSeal);
        slot.flight.tidy(self.clock());
        slot.flight.begin_drain();
        self.flying_of(&slot.flight)
    }

    /// The writes of an object that are on their way or may still land.
    #[must_use]
    pub fn flying(&self, object: &ObjectId) -> Flying {
        self.with_flight(object, |flight| self.flying_of(flight)).unwrap_or_else(|| self.flying_of(&Flight::default()))
    }

    fn flying_of(&self, flight: &Flight) -> Flying {
        let (flying, forgiven) = (flight.flying(self.all_unknown_until()), flight.forgiven_routes());
        self.generations.add(flying, forgiven, self.clock())
    }

    /// What has become so far of the writes that an object's advance found.
    #[must_use]
    pub fn drained_so_far(&self, object: &ObjectId) -> Tally {
        self.with_flight(object, |flight| flight.drained_so_far()).unwrap_or_default()
    }

    /// Ends an object's advance. Returns what became of the writes that it found, and what is still on its way.
    #[must_use]
    pub fn end_drain(&self, object: &ObjectId) -> (Tally, Flying) {
        let end = |flight: &mut Flight| {
            let (flying, tally) = (self.flying_of(flight), flight.end_drain());
            flight.tidy(self.clock());
            (tally, flying)
        };
        self.with_flight(object, end).unwrap_or_else(|| (Tally::default(), self.flying_of(&Flight::default())))
    }

    /// Stops advances from waiting for what is now on its way of this object.
    pub fn force(&self, object: &ObjectId) {
        let routes = self.generations.last();
        self.with_flight(object, |flight| flight.force(self.all_unknown_until(), routes));
    }

    /// Makes the outcome of this object's writes unknown until then. The object must be in memory.
    pub fn set_unknown(&self, object: &ObjectId, until: BootMs) {
        self.with_flight(object, |flight| flight.set_unknown(until));
    }

    fn with_flight<R>(&self, object: &ObjectId, look: impl FnOnce(&mut Flight) -> R) -> Option<R> {
        let (mut stripe, place) = self.find(object);
        Some(look(&mut stripe.slots[place?].flight))
    }

    /// Whether nothing is on its way or may still land.
    #[must_use]
    pub fn is_all_settled(&self, now: BootMs) -> bool {
        let is_settled = |slot: &Slot| !slot.flight.pins(now);
        self.is_past_older_routes(now)
            && self.generations.are_over(now)
            && self
                .all
                .iter()
                .all(|stripe| stripe.lock().unwrap_or_else(PoisonError::into_inner).slots.iter().all(is_settled))
    }

    /// Whether nothing of an earlier run, or under routes that have changed since, can still land.
    #[must_use]
    pub fn is_past_older_routes(&self, now: BootMs) -> bool {
        self.all_unknown_until() <= now && self.generations.add(Flying::default(), 0, now).is_drained(now)
    }

    /// Whether no write is on its way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let is_idle = |slot: &Slot| !slot.flight.is_busy();
        self.generations.are_idle()
            && self
                .all
                .iter()
                .all(|stripe| stripe.lock().unwrap_or_else(PoisonError::into_inner).slots.iter().all(is_idle))
    }

    fn clock(&self) -> BootMs {
        BootMs(self.now.load(Ordering::Relaxed))
    }

    fn all_unknown_until(&self) -> BootMs {
        BootMs(self.unknown_until.load(Ordering::Relaxed))
    }

    /// Puts a durable record into memory, where writes are judged by it. Removes the seal. Always inserts.
    pub fn publish(&self, record: Record) {
        let hashed = self.hash(record.object.as_str());
        let mut stripe = self.lock(hashed.stripe);
        stripe.published += 1;
        match stripe.find(hashed.tag, record.object.as_str()) {
            Some(place) => {
                let slot = &mut stripe.slots[place];
                (slot.record, slot.sealed, slot.touched) = (record, false, true);
            }
            None => {
                stripe.insert(record, hashed.tag, false, (self.capacity_each, self.clock()));
            }
        }
    }

    /// How many records are in memory.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.iter().map(|stripe| stripe.lock().unwrap_or_else(PoisonError::into_inner).slots.len()).sum()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests;
