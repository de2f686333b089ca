//! Backup and restore of the fence table.
//!
//! A backup is a checkpoint: a consistent copy, without the key. Later changes are missing from it. So a restored
//! table starts a new incarnation (every floor rises above all numbers that can have been granted meanwhile, and
//! every lease is void) and gets a new key (no old token is valid for a new lease).
//!
//! The new incarnation is above every number that was used on these objects. Those are known from the folder (its
//! epoch, its present table, tables that were set aside) or, where the folder does not know them, from the operator
//! (`--above`). A folder knows nothing of a backup of another table, or of a backup that is newer than the folder.
//! The new incarnation is drawn at random above those numbers, so that copies of one backup that are restored
//! separately do not grant the same numbers. docs/decisions/0012 has the reasons.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use thiserror::Error;

use super::{
    Table, TableFault,
    codec::Meta,
    data_folder::{DataLock, REPLACED, RESTORING, Without, key_path, table_folder, without_table},
    epoch::{self, Epoch, EpochFault},
    key_file::{self, KeyFault},
    lineage::Lineage,
    open::{put, read_mark, read_meta, write_meta},
    private,
    rocks::RocksTable,
};
use crate::{
    fence::{Incarnation, Now},
    files::{clear, sync_parent, write_whole},
    route::RouteFingerprint,
};

/// Why a backup or restore did not happen.
#[derive(Debug, Error)]
pub enum BackupFault {
    #[error("{} exists already; name a folder that does not exist", .0.display())]
    Exists(PathBuf),
    #[error("{} holds no backup of a fence table", .0.display())]
    NoBackup(PathBuf),
    #[error("there is a fence table in {} already; stop its gate and say --replace to set it aside", .0.display())]
    TableExists(PathBuf),
    #[error("the fence table in {} is in use by another process; stop its gate first", .0.display())]
    InUse(PathBuf),
    #[error("there are no numbers left above those that the table has used, or above --above; use other object ids")]
    Exhausted,
    #[error(
        "{} {why}, so it is unknown which numbers were used since this backup was made. Say --above N: the highest lease_seq that you know of, of any object, from `fencegate_table_floor` in your metrics, the logs of writers, or the Fence-Seq that the store was sent. Only if nothing has run on this table or another copy of it since, say --above {floor}, where the backup stands", .data.display()
    )]
    FloorUnknown { data: PathBuf, why: Unknown, floor: u64 },
    #[error(
        "--above {above} is below {floor}, where the backup itself stands: name the highest lease_seq that you know of"
    )]
    BelowBackup { above: u64, floor: u64 },
    #[error(
        "{} does not read, so it is not known which numbers this backup was restored with. Say --above N: the highest lease_seq that you know of, of any object, from `fencegate_table_floor` in your metrics, the logs of writers, or the Fence-Seq that the store was sent", .0.display()
    )]
    NoteUnreadable(PathBuf),
    #[error("the system has no random numbers to give: {0}")]
    Random(String),
    #[error(transparent)]
    Epoch(#[from] EpochFault),
    #[error(transparent)]
    Table(#[from] TableFault),
    #[error(transparent)]
    Key(#[from] KeyFault),
    #[error("{}: {error}", .path.display())]
    Io { path: PathBuf, error: io::Error },
}

/// Why a data folder does not know which numbers were used since a backup was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Unknown {
    #[error("has no epoch and no table that reads")]
    Nothing,
    #[error("belongs to another table than this backup")]
    Foreign,
    #[error(
        "is not known to be of this backup's table, since one of them was made by a version that gave tables no name"
    )]
    Unnamed,
    #[error("is older than this backup, or than a restore of it; a volume that was put back from a snapshot is")]
    Older,
}

/// Copies a table that is open into a new folder.
///
/// # Errors
/// When the folder exists already or cannot be written.
pub fn create(table: &dyn Table, folder: &Path) -> Result<(), BackupFault> {
    if folder.exists() {
        return Err(BackupFault::Exists(folder.to_owned()));
    }
    table.checkpoint(folder)?;
    // Some files of the copy are the table's own files under another name. The copy is closed to other users,
    // whatever modes those files have.
    private::close(folder).and_then(|()| sync_parent(folder)).map_err(at(folder))
}

