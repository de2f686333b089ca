//! TLS on the gate's ports, towards the store, and from an agent to its gate. The only folder that uses rustls.
//!
//! Certificates and keys are in PEM files. They are read with the settings. After a change they are read again when
//! the next connection is made or accepted, so a renewed certificate needs neither a signal nor a restart.
//!
//! - `certificate`: who a client is by the certificate that it has shown.
//! - `pem`: reads a file. [`renewed`]: whether a file has changed.

mod certificate;
mod pem;
pub mod renewed;

use std::{
    future::poll_fn,
    io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Poll, ready},
    time::Duration,
};

use rustls::{
    AlertDescription, ClientConfig, ProtocolVersion, RootCertStore, ServerConfig, SignatureScheme,
    client::ResolvesClientCert,
    crypto::aws_lc_rs,
    pki_types::ServerName,
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
    sign::CertifiedKey,
};
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, TlsConnector};
pub use tokio_rustls::{client::TlsStream as StoreStream, server::TlsStream as ClientStream};

pub use self::certificate::Certificate;
use self::{
    pem::{not_after, read_certificates, read_key},
    renewed::{Renewed, Wrong},
};
use crate::config::{Api, GateSettings};

/// Accepts TLS connections.
#[derive(Clone)]
pub struct Acceptor(Arc<Renewed<Shown>>);

/// The certificate for clients, and whether they must show one.
struct Shown {
    config: Arc<ServerConfig>,
    not_after: i64,
}

/// Which certificates clients show. The file holds the authorities that they must come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clients {
    /// Clients are not asked for one.
    NotAsked,
    /// A client may show one.
    Asked(PathBuf),
    /// A client without one is refused.
    Required(PathBuf),
}

impl Clients {
    fn authorities(&self) -> Option<&PathBuf> {
        match self {
            Self::NotAsked => None,
            Self::Asked(path) | Self::Required(path) => Some(path),
        }
    }
}

impl Acceptor {
    /// Reads a certificate chain, its key, and the authorities of clients' certificates.
    ///
    /// # Errors
    /// The wrong key, and what is wrong with it; never the text of a file.
    pub fn new(certificates: &Path, key: &Path, clients: Clients) -> Result<Self, Wrong> {
        let (certificates, key) = (certificates.to_owned(), key.to_owned());
        let paths = [&certificates, &key].into_iter().chain(clients.authorities()).cloned().collect();
        let read = move || Shown::read(&certificates, &key, &clients);
        Ok(Self(Arc::new(Renewed::new("certificates", paths, read)?)))
    }

    /// The last second in which the shown certificate is valid, as Unix time.
    #[must_use]
    pub fn not_after(&self) -> i64 {
        self.0.get().not_after
    }

    /// Performs the TLS handshake with a client.
    ///
    /// # Errors
    /// When the handshake fails.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> io::Result<ClientStream<S>> {
        TlsAcceptor::from(Arc::clone(&self.0.get().config)).accept(stream).await
    }
}

impl GateSettings {
    /// The acceptor for this port's TLS connections; `None` where the port takes plain ones.
    ///
    /// # Errors
    /// The wrong key, and what is wrong with it.
    pub fn tls(&self) -> Result<Option<Acceptor>, (&'static str, String)> {
        let clients = if self.tls_client_ca_file.as_os_str().is_empty() {
            Clients::NotAsked
        } else {
            Clients::Required(self.tls_client_ca_file.clone())
        };
        acceptor("gate", &self.tls_cert_file, &self.tls_key_file, clients)
    }
}

impl Api {
    /// The acceptor for this port's TLS connections; `None` where the port takes plain ones. Callers may show a
    /// certificate, or prove who they are in another way.
    ///
    /// # Errors
    /// The wrong key, and what is wrong with it.
    pub fn tls(&self) -> Result<Option<Acceptor>, (&'static str, String)> {
        let clients = if self.tls_client_ca_file.as_os_str().is_empty() {
            Clients::NotAsked
        } else {
            Clients::Asked(self.tls_client_ca_file.clone())
        };
        acceptor("api", &self.tls_cert_file, &self.tls_key_file, clients)
    }
}

/// The acceptor by the settings of one section.
fn acceptor(section: &str, chain: &Path, key: &Path, clients: Clients) -> Result<Option<Acceptor>, Wrong> {
    match (chain.as_os_str().is_empty(), key.as_os_str().is_empty()) {
        (true, true) if clients != Clients::NotAsked => {
            Err(("tls_client_ca_file", format!("needs {section}.tls_cert_file")))
        }
        (true, true) => Ok(None),
        (false, false) => Acceptor::new(chain, key, clients).map(Some),
        _ => Err(("tls_cert_file", format!("{section}.tls_cert_file and {section}.tls_key_file go together"))),
    }
}

