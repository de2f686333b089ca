//! Who leads, by which Lease, and what a leader that stalls, dies or stops sends.

use std::collections::BTreeSet;

use rustix::process::Signal;
use serde_json::json;

use super::{
    super::super::support::{
        agent::{Agent, settings},
        gate::text,
        http::Conn,
        kube::{Candidate, Who, fence_token},
        process::stderr,
        store::Hung,
        until,
    },
    super::Okay,
    Bench, HERE, LONG_MS, ROUTE, SHORT_MS, is_refused, lost,
};

#[test]
fn one_leads_with_the_token_of_its_term_and_the_other_says_who() {
    let bench = Bench::new();
    let (mut one, two) = (bench.agent("one", LONG_MS), bench.agent("two", LONG_MS));
    // The agent replaces an application's own `Fence-Holder`.
    one.call("PUT", "/users/1", &[("fence-holder", "another")]).expect_ok();
    let lease = bench.lease("users");
    let holder = text(&lease["spec"], "holderIdentity");
    assert_eq!(holder.strip_prefix("one_").map(str::len), Some(8), "{holder}");
    assert_eq!((&lease["spec"]["leaseDurationSeconds"], &lease["spec"]["leaseTransitions"]), (&json!(60), &json!(0)));
    let stored = bench.gate.applied()[0]["headers"].clone();
    assert_eq!((text(&stored, "fence-token"), text(&stored, "fence-holder")), (&*fence_token(&lease), holder));
    let led = one.leader("users");
    assert_eq!((&led["leader"], text(&led, "holder_id")), (&json!(true), holder));
    assert_eq!((text(&led, "kubernetes_lease"), &led["lease_transitions"]), ("left/users", &json!(0)));
    assert!(led["expires_in_ms"].as_u64().is_some_and(|ms| (1..=40_000).contains(&ms)), "{led}");
    let refused = two.put("/users/1");
    assert_eq!(text(&refused.refusal(503, "NOT_LEADER"), "leader"), holder);
    assert_eq!(refused.header("fence-leader"), Some(holder));
    two.call("GET", "/users/1", &[]).expect_ok();
    assert!(two.shows("fencegate_agent_objects{standing=\"waiting\"} 1\n"));
    assert_eq!(bench.gate.story(), ["PUT /users/1", "GET /users/1"]);
    // A stop in good order hands over at once, and not after the minute that the lease lasts.
    one.signal(Signal::TERM);
    assert!(one.ended().success());
    until("the other one leads", || two.leader("users")["leader"] == true);
    two.put("/users/2").expect_ok();
    let after = bench.lease("users");
    assert_eq!((&after["spec"]["leaseTransitions"], &after["metadata"]["uid"]), (&json!(1), &lease["metadata"]["uid"]));
    assert_eq!(bench.tokens(), [fence_token(&lease), fence_token(&after)]);
    for token in [Who::Candidate.token(), Who::Admin.token()] {
        assert!(!one.log().contains(token) && !two.log().contains(token), "a secret is in the log");
    }
}

#[test]
fn a_leader_that_was_stopped_sends_nothing_of_its_old_term() {
    let bench = Bench::new();
    let (one, two) = (bench.agent("one", SHORT_MS), bench.agent("two", SHORT_MS));
    one.put("/users/1").expect_ok();
    two.put("/users/1").refusal(503, "NOT_LEADER");
    one.signal(Signal::STOP);
    until("the other one leads", || two.leader("users")["leader"] == true);
    two.put("/users/2").expect_ok();
    // The kernel takes these requests in; the agent reads them when it goes on.
    let late = |n| {
        let mut conn = one.conn();
        conn.send("PUT", &format!("/users/late-{n}"), &[], b"value").unwrap();
        conn
    };
    let late: Vec<Conn> = (0..20).map(late).collect();
    one.signal(Signal::CONT);
    for mut conn in late {
        is_refused(&conn.receive().unwrap());
    }
    until("it follows", || one.put("/users/1").header("fence-leader").is_some_and(|by| by.starts_with("two_")));
    assert_eq!(bench.transitions(), [0, 1], "one write of each term, and no other");
    assert_eq!(bench.gate.story(), ["PUT /users/1", "PUT /users/2"]);
    until("the loss is counted", || lost(&one, "TAKEN") || lost(&one, "DEADLINE"));
}

/// The control: a leader that was stopped for less than its lease goes on in the same term.
#[test]
fn a_leader_that_was_stopped_for_a_moment_goes_on() {
    let bench = Bench::new();
    let one = bench.agent("one", LONG_MS);
    one.put("/users/1").expect_ok();
    one.signal(Signal::STOP);
    let mut delayed = one.conn();
    delayed.send("PUT", "/users/2", &[], b"value").unwrap();
    one.signal(Signal::CONT);
    delayed.receive().unwrap().expect_ok();
    assert_eq!(bench.transitions(), [0, 0]);
}

#[test]
fn a_leader_that_was_killed_is_waited_out_also_by_its_own_name() {
    let bench = Bench::new();
    let mut one = bench.agent("one", SHORT_MS);
    one.put("/users/1").expect_ok();
    let before = bench.lease("users");
    one.child.kill().unwrap();
    one.child.wait().unwrap();
    // The new process has the same configured name and yet another identity: it may not continue the dead process's
    // term.
    let again = bench.agent("one", SHORT_MS);
    let first = again.put("/users/2");
    let named = first.refusal(503, "NOT_LEADER")["leader"].clone();
    assert_eq!(named, before["spec"]["holderIdentity"]);
    until("it leads", || again.leader("users")["leader"] == true);
    again.put("/users/2").expect_ok();
    assert_eq!(bench.transitions(), [0, 1]);
    assert_ne!(named, bench.holder("users"));
}

