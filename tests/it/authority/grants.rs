//! Signed grants: on routes where only signed grants hand out leases.

use serde_json::{Value, json};

use super::{TestGate, USERS, World, time, wall};
use crate::support::gate::{START, renewal, wanted};

#[test]
fn on_an_authority_route_only_signed_grants_hand_out_leases() {
    let world = World::new();
    let refused = world.post("/v1/leases", &wanted(USERS, "a", 60_000)).refusal(403, "GRANT_REQUIRED");
    assert_eq!(refused["object_id"], USERS);
    let batch = json!({ "object_ids": ["other", USERS], "holder_id": "a", "ttl_ms": 60_000 });
    world.post("/v1/lease-batches", &batch).refusal(403, "GRANT_REQUIRED");
    assert_eq!(world.post("/v1/leases", &wanted("other", "a", 60_000)).status, 201, "no authority route makes that id");
    let lease = world.london();
    assert_eq!(
        (&lease["holder_id"], &lease["lease_seq"], &lease["lease_id"]),
        (&json!("london-cg"), &json!(1), &json!("london-1"))
    );
    assert_eq!(lease["expires_in_ms"], 60_000);
    assert_eq!(world.put("/data/users/1", &lease).status, 200);
    let (path, body) = renewal(&lease, 60_000);
    world.post(&path, &body).refusal(403, "GRANT_REQUIRED");
    // A holder may always release its lease.
    let path = format!("/v1/leases/{}", lease["lease_id"].as_str().unwrap());
    world.api().delete(&path, lease["fence_token"].as_str().unwrap()).expect(200);
    world.put("/data/users/1", &lease).refusal(412, "LEASE_EXPIRED");
}

#[test]
fn the_same_grant_gets_the_same_token_until_its_first_write_and_a_longer_one_renews() {
    let world = World::new();
    let grant = world.europe.grant(USERS, "london-1", 1, "london-cg", (wall(0), wall(60_000)), Value::Null);
    let first = world.post("/v1/grants", &grant).expect(201);
    let again = world.post("/v1/grants", &grant).expect(201);
    assert_eq!(first["fence_token"], again["fence_token"]);
    assert_eq!(world.put("/data/users/1", &first).status, 200);
    world.post("/v1/grants", &grant).refusal(409, "GRANT_USED");
    world.gate.clock.advance(30_000);
    let longer = world.europe.grant(USERS, "london-1", 1, "london-cg", (wall(0), wall(90_000)), Value::Null);
    let renewed = world.post("/v1/grants", &longer).expect(201);
    assert_eq!((&renewed["fence_token"], &renewed["expires_in_ms"]), (&first["fence_token"], &json!(60_000)));
    world.gate.clock.advance(45_000);
    assert_eq!(world.put("/data/users/1", &first).status, 200, "it lives on");
    world.gate.clock.advance(15_000);
    world.put("/data/users/1", &first).refusal(412, "LEASE_EXPIRED");
    let late = world.europe.grant(USERS, "london-1", 1, "london-cg", (wall(0), wall(200_000)), Value::Null);
    world.post("/v1/grants", &late).refusal(409, "LEASE_EXPIRED");
}

#[test]
fn a_grant_counts_from_its_start_also_after_a_restart() {
    let world = World::new();
    let grant = world.europe.grant(USERS, "london-1", 1, "london-cg", (wall(5_000), wall(60_000)), Value::Null);
    let lease = world.post("/v1/grants", &grant).expect(201);
    let refused = world.put("/data/users/1", &lease).refusal(503, "LEASE_NOT_YET_VALID");
    assert_eq!((&refused["retry_after_ms"], &refused["retryable"]), (&json!(5_000), &json!(true)));
    let token = lease["fence_token"].as_str().unwrap();
    let verdict = world.post("/v1/tokens/check", &json!({ "fence_token": token })).expect(200);
    assert_eq!((&verdict["valid"], &verdict["code"]), (&json!(false), &json!("LEASE_NOT_YET_VALID")));
    // A step of the wall clock does not make it begin.
    world.gate.clock.step_wall(6_000);
    world.put("/data/users/1", &lease).refusal(503, "LEASE_NOT_YET_VALID");
    let mut now = START;
    now.wall.0 += 2_000;
    now.boot.0 = 77;
    let again = TestGate::on(&world.settings, world.gate.table.after_a_crash().into(), now);
    let put = || again.gate().call("PUT", "/data/users/1", &[("fence-token", token)], b"x");
    assert_eq!(put().refusal(503, "LEASE_NOT_YET_VALID")["retry_after_ms"], 3_000);
    again.clock.advance(2_999);
    put().refusal(503, "LEASE_NOT_YET_VALID");
    again.clock.advance(1);
    assert_eq!(put().status, 200);
    assert_eq!(world.store.story(), ["PUT /data/users/1"]);
}