impl Shown {
    fn read(certificates: &Path, key: &Path, clients: &Clients) -> Result<Self, Wrong> {
        let of_chain = |what| ("tls_cert_file", what);
        let chain = read_certificates(certificates).map_err(of_chain)?;
        let not_after = not_after(&chain[0]).map_err(|what| of_chain(format!("{}: {what}", certificates.display())))?;
        let key = read_key(key).map_err(|what| ("tls_key_file", what))?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|fault| of_chain(fault.to_string()))?
            .with_client_cert_verifier(verifier(clients).map_err(|what| ("tls_client_ca_file", what))?)
            .with_single_cert(chain, key)
            .map_err(|fault| of_chain(format!("certificate and key do not go together: {fault}")))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { config: Arc::new(config), not_after })
    }
}

/// Makes TLS connections to a store, or to a gate.
#[derive(Clone)]
pub struct Connector {
    name: ServerName<'static>,
    config: Arc<Renewed<ClientConfig>>,
}

/// The certificates of a client, as PEM files.
#[derive(Clone, Debug)]
pub struct Files {
    /// The authorities to trust; `None`: those that the system trusts.
    pub roots: Option<PathBuf>,
    /// The certificate to show if the other side asks for one, and its key.
    pub shown: Option<(PathBuf, PathBuf)>,
}

impl Connector {
    /// A connector to the server named `name`.
    ///
    /// # Errors
    /// The wrong key, and what is wrong with it; never the text of a file.
    pub fn new(files: Files, name: &str) -> Result<Self, Wrong> {
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| ("tls_server_name", format!("{name:?} is not a name a certificate can carry")))?;
        let config = Renewed::new("certificates", files.paths(), move || files.read())?;
        Ok(Self { name, config: Arc::new(config) })
    }

    /// Performs the TLS handshake with the other side.
    ///
    /// # Errors
    /// When the other side does not prove its name.
    pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> io::Result<StoreStream<S>> {
        TlsConnector::from(self.config.get()).connect(self.name.clone(), stream).await
    }

    /// The same. If the other side asks for a certificate, this also waits until it has accepted the one that it got.
    /// In TLS 1.3 that happens after the handshake, and the outcome of a write that was sent before would be unknown.
    /// A side that is silent for `patience` (it sends no session tickets) counts as having accepted.
    ///
    /// # Errors
    /// When one side does not prove its name to the other.
    pub async fn connect_welcome<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        patience: Duration,
    ) -> io::Result<StoreStream<S>> {
        let mut config = (*self.config.get()).clone();
        let asked = Arc::new(AskedForCert { shown: config.client_auth_cert_resolver, was: AtomicBool::new(false) });
        config.client_auth_cert_resolver = Arc::clone(&asked) as Arc<dyn ResolvesClientCert>;
        let connected = TlsConnector::from(Arc::new(config)).connect(self.name.clone(), stream).await;
        let mut stream = connected.map_err(refused)?;
        if asked.was.load(Ordering::Acquire) && stream.get_ref().1.protocol_version() == Some(ProtocolVersion::TLSv1_3)
        {
            // Silence counts as acceptance: see above.
            tokio::time::timeout(patience, verdict(&mut stream)).await.unwrap_or(Ok(())).map_err(refused)?;
        }
        Ok(stream)
    }
}

