//! Other objects of the same gate, whose records take the places of ours in memory.
//!
//! Which stripe an object is in is a secret of the gate's run, so it is found out by trying: an object
//! whose record is pushed out by another's shares its stripe.

use std::{collections::VecDeque, sync::Arc};

use crate::{
    fence::{Incarnation, ObjectId, Record},
    table::{records::Records, stripes::Stripes},
};

/// Objects for each of ours that share its stripe.
pub(super) type Crowd = VecDeque<(ObjectId, ObjectId)>;

/// How many there are for each.
const EACH: usize = 2;

/// A gate's memory with room for one record in each stripe, and the objects that share ours'.
pub(super) fn find(memory: impl Fn() -> Arc<Records>, objects: &[ObjectId]) -> (Arc<Records>, Crowd) {
    loop {
        let records = memory();
        for object in objects {
            load(&records.stripes, object);
        }
        // Two of ours in one stripe would make the seed play differently each time.
        if objects.iter().all(|object| is_in_memory(&records.stripes, object)) {
            let mut crowd = find_in(&records.stripes, objects);
            for object in objects {
                press(&records, &mut crowd, object);
            }
            return (records, crowd);
        }
    }
}

fn find_in(stripes: &Stripes, objects: &[ObjectId]) -> Crowd {
    let mut crowd = Crowd::new();
    for n in 0_u64.. {
        let other = ObjectId::new(&format!("other-{n}")).expect("an object's id");
        stripes.publish(unknown(&other));
        if let Some(gone) = objects.iter().find(|object| !is_in_memory(stripes, object)) {
            crowd.push_back((gone.clone(), other));
            load(stripes, gone);
        }
        let is_enough = |object| crowd.iter().filter(|(each, _)| each == object).count() >= EACH;
        if objects.iter().all(is_enough) {
            break;
        }
    }
    crowd
}

/// Publishes another object's record in the stripe of ours. `true`: ours has lost its place.
pub(super) fn press(records: &Records, crowd: &mut Crowd, object: &ObjectId) -> bool {
    let Some(place) = crowd.iter().position(|(each, _)| each == object) else { return false };
    let Some((object, other)) = crowd.remove(place) else { return false };
    let was_there = is_in_memory(&records.stripes, &object);
    records.stripes.publish(unknown(&other));
    let is_there = is_in_memory(&records.stripes, &object);
    crowd.push_back((object, other));
    was_there && !is_there
}

fn unknown(object: &ObjectId) -> Record {
    Record::unknown(object.clone(), Incarnation::default())
}

fn load(stripes: &Stripes, object: &ObjectId) {
    let ticket = stripes.ticket(object);
    stripes.offer(unknown(object), &ticket);
}

fn is_in_memory(stripes: &Stripes, object: &ObjectId) -> bool {
    stripes.view(object, |found| found.is_some())
}
