//! What the ledger is asked, and what it answers.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::keyed::{KeyAttempt, KeyClaimResult};
use crate::{
    barrier::flight::DrainReport,
    fence::{
        Certified, FenceToken, HolderId, Lease, LeaseId, LeaseSeq, MigrationId, ObjectId, Record, RequestId, Ttl,
        authority::{MigrationState, SignedGrant},
        elected::LeaseObservation,
        election::{Election, LeaseName},
        external::Number,
        idempotency::{Entry, Scope},
        step::LeaseRefusal,
    },
    route::RouteFingerprint,
    table::codec::{MigrationRow, Wrote},
};

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
pub enum LedgerError {
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
    /// The table has stood still for too long: the change may be made once it gets on.
    Stalled,
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
pub enum GrantAction {
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

pub(super) type Reply<T> = oneshot::Sender<Result<T, LedgerError>>;
pub(super) type GrantReply = Reply<Vec<Granted>>;
/// What a call that was sent is answered.
pub type ReplyRx<T> = oneshot::Receiver<Result<T, LedgerError>>;

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
    Observe {
        object: ObjectId,
        observation: LeaseObservation,
        /// Somebody has come with its present term: it may be new to the object.
        begins: bool,
        reply: Reply<Moved>,
    },
    /// The same, of many objects that one Lease governs. Nobody waits for it.
    ObserveAll {
        objects: Vec<ObjectId>,
        observation: LeaseObservation,
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
        grant_action: GrantAction,
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
        attempt: Box<KeyAttempt>,
        reply: Reply<KeyClaimResult>,
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
        fingerprint: RouteFingerprint,
        reply: Reply<()>,
    },
    /// Writes go by these terms only, but for those that are on their way.
    Adopt {
        fingerprint: RouteFingerprint,
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
