//! Objects and holders: a caller sees and holds what is its own, also while rights change.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::{World, grant};
use crate::support::{
    gate::{acquire, renewal, text, wanted},
    http::segment,
};

fn two_tenants() -> World {
    World::new(vec![grant("red", "red", &["/red"]), grant("blue", "blue", &["/blue"])])
}

fn objects(list: &Value, name: &str) -> Vec<String> {
    list[name].as_array().unwrap().iter().map(|each| text(each, "object_id").to_owned()).collect()
}

#[test]
fn a_caller_learns_nothing_of_objects_that_it_may_not_read() {
    let mut world = two_tenants();
    let (mut red, mut blue) = (world.as_("red"), world.as_("blue"));
    let mine = acquire(&mut red, "/red/a", "red", 60_000);
    let theirs = acquire(&mut blue, "/blue/a", "blue", 60_000);
    assert_eq!(objects(&red.get("/v1/leases").expect(200), "leases"), ["/red/a"]);
    assert_eq!(objects(&red.get("/v1/leases?prefix=/blue").expect(200), "leases"), Vec::<String>::new());
    // An object that is there is answered as one that is not.
    let there = red.get(&format!("/v1/objects/{}", segment("/blue/a"))).refusal(403, "ACCESS_DENIED");
    let not = red.get(&format!("/v1/objects/{}", segment("/blue/b"))).refusal(403, "ACCESS_DENIED");
    assert_eq!(there.to_string().replace("/blue/a", "/blue/b"), not.to_string());
    let there = red.get(&format!("/v1/leases/{}", text(&theirs, "lease_id"))).refusal(404, "LEASE_NOT_FOUND");
    let not = red.get("/v1/leases/none").refusal(404, "LEASE_NOT_FOUND");
    assert_eq!(there, not);
    // With its token, too.
    let check = json!({ "fence_token": text(&theirs, "fence_token") });
    red.post("/v1/tokens/check", &check).refusal(403, "ACCESS_DENIED");
    let check = json!({ "fence_token": text(&theirs, "fence_token"), "object_id": "/red/a" });
    red.post("/v1/tokens/check", &check).refusal(403, "ACCESS_DENIED");
    let (path, body) = renewal(&theirs, 60_000);
    red.post(&path, &body).refusal(403, "ACCESS_DENIED");
    red.delete(&format!("/v1/leases/{}", text(&theirs, "lease_id")), text(&theirs, "fence_token"))
        .refusal(403, "ACCESS_DENIED");
    let batch = json!({ "object_ids": ["/red/b", "/blue/b"], "holder_id": "red" });
    red.post("/v1/lease-batches", &batch).refusal(403, "ACCESS_DENIED");
    red.get(&format!("/v1/leases/{}", text(&mine, "lease_id"))).expect(200);
}

#[test]
fn a_lease_of_a_hidden_object_is_answered_like_one_that_never_was() {
    let mut world = two_tenants();
    let (mut red, mut blue) = (world.as_("red"), world.as_("blue"));
    let mine = acquire(&mut red, "/red/a", "red", 60_000);
    let theirs = acquire(&mut blue, "/blue/a", "blue", 60_000);
    let token = text(&mine, "fence_token");
    let mut both = |lease: &str| {
        let body = json!({ "fence_token": token, "holder_id": "red", "ttl_ms": 60_000 });
        let renewed = red.post(&format!("/v1/leases/{lease}/renew"), &body).refusal(404, "LEASE_NOT_FOUND");
        let released = red.delete(&format!("/v1/leases/{lease}"), token).refusal(404, "LEASE_NOT_FOUND");
        [renewed, released]
    };
    assert_eq!(both(text(&theirs, "lease_id")), both("none"));
}

#[test]
fn pages_of_leases_name_no_object_that_the_caller_may_not_read() {
    let mut world = World::new(vec![grant("red", "red", &["/b/own", "/d"]), grant("all", "all", &["*"])]);
    let mut all = world.as_("all");
    for object in ["/a", "/b/own", "/b/own/1", "/b/ownX", "/b/other", "/c", "/d/1", "/d", "/e"] {
        acquire(&mut all, object, "all", 60_000);
    }
    let mut red = world.as_("red");
    let (mut seen, mut cursor) = (vec![], String::new());
    loop {
        let page = red.get(&format!("/v1/leases?limit=1{cursor}")).expect(200);
        seen.extend(objects(&page, "leases"));
        let Some(next) = page["next_cursor"].as_str() else { break };
        let key = String::from_utf8_lossy(&BASE64_URL_SAFE_NO_PAD.decode(next).unwrap()).into_owned();
        assert!(key.contains("/b/own\0") || key.contains("/b/own/") || key.contains("/d"), "{key:?}");
        cursor = format!("&cursor={next}");
    }
    seen.sort();
    assert_eq!(seen, ["/b/own", "/b/own/1", "/d", "/d/1"]);
    for (prefix, wanted) in [("/b/own/", vec!["/b/own/1"]), ("/b", vec!["/b/own", "/b/own/1"]), ("/c", vec![])] {
        let page = red.get(&format!("/v1/leases?prefix={prefix}")).expect(200);
        assert_eq!(objects(&page, "leases"), wanted, "{prefix}");
    }
}

