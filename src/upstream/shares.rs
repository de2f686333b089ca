//! How many of a worker's connections to a store, and of the places in the queue for one, each asker may have. Pure.
//!
//! A client without a token, or a single holder, must not be able to stop the writes of all others. So:
//!
//! - reads get at most half of the connections, and one client's connection gets three quarters of that;
//! - one object gets three quarters of what reads leave; so do all writes together that are not judged;
//! - none of these takes the last quarter: an object that has an eighth or more leaves it to other objects;
//! - a client that has an eighth or more leaves the last eighth to other clients' writes;
//! - writes leave a sixteenth to reads.
//!
//! A client here is an address, and not a holder or a connection. An address is known without any work per write. A
//! client cannot have as many addresses as it likes. Tokens of an outside lock service do not name their holder.
//! Clients behind one proxy are one client, and share what it gets by object only.
//!
//! Fewer than 16 connections can be shared only roughly, and a single one cannot be shared.

use crate::failpoints::{self, Fault};

/// The kinds of request that ask for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// A read, by the number of its client's connection.
    Read(u64),
    /// A write without a permit: its mode is `off`, or `audit` and the judge refused it. Names of objects can be
    /// invented, so all of these count as one asker.
    Unjudged,
    /// A write, by a number of its object and a number of its client.
    Write { object: u64, client: u64 },
}

/// A write whose object is not known yet: see [`Shares::is_at_ease`].
pub const UNKNOWN: Asker = Asker::Write { object: u64::MAX, client: u64::MAX };

/// How many of the connections, or of the places in a queue, each kind has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    pub reads: usize,
    pub unjudged: usize,
    pub writes: usize,
}

impl Taken {
    fn total(self) -> usize {
        self.reads + self.unjudged + self.writes
    }

    fn of(&mut self, asker: Asker) -> &mut usize {
        match asker {
            Asker::Read(_) => &mut self.reads,
            Asker::Unjudged => &mut self.unjudged,
            Asker::Write { .. } => &mut self.writes,
        }
    }

    /// Counts the askers by kind.
    pub fn count(askers: impl Iterator<Item = Asker>) -> Self {
        let mut taken = Self::default();
        askers.for_each(|asker| *taken.of(asker) += 1);
        taken
    }
}

/// How many connections, or places in a queue, each may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    all: usize,
    reads: usize,
    /// Of the connections for reads: how many one client's connection may have.
    one_client: usize,
    one_object: usize,
    /// What a client that has as much leaves to others. An object that has as much leaves twice that.
    kept: usize,
    /// What writes leave to reads.
    for_reads: usize,
    /// While fewer are taken, and no object can have used its share, every write may have another.
    at_ease: usize,
}

impl Limits {
    /// The limits for this many connections.
    #[must_use]
    pub fn of_connections(all: usize) -> Self {
        let reads = (all / 2).max(1);
        let one_object = ((all - reads.min(all)) * 3 / 4).max(1);
        Self::new(all, reads, (reads * 3 / 4).max(1), one_object)
    }

    /// The limits for this many places in the queue. Waiting costs little, so one object may have more of them.
    #[must_use]
    pub fn of_places(all: usize) -> Self {
        let at_least = |share: usize| share.max(1).min(all);
        Self::new(all, at_least(all / 4), at_least(all * 3 / 16), at_least(all * 5 / 8))
    }

    /// The limits for this many places where only writes wait, before they are judged.
    #[must_use]
    pub fn of_waits(all: usize) -> Self {
        let limits = Self::of_places(all);
        Self { for_reads: 0, at_ease: all - 2 * limits.kept, ..limits }
    }

    fn new(all: usize, reads: usize, one_client: usize, one_object: usize) -> Self {
        let (kept, for_reads) = (all / 8, all / 16);
        Self { all, reads, one_client, one_object, kept, for_reads, at_ease: all - 2 * kept - for_reads }
    }

    /// Whether so few are taken that every write whose object is known could have another, however the taken ones are
    /// shared.
    #[inline]
    fn is_at_ease(&self, taken: Taken) -> bool {
        taken.writes < self.one_object && taken.total() < self.at_ease
    }

