//! Signed certificates and grants, and the migrations that they are part of.
//!
//! Every certificate is kept, whether or not it moves a fence: of those for one lease, the highest. One that
//! would move a fence too far is parked: it is looked at again whenever another one has moved that fence,
//! so the order in which they come makes no difference, and an operator can let it through.

use std::collections::{BTreeMap, HashMap};

use super::{
    Certificate, Granted, Moved, Progress, Refused, Reply,
    advance::{Asked, all_granted},
    core::{Changed, Core, answer, granted, unexpected, unreadable},
    round::Round,
};
use crate::{
    authority::statement::{FenceCertificate, Signed as SignedStatement},
    fence::{
        Certified, Event, LeaseId, LeaseSeq, MigrationId, ObjectId, Outcome, State,
        authority::{FenceProof, SignedGrant},
        step::LeaseRefusal,
    },
    table::{
        TableFault,
        codec::{CodecFault, Family, Key, MigrationRow, decode_signed, encode_signed},
    },
};

/// What one round changes of rows that hold signed statements.
#[derive(Default)]
pub(super) struct Signed {
    certificates: HashMap<(ObjectId, LeaseSeq), Vec<u8>>,
    /// As the round has left them; the table's, where an object is not here.
    parked: HashMap<ObjectId, BTreeMap<LeaseSeq, Vec<u8>>>,
    migrations: HashMap<MigrationId, MigrationRow>,
}

/// Which objects are being migrated; read from the table when it is first asked for.
#[derive(Default)]
pub(super) struct Migrating(Option<HashMap<ObjectId, MigrationId>>);

