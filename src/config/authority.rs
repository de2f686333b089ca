//! Settings of signed authority: the gate as an issuer, issuers, requesters, journals.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Which statements count, and what this gate signs itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuthoritySettings {
    pub cluster_id: String,
    /// The gate's own name as an issuer; empty: it signs nothing.
    pub issuer: String,
    pub key_file: PathBuf,
    pub max_jump: u64,
    pub wait_below_ms: u64,
    pub drain_timeout_ms: u64,
}

/// One key of an issuer or a requester.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PartySettings {
    pub name: String,
    pub public_key: String,
    pub proof_of_possession: String,
    pub domains: Vec<String>,
    pub key_epoch: u32,
    pub retired: bool,
}

/// The hash chains over settled writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JournalSettings {
    pub keep: u64,
}

impl Default for AuthoritySettings {
    fn default() -> Self {
        Self {
            cluster_id: String::new(),
            issuer: String::new(),
            key_file: PathBuf::new(),
            max_jump: 1 << 20,
            wait_below_ms: 5_000,
            drain_timeout_ms: 120_000,
        }
    }
}

impl Default for PartySettings {
    fn default() -> Self {
        Self {
            name: String::new(),
            public_key: String::new(),
            proof_of_possession: String::new(),
            domains: vec![],
            key_epoch: 1,
            retired: false,
        }
    }
}

impl Default for JournalSettings {
    fn default() -> Self {
        Self { keep: 100_000 }
    }
}
