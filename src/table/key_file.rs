//! The table's key: 32 random bytes in a file beside the table, mode 0600.
//!
//! The key is synced before its table exists, and the table keeps the key's fingerprint. So a start notices a key
//! that is missing, short, readable by all users or another table's.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
};

use thiserror::Error;

use crate::{fence::TableKey, files::sync_parent};

/// Why there is no usable key.
#[derive(Debug, Error)]
pub enum KeyFault {
    #[error(
        "the table's key {path} is missing; tokens cannot be checked without it. Bring the file back, or restore a backup of the table, which makes a new key"
    )]
    Missing { path: String },
    #[error("the table's key {path} has {len} bytes instead of {expected}; bring the right file back", expected = TableKey::BYTES)]
    Length { path: String, len: usize },
    #[error(
        "the table's key {path} is open to all users (mode {mode:03o}); chmod 600 it, and restore a backup to get a new key if other users may have read it"
    )]
    Open { path: String, mode: u32 },
    #[error("the table's key {path} cannot be used: {error}")]
    Io { path: String, error: io::Error },
}

/// Makes a new key in a new file, durable when this returns.
///
/// # Errors
/// When the file exists already or cannot be written.
pub fn create(path: &Path) -> Result<TableKey, KeyFault> {
    let fault = |error| KeyFault::Io { path: path.display().to_string(), error };
    let mut bytes = [0; TableKey::BYTES];
    getrandom::fill(&mut bytes).map_err(|error| fault(io::Error::other(error.to_string())))?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(fault)?;
    file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(fault)?;
    sync_parent(path).map_err(fault)?;
    Ok(TableKey::from_bytes(bytes))
}

/// Reads the key.
///
/// # Errors
/// When the key is missing, short, or readable by all users.
pub fn read(path: &Path) -> Result<TableKey, KeyFault> {
    let name = || path.display().to_string();
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(KeyFault::Missing { path: name() }),
        Err(error) => return Err(KeyFault::Io { path: name(), error }),
    };
    let mode = fs::metadata(path).map_err(|error| KeyFault::Io { path: name(), error })?.permissions().mode() & 0o777;
    // Group bits may be set: Kubernetes sets them on volumes with an fsGroup.
    if mode & 0o007 != 0 {
        return Err(KeyFault::Open { path: name(), mode });
    }
    let bytes = <[u8; TableKey::BYTES]>::try_from(bytes)
        .map_err(|bytes| KeyFault::Length { path: name(), len: bytes.len() })?;
    Ok(TableKey::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let made = create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(read(&path).unwrap().fingerprint(), made.fingerprint());
        assert!(matches!(create(&path), Err(KeyFault::Io { .. })), "an existing key is never replaced");
        assert_eq!(read(&path).unwrap().fingerprint(), made.fingerprint());
    }

    #[test]
    fn a_missing_short_or_open_key_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        assert!(matches!(read(&path), Err(KeyFault::Missing { .. })));
        create(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(read(&path), Err(KeyFault::Open { mode: 0o644, .. })));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        for len in [0, 31, 33] {
            fs::write(&path, vec![1; len]).unwrap();
            assert!(matches!(read(&path), Err(KeyFault::Length { len: found, .. }) if found == len));
        }
    }
}
