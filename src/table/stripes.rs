//! The records in memory, under a fixed array of locks.
//!
//! An object belongs to one stripe for ever, so its lock can never be dropped and made anew. Only
//! the ledger publishes. A reader that misses loads the row from the table and offers it: the offer
//! is taken only if nothing was published in that stripe since before the row was read, so a slow
//! load can never put an old fence back.
//!
//! Memory is bounded by objects in use: each stripe keeps a share of the capacity and replaces what
//! was not looked at lately; records that are sealed or have writes in flight are pinned.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::fence::{ObjectId, Record};

const STRIPES: usize = 1024;

/// All stripes.
#[derive(Debug)]
pub struct Stripes {
    all: Box<[Mutex<Stripe>]>,
    hasher: RandomState,
    capacity_each: usize,
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
    /// Writes that were admitted and have not been settled.
    in_flight: u32,
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
            hasher: RandomState::new(),
            capacity_each: capacity.div_ceil(STRIPES).max(1),
        }
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
            found.in_flight += 1;
            found.record.mark_used();
            (permit, Place { stripe, slot })
        }))
    }

    /// Looks again at the record of a write that is in flight.
    pub fn look_again<R>(&self, place: Place, look: impl FnOnce(&Record, bool) -> R) -> R {
        let held = self.lock(place.stripe);
        let found = &held.slots[place.slot];
        look(&found.record, found.sealed)
    }

    /// A write that was in flight is settled.
    pub fn settle(&self, place: Place) {
        self.lock(place.stripe).slots[place.slot].in_flight -= 1;
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
        if stripe.places.contains_key(&record.object) {
            return true;
        }
        if stripe.published != ticket.published {
            return false;
        }
        stripe.insert(record, false, self.capacity_each);
        true
    }

    /// Closes an object to new writes while its fence moves. `newest` is what the ledger decided
    /// against, in case the record is not in memory.
    pub fn seal(&self, newest: &Record) {
        let mut stripe = self.stripe(&newest.object);
        match stripe.places.get(&newest.object).copied() {
            Some(place) => stripe.slots[place].sealed = true,
            None => stripe.insert(newest.clone(), true, self.capacity_each),
        }
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
            None => stripe.insert(record, false, self.capacity_each),
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
    fn insert(&mut self, record: Record, sealed: bool, capacity: usize) {
        // Untouched: what is looked at outlives what merely came by.
        let slot = Slot { record, sealed, touched: false, in_flight: 0 };
        let object = slot.record.object.clone();
        let place = match self.victim(capacity) {
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
    }

    /// A slot to replace: not pinned, and not touched since the hand last passed. `None` while
    /// there is room, or where everything is pinned.
    fn victim(&mut self, capacity: usize) -> Option<usize> {
        if self.slots.len() < capacity {
            return None;
        }
        for _ in 0..2 * self.slots.len() {
            let place = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = &mut self.slots[place];
            if slot.sealed || slot.in_flight > 0 {
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
        assert_eq!(stripes.look_again(place, |record, _| record.fence.get()), 2);
        stripes.settle(place);
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
