//! What is known of one Lease, and until when it counts as held.
//!
//! A Lease is held for its duration from when a renewal of it was *seen*, by this machine's boot clock: the holder's
//! clock says when it renewed, and nobody knows how right that is. Only of the very first look at it in this run is
//! the holder's word taken, and only to count the Lease as held for less: a gate that was restarted has not seen
//! when the renewal was that it finds.

use std::sync::Arc;

use super::api::Seen;
use crate::{
    failpoints::{self, Fault},
    fence::{
        BootMs, HolderId, Now, Ttl,
        elected::{LeaseObservation, Term},
        election::{Election, LeaseName},
    },
};

/// One Lease, as it was last read.
#[derive(Debug)]
pub struct Known {
    /// `None`: there is no such Lease.
    pub seen: Option<Seen>,
    /// Shared by the writes that are judged by it.
    pub term: Arc<Term>,
    /// When a renewal, or another holder, was last seen; else when it was first looked at.
    changed: BootMs,
    /// When it was last looked at: as of the question, however late the answer came.
    looked: BootMs,
    /// Everyone who has to know of its changes knows of this.
    pub is_told: bool,
}

/// What there is to know of a Lease but its renewals.
type Gist = Option<(Election, Option<String>)>;

fn duration(seen: &Seen) -> Ttl {
    Ttl(u64::try_from(seen.duration.as_millis()).unwrap_or(u64::MAX))
}

impl Known {
    /// The first look at a Lease in this run. `at`: when it was asked for.
    #[must_use]
    pub fn first(seen: Option<Seen>, at: Now) -> Self {
        let deadline = seen.as_ref().filter(|seen| seen.holder.is_some()).map_or(BootMs::PAST, |seen| {
            let renewed_ms = u64::try_from(seen.renewed_us / 1_000).unwrap_or(0);
            let age = at.wall.0.saturating_sub(renewed_ms);
            match duration(seen).0.saturating_sub(age) {
                0 => BootMs::PAST,
                left => at.boot.after(Ttl(left)),
            }
        });
        Self { seen, term: Arc::new(Term::until(deadline)), changed: at.boot, looked: at.boot, is_told: false }
    }

    /// A later look at it.
    pub fn again(&mut self, seen: Option<Seen>, at: Now) {
        self.looked = self.looked.max(at.boot);
        let is_same_term = self.gist() == gist(seen.as_ref());
        let renewed = |seen: &Option<Seen>| seen.as_ref().map(|seen| (seen.renewed_us, seen.duration));
        if is_same_term && renewed(&self.seen) == renewed(&seen) {
            return;
        }
        let held = seen.as_ref().filter(|seen| seen.holder.is_some());
        let deadline = held.map(|seen| at.boot.after(duration(seen)));
        if is_same_term {
            deadline.inspect(|deadline| self.term.renew(*deadline));
        } else {
            self.term.end();
            self.term = Arc::new(Term::until(deadline.unwrap_or(BootMs::PAST)));
            self.is_told = false;
        }
        self.changed = at.boot;
        self.seen = seen;
    }

    /// A watch shows it. `false`: that is another term, or another holder, than everyone knows of; somebody has to ask.
    pub fn hear(&mut self, seen: Option<Seen>, at: Now) -> bool {
        let is_known = self.gist() == gist(seen.as_ref());
        // A watch may be behind what was read: an older renewal is no news.
        let is_older =
            seen.as_ref().zip(self.seen.as_ref()).is_some_and(|(seen, known)| seen.renewed_us < known.renewed_us);
        if is_known && !is_older {
            self.again(seen, at);
        }
        is_known && self.is_told
    }

    fn gist(&self) -> Gist {
        gist(self.seen.as_ref())
    }

    #[must_use]
    pub fn election(&self) -> Option<Election> {
        self.seen.as_ref().map(|seen| seen.election)
    }

    /// Whether the Lease is in this term, and held: then nobody has to ask the API server about it.
    #[must_use]
    pub fn is_in(&self, election: Election, now: Now) -> bool {
        self.election() == Some(election) && self.term.is_live(now)
    }

    /// What a write of `election` is judged by: the present term, or nothing where the API server has to be asked.
    /// With [`Fault::DeadTerms`]: a term that is never over, since the judge knows no test faults.
    #[must_use]
    pub fn term_of(&self, election: Election) -> Option<Arc<Term>> {
        if failpoints::on(Fault::DeadTerms) {
            return Some(Arc::new(Term::until(BootMs(u64::MAX))));
        }
        (self.election() == Some(election)).then(|| Arc::clone(&self.term))
    }

    /// What the ledger is told of it.
    ///
    /// # Errors
    /// Where its holder has a name that no lease can have.
    pub fn observation(&self, lease: &Arc<LeaseName>) -> Result<LeaseObservation, String> {
        let lease = Arc::clone(lease);
        let Some(seen) = &self.seen else { return Ok(LeaseObservation::Gone { lease }) };
        let holder = seen.holder.as_deref().map(HolderId::new).transpose();
        let holder = holder.map_err(|fault| format!("its holderIdentity {fault}"))?;
        // Nobody is told that a lease is over, unless it was looked at for as long as it lasts.
        let lapsed = self.looked >= self.changed.after(duration(seen));
        Ok(LeaseObservation::Held { lease, election: seen.election, holder, lapsed })
    }
}

