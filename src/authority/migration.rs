//! One gate's own migrations: request, fence, drain, acknowledge with the final state, grant, active.
//!
//! Each state is durable together with what it says: the certificate moves the fence in the very write that
//! says `fencing`, and the lease is the next holder's in the one that says `granted`. A gate that is killed
//! goes on from the last of them. Every step that does not come to its end leads to a state that has a name
//! and a way on.

use std::{sync::Arc, time::Duration};

use super::{
    Authority, Own,
    json::{AcknowledgedMessage, Message},
    statement::{FenceAcknowledged, FenceCertificate, LeaseGrant, Signed, Statement},
};
use crate::{
    api::{Gate, Shared},
    clock::Stopwatch,
    fence::{
        Certified, Code, Fence, Hlc, HolderId, LeaseId, LeaseSeq, MigrationId, Now, ObjectId, Record, RequestId, State,
        Ttl, WallMs,
        authority::{Predecessor, SignedGrant},
        step::LeaseRefusal,
    },
    problem::Problem,
    table::{
        TableFault,
        codec::{JournalHead, Key, MigrationRow, MigrationState, Wrote, decode_signed},
        ledger::{Certificate, Progress, Refused, authority as rows, journal, rare_id},
        records::Records,
    },
};

/// How often it is looked whether a migration was confirmed.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// How long an ended migration can be asked for.
const REMEMBER_MS: u64 = 24 * 60 * 60 * 1_000;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub domain: ObjectId,
    pub next_holder: HolderId,
    pub requester: HolderId,
    pub reason: String,
    pub ttl: Ttl,
    /// The lease that the requester believes to be there.
    pub current_lease_id: Option<LeaseId>,
}

impl MigrationState {
    /// As the api spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fencing => "fencing",
            Self::Acknowledged => "acknowledged",
            Self::Granted => "granted",
            Self::Active => "active",
            Self::DrainTimedOut => "drain_timed_out",
            Self::ActivationTimedOut => "activation_timed_out",
            Self::HashMismatch => "hash_mismatch",
            Self::Overtaken => "overtaken",
        }
    }

    /// What comes next, and who has to do it.
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
            Self::Overtaken => {
                "another certificate, grant, acquire or revocation came between; ask again if it is still wanted"
            }
        }
    }
}

