//! Clients that are slow or lost while their writes are on their way: the gate still counts these writes.

use std::{
    io::Write,
    process::{Child, Command, Stdio},
    sync::mpsc::Receiver,
};

use ::h2::Reason;
use fencegate::config::Settings;
use serde_json::json;

use super::{BOUND, Held, ask, bounded, draining, patient_takeover, still_waits};
use crate::support::{authority::Authority, bench::Bench, h2::H2, http::Response, received, until};

/// An answer that the gate reads ahead of its client.
const FITS: usize = 60_000;
/// An answer that neither the gate nor the kernel buffers for a client that reads nothing.
const LARGE: usize = 32 << 20;

fn large(size: usize) -> String {
    format!("large:{size}")
}

/// Waits until every connection to the store is idle or closed: then writes that were lost on one are counted.
fn no_store_connection_is_busy(bench: &Bench) {
    until("no connection to the store is busy", || bench.gate.shows("fencegate_store_connections{state=\"busy\"} 0\n"));
}

fn begin_handover(bench: &Bench) -> Receiver<Response> {
    bench.gate.clock.advance(1_000);
    let next = ask(&bench.gate, "/v1/leases", &patient_takeover("a"));
    draining(&bench.gate, 1);
    next
}

/// An HTTP/2 client that takes nothing of the answer to its write.
fn begin_h2(bench: &Bench, wish: &str) -> (H2, crate::support::h2::Stream) {
    let mut h2 = H2::that_takes_nothing(bench.gate.running().listens);
    let mut stream = h2.begin("PUT", "/users/1", &[("fence-token", bench.token()), ("x-store", wish)]);
    stream.send(b"value", true);
    (h2, stream)
}

#[test]
fn a_client_that_takes_nothing_of_an_answer_that_fits_holds_nothing_up() {
    let bench = Bench::with(bounded);
    let (h2, mut stream) = begin_h2(&bench, &large(FITS));
    assert_eq!(stream.read_head(), (200, "settled".to_owned()));
    bench.gate.clock.advance(1_000);
    let lease = bench.gate.api().post("/v1/leases", &patient_takeover("a")).expect(201);
    assert_eq!(lease["drain"], json!({ "settled": 0, "cancelled": 0, "unknown": 0, "waited_ms": 0 }));
    h2.take_answers();
    assert_eq!(stream.receive().unwrap().body.len(), FITS);
}

/// The write is in flight until its time is up, then unknown. `is_cut`: its client does not mistake half an answer for
/// a whole one.
fn stays_in_flight(bench: &Bench, is_cut: impl FnOnce() -> bool) {
    let next = begin_handover(bench);
    still_waits(&bench.gate, &next);
    until("the connection to the store was closed", || bench.store.saw("untaken") == 1);
    no_store_connection_is_busy(bench);
    bench.gate.clock.advance(BOUND - 1);
    still_waits(&bench.gate, &next);
    bench.gate.clock.advance(1);
    let lease = received("the answer to the next holder", &next).expect(201);
    assert_eq!(lease["drain"], json!({ "settled": 0, "cancelled": 0, "unknown": 1, "waited_ms": BOUND }));
    assert!(is_cut(), "half an answer was given out as a whole one");
}

fn impatient(settings: &mut Settings) {
    bounded(settings);
    // The beginning of the answer must come within this time, and its end cannot.
    settings.store.response_timeout_ms = 3_000;
}

#[test]
fn an_answer_too_long_for_an_http_2_client_that_takes_nothing_leaves_its_write_in_flight() {
    let bench = Bench::with(impatient);
    let (h2, mut stream) = begin_h2(&bench, &large(LARGE));
    assert_eq!(stream.read_head(), (200, "pending".to_owned()));
    stays_in_flight(&bench, || {
        h2.take_answers();
        stream.receive().is_err()
    });
}

#[test]
fn an_answer_too_long_for_an_http_1_client_that_takes_nothing_leaves_its_write_in_flight() {
    let bench = Bench::with(impatient);
    let mut conn = bench.gate.gate();
    conn.send("PUT", "/users/1", &[("fence-token", bench.token()), ("x-store", &large(LARGE))], b"value").unwrap();
    let (status, headers) = conn.read_head().unwrap();
    assert_eq!(status, 200);
    assert!(headers.contains(&("fence-outcome".to_owned(), "pending".to_owned())), "{headers:?}");
    stays_in_flight(&bench, || conn.read_exactly(LARGE).is_err());
}

#[test]
fn an_answer_whose_client_hangs_up_is_read_to_its_end_and_settles() {
    let bench = Bench::with(bounded);
    let (h2, mut stream) = begin_h2(&bench, &large(LARGE));
    assert_eq!(stream.read_head(), (200, "pending".to_owned()));
    let next = begin_handover(&bench);
    still_waits(&bench.gate, &next);
    h2.hang_up();
    let lease = received("the answer to the next holder", &next).expect(201);
    assert_eq!(lease["drain"], json!({ "settled": 1, "cancelled": 0, "unknown": 0, "waited_ms": 0 }));
    assert_eq!(bench.store.saw("untaken"), 0);
}

/// The gate goes on with the write without its client, and waits for it.
fn is_carried_on(bench: &Bench, held: &Held) {
    let next = begin_handover(bench);
    still_waits(&bench.gate, &next);
    held.let_go();
    let lease = received("the answer to the next holder", &next).expect(201);
    assert_eq!(lease["drain"], json!({ "settled": 1, "cancelled": 0, "unknown": 0, "waited_ms": 0 }));
    assert_eq!((bench.store.story().len(), bench.store.saw("untaken")), (1, 0));
}

fn until_store_has_it(bench: &Bench) {
    until("the store has it", || bench.store.story().len() == 1);
}

