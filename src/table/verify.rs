//! Checks every row of a table: does it decode, and do the rows agree with each other?

use std::collections::BTreeMap;

use super::{
    Row, Table, TableFault,
    codec::{
        Context, Family, JournalEntry, JournalHead, Key, MigrationRow, RequestRow, decode_entry, decode_index,
        decode_lease, decode_mark, decode_record, decode_signed,
    },
    ledger::{authority as certificates, journal},
    open::{read_mark, read_meta},
};
use crate::fence::{Fence, Hlc, Incarnation, LeaseSeq, Now, ObjectId, TableKey, WallMs, time::Frame};

const CHUNK: usize = 4_096;
const FAULTS_MAX: usize = 100;

/// The result.
#[derive(Debug, Default)]
pub struct Report {
    pub rows: BTreeMap<&'static str, u64>,
    /// What is wrong, up to a bound.
    pub faults: Vec<String>,
    pub fault_count: u64,
}

impl Report {
    fn fault(&mut self, fault: String) {
        self.fault_count += 1;
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(fault);
        }
    }
}

/// Counts every row; with `deep`, also decodes each and compares it with the others. `progress` gets the number of
/// rows read so far.
///
/// # Errors
/// When the table cannot be read at all. A row that cannot be read is a finding, not an error.
pub fn walk(table: &dyn Table, deep: bool, mut progress: impl FnMut(u64)) -> Result<Report, TableFault> {
    let mut report = Report::default();
    let checks = if deep { Some(Checks::new(table)?) } else { None };
    let mut seen = 0;
    let (mut from, until) = (vec![0], vec![0xff]);
    loop {
        let rows = match table.scan(&from, &until, CHUNK) {
            Ok(rows) => rows,
            Err(fault) if deep => {
                // Rows behind a bad block cannot be reached.
                report.fault(format!("behind {seen} rows: {fault}"));
                return Ok(report);
            }
            Err(fault) => return Err(fault),
        };
        for row in &rows {
            let family = Key::decode(&row.0).map(|key| key.family());
            *report.rows.entry(family.map_or("foreign", Family::name)).or_default() += 1;
            if let Some(checks) = &checks
                && let Err(fault) = checks.row(table, row)
            {
                report.fault(fault);
            }
        }
        seen += rows.len() as u64;
        progress(seen);
        match rows.last() {
            Some((key, _)) if rows.len() == CHUNK => from = [key.as_slice(), &[0]].concat(),
            Some(_) | None => return Ok(report),
        }
    }
}

struct Checks {
    context: Context,
    mark: Hlc,
}

impl Checks {
    fn new(table: &dyn Table) -> Result<Self, TableFault> {
        let meta = read_meta(table)?.ok_or_else(|| TableFault::Corrupt("there is no meta row".to_owned()))?;
        let start = Now { wall: WallMs(0), boot: crate::fence::BootMs(0) };
        let context = Context {
            frame: Frame { run: meta.run, start, behind_mark: false },
            incarnation: meta.incarnation,
            // Secrets are not stored, so any key can read the rows.
            key: TableKey::from_bytes([0; TableKey::BYTES]),
        };
        Ok(Self { context, mark: read_mark(table)? })
    }

