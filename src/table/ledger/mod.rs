//! The ledger: the single writer of the fence table.
//!
//! Lease changes from everywhere queue up here. A round takes all that wait or come meanwhile, decides each against
//! the newest state (this round's own changes included), makes them durable with one synced write,
//! publishes the records in the order they changed, and only then answers. So a refusal, too, never
//! cites a fence that a crash could forget.
//!
//! - `core`: a round from beginning to end; no threads, no waiting. The simulation drives it too.
//! - `acquire`: acquiring, waiting for one's turn, repeated requests.
//! - `advance`: fences that have moved while older writes are on their way: seal, drain, open.
//! - `calls`: renewing, releasing, revoking.
//! - `external`: numbers of an outside lock service. `elected`: terms of leadership by a Kubernetes Lease.
//! - `authority`: signed certificates and grants, and the migrations that they are part of.
//! - `keyed`: writes with an idempotency key, and their answers.
//! - `journal`: a hash chain over the writes of an object that have settled.
//! - `terms`: which routes' writes may land if this run ends badly.
//! - `round`: the changes of one round; `lease_ids`: names for what it grants.
//! - `waiters`, `timers`, `sweep`: who waits, what is due later, forgetting what ended long ago.
//!
//! After a failed write or sync the table is latched: every call gets [`Refused::Unavailable`]
//! until the process is started anew.

mod acquire;
mod advance;
pub mod authority;
mod calls;
mod core;
mod elected;
mod external;
pub mod journal;
pub mod keyed;
mod lease_ids;
mod round;
mod sweep;
mod terms;
mod timers;
mod waiters;

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use tokio::sync::oneshot;

pub use self::{
    core::{Core, Setup},
    keyed::{Attempt, Begun},
    lease_ids::rare_id,
};
pub use super::flight::DrainReport;
use super::{
    TableFault,
    codec::{MigrationRow, MigrationState, Terms, Wrote},
    records::Records,
    sync::{
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
        thread::{self, JoinHandle},
    },
};
use crate::{
    clock::Clock,
    fence::{
        Certified, FenceToken, HolderId, Lease, LeaseId, LeaseSeq, MigrationId, ObjectId, Record, RequestId, Ttl,
        authority::SignedGrant,
        elected::Sighting,
        election::{Election, LeaseName},
        external::Number,
        idempotency::{Entry, Scope},
        step::LeaseRefusal,
    },
};

/// Calls that may wait for a round; more are turned away.
const QUEUE: usize = 8_192;
/// Calls that one round takes.
const ROUND_MAX: usize = 1_024;

/// An acquire: one object, or a batch of them, all or nothing.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub objects: Vec<ObjectId>,
    pub holder: HolderId,
    pub ttl: Ttl,
    pub wait_ms: u64,
    pub request: Option<RequestId>,
    pub takeover: bool,
}

/// A lease as it was granted or renewed.
#[derive(Clone, Debug)]
pub struct Granted {
    pub object: ObjectId,
    pub lease: Lease,
    pub drain: DrainReport,
}

/// Why a call was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    Lease {
        object: ObjectId,
        why: LeaseRefusal,
    },
    NotFound,
    RequestIdUsed,
    /// The table is latched, or a row that this needs cannot be read. Nothing was changed.
    Unavailable,
    /// The write or its sync failed: whether the change survives a restart is not known.
    Unsure,
    Overloaded,
    Stopping,
    /// The fence has moved, but writes of older leases are still on their way to the store.
    Draining {
        object: ObjectId,
    },
    /// Another migration of this object is under way.
    Migrating {
        object: ObjectId,
        id: MigrationId,
    },
    /// The migration is not where it was thought to be.
    MigrationMoved,
}

/// An object whose fence an operator or a certificate has moved.
#[derive(Clone, Debug)]
pub struct Moved {
    pub record: Record,
    pub drain: DrainReport,
    /// A newer certificate was known, so this one has moved nothing.
    pub is_superseded: bool,
}

/// A certificate whose signature holds.
#[derive(Clone, Debug)]
pub struct Certificate {
    pub domain: ObjectId,
    pub by: Arc<Certified>,
    /// As it was signed.
    pub signed: Vec<u8>,
}

