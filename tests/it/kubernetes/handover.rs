//! Candidates in their own processes, which elect a leader by a Lease as client-go does. The leader writes. On a real
//! API server they are client-go itself, else a script with its rules.
//!
//! The store's records must show it: the gate's numbers never go down, and each number belongs to one candidate. If the
//! gate forwards stale writes, the same records must show the fault.

use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use super::world::NAMESPACE;
use crate::support::{
    kube::{ApiServer, Candidate, Who},
    process::{Gate, Site, binary, failpoints_binary},
    store::Store,
    until,
};

/// The Lease, and the object that it governs.
const NAME: &str = "users";

struct Bench {
    server: ApiServer,
    store: Store,
    gate: Gate,
    _site: Site,
}

impl Bench {
    fn new() -> Self {
        Self::with(Command::new(binary()))
    }

    fn with(command: Command) -> Self {
        let (server, store) = (ApiServer::start(), Store::start());
        let site = Site::with_table();
        let ca = server.ca_file().map(|ca| format!("ca_file = '{}'\n", ca.display())).unwrap_or_default();
        site.configure(&format!(
            "[store]\nurl = '{}'\n[kubernetes]\nurl = '{}'\ntoken_file = '{}'\n{ca}[[route]]\nname = 'led'\nlease_source = 'kubernetes'\nkubernetes = {{ namespace = '{NAMESPACE}', name = '{{object}}' }}\n",
            store.url(),
            server.url(),
            server.token_file(Who::Gate).display(),
        ));
        let gate = site.serve_with(command);
        Self { server, store, gate, _site: site }
    }

    /// A candidate that writes `/users/<identity>` while it leads.
    fn candidate(&self, identity: &str, more: &[&str]) -> Candidate {
        let url = format!("http://{}/{NAME}/{identity}", self.gate.gate);
        let calm = ["--lease-duration", "3s", "--renew-deadline", "2s", "--retry-period", "300ms"];
        Candidate::start(&self.server, (NAMESPACE, NAME), identity, &url, &[&calm, more].concat())
    }

    /// Waits until this candidate's writes land.
    fn writes(&self, identity: &str) {
        let before = self.has_written(identity);
        until("its writes land", || self.has_written(identity) > before + 2);
    }

    /// The number and the writer of each applied write, in order.
    fn applied(&self) -> Vec<(u64, String)> {
        let line = |each: &Value| {
            let seq = each["headers"]["fence-seq"].as_str().map_or(0, |seq| seq.parse().unwrap());
            (seq, each["path"].as_str().unwrap().rsplit('/').next().unwrap().to_owned())
        };
        self.store.applied().iter().map(line).collect()
    }

    fn has_written(&self, identity: &str) -> usize {
        self.applied().iter().filter(|(_, by)| by == identity).count()
    }

    /// Violations in the store's records.
    fn violations(&self) -> Vec<String> {
        let applied = self.applied();
        let downward = applied.windows(2).filter(|pair| pair[1].0 < pair[0].0).map(|pair| format!("{pair:?}"));
        let shared = applied.iter().filter(|(seq, by)| applied.iter().any(|(other, who)| other == seq && who != by));
        downward.chain(shared.map(|each| format!("{each:?} is two candidates'"))).collect()
    }
}

fn transitions(token: &str) -> u32 {
    token.rsplit('.').next().unwrap().parse().unwrap()
}

#[test]
fn the_next_candidate_takes_over_from_one_that_was_killed() {
    let bench = Bench::new();
    let first = bench.candidate("a", &[]);
    let led = first.leads();
    bench.writes("a");
    let second = bench.candidate("b", &[]);
    first.signal(Signal::KILL);
    assert_eq!(transitions(&second.leads()), transitions(&led) + 1);
    bench.writes("b");
    assert_eq!(bench.violations(), [""; 0]);
    assert_eq!(bench.applied().last().unwrap().0, 2);
}

#[test]
fn a_lease_that_is_given_back_goes_to_the_next_at_once() {
    let bench = Bench::new();
    let mut first = bench.candidate("a", &["--release-on-cancel"]);
    first.leads();
    bench.writes("a");
    let second = bench.candidate("b", &[]);
    first.signal(Signal::TERM);
    assert!(first.ended().success());
    second.leads();
    bench.writes("b");
    let refused = first.rest().into_iter().filter(|event| event["fence_error"].is_string()).count();
    assert_eq!((refused, bench.violations()), (0, vec![]));
}

/// A leader is stopped past its lease, while another is elected and writes; then it goes on.
fn stop_and_go_on(bench: &Bench) -> (Candidate, Candidate) {
    let first = bench.candidate("a", &[]);
    first.leads();
    bench.writes("a");
    let second = bench.candidate("b", &[]);
    first.signal(Signal::STOP);
    second.leads();
    bench.writes("b");
    first.signal(Signal::CONT);
    (first, second)
}

#[test]
fn a_leader_that_stood_still_past_its_lease_is_refused() {
    let bench = Bench::new();
    let (first, _second) = stop_and_go_on(&bench);
    first.next("answer", |answer| answer["fence_error"] == "WRITE_STALE_FENCE");
    bench.writes("b");
    assert_eq!(bench.violations(), [""; 0]);
}

#[test]
fn these_tests_notice_a_gate_that_forwards_stale_writes() {
    let mut command = Command::new(failpoints_binary());
    command.env("FENCEGATE_TEST_FAULT", "forward-stale");
    let bench = Bench::with(command);
    let (_first, _second) = stop_and_go_on(&bench);
    until("the late write is in the store's notes", || !bench.violations().is_empty());
}

#[test]
fn a_lease_that_is_deleted_under_its_leader_is_another_one_afterwards() {
    let bench = Bench::new();
    let leader = bench.candidate("a", &["--stay"]);
    let before = leader.leads();
    bench.writes("a");
    bench.server.delete(NAMESPACE, NAME);
    let after = leader.leads();
    assert_ne!(after.split('.').nth(1), before.split('.').nth(1), "another uid");
    bench.writes("a");
    let late = bench.gate.gate().call("PUT", "/users/late", &[("fence-token", &before)], b"late");
    late.refusal(412, "WRITE_STALE_FENCE");
    assert_eq!(bench.violations(), [""; 0]);
}

#[test]
fn a_watch_that_expires_and_an_api_server_that_is_killed_cost_writes_and_never_order() {
    let bench = Bench::new();
    let candidates = [bench.candidate("a", &["--stay"]), bench.candidate("b", &["--stay"])];
    let writes_on = || {
        let before = bench.applied().len();
        until("somebody writes", || bench.applied().len() > before + 5);
    };
    writes_on();
    bench.server.compact();
    writes_on();
    let leader = bench.applied().pop().unwrap().1;
    bench.server.stop();
    // The leader gives up by itself; until then it writes in its own term.
    candidates[usize::from(leader == "b")].next("lost", |_| true);
    bench.server.start_again();
    writes_on();
    assert_eq!(bench.violations(), [""; 0]);
    assert_eq!(bench.gate.gate().get("/users/x").status, 200);
}
