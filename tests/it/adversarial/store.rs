//! A store with a strict parser of its own, which writes down every request that it saw.
//!
//! Two kinds: one reads every body; the other answers as soon as it has a head, unless the method is PUT, POST or PATCH
//! (as Python's `http.server` does), so what is left of a body is its next request, unless the connection was to be closed
//! behind this one. `x-store: NNN` asks for that status, which the lazy one gives without reading the body, whatever the
//! method. `x-answer: N` asks for an answer of so many bytes.

use std::{
    collections::HashMap,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use socket2::SockRef;

use crate::support::until;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    EveryBody,
    OnlyWhatItMust,
}

pub struct StrictStore {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    seen: Mutex<Vec<Seen>>,
    /// Connections so far.
    accepted: AtomicUsize,
    open: Mutex<HashMap<u16, Open>>,
}

struct Open {
    stream: TcpStream,
    /// It waits for more, and has nothing to look at.
    waits: bool,
}

/// A request as the store read it, or the bytes that it could not read.
#[derive(Clone, Debug)]
pub struct Seen {
    /// `METHOD /path`, or `UNREADABLE ...`.
    pub line: String,
    pub fields: Vec<(String, String)>,
    /// All of it; nothing where it was not read, or not to its end.
    pub body: Option<Vec<u8>>,
    pub trailers: Vec<String>,
}

impl Seen {
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(each, _)| each == name).map(|(_, value)| value.as_str())
    }
}

impl StrictStore {
    pub fn start(reads: Reads) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::<Shared>::default();
        let served = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (shared, port) = (Arc::clone(&served), stream.peer_addr().map_or(0, |peer| peer.port()));
                shared.accepted.fetch_add(1, Ordering::SeqCst);
                let handle = stream.try_clone().unwrap();
                shared.open.lock().unwrap().insert(port, Open { stream: handle, waits: false });
                thread::spawn(move || {
                    Server { stream, shared: &shared, port, reads, buffer: vec![] }.serve();
                    shared.open.lock().unwrap().remove(&port);
                });
            }
        });
        Self { address, shared }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// On how many connections the gate has come so far.
    pub fn connections(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Waits until nothing is left to be read on any connection; then what was seen since the last call.
    #[track_caller]
    pub fn take(&self) -> Vec<Seen> {
        until("the store has looked at everything that was sent to it", || {
            let open = self.shared.open.lock().unwrap();
            open.values().all(|open| open.waits && !has_bytes(&open.stream))
        });
        std::mem::take(&mut self.shared.seen.lock().unwrap())
    }
}

/// Whether there are bytes to be read, without reading them.
fn has_bytes(stream: &TcpStream) -> bool {
    const PEEK_AT_ONCE: i32 = 0x02 | 0x40;
    let mut room = [std::mem::MaybeUninit::uninit(); 1];
    // An end that was not read yet is news, too.
    SockRef::from(stream).recv_with_flags(&mut room, PEEK_AT_ONCE).is_ok()
}

struct Server<'a> {
    stream: TcpStream,
    shared: &'a Shared,
    port: u16,
    reads: Reads,
    buffer: Vec<u8>,
}

