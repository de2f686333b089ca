//! Settings of the audit log: where its lines go, and how many are kept.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Fault;

/// The smallest size at which the file may be rotated: one line may be nearly as long as the largest body of a call.
const ROTATE_BYTES_MIN: u64 = 65_536;

/// The most rotated files: a higher number at the end of a name may be a year.
pub const KEEP_MAX: u32 = 999;

/// What becomes of the lines about calls of the api.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuditSettings {
    pub to: AuditTo,
    pub file: PathBuf,
    pub rotate_bytes: u64,
    /// How many rotated files there are at most, beside the present one.
    pub keep_files: u32,
}

/// Where the lines go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuditTo {
    Off,
    Stderr,
    File,
}

impl Default for AuditSettings {
    fn default() -> Self {
        Self { to: AuditTo::Off, file: PathBuf::new(), rotate_bytes: 104_857_600, keep_files: 10 }
    }
}

impl AuditSettings {
    /// What is wrong with these settings, as far as they alone show it.
    #[must_use]
    pub fn faults(&self) -> Vec<Fault> {
        let mut faults = vec![];
        let mut check = |ok: bool, key: &str, what: &str| {
            if !ok {
                faults.push(Fault::new(key, what));
            }
        };
        let has_file = !self.file.as_os_str().is_empty();
        check(self.to != AuditTo::File || has_file, "audit.file", "audit.to = \"file\" needs the file's name");
        check(self.rotate_bytes >= ROTATE_BYTES_MIN, "audit.rotate_bytes", "must be at least 65536");
        check((1..=KEEP_MAX).contains(&self.keep_files), "audit.keep_files", "must be from 1 to 999");
        faults
    }
}
