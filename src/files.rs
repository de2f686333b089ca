//! Files and their names, durable when a function returns.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

/// Makes a file's name durable, not just its bytes.
///
/// # Errors
/// When the folder cannot be opened or synced.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => File::open(folder)?.sync_all(),
        Some(_) | None => File::open(".")?.sync_all(),
    }
}

/// Writes a file, durable when this returns. After a crash the file is complete, or as it was before: the bytes are
/// written to `*.new`, which then gets the file's name.
///
/// # Errors
/// When the file cannot be written.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = ending(path, ".new");
    clear(&new)?;
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    sync_parent(path)
}

/// The right to change a file, for one user at a time. The system takes it back when the process ends.
#[derive(Debug)]
pub struct Locked {
    _file: File,
}

impl Locked {
    /// Waits for the right, which is a lock on `*.lock` beside the file. That file stays.
    ///
    /// # Errors
    /// When it cannot be made or locked.
    pub fn beside(path: &Path) -> io::Result<Self> {
        let file = File::options().create(true).truncate(false).write(true).mode(0o600).open(ending(path, ".lock"))?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(Self { _file: file })
    }
}

fn ending(path: &Path, end: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(end);
    PathBuf::from(name)
}

/// Removes a file or folder, if it exists.
///
/// # Errors
/// When it exists and cannot be removed.
pub fn clear(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}
