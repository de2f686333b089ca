//! The epoch: the highest incarnation that a data folder has begun, in a file beside the key.
//!
//! It outlives the table: a folder whose table is lost, damaged or set aside still knows above which numbers the next
//! one has to begin. It is raised, durably, before a table of the new incarnation can be used, so the table is never
//! ahead of it. A table that is behind it is not the newest that this folder has had.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use thiserror::Error;

use super::data_folder::{clear, sync_parent};
use crate::fence::Incarnation;

/// Why the epoch is not known.
#[derive(Debug, Error)]
pub enum EpochFault {
    #[error(
        "{} does not read, so it is not known above which numbers this folder's table has to stay. Copy the table with `fencegate table backup --config FILE --to FOLDER`, and put the copy back with `fencegate table restore --config FILE --from FOLDER --replace --above N`: N is the highest lease_seq that you know of, of any object", .path.display()
    )]
    Unreadable { path: PathBuf },
    #[error("{}: {error}", .path.display())]
    Io { path: PathBuf, error: io::Error },
}

/// The epoch's file.
#[must_use]
pub fn path(data: &Path) -> PathBuf {
    data.join("epoch")
}

/// The highest incarnation that was begun here; `None` where nothing says so.
///
/// # Errors
/// Where the file is there and does not read.
pub fn read(data: &Path) -> Result<Option<Incarnation>, EpochFault> {
    let path = path(data);
    match fs::read(&path) {
        Ok(bytes) => decode(&bytes).map(Some).ok_or(EpochFault::Unreadable { path }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(EpochFault::Io { path, error }),
    }
}

/// Writes down that an incarnation is about to begin, durable when this returns. A higher one stays.
///
/// # Errors
/// Where the file does not read or cannot be written.
pub fn raise(data: &Path, to: Incarnation) -> Result<(), EpochFault> {
    match read(data)? {
        Some(known) if known >= to => Ok(()),
        Some(_) | None => set(data, to),
    }
}

/// The same, whatever is there: for an operator who has said how high it was.
///
/// # Errors
/// Where the file cannot be written.
pub fn set(data: &Path, to: Incarnation) -> Result<(), EpochFault> {
    let (path, new) = (path(data), data.join("epoch.new"));
    let write = || {
        clear(&new)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(encode(to).as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        sync_parent(&path)
    };
    write().map_err(|error| EpochFault::Io { path: path.clone(), error })
}

/// The floor in decimal, and a checksum of it: a flipped bit must not lower it.
fn encode(incarnation: Incarnation) -> String {
    let floor = incarnation.floor().to_string();
    format!("{floor} {:08x}\n", crc32c::crc32c(floor.as_bytes()))
}

fn decode(bytes: &[u8]) -> Option<Incarnation> {
    let text = str::from_utf8(bytes).ok()?;
    let incarnation = Incarnation::at(text.split(' ').next()?.parse().ok()?);
    (encode(incarnation) == text).then_some(incarnation)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn an_epoch_only_rises_and_no_damage_of_it_reads() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        assert_eq!(read(data).unwrap(), None);
        for (to, then) in [(0, 0), (7 << 32, 7 << 32), (5 << 32, 7 << 32), ((7 << 32) + 1, (7 << 32) + 1)] {
            raise(data, Incarnation::at(to)).unwrap();
            assert_eq!(read(data).unwrap(), Some(Incarnation::at(then)));
        }
        assert_eq!(fs::metadata(path(data)).unwrap().permissions().mode() & 0o777, 0o600);
        let whole = fs::read(path(data)).unwrap();
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << bit;
                assert_eq!(decode(&flipped), None, "bit {bit} of byte {at}");
            }
            assert_eq!(decode(&whole[..at]), None, "cut at {at}");
        }
        fs::write(path(data), &whole[1..]).unwrap();
        assert!(matches!(raise(data, Incarnation::LAST), Err(EpochFault::Unreadable { .. })));
        set(data, Incarnation::new(3)).unwrap();
        assert_eq!(read(data).unwrap(), Some(Incarnation::new(3)));
    }
}
