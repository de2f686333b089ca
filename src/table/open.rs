//! How a run of the gate begins on a table, and how a table comes to be.
//!
//! Beginning reads two rows, whatever the table's size:
//! `meta` and the mark. It checks the key, counts the run, clears the clean flag and syncs that
//! before anyone is served.

use std::{fs, io, path::Path, sync::Arc};

use thiserror::Error;

use super::{
    Batch, Table, TableFault,
    codec::{Context, Key, Meta, Terms, decode_mark, encode_mark},
    data_folder::{DataLock, clear, key_path, sync_parent, table_folder},
    key_file::{self, KeyFault},
    rocks::{Recovered, RocksTable},
};
use crate::{
    clock::Clock,
    fence::{Hlc, TableKey, WallMs, time::Frame},
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
        "{folder} has a key but no table: either its table is lost (run `fencegate table restore`), or an init was cut short (then remove {folder}/key and run it again)"
    )]
    Orphan { folder: String },
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
    #[error("{folder}: {fault}")]
    Table { folder: String, fault: TableFault },
    #[error("{folder}: {error}")]
    Io { folder: String, error: io::Error },
}

/// A table on which a run has begun.
pub struct Begun {
    pub table: Arc<dyn Table>,
    pub context: Context,
    pub meta: Meta,
    /// No stamp in the table is later.
    pub mark: Hlc,
    /// The run before this one ended in good order, and nothing was lost.
    pub was_clean: bool,
    /// Why a new incarnation had to begin, if it had to.
    pub tail_lost: Option<String>,
    /// What this run's own writes go by.
    pub terms: Terms,
    /// Writes that went by other routes than this run's may still land.
    pub was_rerouted: bool,
    /// Keeps other processes off the data folder while it is held.
    pub lock: Option<DataLock>,
}

/// Makes a new table and its key: an operator's word that there was none before.
///
/// # Errors
/// Where there is one, or the folder cannot be written.
pub fn init(data: &Path) -> Result<(), OpenFault> {
    let _lock = lock(data)?;
    create(data, true)
}

fn create(data: &Path, clean: bool) -> Result<(), OpenFault> {
    let folder = || data.display().to_string();
    let failed = |fault| OpenFault::Table { folder: data.display().to_string(), fault };
    let io_failed = |error| OpenFault::Io { folder: data.display().to_string(), error };
    if RocksTable::exists(&table_folder(data)) {
        return Err(OpenFault::Exists { folder: folder() });
    }
    if key_path(data).exists() {
        return Err(OpenFault::Orphan { folder: folder() });
    }
    // The key first, durably; then the table, made aside and put into place whole.
    let key = key_file::create(&key_path(data))?;
    let aside = data.join("table.new");
    clear(&aside).map_err(io_failed)?;
    let table = RocksTable::create(&aside).map_err(failed)?;
    let meta = Meta::new(&key, clean);
    write_meta(&table, &meta, Hlc::default()).map_err(failed)?;
    table.flush().map_err(failed)?;
    drop(table);
    fs::rename(&aside, table_folder(data)).and_then(|()| sync_parent(&table_folder(data))).map_err(io_failed)
}

/// Takes the folder for this process.
///
/// # Errors
/// Where another has it, or it cannot be written.
pub fn lock(data: &Path) -> Result<DataLock, OpenFault> {
    let folder = || data.display().to_string();
    let lock = DataLock::take(data).map_err(|error| OpenFault::Io { folder: folder(), error })?;
    lock.ok_or_else(|| OpenFault::InUse { folder: folder() })
}

/// Looks whether a run could begin, as far as that shows without opening the table. `false`: there
/// is none yet, and one may be made.
///
/// # Errors
/// With what is missing and what to do.
pub fn look(data: &Path, may_create: bool) -> Result<bool, OpenFault> {
    let folder = || data.display().to_string();
    if RocksTable::exists(&table_folder(data)) {
        return Ok(key_file::read(&key_path(data)).map(|_| true)?);
    }
    if key_path(data).exists() {
        return Err(OpenFault::Orphan { folder: folder() });
    }
    if may_create { Ok(false) } else { Err(OpenFault::Missing { folder: folder() }) }
}

