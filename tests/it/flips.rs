//! One flipped bit in any record header of a log: it is noticed, or nothing is lost.

use std::{
    fs,
    path::{Path, PathBuf},
};

use fencegate::{
    fence::{LeaseId, LeaseSeq, ObjectId},
    table::{
        Batch, Table,
        codec::{Key, encode_index},
        rocks::{Recovered, RocksTable},
    },
};
use tempfile::TempDir;

const HEADER: usize = 7;
const ROWS: u64 = 12;

fn key(row: u64) -> Key {
    Key::LeaseIndex(LeaseId::new(&format!("lease-{row}")).unwrap())
}

fn commit(table: &RocksTable, rows: std::ops::Range<u64>) {
    for row in rows {
        let mut batch = Batch::default();
        let seq = LeaseSeq::new(row + 1).unwrap();
        batch.put(&key(row), encode_index(&ObjectId::new("object").unwrap(), seq));
        table.commit(batch).unwrap();
    }
}

/// A table with half of its rows in table files, the other half in its log.
fn table() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table");
    let table = RocksTable::create(&path).unwrap();
    commit(&table, 0..ROWS / 2);
    table.flush().unwrap();
    commit(&table, ROWS / 2..ROWS);
    (folder, path)
}

fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// The offsets of a log's records. The logs here are shorter than a block.
fn headers(log: &[u8]) -> Vec<usize> {
    let next = |at: usize| at + HEADER + usize::from(u16::from_le_bytes([log[at + 4], log[at + 5]]));
    std::iter::successors(Some(0), |at| Some(next(*at)).filter(|at| at + HEADER <= log.len())).collect()
}

/// The file of a table whose name begins or ends like this; the newest of several.
fn file(folder: &Path, part: &str) -> PathBuf {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> = names
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            name.starts_with(part) || name.ends_with(part)
        })
        .collect();
    found.sort();
    found.pop().unwrap_or_else(|| panic!("no {part}"))
}

/// Flips each bit of each header of a log. Returns how often the gate noticed it, and how often not.
fn flip_every_header_bit(part: &str) -> (usize, usize) {
    let (folder, path) = table();
    let log = fs::read(file(&path, part)).unwrap();
    let headers = headers(&log);
    assert!(headers.len() >= 4, "{part} has {} records", headers.len());
    let flipped = folder.path().join("flipped");
    let (mut noticed, mut harmless) = (0, 0);
    for bit in headers.into_iter().flat_map(|at| at * 8..(at + HEADER) * 8) {
        copy(&path, &flipped);
        let mut damaged = log.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        fs::write(file(&flipped, part), damaged).unwrap();
        match RocksTable::open(&flipped) {
            Err(_) | Ok((_, Recovered::TailLost { .. })) => noticed += 1,
            Ok((table, Recovered::Whole)) => {
                let lost: Vec<_> = (0..ROWS).filter(|row| table.get(&key(*row).encode()).unwrap().is_none()).collect();
                assert!(lost.is_empty(), "{part}, bit {bit}: rows {lost:?} are gone without a notice");
                harmless += 1;
            }
        }
    }
    (noticed, harmless)
}

#[test]
fn no_flipped_bit_of_a_manifests_record_header_makes_rows_vanish_in_silence() {
    let (noticed, harmless) = flip_every_header_bit("MANIFEST-");
    assert!(noticed > 4 * 50, "{noticed} noticed, {harmless} harmless");
}

#[test]
fn no_flipped_bit_of_a_logs_record_header_makes_rows_vanish_in_silence() {
    let (noticed, harmless) = flip_every_header_bit(".log");
    assert!(noticed > 4 * 50, "{noticed} noticed, {harmless} harmless");
}
