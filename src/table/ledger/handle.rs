//! The way to the ledger: a call for each thing that it can be asked.
//!
//! No call waits for a table that stands still: it is refused after a while, and at once where that while has passed
//! already. Calls that have to wait for others, for their turn or for a drain, do so as long as the ledger gets on.

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
        FenceToken, HolderId, LeaseId, LeaseSeq, MigrationId, ObjectId, Record, Ttl,
        authority::SignedGrant,
        elected::LeaseObservation,
        election::{Election, LeaseName},
        external::Number,
        idempotency::{Entry, Scope},
    },
    route::RouteFingerprint,
    sync::thread::{self, JoinHandle},
};

/// Calls that may wait for a round; more are turned away.
const QUEUE: usize = 8_192;

/// The way to the ledger. Clone it freely.
#[derive(Clone)]
pub struct Ledger {
    queue: Arc<Queue>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
    pulse: Arc<Pulse>,
    patience: Duration,
}

impl Ledger {
    /// Starts the ledger on a thread of its own.
    ///
    /// # Panics
    /// Where the system has no thread to give.
    #[must_use]
    pub fn start(core: Core, clock: &Clock) -> Self {
        let (queue, calls) = queue(QUEUE);
        let queue = Arc::new(queue);
        let wake = |queue: &Weak<Queue>| {
            // A full queue wakes the ledger anyway, and one that is gone needs no waking.
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

    /// The same ledger, waited for no longer than this where it stands still.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// How long a table that stands still is waited for.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// Whether it gets on.
    #[must_use]
    pub fn pulse(&self) -> Arc<Pulse> {
        Arc::clone(&self.pulse)
    }

    fn is_stalled(&self) -> bool {
        self.pulse.age() >= self.patience
    }

    /// Nothing is asked of a table that stands still: nothing is changed then.
    fn gets_on(&self) -> Result<(), LedgerError> {
        if self.is_stalled() { Err(LedgerError::Unavailable) } else { Ok(()) }
    }

    /// A call that waits for nothing but the table.
    async fn call<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, LedgerError> {
        self.gets_on()?;
        let (reply, answer) = oneshot::channel();
        self.send(command(reply))?;
        self.in_time(answer).await
    }

    /// The same, also where the table stands still, and where the queue is full: what this says must not be lost.
    async fn call_anyway<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, LedgerError> {
        let (reply, answer) = oneshot::channel();
        self.capacity_in_time().await?.send(command(reply))?;
        self.in_time(answer).await
    }

    /// An answer that waits for nothing but the table.
    async fn in_time<T>(&self, answer: ReplyRx<T>) -> Result<T, LedgerError> {
        if !has_timers() {
            return answer.await.unwrap_or(Err(LedgerError::Stopping));
        }
        let answered = tokio::time::timeout(self.patience, answer).await;
        answered.map_or(Err(LedgerError::Stalled), |answer| answer.unwrap_or(Err(LedgerError::Stopping)))
    }

    /// Waits for room for one call, however long the table stands still.
    ///
    /// # Errors
    /// Where the ledger is gone.
    pub async fn capacity(&self) -> Result<Room<'_>, LedgerError> {
        self.queue.capacity().await
    }

    /// Waits for room for one call, as long as the ledger gets on.
    ///
    /// # Errors
    /// Where the table stands still, or the ledger is gone.
    pub async fn capacity_in_time(&self) -> Result<Room<'_>, LedgerError> {
        let capacity = pin!(self.queue.capacity());
        // There will be no room before the table gets on.
        self.while_it_gets_on(capacity).await.unwrap_or(Err(LedgerError::Unavailable))
    }

    /// A call that may have to wait for others, such as for older writes to settle.
    async fn call_in_turn<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, LedgerError> {
        self.gets_on()?;
        let (reply, mut answer) = oneshot::channel();
        self.send(command(reply))?;
        self.wait(&mut answer).await
    }

    /// A call that ends the ledger's work: the stop around it has a deadline of its own.
    async fn call_at_last(&self, command: impl FnOnce(Reply<()>) -> Command) -> Result<(), LedgerError> {
        let (reply, answer) = oneshot::channel();
        self.send(command(reply))?;
        answer.await.unwrap_or(Err(LedgerError::Stopping))
    }

    /// Waits for an answer, as long as the ledger gets on.
    ///
    /// # Errors
    /// As the answer says; where the table stands still; where the ledger is gone.
    pub async fn wait<T>(&self, answer: &mut ReplyRx<T>) -> Result<T, LedgerError> {
        let answered = self.while_it_gets_on(answer).await;
        answered.map_or(Err(LedgerError::Stalled), |answer| answer.unwrap_or(Err(LedgerError::Stopping)))
    }

    /// Waits as long as the ledger gets on; `None`: the table stands still.
    pub async fn while_it_gets_on<T>(&self, mut waiting: impl Future<Output = T> + Unpin) -> Option<T> {
        if !has_timers() {
            return Some(waiting.await);
        }
        loop {
            let left = self.patience.saturating_sub(self.pulse.age()).max(LEAST_LOOK);
            match tokio::time::timeout(left, &mut waiting).await {
                Ok(done) => return Some(done),
                Err(_) if self.is_stalled() => return None,
                // It waits for its turn, or for others.
                Err(_) => {}
            }
        }
    }

