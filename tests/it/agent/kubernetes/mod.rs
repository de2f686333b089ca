//! The agent elects its leader on a Kubernetes Lease. Each test has agents, an API server, and a recording store in the
//! gate's place, which records the token of each write.
//!
//! - `leading`: who leads. `api_server`: faults of the API server and of the Lease. `gate`: the gate behind the agent.

mod api_server;
mod gate;
mod leading;

use serde_json::Value;

use super::super::support::{
    agent::{Agent, settings},
    gate::text,
    http::Response,
    kube::{ApiServer, NAMESPACES, Who},
    store::Store,
};

const HERE: &str = NAMESPACES[0];
const ROUTE: &str = "[[route]]\nname = 'data'\nmatch = '/{object}/{rest...}'\nobject = '{object}'\nkubernetes = { namespace = 'left', name = '{object}' }\n";
/// A ttl for tests in which the lease runs out.
const SHORT_MS: u32 = 6_000;
/// A ttl for tests in which the lease does not run out.
const LONG_MS: u32 = 60_000;

struct Bench {
    server: ApiServer,
    /// A recording store in the gate's place.
    gate: Store,
}

impl Bench {
    fn new() -> Self {
        Self { server: ApiServer::start(), gate: Store::start() }
    }

    /// An agent's file: more lines of [lease], and its routes.
    fn settings(&self, name: &str, ttl_ms: u32, lease: &str, routes: &str) -> String {
        let ca = self.server.ca_file().map(|file| format!("ca_file = '{}'\n", file.display())).unwrap_or_default();
        let way = format!(
            "[kubernetes]\nurl = '{}'\n{ca}token_file = '{}'\n",
            self.server.url(),
            self.server.token_file(Who::Candidate).display()
        );
        let text = settings(name, &self.gate.url(), "http://127.0.0.1:1", &format!("{lease}\n{way}{routes}"), "");
        text.replace("ttl_ms = 1000", &format!("ttl_ms = {ttl_ms}"))
    }

    fn agent(&self, name: &str, ttl_ms: u32) -> Agent {
        Agent::start(&self.settings(name, ttl_ms, "wait_ms = 30000", ROUTE))
    }

    #[track_caller]
    fn lease(&self, name: &str) -> Value {
        self.server.lease(HERE, name).expect("a Lease")
    }

    fn holder(&self, name: &str) -> String {
        text(&self.lease(name)["spec"], "holderIdentity").to_owned()
    }

    /// The tokens of the writes that reached the gate, in their order.
    fn tokens(&self) -> Vec<String> {
        let writes = self.gate.applied().into_iter().filter(|each| each["method"] == "PUT");
        writes.map(|each| text(&each["headers"], "fence-token").to_owned()).collect()
    }

    /// The `leaseTransitions` in each of those tokens.
    fn transitions(&self) -> Vec<u32> {
        self.tokens().iter().map(|token| token.rsplit('.').next().unwrap().parse().unwrap()).collect()
    }
}

/// The code may be either one: an agent that was stopped in the middle of a renewal does not know whether it still held
/// the Lease.
#[track_caller]
fn is_refused(answer: &Response) {
    let code = answer.header("fence-error").unwrap_or_default();
    assert!(answer.status == 503 && ["NOT_LEADER", "GATE_UNREACHABLE"].contains(&code), "{answer:?}");
}

fn lost(agent: &Agent, reason: &str) -> bool {
    agent.shows(&format!("fencegate_agent_losses_total{{reason=\"{reason}\"}} 1\n"))
}
