//! One round of the ledger: the changes of a batch of commands, before any of them is durable.
//!
//! Later commands of a round are decided against the changes of earlier ones. A command's changes come in a
//! [`Draft`]: all of them, or none.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use super::{
    super::{
        Batch, TableFault,
        codec::{JournalHead, Key, RequestRow, encode_index, encode_lease, encode_record},
        records::Records,
    },
    authority::Signed,
    lease_ids::{ByLease, Leases, Quick},
};
use crate::fence::{
    Effect, HolderId, LeaseId, LeaseRow, ObjectId, Record, RequestId,
    idempotency::{self, Scope},
    record::AdvanceId,
    seq::LeaseSeq,
    step::{Announcement, Grant},
};

/// A drain that a step asked for.
pub(super) struct Drain {
    pub(super) object: ObjectId,
    pub(super) seq: LeaseSeq,
    pub(super) advance: AdvanceId,
    pub(super) then: Option<Grant>,
}

/// The changes of one command.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) records: Vec<Record>,
    rows: Vec<Arc<LeaseRow>>,
    pub(super) news: Vec<Announcement>,
    drains: Vec<Drain>,
}

impl Draft {
    /// Adds the effects of a step of `object`.
    pub(super) fn add(&mut self, object: &ObjectId, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Store(record) => match self.records.last_mut() {
                    // The state between two steps of one command was never visible.
                    Some(last) if last.object == record.object => *last = record,
                    Some(_) | None => self.records.push(record),
                },
                Effect::Remember(row) => self.rows.push(row),
                Effect::Announce(line) => self.news.push(line),
                Effect::Drain { seq, advance, then } => {
                    self.drains.push(Drain { object: object.clone(), seq, advance, then });
                }
            }
        }
    }

    pub(super) fn take_drains(&mut self) -> Vec<Drain> {
        std::mem::take(&mut self.drains)
    }

    fn record(&self, object: &ObjectId) -> Option<&Record> {
        self.records.iter().rev().find(|record| record.object == *object)
    }
}

/// Sends an answer once it is known whether the round is durable. Returns the leases whose callers were gone.
pub(super) type SendReply = Box<dyn FnOnce(bool) -> Vec<(ObjectId, LeaseId)> + Send>;

/// The round.
#[derive(Default)]
pub(super) struct Round {
    pub(super) writes: Batch,
    rows: ByLease<Arc<LeaseRow>>,
    granted: Vec<Arc<LeaseRow>>,
    /// Leases whose rows this round deletes.
    forgotten: Leases,
    requests: HashMap<(HolderId, RequestId), RequestRow>,
    pub(super) signed: Signed,
    pub(super) journals: HashMap<ObjectId, JournalHead>,
    /// Keyed writes; `None`: forgotten.
    pub(super) keyed: HashMap<Scope, Option<idempotency::Entry>>,
    /// In the order they changed, and the index of each object's record among them.
    records: Vec<Record>,
    places: HashMap<ObjectId, usize>,
    pub(super) news: Vec<Announcement>,
    pub(super) answers: Vec<SendReply>,
    pub(super) changes: usize,
}

impl Round {
    /// A round with room for this many changes.
    pub(super) fn for_changes(changes: usize) -> Self {
        Self {
            writes: Batch::for_leases(changes),
            rows: ByLease::with_capacity_and_hasher(2 * changes, Quick::default()),
            granted: Vec::with_capacity(changes),
            records: Vec::with_capacity(changes),
            places: HashMap::with_capacity(changes),
            news: Vec::with_capacity(2 * changes),
            answers: Vec::with_capacity(changes),
            ..Self::default()
        }
    }

    /// An object's newest record: this draft's, else this round's, else the published one.
    pub(super) fn newest(&self, records: &Records, draft: &Draft, object: &ObjectId) -> Result<Record, TableFault> {
        match draft.record(object).or_else(|| self.record(object)) {
            Some(record) => Ok(record.clone()),
            None => records.read(object),
        }
    }

    /// Calls `look` with an object's newest record: this round's, or the published one, under its stripe's lock.
    pub(super) fn with_record<R>(
        &self,
        records: &Records,
        object: &ObjectId,
        look: impl Fn(&Record) -> R,
    ) -> Result<R, TableFault> {
        match self.record(object) {
            Some(record) => Ok(look(record)),
            None => records.with_record(object, look),
        }
    }

    fn record(&self, object: &ObjectId) -> Option<&Record> {
        self.places.get(object).map(|place| &self.records[*place])
    }

    /// Whether this round has changed a lease's row.
    pub(super) fn has_row(&self, lease: &LeaseId) -> bool {
        self.rows.contains_key(lease)
    }

    /// A lease's newest row.
    pub(super) fn lease_row(&self, records: &Records, lease: &LeaseId) -> Result<Option<LeaseRow>, TableFault> {
        match self.rows.get(lease) {
            None if self.forgotten.contains(lease) => Ok(None),
            None => records.lease_row(lease),
            Some(row) => Ok(Some(LeaseRow::clone(row))),
        }
    }

    /// Forgets a lease.
    pub(super) fn forget(&mut self, row: LeaseRow) {
        self.writes.delete(&Key::LeaseIndex(row.lease_id.clone()));
        self.writes.delete(&Key::Lease(row.object, row.seq));
        self.forgotten.insert(row.lease_id);
    }

    /// What a request was granted.
    pub(super) fn request(
        &self,
        records: &Records,
        holder: &HolderId,
        request: &RequestId,
    ) -> Result<Option<RequestRow>, TableFault> {
        match self.requests.get(&(holder.clone(), request.clone())) {
            None => records.request(holder, request),
            Some(row) => Ok(Some(row.clone())),
        }
    }

    /// Remembers what a request was granted.
    pub(super) fn put_request(&mut self, holder: &HolderId, request: &RequestId, row: RequestRow) {
        self.writes.put(&Key::Request(holder.clone(), request.clone()), row.encode());
        self.requests.insert((holder.clone(), request.clone()), row);
    }

    /// Adds a draft.
    pub(super) fn apply(&mut self, draft: Draft) {
        self.changes += usize::from(!draft.records.is_empty());
        for row in draft.rows {
            self.writes.put(&Key::Lease(row.object.clone(), row.seq), encode_lease(&row));
            if row.ended.is_none() {
                self.granted.push(Arc::clone(&row));
            }
            self.rows.insert(row.lease_id.clone(), row);
        }
        for record in draft.records {
            match self.places.entry(record.object.clone()) {
                Entry::Occupied(place) => self.records[*place.get()] = record,
                Entry::Vacant(place) => {
                    place.insert(self.records.len());
                    self.records.push(record);
                }
            }
        }
        self.news.extend(draft.news);
    }

    /// The rows to write, and the records to publish after that, in the order they changed.
    pub(super) fn finish(&mut self, run: u64) -> (Batch, Vec<Record>) {
        self.places.clear();
        // The rows of one kind follow each other: their ids are nearly always in order, so RocksDB searches only
        // for the place of the first.
        for row in std::mem::take(&mut self.granted) {
            self.writes.put(&Key::LeaseIndex(row.lease_id.clone()), encode_index(&row.object, row.seq));
        }
        let published = std::mem::take(&mut self.records);
        for record in &published {
            self.writes.put(&Key::Record(record.object.clone()), encode_record(record, run));
        }
        (std::mem::take(&mut self.writes), published)
    }
}
