//! HTTP/2 with prior knowledge: a client for valid requests, and frames written by hand for requests that no client
//! would send.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream as StdStream},
    sync::Arc,
    time::Duration,
};

use ::h2::{
    Error, Reason, RecvStream, SendStream,
    client::{Builder as Client, ResponseFuture, SendRequest},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use tokio::{
    net::TcpStream,
    runtime::{Builder, Handle, Runtime},
    sync::Notify,
};

use super::http::Response;

const PATIENCE: Duration = Duration::from_secs(60);

/// A connection; each call has its own stream.
pub struct H2 {
    runtime: Runtime,
    sender: SendRequest<Bytes>,
    authority: String,
    widen: Arc<Notify>,
}

/// A request whose body is not complete yet.
pub struct Stream {
    response: ResponseFuture,
    body: SendStream<Bytes>,
    handle: Handle,
    /// The answer, after its head was read.
    begun: Option<http::Response<RecvStream>>,
}

/// The window of a stream by default.
const WINDOW: u32 = 65_535;

impl H2 {
    pub fn open(address: SocketAddr) -> Self {
        Self::with_window(address, WINDOW)
    }

    /// A client that takes no byte of any answer's body until [`Self::take_answers`].
    pub fn that_takes_nothing(address: SocketAddr) -> Self {
        Self::with_window(address, 0)
    }

    fn with_window(address: SocketAddr, window: u32) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let widen = Arc::<Notify>::default();
        let widens = Arc::clone(&widen);
        let sender = runtime.block_on(async {
            let stream = TcpStream::connect(address).await.unwrap();
            stream.set_nodelay(true).unwrap();
            let (sender, mut connection) = Client::new().initial_window_size(window).handshake(stream).await.unwrap();
            tokio::spawn(async move {
                loop {
                    tokio::select! {
                        // The error also ends every call that waits for an answer.
                        _ = &mut connection => return,
                        () = widens.notified() => connection.set_initial_window_size(WINDOW).unwrap(),
                    }
                }
            });
            sender
        });
        Self { runtime, sender, authority: address.to_string(), widen }
    }

    /// From now on the client takes answers.
    pub fn take_answers(&self) {
        self.widen.notify_one();
    }

    fn send(&mut self, method: &str, target: &str, headers: &[(&str, &str)], is_whole: bool) -> Stream {
        let uri =
            if target.starts_with('/') { format!("http://{}{target}", self.authority) } else { target.to_owned() };
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).unwrap();
        let mut sender = self.runtime.block_on(self.sender.clone().ready()).unwrap();
        let (response, body) = sender.send_request(request, is_whole).unwrap();
        Stream { response, body, handle: self.runtime.handle().clone(), begun: None }
    }

    /// Sends a request's head; the body follows later. A target is a path or a whole URI.
    #[track_caller]
    pub fn begin(&mut self, method: &str, target: &str, headers: &[(&str, &str)]) -> Stream {
        self.send(method, target, headers, false)
    }

    #[track_caller]
    pub fn call(&mut self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
        let mut stream = self.send(method, target, headers, body.is_empty());
        if !body.is_empty() {
            stream.send(body, true);
        }
        stream.receive().unwrap()
    }

    /// Closes the connection, whatever is in progress.
    pub fn hang_up(self) {
        self.runtime.shutdown_background();
    }
}

impl Stream {
    /// Sends a piece of the body. If the stream is already over, it has an answer: see [`Self::receive`].
    pub fn send(&mut self, body: &[u8], is_last: bool) {
        let _ = self.body.send_data(Bytes::copy_from_slice(body), is_last);
    }

