//! Writes with one key at the same time: they share one request to the store, and all get its answer.

use std::sync::{Arc, Barrier};

use fencegate::config::{PartialBody, RouteSettings};

use super::{Bench, acquire, is_refused, is_replay, put, text, until};
use crate::support::{bench::TTL, http::Conn, store::Hung};

const LET_GO: &str = "let-go";

/// Sends without waiting for the answer.
fn send(bench: &Bench, token: &str, key: &str, body: &[u8], how: &str) -> Conn {
    let mut conn = bench.gate.gate();
    let headers = [("fence-token", token), ("idempotency-key", key), ("x-store", how)];
    conn.send("PUT", "/users/1", &headers, body).unwrap();
    conn
}

#[test]
fn a_thousand_at_once_and_the_store_sees_one() {
    let bench = Bench::with(|settings| settings.gate.workers = 2);
    let (address, token) = (bench.gate.running().listens, bench.token().to_owned());
    let barrier = Arc::new(Barrier::new(20));
    let crowd: Vec<_> = (0..20)
        .map(|_| {
            let (barrier, token) = (Arc::clone(&barrier), token.clone());
            std::thread::spawn(move || {
                let mut conns: Vec<Conn> = (0..50).map(|_| Conn::open(address).unwrap()).collect();
                barrier.wait();
                let headers = [("fence-token", token.as_str()), ("idempotency-key", "k"), ("x-store", "slow:300")];
                for conn in &mut conns {
                    conn.send("PUT", "/users/1", &headers, b"value").unwrap();
                }
                conns.iter_mut().map(|conn| conn.receive().unwrap()).collect::<Vec<_>>()
            })
        })
        .collect();
    let answers: Vec<_> = crowd.into_iter().flat_map(|each| each.join().unwrap()).collect();
    assert_eq!(answers.len(), 1_000);
    assert!(answers.iter().all(|answer| answer.status == 200 && answer.body == answers[0].body));
    let first = answers.iter().filter(|answer| answer.header("idempotency-replayed").is_none()).count();
    assert_eq!(first, 1, "one ran, the others have its answer");
    assert_eq!((bench.store.saw("begun"), bench.store.applied().len()), (1, 1));
}

