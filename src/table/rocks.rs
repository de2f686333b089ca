//! The fence table on RocksDB. The only file that imports it.
//!
//! RocksDB's defaults are tuned for throughput. These settings are tuned to forget nothing:
//! - The write-ahead log must be whole (`AbsoluteConsistency`). The default mode silently drops every record behind
//!   a corruption. Where only the tail fails, the caller learns it from [`Recovered::TailLost`] and must start a
//!   new incarnation.
//! - Damage that RocksDB skips in every mode is looked for first (`logs.rs`).
//! - A recovered log is flushed into synced files before any answer uses it: after a failed sync the page cache can
//!   show records that never reached the disk.
//! - Log files are not recycled, so an old record cannot be read as a new one.
//! - Every commit is one synced write. After a failure RocksDB may resume by itself; the ledger's latch stays shut.

use std::{
    fs, io,
    path::Path,
    sync::{
        PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, Cache, DB, DBRecoveryMode, DataBlockIndexType, Direction, ErrorKind,
    IteratorMode, Options, ReadOptions, WriteBatch, WriteOptions, checkpoint::Checkpoint,
};

use super::{Batch, Row, Table, TableFault, logs};
use crate::failpoints::{self, Fault};

/// The result of opening the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recovered {
    /// Every change that was synced is there.
    Whole,
    /// The end of the write-ahead log could not be read. Synced changes may be missing.
    TailLost { why: String },
}

/// An open RocksDB, until it is closed.
pub struct RocksTable {
    db: RwLock<Option<DB>>,
    reading: ReadOptions,
    reads: AtomicU64,
}

/// Figures for `table stats`.
#[derive(Clone, Debug)]
pub struct RocksStats {
    pub sst_bytes: u64,
    pub memtable_bytes: u64,
}

/// The file that says that the table's log lost its tail and that no new incarnation has begun yet.
const TAIL_LOST: &str = "TAIL_LOST";
/// How many bytes RocksDB adds to a batch, and to each row of it, at most.
const BATCH_HEAD: usize = 12;
const BATCH_ROW: usize = 16;
const BLOCK_CACHE_BYTES: usize = 32 << 20;
const WRITE_BUFFER_BYTES: usize = 16 << 20;

fn options(create: bool) -> Options {
    let mut options = Options::default();
    options.create_if_missing(create);
    options.set_error_if_exists(create);
    options.set_paranoid_checks(true);
    options.set_recycle_log_file_num(0);
    options.set_track_and_verify_wals_in_manifest(true);
    options.set_wal_recovery_mode(DBRecoveryMode::AbsoluteConsistency);
    options.set_write_buffer_size(WRITE_BUFFER_BYTES);
    // Each start flushes a small file or two; they are merged now and then, not at every other start.
    options.set_level_zero_file_num_compaction_trigger(8);
    options.set_max_open_files(256);
    options.set_keep_log_file_num(4);
    options.set_max_log_file_size(4 << 20);
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(&Cache::new_lru_cache(BLOCK_CACHE_BYTES));
    blocks.set_bloom_filter(10.0, false);
    // Filters and indexes are in the bounded cache too, so memory does not grow with the table.
    blocks.set_cache_index_and_filter_blocks(true);
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
    // They are in parts, of which a read needs one. Whole ones grow with the table, and evict each other.
    blocks.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    blocks.set_partition_filters(true);
    blocks.set_pin_top_level_index_and_filter(true);
    blocks.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
    options.set_block_based_table_factory(&blocks);
    options
}

fn read_fault(error: &rocksdb::Error) -> TableFault {
    match error.kind() {
        ErrorKind::Corruption => TableFault::Corrupt(error.to_string()),
        _ => TableFault::Read(error.to_string()),
    }
}

fn write_fault(error: &rocksdb::Error) -> TableFault {
    TableFault::Write(error.to_string())
}

/// Notes, durably, that a log lost its tail.
fn note_lost_tail(folder: &Path, why: &str) -> Result<(), TableFault> {
    let marker = folder.join(TAIL_LOST);
    fs::write(&marker, why)
        .and_then(|()| fs::File::open(&marker)?.sync_all())
        .and_then(|()| fs::File::open(folder)?.sync_all())
        .map_err(|error| TableFault::Write(error.to_string()))
}

impl RocksTable {
    fn new(db: DB) -> Self {
        Self { db: RwLock::new(Some(db)), reading: ReadOptions::default(), reads: AtomicU64::new(0) }
    }

