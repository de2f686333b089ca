//! The little HTTP client below everything else here: one call, one connection, but for calls that are made often
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
/// No answer of a gate's is longer; what is on that port is something else.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// How many connections wait for the next call at most.
const KEPT_MAX: usize = 8;

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum CallFault {
    #[error("{0:?} is not a URL such as http://127.0.0.1:8081")]
    Url(String),
    /// Without it in the words: it may be a password.
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

/// Connections that wait for the next call. A gate closes them when none has come for a while.
#[derive(Clone, Debug, Default)]
pub struct Kept(Arc<Mutex<Vec<SendRequest<Full<Bytes>>>>>);

impl Kept {
    fn take(&self) -> Option<SendRequest<Full<Bytes>>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(SendRequest::is_ready);
        kept.pop()
    }

    fn put(&self, sender: SendRequest<Full<Bytes>>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT_MAX {
            kept.push(sender);
        }
    }
}

/// An answer, read to its end.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub body: Bytes,
}

impl Client {
    /// Takes a gate's URL.
    ///
    /// # Errors
    /// Where it is not an `http` URL without a path.
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

    /// The URL that it was made of.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Makes a call and reads the answer to its end.
    ///
    /// # Errors
    /// Where there is no whole answer.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Vec<u8>>,
    ) -> Result<Answer, CallFault> {
        let (status, body) = self.open(method, path, headers, body).await?;
        self.read(status, body).await
    }

    /// The same, by a connection that is kept for the next call. For calls that may be carried out twice: where a kept
    /// connection turns out to be closed, the call is made once more, by a new one.
    ///
    /// # Errors
    /// Where there is no whole answer.
    pub async fn call_kept(
        &self,
        kept: &Kept,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Vec<u8>>,
    ) -> Result<Answer, CallFault> {
        let request = self.request(method, path, headers, body)?;
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
    ) -> Result<Answer, CallFault> {
        let (head, body) = sender.send_request(request).await.map_err(|error| self.broken(&error))?.into_parts();
        let answer = self.read(head.status, body).await?;
        if sender.ready().await.is_ok() {
            kept.put(sender);
        }
        Ok(answer)
    }

    /// Makes a call and hands its answer's body over as it comes.
    ///
    /// # Errors
    /// Where there is no answer.
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

    async fn read(&self, status: StatusCode, body: Incoming) -> Result<Answer, CallFault> {
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(|error| self.broken(&error))?;
        Ok(Answer { status, body: body.to_bytes() })
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, CallFault> {
        let connect = |error: String| CallFault::Connect { url: self.url.clone(), error };
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(&self.authority))
            .await
            .map_err(|_| connect("no answer in 5 s".to_owned()))?
            .map_err(|error| connect(error.to_string()))?;
        // A call is one small segment: it must not wait for the answer to the one before.
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
    use super::*;

    #[test]
    fn a_password_is_neither_taken_nor_repeated() {
        let fault = Client::new("http://me:hush@127.0.0.1:8081").unwrap_err();
        assert!(matches!(fault, CallFault::UserInfo) && !fault.to_string().contains("hush"), "{fault}");
        assert!(Client::new("http://127.0.0.1:8081/").is_ok());
    }
}
