//! What the parts of a running gate share: the table, the ledger, who was elected, the routes, and whether the gate
//! is about to stop. `app` makes it; the api, the path of a write and migrations use it.
//!
//! - [`receipts`]: the latest refusals. [`reads`]: reads of the table, a limited number at a time.

pub mod reads;
pub mod receipts;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::sync::{Semaphore, watch as signal};

use self::{
    reads::{Reads, TableRead},
    receipts::Receipts,
};
use crate::{
    access::{Access, turns::Turns},
    audit::Audit,
    authority::Authority,
    clock::Clock,
    config::LeaseSettings,
    fence::{LeaseId, Now, ObjectId, Record},
    kubernetes::lease_observer::LeaseObserver,
    metrics::Metrics,
    problem::Problem,
    route::Routes,
    table::{
        TableFault,
        ledger::{Ledger, LedgerError},
        news::News,
        records::Records,
    },
};

/// How often a drain checks whether writes are still on their way.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What the parts share.
pub struct Gate {
    pub records: Arc<Records>,
    pub ledger: Ledger,
    pub news: Arc<News>,
    pub clock: Clock,
    pub limits: LeaseSettings,
    /// The parties whose signatures count; a reload exchanges it.
    pub authority: ArcSwap<Authority>,
    /// Who may call the api; a reload exchanges it, and then reports to `access_changes`.
    pub access: ArcSwap<Access>,
    pub access_changes: signal::Sender<()>,
    pub turns: Turns,
    /// Who did what by the api.
    pub audit: Audit,
    /// The routes of new writes; a reload exchanges them.
    pub routes: ArcSwap<Routes>,
    /// Who was elected, where Kubernetes Leases say who may write.
    pub lease_observer: Arc<LeaseObserver>,
    /// How long a stop, or a drain, may wait.
    pub deadline: Duration,
    pub metrics: Arc<Metrics>,
    pub receipts: Receipts,
    pub reads: Reads,
    /// How many more may watch.
    pub watchers: Arc<Semaphore>,
    /// The gate is about to stop: it grants no new leases and lets no new writes in.
    pub draining: AtomicBool,
    /// Turns true when streams have to end.
    pub stopping: signal::Sender<bool>,
}

/// The gate as each part holds it.
pub type Shared = Arc<Gate>;

impl Gate {
    #[must_use]
    pub fn now(&self) -> Now {
        self.clock.now()
    }

    /// Stops granting leases, and waits until every change that was begun is done, or the deadline of a stop has
    /// passed. Returns whether every change is done.
    pub async fn drain(&self) -> bool {
        self.draining.store(true, Ordering::Release);
        let closed = tokio::time::timeout(self.deadline, self.ledger.close()).await;
        // A ledger that is gone has nothing left to do. A ledger without room for the call goes on granting.
        matches!(closed, Ok(Ok(()) | Err(LedgerError::Stopping)))
    }

    /// Waits until no write is on its way to the store, or a deadline has passed. Returns whether no write is.
    pub async fn idle(&self, deadline: Duration) -> bool {
        let idle = async {
            while !self.records.stripes.is_idle() {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        tokio::time::timeout(deadline, idle).await.is_ok()
    }

    /// Reads the table on a thread that serves no requests.
    ///
    /// # Errors
    /// `TABLE_UNAVAILABLE` where the read fails or its disk hangs. The answer comes at once where the disk is known
    /// to hang, and where the allowed number of reads already waits for it.
    pub async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&Records) -> Result<T, TableFault> + Send + 'static,
    ) -> Result<T, Problem> {
        let reading = async {
            let place = self.reads.place().await.ok_or_else(Problem::table_unavailable)?;
            self.read_in(Some(place), read).await
        };
        let done = tokio::time::timeout(self.ledger.patience(), reading).await;
        done.unwrap_or_else(|_| {
            self.reads.are_overdue();
            Err(Problem::table_unavailable())
        })
    }

    /// The same without a time limit: for copies.
    ///
    /// # Errors
    /// `TABLE_UNAVAILABLE` where the read fails.
    pub async fn read_at_length<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&Records) -> Result<T, TableFault> + Send + 'static,
    ) -> Result<T, Problem> {
        self.read_in(None, read).await
    }

    /// The same in a place that the caller has taken: the read keeps the place to its end.
    async fn read_in<T: Send + 'static>(
        self: &Arc<Self>,
        place: Option<TableRead>,
        read: impl FnOnce(&Records) -> Result<T, TableFault> + Send + 'static,
    ) -> Result<T, Problem> {
        let records = Arc::clone(&self.records);
        let reading = move || {
            let done = read(&records);
            drop(place);
            done
        };
        let done = tokio::task::spawn_blocking(reading).await;
        match done {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(fault)) => {
                tracing::error!(%fault, "a row of the fence table cannot be read");
                Err(Problem::table_unavailable())
            }
            Err(_panicked) => Err(Problem::table_unavailable()),
        }
    }

    /// An object's record. A lease past its deadline is ended first: no answer may mention that end before it is
    /// durable.
    ///
    /// # Errors
    /// When the table is not usable.
    pub async fn settled_record(self: &Arc<Self>, object: &ObjectId) -> Result<Record, Problem> {
        loop {
            let wanted = object.clone();
            let record = self.read(move |records| records.read(&wanted)).await?;
            let now = self.now();
            match record.open_lease().filter(|lease| !lease.is_live(now)) {
                None => return Ok(record),
                Some(lease) => self.end(vec![(object.clone(), lease.lease_id.clone())]).await?,
            }
        }
    }

    /// Refuses a call of the lease api for an object whose leases come from elsewhere.
    ///
    /// # Errors
    /// `GRANT_REQUIRED`, `EXTERNAL_LEASE`.
    pub fn is_grantable(&self, object: &ObjectId) -> Result<(), Problem> {
        match self.routes.load().call_refusal(object) {
            None => Ok(()),
            Some((code, what)) => Err(Problem::new(code, what).with_object(object)),
        }
    }

    /// Makes the end of overdue leases durable.
    ///
    /// # Errors
    /// When the table is not usable.
    pub async fn end(&self, leases: Vec<(ObjectId, LeaseId)>) -> Result<(), Problem> {
        self.ledger.end(leases).await.map_err(|refused| Problem::refused(&refused, self.now()))
    }
}
