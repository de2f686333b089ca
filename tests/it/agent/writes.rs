//! The outcomes of an application's writes and reads: led, not led, refused, cut off, sent once.

use std::{fs, net::TcpListener, sync::mpsc, thread, time::Duration};

use rustix::process::Signal;
use serde_json::json;

use super::{
    super::support::{
        agent::{Agent, settings},
        gate::{acquire, text},
        http::Conn,
        store::Store,
        until,
        wire::{Mode, Wire},
    },
    Bench, Okay,
};

#[test]
fn an_application_writes_and_reads_without_knowing_of_leases() {
    let bench = Bench::new();
    let agent = bench.agent("a");
    let wrote =
        agent.call("PUT", "/users/1?x=%20y", &[("idempotency-key", "\"k-1\""), ("x-own", "kept"), ("cookie", "a=b")]);
    assert_eq!(wrote.status, 200, "{wrote:?}");
    assert_eq!((wrote.header("fence-seq"), wrote.header("fence-outcome")), (Some("1"), Some("settled")));
    assert_eq!((wrote.header("x-kept"), &*wrote.body), (Some("yes"), &b"PUT /users/1?x=%20y 5\n"[..]));
    let stored = &bench.store.applied()[0];
    assert_eq!(stored["path"], "/users/1?x=%20y");
    for (name, value) in [
        ("idempotency-key", "\"k-1\""),
        ("x-own", "kept"),
        ("cookie", "a=b"),
        ("fence-seq", "1"),
        ("fence-object", "users"),
    ] {
        assert_eq!(text(&stored["headers"], name), value);
    }
    assert!(stored["headers"]["fence-token"].is_null());
    let read = agent.call("GET", "/users/1", &[("x-store", "large:3000000")]);
    assert_eq!((read.status, read.body.len()), (200, 3_000_000));
    let led = agent.leader("users");
    assert_eq!(
        (led["leader"].as_bool(), text(&led, "holder_id"), led["lease_seq"].as_u64()),
        (Some(true), "a", Some(1))
    );
    assert!(led["expires_in_ms"].as_u64().is_some_and(|ms| (1..=1_000).contains(&ms)), "{led}");
    // The same connection, again and again; other objects have leases of their own.
    let mut conn = agent.conn();
    for n in 0..20 {
        conn.call("POST", &format!("/object-{}/x", n % 2), &[], b"v").expect_ok();
    }
    let all = Conn::open(agent.status).unwrap().get("/leader").expect(200);
    assert_eq!(all.as_object().unwrap().keys().collect::<Vec<_>>(), ["object-0", "object-1", "users"]);
    assert!(agent.shows("fencegate_agent_objects{standing=\"leading\"} 3\n"));
    assert!(agent.shows("fencegate_agent_forwarded_total{kind=\"write\"} 21\n"));
    assert!(!agent.log().contains("fg1."), "a token is in the log");
}

#[test]
fn an_agent_that_does_not_lead_names_the_leader() {
    let bench = Bench::new();
    let (one, two) = (bench.agent("one"), bench.agent("two"));
    one.put("/users/1").expect_ok();
    let refused = two.put("/users/1");
    let body = refused.refusal(503, "NOT_LEADER");
    assert_eq!((text(&body, "leader"), text(&body, "object_id"), &body["retryable"]), ("one", "users", &json!(true)));
    assert_eq!((refused.header("fence-leader"), refused.header("retry-after")), (Some("one"), Some("1")));
    assert_eq!(two.call("GET", "/users/1", &[]).status, 200, "reads pass");
    let followed = two.leader("users");
    assert_eq!((followed["leader"].as_bool(), text(&followed, "holder_id")), (Some(false), "one"));
    // The leader stops in good order: the other one has its turn at once.
    one.signal(Signal::TERM);
    until("the other one leads", || two.leader("users")["leader"] == true);
    two.put("/users/1").expect_ok();
    assert_eq!(bench.seqs(), [1, 2]);
}

