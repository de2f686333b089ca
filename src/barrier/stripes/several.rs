//! Writes to several objects: admitted and moved on for all objects or for none, under the locks of all.

use super::{Hashed, Place, Slot, Stripe, Stripes, TICK, shown::show};
use crate::{
    barrier::flight::Counted,
    failpoints::{self, Fault},
    fence::Record,
    sync::MutexGuard,
};

/// A judgement of several objects: all are admitted, or the denials, with the objects' places.
pub type Together<P, E> = Result<Vec<(P, Place)>, Vec<(usize, E)>>;

impl Stripes {
    /// [`Self::admit`] for a write to several objects: all, or none of them. `Err`: each denial, with its object's
    /// place among the objects.
    pub fn admit_all<P, E>(
        &self,
        objects: &[&str],
        mut judge: impl FnMut(usize, &Record, bool) -> Result<P, E>,
    ) -> Option<Together<P, E>> {
        let hashed: Vec<Hashed> = objects.iter().map(|object| self.hash(object)).collect();
        let stripes: Vec<usize> = hashed.iter().map(|hashed| hashed.stripe).collect();
        let mut locked = self.lock_all(&stripes);
        let places = objects.iter().zip(hashed).map(|(object, Hashed { stripe, tag })| {
            let slot = locked.of(stripe).find(tag, object)?;
            Some(Place::new(stripe, slot))
        });
        let places: Vec<Place> = places.collect::<Option<_>>()?;
        let mut denied = vec![];
        let mut admitted = vec![];
        for (n, place) in places.into_iter().enumerate() {
            let found = locked.at(place);
            found.touched = true;
            match show(&found.record, |record| judge(n, record, found.sealed)) {
                Ok(permit) => admitted.push((permit, place)),
                Err(why) => denied.push((n, why)),
            }
        }
        if !denied.is_empty() {
            return Some(Err(denied));
        }
        for (_, place) in &admitted {
            let found = locked.at(*place);
            found.flight.admit();
            found.record.mark_used(|| self.clock().after(TICK));
        }
        Some(Ok(admitted))
    }

    /// [`Self::go_on`] for a write to several objects: all of it, or none of it.
    ///
    /// # Errors
    /// With each denial and its object's place. The write stays at its stage.
    pub fn go_on_all<P, E>(
        &self,
        legs: &mut [(Place, &Counted, Counted)],
        mut judge: impl FnMut(usize, &Record, bool) -> Result<P, E>,
    ) -> Result<(), Vec<(usize, E)>> {
        let stripes: Vec<usize> = legs.iter().map(|(place, ..)| place.stripe()).collect();
        let mut locked = self.lock_all(&stripes);
        let mut denied = vec![];
        for (n, (place, ..)) in legs.iter().enumerate() {
            let found = locked.at(*place);
            let judged = show(&found.record, |record| judge(n, record, found.sealed));
            denied.extend(judged.err().map(|why| (n, why)));
        }
        if denied.is_empty() || failpoints::on(Fault::NoCommitCheck) {
            for (place, from, to) in legs {
                let found = locked.at(*place);
                if matches!(to, Counted::Committed(_)) {
                    *to = found.flight.committed_now();
                }
                found.flight.go_on(from, to);
                found.record.mark_used(|| self.clock().after(TICK));
            }
        }
        if denied.is_empty() { Ok(()) } else { Err(denied) }
    }

    /// Locks several stripes, always in the order of their numbers, so that no deadlock can happen.
    fn lock_all(&self, stripes: &[usize]) -> Locked<'_> {
        let mut sorted = stripes.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        Locked(sorted.into_iter().map(|stripe| (stripe, self.lock(stripe))).collect())
    }
}

/// Several stripes, locked.
struct Locked<'a>(Vec<(usize, MutexGuard<'a, Stripe>)>);

impl Locked<'_> {
    fn of(&mut self, stripe: usize) -> &mut Stripe {
        let found = self.0.iter_mut().find(|(each, _)| *each == stripe);
        &mut found.expect("it was locked with the others").1
    }

    fn at(&mut self, place: Place) -> &mut Slot {
        &mut self.of(place.stripe()).slots[place.slot()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        barrier::flight::End,
        fence::{Fence, Incarnation, ObjectId},
    };

    fn record(object: &str, fence: u64) -> Record {
        let unknown = Record::unknown(ObjectId::new(object).unwrap(), Incarnation::default());
        Record { fence: Fence::new(fence), ..unknown }
    }

    #[test]
    fn a_write_to_several_objects_is_admitted_for_all_or_for_none() {
        let stripes = Stripes::new(1_000_000);
        // So many that some share a stripe.
        let names: Vec<ObjectId> = (0..3_000).map(|n| ObjectId::new(&format!("o{n}")).unwrap()).collect();
        let objects: Vec<&str> = names.iter().map(ObjectId::as_str).collect();
        let judge = |_: usize, record: &Record, _| if record.fence.get() == 1 { Ok(()) } else { Err("no") };
        assert!(stripes.admit_all(&objects[..2], judge).is_none(), "not in memory");
        for name in &names {
            stripes.publish(record(name.as_str(), 1));
        }
        stripes.publish(record("o7", 2));
        let denied = stripes.admit_all(&objects, judge).unwrap().unwrap_err();
        assert_eq!(denied, [(7, "no")]);
        assert!(stripes.is_idle(), "nothing was admitted");
        stripes.publish(record("o7", 1));
        let admitted = stripes.admit_all(&objects, judge).unwrap().unwrap();
        let waiting = Counted::Waiting;
        let mut legs: Vec<_> = admitted.iter().map(|((), place)| (*place, &waiting, Counted::Committed(0))).collect();
        stripes.publish(record("o9", 2));
        assert_eq!(stripes.go_on_all(&mut legs, judge), Err(vec![(9, "no")]));
        assert!(names.iter().all(|object| !stripes.flying(object).in_flight), "nothing has gone on");
        stripes.publish(record("o9", 1));
        assert_eq!(stripes.go_on_all(&mut legs, judge), Ok(()));
        assert!(names.iter().all(|object| stripes.flying(object).in_flight));
        for (place, _, stage) in &legs {
            stripes.end(*place, stage, End::Settled);
        }
        assert!(stripes.is_idle());
    }
}
