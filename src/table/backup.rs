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
    codec::Meta,
    key_file::{self, KeyFault, sync_parent},
    open::{key_path, read_meta, table_folder, write_meta},
    rocks::RocksTable,
};
use crate::fence::{Incarnation, WallMs};

/// Why a backup or restore did not happen.
#[derive(Debug, Error)]
pub enum BackupFault {
    #[error("{} is there already; name a folder that is not", .0.display())]
    Exists(PathBuf),
    #[error("{} holds no backup of a fence table", .0.display())]
    NoBackup(PathBuf),
    #[error("there is a fence table in {} already; stop its gate and say --replace to set it aside", .0.display())]
    TableExists(PathBuf),
    #[error("the table has used up its incarnations")]
    Exhausted,
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
/// The new incarnation must be one that no gate has ever used on these objects. It is above the
/// backup's and above that of a table that is being replaced; and since the same backup may be
/// restored twice onto empty disks, it is also at least the number of hours since 2026.
///
/// # Errors
/// Where the backup cannot be read, or a table is there and `replace` is not set. What was there
/// before is still there then.
pub fn restore(backup: &Path, data: &Path, replace: bool, now: WallMs) -> Result<Restored, BackupFault> {
    let io_fault = |path: &Path| {
        let path = path.to_owned();
        move |error| BackupFault::Io { path, error }
    };
    if !RocksTable::exists(backup) {
        return Err(BackupFault::NoBackup(backup.to_owned()));
    }
    let (target, key) = (table_folder(data), key_path(data));
    let is_there = RocksTable::exists(&target);
    if is_there && !replace {
        return Err(BackupFault::TableExists(data.to_owned()));
    }
    let present = if is_there { read_meta(&RocksTable::open(&target)?.0)? } else { None };
    fs::create_dir_all(data).map_err(io_fault(data))?;
    let (staged, staged_key) = (data.join("table.restoring"), data.join("key.restoring"));
    clear(&staged).map_err(io_fault(&staged))?;
    clear(&staged_key).map_err(io_fault(&staged_key))?;
    copy(backup, &staged).map_err(io_fault(&staged))?;
    let new_key = key_file::create(&staged_key)?;
    let incarnation = stage(&staged, present.as_ref(), new_key.fingerprint(), now)?;
    // Until here nothing that was there has changed. A crash from here on leaves a table without its
    // key or no table at all, which no gate starts on; restoring again mends it.
    let set_aside = if is_there { Some(put_aside(data, &target)?) } else { None };
    fs::rename(&staged_key, &key).map_err(io_fault(&key))?;
    fs::rename(&staged, &target).map_err(io_fault(&target))?;
    sync_parent(&target).map_err(io_fault(&target))?;
    Ok(Restored { incarnation, set_aside })
}

/// Makes the copy a table of its own.
fn stage(
    staged: &Path,
    present: Option<&Meta>,
    key_fingerprint: [u8; 16],
    now: WallMs,
) -> Result<Incarnation, BackupFault> {
    let (table, _) = RocksTable::open(staged)?;
    let meta = read_meta(&table)?.ok_or_else(|| BackupFault::NoBackup(staged.to_owned()))?;
    let used = meta.incarnation.max(present.map(|meta| meta.incarnation).unwrap_or_default());
    let next = used.get().checked_add(1).ok_or(BackupFault::Exhausted)?;
    let incarnation = Incarnation::new(next.max(hours_since_2026(now)));
    let run = meta.run.max(present.map_or(0, |meta| meta.run));
    write_meta(&table, &Meta { incarnation, run, clean: false, key_fingerprint })?;
    table.flush()?;
    Ok(incarnation)
}

fn hours_since_2026(now: WallMs) -> u32 {
    const START_MS: u64 = 1_767_225_600_000;
    u32::try_from(now.0.saturating_sub(START_MS) / 3_600_000).unwrap_or(u32::MAX)
}

fn clear(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let copied = to.join(entry.file_name());
        fs::copy(entry.path(), &copied)?;
        fs::File::open(&copied)?.sync_all()?;
    }
    fs::File::open(to)?.sync_all()
}

fn put_aside(data: &Path, target: &Path) -> Result<PathBuf, BackupFault> {
    for n in 1.. {
        let aside = data.join(format!("table.replaced-{n}"));
        if !aside.exists() {
            fs::rename(target, &aside).map_err(|error| BackupFault::Io { path: aside.clone(), error })?;
            return Ok(aside);
        }
    }
    unreachable!("the numbers do not end")
}
