//! Reads of the fence table, off the threads that serve: a limited number at a time.
//!
//! A read that hangs in its disk cannot be cancelled: it keeps its thread, even when its caller has stopped
//! waiting. The same threads look up the store's address. So reads get only a few of them, and a disk that hangs
//! takes no more.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many reads may be under way: far fewer than the threads that a worker's runtime has for them.
const PLACES: usize = 64;

/// Places for reads of the table.
#[derive(Debug)]
pub struct Reads {
    places: Arc<Semaphore>,
    /// A caller has stopped waiting for a read, and no read has ended since.
    hang: Arc<AtomicBool>,
}

/// A read that is under way, until this is dropped.
#[derive(Debug)]
pub struct TableRead {
    hang: Arc<AtomicBool>,
    _place: OwnedSemaphorePermit,
}

impl Default for Reads {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(PLACES)), hang: Arc::default() }
    }
}

impl Reads {
    /// Returns a place, once there is one. `None`: reads that hang have taken all places.
    pub async fn place(&self) -> Option<TableRead> {
        let places = Arc::clone(&self.places);
        let place = if self.hang.load(Ordering::Relaxed) {
            places.try_acquire_owned().ok()?
        } else {
            places.acquire_owned().await.ok()?
        };
        Some(TableRead { hang: Arc::clone(&self.hang), _place: place })
    }

    /// Notes that a caller has stopped waiting for a read, or for a place for one.
    pub fn are_overdue(&self) {
        self.hang.store(true, Ordering::Relaxed);
    }
}

impl Drop for TableRead {
    fn drop(&mut self) {
        self.hang.store(false, Ordering::Relaxed);
    }
}
