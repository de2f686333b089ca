//! How often an agent calls the gate: refusals slow it down, and several writes share a call.

use std::thread;

use serde_json::json;

use super::{
    super::support::{
        agent::{Agent, settings},
        gate::acquire,
        until,
        wire::Wire,
    },
    Bench, Okay,
};

/// Its writes go to one gate and its leases come from another, so each write is refused because of its lease.
#[test]
fn a_gate_that_refuses_every_lease_is_not_asked_for_one_after_the_other() {
    let (bench, other) = (Bench::new(), Bench::new());
    let agent = Agent::start(&settings("a", &bench.urls().0, &other.urls().1, "", ""));
    let mut refused = 0;
    for _ in 0..300 {
        let answer = agent.put("/users/1");
        assert_ne!(answer.status, 200);
        if answer.header("fence-error") == Some("NOT_LEADER") {
            let body = answer.refusal(503, "NOT_LEADER");
            assert!(body["detail"].as_str().unwrap().contains("WRITE_FENCE_AHEAD"), "{body}");
            assert!(answer.header("retry-after").is_some());
            refused += 1;
        }
    }
    let fence = other.gate.api().get("/v1/objects/users").expect(200)["fence"].as_u64().unwrap();
    assert!((2..=20).contains(&fence), "{fence} leases for 300 writes");
    assert!(refused > 200, "{refused} of 300 were refused by the agent itself");
}

/// Another holder has `a` for a long time. Each refused MOVE could give `b` back; each PUT could take `b` again.
#[test]
#[allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "how many leases there may be depends on it")]
fn writes_that_are_refused_for_another_object_do_not_give_a_lease_back_each_time() {
    let bench = Bench::new();
    acquire(&mut bench.gate.api(), "a", "other", 60_000);
    let agent = bench.agent("x");
    let to_a = || agent.call("MOVE", "/b/1", &[("destination", "http://127.0.0.1/a/2")]);
    let fence = || bench.gate.api().get("/v1/objects/b").expect(200)["fence"].as_u64().unwrap();
    agent.put("/b/1").expect_ok();
    assert_eq!(to_a().header("fence-leader"), Some("other"));
    // The agent gives nothing back for one refused write. A lease that it gives back is given back soon.
    for _ in 0..20 {
        agent.put("/b/1").expect_ok();
    }
    assert_eq!(fence(), 1, "one refused write gave the lease back");
    let begun = std::time::Instant::now();
    for _ in 0..300 {
        agent.put("/b/1").expect_ok();
        to_a().refusal(503, "NOT_LEADER");
    }
    // 50 ms of refusals at least, then twice as long each time, up to 2.5 s at least.
    let (fence, most) = (fence(), 8 + begun.elapsed().as_secs() / 2);
    assert!((1..=most).contains(&fence), "{fence} leases for 300 writes, {most} at most");
}

#[test]
fn renewals_before_writes_share_a_connection_and_each_other() {
    let bench = Bench::new();
    let wire = Wire::to(bench.gate.api);
    let text = settings("a", &bench.urls().0, &wire.url(), "renew_before_write = true", "");
    let agent = Agent::start(&text.replace("ttl_ms = 1000", "ttl_ms = 60000"));
    agent.put("/users/1").expect_ok();
    let mut stream = bench.gate.api();
    stream.send("GET", "/v1/watch", &[], b"").unwrap();
    stream.until_line("the stream", |line| line.contains("watching"));
    let before = wire.calls();
    let mut conn = agent.conn();
    for _ in 0..50 {
        conn.call("PUT", "/users/1", &[], b"v").expect_ok();
    }
    assert!(wire.calls() - before <= 5, "{} connections for 50 writes", wire.calls() - before);
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let mut conn = agent.conn();
                (0..25).for_each(|_| conn.call("PUT", "/users/1", &[], b"v").expect_ok());
            });
        }
    });
    assert!(wire.calls() - before <= 20, "{} connections for 450 writes", wire.calls() - before);
    acquire(&mut bench.gate.api(), "the-end", "b", 60_000);
    let mut renewed = 0;
    until("the last event", || {
        let line = stream.read_line().unwrap();
        renewed += usize::from(line == "event: renewed");
        line.contains("the-end")
    });
    // Fifty writes came one after the other, each with its own renewal.
    assert!((51..300).contains(&renewed), "{renewed} renewals for 50 writes and 400 that came together");
    assert_eq!(bench.gate.api().get("/v1/receipts").expect(200)["receipts"], json!([]));
}
