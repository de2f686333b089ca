//! The data folder: `key`, `epoch`, `table/`, and `lock`, which the process that uses the folder holds. `*.new` of
//! an init and `*.restoring` of a restore exist for a while. Tables that a restore has set aside stay:
//! `table.replaced-N`.
//!
//! RocksDB locks its own folder, but not while a table is made, copied or set aside.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

use super::private;
use crate::files::sync_parent;

/// The folder of the table itself.
#[must_use]
pub fn table_folder(data: &Path) -> PathBuf {
    data.join("table")
}

/// The file of the key.
#[must_use]
pub fn key_path(data: &Path) -> PathBuf {
    data.join("key")
}

/// The file of the key of a new table.
#[must_use]
pub fn new_key_path(data: &Path) -> PathBuf {
    data.join("key.new")
}

/// The folder of a new table.
#[must_use]
pub fn new_table_folder(data: &Path) -> PathBuf {
    data.join("table.new")
}

/// The beginning of the names of tables that were set aside.
pub const REPLACED: &str = "table.replaced-";
/// The end of the names of a restore's unfinished files.
pub const RESTORING: &str = ".restoring";

/// What a data folder without a table shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// There never was a table.
    Nothing,
    /// An init was cut short: no gate has run here.
    Init,
    /// A restore was cut short.
    Restore,
    /// There was a table, and it is gone.
    Lost,
}

/// Finds out why a data folder has no table.
///
/// # Errors
/// When the folder cannot be read.
pub fn without_table(data: &Path) -> io::Result<Without> {
    let names: Vec<String> = match fs::read_dir(data) {
        Ok(entries) => {
            entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<io::Result<_>>()?
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => vec![],
        Err(error) => return Err(error),
    };
    let has = |name: &str| names.iter().any(|found| found == name);
    Ok(if names.iter().any(|name| name.ends_with(RESTORING)) {
        Without::Restore
    } else if has("epoch") || has("table") || names.iter().any(|name| name.starts_with(REPLACED)) {
        Without::Lost
    } else if has("table.new") || has("key.new") && !has("key") {
        // The key is put into place last, so it was never used.
        Without::Init
    } else if has("key") {
        Without::Lost
    } else {
        Without::Nothing
    })
}

/// The right to use a data folder. The system takes it back when the process ends, for whatever reason.
#[derive(Debug)]
pub struct DataLock {
    _file: File,
}

impl DataLock {
    /// Takes the folder for this process, and makes it if it does not exist. `None`: another process has it.
    ///
    /// # Errors
    /// When the folder cannot be made or written.
    pub fn take(data: &Path) -> io::Result<Option<Self>> {
        data.parent().map_or(Ok(()), fs::create_dir_all)?;
        match private::create_folder(data) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => sync_parent(data)?,
        }
        let file = File::options().create(true).truncate(false).write(true).mode(0o600).open(data.join("lock"))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_a_table_says_why() {
        let says = |names: &[&str]| {
            let folder = tempfile::tempdir().unwrap();
            for name in names {
                fs::write(folder.path().join(name), "").unwrap();
            }
            without_table(folder.path()).unwrap()
        };
        assert_eq!(without_table(Path::new("/nowhere")).unwrap(), Without::Nothing);
        assert_eq!(says(&["lock", "lost+found"]), Without::Nothing);
        assert_eq!(says(&["key.new"]), Without::Init);
        assert_eq!(says(&["key.new", "table.new"]), Without::Init);
        assert_eq!(says(&["key", "table.new"]), Without::Init);
        for lost in ["key", "epoch", "table", "table.replaced-1"] {
            assert_eq!(says(&[lost]), Without::Lost, "{lost}");
            assert_eq!(says(&[lost, "key.new"]), Without::Lost, "{lost}");
            for cut in ["table.restoring", "key.restoring"] {
                assert_eq!(says(&[lost, cut]), Without::Restore, "{lost} {cut}");
            }
        }
        assert_eq!(says(&["epoch", "key", "table.new"]), Without::Lost);
    }

    #[test]
    fn a_folder_is_one_users_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let mine = DataLock::take(&data).unwrap();
        assert!(mine.is_some() && DataLock::take(&data).unwrap().is_none());
        drop(mine);
        assert!(DataLock::take(&data).unwrap().is_some());
    }
}
