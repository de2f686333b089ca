//! The writer-side agent: an application that knows nothing of leases writes through it.
//!
//! - `writes`: what becomes of its requests. `certificates`: the way to the gate. `stops`: starting and stopping.
//! - `hosts`: by which names it is called. `routes`: those of the gate. `pace`: how often it calls the gate.
//! - `kubernetes`: led by a Lease.

mod certificates;
mod hosts;
mod kubernetes;
mod pace;
mod routes;
mod stops;
mod writes;

use serde_json::{Value, json};

use super::support::{
    agent::{Agent, settings},
    gate::text,
    http::Response,
    process::{Gate, Site},
    store::Store,
};

struct Bench {
    store: Store,
    gate: Gate,
    site: Site,
}

impl Bench {
    fn new() -> Self {
        Self::with("")
    }

    fn with(more: &str) -> Self {
        let store = Store::start();
        let site = Site::with_table();
        site.configure(&format!("[store]\nurl = '{}'\n{more}", store.url()));
        let gate = site.serve();
        Self { store, gate, site }
    }

    fn urls(&self) -> (String, String) {
        (format!("http://{}", self.gate.gate), format!("http://{}", self.gate.api))
    }

    fn agent(&self, name: &str) -> Agent {
        self.agent_with(name, "")
    }

    /// An agent with more lines of [lease] and further sections.
    fn agent_with(&self, name: &str, more: &str) -> Agent {
        let (gate, api) = self.urls();
        Agent::start(&settings(name, &gate, &api, more, ""))
    }

    fn revoke(&self, object: &str) {
        self.gate.api().post(&format!("/v1/objects/{object}/revoke"), &json!({ "reason": "a test" })).expect(200);
    }

    fn lease(&self, object: &str) -> Value {
        self.gate.api().get(&format!("/v1/objects/{object}")).expect(200)["lease"].clone()
    }

    /// The lease numbers of the applied writes, in the store's order.
    fn seqs(&self) -> Vec<u64> {
        let writes = self.store.applied().into_iter().filter(|each| each["method"] == "PUT");
        writes.map(|each| text(&each["headers"], "fence-seq").parse().unwrap()).collect()
    }
}

trait Okay {
    fn expect_ok(&self);
}

impl Okay for Response {
    #[track_caller]
    fn expect_ok(&self) {
        assert_eq!(self.status, 200, "{:?}", String::from_utf8_lossy(&self.body));
    }
}
