//! The small HTTP client below this module. Each call opens a connection, except calls that are made often
//! ([`Kept`]).

use std::{
    fmt,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    body::Incoming,
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

use crate::tls::{Connector, Files};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest answer. A gate's answers are shorter; a longer one comes from another program.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// The most connections that wait for the next call.
const KEPT_MAX: usize = 8;

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum CallFault {
    #[error("{0:?} is not a URL such as http://127.0.0.1:8081 or https://gate.example:8081")]
    Url(String),
    /// The message does not repeat the user info, which may be a password.
    #[error("the URL has a user name or a password in it, which no gate asks for: leave it out")]
    UserInfo,
    /// The message never quotes what is in a file.
    #[error("{0}")]
    Credentials(String),
    #[error(
        "{0} is not https, and not this machine: a token that is sent there in plain text can be read on the way. Use the gate's https URL"
    )]
    PlainToken(String),
    #[error("{url} cannot be reached: {error}. Is the gate running, and is the URL right?")]
    Connect { url: String, error: String },
    #[error("the connection to {url} broke: {error}")]
    Broken { url: String, error: String },
}

/// How a client proves who it is, and which gate it believes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// A file with a bearer token, read again for each call: projected tokens are exchanged.
    pub token_file: Option<PathBuf>,
    /// The authorities of the gate's certificate; none: those that the system trusts.
    pub ca_file: Option<PathBuf>,
    /// The certificate to show, and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// The name in the gate's certificate; none: the URL's host.
    pub server_name: Option<String>,
}

/// A gate's address, and what to show there.
#[derive(Clone)]
pub struct Client {
    url: String,
    /// Host and port.
    authority: String,
    token_file: Option<PathBuf>,
    tls: Option<Connector>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("url", &self.url).finish_non_exhaustive()
    }
}

/// How long a gate that asks for a certificate may take to refuse it.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(2);

/// Connections that wait for the next call. A gate closes them when no call has come for a while.
#[derive(Clone, Debug, Default)]
pub struct Kept(Arc<Mutex<Vec<SendRequest<Full<Bytes>>>>>);

impl Kept {
    fn take(&self) -> Option<SendRequest<Full<Bytes>>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(SendRequest::is_ready);
        kept.pop()
    }

    fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn put(&self, sender: SendRequest<Full<Bytes>>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT_MAX {
            kept.push(sender);
        }
    }
}

/// A call in progress. If the caller drops it because it takes too long, the kept connections are closed. The peer
/// may be gone without a sign, and each of them would then cost a call as much time.
struct Unheard<'a>(Option<&'a Kept>);

impl Drop for Unheard<'_> {
    fn drop(&mut self) {
        self.0.inspect(|kept| kept.clear());
    }
}

/// An answer, read to its end.
#[derive(Debug)]
pub struct ApiResponse {
    pub status: StatusCode,
    pub body: Bytes,
}

impl Client {
    /// A client for the gate at this URL, which shows nothing.
    ///
    /// # Errors
    /// When this is not an `http` or `https` URL without a path.
    pub fn new(url: &str) -> Result<Self, CallFault> {
        Self::with(url, &Credentials::default())
    }

    /// A client for the gate at this URL, which proves who it is.
    ///
    /// # Errors
    /// When this is not an `http` or `https` URL without a path, when the credentials cannot be used, or when a token
    /// would be sent in plain text to another machine.
    pub fn with(url: &str, credentials: &Credentials) -> Result<Self, CallFault> {
        let bad = || CallFault::Url(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| bad())?;
        let authority = uri.authority().ok_or_else(bad)?;
        if authority.as_str().contains('@') {
            return Err(CallFault::UserInfo);
        }
        if !matches!(uri.path(), "" | "/") {
            return Err(bad());
        }
        let (port, tls) = match uri.scheme_str() {
            Some("http") => (80, None),
            Some("https") => (443, Some(connector(authority.host(), credentials)?)),
            _ => return Err(bad()),
        };
        if tls.is_none() && credentials.token_file.is_some() && !is_this_machine(authority.host()) {
            return Err(CallFault::PlainToken(url.to_owned()));
        }
        if let Some(file) = &credentials.token_file {
            bearer(file)?;
        }
        let port = authority.port_u16().unwrap_or(port);
        Ok(Self {
            url: url.trim_end_matches('/').to_owned(),
            authority: format!("{}:{port}", authority.host()),
            token_file: credentials.token_file.clone(),
            tls,
        })
    }

