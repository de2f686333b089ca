//! When to try again: later each time, and never all at the same moment.

use std::time::Duration;

/// Doubles from `first` up to `most`; each wait is somewhere in the upper half of that.
#[derive(Clone, Debug)]
pub struct Backoff {
    /// All in milliseconds.
    first: u64,
    most: u64,
    next: u64,
}

impl Backoff {
    #[must_use]
    pub fn new(first_ms: u64, most_ms: u64) -> Self {
        Self { first: first_ms, most: most_ms.max(first_ms), next: first_ms }
    }

    /// How long to wait before the next try: not less than the other side has asked for.
    pub fn next(&mut self, asked_ms: Option<u64>) -> Duration {
        let wait = jittered(self.next, random());
        self.next = self.next.saturating_mul(2).min(self.most);
        Duration::from_millis(wait.max(asked_ms.unwrap_or(0).min(self.most)))
    }

    /// It worked.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

/// Between one half of `ms` and all of it.
fn jittered(ms: u64, random: u32) -> u64 {
    // More than an hour is not what this is for.
    let (ms, random) = (ms.min(1 << 22), u64::from(random));
    let half = ms / 2;
    ms - half + half * random / u64::from(u32::MAX)
}

/// Without a source of randomness the waits are merely all the same.
fn random() -> u32 {
    getrandom::u32().unwrap_or(u32::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound_and_differ() {
        let mut backoff = Backoff::new(100, 1_000);
        let waits: Vec<u128> = (0..8).map(|_| backoff.next(None).as_millis()).collect();
        for (wait, most) in waits.iter().zip([100, 200, 400, 800, 1_000, 1_000, 1_000, 1_000]) {
            assert!((most / 2..=most).contains(wait), "{waits:?}");
        }
        backoff.reset();
        assert!(backoff.next(None).as_millis() <= 100);
        // What the other side asks for counts, up to the bound.
        assert_eq!(Backoff::new(10, 500).next(Some(400)).as_millis(), 400);
        assert_eq!(Backoff::new(10, 500).next(Some(9_000)).as_millis(), 500);
    }

    #[test]
    fn jitter_covers_the_upper_half() {
        assert_eq!((jittered(100, 0), jittered(100, u32::MAX), jittered(1, 0), jittered(0, 7)), (50, 100, 1, 0));
    }
}
