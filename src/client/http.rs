//! The small HTTP client below this module. Each call opens a connection, except calls that are made often
//! ([`Kept`]).

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    body::Incoming,
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::net::TcpStream;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest answer. A gate's answers are shorter; a longer one comes from another program.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// The most connections that wait for the next call.
const KEPT_MAX: usize = 8;

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum CallFault {
    #[error("{0:?} is not a URL such as http://127.0.0.1:8081")]
    Url(String),
    /// The message does not repeat the user info, which may be a password.
    #[error("the URL has a user name or a password in it, which no gate asks for: leave it out")]
    UserInfo,
    #[error("{url} cannot be reached: {error}. Is the gate running, and is the URL right?")]
    Connect { url: String, error: String },
    #[error("the connection to {url} broke: {error}")]
    Broken { url: String, error: String },
}

/// A gate's address.
#[derive(Clone, Debug)]
pub struct Client {
    url: String,
    authority: String,
}

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
    /// A client for the gate at this URL.
    ///
    /// # Errors
    /// When this is not an `http` URL without a path.
    pub fn new(url: &str) -> Result<Self, CallFault> {
        let bad = || CallFault::Url(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| bad())?;
        let authority = uri.authority().ok_or_else(bad)?;
        if authority.as_str().contains('@') {
            return Err(CallFault::UserInfo);
        }
        if uri.scheme_str() != Some("http") || !matches!(uri.path(), "" | "/") {
            return Err(bad());
        }
        let port = authority.port_u16().unwrap_or(80);
        Ok(Self { url: url.trim_end_matches('/').to_owned(), authority: format!("{}:{port}", authority.host()) })
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
        let request = request.body(Full::new(Bytes::from(body.unwrap_or_default())));
        request.map_err(|error| self.broken(&error))
    }

    fn broken(&self, error: &dyn std::fmt::Display) -> CallFault {
        CallFault::Broken { url: self.url.clone(), error: error.to_string() }
    }
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
}
