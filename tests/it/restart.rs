//! What the next run knows of a run that ended badly: the routes of its writes, how long they may still land, and
//! drains in progress.

use std::{process::Command, sync::Arc};

use fencegate::{
    config::{Mode, RouteSettings, Settings},
    fence::Now,
    table::{memory::MemoryTable, open, rocks::RocksTable},
};
use serde_json::{Value, json};

use super::support::{
    bench::Bench,
    gate::{START, TestGate, acquire, settings, text, wanted},
    http::Response,
    process::{Site, binary},
    store::Store,
    until,
};

const BOUND: u64 = 40_000;

/// The gate's settings with a route for `/PATH/OBJECT/...`.
fn routed(store: &Store, path: &str) -> Settings {
    let mut settings = settings();
    settings.store.url = store.url();
    settings.store.apply_bound_ms = BOUND;
    settings.route = vec![RouteSettings {
        path: format!("/{path}/{{object}}/{{rest...}}"),
        object: "{object}".to_owned(),
        ..RouteSettings::default()
    }];
    settings
}

fn later(ms: u64) -> Now {
    let mut now = START;
    now.wall.0 += ms;
    now.boot.0 += ms;
    now
}

#[track_caller]
fn put(gate: &TestGate, path: &str, lease: &Value) -> Response {
    gate.gate().call("PUT", path, &[("fence-token", text(lease, "fence_token"))], b"value")
}

/// Time passes, one second at a time. The ledger has handled each second: the answer to a change comes after the work
/// that was due.
fn pass(gate: &TestGate, seconds: u64) {
    for _ in 0..seconds {
        gate.clock.advance(1_000);
        gate.api().post("/v1/objects/anything/revoke", &json!({ "reason": "look" })).expect(200);
    }
}

#[test]
fn after_a_crash_nothing_is_written_by_other_routes_before_the_bound_has_passed() {
    let store = Store::start();
    let gate = TestGate::with(&routed(&store, "a"));
    let lease = acquire(&mut gate.api(), "users", "me", 3_600_000);
    assert_eq!(put(&gate, "/a/users/1", &lease).status, 200);
    // With unchanged routes the holder goes on at once.
    let gate = TestGate::on(&routed(&store, "a"), gate.crash(), later(1_000));
    assert_eq!(put(&gate, "/a/users/2", &lease).status, 200);
    let gate = TestGate::on(&routed(&store, "b"), gate.crash(), later(2_000));
    let refusal = put(&gate, "/b/users/3", &lease).refusal(503, "FENCE_DRAINING");
    assert!(text(&refusal, "detail").contains("route has changed"), "{refusal}");
    assert_eq!(gate.gate().call("GET", "/b/users/1", &[], b"").status, 200, "reads pass");
    // Another crash before the bound: the third run knows only what the second knew.
    let gate = TestGate::on(&routed(&store, "b"), gate.crash(), later(3_000));
    put(&gate, "/b/users/3", &lease).refusal(503, "FENCE_DRAINING");
    gate.clock.advance(BOUND - 1);
    put(&gate, "/b/users/3", &lease).refusal(503, "FENCE_DRAINING");
    gate.clock.advance(1);
    assert_eq!(put(&gate, "/b/users/3", &lease).status, 200);
    // From then on these routes count.
    pass(&gate, 2);
    let gate = TestGate::on(&routed(&store, "b"), gate.crash(), later(100_000));
    assert_eq!(put(&gate, "/b/users/4", &lease).status, 200);
    let written = store.story();
    assert_eq!(written, ["PUT /a/users/1", "PUT /a/users/2", "GET /b/users/1", "PUT /b/users/3", "PUT /b/users/4"]);
}

#[test]
fn a_clean_stop_lets_other_routes_write_at_once() {
    let store = Store::start();
    let gate = TestGate::with(&routed(&store, "a"));
    let lease = acquire(&mut gate.api(), "users", "me", 3_600_000);
    assert_eq!(put(&gate, "/a/users/1", &lease).status, 200);
    let gate = TestGate::on(&routed(&store, "b"), gate.stop(), later(1_000));
    assert_eq!(put(&gate, "/b/users/2", &lease).status, 200);
}

