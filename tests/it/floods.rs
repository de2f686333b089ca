//! More callers of the api and of the ops port than a port has room for: they ask nothing, send half requests, ask
//! without end or read nothing. Probes, renewals and releases are always answered.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use fencegate::clock::Stopwatch;
use serde_json::{Value, json};

use super::support::{
    gate::{TestGate, acquire, renewal, text},
    http::{Conn, Response},
    process::{Gate, Site, binary},
    until,
};

/// How long a probe, a renewal or a release may take while a flood lasts.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often the test makes each call.
const ROUNDS: usize = 8;

/// The behaviour of each connection of a flood.
#[derive(Clone)]
struct Attack {
    what: &'static str,
    bytes: Vec<u8>,
    /// The bytes are sent again and again, as long as the other end takes them.
    is_endless: bool,
    /// The connection reads its answers.
    reads: bool,
}

impl Attack {
    fn once(what: &'static str, bytes: impl Into<Vec<u8>>) -> Self {
        Self { what, bytes: bytes.into(), is_endless: false, reads: false }
    }

    fn endless(what: &'static str, bytes: impl Into<Vec<u8>>) -> Self {
        Self { what, bytes: bytes.into(), is_endless: true, reads: false }
    }

    fn busy(what: &'static str, bytes: impl Into<Vec<u8>>) -> Self {
        Self { what, bytes: bytes.into(), is_endless: true, reads: true }
    }
}

/// Many connections, kept up by a thread: it opens a new one for each that is closed.
struct Flood {
    stop: mpsc::SyncSender<()>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Flood {
    /// Returns when all of them have begun.
    fn begin(address: SocketAddr, count: usize, attack: &Attack) -> Self {
        let (stop, stopped) = mpsc::sync_channel(0);
        let (attack, begun) = (attack.clone(), Arc::<AtomicUsize>::default());
        let (what, seen) = (attack.what, Arc::clone(&begun));
        let thread = thread::spawn(move || {
            let mut all: Vec<Option<Attacker>> = (0..count).map(|_| None).collect();
            while stopped.recv_timeout(Duration::from_millis(10)) == Err(mpsc::RecvTimeoutError::Timeout) {
                for each in &mut all {
                    let is_up = each.as_mut().is_some_and(|attacker| attacker.goes_on(&attack));
                    if !is_up {
                        *each = Attacker::open(address);
                        begun.fetch_add(usize::from(each.is_some()), Ordering::SeqCst);
                    }
                }
            }
        });
        until(&format!("{count} connections: {what}"), || seen.load(Ordering::SeqCst) >= count);
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        let _ = self.stop.send(());
        let _ = self.thread.take().map(thread::JoinHandle::join);
    }
}

struct Attacker {
    stream: TcpStream,
    sent: usize,
}

impl Attacker {
    fn open(address: SocketAddr) -> Option<Self> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_millis(500)).ok()?;
        stream.set_nonblocking(true).unwrap();
        Some(Self { stream, sent: 0 })
    }

    /// Sends as much as the other end takes; `false` if it has closed the connection.
    fn goes_on(&mut self, attack: &Attack) -> bool {
        if !matches!(self.stream.take_error(), Ok(None)) {
            return false;
        }
        while attack.reads && matches!(self.stream.read(&mut [0; 1 << 16]), Ok(1..)) {}
        let total = attack.bytes.len();
        while self.sent < total {
            match self.stream.write(&attack.bytes[self.sent..]) {
                Ok(written) => self.sent += written,
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
            if attack.is_endless {
                self.sent %= total;
            }
        }
        match self.stream.peek(&mut [0]) {
            Ok(bytes) => bytes > 0,
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    }
}

/// A gate with room for 64 connections to its ops port and 48 to its api.
fn small_gate(site: &Site) -> Gate {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 1024; exec \"$0\" \"$@\""]).arg(binary());
    site.serve_with(command)
}

/// A call on a separate connection, which must be answered in time.
#[track_caller]
fn asked(address: SocketAddr, what: &str, call: impl FnOnce(&mut Conn) -> std::io::Result<Response>) -> Response {
    let begun = Stopwatch::start();
    let answered = Conn::open(address).and_then(|mut conn| {
        conn.another_handle().set_read_timeout(Some(PATIENCE))?;
        call(&mut conn)
    });
    println!("{what}: {:.0} ms", begun.seconds() * 1e3);
    answered.unwrap_or_else(|error| panic!("{what}: {error} after {:.1} s", begun.seconds()))
}