    /// Ends the body with a trailer.
    pub fn send_trailer(&mut self, name: &'static str, value: &str) {
        let mut trailers = HeaderMap::new();
        trailers.insert(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        let _ = self.body.send_trailers(trailers);
    }

    /// Waits for the head of the answer. Returns its status and its `Fence-Outcome`.
    #[track_caller]
    pub fn read_head(&mut self) -> (u16, String) {
        let head = async { tokio::time::timeout(PATIENCE, &mut self.response).await.expect("an answer in time") };
        let answer = self.handle.block_on(head).unwrap();
        let outcome = answer.headers().get("fence-outcome").map_or("", |outcome| outcome.to_str().unwrap());
        let head = (answer.status().as_u16(), outcome.to_owned());
        self.begun = Some(answer);
        head
    }

    pub fn reset(&mut self, reason: Reason) {
        self.body.send_reset(reason);
    }

    pub fn receive(self) -> Result<Response, Error> {
        let Self { response, body: _open, handle, begun } = self;
        let read = async {
            let answer = match begun {
                Some(begun) => begun,
                None => response.await?,
            };
            let (head, mut incoming) = answer.into_parts();
            let mut body = vec![];
            while let Some(piece) = incoming.data().await {
                let piece = match piece {
                    Ok(piece) => piece,
                    // NO_ERROR: the server does not want the rest of the request, and the answer is complete.
                    Err(error) if error.reason() == Some(Reason::NO_ERROR) => break,
                    Err(error) => return Err(error),
                };
                incoming.flow_control().release_capacity(piece.len())?;
                body.extend_from_slice(&piece);
            }
            let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
            let headers = head.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
            Ok::<_, Error>(Response { status: head.status.as_u16(), headers, body })
        };
        handle.block_on(async { tokio::time::timeout(PATIENCE, read).await.expect("an answer in time") })
    }
}

/// The types of frames that matter here, and their flags.
const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// The reset code for a stream that is not valid HTTP.
pub const PROTOCOL_ERROR: u32 = 1;
/// The reset code for a stream that was broken off.
pub const CANCEL: u32 = 8;

/// How a stream ends.
#[derive(Debug)]
pub enum Outcome {
    /// With this status, if it is one of the seven statuses in HPACK's static table.
    Answered { status: Option<u16>, body: Vec<u8> },
    /// It was reset, or its connection was.
    Ended,
}

/// A connection on which frames are written by hand. It acknowledges nothing.
pub struct RawH2 {
    stream: StdStream,
}

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl RawH2 {
    pub fn open(address: SocketAddr) -> Self {
        Self::with_settings(address, &[])
    }

    /// A client that takes no byte of any answer's body.
    pub fn that_takes_nothing(address: SocketAddr) -> Self {
        // SETTINGS_INITIAL_WINDOW_SIZE is 0.
        Self::with_settings(address, &[0, 4, 0, 0, 0, 0])
    }

    fn with_settings(address: SocketAddr, settings: &[u8]) -> Self {
        let stream = StdStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut raw = Self { stream };
        raw.send_raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        raw.send(SETTINGS, 0, 0, settings);
        raw
    }

    /// Sends bytes as they are.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        assert!(self.try_send(kind, flags, stream, payload), "the connection is closed");
    }

