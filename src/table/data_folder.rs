//! The data folder: `key`, `table/`, and `lock`, which whoever uses the folder holds.
//!
//! RocksDB locks its own folder, but not while one is being made, copied or set aside.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

/// The folder of the table proper.
#[must_use]
pub fn table_folder(data: &Path) -> PathBuf {
    data.join("table")
}

/// The key's file.
#[must_use]
pub fn key_path(data: &Path) -> PathBuf {
    data.join("key")
}

/// The right to use a data folder. The system takes it back when the process ends, however it ends.
#[derive(Debug)]
pub struct DataLock {
    _file: File,
}

impl DataLock {
    /// Takes the folder for this process, and makes it if there is none. `None`: another process has it.
    ///
    /// # Errors
    /// Where the folder cannot be made or written.
    pub fn take(data: &Path) -> io::Result<Option<Self>> {
        fs::create_dir_all(data)?;
        sync_parent(data)?;
        let file = File::options().create(true).truncate(false).write(true).open(data.join("lock"))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Makes a file's name durable, not just its bytes.
///
/// # Errors
/// Where the folder cannot be opened or synced.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => File::open(folder)?.sync_all(),
        Some(_) | None => File::open(".")?.sync_all(),
    }
}

/// Removes a file or folder, if it is there.
///
/// # Errors
/// Where it is there and cannot be removed.
pub fn clear(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
