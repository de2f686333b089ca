//! Signed certificates and grants, and the migrations that they are part of.
//!
//! Every certificate is kept, whether or not it moves a fence; for one lease, the highest ones. A certificate that
//! would move a fence too far is parked. When new certificates come, the parked ones are tried again, so the order
//! in which they come makes no difference; an operator can also confirm one. While an object is being migrated, no
//! other caller is given it.

use std::collections::HashMap;

use super::{
    Certificate, GrantAction, Granted, LedgerError, Moved, Progress, Reply,
    advance_callers::all_granted,
    advances::AdvanceCaller,
    core::{Changed, Core, answer, granted, unexpected, unreadable},
    round::Round,
};
use crate::{
    authority::statement::{FenceCertificate, Signed as SignedStatement},
    fence::{
        BootMs, Certified, Event, MigrationId, ObjectId, Outcome, Record, State,
        authority::{FenceProof, SignedGrant},
        step::LeaseRefusal,
    },
    metrics::CertificateResult,
    table::{
        Table, TableFault,
        codec::{Family, Key, MigrationRow, decode_signed, encode_signed},
    },
};

/// What one round changes of rows that hold signed statements.
#[derive(Default)]
pub(super) struct Signed {
    /// Certificates, by the key of their row.
    kept: HashMap<Vec<u8>, Vec<Vec<u8>>>,
    migrations: HashMap<MigrationId, MigrationRow>,
}

/// The objects that are being migrated; read from the table at the first use.
#[derive(Default)]
pub(super) struct Migrating(Option<HashMap<ObjectId, MigrationId>>);

/// How many certificates are kept for one lease. The highest are kept, so their order of arrival makes no
/// difference.
const KEPT_MAX: usize = 64;

impl Core {
    pub(super) fn certify(
        &mut self,
        round: &mut Round,
        certificate: &Certificate,
        max_jump: u64,
        migration: Option<Progress>,
        reply: Reply<Moved>,
    ) {
        if let Err(refused) = migration.iter().try_for_each(|progress| self.may_go_on(round, progress)) {
            return answer(round, reply, Err(refused));
        }
        let domain = &certificate.domain;
        let changed = match self.take_certificate(round, certificate, max_jump) {
            Ok(changed) => changed,
            Err(refused) => return answer(round, reply, Err(refused)),
        };
        if let Some(progress) = migration {
            self.note_migration(round, progress);
        }
        let is_superseded = matches!(changed, Changed::To(Outcome::Superseded));
        let drain = match changed {
            Changed::Opened(opened) => opened.into_iter().next().map(|(_, _, report)| report),
            Changed::Draining(drains) => {
                self.keep_advance(drains, AdvanceCaller::Move(vec![reply]));
                return self.try_finish_advances_of(round, domain);
            }
            Changed::To(_) => None,
        };
        let record = self.newest(round, domain);
        let is_draining = record.as_ref().is_ok_and(|record| matches!(record.state, State::Draining { .. }));
        let reply = if is_draining && !is_superseded {
            // The certificate has moved the fence before; the fenced lease's last writes are still on their way.
            self.resume_drain(round, domain);
            match self.join_move(domain, reply) {
                Ok(()) => return self.try_finish_advances_of(round, domain),
                Err(reply) => reply,
            }
        } else {
            reply
        };
        let moved = self.newest(round, domain);
        let moved = moved.map(|record| Moved { record, drain: drain.unwrap_or_default(), is_superseded });
        answer(round, reply, moved);
        // Callers that wait for an older drain of this object have been overtaken.
        self.try_finish_advances_of(round, domain);
    }

