//! What is removed from and added to a request, and an answer, on its way through the gate.
//!
//! A request's head is written for the store in one pass over its headers; nothing is built in between.

use std::{
    cell::{Cell, RefCell},
    net::IpAddr,
};

use http::{HeaderMap, HeaderName, HeaderValue, Method, Version, header, request::Parts};

use super::guard::WriteGuard;
use crate::{
    config::Forwarded,
    failpoints::{self, Fault},
    fence::Ttl,
    upstream::{
        body::StoreBody,
        copies::Copies,
        hop::{is_hop_by_hop, names_in, takes_trailers},
        http1::{Framing, write_line},
    },
};

const FENCE_SEQ: HeaderName = HeaderName::from_static("fence-seq");
const FENCE_EXPIRES_IN: HeaderName = HeaderName::from_static("fence-expires-in");
const FENCE_OUTCOME: HeaderName = HeaderName::from_static("fence-outcome");
// Checked at compile time, and not with every answer.
const SETTLED: HeaderValue = HeaderValue::from_static("settled");
const UNKNOWN: HeaderValue = HeaderValue::from_static("unknown");
const PENDING: HeaderValue = HeaderValue::from_static("pending");
const VIA: HeaderValue = HeaderValue::from_static("1.1 fencegate");

fn is_fence(name: &str) -> bool {
    match name.as_bytes() {
        [b'f', b'e', b'n', b'c', b'e', b'-', ..] => true,
        [b'f', b'e', b'n', b'c', b'e', b'_', ..] => !failpoints::on(Fault::PassUnderscores),
        _ => false,
    }
}

/// Removes every `Fence-*` header: these are between client and gate, or gate and store. Some stores read `Fence_Seq`
/// as the same header.
pub fn strip_fence(headers: &mut HeaderMap) {
    let ours: Vec<HeaderName> = headers.keys().filter(|name| is_fence(name.as_str())).cloned().collect();
    for name in ours {
        headers.remove(name);
    }
}

/// Where a connection's requests come from.
#[derive(Clone, Debug)]
pub struct Origin {
    peer: String,
    is_v6: bool,
    scheme: &'static str,
    forwarded: Forwarded,
    /// The X-Forwarded-For and X-Forwarded-Proto of a request that brings neither.
    first_hop: String,
}

impl Origin {
    #[must_use]
    pub fn new(peer: IpAddr, is_tls: bool, forwarded: Forwarded) -> Self {
        let scheme = if is_tls { "https" } else { "http" };
        let first_hop = format!("x-forwarded-for: {peer}\r\nx-forwarded-proto: {scheme}\r\n");
        Self { peer: peer.to_string(), is_v6: peer.is_ipv6(), scheme, forwarded, first_hop }
    }

    /// Whether the store gets X-Forwarded-*, and whether it gets Forwarded.
    fn adds(&self) -> (bool, bool) {
        match self.forwarded {
            Forwarded::Off => (false, false),
            Forwarded::XForwarded => (true, false),
            Forwarded::Rfc7239 => (false, true),
            Forwarded::Both => (true, true),
        }
    }
}

/// Ids for requests that bring none: a prefix of the worker, and a number. No two are the same, and none costs a system
/// call.
#[derive(Debug)]
pub struct RequestIds {
    beginning: String,
    count: Cell<u64>,
}

impl RequestIds {
    #[must_use]
    pub fn new() -> Self {
        Self { beginning: format!("x-request-id: {}-", uuid::Uuid::new_v4().simple()), count: Cell::new(0) }
    }

    /// Writes the header of a request's id.
    fn write_next(&self, out: &mut Vec<u8>) {
        let number = self.count.get() + 1;
        self.count.set(number);
        out.extend_from_slice(self.beginning.as_bytes());
        out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        out.extend_from_slice(b"\r\n");
    }
}

impl Default for RequestIds {
    fn default() -> Self {
        Self::new()
    }
}

/// How the store learns where a body ends.
#[derive(Clone, Debug)]
pub enum Length {
    /// There is no body, and none is expected.
    Unsaid,
    Known(u64),
    /// In chunks, with these trailers after the last one.
    Chunks {
        trailers: Vec<HeaderName>,
    },
}

impl Length {
    /// The length of a collected body is known, however it came. A streaming body keeps the length that its decoder
    /// has, unless trailers are announced, since these need chunks. Without a length it is sent in chunks.
    #[must_use]
    pub fn of(head: &Parts, body: &StoreBody, streams: Option<u64>, allowed: &[HeaderName]) -> Self {
        let is_expected = || matches!(head.method, Method::PUT | Method::POST | Method::PATCH);
        match body {
            StoreBody::Empty if is_expected() || head.headers.contains_key(header::CONTENT_LENGTH) => Self::Known(0),
            StoreBody::Empty => Self::Unsaid,
            StoreBody::Held { first, parts, trailers: None } => {
                Self::Known(first.len() as u64 + parts.iter().map(|part| part.len() as u64).sum::<u64>())
            }
            StoreBody::Held { trailers: Some(trailers), .. } => {
                Self::Chunks { trailers: trailers.keys().cloned().collect() }
            }
            StoreBody::Stream(_) => match (announced(head, allowed), streams) {
                (trailers, Some(length)) if trailers.is_empty() => Self::Known(length),
                (trailers, _) => Self::Chunks { trailers },
            },
        }
    }

