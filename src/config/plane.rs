//! Settings of the data plane: the gate's port, the store behind it, the routes.

use std::{net::SocketAddr, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::{ReadsBodies, RouteLease, Settings, loopback};
use crate::fence::external;

/// The port for writes and reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GateSettings {
    pub listen: SocketAddr,
    pub workers: usize,
    pub connections_max: usize,
    /// How many of these may come from one address; 0: three quarters.
    pub peer_connections_max: usize,
    pub head_timeout_ms: u64,
    pub body_timeout_ms: u64,
    /// What a client must send of a body, and take of an answer, per second on average; 0: no limit.
    pub pace_bytes_min: u64,
    pub idle_timeout_ms: u64,
    pub header_bytes_max: usize,
    pub uri_bytes_max: usize,
    pub body_bytes_max: u64,
    pub hold_bytes: usize,
    pub hold_total_bytes: usize,
    pub streams_max: u32,
    /// Refuse what two parsers could read in two ways.
    pub strict: bool,
    /// The trailers that are passed on to the store; all others are removed.
    pub trailers: Vec<String>,
    pub forwarded: Forwarded,
    /// Both empty: no TLS on this port.
    pub tls_cert_file: PathBuf,
    pub tls_key_file: PathBuf,
    /// The authorities of clients' certificates; empty: clients need none.
    pub tls_client_ca_file: PathBuf,
}

/// Checksums of a body, which are known only at its end.
const TRAILERS: [&str; 10] = [
    "content-digest",
    "repr-digest",
    "digest",
    "content-md5",
    "x-amz-checksum-crc32",
    "x-amz-checksum-crc32c",
    "x-amz-checksum-crc64nvme",
    "x-amz-checksum-sha1",
    "x-amz-checksum-sha256",
    "x-amz-trailer-signature",
];

/// What the store gets about where a request came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forwarded {
    XForwarded,
    Rfc7239,
    Both,
    Off,
}

/// The store behind the gate.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoreSettings {
    pub url: String,
    pub connect_timeout_ms: u64,
    pub response_timeout_ms: u64,
    pub delivery_bound_ms: u64,
    pub apply_bound_ms: u64,
    pub idle_timeout_ms: u64,
    pub connections_max: usize,
    pub queue_max: usize,
    pub reads_bodies: ReadsBodies,
    /// The authorities of an `https` store's certificate; empty: those that the system trusts.
    pub tls_ca_file: PathBuf,
    /// The name in an `https` store's certificate; empty: the URL's host.
    pub tls_server_name: String,
}

/// The store's settings that a route changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoreOverride {
    pub url: Option<String>,
    pub connect_timeout_ms: Option<u64>,
    pub response_timeout_ms: Option<u64>,
    pub delivery_bound_ms: Option<u64>,
    pub apply_bound_ms: Option<u64>,
    pub idle_timeout_ms: Option<u64>,
    pub connections_max: Option<usize>,
    pub queue_max: Option<usize>,
    pub reads_bodies: Option<ReadsBodies>,
    pub tls_ca_file: Option<PathBuf>,
    pub tls_server_name: Option<String>,
}

impl StoreOverride {
    /// The store's settings for this route.
    #[must_use]
    pub fn over(&self, store: &StoreSettings) -> StoreSettings {
        StoreSettings {
            url: self.url.clone().unwrap_or_else(|| store.url.clone()),
            connect_timeout_ms: self.connect_timeout_ms.unwrap_or(store.connect_timeout_ms),
            response_timeout_ms: self.response_timeout_ms.unwrap_or(store.response_timeout_ms),
            delivery_bound_ms: self.delivery_bound_ms.unwrap_or(store.delivery_bound_ms),
            apply_bound_ms: self.apply_bound_ms.unwrap_or(store.apply_bound_ms),
            idle_timeout_ms: self.idle_timeout_ms.unwrap_or(store.idle_timeout_ms),
            connections_max: self.connections_max.unwrap_or(store.connections_max),
            queue_max: self.queue_max.unwrap_or(store.queue_max),
            reads_bodies: self.reads_bodies.unwrap_or(store.reads_bodies),
            tls_ca_file: self.tls_ca_file.clone().unwrap_or_else(|| store.tls_ca_file.clone()),
            tls_server_name: self.tls_server_name.clone().unwrap_or_else(|| store.tls_server_name.clone()),
        }
    }
}

impl StoreSettings {
    /// How long a write may still land once its connection is gone: in the network, and in the store itself. A Unix
    /// socket delivers nothing late.
    #[must_use]
    pub fn bound_ms(&self) -> u64 {
        let delivery = if self.url.starts_with("unix:") { 0 } else { self.delivery_bound_ms };
        delivery.saturating_add(self.apply_bound_ms)
    }
}

impl GateSettings {
    /// The most connections of one address, with `room` in all.
    #[must_use]
    pub fn connections_of_peer(&self, room: usize) -> usize {
        match self.peer_connections_max {
            0 => (room - room / 4).max(1),
            given => given,
        }
    }
}

