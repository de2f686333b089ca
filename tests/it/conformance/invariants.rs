//! The invariants of single-writer fencing, by their names.

use serde_json::{Value, json};

use crate::support::{
    bench::{Bench, TTL},
    gate::{acquire, renewal, text},
    http::segment,
};

fn seq(lease: &Value) -> u64 {
    lease["lease_seq"].as_u64().unwrap()
}

/// Writes with a lease's token. Panics unless the write succeeds.
#[track_caller]
fn write(bench: &Bench, path: &str, lease: &Value) {
    let answer = bench.put(path, &[("fence-token", text(lease, "fence_token"))]);
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    assert_eq!(answer.header("fence-seq"), Some(seq(lease).to_string().as_str()));
}

#[track_caller]
fn fence(bench: &Bench, object: &str) -> u64 {
    bench.gate.api().get(&format!("/v1/objects/{}", segment(object))).expect(200)["fence"].as_u64().unwrap()
}

#[test]
fn inv_fence_monotonic_a_new_lease_is_above_the_fence_whichever_way_the_last_one_ended() {
    let bench = Bench::new();
    let mut api = bench.gate.api();
    let mut leases = vec![bench.lease.clone()];
    write(&bench, "/users/1", &bench.lease);
    for way in ["released", "expired", "revoked", "rotated", "taken over"] {
        let (last, before) = (leases.last().unwrap().clone(), fence(&bench, "users"));
        let next = match way {
            "released" => {
                bench.release(&last);
                acquire(&mut api, "users", "b", TTL)
            }
            "expired" => {
                bench.gate.clock.advance(TTL);
                acquire(&mut api, "users", "b", TTL)
            }
            "revoked" => {
                let revoked = api.post("/v1/objects/users/revoke", &json!({ "reason": "conformance" })).expect(200);
                assert_eq!(revoked["fence"].as_u64(), Some(before + 1), "a revocation moves the fence as well");
                acquire(&mut api, "users", "b", TTL)
            }
            "rotated" => {
                let (path, mut body) = renewal(&last, TTL);
                body["rotate"] = json!(true);
                api.post(&path, &body).expect(200)
            }
            _ => {
                // Its own holder may take a lease over once it is a second old.
                bench.gate.clock.advance(1_000);
                let body = json!({ "object_id": "users", "holder_id": "b", "ttl_ms": TTL, "takeover": true });
                api.post("/v1/leases", &body).expect(201)
            }
        };
        assert!(seq(&next) > before, "{way}: {} is not above {before}", seq(&next));
        assert_eq!(fence(&bench, "users"), seq(&next), "{way}");
        write(&bench, "/users/1", &next);
        for old in &leases {
            let answer = bench.put("/users/2", &[("fence-token", text(old, "fence_token"))]);
            answer.refusal(412, "WRITE_STALE_FENCE");
        }
        leases.push(next);
    }
    let granted: Vec<String> = leases.iter().map(|lease| seq(lease).to_string()).collect();
    let applied = bench.store.applied();
    let seen: Vec<&str> = applied.iter().map(|write| text(&write["headers"], "fence-seq")).collect();
    assert_eq!(seen, granted, "the store saw each number once, and they only went up");
    assert!(applied.iter().all(|write| write["path"] == "/users/1"));
}

#[test]
fn inv_fence_reject_unfenced_a_write_without_a_token_is_not_forwarded() {
    let bench = Bench::new();
    // A held object, an object that was never held, and an empty body.
    for path in ["/users/1", "/users", "/unleased/1"] {
        bench.refused(&bench.put(path, &[]), 428, "WRITE_UNFENCED");
        bench.refused(&bench.gate.gate().call("DELETE", path, &[], b""), 428, "WRITE_UNFENCED");
        bench.refused(&bench.h2().call("PUT", path, &[], b"value"), 428, "WRITE_UNFENCED");
    }
    // A number alone is not a token, in any header.
    for name in ["fence-seq", "lease-seq", "x-fence-token", "authorization"] {
        bench.refused(&bench.put("/users/1", &[(name, "1")]), 428, "WRITE_UNFENCED");
    }
    let path = format!("/users/1?fence-token={}", bench.token());
    bench.refused(&bench.put(&path, &[]), 428, "WRITE_UNFENCED");
    write(&bench, "/users/1", &bench.lease);
    assert_eq!(bench.store.story(), ["PUT /users/1"]);
}

#[test]
fn inv_fence_reject_stale_a_number_below_the_fence_is_refused_for_ever() {
    let mut bench = Bench::new();
    let stale = bench.token().to_owned();
    let forged = "fg1.1.dXNlcnM.AAAAAAAAAAAAAAAAAAAAAA";
    for current in 2..=4 {
        bench.release(&bench.lease);
        bench.lease = acquire(&mut bench.gate.api(), "users", "b", TTL);
        assert_eq!(seq(&bench.lease), current);
        for token in [stale.as_str(), forged] {
            let refusal = bench.refused(&bench.put("/users/1", &[("fence-token", token)]), 412, "WRITE_STALE_FENCE");
            assert_eq!((refusal["lease_seq"].as_u64(), refusal["fence"].as_u64()), (Some(1), Some(current)));
            assert_eq!((text(&refusal, "object_id"), refusal["retryable"].as_bool()), ("users", Some(false)));
        }
        let answer = bench.h2().call("PUT", "/users/1", &[("fence-token", &stale)], b"value");
        bench.refused(&answer, 412, "WRITE_STALE_FENCE");
    }
    // The object has no holder, and the token is stale all the same.
    bench.release(&bench.lease);
    bench.refused(&bench.put("/users/1", &[("fence-token", &stale)]), 412, "WRITE_STALE_FENCE");
}

#[test]
fn inv_fence_linked_a_lease_writes_its_own_object_and_no_other() {
    let bench = Bench::new();
    let mut api = bench.gate.api();
    // Ids with a common prefix, and one that was never leased. All numbers are 1: only the object differs.
    let mut leases = vec![bench.lease.clone()];
    leases.extend(["user", "users2", "orders"].map(|object| acquire(&mut api, object, "a", TTL)));
    for lease in &leases {
        for target in ["users", "user", "users2", "orders", "unleased"] {
            if text(lease, "object_id") == target {
                continue;
            }
            let token = [("fence-token", text(lease, "fence_token"))];
            let refusal = bench.refused(&bench.put(&format!("/{target}/1"), &token), 409, "LEASE_OBJECT_MISMATCH");
            assert_eq!(text(&refusal, "object_id"), target);
            let answer = bench.h2().call("PUT", &format!("/{target}/1"), &token, b"value");
            bench.refused(&answer, 409, "LEASE_OBJECT_MISMATCH");
        }
    }
    for lease in &leases {
        write(&bench, &format!("/{}/1", text(lease, "object_id")), lease);
    }
    assert_eq!(bench.store.story(), ["PUT /users/1", "PUT /user/1", "PUT /users2/1", "PUT /orders/1"]);
}
