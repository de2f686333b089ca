//! Writes that are on their way when a lease changes hands: the next holder gets it only once they have
//! settled, were stopped, or can no longer land.

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{Receiver, sync_channel},
    },
    thread,
};

use serde_json::{Value, json};

use super::support::{
    bench::Bench,
    gate::{START, TestGate, acquire, settings, text, wanted},
    http::{Answer, Conn},
    store::Store,
    until,
};

/// How long an unknown write may still land, where a test says so.
const BOUND: u64 = 40_000;

fn bounded(settings: &mut fencegate::config::Settings) {
    settings.store.delivery_bound_ms = BOUND / 4;
    settings.store.apply_bound_ms = BOUND - BOUND / 4;
    settings.store.response_timeout_ms = 300;
}

/// Sends a request whose answer is to come.
fn send(mut conn: Conn, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Receiver<Answer> {
    conn.send(method, path, headers, body).unwrap();
    let (tell, told) = sync_channel(1);
    thread::spawn(move || tell.send(conn.receive().unwrap()));
    told
}

fn ask(gate: &TestGate, path: &str, body: &Value) -> Receiver<Answer> {
    send(gate.api(), "POST", path, &[("content-type", "application/json")], body.to_string().as_bytes())
}

fn takeover(holder: &str) -> Value {
    let mut body = wanted("users", holder, 60_000);
    body["takeover"] = json!(true);
    body
}

/// Waits until so many advances wait.
fn draining(gate: &TestGate, n: usize) {
    let line = format!("fencegate_advances_draining {n}\n");
    until(&line, || gate.shows(&line));
}

/// A store's answer that the test lets go.
struct Held {
    folder: tempfile::TempDir,
}

impl Held {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("go")
    }

    fn wish(&self) -> String {
        format!("until:{}", self.file().display())
    }

    fn let_go(&self) {
        fs::write(self.file(), "").unwrap();
    }
}

#[test]
fn a_lease_changes_hands_only_when_the_write_on_its_way_has_settled() {
    let bench = Bench::new();
    let held = Held::new();
    let token = bench.token().to_owned();
    let wish = held.wish();
    let write = send(bench.gate.gate(), "PUT", "/users/1", &[("fence-token", &token), ("x-store", &wish)], b"old");
    until("the store has it", || bench.store.story().len() == 1);
    bench.gate.clock.advance(60_000);
    let next = ask(&bench.gate, "/v1/leases", &wanted("users", "b", 60_000));
    draining(&bench.gate, 1);
    // Older writes are refused from here on, and nobody has the lease yet.
    bench.put("/users/2", &[("fence-token", &token)]).refusal(412, "WRITE_STALE_FENCE");
    let object = bench.gate.api().get("/v1/objects/users").expect(200);
    assert_eq!((text(&object, "state"), object["fence"].as_u64()), ("draining", Some(2)));
    bench.gate.api().post("/v1/leases", &wanted("users", "c", 60_000)).refusal(409, "LEASE_HELD");
    assert!(next.try_recv().is_err(), "handed over while a write was on its way");
    held.let_go();
    let settled = write.recv().unwrap();
    assert_eq!((settled.status, settled.header("fence-outcome")), (200, Some("settled")));
    let lease = next.recv().unwrap().expect(201);
    assert_eq!((lease["lease_seq"].as_u64(), &lease["drain"]["settled"]), (Some(2), &json!(1)), "{lease}");
    assert_eq!(lease["tainted"], false);
    assert_eq!(bench.put("/users/2", &[("fence-token", text(&lease, "fence_token"))]).status, 200);
    draining(&bench.gate, 0);
}