/// Which object a path names, and what happens to writes to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub struct RouteSettings {
    pub name: String,
    #[serde(rename = "match")]
    pub path: String,
    pub object: String,
    pub profile: Profile,
    pub mode: Mode,
    pub lease_source: LeaseSource,
    /// What the store does with a body that broke off.
    pub partial_body: PartialBody,
    /// Forward GET, HEAD and OPTIONS that have a body.
    pub bodies_on_reads: bool,
    /// Statuses that settle a write, though by default they do not.
    pub settles: Vec<u16>,
    /// How long a write waits while its lease is changing hands, instead of being refused.
    pub drain_wait_ms: u64,
    /// Keep a hash chain over the writes that have settled.
    pub journal: bool,
    /// The gate handles Idempotency-Key; otherwise the store does.
    pub idempotency: bool,
    /// A write's client must be the holder that its token was granted to.
    pub bind_holder: bool,
    /// The header that an outside lock service's token comes in.
    pub token_header: String,
    /// How far one of its tokens, or all of one minute, may move a fence.
    pub max_jump: u64,
    /// A holder without a write for this long must take its lock again; 0: never.
    pub ttl_ms: u64,
    /// The Kubernetes Lease that says who may write.
    pub kubernetes: RouteLease,
    pub store: StoreOverride,
}

/// What a store does with a request whose body broke off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PartialBody {
    /// This is not known, so the outcome of the write is unknown.
    Unknown,
    /// The store discards it: nothing was written.
    Discards,
}

/// The protocol of a store: what its requests and answers mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// Plain HTTP and WebDAV: the method and the path say what is written.
    #[default]
    Http,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LeaseSource {
    /// The lease api.
    Gate,
    /// Signed grants only.
    Authority,
    /// An existing lock service: its tokens are numbers.
    External,
    /// A Kubernetes Lease: its holder, elected by client-go or an agent.
    Kubernetes,
}

/// What happens to a write that is not fenced as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// It is refused.
    Enforce,
    /// It is forwarded, and the answer says what the refusal would have been.
    Audit,
    /// It is forwarded without a check.
    Off,
}

/// What is kept of keyed writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IdempotencySettings {
    pub keep_ms: u64,
    pub response_bytes_max: usize,
}

impl Default for IdempotencySettings {
    fn default() -> Self {
        Self { keep_ms: 86_400_000, response_bytes_max: 16_384 }
    }
}

/// Receipts of refused writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Receipts {
    pub keep: usize,
}

impl Default for GateSettings {
    fn default() -> Self {
        Self {
            listen: loopback(8080),
            workers: 0,
            connections_max: 10_000,
            peer_connections_max: 0,
            head_timeout_ms: 10_000,
            body_timeout_ms: 30_000,
            pace_bytes_min: 1_024,
            idle_timeout_ms: 60_000,
            header_bytes_max: 32_768,
            uri_bytes_max: 8_192,
            body_bytes_max: 0,
            hold_bytes: 65_536,
            hold_total_bytes: 268_435_456,
            streams_max: 256,
            strict: true,
            trailers: TRAILERS.map(str::to_owned).into(),
            forwarded: Forwarded::XForwarded,
            tls_cert_file: PathBuf::new(),
            tls_key_file: PathBuf::new(),
            tls_client_ca_file: PathBuf::new(),
        }
    }
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self {
            url: "http://127.0.0.1:9000".to_owned(),
            connect_timeout_ms: 1_000,
            response_timeout_ms: 30_000,
            delivery_bound_ms: 10_000,
            apply_bound_ms: 30_000,
            idle_timeout_ms: 4_000,
            connections_max: 256,
            queue_max: 1_024,
            reads_bodies: ReadsBodies::Accepted,
            tls_ca_file: PathBuf::new(),
            tls_server_name: String::new(),
        }
    }
}

impl Default for RouteSettings {
    fn default() -> Self {
        Self {
            name: "default".to_owned(),
            path: "/{object}/{rest...}".to_owned(),
            object: "{object}".to_owned(),
            profile: Profile::default(),
            mode: Mode::Enforce,
            lease_source: LeaseSource::Gate,
            partial_body: PartialBody::Unknown,
            bodies_on_reads: false,
            settles: vec![],
            drain_wait_ms: 0,
            journal: false,
            bind_holder: false,
            idempotency: true,
            token_header: "Fence-Token".to_owned(),
            max_jump: external::MAX_JUMP,
            ttl_ms: 0,
            kubernetes: RouteLease::default(),
            store: StoreOverride::default(),
        }
    }
}

impl Default for Receipts {
    fn default() -> Self {
        Self { keep: 1_024 }
    }
}

impl RouteSettings {
    /// A route with every key set, to find the keys' names and types.
    #[must_use]
    pub fn all_keys() -> Self {
        let store = StoreSettings::default();
        let store = StoreOverride {
            url: Some(store.url),
            connect_timeout_ms: Some(store.connect_timeout_ms),
            response_timeout_ms: Some(store.response_timeout_ms),
            delivery_bound_ms: Some(store.delivery_bound_ms),
            apply_bound_ms: Some(store.apply_bound_ms),
            idle_timeout_ms: Some(store.idle_timeout_ms),
            connections_max: Some(store.connections_max),
            queue_max: Some(store.queue_max),
            reads_bodies: Some(store.reads_bodies),
            tls_ca_file: Some(store.tls_ca_file),
            tls_server_name: Some(store.tls_server_name),
        };
        Self { store, ..Self::default() }
    }
}

impl Settings {
    /// The routes, or the default route if none is given.
    #[must_use]
    pub fn routes(&self) -> Vec<RouteSettings> {
        if self.route.is_empty() { vec![RouteSettings::default()] } else { self.route.clone() }
    }
}
