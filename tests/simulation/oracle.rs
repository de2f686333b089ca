//! The adversary's memory: what callers were ever answered, and what the store has applied. The oracle knows the
//! promises, but not how the gate keeps them.

use std::collections::{BTreeMap, BTreeSet};

use fencegate::fence::{BootMs, LeaseId, ObjectId, election::Election};

/// A promise that was broken.
#[derive(Clone, Debug)]
pub(super) struct Violation {
    pub(super) name: &'static str,
    pub(super) what: String,
}

type Kept = Result<(), Violation>;

fn broken(name: &'static str, what: String) -> Kept {
    Err(Violation { name, what })
}

/// What was answered about one object, and done to it.
#[derive(Default)]
struct Story {
    /// Every grant that was answered: its lease, and the latest end of it.
    granted: BTreeMap<u64, Grant>,
    /// The highest number that was granted, or of which an operator got the answer that no older write lands.
    floor: u64,
    /// The highest fence that a caller got or that the gate's memory has shown.
    fence: u64,
    /// The highest number that the store has applied.
    applied: u64,
    /// Numbers of leases of which a caller learned that they are over.
    over: BTreeSet<u64>,
    /// Which term of leadership has written under a number, and of which terms a caller learned that they are over.
    led: BTreeMap<u64, Election>,
    terms_over: Vec<Election>,
    /// Terms that two holders have had.
    shared: Vec<Election>,
}

struct Grant {
    lease: LeaseId,
    tainted: bool,
    until: BootMs,
    ttl_ms: u64,
}

/// All objects' stories.
#[derive(Default)]
pub(super) struct Oracle {
    stories: BTreeMap<ObjectId, Story>,
    /// Writes for which an operator has said that a handover need not wait.
    forgiven: BTreeSet<u64>,
    /// Writes that have begun to reach the store.
    sent: BTreeSet<u64>,
    /// Terms that the gate has read to be over, and until when a term can be held at the latest by what the gate
    /// has seen.
    read_over: Vec<Election>,
    terms_until: Vec<(Election, BootMs)>,
    /// Terms of which the gate has read two holders in its present run.
    two_holders: Vec<Election>,
}

impl Oracle {
    fn story(&mut self, object: &ObjectId) -> &mut Story {
        self.stories.entry(object.clone()).or_default()
    }

    /// The highest fence that a caller got.
    pub(super) fn fence(&self, object: &ObjectId) -> u64 {
        self.stories.get(object).map_or(0, |story| story.fence)
    }

    /// Checks a grant that was answered. `before`: the highest fence that a caller got before the round of this
    /// answer.
    pub(super) fn granted(&mut self, object: &ObjectId, seq: u64, lease: (&LeaseId, bool), before: u64) -> Kept {
        let (lease, tainted) = lease;
        let story = self.story(object);
        let is_again = story.granted.get(&seq).is_some_and(|grant| grant.lease == *lease);
        if story.granted.contains_key(&seq) && !is_again {
            return broken("UNIQUE", format!("{object}: {seq} was granted twice"));
        }
        if !is_again && seq < before {
            return broken("MONOTONIC", format!("{object}: {seq} was granted after its fence was shown as {before}"));
        }
        let over: Vec<u64> = story.granted.range(..seq).map(|(seq, _)| *seq).collect();
        story.over.extend(over);
        story.granted.entry(seq).or_insert_with(|| Grant {
            lease: lease.clone(),
            tainted,
            until: BootMs::PAST,
            ttl_ms: 0,
        });
        story.floor = story.floor.max(seq);
        story.fence = story.fence.max(seq);
        if story.over.contains(&seq) {
            return broken(
                "NO REVIVAL",
                format!("{object}: {seq} was handed out though the gate had said that it was over"),
            );
        }
        if seq < story.floor {
            story.over.insert(seq);
        }
        Ok(())
    }

    /// Notes that a lease may have been renewed with this lifetime at this time.
    pub(super) fn extended(&mut self, object: &ObjectId, seq: u64, now: BootMs, ttl_ms: u64) {
        if let Some(grant) = self.story(object).granted.get_mut(&seq) {
            grant.until = grant.until.max(BootMs(now.0 + ttl_ms));
            grant.ttl_ms = grant.ttl_ms.max(ttl_ms);
        }
    }

    /// Checks a renewal that was answered.
    pub(super) fn renewed(&mut self, object: &ObjectId, seq: u64) -> Kept {
        if self.story(object).over.contains(&seq) {
            return broken(
                "NO REVIVAL",
                format!("{object}: {seq} was renewed though the gate had said that it was over"),
            );
        }
        Ok(())
    }

