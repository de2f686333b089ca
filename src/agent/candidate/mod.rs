//! Leader election on a Lease, by the rules of client-go. This module is pure; [`campaign`] and [`term`] run it
//! against an API server.
//!
//! - A candidate that finds no Lease creates one. A candidate takes a Lease that has no holder, or that has not
//!   changed for its whole duration. Every write is a compare-and-swap on the resourceVersion that was read.
//! - **Clocks are never compared**: a candidate counts from when it saw the last change itself. renewTime and
//!   acquireTime are for people.
//! - **Every term has its own number**: leaseTransitions goes up whenever a Lease is taken, also by its last holder.
//!   client-go keeps the number for an identity that comes back; here a lost term stays lost.
//! - **The holder stops first**: it stops [`Timing::renew_deadline`] after its last confirmed renewal. That is
//!   shorter than the duration that the others wait.

pub mod campaign;
pub mod term;

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use thiserror::Error;

use crate::{
    client::tenure,
    fence::{BootMs, Ttl, WallMs, election::Election},
    kubernetes::api::{LeaseName, Seen},
};

/// The longest that a Lease of this program lasts without a renewal: one day.
pub const TTL_MS_MAX: u64 = 86_400_000;

/// The times of an election, in client-go's proportions: 15 s, 10 s and 2 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// leaseDurationSeconds: how long others wait after the last renewal that they saw.
    pub seconds: i32,
    /// How long the holder goes on without a confirmed renewal.
    pub renew_deadline: Ttl,
    /// How often the holder renews, and how often the others read.
    pub retry: Ttl,
}

impl Timing {
    /// The times for a ttl, which is rounded up to whole seconds.
    #[must_use]
    pub fn new(ttl_ms: u64) -> Self {
        let seconds = ttl_ms.clamp(1, TTL_MS_MAX).div_ceil(1_000);
        let ms = seconds * 1_000;
        let seconds = i32::try_from(seconds).expect("a day is not so long");
        Self { seconds, renew_deadline: Ttl(ms / 3 * 2), retry: Ttl(ms * 2 / 15) }
    }

    /// How long one call may take: half of the holder's renew deadline, so that there is time for another call after
    /// one that hangs.
    #[must_use]
    pub fn patience(&self) -> Duration {
        Duration::from_millis(self.renew_deadline.0 / 2)
    }

    fn duration(&self) -> Ttl {
        Ttl(u64::from(self.seconds.unsigned_abs()) * 1_000)
    }
}

/// What a candidate sees of a Lease, and since when it has seen this, by the candidate's own boot clock.
#[derive(Clone, Debug, Default)]
pub struct Observed(Option<(Option<Seen>, BootMs)>);

impl Observed {
    /// Records what an answer says that came at `now`. Returns since when the answers have said this.
    pub fn note(&mut self, seen: Option<&Seen>, now: BootMs) -> BootMs {
        match &self.0 {
            Some((known, since)) if known.as_ref() == seen => *since,
            _ => {
                self.0 = Some((seen.cloned(), now));
                now
            }
        }
    }
}

/// What a candidate does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Create,
    /// Take it, with this value of leaseTransitions.
    Take {
        transitions: i32,
    },
    /// Another candidate holds it, and counts as alive until then.
    Wait {
        holder: String,
        until: BootMs,
    },
    /// leaseTransitions cannot go higher.
    Spent,
}

/// What a candidate does about a Lease that it has seen unchanged since `since`.
#[must_use]
pub fn decide(seen: Option<&Seen>, since: BootMs, now: BootMs, identity: &str, timing: &Timing) -> Step {
    let Some(seen) = seen else { return Step::Create };
    if let Some(holder) = seen.holder.as_deref().filter(|holder| *holder != identity) {
        let said = Ttl(u64::try_from(seen.duration.as_millis()).unwrap_or(u64::MAX));
        // A Lease without a duration gets this candidate's own duration.
        let until = since.after(if said.0 == 0 { timing.duration() } else { said });
        if now < until {
            return Step::Wait { holder: holder.to_owned(), until };
        }
    }
    let next = i32::try_from(seen.election.transitions).ok().and_then(|now| now.checked_add(1));
    next.map_or(Step::Spent, |transitions| Step::Take { transitions })
}

/// A write of a Lease whose outcome is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unanswered {
    Create,
    /// With the resourceVersion that it replaces.
    Take {
        version: Option<String>,
    },
}

impl Unanswered {
    /// Whether the write may still be carried out: the Lease is as it was before the write. Once the Lease has
    /// changed, the write was carried out or never will be.
    #[must_use]
    pub fn may_come(&self, now: Option<&Lease>) -> bool {
        match self {
            Self::Create => now.is_none(),
            Self::Take { version } => now.is_some_and(|lease| lease.metadata.resource_version == *version),
        }
    }
}

