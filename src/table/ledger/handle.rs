//! The handle of the ledger: one method for each of its calls.
//!
//! No call waits without a bound for a table that hangs: it is refused after a while, and at once where that while
//! has passed already. Calls that wait for other callers, for their turn or for a drain, wait as long as the ledger
//! goes on.

use std::{
    pin::pin,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use tokio::sync::oneshot;

use super::{
    Core,
    command::{
        Certificate, Command, GrantAction, Granted, JournalLines, LedgerError, Moved, Progress, Reply, ReplyRx, Wanted,
    },
    keyed::{KeyAttempt, KeyClaimResult},
    pending::{Leases, Offer, Pending},
    pulse::{PATIENCE, Pulse},
    queue::{Queue, Room, queue},
    work,
};
use crate::{
    clock::Clock,
    fence::{
        FenceToken, HolderId, LeaseId, MigrationId, ObjectId, Record, Ttl,
        authority::SignedGrant,
        idempotency::{Entry, Scope},
        outside::{Claim, Source, Update},
    },
    route::RouteFingerprint,
    sync::thread::{self, JoinHandle},
};

/// How many calls may wait for a round; more are refused.
const QUEUE: usize = 8_192;

/// The handle of the ledger. Cloning is cheap.
#[derive(Clone)]
pub struct Ledger {
    queue: Arc<Queue>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
    pulse: Arc<Pulse>,
    patience: Duration,
}

impl Ledger {
    /// Starts the ledger on its own thread.
    ///
    /// # Panics
    /// When the system cannot start a thread.
    #[must_use]
    pub fn start(core: Core, clock: &Clock) -> Self {
        let (queue, calls) = queue(QUEUE);
        let queue = Arc::new(queue);
        let wake = |queue: &Weak<Queue>| {
            // A full queue wakes the ledger anyway, and a queue that is gone needs no wake.
            let _ = queue.upgrade().map(|queue| queue.send(Command::Tick));
        };
        let (by_clock, by_writes) = (Arc::downgrade(&queue), Arc::downgrade(&queue));
        clock.on_change(move || wake(&by_clock));
        core.records().stripes.on_drained(move || wake(&by_writes));
        let clock = clock.clone();
        let pulse = Arc::new(Pulse::default());
        let felt = Arc::clone(&pulse);
        let thread = thread::Builder::new()
            .name("ledger".to_owned())
            .spawn(move || work(core, &calls, &clock, &felt))
            .expect("a thread for the ledger");
        Self { queue, thread: Arc::new(Mutex::new(Some(thread))), pulse, patience: PATIENCE }
    }

    /// The same ledger, with another limit for the wait for a table that hangs.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// How long a call waits for a table that hangs.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// Shows whether the ledger goes on.
    #[must_use]
    pub fn pulse(&self) -> Arc<Pulse> {
        Arc::clone(&self.pulse)
    }

    fn is_stalled(&self) -> bool {
        self.pulse.age() >= self.patience
    }

    /// Refuses a call while the table hangs: nothing is changed then.
    fn gets_on(&self) -> Result<(), LedgerError> {
        if self.is_stalled() { Err(LedgerError::Unavailable) } else { Ok(()) }
    }

    /// A call that waits only for the table.
    async fn call<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, LedgerError> {
        self.gets_on()?;
        let (reply, answer) = oneshot::channel();
        self.send(command(reply))?;
        self.in_time(answer).await
    }

    /// The same, also where the table hangs, and where the queue is full: this call must not be lost.
    async fn call_anyway<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, LedgerError> {
        let (reply, answer) = oneshot::channel();
        self.capacity_in_time().await?.send(command(reply))?;
        self.in_time(answer).await
    }

    /// Waits for an answer that depends only on the table.
    async fn in_time<T>(&self, answer: ReplyRx<T>) -> Result<T, LedgerError> {
        if !has_timers() {
            return answer.await.unwrap_or(Err(LedgerError::Stopping));
        }
        let answered = tokio::time::timeout(self.patience, answer).await;
        answered.map_or(Err(LedgerError::Stalled), |answer| answer.unwrap_or(Err(LedgerError::Stopping)))
    }

    /// Waits for room for one call, however long the table hangs.
    ///
    /// # Errors
    /// When the ledger is gone.
    pub async fn capacity(&self) -> Result<Room<'_>, LedgerError> {
        self.queue.capacity().await
    }

    /// Waits for room for one call, as long as the ledger goes on.
    ///
    /// # Errors
    /// When the table hangs, or the ledger is gone.
    pub async fn capacity_in_time(&self) -> Result<Room<'_>, LedgerError> {
        let capacity = pin!(self.queue.capacity());
        // There is no room before the table goes on.
        self.while_it_gets_on(capacity).await.unwrap_or(Err(LedgerError::Unavailable))
    }

    /// A call that may have to wait for other callers or for older writes.
    async fn call_in_turn<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, LedgerError> {
        self.gets_on()?;
        let (reply, mut answer) = oneshot::channel();
        self.send(command(reply))?;
        self.wait(&mut answer).await
    }

    /// A call that ends the ledger's work: the stop that sends it has its own deadline.
    async fn call_at_last(&self, command: impl FnOnce(Reply<()>) -> Command) -> Result<(), LedgerError> {
        let (reply, answer) = oneshot::channel();
        self.send(command(reply))?;
        answer.await.unwrap_or(Err(LedgerError::Stopping))
    }

    /// Waits for an answer, as long as the ledger goes on.
    ///
    /// # Errors
    /// As the answer says; when the table hangs; when the ledger is gone.
    pub async fn wait<T>(&self, answer: &mut ReplyRx<T>) -> Result<T, LedgerError> {
        let answered = self.while_it_gets_on(answer).await;
        answered.map_or(Err(LedgerError::Stalled), |answer| answer.unwrap_or(Err(LedgerError::Stopping)))
    }

    /// Waits as long as the ledger goes on; `None`: the table hangs.
    pub async fn while_it_gets_on<T>(&self, mut waiting: impl Future<Output = T> + Unpin) -> Option<T> {
        if !has_timers() {
            return Some(waiting.await);
        }
        loop {
            let left = self.patience.saturating_sub(self.pulse.age()).max(LEAST_LOOK);
            match tokio::time::timeout(left, &mut waiting).await {
                Ok(done) => return Some(done),
                Err(_) if self.is_stalled() => return None,
                // The ledger goes on: the call waits for its turn, or for other callers.
                Err(_) => {}
            }
        }
    }

    /// Grants leases, all or none. Dropping the future takes the call back. Leases that were granted and not taken
    /// are given back, unless the call has a `request_id` with which it can be repeated.
    ///
    /// # Errors
    /// With the reason of the refusal.
    pub async fn acquire(&self, wanted: Wanted) -> Result<Offer<'_, Vec<Granted>>, LedgerError> {
        let gives_back = wanted.request.is_none();
        let command = |reply| Command::Acquire { wanted, reply };
        self.call_for_leases(command, gives_back).await
    }

    async fn call_for_leases<T: Leases>(
        &self,
        command: impl FnOnce(Reply<T>) -> Command,
        gives_back: bool,
    ) -> Result<Offer<'_, T>, LedgerError> {
        self.gets_on()?;
        let (reply, answer) = oneshot::channel();
        let mut pending = Pending { answer, queue: &self.queue, gives_back };
        self.send(command(reply))?;
        let granted = self.wait(&mut pending.answer).await?;
        Ok(pending.offer(granted))
    }

    /// Renews a lease, or rotates it. A rotated lease that is not taken is given back.
    ///
    /// # Errors
    /// With the reason of the refusal.
    pub async fn renew(
        &self,
        lease_id: LeaseId,
        holder: HolderId,
        token: FenceToken,
        ttl: Ttl,
        rotate: bool,
    ) -> Result<Offer<'_, Granted>, LedgerError> {
        let command = |reply| Command::Renew { lease_id, holder, token, ttl, rotate, reply };
        self.call_for_leases(command, rotate).await
    }

    /// Releases a lease. Returns the object's record as the release left it.
    ///
    /// # Errors
    /// With the reason of the refusal.
    pub async fn release(
        &self,
        lease_id: LeaseId,
        holder: Option<HolderId>,
        token: FenceToken,
    ) -> Result<Record, LedgerError> {
        self.call(|reply| Command::Release { lease_id, holder, token, reply }).await
    }

    /// Makes the end of leases past their deadline durable. Leases that are live are not changed.
    ///
    /// # Errors
    /// When the table is not usable.
    pub async fn end(&self, leases: Vec<(ObjectId, LeaseId)>) -> Result<(), LedgerError> {
        self.call(|reply| Command::End { leases, reply }).await
    }

    /// Moves an object's fence past its present holder. Returns the record as the revocation left it. `force`: do
    /// not wait for writes that are on their way; the next lease is tainted. `source`: of the object's leases, by
    /// its routes.
    ///
    /// # Errors
    /// With the reason of the refusal.
    pub async fn revoke(
        &self,
        object: ObjectId,
        reason: String,
        force: bool,
        source: Source,
    ) -> Result<Moved, LedgerError> {
        self.call_in_turn(|reply| Command::Revoke { object, reason, force, source, reply }).await
    }

    /// Moves an object's fence past the lease that a certificate names, and waits a while for its last writes. The
    /// returned record says whether they are done.
    ///
    /// # Errors
    /// With the reason of the refusal.
    pub async fn certify(
        &self,
        certificate: Certificate,
        max_jump: u64,
        migration: Option<Progress>,
    ) -> Result<Moved, LedgerError> {
        let (certificate, migration) = (Box::new(certificate), migration.map(Box::new));
        self.call_in_turn(|reply| Command::Certify { certificate, max_jump, migration, reply }).await
    }

    /// Gives an object to the holder that an issuer names.
    ///
    /// # Errors
    /// With the reason of the refusal.
    pub async fn grant(
        &self,
        domain: ObjectId,
        signed: SignedGrant,
        migration: Option<Progress>,
    ) -> Result<Granted, LedgerError> {
        let (signed, migration) = (Box::new(signed), migration.map(Box::new));
        self.call_in_turn(|reply| Command::Grant { domain, signed, migration, reply }).await
    }

    fn send(&self, command: Command) -> Result<(), LedgerError> {
        self.queue.send(command).map_err(|refused| match refused {
            // There is no room before the table goes on.
            LedgerError::Overloaded if self.is_stalled() => LedgerError::Unavailable,
            refused => refused,
        })
    }

    /// Has an object's fence follow the updates of an outside source, unless the fence is there already, and waits a
    /// while for the last writes of older leases. The returned record says whether they are done, or whether a newer
    /// update has overtaken.
    ///
    /// # Errors
    /// With the reason of the refusal.
    pub async fn follow(&self, object: ObjectId, update: Update) -> Result<Moved, LedgerError> {
        self.call_in_turn(|reply| Command::Follow { object, update, reply }).await
    }

    /// The same, queued after all earlier calls when this returns. The answer comes once the change is durable, and
    /// may wait a while for the last writes of older leases.
    ///
    /// # Errors
    /// Where the ledger cannot take it.
    pub fn follow_next(&self, object: ObjectId, update: Update) -> Result<ReplyRx<Moved>, LedgerError> {
        self.gets_on()?;
        let (reply, answer) = oneshot::channel();
        self.send(Command::Follow { object, update, reply }).map(|()| answer)
    }

    /// Opens a locked object to the tokens of an outside source from `lowest` on.
    ///
    /// # Errors
    /// With the reason of the refusal.
    pub async fn confirm(&self, object: ObjectId, lowest: Claim) -> Result<Moved, LedgerError> {
        self.call(|reply| Command::Confirm { object, lowest, reply }).await
    }

    /// Writes a migration's next state.
    ///
    /// # Errors
    /// When it is not in the state that the caller expects, or the table is not usable.
    pub async fn migrate(&self, progress: Progress, grant_action: GrantAction) -> Result<(), LedgerError> {
        let progress = Box::new(progress);
        self.call(|reply| Command::Migrate { progress, grant_action, reply }).await
    }

    /// Deletes a parked certificate.
    ///
    /// # Errors
    /// When the table is not usable.
    pub async fn unpark(&self, certificate: Certificate) -> Result<(), LedgerError> {
        let certificate = Box::new(certificate);
        self.call(|reply| Command::Unpark { certificate, reply }).await
    }

    /// Forgets migrations that ended long ago.
    ///
    /// # Errors
    /// When the table is not usable.
    pub async fn forget_migrations(&self, ids: Vec<MigrationId>) -> Result<(), LedgerError> {
        self.call(|reply| Command::ForgetMigrations { ids, reply }).await
    }

    /// Remembers a keyed write, unless its key is known: durable when this returns.
    ///
    /// # Errors
    /// When the table is not usable. After `Unavailable` and `Overloaded` nothing was begun, and nothing has to be
    /// undone.
    pub async fn begin_keyed(&self, attempt: KeyAttempt) -> Result<KeyClaimResult, LedgerError> {
        let attempt = Box::new(attempt);
        self.call(|reply| Command::BeginKeyed { attempt, reply }).await
    }

    /// Remembers a keyed write's answer: durable when this returns. Waits for room in the queue.
    ///
    /// # Errors
    /// When the table is not usable.
    pub async fn end_keyed(&self, scope: Scope, attempt: u64, entry: Entry) -> Result<(), LedgerError> {
        let entry = Some(Box::new(entry));
        self.call_anyway(|reply| Command::EndKeyed { scope, attempt, entry, reply }).await
    }

    /// Room for one call, if there is some now.
    ///
    /// # Errors
    /// When there is none, or the ledger is gone.
    pub fn room(&self) -> Result<Room<'_>, LedgerError> {
        self.queue.room()
    }

    /// Writes the outcomes of writes into their journals: durable when this returns. Waits for room in the queue.
    ///
    /// # Errors
    /// When the table is not usable.
    pub async fn journal(&self, lines: JournalLines) -> Result<(), LedgerError> {
        self.call_anyway(|reply| Command::Journal { lines, reply }).await
    }

    /// Notes that writes are about to use other terms too: durable when this returns.
    ///
    /// # Errors
    /// When the table is not usable.
    pub async fn announce(&self, fingerprint: RouteFingerprint) -> Result<(), LedgerError> {
        self.call(|reply| Command::Announce { fingerprint, reply }).await
    }

    /// Notes that new writes use these terms only.
    ///
    /// # Errors
    /// When the table hangs: after `Stalled` the change will still be made. When the ledger has no room, or is
    /// gone.
    pub async fn adopt(&self, fingerprint: RouteFingerprint) -> Result<(), LedgerError> {
        self.call_anyway(|reply| Command::Adopt { fingerprint, reply }).await
    }

    /// Grants nothing more from here on: waiting and new callers get [`LedgerError::Stopping`]. Renewals and releases
    /// go on. Returns when every earlier change is done.
    ///
    /// # Errors
    /// When the ledger is gone already.
    pub async fn close(&self) -> Result<(), LedgerError> {
        self.call_at_last(|reply| Command::Close { reply }).await
    }

    /// Ends the ledger's thread at once, like a crash: nothing more is written. For tests, which begin on the same
    /// table again; this must be the last handle of the ledger.
    pub fn abandon(self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(self.queue);
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }

    /// Closes the table in good order and ends the ledger's thread.
    ///
    /// # Errors
    /// When the clean flag could not be set: the next start counts as unclean.
    pub async fn stop(&self) -> Result<(), LedgerError> {
        let closed = self.call_at_last(|reply| Command::Stop { reply }).await;
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // The thread has answered, so it is about to end.
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
        closed
    }
}