/// What became of writes, for the journals of their objects.
pub type JournalLines = Vec<(ObjectId, Option<LeaseSeq>, Wrote)>;

/// What goes with a migration's next state, in the same write.
#[derive(Clone, Debug)]
pub enum Deed {
    Nothing,
    /// The lease that it has granted is taken back.
    Withdraw(LeaseId),
    /// The lease that it has granted must be open and live.
    Needs(LeaseId),
}

/// A migration goes on, if it is where it is thought to be.
#[derive(Clone, Debug)]
pub struct Progress {
    pub id: MigrationId,
    /// `None`: it begins.
    pub from: Option<MigrationState>,
    pub row: MigrationRow,
}

type Reply<T> = oneshot::Sender<Result<T, Refused>>;
type GrantReply = Reply<Vec<Granted>>;
/// What a call that was sent is answered.
pub type Answer<T> = oneshot::Receiver<Result<T, Refused>>;

/// One call.
#[derive(Debug)]
pub enum Command {
    Acquire {
        wanted: Wanted,
        reply: GrantReply,
    },
    Renew {
        lease_id: LeaseId,
        holder: HolderId,
        token: FenceToken,
        ttl: Ttl,
        rotate: bool,
        reply: Reply<Granted>,
    },
    Release {
        lease_id: LeaseId,
        holder: Option<HolderId>,
        token: FenceToken,
        reply: Reply<Record>,
    },
    End {
        leases: Vec<(ObjectId, LeaseId)>,
        reply: Reply<()>,
    },
    /// Grants that nobody was there to take are given back.
    Withdraw {
        leases: Vec<(ObjectId, LeaseId)>,
        reply: Reply<()>,
    },
    Revoke {
        object: ObjectId,
        reason: String,
        force: bool,
        is_external: bool,
        reply: Reply<Moved>,
    },
    /// A certificate moves a fence. With a migration, both or neither.
    Certify {
        certificate: Box<Certificate>,
        max_jump: u64,
        migration: Option<Box<Progress>>,
        reply: Reply<Moved>,
    },
    /// An issuer gives an object to someone. With a migration, both or neither.
    Grant {
        domain: ObjectId,
        signed: Box<SignedGrant>,
        migration: Option<Box<Progress>>,
        reply: Reply<Granted>,
    },
    /// A fence follows an outside lock service's number.
    Follow {
        object: ObjectId,
        number: Number,
        reply: Reply<Moved>,
    },
    /// An operator says which outside number is the lowest that may still write.
    Confirm {
        object: ObjectId,
        lowest: LeaseSeq,
        reply: Reply<Moved>,
    },
    /// The API server has said how the Kubernetes Lease of an object is.
    Sight {
        object: ObjectId,
        sighting: Sighting,
        reply: Reply<Moved>,
    },
    /// The same, of many objects that one Lease governs. Nobody waits for it.
    SightAll {
        objects: Vec<ObjectId>,
        sighting: Sighting,
    },
    /// An operator says which term of that Lease is the earliest that may still write.
    ConfirmTerm {
        object: ObjectId,
        lease: Arc<LeaseName>,
        election: Election,
        reply: Reply<Moved>,
    },
    /// A migration goes on, if what goes with it can be done.
    Migrate {
        progress: Box<Progress>,
        deed: Deed,
        reply: Reply<()>,
    },
    /// A parked certificate is thrown away.
    Unpark {
        certificate: Box<Certificate>,
        reply: Reply<()>,
    },
    /// Migrations that ended long ago are forgotten.
    ForgetMigrations {
        ids: Vec<MigrationId>,
        reply: Reply<()>,
    },
    /// A keyed write is about to be sent.
    BeginKeyed {
        attempt: Box<Attempt>,
        reply: Reply<Begun>,
    },
    /// What became of it; `None`: nothing was sent.
    EndKeyed {
        scope: Scope,
        attempt: u64,
        entry: Option<Box<Entry>>,
        reply: Reply<()>,
    },
    /// Writes have settled, or nobody knows what became of them.
    Journal {
        lines: JournalLines,
        reply: Reply<()>,
    },
    /// Writes will go by these terms too.
    Announce {
        terms: Terms,
        reply: Reply<()>,
    },
    /// Writes go by these terms only, but for those that are on their way.
    Adopt {
        terms: Terms,
        reply: Reply<()>,
    },
    /// Grant nothing more, and let everyone who waits go. Answers behind all that came before.
    Close {
        reply: Reply<()>,
    },
    /// An object has drained, or a driven clock has moved.
    Tick,
    /// The last call: answers when the table is closed in good order.
    Stop {
        reply: Reply<()>,
    },
}

