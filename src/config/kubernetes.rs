//! The connection to a Kubernetes API server, for the gate and for the agent, and which Lease governs which objects.

use std::path::PathBuf;

use http::Uri;
use serde::{Deserialize, Serialize};

use super::Fault;

/// The connection to the API server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KubernetesSettings {
    /// Empty: the API server of the cluster that this pod runs in, with the pod's own service account.
    pub url: String,
    pub ca_file: PathBuf,
    pub token_file: PathBuf,
    pub request_timeout_ms: u64,
}

/// The same for the gate, and which namespaces it watches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GateKubernetes {
    pub url: String,
    pub ca_file: PathBuf,
    pub token_file: PathBuf,
    pub request_timeout_ms: u64,
    /// In addition to those that routes name without captures.
    pub namespaces: Vec<String>,
}

/// Which Lease governs a route's objects.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LeaseRef {
    /// Both may use what the route's match captures, as its object does.
    pub namespace: String,
    pub name: String,
}

/// The same for a gate's route.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RouteLease {
    pub namespace: String,
    pub name: String,
    /// A write must name its holder in Fence-Holder, and the Lease must name the same one.
    pub check_holder: bool,
}

impl LeaseRef {
    #[must_use]
    pub fn is_given(&self) -> bool {
        *self != Self::default()
    }
}

impl Default for KubernetesSettings {
    fn default() -> Self {
        Self { url: String::new(), ca_file: PathBuf::new(), token_file: PathBuf::new(), request_timeout_ms: 5_000 }
    }
}

impl Default for GateKubernetes {
    fn default() -> Self {
        let KubernetesSettings { url, ca_file, token_file, request_timeout_ms } = KubernetesSettings::default();
        Self { url, ca_file, token_file, request_timeout_ms, namespaces: vec![] }
    }
}

impl GateKubernetes {
    /// The connection to the API server.
    #[must_use]
    pub fn way(&self) -> KubernetesSettings {
        let Self { url, ca_file, token_file, request_timeout_ms, namespaces: _ } = self.clone();
        KubernetesSettings { url, ca_file, token_file, request_timeout_ms }
    }
}

impl KubernetesSettings {
    /// What is wrong with these settings.
    #[must_use]
    pub fn faults(&self) -> Vec<Fault> {
        let mut faults = vec![];
        let mut fault = |key: &str, what: &str| faults.push(Fault::new(format!("kubernetes.{key}"), what));
        if self.request_timeout_ms == 0 {
            fault("request_timeout_ms", "must be at least 1");
        }
        if self.url.is_empty() {
            if !self.ca_file.as_os_str().is_empty() {
                fault("ca_file", "goes with kubernetes.url; a pod's own service account has one");
            }
            if !self.token_file.as_os_str().is_empty() {
                fault("token_file", "goes with kubernetes.url; a pod's own service account has one");
            }
            return faults;
        }
        let url = self.url.parse::<Uri>().ok().filter(|url| url.host().is_some());
        match url.as_ref().map(|url| (url.scheme_str(), is_loopback(url))) {
            Some((Some("https"), _) | (Some("http"), true)) => {}
            Some((Some("http"), false)) => fault("url", "must be https: the token would be sent in the clear"),
            _ => fault("url", "must be https://HOST:PORT"),
        }
        faults
    }
}

fn is_loopback(url: &Uri) -> bool {
    let host = url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}
