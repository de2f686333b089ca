//! Bodies that break off, come too slowly, are too large or are framed in two ways, while they are held:
//! nothing of them is sent.

use ::h2::Reason;

use crate::support::{
    bench::{Bench, ROOM, small_room},
    h2::{PROTOCOL_ERROR, RawH2},
    http::Response,
    until,
};

/// Sends a write's head and the given part of its body, closes the sending half, and reads the answer.
#[track_caller]
fn cut(bench: &Bench, framing: &str, body: &str) -> Response {
    let mut conn = bench.gate.gate();
    let token = bench.token();
    let request = format!("PUT /users/1 HTTP/1.1\r\nhost: x\r\nfence-token: {token}\r\n{framing}\r\n\r\n{body}");
    conn.send_raw(request.as_bytes()).unwrap();
    conn.close_write();
    conn.receive().unwrap()
}

#[test]
fn a_body_that_breaks_off_is_not_written() {
    let bench = Bench::new();
    for body in ["", "h", "half"] {
        bench.refused(&cut(&bench, "content-length: 5", body), 422, "BODY_UNREADABLE");
    }
    for body in
        ["", "4", "4\r\n", "4\r\nha", "4\r\nhalf", "4\r\nhalf\r\n", "4\r\nhalf\r\n0\r\n", "4\r\nhalf\r\n0\r\nx: y\r\n"]
    {
        println!("{body:?}");
        bench.refused(&cut(&bench, "transfer-encoding: chunked", body), 422, "BODY_UNREADABLE");
    }
    // Invalid chunks, from a client that is still connected.
    for body in ["zz\r\n", "-1\r\n", "4\r\nhalf!", "fffffffffffffffff\r\n"] {
        println!("{body:?}");
        let head = format!("PUT /users/1 HTTP/1.1\r\nhost: x\r\nfence-token: {}\r\n", bench.token());
        let request = format!("{head}transfer-encoding: chunked\r\n\r\n{body}");
        bench.refused(&bench.raw(request.as_bytes()), 422, "BODY_UNREADABLE");
    }
}

#[test]
fn a_body_that_does_not_come_in_time_is_not_written() {
    let bench = Bench::with(|settings| settings.gate.body_timeout_ms = 50);
    let head = format!("PUT /users/1 HTTP/1.1\r\nhost: x\r\nfence-token: {}\r\n", bench.token());
    for rest in ["content-length: 5\r\n\r\nval", "transfer-encoding: chunked\r\n\r\n3\r\nval\r\n"] {
        bench.refused(&bench.raw(format!("{head}{rest}").as_bytes()), 422, "BODY_UNREADABLE");
    }
    let mut h2 = bench.h2();
    let mut stream = h2.begin("PUT", "/users/1", &[("fence-token", bench.token())]);
    stream.send(b"val", false);
    bench.refused(&stream.receive().unwrap(), 422, "BODY_UNREADABLE");
}

#[test]
fn what_is_too_large_is_refused_and_not_written() {
    let bench = Bench::with(|settings| settings.gate.body_bytes_max = 100);
    let token = ("fence-token", bench.token());
    let long = "x".repeat(40_000);
    let answers = [
        (bench.put(&format!("/users/{}", &long[..9_000]), &[token]), 414),
        (bench.put(&format!("/users/1?{}", &long[..9_000]), &[token]), 414),
        (bench.put("/users/1", &[token, ("x-long", &long)]), 431),
        (bench.gate.gate().call("PUT", "/users/1", &[token], &[b'x'; 101]), 413),
        (bench.h2().call("PUT", "/users/1", &[token], &[b'x'; 101]), 413),
        (bench.h2().call("PUT", &format!("/users/{}", &long[..9_000]), &[token], b"value"), 414),
        (bench.h2().call("PUT", "/users/1", &[token, ("x-long", &long)], b"value"), 431),
    ];
    for (answer, status) in answers {
        bench.refused(&answer, status, "REQUEST_LIMIT");
    }
    // The length of a chunked body is known only at its end.
    let piece = format!("20\r\n{}\r\n", &long[..32]);
    let chunked = |pieces: usize| {
        format!(
            "PUT /users/1 HTTP/1.1\r\nhost: x\r\nfence-token: {}\r\ntransfer-encoding: chunked\r\n\r\n{}0\r\n\r\n",
            bench.token(),
            piece.repeat(pieces)
        )
    };
    bench.refused(&bench.raw(chunked(4).as_bytes()), 413, "REQUEST_LIMIT");
    assert_eq!(bench.raw(chunked(3).as_bytes()).status, 200);
    assert_eq!(bench.gate.gate().call("PUT", "/users/1", &[token], &[b'x'; 100]).status, 200);
    assert_eq!(
        bench.store.applied().iter().map(|write| write["size"].as_u64()).collect::<Vec<_>>(),
        [Some(96), Some(100)]
    );
}