    /// Notes a start of the gate, perhaps with another wall clock: a lease may live for its whole ttl again.
    pub(super) fn restarted(&mut self, now: BootMs) {
        for grant in self.stories.values_mut().flat_map(|story| story.granted.values_mut()) {
            grant.until = grant.until.max(BootMs(now.0 + grant.ttl_ms));
        }
    }

    /// Notes that a caller learned that a lease is over.
    pub(super) fn over(&mut self, object: &ObjectId, seq: u64) {
        let story = self.story(object);
        story.over.insert(seq);
        let shared = story.led.get(&seq).filter(|term| story.shared.contains(term)).copied();
        story.terms_over.extend(shared);
    }

    /// Checks a fence that a caller got, or can see.
    pub(super) fn fence_told(&mut self, object: &ObjectId, fence: u64) -> Kept {
        let story = self.story(object);
        if fence < story.fence {
            return broken("MONOTONIC", format!("{object}: the fence went down from {} to {fence}", story.fence));
        }
        story.fence = fence;
        Ok(())
    }

    /// Checks a fence that an operator got; `before` is as for a grant.
    pub(super) fn revoked(&mut self, object: &ObjectId, fence: u64, before: u64) -> Kept {
        if fence < before {
            return broken("MONOTONIC", format!("{object}: revoked up to {fence}, though its fence was {before}"));
        }
        let story = self.story(object);
        story.fence = story.fence.max(fence);
        Ok(())
    }

    /// Notes that an operator got the answer that no write below `fence` lands any more.
    pub(super) fn freed(&mut self, object: &ObjectId, fence: u64) {
        let story = self.story(object);
        story.floor = story.floor.max(fence);
        let over: Vec<u64> = story.granted.range(..fence).map(|(seq, _)| *seq).collect();
        story.over.extend(over);
    }

    /// Checks a write that was let through, to wait or to land.
    pub(super) fn admitted(&mut self, object: &ObjectId, seq: u64, now: BootMs) -> Kept {
        let story = self.story(object);
        if seq < story.floor {
            return broken(
                "STALE",
                format!("{object}: a write of {seq} was let through after {} was handed out", story.floor),
            );
        }
        if story.over.contains(&seq) {
            return broken(
                "NO REVIVAL",
                format!("{object}: a write of {seq} was let through though the gate had said that it was over"),
            );
        }
        match story.granted.get(&seq) {
            None => broken(
                "UNFENCED",
                format!("{object}: a write of {seq} was let through, and it was granted to no holder"),
            ),
            Some(grant) if now >= grant.until => broken(
                "EXPIRY",
                format!("{object}: a write of {seq} was let through at {}, over at {}", now.0, grant.until.0),
            ),
            Some(_) => Ok(()),
        }
    }

    /// Notes that the gate has read that these terms are over.
    pub(super) fn terms_over(&mut self, terms: &[Election]) {
        self.read_over.extend(terms.iter().filter(|term| !self.read_over.contains(term)).copied().collect::<Vec<_>>());
    }

    /// Notes that the gate has seen a term's Lease, and may count it as held until this time.
    pub(super) fn term_until(&mut self, term: Election, until: BootMs) {
        match self.terms_until.iter_mut().find(|(each, _)| *each == term) {
            Some((_, known)) => *known = until.max(*known),
            None => self.terms_until.push((term, until)),
        }
    }

    /// Notes that a caller learned that a term may not write this object any more.
    pub(super) fn term_over(&mut self, object: &ObjectId, term: Election) {
        self.story(object).terms_over.push(term);
    }

    /// Notes that the gate has read that a term has come to another holder. Once the first holder's lease is over,
    /// so is the term.
    pub(super) fn term_shared(&mut self, object: &ObjectId, term: Election) {
        self.story(object).shared.push(term);
    }

    /// Notes that the gate has read another holder of a term. No write of it may pass any more, whosever it is.
    pub(super) fn two_holders(&mut self, term: Election) {
        self.two_holders.push(term);
    }

    /// Notes that a run of the gate is over. The next one has not seen the first holder of a term.
    pub(super) fn run_ended(&mut self) {
        self.two_holders.clear();
    }