#[test]
fn a_new_leader_is_named_while_an_agent_waits() {
    let bench = Bench::new();
    let mut api = bench.gate.api();
    let first = acquire(&mut api, "users", "first", 60_000);
    // `second` is in the queue before the agent.
    let mut second = bench.gate.api();
    let body = json!({ "object_id": "users", "holder_id": "second", "ttl_ms": 60_000, "wait_ms": 60_000 }).to_string();
    second.send("POST", "/v1/leases", &[("content-type", "application/json")], body.as_bytes()).unwrap();
    let waiting = |count: usize| {
        let line = format!("fencegate_lease_waiters {count}\n");
        until(&line, || String::from_utf8(bench.gate.ops().get("/metrics").body).unwrap().contains(&line));
    };
    waiting(1);
    let agent = bench.agent("a");
    assert_eq!(agent.put("/users/1").header("fence-leader"), Some("first"));
    waiting(2);
    api.delete(&format!("/v1/leases/{}", text(&first, "lease_id")), text(&first, "fence_token")).expect(200);
    second.receive().unwrap().expect(201);
    until("the next leader's name", || agent.put("/users/1").header("fence-leader") == Some("second"));
}

#[test]
fn what_the_gate_would_refuse_anyway_and_a_second_token_go_nowhere() {
    let bench = Bench::new();
    let agent = bench.agent("a");
    let two_sources = agent.call("PUT", "/users/1", &[("fence-token", "fg1.1.dXNlcnM.AQIDBAUGBwgJCgsMDQ4PEA")]);
    assert_eq!(two_sources.refusal(400, "REQUEST_INVALID")["field"], "Fence-Token");
    agent.put("/users/%2e%2e/x").refusal(422, "PATH_AMBIGUOUS");
    agent.put("/").refusal(422, "OBJECT_UNMAPPED");
    agent.call("TRACE", "/users/1", &[]).refusal(403, "TUNNEL_REFUSED");
    agent.call("PUT", "/users/1", &[("x-http-method-override", "GET")]).refusal(400, "METHOD_OVERRIDE_REFUSED");
    for site in ["cross-site", "same-site"] {
        agent.call("POST", "/users/1", &[("sec-fetch-site", site)]).refusal(403, "NOT_LOOPBACK");
    }
    let mut named = agent.conn();
    named.send_raw(b"PUT /users/1 HTTP/1.1\r\nhost: page.example\r\ncontent-length: 0\r\n\r\n").unwrap();
    named.receive().unwrap().refusal(403, "NOT_LOOPBACK");
    assert_eq!(bench.store.saw("begun"), 0);
    assert_eq!(bench.gate.api().get("/v1/receipts").expect(200)["receipts"], json!([]), "the gate saw nothing of it");
}

/// The connection between application and agent is independent of the one between agent and gate.
#[test]
fn headers_for_one_connection_only_end_at_the_agent() {
    let fake_gate = Store::start();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let agent = Agent::start(&settings("a", &fake_gate.url(), &format!("http://{closed}"), "", ""));
    let sent = |more: &[(&str, &str)]| {
        let before = fake_gate.applied().len();
        agent.call("GET", "/users/1", more).expect_ok();
        fake_gate.applied()[before]["headers"].clone()
    };
    let headers = sent(&[
        ("te", "gzip"),
        ("proxy-connection", "keep-alive"),
        ("keep-alive", "timeout=5"),
        ("proxy-authorization", "Basic eDp5"),
        ("connection", "x-named"),
        ("x-named", "1"),
        ("x-own", "kept"),
    ]);
    for name in ["te", "proxy-connection", "keep-alive", "proxy-authorization", "x-named"] {
        assert!(headers[name].is_null(), "{name}: {headers}");
    }
    assert_eq!(headers["x-own"], "kept");
    // The agent passes an answer's trailers on, so it sends `TE: trailers` itself.
    assert_eq!(sent(&[("te", "gzip, trailers")])["te"], "trailers");
}