#[test]
fn leases_are_held_in_ones_own_name() {
    let mut world = World::new(vec![grant("all", "*", &["/data"])]);
    let (mut red, mut blue) = (world.as_("red"), world.as_("blue"));
    for (name, status) in [("red", 201), ("red/1", 201), ("blue", 403), ("red2", 403), ("red/", 403), ("", 400)] {
        let object = format!("/data/{}", name.len());
        let answer = red.post("/v1/leases", &wanted(&object, name, 60_000));
        assert_eq!(answer.status, status, "{name:?}: {answer:?}");
    }
    // Another principal's token alone does nothing, and neither does its name.
    let lease = acquire(&mut red, "/data/x", "red", 60_000);
    let (path, body) = renewal(&lease, 60_000);
    let refused = blue.post(&path, &body).refusal(403, "ACCESS_DENIED");
    assert!(text(&refused, "detail").contains("\"blue\""), "{refused}");
    let own_name = json!({ "fence_token": text(&lease, "fence_token"), "holder_id": "blue", "ttl_ms": 60_000 });
    blue.post(&path, &own_name).refusal(403, "LEASE_NOT_HOLDER");
    let release = format!("/v1/leases/{}", text(&lease, "lease_id"));
    blue.delete(&release, text(&lease, "fence_token")).refusal(403, "ACCESS_DENIED");
    let over = json!({ "object_id": "/data/x", "holder_id": "red", "ttl_ms": 60_000, "takeover": true });
    blue.post("/v1/leases", &over).refusal(403, "ACCESS_DENIED");
    red.delete(&release, text(&lease, "fence_token")).expect(200);
    blue.delete("/v1/leases/none", text(&lease, "fence_token")).refusal(404, "LEASE_NOT_FOUND");
}

#[test]
fn a_reload_that_takes_the_right_away_ends_a_wait() {
    let mut world = two_tenants();
    let mut near = world.shows(None);
    let held = acquire(&mut near, "/red/a", "operator", 600_000);
    let mut red = world.as_("red");
    let mut blue = world.as_("blue");
    let mut body = wanted("/red/a", "red", 60_000);
    body["wait_ms"] = json!(200_000);
    let text_of = body.to_string();
    red.send("POST", "/v1/leases", &[("content-type", "application/json")], text_of.as_bytes()).unwrap();
    crate::support::until("the acquire waits", || world.gate.shows("fencegate_lease_waiters 1"));
    let of_blue = acquire(&mut blue, "/blue/a", "blue", 60_000);
    world.reload(vec![grant("blue", "blue", &["/blue"])]);
    red.receive().unwrap().refusal(403, "ACCESS_DENIED");
    crate::support::until("it has left the queue", || {
        world.gate.clock.advance(1);
        world.gate.shows("fencegate_lease_waiters 0\n")
    });
    // A lease that is held stays; without the right it is not renewed.
    world.reload(vec![]);
    let (path, body) = renewal(&of_blue, 60_000);
    blue.post(&path, &body).refusal(403, "ACCESS_DENIED");
    let stays = near.get(&format!("/v1/objects/{}", segment("/blue/a"))).expect(200);
    assert_eq!(stays["lease"]["holder_id"], "blue");
    near.delete(&format!("/v1/leases/{}", text(&held, "lease_id")), text(&held, "fence_token")).expect(200);
}

#[test]
fn a_stream_shows_what_its_caller_may_read_and_ends_with_the_right() {
    let mut world = two_tenants();
    let (mut red, mut blue) = (world.as_("red"), world.as_("blue"));
    let mut stream = world.as_("red");
    stream.send("GET", "/v1/watch", &[], b"").unwrap();
    stream.until_line("the stream has begun", |line| line.contains("watching"));
    acquire(&mut blue, "/blue/a", "blue", 60_000);
    acquire(&mut red, "/red/a", "red", 60_000);
    stream.until_line("its own event", |line| {
        assert!(!line.contains("/blue"), "{line}");
        line.contains("/red/a")
    });
    world.reload(vec![grant("blue", "blue", &["/blue"])]);
    crate::support::until("the stream ends", || stream.read_line().is_err() || stream.read_line().is_err());
}

#[test]
fn a_stream_ends_when_its_token_is_revoked() {
    let mut world = two_tenants();
    let mut stream = world.as_("red");
    stream.send("GET", "/v1/watch", &[], b"").unwrap();
    stream.until_line("the stream has begun", |line| line.contains("watching"));
    world.rows.token.clear();
    world.write_tokens();
    crate::support::until("the stream ends", || stream.read_line().is_err());
}

#[test]
fn receipts_of_no_object_are_for_those_who_may_read_all() {
    let mut world = World::new(vec![grant("red", "red", &["/red"]), grant("ops", "ops", &["*"])]);
    let mut gate = world.gate.gate();
    gate.call("PUT", "/red/1", &[], b"x").refusal(428, "WRITE_UNFENCED");
    gate.call("PUT", "/red/%2f", &[], b"x").refusal(422, "PATH_AMBIGUOUS");
    let all = world.as_("ops").get("/v1/receipts").expect(200);
    assert_eq!(all["receipts"].as_array().unwrap().len(), 2);
    let seen = world.as_("red").get("/v1/receipts").expect(200);
    assert_eq!(objects(&seen, "receipts"), Vec::<String>::new(), "the route's object is red, and not below /red");
}

#[test]
fn a_backup_needs_the_right_to_every_object() {
    let mut world = World::new(vec![grant("red", "red", &["/", "/red"]), grant("ops", "ops", &["*"])]);
    let wanted = json!({ "folder": "relative" });
    world.as_("red").post("/v1/backups", &wanted).refusal(403, "ACCESS_DENIED");
    let refused = world.as_("ops").post("/v1/backups", &wanted).refusal(400, "REQUEST_INVALID");
    assert_eq!(text(&refused, "field"), "folder");
}
