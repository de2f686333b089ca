//! The gate as an issuer: its answers to requests, and migrations that end badly.

use fencegate::config::{LeaseSource, Settings};
use serde_json::{Value, json};

use super::{TestGate, USERS, World, time, wall};
use crate::support::{
    gate::{START, acquire},
    signers::Signer,
    until,
};

const ZEROS: &str = "sha256:0x0000000000000000000000000000000000000000000000000000000000000000";

struct Issuing {
    world: World,
    perth: Signer,
    _folder: tempfile::TempDir,
}

/// A gate that has the key of europe; perth may ask.
fn issuing(change: impl FnOnce(&mut Settings)) -> Issuing {
    let (folder, perth) = (tempfile::tempdir().unwrap(), Signer::new("perth-cg"));
    let key = folder.path().join("key");
    fencegate::authority::key_file::create(&key, &Signer::new("europe-cg").key).unwrap();
    let world = World::with(|settings| {
        settings.authority.issuer = "europe-cg".to_owned();
        settings.authority.key_file = key;
        settings.requester.push(perth.party(&["/data"]));
        settings.lease.ttl_ms_default = 30_000;
        change(settings);
    });
    Issuing { world, perth, _folder: folder }
}

impl Issuing {
    fn begin(&self, over: Value) -> String {
        // A request with the same time would be the same migration.
        self.world.gate.clock.advance(1);
        let request = self.perth.request(USERS, &self.time(), over);
        self.world.post("/v1/migrations", &request).expect(201)["migration_id"].as_str().unwrap().to_owned()
    }

    /// The driven clock's time.
    fn time(&self) -> String {
        let now = self.world.gate.running().gate.now();
        format!("{}:0", now.wall.0)
    }

    fn get(&self, id: &str) -> Value {
        self.world.api().get(&format!("/v1/migrations/{id}")).expect(200)
    }

    fn reaches(&self, id: &str, state: &str) -> Value {
        until(&format!("the migration is {state}"), || self.get(id)["state"] == state);
        self.get(id)
    }

    fn confirm(&self, id: &str, hash: &str) -> crate::support::http::Response {
        let grant = self.get(id)["grant"].clone();
        let active = self.perth.active(&grant, hash, &self.time());
        self.world.post(&format!("/v1/migrations/{id}/active"), &active)
    }
}

#[test]
fn a_request_is_answered_with_wait_or_migrate_or_its_certificate() {
    let it = issuing(|_| {});
    let ask = |over: Value| it.world.post("/v1/fence-requests", &it.perth.request(USERS, &it.time(), over));
    assert_eq!(ask(Value::Null).expect(200)["answer"], "FREE");
    it.world.london();
    let answer = ask(json!({ "current_lease_id": "london-1" })).expect(200);
    assert_eq!((&answer["answer"], &answer["remaining_ms"]), (&json!("REQUEST_MIGRATION"), &json!(60_000)));
    ask(json!({ "current_lease_id": "paris-1" })).refusal(409, "LEASE_FENCED");
    it.world.gate.clock.advance(55_000);
    let answer = ask(Value::Null).expect(200);
    assert_eq!(
        (&answer["answer"], &answer["remaining_ms"], &answer["holder"]),
        (&json!("WAIT"), &json!(5_000), &json!("london-cg"))
    );
    assert_eq!(it.world.object()["fence"], 1, "nothing was fenced");
    it.world.gate.clock.advance(5_000);
    let answer = ask(Value::Null).expect(200);
    assert_eq!((&answer["answer"], &answer["certificate"]["fenced_lease_id"]), (&json!("FENCED"), &json!("london-1")));
    assert_eq!(it.world.object()["fence"], 2);
    assert_eq!(it.world.post("/v1/fences", &answer["certificate"]).expect(200)["acknowledged"]["issuer"], "europe-cg");
}

