//! One gate's own migrations: request, fence, drain, acknowledge with the final state, grant, active.
//!
//! Each state is durable together with its content: one write has the state `fencing` and the certificate that
//! moves the fence; one write has the state `granted` and the next holder's lease. A gate that is killed goes on
//! from the last state. Every step that fails leads to a state that has a name and says what comes next.

use std::{sync::Arc, time::Duration};

use crate::{
    authority::{
        Authority, Own,
        json::{AcknowledgedMessage, Message},
        statement::{FenceAcknowledged, FenceCertificate, LeaseGrant, Signed, Statement},
    },
    clock::Stopwatch,
    fence::{
        Certified, Code, Fence, Hlc, HolderId, IssuerId, LeaseId, LeaseSeq, MigrationId, Now, ObjectId, Record,
        RequestId, State, Ttl, WallMs,
        authority::{MigrationState, Predecessor, SignedGrant},
        step::LeaseRefusal,
    },
    gate::{Gate, Shared},
    problem::Problem,
    table::{
        TableFault,
        codec::{JournalHead, Key, MigrationRow, Wrote},
        ledger::{Certificate, GrantAction, LedgerError, Progress, authority as rows, journal, rare_id},
        records::Records,
    },
};

/// How often the gate checks whether a migration was confirmed.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
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
    row.ok_or_else(|| {
        Problem::new(Code::MigrationNotFound, "no such migration: it never was, or it ended more than a day ago")
    })
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
    Ok((id, row))
}

/// Signs that a lease is over.
fn sign_fence(
    authority: &Authority,
    own: &Own,
    domain: &ObjectId,
    (lease_id, lease_seq, start): (LeaseId, LeaseSeq, WallMs),
    next: HolderId,
    now: Now,
) -> Signed<FenceCertificate> {
    let certificate = FenceCertificate {
        origin: authority.own_origin(),
        domain: domain.clone(),
        fenced_lease_id: lease_id,
        lease_seq,
        lease_start: start,
        // The certificate must not be dated before the start of a lease that began just now.
        fence_time: Hlc { ms: now.wall.0.max(start.0), logical: u32::from(now.wall <= start) },
        issuer: own.issuer.clone(),
        next_holder: Some(next),
    };
    authority.sign(own, certificate)
}

/// The stored certificate that the record names.
async fn kept(gate: &Shared, domain: &ObjectId, by: &Certified) -> Result<Option<Vec<u8>>, Problem> {
    let (domain, seq, proof) = (domain.clone(), by.seq, by.proof);
    gate.read(move |records| {
        let all = rows::row(&*records.table, &Key::Certificate(domain, seq).encode())?;
        Ok(all.into_iter().find(|signed| signed.ends_with(&proof.0)))
    })
    .await
}

/// The gate as an issuer of this domain.
///
/// # Errors
/// `NOT_AN_ISSUER`.
pub fn issuer<'a>(authority: &'a Authority, domain: &ObjectId) -> Result<&'a Own, Problem> {
    authority.own_for(domain).ok_or_else(|| {
        let what = "this gate holds no issuer's key for this domain; see [authority] and [[issuer]]";
        Problem::new(Code::NotAnIssuer, what).with_object(domain)
    })
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
    let current = current.as_ref().map_or("nobody's".to_owned(), |id| format!("{id}'s"));
    let what = format!("lease {named} is not the current one; the object is {current}");
    Err(Problem::new(Code::LeaseFenced, what).with_object(&record.object))
}

/// Why a migration does not go on now.
enum Halt {
    /// This gate is about to stop: the next run goes on.
    Stopping,
    /// The step can be tried again in a moment.
    Again,
    To(MigrationState),
}

impl From<LedgerError> for Halt {
    fn from(refused: LedgerError) -> Self {
        match refused {
            LedgerError::Lease { why: LeaseRefusal::Expired { .. }, .. } => {
                Self::To(MigrationState::ActivationTimedOut)
            }
            LedgerError::Lease { why: LeaseRefusal::ClockUntrusted, .. }
            | LedgerError::Unavailable
            | LedgerError::Unsure
            | LedgerError::Stalled
            | LedgerError::Overloaded
            | LedgerError::Draining { .. }
            | LedgerError::Migrating { .. }
            | LedgerError::MigrationMoved => Self::Again,
            LedgerError::Lease { .. } | LedgerError::NotFound | LedgerError::RequestIdUsed => {
                Self::To(MigrationState::Overtaken)
            }
            LedgerError::Stopping => Self::Stopping,
        }
    }
}