fn gist(seen: Option<&Seen>) -> Gist {
    seen.map(|seen| (seen.election, seen.holder.clone()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fence::{WallMs, election::Uid};

    const T0: u64 = 1_800_000_000_000;

    fn now(ms: u64) -> Now {
        Now { wall: WallMs(T0 + ms), boot: BootMs(1_000 + ms) }
    }

    #[allow(clippy::unnecessary_wraps, reason = "as it is read")]
    /// `renewed`: milliseconds after T0, by the holder's clock.
    fn seen(transitions: u32, holder: &str, renewed: i64) -> Option<Seen> {
        Some(Seen {
            election: Election { uid: Uid(7), transitions },
            holder: Some(holder.to_owned()).filter(|holder| !holder.is_empty()),
            duration: Duration::from_secs(15),
            renewed_us: (i64::try_from(T0).unwrap() + renewed) * 1_000,
        })
    }

    fn name() -> Arc<LeaseName> {
        Arc::new(LeaseName { namespace: "left".to_owned(), name: "users".to_owned() })
    }

    /// Whether it counts as over after one more look, which finds it as it was.
    fn lapsed(known: &mut Known, at: u64) -> bool {
        let seen = known.seen.clone();
        known.again(seen, now(at));
        matches!(known.observation(&name()), Ok(LeaseObservation::Held { lapsed: true, .. }))
    }

    #[test]
    fn a_renewal_counts_from_when_it_was_seen() {
        let mut known = Known::first(seen(1, "a", 0), now(0));
        assert!(known.term.is_live(now(14_999)) && !known.term.is_live(now(15_000)));
        // The same renewal, read again, renews nothing.
        known.again(seen(1, "a", 0), now(5_000));
        assert!(!known.term.is_live(now(15_000)));
        // Whatever the holder's clock says of it.
        known.again(seen(1, "a", -90_000), now(9_000));
        assert!(known.term.is_live(now(23_999)) && !known.term.is_live(now(24_000)));
        assert!(!lapsed(&mut known, 23_999) && lapsed(&mut known, 24_000));
    }

    #[test]
    fn the_first_look_makes_a_lease_no_longer_than_it_is() {
        let known = Known::first(seen(1, "a", -10_000), now(0));
        assert!(known.term.is_live(now(4_999)) && !known.term.is_live(now(5_000)));
        let mut old = Known::first(seen(1, "a", -60_000), now(0));
        assert!(!old.term.is_live(now(0)));
        // That it is over is said once it was looked at for as long as it lasts.
        assert!(!lapsed(&mut old, 14_999) && lapsed(&mut old, 15_000));
        // A holder whose clock is ahead gains nothing.
        let ahead = Known::first(seen(1, "a", 60_000), now(0));
        assert!(ahead.term.is_live(now(14_999)) && !ahead.term.is_live(now(15_000)));
    }

    #[test]
    fn another_term_ends_the_one_before_for_every_write_that_is_judged_by_it() {
        let mut known = Known::first(seen(1, "a", 0), now(0));
        let first = Arc::clone(&known.term);
        assert!(!known.hear(seen(2, "b", 1_000), now(1_000)), "a watch alone does not move a term");
        assert!(first.is_live(now(1_000)));
        known.again(seen(2, "b", 1_000), now(1_000));
        assert!(!first.is_live(now(1_000)) && known.term.is_live(now(15_999)));
        assert!(!known.hear(None, now(2_000)), "nor does it end one");
        known.again(None, now(2_000));
        assert!(!known.term.is_live(now(2_000)));
        assert_eq!(known.observation(&name()), Ok(LeaseObservation::Gone { lease: name() }));
    }

    #[test]
    fn a_lease_that_was_given_back_is_nobodys() {
        let mut known = Known::first(seen(1, "a", 0), now(0));
        assert!(!known.hear(seen(1, "", 1_000), now(1_000)));
        known.again(seen(1, "", 1_000), now(1_000));
        assert!(!known.term.is_live(now(1_000)));
        assert!(matches!(known.observation(&name()), Ok(LeaseObservation::Held { holder: None, .. })));
        assert!(!Known::first(seen(1, "", 0), now(0)).term.is_live(now(0)));
    }

    #[test]
    fn a_watch_shows_renewals() {
        let mut known = Known::first(seen(1, "a", 0), now(0));
        assert!(!known.hear(seen(1, "a", 0), now(0)), "nobody was told of it");
        known.is_told = true;
        assert!(known.hear(seen(1, "a", 9_000), now(10_000)));
        assert!(known.term.is_live(now(24_999)) && !known.term.is_live(now(25_000)));
        // One that is behind what was read renews nothing.
        known.again(seen(1, "a", 20_000), now(20_000));
        for late in [9_000, 15_000, 20_000] {
            assert!(known.hear(seen(1, "a", late), now(30_000)));
            assert!(known.term.is_live(now(34_999)) && !known.term.is_live(now(35_000)), "{late}");
        }
    }

    #[test]
    fn an_answer_that_is_slow_ends_nothing() {
        let mut known = Known::first(seen(1, "a", 0), now(0));
        // It is told of long after the question; what it says is as of then.
        known.again(seen(1, "a", 14_000), now(14_500));
        assert!(matches!(known.observation(&name()), Ok(LeaseObservation::Held { lapsed: false, .. })));
        assert!(!lapsed(&mut known, 29_499) && lapsed(&mut known, 29_500));
    }
}
