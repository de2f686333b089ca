//! One round of the ledger: what a batch of commands changes, before any of it is durable.
//!
//! Later commands of a round see what earlier ones decided. A command's changes come in a
//! [`Draft`]: all of them, or none.

use std::collections::HashMap;

use super::super::{
    Batch, TableFault,
    codec::{Key, RequestRow, decode_index, decode_lease, encode_index, encode_lease, encode_record},
    records::Records,
};
use crate::fence::{
    Effect, HolderId, LeaseId, LeaseRow, ObjectId, Record, RequestId,
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

/// What one command changes.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) records: Vec<Record>,
    rows: Vec<LeaseRow>,
    pub(super) news: Vec<Announcement>,
    drains: Vec<Drain>,
}

impl Draft {
    /// Takes over what a step of `object` asked for.
    pub(super) fn add(&mut self, object: &ObjectId, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Store(record) => self.records.push(record),
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

/// Sends an answer once the round's fate is known: durable, or not. Gives back the leases that
/// nobody was there to take.
pub(super) type Answer = Box<dyn FnOnce(bool) -> Vec<(ObjectId, LeaseId)> + Send>;

/// The round.
#[derive(Default)]
pub(super) struct Round {
    pub(super) writes: Batch,
    rows: HashMap<Vec<u8>, Vec<u8>>,
    records: HashMap<ObjectId, Record>,
    order: Vec<ObjectId>,
    pub(super) news: Vec<Announcement>,
    pub(super) answers: Vec<Answer>,
    pub(super) changes: usize,
}

impl Round {
    /// An object's newest record: this draft's, this round's, the published one.
    pub(super) fn newest(&self, records: &Records, draft: &Draft, object: &ObjectId) -> Result<Record, TableFault> {
        match draft.record(object).or_else(|| self.records.get(object)) {
            Some(record) => Ok(record.clone()),
            None => records.read(object),
        }
    }

    /// Whether this round has changed a row.
    pub(super) fn has_row(&self, key: &[u8]) -> bool {
        self.rows.contains_key(key)
    }

    /// A lease's newest row.
    pub(super) fn lease_row(&self, records: &Records, lease: &LeaseId) -> Result<Option<LeaseRow>, TableFault> {
        match self.rows.get(&Key::LeaseIndex(lease.clone()).encode()) {
            None => records.lease_row(lease),
            Some(value) => {
                let (object, seq) = decode_index(value)?;
                let row = self.rows.get(&Key::Lease(object.clone(), seq).encode());
                Ok(row.map(|value| decode_lease(object, seq, value)).transpose()?)
            }
        }
    }

    /// What a request was granted.
    pub(super) fn request(
        &self,
        records: &Records,
        holder: &HolderId,
        request: &RequestId,
    ) -> Result<Option<RequestRow>, TableFault> {
        match self.rows.get(&Key::Request(holder.clone(), request.clone()).encode()) {
            None => records.request(holder, request),
            Some(value) => Ok(Some(RequestRow::decode(value)?)),
        }
    }

    /// Remembers what a request was granted.
    pub(super) fn put_request(&mut self, holder: &HolderId, request: &RequestId, row: &RequestRow) {
        self.put(&Key::Request(holder.clone(), request.clone()), row.encode());
    }

    /// Takes a draft in.
    pub(super) fn apply(&mut self, draft: Draft) {
        self.changes += usize::from(!draft.records.is_empty());
        for row in draft.rows {
            self.put(&Key::Lease(row.object.clone(), row.seq), encode_lease(&row));
            if row.ended.is_none() {
                self.put(&Key::LeaseIndex(row.lease_id), encode_index(&row.object, row.seq));
            }
        }
        for record in draft.records {
            if !self.records.contains_key(&record.object) {
                self.order.push(record.object.clone());
            }
            self.records.insert(record.object.clone(), record);
        }
        self.news.extend(draft.news);
    }

    fn put(&mut self, key: &Key, value: Vec<u8>) {
        self.rows.insert(key.encode(), value.clone());
        self.writes.put(key, value);
    }

    /// Everything to be written, and the records to publish behind it, in the order they changed.
    pub(super) fn finish(&mut self, run: u64) -> (Batch, Vec<Record>) {
        let mut records = std::mem::take(&mut self.records);
        let published: Vec<Record> =
            std::mem::take(&mut self.order).iter().filter_map(|object| records.remove(object)).collect();
        for record in &published {
            self.writes.put(&Key::Record(record.object.clone()), encode_record(record, run));
        }
        (std::mem::take(&mut self.writes), published)
    }
}
