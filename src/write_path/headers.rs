//! What is taken from and added to a request, and to an answer, on its way through the gate.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, Version, header};

use crate::{config::Forwarded, fence::Permit};

const FENCE_SEQ: HeaderName = HeaderName::from_static("fence-seq");
const FENCE_OBJECT: HeaderName = HeaderName::from_static("fence-object");
const FENCE_EXPIRES_IN: HeaderName = HeaderName::from_static("fence-expires-in");
const FENCE_OUTCOME: HeaderName = HeaderName::from_static("fence-outcome");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Of one hop only: not passed on, in either direction.
const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::PROXY_AUTHENTICATE,
];

fn strip_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(header::CONNECTION) {
        let named: Vec<HeaderName> = headers
            .get_all(header::CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .filter_map(|name| name.trim().parse().ok())
            // What frames a message is never the sender's to remove.
            .filter(|name| *name != header::HOST && *name != header::CONTENT_LENGTH)
            .collect();
        for name in named {
            headers.remove(name);
        }
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Whether the client says that it takes trailers: then the gate does, too.
fn takes_trailers(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(header::TE).iter().filter_map(|value| value.to_str().ok());
    codings.any(|list| list.split(',').any(|coding| coding.trim().eq_ignore_ascii_case("trailers")))
}

/// Takes every `Fence-*` header out: they are between client and gate, or gate and store. Some stores read
/// `Fence_Seq` as the same.
pub fn strip_fence(headers: &mut HeaderMap) {
    let is_ours =
        |name: &&HeaderName| matches!(name.as_str().as_bytes(), [b'f', b'e', b'n', b'c', b'e', b'-' | b'_', ..]);
    let ours: Vec<HeaderName> = headers.keys().filter(is_ours).cloned().collect();
    for name in ours {
        headers.remove(name);
    }
}

/// HTTP/2 may split a cookie over several fields; HTTP/1.1 may not.
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(header::COOKIE).iter().nth(1).is_none() {
        return;
    }
    let cookies: Vec<&[u8]> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..])) {
        headers.insert(header::COOKIE, joined);
    }
}

/// Where a request came from.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    pub peer: Option<IpAddr>,
    pub version: Version,
    pub is_tls: bool,
    pub forwarded: Forwarded,
}

/// A request's headers, made ready for the store.
pub fn to_store<'a>(
    headers: &mut HeaderMap,
    origin: &Origin,
    permits: impl IntoIterator<Item = &'a Permit>,
    new_id: impl FnOnce() -> HeaderValue,
) {
    strip_fence(headers);
    let takes_trailers = takes_trailers(headers);
    strip_hop_by_hop(headers);
    if takes_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    if origin.version == Version::HTTP_2 {
        join_cookies(headers);
    }
    headers.remove(header::EXPECT);
    headers.remove(header::PROXY_AUTHORIZATION);
    headers.append(header::VIA, via(origin.version));
    forwarded(headers, origin);
    headers.entry(REQUEST_ID).or_insert_with(new_id);
    for permit in permits {
        headers.append(FENCE_SEQ, HeaderValue::from(permit.seq().get()));
        if let Ok(object) = HeaderValue::from_bytes(permit.object().as_str().as_bytes()) {
            headers.append(FENCE_OBJECT, object);
        }
    }
}

fn via(version: Version) -> HeaderValue {
    match version {
        Version::HTTP_2 => HeaderValue::from_static("2.0 fencegate"),
        Version::HTTP_10 => HeaderValue::from_static("1.0 fencegate"),
        _ => HeaderValue::from_static("1.1 fencegate"),
    }
}

