//! The form of a request: what two servers could read in two ways, or what is too large, is not forwarded. These
//! checks come before any that needs a route.

use http::{HeaderMap, HeaderValue, Method, Uri, Version, header, request::Parts};

use super::{
    classify::{Unfit, body_on_read, doubtful, unfit},
    doubt::Doubt,
    fields::Marks,
};
use crate::{
    config::GateSettings,
    failpoints::{self, Fault},
    fence::Code,
};

/// Checks the form of a request, whatever it is.
pub(super) fn check(head: &Parts, marks: Marks<'_>, limits: &GateSettings) -> Result<(), Unfit> {
    check_size(head, marks, limits)?;
    check_tunnel(head, marks)?;
    check_host(head, marks, limits.strict)?;
    check_override(&head.uri, marks)?;
    check_coding(&head.headers, marks, limits.strict)?;
    if limits.strict && head.version == Version::HTTP_2 {
        check_edges(&head.headers)?;
    }
    Ok(())
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
        // A target with a host does not make up for it, except as the pseudo-field of HTTP/2.
        (authority, None) if is_strict && (authority.is_none() || head.version != Version::HTTP_2) => {
            Err(doubtful("Host", "there is no Host"))
        }
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
pub(super) fn is_host(host: &[u8]) -> bool {
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
pub(super) fn check_no_body(headers: &HeaderMap, marks: Marks<'_>) -> Result<(), Unfit> {
    if marks.have(Marks::CODING) {
        return Err(body_on_read("Transfer-Encoding"));
    }
    if marks.have(Marks::LENGTH) && headers.get_all(header::CONTENT_LENGTH).iter().any(|length| length != "0") {
        return Err(body_on_read("Content-Length"));
    }
    Ok(())
}

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

pub(super) fn check_rewrite(marks: Marks<'_>) -> Result<(), Unfit> {
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
