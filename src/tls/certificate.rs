//! Who a client is by the certificate that it has shown. The handshake has checked that the certificate comes from an
//! authority that is trusted; this reads the names in it.

use tokio_rustls::server::TlsStream;
use x509_parser::{certificate::X509Certificate, extensions::GeneralName, prelude::FromDer};

/// The names in a client's certificate, and until when it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// URIs among its alternative names, in their order.
    pub uris: Vec<String>,
    /// DNS names among its alternative names, in their order.
    pub dns: Vec<String>,
    /// The last second in which it is valid, as Unix time.
    pub not_after: i64,
}

impl Certificate {
    /// Reads the certificate of a connection's client. `None`: the client has shown none, or one that cannot be read.
    #[must_use]
    pub fn of_client<S>(stream: &TlsStream<S>) -> Option<Self> {
        let shown = stream.get_ref().1.peer_certificates()?;
        Self::read(shown.first()?)
    }

    fn read(der: &[u8]) -> Option<Self> {
        let (_, read) = X509Certificate::from_der(der).ok()?;
        let (mut uris, mut dns) = (vec![], vec![]);
        let names = read.subject_alternative_name().ok()?;
        for name in names.iter().flat_map(|names| &names.value.general_names) {
            match name {
                GeneralName::URI(uri) => uris.push((*uri).to_owned()),
                GeneralName::DNSName(name) => dns.push((*name).to_owned()),
                _ => {}
            }
        }
        Some(Self { uris, dns, not_after: read.validity().not_after.timestamp() })
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, SanType};

    use super::*;

    #[test]
    fn the_alternative_names_are_read_in_their_order() {
        let own = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["b.test".to_owned(), "a.test".to_owned()]).unwrap();
        params.subject_alt_names.push(SanType::URI("spiffe://td/ns/shop/sa/api".try_into().unwrap()));
        let read = Certificate::read(params.self_signed(&own).unwrap().der()).unwrap();
        assert_eq!(read.dns, ["b.test", "a.test"]);
        assert_eq!(read.uris, ["spiffe://td/ns/shop/sa/api"]);
        let none = CertificateParams::new(vec![]).unwrap();
        let read = Certificate::read(none.self_signed(&own).unwrap().der()).unwrap();
        assert!(read.dns.is_empty() && read.uris.is_empty());
        assert_eq!(Certificate::read(b"nothing"), None);
    }
}