    /// Decides and keeps one certificate. Refused ones are not kept, except for those that are parked.
    fn take_certificate(
        &mut self,
        round: &mut Round,
        certificate: &Certificate,
        max_jump: u64,
    ) -> Result<Changed, LedgerError> {
        let Certificate { domain, by, .. } = certificate;
        let keys = (Key::Certificate(domain.clone(), by.seq), Key::Parked(domain.clone(), by.seq));
        // Every read that can fail comes before the first change.
        let (kept, parked) = (self.kept(round, &keys.0)?, self.kept(round, &keys.1)?);
        match self.change(round, domain, Event::Fence { by: by.clone(), max_jump })? {
            Changed::To(Outcome::Refused(why)) => {
                if matches!(why, LeaseRefusal::Jump { .. }) {
                    self.setup.metrics.certificate(CertificateResult::Parked);
                    keep(round, &keys.1, parked, certificate)?;
                }
                Err(LedgerError::Lease { object: domain.clone(), why })
            }
            changed => {
                let is_superseded = matches!(changed, Changed::To(Outcome::Superseded));
                let result = if is_superseded { CertificateResult::Superseded } else { CertificateResult::Applied };
                self.setup.metrics.certificate(result);
                keep(round, &keys.0, kept, certificate)?;
                discard(round, &keys.1, parked, certificate);
                Ok(changed)
            }
        }
    }

    /// The certificates in a row, with the changes of this round.
    fn kept(&self, round: &Round, key: &Key) -> Result<Vec<Vec<u8>>, LedgerError> {
        let key = key.encode();
        match round.signed.kept.get(&key) {
            Some(kept) => Ok(kept.clone()),
            None => row(&*self.setup.records.table, &key).map_err(|fault| unreadable(&fault)),
        }
    }

    /// Deletes a parked certificate, for an operator.
    pub(super) fn unpark(&mut self, round: &mut Round, certificate: &Certificate) -> Result<(), LedgerError> {
        let key = Key::Parked(certificate.domain.clone(), certificate.by.seq);
        let parked = self.kept(round, &key)?;
        discard(round, &key, parked, certificate);
        Ok(())
    }

    pub(super) fn grant_signed(
        &mut self,
        round: &mut Round,
        domain: &ObjectId,
        mut signed: SignedGrant,
        migration: Option<Progress>,
        reply: Reply<Granted>,
    ) {
        let may = self.may_grant(round, domain, &signed, migration.as_ref());
        let may = may.and_then(|()| self.proofs(round, domain, &signed));
        match may {
            Ok(proofs) => signed.proofs = proofs,
            Err(refused) => return answer(round, reply, Err(refused)),
        }
        let reply = match self.join_grant(domain, &signed, reply) {
            Ok(()) => return,
            Err(reply) => reply,
        };
        self.resume_drain(round, domain);
        let result = match self.change(round, domain, Event::Grant(signed.clone())) {
            Ok(Changed::To(Outcome::Granted(lease) | Outcome::Renewed(lease))) => Ok(granted(domain.clone(), lease)),
            Ok(Changed::To(other)) => Err(unexpected(domain.clone(), other)),
            Ok(Changed::Opened(opened)) => {
                all_granted(opened).and_then(|mut granted| granted.pop().ok_or(LedgerError::NotFound))
            }
            Ok(Changed::Draining(drains)) => {
                let until = self.patience(BootMs::PAST);
                self.keep_advance(
                    drains,
                    AdvanceCaller::Grant { signed: Box::new(signed), replies: vec![(reply, until)] },
                );
                if let Some(progress) = migration {
                    self.note_migration(round, progress);
                }
                return self.try_finish_advances_of(round, domain);
            }
            Err(refused) => Err(refused),
        };
        if let (Ok(_), Some(progress)) = (&result, migration) {
            self.note_migration(round, progress);
        }
        answer(round, reply, result);
        self.try_finish_advances_of(round, domain);
    }