    /// The URL that the client was made with.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Makes a call and reads the answer to its end.
    ///
    /// # Errors
    /// When there is no whole answer.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Vec<u8>>,
    ) -> Result<ApiResponse, CallFault> {
        let (status, body) = self.open(method, path, headers, body).await?;
        self.read(status, body).await
    }

    /// The same, on a connection that is kept for the next call. Only for calls that may be carried out twice: if a
    /// kept connection turns out to be closed, the call is made once more on a new one. If the caller drops the call,
    /// all kept connections are closed.
    ///
    /// # Errors
    /// When there is no whole answer.
    pub async fn call_kept(
        &self,
        kept: &Kept,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Vec<u8>>,
    ) -> Result<ApiResponse, CallFault> {
        let mut unheard = Unheard(Some(kept));
        let answered = self.call_by_one_of(kept, self.request(method, path, headers, body)?).await;
        unheard.0 = None;
        answered
    }

    async fn call_by_one_of(&self, kept: &Kept, request: Request<Full<Bytes>>) -> Result<ApiResponse, CallFault> {
        if let Some(sender) = kept.take()
            && let Ok(answer) = self.call_by(sender, kept, request.clone()).await
        {
            return Ok(answer);
        }
        self.call_by(self.connect().await?, kept, request).await
    }

    async fn call_by(
        &self,
        mut sender: SendRequest<Full<Bytes>>,
        kept: &Kept,
        request: Request<Full<Bytes>>,
    ) -> Result<ApiResponse, CallFault> {
        let (head, body) = sender.send_request(request).await.map_err(|error| self.broken(&error))?.into_parts();
        let answer = self.read(head.status, body).await?;
        if sender.ready().await.is_ok() {
            kept.put(sender);
        }
        Ok(answer)
    }

    /// Makes a call and passes its answer's body on as it arrives.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn open(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Vec<u8>>,
    ) -> Result<(StatusCode, Incoming), CallFault> {
        let request = self.request(method, path, headers, body)?;
        let mut sender = self.connect().await?;
        let (head, body) = sender.send_request(request).await.map_err(|error| self.broken(&error))?.into_parts();
        Ok((head.status, body))
    }

    async fn read(&self, status: StatusCode, body: Incoming) -> Result<ApiResponse, CallFault> {
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(|error| self.broken(&error))?;
        Ok(ApiResponse { status, body: body.to_bytes() })
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, CallFault> {
        let connect = |error: String| CallFault::Connect { url: self.url.clone(), error };
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(&self.authority))
            .await
            .map_err(|_| connect("no answer in 5 s".to_owned()))?
            .map_err(|error| connect(error.to_string()))?;
        // A call is one small segment, and must not wait for the answer to the one before.
        stream.set_nodelay(true).map_err(|error| connect(error.to_string()))?;
        match &self.tls {
            None => self.speak(stream).await,
            Some(tls) => {
                let shaken = tokio::time::timeout(CONNECT_TIMEOUT, tls.connect_welcome(stream, WELCOME_TIMEOUT)).await;
                let stream = shaken
                    .map_err(|_| connect("no TLS handshake in 5 s".to_owned()))?
                    .map_err(|error| connect(format!("TLS: {error}")))?;
                self.speak(stream).await
            }
        }
    }

    async fn speak<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
        &self,
        stream: S,
    ) -> Result<SendRequest<Full<Bytes>>, CallFault> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.broken(&error))?;
        tokio::spawn(connection);
        Ok(sender)
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Vec<u8>>,
    ) -> Result<Request<Full<Bytes>>, CallFault> {
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, &self.authority);
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(file) = &self.token_file {
            request = request.header(header::AUTHORIZATION, bearer(file)?);
        }
        let request = request.body(Full::new(Bytes::from(body.unwrap_or_default())));
        request.map_err(|error| self.broken(&error))
    }

    fn broken(&self, error: &dyn std::fmt::Display) -> CallFault {
        CallFault::Broken { url: self.url.clone(), error: error.to_string() }
    }
}

