//! Headers that are for one connection only: hop-by-hop headers (RFC 9110, 7.6.1).
//!
//! This is the only list of them. The gate leaves them out of requests and of answers, and so does the agent.

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// Whether a header is for one connection only, in upper or lower case.
#[inline]
#[must_use]
pub fn is_hop_by_hop(name: &[u8]) -> bool {
    let is = |wanted: &str| name.eq_ignore_ascii_case(wanted.as_bytes());
    // By length, since most headers differ in that already.
    match name.len() {
        2 => is("te"),
        7 => is("upgrade"),
        10 => is("connection") || is("keep-alive"),
        16 => is("proxy-connection"),
        17 => is("transfer-encoding"),
        18 => is("proxy-authenticate"),
        19 => is("proxy-authorization"),
        _ => false,
    }
}

/// The header names in the value of a list header.
pub fn names_in(headers: &HeaderMap, list: HeaderName) -> impl Iterator<Item = HeaderName> {
    let names = headers.get_all(list).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    names.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
}

/// Whether a value of `TE` says that its sender accepts trailers.
#[must_use]
pub fn takes_trailers(value: &HeaderValue) -> bool {
    value.as_bytes().split(|byte| *byte == b',').any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
}

/// Removes the headers that are for one connection only, and those that `Connection` names. `Host` and
/// `Content-Length` stay: no sender can have them removed.
pub fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = names_in(headers, header::CONNECTION).collect();
    let is_listed = |name: &&HeaderName| is_hop_by_hop(name.as_str().as_bytes());
    let listed: Vec<HeaderName> = headers.keys().filter(is_listed).cloned().collect();
    for name in named.iter().chain(&listed).filter(|name| **name != header::HOST && **name != header::CONTENT_LENGTH) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_for_one_connection_only_is_known_in_any_case() {
        for name in [
            "connection",
            "keep-alive",
            "proxy-authenticate",
            "proxy-authorization",
            "proxy-connection",
            "te",
            "transfer-encoding",
            "upgrade",
        ] {
            assert!(is_hop_by_hop(name.as_bytes()) && is_hop_by_hop(name.to_uppercase().as_bytes()), "{name}");
        }
        for name in ["", "host", "etag", "trailer", "user-agent", "content-length", "x-forwarded-proto", "via"] {
            assert!(!is_hop_by_hop(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn what_is_stripped_is_what_is_listed_and_what_connection_names() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Own ,host,"),
            ("connection", "content-length"),
            ("host", "a"),
            ("content-length", "3"),
            ("x-own", "1"),
            ("x-own", "2"),
            ("te", "gzip"),
            ("proxy-connection", "keep-alive"),
            ("trailer", "x-sum"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        strip(&mut headers);
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["content-length", "host", "trailer"]);
    }

    #[test]
    fn trailers_are_taken_by_a_te_that_names_them() {
        for (value, expected) in [("trailers", true), ("gzip, Trailers", true), ("gzip;q=1", false), ("", false)] {
            assert_eq!(takes_trailers(&HeaderValue::from_static(value)), expected, "{value}");
        }
    }
}
