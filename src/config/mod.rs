//! Settings: a TOML file, then the environment. The only file that reads the environment.
//!
//! A key `[section] key` can also be given as `FENCEGATE__SECTION__KEY`. Unknown keys and unusable
//! values stop the start, and all of them are listed at once (`load.rs`). `config/fencegate.toml` holds every
//! key with its default and advice; a test keeps the two the same. The agent has its own settings, read in the
//! same way: `agent.rs`, `config/agent.toml`.
//!
//! Each part of the program decides what its settings mean, and what is wrong with them beyond single values:
//! `app/settings.rs` and `agent/settings.rs` ask every part ([`Loadable::faults`]).

mod access;
mod agent;
mod audit;
mod authority;
mod kubernetes;
mod load;
mod plane;
mod reads_bodies;
mod risks;

use std::{fmt, net::SocketAddr, path::Path, path::PathBuf};

use serde::{Deserialize, Serialize};
use toml::Table;

pub use access::{AccessSettings, GrantSettings, IdentityKind, IdentitySettings, Loopback, Operation};
pub use agent::{AgentLease, AgentPort, AgentRoute, AgentSettings, GateWay, Status, Take};
pub use audit::{AuditSettings, AuditTo, KEEP_MAX as AUDIT_KEEP_MAX};
pub use authority::{AuthoritySettings, JournalSettings, PartySettings};
pub use kubernetes::{GateKubernetes, KubernetesSettings, LeaseRef, RouteLease};
pub use load::{Loadable, read};
pub use plane::{
    Forwarded, GateSettings, IdempotencySettings, LeaseSource, Mode, PartialBody, Profile, Receipts, RouteSettings,
    StoreOverride, StoreSettings,
};
pub use reads_bodies::ReadsBodies;

const TEST_FAULT: &str = "FENCEGATE_TEST_FAULT";
const TEST_POINT: &str = "FENCEGATE_TEST_POINT";

/// All settings of a gate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    pub gate: GateSettings,
    pub store: StoreSettings,
    pub api: Api,
    pub ops: Ops,
    pub table: TableSettings,
    pub lease: LeaseSettings,
    pub watch: Watch,
    pub shutdown: Shutdown,
    pub receipts: Receipts,
    pub log: Log,
    pub authority: AuthoritySettings,
    pub journal: JournalSettings,
    pub idempotency: IdempotencySettings,
    pub kubernetes: GateKubernetes,
    pub access: AccessSettings,
    pub audit: AuditSettings,
    /// How callers of the api prove who they are, tried in this order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub identity: Vec<IdentitySettings>,
    /// Who may do what by the api; none: callers that need no proof only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub grant: Vec<GrantSettings>,
    /// The issuers whose certificates and grants count.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub issuer: Vec<PartySettings>,
    /// Who may ask this gate for a fence or a migration, and confirm one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub requester: Vec<PartySettings>,
    /// If none is given: one that takes a path's first segment as the object.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub route: Vec<RouteSettings>,
}

/// The port for lease calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Api {
    pub listen: SocketAddr,
    /// Both empty: no TLS on this port.
    pub tls_cert_file: PathBuf,
    pub tls_key_file: PathBuf,
    /// The authorities of callers' certificates; empty: callers are not asked for one.
    pub tls_client_ca_file: PathBuf,
    /// Beyond loopback without TLS: a mesh encrypts.
    pub insecure_plaintext: bool,
}

/// The port for probes and metrics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ops {
    pub listen: SocketAddr,
}

/// Where the fence table is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TableSettings {
    pub path: PathBuf,
    pub create: bool,
    pub cache_objects: usize,
    pub stall_timeout_ms: u64,
}

/// Bounds on leases.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LeaseSettings {
    pub ttl_ms_min: u64,
    pub ttl_ms_max: u64,
    pub ttl_ms_default: u64,
    pub wait_ms_max: u64,
    pub waiters_max: usize,
    pub takeover_after_ms: u64,
    pub batch_max: usize,
}

/// The stream of lease events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Watch {
    pub history: usize,
}

/// How a gate ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Shutdown {
    pub deadline_ms: u64,
}

/// What the gate writes about itself, on standard error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    pub level: Level,
    pub format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    Text,
    Json,
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

impl Default for Api {
    fn default() -> Self {
        Self {
            listen: loopback(8081),
            tls_cert_file: PathBuf::new(),
            tls_key_file: PathBuf::new(),
            tls_client_ca_file: PathBuf::new(),
            insecure_plaintext: false,
        }
    }
}

impl Default for Ops {
    fn default() -> Self {
        Self { listen: loopback(9464) }
    }
}

impl Default for TableSettings {
    fn default() -> Self {
        Self { path: PathBuf::from("fencegate-data"), create: false, cache_objects: 262_144, stall_timeout_ms: 5_000 }
    }
}

impl Default for LeaseSettings {
    fn default() -> Self {
        Self {
            ttl_ms_min: 1_000,
            ttl_ms_max: 3_600_000,
            ttl_ms_default: 30_000,
            wait_ms_max: 300_000,
            waiters_max: 10_000,
            takeover_after_ms: 1_000,
            batch_max: 128,
        }
    }
}

impl Default for Watch {
    fn default() -> Self {
        Self { history: 8_192 }
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { deadline_ms: 25_000 }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { level: Level::Info, format: LogFormat::Auto }
    }
}

/// One fault, and the key that it concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub key: String,
    pub what: String,
}

impl Fault {
    #[must_use]
    pub fn new(key: impl Into<String>, what: impl Into<String>) -> Self {
        Self { key: key.into(), what: what.into() }
    }
}

/// All faults together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(pub Vec<Fault>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, fault) in self.0.iter().enumerate() {
            let gap = if place == 0 { "" } else { "\n" };
            write!(f, "{gap}{}: {}", fault.key, fault.what)?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

