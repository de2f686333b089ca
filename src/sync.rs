//! The locks, atomics, channels and threads that the workers and the ledger share: the standard library's. In
//! builds with feature `shuttle` they are shuttle's: at each of them a test draws which thread goes on
//! (`tests/shuttle`), and the same draw must always give the same run.

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::{
    hash::RandomState as Hasher,
    sync::{Condvar, Mutex, MutexGuard, atomic, mpsc},
    thread,
};

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::{
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread,
};

/// The same in every run: an object's stripe does not depend on the process.
#[cfg(feature = "shuttle")]
pub(crate) type Hasher = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

/// Shuttle's channel, except for a wait with a timeout: shuttle's never ends, since no time passes there.
#[cfg(feature = "shuttle")]
pub(crate) mod mpsc {
    use std::time::Duration;

    use shuttle::sync::mpsc::{self, RecvError, TryIter, TryRecvError};
    pub(crate) use shuttle::sync::mpsc::{RecvTimeoutError, SyncSender};

    pub(crate) struct Receiver<T>(mpsc::Receiver<T>);

    pub(crate) fn sync_channel<T>(bound: usize) -> (SyncSender<T>, Receiver<T>) {
        let (sender, receiver) = mpsc::sync_channel(bound);
        (sender, Receiver(receiver))
    }

    impl<T> Receiver<T> {
        pub(crate) fn recv(&self) -> Result<T, RecvError> {
            self.0.recv()
        }

        pub(crate) fn recv_timeout(&self, _: Duration) -> Result<T, RecvTimeoutError> {
            self.0.try_recv().map_err(|error| match error {
                TryRecvError::Empty => RecvTimeoutError::Timeout,
                TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
            })
        }

        pub(crate) fn try_iter(&self) -> TryIter<'_, T> {
            self.0.try_iter()
        }
    }
}