    fn row(&self, table: &dyn Table, (key, value): &Row) -> Result<(), String> {
        let name = String::from_utf8_lossy(key).into_owned();
        let bad = |what: &dyn std::fmt::Display| format!("{name:?}: {what}");
        match Key::decode(key).map_err(|fault| bad(&fault))? {
            Key::Meta => Ok(()),
            Key::Mark => decode_mark(value).map(drop).map_err(|fault| bad(&fault)),
            Key::Record(object) => {
                let record = decode_record(object, value, &self.context).map_err(|fault| bad(&fault))?;
                if record.changed > self.mark {
                    return Err(bad(&"was changed after the table's own mark"));
                }
                Ok(())
            }
            Key::Lease(object, seq) => {
                let row = decode_lease(object.clone(), seq, value).map_err(|fault| bad(&fault))?;
                let index = get(table, &Key::LeaseIndex(row.lease_id)).map_err(|fault| bad(&fault))?;
                if index.map(|index| decode_index(&index)) != Some(Ok((object.clone(), seq))) {
                    return Err(bad(&"is not to be found by its lease id"));
                }
                let record = get(table, &Key::Record(object.clone())).map_err(|fault| bad(&fault))?;
                let record = record.ok_or_else(|| bad(&"has no record, so its fence is lost"))?;
                let record = decode_record(object, &record, &self.context).map_err(|fault| bad(&fault))?;
                if Fence::from(seq) > record.fence {
                    return Err(bad(&"is above its object's fence"));
                }
                Ok(())
            }
            Key::LeaseIndex(lease) => {
                let (object, seq) = decode_index(value).map_err(|fault| bad(&fault))?;
                let row = get(table, &Key::Lease(object.clone(), seq)).map_err(|fault| bad(&fault))?;
                match row.map(|row| decode_lease(object, seq, &row)) {
                    Some(Ok(row)) if row.lease_id == lease => Ok(()),
                    Some(_) | None => Err(bad(&"leads to no lease of that id")),
                }
            }
            Key::Request(..) => RequestRow::decode(value).map(drop).map_err(|fault| bad(&fault)),
            Key::Certificate(object, seq) => {
                are_certificates(value, &object, seq).map_err(|fault| bad(&fault))?;
                let record = get(table, &Key::Record(object.clone())).map_err(|fault| bad(&fault))?;
                let record = record.ok_or_else(|| bad(&"has no record, so its fence is lost"))?;
                let record = decode_record(object, &record, &self.context).map_err(|fault| bad(&fault))?;
                if Fence::from(seq) >= record.fence {
                    return Err(bad(&"fences a lease that its object's fence has not passed"));
                }
                Ok(())
            }
            Key::Parked(object, seq) => are_certificates(value, &object, seq).map_err(|fault| bad(&fault)),
            Key::Migration(_) => MigrationRow::decode(value).map(drop).map_err(|fault| bad(&fault)),
            Key::Journal(_) => JournalHead::decode(value).map(drop).map_err(|fault| bad(&fault)),
            Key::Keyed(scope) => {
                let entry = decode_entry(value).map_err(|fault| bad(&fault))?;
                let index = get(table, &Key::KeyedAt(entry.at.0, scope)).map_err(|fault| bad(&fault))?;
                index.map(drop).ok_or_else(|| bad(&"would never be forgotten"))
            }
            Key::KeyedAt(at, scope) => {
                let row = get(table, &Key::Keyed(scope)).map_err(|fault| bad(&fault))?;
                match row.map(|row| decode_entry(&row)) {
                    Some(Ok(entry)) if entry.at.0 == at => Ok(()),
                    Some(_) | None => Err(bad(&"leads to no keyed write of that time")),
                }
            }
            Key::JournalEntry(object, number) => {
                let entry = JournalEntry::decode(value).map_err(|fault| bad(&fault))?;
                let before = get(table, &Key::JournalEntry(object.clone(), number.saturating_sub(1)))
                    .map_err(|fault| bad(&fault))?;
                let before = match before {
                    None if number == 1 => Some(JournalHead::EMPTY.hash),
                    // The oldest entry that is kept.
                    None => None,
                    Some(row) => Some(JournalEntry::decode(&row).map_err(|fault| bad(&fault))?.hash),
                };
                if before.is_some_and(|before| journal::chain(&before, entry.seq, &entry.wrote) != entry.hash) {
                    return Err(bad(&"does not follow on the entry before it"));
                }
                Ok(())
            }
        }
    }
}

/// Checks that a row has the certificates that its key names.
fn are_certificates(value: &[u8], object: &ObjectId, seq: LeaseSeq) -> Result<(), TableFault> {
    for signed in decode_signed(value)? {
        if certificates::read(signed, object)?.by.seq != seq {
            return Err(TableFault::Corrupt("has a certificate for another lease".to_owned()));
        }
    }
    Ok(())
}

fn get(table: &dyn Table, key: &Key) -> Result<Option<Vec<u8>>, TableFault> {
    table.get(&key.encode())
}

/// The table's incarnation and run, for people.
///
/// # Errors
/// When the meta row cannot be read.
pub fn about(table: &dyn Table) -> Result<(Incarnation, u64, bool), TableFault> {
    let meta = read_meta(table)?.ok_or_else(|| TableFault::Corrupt("there is no meta row".to_owned()))?;
    Ok((meta.incarnation, meta.run, meta.clean))
}
