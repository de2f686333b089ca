//! Who may call: programs that name this machine, and no web page of another origin.
//!
//! A web page can make its own name point to this machine (DNS rebinding). Its calls then carry that name as their
//! Host. A page of another origin says so in `Origin`. A request that two parsers could read in two ways (a second
//! Host, a target that names a host) is refused before either is checked.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::{
    extract::Request,
    http::{HeaderMap, Version, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::connection::Peer;
use crate::{fence::Code, problem::Problem};

/// Refuses what two parsers could read in two ways, and pages of another origin.
pub async fn own_pages_only(request: Request, next: Next) -> Response {
    match is_own(&request) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// Refuses what a web page could send: for calls that need no proof of who makes them.
pub async fn local_only(request: Request, next: Next) -> Response {
    match is_own(&request).and_then(|()| names_this_machine_only(&request)) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// # Errors
/// `NOT_LOOPBACK` where the Host is a name, which a web page could have made point to this machine.
pub fn names_this_machine_only<B>(request: &Request<B>) -> Result<(), Problem> {
    if names_this_machine(host(request)?) {
        return Ok(());
    }
    let what = "the Host must be localhost or an IP address, so that no web page can call";
    Err(Problem::new(Code::NotLoopback, what))
}

fn is_own<B>(request: &Request<B>) -> Result<(), Problem> {
    let is_encrypted = request.extensions().get::<Peer>().is_some_and(Peer::is_encrypted);
    if is_of_own_page(request.headers(), &[if is_encrypted { "https://" } else { "http://" }], host(request)?) {
        return Ok(());
    }
    let what = "the Origin is not this api's own: no web page of another origin may call";
    Err(Problem::new(Code::NotLoopback, what))
}

/// The one host that a request names.
fn host<B>(request: &Request<B>) -> Result<&str, Problem> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let (host, other) = (hosts.next(), hosts.next());
    if other.is_some() {
        return Err(Problem::invalid("Host", "was sent twice"));
    }
    let host = host.map(|host| host.to_str().unwrap_or(""));
    let authority = request.uri().authority().map(Authority::as_str);
    match (request.version(), authority, host) {
        // HTTP/2 has the host in the target.
        (Version::HTTP_2, Some(authority), host) if host.is_none_or(|host| host == authority) => Ok(authority),
        (Version::HTTP_2, _, _) => Err(Problem::invalid("Host", "must be the same as :authority")),
        (_, Some(_), _) => {
            Err(Problem::invalid("target", "must be a path, such as /v1/leases, without a scheme and a host"))
        }
        (_, None, host) => Ok(host.unwrap_or("")),
    }
}

/// Whether every `Origin` of a request is that of its own Host, by one of these schemes. Programs other than browsers
/// send none.
pub fn is_of_own_page(headers: &HeaderMap, schemes: &[&str], host: &str) -> bool {
    let is_own = |origin: &[u8], scheme: &str| {
        let own = origin.split_at_checked(scheme.len());
        own.is_some_and(|(begin, rest)| begin == scheme.as_bytes() && rest.eq_ignore_ascii_case(host.as_bytes()))
    };
    let origins = headers.get_all(header::ORIGIN);
    origins.iter().all(|origin| schemes.iter().any(|scheme| is_own(origin.as_bytes(), scheme)))
}

/// Whether a Host is only `localhost` or an IP address, with or without a port.
fn names_this_machine(host: &str) -> bool {
    if let Some(rest) = host.strip_prefix('[') {
        let parts = rest.split_once(']');
        return parts.is_some_and(|(ip, port)| ip.parse::<Ipv6Addr>().is_ok() && is_port(port));
    }
    let (name, port) = host.split_at(host.find(':').unwrap_or(host.len()));
    (name.eq_ignore_ascii_case("localhost") || name.parse::<Ipv4Addr>().is_ok()) && is_port(port)
}

/// Whether this is empty, or `:` and a number.
fn is_port(text: &str) -> bool {
    text.is_empty()
        || text
            .strip_prefix(':')
            .is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()) && digits.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_localhost_or_an_address_and_nothing_more() {
        for host in ["localhost", "LocalHost:8081", "127.0.0.1", "10.1.2.3:65535", "[::1]", "[::1]:8081"] {
            assert!(names_this_machine(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "[::1].evil",
            "[::1].evil:8081",
            "[::1]evil",
            "[::1",
            "::1",
            "[127.0.0.1]",
            "localhost.",
            "localhost.evil",
            "localhost:",
            "localhost:x",
            "localhost:+1",
            "localhost:65536",
            "127.0.0.1.evil",
            "127.0.0.1:80:80",
            "user@localhost",
            "localhost/",
            "localhost,localhost",
            " localhost",
        ] {
            assert!(!names_this_machine(host), "{host}");
        }
    }

    #[test]
    fn only_the_apis_own_pages_may_call() {
        let call = |origin: &str| {
            let call = Request::get("/v1/leases").header(header::HOST, "127.0.0.1:8081").header(header::ORIGIN, origin);
            is_own(&call.body(()).unwrap()).map_err(|problem| problem.code())
        };
        assert_eq!(call("http://127.0.0.1:8081"), Ok(()));
        for origin in
            ["null", "", "http://evil.example", "https://127.0.0.1:8081", "http://127.0.0.1", "http://127.0.0.1:80"]
        {
            assert_eq!(call(origin), Err(Code::NotLoopback), "{origin}");
        }
    }
}