    /// Checks a write by a term of leadership that was let through, to wait or to land.
    pub(super) fn admitted_by(&mut self, object: &ObjectId, seq: u64, term: Election, now: BootMs) -> Kept {
        let is_over = self.read_over.contains(&term);
        let has_two_holders = self.two_holders.contains(&term);
        let until = self.terms_until.iter().find(|(each, _)| *each == term).map(|(_, until)| *until);
        let story = self.story(object);
        let what = format!("{object}: a write of {seq} by {term} was let through");
        if is_over {
            return broken("STALE", format!("{what}, after the Lease was read to be in another term"));
        }
        if has_two_holders {
            return broken("STALE", format!("{what}, after the Lease was read to have another holder in this term"));
        }
        if seq < story.floor {
            return broken("STALE", format!("{what}, after one of {} was answered", story.floor));
        }
        if story.over.contains(&seq) || story.terms_over.contains(&term) {
            return broken("NO REVIVAL", format!("{what} though the gate had said that it was over"));
        }
        match until {
            None => return broken("UNFENCED", format!("{what}, which the gate has never seen")),
            Some(until) if now >= until => {
                return broken("EXPIRY", format!("{what} at {}, over at {}", now.0, until.0));
            }
            Some(_) => {}
        }
        match story.led.insert(seq, term) {
            Some(other) if other != term => broken("UNIQUE", format!("{what}, and so was one by {other}")),
            Some(_) | None => Ok(()),
        }
    }

    /// Notes that a write by a term of leadership was answered: no write of an older term lands any more.
    pub(super) fn answered(&mut self, object: &ObjectId, seq: u64) {
        let story = self.story(object);
        story.floor = story.floor.max(seq);
    }

    /// Checks a write that begins to reach the store.
    pub(super) fn sent(&mut self, write: u64) -> Kept {
        if !self.sent.insert(write) {
            return broken("ONE ATTEMPT", format!("write {write} was sent twice"));
        }
        Ok(())
    }

    /// Notes that an operator forces a handover while these writes may still land.
    pub(super) fn forgive(&mut self, writes: Vec<u64>) {
        self.forgiven.extend(writes);
    }