    /// Whether a frame could be sent.
    pub fn try_send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> bool {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, flags];
        frame.extend_from_slice(&stream.to_be_bytes());
        frame.extend_from_slice(payload);
        self.stream.write_all(&frame).is_ok()
    }

    /// Sends a request's head. Each field is a literal that is not added to the HPACK table.
    pub fn send_headers(&mut self, stream: u32, fields: &[(&str, &str)], is_last: bool) {
        let mut block = vec![];
        for (name, value) in fields {
            block.push(0);
            for text in [name, value] {
                push_length(&mut block, text.len());
                block.extend_from_slice(text.as_bytes());
            }
        }
        self.send(HEADERS, END_HEADERS | end(is_last), stream, &block);
    }

    pub fn send_data(&mut self, stream: u32, bytes: &[u8], is_last: bool) {
        self.send(DATA, end(is_last), stream, bytes);
    }

    /// Whether a piece of a body could be sent.
    pub fn try_send_data(&mut self, stream: u32, bytes: &[u8]) -> bool {
        self.try_send(DATA, 0, stream, bytes)
    }

    #[track_caller]
    fn receive(&mut self) -> Frame {
        self.try_receive().expect("another frame")
    }

    /// The next frame; `None` at the end of the connection.
    fn try_receive(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
        let mut payload = vec![0; length as usize];
        self.stream.read_exact(&mut payload).ok()?;
        Some(Frame { kind: head[3], flags: head[4], stream, payload })
    }

    /// Returns why a stream was reset; panics if it was answered.
    #[track_caller]
    pub fn expect_reset(&mut self, stream: u32) -> u32 {
        loop {
            let frame = self.receive();
            assert!(frame.stream != stream || frame.kind != HEADERS, "it was answered");
            if (frame.kind, frame.stream) == (RST_STREAM, stream) {
                return u32::from_be_bytes(frame.payload.try_into().unwrap());
            }
        }
    }

    /// Lets the other end send `bytes` more bytes on a stream, and waits for them. Fails with the reset code if the
    /// stream was reset before.
    #[track_caller]
    pub fn take(&mut self, stream: u32, bytes: u32) -> Result<(), u32> {
        for whose in [0, stream] {
            self.send(WINDOW_UPDATE, 0, whose, &bytes.to_be_bytes());
        }
        let mut taken = 0;
        while taken < bytes as usize {
            let frame = self.receive();
            match (frame.kind, frame.stream == stream) {
                (DATA, true) => taken += frame.payload.len(),
                (RST_STREAM, true) => return Err(u32::from_be_bytes(frame.payload.try_into().unwrap())),
                _ => {}
            }
        }
        Ok(())
    }

    /// Waits for the end of a stream: its answer's body, or its end without one.
    pub fn outcome(&mut self, stream: u32) -> Outcome {
        self.outcomes(&[stream]).remove(0)
    }

    /// Waits for the ends of these streams, in their order.
    pub fn outcomes(&mut self, streams: &[u32]) -> Vec<Outcome> {
        let mut begun: Vec<(Option<u16>, Vec<u8>)> = vec![(None, vec![]); streams.len()];
        let mut outcomes: Vec<Option<Outcome>> = streams.iter().map(|_| None).collect();
        while outcomes.iter().any(Option::is_none) {
            let Some(frame) = self.try_receive() else { break };
            if frame.kind == GOAWAY && frame.payload.get(4..8) != Some(&[0; 4]) {
                break;
            }
            let Some(place) = streams.iter().position(|stream| *stream == frame.stream) else { continue };
            let (status, body) = &mut begun[place];
            match frame.kind {
                RST_STREAM => outcomes[place] = outcomes[place].take().or(Some(Outcome::Ended)),
                DATA => body.extend_from_slice(&frame.payload),
                HEADERS => *status = status.or(status_of(&frame.payload)),
                _ => continue,
            }
            if matches!(frame.kind, DATA | HEADERS) && frame.flags & END_STREAM != 0 {
                outcomes[place] = Some(Outcome::Answered { status: *status, body: std::mem::take(body) });
            }
        }
        outcomes.into_iter().map(|outcome| outcome.unwrap_or(Outcome::Ended)).collect()
    }

    /// Waits until the other end has closed the connection.
    #[track_caller]
    pub fn expect_end(&mut self) {
        let mut room = [0; 4 << 10];
        loop {
            match self.stream.read(&mut room) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return,
                Err(error) => panic!("the connection is not closed: {error}"),
            }
        }
    }

    /// Waits until the other end says that it accepts no more requests.
    pub fn expect_goodbye(&mut self) {
        while self.receive().kind != GOAWAY {}
    }

    /// The body of a stream's answer.
    pub fn expect_body(&mut self, stream: u32) -> Vec<u8> {
        let mut body = vec![];
        loop {
            let frame = self.receive();
            if (frame.kind, frame.stream) == (DATA, stream) {
                body.extend_from_slice(&frame.payload);
                if frame.flags & END_STREAM != 0 {
                    return body;
                }
            }
        }
    }
}

/// The status at the start of a block of headers, if HPACK has an entry for it.
fn status_of(block: &[u8]) -> Option<u16> {
    let entry = block.first()?.checked_sub(0x88)?;
    [200, 204, 206, 304, 400, 404, 500].get(usize::from(entry)).copied()
}

fn end(is_last: bool) -> u8 {
    if is_last { END_STREAM } else { 0 }
}

/// Adds an HPACK length of a text without Huffman coding.
fn push_length(block: &mut Vec<u8>, length: usize) {
    if length < 0x7f {
        block.push(length as u8);
        return;
    }
    block.push(0x7f);
    let mut rest = length - 0x7f;
    while rest >= 0x80 {
        block.push((rest % 0x80) as u8 | 0x80);
        rest /= 0x80;
    }
    block.push(rest as u8);
}