    /// Whether this asker may have one more. `own`: how many taken ones match a condition.
    #[must_use]
    pub fn allow(self, asker: Asker, taken: Taken, own: impl Fn(&dyn Fn(Asker) -> bool) -> usize) -> bool {
        if failpoints::on(Fault::NoShares) {
            return true;
        }
        let free = self.all.saturating_sub(taken.total());
        let left_to_reads = self.for_reads.saturating_sub(taken.reads);
        match asker {
            Asker::Read(_) => {
                let is_left = taken.reads < self.for_reads || free > 2 * self.kept;
                taken.reads < self.reads && is_left && own(&|each| each == asker) < self.one_client
            }
            Asker::Unjudged => taken.unjudged < self.one_object && free > 2 * self.kept + left_to_reads,
            Asker::Write { object, client } => {
                let of_object = own(&|each| matches!(each, Asker::Write { object: its, .. } if its == object));
                let of_client = || own(&|each| matches!(each, Asker::Write { client: its, .. } if its == client));
                let free = free.saturating_sub(left_to_reads);
                let of_last_quarter = || of_object < self.kept && (free > self.kept || of_client() < self.kept);
                of_object < self.one_object && free > 0 && (free > 2 * self.kept || of_last_quarter())
            }
        }
    }
}

/// The askers that have connections now.
#[derive(Debug)]
pub struct Shares {
    limits: Limits,
    /// Who uses each connection, by its place; `None` for an idle one.
    busy: Vec<Option<Asker>>,
    /// Places of connections that were closed.
    free: Vec<usize>,
    taken: Taken,
}

impl Shares {
    #[must_use]
    pub fn new(connections: usize) -> Self {
        Self::within(Limits::of_connections(connections))
    }

    /// The shares of this many places where writes wait before they are judged.
    #[must_use]
    pub fn of_waits(places: usize) -> Self {
        Self::within(Limits::of_waits(places))
    }

    fn within(limits: Limits) -> Self {
        Self { limits, busy: vec![], free: vec![], taken: Taken::default() }
    }

    /// Whether so few connections are taken that a write may have another, for any object and client.
    #[inline]
    #[must_use]
    pub fn is_at_ease(&self) -> bool {
        self.limits.is_at_ease(self.taken)
    }

    /// Whether reads have all that they may have.
    #[must_use]
    pub fn reads_are_full(&self) -> bool {
        self.taken.reads >= self.limits.reads
    }

    /// Whether this asker may have another.
    #[inline]
    #[must_use]
    pub fn may_take(&self, asker: Asker) -> bool {
        matches!(asker, Asker::Write { .. }) && self.is_at_ease() || self.may_take_by_share(asker)
    }

    /// The same, by what each asker has.
    fn may_take_by_share(&self, asker: Asker) -> bool {
        let own = |is_own: &dyn Fn(Asker) -> bool| self.busy.iter().flatten().filter(|busy| is_own(**busy)).count();
        asker != UNKNOWN && self.limits.allow(asker, self.taken, own)
    }

