//! What a request is: a read, a write to one object or several, or a request that is not forwarded. Pure.
//!
//! The only place that knows header names and what methods mean. GET, HEAD and OPTIONS read. Every other method writes,
//! also an unknown one. CONNECT, TRACE and upgrades are refused. So is everything that could make a store see another
//! method than the gate did.

use std::{borrow::Cow, sync::Arc};

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version, header, request::Parts};

use super::{
    External, Route, Routes,
    canonical::{self, Ambiguous, Segments},
    doubt::Doubt,
};
use crate::{
    config::GateSettings,
    failpoints::{self, Fault},
    fence::{
        Code, FenceToken, HolderId, ObjectId,
        elected::Claimant,
        election::{Election, LeaseName},
        external::Number,
        idempotency::{IdempotencyKey, KeyFault},
        token::TokenFault,
        verdict::Presented,
        write::ReadOnly,
    },
};

/// Where a COPY or MOVE writes to.
const DESTINATION: HeaderName = HeaderName::from_static("destination");
/// The header with a client's own name for a write.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The header that carries a token.
pub const FENCE_TOKEN: HeaderName = HeaderName::from_static("fence-token");
/// The header that names a write's holder, where a Kubernetes Lease must name the same one.
pub const FENCE_HOLDER: HeaderName = HeaderName::from_static("fence-holder");

/// What a request is.
#[derive(Debug)]
pub enum Class<'a> {
    Read {
        store: usize,
        /// Its route allows a body.
        may_have_body: bool,
        read: ReadOnly,
    },
    Write(Write<'a>),
}

/// A write, and the objects that it goes to.
#[derive(Debug)]
pub struct Write<'a> {
    pub route: &'a Route,
    pub target: Target<'a>,
    /// A second object that it writes to. Nearly always empty.
    pub others: Vec<Target<'a>>,
    /// The client may wait for a 100 Continue before it sends the body.
    pub asks_first: bool,
    /// The client's own name for the write, where its route uses such keys.
    pub key: Option<IdempotencyKey>,
}

/// An object that a write goes to, and the token for it.
#[derive(Clone, Debug)]
pub struct Target<'a> {
    /// The object's id.
    pub object: Cow<'a, str>,
    pub brought: Brought<'a>,
}

/// What a write brought for an object.
#[derive(Clone, Debug)]
pub enum Brought<'a> {
    /// A token, as it came. Code that has the object's record can compare it with the right one, unread.
    Text(&'a str),
    Read(Presented),
}

impl Target<'_> {
    /// The object's id, as an owned value.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        ObjectId::new(&self.object).expect("a route names objects by valid ids only")
    }

    /// The target, as an owned value.
    #[must_use]
    pub fn into_owned(self) -> Target<'static> {
        let presented = self.presented();
        Target { object: Cow::Owned(self.object.into_owned()), brought: Brought::Read(presented) }
    }

    /// What the write presents for the object, parsed.
    #[must_use]
    pub fn presented(&self) -> Presented {
        match &self.brought {
            Brought::Text(text) => Presented::read(text, &self.object),
            Brought::Read(presented) => presented.clone(),
        }
    }
}

/// Why a request is not forwarded, before any token is judged.
#[derive(Debug, PartialEq, Eq)]
pub struct Unfit {
    pub code: Code,
    pub detail: Cow<'static, str>,
    pub field: Option<&'static str>,
    /// It is not certain where the next request begins, or what follows cannot be trusted, so the connection is closed.
    pub closes: bool,
}

fn unfit(code: Code, detail: impl Into<Cow<'static, str>>) -> Unfit {
    Unfit { code, detail: detail.into(), field: None, closes: false }
}

fn invalid(field: &'static str, detail: &'static str) -> Unfit {
    Unfit { code: Code::RequestInvalid, detail: detail.into(), field: Some(field), closes: false }
}

/// A refusal because two parsers could read the request in two ways.
fn doubtful(field: &'static str, detail: &'static str) -> Unfit {
    Unfit { closes: true, ..invalid(field, detail) }
}

impl From<Doubt> for Unfit {
    fn from(doubt: Doubt) -> Self {
        let (field, what) = doubt.what();
        doubtful(field, what)
    }
}

