//! The queue of calls to the ledger. It has a bound, and a caller can wait for room in it.
//!
//! The room is counted beside the channel: a caller takes a place first, then sends. The ledger frees the places of
//! the calls that it has taken.

use std::{sync::Arc, time::Duration};

use tokio::sync::{Semaphore, SemaphorePermit, TryAcquireError};

use super::command::{Command, LedgerError};
use crate::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};

/// A queue for this many calls: the callers' end, and the ledger's.
pub(super) fn queue(bound: usize) -> (Queue, Calls) {
    let (sender, receiver) = sync_channel(bound);
    let room = Arc::new(Semaphore::new(bound));
    (Queue { sender, room: Arc::clone(&room) }, Calls { receiver, room })
}

/// The callers' end.
pub(super) struct Queue {
    sender: SyncSender<Command>,
    room: Arc<Semaphore>,
}

impl Queue {
    /// Room for one call, if there is some now.
    ///
    /// # Errors
    /// `Overloaded` where there is none, `Stopping` where the ledger is gone.
    pub(super) fn room(&self) -> Result<Room<'_>, LedgerError> {
        match self.room.try_acquire() {
            Ok(place) => Ok(Room { queue: self, place }),
            Err(TryAcquireError::NoPermits) => Err(LedgerError::Overloaded),
            Err(TryAcquireError::Closed) => Err(LedgerError::Stopping),
        }
    }

    /// Waits for room for one call. Callers get room in the order in which they came.
    ///
    /// # Errors
    /// `Stopping` where the ledger is gone.
    pub(super) async fn capacity(&self) -> Result<Room<'_>, LedgerError> {
        let place = self.room.acquire().await.map_err(|_| LedgerError::Stopping)?;
        Ok(Room { queue: self, place })
    }

    /// Queues a call, if there is room for it now.
    ///
    /// # Errors
    /// As [`Self::room`].
    pub(super) fn send(&self, command: Command) -> Result<(), LedgerError> {
        self.room()?.send(command)
    }
}

/// Room for one call in the ledger's queue. Dropped unused, the room is free again.
pub struct Room<'a> {
    queue: &'a Queue,
    place: SemaphorePermit<'a>,
}

impl Room<'_> {
    /// Queues a call.
    ///
    /// # Errors
    /// `Stopping` where the ledger is gone.
    pub(super) fn send(self, command: Command) -> Result<(), LedgerError> {
        let Self { queue, place } = self;
        // A caller with a place finds room: the channel has at least as many entries as there are places.
        queue.sender.try_send(command).map_err(|_| LedgerError::Stopping)?;
        // The ledger frees the place.
        place.forget();
        Ok(())
    }
}

/// The ledger's end.
pub(super) struct Calls {
    receiver: Receiver<Command>,
    room: Arc<Semaphore>,
}

impl Calls {
    /// Waits for the next call: up to `nap`, or without a limit.
    ///
    /// # Errors
    /// When none came in time, or there are no callers any more.
    pub(super) fn next(&self, nap: Option<Duration>) -> Result<Command, RecvTimeoutError> {
        match nap {
            Some(nap) => self.receiver.recv_timeout(nap),
            None => self.receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    /// Returns this call, and then the queued ones. Their places are freed when this is dropped.
    pub(super) fn batch(&self, first: Option<Command>) -> impl Iterator<Item = Command> {
        let mut taken = Taken { room: &self.room, places: 0 };
        first.into_iter().chain(self.receiver.try_iter()).inspect(move |_| taken.one_more())
    }
}

impl Drop for Calls {
    /// Callers that wait for room would wait for ever.
    fn drop(&mut self) {
        self.room.close();
    }
}

/// The places of the calls that were taken.
struct Taken<'a> {
    room: &'a Semaphore,
    places: usize,
}

impl Taken<'_> {
    fn one_more(&mut self) {
        self.places += 1;
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.room.add_permits(self.places);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use super::*;

    #[test]
    fn who_waits_for_room_gets_the_place_of_a_call_that_was_taken() {
        let (queue, calls) = queue(2);
        assert_eq!((queue.send(Command::Tick), queue.send(Command::Tick)), (Ok(()), Ok(())));
        assert_eq!(queue.send(Command::Tick), Err(LedgerError::Overloaded));
        let mut context = Context::from_waker(Waker::noop());
        let mut first = pin!(queue.capacity());
        assert!(first.as_mut().poll(&mut context).is_pending());
        let mut batch = calls.batch(None);
        assert!(batch.next().is_some());
        drop(batch);
        // The place belongs to the callers that have waited.
        assert_eq!(queue.send(Command::Tick), Err(LedgerError::Overloaded));
        let Poll::Ready(Ok(room)) = first.as_mut().poll(&mut context) else { panic!("there is room") };
        assert_eq!(room.send(Command::Tick), Ok(()));
        assert_eq!(calls.batch(None).count(), 2);
        // Room that is not used is free again.
        drop((queue.room(), queue.room()));
        assert_eq!((queue.send(Command::Tick), queue.send(Command::Tick)), (Ok(()), Ok(())));
    }

    #[test]
    fn who_waits_for_room_learns_that_the_ledger_is_gone() {
        let (queue, calls) = queue(1);
        assert_eq!(queue.send(Command::Tick), Ok(()));
        let mut context = Context::from_waker(Waker::noop());
        let mut waiting = pin!(queue.capacity());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        drop(calls);
        let Poll::Ready(Err(refused)) = waiting.as_mut().poll(&mut context) else { panic!("it is gone") };
        assert_eq!((refused, queue.send(Command::Tick)), (LedgerError::Stopping, Err(LedgerError::Stopping)));
    }
}