impl From<Problem> for Halt {
    fn from(_: Problem) -> Self {
        Self::Again
    }
}

/// Drives a migration to its end, or to the end of this run.
async fn drive(gate: Shared, id: MigrationId, mut row: MigrationRow) {
    let mut stopping = gate.stopping.subscribe();
    while !row.state.is_over() {
        let done = match row.state {
            MigrationState::Fencing => fence_and_grant(&gate, &id, &row).await,
            _ => await_active(&gate, &id, &row).await,
        };
        let done = match done {
            Err(Halt::To(state)) => {
                let why = state.way_on();
                tracing::warn!(migration = %id, object = %row.domain, state = state.name(), "a migration stops: {why}");
                let progress =
                    Progress { id: id.clone(), from: Some(row.state), row: reached(&row, state, gate.now()) };
                gate.ledger.migrate(progress, GrantAction::Nothing).await.map_err(Halt::from)
            }
            other => other,
        };
        match done {
            Err(Halt::Stopping) => return,
            Ok(()) | Err(Halt::To(_)) => {}
            Err(Halt::Again) => tokio::select! {
                () = tokio::time::sleep(TRY_AGAIN) => {}
                _ = stopping.wait_for(|stopping| *stopping) => return,
            },
        }
        // A change of the row by another caller counts.
        let wanted = id.clone();
        match gate.read(move |records| load(records, &wanted)).await {
            Ok(Some(newest)) => row = newest,
            Ok(None) => return,
            Err(_) => {}
        }
    }
}

/// The row of a migration that has reached a state.
#[must_use]
pub fn reached(row: &MigrationRow, state: MigrationState, now: Now) -> MigrationRow {
    let mut row = row.clone();
    row.state = state;
    row.reached.push((state, now.wall));
    row
}

/// Waits for the drain, then gives the object to the next holder.
async fn fence_and_grant(gate: &Shared, id: &MigrationId, row: &MigrationRow) -> Result<(), Halt> {
    let record = drained(gate, row).await?;
    let head = final_head(gate, &row.domain).await?;
    let authority = gate.authority.load_full();
    let own = authority.own_for(&row.domain).ok_or(Halt::To(MigrationState::Overtaken))?;
    let now = gate.now();
    let mut next = reached(&reached(row, MigrationState::Acknowledged, now), MigrationState::Granted, now);
    next.left = Some((head.hash, head.count));
    if let Some((lease_id, seq)) = &row.fenced {
        let about = (&row.domain, lease_id, *seq);
        next.acknowledged =
            authority.sign(own, acknowledged(&authority, &own.issuer, about, &record, head, now)).to_bytes();
    }
    let given = grant_for(&authority, own, row, &record, now).ok_or(Halt::To(MigrationState::Overtaken))?;
    let grant = authority.sign(own, given);
    next.grant = grant.to_bytes();
    let signed = of_migration(&authority, id, &grant.statement);
    let progress = Progress { id: id.clone(), from: Some(row.state), row: next };
    match gate.ledger.grant(row.domain.clone(), signed, Some(progress)).await {
        // The grant is written, and its drain is waited for.
        Ok(_) | Err(LedgerError::Draining { .. }) => Ok(()),
        Err(refused) => Err(refused.into()),
    }
}

