//! The way to the store: its address, and connections that each carry one request at a time.
//!
//! - [`Address`]: where the store is.
//! - [`pool`]: a worker's connections to it. [`shares`]: how many of them each asker may have.
//! - [`http1`]: one connection, which sends a request and reads its answer. [`answer`], [`chunks`]: how answers are
//!   read; [`copies`]: where short pieces are kept. [`io`]: the stream below it. [`observed`]: a stream with an observer that counts.
//! - [`body`]: what is sent. [`trailer`]: what may come after it. [`hop`]: headers that are for one connection only.
//!
//! A write is never sent twice: nothing here tries again once a byte of it may have left.

pub mod answer;
pub mod body;
pub mod chunks;
pub mod copies;
pub mod hop;
pub mod http1;
pub mod io;
pub mod observed;
pub mod pool;
pub mod shares;
pub mod trailer;

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use crate::{
    config::StoreSettings,
    tls::{Connector, Files},
};

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    Tcp { host: String, port: u16 },
    Tls { host: String, port: u16 },
    Unix(PathBuf),
}

/// Where a store is, and what is needed to reach it.
#[derive(Clone)]
pub struct Way {
    pub address: Address,
    /// For `https` only.
    pub tls: Option<Connector>,
}

impl StoreSettings {
    /// Where the store is, and how to reach it.
    ///
    /// # Errors
    /// With the key that is wrong, and why.
    pub fn way(&self) -> Result<Way, (&'static str, String)> {
        let address = Address::parse(&self.url).map_err(|what| ("url", what))?;
        let Address::Tls { host, .. } = &address else { return Ok(Way { address, tls: None }) };
        let roots = Some(self.tls_ca_file.clone()).filter(|path| !path.as_os_str().is_empty());
        let name = if self.tls_server_name.is_empty() { host } else { &self.tls_server_name };
        let tls = Connector::new(Files { roots, shown: None }, name)?;
        Ok(Way { address, tls: Some(tls) })
    }
}

impl Address {
    /// Whether this address is the one that the gate listens on, as far as its name shows.
    #[must_use]
    pub fn is_at(&self, listens: SocketAddr) -> bool {
        let (Self::Tcp { host, port } | Self::Tls { host, port }) = self else { return false };
        let is_here = match host.parse::<IpAddr>() {
            Ok(address) => {
                address == listens.ip() || listens.ip().is_unspecified() && address.to_canonical().is_loopback()
            }
            Err(_) => {
                host == "localhost" && (listens.ip().is_unspecified() || listens.ip().to_canonical().is_loopback())
            }
        };
        is_here && *port == listens.port()
    }

    /// Reads a store's URL.
    ///
    /// # Errors
    /// With what is wrong with the URL.
    pub fn parse(url: &str) -> Result<Self, String> {
        if let Some(path) = url.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            return if path.is_absolute() {
                Ok(Self::Unix(path))
            } else {
                Err("unix: needs an absolute path".to_owned())
            };
        }
        let uri: http::Uri = url.parse().map_err(|_| format!("{url:?} is not a URL"))?;
        let (scheme, authority) = (uri.scheme_str(), uri.authority());
        let (Some(scheme @ ("http" | "https")), Some(authority)) = (scheme, authority) else {
            return Err(format!("{url:?} must be http://HOST:PORT, https://HOST:PORT or unix:/PATH"));
        };
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() || authority.as_str().contains('@') {
            return Err(format!("{url:?} must have neither path, query nor user: requests are forwarded as they are"));
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        Ok(match scheme {
            "https" => Self::Tls { host, port: authority.port_u16().unwrap_or(443) },
            _ => Self::Tcp { host, port: authority.port_u16().unwrap_or(80) },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_is_the_gate_itself_is_seen_by_its_name() {
        for (url, listens, is_it) in [
            ("http://127.0.0.1:8080", "127.0.0.1:8080", true),
            ("http://localhost:8080", "127.0.0.1:8080", true),
            ("https://127.0.0.1:8080", "0.0.0.0:8080", true),
            ("http://[::1]:8080", "[::]:8080", true),
            ("http://127.0.0.2:8080", "[::]:8080", true),
            ("http://127.0.0.1:9000", "127.0.0.1:8080", false),
            ("http://127.0.0.2:8080", "127.0.0.1:8080", false),
            ("http://store:8080", "0.0.0.0:8080", false),
            ("unix:/run/store.sock", "0.0.0.0:8080", false),
        ] {
            assert_eq!(Address::parse(url).unwrap().is_at(listens.parse().unwrap()), is_it, "{url} of {listens}");
        }
    }

    #[test]
    fn a_store_is_at_a_port_or_a_socket() {
        let tcp = |host: &str, port| Ok(Address::Tcp { host: host.to_owned(), port });
        assert_eq!(Address::parse("http://127.0.0.1:9000"), tcp("127.0.0.1", 9000));
        assert_eq!(Address::parse("http://store/"), tcp("store", 80));
        assert_eq!(Address::parse("http://[::1]:9000"), tcp("::1", 9000));
        let tls = Address::Tls { host: "store".to_owned(), port: 443 };
        assert_eq!(Address::parse("https://store"), Ok(tls));
        assert_eq!(Address::parse("unix:/run/store.sock"), Ok(Address::Unix("/run/store.sock".into())));
        for bad in
            ["", "store", "ftp://store", "http://store/path", "http://u:p@store", "unix:store.sock", "http://s?q"]
        {
            assert!(Address::parse(bad).is_err(), "{bad}");
        }
    }
}
