//! Bytes that are said to be a row of the table: whatever is read is what was written, byte by byte.
#![no_main]

use fencegate::{
    fence::{BootMs, Incarnation, LeaseSeq, Now, ObjectId, TableKey, WallMs, idempotency::IdempotencyKey, time::Frame},
    table::codec::{
        Context, JournalEntry, JournalHead, Key, Meta, MigrationRow, RequestRow, decode_entry, decode_index,
        decode_lease, decode_mark, decode_record, decode_signed, encode_entry, encode_index, encode_lease, encode_mark,
        encode_record, encode_signed,
    },
};
use libfuzzer_sys::fuzz_target;

const RUN: u64 = 7;

fuzz_target!(|bytes: &[u8]| {
    let object = ObjectId::new("users").expect("an id");
    let seq = LeaseSeq::new(1).expect("a number");
    let start = Now { wall: WallMs(1_800_000_000_000), boot: BootMs(90_000) };
    let frame = Frame { run: RUN, start, behind_mark: false };
    let context = Context { frame, incarnation: Incarnation::new(0), key: TableKey::from_bytes([5; 32]) };
    if let Ok(key) = Key::decode(bytes) {
        assert_eq!(key.encode(), bytes);
    }
    if let Ok(meta) = Meta::decode(bytes) {
        assert_eq!(meta.encode(), bytes);
    }
    if let Ok(mark) = decode_mark(bytes) {
        assert_eq!(encode_mark(mark), bytes);
    }
    if let Ok((object, seq)) = decode_index(bytes) {
        assert_eq!(encode_index(&object, seq), bytes);
    }
    if let Ok(record) = decode_record(object.clone(), bytes, &context) {
        // A lease of another run is read by this run's clocks; the second time it is this run's.
        let again = encode_record(&record, RUN);
        assert_eq!(decode_record(object.clone(), &again, &context).as_ref(), Ok(&record));
    }
    if let Ok(row) = decode_lease(object, seq, bytes) {
        assert_eq!(encode_lease(&row), bytes);
    }
    if let Ok(row) = RequestRow::decode(bytes) {
        assert_eq!(row.encode(), bytes);
    }
    if let Ok(row) = MigrationRow::decode(bytes) {
        assert_eq!(row.encode(), bytes);
    }
    if let Ok(head) = JournalHead::decode(bytes) {
        assert_eq!(head.encode(), bytes);
    }
    if let Ok(entry) = JournalEntry::decode(bytes) {
        assert_eq!(entry.encode(), bytes);
    }
    if let Ok(entry) = decode_entry(bytes) {
        assert_eq!(encode_entry(&entry), bytes);
    }
    if let Ok(key) = IdempotencyKey::parse(bytes) {
        assert_eq!(IdempotencyKey::new(key.as_str()).as_ref(), Some(&key));
    }
    if let Ok(signed) = decode_signed(bytes) {
        assert_eq!(encode_signed(&signed), bytes);
    }
});