    fn with<R>(&self, use_it: impl FnOnce(&DB) -> Result<R, TableFault>) -> Result<R, TableFault> {
        let db = self.db.read().unwrap_or_else(PoisonError::into_inner);
        db.as_ref().map_or_else(|| Err(TableFault::Read("it has been closed".to_owned())), use_it)
    }

    /// Whether a folder holds a table.
    #[must_use]
    pub fn exists(folder: &Path) -> bool {
        folder.join("CURRENT").exists()
    }

    /// Makes a new, empty table. The folder must not hold one.
    ///
    /// # Errors
    /// When the folder cannot be written or holds a table already.
    pub fn create(folder: &Path) -> Result<Self, TableFault> {
        let db = DB::open(&options(true), folder).map_err(|error| write_fault(&error))?;
        Ok(Self::new(db))
    }

    /// Opens an existing table, and says whether its log was complete.
    ///
    /// # Errors
    /// When another process uses it, it cannot be read, or it is corrupt elsewhere than at the end of its log.
    pub fn open(folder: &Path) -> Result<(Self, Recovered), TableFault> {
        if let logs::Found::ZerosAtTheEnd(log) = logs::scan(folder)? {
            note_lost_tail(folder, &format!("{log} ends in zeros"))?;
        }
        let db = match DB::open(&options(false), folder) {
            Ok(db) => db,
            Err(error) if error.kind() == ErrorKind::Corruption => Self::open_without_tail(folder, &error)?,
            Err(error) => return Err(read_fault(&error)),
        };
        let recovered = match fs::read_to_string(folder.join(TAIL_LOST)) {
            Ok(why) => Recovered::TailLost { why },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Recovered::Whole,
            Err(error) => return Err(TableFault::Read(error.to_string())),
        };
        let table = Self::new(db);
        table.flush()?;
        Ok((table, recovered))
    }

    /// Opens a table whose log ends badly. RocksDB then repairs the log, and the damage cannot be seen afterwards.
    /// So the loss is noted first, in a file that stays until a new incarnation has begun.
    fn open_without_tail(folder: &Path, error: &rocksdb::Error) -> Result<DB, TableFault> {
        note_lost_tail(folder, error.as_ref())?;
        let mut tolerant = options(false);
        tolerant.set_wal_recovery_mode(DBRecoveryMode::TolerateCorruptedTailRecords);
        // If more than the tail is bad, this fails too, and the first error is the better one. The note stays: an
        // open that failed late may have repaired the log all the same.
        DB::open(&tolerant, folder).map_err(|again| match again.kind() {
            ErrorKind::Corruption => read_fault(error),
            _ => read_fault(&again),
        })
    }

    /// Removes the note of a lost tail, once the new incarnation is durable.
    ///
    /// # Errors
    /// When the file cannot be removed; the next start then begins one more incarnation.
    pub fn tail_is_made_up_for(folder: &Path) -> io::Result<()> {
        match fs::remove_file(folder.join(TAIL_LOST)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => fs::File::open(folder)?.sync_all(),
        }
    }

    /// Opens what can still be read of a damaged table, for reading only.
    ///
    /// # Errors
    /// When nothing can be read.
    pub fn open_to_salvage(folder: &Path) -> Result<Self, TableFault> {
        let mut options = options(false);
        options.set_wal_recovery_mode(DBRecoveryMode::SkipAnyCorruptedRecord);
        let db = DB::open_for_read_only(&options, folder, false).map_err(|error| read_fault(&error))?;
        Ok(Self::new(db))
    }

    /// Opens a table for reading only, also while a gate is running on it.
    ///
    /// # Errors
    /// When it cannot be read or is corrupt.
    pub fn open_read_only(folder: &Path) -> Result<Self, TableFault> {
        let db = DB::open_for_read_only(&options(false), folder, false).map_err(|error| read_fault(&error))?;
        Ok(Self::new(db))
    }

    /// Moves everything from the log into synced table files.
    ///
    /// # Errors
    /// When that fails; no change is lost by it.
    pub fn flush(&self) -> Result<(), TableFault> {
        self.with(|db| db.flush().map_err(|error| write_fault(&error)))
    }

    /// Sizes, as RocksDB estimates them.
    #[must_use]
    pub fn stats(&self) -> RocksStats {
        let read = |name: &str| self.with(|db| db.property_int_value(name).map_err(|error| read_fault(&error)));
        let number = |name: &str| read(name).ok().flatten().unwrap_or(0);
        RocksStats {
            sst_bytes: number("rocksdb.total-sst-files-size"),
            memtable_bytes: number("rocksdb.cur-size-all-mem-tables"),
        }
    }
}

