//! Limits the reads of Leases that tokens cause, because any client can send a token.

use std::{sync::Mutex, time::Duration};

use super::entries::lock;
use crate::fence::BootMs;

/// Reads per second, and reads at once after a second without any.
const READS_PER_S: u64 = 100;

/// Spreads the reads that tokens cause over time.
#[derive(Default)]
pub(super) struct ReadLimiter {
    /// The time, on the boot clock, up to which the granted reads fill the schedule.
    taken: Mutex<u64>,
}

impl ReadLimiter {
    const EACH_MS: u64 = 1_000 / READS_PER_S;

    /// Returns how long to wait before the next read. Returns `None`, and takes no place, if that is longer than
    /// `patience`.
    pub(super) fn take(&self, now: BootMs, patience: Duration) -> Option<Duration> {
        let mut taken = lock(&self.taken);
        let begins = (*taken).max(now.0.saturating_sub(1_000));
        let wait = Duration::from_millis(begins.saturating_sub(now.0));
        if wait > patience {
            return None;
        }
        *taken = begins + Self::EACH_MS;
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_for_the_sake_of_tokens_are_spread_over_time() {
        let (limiter, now, long) = (ReadLimiter::default(), BootMs(10_000), Duration::from_mins(1));
        let waits: Vec<u128> = (0..300).map(|_| limiter.take(now, long).unwrap().as_millis()).collect();
        // One second's reads at once, then one every ten milliseconds.
        assert_eq!(waits.iter().filter(|wait| **wait == 0).count(), 101, "{waits:?}");
        assert_eq!(waits.last(), Some(&1_990));
        // A caller that would not wait so long takes no place.
        assert!((0..100).all(|_| limiter.take(now, Duration::from_secs(1)).is_none()));
        assert_eq!(limiter.take(BootMs(12_000), long), Some(Duration::ZERO));
        // No more than that is saved up.
        let at_once = |_: &u32| limiter.take(BootMs(90_000), long).is_some_and(|wait| wait.is_zero());
        assert_eq!((0..300).filter(at_once).count(), 101);
    }
}
