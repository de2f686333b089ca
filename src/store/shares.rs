//! Who may have how many of a worker's connections to a store, and of the places in the queue for one. Pure.
//!
//! A client without a token, or one holder alone, must not be able to stop the writes of all others. So reads get half of
//! the connections at most; one object gets three quarters of what reads leave; one client's connection gets three
//! quarters of what reads get. Whatever reads and one object do, an eighth of the connections is left for the writes of others. A
//! store with one connection cannot be shared like that.

/// Who asks for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// A read, by the number of its client's connection.
    Read(u64),
    /// A write, by a number of its object's.
    Write(u64),
}

/// An object that is not known yet: see [`Shares::is_at_ease`].
pub const UNKNOWN: Asker = Asker::Write(u64::MAX);

/// Who has connections now.
#[derive(Debug)]
pub struct Shares {
    limits: Limits,
    /// By the connections' places: who uses it, if it is not idle.
    busy: Vec<Option<Asker>>,
    /// Places of connections that were closed.
    free: Vec<usize>,
    reads: usize,
    writes: usize,
}

/// How many connections, or places in a queue, each may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub reads: usize,
    pub one_client: usize,
    pub one_object: usize,
}

impl Limits {
    /// Of so many connections.
    #[must_use]
    pub fn of_connections(all: usize) -> Self {
        let reads = (all / 2).max(1);
        Self { reads, one_client: (reads * 3 / 4).max(1), one_object: ((all - reads.min(all)) * 3 / 4).max(1) }
    }

    /// Of so many places in the queue. Waiting costs little, so one object may have more of them.
    #[must_use]
    pub fn of_places(all: usize) -> Self {
        let at_least = |share: usize| share.max(1).min(all);
        Self { reads: at_least(all / 4), one_client: at_least(all * 3 / 16), one_object: at_least(all * 5 / 8) }
    }

    /// Whether there may be one more. `reads`: how many reads there are. `own`: how many there are of this asker.
    #[must_use]
    pub fn allow(self, asker: Asker, reads: usize, own: impl FnOnce() -> usize) -> bool {
        match asker {
            Asker::Read(_) => reads < self.reads && own() < self.one_client,
            Asker::Write(_) => own() < self.one_object,
        }
    }
}

impl Shares {
    #[must_use]
    pub fn new(connections: usize) -> Self {
        Self { limits: Limits::of_connections(connections), busy: vec![], free: vec![], reads: 0, writes: 0 }
    }

    /// So few writes have a connection that no object can have its share.
    #[must_use]
    pub fn is_at_ease(&self) -> bool {
        self.writes < self.limits.one_object
    }

    /// Reads have all that they may have.
    #[must_use]
    pub fn reads_are_full(&self) -> bool {
        self.reads >= self.limits.reads
    }

    /// Whether this one may have another.
    #[must_use]
    pub fn may_take(&self, asker: Asker) -> bool {
        if matches!(asker, Asker::Write(_)) && self.is_at_ease() {
            return true;
        }
        if asker == UNKNOWN {
            return false;
        }
        self.limits.allow(asker, self.reads, || self.busy.iter().filter(|busy| **busy == Some(asker)).count())
    }

    /// A connection is made: its place.
    pub fn open(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.busy.push(None);
            self.busy.len() - 1
        })
    }

    /// The connection at this place is closed.
    pub fn close(&mut self, place: usize) {
        self.rest(place);
        self.free.push(place);
    }

    /// The connection at this place is used.
    pub fn take(&mut self, place: usize, asker: Asker) {
        *self.count(asker) += 1;
        self.busy[place] = Some(asker);
    }

    /// The one at this place turned out to be this object's.
    pub fn belongs_to(&mut self, place: usize, object: u64) {
        self.busy[place] = Some(Asker::Write(object));
    }

    /// The one at this place is used no more.
    pub fn rest(&mut self, place: usize) {
        if let Some(asker) = self.busy[place].take() {
            *self.count(asker) -= 1;
        }
    }

    fn count(&mut self, asker: Asker) -> &mut usize {
        match asker {
            Asker::Read(_) => &mut self.reads,
            Asker::Write(_) => &mut self.writes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_reads_and_one_object_take_something_is_left() {
        for all in 2..600 {
            let Limits { reads, one_client, one_object } = Limits::of_connections(all);
            assert!(reads >= 1 && one_client >= 1 && one_object >= 1 && one_client <= reads, "{all}");
            assert!(reads + one_object < all || all < 4, "{all}: {reads} and {one_object}");
            let places = Limits::of_places(all);
            assert!(places.reads + places.one_object < all || all < 8, "{all}: {places:?}");
        }
        assert_eq!(Limits::of_connections(256), Limits { reads: 128, one_client: 96, one_object: 96 });
        assert_eq!(Limits::of_places(0), Limits { reads: 0, one_client: 0, one_object: 0 });
    }

    #[test]
    fn nobody_has_more_than_its_share() {
        let mut shares = Shares::new(16);
        let mut taken = vec![];
        let mut fill = |shares: &mut Shares, asker: Asker| {
            let before = taken.len();
            while shares.may_take(asker) {
                let place = shares.open();
                shares.take(place, asker);
                taken.push(place);
            }
            taken.len() - before
        };
        assert_eq!(fill(&mut shares, Asker::Read(1)), 6, "one client");
        assert_eq!(fill(&mut shares, Asker::Read(2)), 2, "another");
        assert_eq!(fill(&mut shares, Asker::Read(3)), 0, "reads have their half");
        assert_eq!(fill(&mut shares, Asker::Write(7)), 6, "one object");
        assert!(shares.may_take(Asker::Write(8)), "another one's writes go on");
        for place in taken {
            shares.close(place);
        }
        assert!(shares.is_at_ease() && shares.may_take(Asker::Read(3)) && shares.may_take(Asker::Write(7)));
        assert_eq!(shares.free.len(), shares.busy.len());
    }

    #[test]
    fn a_place_can_be_said_to_be_an_objects_later() {
        let mut shares = Shares::new(8);
        for _ in 0..3 {
            let place = shares.open();
            shares.take(place, UNKNOWN);
            shares.belongs_to(place, 5);
        }
        assert!(!shares.may_take(UNKNOWN));
        assert!(!shares.is_at_ease() && !shares.may_take(Asker::Write(5)) && shares.may_take(Asker::Write(6)));
    }
}