/// The refusal of a read with a body. A store that does not read the body would take it for its next request.
#[must_use]
pub fn body_on_read(field: &'static str) -> Unfit {
    doubtful(
        field,
        "GET, HEAD and OPTIONS have no body here: a store that does not read it would take it for another request. A route for a store that does can say bodies_on_reads = true",
    )
}

/// Says what a request is.
///
/// # Errors
/// With the reason why it is not forwarded.
pub fn classify<'a>(head: &'a Parts, routes: &'a Routes, limits: &GateSettings) -> Result<Class<'a>, Unfit> {
    let marks = Marks::of(&head.headers);
    check_size(head, marks, limits)?;
    check_tunnel(head, marks)?;
    check_host(head, marks, limits.strict)?;
    check_override(&head.uri, marks)?;
    check_coding(&head.headers, marks, limits.strict)?;
    if limits.strict && head.version == Version::HTTP_2 {
        check_edges(&head.headers)?;
    }
    let segments = segments_of(head.uri.path());
    if is_read(&head.method) {
        let segments = segments.ok();
        let route = segments.as_ref().and_then(|segments| routes.find(segments)).map(|(route, _)| route);
        let may_have_body = route.is_some_and(|route| route.bodies_on_reads);
        if !may_have_body {
            check_no_body(&head.headers, marks)?;
        }
        let (store, read) = (route.map_or(0, |route| route.store), ReadOnly::classified());
        return Ok(Class::Read { store, may_have_body, read });
    }
    check_rewrite(marks)?;
    let segments = segments.map_err(|why| {
        unfit(Code::PathAmbiguous, format!("two servers could read this path in two ways: {}", why.what()))
    })?;
    let unmapped = || unfit(Code::ObjectUnmapped, "no route says which object this path belongs to");
    let (route, captures) = routes.find(&segments).ok_or_else(unmapped)?;
    let object = route.object(&captures).ok_or_else(unmapped)?;
    check_reach(&head.method, &segments, route, routes)?;
    let has_second = marks.have(Marks::DESTINATION) && !failpoints::on(Fault::NoDestination);
    let second = if has_second { destination(head, route, routes)? } else { None };
    let second = second.filter(|second| *second != object);
    let asks_first = marks.have(Marks::EXPECT);
    let key = if marks.have(Marks::KEY) && route.idempotency { Some(key(&head.headers)?) } else { None };
    Ok(Class::Write(match second {
        Some(_) if route.external.is_some() || route.kubernetes.is_some() => {
            let what = "this write goes to two objects, and a token that is not the gate's own is for one";
            return Err(unfit(Code::LeaseObjectMismatch, what));
        }
        None => {
            let brought = match (&route.external, &route.kubernetes) {
                (None, None) => brought(&head.headers, marks),
                (Some(external), _) => Brought::Read(number(&head.headers, external, marks)),
                (None, Some(kubernetes)) => {
                    let lease = kubernetes.lease(&captures).ok_or_else(|| {
                        let what = "no Lease that this gate looks at could govern this object: its namespace is not among those of the route, or no Lease can have its name";
                        unfit(Code::ObjectUnmapped, what)
                    })?;
                    Brought::Read(claimant(&head.headers, lease, kubernetes.check_holder, marks))
                }
            };
            Write { route, target: Target { object, brought }, others: vec![], asks_first, key }
        }
        Some(second) => {
            let [target, other] = presented_for([object, second], &head.headers, marks);
            Write { route, target, others: vec![other], asks_first, key }
        }
    }))
}

/// A path's segments, where it is read in one way only.
fn segments_of(path: &str) -> Result<Segments<'_>, Ambiguous> {
    if failpoints::on(Fault::AnyPath) {
        return Ok(path.split('/').skip(1).map(Cow::Borrowed).collect());
    }
    canonical::segments(path)
}

/// Which headers a request has, of those that are looked at here, and how long all of them are: one pass
/// for everything that is always, or nearly never there.
#[derive(Clone, Copy, Default)]
struct Marks<'a> {
    bits: u16,
    bytes: usize,
    host: Option<&'a HeaderValue>,
    token: Option<&'a HeaderValue>,
}