/// How many migrations are remembered at most.
const MIGRATIONS_MAX: usize = 65_536;

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
                self.keep_advance(drains, Asked::Move(vec![reply]));
                return self.after_certificate(round, domain, max_jump);
            }
            Changed::To(_) => None,
        };
        let record = self.newest(round, domain);
        let is_draining = record.as_ref().is_ok_and(|record| matches!(record.state, State::Draining { .. }));
        let reply = if is_draining && !is_superseded {
            // It has moved the fence before; its last writes are still on their way.
            self.resume_drain(round, domain);
            match self.join_move(domain, reply) {
                Ok(()) => return self.after_certificate(round, domain, max_jump),
                Err(reply) => reply,
            }
        } else {
            reply
        };
        let moved = self.newest(round, domain);
        let moved = moved.map(|record| Moved { record, drain: drain.unwrap_or_default(), is_superseded });
        answer(round, reply, moved);
        self.after_certificate(round, domain, max_jump);
    }

    /// One certificate, decided and kept. Refused ones are not kept, but for those that are parked.
    fn take_certificate(
        &mut self,
        round: &mut Round,
        certificate: &Certificate,
        max_jump: u64,
    ) -> Result<Changed, Refused> {
        let Certificate { domain, by, signed } = certificate;
        match self.change(round, domain, Event::Fence { by: by.clone(), max_jump })? {
            Changed::To(Outcome::Refused(why @ LeaseRefusal::Jump { .. })) => {
                self.park(round, certificate)?;
                Err(Refused::Lease { object: domain.clone(), why })
            }
            Changed::To(Outcome::Refused(why)) => Err(Refused::Lease { object: domain.clone(), why }),
            changed => {
                self.keep_certificate(round, domain, by, signed)?;
                self.unpark(round, domain, by.seq)?;
                Ok(changed)
            }
        }
    }

    /// A fence has moved: whoever waited for an older drain has been overtaken, and what was parked may be
    /// near enough by now.
    fn after_certificate(&mut self, round: &mut Round, domain: &ObjectId, max_jump: u64) {
        while let Ok(parked) = self.parked(round, domain) {
            let moved = parked
                .into_values()
                .filter_map(|signed| read(signed, domain).ok())
                .find_map(|certificate| self.take_certificate(round, &certificate, max_jump).ok());
            match moved {
                None => break,
                Some(Changed::Draining(drains)) => self.keep_advance(drains, Asked::Nobody),
                Some(Changed::To(_) | Changed::Opened(_)) => {}
            }
        }
        self.look_at_advances_of(round, domain);
    }

    fn keep_certificate(
        &mut self,
        round: &mut Round,
        domain: &ObjectId,
        by: &Certified,
        signed: &[u8],
    ) -> Result<(), Refused> {
        let place = (domain.clone(), by.seq);
        let key = Key::Certificate(domain.clone(), by.seq);
        let known = match round.signed.certificates.get(&place) {
            Some(known) => Some(known.clone()),
            None => self.signed_row(&key)?,
        };
        let known = known.map(|known| read(known, domain)).transpose().map_err(|fault| unreadable(&fault))?;
        if known.is_none_or(|known| *known.by < *by) {
            round.writes.put(&key, encode_signed(signed));
            round.signed.certificates.insert(place, signed.to_vec());
        }
        Ok(())
    }

    fn signed_row(&self, key: &Key) -> Result<Option<Vec<u8>>, Refused> {
        let row = self.setup.records.table.get(&key.encode()).map_err(|fault| unreadable(&fault))?;
        row.map(|row| decode_signed(&row)).transpose().map_err(|fault| unreadable(&fault.into()))
    }

    fn parked(&self, round: &mut Round, domain: &ObjectId) -> Result<BTreeMap<LeaseSeq, Vec<u8>>, Refused> {
        if let Some(parked) = round.signed.parked.get(domain) {
            return Ok(parked.clone());
        }
        let (from, until) = Family::Parked.range_of(domain);
        let rows = self.setup.records.table.scan(&from, &until, PARKED_MAX).map_err(|fault| unreadable(&fault))?;
        let parked = rows.into_iter().map(|(key, value)| match Key::decode(&key)? {
            Key::Parked(_, seq) => Ok((seq, decode_signed(&value)?)),
            _ => Err(CodecFault("a foreign key among the parked certificates")),
        });
        let parked: BTreeMap<LeaseSeq, Vec<u8>> =
            parked.collect::<Result<_, CodecFault>>().map_err(|fault| unreadable(&fault.into()))?;
        round.signed.parked.insert(domain.clone(), parked.clone());
        Ok(parked)
    }

    fn park(&mut self, round: &mut Round, certificate: &Certificate) -> Result<(), Refused> {
        let Certificate { domain, by, signed } = certificate;
        let parked = self.parked(round, domain)?;
        let known = parked.get(&by.seq).map(|known| read(known.clone(), domain)).transpose();
        let is_new = known.map_err(|fault| unreadable(&fault))?.is_none_or(|known| *known.by < **by);
        // A full park takes no more: the answer is the same, and it can be sent again.
        if is_new && (parked.contains_key(&by.seq) || parked.len() < PARKED_MAX) {
            round.writes.put(&Key::Parked(domain.clone(), by.seq), encode_signed(signed));
            round.signed.parked.entry(domain.clone()).or_default().insert(by.seq, signed.clone());
        }
        Ok(())
    }

    fn unpark(&mut self, round: &mut Round, domain: &ObjectId, seq: LeaseSeq) -> Result<(), Refused> {
        if self.parked(round, domain)?.contains_key(&seq) {
            round.writes.delete(&Key::Parked(domain.clone(), seq));
            round.signed.parked.entry(domain.clone()).or_default().remove(&seq);
        }
        Ok(())
    }

    pub(super) fn grant_signed(
        &mut self,
        round: &mut Round,
        domain: &ObjectId,
        signed: SignedGrant,
        migration: Option<Progress>,
        reply: Reply<Granted>,
    ) {
        let lease_id = signed.grant.lease_id.clone();
        let reply = match self.join_grant(domain, &lease_id, reply) {
            Ok(()) => return,
            Err(reply) => reply,
        };
        let may = migration.iter().try_for_each(|progress| self.may_go_on(round, progress));
        let may = may.and_then(|()| self.is_lease_id_free(round, domain, &lease_id, signed.seq));
        self.resume_drain(round, domain);
        let changed = may.and_then(|()| self.change(round, domain, Event::Grant(signed)));
        let result = match changed {
            Ok(Changed::To(Outcome::Granted(lease) | Outcome::Renewed(lease))) => Ok(granted(domain.clone(), lease)),
            Ok(Changed::To(other)) => Err(unexpected(domain.clone(), other)),
            Ok(Changed::Opened(opened)) => {
                all_granted(opened).and_then(|mut granted| granted.pop().ok_or(Refused::NotFound))
            }
            Ok(Changed::Draining(drains)) => {
                let until = self.patience(crate::fence::BootMs::PAST);
                self.keep_advance(drains, Asked::Grant { lease_id, replies: vec![(reply, until)] });
                if let Some(progress) = migration {
                    self.note_migration(round, progress);
                }
                return self.look_at_advances_of(round, domain);
            }
            Err(refused) => Err(refused),
        };
        if let (Ok(_), Some(progress)) = (&result, migration) {
            self.note_migration(round, progress);
        }
        answer(round, reply, result);
        self.look_at_advances_of(round, domain);
    }

    /// Issuers choose the ids of leases; two leases must not have one.
    fn is_lease_id_free(
        &self,
        round: &Round,
        domain: &ObjectId,
        lease_id: &LeaseId,
        seq: LeaseSeq,
    ) -> Result<(), Refused> {
        let row = round.lease_row(&self.setup.records, lease_id).map_err(|fault| unreadable(&fault))?;
        if row.is_none_or(|row| (&row.object, row.seq) == (domain, seq)) {
            return Ok(());
        }
        Err(Refused::Lease { object: domain.clone(), why: LeaseRefusal::GrantUsed })
    }

    pub(super) fn migrate(
        &mut self,
        round: &mut Round,
        progress: Progress,
        withdraw: Option<LeaseId>,
    ) -> Result<(), Refused> {
        self.may_go_on(round, &progress)?;
        if let Some(lease_id) = withdraw {
            self.change(round, &progress.row.domain, Event::Withdraw { lease_id })?;
        }
        self.note_migration(round, progress);
        Ok(())
    }

    /// Whether a migration is where it is thought to be, and the only one of its object.
    fn may_go_on(&mut self, round: &Round, progress: &Progress) -> Result<(), Refused> {
        let Progress { id, from, row } = progress;
        let other = self.migrating()?.get(&row.domain).filter(|other| *other != id).cloned();
        if let Some(id) = other {
            return Err(Refused::Migrating { object: row.domain.clone(), id });
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
        if known == *from { Ok(()) } else { Err(Refused::MigrationMoved) }
    }

    fn note_migration(&mut self, round: &mut Round, progress: Progress) {
        let Progress { id, row, .. } = progress;
        if let Some(migrating) = &mut self.migrating.0 {
            if row.state.is_over() {
                migrating.remove(&row.domain);
            } else {
                migrating.insert(row.domain.clone(), id.clone());
            }
        }
        round.writes.put(&Key::Migration(id.clone()), row.encode());
        round.signed.migrations.insert(id, row);
    }

    /// Which objects are being migrated.
    fn migrating(&mut self) -> Result<&mut HashMap<ObjectId, MigrationId>, Refused> {
        if self.migrating.0.is_none() {
            let rows = migrations(&*self.setup.records.table).map_err(|fault| unreadable(&fault))?;
            let open = rows.into_iter().filter(|(_, row)| !row.state.is_over());
            self.migrating.0 = Some(open.map(|(id, row)| (row.domain, id)).collect());
        }
        self.migrating.0.as_mut().ok_or(Refused::Unavailable)
    }
}

pub(super) fn forget_migrations(round: &mut Round, ids: Vec<MigrationId>) {
    for id in ids {
        round.signed.migrations.remove(&id);
        round.writes.delete(&Key::Migration(id));
    }
}

/// How many certificates of one object can be parked.
const PARKED_MAX: usize = 64;

/// All migrations that the table remembers.
///
/// # Errors
/// Where a row cannot be read.
pub fn migrations(table: &dyn crate::table::Table) -> Result<Vec<(MigrationId, MigrationRow)>, TableFault> {
    let (from, until) = Family::Migration.range("");
    let rows = table.scan(&from, &until, MIGRATIONS_MAX)?;
    let migrations = rows.into_iter().map(|(key, value)| match Key::decode(&key)? {
        Key::Migration(id) => Ok((id, MigrationRow::decode(&value)?)),
        _ => Err(TableFault::Corrupt("a foreign key among the migrations".to_owned())),
    });
    migrations.collect()
}

/// A certificate as it was kept.
///
/// # Errors
/// Where it does not read: its signature held when it was taken.
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