#[test]
fn only_requesters_may_ask_and_only_for_their_domains() {
    let it = issuing(|settings| settings.requester[0].domains = vec!["/data/users".to_owned()]);
    it.world.london();
    let stranger = Signer::new("unknown-cg");
    for path in ["/v1/fence-requests", "/v1/migrations"] {
        let post = |message: &Value| it.world.post(path, message);
        post(&stranger.request(USERS, &time(0), Value::Null)).refusal(403, "UNKNOWN_ISSUER");
        post(&it.perth.request("/data/orders/", &time(0), Value::Null)).refusal(403, "UnauthorizedFence");
        post(&it.perth.request("elsewhere", &time(0), Value::Null)).refusal(409, "NOT_AN_ISSUER");
        let mut forged = it.perth.request(USERS, &time(0), Value::Null);
        forged["reason"] = json!("another one");
        post(&forged).refusal(403, "InvalidFenceSignature");
        post(&it.perth.request(USERS, &time(60_001), Value::Null)).refusal(409, "FENCE_TIME_AHEAD");
        let old = format!("{}:0", wall(0) - 60_001);
        post(&it.perth.request(USERS, &old, Value::Null)).refusal(409, "REQUEST_STALE");
    }
    let to_unknown = it.perth.request(USERS, &time(0), json!({ "next_holder": "unknown-cg" }));
    assert_eq!(it.world.post("/v1/migrations", &to_unknown).refusal(400, "REQUEST_INVALID")["field"], "next_holder");
    let short = it.perth.request(USERS, &time(0), json!({ "ttl_ms": 1 }));
    assert_eq!(it.world.post("/v1/migrations", &short).refusal(400, "REQUEST_INVALID")["field"], "ttl_ms");
    assert_eq!(it.world.object()["fence"], 1, "nothing has moved");
    it.world.api().get("/v1/migrations/none").refusal(404, "MIGRATION_NOT_FOUND");
}

#[test]
fn a_gate_without_a_key_answers_no_request() {
    let world = World::with(|settings| settings.requester.push(Signer::new("perth-cg").party(&["/data"])));
    let request = Signer::new("perth-cg").request(USERS, &time(0), Value::Null);
    world.post("/v1/fence-requests", &request).refusal(409, "NOT_AN_ISSUER");
    world.post("/v1/migrations", &request).refusal(409, "NOT_AN_ISSUER");
}

#[test]
fn a_wrong_hash_ends_the_migration_and_a_new_one_is_the_way_on() {
    let it = issuing(|_| {});
    let london = it.world.london();
    assert_eq!(it.world.put("/data/users/1", &london).status, 200);
    let id = it.begin(Value::Null);
    it.reaches(&id, "granted");
    let refusal = it.confirm(&id, ZEROS).refusal(409, "STATE_HASH_MISMATCH");
    assert_eq!(refusal["migration_id"], id);
    let ended = it.get(&id);
    assert_eq!(ended["state"], "hash_mismatch");
    assert!(ended["way_on"].as_str().unwrap().contains("ask again"), "{ended}");
    assert_eq!(it.world.object()["state"], "free", "its lease was taken back");
    it.confirm(&id, ended["state_hash"].as_str().unwrap()).refusal(409, "MIGRATION_OVER");
    let id = it.begin(Value::Null);
    let granted = it.reaches(&id, "granted");
    let perth = it.confirm(&id, granted["state_hash"].as_str().unwrap()).expect(200);
    assert_eq!(it.world.put("/data/users/2", &perth).status, 200);
    it.confirm(&id, granted["state_hash"].as_str().unwrap()).refusal(409, "MIGRATION_OVER");
}

#[test]
fn only_the_next_holder_can_confirm() {
    let it = issuing(|settings| settings.requester.push(Signer::new("london-cg").party(&["/data"])));
    it.world.london();
    let id = it.begin(Value::Null);
    let granted = it.reaches(&id, "granted");
    let path = format!("/v1/migrations/{id}/active");
    let london = Signer::new("london-cg");
    let theirs = london.active(&granted["grant"], ZEROS, &it.time());
    assert_eq!(it.world.post(&path, &theirs).refusal(400, "REQUEST_INVALID")["field"], "lease_id");
    let mut forged = theirs;
    forged["holder"] = json!("perth-cg");
    it.world.post(&path, &forged).refusal(403, "InvalidFenceSignature");
    let mut other = granted["grant"].clone();
    other["lease_id"] = json!("another");
    it.world.post(&path, &it.perth.active(&other, ZEROS, &it.time())).refusal(400, "REQUEST_INVALID");
    assert_eq!(it.get(&id)["state"], "granted", "no revocation has stopped it");
}

#[test]
fn a_migration_without_a_confirmation_times_out_and_the_next_one_goes_on() {
    let it = issuing(|_| {});
    it.world.london();
    let id = it.begin(json!({ "ttl_ms": 10_000 }));
    it.reaches(&id, "granted");
    it.world.gate.clock.advance(1);
    let other = it.perth.request(USERS, &it.time(), Value::Null);
    let busy = it.world.post("/v1/migrations", &other).refusal(409, "MIGRATION_IN_PROGRESS");
    assert_eq!(busy["migration_id"], id);
    it.world.gate.clock.advance(10_000);
    it.reaches(&id, "activation_timed_out");
    it.confirm(&id, ZEROS).refusal(409, "MIGRATION_OVER");
    let id = it.begin(Value::Null);
    it.reaches(&id, "granted");
    it.confirm(&id, ZEROS).expect(200);
}