impl<'a> Marks<'a> {
    const UPGRADE: u16 = 1;
    const CODING: u16 = 1 << 1;
    const OVERRIDE: u16 = 1 << 2;
    const REWRITE: u16 = 1 << 3;
    const DESTINATION: u16 = 1 << 4;
    const TOKENS: u16 = 1 << 5;
    const CONNECTION: u16 = 1 << 6;
    const TRAILER: u16 = 1 << 7;
    const AUTHORIZATION: u16 = 1 << 8;
    const LENGTH: u16 = 1 << 9;
    const HOSTS: u16 = 1 << 10;
    const EXPECT: u16 = 1 << 11;
    const KEY: u16 = 1 << 12;
    const UNDERSCORED: u16 = 1 << 13;
    const LENGTHS: u16 = 1 << 14;

    fn of(headers: &'a HeaderMap) -> Self {
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

    fn have(self, which: u16) -> bool {
        self.bits & which != 0
    }
}

/// Whether a method may change everything below its path. PUT, POST and PATCH write one resource only.
fn reaches_below(method: &Method) -> bool {
    !matches!(*method, Method::PUT | Method::POST | Method::PATCH)
}

/// Refuses a write that could reach objects below its own.
fn check_reach(method: &Method, path: &[Cow<'_, str>], route: &Route, routes: &Routes) -> Result<(), Unfit> {
    if reaches_below(method)
        && let Some(below) = routes.below(path, route)
    {
        let what = format!("objects of route {:?} lie below this path; write to them one by one", below.name);
        return Err(unfit(Code::ObjectUnmapped, what));
    }
    Ok(())
}

/// The object of the second path that a write names (COPY, MOVE), by the same route.
fn destination(head: &Parts, of: &Route, routes: &Routes) -> Result<Option<Cow<'static, str>>, Unfit> {
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
    // Some stores do not cut off a query or a fragment.
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
        return Ok(Some(Cow::Owned(object.into_owned())));
    }
    Err(unfit(Code::LeaseObjectMismatch, "the Destination belongs to another route, or to none"))
}

/// Whether requests of this method only read.
#[must_use]
pub fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

fn check_size(head: &Parts, marks: Marks<'_>, limits: &GateSettings) -> Result<(), Unfit> {
    let uri = head.uri.path_and_query().map_or(0, |path| path.as_str().len());
    if uri > limits.uri_bytes_max {
        return Err(unfit(Code::TargetTooLarge, "the URI is longer than gate.uri_bytes_max"));
    }
    if marks.bytes > limits.header_bytes_max {
        return Err(unfit(Code::HeadersTooLarge, "the headers are larger than gate.header_bytes_max"));
    }
    if limits.body_bytes_max == 0 || !marks.have(Marks::LENGTH) {
        return Ok(());
    }
    let length = head.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    match length {
        Some(length) if length > limits.body_bytes_max => {
            Err(unfit(Code::BodyTooLarge, "the body is larger than gate.body_bytes_max"))
        }
        Some::<u64>(_) | None => Ok(()),
    }
}

/// The gate cannot see what is written through a tunnel. An offer of h2c is not refused, but it is not passed on.
fn check_tunnel(head: &Parts, marks: Marks<'_>) -> Result<(), Unfit> {
    if failpoints::on(Fault::PassTunnels) {
        return Ok(());
    }
    if head.method == Method::CONNECT {
        return Err(unfit(Code::TunnelRefused, "no tunnel leads through a gate"));
    }
    if head.method == Method::TRACE {
        return Err(unfit(Code::TunnelRefused, "TRACE would show the store's view of the request, token and all"));
    }
    if !marks.have(Marks::UPGRADE) {
        return Ok(());
    }
    let mut offers = head.headers.get_all(header::UPGRADE).iter();
    let only_h2c = offers.all(|offer| offer.as_bytes().eq_ignore_ascii_case(b"h2c"));
    if only_h2c { Ok(()) } else { Err(unfit(Code::TunnelRefused, "no upgraded connection leads through a gate")) }
}

/// There must be one host, and the request line must name the same one if it names any.
fn check_host(head: &Parts, marks: Marks<'_>, is_strict: bool) -> Result<(), Unfit> {
    if failpoints::on(Fault::AnyHost) {
        return Ok(());
    }
    if marks.have(Marks::HOSTS) {
        return Err(doubtful("Host", "there is more than one Host"));
    }
    let authority = head.uri.authority().map(|authority| authority.as_str().as_bytes());
    let host = marks.host.map(HeaderValue::as_bytes);
    match (authority, host) {
        (Some(authority), Some(host)) if !host.eq_ignore_ascii_case(authority) => {
            Err(unfit(Code::PathAmbiguous, "the request line names another host than the Host header"))
        }
        (_, None) if head.version == Version::HTTP_11 => Err(doubtful("Host", "there is no Host")),
        (None, None) if is_strict => Err(doubtful("Host", "there is no Host")),
        (authority, host) if is_strict && !host.or(authority).is_some_and(is_host) => {
            Err(doubtful("Host", "the Host must be one name or address, with a port at most"))
        }
        _ => Ok(()),
    }
}