/// Sends another write, to check whether there is room for its body.
fn is_let_in(bench: &Bench) -> bool {
    let answer = bench.put("/users/2", &[("fence-token", bench.token())]);
    if answer.status != 200 {
        answer.refusal(503, "GATE_OVERLOADED");
    }
    answer.status == 200
}

/// Only the writes of [`is_let_in`] were applied.
#[track_caller]
fn nothing_else_was_written(bench: &Bench) {
    let story = bench.store.story();
    assert!(!story.is_empty() && story.iter().all(|line| line == "PUT /users/2"), "{story:?}");
    assert_eq!(bench.store.saw("cut"), 0, "the store saw the beginning of something");
}

#[test]
fn a_client_that_is_gone_before_its_body_is_whole_writes_nothing() {
    let bench = Bench::with(small_room);
    let mut conn = bench.fill_room("/users/1", bench.token());
    conn.send_raw(b"half").unwrap();
    assert!(!is_let_in(&bench), "its body takes all the room there is");
    drop(conn);
    until("its room is free again", || is_let_in(&bench));
    nothing_else_was_written(&bench);
}

#[test]
fn an_http_2_stream_that_is_reset_before_its_end_writes_nothing() {
    let bench = Bench::with(small_room);
    let mut h2 = bench.h2();
    // NO_ERROR looks like an end, and is not one.
    for reason in [Reason::NO_ERROR, Reason::CANCEL, Reason::INTERNAL_ERROR] {
        for body in [&b""[..], b"half"] {
            let mut stream = h2.begin("PUT", "/users/1", &[("fence-token", bench.token())]);
            if !body.is_empty() {
                stream.send(body, false);
            }
            // A request for room before the body has come would take that room away from the body.
            until("it has come", || {
                bench.gate.shows("active_fenced_operations{resource=\"default\",operation=\"put\"} 1\n")
            });
            assert!(!is_let_in(&bench), "its body takes all the room there is");
            stream.reset(reason);
            until("its room is free again", || is_let_in(&bench));
            // Waits, so that this write is not mistaken for the next one.
            until("nothing is under way", || {
                bench.gate.shows("active_fenced_operations{resource=\"default\",operation=\"put\"} 0\n")
            });
        }
    }
    nothing_else_was_written(&bench);
}

#[test]
fn an_http_2_body_that_is_not_as_long_as_it_says_is_not_written() {
    let bench = Bench::new();
    let mut raw = RawH2::open(bench.gate.running().listens);
    // hyper resets the stream if the body is too short, too long or missing.
    for (stream, body) in [(1, Some("val")), (3, Some("values")), (5, None)] {
        let head = [(":method", "PUT"), (":scheme", "http"), (":path", "/users/1"), (":authority", "x")];
        let fields = [&head[..], &[("fence-token", bench.token()), ("content-length", "5")]].concat();
        raw.send_headers(stream, &fields, body.is_none());
        if let Some(body) = body {
            raw.send_data(stream, body.as_bytes(), true);
        }
        assert_eq!(raw.expect_reset(stream), PROTOCOL_ERROR, "{body:?}");
    }
    assert_eq!(bench.put("/users/2", &[("fence-token", bench.token())]).status, 200);
    nothing_else_was_written(&bench);
}

