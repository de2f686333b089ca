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
use crate::fence::{Fence, Hlc, Incarnation, LeaseSeq, Now, ObjectId, Record, TableKey, WallMs, time::Frame};

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
        let checked = Key::decode(key).map_err(text).and_then(|key| self.value(table, key, value));
        checked.map_err(|what| format!("{:?}: {what}", String::from_utf8_lossy(key)))
    }

    /// Checks a row's value, by what its key says that it is.
    fn value(&self, table: &dyn Table, key: Key, value: &[u8]) -> Result<(), String> {
        match key {
            Key::Meta => Ok(()),
            Key::Mark => decode_mark(value).map(drop).map_err(text),
            Key::Record(object) => {
                let record = decode_record(object, value, &self.context).map_err(text)?;
                if record.changed > self.mark {
                    return Err("was changed after the table's own mark".to_owned());
                }
                Ok(())
            }
            Key::Lease(object, seq) => self.lease(table, &object, seq, value),
            Key::LeaseIndex(lease) => {
                let (object, seq) = decode_index(value).map_err(text)?;
                let row = get(table, &Key::Lease(object.clone(), seq))?;
                match row.map(|row| decode_lease(object, seq, &row)) {
                    Some(Ok(row)) if row.lease_id == lease => Ok(()),
                    Some(_) | None => Err("leads to no lease of that id".to_owned()),
                }
            }
            Key::Request(..) => RequestRow::decode(value).map(drop).map_err(text),
            Key::Certificate(object, seq) => {
                are_certificates(value, &object, seq).map_err(text)?;
                if Fence::from(seq) >= self.record_of(table, &object)?.fence {
                    return Err("fences a lease that its object's fence has not passed".to_owned());
                }
                Ok(())
            }
            Key::Parked(object, seq) => are_certificates(value, &object, seq).map_err(text),
            Key::Migration(_) => MigrationRow::decode(value).map(drop).map_err(text),
            Key::Journal(_) => JournalHead::decode(value).map(drop).map_err(text),
            Key::Keyed(scope) => {
                let entry = decode_entry(value).map_err(text)?;
                let index = get(table, &Key::KeyedAt(entry.at.0, scope))?;
                index.map(drop).ok_or_else(|| "would never be forgotten".to_owned())
            }
            Key::KeyedAt(at, scope) => {
                let row = get(table, &Key::Keyed(scope))?;
                match row.map(|row| decode_entry(&row)) {
                    Some(Ok(entry)) if entry.at.0 == at => Ok(()),
                    Some(_) | None => Err("leads to no keyed write of that time".to_owned()),
                }
            }
            Key::JournalEntry(object, number) => journal_entry(table, object, number, value),
        }
    }

    fn lease(&self, table: &dyn Table, object: &ObjectId, seq: LeaseSeq, value: &[u8]) -> Result<(), String> {
        let row = decode_lease(object.clone(), seq, value).map_err(text)?;
        let index = get(table, &Key::LeaseIndex(row.lease_id))?;
        if index.map(|index| decode_index(&index)) != Some(Ok((object.clone(), seq))) {
            return Err("is not to be found by its lease id".to_owned());
        }
        if Fence::from(seq) > self.record_of(table, object)?.fence {
            return Err("is above its object's fence".to_owned());
        }
        Ok(())
    }

    /// The record of an object that another row is about.
    fn record_of(&self, table: &dyn Table, object: &ObjectId) -> Result<Record, String> {
        let record = get(table, &Key::Record(object.clone()))?;
        let record = record.ok_or_else(|| "has no record, so its fence is lost".to_owned())?;
        decode_record(object.clone(), &record, &self.context).map_err(text)
    }
}

/// Checks that an entry of the journal follows on the one before it.
fn journal_entry(table: &dyn Table, object: ObjectId, number: u64, value: &[u8]) -> Result<(), String> {
    let entry = JournalEntry::decode(value).map_err(text)?;
    let before = get(table, &Key::JournalEntry(object, number.saturating_sub(1)))?;
    let before = match before {
        None if number == 1 => Some(JournalHead::EMPTY.hash),
        // The oldest entry that is kept.
        None => None,
        Some(row) => Some(JournalEntry::decode(&row).map_err(text)?.hash),
    };
    if before.is_some_and(|before| journal::chain(&before, entry.seq, &entry.wrote) != entry.hash) {
        return Err("does not follow on the entry before it".to_owned());
    }
    Ok(())
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

fn get(table: &dyn Table, key: &Key) -> Result<Option<Vec<u8>>, String> {
    table.get(&key.encode()).map_err(text)
}

#[allow(clippy::needless_pass_by_value, reason = "it is given to map_err")]
fn text(fault: impl ToString) -> String {
    fault.to_string()
}

/// The table's incarnation and run, for people.
///
/// # Errors
/// When the meta row cannot be read.
pub fn about(table: &dyn Table) -> Result<(Incarnation, u64, bool), TableFault> {
    let meta = read_meta(table)?.ok_or_else(|| TableFault::Corrupt("there is no meta row".to_owned()))?;
    Ok((meta.incarnation, meta.run, meta.clean))
}
