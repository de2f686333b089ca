//! Calls for leases that somebody waits for, and may stop waiting for.

use tokio::sync::oneshot;

use super::{
    command::{Command, Granted, Refused},
    queue::Queue,
};
use crate::fence::{LeaseId, ObjectId};

/// An answer with leases in it.
pub(super) trait Leases {
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

/// A call for leases whose answer is being waited for. A caller that stops waiting gives back what was granted
/// to it and not taken, unless it can be asked for again.
pub(super) struct Pending<'a, T: Leases> {
    pub(super) answer: oneshot::Receiver<Result<T, Refused>>,
    pub(super) queue: &'a Queue,
    pub(super) gives_back: bool,
}

impl<T: Leases> Drop for Pending<'_, T> {
    fn drop(&mut self) {
        // From here on the ledger itself notices that the caller is gone.
        self.answer.close();
        if let Ok(Ok(granted)) = self.answer.try_recv()
            && self.gives_back
        {
            let leases = granted.ids();
            let (reply, _) = oneshot::channel();
            // Where the ledger has no time for it, the lease runs out by itself.
            let _ = self.queue.send(Command::Withdraw { leases, reply });
        }
    }
}
