//! Writes that wait before they can be judged. Each of them may be garbage: no token that is still to be judged says whose it
//! is. So what they wait for has a line of its own, and in each line one client and one object leave places to others.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{Mutex, PoisonError},
};

use super::crowd::Peer;
use crate::{
    fence::ObjectId,
    upstream::shares::{Asker, Shares},
};

/// How many may wait in one line.
const PLACES: usize = 1_024;

/// What is waited for.
#[derive(Default)]
pub struct Waits {
    /// That an outside number moves a fence.
    pub follow: Line,
    /// What the API server says of a Lease.
    pub ask: Line,
    /// That an object opens which is draining.
    pub open: Line,
}

/// Those that wait for one thing.
pub struct Line {
    taken: Mutex<Shares>,
    /// Tells objects apart.
    hasher: RandomState,
}

impl Default for Line {
    fn default() -> Self {
        Self { taken: Mutex::new(Shares::of_waits(PLACES)), hasher: RandomState::new() }
    }
}

/// A place in a line, until it is dropped.
pub struct Place<'a> {
    line: &'a Line,
    number: usize,
}

impl Line {
    /// A place for a write of this object by this client; `None` where they have had their share.
    #[must_use]
    pub fn take(&self, object: &ObjectId, client: Peer) -> Option<Place<'_>> {
        let asker = Asker::Write { object: self.hasher.hash_one(object.as_str()), client: client.number() };
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if !taken.may_take(asker) {
            return None;
        }
        let number = taken.open();
        taken.take(number, asker);
        Some(Place { line: self, number })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.line.taken.lock().unwrap_or_else(PoisonError::into_inner).close(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(number: usize) -> ObjectId {
        ObjectId::new(&format!("o{number}")).unwrap()
    }

    #[test]
    fn one_client_and_one_object_leave_places_to_others_in_each_line() {
        let (waits, one, other) = (Waits::default(), Peer::of([10, 0, 0, 1].into()), Peer::of([10, 0, 0, 2].into()));
        let fill = |object: &dyn Fn(usize) -> ObjectId, client| {
            (0..2 * PLACES).map_while(|number| waits.ask.take(&object(number), client)).collect::<Vec<_>>()
        };
        let of_one_object = fill(&|_| object(0), one);
        assert_eq!(of_one_object.len(), 640, "five eighths");
        let of_one_client = fill(&object, one);
        assert_eq!(of_one_object.len() + of_one_client.len(), 896, "all but an eighth");
        let of_another = fill(&object, other);
        assert_eq!(of_another.len(), 128);
        assert!(waits.ask.take(&object(9_999), other).is_none(), "all are taken");
        assert!(waits.follow.take(&object(0), one).is_some() && waits.open.take(&object(0), one).is_some());
        drop(of_one_client);
        assert!(waits.ask.take(&object(9_999), one).is_some(), "places are given back");
    }
}