/// The fault that a test asks for.
#[must_use]
pub fn test_fault() -> Option<String> {
    read_env(TEST_FAULT)
}

/// Where a test wants the process to be killed or held.
#[must_use]
pub fn test_point() -> Option<String> {
    read_env(TEST_POINT)
}

#[allow(clippy::disallowed_methods, reason = "this file is where the environment is read")]
fn read_env(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

#[allow(clippy::disallowed_methods, reason = "this file is where the environment is read")]
fn environment() -> Vec<(String, String)> {
    std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
        .collect()
}

/// Reads the file and the environment.
///
/// # Errors
/// Everything that is wrong.
pub fn load<S: Loadable>(path: &Path) -> Result<S, Faults> {
    let (settings, faults) = examine(path)?;
    if faults.is_empty() { Ok(settings) } else { Err(Faults(faults)) }
}

/// Reads the file and the environment as far as possible: the settings that can be read, the defaults for others, and
/// everything that is wrong.
///
/// # Errors
/// When the file cannot be read at all.
pub fn examine<S: Loadable>(path: &Path) -> Result<(S, Vec<Fault>), Faults> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Faults(vec![Fault::new(path.display().to_string(), format!("cannot be read: {error}"))]))?;
    let tree = text.parse::<Table>().map_err(|error| {
        Faults(vec![Fault::new(path.display().to_string(), format!("is not TOML: {}", error.to_string().trim_end()))])
    })?;
    Ok(read(tree, environment()))
}

impl Settings {
    /// The keys whose values differ but that a reload cannot change.
    #[must_use]
    pub fn fixed_differences(&self, other: &Self) -> Vec<&'static str> {
        self.fixed(other).into_iter().filter_map(|(key, is_same)| (!is_same).then_some(key)).collect()
    }

    /// The sections and keys that a reload cannot change.
    #[must_use]
    pub fn fixed_keys() -> Vec<&'static str> {
        let any = Self::default();
        any.fixed(&any).into_iter().map(|(key, _)| key).collect()
    }

    /// What a reload cannot change, and whether it is the same in both.
    fn fixed(&self, other: &Self) -> [(&'static str, bool); 17] {
        let (ours, theirs) = (&self.kubernetes, &other.kubernetes);
        [
            ("gate.listen", self.gate.listen == other.gate.listen),
            ("gate.workers", self.gate.workers == other.gate.workers),
            ("api", self.api == other.api),
            ("ops", self.ops == other.ops),
            ("table", self.table == other.table),
            ("lease", self.lease == other.lease),
            ("watch", self.watch == other.watch),
            ("shutdown", self.shutdown == other.shutdown),
            ("receipts", self.receipts == other.receipts),
            ("log", self.log == other.log),
            ("audit", self.audit == other.audit),
            ("journal", self.journal == other.journal),
            ("idempotency", self.idempotency == other.idempotency),
            ("kubernetes.url", ours.url == theirs.url),
            ("kubernetes.ca_file", ours.ca_file == theirs.ca_file),
            ("kubernetes.token_file", ours.token_file == theirs.token_file),
            ("kubernetes.request_timeout_ms", ours.request_timeout_ms == theirs.request_timeout_ms),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str, environment: &[(&str, &str)]) -> Result<Settings, Vec<(String, String)>> {
        let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let (settings, faults) = read(text.parse().unwrap(), environment);
        if faults.is_empty() {
            return Ok(settings);
        }
        Err(faults.into_iter().map(|fault| (fault.key, fault.what)).collect())
    }

    #[test]
    fn the_shipped_file_holds_every_key_with_its_default() {
        let shipped: Table = include_str!("../../config/fencegate.toml").parse().unwrap();
        let defaults = Table::try_from(Settings::default()).unwrap();
        assert_eq!(shipped, defaults);
        assert_eq!(read(shipped, vec![]), (Settings::default(), vec![]));
    }

    #[test]
    fn every_mistake_is_listed_at_once_under_its_key() {
        let text = "
            [api]
            listen = '0.0.0.0:8081'
            lisen = 1
            [table]
            create = 'yes'
            [lease]
            ttl_ms_min = 10
            ttl_ms_max = 5
            ttl_ms_default = -1
            [nonsense]
            [log]
            level = 'loud'";
        let faults =
            read_text(text, &[("FENCEGATE__OPS__LISTEN", "here"), ("FENCEGATE__OPS__LSTEN", "1")]).unwrap_err();
        let keys: Vec<_> = faults.iter().map(|(key, _)| key.as_str()).collect();
        for key in [
            "api.lisen",
            "table.create",
            "lease.ttl_ms_default",
            "nonsense",
            "log.level",
            "ops.listen",
            "FENCEGATE__OPS__LSTEN",
            "api.listen",
            "lease.ttl_ms_min",
        ] {
            assert!(keys.contains(&key), "{key} is not in {faults:#?}");
        }
    }

    #[test]
    fn the_environment_goes_over_the_file() {
        let settings = read_text(
            "[table]\npath = 'a'\n[lease]\nttl_ms_default = 5000",
            &[
                ("FENCEGATE__TABLE__PATH", "123"),
                ("FENCEGATE__TABLE__CREATE", "true"),
                ("FENCEGATE__LEASE__TTL_MS_DEFAULT", "6000"),
                ("FENCEGATE__API__LISTEN", "[::1]:0"),
                ("OTHER", "x"),
            ],
        )
        .unwrap();
        assert_eq!(settings.table.path, PathBuf::from("123"));
        assert!(settings.table.create);
        assert_eq!(settings.lease.ttl_ms_default, 6_000);
        assert_eq!(settings.api.listen, "[::1]:0".parse().unwrap());
    }
}
