//! Instants and lifetimes. Nothing here reads a clock: `crate::clock` does, and passes a [`Now`].
//!
//! Deadlines are on the boot clock (CLOCK_BOOTTIME: steady, also runs during suspend). Wall time is for people, and
//! for a restarted process, which has no other time of the earlier run.

use std::{fmt, str::FromStr};

use thiserror::Error;

/// Milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallMs(pub u64);

impl WallMs {
    /// This instant plus a lifetime.
    #[must_use]
    pub const fn after(self, ttl: Ttl) -> Self {
        Self(self.0.saturating_add(ttl.0))
    }
}

/// Milliseconds on the boot clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootMs(pub u64);

impl BootMs {
    /// Before any instant that a running gate can see: as a deadline, always passed.
    pub const PAST: Self = Self(0);

    #[must_use]
    pub const fn after(self, ttl: Ttl) -> Self {
        Self(self.0.saturating_add(ttl.0))
    }

    /// Milliseconds from `earlier` to this instant; 0 where this instant is not later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// How long a lease lasts, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ttl(pub u64);

impl Ttl {
    /// Longer than any lease; the largest integer that every JSON reader keeps exact.
    pub const FOR_EVER: Self = Self((1 << 53) - 1);
}

/// One reading of both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    pub wall: WallMs,
    pub boot: BootMs,
}

impl Now {
    /// A wall clock outside 2020..2200 has not been set, or is wrong.
    const PLAUSIBLE: std::ops::Range<u64> = 1_577_836_800_000..7_258_118_400_000;

    /// Whether leases may be granted and judged by this reading.
    #[must_use]
    pub fn is_plausible(&self) -> bool {
        Self::PLAUSIBLE.contains(&self.wall.0)
    }
}

impl Now {
    /// The stamp that this reading gives a mark. A clock that was never set gives 0: a mark that was once ahead
    /// stays ahead for ever.
    #[must_use]
    pub fn mark(&self) -> Hlc {
        Hlc { ms: if self.is_plausible() { self.wall.0 } else { 0 }, logical: 0 }
    }
}

/// How this run reads the wall times of an earlier run: by both clocks as they were when this run began. A step of
/// the wall clock since then changes nothing.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// The number of this start of the gate on this table.
    pub run: u64,
    /// Both clocks when this run began.
    pub start: Now,
    /// The wall clock was behind the table's mark. How much time has passed is then unknown, so every lease of an
    /// earlier run counts as expired.
    pub behind_mark: bool,
}

impl Frame {
    /// The instant of a wall time of an earlier run; [`BootMs::PAST`] if it has passed.
    #[must_use]
    pub fn instant(&self, at: WallMs) -> BootMs {
        match at.0.saturating_sub(self.start.wall.0) {
            0 => BootMs::PAST,
            left => self.start.boot.after(Ttl(left)),
        }
    }

    /// The deadline of a lease that an earlier run granted until `expires_at`. The deadline is at most the lease's
    /// lifetime after this run's start.
    #[must_use]
    pub fn deadline(&self, expires_at: WallMs, ttl: Ttl) -> BootMs {
        if self.behind_mark {
            return BootMs::PAST;
        }
        let left = expires_at.0.saturating_sub(self.start.wall.0).min(ttl.0);
        if left == 0 { BootMs::PAST } else { self.start.boot.after(Ttl(left)) }
    }
}

/// A hybrid logical clock's stamp, written `<ms>:<logical>`: wall time where it moves forward, a
/// counter where it does not. Every change of the table carries one, in commit order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hlc {
    pub ms: u64,
    pub logical: u32,
}

impl Hlc {
    /// The next stamp: later than this one, and not before the clock's reading.
    #[must_use]
    pub fn tick(self, now: Now) -> Self {
        let mark = now.mark();
        if mark.ms > self.ms {
            return mark;
        }
        match self.logical.checked_add(1) {
            Some(logical) => Self { ms: self.ms, logical },
            None => Self { ms: self.ms + 1, logical: 0 },
        }
    }
}

impl fmt::Display for Hlc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.ms, self.logical)
    }
}

/// A string that is not `<ms>:<logical>`.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("not a hybrid logical time: expected <milliseconds>:<counter>, such as 1754842735000:0")]
pub struct HlcFault;

impl FromStr for Hlc {
    type Err = HlcFault;

    fn from_str(text: &str) -> Result<Self, HlcFault> {
        let (ms, logical) = text.split_once(':').ok_or(HlcFault)?;
        let stamp = Self { ms: ms.parse().map_err(|_| HlcFault)?, logical: logical.parse().map_err(|_| HlcFault)? };
        // One spelling per stamp: no sign, no leading zero.
        if stamp.to_string() == text { Ok(stamp) } else { Err(HlcFault) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Now = Now { wall: WallMs(1_800_000_000_000), boot: BootMs(5_000) };

    #[test]
    fn stamps_only_ever_grow_whatever_the_wall_clock_does() {
        let at = |wall| Now { wall: WallMs(wall), ..START };
        let mut last = Hlc::default();
        for ms in [10, 10, 9, 11, 0, 11, 500] {
            let next = last.tick(at(START.wall.0 + ms));
            assert!(next > last, "{next} after {last}");
            last = next;
        }
        assert_eq!(last.ms, START.wall.0 + 500);
        // A clock that was never set and one far in the future both leave the mark as it was.
        assert_eq!(last.tick(at(0)).ms, last.ms);
        assert_eq!(last.tick(at(u64::MAX)).ms, last.ms);
        assert_eq!(Hlc { ms: 5, logical: u32::MAX }.tick(at(0)), Hlc { ms: 6, logical: 0 });
    }

    #[test]
    fn a_stamp_has_one_spelling() {
        let stamp: Hlc = "1754842735000:3".parse().unwrap();
        assert_eq!(stamp, Hlc { ms: 1_754_842_735_000, logical: 3 });
        for bad in ["", ":", "1", "1:", "01:0", "+1:0", "1:-1", "1:0:0", " 1:0", "1:4294967296"] {
            assert_eq!(bad.parse::<Hlc>(), Err(HlcFault), "{bad:?}");
        }
    }

    #[test]
    fn a_restart_never_makes_a_lease_longer_than_its_ttl() {
        let frame = Frame { run: 2, start: START, behind_mark: false };
        let ttl = Ttl(30_000);
        let at = |ms: i64| WallMs(START.wall.0.saturating_add_signed(ms));
        assert_eq!(frame.deadline(at(10_000), ttl), BootMs(15_000));
        // The clock went back an hour between the runs: the ttl is the limit.
        assert_eq!(frame.deadline(at(3_600_000), ttl), BootMs(35_000));
        assert_eq!(frame.deadline(at(0), ttl), BootMs::PAST);
        assert_eq!(frame.deadline(at(-1), ttl), BootMs::PAST);
        let behind = Frame { behind_mark: true, ..frame };
        assert_eq!(behind.deadline(at(10_000), ttl), BootMs::PAST);
    }

    #[test]
    fn a_clock_that_was_never_set_is_not_plausible() {
        assert!(START.is_plausible());
        assert!(!Now { wall: WallMs(0), ..START }.is_plausible());
        assert!(!Now { wall: WallMs(u64::MAX), ..START }.is_plausible());
    }
}