/// The bytes of a host's name, and of an IPv4 address.
const IN_NAME: [bool; 256] = {
    let mut in_name = [false; 256];
    let mut byte = 0_u8;
    while byte < 0x80 {
        in_name[byte as usize] = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        byte += 1;
    }
    in_name
};

/// Whether this is a name or an address, with or without a port.
fn is_host(host: &[u8]) -> bool {
    let end = match host {
        [b'[', ..] => {
            let Some(end) = host.iter().position(|byte| *byte == b']') else { return false };
            let Ok(address) = std::str::from_utf8(&host[1..end]) else { return false };
            if address.parse::<std::net::Ipv6Addr>().is_err() {
                return false;
            }
            end + 1
        }
        name => name.iter().position(|byte| !IN_NAME[usize::from(*byte)]).unwrap_or(name.len()),
    };
    match &host[end..] {
        [] => end > 0,
        [b':', port @ ..] => end > 0 && (1..=5).contains(&port.len()) && port.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

/// An HTTP/2 field whose value begins or ends with a space would be another field over HTTP/1.1.
fn check_edges(headers: &HeaderMap) -> Result<(), Unfit> {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let has_edge = |value: &HeaderValue| is_space(value.as_bytes().first()) || is_space(value.as_bytes().last());
    if headers.values().any(has_edge) {
        return Err(doubtful("headers", "the value of a field begins or ends with a space"));
    }
    Ok(())
}

/// Refuses a read that has a body.
fn check_no_body(headers: &HeaderMap, marks: Marks<'_>) -> Result<(), Unfit> {
    if marks.have(Marks::CODING) {
        return Err(body_on_read("Transfer-Encoding"));
    }
    if marks.have(Marks::LENGTH) && headers.get_all(header::CONTENT_LENGTH).iter().any(|length| length != "0") {
        return Err(body_on_read("Content-Length"));
    }
    Ok(())
}

const OVERRIDE_HEADERS: [&str; 3] = ["x-http-method-override", "x-http-method", "x-method-override"];
const OVERRIDE_KEYS: [&str; 4] = ["_method", "x-http-method-override", "x-http-method", "x-method-override"];

fn check_override(uri: &Uri, marks: Marks<'_>) -> Result<(), Unfit> {
    let in_header = marks.have(Marks::OVERRIDE);
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

fn check_rewrite(marks: Marks<'_>) -> Result<(), Unfit> {
    if marks.have(Marks::REWRITE) && !failpoints::on(Fault::AnyPath) {
        return Err(unfit(Code::PathAmbiguous, "a header names another path, which some servers would write to"));
    }
    Ok(())
}

/// A body must come in the form that is to be stored: the gate removes only the chunks.
fn check_coding(headers: &HeaderMap, marks: Marks<'_>, is_strict: bool) -> Result<(), Unfit> {
    // Nearly all requests have none of them.
    if !marks.have(Marks::CODING | Marks::UNDERSCORED | Marks::LENGTHS) {
        return Ok(());
    }
    if is_strict && marks.have(Marks::UNDERSCORED) {
        let what = "some servers read content_length and transfer_encoding as Content-Length and Transfer-Encoding";
        return Err(doubtful("headers", what));
    }
    if is_strict && marks.have(Marks::LENGTHS) {
        return Err(Doubt::TwoLengths.into());
    }
    if !marks.have(Marks::CODING) {
        return Ok(());
    }
    let codings = headers.get_all(header::TRANSFER_ENCODING);
    if is_strict && codings.iter().count() > 1 {
        return Err(Doubt::TwoLengths.into());
    }
    if codings.iter().all(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked")) {
        return Ok(());
    }
    Err(doubtful("Transfer-Encoding", "only chunked is understood; what is coded otherwise would be stored as it is"))
}

/// The token that a write brings for its object, or the fault that makes it unreadable.
fn brought<'a>(headers: &HeaderMap, marks: Marks<'a>) -> Brought<'a> {
    match token_field(headers, marks) {
        Ok(None) => Brought::Read(Presented::Nothing),
        Ok(Some(text)) => Brought::Text(text),
        Err(fault) => Brought::Read(Presented::Unreadable(fault)),
    }
}

/// The client's own name for a write.
fn key(headers: &HeaderMap) -> Result<IdempotencyKey, Unfit> {
    let mut fields = headers.get_all(IDEMPOTENCY_KEY).iter();
    let key = match (fields.next(), fields.next()) {
        (Some(field), None) => IdempotencyKey::parse(field.as_bytes()),
        _ => Err(KeyFault::Several),
    };
    key.map_err(|fault| Unfit {
        code: Code::RequestInvalid,
        detail: format!("Idempotency-Key: {fault}").into(),
        field: Some("Idempotency-Key"),
        closes: false,
    })
}

/// The number of an outside lock service that a write brings.
fn number(headers: &HeaderMap, External { header, limits }: &External, marks: Marks<'_>) -> Presented {
    let field = if *header == FENCE_TOKEN { token_field(headers, marks) } else { other_field(headers, header, marks) };
    match field.and_then(|text| text.map(|text| Number::parse(text, *limits)).transpose()) {
        Ok(None) => Presented::Nothing,
        Ok(Some(number)) => Presented::Number(number),
        Err(fault) => Presented::Unreadable(fault),
    }
}

/// The term of leadership that a write comes from.
fn claimant(headers: &HeaderMap, lease: LeaseName, check_holder: bool, marks: Marks<'_>) -> Presented {
    let read = || {
        let Some(text) = token_field(headers, marks)? else { return Ok(None) };
        let election = Election::parse(text)?;
        let holder = if check_holder {
            let field = other_field(headers, &FENCE_HOLDER, marks)?.and_then(|holder| HolderId::new(holder).ok());
            Some(field.ok_or(TokenFault::Holder)?)
        } else {
            None
        };
        Ok(Some(Claimant { election, lease: Arc::new(lease), term: None, holder }))
    };
    match read() {
        Ok(None) => Presented::Nothing,
        Ok(Some(claimant)) => Presented::Claimant(claimant),
        Err(fault) => Presented::Unreadable(fault),
    }
}

/// The tokens that a write to several objects presents, one for each, in the order of the objects.
fn presented_for<'a, const N: usize>(
    mut objects: [Cow<'a, str>; N],
    headers: &HeaderMap,
    marks: Marks<'_>,
) -> [Target<'a>; N] {
    objects.sort_unstable();
    let tokens = token_field(headers, marks).and_then(|field| {
        let tokens = field.into_iter().flat_map(|field| field.split(','));
        tokens.map(|token| FenceToken::parse(token.trim())).collect::<Result<Vec<_>, _>>()
    });
    let tokens = tokens.and_then(|tokens| {
        let is_missing = |object: &Cow<'_, str>| tokens.iter().all(|token| token.object.as_str() != *object);
        // A missing token is reported before a superfluous one.
        let fits = tokens.len() <= N || objects.iter().any(is_missing);
        if fits { Ok(tokens) } else { Err(TokenFault::TooMany) }
    });
    objects.map(|object| {
        let presented = match &tokens {
            Err(fault) => Presented::Unreadable(*fault),
            Ok(tokens) => {
                let own = tokens.iter().find(|token| token.object.as_str() == object);
                own.map_or(Presented::Nothing, |token| Presented::of(token, &token.object))
            }
        };
        Target { object, brought: Brought::Read(presented) }
    })
}

/// The value of the only field that tokens may come in.
fn token_field<'a>(headers: &HeaderMap, marks: Marks<'a>) -> Result<Option<&'a str>, TokenFault> {
    if marks.have(Marks::TOKENS) {
        return Err(TokenFault::Twice);
    }
    check_field(headers, &FENCE_TOKEN, marks)?;
    marks.token.map(|token| token.to_str().map_err(|_| TokenFault::Shape)).transpose()
}

/// The value of the only field that a route's tokens may come in.
fn other_field<'a>(headers: &'a HeaderMap, name: &HeaderName, marks: Marks<'_>) -> Result<Option<&'a str>, TokenFault> {
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

#[cfg(test)]
#[path = "classify_tests.rs"]
mod tests;