    /// Whether the request has a body.
    #[must_use]
    pub fn is_some(&self) -> bool {
        !matches!(self, Self::Unsaid | Self::Known(0))
    }

    /// The framing of this length on the connection to the store.
    #[must_use]
    pub fn framing(&self) -> Framing {
        match self {
            Self::Unsaid | Self::Known(_) => Framing::Length,
            Self::Chunks { trailers } => Framing::Chunks { trailers: trailers.clone() },
        }
    }
}

/// The trailers that a request announces, of those that are passed on.
#[must_use]
pub fn announced(head: &Parts, allowed: &[HeaderName]) -> Vec<HeaderName> {
    names_in(&head.headers, header::TRAILER).filter(|name| allowed.contains(name)).collect()
}

/// Writes a request's head for the store: the path and query byte for byte, and its headers without those that are for
/// one hop only. `closes`: the store is to read nothing more after this request.
pub fn to_store(
    out: &mut Vec<u8>,
    head: &Parts,
    origin: &Origin,
    guard: Option<&WriteGuard>,
    (length, closes): (&Length, bool),
    ids: &RequestIds,
) {
    out.extend_from_slice(head.method.as_str().as_bytes());
    out.push(b' ');
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    if !path.starts_with(['/', '*']) {
        // `http://store?query` has no path, which means `/`.
        out.push(b'/');
    }
    out.extend_from_slice(path.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    let authority = head.uri.authority().map(|host| host.as_str().as_bytes());
    if let Some(host) = authority {
        write_line(out, "host", host);
    }
    let seen = pass_on(out, head, origin);
    let host = authority.or(seen.host);
    match length {
        Length::Unsaid => {}
        Length::Known(length) => {
            out.extend_from_slice(b"content-length: ");
            out.extend_from_slice(itoa::Buffer::new().format(*length).as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        Length::Chunks { trailers } => {
            write_line(out, "transfer-encoding", b"chunked");
            for name in trailers {
                write_line(out, "trailer", name.as_str().as_bytes());
            }
        }
    }
    if closes {
        write_line(out, "connection", b"close");
    }
    out.extend_from_slice(match head.version {
        Version::HTTP_2 => b"via: 2.0 fencegate\r\n",
        Version::HTTP_10 => b"via: 1.0 fencegate\r\n",
        _ => b"via: 1.1 fencegate\r\n",
    });
    forwarded(out, head, origin, host, seen);
    if !seen.request_id {
        ids.write_next(out);
    }
    if let Some(guard) = guard {
        guard.each_permit(|permit| {
            out.extend_from_slice(b"fence-seq: ");
            out.extend_from_slice(itoa::Buffer::new().format(permit.seq().get()).as_bytes());
            out.extend_from_slice(b"\r\nfence-object: ");
            out.extend_from_slice(permit.object().as_str().as_bytes());
            out.extend_from_slice(b"\r\n");
        });
    }
    out.extend_from_slice(b"\r\n");
}

/// Which headers a request has, of those that the gate adds to.
#[derive(Clone, Copy, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Seen<'a> {
    host: Option<&'a [u8]>,
    request_id: bool,
    forwarded_for: bool,
    forwarded_proto: bool,
    forwarded_host: bool,
    forwarded: bool,
}

/// The headers that Connection names. The headers are searched one by one, because most requests have few of them and
/// no Connection.
fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let has_it = headers.keys().any(|name| *name == header::CONNECTION);
    if has_it { names_in(headers, header::CONNECTION).collect() } else { vec![] }
}

/// Writes a request's own headers, without those that are for one hop only or between client and gate.
fn pass_on<'a>(out: &mut Vec<u8>, head: &'a Parts, origin: &Origin) -> Seen<'a> {
    let (x_forwarded, rfc7239) = origin.adds();
    let (mut seen, mut has_cookie, mut says_trailers) = (Seen::default(), false, false);
    let named = named_by_connection(&head.headers);
    for (name, value) in &head.headers {
        match name.as_str() {
            // The authority was written already, and has the same value.
            "host" if head.uri.authority().is_some() => continue,
            // The sender cannot have this removed by naming it in Connection.
            "host" => seen.host = Some(value.as_bytes()),
            // Written anew: the sender cannot remove what frames a message. `100 Continue` is between neighbours.
            "content-length" | "trailer" | "expect" => continue,
            "te" => {
                says_trailers |= takes_trailers(value);
                continue;
            }
            other if is_hop_by_hop(other.as_bytes()) || is_fence(other) => continue,
            _ if named.contains(name) => continue,
            // HTTP/2 may split a cookie over several fields; HTTP/1.1 may not.
            "cookie" if head.version == Version::HTTP_2 => {
                has_cookie = true;
                continue;
            }
            // Written later, with one element more.
            "x-forwarded-for" if x_forwarded => {
                seen.forwarded_for = true;
                continue;
            }
            "forwarded" if rfc7239 => {
                seen.forwarded = true;
                continue;
            }
            "x-forwarded-proto" => seen.forwarded_proto = true,
            "x-forwarded-host" => seen.forwarded_host = true,
            "x-request-id" => seen.request_id = true,
            _ => {}
        }
        write_line(out, name.as_str(), value.as_bytes());
    }
    if has_cookie {
        out.extend_from_slice(b"cookie: ");
        join(out, head.headers.get_all(header::COOKIE).iter(), b"; ");
        out.extend_from_slice(b"\r\n");
    }
    if says_trailers {
        // The client accepts trailers, so the gate does, too.
        write_line(out, "te", b"trailers");
    }
    seen
}