#[test]
fn objects_that_share_a_lease_have_one_leader_and_one_election() {
    let bench = Bench::new();
    let routes = ROUTE.replace("'{object}' }", "'all' }");
    let agent = |name: &str| Agent::start(&bench.settings(name, SHORT_MS, "wait_ms = 30000", &routes));
    let one = agent("one");
    for path in ["/users/1", "/orders/1", "/more/1"] {
        one.put(path).expect_ok();
    }
    assert_eq!(bench.server.requests(Who::Candidate, "create"), 1);
    assert_eq!(bench.tokens().into_iter().collect::<BTreeSet<_>>(), [fence_token(&bench.lease("all"))].into());
    let (two, shown) = (agent("two"), Conn::open(one.status).unwrap().get("/leader").expect(200));
    assert_eq!(shown.as_object().unwrap().len(), 3);
    assert!(shown.as_object().unwrap().values().all(|each| each["leader"] == true), "{shown}");
    // It also follows for an object that it never wrote to before.
    two.put("/other/1").refusal(503, "NOT_LEADER");
    // A Lease that is lost for one object is lost for all, and the loss is counted once.
    bench.server.take(HERE, "all", "another", 600);
    for path in ["/users/1", "/orders/1", "/more/1"] {
        until("it follows", || one.put(path).header("fence-leader") == Some("another"));
    }
    assert!(lost(&one, "TAKEN"));
}

#[test]
fn a_controller_that_elects_by_client_go_takes_part_in_the_same_election() {
    let bench = Bench::new();
    let url = format!("{}/users/by-itself", bench.gate.url());
    let controller =
        |identity: &str| Candidate::start(&bench.server, (HERE, "users"), identity, &url, &["--release-on-cancel"]);
    let mut one = bench.agent("one", LONG_MS);
    one.put("/users/1").expect_ok();
    let mut other = controller("other");
    let led = other.next("leader", |_| true);
    assert_eq!(text(&led, "leader"), bench.holder("users"));
    one.signal(Signal::TERM);
    assert!(one.ended().success());
    let token = other.leads();
    assert_eq!(token, fence_token(&bench.lease("users")));
    other.next("answer", |answer| answer["token"] == token);
    // The agent takes over from the other program, too.
    let two = bench.agent("two", LONG_MS);
    assert_eq!(two.put("/users/1").header("fence-leader"), Some("other"));
    other.signal(Signal::TERM);
    assert_eq!(other.ended().code(), Some(0));
    until("the agent leads", || two.put("/users/1").status == 200);
    let terms = bench.transitions();
    assert!(terms.is_sorted() && [0, 1, 2].iter().all(|term| terms.contains(term)), "{terms:?}");
}

#[test]
fn leases_are_taken_by_route_up_front_or_on_first_use_and_given_back_when_idle() {
    let bench = Bench::new();
    let one = "[[route]]\nname = 'one'\nmatch = '/one/{rest...}'\nobject = 'one'\ntake = 'up-front'\nkubernetes = { namespace = 'right', name = 'first' }\n";
    let routes = format!("{}{one}", ROUTE.replace("'{object}' }", "'by-{object}' }"));
    let agent = Agent::start(&bench.settings("one", LONG_MS, "wait_ms = 30000\nidle_release_ms = 1500", &routes));
    until("the Lease up front", || agent.leader("one")["leader"] == true);
    agent.put("/users/1").expect_ok();
    agent.put("/one/1").expect_ok();
    let first = bench.server.lease("right", "first").unwrap();
    assert_eq!(bench.tokens(), [fence_token(&bench.lease("by-users")), fence_token(&first)]);
    until("given back", || bench.holder("by-users").is_empty());
    assert_eq!(bench.lease("by-users")["spec"]["leaseDurationSeconds"], 1);
    until("forgotten", || agent.shows("fencegate_agent_objects{standing=\"leading\"} 1\n"));
    assert!(text(&bench.server.lease("right", "first").unwrap()["spec"], "holderIdentity").starts_with("one_"));
    agent.put("/users/1").expect_ok();
    assert_eq!(bench.transitions(), [0, 0, 1]);
    // No Lease can have the name of the first object, and no token is for two objects.
    agent.put("/Users/1").refusal(422, "OBJECT_UNMAPPED");
    let moved = agent.call("MOVE", "/users/2", &[("destination", "http://127.0.0.1/orders/2")]);
    moved.refusal(409, "LEASE_OBJECT_MISMATCH");
}

#[test]
fn a_stop_finishes_what_is_on_its_way_before_it_gives_the_lease_back() {
    let bench = Bench::new();
    let mut agent = bench.agent("one", LONG_MS);
    agent.put("/users/1").expect_ok();
    let slow = Hung::send(&bench.gate, agent.conn(), "/users/slow", &[]);
    agent.signal(Signal::TERM);
    until("no more writes are taken", || agent.put("/users/1").header("fence-error") == Some("GATE_STOPPING"));
    assert!(bench.holder("users").starts_with("one_"), "not given back under a write's feet");
    slow.let_go().expect_ok();
    assert!(agent.ended().success());
    assert_eq!(bench.holder("users"), "");
    assert!(agent.log().contains("stopped in good order"), "{}", agent.log());
}

#[test]
fn what_cannot_be_an_election_stops_the_start() {
    let refused = Agent::refused(&format!("[lease]\nholder_id = 'käse'\n{ROUTE}"));
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("lease.holder_id: must be printable ASCII"), "{}", stderr(&refused));
    // The agent runs outside a cluster, and its settings name none.
    let text = settings("one", "http://127.0.0.1:1", "http://127.0.0.1:1", ROUTE, "");
    let refused = Agent::refused(&text);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("kubernetes.url: is empty, and this is no pod"), "{}", stderr(&refused));
}
