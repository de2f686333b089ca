//! Except for its token, a write does not notice the gate: HTTP/1.1 and HTTP/2, bodies of any size and framing, many at
//! once, independent clients. The gate runs in its own process, so that its memory can be read; the store
//! (`tests/store/bulk.py`) checks every byte that it gets and sends.
//!
//! - `large`: a gibibyte each way, with flat memory.
//! - `crowds`: a thousand connections, ten thousand held bodies.
//! - `framing`: 100-continue, trailers, large headers, chunks.
//! - `clients`: h2load and Python.

mod clients;
mod crowds;
mod framing;
mod large;

use std::{
    fs,
    io::{self, Read},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use bytes::Bytes;
use h2::client::SendRequest;
use serde_json::Value;
use tokio::net::TcpStream;

use super::support::{
    gate::{acquire, text},
    http::{Conn, Response},
    process::{Gate, Site, binary, stderr},
    run::Lines,
    until,
};

/// A block of the text: see `tests/store/bulk.py`.
const BLOCK: usize = 65_521;

/// The endless text that the store serves and expects.
struct Text {
    block: Vec<u8>,
}

impl Text {
    fn new() -> Self {
        let noise = |place: usize| ((place * 167 + (place >> 8) * 13 + 11) % 256) as u8;
        Self { block: (0..BLOCK).map(noise).collect() }
    }

    fn block(&mut self, number: u64) -> &[u8] {
        self.block[..8].copy_from_slice(&number.to_be_bytes());
        &self.block
    }

    /// The first bytes of the text, piece by piece.
    fn each(size: u64, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let (mut text, mut left) = (Self::new(), size);
        for number in 0..size.div_ceil(BLOCK as u64) {
            let length = left.min(BLOCK as u64);
            take(&text.block(number)[..length as usize])?;
            left -= length;
        }
        Ok(())
    }

    /// The first bytes of the text, in one piece.
    fn first(size: usize) -> Vec<u8> {
        let mut whole = Vec::with_capacity(size);
        let copied = Self::each(size as u64, |piece| {
            whole.extend_from_slice(piece);
            Ok(())
        });
        copied.unwrap();
        whole
    }

    /// Reads to the end and compares every byte. Returns the number of bytes.
    #[track_caller]
    fn check(mut from: impl Read) -> u64 {
        let (mut text, mut size) = (Self::new(), 0);
        let mut came = Vec::with_capacity(BLOCK);
        for number in 0..u64::MAX {
            came.clear();
            from.by_ref().take(BLOCK as u64).read_to_end(&mut came).unwrap();
            assert!(came == text.block(number)[..came.len()], "block {number} is not as it was sent");
            size += came.len() as u64;
            if came.len() < BLOCK {
                break;
            }
        }
        size
    }
}

/// The store, in its own process.
struct Bulk {
    child: Child,
    port: u16,
}

impl Bulk {
    fn start() -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/store/bulk.py");
        let mut child = Command::new("python3").arg(script).stdout(Stdio::piped()).spawn().unwrap();
        let port = Lines::of("a store", child.stdout.take().unwrap()).next().unwrap_or_default();
        Self { child, port: port.trim().parse().unwrap() }
    }

    /// The store's counts, asked directly. This request is a connection too, and is counted.
    fn report(&self) -> Value {
        Conn::open(SocketAddr::from(([127, 0, 0, 1], self.port))).unwrap().get("/report").expect(200)
    }

    /// The number of writes that it has applied. Panics if a path was written twice or a byte was wrong.
    #[track_caller]
    fn writes_once_each(&self) -> usize {
        let report = self.report();
        assert_eq!(report["wrong"], 0);
        let written = report["written"].as_object().unwrap();
        let twice: Vec<_> = written.iter().filter(|(_, times)| **times != 1).collect();
        assert!(twice.is_empty(), "{twice:?}");
        written.len()
    }
}

