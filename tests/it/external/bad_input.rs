//! Invalid tokens, tokens that move the fence too far, and calls that are not for external objects.

use fencegate::config::{LeaseSource, Settings};
use serde_json::json;

use super::{World, route};
use crate::support::gate::settings;

#[test]
fn what_is_no_number_is_malformed_and_moves_nothing() {
    let world = World::new();
    let put = |headers: &[(&str, &str)]| world.gate.gate().call("PUT", "/users/1", headers, b"value");
    put(&[]).refusal(428, "WRITE_UNFENCED");
    let wrong = [
        "0",
        "07",
        "+7",
        "-7",
        "7.0",
        "0x7",
        "seven",
        "18446744073709551616",
        "7,8",
        "fg1.7.dXNlcnM.AAAAAAAAAAAAAAAAAAAAAA",
    ];
    for token in wrong {
        put(&[("fence-token", token)]).refusal(400, "FENCE_TOKEN_MALFORMED");
    }
    put(&[("fence-token", "7"), ("fence-token", "7")]).refusal(400, "FENCE_TOKEN_MALFORMED");
    put(&[("fence-token", "7"), ("connection", "fence-token")]).refusal(400, "FENCE_TOKEN_MALFORMED");
    let moved = world.gate.gate().call("MOVE", "/users/1", &[("fence-token", "7"), ("destination", "/other/1")], b"");
    moved.refusal(409, "LEASE_OBJECT_MISMATCH");
    assert_eq!((world.object()["fence"].as_u64(), world.store.saw("begun")), (Some(0), 0));
    for body in [json!({ "token": 0 }), json!({ "token": "x" })] {
        world.api().post("/v1/objects/users/advance", &body).refusal(400, "FENCE_TOKEN_MALFORMED");
    }
    for body in [json!({}), json!({ "token": -1 }), json!({ "token": 1, "more": 2 })] {
        world.api().post("/v1/objects/users/advance", &body).refusal(400, "REQUEST_INVALID");
    }
    world.put(u64::MAX).applied();
    assert_eq!(world.object()["fence"], u64::MAX);
}

#[test]
fn a_token_that_goes_too_far_is_refused_at_once_and_within_a_minute() {
    let world = World::with(|route| route.max_jump = 100);
    world.put(1_000_000).applied();
    let ahead = world.put(1_000_101).refusal(412, "WRITE_FENCE_AHEAD");
    assert_eq!((ahead["fence"].as_u64(), ahead["lease_seq"].as_u64()), (Some(1_000_000), Some(1_000_101)));
    world.advance(1_000_101).refusal(412, "WRITE_FENCE_AHEAD");
    world.put(1_000_060).applied();
    // The token is not too far ahead alone, but it is together with the one before.
    world.put(1_000_101).refusal(412, "WRITE_FENCE_AHEAD");
    world.put(1_000_100).applied();
    world.put(1_000_101).refusal(412, "WRITE_FENCE_AHEAD");
    world.gate.clock.advance(60_000);
    world.put(1_000_200).applied();
    assert_eq!(world.applied(), [1_000_000, 1_000_060, 1_000_100, 1_000_200]);
}

#[test]
fn leases_of_the_gate_and_numbers_from_outside_do_not_mix() {
    let world = World::new();
    let wanted = json!({ "object_id": "users", "holder_id": "a" });
    world.api().post("/v1/leases", &wanted).refusal(409, "EXTERNAL_LEASE");
    let batch = json!({ "object_ids": ["users"], "holder_id": "a" });
    world.api().post("/v1/lease-batches", &batch).refusal(409, "EXTERNAL_LEASE");
    let gate = crate::support::gate::TestGate::with(&Settings { route: vec![], ..world.settings.clone() });
    let advance = gate.api().post("/v1/objects/users/advance", &json!({ "token": 1 }));
    advance.refusal(409, "EXTERNAL_LEASE");
    gate.running().gate.stopping.send_replace(true);
}

#[test]
fn a_token_can_be_looked_at_without_a_write() {
    let world = World::new();
    world.put(5).applied();
    let check = |token: &str| {
        let asked = json!({ "fence_token": token, "object_id": "users" });
        world.api().post("/v1/tokens/check", &asked)
    };
    let verdict = |token: &str| check(token).expect(200)["code"].as_str().map(str::to_owned);
    assert_eq!((verdict("5"), verdict("6")), (None, None));
    assert_eq!(verdict("4"), Some("WRITE_STALE_FENCE".to_owned()));
    check("x").refusal(400, "FENCE_TOKEN_MALFORMED");
    assert_eq!(world.object()["fence"], 5, "nothing was moved");
}

#[test]
fn a_route_may_take_its_token_from_another_header() {
    let world = World::with(|route| route.token_header = "X-Lock-Revision".to_owned());
    let put = |headers: &[(&str, &str)]| world.gate.gate().call("PUT", "/users/1", headers, b"value");
    put(&[("fence-token", "5")]).refusal(428, "WRITE_UNFENCED");
    put(&[("x-lock-revision", "5")]).applied();
    put(&[("x-lock-revision", "4")]).refusal(412, "WRITE_STALE_FENCE");
    put(&[("x-lock-revision", "5"), ("x-lock-revision", "5")]).refusal(400, "FENCE_TOKEN_MALFORMED");
    assert_eq!(world.applied(), [5]);
}

fn faults(change: impl FnOnce(&mut Settings)) -> Vec<(String, String)> {
    let mut settings = settings();
    settings.route = vec![route()];
    change(&mut settings);
    settings.all_faults().into_iter().map(|fault| (fault.key, fault.what)).collect()
}

#[test]
fn a_configuration_that_would_not_be_safe_is_refused() {
    assert_eq!(faults(|_| {}), []);
    let keys = |faults: Vec<(String, String)>| faults.into_iter().map(|(key, _)| key).collect::<Vec<_>>();
    assert_eq!(keys(faults(|settings| settings.table.create = true)), ["route[0].lease_source"]);
    let beyond = faults(|settings| settings.gate.listen = "0.0.0.0:0".parse().unwrap());
    assert!(beyond[0].1.contains("tls_client_ca_file"), "{beyond:?}");
    assert_eq!(
        keys(faults(|settings| settings.route[0].token_header = "content-length".to_owned())),
        ["route[0].token_header"]
    );
    assert_eq!(
        keys(faults(|settings| settings.route[0].token_header = "no header".to_owned())),
        ["route[0].token_header"]
    );
    assert_eq!(keys(faults(|settings| settings.route[0].max_jump = 0)), ["route[0].max_jump"]);
    assert_eq!(keys(faults(|settings| settings.route[0].ttl_ms = 10)), ["route[0].ttl_ms"]);
    let gate = |change: fn(&mut fencegate::config::RouteSettings)| {
        keys(faults(|settings| {
            settings.route[0].lease_source = LeaseSource::Gate;
            change(&mut settings.route[0]);
        }))
    };
    assert_eq!(gate(|route| route.ttl_ms = 5_000), ["route[0].ttl_ms"]);
    assert_eq!(gate(|route| route.max_jump = 5), ["route[0].max_jump"]);
    assert_eq!(gate(|route| route.token_header = "x".to_owned()), ["route[0].token_header"]);
    let mixed = faults(|settings| {
        let mut other = route();
        (other.name, other.path, other.lease_source) =
            ("gate".to_owned(), "/v2/{object}".to_owned(), LeaseSource::Gate);
        settings.route.push(other);
    });
    assert_eq!(keys(mixed), ["route[1].lease_source"]);
}
