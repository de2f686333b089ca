//! What a request is: a read, a write to one object (or to several), or nothing that is forwarded. Pure.
//!
//! The only place that knows header names and what methods mean. GET, HEAD and OPTIONS read; every
//! other method writes, known or not; CONNECT, TRACE and upgrades are refused, and so is whatever could
//! make a store see another method than the gate did.

use std::borrow::Cow;

use http::{HeaderMap, Method, Uri, Version, header, request::Parts};

use crate::{
    config::GateSettings,
    fence::{Code, FenceToken, ObjectId, code::Limit, token::TokenFault, verdict::Presented},
    route::{Route, Routes, canonical},
};

/// Where a COPY or MOVE writes to.
const DESTINATION: &str = "destination";
/// The header that carries a token.
pub const FENCE_TOKEN: &str = "fence-token";

/// What a request is.
#[derive(Debug)]
pub enum Class<'a> {
    Read { store: usize },
    Write(Write<'a>),
}

/// A write: what it goes to.
#[derive(Debug)]
pub struct Write<'a> {
    pub route: &'a Route,
    pub target: Target,
    /// Where it writes to a second object: nearly always nothing.
    pub others: Vec<Target>,
}

/// An object that a write goes to, and the token that it brought for it.
#[derive(Clone, Debug)]
pub struct Target {
    pub object: ObjectId,
    pub presented: Presented,
}

/// Why a request is not forwarded, before any token is looked at.
#[derive(Debug, PartialEq, Eq)]
pub struct Unfit {
    pub code: Code,
    pub detail: Cow<'static, str>,
    pub field: Option<&'static str>,
}

fn unfit(code: Code, detail: impl Into<Cow<'static, str>>) -> Unfit {
    Unfit { code, detail: detail.into(), field: None }
}

fn invalid(field: &'static str, detail: &'static str) -> Unfit {
    Unfit { code: Code::RequestInvalid, detail: detail.into(), field: Some(field) }
}

/// Says what a request is.
///
/// # Errors
/// With why it is not forwarded.
pub fn classify<'a>(head: &Parts, routes: &'a Routes, limits: &GateSettings) -> Result<Class<'a>, Unfit> {
    check_size(head, limits)?;
    check_tunnel(head)?;
    check_host(head)?;
    check_override(&head.uri, &head.headers)?;
    check_coding(&head.headers)?;
    let segments = canonical::segments(head.uri.path());
    if is_read(&head.method) {
        let route = segments.ok().and_then(|segments| routes.find(&segments).map(|(route, _)| route.store));
        return Ok(Class::Read { store: route.unwrap_or(0) });
    }
    check_rewrite(&head.headers)?;
    let segments = segments.map_err(|why| {
        unfit(Code::PathAmbiguous, format!("two servers could read this path in two ways: {}", why.what()))
    })?;
    let unmapped = || unfit(Code::ObjectUnmapped, "no route says which object this path belongs to");
    let (route, captures) = routes.find(&segments).ok_or_else(unmapped)?;
    let object = route.object(&captures).ok_or_else(unmapped)?;
    check_reach(&head.method, &segments, route, routes)?;
    let second = destination(head, route, routes)?.filter(|second| *second != object);
    Ok(Class::Write(match second {
        None => Write { route, target: Target { object, presented: presented(&head.headers) }, others: vec![] },
        Some(second) => {
            let [target, other] = presented_for([object, second], &head.headers);
            Write { route, target, others: vec![other] }
        }
    }))
}

/// These methods write one resource; what others do to a path they may do to all that lies below it.
fn reaches_below(method: &Method) -> bool {
    !matches!(*method, Method::PUT | Method::POST | Method::PATCH)
}