impl Drop for Bulk {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Long enough for a slow machine.
const PATIENT: [(&str, &str); 5] = [
    ("GATE__HEAD_TIMEOUT_MS", "600000"),
    ("GATE__BODY_TIMEOUT_MS", "600000"),
    ("GATE__IDLE_TIMEOUT_MS", "600000"),
    ("STORE__CONNECT_TIMEOUT_MS", "60000"),
    ("STORE__RESPONSE_TIMEOUT_MS", "600000"),
];

const HTTP_1: &str = "--http1.1";
const HTTP_2: &str = "--http2-prior-knowledge";

/// A store, a gate before it, and a token for the object `users`.
struct Line {
    gate: Gate,
    store: Bulk,
    token: String,
    /// The folder must live as long as the gate.
    _site: Site,
}

impl Line {
    fn new() -> Self {
        Self::with(&[])
    }

    fn with(settings: &[(&str, &str)]) -> Self {
        let store = Bulk::start();
        let site = Site::with_table();
        let mut command = Command::new(binary());
        command.env("FENCEGATE__STORE__URL", format!("http://127.0.0.1:{}", store.port));
        for (key, value) in PATIENT.iter().chain(settings) {
            command.env(format!("FENCEGATE__{key}"), value);
        }
        let gate = site.serve_with(command);
        let lease = acquire(&mut gate.api(), "users", "a", 3_600_000);
        let token = text(&lease, "fence_token").to_owned();
        Self { gate, store, token, _site: site }
    }

    fn conn(&self) -> Conn {
        Conn::open(self.gate.gate).unwrap()
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.gate.gate)
    }

    /// curl, without this machine's own settings.
    fn curl(&self, protocol: &str, path: &str) -> Command {
        let mut command = Command::new("curl");
        command.args(["-q", "-sS", "--noproxy", "*", protocol]).arg(self.url(path));
        command
    }

    /// curl, with the token.
    fn fenced_curl(&self, protocol: &str, path: &str) -> Command {
        let mut command = self.curl(protocol, path);
        command.arg("-H").arg(format!("fence-token: {}", self.token));
        command
    }

    /// Waits until the gate has this many writes in flight.
    #[track_caller]
    fn until_under_way(&self, count: usize) {
        let line = format!("active_fenced_operations{{resource=\"default\",operation=\"put\"}} {count}\n");
        until("so many writes are under way", || {
            String::from_utf8_lossy(&self.gate.ops().get("/metrics").body).contains(&line)
        });
    }

    /// The gate's memory in bytes, from the kernel.
    fn memory(&self, field: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.gate.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
        let kib: u64 = line.trim().strip_suffix(" kB").unwrap().parse().unwrap();
        kib * 1_024
    }

    /// The most by which the gate's memory grows while `what` runs.
    fn growth(&self, what: impl FnOnce()) -> u64 {
        // Writing 5 resets the peak.
        fs::write(format!("/proc/{}/clear_refs", self.gate.child.id()), "5").unwrap();
        let before = self.memory("VmRSS");
        what();
        self.memory("VmHWM").saturating_sub(before)
    }
}

/// An HTTP/2 connection, with room for many answers at once.
async fn connect(gate: SocketAddr) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(gate).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let mut builder = h2::client::Builder::new();
    builder.initial_connection_window_size(1 << 24);
    let (sender, connection) = builder.handshake::<_, Bytes>(stream).await.unwrap();
    tokio::spawn(async move {
        // An error of the connection also reaches its streams.
        let _ = connection.await;
    });
    sender
}

/// The standard output of a command. Panics if the command failed.
#[track_caller]
fn printed(output: &Output) -> &[u8] {
    let said = || format!("{} {}{}", output.status, stderr(output), String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", said());
    &output.stdout
}

/// Checks that the store got this many bytes, and all of them right.
#[track_caller]
fn whole(answer: &[u8], bytes: u64) -> Value {
    let came: Value = serde_json::from_slice(answer).unwrap_or_else(|error| panic!("{error}: {answer:?}"));
    assert_eq!((came["bytes"].as_u64(), came["exact"].as_bool()), (Some(bytes), Some(true)), "{came}");
    came
}

/// The same for the answer to a write, which must be settled.
#[track_caller]
fn settled(answer: &Response, bytes: u64) -> Value {
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    assert_eq!(answer.header("fence-outcome"), Some("settled"));
    whole(&answer.body, bytes)
}