impl Table for RocksTable {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, TableFault> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.with(|db| {
            let value = db.get_pinned_opt(key, &self.reading).map_err(|error| read_fault(&error))?;
            Ok(value.map(|value| value.to_vec()))
        })
    }

    fn scan(&self, from: &[u8], until: &[u8], limit: usize) -> Result<Vec<Row>, TableFault> {
        let mut bounds = ReadOptions::default();
        bounds.set_iterate_upper_bound(until);
        let rows: Vec<Row> = self.with(|db| {
            db.iterator_opt(IteratorMode::From(from, Direction::Forward), bounds)
                .take(limit)
                .map(|row| row.map(|(key, value)| (key.into_vec(), value.into_vec())))
                .collect::<Result<_, _>>()
                .map_err(|error| read_fault(&error))
        })?;
        self.reads.fetch_add(rows.len() as u64, Ordering::Relaxed);
        Ok(rows)
    }

    fn commit(&self, batch: Batch) -> Result<(), TableFault> {
        let mut writes = WriteBatch::with_capacity_bytes(BATCH_HEAD + batch.bytes() + BATCH_ROW * batch.len());
        for (key, value) in batch.changes() {
            match value {
                Some(value) => writes.put(key, value),
                None => writes.delete(key),
            }
        }
        let mut options = WriteOptions::default();
        options.set_sync(!failpoints::on(Fault::NoSync));
        self.with(|db| db.write_opt(writes, &options).map_err(|error| write_fault(&error)))
    }

    fn checkpoint(&self, folder: &Path) -> Result<(), TableFault> {
        self.with(|db| {
            let checkpoint = Checkpoint::new(db).map_err(|error| write_fault(&error))?;
            checkpoint.create_checkpoint(folder).map_err(|error| write_fault(&error))
        })
    }

    fn close(&self) {
        drop(self.db.write().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fence::ObjectId,
        table::codec::{Key, encode_index},
    };

    fn key(n: u64) -> Key {
        Key::Record(ObjectId::new(&format!("/tenants/{}/objects/{n}", n % 7)).unwrap())
    }

    /// The value that is written of an object the `turn`th time. The table does not check its meaning.
    fn value(n: u64, turn: u64) -> Vec<u8> {
        let object = ObjectId::new(&format!("{n}-{}", "x".repeat(100))).unwrap();
        encode_index(&object, crate::fence::LeaseSeq::new(turn).unwrap())
    }

    const OBJECTS: u64 = 20_000;
    const TURNS: u64 = 4;

    /// The turn in which an object is written last: older values are in older files.
    fn last_turn(n: u64) -> u64 {
        1 + n % TURNS
    }

    fn fill(folder: &Path) {
        let table = RocksTable::create(folder).unwrap();
        for turn in 1..=TURNS {
            let mut batch = Batch::default();
            for n in (0..OBJECTS).filter(|n| last_turn(*n) >= turn) {
                batch.put(&key(n), value(n, turn));
            }
            table.commit(batch).unwrap();
            table.flush().unwrap();
        }
    }

    #[test]
    fn what_was_written_last_is_read_and_what_was_not_is_not() {
        let folder = tempfile::tempdir().unwrap();
        fill(folder.path());
        let (table, _) = RocksTable::open(folder.path()).unwrap();
        for n in 0..OBJECTS {
            assert_eq!(table.get(&key(n).encode()).unwrap(), Some(value(n, last_turn(n))), "object {n}");
            assert_eq!(table.get(&key(OBJECTS + n).encode()).unwrap(), None, "object {n}");
        }
    }

    #[test]
    fn what_was_just_written_or_deleted_is_read_so() {
        let folder = tempfile::tempdir().unwrap();
        fill(folder.path());
        let (table, _) = RocksTable::open(folder.path()).unwrap();
        let mut batch = Batch::default();
        batch.put(&key(1), value(1, 9));
        batch.delete(&key(2));
        table.commit(batch).unwrap();
        assert_eq!(table.get(&key(1).encode()).unwrap(), Some(value(1, 9)));
        assert_eq!(table.get(&key(2).encode()).unwrap(), None);
    }

    #[test]
    fn a_closed_table_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let table = RocksTable::create(folder.path()).unwrap();
        table.close();
        assert!(table.get(b"r").is_err());
    }
}