fn join<'a>(out: &mut Vec<u8>, values: impl Iterator<Item = &'a HeaderValue>, between: &[u8]) {
    for (place, value) in values.enumerate() {
        if place > 0 {
            out.extend_from_slice(between);
        }
        out.extend_from_slice(value.as_bytes());
    }
}

/// Writes where a request came from, after the values that it already has.
fn forwarded(out: &mut Vec<u8>, head: &Parts, origin: &Origin, host: Option<&[u8]>, seen: Seen<'_>) {
    let (x_forwarded, rfc7239) = origin.adds();
    let (peer, scheme) = (origin.peer.as_bytes(), origin.scheme.as_bytes());
    if x_forwarded {
        if seen.forwarded_for || seen.forwarded_proto {
            out.extend_from_slice(b"x-forwarded-for: ");
            if seen.forwarded_for {
                join(out, head.headers.get_all("x-forwarded-for").iter(), b", ");
                out.extend_from_slice(b", ");
            }
            out.extend_from_slice(peer);
            out.extend_from_slice(b"\r\n");
            if !seen.forwarded_proto {
                write_line(out, "x-forwarded-proto", scheme);
            }
        } else {
            out.extend_from_slice(origin.first_hop.as_bytes());
        }
        if let Some(host) = host.filter(|_| !seen.forwarded_host) {
            out.extend_from_slice(b"x-forwarded-host: ");
            out.extend_from_slice(host);
            out.extend_from_slice(b"\r\n");
        }
    }
    if rfc7239 {
        out.extend_from_slice(b"forwarded: ");
        if seen.forwarded {
            join(out, head.headers.get_all(header::FORWARDED).iter(), b", ");
            out.extend_from_slice(b", ");
        }
        let (open, close): (&[u8], &[u8]) = if origin.is_v6 { (b"for=\"[", b"]\"") } else { (b"for=", b"") };
        for part in [open, peer, close, b";proto=", scheme, b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
}

/// Numbers as header values in a worker's answers.
#[derive(Debug, Default)]
pub struct Numbers {
    /// The last written lease_seq: most writes have the same number as the write before.
    last_seq: RefCell<Option<(u64, HeaderValue)>>,
    copies: RefCell<Copies>,
}

impl Numbers {
    fn seq(&self, number: u64) -> HeaderValue {
        let mut last = self.last_seq.borrow_mut();
        match &*last {
            Some((known, value)) if *known == number => value.clone(),
            _ => last.insert((number, self.value(number))).1.clone(),
        }
    }

    fn value(&self, number: u64) -> HeaderValue {
        let mut digits = itoa::Buffer::new();
        let digits = self.copies.borrow_mut().copy(digits.format(number).as_bytes());
        HeaderValue::from_maybe_shared(digits).unwrap_or_else(|_| HeaderValue::from(number))
    }
}

/// What is known of a write when its answer is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Settled,
    Unknown,
    /// The answer is longer than what is read ahead. The write is settled once the answer is complete.
    Pending,
}

/// Makes an answer's headers ready for the client. They have no hop-by-hop headers.
pub fn to_client(headers: &mut HeaderMap, write: Option<(&WriteGuard, Outcome)>, numbers: &Numbers) {
    strip_fence(headers);
    headers.append(header::VIA, VIA);
    if let Some((guard, outcome)) = write.filter(|(guard, _)| guard.is_judged()) {
        let mut soonest = u64::MAX;
        guard.each_permit(|permit| {
            headers.append(FENCE_SEQ, numbers.seq(permit.seq().get()));
            soonest = soonest.min(permit.remaining_ms());
        });
        if soonest < Ttl::FOR_EVER.0 / 2 {
            headers.append(FENCE_EXPIRES_IN, numbers.value(soonest));
        }
        // The store's headers of these names are removed already, so nothing has to be replaced.
        headers.append(
            FENCE_OUTCOME,
            match outcome {
                Outcome::Settled => SETTLED,
                Outcome::Unknown => UNKNOWN,
                Outcome::Pending => PENDING,
            },
        );
    }
}

#[cfg(test)]
#[path = "headers_tests.rs"]
mod tests;
