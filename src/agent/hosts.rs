//! Which `Host` a request to this agent may carry. A web page can make its own name point to this machine (DNS
//! rebinding). Its requests carry that name, and would read and write as the application does. Also which `Origin` a
//! write may carry: only that of its own page.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, Uri, header, uri::Authority};

use crate::{
    api::origin::is_of_own_page,
    fence::{Code, code::Plane},
    problem::Problem,
};

/// The accepted names besides `localhost` and IP addresses: none of them is the name of a web page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts(Vec<Taken>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Taken {
    All,
    One(String),
    /// All names that end in this text, which begins with a dot.
    Below(String),
}

impl Hosts {
    /// Reads `agent.hosts`.
    ///
    /// # Errors
    /// The entry that is not a name.
    pub fn new(names: &[String]) -> Result<Self, String> {
        names.iter().map(|name| Taken::new(name)).collect::<Result<_, _>>().map(Self)
    }

    /// Whether this agent accepts every host that the request names. HTTP/1.0 requests need not name one.
    #[must_use]
    pub fn take(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let named = uri.authority().map(Authority::as_str).into_iter().map(Some);
        let mut all = named.chain(headers.get_all(header::HOST).iter().map(|host| host.to_str().ok()));
        all.all(|host| host.is_some_and(|host| self.takes(host)))
    }

    fn takes(&self, host: &str) -> bool {
        let (name, port) = match host.strip_prefix('[') {
            Some(rest) => {
                let Some((address, port)) = rest.split_once(']') else { return false };
                return address.parse::<Ipv6Addr>().is_ok()
                    && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port));
            }
            None => host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port))),
        };
        let name = name.to_ascii_lowercase();
        let is_taken =
            name.parse::<Ipv4Addr>().is_ok() || name == "localhost" || self.0.iter().any(|taken| taken.has(&name));
        is_taken && port.is_none_or(is_port)
    }

    /// Whether a write may come from a web page of another origin. A browser adds these headers itself, and a page
    /// cannot change them. A page on another port of this machine is another origin too. Over plain http from another
    /// machine, browsers send only `Origin`. Programs other than browsers send neither header.
    #[must_use]
    pub fn is_of_other_page(uri: &Uri, headers: &HeaderMap) -> bool {
        if let Some(site) = headers.get("sec-fetch-site") {
            return site != "none" && site != "same-origin";
        }
        let named = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let host = named.or_else(|| uri.authority().map(Authority::as_str)).unwrap_or("");
        // The agent has no TLS itself; a proxy in front of it may have.
        !is_of_own_page(headers, &["http://", "https://"], host)
    }

    /// The refusal of a request for another host.
    #[must_use]
    pub fn refusal() -> Problem {
        let what = "the Host is neither localhost nor an IP address nor one of agent.hosts, so this may be a web page whose name leads here. Add the application's own Host to agent.hosts";
        Problem::on(Plane::Data, Code::NotLoopback, what)
    }
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether the text has the form of a host name.
fn is_name(text: &str) -> bool {
    let is_part =
        |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    text.split('.').all(is_part)
}

impl Taken {
    fn new(name: &str) -> Result<Self, String> {
        let name = name.to_ascii_lowercase();
        if name == "*" {
            return Ok(Self::All);
        }
        let plain = name.strip_prefix("*.").unwrap_or(&name);
        if !is_name(plain) {
            return Err(format!("{name:?} is not a host's name without a port, nor * or *.NAME"));
        }
        Ok(if plain.len() < name.len() { Self::Below(format!(".{plain}")) } else { Self::One(name) })
    }

    fn has(&self, name: &str) -> bool {
        match self {
            Self::All => is_name(name),
            Self::One(own) => own == name,
            Self::Below(own) => name.len() > own.len() && name.ends_with(own.as_str()) && is_name(name),
        }
    }
}

/// Refuses a call of the status port for another Host.
pub async fn only_taken(State(hosts): State<Hosts>, request: Request, next: Next) -> Response {
    if hosts.take(request.uri(), request.headers()) {
        return next.run(request).await;
    }
    Hosts::refusal().into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(hosts: &[&str], sent: &[&str], uri: &str) -> bool {
        let hosts = Hosts::new(&hosts.iter().map(|&host| host.to_owned()).collect::<Vec<_>>()).unwrap();
        let mut headers = HeaderMap::new();
        for host in sent {
            headers.append(header::HOST, host.parse().unwrap());
        }
        hosts.take(&uri.parse().unwrap(), &headers)
    }

    #[test]
    fn a_name_of_its_own_is_taken_only_where_it_is_listed() {
        for own in ["localhost", "LocalHost:8082", "127.0.0.1", "127.0.0.1:80", "[::1]:80", "10.0.0.7:8082"] {
            assert!(take(&[], &[own], "/x"), "{own}");
        }
        assert!(take(&[], &[], "/x"), "HTTP/1.0 need not say");
        for page in [
            "page.example",
            "localhost.page.example",
            "[::1].page.example",
            "127.0.0.1.page.example",
            "",
            "?",
            "localhost:80:80",
            "[::1",
        ] {
            assert!(!take(&[], &[page], "/x"), "{page}");
        }
        assert!(!take(&[], &["page@localhost"], "/x"));
        assert!(
            !take(&[], &["localhost", "page.example"], "/x") && !take(&[], &["localhost"], "http://page.example/x")
        );
        let own = ["minio.internal", "*.s3.example"];
        for host in ["minio.internal:9000", "MINIO.internal", "bucket.s3.example", "a.b.s3.example"] {
            assert!(take(&own, &[host], "/x"), "{host}");
        }
        for host in ["s3.example", "evils3.example", "x.minio.internal", "page.example"] {
            assert!(!take(&own, &[host], "/x"), "{host}");
        }
        assert!(take(&["*"], &["page.example"], "http://other.example/x") && !take(&["*"], &["a/b"], "/x"));
    }

    #[test]
    fn a_write_of_another_page_is_known_by_what_the_browser_says() {
        let is_other = |headers: &[(&'static str, &str)]| {
            let own = [("host", "files.example:8082")].into_iter().chain(headers.iter().copied());
            let all = own.map(|(name, value)| (name.parse::<http::HeaderName>().unwrap(), value.parse().unwrap()));
            let mut headers = HeaderMap::new();
            all.for_each(|(name, value)| _ = headers.append(name, value));
            Hosts::is_of_other_page(&Uri::from_static("/x"), &headers)
        };
        assert!(!is_other(&[]), "an application's own request");
        for own in ["http://files.example:8082", "https://files.example:8082", "http://Files.example:8082"] {
            assert!(!is_other(&[("origin", own)]), "{own}");
        }
        for other in ["http://evil.example", "http://files.example", "http://files.example:80", "null", "", "file://"] {
            assert!(is_other(&[("origin", other)]), "{other}");
        }
        assert!(is_other(&[("origin", "http://files.example:8082"), ("origin", "http://evil.example")]));
        for (site, expected) in [("same-origin", false), ("none", false), ("same-site", true), ("cross-site", true)] {
            assert_eq!(is_other(&[("sec-fetch-site", site)]), expected, "{site}");
        }
        // A proxy in front of the agent changes the Host.
        assert!(!is_other(&[("sec-fetch-site", "same-origin"), ("origin", "https://shown.example")]));
    }

    #[test]
    fn a_host_that_is_no_name_is_a_fault() {
        for bad in ["", "a:80", "http://a", "a/b", "*a", "a..b", "*.", "**"] {
            assert!(Hosts::new(&[bad.to_owned()]).is_err(), "{bad}");
        }
    }
}