/// Opens the table in a data folder and begins a run, whose writes will go by these terms.
///
/// # Errors
/// With what is wrong and what to do.
pub fn begin(data: &Path, may_create: bool, clock: &Clock, terms: Terms) -> Result<Begun, OpenFault> {
    let folder = || data.display().to_string();
    let is_there = look(data, may_create)?;
    let lock = lock(data)?;
    if !is_there {
        create(data, false)?;
    }
    let key = key_file::read(&key_path(data))?;
    let opened = RocksTable::open(&table_folder(data));
    let (table, recovered) = opened.map_err(|fault| OpenFault::Table { folder: folder(), fault })?;
    let table = Arc::new(table);
    let mut begun = begin_on(Arc::clone(&table) as Arc<dyn Table>, key, recovered, (clock, terms), &folder())?;
    // The incarnation must not lie in a log whose tail could be lost again.
    table.flush().map_err(|fault| OpenFault::Table { folder: folder(), fault })?;
    RocksTable::tail_is_made_up_for(&table_folder(data)).map_err(|error| OpenFault::Io { folder: folder(), error })?;
    begun.lock = Some(lock);
    Ok(begun)
}

/// Begins a run on an open table.
///
/// # Errors
/// Where its meta row is missing or unreadable, or the key is another table's.
pub fn begin_on(
    table: Arc<dyn Table>,
    key: TableKey,
    recovered: Recovered,
    (clock, terms): (&Clock, Terms),
    folder: &str,
) -> Result<Begun, OpenFault> {
    let failed = |fault| OpenFault::Table { folder: folder.to_owned(), fault };
    let before = read_meta(&*table).map_err(failed)?.ok_or_else(|| OpenFault::NoMeta { folder: folder.to_owned() })?;
    if before.key_fingerprint != key.fingerprint() {
        return Err(OpenFault::ForeignKey { folder: folder.to_owned() });
    }
    let mark = read_mark(&*table).map_err(failed)?;
    let tail_lost = match recovered {
        Recovered::Whole => None,
        Recovered::TailLost { why } => Some(why),
    };
    let incarnation = match &tail_lost {
        None => Some(before.incarnation),
        Some(_) => before.incarnation.next(),
    };
    let was_clean = before.clean && tail_lost.is_none();
    let meta = Meta {
        incarnation: incarnation.ok_or_else(|| OpenFault::Exhausted { folder: folder.to_owned() })?,
        run: before.run + 1,
        clean: false,
        key_fingerprint: before.key_fingerprint,
        broken_run: if was_clean { before.broken_run } else { before.run },
        terms: match &tail_lost {
            None if was_clean => terms,
            None => terms.and(before.terms),
            // What the row said last may be lost, too.
            Some(_) => Terms { routes: Terms::default().routes, ..terms.and(before.terms) },
        },
    };
    let start = clock.now();
    write_meta(&*table, &meta, mark.max(start.mark())).map_err(failed)?;
    let frame = Frame { run: meta.run, start, behind_mark: start.wall < WallMs(mark.ms) };
    let context = Context { frame, incarnation: meta.incarnation, key };
    let was_rerouted = meta.terms.routes != terms.routes;
    Ok(Begun { was_clean, table, context, meta, mark, tail_lost, terms, was_rerouted, lock: None })
}

/// The table's row about itself.
///
/// # Errors
/// Where it cannot be read.
pub fn read_meta(table: &dyn Table) -> Result<Option<Meta>, TableFault> {
    Ok(table.get(&Key::Meta.encode())?.map(|value| Meta::decode(&value)).transpose()?)
}

/// The table's mark; the beginning of time where there is none.
///
/// # Errors
/// Where it cannot be read.
pub fn read_mark(table: &dyn Table) -> Result<Hlc, TableFault> {
    Ok(table.get(&Key::Mark.encode())?.map(|value| decode_mark(&value)).transpose()?.unwrap_or_default())
}

/// Writes the table's row about itself and its mark, durable when this returns.
///
/// # Errors
/// Where they cannot be written.
pub fn write_meta(table: &dyn Table, meta: &Meta, mark: Hlc) -> Result<(), TableFault> {
    let mut batch = Batch::default();
    batch.put(&Key::Mark, encode_mark(mark));
    batch.put(&Key::Meta, meta.encode());
    table.commit(batch)
}

/// Sets the clean flag: the last thing a run does. The mark goes with it.
///
/// # Errors
/// Where it cannot be written; the next start then counts as unclean.
pub fn end(table: &dyn Table, meta: &Meta, mark: Hlc) -> Result<(), TableFault> {
    write_meta(table, &Meta { clean: true, ..meta.clone() }, mark)
}