/// The way to the ledger. Clone it freely.
#[derive(Clone)]
pub struct Ledger {
    queue: Arc<SyncSender<Command>>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Ledger {
    /// Starts the ledger on a thread of its own.
    ///
    /// # Panics
    /// Where the system has no thread to give.
    #[must_use]
    pub fn start(core: Core, clock: &Clock) -> Self {
        let (queue, calls) = sync_channel(QUEUE);
        let queue = Arc::new(queue);
        let wake = |queue: &Weak<SyncSender<Command>>| {
            // A full queue wakes the ledger anyway, and one that is gone needs no waking.
            let _ = queue.upgrade().map(|queue| queue.try_send(Command::Tick));
        };
        let (by_clock, by_writes) = (Arc::downgrade(&queue), Arc::downgrade(&queue));
        clock.on_change(move || wake(&by_clock));
        core.records().stripes.on_drained(move || wake(&by_writes));
        let clock = clock.clone();
        let thread = thread::Builder::new()
            .name("ledger".to_owned())
            .spawn(move || work(core, &calls, &clock))
            .expect("a thread for the ledger");
        Self { queue, thread: Arc::new(Mutex::new(Some(thread))) }
    }

    async fn call<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, Refused> {
        let (reply, answer) = oneshot::channel();
        self.send(command(reply))?;
        answer.await.unwrap_or(Err(Refused::Stopping))
    }

    /// Grants leases, all or none. Dropping the future takes the call back, and a lease that was
    /// granted meanwhile with it (unless the call has a `request_id` to ask for it again).
    ///
    /// # Errors
    /// With why not.
    pub async fn acquire(&self, wanted: Wanted) -> Result<Vec<Granted>, Refused> {
        let gives_back = wanted.request.is_none();
        let command = |reply| Command::Acquire { wanted, reply };
        self.call_for_leases(command, gives_back).await
    }

    async fn call_for_leases<T: Leases>(
        &self,
        command: impl FnOnce(Reply<T>) -> Command,
        gives_back: bool,
    ) -> Result<T, Refused> {
        let (reply, answer) = oneshot::channel();
        let mut pending = Pending { answer, ledger: self, gives_back };
        self.send(command(reply))?;
        (&mut pending.answer).await.unwrap_or(Err(Refused::Stopping))
    }

    /// Renews a lease, or rotates it. Dropping the future takes a rotated lease back.
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
    ) -> Result<Granted, Refused> {
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
    ) -> Result<Record, Refused> {
        self.call(|reply| Command::Release { lease_id, holder, token, reply }).await
    }

    /// Makes the end of leases past their deadline durable. Those that live on are left alone.
    ///
    /// # Errors
    /// Where the table is not usable.
    pub async fn end(&self, leases: Vec<(ObjectId, LeaseId)>) -> Result<(), Refused> {
        self.call(|reply| Command::End { leases, reply }).await
    }

    /// Gives back leases that were granted to a caller who was gone by then. Those that were used
    /// since are left alone.
    ///
    /// # Errors
    /// Where the table is not usable: they then run out by themselves.
    pub async fn withdraw(&self, leases: Vec<(ObjectId, LeaseId)>) -> Result<(), Refused> {
        self.call(|reply| Command::Withdraw { leases, reply }).await
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
    ) -> Result<Moved, Refused> {
        self.call(|reply| Command::Revoke { object, reason, force, is_external, reply }).await
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
    ) -> Result<Moved, Refused> {
        let (certificate, migration) = (Box::new(certificate), migration.map(Box::new));
        self.call(|reply| Command::Certify { certificate, max_jump, migration, reply }).await
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
    ) -> Result<Granted, Refused> {
        let (signed, migration) = (Box::new(signed), migration.map(Box::new));
        self.call(|reply| Command::Grant { domain, signed, migration, reply }).await
    }

