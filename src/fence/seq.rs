//! `lease_seq`, the fence and the incarnation: the numbers that safety rests on.

use std::fmt;

/// The last sequence number the gate hands out itself: the largest integer that every JSON reader
/// keeps exact. Behind it lies `SEQ_EXHAUSTED`, never a repeat.
pub const MAX_GATE_SEQ: u64 = (1 << 53) - 1;

/// How far one new incarnation raises every floor.
pub const INCARNATION_STRIDE: u64 = 1 << 32;

/// A lease's sequence number: at least 1, strictly increasing per object, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseSeq(u64);

impl LeaseSeq {
    /// `None` for 0, which is no lease's number.
    #[must_use]
    pub const fn new(seq: u64) -> Option<Self> {
        if seq == 0 { None } else { Some(Self(seq)) }
    }

    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for LeaseSeq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An object's highest durable `lease_seq`; 0 where none was ever granted. It never goes down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(u64);

impl Fence {
    #[must_use]
    pub const fn new(floor: u64) -> Self {
        Self(floor)
    }

    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number the next lease gets, or `None` when the gate's range is used up.
    #[must_use]
    pub const fn next(self) -> Option<LeaseSeq> {
        if self.0 >= MAX_GATE_SEQ { None } else { LeaseSeq::new(self.0 + 1) }
    }

    /// The same floor as seen from a later incarnation of the table.
    #[must_use]
    pub const fn raised(self, incarnations: u64) -> Self {
        Self(self.0.saturating_add(incarnations.saturating_mul(INCARNATION_STRIDE)))
    }
}

impl From<LeaseSeq> for Fence {
    fn from(seq: LeaseSeq) -> Self {
        Self(seq.0)
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How often the table had to start over because some of its past may be missing. Every floor,
/// also the one of objects without a record, rises by [`INCARNATION_STRIDE`] with each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(u32);

impl Incarnation {
    #[must_use]
    pub const fn new(n: u32) -> Self {
        Self(n)
    }

    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The last one whose floor leaves room for numbers below [`MAX_GATE_SEQ`].
    pub const LAST: Self = Self((1 << (53 - 32)) - 1);

    /// The one after this, or `None` where there is no room for it.
    #[must_use]
    pub fn next(self) -> Option<Self> {
        (self < Self::LAST).then(|| Self(self.0 + 1))
    }

    /// The floor of an object that has no record.
    #[must_use]
    pub const fn default_floor(self) -> Fence {
        Fence(0).raised(self.0 as u64)
    }

    /// How many incarnations lie between `earlier` and this one.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0) as u64
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_seq_is_one_above_the_fence_until_the_range_ends() {
        assert_eq!(Fence::default().next(), LeaseSeq::new(1));
        assert_eq!(Fence::new(MAX_GATE_SEQ - 1).next(), LeaseSeq::new(MAX_GATE_SEQ));
        assert_eq!(Fence::new(MAX_GATE_SEQ).next(), None);
        assert_eq!(Fence::new(u64::MAX).next(), None);
    }

    #[test]
    fn there_is_room_for_numbers_in_every_incarnation() {
        assert_eq!(Incarnation::LAST.default_floor().raised(1).get(), MAX_GATE_SEQ + 1);
        assert!(Incarnation::LAST.default_floor().next().is_some());
        assert_eq!(Incarnation::LAST.next(), None);
        assert_eq!(Incarnation::new(6).next(), Some(Incarnation::new(7)));
    }

    #[test]
    fn an_incarnation_raises_every_floor_alike() {
        let two = Incarnation::new(2);
        assert_eq!(two.default_floor().get(), 2 << 32);
        assert_eq!(Fence::new(7).raised(two.since(Incarnation::new(1))).get(), (1 << 32) + 7);
        assert_eq!(Fence::new(u64::MAX - 1).raised(9).get(), u64::MAX);
    }
}
