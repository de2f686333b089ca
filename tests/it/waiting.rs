//! `wait_ms`: first come, first served; a caller that hangs up gets no lease.

use std::{
    sync::mpsc::{Receiver, sync_channel},
    thread,
};

use serde_json::{Value, json};

use super::support::{
    gate::{TestGate, acquire, settings, text, wanted},
    http::{Conn, Response},
    received, until,
};

fn waiting(object: &str, holder: &str, wait_ms: u64) -> Value {
    let mut body = wanted(object, holder, 60_000);
    body["wait_ms"] = json!(wait_ms);
    body
}

/// Sends an acquire that will wait. Returns when the gate has queued it.
fn queue(gate: &TestGate, body: &Value, place: usize) -> Receiver<Response> {
    let mut api = gate.api();
    api.send("POST", "/v1/leases", &[("content-type", "application/json")], body.to_string().as_bytes()).unwrap();
    let (sender, receiver) = sync_channel(1);
    thread::spawn(move || sender.send(api.receive().unwrap()));
    queued(gate, place);
    receiver
}

/// Waits until this many callers wait.
fn queued(gate: &TestGate, place: usize) {
    let line = format!("fencegate_lease_waiters {place}\n");
    until(&line, || gate.shows(&line));
}

fn release(api: &mut Conn, lease: &Value) {
    api.delete(&format!("/v1/leases/{}", text(lease, "lease_id")), text(lease, "fence_token")).expect(200);
}

fn patient_gate() -> TestGate {
    let mut settings = settings();
    settings.lease.ttl_ms_max = 86_400_000;
    settings.lease.wait_ms_max = 86_400_000;
    TestGate::with(&settings)
}

const LONG: u64 = 86_400_000;

#[test]
fn waiters_are_served_in_the_order_they_came() {
    let gate = patient_gate();
    let mut api = gate.api();
    let mut held = acquire(&mut api, "users", "first", LONG);
    let answers: Vec<_> = (0..8).map(|n| queue(&gate, &waiting("users", &format!("w{n}"), LONG), n + 1)).collect();
    for (n, answer) in answers.into_iter().enumerate() {
        // A caller that does not wait cannot get ahead of the queue.
        api.post("/v1/leases", &wanted("users", "pushy", 1_000)).refusal(409, "LEASE_HELD");
        release(&mut api, &held);
        api.post("/v1/leases", &wanted("users", "pushy", 1_000)).refusal(409, "LEASE_HELD");
        held = received("the answer to a waiting acquire", &answer).expect(201);
        assert_eq!(
            (text(&held, "holder_id"), held["lease_seq"].as_u64()),
            (format!("w{n}").as_str(), Some(n as u64 + 2))
        );
    }
}

#[test]
fn expiry_serves_the_first_waiter_too() {
    let gate = patient_gate();
    acquire(&mut gate.api(), "users", "first", 1_000_000);
    let answer = queue(&gate, &waiting("users", "second", LONG), 1);
    gate.clock.advance(1_000_000);
    assert_eq!(text(&received("the answer to a waiting acquire", &answer).expect(201), "holder_id"), "second");
}

#[test]
fn a_waiter_goes_before_an_acquire_at_the_instant_of_expiry() {
    let gate = patient_gate();
    let mut api = gate.api();
    acquire(&mut api, "users", "first", 50_000_000);
    let answer = queue(&gate, &waiting("users", "second", LONG), 1);
    // The ledger's own timer and the newcomer race; the waiter wins either way.
    gate.clock.advance(50_000_000);
    api.post("/v1/leases", &wanted("users", "pushy", 1_000)).refusal(409, "LEASE_HELD");
    assert_eq!(text(&received("the answer to a waiting acquire", &answer).expect(201), "holder_id"), "second");
}

#[test]
fn a_waiter_whose_time_is_up_learns_who_holds_the_lease() {
    let gate = patient_gate();
    acquire(&mut gate.api(), "users", "first", LONG);
    let answer = queue(&gate, &waiting("users", "second", 20_000_000), 1);
    gate.clock.advance(20_000_000);
    let refused = received("the answer to a waiting acquire", &answer).refusal(409, "LEASE_HELD");
    assert_eq!(text(&refused, "holder_id"), "first");
    queued(&gate, 0);
}

#[test]
fn a_timeout_does_not_jump_the_queue() {
    let gate = patient_gate();
    acquire(&mut gate.api(), "users", "first", 5_000_000);
    let patient = queue(&gate, &waiting("users", "patient", LONG), 1);
    // The time of this caller ends at the same instant as the lease.
    let hurried = queue(&gate, &waiting("users", "hurried", 5_000_000), 2);
    gate.clock.advance(5_000_000);
    assert_eq!(text(&received("the answer to the patient acquire", &patient).expect(201), "holder_id"), "patient");
    received("the answer to the hurried acquire", &hurried).refusal(409, "LEASE_HELD");
}