fn forwarded(headers: &mut HeaderMap, origin: &Origin) {
    let Some(peer) = origin.peer else { return };
    let (x_forwarded, rfc7239) = match origin.forwarded {
        Forwarded::Off => (false, false),
        Forwarded::XForwarded => (true, false),
        Forwarded::Rfc7239 => (false, true),
        Forwarded::Both => (true, true),
    };
    let host = headers.get(header::HOST).cloned();
    let scheme = if origin.is_tls { "https" } else { "http" };
    if x_forwarded {
        append(headers, &FORWARDED_FOR, &peer.to_string());
        headers.entry(FORWARDED_PROTO).or_insert(HeaderValue::from_static(scheme));
        if let Some(host) = &host {
            headers.entry(FORWARDED_HOST).or_insert_with(|| host.clone());
        }
    }
    if rfc7239 {
        let peer = if peer.is_ipv6() { format!("\"[{peer}]\"") } else { peer.to_string() };
        append(headers, &header::FORWARDED, &format!("for={peer};proto={scheme}"));
    }
}

/// Adds an element to a list that may be there.
fn append(headers: &mut HeaderMap, name: &HeaderName, element: &str) {
    let list = match headers.get(name).and_then(|value| value.to_str().ok()) {
        Some(list) => format!("{list}, {element}"),
        None => element.to_owned(),
    };
    if let Ok(value) = HeaderValue::from_str(&list) {
        headers.insert(name.clone(), value);
    }
}

/// What is known of a write when its answer is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Settled,
    Unknown,
    /// Its answer is longer than what is read ahead: settled once it has come whole.
    Pending,
}

/// An answer's headers, made ready for the client.
pub fn to_client<'a>(headers: &mut HeaderMap, write: Option<(impl Iterator<Item = &'a Permit>, Outcome)>) {
    strip_fence(headers);
    strip_hop_by_hop(headers);
    headers.append(header::VIA, HeaderValue::from_static("1.1 fencegate"));
    if let Some((permits, outcome)) = write {
        let mut soonest = u64::MAX;
        for permit in permits {
            headers.append(FENCE_SEQ, HeaderValue::from(permit.seq().get()));
            soonest = soonest.min(permit.remaining_ms());
        }
        headers.insert(FENCE_EXPIRES_IN, HeaderValue::from(soonest));
        let outcome = match outcome {
            Outcome::Settled => "settled",
            Outcome::Unknown => "unknown",
            Outcome::Pending => "pending",
        };
        headers.insert(FENCE_OUTCOME, HeaderValue::from_static(outcome));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(headers: &[(&str, &str)]) -> HeaderMap {
        headers.iter().map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap())).collect()
    }

    fn origin(forwarded: Forwarded) -> Origin {
        Origin { peer: Some("10.1.2.3".parse().unwrap()), version: Version::HTTP_11, is_tls: false, forwarded }
    }

    #[test]
    fn what_is_of_one_hop_stays_there() {
        let mut headers = map(&[
            ("host", "store"),
            ("connection", "close, X-Private, host"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("x-private", "1"),
            ("x-kept", "2"),
            ("expect", "100-continue"),
            ("traceparent", "00-a-b-01"),
            ("fence-token", "secret"),
            ("fence-seq", "999"),
            ("fence-anything", "x"),
            ("fence_seq", "999"),
        ]);
        to_store(&mut headers, &origin(Forwarded::Off), None, || HeaderValue::from_static("id-1"));
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["host", "te", "traceparent", "via", "x-kept", "x-request-id"]);
    }

    #[test]
    fn where_a_request_came_from_is_added_to_what_is_known() {
        let mut headers = map(&[("host", "store"), ("x-forwarded-for", "1.1.1.1"), ("x-request-id", "mine")]);
        to_store(&mut headers, &origin(Forwarded::Both), None, || HeaderValue::from_static("id-1"));
        for (name, value) in [
            ("x-forwarded-for", "1.1.1.1, 10.1.2.3"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-host", "store"),
            ("forwarded", "for=10.1.2.3;proto=http"),
            ("x-request-id", "mine"),
            ("via", "1.1 fencegate"),
        ] {
            assert_eq!(headers.get(name).unwrap(), value, "{name}");
        }
    }
}