/// Waits for the first message after a handshake.
async fn verdict<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut StoreStream<S>) -> io::Result<()> {
    poll_fn(|context| {
        // Data for later readers stays in the buffer.
        let is_over = Pin::new(&mut *stream).poll_fill_buf(context).map_ok(<[u8]>::is_empty);
        if is_over.is_pending() && stream.get_ref().1.tls13_tickets_received() > 0 {
            return Poll::Ready(Ok(()));
        }
        if ready!(is_over)? {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        Poll::Ready(Ok(()))
    })
    .await
}

/// Records whether the other side has asked for a certificate.
#[derive(Debug)]
struct AskedForCert {
    shown: Arc<dyn ResolvesClientCert>,
    was: AtomicBool,
}

impl ResolvesClientCert for AskedForCert {
    fn resolve(&self, authorities: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.was.store(true, Ordering::Release);
        self.shown.resolve(authorities, schemes)
    }

    fn has_certs(&self) -> bool {
        self.shown.has_certs()
    }
}

/// Explains the other side's refusal of a certificate by the setting that causes it.
fn refused(error: io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    let Some(rustls::Error::AlertReceived(alert)) = inner else { return error };
    let what = match alert {
        AlertDescription::CertificateRequired => {
            "it asks for a certificate, and tls_cert_file names none that it would take".to_owned()
        }
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateExpired
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnknownCA
        | AlertDescription::AccessDenied
        // Sent for an authority with the same name and another key.
        | AlertDescription::DecryptError => format!("it does not take the certificate of tls_cert_file: {alert:?}"),
        _ => return error,
    };
    io::Error::new(io::ErrorKind::PermissionDenied, what)
}

impl Files {
    fn paths(&self) -> Vec<PathBuf> {
        let shown = self.shown.iter().flat_map(|(certificates, key)| [certificates, key]);
        self.roots.iter().chain(shown).cloned().collect()
    }

    fn read(&self) -> Result<ClientConfig, Wrong> {
        let mut trusted = RootCertStore::empty();
        let (certificates, whence) = match &self.roots {
            Some(path) => (read_certificates(path).map_err(|what| ("tls_ca_file", what))?, path.display().to_string()),
            None => (rustls_native_certs::load_native_certs().certs, "the system's store".to_owned()),
        };
        trusted.add_parsable_certificates(certificates);
        if trusted.is_empty() {
            return Err(("tls_ca_file", format!("{whence} holds no certificate to trust; give one by tls_ca_file")));
        }
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|fault| ("tls_ca_file", fault.to_string()))?
            .with_root_certificates(trusted);
        Ok(match &self.shown {
            None => config.with_no_client_auth(),
            Some((certificates, key)) => {
                let chain = read_certificates(certificates).map_err(|what| ("tls_cert_file", what))?;
                let key = read_key(key).map_err(|what| ("tls_key_file", what))?;
                config
                    .with_client_auth_cert(chain, key)
                    .map_err(|fault| ("tls_cert_file", format!("certificate and key do not go together: {fault}")))?
            }
        })
    }
}

/// Checks which clients may connect.
fn verifier(clients: &Clients) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let Some(path) = clients.authorities() else { return Ok(WebPkiClientVerifier::no_client_auth()) };
    let mut trusted = RootCertStore::empty();
    trusted.add_parsable_certificates(read_certificates(path)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(trusted), provider());
    let verifier = match clients {
        Clients::Asked(_) => verifier.allow_unauthenticated(),
        Clients::NotAsked | Clients::Required(_) => verifier,
    };
    verifier.build().map_err(|fault| format!("{} holds no certificate authority to trust: {fault}", path.display()))
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
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
        // The second year cannot be written with two digits.
        let ends = [date_time_ymd(2031, 2, 3), date_time_ymd(2055, 1, 1)];
        let certificate = |end| {
            let mut params = CertificateParams::new(vec!["gate.test".to_owned()]).unwrap();
            params.not_after = end;
            params.self_signed(&own).unwrap().pem()
        };
        fs::write(&key, own.serialize_pem()).unwrap();
        for (first, second, not_after) in [(0, 1, 1_927_843_200), (1, 0, 2_682_374_400)] {
            fs::write(&chain, certificate(ends[first]) + &certificate(ends[second])).unwrap();
            assert_eq!(
                Acceptor::new(&chain, &key, Clients::NotAsked).map(|acceptor| acceptor.not_after()).unwrap(),
                not_after
            );
        }
    }

    #[tokio::test]
    async fn who_asks_for_a_certificate_and_then_says_nothing_is_believed_to_take_it() {
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = (folder.path().join("certificate.pem"), folder.path().join("key.pem"));
        let own = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["gate.test".to_owned()]).unwrap();
        fs::write(&certificate, params.self_signed(&own).unwrap().pem()).unwrap();
        fs::write(&key, own.serialize_pem()).unwrap();
        let loud = Shown::read(&certificate, &key, &Clients::Required(certificate.clone())).unwrap().config;
        let mut silent = (*loud).clone();
        silent.send_tls13_tickets = 0;
        let (loud, silent) = (TlsAcceptor::from(loud), TlsAcceptor::from(Arc::new(silent)));
        let shown = Some((certificate.clone(), key));
        let own = Connector::new(Files { roots: Some(certificate.clone()), shown }, "gate.test").unwrap();
        let without = Connector::new(Files { roots: Some(certificate), shown: None }, "gate.test").unwrap();
        let (short, long) = (Duration::from_millis(1), Duration::from_mins(10));
        for (connector, acceptor, patience, is_in) in
            [(&own, &loud, long, true), (&own, &silent, short, true), (&without, &silent, long, false)]
        {
            let (near, far) = tokio::io::duplex(1 << 16);
            let both = async { tokio::join!(acceptor.accept(far), connector.connect_welcome(near, patience)) };
            let both = tokio::time::timeout(Duration::from_secs(30), both).await;
            let both = both.expect("both sides know within 30 s whether the handshake is done");
            assert_eq!((both.0.is_ok(), both.1.is_ok()), (is_in, is_in), "{:?}", both.1.err());
        }
    }
}
