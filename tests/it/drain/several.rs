//! Several things at once: a holder's own writes while it rotates, batches, workers.

use std::sync::mpsc::Receiver;

use serde_json::{Value, json};

use super::{Held, ask, begin_held, bounded, draining, send, standing, still_waits, takeover};
use crate::support::{
    bench::{Bench, TTL},
    gate::{renewal, text, wanted},
    http::Response,
    received, until,
};

fn rotation(lease: &Value) -> (String, Value) {
    let (path, mut body) = renewal(lease, TTL);
    body["rotate"] = json!(true);
    (path, body)
}

#[test]
fn a_rotation_waits_for_the_holders_own_older_writes() {
    let bench = Bench::with(bounded);
    let held = Held::new();
    let write = begin_held(&bench, "/users/1", bench.token(), &held);
    let (path, body) = rotation(&bench.lease);
    let rotated = ask(&bench.gate, &path, &body);
    draining(&bench.gate, 1);
    bench.put("/users/2", &[("fence-token", bench.token())]).refusal(412, "WRITE_STALE_FENCE");
    assert_eq!(standing(&bench.gate, "users"), ("draining".to_owned(), 2));
    still_waits(&bench.gate, &rotated);
    held.let_go();
    assert_eq!(received("the answer to the write", &write).header("fence-outcome"), Some("settled"));
    let lease = received("the answer to the rotation", &rotated).expect(200);
    assert_eq!((lease["lease_seq"].as_u64(), text(&lease, "holder_id")), (Some(2), "a"));
    assert_eq!(bench.put("/users/2", &[("fence-token", text(&lease, "fence_token"))]).status, 200);
    assert_eq!(bench.store.story(), ["PUT /users/1", "PUT /users/2"]);
}

#[test]
fn a_rotation_whose_caller_hangs_up_meanwhile_leaves_the_object_free() {
    let bench = Bench::with(bounded);
    let held = Held::new();
    let write = begin_held(&bench, "/users/1", bench.token(), &held);
    let (path, body) = rotation(&bench.lease);
    let mut api = bench.gate.api();
    let kind = [("content-type", "application/json")];
    api.send("POST", &path, &kind, body.to_string().as_bytes()).unwrap();
    draining(&bench.gate, 1);
    drop(api);
    held.let_go();
    received("the answer to the write", &write);
    // The caller did not get the new token, so the lease does not last until it runs out.
    until("it was given back", || standing(&bench.gate, "users") == ("free".to_owned(), 2));
    assert_eq!(bench.gate.api().post("/v1/leases", &wanted("users", "b", TTL)).expect(201)["lease_seq"], 3);
}

const OBJECTS: [&str; 3] = ["orders", "parts", "users"];

/// A batch that `b` asks for while a write to `users` is held up in the store.
fn begin_batch(bench: &Bench, held: &Held) -> (Receiver<Response>, Receiver<Response>) {
    let write = begin_held(bench, "/users/1", bench.token(), held);
    bench.gate.clock.advance(TTL);
    let batch = json!({ "object_ids": OBJECTS, "holder_id": "b", "ttl_ms": TTL });
    let next = ask(&bench.gate, "/v1/lease-batches", &batch);
    draining(&bench.gate, 1);
    (write, next)
}

#[test]
fn a_batch_waits_for_the_one_object_that_has_a_write_on_its_way() {
    let bench = Bench::with(bounded);
    let held = Held::new();
    let (write, next) = begin_batch(&bench, &held);
    for (object, fence) in OBJECTS.into_iter().zip([1, 1, 2]) {
        assert_eq!(standing(&bench.gate, object), ("draining".to_owned(), fence), "{object}");
        bench.gate.api().post("/v1/leases", &wanted(object, "c", TTL)).refusal(409, "LEASE_HELD");
    }
    still_waits(&bench.gate, &next);
    held.let_go();
    assert_eq!(received("the answer to the write", &write).header("fence-outcome"), Some("settled"));
    let granted = received("the answer to the next holder", &next).expect(201);
    let leases = granted["leases"].as_array().unwrap();
    let settled = |lease: &Value| (text(lease, "object_id").to_owned(), lease["drain"]["settled"].as_u64().unwrap());
    let settled: Vec<_> = leases.iter().map(settled).collect();
    assert_eq!(settled, [("orders".to_owned(), 0), ("parts".to_owned(), 0), ("users".to_owned(), 1)]);
    for lease in leases {
        let path = format!("/{}/2", text(lease, "object_id"));
        assert_eq!(bench.put(&path, &[("fence-token", text(lease, "fence_token"))]).status, 200, "{lease}");
    }
}

#[test]
fn a_batch_of_which_one_object_is_revoked_meanwhile_gets_nothing() {
    let bench = Bench::with(bounded);
    let held = Held::new();
    let (write, next) = begin_batch(&bench, &held);
    let revoked = bench.gate.api().post("/v1/objects/orders/revoke", &json!({ "reason": "test" })).expect(200);
    assert_eq!((text(&revoked, "state"), revoked["fence"].as_u64()), ("free", Some(2)), "{revoked}");
    let refusal = received("the answer to the next holder", &next).refusal(409, "LEASE_FENCED");
    assert_eq!(text(&refusal, "object_id"), "orders");
    draining(&bench.gate, 0);
    for (object, fence) in OBJECTS.into_iter().zip([2, 1, 2]) {
        assert_eq!(standing(&bench.gate, object), ("free".to_owned(), fence), "{object}");
    }
    // The write is still on its way, and a new waiter waits for it, too.
    let next = ask(&bench.gate, "/v1/leases", &wanted("users", "c", TTL));
    draining(&bench.gate, 1);
    still_waits(&bench.gate, &next);
    held.let_go();
    assert_eq!(received("the answer to the write", &write).header("fence-outcome"), Some("settled"));
    let lease = received("the answer to the next holder", &next).expect(201);
    assert_eq!((lease["lease_seq"].as_u64(), &lease["drain"]["settled"]), (Some(3), &json!(1)), "{lease}");
}

#[test]
fn one_drain_waits_for_the_writes_of_all_workers() {
    let bench = Bench::with(|settings| {
        bounded(settings);
        settings.gate.workers = 2;
        // A worker with one write has no room for another.
        settings.store.connections_max = 1;
        settings.store.queue_max = 0;
    });
    let held = [Held::new(), Held::new()];
    let mut writes = vec![];
    // The kernel chooses the worker of a connection.
    until("both workers are at a write", || {
        let (at, wish) = (bench.store.saw("begun"), held[writes.len()].wish());
        let headers = [("fence-token", bench.token()), ("x-store", &wish)];
        let write = send(bench.gate.gate(), "PUT", "/users/1", &headers, b"held");
        until("it was refused, or the store has it", || {
            write.try_recv().is_ok_and(|answer| answer.refusal(503, "GATE_OVERLOADED").is_object())
                || bench.store.saw("begun") > at
        });
        if bench.store.saw("begun") > at {
            writes.push(write);
        }
        writes.len() == 2
    });
    bench.gate.clock.advance(1_000);
    let next = ask(&bench.gate, "/v1/leases", &takeover("a"));
    draining(&bench.gate, 1);
    for (write, held) in writes.into_iter().zip(held) {
        still_waits(&bench.gate, &next);
        held.let_go();
        assert_eq!(received("the answer to the write", &write).header("fence-outcome"), Some("settled"));
    }
    let lease = received("the answer to the next holder", &next).expect(201);
    assert_eq!(lease["drain"]["settled"], 2, "{lease}");
}
