//! Connections to the store as the kernel sees them: one that the store closes just as a write comes, one whose gate is
//! killed, one whose peer takes nothing.

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    process::Command,
    thread,
    time::Duration,
};

use serde_json::json;
use socket2::{Domain, SockRef, Socket, Type};

use super::send;
use crate::support::{
    gate::{acquire, text},
    http::Conn,
    process::{Gate, Site, binary, failpoints_binary},
    until,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// A store on a plain socket: the test accepts, reads and answers.
struct PlainStore {
    listener: TcpListener,
}

impl PlainStore {
    /// `room`: roughly how many bytes the kernel buffers for the store.
    fn with_room(room: Option<usize>) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        room.inspect(|room| socket.set_recv_buffer_size(*room).unwrap());
        socket.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
        socket.listen(8).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self { listener: socket.into() }
    }

    /// The next connection, or `None`.
    fn try_accept(&self) -> Option<TcpStream> {
        let (stream, _) = match self.listener.accept() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
            accepted => accepted.unwrap(),
        };
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Some(stream)
    }

    #[track_caller]
    fn accept(&self) -> TcpStream {
        let mut accepted = None;
        until("the gate connects", || {
            accepted = self.try_accept();
            accepted.is_some()
        });
        accepted.unwrap()
    }

    /// Serves a gate with this store, one worker, and one lease on `users`.
    fn serve(&self, mut command: Command) -> (Site, Gate, String) {
        let site = Site::with_table();
        let url = format!("http://{}", self.listener.local_addr().unwrap());
        command.env("FENCEGATE__STORE__URL", url).env("FENCEGATE__GATE__WORKERS", "1");
        command.env("FENCEGATE__STORE__IDLE_TIMEOUT_MS", "600000");
        command.env("FENCEGATE__STORE__RESPONSE_TIMEOUT_MS", "600000");
        let gate = site.serve_with(command);
        let lease = acquire(&mut gate.api(), "users", "a", 3_600_000);
        (site, gate, text(&lease, "fence_token").to_owned())
    }
}

/// Reads a request with a body of five bytes. Returns its first line.
fn read_request(stream: &mut TcpStream) -> String {
    let mut request = vec![];
    while !request.ends_with(b"\r\n\r\nvalue") {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{:?}", String::from_utf8_lossy(&request));
        request.push(byte[0]);
    }
    String::from_utf8_lossy(&request).lines().next().unwrap().to_owned()
}

fn answer(stream: &mut TcpStream) {
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
}

/// The gate's end of a connection, in the kernel's table.
struct GatesEnd {
    ports: [String; 2],
}

impl GatesEnd {
    fn of(stream: &TcpStream) -> Self {
        let ports = [stream.peer_addr(), stream.local_addr()];
        Self { ports: ports.map(|address| format!(":{:04X}", address.unwrap().port())) }
    }

    /// The state of the connection, and how many bytes are still to be sent. `None`: it is gone.
    fn look(&self) -> Option<(u64, u64)> {
        let table = fs::read_to_string("/proc/net/tcp").unwrap();
        table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).find_map(|fields| {
            let number = |hex: &str| u64::from_str_radix(hex, 16).ok();
            let is_it = fields.get(1)?.ends_with(&self.ports[0]) && fields.get(2)?.ends_with(&self.ports[1]);
            is_it.then_some((number(fields.get(3)?)?, number(fields.get(4)?.split(':').next()?)?))
        })
    }
}

/// TCP state: the store has closed its end, and the gate's kernel knows it.
const CLOSE_WAIT: u64 = 8;

/// A write that is held just before it is sent, while the store closes its connection.
struct Race {
    store: PlainStore,
    site: Site,
    gate: Gate,
    write: Conn,
    idle: TcpStream,
    hold: tempfile::TempDir,
}

impl Race {
    fn begin() -> Self {
        let hold = tempfile::tempdir().unwrap();
        let file = hold.path().join("hold");
        let store = PlainStore::with_room(None);
        let mut command = Command::new(failpoints_binary());
        command.env("FENCEGATE_TEST_POINT", format!("committed=hold:{}", file.display()));
        let (site, gate, token) = store.serve(command);
        let token = ("fence-token", token.as_str());
        let mut write = gate.gate();
        write.send("PUT", "/users/1", &[token], b"value").unwrap();
        let mut idle = store.accept();
        read_request(&mut idle);
        answer(&mut idle);
        assert_eq!(write.receive().unwrap().status, 200);
        fs::write(&file, "").unwrap();
        write.send("PUT", "/users/2", &[token], b"value").unwrap();
        until("the write may go", || file.with_added_extension("reached").exists());
        Self { store, site, gate, write, idle, hold }
    }

