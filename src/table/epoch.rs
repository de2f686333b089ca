//! The epoch: the highest incarnation and the last run that a data folder has begun, in a file beside the key.
//!
//! The epoch outlives the table: a folder whose table is lost, damaged or set aside still knows above which numbers
//! the next table has to begin. The epoch's incarnation is raised, durably, before a table of that incarnation can
//! be used, so the table is never ahead of it. The epoch's run is raised once the table has it, durably, and before
//! that run changes anything: a start that is cut short in between leaves the table ahead, with nothing changed. So
//! a table that is behind in incarnation or run is not the newest of this folder. The epoch names its table, and
//! says nothing about another one.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use thiserror::Error;

use super::lineage::Lineage;
use crate::{fence::Incarnation, files::write_whole};

/// What was begun in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    pub incarnation: Incarnation,
    /// The table's name; `None` where an earlier version has written the epoch.
    pub lineage: Option<Lineage>,
    /// How often a gate was started on that table; 0 where an earlier version has written the epoch.
    pub run: u64,
}

/// Why the epoch is not known.
#[derive(Debug, Error)]
pub enum EpochFault {
    #[error(
        "{} does not read, so it is unknown above which numbers this folder's table must stay. Copy the table with `fencegate table backup --config FILE --to FOLDER`, and put the copy back with `fencegate table restore --config FILE --from FOLDER --replace --above N`: N is the highest lease_seq that you know of, of any object", .path.display()
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

/// The highest incarnation that was begun here; `None` where there is no epoch.
///
/// # Errors
/// When the file exists and cannot be read.
pub fn read(data: &Path) -> Result<Option<Epoch>, EpochFault> {
    let path = path(data);
    match fs::read(&path) {
        Ok(bytes) => decode(&bytes).map(Some).ok_or(EpochFault::Unreadable { path }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(EpochFault::Io { path, error }),
    }
}

/// Notes that an incarnation of a table is about to begin, or that a run of it has begun. Durable when this
/// returns. Never lowers the epoch.
///
/// # Errors
/// When the file cannot be read or written.
pub fn raise(data: &Path, to: Epoch) -> Result<(), EpochFault> {
    match read(data)? {
        Some(known) if known.lineage == to.lineage && known.incarnation >= to.incarnation && known.run >= to.run => {
            Ok(())
        }
        Some(known) => {
            let incarnation = known.incarnation.max(to.incarnation);
            let is_its = known.lineage.is_none() || known.lineage == to.lineage;
            set(data, Epoch { incarnation, run: if is_its { known.run.max(to.run) } else { to.run }, ..to })
        }
        None => set(data, to),
    }
}

/// Writes the epoch whatever it was: for an operator who has said how high it was.
///
/// # Errors
/// When the file cannot be written.
pub fn set(data: &Path, to: Epoch) -> Result<(), EpochFault> {
    let path = path(data);
    write_whole(&path, encode(to).as_bytes()).map_err(|error| EpochFault::Io { path, error })
}

/// The floor in decimal, the table's name and run where there are any, and a checksum: a flipped bit must not lower
/// the floor.
fn encode(Epoch { incarnation, lineage, run }: Epoch) -> String {
    let floor = incarnation.floor();
    let said = match lineage {
        None => floor.to_string(),
        Some(lineage) if run == 0 => format!("{floor} {lineage}"),
        Some(lineage) => format!("{floor} {lineage} {run}"),
    };
    format!("{said} {:08x}\n", crc32c::crc32c(said.as_bytes()))
}

fn decode(bytes: &[u8]) -> Option<Epoch> {
    let text = str::from_utf8(bytes).ok()?;
    let (said, _) = text.rsplit_once(' ')?;
    let mut words = said.split(' ');
    let incarnation = Incarnation::at(words.next()?.parse().ok()?);
    let lineage = words.next().map(str::parse).transpose().ok()?;
    let run = words.next().map_or(Ok(0), str::parse).ok()?;
    let epoch = Epoch { incarnation, lineage, run };
    (encode(epoch) == text).then_some(epoch)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const OWN: Option<Lineage> = Some(Lineage::from_bytes([0xa7; 16]));

    fn at(floor: u64) -> Epoch {
        Epoch { incarnation: Incarnation::at(floor), lineage: OWN, run: 12 }
    }

    #[test]
    fn an_epoch_only_rises_and_no_damage_of_it_reads() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        assert_eq!(read(data).unwrap(), None);
        for (to, then) in [(0, 0), (7 << 32, 7 << 32), (5 << 32, 7 << 32), ((7 << 32) + 1, (7 << 32) + 1)] {
            raise(data, at(to)).unwrap();
            assert_eq!(read(data).unwrap(), Some(at(then)));
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
        assert!(matches!(raise(data, at(u64::MAX)), Err(EpochFault::Unreadable { .. })));
        set(data, at(3 << 32)).unwrap();
        assert_eq!(read(data).unwrap(), Some(at(3 << 32)));
    }

    #[test]
    fn an_epoch_of_before_there_were_names_reads_and_gets_one_without_falling() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        // As earlier versions wrote it: the floor, and its checksum.
        let floor = (3_u64 << 32).to_string();
        fs::write(path(data), format!("{floor} {:08x}\n", crc32c::crc32c(floor.as_bytes()))).unwrap();
        assert_eq!(read(data).unwrap(), Some(Epoch { lineage: None, run: 0, ..at(3 << 32) }));
        raise(data, at(1 << 32)).unwrap();
        assert_eq!(read(data).unwrap(), Some(at(3 << 32)));
    }

    #[test]
    fn a_run_only_rises_for_one_table() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        for (run, then) in [(0, 0), (1, 1), (7, 7), (3, 7), (8, 8)] {
            raise(data, Epoch { run, ..at(1 << 32) }).unwrap();
            assert_eq!(read(data).unwrap(), Some(Epoch { run: then, ..at(1 << 32) }));
        }
        // As a version before this one wrote it.
        set(data, Epoch { run: 0, ..at(1 << 32) }).unwrap();
        assert_eq!(fs::read_to_string(path(data)).unwrap().split(' ').count(), 3);
        raise(data, Epoch { run: 5, ..at(1 << 32) }).unwrap();
        assert_eq!(read(data).unwrap(), Some(Epoch { run: 5, ..at(1 << 32) }));
        let other = Epoch { lineage: Some(Lineage::from_bytes([1; 16])), run: 2, ..at(0) };
        raise(data, other).unwrap();
        assert_eq!(read(data).unwrap(), Some(Epoch { incarnation: Incarnation::at(1 << 32), ..other }));
    }
}
