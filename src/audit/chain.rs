//! The chain of lines: each line has its number, and the SHA-256 of the line before it. Pure.

use serde::Deserialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// The place of a line in the chain: its number, and the hash of its bytes without the end of the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    pub n: u64,
    pub hash: [u8; 32],
}

impl Link {
    /// The place before the first line.
    pub const START: Self = Self { n: 0, hash: [0; 32] };

    /// The place of this line. `line`: without its end.
    #[must_use]
    pub fn of(n: u64, line: &[u8]) -> Self {
        Self { n, hash: Sha256::digest(line).into() }
    }

    /// The hash in hex: the `prev` of the next line.
    #[must_use]
    pub fn hex(&self) -> String {
        hex::encode(self.hash)
    }

    /// Whether this line comes next.
    #[must_use]
    pub fn is_before(&self, line: &Chained) -> bool {
        line.n == self.n.saturating_add(1) && line.prev == self.hex()
    }
}

/// What the chain needs of a line.
#[derive(Debug, Deserialize)]
pub struct Chained {
    pub n: u64,
    pub prev: String,
    pub call: String,
    #[serde(default)]
    pub detail: Map<String, Value>,
}

/// Reads a line without its end. `None`: it is not a whole line of an audit log.
#[must_use]
pub fn read(line: &[u8]) -> Option<Chained> {
    serde_json::from_slice(line).ok()
}

/// Bytes behind the last whole line: the process or the machine has stopped while it wrote them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    pub bytes: u64,
    pub sha256: String,
}

impl Torn {
    /// What is torn. `None`: these are no bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let sha256 = hex::encode(Sha256::digest(bytes));
        (!bytes.is_empty()).then_some(Self { bytes: bytes.len() as u64, sha256 })
    }

    /// Whether a line is about these bytes. The end of a line may have been added to them.
    #[must_use]
    pub fn is_noted_by(bytes: &[u8], line: &Chained) -> bool {
        let whole = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let matches = |bytes: &[u8]| {
            Self::of(bytes).is_some_and(|torn| {
                line.detail.get("bytes").and_then(Value::as_u64) == Some(torn.bytes)
                    && line.detail.get("sha256").and_then(Value::as_str) == Some(&torn.sha256)
            })
        };
        line.call == super::entry::TORN && (matches(bytes) || matches(whole))
    }
}
