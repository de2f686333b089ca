//! What is known of one Lease, and until when it counts as held.
//!
//! A Lease is held for its duration from when a renewal of it was *seen*, by this machine's boot clock. The renewal
//! time that the holder writes is from the holder's clock, which may be wrong. It is used only at the first read in
//! this run, and only to count the Lease as held for less time: a restarted gate has not seen when the renewal
//! happened.
//!
//! Two holders in one election share a token, and their writes cannot be kept apart. So no write of that election is
//! permitted any more, however the Lease is renewed: the ledger may not have sealed its objects yet.

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
    /// When a renewal, or another holder, was last seen; otherwise the time of the first read.
    changed: BootMs,
    /// When it was last read: the time of the request, even if the answer came late.
    looked: BootMs,
    /// The first holder that was seen in the present election.
    first_holder: Option<String>,
    /// Another holder was seen in the present election.
    has_two_holders: bool,
    /// All objects that follow it have got this state.
    pub is_passed_on: bool,
}

/// The state of a Lease without its renewals.
type Gist = Option<(Election, Option<String>)>;

fn duration(seen: &Seen) -> Ttl {
    Ttl(u64::try_from(seen.duration.as_millis()).unwrap_or(u64::MAX))
}

impl Known {
    /// The state after the first read of a Lease in this run. `at`: when the read was sent.
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
        let first_holder = seen.as_ref().and_then(|seen| seen.holder.clone());
        let (term, changed, looked) = (Arc::new(Term::until(deadline)), at.boot, at.boot);
        Self { seen, term, changed, looked, first_holder, has_two_holders: false, is_passed_on: false }
    }

    /// Adds the result of a later read.
    pub fn again(&mut self, seen: Option<Seen>, at: Now) {
        self.looked = self.looked.max(at.boot);
        let is_same_term = self.gist() == gist(seen.as_ref());
        let renewed = |seen: &Option<Seen>| seen.as_ref().map(|seen| (seen.renewed_us, seen.duration));
        if is_same_term && renewed(&self.seen) == renewed(&seen) {
            return;
        }
        self.note_holder(seen.as_ref());
        let held = seen.as_ref().filter(|seen| seen.holder.is_some() && !self.has_two_holders);
        let deadline = held.map(|seen| at.boot.after(duration(seen)));
        if is_same_term {
            deadline.inspect(|deadline| self.term.renew(*deadline));
        } else {
            self.term.end();
            self.term = Arc::new(Term::until(deadline.unwrap_or(BootMs::PAST)));
            self.is_passed_on = false;
        }
        self.changed = at.boot;
        self.seen = seen;
    }

    /// Notes the holder in a later result.
    fn note_holder(&mut self, seen: Option<&Seen>) {
        let holder = seen.and_then(|seen| seen.holder.clone());
        let is_same_election = self.election() == seen.map(|seen| seen.election);
        let first = self.first_holder.take().filter(|_| is_same_election);
        let is_another = first.is_some() && holder.is_some() && first != holder;
        self.has_two_holders = is_same_election && (self.has_two_holders || is_another);
        self.first_holder = first.or(holder);
    }

    /// Adds what a watch shows. Returns `false` for a term or holder that is not known yet: then the Lease must be
    /// read.
    pub fn watch_shows(&mut self, seen: Option<Seen>, at: Now) -> bool {
        let is_known = self.gist() == gist(seen.as_ref());
        // A watch may be older than the last read: an older renewal is no news.
        let is_older =
            seen.as_ref().zip(self.seen.as_ref()).is_some_and(|(seen, known)| seen.renewed_us < known.renewed_us);
        if is_known && !is_older {
            self.again(seen, at);
        }
        is_known && self.is_passed_on
    }

    fn gist(&self) -> Gist {
        gist(self.seen.as_ref())
    }

    #[must_use]
    pub fn election(&self) -> Option<Election> {
        self.seen.as_ref().map(|seen| seen.election)
    }

    /// Whether the Lease is in this term, and held: then no read is necessary.
    #[must_use]
    pub fn is_in(&self, election: Election, now: Now) -> bool {
        self.election() == Some(election) && self.term.is_live(now)
    }

    /// The term by which a write of `election` is judged; `None` where the API server must be asked, or the objects of
    /// the Lease do not have the last result yet. With
    /// [`Fault::DeadTerms`], a term that never ends, since the judge knows no test faults.
    #[must_use]
    pub fn term_of(&self, election: Election) -> Option<Arc<Term>> {
        if failpoints::on(Fault::DeadTerms) {
            return Some(Arc::new(Term::until(BootMs(u64::MAX))));
        }
        (self.is_passed_on && self.election() == Some(election)).then(|| Arc::clone(&self.term))
    }

    /// What the ledger gets of it.
    ///
    /// # Errors
    /// When its holder's name is not allowed for a lease.
    pub fn observation(&self, lease: &Arc<LeaseName>) -> Result<LeaseObservation, String> {
        let lease = Arc::clone(lease);
        let Some(seen) = &self.seen else { return Ok(LeaseObservation::Gone { lease }) };
        let holder = seen.holder.as_deref().map(HolderId::new).transpose();
        let holder = holder.map_err(|fault| format!("its holderIdentity {fault}"))?;
        // A lease counts as over only after it was read again a full duration later; or at once, where two had it.
        let lapsed = self.has_two_holders || self.looked >= self.changed.after(duration(seen));
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

    /// Whether it counts as over after one more read that shows no change.
    fn lapsed(known: &mut Known, at: u64) -> bool {
        let seen = known.seen.clone();
        known.again(seen, now(at));
        matches!(known.observation(&name()), Ok(LeaseObservation::Held { lapsed: true, .. }))
    }

    #[test]
    fn a_renewal_counts_from_when_it_was_seen() {
        let mut known = Known::first(seen(1, "a", 0), now(0));
        assert!(known.term.is_live(now(14_999)) && !known.term.is_live(now(15_000)));
        // The same renewal, read again, does not renew the Lease.
        known.again(seen(1, "a", 0), now(5_000));
        assert!(!known.term.is_live(now(15_000)));
        // Whatever time the holder's clock gave.
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
        // The Lease counts as over after reads for as long as its duration.
        assert!(!lapsed(&mut old, 14_999) && lapsed(&mut old, 15_000));
        // A holder whose clock is ahead gets no longer time.
        let ahead = Known::first(seen(1, "a", 60_000), now(0));
        assert!(ahead.term.is_live(now(14_999)) && !ahead.term.is_live(now(15_000)));
    }

    #[test]
    fn another_term_ends_the_one_before_for_every_write_that_is_judged_by_it() {
        let mut known = Known::first(seen(1, "a", 0), now(0));
        let first = Arc::clone(&known.term);
        assert!(!known.watch_shows(seen(2, "b", 1_000), now(1_000)), "a watch alone does not move a term");
        assert!(first.is_live(now(1_000)));
        known.again(seen(2, "b", 1_000), now(1_000));
        assert!(!first.is_live(now(1_000)) && known.term.is_live(now(15_999)));
        assert!(!known.watch_shows(None, now(2_000)), "nor does it end one");
        known.again(None, now(2_000));
        assert!(!known.term.is_live(now(2_000)));
        assert_eq!(known.observation(&name()), Ok(LeaseObservation::Gone { lease: name() }));
    }

    #[test]
    fn a_lease_that_was_given_back_has_no_holder() {
        let mut known = Known::first(seen(1, "a", 0), now(0));
        assert!(!known.watch_shows(seen(1, "", 1_000), now(1_000)));
        known.again(seen(1, "", 1_000), now(1_000));
        assert!(!known.term.is_live(now(1_000)));
        assert!(matches!(known.observation(&name()), Ok(LeaseObservation::Held { holder: None, .. })));
        assert!(!Known::first(seen(1, "", 0), now(0)).term.is_live(now(0)));
    }

    #[test]
    fn two_holders_in_one_election_are_both_shut_out_until_the_next() {
        let lapses = |known: &Known| {
            matches!(known.observation(&name()), Ok(LeaseObservation::Held { holder: Some(_), lapsed: true, .. }))
        };
        let mut known = Known::first(seen(1, "a", 0), now(0));
        assert!(known.term.is_live(now(0)) && !lapses(&known));
        // Neither renewals nor the return of the first holder changes that.
        for (holder, ms) in [("b", 1_000), ("b", 2_000), ("a", 3_000), ("a", 4_000)] {
            known.again(seen(1, holder, i64::try_from(ms).unwrap()), now(ms));
            assert!(!known.term.is_live(now(ms)) && lapses(&known), "{holder} at {ms}");
        }
        assert!(!known.is_in(known.election().unwrap(), now(4_000)));
        known.again(seen(2, "b", 5_000), now(5_000));
        assert!(known.term.is_live(now(19_999)) && !lapses(&known));
        // The Lease is given back between them.
        known.again(seen(2, "", 6_000), now(6_000));
        known.again(seen(2, "c", 7_000), now(7_000));
        assert!(!known.term.is_live(now(7_000)) && lapses(&known));
        // A Lease that was made anew has a new uid.
        known.again(None, now(8_000));
        let anew = seen(2, "d", 9_000).map(|seen| Seen { election: Election { uid: Uid(8), transitions: 2 }, ..seen });
        known.again(anew, now(9_000));
        assert!(known.term.is_live(now(9_000)));
    }

    #[test]
    fn a_lease_that_had_no_holder_yet_has_one() {
        let mut known = Known::first(seen(1, "", 0), now(0));
        known.again(seen(1, "a", 1_000), now(1_000));
        assert!(known.term.is_live(now(15_999)) && !known.term.is_live(now(16_000)));
    }

    #[test]
    fn a_watch_shows_renewals() {
        let mut known = Known::first(seen(1, "a", 0), now(0));
        assert!(!known.watch_shows(seen(1, "a", 0), now(0)), "it was not passed on");
        known.is_passed_on = true;
        assert!(known.watch_shows(seen(1, "a", 9_000), now(10_000)));
        assert!(known.term.is_live(now(24_999)) && !known.term.is_live(now(25_000)));
        // A renewal older than the last read does not renew the Lease.
        known.again(seen(1, "a", 20_000), now(20_000));
        for late in [9_000, 15_000, 20_000] {
            assert!(known.watch_shows(seen(1, "a", late), now(30_000)));
            assert!(known.term.is_live(now(34_999)) && !known.term.is_live(now(35_000)), "{late}");
        }
    }

    #[test]
    fn an_answer_that_is_slow_ends_nothing() {
        let mut known = Known::first(seen(1, "a", 0), now(0));
        // The answer came long after the request, and counts as of the request.
        known.again(seen(1, "a", 14_000), now(14_500));
        assert!(matches!(known.observation(&name()), Ok(LeaseObservation::Held { lapsed: false, .. })));
        assert!(!lapsed(&mut known, 29_499) && lapsed(&mut known, 29_500));
    }
}
