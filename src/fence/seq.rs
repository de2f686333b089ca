//! `lease_seq`, the fence and the incarnation: the numbers that safety rests on.

use std::fmt;

/// The last sequence number that the gate hands out itself: the largest integer that every JSON reader keeps exact.
/// After it, the gate answers `SEQ_EXHAUSTED` and never repeats a number.
pub const MAX_GATE_SEQ: u64 = (1 << 53) - 1;

/// How far a new incarnation raises every floor, at least. No object gets so many grants in the part of the past
/// that a lost tail or an old backup can miss.
pub const INCARNATION_STRIDE: u64 = 1 << 32;

/// A restore raises every floor by up to this much more, drawn at random. So copies of one backup that are restored
/// separately get different floors. docs/decisions/0012 has the arithmetic.
pub const RESTORE_SPREAD: u64 = 1 << 38;

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

/// An object's highest durable `lease_seq`; 0 where none was ever granted. A fence never goes down.
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

    /// The same floor as seen from a later incarnation of the table, whose floor is higher by this much.
    #[must_use]
    pub const fn raised(self, by: u64) -> Self {
        Self(self.0.saturating_add(by))
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

/// One life of the table. A new one begins where some of the past may be missing. An incarnation is named by its
/// floor: the fence of an object that has no record. Each floor is at least [`INCARNATION_STRIDE`] above the one
/// before, and every fence rises as far as the floor does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(u64);

impl Incarnation {
    /// The incarnation with this number that has the lowest floor.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number as u64 * INCARNATION_STRIDE)
    }

    /// The incarnation with this floor.
    #[must_use]
    pub const fn at(floor: u64) -> Self {
        Self(floor)
    }

    /// The incarnation's number, which rises by one or more with each incarnation.
    #[must_use]
    pub fn number(self) -> u32 {
        u32::try_from(self.0 / INCARNATION_STRIDE).unwrap_or(u32::MAX)
    }

    /// How far the floor is above the lowest floor with the same number.
    #[must_use]
    pub fn offset(self) -> u32 {
        u32::try_from(self.0 % INCARNATION_STRIDE).unwrap_or(u32::MAX)
    }

    /// The last incarnation whose floor leaves room for numbers below [`MAX_GATE_SEQ`].
    pub const LAST: Self = Self::new((1 << (53 - 32)) - 1);

    /// The next incarnation, or `None` where there is no room for it.
    #[must_use]
    pub const fn next(self) -> Option<Self> {
        self.above(INCARNATION_STRIDE)
    }

    /// An incarnation for a restore, drawn by `lot` from the [`RESTORE_SPREAD`] above the next; `None` where there
    /// is no room.
    #[must_use]
    pub const fn drawn(self, lot: u64) -> Option<Self> {
        self.above(INCARNATION_STRIDE + lot % RESTORE_SPREAD)
    }

    const fn above(self, by: u64) -> Option<Self> {
        match self.0.checked_add(by) {
            Some(floor) if floor <= Self::LAST.0 => Some(Self(floor)),
            Some(_) | None => None,
        }
    }

    /// The floor of an object that has no record.
    #[must_use]
    pub const fn floor(self) -> Fence {
        Fence(self.0)
    }

    /// How far this incarnation's floor is above that of `earlier`.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number().fmt(f)
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
        assert_eq!(Incarnation::LAST.floor().raised(INCARNATION_STRIDE).get(), MAX_GATE_SEQ + 1);
        assert!(Incarnation::LAST.floor().next().is_some());
        assert_eq!(Incarnation::LAST.next(), None);
        assert_eq!(Incarnation::at(u64::MAX).next(), None);
        assert_eq!(Incarnation::new(6).next(), Some(Incarnation::new(7)));
        assert_eq!(Incarnation::at(6).next(), Some(Incarnation::at((1 << 32) + 6)));
    }

    #[test]
    fn an_incarnation_raises_every_floor_alike() {
        let two = Incarnation::new(2);
        assert_eq!(two.floor().get(), 2 << 32);
        assert_eq!(Fence::new(7).raised(two.since(Incarnation::new(1))).get(), (1 << 32) + 7);
        assert_eq!(Fence::new(u64::MAX - 1).raised(9).get(), u64::MAX);
    }

    #[test]
    fn a_restore_lies_above_the_next_one_as_the_lot_says() {
        let six = Incarnation::at((6 << 32) + 5);
        for (lot, floor) in [(0, (7 << 32) + 5), (1, (7 << 32) + 6), (RESTORE_SPREAD + 1, (7 << 32) + 6)] {
            assert_eq!(six.drawn(lot), Some(Incarnation::at(floor)));
        }
        let highest = six.drawn(u64::MAX).unwrap();
        assert_eq!((highest.number(), highest.offset()), (7 + 64, 4));
        assert_eq!(Incarnation::LAST.drawn(0), None);
        assert!((0..64).all(|lot| six.drawn(lot << 32).unwrap().number() > six.number()));
    }
}
