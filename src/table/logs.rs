//! Checks RocksDB's logs before RocksDB reads them: its write-ahead logs, and the manifest, which is a log too.
//!
//! A log is a sequence of 32 KiB blocks. A record in it has a header of 7 bytes (checksum, length, type) and never
//! crosses a block's end. RocksDB's own reader silently skips some damage in every recovery mode. These are found
//! here first:
//! - RocksDB reads a header of zeros as the unused rest of a block, and goes on behind it: records that a disk has
//!   turned into zeros would be forgotten.
//! - A type that belongs to recycled logs (one flipped bit) silently ends a log, or makes the reader loop for ever.
//!   The gate's logs are never recycled.
//! - RocksDB takes a record of the manifest that is longer than the file for an unfinished one. If its checksum
//!   shows that it is complete and only its length is wrong, table files and all their rows would be forgotten.

use std::{fs, path::Path};

use super::TableFault;

const BLOCK: usize = 32 * 1024;
const HEADER: usize = 7;
/// The types that a writer without recycling makes: whole, first, middle, last; the compression, the timestamps,
/// the log before.
const TYPES: [u8; 7] = [1, 2, 3, 4, 9, 10, 130];

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// No damage, or damage that RocksDB finds itself.
    Nothing,
    /// This log has only zeros from some record on: its tail is lost.
    ZerosAtTheEnd(String),
}

/// Checks all logs of a table.
///
/// # Errors
/// When one cannot be read, or is damaged in a way that RocksDB does not report.
pub(super) fn scan(folder: &Path) -> Result<Found, TableFault> {
    let unreadable = |error: std::io::Error| TableFault::Read(error.to_string());
    let mut found = Found::Nothing;
    let current = fs::read_to_string(folder.join("CURRENT")).map_err(unreadable)?;
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // Older manifests are not used.
        let is_manifest = name == current.trim_end();
        if !is_manifest && path.extension().is_none_or(|extension| extension != "log") {
            continue;
        }
        let log = fs::read(&path).map_err(unreadable)?;
        let corrupt = |at: usize, what: &str| TableFault::Corrupt(format!("{name} {what} at byte {at}"));
        match walk(&log) {
            Walk::Zeros(at) if log[at..].iter().any(|byte| *byte != 0) => return Err(corrupt(at, "has zeros")),
            Walk::Zeros(_) => found = Found::ZerosAtTheEnd(name),
            Walk::Foreign(at) => return Err(corrupt(at, "has a record of an unknown kind")),
            Walk::TooLong(at) if is_manifest && is_whole_but_for_its_length(&log[at..]) => {
                return Err(corrupt(at, "has a record whose length is wrong"));
            }
            Walk::End | Walk::TooLong(_) => {}
        }
    }
    Ok(found)
}

/// The end of a walk from header to header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walk {
    End,
    /// A header of zeros that is not the unused rest of a block.
    Zeros(usize),
    Foreign(usize),
    /// A record that is longer than the rest of the file.
    TooLong(usize),
}

fn walk(log: &[u8]) -> Walk {
    let mut at = 0;
    while at + HEADER <= log.len() {
        let left_in_block = BLOCK - at % BLOCK;
        if left_in_block < HEADER {
            at += left_in_block;
            continue;
        }
        let header = &log[at..at + HEADER];
        let length = usize::from(u16::from_le_bytes([header[4], header[5]]));
        match header[6] {
            0 if length == 0 => return Walk::Zeros(at),
            kind if !TYPES.contains(&kind) => return Walk::Foreign(at),
            _ if at + HEADER + length > log.len() => return Walk::TooLong(at),
            _ => at += HEADER + length,
        }
    }
    Walk::End
}

/// Whether a record's checksum fits its bytes in the file, or the beginning of them.
fn is_whole_but_for_its_length(record: &[u8]) -> bool {
    let Some((checksum, rest)) = record.split_first_chunk::<4>() else { return false };
    let stored = u32::from_le_bytes(*checksum);
    let Some((kind, payload)) = rest.get(2..).and_then(<[u8]>::split_first) else { return false };
    let first = crc32c::crc32c(&[*kind]);
    let mut running = first;
    masked(first) == stored
        || payload.iter().any(|byte| {
            running = crc32c::crc32c_append(running, &[*byte]);
            masked(running) == stored
        })
}

/// The form in which RocksDB stores checksums, so that a log within a log does not look like one.
const fn masked(checksum: u32) -> u32 {
    checksum.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(length: u8) -> Vec<u8> {
        let payload = vec![9; usize::from(length)];
        let checksum = masked(crc32c::crc32c_append(crc32c::crc32c(&[1]), &payload));
        [&checksum.to_le_bytes()[..], &[length, 0, 1], &payload].concat()
    }

    #[test]
    fn zeros_are_found_and_the_rest_of_a_block_is_none() {
        let three = [record(10), record(20), record(30)].concat();
        assert_eq!(walk(&three), Walk::End);
        assert_eq!(walk(&[]), Walk::End);
        let mut holed = three.clone();
        holed[17..24].fill(0);
        assert_eq!(walk(&holed), Walk::Zeros(17));
        let mut tail = three.clone();
        tail.resize(tail.len() + 50, 0);
        assert_eq!(walk(&tail), Walk::Zeros(three.len()));
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
        assert_eq!(walk(&block), Walk::End);
    }

    #[test]
    fn a_flipped_type_and_a_flipped_length_are_found_and_half_a_record_is_not_mistaken_for_one() {
        let three = [record(10), record(20), record(30)].concat();
        let mut recycled = three.clone();
        recycled[17 + 6] ^= 4;
        assert_eq!(walk(&recycled), Walk::Foreign(17));
        for bit in [6, 7] {
            let mut longer = three.clone();
            longer[17 + 4] ^= 1 << bit;
            assert_eq!(walk(&longer), Walk::TooLong(17));
            assert!(is_whole_but_for_its_length(&longer[17..]));
        }
        for cut in 45..three.len() {
            let torn = &three[..cut];
            assert!(matches!(walk(torn), Walk::TooLong(44) | Walk::End));
            assert!(!is_whole_but_for_its_length(&torn[44..]), "{cut}");
        }
    }
}
