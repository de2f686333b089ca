//! Reading the table: from memory where the record is there, else one read of the row.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use super::{
    Table, TableFault,
    codec::{Context, Key, RequestRow, decode_index, decode_lease, decode_record},
};
use crate::{
    barrier::stripes::{Stripes, Ticket},
    failpoints::{self, Point},
    fence::{
        Fence, HolderId, How, LeaseId, LeaseRow, LeaseSeq, Now, ObjectId, Record, RequestId, State,
        verdict::{self, Denial, Permit, Presented, Unusable, View},
    },
};

/// The table for readers: records, leases, and whether the table may be used.
pub struct Records {
    pub table: Arc<dyn Table>,
    pub stripes: Stripes,
    pub context: Context,
    latch: OnceLock<TableFault>,
    /// A write was dropped, and its outcome is not recorded.
    untracked: AtomicBool,
}

/// A lease, with its object's record as it is now.
#[derive(Clone, Debug)]
pub struct LeaseView {
    pub row: LeaseRow,
    pub status: LeaseStatus,
    /// What is left of a held lease.
    pub remaining_ms: u64,
}

/// The state of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseStatus {
    Held,
    /// Fenced, and the lease's last writes may still be on their way.
    Draining,
    Expired,
    Released,
    Fenced,
    /// Past its deadline. No answer may say so before the ledger has ended the lease.
    Overdue,
}

/// Some leases, and where the next page begins.
#[derive(Debug)]
pub struct Page {
    pub leases: Vec<LeaseView>,
    pub next: Option<Vec<u8>>,
}

/// How many rows one call may read before it answers with what it has.
const SCAN_MAX: usize = 10_000;
const SCAN_CHUNK: usize = 256;

impl Records {
    #[must_use]
    pub fn new(table: Arc<dyn Table>, context: Context, capacity: usize) -> Self {
        Self {
            table,
            stripes: Stripes::new(capacity),
            context,
            latch: OnceLock::new(),
            untracked: AtomicBool::new(false),
        }
    }

    /// Shuts the table until the process starts again: after a failed write or sync it is unknown what the table
    /// holds.
    pub fn latch(&self, fault: TableFault) {
        let _ = self.latch.set(fault);
    }

    /// Notes that a write which may have been sent was dropped without an outcome, so it is unknown what this run
    /// leaves behind.
    pub fn lose_track(&self) {
        self.untracked.store(true, Ordering::Release);
    }

    /// Whether [`lose_track`](Self::lose_track) was called.
    #[must_use]
    pub fn has_lost_track(&self) -> bool {
        self.untracked.load(Ordering::Acquire)
    }

    /// Why the table is shut, if it is.
    #[must_use]
    pub fn latched(&self) -> Option<&TableFault> {
        self.latch.get()
    }

    /// An object's published record.
    ///
    /// # Errors
    /// When its row cannot be read.
    pub fn read(&self, object: &ObjectId) -> Result<Record, TableFault> {
        self.with_record(object, Record::clone)
    }

    /// Calls `look` with an object's published record, under its stripe's lock.
    ///
    /// # Errors
    /// Where its row cannot be read.
    pub fn with_record<R>(&self, object: &ObjectId, look: impl Fn(&Record) -> R) -> Result<R, TableFault> {
        loop {
            if let Some(seen) = self.stripes.view(object, |found| found.map(|(record, _)| look(record))) {
                return Ok(seen);
            }
            let ticket = self.stripes.ticket(object);
            let record = self.row(object)?;
            failpoints::reach(Point::Loaded);
            self.offer(record, &ticket);
        }
    }

    /// The record in an object's row of the table. For a load, take the ticket first: a record that is published
    /// after that is newer than the row.
    ///
    /// # Errors
    /// When the row cannot be read.
    pub fn row(&self, object: &ObjectId) -> Result<Record, TableFault> {
        match self.table.get(&Key::Record(object.clone()).encode())? {
            Some(value) => Ok(decode_record(object.clone(), &value, &self.context)?),
            None => Ok(Record::unknown(object.clone(), self.context.incarnation)),
        }
    }

    /// Offers a record that was read from its row. The one in memory is used then: a newer one may have been
    /// published meanwhile.
    pub fn offer(&self, record: Record, ticket: &Ticket) {
        let left_draining = matches!(record.state, State::Draining { .. }).then(|| record.object.clone());
        self.stripes.offer(record, ticket);
        if let Some(object) = left_draining {
            // Left by an earlier run: records that drain stay in memory.
            self.stripes.wake_ledger_for(object);
        }
    }

    /// Judges a token without admitting a write. Loads the record if it has to.
    ///
    /// # Errors
    /// As [`verdict::judge`]; a table that is shut or unreadable denies.
    pub fn judge(&self, object: &ObjectId, presented: &Presented, now: Now) -> Result<Permit, Denial> {
        let unusable = |unusable| verdict::judge(View::Unusable(unusable), presented, now);
        if self.latched().is_some() {
            return unusable(Unusable::Table);
        }
        if self.stripes.view(object, |found| found.is_none()) && self.read(object).is_err() {
            return unusable(Unusable::Table);
        }
        self.stripes.view(object, |found| {
            let view = match found {
                Some((record, sealed)) => View::Known { record, sealed },
                // The record was evicted just now: deny, and the caller may try again.
                None => View::Unusable(Unusable::Table),
            };
            verdict::judge(view, presented, now)
        })
    }

