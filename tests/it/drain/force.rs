//! An operator who does not wait: the next lease is tainted for as long as an older write may land.

use serde_json::json;

use super::{BOUND, Held, ask, begin_held, begin_long, bounded, draining, takeover};
use crate::support::{
    bench::Bench,
    gate::{START, TestGate, acquire, settings, text, wanted},
    received, until,
};

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
    // The gate waits for a write of the new lease as usual.
    let held = Held::new();
    let write = begin_held(&bench, "/users/2", text(&lease, "fence_token"), &held);
    bench.gate.clock.advance(60_000);
    let next = ask(&bench.gate, "/v1/leases", &wanted("users", "c", 60_000));
    draining(&bench.gate, 1);
    assert!(next.try_recv().is_err(), "handed over while a write was on its way");
    held.let_go();
    received("the answer to the write", &write);
    assert_eq!(received("the answer to the next holder", &next).expect(201)["tainted"], false);
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
fn force_does_not_wait_for_a_write_that_the_store_has_not_answered() {
    let bench = Bench::with(bounded);
    let held = Held::new();
    let write = begin_held(&bench, "/users/1", bench.token(), &held);
    let revoke = json!({ "reason": "the store is gone for good", "force": true });
    let body = bench.gate.api().post("/v1/objects/users/revoke", &revoke).expect(200);
    assert_eq!((text(&body, "state"), body["fence"].as_u64()), ("free", Some(2)), "{body}");
    let lease = acquire(&mut bench.gate.api(), "users", "b", 60_000);
    assert_eq!((lease["lease_seq"].as_u64(), lease["tainted"].as_bool()), (Some(3), Some(true)));
    assert_eq!(bench.put("/users/2", &[("fence-token", text(&lease, "fence_token"))]).status, 200);
    // However long it takes: while the write is in flight it may land, and every holder's lease says so.
    bench.gate.clock.advance(BOUND);
    assert_eq!(bench.gate.api().post("/v1/leases", &takeover("b")).expect(201)["tainted"], true);
    held.let_go();
    assert_eq!(
        received("the answer to the write", &write).header("fence-outcome"),
        Some("settled"),
        "the answer to its writer is true"
    );
    bench.gate.clock.advance(1_000);
    assert_eq!(bench.gate.api().post("/v1/leases", &takeover("b")).expect(201)["tainted"], false);
}

#[test]
fn force_stops_a_write_that_is_half_sent_and_does_not_wait_for_what_it_left() {
    let bench = Bench::with(bounded);
    let mut half = begin_long(&bench);
    let revoke = json!({ "reason": "the store is gone for good", "force": true });
    let body = bench.gate.api().post("/v1/objects/users/revoke", &revoke).expect(200);
    assert_eq!(text(&body, "state"), "free", "{body}");
    half.receive().unwrap().unknown();
    assert_eq!(acquire(&mut bench.gate.api(), "users", "b", 60_000)["tainted"], true);
    bench.gate.clock.advance(BOUND - 1);
    assert_eq!(bench.gate.api().post("/v1/leases", &takeover("b")).expect(201)["tainted"], true);
    bench.gate.clock.advance(1_000);
    assert_eq!(bench.gate.api().post("/v1/leases", &takeover("b")).expect(201)["tainted"], false);
    until("the store has seen it break off", || bench.store.saw("cut") == 1);
    assert_eq!(bench.store.story(), Vec::<String>::new());
}
