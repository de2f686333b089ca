//! A repeated key gets the kept answer, whatever lease is in force.

use std::sync::Arc;

use ::h2::Reason;
use fencegate::fence::{BootMs, Now, WallMs};
use serde_json::json;

use super::{Bench, Response, acquire, is_refused, is_replay, put, text};
use crate::support::{
    bench::TTL,
    gate::{START, TestGate},
    store::Hung,
};

#[test]
fn the_same_key_and_payload_get_the_first_answer_and_the_store_sees_one_write() {
    let bench = Bench::new();
    let token = bench.token();
    let first = put(&bench, token, "k1", b"value", &[]);
    assert_eq!((first.status, first.header("idempotency-replayed")), (200, None));
    assert!(first.header("fence-expires-in").is_some());
    // Quoted or bare, it is the same key.
    for key in ["k1", "\"k1\""] {
        let again = put(&bench, token, key, b"value", &[]);
        is_replay(&again, &first);
        assert_eq!(again.header("fence-expires-in"), None, "that was then");
    }
    assert_eq!(bench.store.applied().len(), 1);
    put(&bench, token, "k2", b"value", &[]).applied();
    assert_eq!(bench.store.applied().len(), 2);
    assert!(bench.gate.shows(r#"fencegate_idempotency_keys_total{result="replayed"} 2"#));
    assert!(bench.gate.shows(r#"fencegate_idempotency_keys_total{result="fresh"} 2"#));
}

#[test]
fn another_body_method_or_target_under_the_same_key_is_refused() {
    let bench = Bench::new();
    let token = bench.token();
    put(&bench, token, "k", b"value", &[]).applied();
    is_refused(&put(&bench, token, "k", b"other", &[]), 422, "IDEMPOTENCY_KEY_REUSED", "none");
    let headers = [("fence-token", token), ("idempotency-key", "k")];
    let call = |method: &str, path: &str| bench.gate.gate().call(method, path, &headers, b"value");
    is_refused(&call("POST", "/users/1"), 422, "IDEMPOTENCY_KEY_REUSED", "none");
    is_refused(&call("PUT", "/users/2"), 422, "IDEMPOTENCY_KEY_REUSED", "none");
    is_refused(&call("PUT", "/users/1?x=1"), 422, "IDEMPOTENCY_KEY_REUSED", "none");
    assert_eq!(bench.store.applied().len(), 1);
}

#[test]
fn a_resend_of_an_applied_write_gets_its_success_when_its_lease_is_over() {
    let bench = Bench::new();
    let first = put(&bench, bench.token(), "k", b"value", &[]);
    first.applied();
    // Expired.
    bench.gate.clock.advance(TTL);
    is_replay(&put(&bench, bench.token(), "k", b"value", &[]), &first);
    put(&bench, bench.token(), "new", b"value", &[]).refusal(412, "LEASE_EXPIRED");
    is_refused(&put(&bench, bench.token(), "k", b"other", &[]), 422, "IDEMPOTENCY_KEY_REUSED", "none");
    // Fenced, by another holder with its own keys.
    let heir = acquire(&mut bench.gate.api(), "users", "b", TTL);
    is_replay(&put(&bench, bench.token(), "k", b"value", &[]), &first);
    put(&bench, bench.token(), "new", b"value", &[]).refusal(412, "WRITE_STALE_FENCE");
    let theirs = put(&bench, text(&heir, "fence_token"), "k", b"theirs", &[]);
    assert_eq!((theirs.status, theirs.header("fence-seq")), (200, Some("2")));
    assert_eq!(bench.store.applied().len(), 2);
}

#[test]
fn the_same_holder_with_its_next_lease_gets_it_and_with_another_old_one_does_not() {
    let bench = Bench::new();
    let first = put(&bench, bench.token(), "k", b"value", &[]);
    bench.release(&bench.lease);
    let second = acquire(&mut bench.gate.api(), "users", "a", TTL);
    is_replay(&put(&bench, text(&second, "fence_token"), "k", b"value", &[]), &first);
    let later = put(&bench, text(&second, "fence_token"), "later", b"value", &[]);
    later.applied();
    bench.release(&second);
    acquire(&mut bench.gate.api(), "users", "a", TTL);
    is_replay(&put(&bench, text(&second, "fence_token"), "later", b"value", &[]), &later);
    // The token of lease 1 did not make the write, and is not the current one.
    is_refused(&put(&bench, bench.token(), "later", b"value", &[]), 409, "IDEMPOTENCY_OTHER_LEASE", "none");
    assert_eq!(bench.store.applied().len(), 2);
}

#[test]
fn a_token_that_is_not_the_leases_gets_nothing() {
    let bench = Bench::new();
    put(&bench, bench.token(), "k", b"value", &[]).applied();
    let (head, _) = bench.token().rsplit_once('.').unwrap();
    let forged = format!("{head}.AAAAAAAAAAAAAAAAAAAAAA");
    put(&bench, &forged, "k", b"value", &[]).refusal(403, "FENCE_TOKEN_INVALID");
    acquire_after_release(&bench);
    put(&bench, &forged, "k", b"value", &[]).refusal(412, "WRITE_STALE_FENCE");
    bench.gate.gate().call("PUT", "/users/1", &[("idempotency-key", "k")], b"value").refusal(428, "WRITE_UNFENCED");
}

fn acquire_after_release(bench: &Bench) {
    bench.release(&bench.lease);
    acquire(&mut bench.gate.api(), "users", "b", TTL);
}

#[test]
fn a_failed_write_is_replayed_as_failed() {
    let bench = Bench::new();
    for (key, status) in [("bad", "400"), ("worse", "500")] {
        let first = put(&bench, bench.token(), key, b"value", &[("x-store", status)]);
        assert_eq!(first.status.to_string(), status);
        is_replay(&put(&bench, bench.token(), key, b"value", &[]), &first);
    }
    assert_eq!(bench.store.saw("begun"), 2);
}

#[test]
fn a_write_of_unknown_outcome_is_answered_as_such_and_never_run_again() {
    let bench = Bench::new();
    // An answer that settles nothing, no answer, and half of one.
    for (key, how) in [("k1", "503"), ("k2", "202"), ("k3", "reset"), ("k4", "half-body")] {
        put(&bench, bench.token(), key, b"value", &[("x-store", how)]);
        let before = bench.store.saw("begun");
        is_refused(&put(&bench, bench.token(), key, b"value", &[]), 409, "IDEMPOTENCY_UNKNOWN", "maybe");
        is_refused(&put(&bench, bench.token(), key, b"other", &[]), 422, "IDEMPOTENCY_KEY_REUSED", "none");
        assert_eq!(bench.store.saw("begun"), before, "{how}");
    }
}

/// How long a key is kept below; the gate gives a write up only after a longer time.
const KEEP_MS: u64 = 60_000;
const LONG_MS: u64 = 100_000;

fn slow_bench() -> (Bench, String) {
    let bench = Bench::with(|settings| {
        settings.idempotency.keep_ms = KEEP_MS;
        settings.store.response_timeout_ms = LONG_MS;
    });
    bench.release(&bench.lease);
    let lease = acquire(&mut bench.gate.api(), "users", "a", 3_600_000);
    let token = text(&lease, "fence_token").to_owned();
    (bench, token)
}

#[test]
fn a_key_is_kept_from_when_its_write_was_lost() {
    let (bench, token) = slow_bench();
    let headers = [("fence-token", &*token), ("idempotency-key", "k")];
    let first = Hung::send_to_lose(&bench.store, bench.gate.gate(), "/users/1", &headers);
    bench.gate.clock.advance(LONG_MS);
    first.let_go().unknown();
    // The sent part of the write may still land. The same holds a little later, when the table has been swept.
    for _ in 0..5 {
        is_refused(&put(&bench, &token, "k", b"value", &[]), 409, "IDEMPOTENCY_UNKNOWN", "maybe");
        bench.gate.clock.advance(KEEP_MS / 10);
    }
    assert_eq!(bench.store.saw("begun"), 1);
    bench.gate.clock.advance(KEEP_MS);
    put(&bench, &token, "k", b"value", &[]).applied();
}

#[test]
fn a_key_of_a_write_that_a_crash_swallowed_is_kept_from_then() {
    let (bench, token) = slow_bench();
    let headers = [("fence-token", &*token), ("idempotency-key", "k")];
    let first = Hung::send(&bench.store, bench.gate.gate(), "/users/1", &headers);
    let at = |ms: u64| Now { wall: WallMs(START.wall.0 + ms), boot: BootMs(START.boot.0 + ms) };
    let left = Arc::new(bench.gate.table.after_a_crash());
    let mut settings = crate::support::gate::settings();
    settings.store.url = bench.store.url();
    settings.idempotency.keep_ms = KEEP_MS;
    let again = TestGate::on(&settings, left, at(LONG_MS));
    let repeat = || again.gate().call("PUT", "/users/1", &headers, b"value");
    is_refused(&repeat(), 409, "IDEMPOTENCY_UNKNOWN", "maybe");
    again.clock.advance(KEEP_MS - 1);
    is_refused(&repeat(), 409, "IDEMPOTENCY_UNKNOWN", "maybe");
    again.clock.advance(1);
    repeat().applied();
    first.let_go().applied();
}

#[test]
fn a_write_of_which_nothing_was_sent_gives_its_key_back() {
    let bench = Bench::with(|settings| settings.store.url = crate::support::bench::AWAY.to_owned());
    for _ in 0..3 {
        put(&bench, bench.token(), "k", b"value", &[]).refusal(502, "STORE_UNREACHABLE");
    }
    assert!(bench.gate.shows(r#"fencegate_idempotency_keys_total{result="fresh"} 3"#));
}

#[test]
fn long_bodies_are_keyed_too() {
    let bench = Bench::with(|settings| settings.gate.hold_bytes = 1_024);
    let (long, other) = (vec![b'x'; 300_000], vec![b'y'; 300_000]);
    let first = put(&bench, bench.token(), "long", &long, &[]);
    first.applied();
    is_replay(&put(&bench, bench.token(), "long", &long, &[]), &first);
    is_refused(&put(&bench, bench.token(), "long", &other, &[]), 422, "IDEMPOTENCY_KEY_REUSED", "none");
    assert_eq!((bench.store.applied().len(), bench.store.saw("begun")), (1, 1));
    bench.gate.clock.advance(TTL);
    is_replay(&put(&bench, bench.token(), "long", &long, &[]), &first);
}

/// The same in chunks, so that the length is not known before the end.
fn put_in_chunks(bench: &Bench, key: &str, body: &[u8]) -> Response {
    let mut conn = bench.gate.gate();
    let token = bench.token();
    let head = format!(
        "PUT /users/1 HTTP/1.1\r\nhost: x\r\nfence-token: {token}\r\nidempotency-key: {key}\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    conn.send_raw(head.as_bytes()).unwrap();
    for piece in body.chunks(10_000) {
        conn.send_raw(&[format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat()).unwrap();
    }
    conn.send_raw(b"0\r\n\r\n").unwrap();
    conn.receive().unwrap()
}

#[test]
fn a_long_body_that_differs_in_its_last_byte_is_another_one() {
    let bench = Bench::with(|settings| settings.gate.hold_bytes = 1_024);
    let long = vec![b'x'; 300_000];
    let other = [&long[1..], b"y"].concat();
    for key in ["length", "chunks"] {
        let send = |body: &[u8]| match key {
            "length" => put(&bench, bench.token(), key, body, &[]),
            _ => put_in_chunks(&bench, key, body),
        };
        let first = send(&long);
        first.applied();
        is_replay(&send(&long), &first);
        is_refused(&send(&other), 422, "IDEMPOTENCY_KEY_REUSED", "none");
    }
    assert_eq!(bench.store.saw("begun"), 2);
    bench.gate.clock.advance(TTL);
    is_refused(&put(&bench, bench.token(), "length", &other, &[]), 422, "IDEMPOTENCY_KEY_REUSED", "none");
    is_refused(&put_in_chunks(&bench, "chunks", &other), 422, "IDEMPOTENCY_KEY_REUSED", "none");
}

#[test]
fn a_repeat_that_is_reset_before_its_end_is_not_compared() {
    let bench = Bench::with(|settings| settings.gate.hold_bytes = 1_024);
    let long = vec![b'x'; 30_000];
    put(&bench, bench.token(), "k", &long, &[]).applied();
    let mut h2 = bench.h2();
    // NO_ERROR looks like an end, and is not one; all bytes may have come by then.
    for reason in [Reason::NO_ERROR, Reason::CANCEL] {
        let mut stream = h2.begin("PUT", "/users/1", &[("fence-token", bench.token()), ("idempotency-key", "k")]);
        stream.send(&long, false);
        let is_active = |count: u8| {
            bench.gate.shows(&format!("active_fenced_operations{{resource=\"default\",operation=\"put\"}} {count}\n"))
        };
        super::until("the repeat is under way", || is_active(1));
        stream.reset(reason);
        super::until("the repeat is over", || is_active(0));
    }
    let receipts = bench.gate.api().get("/v1/receipts").expect(200);
    let errors: Vec<_> = receipts["receipts"].as_array().unwrap().iter().map(|each| text(each, "error")).collect();
    assert_eq!(errors, ["BODY_UNREADABLE"; 2]);
    assert_eq!(bench.store.saw("begun"), 1);
    assert!(bench.gate.shows(r#"fencegate_idempotency_keys_total{result="replayed"} 0"#));
}

#[test]
fn an_answer_that_is_too_large_to_keep_is_said_to_be_done() {
    let bench = Bench::with(|settings| settings.idempotency.response_bytes_max = 1_000);
    for (key, size) in [("larger", "large:2000"), ("streamed", "large:200000")] {
        let first = put(&bench, bench.token(), key, b"value", &[("x-store", size)]);
        assert_eq!(first.status, 200);
        let again = put(&bench, bench.token(), key, b"value", &[]);
        is_refused(&again, 409, "IDEMPOTENCY_RESPONSE_DROPPED", "done");
        assert!(again.json()["detail"].as_str().unwrap().contains("200"));
    }
    put(&bench, bench.token(), "small", b"value", &[]).applied();
    assert_eq!(bench.store.applied().len(), 3);
}

#[test]
fn where_a_write_goes_and_how_its_body_is_read_count() {
    let bench = Bench::new();
    let token = bench.token();
    let moved = |to: &str| {
        let headers = [("fence-token", token), ("idempotency-key", "m"), ("destination", to)];
        bench.gate.gate().call("MOVE", "/users/1", &headers, b"")
    };
    let first = moved("/users/2");
    first.applied();
    is_replay(&moved("/users/2"), &first);
    is_refused(&moved("/users/3"), 422, "IDEMPOTENCY_KEY_REUSED", "none");
    put(&bench, token, "t", b"value", &[("content-type", "text/plain")]).applied();
    let other = put(&bench, token, "t", b"value", &[("content-type", "application/json")]);
    is_refused(&other, 422, "IDEMPOTENCY_KEY_REUSED", "none");
}

#[test]
fn a_client_that_waits_for_100_continue_is_asked_for_its_body() {
    let bench = Bench::new();
    let first = put(&bench, bench.token(), "k", b"value", &[]);
    bench.gate.clock.advance(TTL);
    // Its lease is over, but its key is known: the body is needed to compare.
    let mut conn = bench.gate.gate();
    let head = format!(
        "PUT /users/1 HTTP/1.1\r\nhost: x\r\nfence-token: {}\r\nidempotency-key: k\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n",
        bench.token()
    );
    conn.send_raw(head.as_bytes()).unwrap();
    assert_eq!(conn.read_head().unwrap().0, 100);
    conn.send_raw(b"value").unwrap();
    is_replay(&conn.receive().unwrap(), &first);
}

#[test]
fn it_is_forgotten_after_a_while() {
    let bench = Bench::with(|settings| settings.idempotency.keep_ms = 10_000);
    put(&bench, bench.token(), "k", b"value", &[]).applied();
    bench.gate.clock.advance(9_999);
    assert!(put(&bench, bench.token(), "k", b"value", &[]).header("idempotency-replayed").is_some());
    bench.gate.clock.advance(1);
    put(&bench, bench.token(), "k", b"other", &[]).applied();
    assert_eq!(bench.store.applied().len(), 2);
    bench.gate.clock.advance(20_000);
    super::until("the sweep has been there", || {
        bench.gate.clock.advance(1_000);
        let table = &bench.gate.running().gate.records.table;
        [(b"k", b"l"), (b"t", b"u")].iter().all(|(from, until)| table.scan(*from, *until, 10).unwrap().is_empty())
    });
}

#[test]
fn a_wall_clock_that_jumps_forward_makes_no_write_run_twice() {
    let bench = Bench::with(|settings| settings.idempotency.keep_ms = 10_000);
    let first = put(&bench, bench.token(), "k", b"value", &[]);
    bench.gate.clock.step_wall(86_400_000);
    for seconds in 0..9 {
        is_replay(&put(&bench, bench.token(), "k", b"value", &[]), &first);
        // The round of this call also does the work of each second.
        bench.gate.clock.advance(1_000);
        acquire(&mut bench.gate.api(), &format!("other-{seconds}"), "a", 1_000);
    }
    is_replay(&put(&bench, bench.token(), "k", b"value", &[]), &first);
    assert_eq!(bench.store.applied().len(), 1);
    // By the boot clock the key still gets old.
    bench.gate.clock.advance(1_000);
    put(&bench, bench.token(), "k", b"other", &[]).applied();
}

#[test]
fn a_write_that_is_on_its_way_is_not_forgotten() {
    let bench = Bench::with(|settings| {
        settings.idempotency.keep_ms = 10_000;
        settings.store.response_timeout_ms = 86_400_000;
    });
    put(&bench, bench.token(), "done", b"value", &[]).applied();
    let headers = [("fence-token", bench.token()), ("idempotency-key", "k")];
    let first = Hung::send(&bench.store, bench.gate.gate(), "/users/1", &headers);
    let rows = || bench.gate.running().gate.records.table.scan(b"k", b"l", 10).unwrap().len();
    assert_eq!(rows(), 2);
    for seconds in 0..3 {
        bench.gate.clock.advance(10_000);
        acquire(&mut bench.gate.api(), &format!("other-{seconds}"), "a", 1_000);
    }
    assert_eq!(rows(), 1, "what was answered is forgotten, what is on its way is not");
    let answer = first.let_go();
    answer.applied();
    is_replay(&put(&bench, bench.token(), "k", b"value", &[]), &answer);
    assert_eq!(bench.store.applied().len(), 2);
}

#[test]
fn a_restart_remembers() {
    let bench = Bench::new();
    let first = put(&bench, bench.token(), "k", b"value", &[]);
    put(&bench, bench.token(), "lost", b"value", &[("x-store", "reset")]).unknown();
    let table = std::sync::Arc::new(bench.gate.table.after_a_crash());
    let mut settings = crate::support::gate::settings();
    settings.store.url = bench.store.url();
    let gate = crate::support::gate::TestGate::on(&settings, table, crate::support::gate::START);
    let put = |key: &str| {
        let headers = [("fence-token", bench.token()), ("idempotency-key", key)];
        gate.gate().call("PUT", "/users/1", &headers, b"value")
    };
    is_replay(&put("k"), &first);
    is_refused(&put("lost"), 409, "IDEMPOTENCY_UNKNOWN", "maybe");
    gate.running().gate.stopping.send_replace(true);
}

#[test]
fn outside_tokens_have_keys_too() {
    let world = crate::external::World::new();
    let first = world.put_with("5", &[("idempotency-key", "k")]);
    first.applied();
    is_replay(&world.put_with("5", &[("idempotency-key", "k")]), &first);
    world.api().post("/v1/objects/users/advance", &json!({ "token": 6 })).expect(200);
    is_replay(&world.put_with("5", &[("idempotency-key", "k")]), &first);
    world.put_with("5", &[("idempotency-key", "new")]).refusal(412, "WRITE_STALE_FENCE");
    is_replay(&world.put_with("6", &[("idempotency-key", "k")]), &first);
    assert_eq!(world.applied(), [5]);
}
