//! An HTTP/2 client that does not take its answer: its stream is reset, and the other streams of its connection go on.
//! Behind a proxy, these may belong to other clients.

use ::h2::Reason;

use super::LARGE;
use crate::support::{
    bench::Bench,
    h2::{CANCEL, H2, RawH2},
    until,
};

/// The head of a GET on a separate stream.
fn get(h2: &mut RawH2, stream: u32, store: &str) {
    let head =
        [(":method", "GET"), (":scheme", "http"), (":authority", "store"), (":path", "/users/x"), ("x-store", store)];
    h2.send_headers(stream, &head, true);
}

#[test]
fn an_answer_that_is_not_taken_does_not_break_off_the_writes_beside_it() {
    let bench = Bench::new();
    let mut h2 = H2::that_takes_nothing(bench.gate.running().listens);
    let mut read = h2.begin("GET", "/users/x", &[("x-store", LARGE)]);
    read.send(b"", true);
    assert_eq!(read.read_head().0, 200);
    bench.gate.clock.advance(20_000);
    let length = [("fence-token", bench.token()), ("content-length", "200000")];
    let mut write = h2.begin("PUT", "/users/1", &length);
    write.send(&[b'v'; 100_000], false);
    until("the beginning of the write is at the store", || bench.store.saw("begun") == 2);
    // By then the answer has waited for 35 s of at most 30 s, and the write has paused for 15 s.
    bench.gate.clock.advance(15_000);
    let cut = read.receive().expect_err("an answer that is not taken is broken off");
    assert_eq!(cut.reason(), Some(Reason::CANCEL), "{cut}");
    write.send(&[b'v'; 100_000], true);
    assert_eq!(write.read_head(), (200, "settled".to_owned()));
    assert!(bench.gate.shows("fencegate_unknown_outcomes_total 0\n"));
    // The answer's connection to the store is free again.
    until("nothing is at the store", || bench.gate.shows("fencegate_store_connections{state=\"busy\"} 0\n"));
}

#[test]
fn an_answer_that_is_taken_too_slowly_is_broken_off_though_its_client_never_pauses() {
    let bench = Bench::with(|settings| {
        settings.gate.body_timeout_ms = 2_000;
        settings.gate.pace_bytes_min = 1_000_000;
    });
    let mut h2 = RawH2::that_takes_nothing(bench.gate.running().listens);
    get(&mut h2, 1, LARGE);
    // Another client's.
    get(&mut h2, 3, "hang");
    let mut pieces = 0;
    let cut = loop {
        match h2.take(1, 16 << 10) {
            Ok(()) => pieces += 1,
            Err(cut) => break cut,
        }
        assert!(pieces < 100, "it is broken off");
        bench.gate.clock.advance(500);
        // The tick that counts a connection reads the clock.
        drop(bench.gate.gate());
        let count = format!("fencegate_connections_total {}\n", 1 + pieces);
        until("a tick has passed", || bench.gate.shows(&count));
    };
    assert_eq!(cut, CANCEL);
    assert!(pieces >= 4, "2 s are its client's: {pieces}");
    get(&mut h2, 5, "large:10");
    assert_eq!(h2.take(5, 10), Ok(()), "the connection is there");
}
