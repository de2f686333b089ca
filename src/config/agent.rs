//! Settings of `fencegate agent`; `config/agent.toml` holds every key with its default and advice.

use std::{net::SocketAddr, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::{GateKubernetes, GateSettings, LeaseRef, Log, RouteSettings, Shutdown, loopback};
use crate::fence::election::LeaseName;

/// All settings of an agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentSettings {
    pub agent: AgentPort,
    pub gate: GateWay,
    pub lease: AgentLease,
    pub kubernetes: GateKubernetes,
    pub status: Status,
    pub shutdown: Shutdown,
    pub log: Log,
    /// If none is given: one that takes a path's first segment as the object.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub route: Vec<AgentRoute>,
}

/// The port for the application.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentPort {
    pub listen: SocketAddr,
    pub listen_beyond_loopback: bool,
    /// Names that a request's Host may have besides `localhost` and IP addresses.
    pub hosts: Vec<String>,
    /// The former key of the two above. A file with it gets a fault that names them.
    #[serde(skip_serializing)]
    pub allow_remote: Option<bool>,
    pub connections_max: usize,
    pub head_timeout_ms: u64,
}

/// The connection to the gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GateWay {
    pub url: String,
    pub api: String,
    pub connect_timeout_ms: u64,
    pub response_timeout_ms: u64,
    pub idle_timeout_ms: u64,
    pub idle_max: usize,
    pub tls_ca_file: PathBuf,
    pub tls_server_name: String,
    /// A file with a bearer token for the gate's api; empty: none.
    pub token_file: PathBuf,
    /// Shown to a gate that asks for a certificate; both empty: none.
    pub tls_cert_file: PathBuf,
    pub tls_key_file: PathBuf,
}

/// The leases that are taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentLease {
    /// Empty: made of the host's name, the process id and a random word.
    pub holder_id: String,
    pub ttl_ms: u64,
    pub wait_ms: u64,
    pub renew_before_write: bool,
    pub idle_release_ms: u64,
    pub objects_max: usize,
}

/// The port that says who leads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Status {
    pub listen: SocketAddr,
}

/// Which object a path is about, and when its lease is taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentRoute {
    pub name: String,
    #[serde(rename = "match")]
    pub path: String,
    pub object: String,
    pub take: Take,
    /// The Kubernetes Lease that leads its objects; else the gate's leases do.
    pub kubernetes: LeaseRef,
}

/// When a lease is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Take {
    /// With the first write to the object.
    FirstUse,
    /// When the agent starts.
    UpFront,
}

impl Default for AgentPort {
    fn default() -> Self {
        Self {
            listen: loopback(8082),
            listen_beyond_loopback: false,
            hosts: vec![],
            allow_remote: None,
            connections_max: 1_024,
            head_timeout_ms: 60_000,
        }
    }
}

impl Default for GateWay {
    fn default() -> Self {
        Self {
            url: "http://127.0.0.1:8080".to_owned(),
            api: "http://127.0.0.1:8081".to_owned(),
            connect_timeout_ms: 1_000,
            response_timeout_ms: 60_000,
            idle_timeout_ms: 20_000,
            idle_max: 64,
            token_file: PathBuf::new(),
            tls_ca_file: PathBuf::new(),
            tls_server_name: String::new(),
            tls_cert_file: PathBuf::new(),
            tls_key_file: PathBuf::new(),
        }
    }
}

impl Default for AgentLease {
    fn default() -> Self {
        Self {
            holder_id: String::new(),
            ttl_ms: 15_000,
            wait_ms: 1_000,
            renew_before_write: false,
            idle_release_ms: 600_000,
            objects_max: 1_024,
        }
    }
}

impl Default for Status {
    fn default() -> Self {
        Self { listen: loopback(9465) }
    }
}

impl Default for AgentRoute {
    fn default() -> Self {
        let RouteSettings { name, path, object, .. } = RouteSettings::default();
        Self { name, path, object, take: Take::FirstUse, kubernetes: LeaseRef::default() }
    }
}

impl AgentRoute {
    /// The Kubernetes Lease that leads its objects, if there is one and it has no captures.
    #[must_use]
    pub fn lease(&self) -> Option<LeaseName> {
        let LeaseRef { namespace, name } = self.kubernetes.clone();
        self.kubernetes.is_given().then_some(LeaseName { namespace, name })
    }
}

impl AgentSettings {
    /// Limits on requests: as wide as possible, since the gate has its own.
    #[must_use]
    pub fn limits() -> GateSettings {
        // The gate refuses what could be read in two ways; the agent sets the gate's host itself.
        GateSettings { header_bytes_max: 1 << 20, uri_bytes_max: 65_534, strict: false, ..GateSettings::default() }
    }

    /// The routes whose objects' leases are taken at the start.
    pub fn up_front(&self) -> impl Iterator<Item = &AgentRoute> {
        self.route.iter().filter(|route| route.take == Take::UpFront)
    }

    /// Whether Kubernetes Leases lead some objects.
    #[must_use]
    pub fn has_leases(&self) -> bool {
        self.route.iter().any(|route| route.kubernetes.is_given())
    }
}

#[cfg(test)]
mod tests {
    use toml::Table;

    use super::*;
    use crate::config::load::read;

    #[test]
    fn the_shipped_file_holds_every_key_with_its_default() {
        let shipped: Table = include_str!("../../config/agent.toml").parse().unwrap();
        assert_eq!(shipped, Table::try_from(AgentSettings::default()).unwrap());
        assert_eq!(read(shipped, vec![]), (AgentSettings::default(), vec![]));
    }

    #[test]
    fn the_environment_goes_over_the_file_and_the_gates_is_another() {
        let environment = [
            ("FENCEGATE_AGENT__LEASE__TTL_MS", "5000"),
            ("FENCEGATE_AGENT__ROUTE__0__OBJECT", "one"),
            ("FENCEGATE_AGENT__ROUTE__0__TAKE", "up-front"),
            ("FENCEGATE_AGENT__ROUTE__0__KUBERNETES__NAMESPACE", "left"),
            ("FENCEGATE_AGENT__ROUTE__0__KUBERNETES__NAME", "users"),
            ("FENCEGATE__LEASE__TTL_MS_MIN", "7"),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let (settings, faults): (AgentSettings, _) = read(Table::new(), environment);
        assert_eq!(faults, vec![]);
        let objects: Vec<_> = settings.up_front().map(|route| route.object.as_str()).collect();
        assert_eq!((settings.lease.ttl_ms, objects), (5_000, vec!["one"]));
        assert_eq!(settings.route[0].kubernetes.name, "users");
        assert!(settings.has_leases());
    }
}