    /// Checks that this grant may be decided: the object has no other migration than the grant's own, and no other
    /// lease has the lease's id. (Issuers choose the ids of leases.)
    fn may_grant(
        &mut self,
        round: &Round,
        domain: &ObjectId,
        signed: &SignedGrant,
        migration: Option<&Progress>,
    ) -> Result<(), LedgerError> {
        if let Some(progress) = migration {
            self.may_go_on(round, progress)?;
        } else if signed.grant.request.is_none()
            && let Some(id) = self.migration_of(domain)?
        {
            return Err(LedgerError::Migrating { object: domain.clone(), id });
        }
        let lease_id = &signed.grant.lease_id;
        let row = round.lease_row(&self.setup.records, lease_id).map_err(|fault| unreadable(&fault))?;
        if row.is_none_or(|row| (&row.object, row.seq) == (domain, signed.seq)) {
            return Ok(());
        }
        Err(LedgerError::Lease { object: domain.clone(), why: LeaseRefusal::GrantUsed })
    }

    /// The signatures of all certificates that are kept for a grant's predecessor: each proves that it was fenced.
    fn proofs(&self, round: &Round, domain: &ObjectId, signed: &SignedGrant) -> Result<Vec<FenceProof>, LedgerError> {
        let Some(predecessor) = &signed.predecessor else { return Ok(vec![]) };
        let certified = |record: &Record| record.certified.as_ref().map(|certified| certified.seq);
        let seq = round.with_record(&self.setup.records, domain, certified).map_err(|fault| unreadable(&fault))?;
        let Some(seq) = seq else { return Ok(vec![]) };
        let kept = self.kept(round, &Key::Certificate(domain.clone(), seq))?;
        let all = kept.into_iter().map(|signed| read(signed, domain)).collect::<Result<Vec<_>, _>>();
        let all = all.map_err(|fault| unreadable(&fault))?;
        let is_its = |each: &Certificate| each.by.lease_id == predecessor.lease_id;
        Ok(all.into_iter().filter(is_its).map(|each| each.by.proof).collect())
    }

    pub(super) fn migrate(
        &mut self,
        round: &mut Round,
        progress: Progress,
        grant_action: GrantAction,
    ) -> Result<(), LedgerError> {
        self.may_go_on(round, &progress)?;
        match grant_action {
            GrantAction::Nothing => {}
            GrantAction::Withdraw(lease_id) => {
                self.change(round, &progress.row.domain, Event::Withdraw { lease_id })?;
            }
            GrantAction::Needs(lease_id) => {
                let now = self.setup.clock.now();
                let record = self.newest(round, &progress.row.domain)?;
                if record.open_lease().is_none_or(|lease| lease.lease_id != lease_id || !lease.is_live(now)) {
                    return Err(LedgerError::MigrationMoved);
                }
            }
        }
        self.note_migration(round, progress);
        Ok(())
    }

    /// Checks that a migration is in the state that the caller expects, and is the only one of its object.
    fn may_go_on(&mut self, round: &Round, progress: &Progress) -> Result<(), LedgerError> {
        let Progress { id, from, row } = progress;
        if let Some(other) = self.migration_of(&row.domain)?.filter(|other| other != id) {
            return Err(LedgerError::Migrating { object: row.domain.clone(), id: other });
        }
        let known = match round.signed.migrations.get(id) {
            Some(known) => Some(known.state),
            None => {
                let row = self.setup.records.table.get(&Key::Migration(id.clone()).encode());
                let row = row.map_err(|fault| unreadable(&fault))?;
                let row = row.map(|row| MigrationRow::decode(&row)).transpose();
                row.map_err(|fault| unreadable(&fault.into()))?.map(|row| row.state)
            }
        };
        if known == *from { Ok(()) } else { Err(LedgerError::MigrationMoved) }
    }

    fn note_migration(&mut self, round: &mut Round, progress: Progress) {
        let Progress { id, row, .. } = progress;
        self.setup.metrics.migration(row.state);
        if let Some(migrating) = &mut self.migrating.0 {
            if row.state.is_over() {
                migrating.remove(&row.domain);
                self.is_free_again(&row.domain);
            } else {
                migrating.insert(row.domain.clone(), id.clone());
            }
        }
        round.writes.put(&Key::Migration(id.clone()), row.encode());
        round.signed.migrations.insert(id, row);
    }

