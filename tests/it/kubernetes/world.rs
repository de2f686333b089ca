//! A gate in this process before a recording store, whose objects a Lease governs.

use std::sync::Arc;

use fencegate::{
    clock::Clock,
    config::{LeaseSource, RouteLease, RouteSettings, Settings},
    fence::{Hlc, Now},
    route::Routes,
    table::{
        Table,
        codec::Meta,
        memory::MemoryTable,
        open::{begin_on, write_meta},
        rocks::Recovered,
    },
};
use serde_json::{Value, json};

use crate::support::{
    gate::{START, TestGate, key, settings},
    http::{Conn, Response},
    kube::{ApiServer, NAMESPACES, Who, fence_token},
    store::{Hung, Store},
    until,
};

pub const NAMESPACE: &str = NAMESPACES[0];
/// How long the tests' Leases last.
pub const SECONDS: u32 = 15;

/// Routes `/{object}/...`; the Lease has the object's name.
pub fn route() -> RouteSettings {
    RouteSettings {
        name: "led".to_owned(),
        lease_source: LeaseSource::Kubernetes,
        kubernetes: RouteLease {
            namespace: NAMESPACE.to_owned(),
            name: "{object}".to_owned(),
            ..RouteLease::default()
        },
        ..RouteSettings::default()
    }
}

pub struct World {
    pub server: ApiServer,
    pub store: Store,
    pub gate: TestGate,
    pub settings: Settings,
}

/// The beginning of a driven clock: its wall time is the machine's, as in the Leases.
fn beginning() -> Now {
    Now { wall: Clock::machine().now().wall, ..START }
}

impl World {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    /// Routes `/{shard}/{object}/...`, where one Lease governs all objects of a shard.
    pub fn sharded() -> Self {
        Self::with(|settings| {
            let route = &mut settings.route[0];
            route.path = "/{shard}/{object}/{rest...}".to_owned();
            route.object = "{shard}/{object}".to_owned();
            route.kubernetes.name = "{shard}".to_owned();
        })
    }

    pub fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let (server, store) = (ApiServer::start(), Store::start());
        let mut settings = settings();
        settings.store.url = store.url();
        // Driven clocks jump far.
        settings.gate.idle_timeout_ms = 86_400_000;
        settings.gate.head_timeout_ms = 86_400_000;
        settings.kubernetes.url = server.url();
        settings.kubernetes.ca_file = server.ca_file().unwrap_or_default();
        settings.kubernetes.token_file = server.token_file(Who::Gate);
        settings.route = vec![route()];
        change(&mut settings);
        assert_eq!(settings.all_faults(), []);
        let table = Arc::new(MemoryTable::default());
        write_meta(&*table, &Meta::new(&key(), true), Hlc::default()).unwrap();
        let gate = TestGate::on(&settings, table, beginning());
        let world = Self { server, store, gate, settings };
        world.watches();
        world
    }

    /// Waits until the gate watches.
    pub fn watches(&self) {
        let up = format!("fencegate_kubernetes_watch_up{{lease_namespace=\"{NAMESPACE}\"}} 1");
        until("the gate watches", || self.gate.shows(&up));
    }

    /// The same gate, started again on its table.
    pub fn restarted(mut self, crash: bool) -> Self {
        let gate = std::mem::replace(&mut self.gate, TestGate::start());
        let table = if crash { gate.crash() } else { gate.stop() };
        self.gate = TestGate::on(&self.settings, table, beginning());
        self
    }

    /// The same after a crash, and the end of the table's log is lost.
    pub fn lose_the_tail(mut self) -> Self {
        let gate = std::mem::replace(&mut self.gate, TestGate::start());
        let (table, now) = (gate.crash(), beginning());
        let (clock, _driver) = Clock::driven(now);
        let fingerprint = Routes::new(&self.settings).unwrap().fingerprint;
        let lost = Recovered::TailLost { why: "a test".to_owned() };
        begin_on(Arc::clone(&table) as Arc<dyn Table>, key(), lost, (&clock, fingerprint), "memory").unwrap();
        self.gate = TestGate::on(&self.settings, table, now);
        self
    }

    /// `holder` takes or renews the Lease of `users`. Returns its token.
    pub fn take(&self, holder: &str) -> String {
        self.take_of("users", holder)
    }

    pub fn take_of(&self, name: &str, holder: &str) -> String {
        fence_token(&self.server.take(NAMESPACE, name, holder, SECONDS))
    }

    pub fn put(&self, token: &str) -> Response {
        self.put_with(token, &[])
    }

    pub fn put_with(&self, token: &str, headers: &[(&str, &str)]) -> Response {
        let headers: Vec<_> = headers.iter().copied().chain([("fence-token", token)]).collect();
        self.gate.gate().call("PUT", "/users/1", &headers, b"value")
    }

    pub fn api(&self) -> Conn {
        self.gate.api()
    }

    pub fn object(&self) -> Value {
        self.api().get("/v1/objects/users").expect(200)
    }

    /// Waits until the gate has seen this term by itself, and the object belongs to it.
    pub fn follows(&self, token: &str) {
        until("the gate has seen the new term", || {
            let object = self.object();
            object["term"] == token && object["state"] == "open"
        });
    }

    /// Waits until the gate has seen a renewal at this moment of its clock.
    pub fn sees_renewed(&self, token: &str) {
        let full = (SECONDS * 1_000).to_string();
        until("the renewal is seen", || self.put(token).header("fence-expires-in") == Some(&full));
    }

    pub fn advance(&self, token: &str) -> Response {
        self.api().post("/v1/objects/users/advance", &json!({ "token": token }))
    }

    /// The gate's numbers of the applied writes, in the store's order.
    pub fn applied(&self) -> Vec<u64> {
        let seq = |each: &Value| each["headers"]["fence-seq"].as_str().unwrap().parse().unwrap();
        self.store.applied().iter().map(seq).collect()
    }

    /// A write that the store has received and does not answer yet.
    pub fn hung_write(&self, token: &str) -> Hung {
        Hung::send(&self.store, self.gate.gate(), "/users/1", &[("fence-token", token)])
    }

    /// Moves the gate's clock.
    pub fn passes(&self, seconds: u32) {
        self.gate.clock.advance(u64::from(seconds) * 1_000);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(running) = &self.gate.running {
            running.gate.lease_observer.stop();
            running.gate.stopping.send_replace(true);
        }
    }
}