/// The read is the control: the fake gate records what is forwarded.
#[test]
fn without_a_gate_a_write_is_refused_at_once_and_never_forwarded_unfenced() {
    let fake_gate = Store::start();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let agent = Agent::start(&settings("a", &fake_gate.url(), &format!("http://{closed}"), "wait_ms = 60000", ""));
    for _ in 0..50 {
        // Without a gate the answer comes at once: a wait of a minute would be noticed.
        let refused = agent.put("/users/1");
        assert_eq!(text(&refused.refusal(503, "GATE_UNREACHABLE"), "object_id"), "users");
        assert!(refused.header("retry-after").is_some());
    }
    agent.call("GET", "/users/1", &[]).expect_ok();
    assert_eq!(fake_gate.story(), ["GET /users/1"]);
    assert!(text(&agent.leader("users"), "why").contains("cannot be reached"));
    // If the gate is silent, the write waits for as long as the setting says.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let api = format!("http://{}", silent.local_addr().unwrap());
    let agent = Agent::start(&settings("a", &fake_gate.url(), &api, "wait_ms = 3000", ""));
    agent.put("/users/1").refusal(503, "GATE_UNREACHABLE");
    assert_eq!(fake_gate.saw("begun"), 1);
    // Only the first write waits.
    let (says, said) = mpsc::sync_channel(1);
    thread::spawn(move || {
        (0..20).for_each(|_| _ = agent.put("/users/1").refusal(503, "GATE_UNREACHABLE"));
        let _ = says.send(());
    });
    said.recv_timeout(Duration::from_secs(20)).expect("the others were refused at once");
}

#[test]
fn a_gate_that_comes_back_is_found_again() {
    let bench = Bench::new();
    let wire = Wire::to(bench.gate.api);
    let agent = Agent::start(&settings("a", &bench.urls().0, &wire.url(), "", ""));
    agent.put("/users/1").expect_ok();
    wire.set(Mode::Cut);
    until("the lease runs out", || agent.put("/users/1").status == 503);
    let before = wire.calls();
    // Three seconds, by the gate's own clock.
    acquire(&mut bench.gate.api(), "other", "first", 3_000);
    let next = json!({ "object_id": "other", "holder_id": "next", "ttl_ms": 60_000, "wait_ms": 60_000 });
    bench.gate.api().post("/v1/leases", &next).expect(201);
    let tries = wire.calls() - before;
    assert!((1..60).contains(&tries), "{tries} calls: that is no backoff");
    wire.set(Mode::Pass);
    until("it leads again", || agent.put("/users/1").status == 200);
    assert!(agent.shows("fencegate_agent_losses_total{reason=\"DEADLINE\"} 1\n"));
    let seqs = bench.seqs();
    assert_eq!(seqs.last(), Some(&2), "{seqs:?}");
}

#[test]
fn a_write_that_the_gate_refuses_is_the_agents_loss() {
    let bench = Bench::new();
    let (gate, api) = bench.urls();
    // The agent would not renew for a long time.
    let agent = Agent::start(&settings("a", &gate, &api, "", "").replace("ttl_ms = 1000", "ttl_ms = 60000"));
    agent.put("/users/1").expect_ok();
    bench.revoke("users");
    let refused = agent.put("/users/1");
    let body = refused.refusal(412, "WRITE_STALE_FENCE");
    assert!(body["receipt_id"].is_string(), "the gate's own answer is passed on");
    until("the loss is counted", || agent.shows("fencegate_agent_losses_total{reason=\"WRITE_STALE_FENCE\"} 1\n"));
    agent.put("/users/1").expect_ok();
    assert_eq!(bench.seqs(), [1, 3]);
}

#[test]
fn renewing_before_each_write_finds_out_before_the_gate_has_to() {
    let bench = Bench::new();
    let (gate, api) = bench.urls();
    let text = settings("a", &gate, &api, "renew_before_write = true", "").replace("ttl_ms = 1000", "ttl_ms = 60000");
    let agent = Agent::start(&text);
    agent.put("/users/1").expect_ok();
    bench.revoke("users");
    let refused = agent.put("/users/1");
    assert!(refused.refusal(503, "NOT_LEADER")["detail"].as_str().unwrap().contains("LEASE_FENCED"));
    assert_eq!(bench.gate.api().get("/v1/receipts").expect(200)["receipts"], json!([]), "the gate saw no such write");
    agent.put("/users/1").expect_ok();
    // No write is sent unless the gate confirms the lease.
    let wire = Wire::to(bench.gate.api);
    let text = text.replace(&api, &wire.url()).replace("holder_id = 'a'", "holder_id = 'b'");
    let other = Agent::start(&text);
    other.put("/other/1").expect_ok();
    wire.set(Mode::Cut);
    other.put("/other/1").refusal(503, "GATE_UNREACHABLE");
    assert_eq!(bench.store.story(), ["PUT /users/1", "PUT /users/1", "PUT /other/1"]);
}

