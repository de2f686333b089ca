//! A migration from step to step: the drain, the grant, and the next holder's word that it is active.

use std::time::Duration;

use super::{
    TRY_AGAIN, load, reached,
    statements::{acknowledged, grant_for, of_migration, stored},
};
use crate::{
    audit::entry::MIGRATION_GRANT,
    authority::statement::LeaseGrant,
    clock::Stopwatch,
    fence::{
        Fence, LeaseId, LeaseSeq, MigrationId, ObjectId, Record, State, authority::MigrationState, step::LeaseRefusal,
    },
    gate::{Gate, Shared},
    problem::Problem,
    table::{
        codec::{JournalHead, MigrationRow, Wrote},
        ledger::{GrantAction, LedgerError, Progress, authority as rows, journal},
    },
};

/// How often the gate checks whether a migration was confirmed.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

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
pub(super) async fn drive(gate: Shared, id: MigrationId, mut row: MigrationRow) {
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
        Ok(_) | Err(LedgerError::Draining { .. }) => {
            granted(gate, id, &grant.statement);
            Ok(())
        }
        Err(refused) => Err(refused.into()),
    }
}

/// Says in the audit log that the gate has given the object to the next holder.
fn granted(gate: &Gate, id: &MigrationId, given: &LeaseGrant) {
    let (holder, migration) = (Some(&given.holder), ("migration", id.as_str()));
    gate.audit.by_gate(MIGRATION_GRANT, &given.domain, holder, given.lease_seq.get(), migration);
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
pub(super) fn is_drained(gate: &Gate, object: &ObjectId) -> bool {
    let (flying, now) = (gate.records.stripes.flying(object), gate.now().boot);
    flying.is_drained(now) && !flying.is_tainted(now)
}

/// The head of an object's journal. A bad end of an earlier run is noted in the journal first.
pub(super) async fn final_head(gate: &Shared, domain: &ObjectId) -> Result<JournalHead, Problem> {
    if gate.routes.load().keeps_journal(domain) {
        let closed = gate.ledger.journal(vec![(domain.clone(), None, Wrote::Gap)]).await;
        closed.map_err(|refused| Problem::refused(&refused, gate.now()))?;
    }
    let domain = domain.clone();
    gate.read(move |records| journal::head(&*records.table, &domain)).await
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
                    Ok(_) | Err(LedgerError::Draining { .. }) => granted(gate, id, &grant),
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
