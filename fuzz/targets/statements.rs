//! Bytes that are said to be a signed statement: whatever is read is what was written, byte by byte.
#![no_main]

use fencegate::authority::statement::{
    FenceAcknowledged, FenceCertificate, FenceRequest, LeaseActive, LeaseGrant, Signed, Statement,
};
use libfuzzer_sys::fuzz_target;

fn one<T: Statement>(bytes: &[u8]) {
    if let Ok(statement) = T::parse(bytes) {
        assert_eq!(statement.bytes(), bytes, "a statement has one encoding");
    }
    if let Ok(signed) = Signed::<T>::from_bytes(bytes) {
        assert_eq!(signed.to_bytes(), bytes, "a signed statement has one encoding");
    }
}

fuzz_target!(|bytes: &[u8]| {
    one::<FenceRequest>(bytes);
    one::<FenceCertificate>(bytes);
    one::<FenceAcknowledged>(bytes);
    one::<LeaseGrant>(bytes);
    one::<LeaseActive>(bytes);
});
