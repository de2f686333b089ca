//! The records in memory, under a fixed array of locks.
//!
//! An object belongs to one stripe for ever, so its lock can never be dropped and made anew. Only
//! the ledger publishes. A reader that misses loads the row from the table and offers it: the offer
//! is taken only if nothing was published in that stripe since before the row was read, so a slow
//! load can never put an old fence back.
//!
//! Memory is bounded by objects in use: each stripe keeps a share of the capacity and replaces what
//! was not looked at lately; records that are sealed or have writes in flight are pinned.

mod several;

pub use several::Together;

use std::{
    collections::HashMap,
    hash::BuildHasher,
    sync::{OnceLock, PoisonError},
};

use super::{
    flight::{End, Flight, Flying, Stage, Tally},
    generation::Generations,
    sync::{
        Hasher, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};
use crate::{
    failpoints::{self, Fault},
    fence::{BootMs, ObjectId, Record},
};

/// Room for two in each stripe, which a write to two objects may need at once.
pub const LEAST: usize = 2 * STRIPES;

// Few where shuttle draws the order: there objects shall meet.
const STRIPES: usize = if cfg!(feature = "shuttle") { 2 } else { 1024 };

/// All stripes.
pub struct Stripes {
    all: Box<[Mutex<Stripe>]>,
    hasher: Hasher,
    capacity_each: usize,
    /// The boot clock, a second old at most: good enough to know what is pinned.
    now: AtomicU64,
    /// Until then nothing is known of any object: the last run did not end in good order.
    unknown_until: AtomicU64,
    /// Objects that the ledger shall look at: the last write in flight has ended while an advance waited
    /// for it, or an earlier run has left it draining.
    drained: Mutex<Vec<ObjectId>>,
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// What writes go by.
    pub generations: Generations,
}

#[derive(Debug, Default)]
struct Stripe {
    places: HashMap<ObjectId, usize>,
    slots: Vec<Slot>,
    /// Where the search for a slot to replace goes on.
    hand: usize,
    /// How often something was published here.
    published: u64,
}

#[derive(Debug)]
struct Slot {
    record: Record,
    sealed: bool,
    touched: bool,
    flight: Flight,
}

/// Where a record is. It stays there while it has a write in flight.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    stripe: usize,
    slot: usize,
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

    /// Nothing is known of any object until then.
    pub fn set_all_unknown(&self, until: BootMs) {
        self.unknown_until.store(until.0, Ordering::Relaxed);
    }

    /// Time has passed.
    pub fn tick(&self, now: BootMs) {
        self.now.store(now.0, Ordering::Relaxed);
    }

    #[allow(clippy::cast_possible_truncation, reason = "any bits of the hash will do")]
    fn stripe_of(&self, object: &ObjectId) -> usize {
        self.hasher.hash_one(object) as usize % STRIPES
    }

    fn lock(&self, stripe: usize) -> MutexGuard<'_, Stripe> {
        self.all[stripe].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stripe(&self, object: &ObjectId) -> MutexGuard<'_, Stripe> {
        self.lock(self.stripe_of(object))
    }

    /// Judges a write under its object's lock, and counts it in flight if it may go on. `None`: the
    /// record is not in memory.
    pub fn admit<P, E>(
        &self,
        object: &ObjectId,
        judge: impl FnOnce(&Record, bool) -> Result<P, E>,
    ) -> Option<Result<(P, Place), E>> {
        let stripe = self.stripe_of(object);
        let mut held = self.lock(stripe);
        let slot = held.places.get(object).copied()?;
        let found = &mut held.slots[slot];
        found.touched = true;
        Some(judge(&found.record, found.sealed).map(|permit| {
            if !failpoints::on(Fault::NoBarrier) {
                found.flight.admit();
            }
            found.record.mark_used();
            (permit, Place { stripe, slot })
        }))
    }

    /// Judges a write once more, and lets it go on to another stage if it may.
    ///
    /// # Errors
    /// With what the judge says; the write stays where it is.
    pub fn go_on<P, E>(
        &self,
        place: Place,
        (from, to): (&Stage, &mut Stage),
        judge: impl FnOnce(&Record, bool) -> Result<P, E>,
    ) -> Result<P, E> {
        let mut held = self.lock(place.stripe);
        let found = &mut held.slots[place.slot];
        let judged = judge(&found.record, found.sealed);
        if judged.is_ok() || failpoints::on(Fault::NoCommitCheck) {
            if matches!(to, Stage::Committed(_)) {
                *to = found.flight.committed_now();
            }
            found.flight.go_on(from, to);
        }
        judged
    }

    /// A write goes back to where nothing of it was sent.
    pub fn back_out(&self, place: Place, from: &Stage) {
        let mut held = self.lock(place.stripe);
        let found = &mut held.slots[place.slot];
        found.flight.back_out(from);
        if found.flight.is_drained_of_writes() {
            let object = found.record.object.clone();
            drop(held);
            self.look_at(object);
        }
    }

    /// The ledger shall look at what this object waits for.
    pub fn look_at(&self, object: ObjectId) {
        self.drained.lock().unwrap_or_else(PoisonError::into_inner).push(object);
        self.wake.get().inspect(|wake| wake());
    }

    /// A write has come to its end.
    pub fn end(&self, place: Place, from: &Stage, how: End) {
        let mut held = self.lock(place.stripe);
        let found = &mut held.slots[place.slot];
        if found.flight.end(from, how) {
            let object = found.record.object.clone();
            drop(held);
            self.look_at(object);
        }
    }

    /// Looks at an object's record under its stripe's lock: the record, and whether it is sealed.
    pub fn view<R>(&self, object: &ObjectId, look: impl FnOnce(Option<(&Record, bool)>) -> R) -> R {
        let mut stripe = self.stripe(object);
        let place = stripe.places.get(object).copied();
        look(place.map(|place| {
            let slot = &mut stripe.slots[place];
            slot.touched = true;
            (&slot.record, slot.sealed)
        }))
    }

    /// Begins a load. Take the ticket before reading the table.
    #[must_use]
    pub fn ticket(&self, object: &ObjectId) -> Ticket {
        Ticket { published: self.stripe(object).published }
    }

    /// Offers a loaded record. `false`: something was published meanwhile, read again.
    pub fn offer(&self, record: Record, ticket: &Ticket) -> bool {
        let mut stripe = self.stripe(&record.object);
        if let Some(place) = stripe.places.get(&record.object).copied() {
            if failpoints::on(Fault::StaleLoad) {
                stripe.slots[place].record = record;
            }
            return true;
        }
        if stripe.published != ticket.published && !failpoints::on(Fault::StaleLoad) {
            return false;
        }
        stripe.insert(record, false, self.capacity_each, self.clock());
        true
    }

    /// Closes an object to new writes while its fence moves, and stops those that can be stopped. What
    /// is on its way is read under the same lock. `newest` is what the ledger decided against, in case
    /// the record is not in memory.
    pub fn seal(&self, newest: &Record) -> Flying {
        let mut stripe = self.stripe(&newest.object);
        let place = match stripe.places.get(&newest.object).copied() {
            Some(place) => place,
            None => stripe.insert(newest.clone(), true, self.capacity_each, self.clock()),
        };
        let slot = &mut stripe.slots[place];
        slot.sealed = !failpoints::on(Fault::NoSeal);
        slot.flight.tidy(self.clock());
        slot.flight.begin_drain();
        let (flying, forgiven) = (slot.flight.flying(self.all_unknown_until()), slot.flight.forgiven_routes());
        self.generations.add(flying, forgiven, self.clock())
    }

    /// What is on its way of an object.
    #[must_use]
    pub fn flying(&self, object: &ObjectId) -> Flying {
        let look = |flight: &mut Flight| (flight.flying(self.all_unknown_until()), flight.forgiven_routes());
        let (flying, forgiven) = self.with_flight(object, look).unwrap_or_else(|| look(&mut Flight::default()));
        self.generations.add(flying, forgiven, self.clock())
    }

    /// What has become so far of the writes that an object's advance found.
    #[must_use]
    pub fn drained_so_far(&self, object: &ObjectId) -> Tally {
        self.with_flight(object, |flight| flight.drained_so_far()).unwrap_or_default()
    }

    /// An object's advance is over: what became of the writes that it found.
    #[must_use]
    pub fn end_drain(&self, object: &ObjectId) -> Tally {
        let end = |flight: &mut Flight| {
            let tally = flight.end_drain();
            flight.tidy(self.clock());
            tally
        };
        self.with_flight(object, end).unwrap_or_default()
    }

    /// Nobody shall wait for what is on its way of this object now.
    pub fn force(&self, object: &ObjectId) {
        let routes = self.generations.last();
        self.with_flight(object, |flight| flight.force(self.all_unknown_until(), routes));
    }

    /// Nothing is known of this object until then. It must be in memory.
    pub fn set_unknown(&self, object: &ObjectId, until: BootMs) {
        self.with_flight(object, |flight| flight.set_unknown(until));
    }

    fn with_flight<R>(&self, object: &ObjectId, look: impl FnOnce(&mut Flight) -> R) -> Option<R> {
        let mut stripe = self.stripe(object);
        let place = stripe.places.get(object).copied()?;
        Some(look(&mut stripe.slots[place].flight))
    }

    /// Whether nothing at all is on its way, nor may still land.
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

    /// Whether nothing of an earlier run can land, nor anything that goes by routes that have changed.
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

    /// Puts a durable record before everyone's eyes. Opens the seal, always inserts.
    pub fn publish(&self, record: Record) {
        let mut stripe = self.stripe(&record.object);
        stripe.published += 1;
        match stripe.places.get(&record.object).copied() {
            Some(place) => {
                let slot = &mut stripe.slots[place];
                (slot.record, slot.sealed, slot.touched) = (record, false, true);
            }
            None => {
                stripe.insert(record, false, self.capacity_each, self.clock());
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

impl Stripe {
    fn insert(&mut self, record: Record, sealed: bool, capacity: usize, now: BootMs) -> usize {
        // Untouched: what is looked at outlives what merely came by.
        let slot = Slot { record, sealed, touched: false, flight: Flight::default() };
        let object = slot.record.object.clone();
        let place = match self.victim(capacity, now) {
            Some(place) => {
                let old = std::mem::replace(&mut self.slots[place], slot);
                self.places.remove(&old.record.object);
                place
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        };
        self.places.insert(object, place);
        place
    }

    /// A slot to replace: not pinned, and not touched since the hand last passed. `None` while
    /// there is room, or where everything is pinned.
    fn victim(&mut self, capacity: usize, now: BootMs) -> Option<usize> {
        if self.slots.len() < capacity {
            return None;
        }
        for _ in 0..2 * self.slots.len() {
            let place = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = &mut self.slots[place];
            if slot.sealed || slot.flight.pins(now) {
                continue;
            }
            if !std::mem::take(&mut slot.touched) {
                return Some(place);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::{Fence, Incarnation};

    fn record(object: &str, fence: u64) -> Record {
        let unknown = Record::unknown(ObjectId::new(object).unwrap(), Incarnation::default());
        Record { fence: Fence::new(fence), ..unknown }
    }

    fn seen(stripes: &Stripes, object: &str) -> Option<(u64, bool)> {
        stripes
            .view(&ObjectId::new(object).unwrap(), |found| found.map(|(record, sealed)| (record.fence.get(), sealed)))
    }

    #[test]
    fn a_slow_load_never_puts_an_old_fence_back() {
        let stripes = Stripes::new(10_000);
        let object = ObjectId::new("users").unwrap();
        let ticket = stripes.ticket(&object);
        stripes.publish(record("users", 2));
        assert!(stripes.offer(record("users", 1), &ticket), "the published record serves");
        assert_eq!(seen(&stripes, "users"), Some((2, false)));
        // The published record is evicted before the load comes back: the load has to read again.
        let small = Stripes::new(1);
        let ticket = small.ticket(&object);
        small.publish(record("users", 2));
        evict(&small, "users");
        assert!(!small.offer(record("users", 1), &ticket));
        assert_eq!(seen(&small, "users"), None);
    }

    fn evict(stripes: &Stripes, object: &str) {
        for n in 0.. {
            stripes.publish(record(&format!("filler-{n}"), 1));
            if seen_untouched(stripes, object) {
                return;
            }
        }
    }

    fn seen_untouched(stripes: &Stripes, object: &str) -> bool {
        let object = ObjectId::new(object).unwrap();
        !stripes.stripe(&object).places.contains_key(&object)
    }

    #[test]
    fn memory_is_bounded_and_sealed_records_stay() {
        let stripes = Stripes::new(2 * STRIPES);
        stripes.seal(&record("sealed", 7));
        for n in 0..20_000 {
            stripes.publish(record(&format!("object-{n}"), 1));
        }
        assert!(stripes.len() <= 3 * STRIPES, "{}", stripes.len());
        assert_eq!(seen(&stripes, "sealed"), Some((7, true)));
        stripes.publish(record("sealed", 8));
        assert_eq!(seen(&stripes, "sealed"), Some((8, false)));
    }

    #[test]
    fn a_record_with_a_write_in_flight_stays_where_it_is() {
        let stripes = Stripes::new(STRIPES);
        stripes.publish(record("busy", 1));
        let object = ObjectId::new("busy").unwrap();
        let admit = |judged: Result<(), ()>| stripes.admit(&object, |record, _| judged.map(|()| record.fence.get()));
        assert!(matches!(admit(Err(())), Some(Err(()))));
        let Some(Ok((1, place))) = admit(Ok(())) else { panic!("not admitted") };
        for n in 0..20_000 {
            stripes.publish(record(&format!("object-{n}"), 1));
        }
        stripes.publish(record("busy", 2));
        let (waiting, mut committed) = (Stage::Waiting, Stage::Committed(0));
        let again = stripes.go_on(place, (&waiting, &mut committed), |record, _| Ok::<_, ()>(record.fence.get()));
        assert_eq!(again, Ok(2));
        assert!(!stripes.is_all_settled(BootMs(0)));
        stripes.end(place, &committed, End::Settled);
        assert!(stripes.is_all_settled(BootMs(0)));
        evict(&stripes, "busy");
    }

    #[test]
    fn what_is_looked_at_outlives_what_is_not() {
        let stripes = Stripes::new(4 * STRIPES);
        stripes.publish(record("busy", 1));
        for n in 0..50_000 {
            stripes.publish(record(&format!("object-{n}"), 1));
            assert_eq!(seen(&stripes, "busy"), Some((1, false)), "after {n}");
        }
    }
}
