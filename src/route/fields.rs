//! Fields of a request's head: the names that mean something to the gate, and how a token's field is read.

use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::fence::token::TokenFault;

/// Where a COPY or MOVE writes to.
pub(super) const DESTINATION: HeaderName = HeaderName::from_static("destination");
/// The header with a client's own name for a write.
pub(super) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The header that carries a token.
pub const FENCE_TOKEN: HeaderName = HeaderName::from_static("fence-token");
/// The header that names a write's holder, where a Kubernetes Lease must name the same one.
pub const FENCE_HOLDER: HeaderName = HeaderName::from_static("fence-holder");
/// A client's bearer token. Authorization is the store's.
pub const FENCE_IDENTITY: HeaderName = HeaderName::from_static("fence-identity");

/// Headers by which some frameworks take another method than the request's.
const OVERRIDE_HEADERS: [&str; 3] = ["x-http-method-override", "x-http-method", "x-method-override"];

/// Headers by which some frameworks write to another path than the request's.
const REWRITE_HEADERS: [&str; 2] = ["x-original-url", "x-rewrite-url"];

/// Which headers a request has, of those that are looked at here, and how long all of them are: one pass
/// for everything that is always, or nearly never there.
#[derive(Clone, Copy, Default)]
pub(super) struct Marks<'a> {
    bits: u16,
    pub(super) bytes: usize,
    pub(super) host: Option<&'a HeaderValue>,
    pub(super) token: Option<&'a HeaderValue>,
}

impl<'a> Marks<'a> {
    pub(super) const UPGRADE: u16 = 1;
    pub(super) const CODING: u16 = 1 << 1;
    pub(super) const OVERRIDE: u16 = 1 << 2;
    pub(super) const REWRITE: u16 = 1 << 3;
    pub(super) const DESTINATION: u16 = 1 << 4;
    pub(super) const TOKENS: u16 = 1 << 5;
    pub(super) const CONNECTION: u16 = 1 << 6;
    pub(super) const TRAILER: u16 = 1 << 7;
    pub(super) const AUTHORIZATION: u16 = 1 << 8;
    pub(super) const LENGTH: u16 = 1 << 9;
    pub(super) const HOSTS: u16 = 1 << 10;
    pub(super) const EXPECT: u16 = 1 << 11;
    pub(super) const KEY: u16 = 1 << 12;
    pub(super) const UNDERSCORED: u16 = 1 << 13;
    pub(super) const LENGTHS: u16 = 1 << 14;

    pub(super) fn of(headers: &'a HeaderMap) -> Self {
        let mut marks = Self::default();
        for (name, value) in headers {
            let name = name.as_str();
            marks.bytes += name.len() + value.len();
            marks.bits |= match name {
                "upgrade" => Self::UPGRADE,
                "transfer-encoding" => Self::CODING,
                "destination" => Self::DESTINATION,
                "fence-token" if marks.token.is_none() => {
                    marks.token = Some(value);
                    0
                }
                "fence-token" => Self::TOKENS,
                "host" if marks.host.is_none() => {
                    marks.host = Some(value);
                    0
                }
                "host" => Self::HOSTS,
                "connection" => Self::CONNECTION,
                "trailer" => Self::TRAILER,
                "authorization" => Self::AUTHORIZATION,
                // Over HTTP/1.1, hyper merges two equal ones.
                "content-length" if marks.bits & Self::LENGTH != 0 => Self::LENGTHS,
                "content-length" => Self::LENGTH,
                "expect" => Self::EXPECT,
                "idempotency-key" => Self::KEY,
                other if is_one_of(other, &OVERRIDE_HEADERS) => Self::OVERRIDE,
                other if is_one_of(other, &REWRITE_HEADERS) => Self::REWRITE,
                "content_length" | "transfer_encoding" => Self::UNDERSCORED,
                _ => 0,
            };
        }
        marks
    }

    pub(super) fn have(self, which: u16) -> bool {
        self.bits & which != 0
    }
}

/// Some stores read `_` in a header's name as `-`.
fn is_one_of(name: &str, names: &[&str]) -> bool {
    let same = |(a, b): (u8, u8)| a == b || (a == b'_' && b == b'-');
    names.iter().any(|each| each.len() == name.len() && name.bytes().zip(each.bytes()).all(same))
}

/// The value of the only field that tokens may come in.
pub(super) fn token_field<'a>(headers: &HeaderMap, marks: Marks<'a>) -> Result<Option<&'a str>, TokenFault> {
    if marks.have(Marks::TOKENS) {
        return Err(TokenFault::Twice);
    }
    check_field(headers, &FENCE_TOKEN, marks)?;
    marks.token.map(|token| token.to_str().map_err(|_| TokenFault::Shape)).transpose()
}

/// The value of the only field that a route's tokens may come in.
pub(super) fn other_field<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
    marks: Marks<'_>,
) -> Result<Option<&'a str>, TokenFault> {
    let mut fields = headers.get_all(name).iter();
    let (field, second) = (fields.next(), fields.next());
    if second.is_some() {
        return Err(TokenFault::Twice);
    }
    check_field(headers, name, marks)?;
    field.map(|token| token.to_str().map_err(|_| TokenFault::Number)).transpose()
}

/// Faults of a token's field that do not depend on its value.
fn check_field(headers: &HeaderMap, name: &HeaderName, marks: Marks<'_>) -> Result<(), TokenFault> {
    if marks.have(Marks::CONNECTION) && names(headers, header::CONNECTION, name) {
        return Err(TokenFault::InConnection);
    }
    if marks.have(Marks::TRAILER) && names(headers, header::TRAILER, name) {
        return Err(TokenFault::InTrailer);
    }
    // Any other header that a route uses for its tokens is passed on to the store.
    if *name == FENCE_TOKEN && marks.have(Marks::AUTHORIZATION) && is_signed(headers) {
        return Err(TokenFault::Signed);
    }
    Ok(())
}

/// Whether a list header names the token's header.
fn names(headers: &HeaderMap, list: HeaderName, token: &HeaderName) -> bool {
    headers
        .get_all(list)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|name| name.trim().eq_ignore_ascii_case(token.as_str()))
}

fn is_signed(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::AUTHORIZATION)
        .iter()
        .filter_map(|value| value.to_str().ok()?.split("SignedHeaders=").nth(1))
        .flat_map(|list| list.split([',', ' ']).next().unwrap_or("").split(';'))
        .any(|name| name.trim().eq_ignore_ascii_case(FENCE_TOKEN.as_str()))
}
