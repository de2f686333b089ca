//! The calls of the ledger, and their answers.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::keyed::{KeyAttempt, KeyClaimResult};
use crate::{
    barrier::flight::DrainReport,
    fence::{
        Certified, FenceToken, HolderId, Lease, LeaseId, LeaseSeq, MigrationId, ObjectId, Record, RequestId, Ttl,
        authority::{MigrationState, SignedGrant},
        idempotency::{Entry, Scope},
        outside::{Claim, Source, Update},
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
    /// An earlier call with the same request got it.
    pub is_again: bool,
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
    /// The table is latched, or a row that the call needs cannot be read. Nothing was changed.
    Unavailable,
    /// The write or its sync failed: it is not known whether the change survives a restart.
    Unsure,
    /// The table has hung for too long: the change may be made once it goes on.
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
    /// The migration is not in the state that the caller expected.
    MigrationMoved,
}

/// An object whose fence an operator or a certificate has moved.
#[derive(Clone, Debug)]
pub struct Moved {
    pub record: Record,
    pub drain: DrainReport,
    /// A newer certificate was known, so this one moved nothing.
    pub is_superseded: bool,
}

/// A certificate whose signature was checked.
#[derive(Clone, Debug)]
pub struct Certificate {
    pub domain: ObjectId,
    pub by: Arc<Certified>,
    /// The signed bytes.
    pub signed: Vec<u8>,
}

/// The outcomes of writes, for the journals of their objects.
pub type JournalLines = Vec<(ObjectId, Option<LeaseSeq>, Wrote)>;

/// What is done with a migration's next state, in the same write.
#[derive(Clone, Debug)]
pub enum GrantAction {
    Nothing,
    /// The lease that the migration has granted is taken back.
    Withdraw(LeaseId),
    /// The lease that the migration has granted must be open and live.
    Needs(LeaseId),
}

/// A migration's next state, if it is in the state that the caller expects.
#[derive(Clone, Debug)]
pub struct Progress {
    pub id: MigrationId,
    /// `None`: the migration begins.
    pub from: Option<MigrationState>,
    pub row: MigrationRow,
}

pub(super) type Reply<T> = oneshot::Sender<Result<T, LedgerError>>;
pub(super) type GrantReply = Reply<Vec<Granted>>;
/// The answer to a call that was sent.
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
    /// Gives back grants whose callers were gone.
    Withdraw {
        leases: Vec<(ObjectId, LeaseId)>,
        reply: Reply<()>,
    },
    Revoke {
        object: ObjectId,
        reason: String,
        force: bool,
        source: Source,
        reply: Reply<Moved>,
    },
    /// A certificate moves a fence. With a migration, both are written or neither.
    Certify {
        certificate: Box<Certificate>,
        max_jump: u64,
        migration: Option<Box<Progress>>,
        reply: Reply<Moved>,
    },
    /// An issuer gives an object to a holder. With a migration, both are written or neither.
    Grant {
        domain: ObjectId,
        signed: Box<SignedGrant>,
        migration: Option<Box<Progress>>,
        reply: Reply<Granted>,
    },
    /// A fence follows the update of an outside source of leases.
    Follow {
        object: ObjectId,
        update: Update,
        reply: Reply<Moved>,
    },
    /// The same update for many objects. No caller waits for it.
    FollowAll {
        objects: Vec<ObjectId>,
        update: Update,
    },
    /// An operator says which token of an outside source is the lowest that may still write.
    Confirm {
        object: ObjectId,
        lowest: Claim,
        reply: Reply<Moved>,
    },
    /// A migration goes on, if what goes with it can be done.
    Migrate {
        progress: Box<Progress>,
        grant_action: GrantAction,
        reply: Reply<()>,
    },
    /// Deletes a parked certificate.
    Unpark {
        certificate: Box<Certificate>,
        reply: Reply<()>,
    },
    /// Forgets migrations that ended long ago.
    ForgetMigrations {
        ids: Vec<MigrationId>,
        reply: Reply<()>,
    },
    /// A keyed write is about to be sent.
    BeginKeyed {
        attempt: Box<KeyAttempt>,
        reply: Reply<KeyClaimResult>,
    },
    /// The outcome of a keyed write; `None`: nothing was sent.
    EndKeyed {
        scope: Scope,
        attempt: u64,
        entry: Option<Box<Entry>>,
        reply: Reply<()>,
    },
    /// Writes have settled, or their outcome is unknown.
    Journal {
        lines: JournalLines,
        reply: Reply<()>,
    },
    /// Writes will use these terms too.
    Announce {
        fingerprint: RouteFingerprint,
        reply: Reply<()>,
    },
    /// New writes use these terms only.
    Adopt {
        fingerprint: RouteFingerprint,
        reply: Reply<()>,
    },
    /// Grant nothing more, and dismiss every waiting caller. Answered after all earlier calls.
    Close {
        reply: Reply<()>,
    },
    /// An object has drained, or a driven clock has moved.
    Tick,
    /// The last call: it is answered when the table is closed in good order.
    Stop {
        reply: Reply<()>,
    },
}
