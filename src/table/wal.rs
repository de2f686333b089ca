//! Looking for zeros in RocksDB's write-ahead logs before RocksDB does.
//!
//! A log is a row of 32 KiB blocks; a record in it has a header of 7 bytes (checksum, length, type)
//! and never crosses a block's end. RocksDB takes a header of zeros for the unused rest of a block and
//! goes on behind it without a word, in every recovery mode: records that a disk has turned into
//! zeros would be forgotten in silence. No writer of ours leaves such a hole, so one is damage.

use std::{fs, path::Path};

use super::TableFault;

const BLOCK: usize = 32 * 1024;
const HEADER: usize = 7;

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Zeros {
    Nowhere,
    /// This log has nothing but zeros from some record on: its tail is lost.
    AtTheEnd(String),
}

/// Looks through all logs of a table.
///
/// # Errors
/// Where a log cannot be read, or has zeros with records behind them.
pub(super) fn look_for_zeros(folder: &Path) -> Result<Zeros, TableFault> {
    let unreadable = |error: std::io::Error| TableFault::Read(error.to_string());
    let mut found = Zeros::Nowhere;
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_none_or(|extension| extension != "log") {
            continue;
        }
        let log = fs::read(&path).map_err(unreadable)?;
        let name = || path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match first_hole(&log) {
            None => {}
            Some(hole) if log[hole..].iter().all(|byte| *byte == 0) => found = Zeros::AtTheEnd(name()),
            Some(hole) => return Err(TableFault::Corrupt(format!("{} has zeros at byte {hole}", name()))),
        }
    }
    Ok(found)
}

/// Where a header of zeros stands that is not the unused rest of a block.
fn first_hole(log: &[u8]) -> Option<usize> {
    let mut at = 0;
    while at + HEADER <= log.len() {
        let left_in_block = BLOCK - at % BLOCK;
        if left_in_block < HEADER {
            at += left_in_block;
            continue;
        }
        let header = &log[at..at + HEADER];
        let length = usize::from(u16::from_le_bytes([header[4], header[5]]));
        if length == 0 && header[6] == 0 {
            return Some(at);
        }
        at += HEADER + length;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(length: u8) -> Vec<u8> {
        let mut record = vec![1, 2, 3, 4, length, 0, 1];
        record.resize(HEADER + usize::from(length), 9);
        record
    }

    #[test]
    fn a_hole_is_found_and_the_rest_of_a_block_is_none() {
        let three = [record(10), record(20), record(30)].concat();
        assert_eq!(first_hole(&three), None);
        assert_eq!(first_hole(&[]), None);
        let mut holed = three.clone();
        holed[17..24].fill(0);
        assert_eq!(first_hole(&holed), Some(17));
        let mut tail = three.clone();
        tail.resize(tail.len() + 50, 0);
        assert_eq!(first_hole(&tail), Some(three.len()));
        // A block whose last five bytes are not enough for a header.
        let mut block = vec![];
        while block.len() + HEADER + 100 < BLOCK {
            block.extend(record(100));
        }
        let rest = u8::try_from(BLOCK - block.len() - HEADER - 5).unwrap();
        block.extend(record(rest));
        block.extend([0; 5]);
        assert_eq!(block.len(), BLOCK);
        block.extend(record(3));
        assert_eq!(first_hole(&block), None);
    }
}