    /// Takes in what the API server says of the Kubernetes Lease of an object. It is behind all that was sent before
    /// when this returns; the answer comes once it is durable, and a while may be waited for the last writes of an
    /// earlier term.
    ///
    /// # Errors
    /// Where the ledger cannot take it.
    pub fn sight(&self, object: ObjectId, sighting: Sighting) -> Result<Answer<Moved>, Refused> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Sight { object, sighting, reply }).map(|()| answer)
    }

    /// The same of many objects, for nobody who waits.
    ///
    /// # Errors
    /// Where the ledger cannot take it.
    pub fn sight_all(&self, objects: Vec<ObjectId>, sighting: Sighting) -> Result<(), Refused> {
        self.send(Command::SightAll { objects, sighting })
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
    ) -> Result<Moved, Refused> {
        self.call(|reply| Command::ConfirmTerm { object, lease, election, reply }).await
    }

    fn send(&self, command: Command) -> Result<(), Refused> {
        self.queue.try_send(command).map_err(|failed| match failed {
            TrySendError::Full(_) => Refused::Overloaded,
            TrySendError::Disconnected(_) => Refused::Stopping,
        })
    }

    /// Moves an object's fence to an outside lock service's number, unless it is there, and waits a while for the
    /// last writes of lower ones: the record says whether they are done, or whether a higher one has overtaken.
    ///
    /// # Errors
    /// With why not.
    pub async fn follow(&self, object: ObjectId, number: Number) -> Result<Moved, Refused> {
        self.call(|reply| Command::Follow { object, number, reply }).await
    }

    /// Opens a locked object to outside numbers from `lowest` on.
    ///
    /// # Errors
    /// With why not.
    pub async fn confirm(&self, object: ObjectId, lowest: LeaseSeq) -> Result<Moved, Refused> {
        self.call(|reply| Command::Confirm { object, lowest, reply }).await
    }

    /// Writes down how far a migration is.
    ///
    /// # Errors
    /// Where it is not where it was thought to be, or the table is not usable.
    pub async fn migrate(&self, progress: Progress, deed: Deed) -> Result<(), Refused> {
        let progress = Box::new(progress);
        self.call(|reply| Command::Migrate { progress, deed, reply }).await
    }

    /// Throws a parked certificate away.
    ///
    /// # Errors
    /// Where the table is not usable.
    pub async fn unpark(&self, certificate: Certificate) -> Result<(), Refused> {
        let certificate = Box::new(certificate);
        self.call(|reply| Command::Unpark { certificate, reply }).await
    }

    /// Forgets migrations that ended long ago.
    ///
    /// # Errors
    /// Where the table is not usable.
    pub async fn forget_migrations(&self, ids: Vec<MigrationId>) -> Result<(), Refused> {
        self.call(|reply| Command::ForgetMigrations { ids, reply }).await
    }

    /// Remembers a keyed write, unless its key is known: durable when this returns.
    ///
    /// # Errors
    /// Where the table is not usable.
    pub async fn begin_keyed(&self, attempt: Attempt) -> Result<Begun, Refused> {
        let attempt = Box::new(attempt);
        self.call(|reply| Command::BeginKeyed { attempt, reply }).await
    }

    /// Remembers a keyed write's answer: durable when this returns.
    ///
    /// # Errors
    /// Where the table is not usable.
    pub async fn end_keyed(&self, scope: Scope, attempt: u64, entry: Entry) -> Result<(), Refused> {
        let entry = Some(Box::new(entry));
        self.call(|reply| Command::EndKeyed { scope, attempt, entry, reply }).await
    }

    /// Forgets a keyed write of which nothing was sent, before what is asked from here on. Gives it back where the
    /// ledger has no room for it now.
    ///
    /// # Errors
    /// With the scope.
    pub fn void_keyed(&self, scope: Scope, attempt: u64) -> Result<(), Scope> {
        let (reply, _) = oneshot::channel();
        match self.queue.try_send(Command::EndKeyed { scope, attempt, entry: None, reply }) {
            Err(TrySendError::Full(Command::EndKeyed { scope, .. })) => Err(scope),
            // A ledger that is gone leaves it as it is: unknown, which is safe.
            Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => Ok(()),
        }
    }

    /// Writes down what became of writes: durable when this returns.
    ///
    /// # Errors
    /// Where the table is not usable.
    pub async fn journal(&self, lines: JournalLines) -> Result<(), Refused> {
        self.call(|reply| Command::Journal { lines, reply }).await
    }

    /// The same, for whoever does not wait: it is written down behind what was asked before, and before what is
    /// asked from here on.
    ///
    /// # Errors
    /// With the lines, where the ledger has no room for them now.
    pub fn journal_later(&self, lines: JournalLines) -> Result<(), JournalLines> {
        let (reply, _) = oneshot::channel();
        match self.queue.try_send(Command::Journal { lines, reply }) {
            Err(TrySendError::Full(Command::Journal { lines, .. })) => Err(lines),
            // A ledger that is gone ends its run; where that was not in good order, the journal has a gap.
            Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => Ok(()),
        }
    }

    /// Writes are about to go by other terms: durable when this returns.
    ///
    /// # Errors
    /// Where the table is not usable.
    pub async fn announce(&self, terms: Terms) -> Result<(), Refused> {
        self.call(|reply| Command::Announce { terms, reply }).await
    }

    /// From here on writes go by these terms only, but for those that are on their way.
    ///
    /// # Errors
    /// Where the ledger is gone already.
    pub async fn adopt(&self, terms: Terms) -> Result<(), Refused> {
        self.call(|reply| Command::Adopt { terms, reply }).await
    }

    /// Grants nothing more from here on: whoever waits or asks gets [`Refused::Stopping`]. Renewals
    /// and releases go on. Returns when every change before it is done.
    ///
    /// # Errors
    /// Where the ledger is gone already.
    pub async fn close(&self) -> Result<(), Refused> {
        self.call(|reply| Command::Close { reply }).await
    }

    /// Ends the ledger's thread where it stands, as a crash would: nothing more is written. For tests
    /// and the simulation; this must be the last way to the ledger.
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
    pub async fn stop(&self) -> Result<(), Refused> {
        let closed = self.call(|reply| Command::Stop { reply }).await;
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // It has answered, so it is about to end.
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
        closed
    }
}