/// Takes up the migrations that an earlier run of the gate has left unfinished.
pub fn resume(gate: &Shared) {
    let gate = Arc::clone(gate);
    tokio::spawn(async move {
        let all = gate.read(|records| rows::migrations(&*records.table)).await;
        let Ok(all) = all else { return };
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

/// Begins a migration: when this returns, the old holder is fenced, durably, and the rest follows by itself.
///
/// # Errors
/// With why not.
pub async fn begin(gate: &Shared, wanted: Wanted) -> Result<(MigrationId, MigrationRow), Problem> {
    let gate = Arc::clone(gate);
    // Whoever asked may hang up; what is begun goes on.
    let begun = tokio::spawn(async move {
        let (id, row) = begin_now(&gate, wanted).await?;
        forget_old(&gate).await;
        tokio::spawn(drive(Arc::clone(&gate), id.clone(), row.clone()));
        Ok((id, row))
    });
    begun.await.unwrap_or_else(|_| Err(Problem::table_unavailable()))
}

async fn begin_now(gate: &Shared, wanted: Wanted) -> Result<(MigrationId, MigrationRow), Problem> {
    let authority = gate.authority.load_full();
    let own = issuer(&authority, &wanted.domain)?;
    // First of all: whoever asks again after a lost answer is told which one it is.
    let domain = wanted.domain.clone();
    let all = gate.read(|records| rows::migrations(&*records.table)).await?;
    if let Some((id, _)) = all.into_iter().find(|(_, row)| row.domain == domain && !row.state.is_over()) {
        return Err(Problem::refused(&Refused::Migrating { object: domain, id }, gate.now()));
    }
    let record = gate.settled_record(&wanted.domain).await?;
    is_still_there(&record, wanted.current_lease_id.as_ref())?;
    let now = gate.now();
    let fenced = match last_lease(&record) {
        None => None,
        Some(Last::Lease(lease_id, seq, holder, start)) => {
            let signed = authority.sign(
                own,
                FenceCertificate {
                    origin: authority.own_origin(),
                    domain: wanted.domain.clone(),
                    fenced_lease_id: lease_id.clone(),
                    lease_seq: seq,
                    lease_start: start,
                    // A lease that began just now is fenced all the same.
                    fence_time: Hlc { ms: now.wall.0.max(start.0), logical: u32::from(now.wall <= start) },
                    issuer: own.issuer.clone(),
                    next_holder: Some(wanted.next_holder.clone()),
                },
            );
            Some(((lease_id, seq, holder), signed.to_bytes()))
        }
        // Fenced before, and nobody has had it since: the certificate that did it serves.
        Some(Last::Certified(certified)) => {
            let (domain, seq) = (wanted.domain.clone(), certified.seq);
            let row = gate.read(move |records| records.table.get(&Key::Certificate(domain, seq).encode())).await?;
            let signed = row.and_then(|row| decode_signed(&row).ok()).ok_or_else(Problem::table_unavailable)?;
            let nobody = HolderId::new("-").map_err(|_| Problem::table_unavailable())?;
            Some(((certified.lease_id.clone(), certified.seq, nobody), signed))
        }
    };
    let (fenced, certificate) = fenced.unzip();
    let row = MigrationRow {
        domain: wanted.domain.clone(),
        next_holder: wanted.next_holder,
        requester: wanted.requester,
        reason: wanted.reason,
        ttl_ms: wanted.ttl.0,
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
        gate.ledger.migrate(progress, None).await
    } else {
        let certificate = rows::read(row.certificate.clone(), &row.domain).map_err(|_| Problem::table_unavailable())?;
        gate.ledger.certify(certificate, u64::MAX, Some(progress)).await.map(drop)
    };
    begun.map_err(|refused| Problem::refused(&refused, gate.now()))?;
    Ok((id, row))
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

/// Who had an object last.
enum Last {
    Lease(LeaseId, LeaseSeq, HolderId, WallMs),
    Certified(Arc<Certified>),
}

fn last_lease(record: &Record) -> Option<Last> {
    if let Some((lease, _)) = record.lease() {
        return Some(Last::Lease(lease.lease_id.clone(), lease.seq, lease.holder.clone(), lease.acquired_at));
    }
    record.certified.clone().map(Last::Certified)
}

/// Refuses a request that is about a lease which was there before, if it names one.
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

/// Why a migration does not go on here and now.
enum Halt {
    /// This gate is about to stop, or its table is shut: the next run goes on.
    Stopping,
    To(MigrationState),
}

impl From<Refused> for Halt {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Lease { why: LeaseRefusal::Expired { .. }, .. } => Self::To(MigrationState::ActivationTimedOut),
            Refused::Lease { .. } | Refused::NotFound | Refused::RequestIdUsed => Self::To(MigrationState::Overtaken),
            Refused::Unavailable
            | Refused::Unsure
            | Refused::Overloaded
            | Refused::Stopping
            | Refused::Draining { .. }
            | Refused::Migrating { .. }
            | Refused::MigrationMoved => Self::Stopping,
        }
    }
}

/// Carries a migration on to its end, or to the end of this run.
async fn drive(gate: Shared, id: MigrationId, row: MigrationRow) {
    let done = match row.state {
        MigrationState::Fencing | MigrationState::Acknowledged => fence_and_grant(&gate, &id, &row).await,
        _ => Ok(row.clone()),
    };
    let done = match done {
        Ok(granted) => await_active(&gate, &id, &granted).await.map_err(|halt| (halt, granted)),
        Err(halt) => Err((halt, row)),
    };
    if let Err((Halt::To(state), row)) = done {
        tracing::warn!(migration = %id, object = %row.domain, state = state.name(), "a migration has stopped: {}", state.way_on());
        let progress = Progress { id, from: Some(row.state), row: reached(&row, state, gate.now()) };
        // Where it has gone on meanwhile, that counts.
        let _ = gate.ledger.migrate(progress, None).await;
    }
}

/// The row of a migration that has got on.
#[must_use]
pub fn reached(row: &MigrationRow, state: MigrationState, now: Now) -> MigrationRow {
    let mut row = row.clone();
    row.state = state;
    row.reached.push((state, now.wall));
    row
}

/// Waits for the drain, then gives the object to the next holder.
async fn fence_and_grant(gate: &Shared, id: &MigrationId, row: &MigrationRow) -> Result<MigrationRow, Halt> {
    let record = drained(gate, row).await?;
    // What ended badly before is said in the chain before it is told.
    gate.ledger.journal(vec![(row.domain.clone(), None, Wrote::Gap)]).await?;
    let domain = row.domain.clone();
    let head = gate.read(move |records| journal::head(&*records.table, &domain)).await.map_err(|_| Halt::Stopping)?;
    let authority = gate.authority.load_full();
    let own = authority.own_for(&row.domain).ok_or(Halt::To(MigrationState::Overtaken))?;
    let now = gate.now();
    let mut next = reached(&reached(row, MigrationState::Acknowledged, now), MigrationState::Granted, now);
    next.left = Some((head.hash, head.count));
    if let Some((lease_id, seq, _)) = &row.fenced {
        let said = acknowledged(&authority, own, (&row.domain, lease_id, *seq), &record, head, now);
        next.acknowledged = authority.sign(own, said).to_bytes();
    }
    let grant =
        authority.sign(own, grant_for(&authority, own, row, &record, now).ok_or(Halt::To(MigrationState::Overtaken))?);
    next.grant = grant.to_bytes();
    let signed = of_migration(&authority, id, &grant.statement);
    let progress = Progress { id: id.clone(), from: Some(row.state), row: next.clone() };
    match gate.ledger.grant(row.domain.clone(), signed, Some(progress)).await {
        // It is written down, and waited for below.
        Ok(_) | Err(Refused::Draining { .. }) => Ok(next),
        Err(refused) => Err(refused.into()),
    }
}

/// Returns when nothing of the fenced lease can land any more.
async fn drained(gate: &Shared, row: &MigrationRow) -> Result<Record, Halt> {
    let waited = Stopwatch::start();
    #[allow(clippy::cast_precision_loss, reason = "a time-out")]
    let patience = gate.authority.load().settings.drain_timeout_ms as f64 / 1_000.0;
    loop {
        let record = if row.certificate.is_empty() {
            gate.settled_record(&row.domain).await.map_err(|_| Halt::Stopping)?
        } else {
            let certificate = rows::read(row.certificate.clone(), &row.domain).map_err(|_| Halt::Stopping)?;
            // The same again: it waits for the drain.
            let moved = gate.ledger.certify(certificate, u64::MAX, None).await?;
            if moved.is_superseded {
                return Err(Halt::To(MigrationState::Overtaken));
            }
            moved.record
        };
        match record.state {
            State::Free { .. } => return Ok(record),
            State::Open { .. } => return Err(Halt::To(MigrationState::Overtaken)),
            State::Draining { .. } if waited.seconds() >= patience => {
                return Err(Halt::To(MigrationState::DrainTimedOut));
            }
            State::Draining { .. } if row.certificate.is_empty() => tokio::time::sleep(LOOK_AGAIN).await,
            State::Draining { .. } => {}
        }
    }
}

fn grant_for(authority: &Authority, own: &Own, row: &MigrationRow, record: &Record, now: Now) -> Option<LeaseGrant> {
    let certified = record.certified.as_ref();
    let is_left_by_certificate = certified.is_some_and(|each| each.seq.get() + 1 == record.fence.get());
    // The number that the certificate has moved the fence to is nobody's yet.
    let lease_seq = if is_left_by_certificate { LeaseSeq::new(record.fence.get()) } else { record.fence.next() }?;
    let predecessor = row.fenced.as_ref().map(|(lease_id, ..)| Predecessor {
        lease_id: lease_id.clone(),
        proof: certified.filter(|certified| certified.lease_id == *lease_id).map(|certified| certified.proof),
    });
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

/// A grant that is part of a migration: its token is handed out to whoever confirms the migration, and to
/// nobody who shows the grant.
fn of_migration(authority: &Authority, id: &MigrationId, given: &LeaseGrant) -> SignedGrant {
    let mut signed = authority.grant_of(given);
    signed.grant.request = RequestId::new(&format!("migration:{id}")).ok();
    // It is this gate's own.
    signed.max_jump = u64::MAX;
    signed
}

/// Waits until the next holder has confirmed, or its lease is over.
async fn await_active(gate: &Shared, id: &MigrationId, row: &MigrationRow) -> Result<(), Halt> {
    let grant = Signed::<LeaseGrant>::from_bytes(&row.grant).map_err(|_| Halt::To(MigrationState::Overtaken))?;
    let lease_id = &grant.statement.lease_id;
    let mut stopping = gate.stopping.subscribe();
    loop {
        let (wanted, at) = (row.domain.clone(), id.clone());
        let seen = gate.read(move |records| Ok((load(records, &at)?, records.read(&wanted)?))).await;
        let (known, record) = seen.map_err(|_| Halt::Stopping)?;
        if known.is_none_or(|known| known.state != MigrationState::Granted) {
            return Ok(());
        }
        let now = gate.now();
        match record.open_lease() {
            Some(lease) if lease.lease_id == *lease_id && lease.is_live(now) => {}
            Some(lease) if lease.lease_id == *lease_id => return Err(Halt::To(MigrationState::ActivationTimedOut)),
            _ if now.wall >= grant.statement.expiry => return Err(Halt::To(MigrationState::ActivationTimedOut)),
            _ if matches!(record.state, State::Draining { .. })
                && record.fence == Fence::from(grant.statement.lease_seq) =>
            {
                // A run that was killed had not come to opening it.
                let signed = of_migration(&gate.authority.load(), id, &grant.statement);
                match gate.ledger.grant(row.domain.clone(), signed, None).await {
                    Ok(_) | Err(Refused::Draining { .. }) => {}
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

/// Forgets what ended a day ago.
async fn forget_old(gate: &Gate) {
    let (table, now) = (Arc::clone(&gate.records.table), gate.now());
    let all = tokio::task::spawn_blocking(move || rows::migrations(&*table)).await;
    let Ok(Ok(all)) = all else { return };
    let is_old = |row: &MigrationRow| {
        let last = row.reached.last().map_or(0, |(_, at)| at.0);
        row.state.is_over() && now.wall.0.saturating_sub(last) >= REMEMBER_MS
    };
    let ids: Vec<MigrationId> = all.into_iter().filter(|(_, row)| is_old(row)).map(|(id, _)| id).collect();
    if !ids.is_empty() {
        // They are found again next time.
        let _ = gate.ledger.forget_migrations(ids).await;
    }
}

fn acknowledged(
    authority: &Authority,
    own: &Own,
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
        issuer: own.issuer.clone(),
        timestamp: now.mark(),
    }
}

/// FENCE_ACKNOWLEDGED for a certificate whose lease can write nothing any more: signed, where this gate holds a
/// key for the domain.
///
/// # Errors
/// Where the table is not usable.
pub async fn acknowledgement(
    gate: &Shared,
    signed: &Signed<FenceCertificate>,
    record: &Record,
) -> Result<AcknowledgedMessage, Problem> {
    let given = &signed.statement;
    let domain = given.domain.clone();
    let closed = gate.ledger.journal(vec![(domain.clone(), None, Wrote::Gap)]).await;
    closed.map_err(|refused| Problem::refused(&refused, gate.now()))?;
    let head = gate.read(move |records| journal::head(&*records.table, &domain)).await?;
    let authority = gate.authority.load_full();
    let about = (&given.domain, &given.fenced_lease_id, given.lease_seq);
    Ok(match authority.own_for(&given.domain) {
        Some(own) => {
            let said = acknowledged(&authority, own, about, record, head, gate.now());
            AcknowledgedMessage::of(&authority.sign(own, said))
        }
        None => AcknowledgedMessage::unsigned(&FenceAcknowledged {
            origin: authority.own_origin(),
            domain: given.domain.clone(),
            fenced_lease_id: given.fenced_lease_id.clone(),
            lease_seq: given.lease_seq,
            fence: record.fence,
            state_hash: head.hash,
            writes: head.count,
            issuer: given.issuer.clone(),
            timestamp: gate.now().mark(),
        }),
    })
}

/// Signs a certificate for a lease that is over, and fences it: the answer to a request that need not wait.
///
/// # Errors
/// With why not.
pub async fn fence_ended(
    gate: &Shared,
    record: &Record,
    next: HolderId,
) -> Result<Option<Signed<FenceCertificate>>, Problem> {
    let authority = gate.authority.load_full();
    let own = issuer(&authority, &record.object)?;
    let Some(Last::Lease(lease_id, seq, _, start)) = last_lease(record) else { return Ok(None) };
    let now = gate.now();
    let signed = authority.sign(
        own,
        FenceCertificate {
            origin: authority.own_origin(),
            domain: record.object.clone(),
            fenced_lease_id: lease_id,
            lease_seq: seq,
            lease_start: start,
            fence_time: Hlc { ms: now.wall.0.max(start.0), logical: u32::from(now.wall <= start) },
            issuer: own.issuer.clone(),
            next_holder: Some(next),
        },
    );
    let by = authority.certificate(&signed, now).map_err(|untrusted| Problem::new(untrusted.code, untrusted.what))?;
    let certificate = Certificate { domain: record.object.clone(), by, signed: signed.to_bytes() };
    let moved = gate.ledger.certify(certificate, u64::MAX, None).await;
    moved.map_err(|refused| Problem::refused(&refused, gate.now()))?;
    Ok(Some(signed))
}

/// The statement that a stored one is.
pub(crate) fn stored<T: Statement>(bytes: &[u8]) -> Option<Signed<T>> {
    if bytes.is_empty() { None } else { Signed::from_bytes(bytes).ok() }
}
