//! SIGHUP: new settings without a restart, or the old ones and a message.

use fencegate::config::{Mode, RouteSettings};
use rustix::process::Signal;

use super::support::{
    gate::{TestGate, acquire, text},
    process::{Gate, Site},
    store::Store,
    until,
};

/// A gate before a store, with a route for `/a/...`.
fn start(store: &Store) -> (Site, Gate) {
    let site = Site::with_table();
    site.configure(&config(store, "enforce"));
    let gate = site.serve();
    (site, gate)
}

fn config(store: &Store, mode: &str) -> String {
    format!(
        "[store]\nurl = '{}'\n[[route]]\nname = 'r'\nmatch = '/a/{{object}}/{{rest...}}'\nobject = '{{object}}'\nmode = '{mode}'\n",
        store.url()
    )
}

fn reload(gate: &Gate, shows: &str) {
    gate.signal(Signal::HUP);
    until(shows, || String::from_utf8(gate.ops().get("/metrics").body).unwrap().contains(shows));
}

#[test]
fn new_settings_hold_from_the_next_request_on_also_on_a_connection_that_is_open() {
    let store = Store::start();
    let (site, gate) = start(&store);
    let mut conn = gate.gate();
    conn.call("PUT", "/a/users/1", &[], b"x").refusal(428, "WRITE_UNFENCED");
    conn.call("PUT", "/b/users/1", &[], b"x").refusal(422, "OBJECT_UNMAPPED");
    site.configure(&config(&store, "audit").replace("/a/", "/b/"));
    reload(&gate, "fencegate_reloads_total{result=\"applied\"} 1\n");
    let answer = conn.call("PUT", "/b/users/1", &[], b"x");
    assert_eq!((answer.status, answer.header("fence-would")), (200, Some("WRITE_UNFENCED")));
    conn.call("PUT", "/a/users/1", &[], b"x").refusal(422, "OBJECT_UNMAPPED");
    assert_eq!(store.story(), ["PUT /b/users/1"]);
}

#[test]
fn another_store_takes_over() {
    let (one, two) = (Store::start(), Store::start());
    let (site, gate) = start(&one);
    let lease = acquire(&mut gate.api(), "users", "me", 60_000);
    let token = text(&lease, "fence_token");
    let mut conn = gate.gate();
    assert_eq!(conn.call("PUT", "/a/users/1", &[("fence-token", token)], b"x").status, 200);
    site.configure(&config(&two, "enforce"));
    reload(&gate, "fencegate_reloads_total{result=\"applied\"} 1\n");
    assert_eq!(conn.call("PUT", "/a/users/2", &[("fence-token", token)], b"x").status, 200);
    assert_eq!((one.story(), two.story()), (vec!["PUT /a/users/1".to_owned()], vec!["PUT /a/users/2".to_owned()]));
}

#[test]
fn faulty_settings_are_refused_whole_and_the_old_ones_stay() {
    let store = Store::start();
    let (site, gate) = start(&store);
    let mut conn = gate.gate();
    for (round, bad) in
        ["[nonsense]\n", "[[route]]\nmatch = 'x'\n", "[store]\nurl = 'ftp://x'\n", "not TOML"].iter().enumerate()
    {
        site.configure(bad);
        reload(&gate, &format!("fencegate_reloads_total{{result=\"refused\"}} {}\n", round + 1));
        assert!(String::from_utf8(gate.ops().get("/metrics").body).unwrap().contains("fencegate_reload_failed 1\n"));
        conn.call("PUT", "/a/users/1", &[], b"x").refusal(428, "WRITE_UNFENCED");
    }
    let log = site.log();
    assert!(log.contains("route[0].match") && log.contains("store.url") && log.contains("the old ones stay"), "{log}");
    site.configure(&config(&store, "off"));
    reload(&gate, "fencegate_reload_failed 0\n");
    assert_eq!(conn.call("PUT", "/a/users/1", &[], b"x").status, 200);
}

#[test]
fn what_takes_a_restart_is_named() {
    let store = Store::start();
    let (site, gate) = start(&store);
    site.configure(&format!("{}[lease]\nttl_ms_default = 5000\n[receipts]\nkeep = 1\n", config(&store, "enforce")));
    reload(&gate, "fencegate_reloads_total{result=\"applied\"} 1\n");
    until("both are named", || {
        let log = site.log();
        log.contains("\"key\":\"lease\"") && log.contains("\"key\":\"receipts\"") && !log.contains("\"key\":\"table\"")
    });
}