#[test]
fn twins_wait_and_other_writes_with_the_key_are_refused() {
    let bench = Bench::new();
    let headers = [("fence-token", bench.token()), ("idempotency-key", "k")];
    let first = Hung::send(&bench.store, bench.gate.gate(), "/users/1", &headers);
    let mut twin = send(&bench, bench.token(), "k", b"value", "200");
    until("it waits", || bench.gate.shows("fencegate_idempotency_waiting 1"));
    is_refused(&put(&bench, bench.token(), "k", b"other", &[]), 422, "IDEMPOTENCY_KEY_REUSED", "none");
    let answer = first.let_go();
    answer.applied();
    is_replay(&twin.receive().unwrap(), &answer);
    assert_eq!(bench.store.saw("begun"), 1);
    assert!(bench.gate.shows(r#"fencegate_idempotency_keys_total{result="shared"} 1"#));
}

#[test]
fn a_twin_under_a_newer_lease_does_not_share() {
    let bench = Bench::with(|settings| settings.store.response_timeout_ms = 86_400_000);
    let headers = [("fence-token", bench.token()), ("idempotency-key", "k")];
    let first = Hung::send(&bench.store, bench.gate.gate(), "/users/1", &headers);
    // The lease changes hands by force, to the same holder: its old write is still on its way.
    bench.gate.api().post("/v1/objects/users/revoke", &serde_json::json!({ "reason": "x", "force": true })).expect(200);
    let second = acquire(&mut bench.gate.api(), "users", "a", TTL);
    let token = text(&second, "fence_token");
    is_refused(&put(&bench, token, "k", b"value", &[]), 409, "IDEMPOTENCY_IN_PROGRESS", "maybe");
    // A resend with the old token waits for the answer, although the token is stale: it made the write.
    let mut resend = send(&bench, bench.token(), "k", b"value", "200");
    until("it waits", || bench.gate.shows("fencegate_idempotency_waiting 1"));
    let answer = first.let_go();
    is_replay(&resend.receive().unwrap(), &answer);
    assert_eq!(bench.store.saw("begun"), 1);
}

#[test]
fn twins_of_a_write_that_is_lost_are_answered_with_unknown() {
    let bench = Bench::new();
    let mut first = send(&bench, bench.token(), "k", b"value", "hang");
    until("the store has it", || bench.store.saw("begun") == 1);
    let mut twin = send(&bench, bench.token(), "k", b"value", "200");
    until("it waits", || bench.gate.shows("fencegate_idempotency_waiting 1"));
    bench.gate.clock.advance(30_000);
    first.receive().unwrap().unknown();
    is_refused(&twin.receive().unwrap(), 409, "IDEMPOTENCY_UNKNOWN", "maybe");
    assert_eq!(bench.store.saw("begun"), 1);
}

#[test]
fn a_twin_takes_over_where_the_first_came_to_nothing() {
    // The first has claimed the key, and the rest of its long body does not come. Its client hangs up, and the store
    // throws the received part away.
    let bench = Bench::with(|settings| {
        settings.route = vec![RouteSettings { partial_body: PartialBody::Discards, ..RouteSettings::default() }];
    });
    let mut first = bench.gate.gate();
    let head = format!(
        "PUT /users/1 HTTP/1.1\r\nhost: x\r\nfence-token: {}\r\nidempotency-key: k\r\ncontent-length: 900000\r\n\r\n",
        bench.token()
    );
    first.send_raw(head.as_bytes()).unwrap();
    until("it is remembered", || bench.gate.shows(r#"fencegate_idempotency_keys_total{result="fresh"} 1"#));
    let mut twin = send(&bench, bench.token(), "k", b"value", "200");
    until("it waits", || bench.gate.shows("fencegate_idempotency_waiting 1"));
    drop(first);
    twin.receive().unwrap().applied();
    assert_eq!(bench.store.applied().len(), 1);
}

#[test]
fn twins_of_a_write_that_finds_no_store_share_that() {
    // No server answers there, so each attempt takes its time.
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let fill: Vec<_> = (0..600)
        .map_while(|_| {
            let address = silent.local_addr().unwrap();
            std::net::TcpStream::connect_timeout(&address, std::time::Duration::from_millis(50)).ok()
        })
        .collect();
    let bench = Bench::with(|settings| {
        settings.store.url = format!("http://{}", silent.local_addr().unwrap());
        settings.store.connect_timeout_ms = 500;
    });
    let mut conns: Vec<Conn> = (0..50).map(|_| send(&bench, bench.token(), "k", b"value", "200")).collect();
    for conn in &mut conns {
        conn.receive().unwrap().refusal(502, "STORE_UNREACHABLE");
    }
    let fresh = |n: usize| bench.gate.shows(&format!("fencegate_idempotency_keys_total{{result=\"fresh\"}} {n}\n"));
    assert!((1..=3).any(fresh), "they did not try one after the other");
    drop(fill);
}

#[test]
fn a_probe_with_another_body_does_not_spoil_a_resend() {
    let bench = Bench::new();
    let first = put(&bench, bench.token(), "k", b"value", &[]);
    let mut conns: Vec<(bool, Conn)> = (0..40)
        .map(|n| (n % 2 == 0, send(&bench, bench.token(), "k", if n % 2 == 0 { b"value" } else { b"other" }, "200")))
        .collect();
    for (is_same, conn) in &mut conns {
        let answer = conn.receive().unwrap();
        if *is_same {
            is_replay(&answer, &first);
        } else {
            is_refused(&answer, 422, "IDEMPOTENCY_KEY_REUSED", "none");
        }
    }
    assert_eq!(bench.store.saw("begun"), 1);
}

#[test]
fn a_reload_does_not_wait_for_a_slow_repeat() {
    let bench = Bench::with(|settings| settings.gate.hold_bytes = 1_024);
    let long = vec![b'x'; 100_000];
    put(&bench, bench.token(), "k", &long, &[]).applied();
    let mut slow = bench.gate.gate();
    let head = format!(
        "PUT /users/1 HTTP/1.1\r\nhost: x\r\nfence-token: {}\r\nidempotency-key: k\r\ncontent-length: 100000\r\n\r\n",
        bench.token()
    );
    slow.send_raw(&[head.as_bytes(), &long[..50_000]].concat()).unwrap();
    until("it is being read", || !bench.gate.running().gate.records.stripes.is_idle());
    let mut settings = crate::support::gate::settings();
    settings.store.url = bench.store.url();
    settings.route = vec![RouteSettings { mode: fencegate::config::Mode::Audit, ..RouteSettings::default() }];
    bench.gate.reload(&settings);
    slow.receive().unwrap().refusal(503, "FENCE_DRAINING");
    until("the new route is open", || put(&bench, bench.token(), "new", b"value", &[]).status == 200);
}

#[test]
fn reads_are_never_shared() {
    let bench = Bench::new();
    let folder = tempfile::tempdir().unwrap();
    let until_file = format!("until:{}", folder.path().join(LET_GO).display());
    let headers = [("idempotency-key", "k"), ("x-store", until_file.as_str())];
    let mut readers: Vec<Conn> = (0..2).map(|_| bench.gate.gate()).collect();
    for reader in &mut readers {
        reader.send("GET", "/users/1", &headers, b"").unwrap();
    }
    until("the store has both", || bench.store.saw("begun") == 2);
    std::fs::write(folder.path().join(LET_GO), "").unwrap();
    for mut reader in readers {
        let answer = reader.receive().unwrap();
        assert_eq!((answer.status, answer.header("idempotency-replayed")), (200, None));
    }
}