impl Server<'_> {
    fn serve(&mut self) {
        while let Some(mut seen) = self.head() {
            let wanted = seen.field("x-store").map(str::to_owned);
            let long = seen.field("x-answer").map(|length| length.parse().unwrap());
            let reads = match self.reads {
                Reads::EveryBody => true,
                Reads::OnlyWhatItMust => {
                    wanted.is_none() && ["PUT ", "POST ", "PATCH "].iter().any(|method| seen.line.starts_with(method))
                }
            };
            let closes = seen.field("connection") == Some("close");
            let is_unreadable = seen.line.starts_with("UNREADABLE");
            let is_whole = is_unreadable || !reads || self.body(&mut seen).is_some();
            let (path, is_head) =
                (seen.line.split(' ').nth(1).unwrap_or("?").to_owned(), seen.line.starts_with("HEAD "));
            if !is_whole {
                seen.line.insert_str(0, "CUT ");
            }
            self.shared.seen.lock().unwrap().push(seen);
            if !is_whole || is_unreadable {
                return;
            }
            let status = wanted.unwrap_or_else(|| "200".to_owned());
            let body = long.map_or_else(|| "ok".to_owned(), |long| "x".repeat(long));
            let (length, body) = match status.as_str() {
                "204" | "304" => (String::new(), String::new()),
                _ => (format!("content-length: {}\r\n", body.len()), if is_head { String::new() } else { body }),
            };
            let answer = format!("HTTP/1.1 {status} Word\r\n{length}x-path: {path}\r\n\r\n{body}");
            if self.stream.write_all(answer.as_bytes()).is_err() || closes {
                return;
            }
        }
    }

    /// Reads more; false at the end.
    fn more(&mut self, waits: bool) -> bool {
        let set = |waits: bool| {
            if let Some(open) = self.shared.open.lock().unwrap().get_mut(&self.port) {
                open.waits = waits;
            }
        };
        let mut room = [0; 16 << 10];
        set(waits);
        let read = self.stream.read(&mut room).unwrap_or(0);
        set(false);
        self.buffer.extend_from_slice(&room[..read]);
        read > 0
    }

    fn line(&mut self, waits: bool) -> Option<Vec<u8>> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|two| two == b"\r\n") {
                let line = self.buffer[..end].to_vec();
                self.buffer.drain(..end + 2);
                return Some(line);
            }
            if !self.more(waits) {
                return None;
            }
        }
    }

    fn head(&mut self) -> Option<Seen> {
        let line = self.line(true)?;
        let mut seen =
            Seen { line: String::from_utf8_lossy(&line).into_owned(), fields: vec![], body: None, trailers: vec![] };
        let parts: Vec<&str> = seen.line.split(' ').collect();
        let is_token = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        let [method, path, "HTTP/1.1"] = parts[..] else { return Some(unreadable(seen)) };
        if !is_token(method) || !is_token(path) || path.contains('#') {
            return Some(unreadable(seen));
        }
        seen.line = format!("{method} {path}");
        loop {
            let line = String::from_utf8_lossy(&self.line(true)?).into_owned();
            if line.is_empty() {
                break;
            }
            let Some((name, value)) = line.split_once(':') else { return Some(unreadable(seen)) };
            if !is_token(name) || value.contains(['\r', '\n', '\0']) {
                return Some(unreadable(seen));
            }
            seen.fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let count = |name: &str| seen.fields.iter().filter(|(each, _)| each == name).count();
        if count("host") != 1 || count("content-length") + count("transfer-encoding") > 1 {
            return Some(unreadable(seen));
        }
        Some(seen)
    }

    fn body(&mut self, seen: &mut Seen) -> Option<()> {
        if let Some(length) = seen.field("content-length") {
            seen.body = Some(self.exactly(length.parse().ok()?)?);
            return Some(());
        }
        match seen.field("transfer-encoding") {
            None => {
                seen.body = Some(vec![]);
                return Some(());
            }
            Some("chunked") => {}
            Some(_) => return None,
        }
        let mut body = vec![];
        loop {
            let size = usize::from_str_radix(&String::from_utf8(self.line(false)?).ok()?, 16).ok()?;
            if size == 0 {
                break;
            }
            let data = self.exactly(size)?;
            body.extend_from_slice(&data);
            if !self.line(false)?.is_empty() {
                return None;
            }
        }
        loop {
            let line = self.line(false)?;
            if line.is_empty() {
                seen.body = Some(body);
                return Some(());
            }
            seen.trailers.push(String::from_utf8_lossy(&line).into_owned());
        }
    }

    fn exactly(&mut self, length: usize) -> Option<Vec<u8>> {
        while self.buffer.len() < length {
            if !self.more(false) {
                return None;
            }
        }
        Some(self.buffer.drain(..length).collect())
    }
}

fn unreadable(seen: Seen) -> Seen {
    Seen { line: format!("UNREADABLE {}", seen.line), ..seen }
}