#[test]
fn a_route_that_has_changed_waits_for_writes_that_went_by_the_old_one() {
    let store = Store::start();
    let (site, gate) = start(&store);
    let lease = acquire(&mut gate.api(), "users", "me", 60_000);
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let wish = format!("until:{}", go.display());
    let mut old = gate.gate();
    old.send("PUT", "/a/users/1", &[("fence-token", text(&lease, "fence_token")), ("x-store", &wish)], b"x").unwrap();
    until("the store has it", || store.story().len() == 1);
    // The same path belongs to another object now.
    let changed = config(&store, "enforce").replace("object = '{object}'", "object = 'new-{object}'");
    site.configure(&changed);
    reload(&gate, "fencegate_reloads_total{result=\"applied\"} 1\n");
    let mut api = gate.api();
    let body = super::support::gate::wanted("new-users", "other", 60_000).to_string();
    api.send("POST", "/v1/leases", &[("content-type", "application/json")], body.as_bytes()).unwrap();
    let draining = "fencegate_advances_draining 1\n";
    until(draining, || String::from_utf8(gate.ops().get("/metrics").body).unwrap().contains(draining));
    gate.gate().call("PUT", "/a/users/2", &[], b"x").refusal(503, "FENCE_DRAINING");
    std::fs::write(go, "").unwrap();
    assert_eq!(old.receive().unwrap().status, 200);
    let lease = api.receive().unwrap().expect(201);
    let token = text(&lease, "fence_token");
    assert_eq!(gate.gate().call("PUT", "/a/users/2", &[("fence-token", token)], b"x").status, 200);
    // A reload that leaves a route unchanged delays no write.
    reload(&gate, "fencegate_reloads_total{result=\"applied\"} 2\n");
    assert_eq!(gate.gate().call("PUT", "/a/users/3", &[("fence-token", token)], b"x").status, 200);
}

#[test]
fn a_body_that_streams_by_a_route_that_changes_is_broken_off() {
    let store = Store::start();
    let (site, gate) = start(&store);
    let lease = acquire(&mut gate.api(), "users", "me", 60_000);
    let mut old = gate.gate();
    let head = format!(
        "PUT /a/users/1 HTTP/1.1\r\nhost: x\r\nfence-token: {}\r\ncontent-length: 200000\r\n\r\n",
        text(&lease, "fence_token")
    );
    old.send_raw(&[head.as_bytes(), &[b'x'; 100_000]].concat()).unwrap();
    until("the store has part of it", || store.saw("body") == 1);
    site.configure(&config(&store, "enforce").replace("object = '{object}'", "object = 'new-{object}'"));
    reload(&gate, "fencegate_reloads_total{result=\"applied\"} 1\n");
    old.receive().unwrap().unknown();
    until("the store was cut off", || store.saw("cut") == 1);
    assert_eq!(store.saw("applied"), 0);
}

/// A write by the first settings is on its way when the gate reads the second ones: no lease is granted before the
/// write has settled.
fn waits(store: &Store, before: &str, after: &str, write: &str) {
    let site = Site::with_table();
    site.configure(before);
    let gate = site.serve();
    let lease = acquire(&mut gate.api(), "data", "me", 60_000);
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let wish = format!("until:{}", go.display());
    let mut old = gate.gate();
    let seen = store.story().len();
    old.send("PUT", write, &[("fence-token", text(&lease, "fence_token")), ("x-store", &wish)], b"x").unwrap();
    until("the store has it", || store.story().len() == seen + 1);
    site.configure(after);
    reload(&gate, "fencegate_reloads_total{result=\"applied\"} 1\n");
    let mut api = gate.api();
    let body = super::support::gate::wanted("audit", "other", 60_000).to_string();
    api.send("POST", "/v1/leases", &[("content-type", "application/json")], body.as_bytes()).unwrap();
    let draining = "fencegate_advances_draining 1\n";
    until(draining, || String::from_utf8(gate.ops().get("/metrics").body).unwrap().contains(draining));
    let token = [("fence-token", text(&lease, "fence_token"))];
    gate.gate().call("PUT", write, &token, b"x").refusal(503, "FENCE_DRAINING");
    std::fs::write(go, "").unwrap();
    assert_eq!(old.receive().unwrap().status, 200);
    api.receive().unwrap().expect(201);
}

