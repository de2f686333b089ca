//! Certificates: their effect in any order, any number of times, and across restarts.

use serde_json::{Value, json};

use super::{TestGate, USERS, World, time, wall};
use crate::support::gate::{START, acquire};

fn certificate(world: &World, lease: &str, seq: u64, ms: u64) -> Value {
    world.europe.certificate(USERS, lease, seq, &time(ms), Value::Null)
}

#[test]
fn a_certificate_fences_its_lease_and_the_refusal_names_its_issuer() {
    let world = World::new();
    let lease = world.london();
    assert_eq!(world.put("/data/users/1", &lease).status, 200);
    let sent = certificate(&world, "london-1", 1, 5);
    let answer = world.post("/v1/fences", &sent).expect(200);
    assert_eq!(
        (&answer["applied"], &answer["object"]["fence"], &answer["object"]["state"]),
        (&json!(true), &json!(2), &json!("free"))
    );
    let acknowledged = &answer["acknowledged"];
    assert_eq!(acknowledged["type"], "FENCE_ACKNOWLEDGED");
    assert_eq!(
        (&acknowledged["fenced_lease_id"], &acknowledged["fence"], &acknowledged["writes"]),
        (&json!("london-1"), &json!(2), &json!(1))
    );
    assert_eq!(acknowledged["signature"], Value::Null, "this gate has no key to sign with");
    let refused = world.put("/data/users/1", &lease).refusal(412, "WRITE_STALE_FENCE");
    assert_eq!((&refused["fenced_by"], &refused["fence_time"]), (&json!("europe-cg"), &json!(time(5))));
    assert_eq!(refused["successor_holder"], Value::Null);
    assert_eq!(world.gate.gate().get("/data/users/1").status, 200, "reads go on");
    let proof = json!({ "predecessor": { "lease_id": "london-1", "fence_proof": sent["signature"] } });
    let perth = world.europe.grant(USERS, "perth-1", 2, "perth-cg", (wall(0), wall(60_000)), proof);
    let perth = world.post("/v1/grants", &perth).expect(201);
    assert_eq!(world.put("/data/users/2", &perth).status, 200);
    let refused = world.put("/data/users/1", &lease).refusal(412, "WRITE_STALE_FENCE");
    assert_eq!((&refused["successor_holder"], &refused["successor_lease_id"]), (&json!("perth-cg"), &json!("perth-1")));
    assert_eq!(refused["fenced_by"], "europe-cg");
    assert_eq!(world.store.story(), ["PUT /data/users/1", "GET /data/users/1", "PUT /data/users/2"]);
}

