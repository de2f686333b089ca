//! Who may read the table and its copies: only the gate's user. They hold request ids and stored answers.
//!
//! New files get mode 0600, and new folders 0700. Earlier versions left files that all users may read: they are
//! closed when a run begins, and when a table is set aside. Group bits may be set: Kubernetes sets them on volumes
//! with an fsGroup.

use std::{
    fs::{self, DirBuilder, DirEntry, Metadata, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use rustix::{fs::Mode, process};
use thiserror::Error;

/// The bits of users who are neither the owner nor in the group.
const OTHER_USERS: u32 = 0o007;

/// Files that all users may read, and that cannot be closed.
#[derive(Debug, Error)]
#[error("{} is open to all users (mode {mode:03o}), and holds data that only the gate may read; this process may not change that: {error}. Run chmod -R o-rwx on it, as its owner", .path.display())]
pub struct OpenToAll {
    path: PathBuf,
    mode: u32,
    error: io::Error,
}

/// Makes all new files of this process private to its user: RocksDB has no setting for the modes of its files.
pub fn keep_to_ourselves() {
    process::umask(Mode::RWXG | Mode::RWXO);
}

/// Makes a folder for this user only.
///
/// # Errors
/// When it exists already or cannot be made.
pub fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// Closes a folder and its content to all other users.
///
/// # Errors
/// When its modes cannot be changed.
pub fn close(folder: &Path) -> io::Result<()> {
    fs::set_permissions(folder, Permissions::from_mode(0o700))?;
    for file in inside(folder)? {
        fs::set_permissions(file, Permissions::from_mode(0o600))?;
    }
    Ok(())
}

/// Takes the rights of all other users on a data folder's tables away: on the present table, and on those that were
/// set aside. Returns what was open.
///
/// # Errors
/// With the path that is open and cannot be closed.
pub fn repair(data: &Path, table: &Path) -> Result<Vec<PathBuf>, OpenToAll> {
    let mut closed = vec![];
    // The parent folder may be the platform's, such as the root of a volume: then it is not changed.
    if is_ours(data) {
        closed.extend(take_from_all(data)?);
    }
    closed.extend(take_all_from_all(table)?);
    for aside in others(data) {
        closed.extend(take_all_from_all(&aside)?);
    }
    Ok(closed)
}

/// Takes the rights of all other users on a table away: on its folder, and on each file in it.
///
/// # Errors
/// With the path that is open and cannot be closed.
pub fn take_all_from_all(table: &Path) -> Result<Vec<PathBuf>, OpenToAll> {
    let mut closed: Vec<PathBuf> = take_from_all(table)?.into_iter().collect();
    let unreadable = |error| OpenToAll { path: table.to_owned(), mode: 0, error };
    for file in inside(table).map_err(unreadable)? {
        closed.extend(take_from_all(&file)?);
    }
    Ok(closed)
}

/// Tables that were set aside or are being made. A folder that this process cannot read is closed to others too.
fn others(data: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(data).into_iter().flatten().flatten();
    let is_table = |entry: &DirEntry| entry.file_name().to_string_lossy().starts_with("table.");
    entries.filter(is_table).map(|entry| entry.path()).filter(|path| fs::read_dir(path).is_ok()).collect()
}

fn is_ours(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.uid() == process::geteuid().as_raw())
}

/// `None`: it was closed already, or no longer exists.
fn take_from_all(path: &Path) -> Result<Option<PathBuf>, OpenToAll> {
    let Ok(mode) = fs::metadata(path).map(|found| found.mode() & 0o7777) else { return Ok(None) };
    if mode & OTHER_USERS == 0 {
        return Ok(None);
    }
    match fs::set_permissions(path, Permissions::from_mode(mode & !OTHER_USERS)) {
        Ok(()) => Ok(Some(path.to_owned())),
        Err(error) => Err(OpenToAll { path: path.to_owned(), mode: mode & 0o777, error }),
    }
}

/// The files of a folder; RocksDB makes no folders inside its own.
fn inside(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = vec![];
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.metadata().is_ok_and(|found: Metadata| found.is_file()) {
            files.push(entry.path());
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn what_is_open_to_all_is_closed_and_the_group_keeps_its_rights() {
        let folder = tempfile::tempdir().unwrap();
        let (data, table) = (folder.path(), folder.path().join("table"));
        create_folder(&table).unwrap();
        assert_eq!(mode(&table), 0o700);
        let file = table.join("000004.sst");
        fs::write(&file, "").unwrap();
        for (path, open) in [(data, 0o2775), (&table, 0o755), (&file, 0o664)] {
            fs::set_permissions(path, Permissions::from_mode(open)).unwrap();
        }
        let aside = folder.path().join("table.replaced-1");
        let old = aside.join("000003.sst");
        fs::create_dir(&aside).unwrap();
        fs::write(&old, "").unwrap();
        for (path, open) in [(&aside, 0o755), (&old, 0o644)] {
            fs::set_permissions(path, Permissions::from_mode(open)).unwrap();
        }
        fs::write(data.join("table.txt"), "no table").unwrap();
        assert_eq!(repair(data, &table).unwrap(), [data, &table, &file, &aside, &old]);
        assert_eq!((mode(data), mode(&table), mode(&file)), (0o2770, 0o750, 0o660));
        assert_eq!((mode(&aside), mode(&old)), (0o750, 0o640));
        assert!(repair(data, &table).unwrap().is_empty());
        close(&table).unwrap();
        assert_eq!((mode(&table), mode(&file)), (0o700, 0o600));
    }

    #[test]
    fn what_cannot_be_closed_is_named() {
        // Even root cannot change the modes there.
        let table = Path::new("/proc/sys/kernel");
        let said = repair(Path::new("/nowhere"), table).unwrap_err().to_string();
        assert!(said.contains("/proc/sys/kernel is open to all users (mode 555)"), "{said}");
        assert!(said.contains("chmod -R o-rwx"), "{said}");
    }
}
