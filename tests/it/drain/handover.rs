//! How each kind of write in flight delays the next holder, and which answers come meanwhile.

use fencegate::config::{PartialBody, RouteSettings};
use serde_json::json;

use super::{
    BOUND, Held, ask, begin_held, begin_long, bounded, draining, patient_takeover, send, still_waits, takeover,
};
use crate::support::{
    bench::Bench,
    gate::{acquire, text, wanted},
    http::Conn,
    received, until,
};

/// A write that was admitted, and of which the gate cannot send anything yet.
#[track_caller]
fn begin_waiting(bench: &Bench) -> Conn {
    let mut conn = bench.gate.gate();
    let token = bench.token();
    let head = format!(
        "PUT /users/1 HTTP/1.1\r\nhost: x\r\nfence-token: {token}\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n"
    );
    conn.send_raw(head.as_bytes()).unwrap();
    assert_eq!(conn.read_head().unwrap().0, 100, "it was admitted");
    conn
}

#[test]
fn a_lease_changes_hands_only_when_the_write_on_its_way_has_settled() {
    let bench = Bench::new();
    let held = Held::new();
    let token = bench.token().to_owned();
    let write = begin_held(&bench, "/users/1", &token, &held);
    bench.gate.clock.advance(60_000);
    let next = ask(&bench.gate, "/v1/leases", &wanted("users", "b", 60_000));
    draining(&bench.gate, 1);
    // Older writes are refused from here on, and the lease has no holder yet.
    bench.put("/users/2", &[("fence-token", &token)]).refusal(412, "WRITE_STALE_FENCE");
    let object = bench.gate.api().get("/v1/objects/users").expect(200);
    assert_eq!((text(&object, "state"), object["fence"].as_u64()), ("draining", Some(2)));
    bench.gate.api().post("/v1/leases", &wanted("users", "c", 60_000)).refusal(409, "LEASE_HELD");
    assert!(next.try_recv().is_err(), "handed over while a write was on its way");
    held.let_go();
    let settled = received("the answer to the write", &write);
    assert_eq!((settled.status, settled.header("fence-outcome")), (200, Some("settled")));
    let lease = received("the answer to the next holder", &next).expect(201);
    assert_eq!((lease["lease_seq"].as_u64(), &lease["drain"]["settled"]), (Some(2), &json!(1)), "{lease}");
    assert_eq!(lease["tainted"], false);
    assert_eq!(bench.put("/users/2", &[("fence-token", text(&lease, "fence_token"))]).status, 200);
    draining(&bench.gate, 0);
}

#[test]
fn how_long_the_oldest_handover_has_waited_is_shown_until_it_ends() {
    let bench = Bench::with(bounded);
    let oldest = |seconds: u64| {
        let line = format!("fencegate_drain_oldest_seconds {seconds}\n");
        until(&line, || bench.gate.shows(&line));
    };
    let lease = acquire(&mut bench.gate.api(), "orders", "a", 60_000);
    let (first, second) = (Held::new(), Held::new());
    let users = begin_held(&bench, "/users/1", bench.token(), &first);
    let orders = begin_held(&bench, "/orders/1", text(&lease, "fence_token"), &second);
    bench.gate.clock.advance(30_000);
    oldest(0);
    let _told = ask(&bench.gate, "/v1/objects/users/revoke", &json!({ "reason": "test" }));
    draining(&bench.gate, 1);
    bench.gate.clock.advance(100_000);
    let _told = ask(&bench.gate, "/v1/objects/orders/revoke", &json!({ "reason": "test" }));
    draining(&bench.gate, 2);
    bench.gate.clock.advance(30_000);
    oldest(130);
    // The younger drain is now the oldest: the age falls.
    first.let_go();
    received("the answer to the write of users", &users);
    draining(&bench.gate, 1);
    bench.gate.clock.advance(1_000);
    oldest(31);
    second.let_go();
    received("the answer to the write of orders", &orders);
    draining(&bench.gate, 0);
    bench.gate.clock.advance(1_000);
    oldest(0);
}