    /// The store closes the connection normally; then the write goes on. The gate's kernel still accepts bytes.
    fn close_and_go_on(&mut self) {
        let gates_end = GatesEnd::of(&self.idle);
        self.idle.shutdown(Shutdown::Both).unwrap();
        until("the gate's kernel knows", || gates_end.look().is_some_and(|(state, _)| state == CLOSE_WAIT));
        fs::remove_file(self.hold.path().join("hold")).unwrap();
    }

    /// The store resets the connection; then the write goes on. The gate's kernel accepts no more bytes.
    fn reset_and_go_on(self) -> (PlainStore, Conn, (Site, Gate)) {
        let gates_end = GatesEnd::of(&self.idle);
        SockRef::from(&self.idle).set_linger(Some(Duration::ZERO)).unwrap();
        drop(self.idle);
        until("the gate's kernel knows", || gates_end.look().is_none());
        fs::remove_file(self.hold.path().join("hold")).unwrap();
        (self.store, self.write, (self.site, self.gate))
    }
}

#[test]
fn a_write_of_which_nothing_was_sent_goes_on_another_connection() {
    let (store, mut write, _running) = Race::begin().reset_and_go_on();
    let mut another = store.accept();
    assert_eq!(read_request(&mut another), "PUT /users/2 HTTP/1.1");
    answer(&mut another);
    let answer = write.receive().unwrap();
    assert_eq!((answer.status, answer.header("fence-outcome")), (200, Some("settled")));
}

#[test]
fn a_write_that_goes_on_another_connection_is_judged_again() {
    let race = Race::begin();
    let body = json!({ "reason": "test" }).to_string();
    let kind = [("content-type", "application/json")];
    let _revoked = send(race.gate.api(), "POST", "/v1/objects/users/revoke", &kind, body.as_bytes());
    let draining = "fencegate_advances_draining 1\n";
    until(draining, || String::from_utf8(race.gate.ops().get("/metrics").body).unwrap().contains(draining));
    let (store, mut write, (_site, gate)) = race.reset_and_go_on();
    write.receive().unwrap().refusal(412, "WRITE_STALE_FENCE");
    // No write is left to wait for.
    until("it is free", || text(&gate.api().get("/v1/objects/users").expect(200), "state") == "free");
    // The gate opened a connection for the write, and sent nothing on it; the connection is kept for the next request.
    let made = store.accept();
    made.set_nonblocking(true).unwrap();
    assert_eq!((&made).read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock, "something was sent");
}

#[test]
fn a_write_of_which_something_was_sent_is_not_sent_again() {
    let mut race = Race::begin();
    race.close_and_go_on();
    race.write.receive().unwrap().unknown();
    assert!(race.store.try_accept().is_none(), "it was tried again");
}

const MUCH: usize = 16 << 20;

/// Begins a write of which the store takes almost nothing.
fn begin_much(gate: &Gate, token: &str) -> Conn {
    let mut conn = gate.gate();
    let head =
        format!("PUT /users/1 HTTP/1.1\r\nhost: x\r\nfence-token: {token}\r\ncontent-length: {}\r\n\r\n", 2 * MUCH);
    conn.send_raw(head.as_bytes()).unwrap();
    let mut sending = conn.another_handle();
    thread::spawn(move || {
        // The kernel sends only as much as the gate takes.
        let _ = sending.write_all(&vec![b'x'; MUCH]);
    });
    conn
}

#[test]
fn what_a_killed_gate_has_not_got_through_is_not_delivered() {
    let store = PlainStore::with_room(Some(4_096));
    let (_site, gate, token) = store.serve(Command::new(binary()));
    let _conn = begin_much(&gate, &token);
    let mut stream = store.accept();
    let gates_end = GatesEnd::of(&stream);
    until("the kernel has much to deliver", || gates_end.look().is_some_and(|(_, queued)| queued > 500_000));
    gate.kill();
    let (mut buffer, mut read) = (vec![0; 65_536], 0);
    let end = loop {
        match stream.read(&mut buffer) {
            Ok(0) => break None,
            Ok(bytes) => read += bytes,
            Err(error) => break Some(error.kind()),
        }
    };
    assert_eq!(end, Some(ErrorKind::ConnectionReset), "{read} bytes were delivered");
    assert!(read < 500_000, "{read} bytes were delivered");
}

#[test]
fn a_store_that_takes_nothing_for_the_delivery_bound_loses_its_connection() {
    let store = PlainStore::with_room(Some(4_096));
    let mut command = Command::new(binary());
    command.env("FENCEGATE__STORE__DELIVERY_BOUND_MS", "1000");
    let (_site, gate, token) = store.serve(command);
    let mut conn = begin_much(&gate, &token);
    let _open = store.accept();
    // The gate itself would wait ten minutes.
    conn.receive().unwrap().unknown();
}