#[test]
fn the_same_certificate_again_changes_nothing_and_an_older_one_is_superseded() {
    let world = World::new();
    let sent = certificate(&world, "london-1", 7, 5);
    let first = world.post("/v1/fences", &sent).expect(200);
    let again = world.post("/v1/fences", &sent).expect(200);
    assert_eq!((&again["applied"], &again["object"]), (&json!(true), &first["object"]));
    for older in [certificate(&world, "paris-1", 3, 9), certificate(&world, "london-1", 7, 4)] {
        let answer = world.post("/v1/fences", &older).expect(200);
        assert_eq!((&answer["applied"], &answer["code"]), (&json!(false), &json!("FenceSuperseded")));
        assert_eq!(answer["object"]["fence"], 8);
        assert_eq!(answer["acknowledged"], Value::Null);
    }
    let listed = world.api().get("/v1/fences?domain=%2Fdata%2Fusers%2F").expect(200);
    let seqs: Vec<u64> =
        listed["fences"].as_array().unwrap().iter().map(|each| each["lease_seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, [3, 7, 7], "each is kept, whether or not it has moved the fence");
    assert_eq!(listed["fences"][1], sent_as_listed(&sent));
    let page = world.api().get("/v1/fences?domain=%2Fdata%2Fusers%2F&limit=1").expect(200);
    assert_eq!((&page["fences"][0]["lease_seq"], &page["next_after"]), (&json!(3), &json!(3)));
    let page = world.api().get("/v1/fences?domain=%2Fdata%2Fusers%2F&limit=1&after=3").expect(200);
    assert_eq!(page["fences"][0]["lease_seq"], 7);
}

fn sent_as_listed(sent: &Value) -> Value {
    let mut listed = sent.clone();
    listed["propagation"] = json!("flood");
    listed
}

#[test]
fn a_relayed_certificate_counts_like_any_other() {
    let world = World::new();
    let relayed =
        json!({ "type": "RELAY_FENCE", "to": "london-cg", "certificate": certificate(&world, "london-1", 7, 5) });
    assert_eq!(world.post("/v1/fences", &relayed).expect(200)["object"]["fence"], 8);
}

#[test]
fn certificates_fence_leases_that_the_gate_granted_itself() {
    let world = World::with(|settings| settings.route[0].lease_source = fencegate::config::LeaseSource::Gate);
    let lease = acquire(&mut world.api(), USERS, "a", 60_000);
    let id = lease["lease_id"].as_str().unwrap();
    world.post("/v1/fences", &certificate(&world, id, 1, 5)).expect(200);
    world.put("/data/users/1", &lease).refusal(412, "WRITE_STALE_FENCE");
    let row = world.api().get(&format!("/v1/leases/{id}")).expect(200);
    assert_eq!((&row["state"], &row["reason"]), (&json!("fenced"), &json!("certificate of europe-cg")));
    assert_eq!(acquire(&mut world.api(), USERS, "b", 60_000)["lease_seq"], 3, "the fence is at 2, without a holder");
}

#[test]
fn a_certificate_outlives_a_crash_and_its_issuers_key() {
    let world = World::new();
    let sent = certificate(&world, "london-1", 7, 5);
    world.post("/v1/fences", &sent).expect(200);
    // The key is retired: leases that it has fenced stay fenced, and it fences no more.
    let mut settings = world.settings.clone();
    settings.issuer[0].retired = true;
    settings.issuer.push(fencegate::config::PartySettings {
        key_epoch: 2,
        ..crate::support::signers::Signer::with_seed("europe-cg", 99).party(&["/data"])
    });
    world.gate.reload(&settings);
    world.post("/v1/fences", &certificate(&world, "london-2", 9, 6)).refusal(403, "KEY_EPOCH_RETIRED");
    let newer = crate::support::signers::Signer::with_seed("europe-cg", 99);
    let next = newer.certificate(USERS, "london-2", 8, &time(6), json!({ "key_epoch": 2 }));
    assert_eq!(world.post("/v1/fences", &next).expect(200)["object"]["fence"], 9);
    let table = world.gate.table.after_a_crash();
    let again = TestGate::on(&settings, table.into(), START);
    let object = again.api().get("/v1/objects/%2Fdata%2Fusers%2F").expect(200);
    assert_eq!(object["fence"], 9);
    let listed = again.api().get("/v1/fences?domain=%2Fdata%2Fusers%2F").expect(200);
    assert_eq!(listed["fences"].as_array().unwrap().len(), 2, "{listed}");
    // The record itself says who has fenced it: from the table, not from memory.
    assert_eq!(again.api().post("/v1/fences", &next).expect(200)["applied"], true);
}

#[test]
fn a_jump_beyond_the_limit_is_parked_until_an_operator_confirms_it() {
    let world = World::with(|settings| settings.authority.max_jump = 10);
    let far = certificate(&world, "london-1", 100, 5);
    for _ in 0..2 {
        let refused = world.post("/v1/fences", &far).refusal(409, "FENCE_JUMP");
        assert_eq!(refused["fence"], 0);
    }
    assert_eq!(world.object()["fence"], 0, "nothing has moved");
    assert!(world.gate.shows("fencegate_certificates_total{result=\"parked\"} 2"));
    let listed = world.api().get("/v1/fences?domain=%2Fdata%2Fusers%2F").expect(200);
    assert_eq!((listed["fences"].as_array().unwrap().len(), &listed["parked"][0]["lease_seq"]), (0, &json!(100)));
    let confirm = json!({ "domain": USERS, "signature": far["signature"] });
    let other = json!({ "domain": "/data/other/", "signature": far["signature"] });
    world.post("/v1/fences/confirm", &other).refusal(404, "NOT_FOUND");
    assert_eq!(world.post("/v1/fences/confirm", &confirm).expect(200)["object"]["fence"], 101);
    world.post("/v1/fences/confirm", &confirm).refusal(404, "NOT_FOUND");
    let listed = world.api().get("/v1/fences?domain=%2Fdata%2Fusers%2F").expect(200);
    assert_eq!((&listed["fences"][0]["lease_seq"], listed["parked"].as_array().unwrap().len()), (&json!(100), 0));
}

/// Certificates in any order and any number of times, also around parked certificates and across crashes, end in the
/// same fence and the same rows.
#[test]
fn any_order_and_repetition_ends_in_the_same_fences() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut draw = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % below
    };
    let mut ends = vec![];
    for round in 0..24 {
        let mut world = World::with(|settings| settings.authority.max_jump = 10);
        let all = [(5, 1), (12, 2), (12, 9), (21, 3), (31, 7), (31, 4), (60, 5)]
            .map(|(seq, ms)| certificate(&world, &format!("l{seq}"), seq, ms));
        // First some certificates any number of times, in any order; then each once, shuffled.
        let mut order: Vec<usize> = (0..draw(8)).map(|_| draw(all.len())).collect();
        let mut rest: Vec<usize> = (0..all.len()).collect();
        while !rest.is_empty() {
            order.push(rest.swap_remove(draw(rest.len())));
        }
        let crash_at = draw(order.len());
        for (n, place) in order.iter().enumerate() {
            let answer = world.post("/v1/fences", &all[*place]);
            assert!(matches!(answer.status, 200 | 409), "{}", String::from_utf8_lossy(&answer.body));
            if n == crash_at && round % 2 == 0 {
                let table = world.gate.table.after_a_crash();
                world.gate = TestGate::on(&world.settings, table.into(), START);
            }
        }
        let listed = world.api().get("/v1/fences?domain=%2Fdata%2Fusers%2F").expect(200);
        ends.push((order, world.object()["fence"].clone(), listed));
    }
    for (order, fence, listed) in &ends {
        assert_eq!((fence, listed), (&ends[0].1, &ends[0].2), "{order:?}");
    }
    assert_eq!(ends[0].1, 32, "60 is too far from 32, and waits");
    assert_eq!(ends[0].2["parked"][0]["lease_seq"], 60);
    assert_eq!(ends[0].2["fences"].as_array().unwrap().len(), 6);
}