    /// The row of a lease by its id.
    ///
    /// # Errors
    /// When a row cannot be read.
    pub fn lease_row(&self, lease: &LeaseId) -> Result<Option<LeaseRow>, TableFault> {
        let Some(value) = self.table.get(&Key::LeaseIndex(lease.clone()).encode())? else {
            return Ok(None);
        };
        let (object, seq) = decode_index(&value)?;
        self.lease_at(object, seq)
    }

    /// The row of a lease by its number.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn lease_at(&self, object: ObjectId, seq: LeaseSeq) -> Result<Option<LeaseRow>, TableFault> {
        let row = self.table.get(&Key::Lease(object.clone(), seq).encode())?;
        Ok(row.map(|value| decode_lease(object, seq, &value)).transpose()?)
    }

    /// What a request of a holder was granted.
    ///
    /// # Errors
    /// When the row cannot be read.
    pub fn request(&self, holder: &HolderId, request: &RequestId) -> Result<Option<RequestRow>, TableFault> {
        let row = self.table.get(&Key::Request(holder.clone(), request.clone()).encode())?;
        Ok(row.map(|value| RequestRow::decode(&value)).transpose()?)
    }

    /// A lease's row together with its state. `None`: the grant is durable but not published yet, so no caller has
    /// it.
    ///
    /// # Errors
    /// When its object's row cannot be read.
    pub fn view(&self, row: LeaseRow, now: Now) -> Result<Option<LeaseView>, TableFault> {
        let record = self.read(&row.object)?;
        if Fence::from(row.seq) > record.fence {
            return Ok(None);
        }
        let is_at_fence = record.lease().is_some_and(|(lease, _)| lease.lease_id == row.lease_id);
        if is_at_fence || row.ended.is_some() {
            return Ok(Some(with_status(row, &record, now)));
        }
        // The lease ended between the two reads; its row says how by now.
        let newer = self.lease_at(row.object.clone(), row.seq)?;
        Ok(Some(with_status(newer.unwrap_or(row), &record, now)))
    }

    /// Leases with keys in these ranges, behind `after`, that `wanted` accepts. The ranges are in order.
    ///
    /// # Errors
    /// When a row cannot be read.
    pub fn leases(
        &self,
        ranges: &[(Vec<u8>, Vec<u8>)],
        after: Option<&[u8]>,
        limit: usize,
        now: Now,
        wanted: impl Fn(&LeaseView) -> bool,
    ) -> Result<Page, TableFault> {
        let (mut leases, mut scanned) = (vec![], 0);
        let mut at = after.map(behind).unwrap_or_default();
        for (from, until) in ranges {
            at = at.max(from.clone());
            while at < *until {
                let rows = self.table.scan(&at, until, SCAN_CHUNK)?;
                let at_end = rows.len() < SCAN_CHUNK;
                for (key, value) in rows {
                    scanned += 1;
                    let Key::Lease(object, seq) = Key::decode(&key)? else {
                        return Err(TableFault::Corrupt("a foreign key among the leases".to_owned()));
                    };
                    let view = self.view(decode_lease(object, seq, &value)?, now)?;
                    leases.extend(view.filter(|view| wanted(view)));
                    if leases.len() == limit || scanned == SCAN_MAX {
                        return Ok(Page { leases, next: Some(key) });
                    }
                    at = behind(&key);
                }
                if at_end {
                    at.clone_from(until);
                }
            }
        }
        Ok(Page { leases, next: None })
    }
}

/// The least key behind this one.
fn behind(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

fn with_status(mut row: LeaseRow, record: &Record, now: Now) -> LeaseView {
    if let Some((lease, ended)) = record.lease().filter(|(lease, _)| lease.lease_id == row.lease_id) {
        // The record has the newest values; the row is from the grant.
        row = LeaseRow::new(&record.object, lease, ended.cloned());
    }
    let is_current = record.open_lease().is_some_and(|lease| lease.lease_id == row.lease_id);
    let remaining_ms = record.open_lease().filter(|_| is_current).map_or(0, |lease| lease.remaining_ms(now));
    let below_by_one = row.seq.get().checked_add(1) == Some(record.fence.get());
    let status = match &row.ended {
        _ if below_by_one && matches!(record.state, State::Draining { .. }) => LeaseStatus::Draining,
        Some(ended) => match ended.how {
            How::Expired => LeaseStatus::Expired,
            How::Released => LeaseStatus::Released,
            How::Fenced { .. } => LeaseStatus::Fenced,
        },
        None if is_current && remaining_ms > 0 => LeaseStatus::Held,
        None if is_current => LeaseStatus::Overdue,
        // A new incarnation has moved the fence past it.
        None => LeaseStatus::Fenced,
    };
    LeaseView { row, status, remaining_ms }
}