#[test]
fn probes_are_answered_whatever_others_do_to_the_ops_port() {
    let site = Site::with_table();
    let gate = small_gate(&site);
    let metrics = "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n".repeat(100);
    let probes = "GET /livez HTTP/1.1\r\nhost: x\r\n\r\n".repeat(100);
    for attack in [
        Attack::endless("metrics without reading", metrics),
        Attack::once("silence", ""),
        Attack::once("half a head", "GET /livez HTTP/1.1\r\nho"),
        Attack::once("half a body", "POST /drain HTTP/1.1\r\nhost: evil.example\r\ncontent-length: 9\r\n\r\n"),
        Attack::endless("probes without reading", probes.clone()),
        Attack::busy("probes without end", probes),
    ] {
        let _flood = Flood::begin(gate.ops, 140, &attack);
        for path in ["/livez", "/readyz"].repeat(ROUNDS) {
            let what = format!("{}: {path}", attack.what);
            let answer = asked(gate.ops, &what, |conn| conn.try_call("GET", path, &[], b""));
            assert_eq!(answer.status, 200, "{what}");
        }
    }
    assert!(site.log().contains("the port is full"), "the floods did not fill the port");
}

/// Renews a lease, releases it and takes it again.
fn renew_and_release(gate: &Gate, what: &str, lease: &Value) {
    let (path, body) = renewal(lease, 600_000);
    let json = [("content-type", "application/json")];
    let body = body.to_string();
    asked(gate.api, &format!("{what}: renew"), |conn| conn.try_call("POST", &path, &json, body.as_bytes())).expect(200);
    let (path, token) = (format!("/v1/leases/{}", text(lease, "lease_id")), text(lease, "fence_token"));
    let token = [("fence-token", token)];
    asked(gate.api, &format!("{what}: release"), |conn| conn.try_call("DELETE", &path, &token, b"")).expect(200);
}

fn call(body: &Value) -> String {
    let body = body.to_string();
    let head = "POST /v1/leases HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length";
    format!("{head}: {}\r\n\r\n{body}", body.len())
}

#[test]
fn renewals_and_releases_are_answered_whatever_others_do_to_the_api() {
    let site = Site::with_table();
    let gate = small_gate(&site);
    acquire(&mut gate.api(), "wanted", "holder", 600_000);
    let description = "GET /v1/openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(100);
    let objects = "GET /v1/objects/wanted HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(100);
    let waiting = json!({ "object_id": "wanted", "holder_id": "waiter", "wait_ms": 300_000 });
    let half =
        "POST /v1/leases HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{";
    for attack in [
        Attack::endless("descriptions without reading", description),
        Attack::once("silence", ""),
        Attack::once("half a head", "POST /v1/leases HTTP/1.1\r\nho"),
        Attack::once("half a body", half),
        Attack::once("waiters", call(&waiting)),
        Attack::busy("objects without end", objects),
        Attack::once("watchers", "GET /v1/watch HTTP/1.1\r\nhost: localhost\r\n\r\n"),
    ] {
        let leases: Vec<_> =
            (0..ROUNDS).map(|n| acquire(&mut gate.api(), &format!("{}{n}", attack.what), "a", 600_000)).collect();
        let _flood = Flood::begin(gate.api, 190, &attack);
        for lease in &leases {
            renew_and_release(&gate, attack.what, lease);
        }
    }
    assert!(site.log().contains("the port is full"), "the floods did not fill the port");
}

#[test]
fn a_caller_that_takes_nothing_of_its_answers_is_let_go() {
    let gate = TestGate::start();
    let description = "GET /v1/openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(100);
    let attack = Attack::endless("descriptions without reading", description);
    let mut caller = Attacker::open(gate.running().api).unwrap();
    until("the end of a connection whose caller reads nothing", || !caller.goes_on(&attack));
}

#[test]
fn a_stop_does_not_wait_for_half_a_request() {
    let gate = TestGate::start();
    let halves = [
        "",
        "POST /v1/leases HTTP/1.1\r\nho",
        "POST /v1/leases HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{",
    ];
    let callers: Vec<_> = halves
        .iter()
        .flat_map(|half| [gate.api(), gate.ops()].map(|conn| (half, conn)))
        .map(|(half, mut conn)| {
            conn.send_raw(half.as_bytes()).unwrap();
            conn
        })
        .collect();
    // The gate has accepted these connections and read their bytes, since it has answered later ones.
    assert_eq!((gate.ops().get("/livez").status, gate.api().get("/v1/receipts").status), (200, 200));
    let begun = Stopwatch::start();
    gate.stop();
    assert!(begun.seconds() < 3.0, "the stop took {:.1} s", begun.seconds());
    drop(callers);
}