#[test]
fn an_unknown_write_keeps_its_object_until_it_can_no_longer_land() {
    let bench = Bench::with(bounded);
    let headers = [("fence-token", bench.token()), ("x-store", "hang")];
    bench.put("/users/1", &headers).unknown();
    bench.gate.clock.advance(1_000);
    let mut patient = takeover("a");
    patient["wait_ms"] = json!(2 * BOUND);
    let next = ask(&bench.gate, "/v1/leases", &patient);
    draining(&bench.gate, 1);
    bench.gate.clock.advance(BOUND - 1_001);
    // A change of another object goes through the ledger: it has looked by then.
    acquire(&mut bench.gate.api(), "other", "a", 60_000);
    assert!(next.try_recv().is_err(), "handed over while a write could still land");
    bench.gate.clock.advance(1);
    let lease = next.recv().unwrap().expect(201);
    assert_eq!((lease["lease_seq"].as_u64(), &lease["drain"]["unknown"]), (Some(2), &json!(1)), "{lease}");
    assert_eq!(lease["drain"]["waited_ms"], BOUND - 1_000, "not a moment longer");
}

#[test]
fn a_caller_is_told_when_a_drain_takes_long_and_finds_it_again_by_its_request_id() {
    let bench = Bench::with(bounded);
    bench.put("/users/1", &[("fence-token", bench.token()), ("x-store", "reset")]).unknown();
    bench.gate.clock.advance(1_000);
    let mut body = takeover("a");
    body["request_id"] = json!("r1");
    let first = ask(&bench.gate, "/v1/leases", &body);
    draining(&bench.gate, 1);
    bench.gate.clock.advance(5_000);
    let told = first.recv().unwrap().refusal(503, "FENCE_DRAINING");
    assert_eq!((text(&told, "object_id"), told["retryable"].as_bool()), ("users", Some(true)));
    body["wait_ms"] = json!(BOUND);
    let again = ask(&bench.gate, "/v1/leases", &body);
    draining(&bench.gate, 1);
    until("the bound has passed", || {
        bench.gate.clock.advance(1_000);
        bench.gate.shows("fencegate_advances_draining 0\n")
    });
    // The very same advance: its number is the one after the first lease's.
    assert_eq!(again.recv().unwrap().expect(201)["lease_seq"], 2);
}

#[test]
fn a_grant_that_nobody_waits_for_any_more_leaves_the_object_free() {
    let bench = Bench::with(bounded);
    bench.put("/users/1", &[("fence-token", bench.token()), ("x-store", "close")]).unknown();
    bench.gate.clock.advance(1_000);
    let first = ask(&bench.gate, "/v1/leases", &takeover("a"));
    draining(&bench.gate, 1);
    bench.gate.clock.advance(5_000);
    first.recv().unwrap().refusal(503, "FENCE_DRAINING");
    until("the bound has passed", || {
        bench.gate.clock.advance(1_000);
        bench.gate.shows("fencegate_advances_draining 0\n")
    });
    let object = bench.gate.api().get("/v1/objects/users").expect(200);
    assert_eq!((text(&object, "state"), object["fence"].as_u64()), ("free", Some(2)));
    assert_eq!(acquire(&mut bench.gate.api(), "users", "b", 60_000)["lease_seq"], 3);
}

#[test]
fn a_write_that_was_not_sent_yet_is_cancelled_and_not_waited_for() {
    let bench = Bench::with(bounded);
    let token = bench.token().to_owned();
    let mut conn = bench.gate.gate();
    let head = format!(
        "PUT /users/1 HTTP/1.1\r\nhost: x\r\nfence-token: {token}\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n"
    );
    conn.send_raw(head.as_bytes()).unwrap();
    assert_eq!(conn.read_head().unwrap().0, 100, "it was admitted");
    bench.gate.clock.advance(1_000);
    let lease = bench.gate.api().post("/v1/leases", &takeover("a")).expect(201);
    assert_eq!((lease["lease_seq"].as_u64(), &lease["drain"]["cancelled"]), (Some(2), &json!(1)), "{lease}");
    conn.send_raw(b"value").unwrap();
    let refused = conn.receive().unwrap().refusal(412, "WRITE_STALE_FENCE");
    assert_eq!(text(&refused, "successor_holder"), "a");
    assert_eq!(bench.store.saw("begun"), 0);
}

/// A long write of which the store has got a part.
fn begin_long(bench: &Bench) -> Conn {
    let mut conn = bench.gate.gate();
    let token = bench.token();
    let head = format!("PUT /users/1 HTTP/1.1\r\nhost: x\r\nfence-token: {token}\r\ncontent-length: 100000\r\n\r\n");
    conn.send_raw(&[head.as_bytes(), &[b'x'; 50_000]].concat()).unwrap();
    until("the store has some of it", || bench.store.saw("body") == 1);
    conn
}

