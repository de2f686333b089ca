//! An agent that proves who it is: by the name that the gate allows it, and on routes with `bind_holder`.

use std::{fs, net::SocketAddr};

use serde_json::json;

use super::{
    grant,
    holder::{Bound, By},
};
use crate::support::{
    agent::{Agent, settings},
    gate::text,
    http::Conn,
    until,
    wire::{Mode, Wire},
};

/// A gate with a bound route, and a file with a bearer token that names `red`.
struct Bench {
    bound: Bound,
    bearer: String,
}

impl Bench {
    fn new() -> Self {
        let mut bound = Bound::with(By::Bearer, vec![grant("red", "red", &["users"])], |_| {});
        let bearer = bound.world.token("red");
        let bench = Self { bound, bearer };
        bench.write(&bench.bearer);
        bench
    }

    fn file(&self) -> std::path::PathBuf {
        self.bound.world.authority.folder.path().join("red.token")
    }

    /// What the agent shows from now on.
    fn write(&self, bearer: &str) {
        let next = self.file().with_extension("next");
        fs::write(&next, bearer).unwrap();
        fs::rename(next, self.file()).unwrap();
    }

    fn api(&self) -> SocketAddr {
        self.bound.world.gate.running().api
    }

    /// An agent that reaches the api at this address, with a token or without one.
    fn agent(&self, api: SocketAddr, shows: bool) -> Agent {
        let gate = format!("http://{}", self.bound.world.gate.running().listens);
        let mut more =
            format!("tls_server_name = 'gate.test'\ntls_ca_file = '{}'\n", self.bound.world.authority.ca().display());
        if shows {
            more.push_str(&format!("token_file = '{}'\n", self.file().display()));
        }
        // Long enough for a busy machine.
        let text = settings("", &gate, &format!("https://{api}"), "", &more);
        Agent::start(&text.replace("ttl_ms = 1000", "ttl_ms = 60000"))
    }
}

#[test]
fn an_agent_with_a_token_writes_through_a_bound_route() {
    let mut bench = Bench::new();
    let agent = bench.agent(bench.api(), true);
    assert_eq!(agent.put("/users/1").status, 200, "{}", agent.log());
    assert!(text(&agent.leader("users"), "holder_id").starts_with("red/"), "{}", agent.leader("users"));
    // The agent is the holder, and not the application.
    let stranger = bench.bound.world.token("stranger");
    let own = format!("Bearer {stranger}");
    assert_eq!(agent.call("PUT", "/users/2", &[("fence-identity", &own)]).status, 200);
    assert_eq!(agent.call("GET", "/users/1", &[("fence-identity", &own)]).status, 200);
    // The token is exchanged, and the old one revoked.
    let next = bench.bound.world.token("red");
    bench.write(&next);
    bench.bound.world.rows.token.remove(0);
    bench.bound.world.write_tokens();
    assert_eq!(agent.put("/users/3").status, 200);
    let seen = json!(bench.bound.store.applied()).to_string();
    for secret in [&bench.bearer, &next, &stranger] {
        assert!(!seen.contains(secret.as_str()) && !agent.log().contains(secret.as_str()), "a bearer token is shown");
    }
}

#[test]
fn an_agent_without_a_token_passes_on_no_proof_of_its_applications() {
    let bench = Bench::new();
    let agent = bench.agent(bench.api(), false);
    let own = format!("Bearer {}", bench.bearer);
    agent.call("PUT", "/users/1", &[("fence-identity", &own)]).refusal(401, "IDENTITY_REQUIRED");
    assert_eq!(bench.bound.begun(), 0);
}

#[test]
fn an_agent_waits_for_its_name_and_serves_meanwhile() {
    let bench = Bench::new();
    let wire = Wire::to(bench.api());
    wire.set(Mode::Cut);
    let agent = bench.agent(wire.address, true);
    for path in ["/readyz", "/livez", "/metrics", "/leader"] {
        assert_eq!(Conn::open(agent.status).unwrap().get(path).status, 200, "{path}");
    }
    assert_eq!(agent.call("GET", "/users/1", &[]).status, 200, "reads pass");
    agent.put("/users/1").refusal(503, "GATE_UNREACHABLE");
    assert_eq!(bench.bound.store.story(), ["GET /users/1"]);
    wire.set(Mode::Pass);
    until("a write gets through", || agent.put("/users/1").status == 200);
    assert!(text(&agent.leader("users"), "holder_id").starts_with("red/"), "{}", agent.leader("users"));
}

#[test]
fn an_agent_whose_token_is_not_known_yet_asks_on() {
    let mut bench = Bench::new();
    let later = bench.bound.world.rows.add("red", vec![], None).unwrap();
    bench.write(&later);
    let agent = bench.agent(bench.api(), true);
    let refused = agent.put("/users/1").refusal(503, "NOT_LEADER");
    assert!(text(&refused, "detail").contains("IDENTITY_REQUIRED"), "{refused}");
    bench.bound.world.write_tokens();
    until("a write gets through", || agent.put("/users/1").status == 200);
    let said = agent.log().matches("the gate does not say by which name").count();
    assert_eq!(said, 1, "{}", agent.log());
}
