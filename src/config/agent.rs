//! Settings of `fencegate agent`; `config/agent.toml` holds every key with its default and advice.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use toml::Table;

use super::{
    Fault, GateKubernetes, GateSettings, LeaseRef, LeaseSource, Log, RouteLease, RouteSettings, Settings, Shutdown,
    load::Loadable, loopback,
};
use crate::{
    agent::{candidate::TTL_MS_MAX, hosts::Hosts},
    client::Client,
    fence::{HolderId, election::LeaseName},
    route::Routes,
    store::{Address, Way},
    tls::{Connector, Files},
};

/// Everything that can be set.
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
    /// None given: one that takes a path's first segment for the object.
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
    /// What the two above were once: a fault that names them.
    #[serde(skip_serializing)]
    allow_remote: Option<bool>,
    pub connections_max: usize,
    pub head_timeout_ms: u64,
}

/// The way to the gate.
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
    /// Shown to a gate that asks for one; both empty: none.
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

impl AgentPort {
    /// Which Host a request may carry.
    ///
    /// # Errors
    /// With what is no name.
    pub fn hosts(&self) -> Result<Hosts, String> {
        Hosts::new(&self.hosts)
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
    /// The Kubernetes Lease that leads its objects, where one does, and it has no captures.
    #[must_use]
    pub fn lease(&self) -> Option<LeaseName> {
        let LeaseRef { namespace, name } = self.kubernetes.clone();
        self.kubernetes.is_given().then_some(LeaseName { namespace, name })
    }
}

/// A file, where one is named.
fn given(path: &Path) -> Option<PathBuf> {
    (!path.as_os_str().is_empty()).then(|| path.to_owned())
}

impl GateWay {
    /// Where the gate's own port is, and how to get there.
    ///
    /// # Errors
    /// With the key that is wrong, and what is.
    pub fn way(&self) -> Result<Way, (&'static str, String)> {
        let shown = self.shown()?;
        let address = Address::parse(&self.url).map_err(|what| ("url", what))?;
        let tls = match &address {
            Address::Unix(_) => return Err(("url", "a gate listens on a port".to_owned())),
            Address::Tcp { .. } if shown.is_some() => {
                return Err((
                    "tls_cert_file",
                    "needs a gate.url with https: nobody is shown a certificate else".to_owned(),
                ));
            }
            Address::Tcp { .. } => None,
            Address::Tls { host, .. } => {
                let roots = given(&self.tls_ca_file);
                let name = if self.tls_server_name.is_empty() { host } else { &self.tls_server_name };
                Some(Connector::new(Files { roots, shown }, name)?)
            }
        };
        Ok(Way { address, tls })
    }

    /// The certificate to show, and its key.
    fn shown(&self) -> Result<Option<(PathBuf, PathBuf)>, (&'static str, String)> {
        match (given(&self.tls_cert_file), given(&self.tls_key_file)) {
            (None, None) => Ok(None),
            (Some(certificates), Some(key)) => Ok(Some((certificates, key))),
            (Some(_), None) => Err(("tls_key_file", "is missing: gate.tls_cert_file needs its key".to_owned())),
            (None, Some(_)) => Err(("tls_cert_file", "is missing: gate.tls_key_file is the key of one".to_owned())),
        }
    }

    /// Whether its own port is this one, as far as the URL says.
    fn is_at(&self, address: SocketAddr) -> bool {
        let Ok(url) = self.url.parse::<http::Uri>() else { return false };
        let name = url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let is_there = name
            .parse::<std::net::IpAddr>()
            .map_or(name == "localhost" && address.ip().is_loopback(), |ip| address.ip() == ip);
        url.port_u16() == Some(address.port()) && is_there
    }
}

impl AgentSettings {
    /// The routes, by the gate's own rules.
    ///
    /// # Errors
    /// With everything that is wrong with them.
    pub fn routes(&self) -> Result<Routes, Vec<Fault>> {
        let given = if self.route.is_empty() { vec![AgentRoute::default()] } else { self.route.clone() };
        let route = given.iter().map(|given| RouteSettings {
            name: given.name.clone(),
            path: given.path.clone(),
            object: given.object.clone(),
            lease_source: if given.kubernetes.is_given() { LeaseSource::Kubernetes } else { LeaseSource::Gate },
            kubernetes: RouteLease {
                namespace: given.kubernetes.namespace.clone(),
                name: given.kubernetes.name.clone(),
                check_holder: false,
            },
            // Whether a key is taken, and which, is the gate's to say.
            idempotency: false,
            // So is whether a read may have a body.
            bodies_on_reads: true,
            ..RouteSettings::default()
        });
        let kubernetes = self.kubernetes.clone();
        let routes = Routes::new(&Settings { route: route.collect(), kubernetes, ..Settings::default() });
        // What a gate's file says in this key, an agent's says by having the other.
        let key = |fault: Fault| Fault { key: fault.key.replace("].lease_source", "].kubernetes"), ..fault };
        routes.map_err(|faults| faults.into_iter().map(key).collect())
    }