#[test]
fn a_write_that_is_half_sent_is_stopped_and_its_object_waits() {
    let bench = Bench::with(bounded);
    let mut conn = begin_long(&bench);
    let revoked = ask(&bench.gate, "/v1/objects/users/revoke", &json!({ "reason": "test" }));
    // Nothing more comes from the client: the gate itself has stopped it.
    conn.receive().unwrap().unknown();
    until("the store has seen it break off", || bench.store.saw("cut") == 1);
    draining(&bench.gate, 1);
    until("the bound has passed", || {
        bench.gate.clock.advance(1_000);
        bench.gate.shows("fencegate_advances_draining 0\n")
    });
    let body = revoked.recv().unwrap().expect(200);
    assert_eq!(body["fence"], 2, "{body}");
    assert_eq!(bench.store.story(), Vec::<String>::new());
}

#[test]
fn a_store_that_discards_what_is_not_whole_is_not_waited_for() {
    let bench = Bench::with(|settings| {
        bounded(settings);
        settings.route = vec![fencegate::config::RouteSettings {
            partial_body: fencegate::config::PartialBody::Discards,
            ..fencegate::config::RouteSettings::default()
        }];
    });
    let mut conn = begin_long(&bench);
    let body = bench.gate.api().post("/v1/objects/users/revoke", &json!({ "reason": "test" })).expect(200);
    assert_eq!((&body["drain"]["cancelled"], text(&body, "state")), (&json!(1), "free"), "{body}");
    conn.receive().unwrap().refusal(502, "STORE_UNREACHABLE");
}

#[test]
fn an_operator_can_force_a_handover_and_the_next_lease_says_so() {
    let bench = Bench::with(bounded);
    bench.put("/users/1", &[("fence-token", bench.token()), ("x-store", "reset")]).unknown();
    let revoke = json!({ "reason": "the store is gone for good", "force": true });
    let body = bench.gate.api().post("/v1/objects/users/revoke", &revoke).expect(200);
    assert_eq!((text(&body, "state"), &body["drain"]["unknown"]), ("free", &json!(1)), "{body}");
    let lease = acquire(&mut bench.gate.api(), "users", "b", 60_000);
    assert_eq!((lease["lease_seq"].as_u64(), lease["tainted"].as_bool()), (Some(3), Some(true)));
    // Once it can no longer land, the next one is clean.
    bench.gate.clock.advance(BOUND);
    until("the ledger has looked at its clock", || bench.gate.shows("fencegate_leases_live 1\n"));
    let lease = bench.gate.api().post("/v1/leases", &takeover("b")).expect(201);
    assert_eq!(lease["tainted"], false);
}

#[test]
fn force_forgives_what_was_on_its_way_and_nothing_else() {
    let bench = Bench::with(bounded);
    bench.put("/users/1", &[("fence-token", bench.token()), ("x-store", "reset")]).unknown();
    let revoke = json!({ "reason": "the store is gone for good", "force": true });
    bench.gate.api().post("/v1/objects/users/revoke", &revoke).expect(200);
    let lease = acquire(&mut bench.gate.api(), "users", "b", 60_000);
    // A write of the new lease is waited for as ever.
    let held = Held::new();
    let (token, wish) = (text(&lease, "fence_token"), held.wish());
    let write = send(bench.gate.gate(), "PUT", "/users/2", &[("fence-token", token), ("x-store", &wish)], b"new");
    until("the store has it", || bench.store.story().len() == 2);
    bench.gate.clock.advance(60_000);
    let next = ask(&bench.gate, "/v1/leases", &wanted("users", "c", 60_000));
    draining(&bench.gate, 1);
    assert!(next.try_recv().is_err(), "handed over while a write was on its way");
    held.let_go();
    write.recv().unwrap();
    assert_eq!(next.recv().unwrap().expect(201)["tainted"], false);
}