    /// Grants leases, all or none. Dropping the future takes the call back. Leases that were granted and not taken
    /// are given back (unless the call has a `request_id` to ask for them again).
    ///
    /// # Errors
    /// With why not.
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
    /// With why not.
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

    /// Releases a lease. The record is the object's, as the release left it.
    ///
    /// # Errors
    /// With why not.
    pub async fn release(
        &self,
        lease_id: LeaseId,
        holder: Option<HolderId>,
        token: FenceToken,
    ) -> Result<Record, LedgerError> {
        self.call(|reply| Command::Release { lease_id, holder, token, reply }).await
    }

    /// Makes the end of leases past their deadline durable. Those that live on are left alone.
    ///
    /// # Errors
    /// Where the table is not usable.
    pub async fn end(&self, leases: Vec<(ObjectId, LeaseId)>) -> Result<(), LedgerError> {
        self.call(|reply| Command::End { leases, reply }).await
    }

    /// Moves an object's fence past whoever holds it. The record is as the revocation left it. `force`:
    /// do not wait for writes that are on their way; the next lease is tainted. `is_external`: its lock is kept
    /// elsewhere.
    ///
    /// # Errors
    /// With why not.
    pub async fn revoke(
        &self,
        object: ObjectId,
        reason: String,
        force: bool,
        is_external: bool,
    ) -> Result<Moved, LedgerError> {
        self.call_in_turn(|reply| Command::Revoke { object, reason, force, is_external, reply }).await
    }

    /// Moves an object's fence past the lease that a certificate names, and waits a while for its last writes:
    /// the record says whether they are done.
    ///
    /// # Errors
    /// With why not.
    pub async fn certify(
        &self,
        certificate: Certificate,
        max_jump: u64,
        migration: Option<Progress>,
    ) -> Result<Moved, LedgerError> {
        let (certificate, migration) = (Box::new(certificate), migration.map(Box::new));
        self.call_in_turn(|reply| Command::Certify { certificate, max_jump, migration, reply }).await
    }

    /// Gives an object to whom an issuer says.
    ///
    /// # Errors
    /// With why not.
    pub async fn grant(
        &self,
        domain: ObjectId,
        signed: SignedGrant,
        migration: Option<Progress>,
    ) -> Result<Granted, LedgerError> {
        let (signed, migration) = (Box::new(signed), migration.map(Box::new));
        self.call_in_turn(|reply| Command::Grant { domain, signed, migration, reply }).await
    }

    /// Takes in what the API server says of the Kubernetes Lease of an object. It is behind all that was sent before
    /// when this returns; the answer comes once it is durable, and a while may be waited for the last writes of an
    /// earlier term. `begins`: somebody has come with its present term; else an object that knows of none stays so.
    ///
    /// # Errors
    /// Where the ledger cannot take it.
    pub fn observe(
        &self,
        object: ObjectId,
        observation: LeaseObservation,
        begins: bool,
    ) -> Result<ReplyRx<Moved>, LedgerError> {
        self.gets_on()?;
        let (reply, answer) = oneshot::channel();
        self.send(Command::Observe { object, observation, begins, reply }).map(|()| answer)
    }

    /// An operator says which term of its Kubernetes Lease is the earliest that may still write an object.
    ///
    /// # Errors
    /// With why not.
    pub async fn confirm_term(
        &self,
        object: ObjectId,
        lease: Arc<LeaseName>,
        election: Election,
    ) -> Result<Moved, LedgerError> {
        self.call(|reply| Command::ConfirmTerm { object, lease, election, reply }).await
    }

    fn send(&self, command: Command) -> Result<(), LedgerError> {
        self.queue.send(command).map_err(|refused| match refused {
            // There will be no room before the table gets on.
            LedgerError::Overloaded if self.is_stalled() => LedgerError::Unavailable,
            refused => refused,
        })
    }

    /// Moves an object's fence to an outside lock service's number, unless it is there, and waits a while for the
    /// last writes of lower ones: the record says whether they are done, or whether a higher one has overtaken.
    ///
    /// # Errors
    /// With why not.
    pub async fn follow(&self, object: ObjectId, number: Number) -> Result<Moved, LedgerError> {
        self.call_in_turn(|reply| Command::Follow { object, number, reply }).await
    }

    /// Opens a locked object to outside numbers from `lowest` on.
    ///
    /// # Errors
    /// With why not.
    pub async fn confirm(&self, object: ObjectId, lowest: LeaseSeq) -> Result<Moved, LedgerError> {
        self.call(|reply| Command::Confirm { object, lowest, reply }).await
    }

    /// Writes down how far a migration is.
    ///
    /// # Errors
    /// Where it is not where it was thought to be, or the table is not usable.
    pub async fn migrate(&self, progress: Progress, grant_action: GrantAction) -> Result<(), LedgerError> {
        let progress = Box::new(progress);
        self.call(|reply| Command::Migrate { progress, grant_action, reply }).await
    }

