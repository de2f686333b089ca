//! Names for new leases: ordered by time, unique by chance. Random bytes are taken from the system for
//! many at once; nothing secret is made of them.

use crate::fence::{LeaseId, WallMs};

const EACH: usize = 10;
const AT_ONCE: usize = 64;

#[derive(Default)]
pub(super) struct LeaseIds {
    random: Vec<[u8; EACH]>,
}

impl LeaseIds {
    /// An id that was never given out before.
    pub(super) fn next(&mut self, now: WallMs) -> LeaseId {
        let random = match self.random.pop() {
            Some(random) => random,
            None => self.refill(),
        };
        let id = uuid::Builder::from_unix_timestamp_millis(now.0, &random).into_uuid();
        let mut text = uuid::Uuid::encode_buffer();
        LeaseId::new(id.hyphenated().encode_lower(&mut text)).expect("a UUID is a lease id")
    }

    fn refill(&mut self) -> [u8; EACH] {
        let mut drawn = [[0; EACH]; AT_ONCE];
        getrandom::fill(drawn.as_flattened_mut()).expect("the system's random numbers");
        let (first, rest) = (drawn[0], &drawn[1..]);
        self.random.extend_from_slice(rest);
        first
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_are_uuids_of_their_time_and_never_the_same() {
        let mut ids = LeaseIds::default();
        let many: HashSet<LeaseId> = (0..5 * AT_ONCE).map(|_| ids.next(WallMs(1_700_000_000_000))).collect();
        assert_eq!(many.len(), 5 * AT_ONCE);
        for id in many {
            let id = uuid::Uuid::parse_str(id.as_str()).unwrap();
            assert_eq!(id.get_version_num(), 7);
            assert_eq!(id.get_timestamp().unwrap().to_unix().0, 1_700_000_000);
        }
    }
}