#[test]
fn force_helps_after_a_crash_too() {
    let mut settings = settings();
    bounded(&mut settings);
    let gate = TestGate::with(&settings);
    acquire(&mut gate.api(), "users", "a", 60_000);
    let gate = TestGate::on(&settings, gate.crash(), START);
    let revoke = json!({ "reason": "we cannot wait", "force": true });
    let body = gate.api().post("/v1/objects/users/revoke", &revoke).expect(200);
    assert_eq!(text(&body, "state"), "free");
    assert_eq!(acquire(&mut gate.api(), "users", "b", 60_000)["tainted"], true);
}

#[test]
fn whoever_is_overtaken_by_a_drain_is_told_at_once() {
    let bench = Bench::with(bounded);
    bench.put("/users/1", &[("fence-token", bench.token()), ("x-store", "reset")]).unknown();
    bench.gate.clock.advance(1_000);
    let mut patient = takeover("a");
    patient["wait_ms"] = json!(2 * BOUND);
    let next = ask(&bench.gate, "/v1/leases", &patient);
    draining(&bench.gate, 1);
    let _revoked = ask(&bench.gate, "/v1/objects/users/revoke", &json!({ "reason": "operator" }));
    next.recv().unwrap().refusal(409, "LEASE_FENCED");
}

#[test]
fn a_revocation_overtakes_a_drain_and_its_caller_is_told() {
    let bench = Bench::with(bounded);
    bench.put("/users/1", &[("fence-token", bench.token()), ("x-store", "reset")]).unknown();
    bench.gate.clock.advance(1_000);
    let next = ask(&bench.gate, "/v1/leases", &takeover("a"));
    draining(&bench.gate, 1);
    let revoke = json!({ "reason": "operator", "force": true });
    bench.gate.api().post("/v1/objects/users/revoke", &revoke).expect(200);
    next.recv().unwrap().refusal(409, "LEASE_FENCED");
    draining(&bench.gate, 0);
    assert_eq!(bench.gate.api().get("/v1/objects/users").expect(200)["fence"], 3);
}

#[test]
fn a_client_that_reads_slowly_holds_nothing_up() {
    let bench = Bench::with(bounded);
    let mut conn = bench.gate.gate();
    let headers = [("fence-token", bench.token()), ("x-store", "large:60000")];
    conn.send("PUT", "/users/1", &headers, b"value").unwrap();
    until("the store has answered", || bench.store.story().len() == 1);
    bench.gate.clock.advance(1_000);
    // Nothing of the answer has been read.
    let lease = bench.gate.api().post("/v1/leases", &takeover("a")).expect(201);
    assert_eq!(lease["drain"]["unknown"], 0, "{lease}");
    let answer = conn.receive().unwrap();
    assert_eq!((answer.body.len(), answer.header("fence-outcome")), (60_000, Some("settled")));
}

#[test]
fn answers_that_leave_it_open_are_unknown_unless_the_route_knows_better() {
    let bench = Bench::with(|settings| {
        bounded(settings);
        let knows =
            fencegate::config::RouteSettings { settles: vec![503], ..fencegate::config::RouteSettings::default() };
        settings.route = vec![knows];
    });
    let put = |status: &str| bench.put("/users/1", &[("fence-token", bench.token()), ("x-store", status)]);
    assert_eq!(put("503").header("fence-outcome"), Some("settled"));
    bench.gate.clock.advance(1_000);
    let lease = bench.gate.api().post("/v1/leases", &takeover("a")).expect(201);
    let answer = bench.put("/users/1", &[("fence-token", text(&lease, "fence_token")), ("x-store", "202")]);
    assert_eq!((answer.status, answer.header("fence-outcome")), (202, Some("unknown")));
    bench.gate.clock.advance(1_000);
    let _next = ask(&bench.gate, "/v1/leases", &takeover("a"));
    draining(&bench.gate, 1);
}