    /// Throws a parked certificate away.
    ///
    /// # Errors
    /// Where the table is not usable.
    pub async fn unpark(&self, certificate: Certificate) -> Result<(), LedgerError> {
        let certificate = Box::new(certificate);
        self.call(|reply| Command::Unpark { certificate, reply }).await
    }

    /// Forgets migrations that ended long ago.
    ///
    /// # Errors
    /// Where the table is not usable.
    pub async fn forget_migrations(&self, ids: Vec<MigrationId>) -> Result<(), LedgerError> {
        self.call(|reply| Command::ForgetMigrations { ids, reply }).await
    }

    /// Remembers a keyed write, unless its key is known: durable when this returns.
    ///
    /// # Errors
    /// Where the table is not usable. `Unavailable` and `Overloaded` say that nothing was begun, and that there is
    /// nothing to take back.
    pub async fn begin_keyed(&self, attempt: KeyAttempt) -> Result<KeyClaimResult, LedgerError> {
        let attempt = Box::new(attempt);
        self.call(|reply| Command::BeginKeyed { attempt, reply }).await
    }

    /// Remembers a keyed write's answer: durable when this returns. Waits for room in the queue.
    ///
    /// # Errors
    /// Where the table is not usable.
    pub async fn end_keyed(&self, scope: Scope, attempt: u64, entry: Entry) -> Result<(), LedgerError> {
        let entry = Some(Box::new(entry));
        self.call_anyway(|reply| Command::EndKeyed { scope, attempt, entry, reply }).await
    }

    /// Room for one call, if there is some now.
    ///
    /// # Errors
    /// Where there is none, or the ledger is gone.
    pub fn room(&self) -> Result<Room<'_>, LedgerError> {
        self.queue.room()
    }

    /// Writes down what became of writes: durable when this returns. Waits for room in the queue.
    ///
    /// # Errors
    /// Where the table is not usable.
    pub async fn journal(&self, lines: JournalLines) -> Result<(), LedgerError> {
        self.call_anyway(|reply| Command::Journal { lines, reply }).await
    }

    /// Writes are about to go by other terms: durable when this returns.
    ///
    /// # Errors
    /// Where the table is not usable.
    pub async fn announce(&self, fingerprint: RouteFingerprint) -> Result<(), LedgerError> {
        self.call(|reply| Command::Announce { fingerprint, reply }).await
    }

    /// From here on writes go by these terms only, but for those that are on their way.
    ///
    /// # Errors
    /// Where the table stands still: `Stalled` says that it will be done. Where the ledger has no room, or is gone.
    pub async fn adopt(&self, fingerprint: RouteFingerprint) -> Result<(), LedgerError> {
        self.call_anyway(|reply| Command::Adopt { fingerprint, reply }).await
    }

    /// Grants nothing more from here on: whoever waits or asks gets [`LedgerError::Stopping`]. Renewals
    /// and releases go on. Returns when every change before it is done.
    ///
    /// # Errors
    /// Where the ledger is gone already.
    pub async fn close(&self) -> Result<(), LedgerError> {
        self.call_at_last(|reply| Command::Close { reply }).await
    }

    /// Ends the ledger's thread where it stands, as a crash would: nothing more is written. For tests, which begin on
    /// the same table again; this must be the last handle of the ledger.
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
    /// Where the clean flag could not be set: the next start counts as unclean.
    pub async fn stop(&self) -> Result<(), LedgerError> {
        let closed = self.call_at_last(|reply| Command::Stop { reply }).await;
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // It has answered, so it is about to end.
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
        closed
    }
}

/// What a caller says without waiting for an answer. Where the ledger is gone, nothing is said.
impl Room<'_> {
    /// Takes in what the API server says of the Kubernetes Lease of many objects.
    ///
    /// # Errors
    /// Where the ledger is gone.
    pub fn observe_all(self, objects: Vec<ObjectId>, observation: LeaseObservation) -> Result<(), LedgerError> {
        self.send(Command::ObserveAll { objects, observation })
    }

    /// Forgets a keyed write of which nothing was sent, before what is asked from here on. A ledger that is gone leaves
    /// the write as it is: unknown, which is safe.
    pub fn void_keyed(self, scope: Scope, attempt: u64) {
        let (reply, _) = oneshot::channel();
        let _ = self.send(Command::EndKeyed { scope, attempt, entry: None, reply });
    }

    /// Writes down what became of writes, behind what was asked before, and before what is asked from here on. A ledger
    /// that is gone has ended its run; where that was not in good order, the journal has a gap.
    pub fn journal(self, lines: JournalLines) {
        let (reply, _) = oneshot::channel();
        let _ = self.send(Command::Journal { lines, reply });
    }
}

/// How soon a ledger that may have stalled is looked at again.
const LEAST_LOOK: Duration = Duration::from_millis(5);

/// Whether this is one of the gate's threads. Tests that put threads in order have no time to wait.
fn has_timers() -> bool {
    tokio::runtime::Handle::try_current().is_ok()
}
