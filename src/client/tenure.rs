//! A lease or term held until a deadline on the boot clock. It ends at the first definite reason, and never lasts
//! past its deadline. A gate's lease and a term by a Kubernetes Lease share this; each has its own way to renew.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::watch;

use crate::{clock::Clock, fence::BootMs};

/// A timer does not count while the machine sleeps, but the deadline does. So the deadline is checked this often.
const LOOK: Duration = Duration::from_secs(1);

/// Why a tenure is over: the reasons that all kinds share.
pub trait Over: Clone {
    /// Its time is up. `last`: the last error of a renewal, if the last one was not confirmed.
    fn deadline(last: Option<String>) -> Self;
    fn released() -> Self;
}

/// A lease or a term that is held.
#[derive(Debug)]
pub struct Tenure<W> {
    clock: Clock,
    until: AtomicU64,
    /// The last error of a renewal, if the last one was not confirmed.
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

    /// The deadline.
    #[must_use]
    pub fn until(&self) -> BootMs {
        BootMs(self.until.load(Ordering::Acquire))
    }

    /// The milliseconds until the deadline.
    #[must_use]
    pub fn left_ms(&self) -> u64 {
        self.until().since(self.now())
    }

    /// Records a confirmed renewal. The answer to an earlier renewal may come later, so the deadline never moves
    /// back.
    pub fn extend(&self, until: BootMs) {
        self.until.fetch_max(until.0, Ordering::AcqRel);
    }

    /// Whether it is held now. After the deadline, this ends it.
    ///
    /// # Errors
    /// Why it is over; the same for every later call.
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

    /// Ends it. The first reason is kept, and returned.
    pub fn end(&self, why: W) -> W {
        self.over.send_if_modified(|over| {
            let is_first = over.is_none();
            over.get_or_insert(why);
            is_first
        });
        self.over.borrow().clone().unwrap_or_else(W::released)
    }

    /// Returns the reason once it is over.
    pub async fn over(&self) -> W {
        match self.over.subscribe().wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_else(W::released),
            Err(_) => W::released(),
        }
    }

    /// Records the result of a renewal. Returns the one before.
    pub fn set_last(&self, last: Option<String>) -> Option<String> {
        std::mem::replace(&mut *self.last.lock().unwrap_or_else(PoisonError::into_inner), last)
    }

    /// Returns at this time, at the deadline, or when it is over, whichever comes first.
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