    /// The migration of an object that is under way.
    pub(super) fn migration_of(&mut self, object: &ObjectId) -> Result<Option<MigrationId>, LedgerError> {
        if self.migrating.0.is_none() {
            let rows = migrations(&*self.setup.records.table).map_err(|fault| unreadable(&fault))?;
            let open = rows.into_iter().filter(|(_, row)| !row.state.is_over());
            self.migrating.0 = Some(open.map(|(id, row)| (row.domain, id)).collect());
        }
        Ok(self.migrating.0.as_ref().and_then(|migrating| migrating.get(object)).cloned())
    }
}

/// Keeps a certificate in a row, beside those that are in it.
fn keep(round: &mut Round, key: &Key, mut kept: Vec<Vec<u8>>, certificate: &Certificate) -> Result<(), LedgerError> {
    if kept.contains(&certificate.signed) {
        return Ok(());
    }
    kept.push(certificate.signed.clone());
    let all = kept.into_iter().map(|signed| read(signed, &certificate.domain)).collect::<Result<Vec<_>, _>>();
    let mut all = all.map_err(|fault| unreadable(&fault))?;
    // The highest first.
    all.sort_by(|one, two| two.by.cmp(&one.by));
    all.truncate(KEPT_MAX);
    let kept: Vec<Vec<u8>> = all.into_iter().map(|each| each.signed).collect();
    round.writes.put(key, encode_signed(&kept));
    round.signed.kept.insert(key.encode(), kept);
    Ok(())
}

/// Deletes a certificate from a row.
fn discard(round: &mut Round, key: &Key, mut kept: Vec<Vec<u8>>, certificate: &Certificate) {
    let before = kept.len();
    kept.retain(|each| *each != certificate.signed);
    match kept.len() {
        same if same == before => return,
        0 => round.writes.delete(key),
        _ => round.writes.put(key, encode_signed(&kept)),
    }
    round.signed.kept.insert(key.encode(), kept);
}

pub(super) fn forget_migrations(round: &mut Round, ids: Vec<MigrationId>) {
    for id in ids {
        round.signed.migrations.remove(&id);
        round.writes.delete(&Key::Migration(id));
    }
}

/// How many migrations are read, at most: no more are begun when half as many are remembered.
pub const MIGRATIONS_MAX: usize = 65_536;

/// All migrations that the table remembers.
///
/// # Errors
/// When a row cannot be read.
pub fn migrations(table: &dyn Table) -> Result<Vec<(MigrationId, MigrationRow)>, TableFault> {
    let (from, until) = Family::Migration.range("");
    let rows = table.scan(&from, &until, MIGRATIONS_MAX)?;
    let migrations = rows.into_iter().map(|(key, value)| match Key::decode(&key)? {
        Key::Migration(id) => Ok((id, MigrationRow::decode(&value)?)),
        _ => Err(TableFault::Corrupt("a foreign key among the migrations".to_owned())),
    });
    migrations.collect()
}

/// The certificates in a row; none where there is no such row.
///
/// # Errors
/// When it cannot be read.
pub fn row(table: &dyn Table, key: &[u8]) -> Result<Vec<Vec<u8>>, TableFault> {
    let row = table.get(key)?;
    Ok(row.map(|row| decode_signed(&row)).transpose()?.unwrap_or_default())
}

/// A certificate as it was kept.
///
/// # Errors
/// When it cannot be read, although its signature was valid when it was kept.
pub fn read(signed: Vec<u8>, domain: &ObjectId) -> Result<Certificate, TableFault> {
    let foreign = |_| TableFault::Corrupt(format!("a certificate of {domain} does not read"));
    let SignedStatement { statement, signature } =
        SignedStatement::<FenceCertificate>::from_bytes(&signed).map_err(foreign)?;
    let by = Certified {
        lease_id: statement.fenced_lease_id,
        seq: statement.lease_seq,
        issuer: statement.issuer,
        time: statement.fence_time,
        proof: FenceProof(signature.to_bytes()),
    };
    Ok(Certificate { domain: domain.clone(), by: by.into(), signed })
}
