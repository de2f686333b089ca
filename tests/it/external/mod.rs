//! Objects whose lock is kept by another service: the token is that service's number.

mod bad_input;
mod handover;
mod locks;
mod lost;

use fencegate::config::{LeaseSource, RouteSettings, Settings};
use serde_json::{Value, json};

use super::support::{
    gate::{TestGate, settings},
    http::{Conn, Response},
    store::{Hung, Store},
    until,
};

/// Routes `/{object}/...`, with tokens from outside.
pub fn route() -> RouteSettings {
    RouteSettings { name: "locked".to_owned(), lease_source: LeaseSource::External, ..RouteSettings::default() }
}

/// A gate before a recording store.
pub struct World {
    pub store: Store,
    pub gate: TestGate,
    pub settings: Settings,
}

impl World {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut RouteSettings)) -> Self {
        Self::with_settings(|settings| change(&mut settings.route[0]))
    }

    pub fn with_settings(change: impl FnOnce(&mut Settings)) -> Self {
        let store = Store::start();
        let mut settings = settings();
        settings.store.url = store.url();
        settings.gate.idle_timeout_ms = 86_400_000;
        settings.gate.head_timeout_ms = 86_400_000;
        settings.route = vec![route()];
        change(&mut settings);
        let gate = TestGate::with(&settings);
        Self { store, gate, settings }
    }

    pub fn api(&self) -> Conn {
        self.gate.api()
    }

    /// A write to `users` with this token.
    pub fn put(&self, token: u64) -> Response {
        self.put_with(&token.to_string(), &[])
    }

    pub fn put_with(&self, token: &str, headers: &[(&str, &str)]) -> Response {
        let headers: Vec<_> = headers.iter().copied().chain([("fence-token", token)]).collect();
        self.gate.gate().call("PUT", "/users/1", &headers, b"value")
    }

    pub fn advance(&self, token: u64) -> Response {
        self.api().post("/v1/objects/users/advance", &json!({ "token": token }))
    }

    pub fn object(&self) -> Value {
        self.api().get("/v1/objects/users").expect(200)
    }

    /// The `Fence-Seq` of the applied writes, in the store's order.
    pub fn applied(&self) -> Vec<u64> {
        let seq = |each: &Value| each["headers"]["fence-seq"].as_str().unwrap().parse().unwrap();
        self.store.applied().iter().map(seq).collect()
    }

    /// A write that the store has received and does not answer yet.
    pub fn hung_write(&self, token: u64) -> Hung {
        let token = token.to_string();
        Hung::send(&self.store, self.gate.gate(), "/users/1", &[("fence-token", &token)])
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