/// `Bearer TOKEN`, with a file's token. The text of the error never quotes the file.
pub(crate) fn bearer(file: &Path) -> Result<HeaderValue, CallFault> {
    let wrong = |what: &dyn fmt::Display| CallFault::Credentials(format!("{}: {what}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| wrong(&error))?;
    let token = text.trim();
    if token.is_empty() || token.contains(char::is_whitespace) {
        return Err(wrong(&"must hold one bearer token, and nothing else"));
    }
    let mut value =
        HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| wrong(&"holds characters that no token has"))?;
    value.set_sensitive(true);
    Ok(value)
}

fn connector(host: &str, credentials: &Credentials) -> Result<Connector, CallFault> {
    let files = Files { roots: credentials.ca_file.clone(), shown: credentials.certificate.clone() };
    // An address in a URL has brackets where it is an IPv6 one, and in a certificate it has none.
    let host = credentials.server_name.as_deref().unwrap_or_else(|| host.trim_matches(['[', ']']));
    Connector::new(files, host).map_err(|(key, what)| CallFault::Credentials(format!("{key}: {what}")))
}

/// Whether a URL's host is this machine, as far as its name says.
pub(crate) fn is_this_machine(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
        sync::mpsc,
    };

    use super::*;

    /// Each of the first three connections gets one answer only: then its peer is gone without a sign.
    #[tokio::test]
    async fn only_one_call_is_lost_when_kept_connections_are_dead() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let (asked, mut calls) = mpsc::channel(8);
        tokio::spawn(async move {
            for n in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(answer_once(stream, (n < 3).then(|| asked.clone())));
            }
        });
        let (client, kept) = (&client, &Kept::default());
        let call = || client.call_kept(kept, Method::POST, "/", &[], None);
        let first = tokio::join!(call(), call(), call());
        assert!(first.0.is_ok() && first.1.is_ok() && first.2.is_ok());
        assert_eq!(kept.0.lock().unwrap().len(), 3);
        tokio::select! {
            _ = call() => panic!("its peer is lost"),
            _ = calls.recv() => {}
        }
        let next = tokio::time::timeout(Duration::from_secs(20), call()).await;
        assert_eq!(next.expect("an answer by a new connection").unwrap().status, StatusCode::OK);
    }

    /// Answers requests. With `lost`, answers one only, and reports when the next one comes.
    async fn answer_once(mut stream: TcpStream, lost: Option<mpsc::Sender<()>>) {
        let mut request = [0; 1_024];
        while stream.read(&mut request).await.is_ok_and(|size| size > 0) {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            if let Some(lost) = &lost {
                while stream.read(&mut request).await.is_ok_and(|size| size > 0) {
                    let _ = lost.try_send(());
                }
            }
        }
    }

    #[test]
    fn a_password_is_neither_taken_nor_repeated() {
        let fault = Client::new("http://me:hush@127.0.0.1:8081").unwrap_err();
        assert!(matches!(fault, CallFault::UserInfo) && !fault.to_string().contains("hush"), "{fault}");
        assert!(Client::new("http://127.0.0.1:8081/").is_ok());
    }

    #[test]
    fn a_token_is_sent_in_plain_text_to_this_machine_only() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "hush\n").unwrap();
        let with = Credentials { token_file: Some(file.clone()), ..Credentials::default() };
        for near in ["http://127.0.0.1:8081", "http://localhost:8081", "http://[::1]:8081"] {
            assert!(Client::with(near, &with).is_ok(), "{near}");
        }
        for far in ["http://gate.example:8081", "http://10.0.0.1:8081", "http://127.0.0.1.example:8081"] {
            let fault = Client::with(far, &with).unwrap_err();
            assert!(matches!(fault, CallFault::PlainToken(_)) && !fault.to_string().contains("hush"), "{fault}");
        }
        for bad in ["", "\n", "two words", "hush\nhush"] {
            std::fs::write(&file, bad).unwrap();
            let fault = Client::with("http://127.0.0.1:8081", &with).unwrap_err();
            assert!(matches!(fault, CallFault::Credentials(_)) && !fault.to_string().contains("hush"), "{fault}");
        }
    }
}
