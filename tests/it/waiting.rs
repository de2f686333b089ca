//! `wait_ms`: first come, first served; whoever hangs up gets nothing.

use std::{
    sync::mpsc::{Receiver, sync_channel},
    thread,
};

use serde_json::{Value, json};

use super::support::{
    gate::{TestGate, acquire, settings, text, wanted},
    http::{Answer, Conn},
};

fn waiting(object: &str, holder: &str, wait_ms: u64) -> Value {
    let mut body = wanted(object, holder, 60_000);
    body["wait_ms"] = json!(wait_ms);
    body
}

/// Sends an acquire that will wait, and waits until the gate has queued it.
fn queue(gate: &TestGate, body: &Value, place: usize) -> Receiver<Answer> {
    let mut api = gate.api();
    api.send("POST", "/v1/leases", &[("content-type", "application/json")], body.to_string().as_bytes()).unwrap();
    let (tell, told) = sync_channel(1);
    thread::spawn(move || tell.send(api.receive().unwrap()));
    queued(gate, place);
    told
}

/// The gauge is set each second, so moving the clock by one shows who has arrived.
fn queued(gate: &TestGate, place: usize) {
    let line = format!("fencegate_lease_waiters {place}\n");
    for _ in 0..10_000 {
        gate.clock.advance(1_000);
        // A call behind the tick: when it is answered, the tick has been taken.
        gate.api().get("/v1/objects/none").expect(200);
        let metrics = String::from_utf8(gate.ops().get("/metrics").body).unwrap();
        if metrics.contains(&line) {
            return;
        }
        thread::yield_now();
    }
    panic!("nobody queued: {line}");
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
    for (n, told) in answers.into_iter().enumerate() {
        // Someone who does not wait cannot push in.
        api.post("/v1/leases", &wanted("users", "pushy", 1_000)).refusal(409, "LEASE_HELD");
        release(&mut api, &held);
        api.post("/v1/leases", &wanted("users", "pushy", 1_000)).refusal(409, "LEASE_HELD");
        held = told.recv().unwrap().expect(201);
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
    let told = queue(&gate, &waiting("users", "second", LONG), 1);
    gate.clock.advance(1_000_000);
    assert_eq!(text(&told.recv().unwrap().expect(201), "holder_id"), "second");
}

#[test]
fn whoever_waits_goes_before_an_acquire_at_the_instant_of_expiry() {
    let gate = patient_gate();
    let mut api = gate.api();
    acquire(&mut api, "users", "first", 50_000_000);
    let told = queue(&gate, &waiting("users", "second", LONG), 1);
    // The ledger's own timer and the newcomer race; the waiter wins either way.
    gate.clock.advance(50_000_000);
    api.post("/v1/leases", &wanted("users", "pushy", 1_000)).refusal(409, "LEASE_HELD");
    assert_eq!(text(&told.recv().unwrap().expect(201), "holder_id"), "second");
}

#[test]
fn a_waiter_whose_time_is_up_is_told_who_holds_it() {
    let gate = patient_gate();
    acquire(&mut gate.api(), "users", "first", LONG);
    let told = queue(&gate, &waiting("users", "second", 20_000_000), 1);
    gate.clock.advance(20_000_000);
    let refused = told.recv().unwrap().refusal(409, "LEASE_HELD");
    assert_eq!(text(&refused, "holder_id"), "first");
    queued(&gate, 0);
}

#[test]
fn a_waiter_that_hangs_up_gets_no_lease() {
    let gate = patient_gate();
    let mut api = gate.api();
    let held = acquire(&mut api, "users", "first", LONG);
    let mut gone = gate.api();
    let body = waiting("users", "gone", LONG).to_string();
    gone.send("POST", "/v1/leases", &[("content-type", "application/json")], body.as_bytes()).unwrap();
    queued(&gate, 1);
    let told = queue(&gate, &waiting("users", "patient", LONG), 2);
    drop(gone);
    release(&mut api, &held);
    // Were the hang-up not noticed in time, the grant would be withdrawn and passed on.
    let lease = told.recv().unwrap().expect(201);
    assert_eq!(text(&lease, "holder_id"), "patient");
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
    let [one, two] = twins.map(|told| told.recv().unwrap().expect(201));
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
