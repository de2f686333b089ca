//! Part of the table's past is lost, so the gate cannot know which numbers are stale: it refuses writes until an
//! operator confirms a number.

use fencegate::{
    clock::Clock,
    fence::{BootMs, Now, WallMs},
    table::{Table, open::begin_on, rocks::Recovered},
};
use serde_json::json;

use super::World;
use crate::support::gate::{START, TestGate, key};

#[test]
fn a_lost_tail_locks_objects_until_an_operator_confirms() {
    let world = World::new();
    world.put(50).applied();
    let table = std::sync::Arc::new(world.gate.table.after_a_crash());
    let later = Now { wall: WallMs(START.wall.0 + 1_000), boot: BootMs(9_000_000) };
    let (clock, _driver) = Clock::driven(later);
    let fingerprint = fencegate::route::Routes::new(&world.settings).unwrap().fingerprint;
    let lost = Recovered::TailLost { why: "a test".to_owned() };
    begin_on(std::sync::Arc::clone(&table) as std::sync::Arc<dyn Table>, key(), lost, (&clock, fingerprint), "memory")
        .unwrap();
    let gate = TestGate::on(&world.settings, table, later);
    let put = |path: &str, token: &str| gate.gate().call("PUT", path, &[("fence-token", token)], b"again");
    let locked = put("/users/1", "51").refusal(503, "OBJECT_LOCKED");
    assert!(locked["detail"].as_str().unwrap().contains("/confirm"), "{locked}");
    put("/users/1", "50").refusal(503, "OBJECT_LOCKED");
    put("/users/1", "49").refusal(412, "WRITE_STALE_FENCE");
    put("/never-seen/1", "7").refusal(503, "OBJECT_LOCKED");
    gate.api().post("/v1/objects/users/advance", &json!({ "token": 51 })).refusal(503, "OBJECT_LOCKED");
    assert_eq!(gate.api().get("/v1/objects/users").expect(200)["locked"], true);
    let confirm = |object: &str, token: u64| {
        gate.api().post(&format!("/v1/objects/{object}/confirm"), &json!({ "token": token }))
    };
    confirm("users", 49).refusal(409, "LEASE_FENCED");
    let confirmed = confirm("users", 57).expect(200);
    assert_eq!((confirmed["fence"].as_u64(), confirmed["locked"].as_bool()), (Some(57), Some(false)));
    put("/users/1", "56").refusal(412, "WRITE_STALE_FENCE");
    put("/users/1", "57").applied();
    confirm("never-seen", 7).expect(200);
    put("/never-seen/1", "6").refusal(412, "WRITE_STALE_FENCE");
    put("/never-seen/1", "7").applied();
    confirm("users", 60).expect(200);
    put("/users/1", "57").applied();
    gate.running().gate.stopping.send_replace(true);
}
