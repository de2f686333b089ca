//! Bodies that are too long to be held. They stream, but their end is held back until the write has been judged again.
//! If a fault comes before that, the store never gets a whole request, and the writer gets an unknown outcome.

use ::h2::Reason;
use fencegate::table::memory::DiskFault;
use serde_json::json;

use crate::support::{
    bench::{Bench, TTL},
    h2::{H2, Stream},
    http::Conn,
    until,
};

/// A body that streams is longer than HOLD_BYTES, and at most BODY_MAX is accepted.
const HOLD_BYTES: usize = 16;
const BODY_MAX: u64 = 256;
/// The length of a whole body here; the test sends three quarters of it at first.
const LENGTH: usize = 64;
const FIRST: usize = 32;
const SECOND: usize = 16;
const LAST: usize = LENGTH - FIRST - SECOND;

fn streaming() -> Bench {
    Bench::with(|settings| {
        settings.gate.hold_bytes = HOLD_BYTES;
        settings.gate.body_bytes_max = BODY_MAX;
    })
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Framing {
    Length,
    Chunks,
}

const FRAMINGS: [Framing; 2] = [Framing::Length, Framing::Chunks];

impl Framing {
    fn field(self) -> String {
        match self {
            Self::Length => format!("content-length: {LENGTH}"),
            Self::Chunks => "transfer-encoding: chunked".to_owned(),
        }
    }

    fn piece(self, size: usize) -> Vec<u8> {
        let bytes = "x".repeat(size);
        match self {
            Self::Length => bytes.into_bytes(),
            Self::Chunks => format!("{size:x}\r\n{bytes}\r\n").into_bytes(),
        }
    }

    /// The part that is missing after [`begin`].
    fn rest(self) -> Vec<u8> {
        let end = if self == Self::Chunks { &b"0\r\n\r\n"[..] } else { b"" };
        [&self.piece(LAST)[..], end].concat()
    }
}

fn head(bench: &Bench, framing: Framing, more: &str) -> String {
    let (token, field) = (bench.token(), framing.field());
    format!("PUT /users/1 HTTP/1.1\r\nhost: x\r\nfence-token: {token}\r\n{more}{field}\r\n\r\n")
}

/// A write that is still open, and of which the store has got a part.
#[track_caller]
fn begin(bench: &Bench, framing: Framing) -> Conn {
    let seen = Seen::now(bench);
    let mut conn = bench.gate.gate();
    conn.send_raw(head(bench, framing, "").as_bytes()).unwrap();
    feed(bench, &seen, |size| conn.send_raw(&framing.piece(size)).unwrap());
    conn
}

/// The store's counts before a write began.
struct Seen {
    begun: usize,
    body: usize,
}

impl Seen {
    fn now(bench: &Bench) -> Self {
        Self { begun: bench.store.saw("begun"), body: bench.store.saw("body") }
    }
}

/// Sends the first pieces, one after the other. The gate may hold the last one back, but not the earlier ones.
#[track_caller]
fn feed(bench: &Bench, seen: &Seen, mut send: impl FnMut(usize)) {
    send(FIRST);
    until("the store has the head", || bench.store.saw("begun") > seen.begun);
    send(SECOND);
    until("the store has some of the body", || bench.store.saw("body") > seen.body);
}

/// The writer gets an unknown outcome; the store has seen the body break off.
#[track_caller]
fn is_unknown(bench: &Bench, mut conn: Conn) {
    let unknown = conn.receive().unwrap().unknown();
    assert!(unknown["receipt_id"].is_string(), "{unknown}");
    never_whole(bench, 1);
}

#[track_caller]
fn never_whole(bench: &Bench, times: usize) {
    until("the store has seen it break off", || bench.store.saw("cut") == times);
    assert_eq!(bench.store.story(), Vec::<String>::new());
}

#[test]
fn a_long_body_arrives_whole() {
    let bench = streaming();
    for framing in FRAMINGS {
        let mut conn = begin(&bench, framing);
        conn.send_raw(&framing.rest()).unwrap();
        let answer = conn.receive().unwrap();
        assert_eq!((answer.status, answer.header("fence-outcome")), (200, Some("settled")), "{framing:?}");
        assert_eq!(answer.body, format!("PUT /users/1 {LENGTH}\n").as_bytes());
    }
    let mut h2 = bench.h2();
    let mut stream = begin_h2(&bench, &mut h2, &[]);
    stream.send(&[b'x'; LAST], true);
    assert_eq!(stream.receive().unwrap().body, format!("PUT /users/1 {LENGTH}\n").as_bytes());
    assert_eq!((bench.store.story().len(), bench.store.saw("cut")), (3, 0));
}

#[test]
fn a_long_body_that_breaks_off_is_never_whole() {
    for framing in FRAMINGS {
        let bench = streaming();
        let mut conn = begin(&bench, framing);
        conn.close_write();
        is_unknown(&bench, conn);
    }
    // An invalid chunk is no end either.
    let bench = streaming();
    let mut conn = begin(&bench, Framing::Chunks);
    conn.send_raw(b"zz\r\n").unwrap();
    is_unknown(&bench, conn);
}

#[test]
fn a_long_body_whose_client_is_gone_is_never_whole() {
    for framing in FRAMINGS {
        let bench = streaming();
        drop(begin(&bench, framing));
        never_whole(&bench, 1);
    }
}

#[test]
fn a_long_body_that_does_not_come_in_time_is_never_whole() {
    let bench = Bench::with(|settings| {
        settings.gate.hold_bytes = HOLD_BYTES;
        settings.gate.body_timeout_ms = 50;
    });
    let mut conn = bench.gate.gate();
    let beginning = [head(&bench, Framing::Length, "").as_bytes(), &Framing::Length.piece(FIRST)[..]].concat();
    conn.send_raw(&beginning).unwrap();
    is_unknown(&bench, conn);
}

#[test]
fn a_long_body_that_turns_out_too_large_is_never_whole() {
    let bench = streaming();
    let mut conn = begin(&bench, Framing::Chunks);
    let more = Framing::Chunks.piece(32).repeat(8);
    // The gate may have closed the connection before the test has sent all of it.
    let _ = conn.send_raw(&more);
    is_unknown(&bench, conn);
    // If the length is known, nothing is sent at all.
    let answer = bench.gate.gate().call("PUT", "/users/1", &[("fence-token", bench.token())], &[b'x'; 257]);
    answer.refusal(413, "REQUEST_LIMIT");
    assert_eq!(bench.store.saw("begun"), 1);
}

#[test]
fn a_long_body_with_a_token_in_its_trailer_is_never_whole() {
    let bench = streaming();
    let mut conn = begin(&bench, Framing::Chunks);
    conn.send_raw(format!("0\r\nfence-token: {}\r\n\r\n", bench.token()).as_bytes()).unwrap();
    is_unknown(&bench, conn);
    let mut h2 = bench.h2();
    let mut stream = begin_h2(&bench, &mut h2, &[]);
    stream.send_trailer("fence-token", bench.token());
    stream.receive().unwrap().unknown();
    never_whole(&bench, 2);
}

/// Events between a long write's beginning and its end, after which it may not land.
const CHANGES: [&str; 5] = ["revoked", "released", "expired", "the table is shut", "the clock is unset"];

fn change(bench: &Bench, what: &str) {
    let reason = json!({ "reason": "conformance" });
    match what {
        "revoked" => drop(bench.gate.api().post("/v1/objects/users/revoke", &reason).expect(200)),
        "released" => bench.release(&bench.lease),
        "expired" => bench.gate.clock.advance(TTL),
        "the table is shut" => {
            bench.gate.table.fail_next(DiskFault::Sync);
            assert_eq!(bench.gate.api().post("/v1/objects/another/revoke", &reason).status, 503);
        }
        _ => bench.gate.clock.step_wall(i64::MIN),
    }
}

#[test]
fn a_long_write_is_judged_again_before_its_end_is_let_go() {
    for what in CHANGES {
        for framing in FRAMINGS {
            println!("{what} {framing:?}");
            let bench = streaming();
            let mut conn = begin(&bench, framing);
            change(&bench, what);
            // The gate may have closed the connection already.
            let _ = conn.send_raw(&framing.rest());
            is_unknown(&bench, conn);
        }
    }
}

#[test]
fn an_answer_before_the_end_of_a_long_body_is_passed_on_as_unknown() {
    for framing in FRAMINGS {
        let bench = streaming();
        for (times, store) in ["early", "early-read"].into_iter().enumerate() {
            println!("{store} {framing:?}");
            let mut conn = bench.gate.gate();
            conn.send_raw(head(&bench, framing, &format!("x-store: {store}\r\n")).as_bytes()).unwrap();
            conn.send_raw(&framing.piece(FIRST)).unwrap();
            let answer = conn.receive().unwrap();
            assert_eq!((answer.status, answer.header("fence-outcome")), (200, Some("unknown")));
            assert_eq!((answer.body.as_slice(), answer.header("fence-seq")), (&b"PUT /users/1 early\n"[..], Some("1")));
            // The end that was held back is not released any more.
            let _ = conn.send_raw(&framing.piece(SECOND));
            let _ = conn.send_raw(&framing.rest());
            // A store that reads nothing does not notice the break.
            never_whole(&bench, times);
        }
    }
}

#[track_caller]
fn begin_h2(bench: &Bench, h2: &mut H2, more: &[(&str, &str)]) -> Stream {
    let headers = [&[("fence-token", bench.token())][..], more].concat();
    let seen = Seen::now(bench);
    let mut stream = h2.begin("PUT", "/users/1", &headers);
    feed(bench, &seen, |size| stream.send(&vec![b'x'; size], false));
    stream
}

#[test]
fn a_long_http_2_body_that_is_reset_is_never_whole() {
    let length = LENGTH.to_string();
    let known = [("content-length", length.as_str())];
    // NO_ERROR looks like an end, and is not one; also if all bytes except the last piece have come.
    for reason in [Reason::NO_ERROR, Reason::CANCEL] {
        for more in [&[][..], &known[..]] {
            println!("{reason:?} {more:?}");
            let bench = streaming();
            let mut h2 = bench.h2();
            let mut stream = begin_h2(&bench, &mut h2, more);
            stream.reset(reason);
            never_whole(&bench, 1);
        }
    }
}

#[test]
fn a_long_http_2_write_is_judged_again_before_its_end_is_let_go() {
    let bench = streaming();
    let mut h2 = bench.h2();
    let mut stream = begin_h2(&bench, &mut h2, &[]);
    change(&bench, "revoked");
    stream.send(&[b'x'; LAST], true);
    stream.receive().unwrap().unknown();
    never_whole(&bench, 1);
}

/// With trailers to come, the last byte of the length does not complete the request: the end of the trailers does.
#[test]
fn a_long_http_2_write_with_trailers_is_judged_at_its_very_end() {
    let bench = streaming();
    let mut h2 = bench.h2();
    let length = LENGTH.to_string();
    let mut stream = begin_h2(&bench, &mut h2, &[("content-length", &length), ("trailer", "content-digest")]);
    stream.send(&[b'x'; LAST], false);
    bench.gate.clock.advance(TTL);
    let next = crate::support::gate::wanted("users", "b", TTL);
    bench.gate.api().post("/v1/leases", &next);
    stream.send_trailer("content-digest", "1");
    stream.receive().unwrap().unknown();
    never_whole(&bench, 1);
}
