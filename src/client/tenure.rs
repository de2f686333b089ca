//! What is held until a deadline on the boot clock: over at the first definite reason, and never good past it. A gate's
//! lease and a term by a Kubernetes Lease have this in common; who renews it, and how, is theirs.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::watch;

use crate::{clock::Clock, fence::BootMs};

/// A timer does not count while the machine sleeps, but the deadline does: so it is looked at this often.
const LOOK: Duration = Duration::from_secs(1);

/// Why a tenure is over, as far as that is the same for all.
pub trait Over: Clone {
    /// Its time is up. `last`: what became of the last renewal, where it was not confirmed.
    fn deadline(last: Option<String>) -> Self;
    fn released() -> Self;
}

/// Something that is held.
#[derive(Debug)]
pub struct Tenure<W> {
    clock: Clock,
    until: AtomicU64,
    /// What became of the last renewal, where it was not confirmed.
    last: Mutex<Option<String>>,
    over: watch::Sender<Option<W>>,
}

impl<W: Over> Tenure<W> {
    #[must_use]
    pub fn new(clock: Clock, until: BootMs) -> Self {
        Self { clock, until: AtomicU64::new(until.0), last: Mutex::default(), over: watch::Sender::new(None) }
    }

    #[must_use]
    pub fn now(&self) -> BootMs {
        self.clock.now().boot
    }

    /// Its deadline.
    #[must_use]
    pub fn until(&self) -> BootMs {
        BootMs(self.until.load(Ordering::Acquire))
    }

    /// How much is left until its deadline.
    #[must_use]
    pub fn left_ms(&self) -> u64 {
        self.until().since(self.now())
    }

    /// A renewal was confirmed. An answer to an earlier one may come later.
    pub fn extend(&self, until: BootMs) {
        self.until.fetch_max(until.0, Ordering::AcqRel);
    }

    /// Whether it is held now.
    ///
    /// # Errors
    /// With why not, from then on.
    pub fn check(&self) -> Result<(), W> {
        if let Some(why) = &*self.over.borrow() {
            return Err(why.clone());
        }
        if self.left_ms() == 0 {
            let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
            return Err(self.end(W::deadline(last)));
        }
        Ok(())
    }

    /// It is over. The first reason stays.
    pub fn end(&self, why: W) -> W {
        self.over.send_if_modified(|over| {
            let is_first = over.is_none();
            over.get_or_insert(why);
            is_first
        });
        self.over.borrow().clone().unwrap_or_else(W::released)
    }

    /// Returns when it is over, with the reason.
    pub async fn over(&self) -> W {
        match self.over.subscribe().wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_else(W::released),
            Err(_) => W::released(),
        }
    }

    /// Notes what became of a renewal; returns what was noted before.
    pub fn set_last(&self, last: Option<String>) -> Option<String> {
        std::mem::replace(&mut *self.last.lock().unwrap_or_else(PoisonError::into_inner), last)
    }

    /// Returns at this time, or at the deadline, whichever comes first; or when it is over.
    pub async fn sleep_until(&self, at: BootMs) {
        loop {
            let left = at.min(self.until()).since(self.now());
            if left == 0 {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK.min(Duration::from_millis(left))) => {}
                _ = self.over() => return,
            }
        }
    }
}