/// What a restore made.
#[derive(Debug)]
pub struct Restored {
    pub incarnation: Incarnation,
    /// The new place of the table that was set aside, if there was one.
    pub set_aside: Option<PathBuf>,
    /// Why the number of the restore could not be written into the backup, if it could not.
    pub not_noted: Option<io::Error>,
}

/// How to restore.
#[derive(Clone, Copy, Debug, Default)]
pub struct How {
    /// Set the present table aside.
    pub replace: bool,
    /// The operator says that no lease had a higher number.
    pub above: Option<u64>,
}

/// Puts a backup where the gate's table belongs, as a new incarnation under a new key.
///
/// # Errors
/// When the backup cannot be read, a table exists and `replace` is not set, or it is unknown which numbers were
/// used. The old table is then unchanged, unless a rename failed: then the restore must be run again.
pub fn restore(backup: &Path, data: &Path, how: How, now: Now) -> Result<Restored, BackupFault> {
    if !RocksTable::exists(backup) {
        return Err(BackupFault::NoBackup(backup.to_owned()));
    }
    let target = table_folder(data);
    // Checked before the lock is taken, so that an operator learns of `--replace` before a gate must be stopped.
    is_taken(data, &target, how)?;
    let lock = DataLock::take(data).map_err(at(data))?;
    let _lock = lock.ok_or_else(|| BackupFault::InUse(data.to_owned()))?;
    // Checked again under the lock: another restore may have put its table there meanwhile.
    let is_there = is_taken(data, &target, how)?;
    let used = Used::find(backup, data, how.above)?;
    let mut staged = Staged::new(data);
    staged.fill(backup)?;
    let begun = staged.begin_incarnation(&used, data, now)?;
    // Up to here nothing of the old table has changed. From here on, a crash leaves a folder without a table: no
    // gate starts in it, and a restore begins anew. The epoch rises while no table is in place, because a table
    // below the epoch is not the newest.
    staged.is_wanted = true;
    let set_aside = if is_there { Some(put_aside(data, &target)?) } else { None };
    epoch::set(data, begun)?;
    let incarnation = begun.incarnation;
    let noted = note(backup, incarnation).err();
    put(&staged.key, &key_path(data)).map_err(at(data))?;
    put(&staged.table, &target).map_err(at(data))?;
    Ok(Restored { incarnation, set_aside, not_noted: noted })
}

/// Whether a table exists, which is to be set aside.
fn is_taken(data: &Path, target: &Path, how: How) -> Result<bool, BackupFault> {
    match target.exists() {
        true if !how.replace => Err(BackupFault::TableExists(data.to_owned())),
        is_there => Ok(is_there),
    }
}

/// The floor that this backup was last restored with, in its folder; earlier versions wrote an incarnation's number.
const RESTORED_AS: &str = "RESTORED_AS";

fn at(path: &Path) -> impl Fn(io::Error) -> BackupFault {
    let path = path.to_owned();
    move |error| BackupFault::Io { path: path.clone(), error }
}

/// Writes into a backup what it was restored as, so that its next restore is above that.
fn note(backup: &Path, incarnation: Incarnation) -> io::Result<()> {
    write_whole(&backup.join(RESTORED_AS), incarnation.floor().to_string().as_bytes())
}

/// What a backup was restored as, by its own note. A note that cannot be read, as a restore in an earlier version
/// could leave when it was cut short, needs `above` from the operator.
fn restored_as(backup: &Path, above: Option<u64>) -> Result<Incarnation, BackupFault> {
    let path = backup.join(RESTORED_AS);
    let text = match fs::read(&path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Incarnation::default()),
        Err(error) => return Err(at(&path)(error)),
    };
    let said: u64 = match (text.trim().parse(), above) {
        (Ok(said), _) => said,
        (Err(_), Some(_)) => return Ok(Incarnation::default()),
        (Err(_), None) => return Err(BackupFault::NoteUnreadable(path)),
    };
    // Every floor of a restored table is higher than the number of any incarnation.
    let number = u32::try_from(said).ok().filter(|number| *number <= Incarnation::LAST.number());
    Ok(number.map_or(Incarnation::at(said), Incarnation::new))
}

