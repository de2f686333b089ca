//! Acquire, renew, release, read: every call and every refusal, over HTTP.

use serde_json::{Value, json};

use super::support::{
    gate::{START, TestGate, acquire, renewal, settings, text, wanted},
    http::segment,
};

#[test]
fn an_acquire_grants_a_lease_with_every_field_and_a_token() {
    let gate = TestGate::start();
    let mut api = gate.api();
    let lease = acquire(&mut api, "/data/users/", "pod-a", 30_000);
    assert_eq!((lease["lease_seq"].as_u64(), text(&lease, "object_id")), (Some(1), "/data/users/"));
    assert_eq!((text(&lease, "holder_id"), text(&lease, "state")), ("pod-a", "held"));
    assert_eq!(text(&lease, "acquired_at"), "2027-01-15T08:00:00.000Z");
    assert_eq!(text(&lease, "expires_at"), "2027-01-15T08:00:30.000Z");
    assert_eq!(lease["drain"], json!({ "settled": 0, "cancelled": 0, "unknown": 0, "waited_ms": 0 }));
    assert!(text(&lease, "fence_token").starts_with("fg1.1.L2RhdGEvdXNlcnMv."));
    assert_eq!(lease["expires_in_ms"], 30_000);
}

#[test]
fn ttl_ms_has_a_default() {
    let gate = TestGate::start();
    let lease = gate.api().post("/v1/leases", &json!({ "object_id": "o", "holder_id": "h" })).expect(201);
    assert_eq!(lease["ttl_ms"], 30_000);
}

#[test]
fn a_held_object_is_refused_with_who_and_how_long() {
    let gate = TestGate::start();
    let mut api = gate.api();
    let lease = acquire(&mut api, "users", "a", 2_500);
    gate.clock.advance(1_000);
    let answer = api.post("/v1/leases", &wanted("users", "b", 1_000));
    let body = answer.refusal(409, "LEASE_HELD");
    assert_eq!((body["retryable"].as_bool(), body["retry_after_ms"].as_u64()), (Some(true), Some(1_500)));
    assert_eq!((text(&body, "holder_id"), text(&body, "object_id")), ("a", "users"));
    assert_eq!(body["lease_id"], lease["lease_id"]);
    assert_eq!(answer.header("retry-after"), Some("2"));
}

