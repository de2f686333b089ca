//! Writes to two objects at once (MOVE and COPY with a Destination): a token for each, all or nothing, and both objects
//! wait for the write.

use std::{sync::mpsc::sync_channel, thread};

use serde_json::{Value, json};

use super::support::{
    bench::Bench,
    gate::{acquire, text, wanted},
    http::Response,
    received, until,
};

const BOUND: u64 = 40_000;

/// A bench with a second lease, on `orders`.
fn bench() -> (Bench, Value) {
    let bench = Bench::with(|settings| settings.store.apply_bound_ms = BOUND);
    let orders = acquire(&mut bench.gate.api(), "orders", "a", 60_000);
    (bench, orders)
}

fn tokens(bench: &Bench, orders: &Value) -> String {
    format!("{}, {}", bench.token(), text(orders, "fence_token"))
}

#[track_caller]
fn move_with(bench: &Bench, tokens: &str, wish: &str) -> Response {
    let headers = [("fence-token", tokens), ("destination", "/orders/1"), ("x-store", wish)];
    bench.call("MOVE", "/users/1", &headers)
}

fn takeover(object: &str) -> Value {
    let mut body = wanted(object, "a", 60_000);
    body["takeover"] = json!(true);
    body
}

#[test]
fn a_write_to_two_objects_brings_a_token_for_each_and_no_other() {
    let (bench, orders) = bench();
    let (one, two) = (bench.token(), text(&orders, "fence_token"));
    let third = acquire(&mut bench.gate.api(), "third", "a", 60_000);
    let third = text(&third, "fence_token");
    let without = bench.call("MOVE", "/users/1", &[("destination", "/orders/1")]);
    bench.refused(&without, 428, "WRITE_UNFENCED");
    for (tokens, missing) in [(one, "orders"), (two, "users"), (&format!("{one},{one}"), "orders")] {
        let refused = bench.refused(&move_with(&bench, tokens, "200"), 428, "WRITE_UNFENCED");
        assert_eq!(text(&refused, "object_id"), missing);
    }
    bench.refused(&move_with(&bench, &format!("{one},{third}"), "200"), 428, "WRITE_UNFENCED");
    for tokens in [format!("{one},{two},{third}"), format!("{one},{two},{one}"), format!("{one},nonsense"), ",".into()]
    {
        bench.refused(&move_with(&bench, &tokens, "200"), 400, "FENCE_TOKEN_MALFORMED");
    }
    // A write to one object takes only one token.
    let to_one = bench.put("/users/1", &[("fence-token", &format!("{one}, {two}"))]);
    bench.refused(&to_one, 400, "FENCE_TOKEN_MALFORMED");
    let done = move_with(&bench, &format!("{two} ,{one}"), "200");
    assert_eq!((done.status, done.header("fence-outcome")), (200, Some("settled")));
    assert_eq!(bench.store.story(), ["MOVE /users/1"]);
}

#[test]
fn whichever_object_denies_it_is_named_and_nothing_is_left_in_flight() {
    let (bench, orders) = bench();
    let tokens = tokens(&bench, &orders);
    bench.gate.api().post("/v1/objects/users/revoke", &json!({ "reason": "x" })).expect(200);
    let refused = bench.refused(&move_with(&bench, &tokens, "200"), 412, "WRITE_STALE_FENCE");
    assert_eq!(text(&refused, "object_id"), "users");
    // `orders` comes first and was judged valid; no write in flight is counted for it.
    bench.gate.clock.advance(1_000);
    let next = bench.gate.api().post("/v1/leases", &takeover("orders")).expect(201);
    assert_eq!(next["drain"], json!({ "settled": 0, "cancelled": 0, "unknown": 0, "waited_ms": 0 }));
    // Stale comes before expired, whichever object has the fault.
    bench.gate.clock.advance(60_000);
    let refused = bench.refused(&move_with(&bench, &tokens, "200"), 412, "WRITE_STALE_FENCE");
    assert_eq!(text(&refused, "object_id"), "orders");
}