/// Which numbers this folder and this backup say were used, and the longest bound of writes of a table in this
/// folder.
struct Used {
    /// The highest incarnation of all, also of other tables: that only skips numbers.
    incarnation: Incarnation,
    /// What the backup was restored as.
    restored_as: Incarnation,
    /// The folder's own epoch, or that of its newest table.
    folder: Option<Epoch>,
    /// How often a gate was started on this folder's table, as far as the table or the epoch has it.
    newest_run: Option<u64>,
    above: Option<u64>,
    run: u64,
    bound_ms: u64,
}

impl Used {
    fn find(backup: &Path, data: &Path, above: Option<u64>) -> Result<Self, BackupFault> {
        let restored_as = restored_as(backup, above)?;
        let mut used = Self {
            incarnation: restored_as.max(Incarnation::at(above.unwrap_or_default())),
            restored_as,
            folder: None,
            newest_run: None,
            above,
            run: 0,
            bound_ms: 0,
        };
        let (mut newest, mut aside, mut all_read) = (None, None, true);
        for entry in fs::read_dir(data).map_err(at(data))? {
            let entry = entry.map_err(at(data))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name == "table" {
                newest = used.add_table(&entry.path());
            } else if name.starts_with(REPLACED) {
                let found = used.add_table(&entry.path());
                all_read &= found.is_some();
                aside = [aside, found].into_iter().flatten().max_by_key(|epoch| epoch.incarnation);
            }
        }
        // A restore that was cut short has set the newest table aside.
        let is_cut = without_table(data).map_err(at(data))? == Without::Restore && !table_folder(data).exists();
        used.folder = match epoch::read(data) {
            Ok(Some(epoch)) => {
                used.incarnation = used.incarnation.max(epoch.incarnation);
                used.run = used.run.max(epoch.run);
                Some(epoch)
            }
            // The folder is older than epochs, so its newest table counts.
            Ok(None) => newest.or(aside.filter(|_| is_cut && all_read)),
            Err(EpochFault::Unreadable { .. }) => None,
            Err(fault) => return Err(fault.into()),
        };
        let epochs_run = used.folder.map(|epoch| epoch.run).filter(|run| *run > 0);
        used.newest_run = newest.map(|epoch| epoch.run).max(epochs_run);
        Ok(used)
    }

    /// Adds a table of this folder, if it can be read: its incarnation and its runs. Returns both.
    fn add_table(&mut self, folder: &Path) -> Option<Epoch> {
        match RocksTable::open_to_salvage(folder).and_then(|table| read_meta(&table)) {
            Ok(Some(Meta { incarnation, run, fingerprint, lineage, .. })) => {
                self.incarnation = self.incarnation.max(incarnation);
                self.run = self.run.max(run);
                self.bound_ms = self.bound_ms.max(fingerprint.bound_ms);
                Some(Epoch { incarnation, lineage, run })
            }
            Ok(None) | Err(_) => None,
        }
    }

    /// Checks that the operator or the folder limits the numbers that this backup's table can have used.
    fn is_known_of(&self, backup: &Meta) -> Result<(), Unknown> {
        if self.above.is_some() {
            return Ok(());
        }
        let folder = self.folder.ok_or(Unknown::Nothing)?;
        match (folder.lineage, backup.lineage) {
            (Some(own), Some(its)) if own == its => {}
            (Some(_), Some(_)) => return Err(Unknown::Foreign),
            (None, _) | (_, None) => return Err(Unknown::Unnamed),
        }
        let is_behind = folder.incarnation < backup.incarnation.max(self.restored_as);
        // In the same incarnation, a table with fewer starts is an older copy.
        let is_older = folder.incarnation == backup.incarnation && self.newest_run.is_some_and(|run| run < backup.run);
        if is_behind || is_older { Err(Unknown::Older) } else { Ok(()) }
    }
}

/// A new table and its key, beside the present ones. Dropped, they are removed, unless they are wanted.
struct Staged {
    table: PathBuf,
    key: PathBuf,
    is_wanted: bool,
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.is_wanted {
            // Files that remain are removed by the next restore.
            let _ = clear(&self.table).and_then(|()| clear(&self.key));
        }
    }
}

