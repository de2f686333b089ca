//! Bad input: each kind gets its own answer, changes nothing, and writes are judged as before. The long test is a table of
//! cases, and is not split for its length.

use fencegate::config::LeaseSource;
use serde_json::{Value, json};

use super::{USERS, World, time, wall};
use crate::support::signers::{Signer, merge};

/// A changed message with its old signature.
fn changed(message: &Value, over: Value) -> Value {
    let mut message = message.clone();
    merge(&mut message, over);
    message
}

fn hex(bytes: &str) -> String {
    format!("bls:0x{bytes}")
}

/// Points that have the form of signatures and are not valid ones, from the published vectors.
fn vector(name: &str) -> String {
    let all: Value = serde_json::from_str(include_str!("../../data/bls/vectors.json")).unwrap();
    let found = all["deserialization_G2"].as_array().unwrap().iter().find(|case| case["name"] == name).cloned();
    hex(found.unwrap()["signature"].as_str().unwrap().trim_start_matches("0x"))
}

#[test]
fn every_bad_certificate_has_its_own_answer_and_changes_nothing() {
    let world = World::with(|settings| {
        settings.authority.max_jump = 1_000;
        settings.issuer.push(Signer::new("asia-cg").party(&["/data/users"]));
        settings.issuer.push(fencegate::config::PartySettings {
            retired: true,
            key_epoch: 2,
            ..Signer::with_seed("europe-cg", 77).party(&["/data"])
        });
    });
    let london = world.london();
    let good = world.europe.certificate(USERS, "london-1", 1, &time(5), Value::Null);
    let signature = good["signature"].as_str().unwrap();
    let (europe, asia, stranger) = (&world.europe, Signer::new("asia-cg"), Signer::new("unknown-cg"));
    let by_wrong_kind = {
        let grant = europe.grant(USERS, "x", 9, "y", (wall(0), wall(9)), Value::Null);
        changed(&good, json!({ "signature": grant["signature"] }))
    };
    let retired = Signer::with_seed("europe-cg", 77);
    let cases: Vec<(&str, Value, u16, &str, Option<&str>)> = vec![
        ("no signature", changed(&good, json!({ "signature": null })), 400, "REQUEST_INVALID", Some("signature")),
        (
            "bad hex",
            changed(&good, json!({ "signature": hex(&"zz".repeat(96)) })),
            400,
            "REQUEST_INVALID",
            Some("signature"),
        ),
        (
            "no prefix",
            changed(&good, json!({ "signature": &signature[4..] })),
            400,
            "REQUEST_INVALID",
            Some("signature"),
        ),
        (
            "too short",
            changed(&good, json!({ "signature": &signature[..196] })),
            400,
            "REQUEST_INVALID",
            Some("signature"),
        ),
        (
            "too long",
            changed(&good, json!({ "signature": format!("{signature}00") })),
            400,
            "REQUEST_INVALID",
            Some("signature"),
        ),
        (
            "off the curve",
            changed(&good, json!({ "signature": vector("deserialization_fails_not_in_curve") })),
            403,
            "InvalidFenceSignature",
            Some("signature"),
        ),
        (
            "off the subgroup",
            changed(&good, json!({ "signature": vector("deserialization_fails_not_in_G2") })),
            403,
            "InvalidFenceSignature",
            Some("signature"),
        ),
        (
            "infinity",
            changed(&good, json!({ "signature": vector("deserialization_succeeds_infinity_with_true_b_flag") })),
            403,
            "InvalidFenceSignature",
            Some("signature"),
        ),
        ("another kind's tag", by_wrong_kind, 403, "InvalidFenceSignature", None),
        (
            "another domain's signature",
            changed(
                &europe.certificate("/data/other/", "london-1", 1, &time(5), Value::Null),
                json!({ "domain": USERS }),
            ),
            403,
            "InvalidFenceSignature",
            None,
        ),
        ("another number", changed(&good, json!({ "lease_seq": 2 })), 403, "InvalidFenceSignature", None),
        (
            "another's key",
            changed(&asia.certificate(USERS, "london-1", 1, &time(5), Value::Null), json!({ "issuer": "europe-cg" })),
            403,
            "InvalidFenceSignature",
            None,
        ),
        (
            "unknown issuer",
            stranger.certificate(USERS, "london-1", 1, &time(5), Value::Null),
            403,
            "UNKNOWN_ISSUER",
            None,
        ),
        (
            "unknown epoch",
            europe.certificate(USERS, "london-1", 1, &time(5), json!({ "key_epoch": 3 })),
            403,
            "UNKNOWN_ISSUER",
            None,
        ),
        (
            "retired epoch",
            retired.certificate(USERS, "london-1", 1, &time(5), json!({ "key_epoch": 2 })),
            403,
            "KEY_EPOCH_RETIRED",
            None,
        ),
        (
            "another cluster",
            europe.certificate(USERS, "london-1", 1, &time(5), json!({ "cluster_id": "other" })),
            403,
            "FOREIGN_CLUSTER",
            None,
        ),
        (
            "not its domain",
            asia.certificate("/data/usersX/", "london-1", 1, &time(5), Value::Null),
            403,
            "UnauthorizedFence",
            None,
        ),
        (
            "before the lease",
            europe.certificate(USERS, "london-1", 1, &time(5), json!({ "lease_start_ms": wall(5) })),
            409,
            "FenceBeforeLease",
            None,
        ),
        (
            "too far ahead",
            europe.certificate(USERS, "london-1", 1, &time(60_001), Value::Null),
            409,
            "FENCE_TIME_AHEAD",
            None,
        ),
        (
            "too far a jump",
            europe.certificate(USERS, "london-1", 2_000, &time(5), Value::Null),
            409,
            "FENCE_JUMP",
            None,
        ),
        ("no type", changed(&good, json!({ "type": "FENCE" })), 400, "REQUEST_INVALID", Some("type")),
        ("no number", changed(&good, json!({ "lease_seq": 0 })), 400, "REQUEST_INVALID", Some("lease_seq")),
        (
            "no time",
            changed(&good, json!({ "fence_time": "1754842735000" })),
            400,
            "REQUEST_INVALID",
            Some("fence_time"),
        ),
        (
            "time with a zero before it",
            changed(&good, json!({ "fence_time": "01:0" })),
            400,
            "REQUEST_INVALID",
            Some("fence_time"),
        ),
        ("unknown field", changed(&good, json!({ "lease": 1 })), 400, "REQUEST_INVALID", Some("lease")),
        (
            "unknown propagation",
            changed(&good, json!({ "propagation": "pigeon" })),
            400,
            "REQUEST_INVALID",
            Some("propagation"),
        ),
        ("no domain", changed(&good, json!({ "domain": "" })), 400, "REQUEST_INVALID", Some("domain")),
        ("a number for a name", changed(&good, json!({ "issuer": 7 })), 400, "REQUEST_INVALID", Some("issuer")),
    ];
    let before = world.object();
    for (name, message, status, code, field) in &cases {
        let answer = world.post("/v1/fences", message);
        assert_eq!(
            (answer.status, answer.header("fence-error")),
            (*status, Some(*code)),
            "{name}: {}",
            String::from_utf8_lossy(&answer.body)
        );
        let body = answer.refusal(*status, code);
        assert_eq!(body["field"].as_str(), *field, "{name}");
        assert_eq!(world.object(), before, "{name}");
        assert_eq!(world.put("/data/users/1", &london).status, 200, "{name}: the holder writes on");
    }
    let details: std::collections::BTreeSet<String> = cases
        .iter()
        .map(|(_, message, status, code, _)| {
            world.post("/v1/fences", message).refusal(*status, code)["detail"].to_string()
        })
        .collect();
    // Only the four messages whose signature is valid but not over these bytes share one text.
    assert!(details.len() >= cases.len() - 4, "{} of {}: {details:#?}", details.len(), cases.len());
    assert_eq!(world.post("/v1/fences", &good).expect(200)["applied"], true);
}