#[test]
fn the_report_of_a_handover_says_what_became_of_each_write() {
    let bench = Bench::with(bounded);
    let token = bench.token().to_owned();
    // One write is half sent, the store has two, and of three nothing was sent.
    let mut half = begin_long(&bench);
    let held = Held::new();
    let settled = [begin_held(&bench, "/users/2", &token, &held), begin_held(&bench, "/users/3", &token, &held)];
    let mut waiting = [begin_waiting(&bench), begin_waiting(&bench), begin_waiting(&bench)];
    bench.gate.clock.advance(1_000);
    let next = ask(&bench.gate, "/v1/leases", &patient_takeover("a"));
    draining(&bench.gate, 1);
    half.receive().unwrap().unknown();
    bench.gate.clock.advance(BOUND);
    still_waits(&bench.gate, &next);
    held.let_go();
    for write in settled {
        assert_eq!(received("the answer to the write", &write).header("fence-outcome"), Some("settled"));
    }
    let lease = received("the answer to the next holder", &next).expect(201);
    assert_eq!(lease["drain"], json!({ "settled": 2, "cancelled": 3, "unknown": 1, "waited_ms": BOUND }));
    for conn in &mut waiting {
        conn.send_raw(b"value").unwrap();
        conn.receive().unwrap().refusal(412, "WRITE_STALE_FENCE");
    }
    assert_eq!(bench.store.story(), ["PUT /users/2", "PUT /users/3"]);
}

#[test]
fn an_unknown_write_keeps_its_object_until_it_can_no_longer_land() {
    let bench = Bench::with(|settings| {
        bounded(settings);
        settings.store.response_timeout_ms = 300;
    });
    let headers = [("fence-token", bench.token()), ("x-store", "hang")];
    bench.put("/users/1", &headers).unknown();
    bench.gate.clock.advance(1_000);
    let mut patient = takeover("a");
    patient["wait_ms"] = json!(2 * BOUND);
    let next = ask(&bench.gate, "/v1/leases", &patient);
    draining(&bench.gate, 1);
    bench.gate.clock.advance(BOUND - 1_001);
    // A change of another object goes through the ledger: after it the ledger has checked this object.
    acquire(&mut bench.gate.api(), "other", "a", 60_000);
    assert!(next.try_recv().is_err(), "handed over while a write could still land");
    bench.gate.clock.advance(1);
    let lease = received("the answer to the next holder", &next).expect(201);
    assert_eq!((lease["lease_seq"].as_u64(), &lease["drain"]["unknown"]), (Some(2), &json!(1)), "{lease}");
    assert_eq!(lease["drain"]["waited_ms"], BOUND - 1_000, "not a moment longer");
}

#[test]
fn a_caller_gets_an_answer_when_a_drain_takes_long_and_finds_it_again_by_its_request_id() {
    let bench = Bench::with(bounded);
    bench.put("/users/1", &[("fence-token", bench.token()), ("x-store", "reset")]).unknown();
    bench.gate.clock.advance(1_000);
    let mut body = takeover("a");
    body["request_id"] = json!("r1");
    let first = ask(&bench.gate, "/v1/leases", &body);
    draining(&bench.gate, 1);
    bench.gate.clock.advance(5_000);
    let refusal = received("the answer to the first call", &first).refusal(503, "FENCE_DRAINING");
    assert_eq!((text(&refusal, "object_id"), refusal["retryable"].as_bool()), ("users", Some(true)));
    body["wait_ms"] = json!(BOUND);
    let again = ask(&bench.gate, "/v1/leases", &body);
    draining(&bench.gate, 1);
    until("the bound has passed", || {
        bench.gate.clock.advance(1_000);
        bench.gate.shows("fencegate_advances_draining 0\n")
    });
    // The very same advance: its number is the one after the first lease's.
    assert_eq!(received("the answer to the second call", &again).expect(201)["lease_seq"], 2);
}

#[test]
fn a_grant_whose_caller_waits_no_longer_leaves_the_object_free() {
    let bench = Bench::with(bounded);
    bench.put("/users/1", &[("fence-token", bench.token()), ("x-store", "close")]).unknown();
    bench.gate.clock.advance(1_000);
    let first = ask(&bench.gate, "/v1/leases", &takeover("a"));
    draining(&bench.gate, 1);
    bench.gate.clock.advance(5_000);
    received("the answer to the first call", &first).refusal(503, "FENCE_DRAINING");
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
    let mut conn = begin_waiting(&bench);
    bench.gate.clock.advance(1_000);
    let lease = bench.gate.api().post("/v1/leases", &takeover("a")).expect(201);
    assert_eq!((lease["lease_seq"].as_u64(), &lease["drain"]["cancelled"]), (Some(2), &json!(1)), "{lease}");
    conn.send_raw(b"value").unwrap();
    let refused = conn.receive().unwrap().refusal(412, "WRITE_STALE_FENCE");
    assert_eq!(text(&refused, "successor_holder"), "a");
    assert_eq!(bench.store.saw("begun"), 0);
}