    /// Limits on requests: as wide as they can be, since the gate has its own.
    #[must_use]
    pub fn limits() -> GateSettings {
        // What could be read in two ways is the gate's to refuse; the agent names the gate's host itself.
        GateSettings { header_bytes_max: 1 << 20, uri_bytes_max: 65_534, strict: false, ..GateSettings::default() }
    }

    /// The routes whose objects' leases are taken at the start.
    pub fn up_front(&self) -> impl Iterator<Item = &AgentRoute> {
        self.route.iter().filter(|route| route.take == Take::UpFront)
    }

    /// Whether some objects are led by Kubernetes Leases.
    #[must_use]
    pub fn has_leases(&self) -> bool {
        self.route.iter().any(|route| route.kubernetes.is_given())
    }

    /// What is wrong where Kubernetes Leases lead.
    fn lease_faults(&self) -> Vec<Fault> {
        let mut faults = self.kubernetes.way().faults();
        if self.has_leases() {
            if self.lease.ttl_ms > TTL_MS_MAX {
                faults.push(Fault::new("lease.ttl_ms", "must be at most a day where a Kubernetes Lease leads"));
            }
            let name = self.lease.holder_id.as_bytes();
            if name.len() > 1_000 || !name.iter().all(u8::is_ascii_graphic) {
                faults.push(Fault::new(
                    "lease.holder_id",
                    "must be printable ASCII without spaces, at most 1000 bytes, where a Kubernetes Lease leads: it goes into a header, with a random word behind it",
                ));
            }
        }
        faults
    }
}

impl Loadable for AgentSettings {
    const PREFIX: &'static str = "FENCEGATE_AGENT__";

    fn lists() -> Vec<(&'static str, Table)> {
        vec![("route", Table::try_from(AgentRoute::default()).expect("the defaults are TOML"))]
    }

    fn faults(&self) -> Vec<Fault> {
        let mut faults = vec![];
        let mut check = |ok: bool, key: &str, what: &str| {
            if !ok {
                faults.push(Fault::new(key, what));
            }
        };
        let (agent, gate, lease) = (&self.agent, &self.gate, &self.lease);
        check(
            agent.listen.ip().is_loopback() || agent.listen_beyond_loopback,
            "agent.listen",
            "must be a loopback address: every process that reaches this port writes as the holder; agent.listen_beyond_loopback = true takes that on",
        );
        check(
            agent.allow_remote.is_none(),
            "agent.allow_remote",
            "is two settings now: agent.listen_beyond_loopback = true listens beyond loopback, and agent.hosts = [\"NAME\"] takes requests whose Host is that name ([\"*\"]: every name)",
        );
        check(
            agent.listen != self.status.listen || agent.listen.port() == 0,
            "status.listen",
            "must differ from agent.listen",
        );
        check(
            agent.listen.port() == 0 || !gate.is_at(agent.listen),
            "gate.url",
            "must not be the agent's own port: it would send everything to itself",
        );
        check(agent.connections_max >= 1, "agent.connections_max", "must be at least 1");
        check(agent.head_timeout_ms >= 1, "agent.head_timeout_ms", "must be at least 1");
        check(gate.connect_timeout_ms >= 1, "gate.connect_timeout_ms", "must be at least 1");
        check(gate.response_timeout_ms >= 1, "gate.response_timeout_ms", "must be at least 1");
        check(lease.ttl_ms >= 1, "lease.ttl_ms", "must be at least 1");
        check(lease.objects_max >= 1, "lease.objects_max", "must be at least 1");
        check(
            lease.holder_id.is_empty() || HolderId::is_valid(&lease.holder_id),
            "lease.holder_id",
            "must be at most 1024 bytes without control characters; empty makes one up",
        );
        for (place, route) in self.route.iter().enumerate() {
            check(
                route.take == Take::FirstUse
                    || ![&route.object, &route.kubernetes.namespace, &route.kubernetes.name]
                        .iter()
                        .any(|text| text.contains('{')),
                &format!("route[{place}].take"),
                "up-front needs an object, and a Lease if there is one, without captures: nobody knows yet which ones there will be",
            );
        }
        let up_front = self.up_front().count();
        check(
            up_front <= lease.objects_max,
            "lease.objects_max",
            "must not be below the number of objects taken up front",
        );
        if let Err(what) = agent.hosts() {
            faults.push(Fault::new("agent.hosts", what));
        }
        if let Err(fault) = Client::new(&gate.api) {
            faults.push(Fault::new("gate.api", fault.to_string()));
        }
        if let Err((key, what)) = gate.way() {
            faults.push(Fault::new(format!("gate.{key}"), what));
        }
        faults.extend(self.routes().err().unwrap_or_default());
        faults.extend(self.lease_faults());
        faults
    }
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn every_mistake_is_listed_at_once_under_its_key() {
        let text = "
            [agent]
            listen = '0.0.0.0:8082'
            [gate]
            url = 'unix:/run/gate'
            api = 'https://x'
            [lease]
            ttl = 1
            [[route]]
            match = 'x'
            take = 'up-front'";
        let (_, faults): (AgentSettings, _) = read(text.parse().unwrap(), vec![]);
        let keys: Vec<_> = faults.iter().map(|fault| fault.key.as_str()).collect();
        for key in ["agent.listen", "gate.url", "gate.api", "lease.ttl", "route[0].match", "route[0].take"] {
            assert!(keys.contains(&key), "{key} is not in {faults:#?}");
        }
        let own = "[gate]\nurl = 'http://localhost:8082'".parse().unwrap();
        assert_eq!(read::<AgentSettings>(own, vec![]).1[0].key, "gate.url");
        let remote =
            "[agent]\nlisten = '0.0.0.0:8082'\nlisten_beyond_loopback = true\nhosts = ['*.s3.example']".parse();
        assert_eq!(read::<AgentSettings>(remote.unwrap(), vec![]).1, vec![]);
        let old = "[agent]\nallow_remote = false\nhosts = ['a:80']".parse().unwrap();
        let (_, faults): (AgentSettings, _) = read(old, vec![]);
        let told = |key: &str| faults.iter().find(|fault| fault.key == key).map(|fault| fault.what.clone());
        assert!(told("agent.allow_remote").is_some_and(|what| what.contains("listen_beyond_loopback")), "{faults:?}");
        assert!(told("agent.hosts").is_some(), "{faults:?}");
    }