/// Returns when no write of the fenced lease can land any more, nor any write of an earlier run.
async fn drained(gate: &Shared, row: &MigrationRow) -> Result<Record, Halt> {
    let waited = Stopwatch::start();
    #[allow(clippy::cast_precision_loss, reason = "a time-out")]
    let patience = gate.authority.load().settings.drain_timeout_ms as f64 / 1_000.0;
    loop {
        let record = if row.certificate.is_empty() {
            gate.settled_record(&row.domain).await?
        } else {
            let certificate = rows::read(row.certificate.clone(), &row.domain).map_err(|_| Halt::Again)?;
            // The same certificate again: the call waits for the drain.
            let moved = gate.ledger.certify(certificate, gate.authority.load().settings.max_jump, None).await?;
            if moved.is_superseded {
                return Err(Halt::To(MigrationState::Overtaken));
            }
            moved.record
        };
        // Another advance has moved the fence since, so this migration is overtaken.
        let is_at_fence = |(_, seq): &(LeaseId, LeaseSeq)| record.fenced_by().is_some_and(|by| by.seq == *seq);
        let is_overtaken = row.fenced.as_ref().is_some_and(|fenced| !is_at_fence(fenced));
        match record.state {
            _ if is_overtaken => return Err(Halt::To(MigrationState::Overtaken)),
            State::Free { .. } if is_drained(gate, &row.domain) => return Ok(record),
            State::Open { .. } => return Err(Halt::To(MigrationState::Overtaken)),
            State::Free { .. } | State::Draining { .. } if waited.seconds() >= patience => {
                return Err(Halt::To(MigrationState::DrainTimedOut));
            }
            State::Free { .. } | State::Draining { .. } => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }
}

/// Whether no write on its way to an object can still land, including writes for which an operator's advance does
/// not wait.
#[must_use]
pub fn is_drained(gate: &Gate, object: &ObjectId) -> bool {
    let (flying, now) = (gate.records.stripes.flying(object), gate.now().boot);
    flying.is_drained(now) && !flying.is_tainted(now)
}

/// The head of an object's journal. A bad end of an earlier run is noted in the journal first.
async fn final_head(gate: &Shared, domain: &ObjectId) -> Result<JournalHead, Problem> {
    if gate.routes.load().keeps_journal(domain) {
        let closed = gate.ledger.journal(vec![(domain.clone(), None, Wrote::Gap)]).await;
        closed.map_err(|refused| Problem::refused(&refused, gate.now()))?;
    }
    let domain = domain.clone();
    gate.read(move |records| journal::head(&*records.table, &domain)).await
}

fn grant_for(authority: &Authority, own: &Own, row: &MigrationRow, record: &Record, now: Now) -> Option<LeaseGrant> {
    // The number to which the certificate has moved the fence has no lease yet.
    let lease_seq = if record.fenced_by().is_some() { LeaseSeq::new(record.fence.get()) } else { record.fence.next() }?;
    let proof = rows::read(row.certificate.clone(), &row.domain).ok().map(|certificate| certificate.by.proof);
    let predecessor = row.fenced.as_ref().map(|(lease_id, _)| Predecessor { lease_id: lease_id.clone(), proof });
    Some(LeaseGrant {
        origin: authority.own_origin(),
        domain: row.domain.clone(),
        lease_id: LeaseId::new(&rare_id(now.wall)).ok()?,
        lease_seq,
        holder: row.next_holder.clone(),
        start: now.wall,
        expiry: now.wall.after(Ttl(row.ttl_ms)),
        predecessor,
        issuer: own.issuer.clone(),
    })
}

/// A grant that is part of a migration: only the caller that confirms the migration gets its token, and a caller
/// that shows the grant does not.
fn of_migration(authority: &Authority, id: &MigrationId, given: &LeaseGrant) -> SignedGrant {
    let mut signed = authority.grant_of(given);
    signed.grant.request = RequestId::new(&format!("migration:{id}")).ok();
    // The grant is this gate's own.
    signed.max_jump = u64::MAX;
    signed
}

/// Waits until the next holder has confirmed, or the lease is over.
async fn await_active(gate: &Shared, id: &MigrationId, row: &MigrationRow) -> Result<(), Halt> {
    let grant = stored::<LeaseGrant>(&row.grant).ok_or(Halt::To(MigrationState::Overtaken))?.statement;
    let mut stopping = gate.stopping.subscribe();
    loop {
        let (wanted, at) = (row.domain.clone(), id.clone());
        let (known, record) = gate.read(move |records| Ok((load(records, &at)?, records.read(&wanted)?))).await?;
        if known.is_none_or(|known| known.state != MigrationState::Granted) {
            return Ok(());
        }
        let now = gate.now();
        match record.open_lease() {
            Some(lease) if lease.lease_id == grant.lease_id && lease.is_live(now) => {}
            Some(lease) if lease.lease_id == grant.lease_id => {
                return Err(Halt::To(MigrationState::ActivationTimedOut));
            }
            _ if now.wall >= grant.expiry => return Err(Halt::To(MigrationState::ActivationTimedOut)),
            None if record.fence == Fence::from(grant.lease_seq) && record.lease().is_none() => {
                // A run that was killed or stopped did not get as far as opening the lease.
                let signed = of_migration(&gate.authority.load(), id, &grant);
                match gate.ledger.grant(row.domain.clone(), signed, None).await {
                    Ok(_) | Err(LedgerError::Draining { .. }) => {}
                    Err(refused) => return Err(refused.into()),
                }
            }
            _ => return Err(Halt::To(MigrationState::Overtaken)),
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_AGAIN) => {}
            _ = stopping.wait_for(|stopping| *stopping) => return Err(Halt::Stopping),
        }
    }
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

fn acknowledged(
    authority: &Authority,
    issuer: &IssuerId,
    (domain, lease_id, seq): (&ObjectId, &LeaseId, LeaseSeq),
    record: &Record,
    head: JournalHead,
    now: Now,
) -> FenceAcknowledged {
    FenceAcknowledged {
        origin: authority.own_origin(),
        domain: domain.clone(),
        fenced_lease_id: lease_id.clone(),
        lease_seq: seq,
        fence: record.fence,
        state_hash: head.hash,
        writes: head.count,
        issuer: issuer.clone(),
        timestamp: now.mark(),
    }
}

/// FENCE_ACKNOWLEDGED for a certificate that has moved the fence to its present number. It is made once no write of
/// the fenced lease can land any more, and only while the object has had no other holder: later the hash would
/// include that holder's writes. Signed, where this gate holds a key for the domain.
///
/// # Errors
/// When the table is not usable.
pub async fn acknowledgement(
    gate: &Shared,
    signed: &Signed<FenceCertificate>,
    record: &Record,
) -> Result<Option<AcknowledgedMessage>, Problem> {
    let given = &signed.statement;
    let is_at_fence = record.fenced_by().is_some_and(|by| by.seq == given.lease_seq);
    if record.state != (State::Free { last: None }) || !is_at_fence || !is_drained(gate, &given.domain) {
        return Ok(None);
    }
    let head = final_head(gate, &given.domain).await?;
    let domain = given.domain.clone();
    let after = gate.read(move |records| records.read(&domain)).await?;
    if (after.fence, &after.state) != (record.fence, &record.state) {
        // The object was granted meanwhile, so the new holder's writes may be in the hash.
        return Ok(None);
    }
    let authority = gate.authority.load_full();
    let about = (&given.domain, &given.fenced_lease_id, given.lease_seq);
    let said = |issuer: &IssuerId| acknowledged(&authority, issuer, about, record, head, gate.now());
    Ok(Some(match authority.own_for(&given.domain) {
        Some(own) => AcknowledgedMessage::of(&authority.sign(own, said(&own.issuer))),
        None => AcknowledgedMessage::unsigned(&said(&given.issuer)),
    }))
}

/// The certificate for a lease that is over, signed now where the lease was not fenced before. It answers a request
/// that need not wait.
///
/// # Errors
/// With the reason why there is none.
pub async fn fence_ended(
    gate: &Shared,
    record: &Record,
    next: HolderId,
) -> Result<Option<Signed<FenceCertificate>>, Problem> {
    let authority = gate.authority.load_full();
    let own = issuer(&authority, &record.object)?;
    let (lease_id, seq, start) = match last_lease(record) {
        None => return Ok(None),
        Some(Last::Lease(lease_id, seq, start)) => (lease_id, seq, start),
        Some(Last::Certified(by)) => return Ok(kept(gate, &record.object, &by).await?.and_then(|each| stored(&each))),
    };
    let now = gate.now();
    let signed = sign_fence(&authority, own, &record.object, (lease_id, seq, start), next, now);
    let by = authority.certificate(&signed, now).map_err(|untrusted| Problem::new(untrusted.code, untrusted.what))?;
    let certificate = Certificate { domain: record.object.clone(), by, signed: signed.to_bytes() };
    let moved = gate.ledger.certify(certificate, authority.settings.max_jump, None).await;
    moved.map_err(|refused| Problem::refused(&refused, gate.now()))?;
    Ok(Some(signed))
}

/// Reads a stored statement; `None` where there is none.
pub(crate) fn stored<T: Statement>(bytes: &[u8]) -> Option<Signed<T>> {
    if bytes.is_empty() { None } else { Signed::from_bytes(bytes).ok() }
}