impl Staged {
    fn new(data: &Path) -> Self {
        let staged = |name: &str| data.join(format!("{name}{RESTORING}"));
        Self { table: staged("table"), key: staged("key"), is_wanted: false }
    }

    fn fill(&self, backup: &Path) -> Result<(), BackupFault> {
        clear(&self.table).map_err(at(&self.table))?;
        clear(&self.key).map_err(at(&self.key))?;
        copy(backup, &self.table).map_err(at(&self.table))
    }

    /// Gives the copy its own incarnation and key.
    fn begin_incarnation(&self, used: &Used, data: &Path, now: Now) -> Result<Epoch, BackupFault> {
        let (table, _) = RocksTable::open(&self.table)?;
        let meta = read_meta(&table)?.ok_or_else(|| BackupFault::NoBackup(self.table.clone()))?;
        if let Some(above) = used.above.filter(|above| *above < meta.incarnation.floor().get()) {
            return Err(BackupFault::BelowBackup { above, floor: meta.incarnation.floor().get() });
        }
        used.is_known_of(&meta).map_err(|why| {
            let floor = meta.incarnation.max(used.incarnation).floor().get();
            BackupFault::FloorUnknown { data: data.to_owned(), why, floor }
        })?;
        let lot = getrandom::u64().map_err(|error| BackupFault::Random(error.to_string()))?;
        let below = meta.incarnation.max(used.incarnation).max(by_the_clock(now));
        let incarnation = below.drawn(lot).ok_or(BackupFault::Exhausted)?;
        let key = key_file::create(&self.key)?;
        let run = meta.run.max(used.run);
        // The routes of all those writes are not known.
        let fingerprint =
            RouteFingerprint { bound_ms: meta.fingerprint.bound_ms.max(used.bound_ms), ..RouteFingerprint::default() };
        // A backup of an earlier version has no name, so the table restored from it gets a new one.
        let lineage = Some(meta.lineage.map_or_else(Lineage::draw, Ok).map_err(at(&self.table))?);
        let key_fingerprint = key.fingerprint();
        let meta = Meta { incarnation, run, clean: false, key_fingerprint, fingerprint, broken_run: run, lineage };
        write_meta(&table, &meta, read_mark(&table)?)?;
        table.flush()?;
        drop(table);
        RocksTable::tail_is_made_up_for(&self.table).map_err(at(&self.table))?;
        Ok(Epoch { incarnation, lineage, run })
    }
}

/// Hours since 2026, as an incarnation's number: earlier versions began with it. No promise depends on it. Where
/// the clock is right and the operator's number was not, a later restore is still above an earlier one.
fn by_the_clock(now: Now) -> Incarnation {
    const START_MS: u64 = 1_767_225_600_000;
    const CENTURY: u64 = 876_000;
    let hours = now.wall.0.saturating_sub(START_MS) / 3_600_000;
    // The hours of a clock that is far ahead would only skip numbers.
    let hours = u32::try_from(hours).ok().filter(|hours| now.is_plausible() && u64::from(*hours) < CENTURY);
    hours.map_or(Incarnation::default(), Incarnation::new)
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    private::create_folder(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(RESTORED_AS) {
            continue;
        }
        let copied = to.join(entry.file_name());
        fs::copy(entry.path(), &copied)?;
        fs::set_permissions(&copied, fs::Permissions::from_mode(0o600))?;
        fs::File::open(&copied)?.sync_all()?;
    }
    fs::File::open(to)?.sync_all()
}

fn put_aside(data: &Path, target: &Path) -> Result<PathBuf, BackupFault> {
    let is_free = |aside: &PathBuf| !aside.exists();
    let aside = (1..=u16::MAX).map(|n| data.join(format!("{REPLACED}{n}"))).find(is_free);
    let aside = aside.ok_or(BackupFault::Exhausted)?;
    // The next start refuses files that cannot be closed here; a restore does not wait for that.
    let _ = private::take_all_from_all(target);
    put(target, &aside).map_err(at(&aside))?;
    Ok(aside)
}
