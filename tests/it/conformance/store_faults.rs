//! A store that is unreachable or slow, resets, sends garbage, breaks off or answers early. A write is sent once, and
//! the writer learns whether it was sent.

use std::{sync::mpsc::sync_channel, thread};

use crate::support::{
    bench::{AWAY, Bench},
    h2::RawH2,
    received, until,
};

#[test]
fn a_store_that_is_away_was_sent_nothing() {
    let bench = Bench::with(|settings| settings.store.url = AWAY.to_owned());
    let token = [("fence-token", bench.token())];
    let mut h2 = bench.h2();
    for method in ["PUT", "POST", "DELETE", "COPY"] {
        bench.refused(&bench.call(method, "/users/1", &token), 502, "STORE_UNREACHABLE");
        bench.refused(&h2.call(method, "/users/1", &token, b"value"), 502, "STORE_UNREACHABLE");
    }
    bench.refused(&bench.gate.gate().get("/users/1"), 502, "STORE_UNREACHABLE");
    // A fault of the write itself is answered without the store.
    bench.refused(&bench.put("/users/1", &[]), 428, "WRITE_UNFENCED");
    let folder = tempfile::tempdir().unwrap();
    let nowhere = format!("unix:{}", folder.path().join("none.sock").display());
    let bench = Bench::with(|settings| settings.store.url = nowhere);
    bench.refused(&bench.put("/users/1", &[("fence-token", bench.token())]), 502, "STORE_UNREACHABLE");
}

#[test]
fn a_store_that_gives_no_answer_leaves_the_write_unknown_and_is_not_asked_again() {
    // Only `hang` takes all of this time, in which the store must have read the request.
    let bench = Bench::with(|settings| settings.store.response_timeout_ms = 1_500);
    let mut h2 = bench.h2();
    let mut sent = 0;
    for store in ["hang", "close", "reset", "reset-now", "garbage", "half"] {
        println!("{store}");
        let headers = [("fence-token", bench.token()), ("x-store", store)];
        let refusal = bench.put("/users/1", &headers).unknown();
        assert_eq!(
            (refusal["object_id"].as_str(), refusal["receipt_id"].is_string()),
            (Some("users"), true),
            "{refusal}"
        );
        h2.call("PUT", "/users/1", &headers, b"value").unknown();
        sent += 2;
        assert_eq!(bench.store.saw("begun"), sent, "each was sent once, and once only");
    }
    assert_eq!(bench.store.story().len(), sent - 2, "all came whole but those that were reset at once");
}

#[test]
fn an_answer_that_breaks_off_is_not_given_out_as_a_whole_one() {
    let bench = Bench::new();
    let headers = [("fence-token", bench.token()), ("x-store", "half-body")];
    // The answer breaks off for the writer as well, or says that the outcome is unknown: both show that it is
    // incomplete.
    if let Ok(answer) = bench.gate.gate().try_call("PUT", "/users/1", &headers, b"value") {
        answer.unknown();
    }
    let mut h2 = bench.h2();
    let mut stream = h2.begin("PUT", "/users/2", &headers);
    stream.send(b"value", true);
    if let Ok(answer) = stream.receive() {
        answer.unknown();
    }
    // The gate goes on with new connections.
    assert_eq!(bench.put("/users/3", &[("fence-token", bench.token())]).status, 200);
    assert_eq!(bench.store.story(), ["PUT /users/1", "PUT /users/2", "PUT /users/3"]);
}

#[test]
fn a_store_that_is_slow_is_waited_for() {
    let bench = Bench::new();
    let headers = [("fence-token", bench.token()), ("x-store", "slow:200")];
    let answer = bench.put("/users/1", &headers);
    assert_eq!((answer.status, answer.header("fence-outcome")), (200, Some("settled")));
    assert_eq!(bench.h2().call("PUT", "/users/1", &headers, b"value").status, 200);
    assert_eq!(bench.store.story().len(), 2);
}

