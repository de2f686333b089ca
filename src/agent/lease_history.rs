//! How soon one lease of an object may follow another. This state outlives the task that keeps a lease, because the
//! application's writes decide when such a task ends.
//!
//! Leases that are lost soon after their grant follow each other with pauses. An object's lease is given back for a
//! write that cannot get another object, but only after repeated refusals, and each time later.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{
    client::backoff::Backoff,
    fence::{BootMs, ObjectId},
};

/// First and longest pause between leases that are lost soon after their grant.
const SHORT_LIVED_MS: (u64, u64) = (100, 5_000);
/// How long the history of an object's leases is kept.
const FORGET_MS: u64 = 60_000;

/// The lease histories of all objects.
pub(super) struct LeaseHistories {
    /// How many are kept at most. The entry that was unused for longest is dropped for a new one.
    most: usize,
    all: Mutex<HashMap<ObjectId, LeaseHistory>>,
}

/// What has become of one object's last leases.
struct LeaseHistory {
    /// When an event was last counted.
    at: BootMs,
    /// Counts the losses, beginning with the first lease that was lost early.
    losses: Option<Backoff>,
    /// Counts how often the lease was given back.
    ways: Backoff,
    /// For how long writes must have been refused before it is given back.
    patience: Duration,
    /// The first refused write since the lease was last given back.
    refused_since: Option<BootMs>,
}

impl LeaseHistory {
    fn new(at: BootMs) -> Self {
        let mut ways = Backoff::new(SHORT_LIVED_MS.0, SHORT_LIVED_MS.1);
        let patience = ways.next(None);
        Self { at, losses: None, ways, patience, refused_since: None }
    }
}

impl LeaseHistories {
    pub(super) fn new(most: usize) -> Self {
        Self { most: most.max(1), all: Mutex::default() }
    }

    /// Records a lost lease. Returns how long to wait before the next one is asked for: `None` after a lease that
    /// lasted for a third of its ttl, and after the first that did not; then longer each time.
    pub(super) fn lost(&self, object: &ObjectId, held_ms: u64, ttl_ms: u64, now: BootMs) -> Option<Duration> {
        let granted = BootMs(now.0.saturating_sub(held_ms));
        self.count(object, granted, now, |history| {
            if held_ms >= ttl_ms / 3 {
                history.losses = None;
                return None;
            }
            let Some(losses) = &mut history.losses else {
                history.losses = Some(Backoff::new(SHORT_LIVED_MS.0, SHORT_LIVED_MS.1));
                return None;
            };
            Some(losses.next(None))
        })
    }

    /// Records that a write to this object and another one was refused because another holder has the other one.
    /// Returns whether to give this object's lease back: not after one refused write, and later each time.
    pub(super) fn gives_way(&self, object: &ObjectId, now: BootMs) -> bool {
        self.count(object, now, now, |history| {
            let since = *history.refused_since.get_or_insert(now);
            u128::from(now.since(since)) >= history.patience.as_millis()
        })
    }

    /// Records that the lease was given back for such writes.
    pub(super) fn gave_way(&self, object: &ObjectId, now: BootMs) {
        self.count(object, now, now, |history| {
            history.patience = history.ways.next(None);
            history.refused_since = None;
        });
    }

    /// Counts an event that began at `begun`. Forgets an older history first.
    fn count<T>(
        &self,
        object: &ObjectId,
        begun: BootMs,
        now: BootMs,
        change: impl FnOnce(&mut LeaseHistory) -> T,
    ) -> T {
        let mut all = self.lock();
        if !all.contains_key(object) && all.len() >= self.most {
            all.retain(|_, history| now.since(history.at) < FORGET_MS);
            if all.len() >= self.most
                && let Some(oldest) = all.iter().min_by_key(|(_, history)| history.at).map(|(object, _)| object.clone())
            {
                all.remove(&oldest);
            }
        }
        let history = all.entry(object.clone()).or_insert_with(|| LeaseHistory::new(now));
        if begun.since(history.at) >= FORGET_MS {
            *history = LeaseHistory::new(now);
        }
        history.at = now;
        change(history)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectId, LeaseHistory>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str) -> ObjectId {
        ObjectId::new(name).unwrap()
    }

    #[test]
    fn leases_that_are_lost_soon_follow_each_other_with_pauses() {
        let (histories, users) = (LeaseHistories::new(8), object("users"));
        let lost =
            |held_ms: u64, at: u64| histories.lost(&users, held_ms, 30_000, BootMs(at)).map(|each| each.as_millis());
        assert_eq!(lost(10, 100_000), None);
        for (at, most) in [(100_100, 100), (100_300, 200), (100_700, 400)] {
            assert!(lost(10, at).is_some_and(|pause| (most / 2..=most).contains(&pause)), "{most}");
        }
        // A lease that lasted, and a pause of more than a minute, each start a new history.
        assert_eq!((lost(10_000, 111_000), lost(10, 111_100)), (None, None));
        assert!(lost(10, 111_200).is_some());
        assert_eq!(lost(10, 111_200 + FORGET_MS + 10), None);
        // The time for which the last lease was held is not such a pause.
        let long = |at: u64| histories.lost(&object("long"), 90_000, 600_000, BootMs(at));
        assert!(long(200_000).is_none() && long(300_000).is_some());
    }

    /// Writes are refused every 20 ms, for ten minutes.
    #[test]
    fn a_lease_is_given_back_ever_more_rarely() {
        let (histories, users) = (LeaseHistories::new(8), object("users"));
        let mut given_back = vec![];
        for now in (0..600_000).step_by(20) {
            if histories.gives_way(&users, BootMs(now)) {
                histories.gave_way(&users, BootMs(now));
                given_back.push(now);
            }
        }
        assert!(given_back[0] >= 50, "{given_back:?}");
        assert!((110..=250).contains(&given_back.len()), "{} in ten minutes", given_back.len());
        let early = given_back.iter().filter(|at| **at < 10_000).count();
        assert!((5..=9).contains(&early), "{given_back:?}");
    }

    #[test]
    fn one_refused_write_takes_no_lease_away() {
        let (histories, users) = (LeaseHistories::new(8), object("users"));
        assert!(!histories.gives_way(&users, BootMs(0)) && !histories.gives_way(&users, BootMs(0)));
        assert!(!histories.gives_way(&users, BootMs(FORGET_MS)), "too long ago to have to do with each other");
        assert!(histories.gives_way(&users, BootMs(FORGET_MS + 1_000)));
        // The lease was not given back, since a write was in flight. The next refusal asks for it again.
        assert!(histories.gives_way(&users, BootMs(FORGET_MS + 1_001)));
        histories.gave_way(&users, BootMs(FORGET_MS + 1_002));
        assert!(!histories.gives_way(&users, BootMs(FORGET_MS + 1_003)));
    }

    #[test]
    fn no_more_objects_are_remembered_than_an_agent_may_hold() {
        let histories = LeaseHistories::new(2);
        for (at, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
            histories.gives_way(&object(name), BootMs(at as u64));
        }
        let mut kept: Vec<String> = histories.lock().keys().map(ToString::to_string).collect();
        kept.sort();
        assert_eq!(kept, ["c", "d"]);
    }
}