#[test]
fn a_drain_that_takes_too_long_leaves_the_old_holder_fenced_and_a_way_on() {
    let it = issuing(|settings| settings.authority.drain_timeout_ms = 0);
    let london = it.world.london();
    let hung = it.world.hung_write(&london);
    // The gate waits a while for the drain before it answers; the test drives its clock.
    let mut asker = it.world.api();
    let request = it.perth.request(USERS, &it.time(), Value::Null).to_string();
    asker.send("POST", "/v1/migrations", &[("content-type", "application/json")], request.as_bytes()).unwrap();
    until("the fence has moved", || it.world.object()["fence"] == 2);
    it.world.gate.clock.advance(5_000);
    let id = asker.receive().unwrap().expect(201)["migration_id"].as_str().unwrap().to_owned();
    until("it gives up", || {
        it.world.gate.clock.advance(1_000);
        it.get(&id)["state"] == "drain_timed_out"
    });
    it.world.put("/data/users/2", &london).refusal(412, "WRITE_STALE_FENCE");
    hung.let_go();
    until("it has drained", || it.world.object()["state"] == "free");
    // The certificate that fenced the lease is used again.
    let before = it.get(&id)["certificate"].clone();
    let id = it.begin(Value::Null);
    let granted = it.reaches(&id, "granted");
    assert_eq!(granted["certificate"], before);
    it.confirm(&id, granted["state_hash"].as_str().unwrap()).expect(200);
}

#[test]
fn a_revocation_overtakes_a_migration() {
    let it = issuing(|_| {});
    it.world.london();
    let id = it.begin(Value::Null);
    it.reaches(&id, "granted");
    it.world.post("/v1/objects/%2Fdata%2Fusers%2F/revoke", &json!({ "reason": "stop" })).expect(200);
    it.reaches(&id, "overtaken");
    it.confirm(&id, ZEROS).refusal(409, "MIGRATION_OVER");
    let id = it.begin(Value::Null);
    it.reaches(&id, "granted");
    let perth = it.confirm(&id, ZEROS).expect(200);
    assert_eq!(it.world.put("/data/users/1", &perth).status, 200);
}

#[test]
fn leases_of_the_lease_api_migrate_too_and_a_free_object_is_simply_granted() {
    let it = issuing(|settings| settings.route[0].lease_source = LeaseSource::Gate);
    let id = it.begin(Value::Null);
    let granted = it.reaches(&id, "granted");
    assert_eq!(
        (&granted["certificate"], &granted["acknowledged"]),
        (&Value::Null, &Value::Null),
        "no holder was fenced"
    );
    let first = it.confirm(&id, ZEROS).expect(200);
    assert_eq!((&first["lease_seq"], it.world.put("/data/users/1", &first).status), (&json!(1), 200));
    let path = format!("/v1/leases/{}", first["lease_id"].as_str().unwrap());
    it.world.api().delete(&path, first["fence_token"].as_str().unwrap()).expect(200);
    let own = acquire(&mut it.world.api(), USERS, "a", 60_000);
    let id = it.begin(json!({ "current_lease_id": own["lease_id"] }));
    let granted = it.reaches(&id, "granted");
    assert_eq!(granted["acknowledged"]["writes"], 1);
    it.world.put("/data/users/2", &own).refusal(412, "WRITE_STALE_FENCE");
    it.confirm(&id, granted["state_hash"].as_str().unwrap()).expect(200);
    assert!(it.world.gate.shows("fencegate_migrations_total{state=\"active\"} 2"));
}

