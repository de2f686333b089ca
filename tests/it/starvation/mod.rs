//! A client without a token, or one holder alone, cannot stop the writes of others: connections to the store, places in
//! the queue and connections to the gate are shared out. `room`: the gate's own connections. `shares`: those to the
//! store, and the memory for bodies. `answers`: HTTP/2 answers that are not taken. `waits`: writes that wait before
//! they can be judged.

mod answers;
mod room;
mod shares;
mod waits;

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    time::Duration,
};

use fencegate::config::Settings;
use socket2::{Domain, Socket, Type};

use crate::support::{
    bench::{Bench, TTL, small_room},
    gate::{acquire, text},
    h2::H2,
    http::Conn,
    until,
};

const PATIENCE_MS: u64 = 2_000;

/// A gate with this many connections to its store, and short timeouts.
fn small(connections: usize) -> impl FnOnce(&mut Settings) {
    move |settings| {
        settings.store.connections_max = connections;
        settings.store.queue_max = 64;
        settings.store.response_timeout_ms = PATIENCE_MS;
    }
}

fn busy(bench: &Bench, count: usize) -> bool {
    bench.gate.shows(&format!("fencegate_store_connections{{state=\"busy\"}} {count}\n"))
}

/// More than the sockets between store and client can buffer.
const LARGE: &str = "large:50000000";

/// A download whose client reads nothing.
fn untaken(bench: &Bench) -> Conn {
    let mut conn = bench.gate.gate();
    conn.send("GET", "/users/large", &[("x-store", LARGE)], b"").unwrap();
    conn
}

#[test]
fn downloads_that_their_clients_do_not_read_leave_room_for_writes() {
    for connections in [2, 4, 8] {
        let bench = Bench::with(small(connections));
        let _readers: Vec<Conn> = (0..3 * connections).map(|_| untaken(&bench)).collect();
        until("reads have their share", || busy(&bench, connections / 2));
        for _ in 0..10 {
            assert_eq!(
                bench.put("/users/1", &[("fence-token", bench.token())]).status,
                200,
                "{connections} connections"
            );
        }
    }
}

/// The control: a single connection cannot be shared, and this test would notice.
#[test]
fn one_connection_cannot_be_shared() {
    let bench = Bench::with(small(1));
    let _reader = untaken(&bench);
    until("the read has it", || busy(&bench, 1));
    bench.put("/users/1", &[("fence-token", bench.token())]).refusal(503, "GATE_OVERLOADED");
}

#[test]
fn many_reads_on_few_http_2_connections_leave_room_for_writes() {
    let bench = Bench::with(|settings| {
        small(8)(settings);
        settings.store.response_timeout_ms = 60_000;
    });
    // Each client has at most three of the four connections.
    let mut clients: Vec<H2> = (0..3).map(|_| bench.h2()).collect();
    let streams: Vec<_> = clients
        .iter_mut()
        .flat_map(|h2| (0..100).map(|_| h2.begin("GET", "/users/x", &[("x-store", "hang")])).collect::<Vec<_>>())
        .map(|mut stream| {
            stream.send(b"", true);
            stream
        })
        .collect();
    until("reads have their share", || busy(&bench, 4));
    for _ in 0..10 {
        assert_eq!(bench.put("/users/1", &[("fence-token", bench.token())]).status, 200);
    }
    drop(streams);
}

#[test]
fn slow_uploads_of_one_holder_leave_room_for_other_objects() {
    let bench = Bench::with(small(8));
    let other = acquire(&mut bench.gate.api(), "other", "b", TTL);
    let _uploads: Vec<Conn> = (0..20)
        .map(|_| {
            let mut conn = bench.gate.gate();
            let head = format!(
                "PUT /users/slow HTTP/1.1\r\nhost: x\r\nfence-token: {}\r\ncontent-length: 1000000\r\n\r\nbegun",
                bench.token()
            );
            conn.send_raw(head.as_bytes()).unwrap();
            conn
        })
        .collect();
    until("the object has its share", || busy(&bench, 3));
    for _ in 0..10 {
        bench.put("/other/1", &[("fence-token", text(&other, "fence_token"))]).applied();
        // Reads have room, too.
        assert_eq!(bench.gate.gate().get("/users/1").status, 200);
    }
    assert_eq!(bench.store.saw("begun"), 3 + 20);
}

#[test]
fn writes_are_served_before_reads_that_have_waited_for_longer() {
    let bench = Bench::with(|settings| {
        small(4)(settings);
        settings.store.response_timeout_ms = 60_000;
    });
    let folder = tempfile::tempdir().unwrap();
    let hold = |name: &str| format!("until:{}", folder.path().join(name).display());
    // Writes to different objects hold all four connections, so a read may have the next one that is free.
    let mut api = bench.gate.api();
    let leases: Vec<_> = (0..4).map(|number| acquire(&mut api, &format!("o{number}"), "b", TTL)).collect();
    let mut held: Vec<Conn> = vec![];
    for (number, lease) in leases.iter().enumerate() {
        let (mut conn, until_file) = (bench.gate.gate(), hold(&number.to_string()));
        let headers = [("x-store", until_file.as_str()), ("fence-token", text(lease, "fence_token"))];
        conn.send("PUT", &format!("/o{number}/w"), &headers, b"v").unwrap();
        until("the write is there", || bench.store.saw("begun") == number + 1);
        held.push(conn);
    }
    let mut waiting_read = bench.gate.gate();
    waiting_read.send("GET", "/users/late-read", &[], b"").unwrap();
    until("a read waits", || bench.gate.shows("fencegate_store_queue 1\n"));
    let mut waiting_write = bench.gate.gate();
    waiting_write.send("PUT", "/users/late-write", &[("fence-token", bench.token())], b"v").unwrap();
    until("and a write behind it", || bench.gate.shows("fencegate_store_queue 2\n"));
    std::fs::write(folder.path().join("0"), "").unwrap();
    assert_eq!((waiting_write.receive().unwrap().status, waiting_read.receive().unwrap().status), (200, 200));
    let story = bench.store.story();
    let place = |line: &str| story.iter().position(|each| each == line);
    assert!(place("PUT /users/late-write") < place("GET /users/late-read"), "{story:?}");
    for (number, mut conn) in held.into_iter().enumerate() {
        std::fs::write(folder.path().join(number.to_string()), "").unwrap();
        assert_eq!(conn.receive().unwrap().status, 200);
    }
}

