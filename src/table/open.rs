//! How a run of the gate begins on a table, and how a table is made.
//!
//! A start reads two rows, whatever the table's size: `meta` and the mark. It checks the key, compares the table
//! with the folder's epoch, counts the run, clears the clean flag and syncs that before any request is served.

use std::{fs, io, path::Path, sync::Arc};

use thiserror::Error;

use super::{
    Batch, Table, TableFault,
    codec::{Context, Key, Meta, decode_mark, encode_mark},
    data_folder::{DataLock, Without, key_path, new_key_path, new_table_folder, table_folder, without_table},
    epoch::{self, Epoch, EpochFault},
    key_file::{self, KeyFault},
    lineage::Lineage,
    private::{self, OpenToAll},
    rocks::{Recovered, RocksTable},
};
use crate::{
    clock::Clock,
    fence::{Hlc, Incarnation, TableKey, WallMs, time::Frame},
    files::{clear, sync_parent},
    route::RouteFingerprint,
};

/// Why a run cannot begin, with what to do about it.
#[derive(Debug, Error)]
pub enum OpenFault {
    #[error(
        "there is no fence table in {folder}. For a new installation, run `fencegate table init --config FILE`. If there was one, its volume is lost or not mounted: bring it back, or run `fencegate table restore`; a new table would forget every fence"
    )]
    Missing { folder: String },
    #[error("there is a fence table in {folder} already; nothing was changed")]
    Exists { folder: String },
    #[error(
        "{folder} had a fence table, and its table is lost: only its key, its epoch or a table that was set aside is there. Bring the table back, or run `fencegate table restore`; a new table would forget every fence"
    )]
    Lost { folder: String },
    #[error("`fencegate table init` was cut short in {folder}, and no gate has run there; run it again")]
    InitCut { folder: String },
    #[error(
        "`fencegate table restore` was cut short in {folder}; run it again, with a backup. Remove nothing there: those files say which numbers have been used"
    )]
    RestoreCut { folder: String },
    #[error("the fence table in {folder} is in use by another process; stop that one first")]
    InUse { folder: String },
    #[error(
        "the key in {folder} belongs to another table; bring this table's own key back, or restore a backup, which makes a new key"
    )]
    ForeignKey { folder: String },
    #[error("the table in {folder} has no meta row, so it is not a fence table, or it is damaged; restore a backup")]
    NoMeta { folder: String },
    #[error("the table in {folder} has used up its incarnations: its log was lost, or it was restored, too often")]
    Exhausted { folder: String },
    #[error(transparent)]
    Key(#[from] KeyFault),
    #[error(transparent)]
    Epoch(#[from] EpochFault),
    #[error(transparent)]
    OpenToAll(#[from] OpenToAll),
    #[error("{folder}: {fault}")]
    Table { folder: String, fault: TableFault },
    #[error("{folder}: {error}")]
    Io { folder: String, error: io::Error },
}

/// A table on which a run has begun.
pub struct OpenedTable {
    pub table: Arc<dyn Table>,
    pub context: Context,
    pub meta: Meta,
    /// Every stamp in the table is at most this one.
    pub mark: Hlc,
    /// The run before this one ended in good order, and nothing was lost.
    pub was_clean: bool,
    /// Why a new incarnation had to begin, if it had to.
    pub lost: Option<Lost>,
    /// The routes and the bound of this run's writes.
    pub fingerprint: RouteFingerprint,
    /// Writes of other routes than this run's may still land.
    pub was_rerouted: bool,
    /// Keeps other processes off the data folder while it is held.
    pub lock: Option<DataLock>,
}

/// What part of a table's past is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The end of the table's log.
    Tail { why: String },
    /// All changes since this copy of the table was the newest: the folder has begun a later incarnation or run.
    Behind { epoch: Incarnation, run: u64 },
}

/// Makes a new table and its key. With this call an operator says that there was none before.
///
/// # Errors
/// When there is a table, or the folder cannot be written.
pub fn init(data: &Path) -> Result<(), OpenFault> {
    let _lock = lock(data)?;
    create(data, true)
}

fn create(data: &Path, clean: bool) -> Result<(), OpenFault> {
    let failed = |fault| OpenFault::Table { folder: data.display().to_string(), fault };
    let io_failed = |error| OpenFault::Io { folder: data.display().to_string(), error };
    if RocksTable::exists(&table_folder(data)) {
        return Err(OpenFault::Exists { folder: data.display().to_string() });
    }
    may_create(data)?;
    // What an init that was cut short has left. The table is removed last, since it shows whose the key is.
    let (new_key, new_table) = (new_key_path(data), new_table_folder(data));
    for left in [&key_path(data), &new_key, &new_table] {
        clear(left).and_then(|()| sync_parent(left)).map_err(io_failed)?;
    }
    // Both are made aside, complete and durable. Then they get their names, the key first.
    private::create_folder(&new_table).map_err(io_failed)?;
    let table = RocksTable::create(&new_table).map_err(failed)?;
    let key = key_file::create(&new_key)?;
    let lineage = Some(Lineage::draw().map_err(io_failed)?);
    write_meta(&table, &Meta { lineage, ..Meta::new(&key, clean) }, Hlc::default()).map_err(failed)?;
    table.flush().map_err(failed)?;
    drop(table);
    put(&new_key, &key_path(data)).and_then(|()| put(&new_table, &table_folder(data))).map_err(io_failed)
}

/// Gives a file or folder its name, durably.
pub(super) fn put(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_parent(to)
}

/// Whether a folder without a table may get a new one.
fn may_create(data: &Path) -> Result<(), OpenFault> {
    match why_missing(data) {
        OpenFault::Missing { .. } | OpenFault::InitCut { .. } => Ok(()),
        other => Err(other),
    }
}

/// Why a folder has no table, and what the operator can do.
#[must_use]
pub fn why_missing(data: &Path) -> OpenFault {
    let folder = data.display().to_string();
    match without_table(data) {
        Ok(Without::Nothing) => OpenFault::Missing { folder },
        Ok(Without::Init) => OpenFault::InitCut { folder },
        Ok(Without::Restore) => OpenFault::RestoreCut { folder },
        Ok(Without::Lost) => OpenFault::Lost { folder },
        Err(error) => OpenFault::Io { folder, error },
    }
}

/// Takes the folder for this process.
///
/// # Errors
/// When another process has it, or it cannot be written.
pub fn lock(data: &Path) -> Result<DataLock, OpenFault> {
    let folder = || data.display().to_string();
    let lock = DataLock::take(data).map_err(|error| OpenFault::Io { folder: folder(), error })?;
    lock.ok_or_else(|| OpenFault::InUse { folder: folder() })
}

/// Checks whether a run could begin, as far as that can be seen without opening the table. `false`: there is no
/// table yet, and one may be made.
///
/// # Errors
/// With what is missing and what to do.
pub fn check_data_folder(data: &Path, creates: bool) -> Result<bool, OpenFault> {
    if RocksTable::exists(&table_folder(data)) {
        epoch::read(data)?;
        return Ok(key_file::read(&key_path(data)).map(|_| true)?);
    }
    if creates { may_create(data).map(|()| false) } else { Err(why_missing(data)) }
}

/// Opens the table in a data folder and begins a run. `terms`: the routes and the bound of its writes.
///
/// # Errors
/// With what is wrong and what to do.
pub fn begin(
    data: &Path,
    creates: bool,
    clock: &Clock,
    fingerprint: RouteFingerprint,
) -> Result<OpenedTable, OpenFault> {
    let folder = || data.display().to_string();
    let is_there = check_data_folder(data, creates)?;
    let lock = lock(data)?;
    if !is_there {
        create(data, false)?;
    }
    let key = key_file::read(&key_path(data))?;
    for path in private::repair(data, &table_folder(data))? {
        tracing::warn!(path = %path.display(), "this was open to all users, and the gate has closed it; other users may have read it");
    }
    let opened = RocksTable::open(&table_folder(data));
    let (table, recovered) = opened.map_err(|fault| OpenFault::Table { folder: folder(), fault })?;
    let table = Arc::new(table);
    let name = Lineage::draw().map_err(|error| OpenFault::Io { folder: folder(), error })?;
    let beside = (epoch::read(data)?, Some(name), |begun| Ok(epoch::raise(data, begun)?));
    let shared = Arc::clone(&table) as Arc<dyn Table>;
    let mut begun = begin_above(shared, key, recovered, beside, (clock, fingerprint), &folder())?;
    // The incarnation must not be in a log whose tail could be lost again.
    table.flush().map_err(|fault| OpenFault::Table { folder: folder(), fault })?;
    RocksTable::tail_is_made_up_for(&table_folder(data)).map_err(|error| OpenFault::Io { folder: folder(), error })?;
    begun.lock = Some(lock);
    Ok(begun)
}

/// Begins a run on an open table that has no folder around it.
///
/// # Errors
/// When its meta row is missing or unreadable, or the key is another table's.
pub fn begin_on(
    table: Arc<dyn Table>,
    key: TableKey,
    recovered: Recovered,
    fingerprint: (&Clock, RouteFingerprint),
    folder: &str,
) -> Result<OpenedTable, OpenFault> {
    begin_above(table, key, recovered, (None, None, |_| Ok(())), fingerprint, folder)
}

/// Begins a run on an open table, above the epoch of its folder. `name`: for a table of an earlier version, which
/// has none. `raise` raises the epoch: its incarnation before the table has it, its run afterwards.
fn begin_above(
    table: Arc<dyn Table>,
    key: TableKey,
    recovered: Recovered,
    (epoch, name, raise): (Option<Epoch>, Option<Lineage>, impl Fn(Epoch) -> Result<(), OpenFault>),
    (clock, fingerprint): (&Clock, RouteFingerprint),
    folder: &str,
) -> Result<OpenedTable, OpenFault> {
    let failed = |fault| OpenFault::Table { folder: folder.to_owned(), fault };
    let before = read_meta(&*table).map_err(failed)?.ok_or_else(|| OpenFault::NoMeta { folder: folder.to_owned() })?;
    if before.key_fingerprint != key.fingerprint() {
        return Err(OpenFault::ForeignKey { folder: folder.to_owned() });
    }
    let mark = read_mark(&*table).map_err(failed)?;
    let epoch = epoch_of(&before, epoch);
    let last_run = before.run.max(epoch.run);
    let is_behind = epoch.incarnation > before.incarnation || epoch.run > before.run;
    let lost = match recovered {
        Recovered::TailLost { why } => Some(Lost::Tail { why }),
        Recovered::Whole if is_behind => Some(Lost::Behind { epoch: epoch.incarnation, run: last_run }),
        Recovered::Whole => None,
    };
    let incarnation = match &lost {
        None => Some(before.incarnation),
        Some(_) => before.incarnation.max(epoch.incarnation).next(),
    };
    let was_clean = before.clean && lost.is_none();
    let meta = Meta {
        incarnation: incarnation.ok_or_else(|| OpenFault::Exhausted { folder: folder.to_owned() })?,
        run: last_run + 1,
        clean: false,
        key_fingerprint: before.key_fingerprint,
        broken_run: if was_clean { before.broken_run } else { last_run },
        fingerprint: match &lost {
            None if was_clean => fingerprint,
            None => fingerprint.and(before.fingerprint),
            // What the row said last may be lost, too.
            Some(_) => {
                RouteFingerprint { routes: RouteFingerprint::default().routes, ..fingerprint.and(before.fingerprint) }
            }
        },
        lineage: before.lineage.or(name),
    };
    // Before the table has it: the table must never be ahead of the epoch, which outlives it.
    let begun = Epoch { incarnation: meta.incarnation, lineage: meta.lineage, run: epoch.run };
    raise(begun)?;
    let start = clock.now();
    write_meta(&*table, &meta, mark.max(start.mark())).map_err(failed)?;
    // After the table: a start that ends here has changed nothing, and its table is not an older copy.
    raise(Epoch { run: meta.run, ..begun })?;
    let frame = Frame { run: meta.run, start, behind_mark: start.wall < WallMs(mark.ms) };
    let context = Context { frame, incarnation: meta.incarnation, key };
    let was_rerouted = meta.fingerprint.routes != fingerprint.routes;
    Ok(OpenedTable { was_clean, table, context, meta, mark, lost, fingerprint, was_rerouted, lock: None })
}

/// What a folder's epoch says of this table. The epoch says nothing of another table's runs. A table without a name
/// is older than names.
fn epoch_of(table: &Meta, epoch: Option<Epoch>) -> Epoch {
    let epoch = epoch.unwrap_or(Epoch { incarnation: Incarnation::default(), lineage: None, run: 0 });
    let is_its = table.lineage.is_none() || epoch.lineage.is_none() || table.lineage == epoch.lineage;
    if is_its { epoch } else { Epoch { run: 0, ..epoch } }
}

/// The table's row about itself.
///
/// # Errors
/// When it cannot be read.
pub fn read_meta(table: &dyn Table) -> Result<Option<Meta>, TableFault> {
    Ok(table.get(&Key::Meta.encode())?.map(|value| Meta::decode(&value)).transpose()?)
}

/// The table's mark; 0 where there is none.
///
/// # Errors
/// When it cannot be read.
pub fn read_mark(table: &dyn Table) -> Result<Hlc, TableFault> {
    Ok(table.get(&Key::Mark.encode())?.map(|value| decode_mark(&value)).transpose()?.unwrap_or_default())
}

/// Writes the table's row about itself and its mark, durable when this returns.
///
/// # Errors
/// When they cannot be written.
pub fn write_meta(table: &dyn Table, meta: &Meta, mark: Hlc) -> Result<(), TableFault> {
    let mut batch = Batch::default();
    batch.put(&Key::Mark, encode_mark(mark));
    batch.put(&Key::Meta, meta.encode());
    table.commit(batch)
}

/// Sets the clean flag, with the mark: the last write of a run.
///
/// # Errors
/// When it cannot be written; the next start then counts as unclean.
pub fn end(table: &dyn Table, meta: &Meta, mark: Hlc) -> Result<(), TableFault> {
    write_meta(table, &Meta { clean: true, ..meta.clone() }, mark)
}
