//! An HTTP/1.1 client on a socket, plain or with TLS: no fencegate code between test and gate.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);

/// A connection that is used for call after call.
pub struct Conn {
    stream: BufReader<Wire>,
    /// Headers of every request.
    pub always: Vec<(String, String)>,
}

enum Wire {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Wire {
    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => &stream.sock,
        }
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

#[derive(Debug, Clone)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {:?}", String::from_utf8_lossy(&self.body)))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(each, _)| each.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The body. Panics unless the answer is the expected success.
    #[track_caller]
    pub fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        self.json()
    }

    /// A write that the store has answered with 200.
    #[track_caller]
    pub fn applied(&self) {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
    }

    /// A refusal: its code must be in the body and in the header, with the right status.
    #[track_caller]
    pub fn refusal(&self, status: u16, code: &str) -> Value {
        self.problem(status, code, "none")
    }

    /// A write of unknown outcome.
    #[track_caller]
    pub fn unknown(&self) -> Value {
        let body = self.problem(504, "OUTCOME_UNKNOWN", "maybe");
        assert_eq!((self.header("fence-outcome"), body["retryable"].as_bool()), (Some("unknown"), Some(false)));
        body
    }

    #[track_caller]
    fn problem(&self, status: u16, code: &str, side_effect: &str) -> Value {
        let body = self.json();
        assert_eq!((self.status, body["code"].as_str()), (status, Some(code)), "{body}");
        assert_eq!(self.header("fence-error"), Some(code));
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        assert_eq!(body["status"], status);
        assert_eq!(body["side_effect"], side_effect);
        assert!(body["detail"].as_str().is_some_and(|detail| !detail.is_empty()));
        body
    }
}

impl Conn {
    pub fn open(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self::over(stream))
    }

    /// Uses a connection that was made elsewhere.
    pub fn over(stream: TcpStream) -> Self {
        Self { stream: BufReader::new(Wire::Plain(stream)), always: vec![] }
    }

    /// A TLS connection to a server that must prove to be `name`. `shown`: a client certificate and its key.
    pub fn tls(
        address: SocketAddr,
        name: &str,
        ca: &Path,
        shown: Option<&(PathBuf, PathBuf)>,
    ) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let certificates = |path: &Path| CertificateDer::pem_file_iter(path).unwrap().map(Result::unwrap);
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates(ca));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(roots);
        let config = match shown {
            None => config.with_no_client_auth(),
            Some((chain, key)) => {
                let key = PrivateKeyDer::from_pem_file(key).unwrap();
                config.with_client_auth_cert(certificates(chain).collect(), key).unwrap()
            }
        };
        let connection = ClientConnection::new(Arc::new(config), name.to_owned().try_into().unwrap());
        let mut stream = StreamOwned::new(connection.map_err(std::io::Error::other)?, stream);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Self { stream: BufReader::new(Wire::Tls(Box::new(stream))), always: vec![] })
    }

    /// Shows this bearer token with every request.
    #[must_use]
    pub fn bearing(mut self, token: &str) -> Self {
        self.always = vec![("authorization".to_owned(), format!("Bearer {token}"))];
        self
    }

    pub fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> std::io::Result<()> {
        let mut request = format!("{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {}\r\n", body.len());
        let always = self.always.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in always.chain(headers.iter().copied()) {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("\r\n");
        let stream = self.stream.get_mut();
        stream.write_all(&[request.as_bytes(), body].concat())?;
        stream.flush()
    }

    /// Reads lines of a stream until one is as wanted. The wait has an end of its own, because keep-alives come more
    /// often than the socket's read timeout.
    #[track_caller]
    pub fn until_line(&mut self, what: &str, is_it: impl Fn(&str) -> bool) {
        super::until(what, || is_it(&self.read_line().unwrap()));
    }

    /// Sends bytes unchanged.
    pub fn send_raw(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Closes the sending half; the answer can still be read.
    pub fn close_write(&mut self) {
        // An error here means that the peer has closed the connection, after it has answered.
        let _ = self.stream.get_ref().socket().shutdown(Shutdown::Write);
    }

    /// The same plain connection once more: one end sends while the other receives.
    pub fn another_handle(&self) -> TcpStream {
        self.stream.get_ref().socket().try_clone().unwrap()
    }

    /// Reads this many bytes, or says why there are fewer.
    pub fn read_exactly(&mut self, size: usize) -> std::io::Result<()> {
        self.stream.read_exact(&mut vec![0; size])
    }

    /// Reads this many bytes of a body.
    pub fn read_body(&mut self, size: usize) -> std::io::Result<Vec<u8>> {
        let mut body = vec![0; size];
        self.stream.read_exact(&mut body)?;
        Ok(body)
    }

    /// The head of an answer.
    pub fn read_head(&mut self) -> std::io::Result<(u16, Vec<(String, String)>)> {
        let bad = |what: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, what.to_owned());
        let first = self.read_line()?;
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(|| bad(&first))?;
        let mut headers = vec![];
        loop {
            let line = self.read_line()?;
            if line.is_empty() {
                return Ok((status, headers));
            }
            let (name, value) = line.split_once(':').ok_or_else(|| bad(&line))?;
            headers.push((name.to_owned(), value.trim().to_owned()));
        }
    }

    /// A line without its end.
    pub fn read_line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end_matches(['\r', '\n']).to_owned())
    }

    pub fn receive(&mut self) -> std::io::Result<Response> {
        let (status, headers) = self.read_head()?;
        let mut answer = Response { status, headers, body: vec![] };
        if let Some(length) = answer.header("content-length") {
            answer.body = vec![0; length.parse().unwrap()];
            self.stream.read_exact(&mut answer.body)?;
        }
        Ok(answer)
    }

    pub fn try_call(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> std::io::Result<Response> {
        self.send(method, path, headers, body)?;
        self.receive()
    }

    #[track_caller]
    pub fn call(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
        self.try_call(method, path, headers, body).unwrap()
    }

    #[track_caller]
    pub fn get(&mut self, path: &str) -> Response {
        self.call("GET", path, &[], b"")
    }

    #[track_caller]
    pub fn post(&mut self, path: &str, body: &Value) -> Response {
        self.call("POST", path, &[("content-type", "application/json")], body.to_string().as_bytes())
    }

    #[track_caller]
    pub fn delete(&mut self, path: &str, token: &str) -> Response {
        self.call("DELETE", path, &[("fence-token", token)], b"")
    }
}

/// An object id as one segment of a path.
pub fn segment(id: &str) -> String {
    id.bytes().map(|byte| format!("%{byte:02X}")).collect()
}
