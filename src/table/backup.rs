//! Backup and restore of the fence table.
//!
//! A backup is a checkpoint: a consistent copy, without the key. What happened after it was taken is
//! missing from it, so a restored table starts a new incarnation (every floor rises beyond anything
//! that could have been granted meanwhile, every lease is void) and gets a new key (no old token can
//! be taken for a new one).

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use thiserror::Error;

use super::{
    Table, TableFault,
    codec::{Meta, Terms},
    data_folder::{DataLock, clear, key_path, sync_parent, table_folder},
    key_file::{self, KeyFault},
    open::{read_mark, read_meta, write_meta},
    rocks::RocksTable,
};
use crate::fence::{Incarnation, Now};

/// Why a backup or restore did not happen.
#[derive(Debug, Error)]
pub enum BackupFault {
    #[error("{} is there already; name a folder that is not", .0.display())]
    Exists(PathBuf),
    #[error("{} holds no backup of a fence table", .0.display())]
    NoBackup(PathBuf),
    #[error("there is a fence table in {} already; stop its gate and say --replace to set it aside", .0.display())]
    TableExists(PathBuf),
    #[error("the fence table in {} is in use by another process; stop its gate first", .0.display())]
    InUse(PathBuf),
    #[error("the table has used up its incarnations")]
    Exhausted,
    #[error(
        "this machine's clock has not been set; set it first, so that the restored table's numbers lie above all others"
    )]
    Clock,
    #[error("{} cannot be written: {error}. A restore writes down there what it restored as, so that the next one of the same backup lies above it; copy the backup to a folder that can be written, and restore from there", .path.display())]
    ReadOnly { path: PathBuf, error: io::Error },
    #[error(transparent)]
    Table(#[from] TableFault),
    #[error(transparent)]
    Key(#[from] KeyFault),
    #[error("{}: {error}", .path.display())]
    Io { path: PathBuf, error: io::Error },
}

/// Copies a table that is open into a new folder.
///
/// # Errors
/// Where the folder is there already or cannot be written.
pub fn create(table: &dyn Table, folder: &Path) -> Result<(), BackupFault> {
    if folder.exists() {
        return Err(BackupFault::Exists(folder.to_owned()));
    }
    table.checkpoint(folder)?;
    sync_parent(folder).map_err(|error| BackupFault::Io { path: folder.to_owned(), error })
}

/// What a restore made.
#[derive(Debug)]
pub struct Restored {
    pub incarnation: Incarnation,
    /// Where the table that was there before lies now.
    pub set_aside: Option<PathBuf>,
}

/// Puts a backup where the gate's table belongs, as a new incarnation under a new key.
///
/// The new incarnation must be one that no gate has ever used on these objects, and be above all that
/// were. It is above the backup's, above what this backup was restored as before (written down in its
/// own folder), above those of the table that is there and of those set aside; and since copies of
/// a backup may be restored onto empty disks, it is also at least the number of hours since 2026.
///
/// # Errors
/// Where the backup cannot be read or written, or a table is there and `replace` is not set. What was
/// there before is still there then.
pub fn restore(backup: &Path, data: &Path, replace: bool, now: Now) -> Result<Restored, BackupFault> {
    if !RocksTable::exists(backup) {
        return Err(BackupFault::NoBackup(backup.to_owned()));
    }
    if !now.is_plausible() {
        return Err(BackupFault::Clock);
    }
    let target = table_folder(data);
    let is_there = target.exists();
    if is_there && !replace {
        return Err(BackupFault::TableExists(data.to_owned()));
    }
    let lock = DataLock::take(data).map_err(at(data))?;
    let _lock = lock.ok_or_else(|| BackupFault::InUse(data.to_owned()))?;
    let staged = Staged::new(data);
    staged.fill(backup)?;
    let incarnation = staged.begin_incarnation(&used_before(backup, data)?, now)?;
    // A second restore must know of this one, whatever becomes of it.
    write_synced(&backup.join(RESTORED_AS), &incarnation.to_string())?;
    // Until here nothing that was there has changed. A crash from here on leaves a table without its
    // key or no table at all, which no gate starts on; restoring again mends it.
    let set_aside = if is_there { Some(put_aside(data, &target)?) } else { None };
    fs::rename(&staged.key, key_path(data)).map_err(at(data))?;
    fs::rename(&staged.table, &target).map_err(at(data))?;
    sync_parent(&target).map_err(at(data))?;
    Ok(Restored { incarnation, set_aside })
}

/// The number that this backup was last restored as, in its folder.
const RESTORED_AS: &str = "RESTORED_AS";

fn at(path: &Path) -> impl Fn(io::Error) -> BackupFault {
    let path = path.to_owned();
    move |error| BackupFault::Io { path: path.clone(), error }
}

fn write_synced(path: &Path, text: &str) -> Result<(), BackupFault> {
    let written =
        fs::write(path, text).and_then(|()| fs::File::open(path)?.sync_all()).and_then(|()| sync_parent(path));
    written.map_err(|error| BackupFault::ReadOnly { path: path.to_owned(), error })
}

/// The highest incarnation and run that this folder and this backup show signs of, and the longest that
/// writes of a table that was here may still land.
struct Used {
    incarnation: Incarnation,
    run: u64,
    bound_ms: u64,
}

fn used_before(backup: &Path, data: &Path) -> Result<Used, BackupFault> {
    let restored_as = match fs::read_to_string(backup.join(RESTORED_AS)) {
        Ok(text) => Incarnation::new(text.trim().parse().map_err(|_| BackupFault::NoBackup(backup.join(RESTORED_AS)))?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Incarnation::default(),
        Err(error) => return Err(at(backup)(error)),
    };
    let mut used = Used { incarnation: restored_as, run: 0, bound_ms: 0 };
    for entry in fs::read_dir(data).map_err(at(data))? {
        let entry = entry.map_err(at(data))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name != "table" && !name.starts_with(REPLACED) {
            continue;
        }
        match RocksTable::open_to_salvage(&entry.path()).and_then(|table| read_meta(&table)) {
            Ok(meta) => {
                if let Some(Meta { incarnation, run, terms, .. }) = meta {
                    used.incarnation = used.incarnation.max(incarnation);
                    used.run = used.run.max(run);
                    used.bound_ms = used.bound_ms.max(terms.bound_ms);
                }
            }
            Err(fault) => {
                tracing::warn!(%fault, name, "a table that was here cannot be read at all; going on without it");
            }
        }
    }
    Ok(used)
}

/// A table and its key in the making, beside those that are there.
struct Staged {
    table: PathBuf,
    key: PathBuf,
}

impl Staged {
    fn new(data: &Path) -> Self {
        Self { table: data.join("table.restoring"), key: data.join("key.restoring") }
    }

    fn fill(&self, backup: &Path) -> Result<(), BackupFault> {
        clear(&self.table).map_err(at(&self.table))?;
        clear(&self.key).map_err(at(&self.key))?;
        copy(backup, &self.table).map_err(at(&self.table))
    }

    /// Makes the copy a table of its own.
    fn begin_incarnation(&self, used: &Used, now: Now) -> Result<Incarnation, BackupFault> {
        let (table, _) = RocksTable::open(&self.table)?;
        let meta = read_meta(&table)?.ok_or_else(|| BackupFault::NoBackup(self.table.clone()))?;
        let next = meta.incarnation.max(used.incarnation).next().ok_or(BackupFault::Exhausted)?;
        let incarnation = next.max(hours_since_2026(now));
        let key = key_file::create(&self.key)?;
        let run = meta.run.max(used.run);
        // By which routes writes went is not known of all of them.
        let terms = Terms { bound_ms: meta.terms.bound_ms.max(used.bound_ms), ..Terms::default() };
        let meta = Meta { incarnation, run, clean: false, key_fingerprint: key.fingerprint(), terms, broken_run: run };
        write_meta(&table, &meta, read_mark(&table)?)?;
        table.flush()?;
        drop(table);
        RocksTable::tail_is_made_up_for(&self.table).map_err(at(&self.table))?;
        Ok(incarnation)
    }
}

fn hours_since_2026(now: Now) -> Incarnation {
    const START_MS: u64 = 1_767_225_600_000;
    let hours = u32::try_from(now.wall.0.saturating_sub(START_MS) / 3_600_000).unwrap_or(u32::MAX);
    Incarnation::new(hours).min(Incarnation::LAST)
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_name() == RESTORED_AS {
            continue;
        }
        let copied = to.join(entry.file_name());
        fs::copy(entry.path(), &copied)?;
        fs::File::open(&copied)?.sync_all()?;
    }
    fs::File::open(to)?.sync_all()
}

const REPLACED: &str = "table.replaced-";

fn put_aside(data: &Path, target: &Path) -> Result<PathBuf, BackupFault> {
    let is_free = |aside: &PathBuf| !aside.exists();
    let aside = (1..=u16::MAX).map(|n| data.join(format!("{REPLACED}{n}"))).find(is_free);
    let aside = aside.ok_or(BackupFault::Exhausted)?;
    fs::rename(target, &aside).map_err(at(&aside))?;
    Ok(aside)
}