#[test]
fn a_route_waits_too_when_one_that_takes_some_of_its_paths_comes_or_goes() {
    let store = Store::start();
    let url = format!("[store]\nurl = '{}'\n", store.url());
    let any = "[[route]]\nname = 'any'\nmatch = '/{object}/{rest...}'\nobject = '{object}'\n";
    let audit = "[[route]]\nname = 'audit'\nmatch = '/data/audit/{rest...}'\nobject = 'audit'\n";
    let apart = "[[route]]\nname = 'apart'\nmatch = '/apart'\nobject = 'apart'\n";
    let off = format!("{audit}mode = 'off'\n");
    waits(&store, &format!("{url}{any}"), &format!("{url}{any}{audit}"), "/data/audit/x");
    waits(&store, &format!("{url}{any}{off}"), &format!("{url}{any}"), "/data/audit/x");
    // A route without any of these paths is not affected.
    let site = Site::with_table();
    let data = "[[route]]\nname = 'data'\nmatch = '/data/{rest...}'\nobject = 'data'\n";
    site.configure(&format!("{url}{data}"));
    let gate = site.serve();
    let lease = acquire(&mut gate.api(), "data", "me", 60_000);
    let mut slow = gate.gate();
    let token = text(&lease, "fence_token");
    slow.send("PUT", "/data/1", &[("fence-token", token), ("x-store", "hang")], b"x").unwrap();
    until("the store has it", || store.story().last().is_some_and(|last| last == "PUT /data/1"));
    site.configure(&format!("{url}{data}{apart}"));
    reload(&gate, "fencegate_reloads_total{result=\"applied\"} 1\n");
    assert_eq!(gate.gate().call("PUT", "/data/2", &[("fence-token", token)], b"x").status, 200);
}

#[test]
fn a_client_that_takes_its_time_does_not_hold_a_reload_up() {
    let store = Store::start();
    let (site, gate) = start(&store);
    let lease = acquire(&mut gate.api(), "users", "me", 60_000);
    let mut slow = gate.gate();
    let head = format!(
        "PUT /a/users/1 HTTP/1.1\r\nhost: x\r\nfence-token: {}\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n",
        text(&lease, "fence_token")
    );
    slow.send_raw(head.as_bytes()).unwrap();
    assert_eq!(slow.read_head().unwrap().0, 100, "its body is waited for");
    site.configure(&config(&store, "enforce").replace("object = '{object}'", "object = 'new-{object}'"));
    reload(&gate, "fencegate_reloads_total{result=\"applied\"} 1\n");
    slow.receive().unwrap().refusal(503, "FENCE_DRAINING");
    acquire(&mut gate.api(), "new-users", "other", 60_000);
    assert_eq!(store.saw("begun"), 0);
}

#[test]
fn a_route_that_has_changed_waits_for_the_bound_from_when_the_old_connection_was_closed() {
    let (old_store, new_store) = (Store::start(), Store::start());
    let mut settings = super::support::gate::settings();
    settings.store.url = old_store.url();
    settings.store.delivery_bound_ms = 10_000;
    settings.store.apply_bound_ms = 5_000;
    for timeout in [
        &mut settings.store.response_timeout_ms,
        &mut settings.gate.head_timeout_ms,
        &mut settings.gate.idle_timeout_ms,
    ] {
        *timeout = 86_400_000;
    }
    settings.route = vec![RouteSettings { mode: Mode::Off, ..RouteSettings::default() }];
    let gate = TestGate::with(&settings);
    let mut old = gate.gate();
    old.send("PUT", "/users/1", &[("x-store", "hang")], b"x").unwrap();
    until("the store has it", || old_store.story().len() == 1);
    // When its connection breaks, the write began longer ago than the bound.
    gate.clock.advance(30_000);
    drop(old_store);
    old.receive().unwrap().unknown();
    settings.store.url = new_store.url();
    settings.route = vec![RouteSettings::default()];
    gate.reload(&settings);
    gate.clock.advance(14_999);
    gate.gate().call("PUT", "/users/1", &[], b"x").refusal(503, "FENCE_DRAINING");
    gate.clock.advance(1);
    until("the bound has passed", || {
        let answer = gate.gate().call("PUT", "/users/1", &[], b"x");
        answer.json()["code"] == "WRITE_UNFENCED"
    });
    assert_eq!(new_store.saw("begun"), 0);
}

#[test]
fn an_operator_need_not_wait_for_a_route_that_has_changed() {
    let store = Store::start();
    let (site, gate) = start(&store);
    let lease = acquire(&mut gate.api(), "users", "me", 60_000);
    let mut old = gate.gate();
    old.send("PUT", "/a/users/1", &[("fence-token", text(&lease, "fence_token")), ("x-store", "hang")], b"x").unwrap();
    until("the store has it", || store.story().len() == 1);
    site.configure(&config(&store, "enforce").replace("object = '{object}'", "object = 'new-{object}'"));
    reload(&gate, "fencegate_reloads_total{result=\"applied\"} 1\n");
    let force = serde_json::json!({ "reason": "x", "force": true });
    let revoked = gate.api().post("/v1/objects/new-users/revoke", &force).expect(200);
    assert_eq!(text(&revoked, "state"), "free");
    let lease = acquire(&mut gate.api(), "new-users", "other", 60_000);
    assert_eq!(lease["tainted"], true, "{lease}");
}