/// Waits until the gate has noticed that its clients are gone.
fn until_alone(bench: &Bench) {
    until("the gate has no client", || bench.gate.shows("fencegate_connections 0\n"));
}

#[test]
fn a_write_whose_http_1_client_is_lost_is_carried_on_and_waited_for() {
    let (bench, held) = (Bench::with(bounded), Held::new());
    let mut conn = bench.gate.gate();
    conn.send("PUT", "/users/1", &[("fence-token", bench.token()), ("x-store", &held.wish())], b"value").unwrap();
    until_store_has_it(&bench);
    drop(conn);
    until_alone(&bench);
    is_carried_on(&bench, &held);
}

#[test]
fn a_write_whose_http_2_client_is_lost_is_carried_on_and_waited_for() {
    let (bench, held) = (Bench::with(bounded), Held::new());
    let (h2, _stream) = begin_h2(&bench, &held.wish());
    until_store_has_it(&bench);
    h2.hang_up();
    until_alone(&bench);
    is_carried_on(&bench, &held);
}

#[test]
fn a_write_whose_http_2_stream_is_reset_behind_its_end_is_carried_on_and_waited_for() {
    let (bench, held) = (Bench::with(bounded), Held::new());
    let mut h2 = bench.h2();
    let mut stream = h2.begin("PUT", "/users/1", &[("fence-token", bench.token()), ("x-store", &held.wish())]);
    stream.send(b"value", true);
    until_store_has_it(&bench);
    stream.reset(Reason::CANCEL);
    // The gate has read past the reset.
    h2.call("PUT", "/users/2", &[], b"").refusal(428, "WRITE_UNFENCED");
    is_carried_on(&bench, &held);
}

/// Bodies of more than a few bytes stream.
fn streaming(settings: &mut Settings) {
    bounded(settings);
    settings.gate.hold_bytes = 16;
}

const FIRST: [u8; 32] = [b'x'; 32];
const SECOND: [u8; 16] = [b'x'; 16];

/// Sends a body in two pieces; the store gets at least the first one.
fn feed(bench: &Bench, mut send: impl FnMut(&[u8])) {
    send(&FIRST);
    until("the store has the head", || bench.store.saw("begun") == 1);
    send(&SECOND);
    until("the store has some of the body", || bench.store.saw("body") == 1);
}

/// The write broke off: its object waits for the bound.
fn is_waited_out(bench: &Bench) {
    until("the store has seen it break off", || bench.store.saw("cut") == 1);
    // The bound counts from here on, so the clock must not move before.
    until("the gate counts it as unknown", || bench.gate.shows("fencegate_unknown_outcomes_total 1\n"));
    no_store_connection_is_busy(bench);
    let next = begin_handover(bench);
    // A second has passed by then.
    bench.gate.clock.advance(BOUND - 1_001);
    still_waits(&bench.gate, &next);
    bench.gate.clock.advance(1);
    let lease = received("the answer to the next holder", &next).expect(201);
    assert_eq!(lease["drain"], json!({ "settled": 0, "cancelled": 0, "unknown": 1, "waited_ms": BOUND - 1_000 }));
    assert_eq!(bench.store.story().len(), 0);
}

#[test]
fn a_write_whose_http_2_stream_is_reset_half_way_is_unknown() {
    let bench = Bench::with(streaming);
    let mut h2 = bench.h2();
    let mut stream = h2.begin("PUT", "/users/1", &[("fence-token", bench.token())]);
    feed(&bench, |piece| stream.send(piece, false));
    stream.reset(Reason::CANCEL);
    is_waited_out(&bench);
}

/// A gate whose port has TLS, and curl in the middle of a write to it. The test feeds the body.
fn with_tls(authority: &Authority, protocol: &str, wish: &str) -> (Bench, Child) {
    let (certificate, key) = authority.sign("gate.test");
    let bench = Bench::with(|settings| {
        streaming(settings);
        (settings.gate.tls_cert_file, settings.gate.tls_key_file) = (certificate, key);
    });
    let port = bench.gate.running().listens.port();
    let curl = Command::new("curl")
        .args(["-q", "-s", "--noproxy", "*", protocol, "--no-buffer", "-H", "expect:", "-T", "-", "--cacert"])
        .arg(authority.ca())
        .args(["--resolve", &format!("gate.test:{port}:127.0.0.1")])
        .args(["-H", &format!("fence-token: {}", bench.token()), "-H", &format!("x-store: {wish}")])
        .arg(format!("https://gate.test:{port}/users/1"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    (bench, curl)
}

fn kill(mut curl: Child) {
    curl.kill().unwrap();
    curl.wait().unwrap();
}

#[test]
fn a_write_whose_tls_client_is_lost_is_carried_on_and_waited_for() {
    for protocol in ["--http1.1", "--http2"] {
        println!("{protocol}");
        let (authority, held) = (Authority::new(), Held::new());
        let (bench, mut curl) = with_tls(&authority, protocol, &held.wish());
        feed(&bench, |piece| curl.stdin.as_mut().unwrap().write_all(piece).unwrap());
        drop(curl.stdin.take());
        until_store_has_it(&bench);
        kill(curl);
        until_alone(&bench);
        is_carried_on(&bench, &held);
    }
}

#[test]
fn a_write_whose_tls_client_is_lost_half_way_is_unknown() {
    for protocol in ["--http1.1", "--http2"] {
        println!("{protocol}");
        let authority = Authority::new();
        let (bench, mut curl) = with_tls(&authority, protocol, "200");
        feed(&bench, |piece| curl.stdin.as_mut().unwrap().write_all(piece).unwrap());
        // The test's end of the pipe stays open, so curl does not send an end of the body.
        let pipe = curl.stdin.take();
        kill(curl);
        is_waited_out(&bench);
        drop(pipe);
    }
}
