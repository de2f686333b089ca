//! Calls for leases whose callers wait, and may stop waiting: leases that were granted and not taken are given
//! back.

use tokio::sync::oneshot;

use super::{
    command::{Command, Granted, LedgerError, Reply},
    queue::Queue,
};
use crate::fence::{LeaseId, ObjectId};

/// An answer with leases in it.
pub trait Leases {
    fn ids(self) -> Vec<(ObjectId, LeaseId)>;
}

impl Leases for Granted {
    fn ids(self) -> Vec<(ObjectId, LeaseId)> {
        vec![(self.object, self.lease.lease_id)]
    }
}

impl Leases for Vec<Granted> {
    fn ids(self) -> Vec<(ObjectId, LeaseId)> {
        self.into_iter().flat_map(Leases::ids).collect()
    }
}

/// Leases that were granted to a caller that has not taken them yet. Dropped before that, they are given back,
/// unless the caller can repeat its request.
#[must_use = "leases that are not taken are given back"]
pub struct Offer<'a, T: Leases> {
    granted: Option<T>,
    queue: &'a Queue,
    gives_back: bool,
}

impl<T: Leases> Offer<'_, T> {
    /// Returns the leases: from here on the caller has to release them.
    ///
    /// # Panics
    /// Never: only this method takes them, and it consumes the offer.
    #[must_use]
    pub fn take(mut self) -> T {
        self.granted.take().expect("only `take` takes them, and takes the offer with them")
    }

    /// Whether the leases are given back when the caller is gone.
    #[must_use]
    pub fn gives_back(&self) -> bool {
        self.gives_back
    }
}

impl<T: Leases> Drop for Offer<'_, T> {
    fn drop(&mut self) {
        if let Some(unwanted) = self.granted.take().filter(|_| self.gives_back) {
            let (reply, _) = oneshot::channel();
            // Where the ledger cannot take the call, the leases run out by themselves.
            let _ = self.queue.send(Command::Withdraw { leases: unwanted.ids(), reply });
        }
    }
}

/// A call for leases whose answer is awaited. If the caller stops waiting, the leases that were granted meanwhile
/// are treated as not taken.
pub(super) struct Pending<'a, T: Leases> {
    pub(super) answer: oneshot::Receiver<Result<T, LedgerError>>,
    pub(super) queue: &'a Queue,
    pub(super) gives_back: bool,
}

impl<'a, T: Leases> Pending<'a, T> {
    pub(super) fn offer(&self, granted: T) -> Offer<'a, T> {
        Offer { granted: Some(granted), queue: self.queue, gives_back: self.gives_back }
    }
}

impl<T: Leases> Drop for Pending<'_, T> {
    fn drop(&mut self) {
        // From here on the ledger itself notices that the caller is gone.
        self.answer.close();
        if let Ok(Ok(granted)) = self.answer.try_recv() {
            drop(self.offer(granted));
        }
    }
}

/// Answers a call for leases. Returns the leases to give back: their caller no longer waits, and cannot repeat its
/// request.
pub(super) fn answer_leases<T: Leases>(
    reply: Reply<T>,
    result: Result<T, LedgerError>,
    gives_back: bool,
) -> Vec<(ObjectId, LeaseId)> {
    match reply.send(result) {
        Err(Ok(unwanted)) if gives_back => unwanted.ids(),
        Ok(()) | Err(_) => vec![],
    }
}
