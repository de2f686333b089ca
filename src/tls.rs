//! TLS, on the gate's port, towards the store, and from an agent to its gate. The only file that knows rustls.
//!
//! Certificates and keys are read from PEM files when settings are read, and again by a reload. An agent has no reload:
//! it looks at its files before each connection, and reads them again when they have changed.

use std::{
    fs,
    future::poll_fn,
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Poll, ready},
    time::Duration,
};

use rustls::{
    AlertDescription, ClientConfig, ProtocolVersion, RootCertStore, ServerConfig, SignatureScheme,
    client::ResolvesClientCert,
    crypto::aws_lc_rs,
    pki_types::{
        CertificateDer, PrivateKeyDer, ServerName,
        pem::{self, PemObject},
    },
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
    sign::CertifiedKey,
};
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite};
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
        let key = read_key(key)?;
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

/// Makes TLS connections to a store, or to a gate.
#[derive(Clone)]
pub struct Connector {
    name: ServerName<'static>,
    made: Made,
}

#[derive(Clone)]
enum Made {
    Once(Arc<ClientConfig>),
    /// Of files that are looked at before each connection.
    Anew(Arc<Renewed>),
}

/// Which key of the settings is wrong, and what is.
type Wrong = (&'static str, String);

/// What a client goes by, as PEM files.
#[derive(Clone, Debug)]
pub struct Files {
    /// Whom to trust; `None`: whom the system trusts.
    pub roots: Option<PathBuf>,
    /// The certificate to show where one is asked for, and its key.
    pub shown: Option<(PathBuf, PathBuf)>,
}

impl Connector {
    /// Trusts the certificates in `roots`, or the system's where that is `None`, for a store that calls
    /// itself `name`.
    ///
    /// # Errors
    /// With what is wrong.
    pub fn new(roots: Option<&Path>, name: &str) -> Result<Self, String> {
        let files = Files { roots: roots.map(Path::to_owned), shown: None };
        let config = files.read().map_err(|(_, what)| what)?;
        Ok(Self { name: named(name)?, made: Made::Once(config) })
    }

    /// The same of files that are read again whenever they have changed. Until all of them can be, what was read last
    /// is used.
    ///
    /// # Errors
    /// With the key that is wrong, and what is; never with what is in the files.
    pub fn renewed(files: Files, name: &str) -> Result<Self, Wrong> {
        let name = named(name).map_err(|what| ("tls_server_name", what))?;
        // Looked at before they are read: what changes in between is read once more.
        let marks = files.marks();
        let last = Mutex::new(Last { config: files.read()?, marks, fault: None });
        Ok(Self { name, made: Made::Anew(Arc::new(Renewed { files, last })) })
    }

    /// Shakes hands with the other side.
    ///
    /// # Errors
    /// Where it does not prove to be who it should be.
    pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> io::Result<StoreStream<S>> {
        TlsConnector::from(self.config()).connect(self.name.clone(), stream).await
    }

    /// The same, and where the other side asks for a certificate, it has also said that it takes what it was shown: in
    /// TLS 1.3 that comes after the handshake, and whatever was sent before would be of unknown outcome. One that says
    /// nothing within `patience` (it sends no session tickets) is believed to.
    ///
    /// # Errors
    /// Where one of the two does not prove to be who it should be.
    pub async fn connect_welcome<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        patience: Duration,
    ) -> io::Result<StoreStream<S>> {
        let mut config = (*self.config()).clone();
        let asked = Arc::new(Asked { shown: config.client_auth_cert_resolver, was: AtomicBool::new(false) });
        config.client_auth_cert_resolver = Arc::clone(&asked) as Arc<dyn ResolvesClientCert>;
        let connected = TlsConnector::from(Arc::new(config)).connect(self.name.clone(), stream).await;
        let mut stream = connected.map_err(refused)?;
        if asked.was.load(Ordering::Acquire) && stream.get_ref().1.protocol_version() == Some(ProtocolVersion::TLSv1_3)
        {
            // Too late is as good as never.
            tokio::time::timeout(patience, verdict(&mut stream)).await.unwrap_or(Ok(())).map_err(refused)?;
        }
        Ok(stream)
    }

    fn config(&self) -> Arc<ClientConfig> {
        match &self.made {
            Made::Once(config) => Arc::clone(config),
            Made::Anew(renewed) => renewed.config(),
        }
    }
}

