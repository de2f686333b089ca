//! The same over HTTP/2, in frames that no client would send.

use super::{Range, Seen, store::Reads};
use crate::support::h2::{Outcome, RawH2};

/// A request's fields, body and trailers, and what must come of it.
struct Frames {
    name: String,
    fields: Vec<(String, String)>,
    body: Option<Vec<u8>>,
    trailers: Vec<(&'static str, &'static str)>,
    expected: Expected,
}

#[derive(Clone, Debug, PartialEq)]
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
    Frames { name: name.to_owned(), fields, body: None, trailers: vec![], expected }
}

impl Frames {
    fn body(mut self, body: &[u8]) -> Self {
        self.body = Some(body.to_vec());
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
        frames("two tokens", &[("x-first", "1"), ("fence-token ", "x")], Ended),
    ];
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
        frames("a token as a trailer", &[], Refused("FENCE_TOKEN_MALFORMED"))
            .body(b"value")
            .trailer("fence-token", "x"),
        frames("a line end in a trailer", &[], Ended).body(b"value").trailer("x", "a\r\nb"),
        frames("a name in capitals in a trailer", &[], Ended).body(b"value").trailer("X", "a"),
    ]);
    all
}

/// Plays one case; says what was wrong.
fn play(range: &Range, case: &Frames) -> Result<(), String> {
    let mut h2 = RawH2::open(range.gate.running().listens);
    let filled: Vec<(String, String)> = case
        .fields
        .iter()
        .map(|(name, value)| (name.clone(), String::from_utf8(range.fill(value.as_bytes())).unwrap()))
        .collect();
    let fields: Vec<(&str, &str)> = filled.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    h2.send_headers(1, &fields, case.body.is_none());
    if let Some(body) = &case.body {
        h2.send_data(1, body, case.trailers.is_empty());
        if !case.trailers.is_empty() {
            h2.send_headers(1, &case.trailers, true);
        }
    }
    let found = match h2.outcome(1) {
        Outcome::Ended => Ended,
        Outcome::Answered(body) => match serde_json::from_slice::<serde_json::Value>(&body) {
            Ok(problem) => Refused(problem["code"].as_str().unwrap().to_owned().leak()),
            // The answer to a HEAD has none.
            Err(_) if body.is_empty() => case.expected.clone(),
            Err(_) => Sees(range.store.take().first().map_or_else(String::new, |seen: &Seen| seen.line.clone()).leak()),
        },
    };
    let late = range.store.take();
    if found != case.expected || !late.is_empty() {
        return Err(format!("{}: expected {:?}, found {found:?}; the store saw {late:?}", case.name, case.expected));
    }
    range.probe();
    Ok(())
}

#[test]
fn over_http_2_nothing_gets_past_either() {
    let cases: Vec<Frames> = heads().into_iter().chain(bodies()).collect();
    let mut failed = vec![];
    for reads in [Reads::EveryBody, Reads::OnlyWhatItMust] {
        let range = Range::new(reads, &|_| {});
        failed.extend(cases.iter().filter_map(|case| play(&range, case).err()));
    }
    println!("HTTP/2: {} cases, each before two kinds of stores", cases.len());
    cases.iter().for_each(|case| println!("  {:<64} {:?}", case.name, case.expected));
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn a_gate_that_is_not_strict_is_caught_over_http_2() {
    let range = Range::new(Reads::EveryBody, &|settings| settings.gate.strict = false);
    let wanted = ["a space before a value", "no authority and no host", "content_length"];
    let cases: Vec<Frames> = heads().into_iter().filter(|case| wanted.contains(&case.name.as_str())).collect();
    assert_eq!(cases.len(), wanted.len());
    for case in &cases {
        assert!(play(&range, case).is_err(), "{} was not caught", case.name);
    }
}
