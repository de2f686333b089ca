//! Other objects of the same gate, whose records evict ours from memory.
//!
//! The stripe of an object does not depend on the seed: it differs in each run of a gate. So nothing that happens
//! here may depend on it. Our objects are kept in different stripes, and each has others in its stripe.

use std::{collections::VecDeque, sync::Arc};

use fencegate::{
    barrier::stripes::Stripes,
    fence::{Incarnation, ObjectId, Record},
    table::records::Records,
};

/// For each of our objects, others in its stripe.
pub(super) type Crowd = VecDeque<(ObjectId, ObjectId)>;

/// How many others each has.
const EACH: usize = 2;

/// Makes a memory in which our objects are in different stripes. In one stripe, a change of one would make a load
/// of the other read again, and the seed would play differently each time.
pub(super) fn keep_apart(memory: impl Fn() -> Arc<Records>, objects: &[ObjectId]) -> Arc<Records> {
    loop {
        let records = memory();
        let is_alone = |(n, object): (usize, &ObjectId)| {
            objects[n + 1..].iter().all(|other| !records.stripes.are_together(object, other))
        };
        if objects.iter().enumerate().all(is_alone) {
            return records;
        }
    }
}

/// Finds the objects in our objects' stripes. One of each is in memory from now on.
pub(super) fn find(records: &Records, objects: &[ObjectId]) -> Crowd {
    let others_of = |object| others(&records.stripes, object).take(EACH).map(|other| (ObjectId::clone(object), other));
    let mut crowd = objects.iter().flat_map(others_of).collect();
    for object in objects {
        press(records, &mut crowd, object);
    }
    crowd
}

fn others(stripes: &Stripes, object: &ObjectId) -> impl Iterator<Item = ObjectId> {
    let named = (0_u64..).map(|n| ObjectId::new(&format!("other-{n}")).expect("an object's id"));
    named.filter(|other| stripes.are_together(object, other))
}

/// Publishes another object's record in the stripe of ours. `true`: ours was evicted.
pub(super) fn press(records: &Records, crowd: &mut Crowd, object: &ObjectId) -> bool {
    let Some(place) = crowd.iter().position(|(each, _)| each == object) else { return false };
    let Some((object, other)) = crowd.remove(place) else { return false };
    let was_there = is_in_memory(&records.stripes, &object);
    records.stripes.publish(Record::unknown(other.clone(), Incarnation::default()));
    let is_there = is_in_memory(&records.stripes, &object);
    crowd.push_back((object, other));
    was_there && !is_there
}

fn is_in_memory(stripes: &Stripes, object: &ObjectId) -> bool {
    stripes.view(object, |found| found.is_some())
}

#[cfg(test)]
mod tests {
    use super::{super::world::START, *};
    use fencegate::{
        fence::{TableKey, time::Frame},
        table::{codec::Context, memory::MemoryTable},
    };

    fn memory() -> Arc<Records> {
        let frame = Frame { run: 1, start: START, behind_mark: false };
        let context = Context { frame, incarnation: Incarnation::default(), key: TableKey::from_bytes([7; 32]) };
        Arc::new(Records::new(Arc::new(MemoryTable::default()), context, 1))
    }

    #[test]
    fn no_two_of_ours_share_a_stripe_and_each_shares_it_with_others() {
        // With so many objects, one of two memories keeps them apart by chance.
        let objects: Vec<ObjectId> = (0..40).map(|n| ObjectId::new(&format!("o{n}")).unwrap()).collect();
        for _ in 0..30 {
            let records = keep_apart(memory, &objects);
            for object in &objects {
                let together = objects.iter().filter(|other| records.stripes.are_together(object, other));
                assert_eq!(together.count(), 1, "{object} and itself");
            }
        }
        let records = keep_apart(memory, &objects);
        let crowd = find(&records, &objects);
        assert_eq!(crowd.len(), EACH * objects.len());
        assert!(crowd.iter().all(|(object, other)| records.stripes.are_together(object, other) && object != other));
    }
}
