//! A disk that hangs: writes and lease calls that need it are refused in time, and reads pass.

use std::{fs, os::unix::fs::FileExt, path::PathBuf, process::Command, sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use fencegate::{
    fence::{ObjectId, elected::LeaseObservation, election::LeaseName, outside::Update},
    route::RouteFingerprint,
    table::ledger::LedgerError,
};
use rustix::process::Signal;
use serde_json::json;

use super::support::{
    bench::{Bench, TTL},
    gate::{acquire, renewal, text, wanted},
    http::{Conn, Response},
    power::shim,
    process::{Site, binary},
    store::{Hung, Store},
    until,
};

/// Far shorter than a test may take, and far longer than a sync of a test's disk takes.
const STALL_MS: u64 = 400;

fn bench() -> Bench {
    bench_that_waits(STALL_MS)
}

fn bench_that_waits(stall_ms: u64) -> Bench {
    Bench::with(|settings| {
        settings.table.stall_timeout_ms = stall_ms;
        settings.store.response_timeout_ms = 86_400_000;
    })
}

/// Makes the disk hang in the middle of a change.
fn stall(bench: &Bench) -> Conn {
    bench.gate.table.hold_syncs();
    let mut conn = bench.gate.api();
    let body = wanted("stalled", "a", 1_000).to_string();
    conn.send("POST", "/v1/leases", &[("content-type", "application/json")], body.as_bytes()).unwrap();
    bench.gate.table.wait_for_held_sync();
    conn
}

/// Long enough to fill the ledger's queue before the stall counts.
const FILL_MS: u64 = 2_000;

/// Fills the queue of a ledger whose disk hangs, with calls that change nothing.
fn fill_queue(bench: &Bench) {
    let ledger = &bench.gate.running().gate.ledger;
    let lease = Arc::new(LeaseName { namespace: "none".to_owned(), name: "none".to_owned() });
    let object = ObjectId::new("none").unwrap();
    let gone = || {
        let observation = LeaseObservation::Gone { lease: Arc::clone(&lease) };
        Update::Lease { observation, begins: false }
    };
    let ask = || ledger.follow_next(object.clone(), gone()).err();
    let full = std::iter::repeat_with(ask).flatten().next();
    assert_eq!(full, Some(LedgerError::Overloaded), "it is full before the stall shows");
}

/// The number of writes that the store has applied.
fn written(store: &Store) -> usize {
    store.applied().iter().filter(|request| request["method"] == "PUT").count()
}

#[track_caller]
fn may_be_done_yet(answer: &Response) {
    let body = answer.json();
    assert_eq!(
        (answer.status, &body["code"], &body["side_effect"]),
        (503, &json!("TABLE_UNAVAILABLE"), &json!("maybe"))
    );
}

fn wait_until_it_shows(bench: &Bench) {
    until("the stall is longer than is waited for", || {
        let metrics = String::from_utf8(bench.gate.ops().get("/metrics").body).unwrap();
        let age = metrics.lines().find_map(|line| line.strip_prefix("fencegate_ledger_commit_oldest_seconds "));
        age.expect("the metric").parse::<f64>().unwrap() * 1_000.0 >= STALL_MS as f64
    });
}

#[test]
fn a_write_that_needs_the_ledger_is_refused_in_time_and_reads_pass() {
    let bench = bench();
    let mut stalled = stall(&bench);
    // Its lease is over, and this end must be durable before the answer. Its key must be durable before the write is
    // sent.
    let keyed = [("fence-token", bench.token()), ("idempotency-key", "k")];
    let first = bench.put("/users/1", &keyed);
    first.refusal(503, "TABLE_UNAVAILABLE");
    bench.gate.clock.advance(TTL);
    for _ in 0..3 {
        let refused = bench.put("/users/1", &[("fence-token", bench.token())]);
        refused.refusal(503, "TABLE_UNAVAILABLE");
        assert_eq!(bench.call("GET", "/users/1", &[]).status, 200, "reads pass");
    }
    assert_eq!(written(&bench.store), 0);
    // The call in the commit that hangs may still be carried out.
    may_be_done_yet(&stalled.receive().unwrap());
    bench.gate.table.release_syncs();
    until("it goes on", || bench.put("/users/1", &[("fence-token", bench.token())]).status == 412);
    assert!(bench.gate.shows("fencegate_table_latched 0"));
    let next = acquire(&mut bench.gate.api(), "users", "a", TTL);
    // The key was released, since nothing of its write was sent.
    let keyed = [("fence-token", text(&next, "fence_token")), ("idempotency-key", "k")];
    bench.put("/users/1", &keyed).applied();
    assert_eq!(written(&bench.store), 1);
}

#[test]
fn calls_that_come_while_the_disk_stands_still_change_nothing_and_say_so() {
    let bench = bench();
    let mut stalled = stall(&bench);
    wait_until_it_shows(&bench);
    let mut api = bench.gate.api();
    let (renew, body) = renewal(&bench.lease, 60_000);
    let lease = format!("/v1/leases/{}", text(&bench.lease, "lease_id"));
    let answers = [
        api.post("/v1/leases", &wanted("other", "b", 1_000)),
        api.post("/v1/leases", &json!({ "object_id": "x", "holder_id": "b", "ttl_ms": 1_000, "wait_ms": 300_000 })),
        api.post(&renew, &body),
        api.call("DELETE", &lease, &[("fence-token", bench.token())], b""),
        api.post("/v1/objects/users/revoke", &json!({ "reason": "a test" })),
    ];
    for answer in &answers {
        answer.refusal(503, "TABLE_UNAVAILABLE");
    }
    may_be_done_yet(&stalled.receive().unwrap());
    bench.gate.table.release_syncs();
    until("it goes on", || bench.gate.shows("fencegate_ledger_commit_oldest_seconds 0\n"));
    bench.put("/users/1", &[("fence-token", bench.token())]).applied();
    assert_eq!(acquire(&mut bench.gate.api(), "other", "b", 1_000)["lease_seq"], 1, "it was never granted before");
}

#[test]
fn an_answer_that_the_store_has_given_is_passed_on_and_kept_once_the_disk_goes_on() {
    let bench = bench();
    let headers = [("fence-token", bench.token()), ("idempotency-key", "k")];
    let first = Hung::send(&bench.store, bench.gate.gate(), "/users/1", &headers);
    let mut stalled = stall(&bench);
    wait_until_it_shows(&bench);
    let answer = first.let_go();
    answer.applied();
    may_be_done_yet(&stalled.receive().unwrap());
    bench.gate.table.release_syncs();
    until("it goes on", || bench.gate.shows("fencegate_ledger_commit_oldest_seconds 0\n"));
    let again = bench.put("/users/1", &headers);
    assert_eq!((again.status, again.header("idempotency-replayed")), (answer.status, Some("true")), "{again:?}");
    assert_eq!(written(&bench.store), 1);
}

/// Sends a keyed write, without waiting for its answer.
fn send_keyed(bench: &Bench, key: &str) -> Conn {
    let mut conn = bench.gate.gate();
    let headers = [("fence-token", bench.token()), ("idempotency-key", key)];
    conn.send("PUT", "/users/1", &headers, b"value").unwrap();
    conn
}

#[test]
fn a_keyed_write_that_was_never_begun_leaves_nothing_to_take_back() {
    let bench = bench_that_waits(FILL_MS);
    let mut stalled = stall(&bench);
    fill_queue(&bench);
    until("the stall shows", || bench.gate.running().gate.ledger.pulse().age().as_millis() >= u128::from(FILL_MS));
    for _ in 0..3 {
        let refused = send_keyed(&bench, "k").receive().unwrap();
        refused.refusal(503, "TABLE_UNAVAILABLE");
    }
    may_be_done_yet(&stalled.receive().unwrap());
    bench.gate.table.release_syncs();
    until("it goes on", || send_keyed(&bench, "k").receive().unwrap().status == 200);
    assert_eq!(written(&bench.store), 1);
}

#[test]
fn a_twin_does_not_wait_for_a_key_that_cannot_be_given_back() {
    let bench = bench_that_waits(FILL_MS);
    let mut stalled = stall(&bench);
    let mut first = send_keyed(&bench, "k");
    // Its twin waits for it, so the first is in the ledger's queue.
    until("it is on its way", || !bench.gate.running().gate.records.stripes.is_idle());
    let mut twin = send_keyed(&bench, "k");
    until("its twin waits", || bench.gate.shows("fencegate_idempotency_waiting 1"));
    fill_queue(&bench);
    first.receive().unwrap().refusal(503, "TABLE_UNAVAILABLE");
    twin.receive().unwrap().refusal(503, "TABLE_UNAVAILABLE");
    let refused = send_keyed(&bench, "k").receive().unwrap();
    refused.refusal(503, "TABLE_UNAVAILABLE");
    may_be_done_yet(&stalled.receive().unwrap());
    bench.gate.table.release_syncs();
    until("it goes on", || send_keyed(&bench, "k").receive().unwrap().status == 200);
    assert_eq!(written(&bench.store), 1);
}

#[test]
fn a_twin_of_a_write_that_the_store_has_is_not_answered_that_nothing_was_sent() {
    let bench = bench();
    let headers = [("fence-token", bench.token()), ("idempotency-key", "k")];
    let first = Hung::send(&bench.store, bench.gate.gate(), "/users/1", &headers);
    let mut stalled = stall(&bench);
    may_be_done_yet(&send_keyed(&bench, "k").receive().unwrap());
    may_be_done_yet(&stalled.receive().unwrap());
    bench.gate.table.release_syncs();
    first.let_go().applied();
    let again = send_keyed(&bench, "k").receive().unwrap();
    assert_eq!((again.status, again.header("idempotency-replayed")), (200, Some("true")), "{again:?}");
    assert_eq!(written(&bench.store), 1);
}

#[test]
fn a_drain_before_a_stop_does_not_wait_for_ever() {
    let bench = Bench::with(|settings| {
        settings.table.stall_timeout_ms = STALL_MS;
        settings.shutdown.deadline_ms = STALL_MS;
    });
    let mut stalled = stall(&bench);
    bench.gate.ops().call("POST", "/drain", &[], b"").refusal(503, "TABLE_UNAVAILABLE");
    may_be_done_yet(&stalled.receive().unwrap());
    bench.gate.table.release_syncs();
    until("it is drained", || bench.gate.ops().call("POST", "/drain", &[], b"").status == 200);
}

#[test]
fn a_drain_that_the_ledger_has_no_room_for_is_not_said_to_be_done() {
    let bench = bench_that_waits(FILL_MS);
    let mut stalled = stall(&bench);
    fill_queue(&bench);
    bench.gate.ops().call("POST", "/drain", &[], b"").refusal(503, "TABLE_UNAVAILABLE");
    may_be_done_yet(&stalled.receive().unwrap());
    bench.gate.table.release_syncs();
    until("it is drained", || bench.gate.ops().call("POST", "/drain", &[], b"").status == 200);
}

#[test]
fn a_reload_that_is_past_the_point_of_return_does_not_wait_for_ever() {
    let bench = bench();
    let mut stalled = stall(&bench);
    let ledger = bench.gate.running().gate.ledger.clone();
    let adopted = bench.gate.runtime.block_on(async move {
        tokio::time::timeout(Duration::from_secs(60), ledger.adopt(RouteFingerprint::default())).await
    });
    assert_eq!(adopted.expect("an answer to adopt"), Err(LedgerError::Stalled));
    may_be_done_yet(&stalled.receive().unwrap());
}

/// A write with a token that could be valid, for an object that is not in memory.
fn send_made_up(bench: &Bench, n: usize) -> Conn {
    let object = format!("o{n:03}");
    let (_, secret) = bench.token().rsplit_once('.').unwrap();
    let token = format!("fg1.1.{}.{secret}", BASE64_URL_SAFE_NO_PAD.encode(&object));
    let mut conn = bench.gate.gate();
    conn.send("PUT", &format!("/{object}/1"), &[("fence-token", &token)], b"value").unwrap();
    conn
}

#[test]
fn reads_that_hang_take_no_more_than_their_share_of_threads() {
    let store = Store::start();
    let bench = Bench::with(|settings| {
        settings.table.stall_timeout_ms = STALL_MS;
        // The store has a name, and a thread has to look it up.
        settings.store.url = format!("http://localhost:{}", store.port);
    });
    bench.gate.table.hold_reads();
    for turn in 0..3 {
        let mut writers: Vec<Conn> = (0..200).map(|n| send_made_up(&bench, turn * 200 + n)).collect();
        for writer in &mut writers {
            writer.receive().unwrap().refusal(503, "TABLE_UNAVAILABLE");
        }
        assert_eq!(bench.gate.table.held_reads(), 64, "turn {turn}");
    }
    assert_eq!(bench.call("GET", "/users/1", &[]).status, 200, "reads pass");
    bench.put("/users/1", &[("fence-token", bench.token())]).applied();
    bench.gate.table.release_reads();
    until("it goes on", || send_made_up(&bench, 999).receive().unwrap().status != 503);
}

#[test]
fn outside_numbers_do_not_wait_for_ever_either() {
    let world = crate::external::World::with_settings(|settings| settings.table.stall_timeout_ms = STALL_MS);
    world.put_with("5", &[]).applied();
    let table = &world.gate.table;
    table.hold_syncs();
    let refused = world.put_with("6", &[]);
    refused.refusal(503, "TABLE_UNAVAILABLE");
    table.release_syncs();
    until("it goes on", || world.put_with("6", &[]).status == 200);
    assert_eq!(world.applied(), [5, 6]);
}

/// The shim's switches, by their place in the shared file: see `struct control` in chaos/shim.c.
struct Control(PathBuf);

impl Control {
    const HOLD_SYNC: u64 = 4 * 8;

    fn set(&self, place: u64, value: i64) {
        let file = fs::OpenOptions::new().write(true).open(&self.0).unwrap();
        file.write_all_at(&value.to_ne_bytes(), place).unwrap();
    }
}

#[test]
fn a_stop_does_not_wait_for_a_reload_that_waits_for_the_disk() {
    let site = Site::with_table();
    let control = Control(site.folder.path().join("control"));
    fs::write(&control.0, [0; 48]).unwrap();
    let mut command = Command::new(binary());
    command.env("LD_PRELOAD", shim()).env("CHAOS_CONTROL", &control.0);
    command.env("FENCEGATE__TABLE__STALL_TIMEOUT_MS", "600000").env("FENCEGATE__SHUTDOWN__DEADLINE_MS", "1000");
    let gate = site.serve_with(command);
    control.set(Control::HOLD_SYNC, 1);
    site.configure("[[route]]\nname = 'r'\nmatch = '/a/{object}/{rest...}'\nobject = '{object}'\n");
    gate.signal(Signal::HUP);
    until("the reload waits for the disk", || {
        let metrics = String::from_utf8(gate.ops().get("/metrics").body).unwrap();
        !metrics.contains("fencegate_ledger_commit_oldest_seconds 0\n")
    });
    gate.stop();
    assert!(site.log().contains("stopping: SIGTERM"), "{}", site.log());
}

#[test]
fn a_real_disk_whose_syncs_hang_costs_no_connection_for_longer_than_is_said() {
    let (site, store) = (Site::with_table(), Store::start());
    site.configure(&format!("[store]\nurl = '{}'\n", store.url()));
    let control = Control(site.folder.path().join("control"));
    fs::write(&control.0, [0; 48]).unwrap();
    let mut command = Command::new(binary());
    command.env("LD_PRELOAD", shim()).env("CHAOS_CONTROL", &control.0);
    command.env("FENCEGATE__TABLE__STALL_TIMEOUT_MS", STALL_MS.to_string());
    command.env("FENCEGATE__GATE__CONNECTIONS_MAX", "16").env("FENCEGATE__GATE__PEER_CONNECTIONS_MAX", "16");
    let gate = site.serve_with(command);
    let lease = acquire(&mut gate.api(), "users", "a", 60_000);
    control.set(Control::HOLD_SYNC, 1);
    let token = text(&lease, "fence_token");
    // Each would hold a connection for as long as the disk hangs.
    for turn in 0..3 {
        let mut writers: Vec<Conn> = (0..12).map(|_| gate.gate()).collect();
        for (n, writer) in writers.iter_mut().enumerate() {
            let key = format!("{turn}-{n}");
            writer.send("PUT", "/users/1", &[("fence-token", token), ("idempotency-key", &key)], b"value").unwrap();
        }
        assert_eq!(gate.gate().get("/users/1").status, 200, "reads pass");
        for writer in &mut writers {
            let refused = writer.receive().unwrap();
            refused.refusal(503, "TABLE_UNAVAILABLE");
        }
    }
    assert_eq!(written(&store), 0);
    // Requests that do not need the ledger go on.
    gate.gate().call("PUT", "/users/1", &[("fence-token", token)], b"value").applied();
    control.set(Control::HOLD_SYNC, 0);
    until("the disk goes on", || {
        let answer =
            gate.gate().call("PUT", "/users/2", &[("fence-token", token), ("idempotency-key", "0-0")], b"value");
        answer.status == 200
    });
    gate.stop();
}