/// Why a term ended.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Over {
    #[error("its renew deadline has passed without a renewal{}", last.as_ref().map(|last| format!(": {last}")).unwrap_or_default())]
    Deadline { last: Option<String> },
    #[error("the Lease was taken{}", by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default())]
    Taken { by: Option<String> },
    #[error("the Lease was deleted")]
    Deleted,
    #[error("the gate refused a write of it with {code}")]
    Write { code: String },
    #[error("it was released")]
    Released,
}

impl tenure::Over for Over {
    fn deadline(last: Option<String>) -> Self {
        Self::Deadline { last }
    }

    fn released() -> Self {
        Self::Released
    }
}

impl Over {
    /// The reason in one word, for metrics.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            Self::Deadline { .. } => "DEADLINE",
            Self::Taken { .. } => "TAKEN",
            Self::Deleted => "DELETED",
            Self::Write { code } => code,
            Self::Released => "RELEASED",
        }
    }
}

/// Whether a Lease, as it was read, still belongs to this term.
///
/// # Errors
/// Why the term is over.
pub fn still_of(term: Election, identity: &str, seen: Option<&Seen>) -> Result<(), Over> {
    match seen {
        Some(seen) if seen.election.uid == term.uid => {
            if seen.election == term && seen.holder.as_deref() == Some(identity) {
                Ok(())
            } else {
                Err(Over::Taken { by: seen.holder.clone() })
            }
        }
        Some(_) | None => Err(Over::Deleted),
    }
}

/// A new Lease that `identity` holds.
#[must_use]
pub fn created(at: &LeaseName, identity: &str, timing: &Timing, now: WallMs) -> Lease {
    let metadata =
        ObjectMeta { namespace: Some(at.namespace.clone()), name: Some(at.name.clone()), ..ObjectMeta::default() };
    taken(Lease { metadata, spec: None }, identity, 0, timing, now)
}

/// A Lease that was read, as it becomes when `identity` takes it.
#[must_use]
pub fn taken(lease: Lease, identity: &str, transitions: i32, timing: &Timing, now: WallMs) -> Lease {
    let mut lease = renewed(lease, identity, timing, now);
    let spec = lease.spec.get_or_insert_default();
    spec.acquire_time = time(now);
    spec.lease_transitions = Some(transitions);
    lease
}

/// A Lease as it becomes when its holder renews it: leaseTransitions and acquireTime stay.
#[must_use]
pub fn renewed(lease: Lease, identity: &str, timing: &Timing, now: WallMs) -> Lease {
    change(lease, |spec| {
        spec.holder_identity = Some(identity.to_owned());
        spec.lease_duration_seconds = Some(timing.seconds);
        spec.renew_time = time(now);
    })
}

/// A Lease as it becomes when its holder gives it back: the next candidate that reads it may take it.
#[must_use]
pub fn released(lease: Lease, now: WallMs) -> Lease {
    change(lease, |spec| {
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        (spec.renew_time, spec.acquire_time) = (time(now), time(now));
    })
}

fn change(mut lease: Lease, change: impl FnOnce(&mut LeaseSpec)) -> Lease {
    change(lease.spec.get_or_insert_default());
    lease
}