#[test]
fn a_write_is_sent_once_whatever_becomes_of_its_answer() {
    let bench = Bench::new();
    let wire = Wire::to(bench.gate.gate);
    let agent = Agent::start(&settings("a", &wire.url(), &bench.urls().1, "", "response_timeout_ms = 300"));
    until("a connection is used again", || {
        let before = wire.calls();
        agent.put("/users/first").expect_ok();
        wire.calls() == before
    });
    let before = wire.calls();
    wire.set(Mode::LosesAnswers);
    agent.put("/users/lost").unknown();
    assert_eq!(wire.calls(), before, "it went by a connection that had been used, and by no other");
    // A gate that is silent.
    wire.set(Mode::Pass);
    agent.call("PUT", "/users/silent", &[("x-store", "hang")]).unknown();
    // The gate does not listen: nothing was sent.
    wire.set(Mode::Cut);
    let cut = agent.put("/users/cut");
    assert!([503, 504].contains(&cut.status), "{cut:?}");
    wire.set(Mode::Pass);
    let story: Vec<_> = bench.store.story().into_iter().filter(|each| each != "PUT /users/first").collect();
    assert_eq!(story, ["PUT /users/lost", "PUT /users/silent"]);
}

#[test]
fn an_application_that_stops_in_the_middle_of_its_own_body_is_named_as_the_cause() {
    let bench = Bench::new();
    let (gate, api) = bench.urls();
    let agent = Agent::start(&settings("a", &gate, &api, "", "response_timeout_ms = 500"));
    let mut half = agent.conn();
    half.send_raw(b"PUT /users/1 HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\nhalf").unwrap();
    let refusal = half.receive().unwrap().unknown();
    let detail = text(&refusal, "detail");
    assert!(detail.contains("the application sent nothing more") && !detail.contains("silent"), "{detail}");
    // The control: a gate that takes the whole write, and is silent.
    let silent = agent.call("PUT", "/users/1", &[("x-store", "hang")]).unknown();
    assert!(text(&silent, "detail").contains("the gate was silent"), "{silent}");
}

#[test]
fn a_connection_that_died_while_idle_costs_no_write() {
    let Bench { store, gate, site } = Bench::new();
    gate.stop();
    let text = fs::read_to_string(site.config()).unwrap();
    fs::write(site.config(), text.replace("[gate]\n", "[gate]\nidle_timeout_ms = 50\n")).unwrap();
    let gate = site.serve();
    let agent = Agent::start(&settings("a", &format!("http://{}", gate.gate), &format!("http://{}", gate.api), "", ""));
    for _ in 0..10 {
        agent.put("/users/1").expect_ok();
        until("the gate has hung up", || {
            String::from_utf8(gate.ops().get("/metrics").body).unwrap().contains("fencegate_connections 0\n")
        });
    }
    assert_eq!(store.story().len(), 10);
}