#[test]
fn a_parked_certificate_stays_parked_until_an_operator_confirms_or_discards_it() {
    let world = World::with(|settings| {
        settings.authority.max_jump = 10;
        settings.issuer.push(crate::support::signers::Signer::new("asia-cg").party(&["/data"]));
    });
    let asia = crate::support::signers::Signer::new("asia-cg");
    let parked = || {
        let listed = world.api().get("/v1/fences?domain=%2Fdata%2Fusers%2F").expect(200);
        let seqs = listed["parked"].as_array().unwrap().iter().map(|each| each["lease_seq"].as_u64().unwrap());
        seqs.collect::<Vec<_>>()
    };
    let (far, further) = (certificate(&world, "l100", 100, 5), certificate(&world, "l300", 300, 5));
    let theirs = asia.certificate(USERS, "l105", 105, &time(5), Value::Null);
    for each in [&far, &further, &theirs] {
        world.post("/v1/fences", each).refusal(409, "FENCE_JUMP");
    }
    // Asia's key is retired while its certificate waits.
    let mut settings = world.settings.clone();
    settings.issuer[1].retired = true;
    world.gate.reload(&settings);
    world.post("/v1/fences", &certificate(&world, "l5", 5, 5)).expect(200);
    assert_eq!((parked(), world.object()["fence"].as_u64()), (vec![100, 105, 300], Some(6)));
    let confirm = |signed: &Value| json!({ "domain": USERS, "signature": signed["signature"] });
    world.post("/v1/fences/confirm", &confirm(&far)).expect(200);
    assert_eq!((parked(), world.object()["fence"].as_u64()), (vec![105, 300], Some(101)), "that one, and no other");
    world.post("/v1/fences/confirm", &confirm(&theirs)).refusal(403, "KEY_EPOCH_RETIRED");
    let mut discard = confirm(&further);
    discard["discard"] = json!(true);
    assert_eq!(world.post("/v1/fences/confirm", &discard).expect(200)["applied"], false);
    assert_eq!((parked(), world.object()["fence"].as_u64()), (vec![105], Some(101)));
}

#[test]
fn an_acknowledgement_is_of_what_the_fenced_lease_left_and_nothing_else() {
    let world = World::new();
    let london = world.london();
    assert_eq!(world.put("/data/users/1", &london).status, 200);
    let sent = certificate(&world, "london-1", 1, 5);
    let first = world.post("/v1/fences", &sent).expect(200)["acknowledged"].clone();
    let again = world.post("/v1/fences", &sent).expect(200)["acknowledged"].clone();
    assert_eq!((&first["state_hash"], &first["writes"]), (&again["state_hash"], &json!(1)));
    let proof = json!({ "predecessor": { "lease_id": "london-1", "fence_proof": sent["signature"] } });
    let perth = world.europe.grant(USERS, "perth-1", 2, "perth-cg", (wall(0), wall(60_000)), proof);
    let perth = world.post("/v1/grants", &perth).expect(201);
    assert_eq!(world.put("/data/users/2", &perth).status, 200);
    let late = world.post("/v1/fences", &sent).expect(200);
    assert_eq!(
        (&late["applied"], &late["acknowledged"]),
        (&json!(true), &Value::Null),
        "Perth's write is no part of it"
    );
}

/// A certificate that comes while the object drains for another reason does not end the drain early.
#[test]
fn a_certificate_overtakes_a_waiting_acquire() {
    let world = World::with(|settings| settings.route[0].lease_source = fencegate::config::LeaseSource::Gate);
    let lease = acquire(&mut world.api(), USERS, "a", 1_000);
    let hung = world.hung_write(&lease);
    world.gate.clock.advance(1_000);
    let mut waiter = world.api();
    let body = json!({ "object_id": USERS, "holder_id": "b", "ttl_ms": 60_000, "wait_ms": 60_000 }).to_string();
    waiter.send("POST", "/v1/leases", &[("content-type", "application/json")], body.as_bytes()).unwrap();
    crate::support::until("the fence has moved", || world.object()["fence"] == 2);
    let mut fencer = world.api();
    let sent = certificate(&world, "other", 5, 900).to_string();
    fencer.send("POST", "/v1/fences", &[("content-type", "application/json")], sent.as_bytes()).unwrap();
    waiter.receive().unwrap().refusal(409, "LEASE_FENCED");
    assert_eq!(world.object()["state"], "draining", "its write is still on its way");
    assert_eq!(hung.let_go().status, 200);
    let answer = fencer.receive().unwrap().expect(200);
    assert_eq!(
        (&answer["object"]["fence"], &answer["object"]["state"], &answer["drain"]["settled"]),
        (&json!(6), &json!("free"), &json!(1))
    );
}
