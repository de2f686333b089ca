//! One gate's own migrations: request, fence, drain, acknowledge with the final state, grant, active.
//!
//! Each state is durable together with its content: one write has the state `fencing` and the certificate that
//! moves the fence; one write has the state `granted` and the next holder's lease. A gate that is killed goes on
//! from the last state. Every step that fails leads to a state that has a name and says what comes next.
//!
//! Here a migration is asked for and begins. `drive`: from step to step to its end. `statements`: what this gate signs.

mod drive;
mod statements;

use std::{sync::Arc, time::Duration};

pub(crate) use self::statements::stored;
pub use self::statements::{acknowledgement, fence_ended, issuer};
use self::{
    drive::drive,
    statements::{kept, sign_fence},
};
use crate::{
    audit::entry::MIGRATION_CERTIFICATE,
    fence::{
        Certified, Code, Hlc, HolderId, LeaseId, LeaseSeq, MigrationId, Now, ObjectId, Record, Ttl, WallMs,
        authority::MigrationState,
    },
    gate::{Gate, Shared},
    problem::Problem,
    table::{
        TableFault,
        codec::{Key, MigrationRow},
        ledger::{GrantAction, LedgerError, Progress, authority as rows, rare_id},
        records::Records,
    },
};

/// How long to wait after a fault that passes: a table that cannot be read, a ledger without room.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// How long an ended migration can be asked for.
const REMEMBER_MS: u64 = 24 * 60 * 60 * 1_000;

/// What a requester asks for.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub domain: ObjectId,
    pub next_holder: HolderId,
    pub requester: HolderId,
    pub reason: String,
    pub ttl: Ttl,
    /// The lease that the requester believes to be the present one.
    pub current_lease_id: Option<LeaseId>,
    /// The requester's time of the request. The same request with the same time is the same migration.
    pub asked: Hlc,
}

impl MigrationState {
    /// What comes next, and which party has to do it.
    #[must_use]
    pub const fn way_on(self) -> &'static str {
        match self {
            Self::Fencing => "the old holder is fenced; its last writes are being waited for",
            Self::Acknowledged => "the grant follows at once",
            Self::Granted => "the next holder pulls the journal, and sends LEASE_ACTIVE with the hash it has computed",
            Self::Active => "the next holder has its token; nothing is left to do",
            Self::DrainTimedOut => {
                "the old holder stays fenced, and the drain goes on; ask for the migration again, or revoke with force"
            }
            Self::ActivationTimedOut => "the new lease has run out unused; ask for the migration again",
            Self::HashMismatch => {
                "the next holder has another state than the one left behind, and its lease was taken back; sync, then ask again"
            }
            Self::Overtaken => "another certificate or a revocation came between; ask again if it is still wanted",
        }
    }
}

/// Goes on with the migrations that an earlier run of the gate has left unfinished.
pub fn resume(gate: &Shared) {
    let gate = Arc::clone(gate);
    tokio::spawn(async move {
        let all = loop {
            match gate.read(|records| rows::migrations(&*records.table)).await {
                Ok(all) => break all,
                Err(_) => tokio::time::sleep(TRY_AGAIN).await,
            }
        };
        for (id, row) in all.into_iter().filter(|(_, row)| !row.state.is_over()) {
            tracing::info!(migration = %id, object = %row.domain, state = row.state.name(), "a migration goes on");
            tokio::spawn(drive(Arc::clone(&gate), id, row));
        }
    });
}

/// A migration by its id.
///
/// # Errors
/// `MIGRATION_NOT_FOUND`, `TABLE_UNAVAILABLE`.
pub async fn find(gate: &Shared, id: &MigrationId) -> Result<MigrationRow, Problem> {
    let wanted = id.clone();
    let row = gate.read(move |records| load(records, &wanted)).await?;
    row.ok_or_else(not_found)
}

/// The refusal of a call about a migration that is not known.
#[must_use]
pub fn not_found() -> Problem {
    Problem::new(Code::MigrationNotFound, "no such migration: it never was, or it ended more than a day ago")
}

fn load(records: &Records, id: &MigrationId) -> Result<Option<MigrationRow>, TableFault> {
    let row = records.table.get(&Key::Migration(id.clone()).encode())?;
    Ok(row.map(|row| MigrationRow::decode(&row)).transpose()?)
}

/// Begins a migration. When this returns, the old holder is fenced, durably, and the next steps follow by
/// themselves.
///
/// # Errors
/// With the reason why none begins.
pub async fn begin(gate: &Shared, wanted: Wanted) -> Result<(MigrationId, MigrationRow), Problem> {
    let gate = Arc::clone(gate);
    // The caller may hang up; a migration that was begun goes on.
    let begun = tokio::spawn(async move {
        let all = gate.read(|records| rows::migrations(&*records.table)).await?;
        let all = forget_old(&gate, all).await;
        let is_same = |row: &MigrationRow| {
            (&row.domain, &row.requester, row.asked) == (&wanted.domain, &wanted.requester, wanted.asked)
        };
        // This check comes first: a caller that asks again after a lost answer gets the same migration.
        if let Some(same) = all.iter().find(|(_, row)| is_same(row)) {
            return Ok(same.clone());
        }
        if let Some((id, row)) = all.iter().find(|(_, row)| row.domain == wanted.domain && !row.state.is_over()) {
            let (object, id) = (row.domain.clone(), id.clone());
            return Err(Problem::refused(&LedgerError::Migrating { object, id }, gate.now()));
        }
        if all.len() >= rows::MIGRATIONS_MAX / 2 {
            return Err(Problem::new(Code::GateOverloaded, "too many migrations are remembered; try again tomorrow"));
        }
        let (id, row) = begin_now(&gate, wanted).await?;
        tokio::spawn(drive(Arc::clone(&gate), id.clone(), row.clone()));
        Ok((id, row))
    });
    begun.await.unwrap_or_else(|_| Err(Problem::table_unavailable()))
}

