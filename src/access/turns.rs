//! How often one principal may call, and how many of its calls may be in progress.
//!
//! One principal must not be able to keep the others from their calls. Renewals and releases are counted apart: a
//! holder that asks too often for other things must still keep what it holds. Time is an argument.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use super::principal::Principal;
use crate::{config::AccessSettings, fence::BootMs};

/// The most principals that are counted apart. Behind that, those without a call in progress and with nothing to wait
/// for are forgotten, and if there are none, new ones share one account.
const PRINCIPALS_MAX: usize = 16_384;
/// Tokens of a bucket, so that parts of a call can be counted.
const CALL: u64 = 1_000;

/// What a call is counted as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A renewal or a release.
    Keep,
    Other,
}

/// A principal calls too often, or has too many calls in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany {
    /// When to try again.
    pub retry_ms: u64,
    pub what: &'static str,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: u64,
    at: BootMs,
}

#[derive(Debug)]
struct Account {
    keep: Bucket,
    other: Bucket,
    in_progress: usize,
}

#[derive(Clone, Copy, Debug)]
struct Limits {
    per_second: u64,
    burst: u64,
    at_once: usize,
}

/// By source and name. The empty key is the account that new principals share when there are too many.
type Accounts = HashMap<(String, String), Account>;

/// The accounts of all principals.
#[derive(Debug)]
pub struct Turns(Arc<Mutex<Accounts>>);

/// A call in progress. Dropping this ends it.
#[derive(Debug)]
pub struct Turn {
    accounts: Arc<Mutex<Accounts>>,
    key: (String, String),
}

impl Default for Turns {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Accounts::new())))
    }
}

impl Turns {
    /// Counts a call, if it is allowed now.
    ///
    /// # Errors
    /// When it is not.
    pub fn take(&self, who: &Principal, class: Class, by: &AccessSettings, now: BootMs) -> Result<Turn, TooMany> {
        let limits = Limits {
            per_second: u64::from(by.calls_per_second),
            burst: u64::from(by.calls_burst) * CALL,
            at_once: by.calls_at_once,
        };
        let mut accounts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = key_of(&mut accounts, who, limits, now);
        let account = accounts.entry(key.clone()).or_insert_with(|| Account::full(limits, now));
        account.take(class, limits, now)?;
        Ok(Turn { accounts: Arc::clone(&self.0), key })
    }

    /// How many principals are counted apart.
    #[must_use]
    pub fn principals(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

fn key_of(accounts: &mut Accounts, who: &Principal, limits: Limits, now: BootMs) -> (String, String) {
    let key = (who.source().to_owned(), who.name().to_owned());
    if accounts.len() < PRINCIPALS_MAX || accounts.contains_key(&key) {
        return key;
    }
    accounts.retain(|_, account| !account.is_at_rest(limits, now));
    if accounts.len() < PRINCIPALS_MAX { key } else { (String::new(), String::new()) }
}

impl Bucket {
    fn refill(&mut self, limits: Limits, now: BootMs) {
        let come = now.since(self.at).saturating_mul(limits.per_second);
        (self.left, self.at) = (self.left.saturating_add(come).min(limits.burst), now);
    }
}

impl Account {
    fn full(limits: Limits, now: BootMs) -> Self {
        let full = Bucket { left: limits.burst, at: now };
        Self { keep: full, other: full, in_progress: 0 }
    }

    fn take(&mut self, class: Class, limits: Limits, now: BootMs) -> Result<(), TooMany> {
        let bucket = match class {
            Class::Keep => &mut self.keep,
            Class::Other => &mut self.other,
        };
        bucket.refill(limits, now);
        if bucket.left < CALL {
            let retry_ms = (CALL - bucket.left).div_ceil(limits.per_second.max(1)).max(1);
            return Err(TooMany { retry_ms, what: "calls too often (access.calls_per_second)" });
        }
        // A renewal must not wait for calls that wait.
        if class == Class::Other && self.in_progress >= limits.at_once {
            return Err(TooMany { retry_ms: 1_000, what: "has too many calls in progress (access.calls_at_once)" });
        }
        bucket.left -= CALL;
        self.in_progress += 1;
        Ok(())
    }

    fn is_at_rest(&mut self, limits: Limits, now: BootMs) -> bool {
        self.keep.refill(limits, now);
        self.other.refill(limits, now);
        self.in_progress == 0 && self.keep.left.min(self.other.left) >= limits.burst
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(account) = accounts.get_mut(&self.key) {
            account.in_progress = account.in_progress.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::principal::Kind;

    fn who(name: &str) -> Principal {
        Principal::new(Kind::Tokens, "file", name).unwrap()
    }

    fn limits(calls_per_second: u32, calls_burst: u32, calls_at_once: usize) -> AccessSettings {
        AccessSettings { calls_per_second, calls_burst, calls_at_once, ..AccessSettings::default() }
    }

    #[test]
    fn a_principal_that_calls_too_often_waits_and_others_do_not() {
        let (turns, by, at) = (Turns::default(), limits(10, 3, 100), BootMs(1_000));
        for _ in 0..3 {
            turns.take(&who("a"), Class::Other, &by, at).unwrap();
        }
        let refused = turns.take(&who("a"), Class::Other, &by, at).unwrap_err();
        assert_eq!(refused.retry_ms, 100);
        assert!(turns.take(&who("b"), Class::Other, &by, at).is_ok());
        assert!(turns.take(&who("a"), Class::Keep, &by, at).is_ok(), "it may still renew");
        assert!(turns.take(&who("a"), Class::Other, &by, BootMs(1_099)).is_err());
        assert!(turns.take(&who("a"), Class::Other, &by, BootMs(1_100)).is_ok());
        let later = BootMs(1_000_000);
        assert_eq!((0..9).filter(|_| turns.take(&who("a"), Class::Other, &by, later).is_ok()).count(), 3);
    }

    #[test]
    fn calls_in_progress_are_limited_and_a_renewal_gets_in() {
        let (turns, by, at) = (Turns::default(), limits(1_000, 1_000, 2), BootMs(1));
        let take = |class| turns.take(&who("a"), class, &by, at);
        let (one, _other) = (take(Class::Other).unwrap(), take(Class::Other).unwrap());
        assert!(take(Class::Other).unwrap_err().what.contains("calls_at_once"));
        assert!(take(Class::Keep).is_ok());
        drop(one);
        assert!(take(Class::Other).is_ok());
    }

    #[test]
    fn however_many_principals_call_memory_is_bounded() {
        let (turns, by) = (Turns::default(), limits(1_000, 10, 2));
        let mut held = vec![];
        for n in 0..PRINCIPALS_MAX + 10 {
            held.extend(turns.take(&who(&format!("p{n}")), Class::Other, &by, BootMs(1)).ok());
        }
        assert!(turns.principals() <= PRINCIPALS_MAX + 1);
        drop(held);
        turns.take(&who("late"), Class::Other, &by, BootMs(60_000)).unwrap();
        assert!(turns.principals() < 10, "principals at rest are forgotten");
    }
}
