//! An issuer's secret key in a file: one line of hexadecimal digits, mode 0600 or it is not used.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
};

use thiserror::Error;

use super::bls::SecretKey;
use crate::files::sync_parent;

/// Why a key file is not used. The message never contains the file's text.
#[derive(Debug, Error)]
pub enum KeyFileFault {
    #[error(
        "{path} can be read by others (mode {mode:03o}); chmod 600 it, and make a new key if others may have read it"
    )]
    Open { path: String, mode: u32 },
    #[error("{path} does not hold a secret key; `fencegate cert keygen` makes one")]
    NotAKey { path: String },
    #[error("{path}: {error}")]
    Io { path: String, error: io::Error },
}

/// The largest size of a key file in bytes.
const MOST: u64 = 256;

/// Writes a new key into a new file. The file is durable when this returns.
///
/// # Errors
/// When the file exists already or cannot be written.
pub fn create(path: &Path, key: &SecretKey) -> Result<(), KeyFileFault> {
    let fault = |error| KeyFileFault::Io { path: path.display().to_string(), error };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(fault)?;
    file.write_all(format!("{}\n", key.expose()).as_bytes()).and_then(|()| file.sync_all()).map_err(fault)?;
    sync_parent(path).map_err(fault)
}

/// Reads a key.
///
/// # Errors
/// When others can read the file, or it does not hold a key.
pub fn read(path: &Path) -> Result<SecretKey, KeyFileFault> {
    let name = || path.display().to_string();
    let fault = |error| KeyFileFault::Io { path: name(), error };
    let about = fs::metadata(path).map_err(fault)?;
    let mode = about.permissions().mode() & 0o777;
    // The group's bits are not checked: Kubernetes sets them on a Secret with an fsGroup.
    if mode & 0o007 != 0 {
        return Err(KeyFileFault::Open { path: name(), mode });
    }
    if !about.is_file() || about.len() > MOST {
        return Err(KeyFileFault::NotAKey { path: name() });
    }
    let text = fs::read_to_string(path).map_err(fault)?;
    text.trim_end().parse().map_err(|_| KeyFileFault::NotAKey { path: name() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_used_only_if_no_other_user_can_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let key = SecretKey::from_seed(&[7; 32]);
        create(&path, &key).unwrap();
        assert_eq!(read(&path).unwrap(), key);
        assert!(matches!(create(&path, &key), Err(KeyFileFault::Io { .. })), "an existing key is never replaced");
        for mode in [0o604, 0o644, 0o666] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert!(matches!(read(&path), Err(KeyFileFault::Open { mode: found, .. }) if found == mode));
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let zero = format!("0x{}", "00".repeat(32));
        for bad in ["", "0x", "0xzz", zero.as_str(), &"x".repeat(300)] {
            fs::write(&path, bad).unwrap();
            let fault = read(&path).unwrap_err();
            assert!(matches!(fault, KeyFileFault::NotAKey { .. }), "{fault}");
        }
    }
}
