//! Trailers: nothing that the gate judges by comes behind a body.

use super::{Range, case, caught, caught_with, hold, store::Reads, write};

const LISTED: [&str; 3] = ["content-digest", "x-amz-checksum-crc32", "content-md5"];
const OTHERS: [&str; 16] = [
    "Destination",
    "X-HTTP-Method-Override",
    "X-Original-URL",
    "X-Rewrite-URL",
    "Host",
    "Content-Length",
    "Transfer-Encoding",
    "Authorization",
    "Fence-Seq",
    "Fence-Object",
    "Fence_Token",
    "If-Match",
    "X-Forwarded-For",
    "Idempotency-Key",
    "Connection",
    "X-Anything",
];

/// A write in chunks with a trailer, which it announces or not. `size`: of its body.
fn with_trailer(name: &str, size: usize, announces: bool) -> String {
    let announced = if announces { format!("Trailer: {name}\r\n") } else { String::new() };
    let rest = format!(
        "{announced}Transfer-Encoding: chunked\r\n\r\n{size:x}\r\n{}\r\n0\r\n{name}: x\r\n\r\n",
        "v".repeat(size)
    );
    write("PUT /users/1", &rest)
}

/// Held, and streamed.
const SIZES: [usize; 2] = [5, 100_000];

pub(super) fn cases() -> Vec<super::Case> {
    let mut cases = vec![];
    for size in SIZES {
        for name in LISTED.iter().chain(&OTHERS) {
            for announces in [true, false] {
                let how = if announces { "announced" } else { "not announced" };
                let bytes = with_trailer(name, size, announces);
                let passes =
                    case(format!("{name} behind {size} bytes, {how}"), bytes).stores("PUT /users/1", "v".repeat(size));
                // One that streams must be announced.
                let comes = LISTED.contains(name) && (announces || size == SIZES[0]);
                cases.push(if comes { passes.with_trailer(format!("{name}: x")) } else { passes });
            }
        }
    }
    cases
}

#[test]
fn writes_with_trailers_are_forwarded() {
    hold(&cases(), |_| {});
}

/// The trailers that the store saw of these writes.
fn seen(trailers: &[&str], change: &dyn Fn(&mut fencegate::config::Settings)) -> Vec<String> {
    let range = Range::new(Reads::EveryBody, change);
    let mut seen = vec![];
    for name in trailers {
        for size in SIZES {
            for announces in [true, false] {
                let mut conn = range.conn();
                conn.send_raw(&range.fill(with_trailer(name, size, announces).as_bytes())).unwrap();
                assert_eq!(conn.receive().unwrap().status, 200);
                let came = range.store.take();
                assert_eq!((came.len(), came[0].body.as_ref().map(Vec::len)), (1, Some(size)));
                let announced = came[0].field("trailer").map(str::to_owned);
                assert!(
                    announced.is_none_or(|announced| LISTED.contains(&announced.as_str()) || announced == "x-anything")
                );
                seen.extend(came[0].trailers.iter().map(|line| line.split(':').next().unwrap().to_owned()));
            }
        }
    }
    seen
}

#[test]
fn only_listed_trailers_reach_the_store() {
    assert_eq!(seen(&OTHERS, &|_| {}), Vec::<String>::new());
    // One that streams must be announced.
    for name in LISTED {
        assert_eq!(seen(&[name], &|_| {}), [name; 3]);
    }
    // The control: a gate that lists it passes it on.
    let lists = |settings: &mut fencegate::config::Settings| settings.gate.trailers = vec!["x-anything".to_owned()];
    assert_eq!(seen(&["X-Anything"], &lists), ["x-anything"; 3]);
}

/// The gate does not judge a trailer of the table, and this gate passes it on.
#[test]
fn a_gate_that_passes_a_trailer_on_is_caught() {
    let lists = |settings: &mut fencegate::config::Settings| {
        settings.gate.trailers = [&LISTED[..], &["x-anything"]].concat().into_iter().map(str::to_owned).collect();
    };
    caught(
        &cases(),
        lists,
        &[
            "X-Anything behind 5 bytes, announced",
            "X-Anything behind 5 bytes, not announced",
            "X-Anything behind 100000 bytes, announced",
        ],
    );
}

/// A Destination that no judge has seen. No setting can list it.
#[test]
fn a_gate_that_passes_every_trailer_on_is_caught() {
    caught_with(
        &cases(),
        "pass-trailers",
        &[
            "Destination behind 5 bytes, announced",
            "X-HTTP-Method-Override behind 5 bytes, not announced",
            "Fence_Token behind 5 bytes, not announced",
        ],
    );
}

#[test]
fn a_body_that_is_too_long_is_caught() {
    caught(&cases(), |settings| settings.gate.body_bytes_max = 10, &["content-md5 behind 100000 bytes, announced"]);
}
