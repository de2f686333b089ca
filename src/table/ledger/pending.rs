//! Calls for leases that a caller waits for, and may stop waiting for: what is granted and not taken is given back.

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

/// Leases that were granted to a caller who has not taken them yet. Dropped before that, they are given back, unless the
/// caller can ask for them again.
#[must_use = "leases that are not taken are given back"]
pub struct Offer<'a, T: Leases> {
    granted: Option<T>,
    queue: &'a Queue,
    gives_back: bool,
}

impl<T: Leases> Offer<'_, T> {
    /// The leases: from here on they are the caller's to release.
    ///
    /// # Panics
    /// Never: only this takes them.
    #[must_use]
    pub fn take(mut self) -> T {
        self.granted.take().expect("only `take` takes them, and takes the offer with them")
    }

    /// Whether the leases are given back where the caller is gone.
    #[must_use]
    pub fn gives_back(&self) -> bool {
        self.gives_back
    }
}

impl<T: Leases> Drop for Offer<'_, T> {
    fn drop(&mut self) {
        if let Some(unwanted) = self.granted.take().filter(|_| self.gives_back) {
            let (reply, _) = oneshot::channel();
            // Where the ledger has no time for it, the leases run out by themselves.
            let _ = self.queue.send(Command::Withdraw { leases: unwanted.ids(), reply });
        }
    }
}

/// A call for leases whose answer is being waited for. A caller that stops waiting is offered what was granted
/// meanwhile, and does not take it.
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

/// Answers a call for leases. Returns those that are to be given back: the caller does not wait any more, and cannot
/// ask for them again.
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