/// A write must not reach objects that lie below its own.
fn check_reach(method: &Method, path: &[Cow<'_, str>], route: &Route, routes: &Routes) -> Result<(), Unfit> {
    match routes.below(path, route).filter(|_| reaches_below(method)) {
        None => Ok(()),
        Some(below) => Err(unfit(
            Code::ObjectUnmapped,
            format!("objects of route {:?} lie below this path; write to them one by one", below.name),
        )),
    }
}

/// Where a write names a second path (COPY, MOVE): the object that it belongs to, by the same route.
fn destination(head: &Parts, of: &Route, routes: &Routes) -> Result<Option<ObjectId>, Unfit> {
    let mut destinations = head.headers.get_all(DESTINATION).iter();
    let (Some(destination), second) = (destinations.next(), destinations.next()) else { return Ok(None) };
    let ambiguous = || unfit(Code::PathAmbiguous, "two servers could read the Destination in two ways");
    let text = destination.to_str().map_err(|_| ambiguous())?;
    let uri: Uri = text.parse().map_err(|_| ambiguous())?;
    let host = head.headers.get(header::HOST).map(http::HeaderValue::as_bytes);
    let host = head.uri.authority().map(|host| host.as_str().as_bytes()).or(host);
    let is_elsewhere = uri
        .authority()
        .is_some_and(|authority| host.is_none_or(|host| !host.eq_ignore_ascii_case(authority.as_str().as_bytes())));
    // Not every store cuts a query or a fragment off.
    if second.is_some() || is_elsewhere || text.contains(['?', '#', '@']) {
        return Err(ambiguous());
    }
    let segments = canonical::segments(uri.path()).map_err(|_| ambiguous())?;
    let found = routes.find(&segments);
    if let Some((route, captures)) = found
        && route.place == of.place
        && let Some(object) = route.object(&captures)
    {
        check_reach(&head.method, &segments, route, routes)?;
        return Ok(Some(object));
    }
    Err(unfit(Code::LeaseObjectMismatch, "the Destination belongs to another route, or to none"))
}

fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

fn check_size(head: &Parts, limits: &GateSettings) -> Result<(), Unfit> {
    let uri = head.uri.path_and_query().map_or(0, |path| path.as_str().len());
    if uri > limits.uri_bytes_max {
        return Err(unfit(Code::RequestLimit(Limit::Uri), "the URI is longer than gate.uri_bytes_max"));
    }
    let headers: usize = head.headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if headers > limits.header_bytes_max {
        return Err(unfit(Code::RequestLimit(Limit::Headers), "the headers are larger than gate.header_bytes_max"));
    }
    let length = head.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    match length {
        Some(length) if limits.body_bytes_max > 0 && length > limits.body_bytes_max => {
            Err(unfit(Code::RequestLimit(Limit::Body), "the body is larger than gate.body_bytes_max"))
        }
        Some::<u64>(_) | None => Ok(()),
    }
}

/// Behind a tunnel nobody sees what is written. An offer of h2c is not refused: it is not passed on.
fn check_tunnel(head: &Parts) -> Result<(), Unfit> {
    if head.method == Method::CONNECT {
        return Err(unfit(Code::TunnelRefused, "no tunnel leads through a gate"));
    }
    if head.method == Method::TRACE {
        return Err(unfit(Code::TunnelRefused, "TRACE would show the store's view of the request, token and all"));
    }
    let mut offers = head.headers.get_all(header::UPGRADE).iter();
    let only_h2c = offers.all(|offer| offer.as_bytes().eq_ignore_ascii_case(b"h2c"));
    if only_h2c { Ok(()) } else { Err(unfit(Code::TunnelRefused, "no upgraded connection leads through a gate")) }
}

/// One host, and the same in the request line if it is there. HTTP/1.1 must name it.
fn check_host(head: &Parts) -> Result<(), Unfit> {
    let mut hosts = head.headers.get_all(header::HOST).iter();
    let (host, second) = (hosts.next(), hosts.next());
    if second.is_some() {
        return Err(invalid("Host", "there is more than one Host"));
    }
    match (head.uri.authority(), host) {
        (Some(authority), Some(host)) if !host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes()) => {
            Err(unfit(Code::PathAmbiguous, "the request line names another host than the Host header"))
        }
        (_, None) if head.version == Version::HTTP_11 => Err(invalid("Host", "there is no Host")),
        _ => Ok(()),
    }
}

const OVERRIDE_HEADERS: [&str; 3] = ["x-http-method-override", "x-http-method", "x-method-override"];
const OVERRIDE_KEYS: [&str; 4] = ["_method", "x-http-method-override", "x-http-method", "x-method-override"];

fn check_override(uri: &Uri, headers: &HeaderMap) -> Result<(), Unfit> {
    let in_header = headers.keys().any(|name| is_one_of(name.as_str(), &OVERRIDE_HEADERS));
    let in_query = uri.query().is_some_and(|query| {
        form_urlencoded::parse(query.as_bytes())
            .any(|(key, _)| OVERRIDE_KEYS.iter().any(|name| key.eq_ignore_ascii_case(name)))
    });
    if in_header || in_query {
        return Err(unfit(
            Code::MethodOverrideRefused,
            "a method override would make the store do something else than the gate has judged",
        ));
    }
    Ok(())
}

