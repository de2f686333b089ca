//! Signed authority, over real HTTP: certificates, grants, migrations, journals.

mod bad_input;
mod commands;
mod fences;
mod grants;
mod journal;
mod migrations;
mod story;

use fencegate::config::{LeaseSource, RouteSettings, Settings};
use serde_json::Value;

use super::support::{
    gate::{START, TestGate, settings},
    http::{Conn, Response},
    signers::{Signer, with_issuer},
    store::{Hung, Store},
};

/// The domain of most of these tests.
pub const USERS: &str = "/data/users/";

/// A driven clock's time plus this many milliseconds, as a hybrid logical time.
pub fn time(ms: u64) -> String {
    format!("{}:0", START.wall.0 + ms)
}

pub fn wall(ms: u64) -> u64 {
    START.wall.0 + ms
}

/// Routes `/data/{domain}/...`, whose leases come from signed grants, with a journal.
pub fn data_route() -> RouteSettings {
    RouteSettings {
        name: "data".to_owned(),
        path: "/data/{domain}/{rest...}".to_owned(),
        object: "/data/{domain}/".to_owned(),
        lease_source: LeaseSource::Authority,
        journal: true,
        ..RouteSettings::default()
    }
}

/// A gate before a recording store, with europe as an issuer.
pub struct World {
    pub store: Store,
    pub gate: TestGate,
    pub europe: Signer,
    pub settings: Settings,
}

impl World {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let (store, europe) = (Store::start(), Signer::new("europe-cg"));
        let mut settings = settings();
        settings.store.url = store.url();
        settings.route = vec![data_route()];
        settings.gate.idle_timeout_ms = 86_400_000;
        settings.gate.head_timeout_ms = 86_400_000;
        with_issuer(&mut settings, &europe);
        change(&mut settings);
        let gate = TestGate::with(&settings);
        Self { store, gate, europe, settings }
    }

    pub fn api(&self) -> Conn {
        self.gate.api()
    }

    pub fn post(&self, path: &str, message: &Value) -> Response {
        self.api().post(path, message)
    }

    /// London's lease, granted by europe, for a minute.
    pub fn london(&self) -> Value {
        let grant = self.europe.grant(USERS, "london-1", 1, "london-cg", (wall(0), wall(60_000)), Value::Null);
        self.post("/v1/grants", &grant).expect(201)
    }

    pub fn put(&self, path: &str, lease: &Value) -> Response {
        let token = lease["fence_token"].as_str().unwrap();
        self.gate.gate().call("PUT", path, &[("fence-token", token)], b"value")
    }

    /// A write that the store has received and does not answer yet.
    pub fn hung_write(&self, lease: &Value) -> Hung {
        let token = lease["fence_token"].as_str().unwrap();
        Hung::send(&self.store, self.gate.gate(), "/data/users/1", &[("fence-token", token)])
    }

    pub fn object(&self) -> Value {
        self.api().get("/v1/objects/%2Fdata%2Fusers%2F").expect(200)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.gate.table.release_syncs();
        if let Some(running) = &self.gate.running {
            running.gate.stopping.send_replace(true);
        }
    }
}