#[test]
fn waiters_are_woken_by_the_end_of_an_earlier_runs_lease() {
    let gate = patient_gate();
    acquire(&mut gate.api(), "users", "first", 1_000_000);
    let table = gate.stop();
    let mut settings = settings();
    settings.lease.wait_ms_max = LONG;
    let gate = TestGate::on(&settings, table, super::support::gate::START);
    let answer = queue(&gate, &waiting("users", "second", LONG), 1);
    gate.clock.advance(1_000_000);
    assert_eq!(text(&received("the answer to a waiting acquire", &answer).expect(201), "holder_id"), "second");
}

#[test]
fn a_takeover_that_came_too_soon_waits_no_longer_than_it_must() {
    let gate = patient_gate();
    acquire(&mut gate.api(), "users", "me", LONG);
    let mut body = waiting("users", "me", LONG);
    body["takeover"] = json!(true);
    let answer = queue(&gate, &body, 1);
    gate.clock.advance(1_000);
    assert_eq!(received("the answer to a waiting acquire", &answer).expect(201)["lease_seq"], 2);
}

#[test]
fn a_waiter_that_hung_up_takes_nothing_over() {
    let gate = patient_gate();
    let mut api = gate.api();
    let lease = acquire(&mut api, "users", "me", LONG);
    let mut body = waiting("users", "me", 3_000_000);
    body["takeover"] = json!(true);
    let mut gone = gate.api();
    gone.send("POST", "/v1/leases", &[("content-type", "application/json")], body.to_string().as_bytes()).unwrap();
    queued(&gate, 1);
    drop(gone);
    // The gate notices it when the sweep of the next second has checked the queue.
    until("the queue is empty", || {
        gate.clock.advance(1);
        gate.shows("fencegate_lease_waiters 0\n")
    });
    gate.clock.advance(3_000_000);
    let check = json!({ "fence_token": lease["fence_token"] });
    assert_eq!(api.post("/v1/tokens/check", &check).expect(200)["valid"], true);
}

#[test]
fn a_waiter_that_hangs_up_gets_no_lease() {
    let gate = patient_gate();
    let mut api = gate.api();
    for n in 0..30 {
        let object = format!("object-{n}");
        let held = acquire(&mut api, &object, "first", LONG);
        let mut gone = gate.api();
        let body = waiting(&object, "gone", LONG).to_string();
        gone.send("POST", "/v1/leases", &[("content-type", "application/json")], body.as_bytes()).unwrap();
        queued(&gate, 1);
        let answer = queue(&gate, &waiting(&object, "patient", LONG), 2);
        // The gate may or may not have noticed this when the lease is free.
        drop(gone);
        release(&mut api, &held);
        assert_eq!(text(&received("the answer to a waiting acquire", &answer).expect(201), "holder_id"), "patient");
        queued(&gate, 0);
    }
    let listed = api.get("/v1/leases?holder_id=gone&state=held").expect(200);
    assert_eq!(listed["leases"], json!([]));
}

#[test]
fn twins_of_one_request_get_one_lease() {
    let gate = patient_gate();
    let mut api = gate.api();
    let held = acquire(&mut api, "users", "first", LONG);
    let mut body = waiting("users", "second", LONG);
    body["request_id"] = json!("r1");
    let twins = [queue(&gate, &body, 1), queue(&gate, &body, 2)];
    release(&mut api, &held);
    let [one, two] = twins.map(|answer| received("the answer to a waiting acquire", &answer).expect(201));
    assert_eq!((&one["lease_id"], &one["fence_token"]), (&two["lease_id"], &two["fence_token"]));
}

#[test]
fn a_batch_waits_without_holding_anything() {
    let gate = patient_gate();
    let mut api = gate.api();
    let (a, b) = (acquire(&mut api, "a", "first", LONG), acquire(&mut api, "b", "first", LONG));
    let body = json!({ "object_ids": ["a", "b"], "holder_id": "batch", "ttl_ms": 60_000, "wait_ms": LONG });
    let mut waiting = gate.api();
    let sent = body.to_string();
    waiting.send("POST", "/v1/lease-batches", &[("content-type", "application/json")], sent.as_bytes()).unwrap();
    queued(&gate, 1);
    release(&mut api, &a);
    assert_eq!(text(&api.get("/v1/objects/a").expect(200), "state"), "free");
    release(&mut api, &b);
    let granted = waiting.receive().unwrap().expect(201);
    assert_eq!(granted["leases"].as_array().map(Vec::len), Some(2));
}

#[test]
fn the_queue_is_bounded() {
    let mut small = settings();
    small.lease.waiters_max = 1;
    small.lease.wait_ms_max = LONG;
    small.lease.ttl_ms_max = LONG;
    let gate = TestGate::with(&small);
    let mut api = gate.api();
    acquire(&mut api, "users", "first", LONG);
    let _told = queue(&gate, &waiting("users", "second", LONG), 1);
    let refused = api.post("/v1/leases", &waiting("users", "third", LONG)).refusal(503, "GATE_OVERLOADED");
    assert_eq!(refused["retryable"], true);
}