#[test]
fn both_objects_wait_for_a_write_that_is_on_its_way() {
    let (bench, orders) = bench();
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let mut conn = bench.gate.gate();
    let (tokens, wish) = (tokens(&bench, &orders), format!("until:{}", go.display()));
    let headers = [("fence-token", tokens.as_str()), ("destination", "/orders/1"), ("x-store", wish.as_str())];
    conn.send("MOVE", "/users/1", &headers, b"value").unwrap();
    until("the store has it", || bench.store.story().len() == 1);
    bench.gate.clock.advance(1_000);
    let ask = |object: &'static str| {
        let mut api = bench.gate.api();
        let (sender, receiver) = sync_channel(1);
        thread::spawn(move || sender.send(api.post("/v1/leases", &takeover(object))));
        receiver
    };
    let (users, orders) = (ask("users"), ask("orders"));
    until("both wait", || bench.gate.shows("fencegate_advances_draining 2\n"));
    assert!(users.try_recv().is_err() && orders.try_recv().is_err());
    std::fs::write(go, "").unwrap();
    assert_eq!(conn.receive().unwrap().status, 200);
    for granted in [users, orders] {
        assert_eq!(received("the answer to an acquire", &granted).expect(201)["drain"]["settled"], 1);
    }
}

#[test]
fn what_is_unknown_of_it_is_unknown_of_both() {
    let (bench, orders) = bench();
    move_with(&bench, &tokens(&bench, &orders), "reset").unknown();
    bench.gate.clock.advance(1_000);
    let mut asking = vec![];
    for object in ["users", "orders"] {
        let mut api = bench.gate.api();
        let body = takeover(object).to_string();
        api.send("POST", "/v1/leases", &[("content-type", "application/json")], body.as_bytes()).unwrap();
        asking.push(api);
    }
    until("both wait", || bench.gate.shows("fencegate_advances_draining 2\n"));
    bench.gate.clock.advance(BOUND);
    for mut api in asking {
        // Every caller was answered in time that it takes longer, or has the lease by now.
        assert!([201, 503].contains(&api.receive().unwrap().status));
    }
    until("no caller waits", || bench.gate.shows("fencegate_advances_draining 0\n"));
}

#[test]
fn a_body_that_streams_to_two_objects_is_stopped_by_an_advance_of_either() {
    let (bench, orders) = bench();
    let mut conn = bench.gate.gate();
    let head = format!(
        "MOVE /users/1 HTTP/1.1\r\nhost: x\r\nfence-token: {}\r\ndestination: /orders/1\r\ncontent-length: 200000\r\n\r\n",
        tokens(&bench, &orders)
    );
    conn.send_raw(&[head.as_bytes(), &[b'x'; 100_000]].concat()).unwrap();
    until("the store has part of it", || bench.store.saw("body") == 1);
    bench.gate.api().post("/v1/objects/orders/revoke", &json!({ "reason": "x", "force": true })).expect(200);
    conn.receive().unwrap().unknown();
    until("the store was cut off", || bench.store.saw("cut") == 1);
    assert_eq!(bench.store.saw("applied"), 0);
}

#[test]
fn writes_that_cross_each_other_do_not_wait_in_a_circle() {
    let (bench, orders) = bench();
    let tokens = tokens(&bench, &orders);
    thread::scope(|scope| {
        for (path, destination) in [("/users/1", "/orders/1"), ("/orders/2", "/users/2"), ("/users/3", "/orders/3")] {
            let (gate, tokens) = (&bench.gate, &tokens);
            scope.spawn(move || {
                let mut conn = gate.gate();
                for _ in 0..100 {
                    let headers = [("fence-token", tokens.as_str()), ("destination", destination)];
                    assert_eq!(conn.call("COPY", path, &headers, b"value").status, 200);
                }
            });
        }
    });
    assert_eq!(bench.store.story().len(), 300);
}