/// Reads that do not end take none of the room for bodies.
#[test]
fn reads_without_an_end_take_no_room_from_bodies() {
    let bench = Bench::with(small_room);
    let mut h2 = bench.h2();
    let _open: Vec<_> = (0..20).map(|_| h2.begin("GET", "/users/x", &[])).collect();
    for _ in 0..10 {
        assert_eq!(bench.put("/users/1", &[("fence-token", bench.token())]).status, 200);
    }
}

#[test]
fn a_short_answer_that_its_client_does_not_take_holds_no_connection_to_the_store() {
    let bench = Bench::with(small(4));
    let mut h2 = H2::that_takes_nothing(bench.gate.running().listens);
    let streams: Vec<_> = (0..10).map(|_| h2.begin("GET", "/users/x", &[("x-store", "large:1000")])).collect();
    let streams: Vec<_> = streams
        .into_iter()
        .map(|mut stream| {
            stream.send(b"", true);
            stream
        })
        .collect();
    until("all were answered", || bench.store.saw("applied") == 10);
    until("and hold nothing", || busy(&bench, 0));
    drop(streams);
}

#[test]
fn the_longest_idle_connection_makes_room_for_a_new_one() {
    let bench = Bench::with(|settings| {
        settings.gate.connections_max = 4;
        settings.gate.peer_connections_max = 100;
    });
    let mut idle: Vec<Conn> = (0..4).map(|_| bench.gate.gate()).collect();
    for conn in &mut idle {
        assert_eq!(conn.get("/users/1").status, 200);
        bench.gate.clock.advance(1_000);
    }
    // The first one is used again, so the second has been idle longest.
    assert_eq!(idle[0].get("/users/1").status, 200);
    assert_eq!(bench.gate.gate().get("/users/1").status, 200, "a new one gets in");
    assert!(idle[1].read_line().is_err(), "the second was closed");
    assert_eq!(idle[0].get("/users/1").status, 200);
    assert!(bench.gate.shows("fencegate_connections_crowded_out_total{reason=\"idle\"} 1\n"));
}

#[test]
fn connections_that_say_nothing_keep_no_one_out() {
    let bench = Bench::with(|settings| settings.gate.connections_max = 8);
    let _silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(bench.gate.running().listens).unwrap()).collect();
    for _ in 0..20 {
        assert_eq!(bench.put("/users/1", &[("fence-token", bench.token())]).status, 200);
    }
}

/// A connection from another address of this machine.
fn from(address: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(IpAddr::V4(address), 0).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

fn get(stream: &mut TcpStream) -> Option<String> {
    stream.write_all(b"GET /users/1 HTTP/1.1\r\nhost: x\r\n\r\n").ok()?;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).ok()?;
    String::from_utf8(answer.to_vec()).ok()
}

#[test]
fn one_address_has_its_share_of_connections() {
    let bench = Bench::with(|settings| {
        settings.gate.connections_max = 100;
        settings.gate.peer_connections_max = 3;
    });
    let (crowd, other) = (Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3));
    let listens = bench.gate.running().listens;
    // The connections write: a connection that only reads would be closed for a new one.
    let hanging = format!(
        "PUT /users/1 HTTP/1.1\r\nhost: x\r\nx-store: hang\r\nfence-token: {}\r\ncontent-length: 1\r\n\r\nv",
        bench.token()
    );
    let hangs = |mut stream: TcpStream| {
        stream.write_all(hanging.as_bytes()).unwrap();
        stream
    };
    let _busy: Vec<TcpStream> = (0..3).map(|_| hangs(from(crowd, listens))).collect();
    until("all are busy", || bench.store.saw("begun") == 3);
    assert_eq!(get(&mut from(crowd, listens)), None, "a fourth one is closed");
    assert_eq!(get(&mut from(other, listens)).as_deref(), Some("HTTP/1.1 200"), "another address gets in");
    assert!(bench.gate.shows("fencegate_connections_crowded_out_total{reason=\"peer\"} 1\n"));
}

#[test]
fn a_body_that_drips_is_cut_off_though_it_never_pauses() {
    let bench = Bench::with(|settings| {
        settings.gate.body_timeout_ms = 1_000;
        settings.gate.pace_bytes_min = 1_000;
    });
    let drip = |length: &str| {
        let mut conn = bench.gate.gate();
        let head = format!("PUT /users/1 HTTP/1.1\r\nhost: x\r\nfence-token: {}\r\n{length}\r\n\r\n", bench.token());
        conn.send_raw(head.as_bytes()).unwrap();
        for _ in 0..200 {
            if conn.send_raw(b"x").is_err()
                || bench.gate.shows("fencegate_refusals_total{code=\"BODY_UNREADABLE\"} 1\n")
            {
                break;
            }
            bench.gate.clock.advance(200);
        }
        conn.receive()
    };
    bench.refused(&drip("content-length: 5000").unwrap(), 422, "BODY_UNREADABLE");
}