#[test]
fn a_store_that_answers_before_it_has_read_a_held_body_has_been_sent_all_of_it() {
    let bench = Bench::new();
    let answer = bench.put("/users/1", &[("fence-token", bench.token()), ("x-store", "early-read")]);
    assert_eq!((answer.status, answer.header("fence-outcome")), (200, Some("settled")));
    until("the store has read the body", || bench.store.story() == ["PUT /users/1"]);
    // A store that never reads the body has received it all the same.
    let answer = bench.put("/users/2", &[("fence-token", bench.token()), ("x-store", "early")]);
    assert_eq!((answer.status, answer.header("fence-outcome")), (200, Some("settled")));
    assert_eq!((bench.store.saw("begun"), bench.store.saw("cut")), (2, 0));
}

#[test]
fn a_store_that_resets_a_long_body_leaves_the_write_unknown() {
    let bench = Bench::with(|settings| settings.gate.hold_bytes = 16);
    let mut conn = bench.gate.gate();
    let head = "PUT /users/1 HTTP/1.1\r\nhost: x\r\nx-store: reset-now\r\ncontent-length: 64\r\n";
    let beginning = format!("{head}fence-token: {}\r\n\r\n{}", bench.token(), "x".repeat(32));
    conn.send_raw(beginning.as_bytes()).unwrap();
    conn.receive().unwrap().unknown();
    assert_eq!((bench.store.saw("begun"), bench.store.story().len()), (1, 0));
}

#[test]
fn the_time_for_an_answer_runs_from_its_write_on_however_slowly_it_comes() {
    let bench = Bench::with(|settings| settings.store.response_timeout_ms = 3_000);
    let (sender, receiver) = sync_channel(2);
    let give_up = |path: &'static str, wish: &str| {
        let (mut conn, sender) = (bench.gate.gate(), sender.clone());
        conn.send("PUT", path, &[("fence-token", bench.token()), ("x-store", wish)], b"value").unwrap();
        thread::spawn(move || {
            // Both answers are cut short, one of them before any of it is passed on.
            if let Ok(answer) = conn.receive() {
                answer.unknown();
            }
            sender.send(path).unwrap();
        });
    };
    // The answer begins after two thirds of the time, and then hangs.
    give_up("/users/first", "trickle:1000");
    until("a third of its time is over", || bench.store.saw("halfway") == 1);
    give_up("/users/second", "hang");
    let ended = || received("the end of a write that the store does not answer", &receiver);
    assert_eq!([ended(), ended()], ["/users/first", "/users/second"]);
}

#[test]
fn some_answers_leave_open_whether_the_store_has_done_it() {
    let bench = Bench::new();
    let mut h2 = bench.h2();
    let settled =
        [200_u16, 201, 206, 302, 400, 404, 409, 412, 413, 429, 500, 501, 507].map(|status| (status, "settled"));
    let unknown = [202_u16, 408, 499, 502, 503, 504].map(|status| (status, "unknown"));
    for (status, outcome) in settled.into_iter().chain(unknown) {
        let wanted = status.to_string();
        let headers = [("fence-token", bench.token()), ("x-store", wanted.as_str())];
        for answer in [bench.put("/users/1", &headers), h2.call("PUT", "/users/1", &headers, b"value")] {
            assert_eq!((answer.status, answer.header("fence-outcome")), (status, Some(outcome)));
            // The answer's text is the store's own.
            assert_eq!((answer.header("x-kept"), answer.header("fence-error")), (Some("yes"), None), "{status}");
            assert_eq!(answer.body, b"PUT /users/1 5\n");
        }
    }
    assert_eq!(bench.store.story().len(), 2 * (settled.len() + unknown.len()), "each was sent once");
}