#[test]
fn after_a_crash_nothing_is_handed_out_before_the_bound_has_passed() {
    let mut settings = settings();
    bounded(&mut settings);
    let gate = TestGate::with(&settings);
    acquire(&mut gate.api(), "users", "a", 1_000);
    let table = gate.crash();
    let gate = TestGate::on(&settings, table, START);
    gate.clock.advance(1_000);
    let next = ask(&gate, "/v1/leases", &wanted("users", "b", 60_000));
    let other = ask(&gate, "/v1/leases", &wanted("never-seen", "b", 60_000));
    draining(&gate, 2);
    until("the bound has passed", || {
        gate.clock.advance(1_000);
        gate.shows("fencegate_advances_draining 0\n")
    });
    for answer in [next.recv().unwrap(), other.recv().unwrap()] {
        answer.refusal(503, "FENCE_DRAINING");
    }
    assert_eq!(acquire(&mut gate.api(), "users", "b", 60_000)["drain"]["waited_ms"], 0);
    // A clean stop leaves nothing to wait for.
    let gate = TestGate::on(&settings, gate.stop(), START);
    assert_eq!(acquire(&mut gate.api(), "orders", "b", 60_000)["drain"]["waited_ms"], 0);
}

#[test]
fn a_drain_that_a_crash_cut_short_is_taken_up_again() {
    let bench = Bench::with(bounded);
    bench.put("/users/1", &[("fence-token", bench.token()), ("x-store", "reset")]).unknown();
    bench.gate.clock.advance(1_000);
    let _next = ask(&bench.gate, "/v1/leases", &takeover("a"));
    draining(&bench.gate, 1);
    let mut settings = settings();
    bounded(&mut settings);
    let gate = TestGate::on(&settings, Arc::new(bench.gate.table.after_a_crash()), START);
    let object = gate.api().get("/v1/objects/users").expect(200);
    assert_eq!((text(&object, "state"), object["fence"].as_u64()), ("draining", Some(2)));
    gate.api().post("/v1/leases", &wanted("users", "b", 60_000)).refusal(409, "LEASE_HELD");
    let mut patient = wanted("users", "b", 60_000);
    patient["wait_ms"] = json!(2 * BOUND);
    let next = ask(&gate, "/v1/leases", &patient);
    let mut granted = None;
    until("it is granted", || {
        gate.clock.advance(1_000);
        granted = next.try_recv().ok();
        granted.is_some()
    });
    assert_eq!(granted.unwrap().expect(201)["lease_seq"], 3);
}

#[test]
fn a_stop_with_unknown_writes_counts_as_unclean() {
    let store = Store::start();
    let mut settings = settings();
    bounded(&mut settings);
    settings.store.url = store.url();
    for (wish, is_clean) in [("reset", false), ("200", true)] {
        let gate = TestGate::with(&settings);
        let lease = acquire(&mut gate.api(), "users", "a", 60_000);
        let headers = [("fence-token", text(&lease, "fence_token")), ("x-store", wish)];
        gate.gate().call("PUT", "/users/1", &headers, b"value");
        assert_eq!(gate.try_stop().is_ok(), is_clean, "{wish}");
    }
}

#[test]
fn a_write_may_wait_while_its_lease_is_being_moved() {
    let bench = Bench::with(|settings| {
        let waits =
            fencegate::config::RouteSettings { drain_wait_ms: 60_000, ..fencegate::config::RouteSettings::default() };
        settings.route = vec![waits];
    });
    // The sync behind a rotation hangs: the object is sealed, and its old token not stale yet.
    bench.gate.table.hold_syncs();
    let path = format!("/v1/leases/{}/renew", text(&bench.lease, "lease_id"));
    let body = json!({ "fence_token": bench.token(), "holder_id": "a", "ttl_ms": 60_000, "rotate": true });
    let rotated = ask(&bench.gate, &path, &body);
    bench.gate.table.wait_for_held_sync();
    let write = send(bench.gate.gate(), "PUT", "/users/1", &[("fence-token", bench.token())], b"value");
    until("it has been judged", || bench.gate.shows("fencegate_bytes_total{direction=\"received\"} 1"));
    assert!(write.try_recv().is_err(), "it was not refused at once");
    bench.gate.table.release_syncs();
    assert_eq!(rotated.recv().unwrap().expect(200)["lease_seq"], 2);
    // Judged from the start, its token is stale by now.
    write.recv().unwrap().refusal(412, "WRITE_STALE_FENCE");
}