#[test]
fn a_body_that_is_framed_in_two_ways_is_one_request_or_none() {
    let bench = Bench::new();
    let head = format!("PUT /users/1 HTTP/1.1\r\nhost: x\r\nfence-token: {}\r\n", bench.token());
    // hyper rejects all of these as requests.
    for framing in [
        "content-length: 5\r\ncontent-length: 6\r\n\r\nvalues",
        "content-length: 5, 5\r\n\r\nvalue",
        "content-length: +5\r\n\r\nvalue",
        "content-length: 0x5\r\n\r\nvalue",
        "content-length: -5\r\n\r\nvalue",
        "transfer-encoding: gzip\r\n\r\nvalue",
        "transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    ] {
        println!("{framing:?}");
        bench.turned_away(&bench.raw(format!("{head}{framing}").as_bytes()));
    }
    let both = format!("{head}content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n5\r\nvalue\r\n0\r\n\r\n");
    bench.refused(&bench.raw(both.as_bytes()), 400, "REQUEST_INVALID");
    // A gate that is not strict: chunks win over a length, and the forwarded request has only one framing.
    let bench = Bench::with(|settings| settings.gate.strict = false);
    let head = format!("PUT /users/1 HTTP/1.1\r\nhost: x\r\nfence-token: {}\r\n", bench.token());
    let both = format!("{head}content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n5\r\nvalue\r\n0\r\n\r\n");
    assert_eq!(bench.raw(both.as_bytes()).status, 200);
    let applied = bench.store.applied();
    assert_eq!((applied.len(), applied[0]["size"].as_u64()), (1, Some(5)));
    let sent = &applied[0]["headers"];
    assert_eq!(sent["content-length"].is_string(), sent["transfer-encoding"].is_null());
}

/// The decoder's length counts, also if the body is too long to be held.
#[test]
fn a_long_body_that_is_framed_in_two_ways_is_as_long_as_its_chunks() {
    let bench = Bench::with(|settings| settings.gate.strict = false);
    let head = format!("PUT /users/1 HTTP/1.1\r\nhost: x\r\nfence-token: {}\r\n", bench.token());
    let body = format!("{:x}\r\n{}\r\n0\r\n\r\n", 100_000, "v".repeat(100_000));
    for fields in [
        "content-length: 70000\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked\r\ncontent-length: 70000",
        "content-length: 5\r\ntransfer-encoding: chunked",
    ] {
        assert_eq!(bench.raw(format!("{head}{fields}\r\n\r\n{body}").as_bytes()).status, 200);
    }
    assert!(bench.store.applied().iter().all(|write| write["size"].as_u64() == Some(100_000)));
    // Over HTTP/2 a length that differs from the body's makes the request invalid.
    for (length, ends) in [("100001", true), ("99999", false)] {
        let mut h2 = bench.h2();
        let mut stream = h2.begin("PUT", "/users/1", &[("fence-token", bench.token()), ("content-length", length)]);
        stream.send(&[b'v'; 100_000], true);
        let answer = stream.receive();
        assert!(
            answer.as_ref().is_err() || answer.as_ref().is_ok_and(|answer| answer.status >= 400),
            "{ends}: {answer:?}"
        );
    }
    assert_eq!(bench.store.applied().len(), 3, "what was cut short is not written");
}

#[test]
fn no_body_is_let_in_where_there_is_no_room_for_it() {
    let bench = Bench::with(small_room);
    let mut conn = bench.fill_room("/users/1", bench.token());
    let token = [("fence-token", bench.token())];
    bench.refused(&bench.put("/users/2", &token), 503, "GATE_OVERLOADED");
    bench.refused(&bench.h2().call("PUT", "/users/2", &token, b"value"), 503, "GATE_OVERLOADED");
    // A write without a body needs no room.
    assert_eq!(bench.gate.gate().call("DELETE", "/users/3", &token, b"").status, 200);
    conn.send_raw(&[b'x'; ROOM]).unwrap();
    assert_eq!(conn.receive().unwrap().status, 200);
    assert_eq!(bench.put("/users/2", &token).status, 200);
    assert_eq!(bench.store.story(), ["DELETE /users/3", "PUT /users/1", "PUT /users/2"]);
}

#[test]
fn one_http_2_stream_after_the_other_is_answered_however_much_they_carry_together() {
    let bench = Bench::new();
    let (mut h2, token) = (bench.h2(), ("fence-token", bench.token()));
    // Several times the window of a connection.
    for _ in 0..256 {
        let answer = h2.call("PUT", "/users/1", &[token], &[b'x'; 16_384]);
        assert_eq!((answer.status, answer.header("fence-outcome")), (200, Some("settled")));
    }
}
