//! One stripe: its records by their place, and which of them makes room for another.

use hashbrown::HashTable;

use super::super::flight::Flight;
use crate::fence::{BootMs, Record};

#[derive(Debug, Default)]
pub(super) struct Stripe {
    /// The place of each object in `slots`, by its tag.
    pub(super) places: HashTable<u32>,
    pub(super) slots: Vec<Slot>,
    /// Where the search for a slot to replace continues.
    hand: usize,
    /// How often a record was published in this stripe.
    pub(super) published: u64,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) record: Record,
    tag: u32,
    pub(super) sealed: bool,
    pub(super) touched: bool,
    pub(super) flight: Flight,
}

/// A tag as a hash. The table uses bits from both ends.
fn spread(tag: u32) -> u64 {
    u64::from(tag) << 32 | u64::from(tag)
}

impl Stripe {
    pub(super) fn find(&self, tag: u32, object: &str) -> Option<usize> {
        let is_it = |place: &u32| {
            let slot = &self.slots[*place as usize];
            slot.tag == tag && slot.record.object.as_str() == object
        };
        self.places.find(spread(tag), is_it).map(|place| *place as usize)
    }

    pub(super) fn insert(&mut self, record: Record, tag: u32, sealed: bool, (capacity, now): (usize, BootMs)) -> usize {
        // Untouched, so that records in use outlive records that were only loaded.
        let slot = Slot { record, tag, sealed, touched: false, flight: Flight::default() };
        let place = match self.victim(capacity, now) {
            Some(place) => {
                let old = std::mem::replace(&mut self.slots[place], slot);
                let entry = self.places.find_entry(spread(old.tag), |each| *each as usize == place);
                entry.expect("every slot has its place").remove();
                place
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        };
        let each = u32::try_from(place).expect("a stripe holds fewer than 2^32 records");
        self.places.insert_unique(spread(tag), each, |each| spread(self.slots[*each as usize].tag));
        place
    }

    /// A slot to replace: not pinned, and not touched since the hand last passed. `None` while there is room, or where
    /// all slots are pinned.
    fn victim(&mut self, capacity: usize, now: BootMs) -> Option<usize> {
        if self.slots.len() < capacity {
            return None;
        }
        for _ in 0..2 * self.slots.len() {
            let place = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = &mut self.slots[place];
            if slot.sealed || slot.flight.pins(now) || slot.record.ends_by_silence(now) {
                continue;
            }
            if !std::mem::take(&mut slot.touched) {
                return Some(place);
            }
        }
        None
    }
}