    #[test]
    fn what_no_lease_can_be_is_found_at_the_start() {
        let keys = |text: &str| -> Vec<String> {
            let (_, faults): (AgentSettings, _) = read(text.parse().unwrap(), vec![]);
            faults.into_iter().map(|fault| fault.key).collect()
        };
        let route =
            |lease: &str| format!("[[route]]\nmatch = '/{{a}}/{{rest...}}'\nobject = '{{a}}'\nkubernetes = {lease}\n");
        assert_eq!(keys(&route("{ namespace = 'left', name = 'users-{a}' }")), Vec::<String>::new());
        for (lease, key) in [
            ("{ namespace = 'left' }", "route[0].kubernetes.name"),
            ("{ name = 'users' }", "route[0].kubernetes.namespace"),
            ("{ namespace = 'left', name = 'x-{b}' }", "route[0].kubernetes.name"),
            ("{ namespace = 'left', name = '{rest...}' }", "route[0].kubernetes.name"),
            ("{ namespace = 'left', name = 'Users' }", "route[0].kubernetes.name"),
            ("{ namespace = 'left.right', name = 'users' }", "route[0].kubernetes.namespace"),
            ("{ namespace = '{a}', name = 'users' }", "route[0].kubernetes.namespace"),
            ("{ namespace = 'left', names = 'users' }", "route[0].kubernetes.names"),
        ] {
            assert_eq!(keys(&route(lease))[0], key, "{lease}");
        }
        let lease = route("{ namespace = 'left', name = 'users' }");
        assert_eq!(keys(&format!("[lease]\nttl_ms = 86400001\n{lease}")), ["lease.ttl_ms"]);
        assert_eq!(keys(&format!("[lease]\nholder_id = 'p d'\n{lease}")), ["lease.holder_id"]);
        assert_eq!(keys(&format!("[kubernetes]\nurl = 'http://far.example'\n{lease}")), ["kubernetes.url"]);
        let some = "[kubernetes]\nnamespaces = ['left', 'right']\n";
        assert_eq!(keys(&format!("{some}{}", route("{ namespace = '{a}', name = 'users' }"))), Vec::<String>::new());
        let other = "[[route]]\nname = 'b'\nmatch = '/b/{a}/{rest...}'\nobject = '{a}'\n";
        assert_eq!(keys(&format!("{lease}{other}")), ["route[1].kubernetes"]);
    }
}
