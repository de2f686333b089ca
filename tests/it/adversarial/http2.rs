//! The same over HTTP/2, in frames that no client would send. `bodies` is a table of cases, and is not split for its
//! length.

use fencegate::config::{ReadsBodies, RouteSettings, Settings};

use super::{Play, Range, caught, caught_with, hold, judge::Sight, store::Reads};
use crate::support::h2::{Outcome, RawH2};

/// A request's fields, body and trailers, and what must come of it.
pub(super) struct Frames {
    name: String,
    fields: Vec<(String, String)>,
    body: Option<Vec<u8>>,
    trailers: Vec<(&'static str, &'static str)>,
    expected: Expected,
    /// The trailers that the store sees.
    passes: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Expected {
    /// The stream or the connection is ended: it is no HTTP/2.
    Ended,
    Refused(&'static str),
    Sees(&'static str),
}

use Expected::{Ended, Refused, Sees};

/// A request with the pseudo-fields of a client, but for those that are replaced. An empty one is left out.
fn frames(name: &str, changes: &[(&str, &str)], expected: Expected) -> Frames {
    let plain = [
        (":method", "PUT"),
        (":scheme", "http"),
        (":authority", "store"),
        (":path", "/users/1"),
        ("fence-token", "{users}"),
    ];
    let mut fields: Vec<(String, String)> = vec![];
    for (name, value) in plain {
        let value = changes.iter().find(|(changed, _)| *changed == name).map_or(value, |(_, value)| value);
        if !value.is_empty() {
            fields.push((name.to_owned(), value.to_owned()));
        }
    }
    let is_more = |(name, _): &&(&str, &str)| !plain.iter().any(|(known, _)| known == name);
    fields.extend(changes.iter().filter(is_more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    Frames { name: name.to_owned(), fields, body: None, trailers: vec![], expected, passes: vec![] }
}

impl Frames {
    fn body(mut self, body: &[u8]) -> Self {
        self.body = Some(body.to_vec());
        self
    }

    /// One more field, also where there is one of that name.
    fn field(mut self, name: &str, value: &str) -> Self {
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The store sees this trailer.
    fn passes(mut self, line: &str) -> Self {
        self.passes.push(line.to_owned());
        self
    }

    fn trailer(mut self, name: &'static str, value: &'static str) -> Self {
        self.trailers.push((name, value));
        self
    }
}

const EVIL: &[u8] = b"PUT /other/evil HTTP/1.1\r\nHost: store\r\nContent-Length: 4\r\n\r\nevil";

fn heads() -> Vec<Frames> {
    let mut all = vec![
        frames("a plain write", &[], Sees("PUT /users/1")),
        frames("no token", &[("fence-token", "")], Refused("WRITE_UNFENCED")),
        frames("another object's token", &[("fence-token", "{other}")], Refused("LEASE_OBJECT_MISMATCH")),
        frames("no authority and no host", &[(":authority", "")], Refused("REQUEST_INVALID")),
        frames("a host instead of the authority", &[(":authority", ""), ("host", "store")], Sees("PUT /users/1")),
        frames("a host that differs", &[("host", "other")], Refused("PATH_AMBIGUOUS")),
        frames("a host that is no host", &[(":authority", ""), ("host", "h/path")], Refused("REQUEST_INVALID")),
        frames("a user in the authority", &[(":authority", "u@h")], Refused("REQUEST_INVALID")),
        frames("a path in the authority", &[(":authority", "h/x")], Ended),
        frames("no method", &[(":method", "")], Ended),
        frames("no path", &[(":path", "")], Ended),
        frames("no scheme", &[(":scheme", "")], Ended),
        frames("CONNECT", &[(":method", "CONNECT"), (":path", ""), (":scheme", "")], Refused("TUNNEL_REFUSED")),
        frames("TRACE", &[(":method", "TRACE")], Refused("TUNNEL_REFUSED")),
        frames("a pseudo-field that there is not", &[(":evil", "x")], Ended),
        frames("a pseudo-field of answers", &[(":status", "200")], Ended),
        frames("a path without a slash", &[(":path", "users/1")], Ended),
        frames("a dot segment", &[(":path", "/users/../other/1")], Refused("PATH_AMBIGUOUS")),
        frames("an encoded slash", &[(":path", "/users%2f1")], Refused("PATH_AMBIGUOUS")),
        frames("a space in the path", &[(":path", "/users/ 1")], Ended),
        frames("a line end in the path", &[(":path", "/users/1\r\nx: y")], Ended),
        frames("a line end in a value", &[("x", "a\r\nfence-seq: 9")], Ended),
        frames("a line feed in a value", &[("x", "a\nb")], Ended),
        frames("a NUL in a value", &[("x", "a\0b")], Ended),
        frames("a line end in a name", &[("x\r\ny", "z")], Ended),
        frames("a name in capitals", &[("X-Upper", "z")], Ended),
        frames("a name with a space", &[("x y", "z")], Ended),
        frames("a name with a colon", &[("x:y", "z")], Ended),
        frames("an empty name", &[("", "z")], Ended),
        frames("a line end in the method", &[(":method", "PUT / HTTP/1.1\r\nx: y")], Ended),
        frames("transfer-encoding", &[("transfer-encoding", "chunked")], Ended),
        frames("connection", &[("connection", "close")], Ended),
        frames("keep-alive", &[("keep-alive", "timeout=5")], Ended),
        frames("proxy-connection", &[("proxy-connection", "close")], Ended),
        frames("upgrade", &[("upgrade", "websocket")], Ended),
        frames("te other than trailers", &[("te", "gzip")], Ended),
        frames("content_length", &[("content_length", "5")], Refused("REQUEST_INVALID")),
        frames("transfer_encoding", &[("transfer_encoding", "chunked")], Refused("REQUEST_INVALID")),
        frames("a method override", &[("x-http-method-override", "DELETE")], Refused("METHOD_OVERRIDE_REFUSED")),
        frames("x-original-url", &[("x-original-url", "/other/1")], Refused("PATH_AMBIGUOUS")),
        frames("the token's name with a space behind it", &[("fence-token ", "x")], Ended),
        frames("two tokens", &[], Refused("FENCE_TOKEN_MALFORMED")).field("fence-token", "{other}"),
        frames("the same token twice", &[], Refused("FENCE_TOKEN_MALFORMED")).field("fence-token", "{users}"),
        frames("two paths", &[], Ended).field(":path", "/other/1"),
        frames("two methods", &[], Ended).field(":method", "GET"),
        frames("two authorities", &[], Ended).field(":authority", "other"),
    ];
    // The library cuts a fragment off before the gate sees the path: what is left is judged, and the store sees no more.
    for (path, sees) in
        [("/users/1#x", "PUT /users/1"), ("/users/#ment", "PUT /users/"), ("/users/1?a#b", "PUT /users/1?a")]
    {
        all.push(frames(&format!("a fragment: {path}"), &[(":path", path)], Sees(sees)));
    }
    all.push(frames("a fragment in a read", &[(":method", "GET"), (":path", "/users/1#x")], Sees("GET /users/1")));
    all.push(frames("a fragment and no object", &[(":path", "/#users/1")], Refused("OBJECT_UNMAPPED")));
    let other = [(":path", "/users/1#/../other/1"), ("fence-token", "{other}")];
    all.push(frames("a fragment with another object's token", &other, Refused("LEASE_OBJECT_MISMATCH")));
    for (name, value) in
        [("before", " x"), ("behind", "x "), ("as a tab before", "\tx"), ("as a tab behind", "x\t"), ("alone", " ")]
    {
        all.push(frames(&format!("a space {name} a value"), &[("x-edge", value)], Refused("REQUEST_INVALID")));
    }
    all
}

fn bodies() -> Vec<Frames> {
    let mut all = vec![];
    for method in ["GET", "HEAD", "OPTIONS"] {
        all.push(
            frames(&format!("{method} with a body"), &[(":method", method)], Refused("REQUEST_INVALID")).body(EVIL),
        );
        let sized = [(":method", method), ("content-length", "64")];
        all.push(frames(&format!("{method} with a length and a body"), &sized, Refused("REQUEST_INVALID")).body(EVIL));
    }
    all.extend([
        frames("GET with an empty frame", &[(":method", "GET")], Sees("GET /users/1")).body(b""),
        frames("DELETE with a body", &[(":method", "DELETE")], Sees("DELETE /users/1")).body(EVIL),
        frames("a write with a body", &[], Sees("PUT /users/1")).body(EVIL),
        frames("a body that is shorter than its length", &[("content-length", "10")], Ended).body(b"value"),
        frames("a body that is longer than its length", &[("content-length", "3")], Ended).body(b"value"),
        frames("no body and a length", &[("content-length", "3")], Ended),
        frames("two lengths that differ", &[("content-length", "5"), ("content-length", "6")], Ended).body(b"value"),
        frames(
            "the same length twice",
            &[("content-length", "5"), ("content-length", "5")],
            Refused("REQUEST_INVALID"),
        )
        .body(b"value"),
        frames("a length that is no number", &[("content-length", "x")], Ended).body(b"value"),
        frames("a trailer that is not listed", &[], Sees("PUT /users/1"))
            .body(b"value")
            .trailer("destination", "/other/1"),
        frames("another trailer that is not listed", &[], Sees("PUT /users/1"))
            .body(b"value")
            .trailer("x-anything", "x"),
        frames("a listed trailer", &[], Sees("PUT /users/1"))
            .body(b"value")
            .trailer("content-digest", "x")
            .passes("content-digest: x"),
        frames("a token as a trailer", &[], Refused("FENCE_TOKEN_MALFORMED"))
            .body(b"value")
            .trailer("fence-token", "x"),
        frames("a pseudo-field behind a trailer", &[], Ended)
            .body(b"value")
            .trailer("x", "a")
            .trailer(":path", "/other/1"),
        frames("a pseudo-field twice as a trailer", &[], Ended)
            .body(b"value")
            .trailer(":path", "/other/1")
            .trailer(":path", "/other/2"),
        frames("a pseudo-field that there is not, as a trailer", &[], Ended).body(b"value").trailer(":evil", "x"),
        frames("a line end in a trailer", &[], Ended).body(b"value").trailer("x", "a\r\nb"),
        frames("a name in capitals in a trailer", &[], Ended).body(b"value").trailer("X", "a"),
    ]);
    // The library drops these and hands the rest on, so the gate cannot refuse them; the store sees nothing of them.
    for (name, value) in [
        (":method", "DELETE"),
        (":path", "/other/1"),
        (":authority", "other"),
        (":scheme", "https"),
        (":protocol", "websocket"),
        (":status", "200"),
    ] {
        let case = |more: &str| frames(&format!("{name} as a trailer{more}"), &[], Sees("PUT /users/1")).body(b"value");
        all.push(case("").trailer(name, value));
        all.push(
            case(" beside a listed one")
                .trailer(name, value)
                .trailer("content-digest", "x")
                .passes("content-digest: x"),
        );
        all.push(
            frames(&format!("{name} as a trailer of a read"), &[(":method", "GET")], Sees("GET /users/1"))
                .body(b"")
                .trailer(name, value),
        );
    }
    all
}

pub(super) fn cases() -> Vec<Frames> {
    heads().into_iter().chain(bodies()).collect()
}

impl Play for Frames {
    fn name(&self) -> &str {
        &self.name
    }

    fn expected(&self) -> String {
        format!("{:?}", self.expected)
    }

    fn play(&self, range: &Range) {
        let mut h2 = RawH2::open(range.listens());
        let filled: Vec<(String, String)> = self
            .fields
            .iter()
            .map(|(name, value)| (name.clone(), String::from_utf8(range.fill(value.as_bytes())).unwrap()))
            .collect();
        let fields: Vec<(&str, &str)> = filled.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        h2.send_headers(1, &fields, self.body.is_none());
        if let Some(body) = &self.body {
            h2.send_data(1, body, self.trailers.is_empty());
            if !self.trailers.is_empty() {
                h2.send_headers(1, &self.trailers, true);
            }
        }
        self.compare(h2.outcome(1));
        let body = self.body.clone().unwrap_or_default();
        let sees = if let Sees(line) = self.expected { vec![Sight::with(line, body)] } else { vec![] };
        range.judge(&sees, &self.passes);
        range.probe();
        drop(h2);
        range.saw_nothing_more();
    }
}

impl Frames {
    #[track_caller]
    fn compare(&self, outcome: Outcome) {
        match (self.expected, outcome) {
            (Ended, Outcome::Ended) => {}
            (Sees(_), Outcome::Answered { status, body }) => {
                assert_eq!((status, &*body), (Some(200), &b"ok"[..]), "the store's answer");
            }
            // The answer to a HEAD has no body.
            (Refused(_), Outcome::Answered { status, body }) if body.is_empty() => {
                assert_eq!((status, self.is_head()), (Some(400), true), "an answer without a body");
            }
            (Refused(code), Outcome::Answered { body, .. }) => {
                let problem: serde_json::Value = serde_json::from_slice(&body)
                    .unwrap_or_else(|_| panic!("expected {code}, found {:?}", String::from_utf8_lossy(&body)));
                assert_eq!(problem["code"], code, "{problem}");
            }
            (expected, outcome) => panic!("expected {expected:?}, found {outcome:?}"),
        }
    }

    fn is_head(&self) -> bool {
        self.fields.iter().any(|(name, value)| name == ":method" && value == "HEAD")
    }
}

#[test]
fn over_http_2_nothing_gets_past_either() {
    hold(&cases(), |_| {});
}

/// Frames say where a request begins and ends, so the others of its connection are what they were.
#[test]
fn behind_a_refused_stream_its_connection_goes_on() {
    let range = Range::new(Reads::EveryBody, &|_| {});
    let mut h2 = RawH2::open(range.listens());
    let head = |path, more: &[(&'static str, &'static str)]| {
        let fields = [(":method", "GET"), (":scheme", "http"), (":authority", "store"), (":path", path)];
        [&fields[..], more].concat()
    };
    h2.send_headers(1, &head("/users/1", &[("content_length", "5")]), true);
    h2.send_headers(3, &head("/users/ 1", &[]), true);
    h2.send_headers(5, &head("/users/2", &[]), true);
    let outcomes = h2.outcomes(&[1, 3, 5]);
    assert!(
        matches!(
            outcomes[..],
            [Outcome::Answered { status: Some(400), .. }, Outcome::Ended, Outcome::Answered { status: Some(200), .. }]
        ),
        "{outcomes:?}"
    );
    range.judge(&[Sight::of("GET /users/2")], &[]);
}

#[test]
fn a_gate_that_is_not_strict_is_caught_over_http_2() {
    caught(
        &cases(),
        |settings| settings.gate.strict = false,
        &["a space before a value", "no authority and no host", "content_length"],
    );
}

#[test]
fn a_gate_that_lets_reads_have_bodies_is_caught_over_http_2() {
    let lets = |settings: &mut Settings| {
        settings.route = vec![RouteSettings { bodies_on_reads: true, ..Default::default() }];
    };
    caught(&cases(), lets, &["GET with a body", "OPTIONS with a length and a body"]);
}

/// A write in the body of a DELETE, before a store that does not read it.
#[test]
fn a_gate_that_believes_every_body_to_be_read_is_caught_over_http_2() {
    caught(&cases(), |settings| settings.store.reads_bodies = ReadsBodies::All, &["DELETE with a body"]);
}

#[test]
fn a_gate_that_passes_a_trailer_on_is_caught_over_http_2() {
    let lists = |settings: &mut Settings| settings.gate.trailers = vec!["x-anything".to_owned()];
    caught(&cases(), lists, &["another trailer that is not listed"]);
}

#[test]
fn a_gate_that_cuts_bodies_is_caught_over_http_2() {
    caught_with(&cases(), "cut-body", &["a write with a body", "a listed trailer"]);
}
