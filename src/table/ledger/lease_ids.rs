//! Ids for new leases: in one run each is higher than the one before, and random bytes make it unique. The random
//! bytes are taken from the system for many ids at once; no secret is made of them. The order of the ids serves
//! only speed.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use crate::fence::{LeaseId, WallMs};

/// Only this ledger and issuers choose the ids of leases, and issuers are trusted with more than this. So a map by
/// these ids needs no hash that resists attacks.
pub(super) type Quick = foldhash::fast::RandomState;
pub(super) type ByLease<V> = HashMap<LeaseId, V, Quick>;
pub(super) type Leases = HashSet<LeaseId, Quick>;

const EACH: usize = 10;
const AT_ONCE: usize = 64;

#[derive(Default)]
pub(super) struct LeaseIds {
    random: Vec<[u8; EACH]>,
    /// The last id. The next one is higher, also when the clock goes back.
    last: Uuid,
}

impl LeaseIds {
    /// Returns an id that was never used before.
    pub(super) fn next(&mut self, now: WallMs) -> LeaseId {
        let random = match self.random.pop() {
            Some(random) => random,
            None => self.refill(),
        };
        let drawn = uuid_at(now.0, &random);
        let id = if drawn > self.last { drawn } else { after(self.last, &random) };
        self.last = id;
        let mut text = Uuid::encode_buffer();
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

/// How much of an id counts on within its millisecond: all bits after the variant.
const COUNTED: u128 = (1 << 62) - 1;

/// An id a little higher than another, by a random step; in the next millisecond where there is no room.
#[allow(clippy::cast_possible_truncation, reason = "48 bits are left")]
fn after(last: Uuid, random: &[u8; EACH]) -> Uuid {
    let last = last.as_u128();
    let [a, b, c, d, ..] = *random;
    let step = 1 + u128::from(u32::from_be_bytes([a, b, c, d]));
    if (last & COUNTED) + step <= COUNTED {
        Uuid::from_u128(last + step)
    } else {
        uuid_at((last >> 80) as u64 + 1, random)
    }
}

/// An id that was never used before, for things that are made rarely.
///
/// # Panics
/// When the system has no random numbers.
#[must_use]
pub fn rare_id(now: WallMs) -> String {
    let mut random = [0; EACH];
    getrandom::fill(&mut random).expect("the system's random numbers");
    uuid_at(now.0, &random).to_string()
}

fn uuid_at(ms: u64, random: &[u8; EACH]) -> Uuid {
    uuid::Builder::from_unix_timestamp_millis(ms, random).into_uuid()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: WallMs = WallMs(1_700_000_000_000);

    #[test]
    fn ids_are_uuids_of_their_time_and_each_comes_behind_the_one_before() {
        let mut ids = LeaseIds::default();
        let many: Vec<LeaseId> = (0..5 * AT_ONCE).map(|_| ids.next(NOW)).collect();
        assert!(many.is_sorted_by(|one, next| one < next));
        for id in &many {
            let id = Uuid::parse_str(id.as_str()).unwrap();
            assert_eq!((id.get_version_num(), id.get_variant()), (7, uuid::Variant::RFC4122));
            assert_eq!(id.get_timestamp().unwrap().to_unix().0, 1_700_000_000);
        }
        let after_a_step_back = ids.next(WallMs(NOW.0 - 3_600_000));
        assert!(many.last() < Some(&after_a_step_back));
    }

    #[test]
    fn a_millisecond_that_is_used_up_is_followed_by_the_next() {
        let last = Uuid::from_u128(uuid_at(NOW.0, &[0xff; EACH]).as_u128() - 1);
        let within = after(last, &[0; EACH]);
        assert_eq!(within.as_u128(), last.as_u128() + 1);
        let next = after(within, &[0; EACH]);
        assert!(next > within && next.get_timestamp().unwrap().to_unix() == (1_700_000_000, 1_000_000));
    }
}
