//! Trailers: fields that come after a body.
//!
//! Everything that the gate judges a request by comes before its body. So a trailer must not frame, route, rename or
//! authorise the request. Only the trailers that the configuration lists (`gate.trailers`) are passed on to the store.
//! Of an answer, all trailers are passed on except those that HTTP itself forbids.

use http::{HeaderMap, HeaderName, header};

use crate::{
    config::GateSettings,
    failpoints::{self, Fault},
};

impl GateSettings {
    /// The names of the trailers that are passed on.
    ///
    /// # Errors
    /// With the first name that is not a header's name, or that has a meaning that the gate judges by.
    pub fn trailer_names(&self) -> Result<Vec<HeaderName>, String> {
        let name = |text: &String| {
            let name =
                HeaderName::from_bytes(text.as_bytes()).map_err(|_| format!("{text:?} is not a header's name"))?;
            if may_be_allowed(&name) {
                Ok(name)
            } else {
                Err(format!("{name} frames, routes or authorises a request, so it cannot come behind the body"))
            }
        };
        self.trailers.iter().map(name).collect()
    }
}

/// Whether a configuration may list this trailer.
#[must_use]
pub fn may_be_allowed(name: &HeaderName) -> bool {
    const JUDGED: [&str; 16] = [
        "cookie",
        "destination",
        "forwarded",
        "idempotency-key",
        "if-match",
        "if-none-match",
        "if-modified-since",
        "if-unmodified-since",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "range",
        "upgrade",
        "x-original-url",
        "x-rewrite-url",
        "x-amz-copy-source",
    ];
    let text = name.as_str();
    let begins = |with: &str| text.starts_with(with);
    may_follow_an_answer(name)
        && !JUDGED.contains(&text)
        && !begins("fence-")
        && !begins("x-http-method")
        && !begins("x-method")
        && !begins("x-forwarded-")
        // Some stores read `_` as `-`.
        && !text.contains('_')
}

/// Whether an answer's trailer is passed on to the client. HTTP itself forbids the others (RFC 9110, 6.5.1).
#[must_use]
pub fn may_follow_an_answer(name: &HeaderName) -> bool {
    const NEVER: [HeaderName; 14] = [
        header::AUTHORIZATION,
        header::CACHE_CONTROL,
        header::CONNECTION,
        header::CONTENT_ENCODING,
        header::CONTENT_LENGTH,
        header::CONTENT_RANGE,
        header::CONTENT_TYPE,
        header::EXPECT,
        header::HOST,
        header::MAX_FORWARDS,
        header::SET_COOKIE,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
    ];
    !NEVER.contains(name)
}

/// The trailers of a request that are passed on; `None` where none is left.
#[must_use]
pub fn pass_on(trailers: &HeaderMap, allowed: &[HeaderName]) -> Option<HeaderMap> {
    if failpoints::on(Fault::PassTrailers) {
        return Some(trailers.clone());
    }
    let mut kept = HeaderMap::new();
    for name in allowed {
        for value in trailers.get_all(name) {
            kept.append(name.clone(), value.clone());
        }
    }
    Some(kept).filter(|kept| !kept.is_empty())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn what_a_request_is_judged_by_can_never_be_a_trailer() {
        for name in [
            "host",
            "destination",
            "x-http-method-override",
            "x-method-override",
            "x-original-url",
            "x-rewrite-url",
            "fence-token",
            "fence-seq",
            "idempotency-key",
            "x-forwarded-for",
            "content_md5",
            "transfer-encoding",
            "authorization",
        ] {
            assert!(!may_be_allowed(&HeaderName::from_static(name)), "{name}");
        }
        for name in ["content-digest", "x-amz-checksum-crc32", "x-sum"] {
            assert!(may_be_allowed(&HeaderName::from_static(name)), "{name}");
        }
    }

    #[test]
    fn only_listed_trailers_are_passed_on() {
        let digest = HeaderName::from_static("content-digest");
        let mut trailers = HeaderMap::new();
        trailers.append("destination", HeaderValue::from_static("/b"));
        assert_eq!(pass_on(&trailers, std::slice::from_ref(&digest)), None);
        trailers.append(&digest, HeaderValue::from_static("1"));
        trailers.append(&digest, HeaderValue::from_static("2"));
        let kept = pass_on(&trailers, std::slice::from_ref(&digest)).unwrap();
        assert_eq!((kept.len(), kept.get_all(&digest).iter().count()), (2, 2));
    }
}