/// A gate that died between two steps goes on from the last durable one, also in the middle of a drain.
#[test]
fn a_migration_is_resumed_from_what_is_durable() {
    let it = issuing(|_| {});
    let london = it.world.london();
    let hung = it.world.hung_write(&london);
    let mut asker = it.world.api();
    let request = it.perth.request(USERS, &it.time(), Value::Null).to_string();
    asker.send("POST", "/v1/migrations", &[("content-type", "application/json")], request.as_bytes()).unwrap();
    until("the fence has moved", || it.world.object()["fence"] == 2);
    let again = TestGate::on(&it.world.settings, it.world.gate.table.after_a_crash().into(), START);
    let listed = again.api().get("/v1/fences?domain=%2Fdata%2Fusers%2F").expect(200);
    assert_eq!(listed["fences"][0]["fenced_lease_id"], "london-1", "durable in the write that moved the fence");
    let late = it.perth.request(USERS, &time(1), Value::Null);
    let id = again.api().post("/v1/migrations", &late).refusal(409, "MIGRATION_IN_PROGRESS")["migration_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let same = again.api().post("/v1/migrations", &serde_json::from_str(&request).unwrap()).expect(201);
    assert_eq!(same["migration_id"], id, "the same request is the same migration");
    let get = || again.api().get(&format!("/v1/migrations/{id}")).expect(200);
    until("it goes on", || get()["state"] == "granted");
    let granted = get();
    let active = it.perth.active(&granted["grant"], granted["state_hash"].as_str().unwrap(), &time(0));
    let perth = again.api().post(&format!("/v1/migrations/{id}/active"), &active).expect(200);
    assert_eq!(perth["lease_seq"], 2);
    hung.let_go();
}

/// No other holder comes between: waiting acquires get the object when the migration is over.
#[test]
fn an_object_that_is_being_migrated_is_reserved() {
    let it = issuing(|settings| settings.route[0].lease_source = LeaseSource::Gate);
    let own = acquire(&mut it.world.api(), USERS, "a", 60_000);
    let mut waiter = it.world.api();
    let body = json!({ "object_id": USERS, "holder_id": "b", "ttl_ms": 60_000, "wait_ms": 300_000 }).to_string();
    waiter.send("POST", "/v1/leases", &[("content-type", "application/json")], body.as_bytes()).unwrap();
    until("b waits", || it.world.gate.shows("fencegate_lease_waiters 1"));
    let id = it.begin(json!({ "ttl_ms": 10_000 }));
    it.reaches(&id, "granted");
    it.world.put("/data/users/1", &own).refusal(412, "WRITE_STALE_FENCE");
    let again = json!({ "object_id": USERS, "holder_id": "a", "ttl_ms": 60_000 });
    it.world.post("/v1/leases", &again).refusal(409, "LEASE_HELD");
    let grant = it.world.europe.grant(USERS, "rome-1", 3, "rome-cg", (wall(0), wall(60_000)), Value::Null);
    it.world.post("/v1/grants", &grant).refusal(409, "MIGRATION_IN_PROGRESS");
    it.world.gate.clock.advance(10_001);
    it.reaches(&id, "activation_timed_out");
    let lease = waiter.receive().unwrap().expect(201);
    assert_eq!((&lease["holder_id"], &lease["lease_seq"]), (&json!("b"), &json!(3)));
}

/// Writes of an earlier run may still land: no request gets a token before the bound is over, whatever it shows.
#[test]
fn a_grant_in_sight_is_no_token() {
    let it = issuing(|settings| settings.store.apply_bound_ms = 20_000);
    it.world.london();
    let id = it.begin(Value::Null);
    let granted = it.reaches(&id, "granted");
    let active = it.perth.active(&granted["grant"], ZEROS, &it.time());
    // The gate was killed before the confirmation; the lease exists, and the bound is not over.
    let now = it.world.gate.running().gate.now();
    let again = TestGate::on(&it.world.settings, it.world.gate.table.after_a_crash().into(), now);
    again.api().post("/v1/grants", &granted["grant"]).refusal(409, "MIGRATION_IN_PROGRESS");
    let perth = again.api().post(&format!("/v1/migrations/{id}/active"), &active).expect(200);
    assert_eq!(perth["lease_seq"], 2);
    again.api().post("/v1/grants", &granted["grant"]).refusal(409, "GRANT_USED");
}

/// An operator who does not wait for London's last write stops the handover: it makes no acknowledgement.
#[test]
fn a_revocation_by_force_stops_a_migration_that_is_still_fencing() {
    let it = issuing(|_| {});
    let london = it.world.london();
    let hung = it.world.hung_write(&london);
    let mut asker = it.world.api();
    let request = it.perth.request(USERS, &it.time(), Value::Null).to_string();
    asker.send("POST", "/v1/migrations", &[("content-type", "application/json")], request.as_bytes()).unwrap();
    until("the fence has moved", || it.world.object()["fence"] == 2);
    let force = json!({ "reason": "it takes too long", "force": true });
    it.world.post("/v1/objects/%2Fdata%2Fusers%2F/revoke", &force).expect(200);
    let id = asker.receive().unwrap().expect(201)["migration_id"].as_str().unwrap().to_owned();
    let ended = it.reaches(&id, "overtaken");
    assert_eq!((&ended["acknowledged"], &ended["grant"]), (&Value::Null, &Value::Null));
    hung.let_go();
}