/// Waits for the first word after a handshake.
async fn verdict<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut StoreStream<S>) -> io::Result<()> {
    poll_fn(|context| {
        // What comes for others stays where it is.
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

/// Knows whether the other side has asked for a certificate.
#[derive(Debug)]
struct Asked {
    shown: Arc<dyn ResolvesClientCert>,
    was: AtomicBool,
}

impl ResolvesClientCert for Asked {
    fn resolve(&self, authorities: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.was.store(true, Ordering::Release);
        self.shown.resolve(authorities, schemes)
    }

    fn has_certs(&self) -> bool {
        self.shown.has_certs()
    }
}

/// The other side's word on a certificate, in words that lead to it.
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
        // Of an authority that has the same name and another key.
        | AlertDescription::DecryptError => format!("it does not take the certificate of tls_cert_file: {alert:?}"),
        _ => return error,
    };
    io::Error::new(io::ErrorKind::PermissionDenied, what)
}

fn named(name: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(name.to_owned()).map_err(|_| format!("{name:?} is not a name a certificate can carry"))
}

/// What tells a file from the one that was there before: Kubernetes swaps a link, others write into the file.
type Mark = (u64, u64, u64, i64, i64);

impl Files {
    fn marks(&self) -> Vec<Option<Mark>> {
        let shown = self.shown.iter().flat_map(|(certificates, key)| [certificates, key]);
        let mark = |path: &PathBuf| {
            let it = fs::metadata(path).ok()?;
            Some((it.dev(), it.ino(), it.size(), it.mtime(), it.mtime_nsec()))
        };
        self.roots.iter().chain(shown).map(mark).collect()
    }

    fn read(&self) -> Result<Arc<ClientConfig>, Wrong> {
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
        let config = match &self.shown {
            None => config.with_no_client_auth(),
            Some((certificates, key)) => {
                let chain = read_certificates(certificates).map_err(|what| ("tls_cert_file", what))?;
                let key = read_key(key).map_err(|what| ("tls_key_file", what))?;
                config
                    .with_client_auth_cert(chain, key)
                    .map_err(|fault| ("tls_cert_file", format!("certificate and key do not go together: {fault}")))?
            }
        };
        Ok(Arc::new(config))
    }
}

/// What connections are made with, as the files have it.
struct Renewed {
    files: Files,
    last: Mutex<Last>,
}

struct Last {
    config: Arc<ClientConfig>,
    /// Of the files that it was made of.
    marks: Vec<Option<Mark>>,
    /// What is wrong with those that came after; said once.
    fault: Option<Wrong>,
}

impl Renewed {
    fn config(&self) -> Arc<ClientConfig> {
        let marks = self.files.marks();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if marks != last.marks {
            match self.files.read() {
                Ok(config) => {
                    tracing::info!("the certificates for the way to the gate have changed, and were read again");
                    *last = Last { config, marks, fault: None };
                }
                // Files are exchanged one after the other: the next connection looks again.
                Err(wrong) if last.fault.as_ref() != Some(&wrong) => {
                    let (key, what) = &wrong;
                    tracing::warn!(key, what, "certificates have changed and cannot be used; the last ones still are");
                    last.fault = Some(wrong);
                }
                Err(_) => {}
            }
        }
        Arc::clone(&last.config)
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
    let unreadable = |fault| format!("no certificate can be read from {}: {}", path.display(), in_words(&fault));
    let certificates: Vec<_> =
        CertificateDer::pem_file_iter(path).map_err(unreadable)?.collect::<Result<_, _>>().map_err(unreadable)?;
    if certificates.is_empty() {
        return Err(format!("{} holds no certificate", path.display()));
    }
    Ok(certificates)
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(path)
        .map_err(|fault| format!("no private key can be read from {}: {}", path.display(), in_words(&fault)))
}

/// What is wrong with a PEM file. Its own words may cite a whole line, and a key may be one line.
fn in_words(fault: &pem::Error) -> String {
    match fault {
        pem::Error::MissingSectionEnd { .. } | pem::Error::IllegalSectionStart { .. } => {
            "a section has no end, or its first line has more in it; were line breaks lost?".to_owned()
        }
        pem::Error::Base64Decode(_) => "what is in a section is not base64".to_owned(),
        pem::Error::Io(error) => error.to_string(),
        pem::Error::NoItemsFound => "there is none".to_owned(),
        _ => "it is not PEM".to_owned(),
    }
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

    #[tokio::test]
    async fn who_asks_for_a_certificate_and_then_says_nothing_is_believed_to_take_it() {
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = (folder.path().join("certificate.pem"), folder.path().join("key.pem"));
        let own = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["gate.test".to_owned()]).unwrap();
        fs::write(&certificate, params.self_signed(&own).unwrap().pem()).unwrap();
        fs::write(&key, own.serialize_pem()).unwrap();
        let acceptor = Acceptor::load(&certificate, &key, Some(&certificate)).unwrap().acceptor;
        let mut silent = (**acceptor.config()).clone();
        silent.send_tls13_tickets = 0;
        let silent = TlsAcceptor::from(Arc::new(silent));
        let shown = Some((certificate.clone(), key));
        let own = Connector::renewed(Files { roots: Some(certificate.clone()), shown }, "gate.test").unwrap();
        let nobody = Connector::renewed(Files { roots: Some(certificate), shown: None }, "gate.test").unwrap();
        let (short, long) = (Duration::from_millis(1), Duration::from_mins(10));
        for (connector, acceptor, patience, is_in) in
            [(&own, &acceptor, long, true), (&own, &silent, short, true), (&nobody, &silent, long, false)]
        {
            let (near, far) = tokio::io::duplex(1 << 16);
            let both = tokio::join!(acceptor.accept(far), connector.connect_welcome(near, patience));
            assert_eq!((both.0.is_ok(), both.1.is_ok()), (is_in, is_in), "{:?}", both.1.err());
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_end() {
        let fault = not_after(&CertificateDer::from(&b"nothing"[..])).unwrap_err();
        assert!(fault.starts_with("until when the certificate holds cannot be read"), "{fault}");
    }
}
