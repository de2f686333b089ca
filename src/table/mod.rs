//! The fence table: what the gate must not forget.
//!
//! - [`codec`]: the schema, every key and value.
//! - [`Table`]: the operations of a durable table; [`rocks`] is RocksDB (its only import site), [`memory`] a table
//!   in memory that can be made to fail, for tests and the simulation.
//! - [`data_folder`], [`key_file`], [`epoch`], [`open`]: the folder and its lock, the key and the highest
//!   incarnation beside the table, and how a run of the gate begins on it. [`lineage`]: the table's name.
//! - [`private`]: who may read these files.
//! - [`records`]: reading, through memory to the table. Only the ledger writes.
//! - [`ledger`]: the single writer: decide, seal, persist, publish, drain, answer.
//! - [`news`]: what watchers get from the ledger.
//! - [`backup`], [`verify`]: copies, and a check of every row.
//!
//! Not here: rules about leases and fences (`fence/`), records in memory and writes in flight (`barrier/`), HTTP
//! (`api/`).

pub mod backup;
pub mod codec;
pub mod data_folder;
pub mod epoch;
pub mod key_file;
pub mod ledger;
pub mod lineage;
mod logs;
pub mod memory;
pub mod news;
pub mod open;
pub mod private;
pub mod records;
pub mod rocks;
pub mod verify;

use std::{ops::Range, path::Path};

use thiserror::Error;

/// What failed in the table itself.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TableFault {
    #[error("the fence table cannot be read: {0}")]
    Read(String),
    #[error("the fence table cannot be written: {0}")]
    Write(String),
    #[error("the fence table is corrupt: {0}")]
    Corrupt(String),
}

impl From<codec::CodecFault> for TableFault {
    fn from(fault: codec::CodecFault) -> Self {
        Self::Corrupt(fault.to_string())
    }
}

/// One key and its value.
pub type Row = (Vec<u8>, Vec<u8>);

/// Changes that become durable together, or not at all. All their bytes are in one buffer: a round of the ledger
/// has a thousand of them.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    changes: Vec<Change>,
}

/// The size of most changes of a lease, at most.
const LEASE_BYTES: usize = 640;
const LEASE_ROWS: usize = 4;

/// A key, and its value where there is one.
#[derive(Debug)]
struct Change {
    key: Range<usize>,
    value: Option<Range<usize>>,
}

impl Batch {
    pub fn put(&mut self, key: &codec::Key, value: impl AsRef<[u8]>) {
        let key = self.add_key(key);
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(value.as_ref());
        self.changes.push(Change { key, value: Some(begin..self.bytes.len()) });
    }

    pub fn delete(&mut self, key: &codec::Key) {
        let key = self.add_key(key);
        self.changes.push(Change { key, value: None });
    }

    fn add_key(&mut self, key: &codec::Key) -> Range<usize> {
        let begin = self.bytes.len();
        key.encode_into(&mut self.bytes);
        begin..self.bytes.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// How many changes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// How many bytes the keys and values have.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// An empty batch with room for this many changes of a lease.
    #[must_use]
    pub fn for_leases(changes: usize) -> Self {
        Self { bytes: Vec::with_capacity(LEASE_BYTES * changes), changes: Vec::with_capacity(LEASE_ROWS * changes) }
    }

    /// The changes in their order; no value means deleted.
    pub fn changes(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        let bytes = |range: &Range<usize>| &self.bytes[range.clone()];
        self.changes.iter().map(move |change| (bytes(&change.key), change.value.as_ref().map(bytes)))
    }
}

/// A durable, ordered map of bytes.
pub trait Table: Send + Sync + 'static {
    /// Reads one value.
    ///
    /// # Errors
    /// When the table cannot be read or the value's block is corrupt.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, TableFault>;

    /// Up to `limit` rows from `from` (inclusive) to `until` (exclusive), in key order.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    fn scan(&self, from: &[u8], until: &[u8], limit: usize) -> Result<Vec<Row>, TableFault>;

    /// Makes a batch durable. When this returns `Ok`, no crash forgets it.
    ///
    /// # Errors
    /// When the write or its sync failed. It is then unknown what of it survives.
    fn commit(&self, batch: Batch) -> Result<(), TableFault>;

    /// Writes a consistent copy of the whole table into a new folder.
    ///
    /// # Errors
    /// When the copy cannot be made.
    fn checkpoint(&self, folder: &Path) -> Result<(), TableFault>;

    /// Closes the table, once no thread reads or writes. A process that ends with an open table may crash, because
    /// RocksDB's threads outlive the data that they use.
    fn close(&self) {}

    /// How many reads the table has served: the number that a start needs must not grow with the table.
    fn reads(&self) -> u64;
}