#[test]
fn bodies_that_are_no_message_are_refused() {
    let world = World::new();
    let call = |path: &str, body: &[u8]| world.api().call("POST", path, &[("content-type", "application/json")], body);
    for path in ["/v1/fences", "/v1/grants", "/v1/fence-requests", "/v1/migrations"] {
        call(path, b"[]").refusal(400, "REQUEST_INVALID");
        call(path, b"{").refusal(400, "REQUEST_INVALID");
        call(path, b"{}").refusal(400, "REQUEST_INVALID");
        let long = format!("{{\"type\": \"{}\"}}", "x".repeat(66_000));
        call(path, long.as_bytes()).refusal(413, "REQUEST_LIMIT");
    }
    assert_eq!(world.api().get("/v1/fences").refusal(400, "REQUEST_INVALID")["field"], "domain");
    world.api().get("/v1/fences?domain=x&limit=0").refusal(400, "REQUEST_INVALID");
    assert_eq!(world.object()["fence"], 0);
}

#[test]
fn without_issuers_nothing_signed_is_taken() {
    let world = World::with(|settings| {
        settings.issuer.clear();
        settings.authority.cluster_id.clear();
        settings.route[0].lease_source = LeaseSource::Gate;
    });
    let sent = world.europe.certificate(USERS, "l", 1, &time(5), Value::Null);
    world.post("/v1/fences", &sent).refusal(403, "FOREIGN_CLUSTER");
    let sent = world.europe.certificate(USERS, "l", 1, &time(5), json!({ "cluster_id": "" }));
    world.post("/v1/fences", &sent).refusal(403, "UNKNOWN_ISSUER");
}

#[test]
fn a_table_that_is_shut_takes_no_certificate_and_says_that_it_may_be_there() {
    let world = World::new();
    let london = world.london();
    world.gate.table.fail_next(fencegate::table::memory::DiskFault::Write);
    let sent = world.europe.certificate(USERS, "london-1", 1, &time(5), Value::Null);
    let answer = world.post("/v1/fences", &sent);
    assert_eq!((answer.status, answer.header("fence-error")), (503, Some("TABLE_UNAVAILABLE")));
    world.put("/data/users/1", &london).refusal(503, "TABLE_UNAVAILABLE");
    world.post("/v1/fences", &sent).refusal(503, "TABLE_UNAVAILABLE");
}