/// An answer with leases in it.
trait Leases {
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

/// A call for leases whose answer is being waited for. Whoever stops waiting gives back what was granted
/// to it and not taken, unless it can be asked for again.
struct Pending<'a, T: Leases> {
    answer: oneshot::Receiver<Result<T, Refused>>,
    ledger: &'a Ledger,
    gives_back: bool,
}

impl<T: Leases> Drop for Pending<'_, T> {
    fn drop(&mut self) {
        // From here on the ledger itself notices that nobody is there.
        self.answer.close();
        if let Ok(Ok(granted)) = self.answer.try_recv()
            && self.gives_back
        {
            let leases = granted.ids();
            let (reply, _) = oneshot::channel();
            // Where the ledger has no time for it, the lease runs out by itself.
            let _ = self.ledger.queue.try_send(Command::Withdraw { leases, reply });
        }
    }
}

/// Shuts the table if the ledger's thread dies: what it was about to do is unknown.
struct Lifeline(Arc<Records>);

impl Drop for Lifeline {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.latch(TableFault::Write("the ledger has died".to_owned()));
        }
    }
}

fn work(mut core: Core, calls: &Receiver<Command>, clock: &Clock) {
    let _lifeline = Lifeline(core.records());
    while !core.is_stopped() {
        let nap =
            if core.has_backlog() { Some(Duration::ZERO) } else { core.next_at().and_then(|at| clock.sleep_until(at)) };
        let first = match nap {
            Some(nap) => calls.recv_timeout(nap),
            None => calls.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let first = match first {
            Ok(command) => Some(command),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        core.run(first.into_iter().chain(calls.try_iter()).take(ROUND_MAX));
    }
}
