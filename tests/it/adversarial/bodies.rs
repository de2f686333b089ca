//! Bodies where there should be none: to a store that does not read them, they are its next request.

use fencegate::config::{ReadsBodies, RouteSettings, Settings};

use super::{Case, Range, case, caught, hold, request, store::Reads, write};

/// A write that was never judged, in the place of a body.
const EVIL: &str = "PUT /other/evil HTTP/1.1\r\nHost: store\r\nContent-Length: 4\r\n\r\nevil";
/// The same, as the gate itself would send it.
const DISGUISED: &str =
    "PUT /other/evil HTTP/1.1\r\nHost: store\r\nFence-Seq: 1\r\nFence-Object: other\r\nContent-Length: 4\r\n\r\nevil";

/// A body, by its length and in chunks. One byte cannot be halved: an empty chunk would be the end.
fn framed(body: &str) -> [(&'static str, String); 3] {
    let (first, second) = body.split_at(body.len() / 2);
    let chunks = |parts: &[&str]| {
        let chunk = |part: &&str| format!("{:x}\r\n{part}\r\n", part.len());
        let parts: String = parts.iter().filter(|part| !part.is_empty()).map(chunk).collect();
        format!("Transfer-Encoding: chunked\r\n\r\n{parts}0\r\n\r\n")
    };
    [
        ("a length", format!("Content-Length: {}\r\n\r\n{body}", body.len())),
        ("one chunk", chunks(&[body])),
        ("two chunks", chunks(&[first, second])),
    ]
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![];
    for (what, body) in
        [("a write", EVIL), ("a write with fence headers", DISGUISED), ("a byte", "x"), ("a line end", "\r\n")]
    {
        for (how, rest) in framed(body) {
            for method in ["GET", "HEAD", "OPTIONS"] {
                let bytes = request(&format!("{method} /users/x"), &rest);
                cases.push(case(format!("{method} with {what} for a body, by {how}"), bytes).doubted());
            }
            for method in ["DELETE", "MKCOL", "PROPFIND", "LOCK", "PURGE", "REPORT"] {
                let line = format!("{method} /users/1");
                cases.push(
                    case(format!("{method} with {what} for a body, by {how}"), write(&line, &rest)).stores(&line, body),
                );
            }
            for method in ["PUT", "POST", "PATCH"] {
                let line = format!("{method} /users/1");
                cases.push(
                    case(format!("{method} with {what} for a body, by {how}"), write(&line, &rest)).stores(&line, body),
                );
            }
        }
    }
    let get = |rest: &str| request("GET /users/x", rest);
    cases.extend([
        case("GET with no body, by its length", get("Content-Length: 0\r\n\r\n")).passes("GET /users/x"),
        case("GET with no body, in chunks", get("Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")).doubted(),
        case(
            "GET that waits to be asked for its body",
            get(&format!("Expect: 100-continue\r\nContent-Length: {}\r\n\r\n", EVIL.len())),
        )
        .doubted(),
        case("GET of no route with a body", request("GET /", "Content-Length: 1\r\n\r\nx")).doubted(),
        case("GET with a length of zeros", get("Content-Length: 00\r\n\r\n")).doubted(),
        case("GET with a length and no body", get("Content-Length: 57\r\n\r\n")).ends().doubted(),
        case(
            "a read, and a write behind it in the same bytes",
            get("\r\n") + &write("PUT /users/2", "Content-Length: 1\r\n\r\nx"),
        )
        .passes("GET /users/x")
        .stores("PUT /users/2", "x"),
        case(
            "a read with a body, and a write behind it in the same bytes",
            get("Content-Length: 1\r\n\r\nx") + &write("PUT /users/2", "Content-Length: 1\r\n\r\nx"),
        )
        .doubted(),
        case("DELETE without a body", write("DELETE /users/1", "\r\n")).passes("DELETE /users/1"),
        case("DELETE with a length of 0", write("DELETE /users/1", "Content-Length: 0\r\n\r\n"))
            .passes("DELETE /users/1"),
        case(
            "DELETE with an empty body in chunks",
            write("DELETE /users/1", "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        )
        .passes("DELETE /users/1"),
    ]);
    cases
}

/// Writes that a store answers without reading their bodies, with 2xx too.
pub(super) fn unread() -> Vec<Case> {
    let mut cases = vec![];
    for (how, rest) in framed(EVIL) {
        for method in ["PUT", "POST", "PATCH", "DELETE"] {
            for status in [200, 201, 204, 301, 404, 500] {
                let line = format!("{method} /users/1");
                let bytes = write(&line, &format!("x-store: {status}\r\n{rest}"));
                cases.push(
                    case(format!("{method} by {how}, answered with {status}"), bytes)
                        .answered(status, &line)
                        .carrying(EVIL),
                );
            }
        }
    }
    cases
}

#[test]
fn no_body_becomes_a_request_of_a_store_that_reads_none() {
    hold(&unread(), |settings| settings.store.reads_bodies = ReadsBodies::None);
}

/// By default a gate believes a 2xx.
#[test]
fn a_gate_that_believes_a_store_that_reads_none_is_caught() {
    caught(
        &unread(),
        |_| {},
        &[
            "PUT by a length, answered with 200",
            "PATCH by one chunk, answered with 204",
            "POST by a length, answered with 404",
        ],
    );
}

#[test]
fn no_body_becomes_a_request() {
    hold(&cases(), |_| {});
}

#[test]
fn a_gate_that_lets_reads_have_bodies_is_caught() {
    let lets = |settings: &mut Settings| {
        settings.route = vec![RouteSettings { bodies_on_reads: true, ..Default::default() }];
    };
    caught(
        &cases(),
        lets,
        &["GET with a write for a body, by a length", "OPTIONS with a write for a body, by one chunk"],
    );
}

#[test]
fn a_gate_that_believes_every_body_to_be_read_is_caught() {
    let believes = |settings: &mut Settings| settings.store.reads_bodies = ReadsBodies::All;
    caught(
        &cases(),
        believes,
        &[
            "DELETE with a write for a body, by a length",
            "PROPFIND with a write with fence headers for a body, by two chunks",
        ],
    );
}

/// Sends a write that the store answers with an error, and says on how many connections the store has been spoken to then
/// and with the next write.
fn connections(reads: Reads, change: &dyn Fn(&mut Settings), line: &str, rest: &str) -> (usize, usize) {
    let range = Range::new(reads, change);
    let mut conn = range.conn();
    conn.send_raw(&range.fill(write(line, rest).as_bytes())).unwrap();
    let path = line.split(' ').nth(1);
    assert_eq!(conn.receive().unwrap().header("x-path"), path);
    let first = range.store.connections();
    // Such a store breaks HTTP: it takes the body for a request, unless it was asked to close the connection. The next
    // client is not to be drawn into it.
    let seen = range.store.take();
    let is_lazy = reads == Reads::OnlyWhatItMust && rest.contains("x-store") && rest.contains("evil");
    let own = usize::from(is_lazy && seen[0].field("connection") != Some("close"));
    assert_eq!(seen.len(), 1 + own, "{seen:?}");
    let answer = conn.call("PUT", "/users/next", &[("fence-token", range.token())], b"value");
    assert_eq!((answer.status, answer.header("x-path")), (200, Some("/users/next")), "the next client's answer");
    (first, range.store.connections())
}

/// A store may have answered without reading the body. Behind such an answer its connection is not used again, unless the
/// store is known to read every body.
#[test]
fn behind_an_error_a_connection_that_carried_a_body_is_not_used_again() {
    let body = format!("Content-Length: {}\r\n\r\n{EVIL}", EVIL.len());
    for status in
        ["301", "302", "307", "308", "400", "401", "403", "404", "405", "409", "412", "413", "417", "500", "501"]
    {
        let rest = format!("x-store: {status}\r\n{body}");
        for method in ["PUT", "POST", "PATCH"] {
            let line = format!("{method} /users/1");
            assert_eq!(connections(Reads::OnlyWhatItMust, &|_| {}, &line, &rest), (1, 2), "{method} and {status}");
        }
    }
    for status in ["200", "201", "204"] {
        let rest = format!("x-store: {status}\r\n{body}");
        assert_eq!(connections(Reads::EveryBody, &|_| {}, "PUT /users/1", &rest), (1, 1), "PUT and {status}");
    }
    let reads = |settings: &mut Settings| settings.store.reads_bodies = ReadsBodies::All;
    let rest = format!("x-store: 404\r\n{body}");
    assert_eq!(connections(Reads::EveryBody, &reads, "PUT /users/1", &rest), (1, 1), "a store that reads bodies");
    assert_eq!(connections(Reads::EveryBody, &reads, "DELETE /users/1", &body), (1, 1), "a store that reads bodies");
    let none = |settings: &mut Settings| settings.store.reads_bodies = ReadsBodies::None;
    for status in ["200", "204", "404"] {
        let rest = format!("x-store: {status}\r\n{body}");
        for reads in [Reads::OnlyWhatItMust, Reads::EveryBody] {
            assert_eq!(connections(reads, &none, "PUT /users/1", &rest), (1, 2), "{reads:?} and {status}");
        }
    }
    // Without a body there is nothing to be left unread.
    assert_eq!(
        connections(Reads::OnlyWhatItMust, &|_| {}, "PUT /users/1", "x-store: 404\r\nContent-Length: 0\r\n\r\n"),
        (1, 1)
    );
    assert_eq!(connections(Reads::OnlyWhatItMust, &|_| {}, "DELETE /users/1", "x-store: 404\r\n\r\n"), (1, 1));
}

/// Hardly any server reads the bodies of reads, whatever its operator says about other bodies.
#[test]
fn behind_a_read_with_a_body_a_connection_is_never_used_again() {
    let rest = format!("Content-Length: {}\r\n\r\n{EVIL}", EVIL.len());
    for reads_bodies in [ReadsBodies::All, ReadsBodies::Accepted, ReadsBodies::None] {
        let change = |settings: &mut Settings| {
            settings.store.reads_bodies = reads_bodies;
            settings.route = vec![RouteSettings { bodies_on_reads: true, ..Default::default() }];
        };
        for reads in [Reads::OnlyWhatItMust, Reads::EveryBody] {
            for line in ["GET /users/x", "OPTIONS /users/x"] {
                assert_eq!(connections(reads, &change, line, &rest), (1, 2), "{line}, {reads:?}, {reads_bodies:?}");
            }
        }
    }
}

/// A route may say that its store reads every body.
#[test]
fn the_setting_of_a_route_counts_for_its_connections() {
    let body = format!("Content-Length: {}\r\n\r\n{EVIL}", EVIL.len());
    for (reads_bodies, expected) in [(ReadsBodies::All, (1, 1)), (ReadsBodies::None, (1, 2))] {
        let change = |settings: &mut Settings| {
            let mut route = RouteSettings::default();
            route.store.reads_bodies = Some(reads_bodies);
            settings.route = vec![route];
        };
        for line in ["DELETE /users/1", "PUT /users/1"] {
            assert_eq!(connections(Reads::EveryBody, &change, line, &body), expected, "{line}, {reads_bodies:?}");
        }
    }
}
