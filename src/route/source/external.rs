//! `lease_source = "external"`: the tokens of an outside lock service, which are numbers.

use http::{HeaderMap, HeaderName};

use super::KeyFault;
use crate::{
    config::RouteSettings,
    fence::{
        Ttl,
        external::{ExternalLimits, Number},
        outside::Claim,
        token::TokenFault,
    },
    route::fields::{FENCE_TOKEN, Marks, other_field, token_field},
};

/// A route's settings for an outside lock service's tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct External {
    /// The header that has the token.
    pub header: HeaderName,
    pub limits: ExternalLimits,
}

/// The refusal of calls of the lease api.
pub(super) const CALL_REFUSAL: &str = "the lock of this object is kept elsewhere (lease_source = \"external\"): take it there, and send its token with each write";

impl External {
    pub(super) fn of(given: &RouteSettings) -> Result<Self, KeyFault> {
        let header = HeaderName::from_bytes(given.token_header.as_bytes());
        let header =
            header.map_err(|_| ("token_header", format!("{:?} is not a header's name", given.token_header)))?;
        if RESERVED.contains(&header.as_str()) {
            return Err(("token_header", format!("{header} has its own meaning; choose another header")));
        }
        if given.max_jump == 0 {
            return Err(("max_jump", "must be at least 1".to_owned()));
        }
        if given.ttl_ms != 0 && !(1_000..=Ttl::FOR_EVER.0 / 2).contains(&given.ttl_ms) {
            return Err(("ttl_ms", "must be at least 1000, or 0 where silence does not matter".to_owned()));
        }
        let silence = if given.ttl_ms == 0 { Ttl::FOR_EVER } else { Ttl(given.ttl_ms) };
        Ok(Self { header, limits: ExternalLimits { max_jump: given.max_jump, silence } })
    }

    /// The claim of a token.
    pub(super) fn claim(&self, text: &str) -> Result<Claim, TokenFault> {
        Number::parse(text, self.limits).map(Claim::Number)
    }

    /// The claim that a write brings.
    pub(super) fn brought(&self, headers: &HeaderMap, marks: Marks<'_>) -> Result<Option<Claim>, TokenFault> {
        let is_own = self.header == FENCE_TOKEN;
        let field = if is_own { token_field(headers, marks)? } else { other_field(headers, &self.header, marks)? };
        field.map(|text| self.claim(text)).transpose()
    }
}

/// The fault of settings for this source on a route that has another one.
pub(super) fn stray(given: &RouteSettings) -> Option<KeyFault> {
    let plain = RouteSettings::default();
    let only = |key| Some((key, "is for lease_source = \"external\"".to_owned()));
    match given {
        _ if given.token_header != plain.token_header => only("token_header"),
        _ if given.max_jump != plain.max_jump => only("max_jump"),
        _ if given.ttl_ms != plain.ttl_ms => only("ttl_ms"),
        _ => None,
    }
}

/// Headers that say how a request is read, or who sends it.
const RESERVED: [&str; 16] = [
    "authorization",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "destination",
    "expect",
    "host",
    "idempotency-key",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "x-forwarded-for",
];