#[test]
fn a_write_that_is_half_sent_is_stopped_and_its_object_waits() {
    let bench = Bench::with(bounded);
    let mut conn = begin_long(&bench);
    let revoked = ask(&bench.gate, "/v1/objects/users/revoke", &json!({ "reason": "test" }));
    // The client sends no more: the gate itself has stopped the write.
    conn.receive().unwrap().unknown();
    until("the store has seen it break off", || bench.store.saw("cut") == 1);
    draining(&bench.gate, 1);
    until("the bound has passed", || {
        bench.gate.clock.advance(1_000);
        bench.gate.shows("fencegate_advances_draining 0\n")
    });
    let body = received("the answer to the revocation", &revoked).expect(200);
    assert_eq!(body["fence"], 2, "{body}");
    assert_eq!(bench.store.story(), Vec::<String>::new());
}

#[test]
fn a_store_that_discards_what_is_not_whole_is_not_waited_for() {
    let bench = Bench::with(|settings| {
        bounded(settings);
        settings.route = vec![RouteSettings { partial_body: PartialBody::Discards, ..RouteSettings::default() }];
    });
    let mut conn = begin_long(&bench);
    let body = bench.gate.api().post("/v1/objects/users/revoke", &json!({ "reason": "test" })).expect(200);
    assert_eq!((&body["drain"]["cancelled"], text(&body, "state")), (&json!(1), "free"), "{body}");
    conn.receive().unwrap().refusal(502, "STORE_UNREACHABLE");
}

#[test]
fn a_caller_that_is_overtaken_by_a_drain_is_answered_at_once() {
    let bench = Bench::with(bounded);
    bench.put("/users/1", &[("fence-token", bench.token()), ("x-store", "reset")]).unknown();
    bench.gate.clock.advance(1_000);
    let mut patient = takeover("a");
    patient["wait_ms"] = json!(2 * BOUND);
    let next = ask(&bench.gate, "/v1/leases", &patient);
    draining(&bench.gate, 1);
    let _revoked = ask(&bench.gate, "/v1/objects/users/revoke", &json!({ "reason": "operator" }));
    received("the answer to the next holder", &next).refusal(409, "LEASE_FENCED");
}

#[test]
fn a_revocation_overtakes_a_drain_and_its_caller_is_answered() {
    let bench = Bench::with(bounded);
    bench.put("/users/1", &[("fence-token", bench.token()), ("x-store", "reset")]).unknown();
    bench.gate.clock.advance(1_000);
    let next = ask(&bench.gate, "/v1/leases", &takeover("a"));
    draining(&bench.gate, 1);
    let revoke = json!({ "reason": "operator", "force": true });
    bench.gate.api().post("/v1/objects/users/revoke", &revoke).expect(200);
    received("the answer to the next holder", &next).refusal(409, "LEASE_FENCED");
    draining(&bench.gate, 0);
    assert_eq!(bench.gate.api().get("/v1/objects/users").expect(200)["fence"], 3);
}

#[test]
fn answers_that_leave_it_open_are_unknown_unless_the_route_knows_better() {
    let bench = Bench::with(|settings| {
        bounded(settings);
        let knows = RouteSettings { settles: vec![503], ..RouteSettings::default() };
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
fn a_write_may_wait_while_its_lease_is_being_moved() {
    let bench = Bench::with(|settings| {
        let waits = RouteSettings { drain_wait_ms: 60_000, ..RouteSettings::default() };
        settings.route = vec![waits];
    });
    // The sync of a rotation hangs: the object is sealed, and its old token is not stale yet.
    bench.gate.table.hold_syncs();
    let path = format!("/v1/leases/{}/renew", text(&bench.lease, "lease_id"));
    let body = json!({ "fence_token": bench.token(), "holder_id": "a", "ttl_ms": 60_000, "rotate": true });
    let rotated = ask(&bench.gate, &path, &body);
    bench.gate.table.wait_for_held_sync();
    let write = send(bench.gate.gate(), "PUT", "/users/1", &[("fence-token", bench.token())], b"value");
    until("it has been judged", || bench.gate.shows("fencegate_bytes_total{direction=\"received\"} 1"));
    assert!(write.try_recv().is_err(), "it was not refused at once");
    bench.gate.table.release_syncs();
    assert_eq!(received("the answer to the rotation", &rotated).expect(200)["lease_seq"], 2);
    // Judged from the start, its token is stale by now.
    received("the answer to the write", &write).refusal(412, "WRITE_STALE_FENCE");
}
