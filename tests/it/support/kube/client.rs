//! A small client of the API server, fake or real: one connection per call, no fencegate code.

use std::{
    fs, io,
    net::SocketAddr,
    path::Path,
    sync::{Arc, mpsc},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use serde_json::Value;
use tokio::{net::TcpStream, runtime::Handle, task::JoinHandle};
use tokio_rustls::TlsConnector;

use super::super::http::Response;

const PATIENCE: Duration = Duration::from_secs(60);

/// Runs it on that runtime and waits, also where the caller is itself inside of one; but not for ever.
#[track_caller]
pub fn wait_for<T: Send + 'static>(what: &str, runtime: &Handle, work: impl Future<Output = T> + Send + 'static) -> T {
    let (done, waits) = mpsc::sync_channel(1);
    runtime.spawn(async move {
        let _ = done.send(work.await);
    });
    // Longer than a call's own patience, so that a call can say itself what it waited for.
    waits.recv_timeout(2 * PATIENCE).unwrap_or_else(|why| panic!("waited in vain: {what}: {why}"))
}

/// A user with a token.
#[derive(Clone)]
pub struct Client {
    pub runtime: Handle,
    pub address: SocketAddr,
    pub tls: Option<TlsConnector>,
    pub token: String,
}

/// TLS that trusts one authority.
pub fn trusting(ca: &Path) -> TlsConnector {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&fs::read(ca).unwrap()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let versions = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    TlsConnector::from(Arc::new(versions.with_root_certificates(roots).with_no_client_auth()))
}

impl Client {
    /// The same client with another token.
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: token.to_owned(), ..self.clone() }
    }

    #[track_caller]
    pub fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Response {
        self.try_call(method, path, body).unwrap()
    }

    pub fn try_call(&self, method: &str, path: &str, body: Option<&Value>) -> io::Result<Response> {
        let (client, request) = (self.clone(), self.request(method, path, body));
        let what = format!("the API server's answer to {method} {path}");
        wait_for(&what.clone(), &self.runtime, async move {
            let work = async {
                let answer = client.send(request).await?;
                let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
                let text = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
                    (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())
                };
                let headers = headers.iter().map(text).collect();
                let body = answer.into_body().collect().await.map_err(io::Error::other)?.to_bytes().to_vec();
                Ok(Response { status, headers, body })
            };
            tokio::time::timeout(PATIENCE, work)
                .await
                .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, what)))
        })
    }

    /// Begins a watch; the path has its query.
    pub fn watch(&self, path: &str) -> io::Result<Watch> {
        let (client, request) = (self.clone(), self.request("GET", path, None));
        let what = format!("the API server's answer to a watch of {path}");
        let answer = wait_for(&what, &self.runtime, async move { client.send(request).await })?;
        let status = answer.status().as_u16();
        let (sender, events) = mpsc::sync_channel(1024);
        let task = self.runtime.spawn(read_lines(answer.into_body(), sender));
        Ok(Watch { status, events, task })
    }

    fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Request<Full<Bytes>> {
        let request = Request::builder().method(method).uri(path).header("host", self.address.to_string());
        let request = request.header("authorization", format!("Bearer {}", self.token));
        let request = request.header("content-type", "application/json").header("accept", "application/json");
        request.body(Full::from(body.map(Value::to_string).unwrap_or_default())).unwrap()
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> io::Result<hyper::Response<Incoming>> {
        let stream = TcpStream::connect(self.address).await?;
        let answer = match &self.tls {
            None => exchange(TokioIo::new(stream), request).await,
            Some(tls) => {
                let stream = tls.connect(ServerName::from(self.address.ip()), stream).await?;
                exchange(TokioIo::new(stream), request).await
            }
        };
        answer.map_err(io::Error::other)
    }
}

async fn exchange(
    stream: impl hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
    request: Request<Full<Bytes>>,
) -> hyper::Result<hyper::Response<Incoming>> {
    let (mut sender, connection) = http1::handshake(stream).await?;
    tokio::spawn(connection);
    sender.send_request(request).await
}

/// The events of a running watch. Closes the connection when dropped.
pub struct Watch {
    pub status: u16,
    events: mpsc::Receiver<Value>,
    task: JoinHandle<()>,
}

impl Watch {
    /// The next event. `None` if the server has ended the watch or the connection broke.
    #[track_caller]
    #[allow(clippy::should_implement_trait, reason = "it waits, and gives up loudly")]
    pub fn next(&mut self) -> Option<Value> {
        match self.events.recv_timeout(PATIENCE) {
            Ok(event) => Some(event),
            Err(mpsc::RecvTimeoutError::Disconnected) => None,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("waited in vain for an event"),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn read_lines(mut body: Incoming, sender: mpsc::SyncSender<Value>) {
    let mut rest = vec![];
    while let Some(Ok(frame)) = body.frame().await {
        rest.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<_> = rest.drain(..=end).collect();
            if sender.send(serde_json::from_slice(&line).expect("a line of JSON")).is_err() {
                return;
            }
        }
    }
}