#[test]
fn every_grant_has_a_higher_seq_also_after_release_and_expiry() {
    let gate = TestGate::start();
    let mut api = gate.api();
    let mut seqs = vec![];
    for round in 0..6 {
        let lease = acquire(&mut api, "users", "a", 1_000);
        seqs.push(lease["lease_seq"].as_u64().unwrap());
        if round % 2 == 0 {
            api.delete(&format!("/v1/leases/{}", text(&lease, "lease_id")), text(&lease, "fence_token")).expect(200);
        } else {
            gate.clock.advance(1_000);
        }
    }
    assert_eq!(seqs, [1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_renewal_keeps_the_seq_and_the_token_and_never_shortens() {
    let gate = TestGate::start();
    let mut api = gate.api();
    let lease = acquire(&mut api, "users", "a", 10_000);
    gate.clock.advance(4_000);
    let (path, body) = renewal(&lease, 1_000);
    let short = api.post(&path, &body).expect(200);
    assert_eq!(short["expires_at"], lease["expires_at"]);
    let (path, body) = renewal(&lease, 20_000);
    let long = api.post(&path, &body).expect(200);
    assert_eq!((&long["lease_seq"], &long["fence_token"]), (&lease["lease_seq"], &lease["fence_token"]));
    assert_eq!(text(&long, "expires_at"), "2027-01-15T08:00:24.000Z");
    assert_eq!(long["expires_in_ms"], 20_000);
}

#[test]
fn the_refusals_of_a_renewal_come_in_their_order() {
    let gate = TestGate::start();
    let mut api = gate.api();
    let lease = acquire(&mut api, "users", "a", 1_000);
    let other = acquire(&mut api, "orders", "a", 1_000);
    let (path, good) = renewal(&lease, 1_000);
    let with = |changes: &[(&str, &str)]| {
        let mut body = good.clone();
        for (field, value) in changes {
            body[*field] = json!(value);
        }
        body
    };
    let foreign = text(&other, "fence_token");
    let wrong_secret = "fg1.1.dXNlcnM.AAAAAAAAAAAAAAAAAAAAAA";
    // Each body has all faults that come later in the order, and one more.
    gate.clock.advance(1_000);
    acquire(&mut api, "users", "b", 1_000);
    let all = with(&[("holder_id", "z"), ("fence_token", foreign)]);
    api.post("/v1/leases/nope/renew", &all).refusal(404, "LEASE_NOT_FOUND");
    api.post(&path, &all).refusal(403, "LEASE_NOT_HOLDER");
    api.post(&path, &with(&[("fence_token", foreign)])).refusal(409, "LEASE_TOKEN_MISMATCH");
    api.post(&path, &with(&[("fence_token", wrong_secret)])).refusal(409, "LEASE_TOKEN_MISMATCH");
    let fenced = api.post(&path, &good).refusal(409, "LEASE_FENCED");
    assert_eq!((fenced["fence"].as_u64(), text(&fenced, "object_id")), (Some(2), "users"));
    let (path, good) = renewal(&other, 1_000);
    let expired = api.post(&path, &good).refusal(409, "LEASE_EXPIRED");
    assert_eq!(text(&expired, "expired_at"), "2027-01-15T08:00:01.000Z");
    let metrics = String::from_utf8(gate.ops().get("/metrics").body).unwrap();
    for (reason, count) in [("not_found", 1), ("not_holder", 1), ("token_mismatch", 2), ("fenced", 1), ("expired", 1)] {
        let line = format!("lease_renewal_rejected_total{{reason=\"{reason}\"}} {count}");
        assert!(metrics.contains(&line), "{line}");
    }
}

#[test]
fn a_released_lease_is_over_at_once_and_its_floor_stays() {
    let gate = TestGate::start();
    let mut api = gate.api();
    let lease = acquire(&mut api, "users", "a", 5_000);
    let path = format!("/v1/leases/{}", text(&lease, "lease_id"));
    let token = text(&lease, "fence_token");
    api.call("DELETE", &path, &[], b"").refusal(400, "REQUEST_INVALID");
    api.call("DELETE", &path, &[("fence-token", token), ("fence-token", token)], b"").refusal(400, "REQUEST_INVALID");
    api.delete(&path, "fg1.0.x.y").refusal(400, "FENCE_TOKEN_MALFORMED");
    api.delete("/v1/leases/nope", token).refusal(404, "LEASE_NOT_FOUND");
    api.delete(&path, "fg1.1.dXNlcnM.AAAAAAAAAAAAAAAAAAAAAA").refusal(409, "LEASE_TOKEN_MISMATCH");
    let object = api.delete(&path, token).expect(200);
    assert_eq!((text(&object, "state"), object["fence"].as_u64()), ("free", Some(1)));
    let again = api.delete(&path, token).refusal(409, "LEASE_EXPIRED");
    assert_eq!(text(&again, "released_at"), "2027-01-15T08:00:00.000Z");
    let (renew, body) = renewal(&lease, 1_000);
    api.post(&renew, &body).refusal(409, "LEASE_EXPIRED");
    let shown = api.get(&path).expect(200);
    assert_eq!((text(&shown, "state"), text(&shown, "released_at")), ("released", "2027-01-15T08:00:00.000Z"));
}

#[test]
fn a_repeated_request_gets_the_same_lease_until_it_is_used() {
    let gate = TestGate::start();
    let mut api = gate.api();
    let mut body = wanted("users", "a", 5_000);
    body["request_id"] = json!("boot-1");
    let first = api.post("/v1/leases", &body).expect(201);
    gate.clock.advance(10);
    let again = api.post("/v1/leases", &body).expect(201);
    for field in ["lease_id", "lease_seq", "fence_token", "expires_at", "request_id"] {
        assert_eq!(first[field], again[field], "{field}");
    }
    // Other callers do not see it: with it, any caller would get the token.
    for path in
        [format!("/v1/leases/{}", text(&first, "lease_id")), "/v1/leases".to_owned(), "/v1/objects/users".to_owned()]
    {
        assert!(!api.get(&path).expect(200).to_string().contains("boot-1"), "{path}");
    }
    // A request of another holder under the same name is another request.
    let mut other = body.clone();
    other["holder_id"] = json!("b");
    api.post("/v1/leases", &other).refusal(409, "LEASE_HELD");
    // The same `request_id` for another object is a mistake.
    let mut moved = body.clone();
    moved["object_id"] = json!("orders");
    api.post("/v1/leases", &moved).refusal(409, "REQUEST_ID_USED");
    let (path, renew) = renewal(&first, 5_000);
    api.post(&path, &renew).expect(200);
    api.post("/v1/leases", &body).refusal(409, "REQUEST_ID_USED");
    gate.clock.advance(5_000);
    api.post("/v1/leases", &body).refusal(409, "REQUEST_ID_USED");
}

#[test]
fn a_restarted_holder_takes_its_own_lease_over_and_no_other() {
    let gate = TestGate::start();
    let mut api = gate.api();
    let lease = acquire(&mut api, "users", "a", 60_000);
    let takeover = |holder: &str| {
        let mut body = wanted("users", holder, 60_000);
        body["takeover"] = json!(true);
        body
    };
    // A takeover has a rate limit: it needs a second since the last grant.
    let early = api.post("/v1/leases", &takeover("a")).refusal(409, "LEASE_HELD");
    assert_eq!(early["retry_after_ms"], 1_000);
    gate.clock.advance(1_000);
    api.post("/v1/leases", &takeover("b")).refusal(409, "LEASE_HELD");
    api.post("/v1/leases", &wanted("users", "a", 60_000)).refusal(409, "LEASE_HELD");
    let taken = api.post("/v1/leases", &takeover("a")).expect(201);
    assert_eq!(taken["lease_seq"], 2);
    let (path, body) = renewal(&lease, 1_000);
    api.post(&path, &body).refusal(409, "LEASE_FENCED");
    let old = api.get(&format!("/v1/leases/{}", text(&lease, "lease_id"))).expect(200);
    assert_eq!((text(&old, "state"), text(&old, "reason")), ("fenced", "takeover"));
}

#[test]
fn a_takeover_of_a_lease_that_is_too_new_says_so_and_when_to_ask_again() {
    let gate = TestGate::start();
    let mut api = gate.api();
    acquire(&mut api, "users", "a", 60_000);
    gate.clock.advance(1);
    let mut body = wanted("users", "a", 60_000);
    body["takeover"] = json!(true);
    let early = api.post("/v1/leases", &body).refusal(409, "LEASE_HELD");
    let detail = text(&early, "detail");
    for part in ["too new", "once it is 1000 ms old", "lease.takeover_after_ms", "ask again in 999 ms"] {
        assert!(detail.contains(part), "{part}: {detail}");
    }
    assert_eq!((text(&early, "holder_id"), &early["retry_after_ms"]), ("a", &json!(999)));
    // Another holder's lease cannot be taken over, however old it is.
    body["holder_id"] = json!("b");
    let held = api.post("/v1/leases", &body).refusal(409, "LEASE_HELD");
    assert!(text(&held, "detail").starts_with("held by a for another 59999 ms"), "{held}");
}

#[test]
fn rotation_gives_a_new_token_and_voids_the_old_one() {
    let gate = TestGate::start();
    let mut api = gate.api();
    let lease = acquire(&mut api, "users", "a", 5_000);
    let (path, mut body) = renewal(&lease, 5_000);
    body["rotate"] = json!(true);
    let rotated = api.post(&path, &body).expect(200);
    assert_eq!((rotated["lease_seq"].as_u64(), text(&rotated, "holder_id")), (Some(2), "a"));
    assert_ne!(rotated["fence_token"], lease["fence_token"]);
    assert_ne!(rotated["lease_id"], lease["lease_id"]);
    let check = |api: &mut super::support::http::Conn, lease: &Value| {
        api.post("/v1/tokens/check", &json!({ "fence_token": lease["fence_token"] })).expect(200)
    };
    assert_eq!(text(&check(&mut api, &lease), "code"), "WRITE_STALE_FENCE");
    assert_eq!(check(&mut api, &rotated)["valid"], true);
    api.post(&path, &body).refusal(409, "LEASE_FENCED");
}

#[test]
fn a_batch_is_granted_whole_or_not_at_all() {
    let gate = TestGate::start();
    let mut api = gate.api();
    let held = acquire(&mut api, "b", "other", 5_000);
    let batch = json!({ "object_ids": ["c", "a", "b"], "holder_id": "me", "ttl_ms": 5_000, "request_id": "r" });
    let refused = api.post("/v1/lease-batches", &batch).refusal(409, "LEASE_HELD");
    assert_eq!(text(&refused, "object_id"), "b");
    for object in ["a", "c"] {
        let object = api.get(&format!("/v1/objects/{object}")).expect(200);
        assert_eq!((text(&object, "state"), object["fence"].as_u64()), ("free", Some(0)), "nothing was left behind");
    }
    api.delete(&format!("/v1/leases/{}", text(&held, "lease_id")), text(&held, "fence_token")).expect(200);
    let granted = api.post("/v1/lease-batches", &batch).expect(201);
    let seqs: Vec<_> = granted["leases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|lease| (text(lease, "object_id"), &lease["lease_seq"]))
        .collect();
    assert_eq!(seqs, [("a", &json!(1)), ("b", &json!(2)), ("c", &json!(1))]);
    assert_eq!(api.post("/v1/lease-batches", &batch).expect(201), granted, "the same request again");
}

#[test]
fn revoking_moves_the_fence_and_leaves_no_holder() {
    let gate = TestGate::start();
    let mut api = gate.api();
    let lease = acquire(&mut api, "/data/users/", "a", 5_000);
    let path = format!("/v1/objects/{}/revoke", segment("/data/users/"));
    api.post(&path, &json!({ "reason": "" })).refusal(400, "REQUEST_INVALID");
    let revoked = api.post(&path, &json!({ "reason": "a is wedged" })).expect(200);
    assert_eq!((text(&revoked, "state"), revoked["fence"].as_u64()), ("free", Some(2)));
    assert_eq!(revoked["drain"]["unknown"], 0);
    let (renew, body) = renewal(&lease, 1_000);
    api.post(&renew, &body).refusal(409, "LEASE_FENCED");
    let old = api.get(&format!("/v1/leases/{}", text(&lease, "lease_id"))).expect(200);
    assert_eq!((text(&old, "state"), text(&old, "reason")), ("fenced", "a is wedged"));
    assert_eq!(acquire(&mut api, "/data/users/", "b", 1_000)["lease_seq"], 3);
}

#[test]
fn a_check_answers_as_a_write_would_be_answered() {
    let gate = TestGate::start();
    let mut api = gate.api();
    let lease = acquire(&mut api, "users", "a", 1_000);
    let token = text(&lease, "fence_token").to_owned();
    let mut check = |body: Value| api.post("/v1/tokens/check", &body).expect(200);
    let good = check(json!({ "fence_token": token }));
    assert_eq!((good["valid"].as_bool(), good["expires_in_ms"].as_u64()), (Some(true), Some(1_000)));
    assert_eq!((text(&good, "object_id"), good["lease_seq"].as_u64()), ("users", Some(1)));
    let mut code = |body: Value| text(&check(body), "code").to_owned();
    assert_eq!(code(json!({ "fence_token": token, "object_id": "orders" })), "LEASE_OBJECT_MISMATCH");
    let forged = |seq: u64| json!({ "fence_token": format!("fg1.{seq}.dXNlcnM.AAAAAAAAAAAAAAAAAAAAAA") });
    assert_eq!(code(forged(1)), "FENCE_TOKEN_INVALID");
    assert_eq!(code(forged(2)), "WRITE_FENCE_AHEAD");
    gate.clock.advance(1_000);
    assert_eq!(code(json!({ "fence_token": token })), "LEASE_EXPIRED");
    let mut api = gate.api();
    acquire(&mut api, "users", "b", 1_000);
    let stale = api.post("/v1/tokens/check", &json!({ "fence_token": token })).expect(200);
    assert_eq!(text(&stale, "code"), "WRITE_STALE_FENCE");
    api.post("/v1/tokens/check", &json!({ "fence_token": "fg1" })).refusal(400, "FENCE_TOKEN_MALFORMED");
}

#[test]
fn an_object_shows_its_fence_and_its_lease() {
    let gate = TestGate::start();
    let mut api = gate.api();
    let unknown = api.get("/v1/objects/never").expect(200);
    assert_eq!(
        (unknown["fence"].as_u64(), text(&unknown, "state"), &unknown["lease"]),
        (Some(0), "free", &Value::Null)
    );
    acquire(&mut api, "a/b", "me", 1_000);
    let path = format!("/v1/objects/{}", segment("a/b"));
    let held = api.get(&path).expect(200);
    assert_eq!((text(&held, "state"), text(&held["lease"], "state")), ("open", "held"));
    assert!(held["lease"].get("fence_token").is_none(), "{held}");
    gate.clock.advance(1_000);
    let over = api.get(&path).expect(200);
    assert_eq!((text(&over, "state"), text(&over["lease"], "state")), ("free", "expired"));
    assert_eq!(over["fence"], 1);
}

#[test]
fn lists_filter_page_and_forget_nothing() {
    let gate = TestGate::start();
    let mut api = gate.api();
    for n in 0..25 {
        let holder = if n % 2 == 0 { "even" } else { "odd" };
        acquire(&mut api, &format!("/data/{n:02}/"), holder, if n < 5 { 1_000 } else { 60_000 });
    }
    acquire(&mut api, "/other/", "even", 60_000);
    gate.clock.advance(1_000);
    let mut ids = |query: &str| -> (Vec<String>, Option<String>) {
        let page = api.get(&format!("/v1/leases?{query}")).expect(200);
        let ids = page["leases"].as_array().unwrap().iter().map(|lease| text(lease, "object_id").to_owned()).collect();
        (ids, page["next_cursor"].as_str().map(str::to_owned))
    };
    assert_eq!(ids("").0.len(), 26);
    assert_eq!(ids("prefix=/data/1").0.len(), 10);
    assert_eq!(ids("prefix=/data/&holder_id=odd").0.len(), 12);
    assert_eq!(ids("state=expired").0, ["/data/00/", "/data/01/", "/data/02/", "/data/03/", "/data/04/"]);
    assert_eq!(ids("state=held&prefix=/data/").0.len(), 20);
    assert_eq!(ids("state=fenced").0.len(), 0);
    let (mut all, mut cursor) = ids("prefix=/data/&limit=7");
    while let Some(next) = cursor {
        let (page, after) = ids(&format!("prefix=/data/&limit=7&cursor={next}"));
        all.extend(page);
        cursor = after;
    }
    let expected: Vec<_> = (0..25).map(|n| format!("/data/{n:02}/")).collect();
    assert_eq!(all, expected);
}

#[test]
fn ended_leases_are_found_for_a_day_and_floors_for_ever() {
    const HOUR: u64 = 3_600_000;
    let gate = TestGate::start();
    let mut api = gate.api();
    let lease = acquire(&mut api, "users", "a", 1_000);
    let path = format!("/v1/leases/{}", text(&lease, "lease_id"));
    gate.clock.advance(1_000);
    assert_eq!(text(&api.get(&path).expect(200), "state"), "expired");
    gate.clock.advance(23 * HOUR);
    assert_eq!(text(&api.get(&path).expect(200), "state"), "expired");
    gate.clock.advance(HOUR);
    // The sweep runs in the clock's next second; the answer to a later change means that the sweep is done.
    gate.clock.advance(1_000);
    acquire(&mut api, "other", "a", 1_000);
    api.get(&path).refusal(404, "LEASE_NOT_FOUND");
    assert_eq!(acquire(&mut api, "users", "b", 1_000)["lease_seq"], 2);
}

#[test]
fn a_wall_clock_that_jumps_forward_makes_no_lease_be_forgotten() {
    const DAY: u64 = 24 * 3_600_000;
    let gate = TestGate::start();
    let mut api = gate.api();
    let wanted = json!({ "object_id": "users", "holder_id": "a", "ttl_ms": 1_000, "request_id": "r-1" });
    let lease = api.post("/v1/leases", &wanted).expect(201);
    let path = format!("/v1/leases/{}", text(&lease, "lease_id"));
    gate.clock.advance(1_000);
    assert_eq!(text(&api.get(&path).expect(200), "state"), "expired");
    gate.clock.step_wall(3 * i64::try_from(DAY).unwrap());
    for other in ["one", "two"] {
        gate.clock.advance(1_000);
        acquire(&mut api, other, "a", 1_000);
    }
    assert_eq!(text(&api.get(&path).expect(200), "state"), "expired");
    api.post("/v1/leases", &wanted).refusal(409, "REQUEST_ID_USED");
    // The request still gets old.
    gate.clock.advance(DAY);
    gate.clock.advance(1_000);
    acquire(&mut api, "three", "a", 1_000);
    api.get(&path).refusal(404, "LEASE_NOT_FOUND");
}

#[test]
fn a_batchs_request_is_forgotten_with_the_last_of_its_leases() {
    const DAY: u64 = 24 * 3_600_000;
    let gate = TestGate::start();
    let mut api = gate.api();
    let batch = json!({ "object_ids": ["one", "two"], "holder_id": "a", "ttl_ms": 1_000, "request_id": "r-1" });
    api.post("/v1/lease-batches", &batch).expect(201);
    gate.clock.advance(1_000);
    api.post("/v1/lease-batches", &batch).refusal(409, "REQUEST_ID_USED");
    gate.clock.advance(DAY);
    // The sweep runs in the clock's next second, and finds both at once.
    gate.clock.advance(1_000);
    acquire(&mut api, "other", "a", 1_000);
    let granted = api.post("/v1/lease-batches", &batch).expect(201);
    assert_eq!(granted["leases"][0]["lease_seq"], 2);
}

#[test]
fn leases_outlive_a_restart_but_never_their_ttl() {
    let gate = TestGate::start();
    let mut api = gate.api();
    let lease = acquire(&mut api, "users", "a", 10_000);
    let (renew, body) = renewal(&lease, 10_000);
    let table = gate.stop();
    // Four seconds pass, and the machine's boot clock starts anew.
    let mut now = START;
    (now.wall.0, now.boot.0) = (now.wall.0 + 4_000, 77);
    let gate = TestGate::on(&settings(), table, now);
    let mut api = gate.api();
    let shown = api.get("/v1/objects/users").expect(200);
    assert_eq!((text(&shown["lease"], "state"), shown["lease"]["expires_in_ms"].as_u64()), ("held", Some(6_000)));
    gate.clock.step_wall(-3_600_000);
    gate.clock.advance(5_999);
    api.post("/v1/leases", &wanted("users", "b", 1_000)).refusal(409, "LEASE_HELD");
    gate.clock.advance(1);
    api.post(&renew, &body).refusal(409, "LEASE_EXPIRED");
}

#[test]
fn a_renewal_for_less_shortens_nothing_also_not_after_a_restart() {
    let gate = TestGate::start();
    let mut api = gate.api();
    let lease = acquire(&mut api, "users", "a", 600_000);
    let (renew, body) = renewal(&lease, 1_000);
    assert_eq!(api.post(&renew, &body).expect(200)["expires_in_ms"], 600_000);
    let gate = TestGate::on(&settings(), gate.stop(), START);
    let shown = gate.api().get("/v1/objects/users").expect(200);
    assert_eq!(shown["lease"]["expires_in_ms"], 600_000);
}

#[test]
fn a_clock_behind_the_tables_mark_expires_every_lease() {
    let gate = TestGate::start();
    let mut api = gate.api();
    let lease = acquire(&mut api, "users", "a", 3_600_000);
    let (renew, body) = renewal(&lease, 10_000);
    let table = gate.stop();
    let mut now = START;
    now.wall.0 -= 1;
    let gate = TestGate::on(&settings(), table, now);
    let mut api = gate.api();
    let metrics = String::from_utf8(gate.ops().get("/metrics").body).unwrap();
    assert!(metrics.contains("fencegate_clock_behind_mark 1"));
    api.post(&renew, &body).refusal(409, "LEASE_EXPIRED");
    // After this answer, no clock revives the lease.
    let table = gate.stop();
    let gate = TestGate::on(&settings(), table, START);
    gate.api().post(&renew, &body).refusal(409, "LEASE_EXPIRED");
}

#[test]
fn no_lease_is_granted_by_a_clock_that_was_never_set() {
    let gate = TestGate::start();
    gate.clock.step_wall(-(START.wall.0 as i64));
    let refused = gate.api().post("/v1/leases", &wanted("users", "a", 1_000)).refusal(503, "CLOCK_UNTRUSTED");
    assert_eq!(refused["retryable"], true);
}
