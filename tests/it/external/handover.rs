//! A higher number while writes of a lower one are on their way, and its state after a crash.

use serde_json::json;

use super::{World, until};
use crate::support::gate::{START, TestGate};
use fencegate::fence::{BootMs, Now, WallMs};

#[test]
fn a_higher_token_waits_for_what_is_on_its_way_and_then_writes() {
    let world = World::new();
    world.put(5).applied();
    let hung = world.hung_write(5);
    let mut next = world.gate.gate();
    next.send("PUT", "/users/1", &[("fence-token", "6")], b"six").unwrap();
    until("the fence has moved", || world.object()["fence"] == 6);
    assert_eq!(world.object()["state"], "draining");
    world.put(5).refusal(412, "WRITE_STALE_FENCE");
    world.put(6).refusal(503, "FENCE_DRAINING");
    assert_eq!(world.applied(), [5, 5], "nothing of 6 before the store has answered for 5");
    assert_eq!(hung.let_go().status, 200);
    next.receive().unwrap().applied();
    assert_eq!(world.applied(), [5, 5, 6]);
    world.put(6).applied();
}

#[test]
fn advance_answers_when_nothing_older_can_land() {
    let world = World::new();
    let first = world.advance(5).expect(200);
    assert_eq!((first["fence"].as_u64(), first["state"].as_str()), (Some(5), Some("open")));
    assert_eq!((first["lease_source"].as_str(), first["locked"].as_bool()), (Some("external"), Some(false)));
    let hung = world.hung_write(5);
    let mut caller = world.api();
    let path = "/v1/objects/users/advance";
    caller.send("POST", path, &[("content-type", "application/json")], br#"{"token": "6"}"#).unwrap();
    until("the fence has moved", || world.object()["fence"] == 6);
    assert_eq!(hung.let_go().status, 200);
    let moved = caller.receive().unwrap().expect(200);
    assert_eq!((moved["state"].as_str(), moved["drain"]["settled"].as_u64()), (Some("open"), Some(1)));
    world.advance(6).expect(200);
    let stale = world.advance(5).refusal(412, "WRITE_STALE_FENCE");
    assert_eq!((stale["fence"].as_u64(), stale["lease_seq"].as_u64()), (Some(6), Some(5)));
}

#[test]
fn a_still_higher_token_overtakes_a_drain_and_the_one_between_never_writes() {
    let world = World::new();
    world.put(5).applied();
    let hung = world.hung_write(5);
    let mut between = world.gate.gate();
    between.send("PUT", "/users/1", &[("fence-token", "6")], b"six").unwrap();
    until("the fence has moved", || world.object()["fence"] == 6);
    let mut last = world.gate.gate();
    last.send("PUT", "/users/1", &[("fence-token", "7")], b"seven").unwrap();
    until("the fence has moved on", || world.object()["fence"] == 7);
    between.receive().unwrap().refusal(412, "WRITE_STALE_FENCE");
    assert_eq!(hung.let_go().status, 200);
    last.receive().unwrap().applied();
    assert_eq!(world.applied(), [5, 5, 7]);
}

#[test]
fn a_drain_that_takes_too_long_goes_on_without_its_waiters() {
    let world = World::new();
    world.put(5).applied();
    let hung = world.hung_write(5);
    let mut next = world.gate.gate();
    next.send("PUT", "/users/1", &[("fence-token", "6")], b"six").unwrap();
    until("the fence has moved", || world.object()["fence"] == 6);
    world.gate.clock.advance(5_000);
    next.receive().unwrap().refusal(503, "FENCE_DRAINING");
    assert_eq!(hung.let_go().status, 200);
    until("it has opened for the holder of the number", || world.object()["state"] == "open");
    world.put(6).applied();
    assert_eq!(world.applied(), [5, 5, 6]);
}

#[test]
fn a_crash_in_a_drain_leaves_an_object_that_opens_by_itself_behind_the_bound() {
    let world = World::with_settings(|settings| settings.store.apply_bound_ms = 30_000);
    world.put(5).applied();
    let _hung = world.hung_write(5);
    let mut next = world.gate.gate();
    next.send("PUT", "/users/1", &[("fence-token", "6")], b"six").unwrap();
    until("the fence has moved", || world.object()["fence"] == 6);
    let table = std::sync::Arc::new(world.gate.table.after_a_crash());
    let later = Now { wall: WallMs(START.wall.0 + 1_000), boot: BootMs(9_000_000) };
    let gate = TestGate::on(&world.settings, table, later);
    let put = |token: &str| gate.gate().call("PUT", "/users/1", &[("fence-token", token)], b"again");
    put("6").refusal(503, "FENCE_DRAINING");
    put("5").refusal(412, "WRITE_STALE_FENCE");
    gate.clock.advance(29_999);
    put("6").refusal(503, "FENCE_DRAINING");
    gate.clock.advance(1);
    until("it has opened", || put("6").status == 200);
    gate.running().gate.stopping.send_replace(true);
}

#[test]
fn a_restart_keeps_the_number_that_may_write() {
    let world = World::new();
    world.put(5).applied();
    let table = std::sync::Arc::new(world.gate.table.after_a_crash());
    // However long ago that was, and whatever the clock says: the silence has no limit here.
    let later = Now { wall: WallMs(START.wall.0 - 1_000_000), boot: BootMs(1) };
    let gate = TestGate::on(&world.settings, table, later);
    let put = |token: &str| gate.gate().call("PUT", "/users/1", &[("fence-token", token)], b"again");
    put("5").applied();
    put("4").refusal(412, "WRITE_STALE_FENCE");
    gate.running().gate.stopping.send_replace(true);
}

#[test]
fn a_holder_that_is_silent_for_too_long_has_to_take_the_lock_again() {
    let world = World::with(|route| route.ttl_ms = 10_000);
    let answer = world.put(5);
    answer.applied();
    assert!(answer.header("fence-expires-in").is_some());
    for _ in 0..3 {
        world.gate.clock.advance(9_000);
        world.put(5).applied();
    }
    world.gate.clock.advance(12_000);
    let gone = world.put(5).refusal(412, "LEASE_EXPIRED");
    assert_eq!(gone["lease_seq"], 5);
    world.advance(5).refusal(409, "LEASE_EXPIRED");
    world.put(6).applied();
    world.put(5).refusal(412, "WRITE_STALE_FENCE");
    assert_eq!(world.applied(), [5, 5, 5, 5, 6]);
}

#[test]
fn silence_is_listened_for_anew_after_a_restart() {
    let world = World::with(|route| route.ttl_ms = 10_000);
    world.put(5).applied();
    world.gate.clock.advance(9_000);
    world.put(5).applied();
    let table = std::sync::Arc::new(world.gate.table.after_a_crash());
    let later = Now { wall: WallMs(START.wall.0 + 12_000), boot: BootMs(50_000) };
    let gate = TestGate::on(&world.settings, table, later);
    let put = |token: &str| gate.gate().call("PUT", "/users/1", &[("fence-token", token)], b"again");
    gate.clock.advance(9_999);
    put("5").applied();
    gate.clock.advance(12_000);
    put("5").refusal(412, "LEASE_EXPIRED");
    gate.running().gate.stopping.send_replace(true);
}

#[test]
fn an_operators_revocation_ends_a_number_and_the_next_one_is_the_lock_services() {
    let world = World::new();
    world.put(5).applied();
    let revoked = world.api().post("/v1/objects/users/revoke", &json!({ "reason": "stuck" })).expect(200);
    assert_eq!(revoked["fence"], 6);
    world.put(5).refusal(412, "WRITE_STALE_FENCE");
    world.put(6).applied();
    assert_eq!(world.applied(), [5, 6]);
}