fn time(now: WallMs) -> Option<MicroTime> {
    let ms = i64::try_from(now.0).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(ms).ok().map(MicroTime)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::election::Uid;

    fn seen(holder: &str, transitions: u32, seconds: u64) -> Seen {
        Seen {
            election: Election { uid: Uid(1), transitions },
            holder: Some(holder.to_owned()).filter(|holder| !holder.is_empty()),
            duration: Duration::from_secs(seconds),
            renewed_us: 0,
        }
    }

    #[test]
    fn times_have_client_gos_proportions_and_whole_seconds() {
        let timing = |ttl_ms| {
            let Timing { seconds, renew_deadline, retry } = Timing::new(ttl_ms);
            (seconds, renew_deadline.0, retry.0)
        };
        assert_eq!(timing(15_000), (15, 10_000, 2_000));
        assert_eq!(timing(14_001), (15, 10_000, 2_000));
        assert_eq!(timing(1), (1, 666, 133));
        assert_eq!(timing(u64::MAX), (86_400, 57_600_000, 11_520_000));
    }

    #[test]
    fn a_candidate_takes_a_free_lease_and_waits_for_a_held_one() {
        let timing = Timing::new(15_000);
        let (since, wait) = (BootMs(1_000), |until| Step::Wait { holder: "b".to_owned(), until: BootMs(until) });
        let take = |transitions| Step::Take { transitions };
        for (what, lease, now, expected) in [
            ("there is none", None, 1_000, Step::Create),
            ("another's, fresh", Some(seen("b", 3, 10)), 1_000, wait(11_000)),
            ("another's, to its last moment", Some(seen("b", 3, 10)), 10_999, wait(11_000)),
            ("another's, run out", Some(seen("b", 3, 10)), 11_000, take(4)),
            ("another's, long gone", Some(seen("b", 0, 10)), u64::MAX, take(1)),
            ("another's, which does not say for how long", Some(seen("b", 3, 0)), 15_999, wait(16_000)),
            ("the same, as long as one's own", Some(seen("b", 3, 0)), 16_000, take(4)),
            ("given back", Some(seen("", 3, 1)), 1_000, take(4)),
            ("one's own, from a term that is over", Some(seen("a", 3, 10)), 1_000, take(4)),
            ("given back, and counted to the end", Some(seen("", 2_147_483_647, 1)), 1_000, Step::Spent),
            ("counted to the end, but held", Some(seen("b", 2_147_483_647, 10)), 1_000, wait(11_000)),
        ] {
            assert_eq!(decide(lease.as_ref(), since, BootMs(now), "a", &timing), expected, "{what}");
        }
    }

    /// The time that the holder wrote does not matter.
    #[test]
    fn a_change_is_counted_from_when_it_was_seen() {
        let mut observed = Observed::default();
        let first = Seen { renewed_us: 9_000_000_000_000_000, ..seen("b", 3, 10) };
        assert_eq!(observed.note(Some(&first), BootMs(100)), BootMs(100));
        assert_eq!(observed.note(Some(&first), BootMs(5_000)), BootMs(100));
        // A renewal counts although its time is a century earlier.
        let renewed = Seen { renewed_us: 1, ..first.clone() };
        assert_eq!(observed.note(Some(&renewed), BootMs(6_000)), BootMs(6_000));
        assert_eq!(observed.note(None, BootMs(7_000)), BootMs(7_000));
        assert_eq!(observed.note(Some(&renewed), BootMs(8_000)), BootMs(8_000));
    }

    #[test]
    fn a_term_is_over_with_its_uid_its_number_or_its_holder() {
        let term = Election { uid: Uid(1), transitions: 3 };
        let taken = |by: &str| Err(Over::Taken { by: Some(by.to_owned()).filter(|by| !by.is_empty()) });
        let another = Seen { election: Election { uid: Uid(2), ..term }, ..seen("a", 3, 10) };
        for (what, lease, expected) in [
            ("as it was", Some(seen("a", 3, 10)), Ok(())),
            ("another holder", Some(seen("b", 4, 10)), taken("b")),
            ("another holder who does not count", Some(seen("b", 3, 10)), taken("b")),
            ("one's own next term", Some(seen("a", 4, 10)), taken("a")),
            ("given back", Some(seen("", 3, 1)), taken("")),
            ("deleted", None, Err(Over::Deleted)),
            ("deleted and made anew", Some(another), Err(Over::Deleted)),
        ] {
            assert_eq!(still_of(term, "a", lease.as_ref()), expected, "{what}");
        }
    }

    #[test]
    fn a_lease_is_written_as_client_go_writes_it() {
        let timing = Timing::new(15_000);
        let at = LeaseName { namespace: "left".to_owned(), name: "users".to_owned() };
        let shown = |lease: &Lease| serde_json::to_value(lease).unwrap();
        let made = created(&at, "a", &timing, WallMs(1_000));
        let spec = serde_json::json!({
            "holderIdentity": "a", "leaseDurationSeconds": 15, "leaseTransitions": 0,
            "acquireTime": "1970-01-01T00:00:01.000000Z", "renewTime": "1970-01-01T00:00:01.000000Z",
        });
        assert_eq!(shown(&made)["spec"], spec);
        assert_eq!(shown(&made)["metadata"], serde_json::json!({ "namespace": "left", "name": "users" }));
        let mut read = made.clone();
        read.metadata.resource_version = Some("7".to_owned());
        read.metadata.labels = Some([("app".to_owned(), "x".to_owned())].into());
        let after = shown(&renewed(read.clone(), "a", &timing, WallMs(2_000)));
        assert_eq!(after["spec"]["acquireTime"], spec["acquireTime"]);
        assert_eq!(
            (&after["spec"]["leaseTransitions"], &after["metadata"]["resourceVersion"]),
            (&0.into(), &"7".into())
        );
        let next = shown(&taken(read.clone(), "b", 1, &timing, WallMs(3_000)));
        assert_eq!(
            (&next["spec"]["acquireTime"], &next["spec"]["leaseTransitions"]),
            (&next["spec"]["renewTime"], &1.into())
        );
        assert_eq!(next["metadata"]["labels"]["app"], "x", "what is not the election's stays");
        let free = shown(&released(read, WallMs(4_000)));
        assert_eq!((&free["spec"]["holderIdentity"], &free["spec"]["leaseDurationSeconds"]), (&"".into(), &1.into()));
        assert_eq!(free["spec"]["leaseTransitions"], 0);
    }
}