    /// Checks a write of which the store has applied all or part.
    pub(super) fn applied(&mut self, object: &ObjectId, seq: u64, write: u64) -> Kept {
        let is_forgiven = self.forgiven.contains(&write);
        let story = self.story(object);
        if is_forgiven {
            // The holder of a newer, tainted lease knows of the older writes.
            return match story.granted.range(seq + 1..).find(|(_, grant)| !grant.tainted) {
                Some((newer, _)) => broken(
                    "DRAIN",
                    format!("{object}: a write of {seq} landed after {newer} was handed out, which is not tainted"),
                ),
                None => Ok(()),
            };
        }
        if seq < story.floor {
            return broken("DRAIN", format!("{object}: a write of {seq} landed after {} was handed out", story.floor));
        }
        if seq < story.applied {
            return broken("DRAIN", format!("{object}: a write of {seq} landed after one of {}", story.applied));
        }
        story.applied = seq;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use fencegate::fence::election::Uid;

    use super::*;

    const TTL: u64 = 1_000;
    const START: BootMs = BootMs(5_000);

    /// One object's story, made by hand.
    struct Teller {
        oracle: Oracle,
        object: ObjectId,
    }

    impl Teller {
        /// A story with a first lease, which ends a ttl later.
        fn new() -> Self {
            let mut teller = Self { oracle: Oracle::default(), object: ObjectId::new("o").unwrap() };
            teller.grants(1, "one").unwrap();
            teller.oracle.extended(&teller.object, 1, START, TTL);
            teller
        }

        fn grants(&mut self, seq: u64, lease: &str) -> Kept {
            let before = self.oracle.fence(&self.object);
            self.oracle.granted(&self.object, seq, (&LeaseId::new(lease).unwrap(), false), before)
        }

        fn grants_tainted(&mut self, seq: u64, lease: &str) -> Kept {
            self.oracle.granted(&self.object, seq, (&LeaseId::new(lease).unwrap(), true), seq)
        }

        fn extends(&mut self, seq: u64) {
            self.oracle.extended(&self.object, seq, START, TTL);
        }

        fn admits(&mut self, seq: u64, after_ms: u64) -> Kept {
            self.oracle.admitted(&self.object, seq, BootMs(START.0 + after_ms))
        }

        fn applies(&mut self, seq: u64, write: u64) -> Kept {
            self.oracle.applied(&self.object, seq, write)
        }
    }

    #[track_caller]
    fn breaks(promise: &str, kept: Kept) {
        let violation = kept.expect_err(promise);
        assert_eq!(violation.name, promise, "{}", violation.what);
    }

    #[test]
    fn a_good_story_breaks_no_promise() {
        let mut teller = Teller::new();
        teller.admits(1, TTL - 1).unwrap();
        teller.oracle.sent(1).unwrap();
        teller.applies(1, 1).unwrap();
        teller.oracle.renewed(&teller.object.clone(), 1).unwrap();
        teller.grants(1, "one").unwrap();
        teller.oracle.fence_told(&teller.object.clone(), 2).unwrap();
        teller.grants(2, "two").unwrap();
        teller.extends(2);
        teller.admits(2, 0).unwrap();
        teller.oracle.sent(2).unwrap();
        teller.applies(2, 2).unwrap();
        teller.oracle.revoked(&teller.object.clone(), 3, 2).unwrap();
        teller.oracle.freed(&teller.object.clone(), 3);
        teller.grants(4, "four").unwrap();
    }

    #[test]
    fn expiry_is_broken_by_a_write_at_the_very_deadline() {
        let mut teller = Teller::new();
        breaks("EXPIRY", teller.admits(1, TTL));
        // A renewal moves the deadline, and only forward.
        teller.oracle.extended(&teller.object.clone(), 1, BootMs(START.0 + 10), TTL);
        teller.oracle.extended(&teller.object.clone(), 1, START, 1);
        teller.admits(1, TTL + 9).unwrap();
        breaks("EXPIRY", teller.admits(1, TTL + 10));
        // So does a restart, which may have another wall clock: by one ttl at most.
        teller.oracle.restarted(BootMs(START.0 + 500));
        teller.admits(1, TTL + 499).unwrap();
        breaks("EXPIRY", teller.admits(1, TTL + 500));
    }

    #[test]
    fn one_attempt_is_broken_by_a_write_that_is_sent_twice() {
        let mut teller = Teller::new();
        teller.oracle.sent(7).unwrap();
        teller.oracle.sent(8).unwrap();
        breaks("ONE ATTEMPT", teller.oracle.sent(7));
    }

    #[test]
    fn unfenced_is_broken_by_a_number_that_was_never_granted() {
        let mut teller = Teller::new();
        breaks("UNFENCED", teller.admits(2, 0));
    }

    #[test]
    fn stale_is_broken_by_a_write_below_what_was_handed_out() {
        let mut teller = Teller::new();
        teller.grants(2, "two").unwrap();
        breaks("STALE", teller.admits(1, 0));
        // And below a fence of which an operator got the answer that no older write lands.
        let mut teller = Teller::new();
        teller.admits(1, 0).unwrap();
        teller.oracle.freed(&teller.object.clone(), 2);
        breaks("STALE", teller.admits(1, 0));
    }

    #[test]
    fn stale_is_broken_by_a_write_of_a_term_that_two_holders_have_had_in_this_run() {
        let mut teller = Teller::new();
        let (object, term) = (teller.object.clone(), Election { uid: Uid(1), transitions: 0 });
        teller.oracle.term_until(term, BootMs(START.0 + TTL));
        teller.oracle.admitted_by(&object, 1, term, START).unwrap();
        teller.oracle.two_holders(term);
        breaks("STALE", teller.oracle.admitted_by(&object, 1, term, START));
        teller.oracle.run_ended();
        teller.oracle.admitted_by(&object, 1, term, START).unwrap();
    }

    #[test]
    fn unique_is_broken_by_two_leases_with_one_number() {
        let mut teller = Teller::new();
        breaks("UNIQUE", teller.grants(1, "another"));
    }

    #[test]
    fn monotonic_is_broken_by_a_fence_that_goes_down() {
        let mut teller = Teller::new();
        let object = teller.object.clone();
        teller.oracle.fence_told(&object, 5).unwrap();
        breaks("MONOTONIC", teller.oracle.fence_told(&object, 4));
        breaks("MONOTONIC", teller.grants(4, "four"));
        breaks("MONOTONIC", teller.oracle.revoked(&object, 4, 5));
    }

    #[test]
    fn no_revival_is_broken_by_whatever_uses_a_lease_that_is_over() {
        let mut teller = Teller::new();
        let object = teller.object.clone();
        teller.oracle.over(&object, 1);
        breaks("NO REVIVAL", teller.admits(1, 0));
        breaks("NO REVIVAL", teller.oracle.renewed(&object, 1));
        breaks("NO REVIVAL", teller.grants(1, "one"));
    }

    #[test]
    fn drain_is_broken_by_a_write_that_lands_behind_a_newer_one_or_its_lease() {
        let mut teller = Teller::new();
        teller.grants(2, "two").unwrap();
        breaks("DRAIN", teller.applies(1, 1));
        // Where no grant of a newer lease was answered, the store itself shows the newer lease.
        let mut teller = Teller::new();
        teller.applies(2, 2).unwrap();
        breaks("DRAIN", teller.applies(1, 1));
        let mut teller = Teller::new();
        teller.oracle.freed(&teller.object.clone(), 2);
        breaks("DRAIN", teller.applies(1, 1));
    }

    #[test]
    fn what_an_operator_has_forgiven_may_land_under_tainted_leases_only() {
        let mut teller = Teller::new();
        teller.oracle.forgive(vec![1]);
        teller.grants_tainted(2, "two").unwrap();
        teller.applies(1, 1).unwrap();
        breaks("DRAIN", teller.applies(1, 9));
        teller.grants(3, "three").unwrap();
        breaks("DRAIN", teller.applies(1, 1));
    }
}
