//! When to try again: later each time, and at different moments for different callers.

use std::time::Duration;

/// Doubles from `first` up to `most`. Each wait is random, in the upper half of that.
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

    /// How long to wait before the next try: at least as long as the other side has asked for, up to the bound, and
    /// up to a quarter more. Otherwise all callers that were asked to wait the same time would return together.
    pub fn next(&mut self, asked_ms: Option<u64>) -> Duration {
        let wait = jittered(self.next, random());
        self.next = self.next.saturating_mul(2).min(self.most);
        let asked = asked_ms.map_or(0, |asked| spread(asked.min(self.most), random()));
        Duration::from_millis(wait.max(asked))
    }

    /// Records a success.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

/// A time from one half of `ms` to all of it.
fn jittered(ms: u64, random: u32) -> u64 {
    // The limit of about an hour avoids an overflow; longer waits are not needed.
    let (ms, random) = (ms.min(1 << 22), u64::from(random));
    let half = ms / 2;
    ms - half + half * random / u64::from(u32::MAX)
}

/// A time from `ms` to a quarter more.
fn spread(ms: u64, random: u32) -> u64 {
    let ms = ms.min(1 << 22);
    ms + ms / 4 * u64::from(random) / u64::from(u32::MAX)
}

/// Without random numbers all waits have the same length.
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
    }

    #[test]
    fn what_the_other_side_asks_for_counts_up_to_the_bound_and_is_spread() {
        for (asked, least, most) in [(400, 400, 500), (9_000, 500, 625)] {
            let waits: Vec<u128> = (0..64).map(|_| Backoff::new(10, 500).next(Some(asked)).as_millis()).collect();
            assert!(waits.iter().all(|wait| (least..=most).contains(wait)), "{asked}: {waits:?}");
            assert!(waits.iter().any(|wait| *wait != waits[0]), "all who were asked come back at once: {waits:?}");
        }
    }

    #[test]
    fn jitter_covers_the_upper_half() {
        assert_eq!((jittered(100, 0), jittered(100, u32::MAX), jittered(1, 0), jittered(0, 7)), (50, 100, 1, 0));
        assert_eq!((spread(100, 0), spread(100, u32::MAX), spread(0, 7)), (100, 125, 0));
    }
}