#[test]
fn a_write_that_would_have_to_wait_too_long_for_the_store_is_not_sent() {
    let bench = Bench::with(|settings| {
        settings.store.connections_max = 1;
        settings.store.queue_max = 0;
        settings.store.response_timeout_ms = 60_000;
    });
    let token = ("fence-token", bench.token());
    let mut first = bench.gate.gate();
    first.send("PUT", "/users/1", &[token, ("x-store", "hang")], b"value").unwrap();
    until("the store has the first", || bench.store.story() == ["PUT /users/1"]);
    let refusal = bench.put("/users/2", &[token]).refusal(503, "GATE_OVERLOADED");
    assert!(refusal["receipt_id"].is_string() && refusal["retryable"] == true, "{refusal}");
    bench.h2().call("PUT", "/users/2", &[token], b"value").refusal(503, "GATE_OVERLOADED");
    assert_eq!(bench.store.story(), ["PUT /users/1"]);
}

#[test]
fn a_gate_that_is_stopping_finishes_what_was_begun_and_sends_nothing_more() {
    let bench = Bench::with(|settings| settings.store.response_timeout_ms = 60_000);
    let write = |path| {
        let head = [(":method", "PUT"), (":scheme", "http"), (":authority", "x"), (":path", path)];
        [&head[..], &[("fence-token", bench.token()), ("x-store", "hang")]].concat()
    };
    let mut raw = RawH2::open(bench.gate.running().listens);
    raw.send_headers(1, &write("/users/1"), true);
    until("the store has the first", || bench.store.story() == ["PUT /users/1"]);
    bench.gate.running().gate.stopping.send_replace(true);
    // The gate sends GOAWAY and still accepts requests that are already on their way: this connection has not read it
    // yet.
    raw.expect_goodbye();
    raw.send_headers(3, &write("/users/2"), true);
    let refusal: serde_json::Value = serde_json::from_slice(&raw.expect_body(3)).unwrap();
    assert_eq!((refusal["code"].as_str(), refusal["status"].as_u64()), (Some("GATE_STOPPING"), Some(503)), "{refusal}");
    assert_eq!((refusal["side_effect"].as_str(), refusal["receipt_id"].is_string()), (Some("none"), true), "{refusal}");
    assert_eq!(bench.store.story(), ["PUT /users/1"]);
}

#[test]
fn interim_answers_settle_nothing_and_are_not_passed_on() {
    for hold_bytes in [16, 65_536] {
        let bench = Bench::with(|settings| settings.gate.hold_bytes = hold_bytes);
        let mut conn = bench.gate.gate();
        let head = "PUT /users/1 HTTP/1.1\r\nhost: x\r\nx-store: interim\r\ncontent-length: 64\r\n";
        let beginning = format!("{head}fence-token: {}\r\n\r\n{}", bench.token(), "x".repeat(32));
        conn.send_raw(beginning.as_bytes()).unwrap();
        if hold_bytes == 16 {
            // The store sends interim answers when the rest comes.
            until("the store has begun", || bench.store.saw("begun") == 1);
        }
        conn.send_raw("x".repeat(32).as_bytes()).unwrap();
        let answer = conn.receive().unwrap();
        assert_eq!((answer.status, answer.header("fence-outcome")), (200, Some("settled")), "{hold_bytes}");
        assert_eq!((answer.header("link"), bench.store.story().len()), (None, 1));
        // No bytes are left on the connection.
        assert_eq!(bench.put("/users/2", &[("fence-token", bench.token())]).status, 200);
    }
}

#[test]
fn a_stores_own_word_for_its_status_is_passed_on() {
    let bench = Bench::new();
    for (status, word) in [("200", "Word"), ("299", "Word"), ("404", "Word")] {
        let mut conn = bench.gate.gate();
        conn.send("PUT", "/users/1", &[("fence-token", bench.token()), ("x-store", status)], b"value").unwrap();
        assert_eq!(conn.read_line().unwrap(), format!("HTTP/1.1 {status} {word}"));
    }
}