/// Calls that need no answer. Where the ledger is gone, they do nothing.
impl Room<'_> {
    /// Has the fences of many objects follow the same update.
    ///
    /// # Errors
    /// When the ledger is gone.
    pub fn follow_all(self, objects: Vec<ObjectId>, update: Update) -> Result<(), LedgerError> {
        self.send(Command::FollowAll { objects, update })
    }

    /// Forgets a keyed write of which nothing was sent, before all later calls. Where the ledger is gone, the write
    /// stays unknown, which is safe.
    pub fn void_keyed(self, scope: Scope, attempt: u64) {
        let (reply, _) = oneshot::channel();
        let _ = self.send(Command::EndKeyed { scope, attempt, entry: None, reply });
    }

    /// Writes the outcomes of writes into their journals, after all earlier calls and before all later ones. A
    /// ledger that is gone has ended its run; where that was not in good order, the journal has a gap.
    pub fn journal(self, lines: JournalLines) {
        let (reply, _) = oneshot::channel();
        let _ = self.send(Command::Journal { lines, reply });
    }
}

/// How soon a ledger that may hang is checked again.
const LEAST_LOOK: Duration = Duration::from_millis(5);

/// Whether this thread has a runtime with timers, as all of the gate's have. Tests under shuttle do not measure
/// time.
fn has_timers() -> bool {
    tokio::runtime::Handle::try_current().is_ok()
}
