//! Writes with an Idempotency-Key, over real HTTP: each runs once.

mod bad_input;
mod crash;
mod replay;
mod twins;

use super::support::{
    bench::Bench,
    gate::{acquire, text},
    http::Response,
    until,
};

/// A PUT to `users` with a key.
pub fn put(bench: &Bench, token: &str, key: &str, body: &[u8], more: &[(&str, &str)]) -> Response {
    let headers: Vec<_> = more.iter().copied().chain([("fence-token", token), ("idempotency-key", key)]).collect();
    bench.gate.gate().call("PUT", "/users/1", &headers, body)
}

/// Checks that the write had run before, and that this is its first answer.
#[track_caller]
pub fn is_replay(answer: &Response, of: &Response) {
    assert_eq!(answer.header("idempotency-replayed"), Some("true"), "{answer:?}");
    assert_eq!((answer.status, &answer.body), (of.status, &of.body));
    for name in ["fence-seq", "fence-outcome", "content-type"] {
        assert_eq!(answer.header(name), of.header(name), "{name}");
    }
}

/// Checks a refusal of a write that may have been applied.
#[track_caller]
pub fn is_refused(answer: &Response, status: u16, code: &str, side_effect: &str) {
    let body = answer.json();
    assert_eq!((answer.status, body["code"].as_str()), (status, Some(code)), "{body}");
    assert_eq!((answer.header("fence-error"), body["side_effect"].as_str()), (Some(code), Some(side_effect)));
    assert!(answer.header("idempotency-replayed").is_none());
}
