//! Records come, go and are kept; writes are counted.

use super::*;
use crate::fence::{Fence, Incarnation};

fn record(object: &str, fence: u64) -> Record {
    let unknown = Record::unknown(ObjectId::new(object).unwrap(), Incarnation::default());
    Record { fence: Fence::new(fence), ..unknown }
}

fn seen(stripes: &Stripes, object: &str) -> Option<(u64, bool)> {
    stripes.view(&ObjectId::new(object).unwrap(), |found| found.map(|(record, sealed)| (record.fence.get(), sealed)))
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
    stripes.find(&object).1.is_none()
}

#[test]
fn objects_of_one_hash_are_kept_apart() {
    let mut stripe = Stripe::default();
    let room = |n| (n, BootMs(0));
    for n in 0..100_u64 {
        let place = stripe.insert(record(&format!("o{n}"), n), 7, false, room(100));
        assert_eq!(place as u64, n);
    }
    for n in 0..100_u64 {
        let place = stripe.find(7, &format!("o{n}")).unwrap();
        assert_eq!(stripe.slots[place].record.fence.get(), n);
        assert_eq!(stripe.find(8, &format!("o{n}")), None);
    }
    // Only the replaced record is removed.
    let place = stripe.insert(record("new", 1), 7, false, room(100));
    let found = (0..100).filter(|n| stripe.find(7, &format!("o{n}")).is_some());
    assert_eq!((found.count(), stripe.places.len()), (99, 100));
    assert_eq!(stripe.find(7, "new"), Some(place));
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
    let admit =
        |judged: Result<(), ()>| stripes.admit(object.as_str(), |record, _| judged.map(|()| record.fence.get()));
    assert!(matches!(admit(Err(())), Some(Err(()))));
    let Some(Ok((1, place))) = admit(Ok(())) else { panic!("not admitted") };
    for n in 0..20_000 {
        stripes.publish(record(&format!("object-{n}"), 1));
    }
    stripes.publish(record("busy", 2));
    let (waiting, mut committed) = (Counted::Waiting, Counted::Committed(0));
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

#[test]
fn a_place_where_another_record_is_by_now_is_not_taken_for_the_one_that_was_there() {
    let stripes = Stripes::new(STRIPES);
    stripes.publish(record("first", 1));
    let admit = |object: &str, near| stripes.admit_committed(object, near, |record, _| Ok::<_, ()>(record.fence.get()));
    let Some(Ok((1, place, stage))) = admit("first", None) else { panic!("not admitted") };
    assert!(!stripes.is_all_settled(BootMs(0)));
    stripes.end(place, &stage, End::Settled);
    assert!(stripes.is_all_settled(BootMs(0)));
    // Once with the right hint, and once with the hint of another object.
    let Some(Ok((1, again, stage))) = admit("first", Some(place)) else { panic!("not admitted") };
    assert_eq!((again.stripe, again.slot), (place.stripe, place.slot));
    stripes.end(again, &stage, End::Settled);
    evict(&stripes, "first");
    let heir = stripes.all[place.stripe()].lock().unwrap().slots[place.slot()].record.object.clone();
    assert!(admit("first", Some(place)).is_none(), "it is not in memory");
    let Some(Ok((_, found, stage))) = admit(heir.as_str(), Some(place)) else { panic!("not admitted") };
    stripes.end(found, &stage, End::Settled);
    let elsewhere = Some(Place::new((place.stripe() + 1) % STRIPES, 0));
    let Some(Ok((_, found, stage))) = admit(heir.as_str(), elsewhere) else { panic!("not admitted") };
    assert_eq!((found.stripe, found.slot), (place.stripe, place.slot));
    stripes.end(found, &stage, End::Settled);
    assert!(stripes.is_all_settled(BootMs(0)));
}