    /// Returns a place for a new connection.
    pub fn open(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.busy.push(None);
            self.busy.len() - 1
        })
    }

    /// Frees the place of a connection that is closed.
    pub fn close(&mut self, place: usize) {
        self.rest(place);
        self.free.push(place);
    }

    /// Counts the connection at this place as used by `asker`.
    pub fn take(&mut self, place: usize, asker: Asker) {
        *self.taken.of(asker) += 1;
        self.busy[place] = Some(asker);
    }

    /// Counts the connection at this place as used for a write to this object by this client, once these are known.
    pub fn belongs_to(&mut self, place: usize, object: u64, client: u64) {
        self.busy[place] = Some(Asker::Write { object, client });
    }

    /// Counts the connection at this place as idle.
    pub fn rest(&mut self, place: usize) {
        if let Some(asker) = self.busy[place].take() {
            *self.taken.of(asker) -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(object: u64, client: u64) -> Asker {
        Asker::Write { object, client }
    }

    /// Takes as much as this asker may have, and returns how much that is.
    fn fill(shares: &mut Shares, asker: Asker) -> usize {
        let mut count = 0;
        // The pool has no more than these.
        while shares.taken.total() < shares.limits.all && shares.may_take(asker) {
            let place = shares.open();
            shares.take(place, asker);
            count += 1;
        }
        count
    }

    #[test]
    fn whatever_reads_and_one_object_take_something_is_left() {
        for all in 2..600 {
            let Limits { reads, one_client, one_object, .. } = Limits::of_connections(all);
            assert!(reads >= 1 && one_client >= 1 && one_object >= 1 && one_client <= reads, "{all}");
            assert!(reads + one_object < all || all < 4, "{all}: {reads} and {one_object}");
            let places = Limits::of_places(all);
            assert!(places.reads + places.one_object < all || all < 8, "{all}: {places:?}");
        }
        let Limits { reads, one_client, one_object, kept, for_reads, .. } = Limits::of_connections(256);
        assert_eq!((reads, one_client, one_object, kept, for_reads), (128, 96, 96, 32, 16));
        assert!(!Limits::of_places(0).allow(write(1, 1), Taken::default(), |_| 0));
    }

    #[test]
    fn no_asker_has_more_than_its_share() {
        let mut shares = Shares::new(16);
        assert_eq!(fill(&mut shares, Asker::Read(1)), 6, "one client");
        assert_eq!(fill(&mut shares, Asker::Read(2)), 2, "another");
        assert_eq!(fill(&mut shares, Asker::Read(3)), 0, "reads have their half");
        assert_eq!(fill(&mut shares, write(7, 1)), 4, "one object");
        assert_eq!(fill(&mut shares, write(8, 1)), 2, "another one of the same client");
        assert_eq!(fill(&mut shares, write(9, 2)), 2, "another client");
        for place in 0..shares.busy.len() {
            shares.close(place);
        }
        assert!(shares.is_at_ease() && shares.may_take(Asker::Read(3)) && shares.may_take(write(7, 1)));
        assert_eq!(shares.free.len(), shares.busy.len());
    }

    /// Takes as much as one client may have that writes to any number of objects.
    fn fill_objects(shares: &mut Shares, client: u64) -> usize {
        (0..1_000).map(|object| fill(shares, write(object, client))).sum()
    }

    /// In whatever order clients without a token and one other client take their shares, others can still write, and
    /// read.
    #[test]
    fn one_client_and_all_without_a_token_leave_an_eighth_to_others() {
        for all in [16, 17, 31, 64, 100, 256] {
            let reads = |shares: &mut Shares| (0..1_000).map(|number| fill(shares, Asker::Read(number))).sum::<usize>();
            let unjudged = |shares: &mut Shares| fill(shares, Asker::Unjudged);
            let client = |shares: &mut Shares| fill_objects(shares, 1);
            let steps: [&dyn Fn(&mut Shares) -> usize; 3] = [&reads, &unjudged, &client];
            for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
                let mut shares = Shares::new(all);
                let took = order.map(|step| steps[step](&mut shares));
                let what = format!("{all}, {order:?}: {took:?}");
                assert!(fill_objects(&mut shares, 2) >= all / 8, "{what}");
                assert!(shares.taken.reads >= all / 16, "reads have their part: {what}");
            }
        }
    }

    #[test]
    fn a_client_alone_has_all_but_what_is_kept() {
        let mut shares = Shares::new(256);
        assert_eq!(fill_objects(&mut shares, 1), 256 - 32 - 16);
        assert_eq!(fill(&mut shares, Asker::Read(1)), 16, "what is kept for reads");
        assert_eq!(fill_objects(&mut shares, 2), 32, "and for other clients");
    }

    #[test]
    fn invented_objects_of_unjudged_writes_count_as_one() {
        let mut shares = Shares::new(256);
        assert_eq!(fill(&mut shares, Asker::Unjudged), 96);
        assert_eq!(
            (0..9).map(|number| fill(&mut shares, Asker::Read(number))).sum::<usize>(),
            96,
            "not the last quarter"
        );
        assert_eq!(fill_objects(&mut shares, 1), 32, "but for those who may write");
        assert_eq!(fill_objects(&mut shares, 2), 32);
    }

    /// Where the shares are not counted one by one, each asker could have had another.
    #[test]
    fn at_ease_every_write_may_go_on() {
        for all in 1..300 {
            let limits = Limits::of_connections(all);
            for (reads, unjudged, writes) in (0..=all).flat_map(|reads| [0, all / 4].map(|more| (reads, more, all / 3)))
            {
                let taken = Taken { reads, unjudged, writes };
                if limits.is_at_ease(taken) {
                    // All that are taken may belong to this one.
                    assert!(limits.allow(write(1, 1), taken, |_| writes), "{all}: {taken:?}");
                }
            }
        }
    }

    #[test]
    fn a_place_can_be_said_to_be_an_objects_later() {
        let mut shares = Shares::new(8);
        for _ in 0..3 {
            let place = shares.open();
            shares.take(place, UNKNOWN);
            shares.belongs_to(place, 5, 1);
        }
        assert!(!shares.may_take(UNKNOWN));
        assert!(!shares.is_at_ease() && !shares.may_take(write(5, 1)) && shares.may_take(write(6, 1)));
    }
}
