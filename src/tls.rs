//! TLS, on the gate's port and towards the store. The only file that knows rustls.
//!
//! Certificates and keys are read from PEM files when settings are read, and again by a reload.

use std::{io, path::Path, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, TlsConnector};
pub use tokio_rustls::{client::TlsStream as StoreStream, server::TlsStream as ClientStream};
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

/// Takes TLS connections in.
#[derive(Clone)]
pub struct Acceptor {
    acceptor: TlsAcceptor,
    /// The last second in which the certificate that is shown holds, as Unix time.
    pub not_after: i64,
}

impl Acceptor {
    /// Reads a certificate chain and its key. With `clients`, whoever connects must show a certificate of one of
    /// the authorities in that file.
    ///
    /// # Errors
    /// With what is wrong, never with what is in the files.
    pub fn load(certificates: &Path, key: &Path, clients: Option<&Path>) -> Result<Self, String> {
        let chain = read_certificates(certificates)?;
        let shown = chain[0].clone();
        let key = PrivateKeyDer::from_pem_file(key)
            .map_err(|fault| format!("no private key can be read from {}: {fault}", key.display()))?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|fault| fault.to_string())?
            .with_client_cert_verifier(verifier(clients)?)
            .with_single_cert(chain, key)
            .map_err(|fault| format!("certificate and key do not go together: {fault}"))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let not_after = not_after(&shown).map_err(|what| format!("{}: {what}", certificates.display()))?;
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), not_after })
    }

    /// Shakes hands with a client.
    ///
    /// # Errors
    /// Where the client does not.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> io::Result<ClientStream<S>> {
        self.acceptor.accept(stream).await
    }
}

/// Makes TLS connections to a store.
#[derive(Clone)]
pub struct Connector {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl Connector {
    /// Trusts the certificates in `roots`, or the system's where that is `None`, for a store that calls
    /// itself `name`.
    ///
    /// # Errors
    /// With what is wrong.
    pub fn new(roots: Option<&Path>, name: &str) -> Result<Self, String> {
        let mut trusted = RootCertStore::empty();
        let (certificates, whence) = match roots {
            Some(path) => (read_certificates(path)?, path.display().to_string()),
            None => (rustls_native_certs::load_native_certs().certs, "the system's store".to_owned()),
        };
        trusted.add_parsable_certificates(certificates);
        if trusted.is_empty() {
            return Err(format!("{whence} holds no certificate to trust; give one by tls_ca_file"));
        }
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|fault| fault.to_string())?
            .with_root_certificates(trusted)
            .with_no_client_auth();
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| format!("{name:?} is not a name a certificate can carry"))?;
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), name })
    }

    /// Shakes hands with the store.
    ///
    /// # Errors
    /// Where it does not prove to be who it should be.
    pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> io::Result<StoreStream<S>> {
        self.connector.connect(self.name.clone(), stream).await
    }
}

/// Who may connect.
fn verifier(clients: Option<&Path>) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let Some(path) = clients else { return Ok(WebPkiClientVerifier::no_client_auth()) };
    let mut trusted = RootCertStore::empty();
    trusted.add_parsable_certificates(read_certificates(path)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(trusted), provider()).build();
    verifier.map_err(|fault| format!("{} holds no certificate authority to trust: {fault}", path.display()))
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// Until when a certificate holds. rustls has no word for it: to who shows a certificate it does not matter.
fn not_after(certificate: &CertificateDer<'_>) -> Result<i64, String> {
    let (_, read) = X509Certificate::from_der(certificate)
        .map_err(|fault| format!("until when the certificate holds cannot be read: {fault}"))?;
    Ok(read.validity().not_after.timestamp())
}

/// One at least.
fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let unreadable = |fault| format!("no certificate can be read from {}: {fault}", path.display());
    let certificates: Vec<_> =
        CertificateDer::pem_file_iter(path).map_err(unreadable)?.collect::<Result<_, _>>().map_err(unreadable)?;
    if certificates.is_empty() {
        return Err(format!("{} holds no certificate", path.display()));
    }
    Ok(certificates)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn the_first_certificate_of_a_chain_says_until_when_it_holds() {
        let folder = tempfile::tempdir().unwrap();
        let (chain, key) = (folder.path().join("chain.pem"), folder.path().join("key.pem"));
        let own = KeyPair::generate().unwrap();
        // The second is beyond what two digits of a year can say.
        let ends = [date_time_ymd(2031, 2, 3), date_time_ymd(2055, 1, 1)];
        let certificate = |end| {
            let mut params = CertificateParams::new(vec!["gate.test".to_owned()]).unwrap();
            params.not_after = end;
            params.self_signed(&own).unwrap().pem()
        };
        fs::write(&key, own.serialize_pem()).unwrap();
        for (first, second, not_after) in [(0, 1, 1_927_843_200), (1, 0, 2_682_374_400)] {
            fs::write(&chain, certificate(ends[first]) + &certificate(ends[second])).unwrap();
            assert_eq!(Acceptor::load(&chain, &key, None).map(|acceptor| acceptor.not_after), Ok(not_after));
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_end() {
        let fault = not_after(&CertificateDer::from(&b"nothing"[..])).unwrap_err();
        assert!(fault.starts_with("until when the certificate holds cannot be read"), "{fault}");
    }
}