async fn begin_now(gate: &Shared, wanted: Wanted) -> Result<(MigrationId, MigrationRow), Problem> {
    let authority = gate.authority.load_full();
    let own = issuer(&authority, &wanted.domain)?;
    let record = gate.settled_record(&wanted.domain).await?;
    is_still_there(&record, wanted.current_lease_id.as_ref())?;
    let now = gate.now();
    let fenced = match last_lease(&record) {
        None => None,
        Some(Last::Lease(lease_id, seq, start)) => {
            let lease = (lease_id.clone(), seq, start);
            let signed = sign_fence(&authority, own, &wanted.domain, lease, wanted.next_holder.clone(), now);
            Some(((lease_id, seq), signed.to_bytes()))
        }
        // The object was fenced before and has had no holder since: that certificate is used.
        Some(Last::Certified(by)) => {
            let signed = kept(gate, &wanted.domain, &by).await?.ok_or_else(Problem::table_unavailable)?;
            Some(((by.lease_id.clone(), by.seq), signed))
        }
    };
    let (fenced, certificate) = fenced.unzip();
    let row = MigrationRow {
        domain: wanted.domain.clone(),
        next_holder: wanted.next_holder,
        requester: wanted.requester,
        reason: wanted.reason,
        ttl_ms: wanted.ttl.0,
        asked: wanted.asked,
        state: MigrationState::Fencing,
        fenced,
        certificate: certificate.unwrap_or_default(),
        left: None,
        acknowledged: vec![],
        grant: vec![],
        reached: vec![(MigrationState::Fencing, now.wall)],
    };
    let id = MigrationId::new(&rare_id(now.wall)).map_err(|_| Problem::table_unavailable())?;
    let progress = Progress { id: id.clone(), from: None, row: row.clone() };
    let begun = if row.certificate.is_empty() {
        gate.ledger.migrate(progress, GrantAction::Nothing).await
    } else {
        let certificate = rows::read(row.certificate.clone(), &row.domain).map_err(|_| Problem::table_unavailable())?;
        gate.ledger.certify(certificate, authority.settings.max_jump, Some(progress)).await.map(drop)
    };
    begun.map_err(|refused| Problem::refused(&refused, gate.now()))?;
    if let (Some((_, seq)), Some((lease, _))) = (&row.fenced, record.lease()) {
        let (holder, migration) = (Some(&lease.holder), ("migration", id.as_str()));
        gate.audit.by_gate(MIGRATION_CERTIFICATE, &row.domain, holder, seq.get(), migration);
    }
    Ok((id, row))
}

/// The last lease of an object, or the certificate that ended it.
enum Last {
    Lease(LeaseId, LeaseSeq, WallMs),
    Certified(Arc<Certified>),
}

fn last_lease(record: &Record) -> Option<Last> {
    if let Some((lease, _)) = record.lease() {
        return Some(Last::Lease(lease.lease_id.clone(), lease.seq, lease.acquired_at));
    }
    record.fenced_by().cloned().map(Last::Certified)
}

/// Refuses a request that names an earlier lease than the object's present one.
///
/// # Errors
/// `LEASE_FENCED`.
pub fn is_still_there(record: &Record, named: Option<&LeaseId>) -> Result<(), Problem> {
    let Some(named) = named else { return Ok(()) };
    let current = match last_lease(record) {
        Some(Last::Lease(lease_id, ..)) => Some(lease_id),
        Some(Last::Certified(certified)) => Some(certified.lease_id.clone()),
        None => None,
    };
    if current.as_ref() == Some(named) {
        return Ok(());
    }
    let current = current.as_ref().map_or("the object has no lease".to_owned(), |id| format!("that is {id}"));
    let what = format!("lease {named} is not the current one; {current}");
    Err(Problem::new(Code::LeaseFenced, what).with_object(&record.object))
}

/// The row of a migration that has reached a state.
#[must_use]
pub fn reached(row: &MigrationRow, state: MigrationState, now: Now) -> MigrationRow {
    let mut row = row.clone();
    row.state = state;
    row.reached.push((state, now.wall));
    row
}

/// Forgets what ended a day ago; returns the rest.
async fn forget_old(gate: &Gate, all: Vec<(MigrationId, MigrationRow)>) -> Vec<(MigrationId, MigrationRow)> {
    let now = gate.now();
    let is_old = |(_, row): &(MigrationId, MigrationRow)| {
        let last = row.reached.last().map_or(0, |(_, at)| at.0);
        row.state.is_over() && now.wall.0.saturating_sub(last) >= REMEMBER_MS
    };
    let (old, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(is_old);
    if !old.is_empty() {
        // If this fails, they are found again next time.
        let _ = gate.ledger.forget_migrations(old.into_iter().map(|(id, _)| id).collect()).await;
    }
    rest
}
