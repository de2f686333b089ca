//! Reads the fields of signed messages one by one. Each has one spelling, and an error names the field.

use super::{
    bls::PointFault,
    statement::{Kind, Origin},
};
use crate::fence::{Hlc, LeaseSeq, authority::TEXT_MAX, ids::IdFault};

/// A message with a missing or wrong field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonFault {
    pub field: &'static str,
    pub what: String,
    /// It has the form of a signature, but is not one.
    pub is_no_point: bool,
}

impl JsonFault {
    pub(super) fn new(field: &'static str, what: impl std::fmt::Display) -> Self {
        Self { field, what: what.to_string(), is_no_point: false }
    }

    pub(super) fn point(field: &'static str, fault: PointFault) -> Self {
        Self { field, what: fault.to_string(), is_no_point: !fault.is_spelling() }
    }
}

pub(super) type Read<T> = Result<T, JsonFault>;

pub(super) fn kind(given: &str, wanted: Kind) -> Read<()> {
    if given == wanted.name() {
        return Ok(());
    }
    Err(JsonFault::new("type", format!("must be {}", wanted.name())))
}

pub(super) fn id<T>(field: &'static str, made: Result<T, IdFault>) -> Read<T> {
    made.map_err(|fault| JsonFault::new(field, fault))
}

pub(super) fn seq(number: u64) -> Read<LeaseSeq> {
    LeaseSeq::new(number).ok_or_else(|| JsonFault::new("lease_seq", "must be at least 1"))
}

pub(super) fn time(field: &'static str, text: &str) -> Read<Hlc> {
    text.parse().map_err(|fault| JsonFault::new(field, fault))
}

pub(super) fn words(field: &'static str, text: &str) -> Read<String> {
    if text.len() > TEXT_MAX || text.chars().any(char::is_control) {
        return Err(JsonFault::new(field, format!("must be at most {TEXT_MAX} bytes without control characters")));
    }
    Ok(text.to_owned())
}

pub(super) fn origin(cluster_id: &str, key_epoch: u32) -> Read<Origin> {
    Ok(Origin { cluster_id: words("cluster_id", cluster_id)?, key_epoch })
}

const HASH: &str = "sha256:0x";

/// Reads a state's hash: `sha256:0x`, then 64 hexadecimal digits.
///
/// # Errors
/// What is wrong.
pub fn hash(field: &'static str, text: &str) -> Result<[u8; 32], JsonFault> {
    let fault = || JsonFault::new(field, "must be sha256:0x and 64 lower-case hexadecimal digits");
    let digits = text.strip_prefix(HASH).ok_or_else(fault)?;
    let mut bytes = [0; 32];
    hex::decode_to_slice(digits, &mut bytes).map_err(|_| fault())?;
    if hash_text(&bytes) == text { Ok(bytes) } else { Err(fault()) }
}

/// The text of a state's hash.
#[must_use]
pub fn hash_text(hash: &[u8; 32]) -> String {
    format!("{HASH}{}", hex::encode(hash))
}
