//! What the settings mean to the agent's parts, and the faults that only several values together show.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use toml::Table;

use super::{candidate::TTL_MS_MAX, hosts::Hosts};
use crate::{
    client::{Client, Credentials},
    config::{
        AgentPort, AgentRoute, AgentSettings, Fault, GateWay, LeaseSource, Loadable, RouteLease, RouteSettings,
        Settings, Take,
    },
    fence::HolderId,
    route::Routes,
    tls::{Connector, Files},
    upstream::{Address, Way},
};

impl AgentPort {
    /// Which `Host` a request may carry.
    ///
    /// # Errors
    /// The entry that is not a name.
    pub fn hosts(&self) -> Result<Hosts, String> {
        Hosts::new(&self.hosts)
    }
}

/// The file, if the setting names one.
fn given(path: &Path) -> Option<PathBuf> {
    (!path.as_os_str().is_empty()).then(|| path.to_owned())
}

impl GateWay {
    /// Where the gate's own port is, and how to connect to it.
    ///
    /// # Errors
    /// The wrong key, and what is wrong with it.
    pub fn way(&self) -> Result<Way, (&'static str, String)> {
        let shown = self.shown()?;
        let address = Address::parse(&self.url).map_err(|what| ("url", what))?;
        let tls = match &address {
            Address::Unix(_) => return Err(("url", "a gate listens on a port".to_owned())),
            Address::Tcp { .. } if shown.is_some() && !self.api.starts_with("https:") => {
                return Err((
                    "tls_cert_file",
                    "needs a gate.url or a gate.api with https: over http no certificate is shown".to_owned(),
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

    /// What the agent shows to the gate's api.
    #[must_use]
    pub fn credentials(&self) -> Credentials {
        Credentials {
            token_file: given(&self.token_file),
            ca_file: given(&self.tls_ca_file),
            certificate: given(&self.tls_cert_file).zip(given(&self.tls_key_file)),
            server_name: (!self.tls_server_name.is_empty()).then(|| self.tls_server_name.clone()),
        }
    }

    /// Whether the gate's api gets to know who the agent is.
    #[must_use]
    pub fn proves_who_it_is(&self) -> bool {
        let shows_certificate = self.api.starts_with("https:") && given(&self.tls_cert_file).is_some();
        shows_certificate || given(&self.token_file).is_some()
    }

    /// The client certificate and its key.
    fn shown(&self) -> Result<Option<(PathBuf, PathBuf)>, (&'static str, String)> {
        match (given(&self.tls_cert_file), given(&self.tls_key_file)) {
            (None, None) => Ok(None),
            (Some(certificates), Some(key)) => Ok(Some((certificates, key))),
            (Some(_), None) => Err(("tls_key_file", "is missing: gate.tls_cert_file needs its key".to_owned())),
            (None, Some(_)) => Err(("tls_cert_file", "is missing: gate.tls_key_file is the key of one".to_owned())),
        }
    }

    /// Whether the gate's own port has this address, as far as the URL says.
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
    /// Everything that is wrong with them.
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
            // The gate decides whether a key is accepted, and which.
            idempotency: false,
            // The gate also decides whether a read may have a body.
            bodies_on_reads: true,
            ..RouteSettings::default()
        });
        let kubernetes = self.kubernetes.clone();
        let routes = Routes::new(&Settings { route: route.collect(), kubernetes, ..Settings::default() });
        // A gate's file says this by `lease_source`, an agent's file by `kubernetes`.
        let key = |fault: Fault| Fault { key: fault.key.replace("].lease_source", "].kubernetes"), ..fault };
        routes.map_err(|faults| faults.into_iter().map(key).collect())
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
                "up-front needs an object without captures, and a Lease without captures if there is one: the agent does not know their values before the first write",
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
        if let Err(fault) = Client::with(&gate.api, &gate.credentials()) {
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
    use crate::config::read;

    #[test]
    fn every_mistake_is_listed_at_once_under_its_key() {
        let text = "
            [agent]
            listen = '0.0.0.0:8082'
            [gate]
            url = 'unix:/run/gate'
            api = 'ftp://x'
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
        let fault_of = |key: &str| faults.iter().find(|fault| fault.key == key).map(|fault| fault.what.clone());
        assert!(
            fault_of("agent.allow_remote").is_some_and(|what| what.contains("listen_beyond_loopback")),
            "{faults:?}"
        );
        assert!(fault_of("agent.hosts").is_some(), "{faults:?}");
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
