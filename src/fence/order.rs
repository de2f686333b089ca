//! The order of the ledger's work. The ledger and the model both take their next step from here, so the order is
//! written once.
//!
//! A call is decided ([`Record::step`](super::Record::step)). Where that moves a fence, the object is sealed at once,
//! and [`SecondStep`] says whether the advance ends in the same round. When all calls of a round are decided, the
//! round goes through each [`RoundStep`].

/// The steps of a round whose calls are decided, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RoundStep {
    /// Write what has changed, and sync it.
    Persist,
    /// Put the changes into memory, where writes are judged by them. This opens the seals.
    Publish,
    /// Answer the callers. `durable`: whether the changes were persisted.
    Answer { durable: bool },
}

impl RoundStep {
    pub const FIRST: Self = Self::Persist;

    /// The next step, if there is one. `done`: whether this one succeeded.
    #[must_use]
    pub const fn next(self, done: bool) -> Option<Self> {
        match (self, done) {
            (Self::Persist, true) => Some(Self::Publish),
            // A change that is not durable must not be visible.
            (Self::Persist, false) => Some(Self::Answer { durable: false }),
            (Self::Publish, _) => Some(Self::Answer { durable: true }),
            (Self::Answer { .. }, _) => None,
        }
    }
}

/// What the ledger does with an advance. It asks when it has sealed the object, when a write has ended, and when a
/// bound has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecondStep {
    /// The object opens, or is left without a holder.
    Open,
    /// Older writes may still land. The ledger asks again.
    Wait,
    /// Another advance has moved the fence further, and the object belongs to that advance. The caller is refused.
    GiveUp,
}

impl SecondStep {
    /// `is_overtaken`: another advance has moved the fence since. `is_drained`: no older write can land any more.
    #[must_use]
    pub const fn of(is_overtaken: bool, is_drained: bool) -> Self {
        match (is_overtaken, is_drained) {
            (true, _) => Self::GiveUp,
            (false, true) => Self::Open,
            (false, false) => Self::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_persisted_then_published_then_answered() {
        let order = |durable| {
            let next = |step: &RoundStep| step.next(durable);
            std::iter::successors(Some(RoundStep::FIRST), next).collect::<Vec<_>>()
        };
        assert_eq!(order(true), [RoundStep::Persist, RoundStep::Publish, RoundStep::Answer { durable: true }]);
        assert_eq!(order(false), [RoundStep::Persist, RoundStep::Answer { durable: false }]);
    }

    #[test]
    fn an_advance_opens_only_what_is_its_own_and_drained() {
        assert_eq!(SecondStep::of(false, true), SecondStep::Open);
        assert_eq!(SecondStep::of(false, false), SecondStep::Wait);
        assert_eq!([SecondStep::of(true, true), SecondStep::of(true, false)], [SecondStep::GiveUp; 2]);
    }
}
