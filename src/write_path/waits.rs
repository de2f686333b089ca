//! Writes that wait before they can be judged. Each may be garbage: their tokens are not judged yet, so the holder is
//! not known. Each cause of waiting has a separate line, and in each line one client and one object leave places to
//! others.

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

/// The causes of waiting.
#[derive(Default)]
pub struct Waits {
    /// An outside number has to move a fence.
    pub follow: Line,
    /// The API server is asked about a Lease.
    pub ask: Line,
    /// A draining object has to open.
    pub open: Line,
}

/// The writes that wait for one cause.
pub struct Line {
    taken: Mutex<Shares>,
    /// Hashes objects to numbers that distinguish them.
    hasher: RandomState,
}

impl Default for Line {
    fn default() -> Self {
        Self { taken: Mutex::new(Shares::of_waits(PLACES)), hasher: RandomState::new() }
    }
}

/// A place in a line, until it is dropped.
pub struct PlaceInLine<'a> {
    line: &'a Line,
    number: usize,
}

impl Line {
    /// A place for a write of this object by this client; `None` where they have used their share.
    #[must_use]
    pub fn take(&self, object: &ObjectId, client: Peer) -> Option<PlaceInLine<'_>> {
        let asker = Asker::Write { object: self.hasher.hash_one(object.as_str()), client: client.number() };
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if !taken.may_take(asker) {
            return None;
        }
        let number = taken.open();
        taken.take(number, asker);
        Some(PlaceInLine { line: self, number })
    }
}

impl Drop for PlaceInLine<'_> {
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
        // The first object has its share.
        let of_one_client = fill(&|number| object(number + 1), one);
        assert_eq!(of_one_object.len() + of_one_client.len(), 896, "all but an eighth");
        let of_another = fill(&|number| object(number + 1), other);
        assert_eq!(of_another.len(), 128);
        assert!(waits.ask.take(&object(9_999), other).is_none(), "all are taken");
        assert!(waits.follow.take(&object(0), one).is_some() && waits.open.take(&object(0), one).is_some());
        drop(of_one_client);
        assert!(waits.ask.take(&object(9_999), one).is_some(), "places are given back");
    }
}