/// Some stores read `_` in a header's name as `-`.
fn is_one_of(name: &str, names: &[&str]) -> bool {
    let same = |(a, b): (u8, u8)| a == b || (a == b'_' && b == b'-');
    names.iter().any(|each| each.len() == name.len() && name.bytes().zip(each.bytes()).all(same))
}

/// Headers by which some frameworks write to another path than the request's.
const REWRITE_HEADERS: [&str; 2] = ["x-original-url", "x-rewrite-url"];

fn check_rewrite(headers: &HeaderMap) -> Result<(), Unfit> {
    if headers.keys().any(|name| is_one_of(name.as_str(), &REWRITE_HEADERS)) {
        return Err(unfit(Code::PathAmbiguous, "a header names another path, which some servers would write to"));
    }
    Ok(())
}

/// A body must come as it is to be stored: only the chunks are taken off on the way.
fn check_coding(headers: &HeaderMap) -> Result<(), Unfit> {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    if codings.all(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked")) {
        return Ok(());
    }
    Err(invalid("Transfer-Encoding", "only chunked is understood; what is coded otherwise would be stored as it is"))
}

/// The token that a write presents. What stands in its way is a fault of the token.
fn presented(headers: &HeaderMap) -> Presented {
    match token_field(headers).and_then(|field| field.map(FenceToken::parse).transpose()) {
        Ok(None) => Presented::Nothing,
        Ok(Some(token)) => Presented::Token(token),
        Err(fault) => Presented::Unreadable(fault),
    }
}

/// The tokens that a write to several objects presents, one for each, in the order of the objects.
fn presented_for<const N: usize>(mut objects: [ObjectId; N], headers: &HeaderMap) -> [Target; N] {
    objects.sort_unstable();
    let tokens = token_field(headers).and_then(|field| {
        let tokens = field.into_iter().flat_map(|field| field.split(','));
        tokens.map(|token| FenceToken::parse(token.trim())).collect::<Result<Vec<_>, _>>()
    });
    let tokens = tokens.and_then(|tokens| {
        let is_missing = |object: &ObjectId| tokens.iter().all(|token| token.object != *object);
        // A token that is missing is told before one that is too many.
        let fits = tokens.len() <= N || objects.iter().any(is_missing);
        if fits { Ok(tokens) } else { Err(TokenFault::TooMany) }
    });
    objects.map(|object| {
        let presented = match &tokens {
            Err(fault) => Presented::Unreadable(*fault),
            Ok(tokens) => {
                let own = tokens.iter().find(|token| token.object == object);
                own.map_or(Presented::Nothing, |token| Presented::Token(token.clone()))
            }
        };
        Target { object, presented }
    })
}

/// The one field that tokens come in.
fn token_field(headers: &HeaderMap) -> Result<Option<&str>, TokenFault> {
    let mut tokens = headers.get_all(FENCE_TOKEN).iter();
    let (token, second) = (tokens.next(), tokens.next());
    if second.is_some() {
        return Err(TokenFault::Twice);
    }
    if names(headers, header::CONNECTION.as_str()) {
        return Err(TokenFault::InConnection);
    }
    if names(headers, header::TRAILER.as_str()) {
        return Err(TokenFault::InTrailer);
    }
    if is_signed(headers) {
        return Err(TokenFault::Signed);
    }
    token.map(|token| token.to_str().map_err(|_| TokenFault::Shape)).transpose()
}

/// Whether a list header names the token's.
fn names(headers: &HeaderMap, list: &str) -> bool {
    headers
        .get_all(list)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|name| name.trim().eq_ignore_ascii_case(FENCE_TOKEN))
}

fn is_signed(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::AUTHORIZATION)
        .iter()
        .filter_map(|value| value.to_str().ok()?.split("SignedHeaders=").nth(1))
        .flat_map(|list| list.split([',', ' ']).next().unwrap_or("").split(';'))
        .any(|name| name.trim().eq_ignore_ascii_case(FENCE_TOKEN))
}

#[cfg(test)]
#[path = "classify_tests.rs"]
mod tests;