#[test]
fn a_reload_is_known_to_the_next_run() {
    let store = Store::start();
    let gate = TestGate::with(&routed(&store, "a"));
    let lease = acquire(&mut gate.api(), "users", "me", 3_600_000);
    gate.reload(&routed(&store, "b"));
    assert_eq!(put(&gate, "/b/users/1", &lease).status, 200);
    // A crash right after it: writes of both may land.
    let table: Arc<MemoryTable> = Arc::new(gate.table.after_a_crash());
    let after = TestGate::on(&routed(&store, "b"), table, later(1_000));
    put(&after, "/b/users/2", &lease).refusal(503, "FENCE_DRAINING");
    // Once the ledger has seen that no write uses the old routes any more, only the new ones count.
    pass(&gate, 2);
    let after = TestGate::on(&routed(&store, "b"), gate.crash(), later(10_000));
    assert_eq!(put(&after, "/b/users/2", &lease).status, 200);
}

#[test]
fn the_bound_is_the_one_that_the_writes_were_sent_under() {
    let store = Store::start();
    let gate = TestGate::with(&routed(&store, "a"));
    acquire(&mut gate.api(), "users", "me", 1_000);
    let mut shorter = routed(&store, "a");
    shorter.store.apply_bound_ms = 0;
    let gate = TestGate::on(&shorter, gate.crash(), later(5_000));
    gate.clock.advance(BOUND - 1);
    let mut api = gate.api();
    let mut body = wanted("users", "other", 60_000);
    body["request_id"] = "r1".into();
    let sent = body.to_string();
    api.send("POST", "/v1/leases", &[("content-type", "application/json")], sent.as_bytes()).unwrap();
    until("it waits", || gate.shows("fencegate_advances_draining 1\n"));
    gate.clock.advance(1);
    let lease = api.receive().unwrap().expect(201);
    assert_eq!(lease["drain"]["waited_ms"], 1);
    // The same request, sent again, also after another restart, gets the same answer.
    let gate = TestGate::on(&shorter, gate.stop(), later(5_000 + BOUND));
    assert_eq!(gate.api().post("/v1/leases", &body).expect(201), lease);
}

#[test]
fn a_drain_that_a_crash_cut_short_ends_by_itself_once_its_object_is_read() {
    let bench = Bench::with(|settings| settings.store.apply_bound_ms = BOUND);
    bench.put("/users/1", &[("fence-token", bench.token()), ("x-store", "reset")]).unknown();
    bench.gate.clock.advance(1_000);
    let mut api = bench.gate.api();
    let mut body = wanted("users", "a", 60_000);
    body["takeover"] = true.into();
    let body = body.to_string();
    api.send("POST", "/v1/leases", &[("content-type", "application/json")], body.as_bytes()).unwrap();
    let mut settings = settings();
    settings.store.apply_bound_ms = BOUND;
    until("it drains", || bench.gate.shows("fencegate_advances_draining 1\n"));
    let gate = TestGate::on(&settings, Arc::new(bench.gate.table.after_a_crash()), later(1_000));
    let state = || text(&gate.api().get("/v1/objects/users").expect(200), "state").to_owned();
    assert_eq!(state(), "draining");
    gate.clock.advance(BOUND - 1);
    assert_eq!(state(), "draining");
    gate.clock.advance(1);
    until("it is free", || state() == "free");
}

#[test]
fn what_is_unknown_of_a_route_that_does_not_look_counts_too() {
    let store = Store::start();
    for (mode, wish, is_clean) in [
        (Mode::Off, "reset", false),
        (Mode::Audit, "reset", false),
        (Mode::Off, "200", true),
        (Mode::Audit, "200", true),
    ] {
        let mut settings = routed(&store, "a");
        settings.route[0].mode = mode;
        let gate = TestGate::with(&settings);
        gate.gate().call("PUT", "/a/users/1", &[("x-store", wish)], b"value");
        assert_eq!(gate.try_stop().is_ok(), is_clean, "{mode:?} {wish}");
    }
}

#[test]
fn a_restore_keeps_the_longest_bound_of_what_was_there() {
    let site = Site::with_table();
    let serve = |apply_bound_ms: &str| {
        let mut command = Command::new(binary());
        command.env("FENCEGATE__STORE__APPLY_BOUND_MS", apply_bound_ms);
        site.serve_with(command)
    };
    serve("1000").stop();
    let folder = tempfile::tempdir().unwrap();
    let backup = folder.path().join("backup");
    let backup = backup.to_str().unwrap();
    let made = site.run(&["table", "backup", "--to", backup]);
    assert!(made.status.success(), "{made:?}");
    serve("60000").kill();
    let restored = site.run(&["table", "restore", "--from", backup, "--replace"]);
    assert!(restored.status.success(), "{restored:?}");
    let table = RocksTable::open_read_only(&site.data().join("table")).unwrap();
    let fingerprint = open::read_meta(&table).unwrap().unwrap().fingerprint;
    assert_eq!((fingerprint.bound_ms, fingerprint.routes), (60_000, [0; 16]));
}