#[test]
fn a_grant_needs_the_right_predecessor_proof_and_number() {
    let world = World::new();
    let london = world.london();
    let grant = |seq, over| world.europe.grant(USERS, "perth-1", seq, "perth-cg", (wall(0), wall(60_000)), over);
    let plain = json!({ "predecessor": { "lease_id": "london-1" } });
    let held = world.post("/v1/grants", &grant(2, plain.clone())).refusal(409, "LEASE_HELD");
    assert_eq!((&held["holder_id"], &held["retry_after_ms"]), (&json!("london-cg"), &json!(60_000)));
    let certificate = world.europe.certificate(USERS, "london-1", 1, &time(5), Value::Null);
    world.post("/v1/fences", &certificate).expect(200);
    let with = |lease: &str, proof: &Value| json!({ "predecessor": { "lease_id": lease, "fence_proof": proof } });
    let other = world.europe.certificate("/data/other/", "london-1", 1, &time(5), Value::Null);
    let before = world.object();
    for (over, code) in [
        (Value::Null, "PREDECESSOR_MISMATCH"),
        (with("paris-1", &certificate["signature"]), "PREDECESSOR_MISMATCH"),
        (plain, "FENCE_PROOF_MISMATCH"),
        (with("london-1", &other["signature"]), "FENCE_PROOF_MISMATCH"),
    ] {
        world.post("/v1/grants", &grant(2, over)).refusal(409, code);
    }
    let right = with("london-1", &certificate["signature"]);
    world.post("/v1/grants", &grant(1, right.clone())).refusal(409, "LEASE_FENCED");
    world.post("/v1/grants", &grant(2 + (1 << 20) + 1, right.clone())).refusal(409, "FENCE_JUMP");
    let over = world.europe.grant(USERS, "perth-1", 2, "perth-cg", (wall(0), wall(0) + 3_600_001), right.clone());
    assert_eq!(world.post("/v1/grants", &over).refusal(400, "REQUEST_INVALID")["field"], "expiry_ms");
    let backwards = json!({ "start_ms": wall(60_000), "expiry_ms": wall(60_000) });
    let mut backwards_grant = grant(2, right.clone());
    crate::support::signers::merge(&mut backwards_grant, backwards);
    assert_eq!(world.post("/v1/grants", &backwards_grant).refusal(400, "REQUEST_INVALID")["field"], "expiry_ms");
    assert_eq!(world.object(), before, "nothing has changed");
    // A grant cannot use the id of another lease.
    let taken = world.europe.grant("/data/other/", "london-1", 1, "perth-cg", (wall(0), wall(60_000)), Value::Null);
    world.post("/v1/grants", &taken).refusal(409, "GRANT_USED");
    let perth = world.post("/v1/grants", &grant(2, right)).expect(201);
    assert_eq!(world.put("/data/users/1", &perth).status, 200);
    world.put("/data/users/1", &london).refusal(412, "WRITE_STALE_FENCE");
}

#[test]
fn a_grant_waits_for_the_drain_and_can_be_asked_for_again() {
    let world = World::new();
    let london = world.london();
    let hung = world.hung_write(&london);
    let certificate = world.europe.certificate(USERS, "london-1", 1, &time(5), Value::Null);
    let mut fencer = world.api();
    let json_type = [("content-type", "application/json")];
    fencer.send("POST", "/v1/fences", &json_type, certificate.to_string().as_bytes()).unwrap();
    crate::support::until("the fence has moved", || world.object()["fence"] == 2);
    let over = json!({ "predecessor": { "lease_id": "london-1", "fence_proof": certificate["signature"] } });
    let grant = world.europe.grant(USERS, "perth-1", 2, "perth-cg", (wall(0), wall(60_000)), over);
    let callers: Vec<_> = (0..2)
        .map(|_| {
            let mut api = world.api();
            api.send("POST", "/v1/grants", &json_type, grant.to_string().as_bytes()).unwrap();
            api
        })
        .collect();
    assert_eq!(fencer.receive().unwrap().expect(200)["object"]["fence"], 2, "overtaken, and fenced all the same");
    assert_eq!(world.object()["state"], "draining");
    assert_eq!(hung.let_go().header("fence-outcome"), Some("settled"));
    let tokens: Vec<Value> =
        callers.into_iter().map(|mut api| api.receive().unwrap().expect(201)["fence_token"].clone()).collect();
    assert_eq!(tokens[0], tokens[1]);
    // The same grant, sent once more, gets the same token.
    assert_eq!(world.post("/v1/grants", &grant).expect(201)["fence_token"], tokens[0]);
}

#[test]
fn any_certificate_of_its_predecessor_proves_a_grant() {
    let world = World::with(|settings| {
        settings.issuer.push(crate::support::signers::Signer::new("asia-cg").party(&["/data"]));
    });
    let asia = crate::support::signers::Signer::new("asia-cg");
    world.london();
    let mine = world.europe.certificate(USERS, "london-1", 1, &time(5), Value::Null);
    let theirs = asia.certificate(USERS, "london-1", 1, &time(9), Value::Null);
    world.post("/v1/fences", &theirs).expect(200);
    assert_eq!(world.post("/v1/fences", &mine).expect(200)["code"], "FenceSuperseded", "theirs is later");
    let over = json!({ "predecessor": { "lease_id": "london-1", "fence_proof": mine["signature"] } });
    let grant = world.europe.grant(USERS, "perth-1", 2, "perth-cg", (wall(0), wall(60_000)), over);
    world.post("/v1/grants", &grant).expect(201);
}

#[test]
fn a_grant_that_is_over_changes_nothing() {
    let world = World::new();
    world.gate.clock.advance(10_000);
    let before = world.object();
    let grant = world.europe.grant(USERS, "london-1", 500, "london-cg", (wall(0), wall(10_000)), Value::Null);
    world.post("/v1/grants", &grant).refusal(409, "LEASE_EXPIRED");
    assert_eq!(world.object(), before);
}
