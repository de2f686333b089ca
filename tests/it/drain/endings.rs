//! How a crash or a stop affects the next run, if writes were on their way.

use std::{process::Command, sync::Arc};

use serde_json::json;

use super::{BOUND, ask, bounded, draining, send, takeover};
use crate::support::{
    bench::Bench,
    gate::{START, TestGate, acquire, settings, text, wanted},
    process::{Gate, Site, binary},
    received,
    store::Store,
    until,
};

#[test]
fn after_a_crash_nothing_is_handed_out_before_the_bound_has_passed() {
    let mut settings = settings();
    bounded(&mut settings);
    let gate = TestGate::with(&settings);
    acquire(&mut gate.api(), "users", "a", 1_000);
    let table = gate.crash();
    let gate = TestGate::on(&settings, table, START);
    gate.clock.advance(1_000);
    let next = ask(&gate, "/v1/leases", &wanted("users", "b", 60_000));
    let other = ask(&gate, "/v1/leases", &wanted("never-seen", "b", 60_000));
    draining(&gate, 2);
    until("the bound has passed", || {
        gate.clock.advance(1_000);
        gate.shows("fencegate_advances_draining 0\n")
    });
    for answer in [received("the answer to the next holder", &next), received("the answer to the other call", &other)] {
        answer.refusal(503, "FENCE_DRAINING");
    }
    assert_eq!(acquire(&mut gate.api(), "users", "b", 60_000)["drain"]["waited_ms"], 0);
    // After a clean stop there is nothing to wait for.
    let gate = TestGate::on(&settings, gate.stop(), START);
    assert_eq!(acquire(&mut gate.api(), "orders", "b", 60_000)["drain"]["waited_ms"], 0);
}

#[test]
fn a_drain_that_a_crash_cut_short_is_taken_up_again() {
    let bench = Bench::with(bounded);
    bench.put("/users/1", &[("fence-token", bench.token()), ("x-store", "reset")]).unknown();
    bench.gate.clock.advance(1_000);
    let _next = ask(&bench.gate, "/v1/leases", &takeover("a"));
    draining(&bench.gate, 1);
    let mut settings = settings();
    bounded(&mut settings);
    let gate = TestGate::on(&settings, Arc::new(bench.gate.table.after_a_crash()), START);
    let object = gate.api().get("/v1/objects/users").expect(200);
    assert_eq!((text(&object, "state"), object["fence"].as_u64()), ("draining", Some(2)));
    gate.api().post("/v1/leases", &wanted("users", "b", 60_000)).refusal(409, "LEASE_HELD");
    let mut patient = wanted("users", "b", 60_000);
    patient["wait_ms"] = json!(2 * BOUND);
    let next = ask(&gate, "/v1/leases", &patient);
    let mut granted = None;
    until("it is granted", || {
        gate.clock.advance(1_000);
        granted = next.try_recv().ok();
        granted.is_some()
    });
    assert_eq!(granted.unwrap().expect(201)["lease_seq"], 3);
}

#[test]
fn a_stop_with_unknown_writes_counts_as_unclean() {
    let store = Store::start();
    let mut settings = settings();
    bounded(&mut settings);
    settings.store.url = store.url();
    for (wish, is_clean) in [("reset", false), ("200", true)] {
        let gate = TestGate::with(&settings);
        let lease = acquire(&mut gate.api(), "users", "a", 60_000);
        let headers = [("fence-token", text(&lease, "fence_token")), ("x-store", wish)];
        gate.gate().call("PUT", "/users/1", &headers, b"value");
        assert_eq!(gate.try_stop().is_ok(), is_clean, "{wish}");
    }
}

/// Stops a gate with SIGTERM before or after the store has answered a request; then starts it again.
fn stop_and_start(method: &str, wish: &str, deadline_ms: &str) -> (Site, Gate) {
    let store = Store::start();
    let site = Site::with_table();
    site.configure(&format!("[store]\nurl = '{}'\napply_bound_ms = 3600000\n", store.url()));
    let serve = || {
        let mut command = Command::new(binary());
        command.env("FENCEGATE__SHUTDOWN__DEADLINE_MS", deadline_ms);
        command.env("FENCEGATE__STORE__APPLY_BOUND_MS", "3600000");
        site.serve_with(command)
    };
    let gate = serve();
    let lease = acquire(&mut gate.api(), "users", "a", 60_000);
    let mut conn = gate.gate();
    let headers = [("fence-token", text(&lease, "fence_token")), ("x-store", wish)];
    conn.send(method, "/users/1", &headers, if method == "PUT" { b"x" } else { b"" }).unwrap();
    until("the store has it", || store.story().len() == 1);
    if wish == "200" {
        assert_eq!(conn.receive().unwrap().status, 200);
    }
    gate.stop();
    let gate = serve();
    (site, gate)
}

const JSON: (&str, &str) = ("content-type", "application/json");

fn shows(gate: &Gate, line: &str) -> bool {
    String::from_utf8(gate.ops().get("/metrics").body).unwrap().contains(line)
}

#[test]
fn a_stop_whose_deadline_passes_over_a_write_counts_as_unclean() {
    let (site, gate) = stop_and_start("PUT", "hang", "200");
    assert!(site.log().contains("the deadline has passed"), "{}", site.log());
    assert!(shows(&gate, "fencegate_table_unclean_start 1\n"));
    // The next run waits for writes that may be left.
    let _next = send(gate.api(), "POST", "/v1/leases", &[JSON], wanted("orders", "b", 60_000).to_string().as_bytes());
    until("it waits", || shows(&gate, "fencegate_advances_draining 1\n"));
    let (_site, gate) = stop_and_start("PUT", "200", "60000");
    assert!(shows(&gate, "fencegate_table_unclean_start 0\n"));
}

#[test]
fn a_stop_whose_deadline_passes_over_a_read_is_clean() {
    let (site, gate) = stop_and_start("GET", "hang", "200");
    assert!(site.log().contains("they are cut off") && site.log().contains("stopped in good order"), "{}", site.log());
    assert!(shows(&gate, "fencegate_table_unclean_start 0\n"));
    acquire(&mut gate.api(), "orders", "b", 60_000);
}