#[test]
fn bodies_stream_and_a_refusal_comes_before_the_body() {
    let bench = Bench::new();
    let agent = bench.agent("a");
    // The agent asks for the body only when the gate does.
    let head = "PUT /users/1 HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n";
    let mut conn = agent.conn();
    conn.send_raw(head.as_bytes()).unwrap();
    assert_eq!(conn.read_head().unwrap().0, 100);
    conn.send_raw(b"value").unwrap();
    conn.receive().unwrap().expect_ok();
    bench.revoke("users");
    let mut conn = agent.conn();
    conn.send_raw(head.as_bytes()).unwrap();
    assert!([412, 503].contains(&conn.receive().unwrap().status), "refused, and the body was not asked for");
    until("it leads again", || agent.put("/users/1").status == 200);
    // Ten megabytes in chunks; the store already has the first of them.
    let before = bench.store.saw("body");
    let mut conn = agent.conn();
    conn.send_raw(b"PUT /users/2 HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
    let chunk = [format!("{:x}\r\n", 1 << 20).into_bytes(), vec![b'x'; 1 << 20], b"\r\n".to_vec()].concat();
    (0..2).for_each(|_| conn.send_raw(&chunk).unwrap());
    until("the first of it is at the store", || bench.store.saw("body") > before);
    (0..8).for_each(|_| conn.send_raw(&chunk).unwrap());
    conn.send_raw(b"0\r\n\r\n").unwrap();
    assert_eq!(conn.receive().unwrap().body, b"PUT /users/2 10485760\n");
}

#[test]
fn a_write_to_two_objects_refused_for_one_does_not_lock_the_other() {
    let bench = Bench::new();
    let (gate, api) = bench.urls();
    let agent = Agent::start(&settings("a", &gate, &api, "", "").replace("ttl_ms = 1000", "ttl_ms = 120000"));
    for path in ["/users/1", "/orders/1"] {
        agent.put(path).expect_ok();
    }
    bench.revoke("users");
    let moved = agent.call("MOVE", "/users/1", &[("destination", "http://127.0.0.1/orders/2")]);
    moved.refusal(412, "WRITE_STALE_FENCE");
    until("both are led again", || ["/users/1", "/orders/1"].iter().all(|path| agent.put(path).status == 200));
}

/// Each agent holds one of two objects, and its application wants to MOVE to the other.
#[test]
fn two_agents_do_not_keep_each_other_from_writing_to_both_objects() {
    let bench = Bench::new();
    let (one, two) = (bench.agent("one"), bench.agent("two"));
    one.put("/a/1").expect_ok();
    two.put("/b/1").expect_ok();
    let to_b = || one.call("MOVE", "/a/1", &[("destination", "http://127.0.0.1/b/2")]);
    let to_a = || two.call("MOVE", "/b/1", &[("destination", "http://127.0.0.1/a/2")]);
    assert_eq!(to_b().header("fence-leader"), Some("two"));
    until("one of them gets both", || to_b().status == 200 || to_a().status == 200);
    assert_eq!(bench.store.story().len(), 3, "{:?}", bench.store.story());
}

#[test]
fn the_body_of_a_read_and_old_requests_without_a_host_get_through() {
    let bench = Bench::with("[[route]]\nname = 'all'\nbodies_on_reads = true\n");
    let agent = bench.agent("a");
    let mut conn = agent.conn();
    conn.send_raw(b"GET /users/1 HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
    conn.send_raw(b"5\r\nhello\r\n0\r\n\r\n").unwrap();
    assert_eq!(String::from_utf8_lossy(&conn.receive().unwrap().body), "GET /users/1 5\n");
    for request in ["GET /users/1 HTTP/1.0\r\n\r\n", "PUT /users/1 HTTP/1.0\r\ncontent-length: 5\r\n\r\nvalue"] {
        let mut old = agent.conn();
        old.send_raw(request.as_bytes()).unwrap();
        assert_eq!(old.read_head().unwrap().0, 200, "{request}");
    }
    // An application cannot set headers that only the gate may set.
    agent.call("PUT", "/users/1", &[("fence-seq", "99"), ("fence-object", "orders")]);
    assert!(bench.seqs().iter().all(|seq| *seq == 1), "{:?}", bench.seqs());
}

#[test]
fn a_lease_that_is_never_granted_is_not_to_be_tried_again() {
    let bench = Bench::new();
    let (gate, api) = bench.urls();
    let agent = Agent::start(&settings("a", &gate, &api, "", "").replace("ttl_ms = 1000", "ttl_ms = 1"));
    let refused = agent.put("/users/1");
    assert_eq!(refused.refusal(503, "NOT_LEADER")["retryable"], false);
    assert_eq!(refused.header("retry-after"), None);
}
