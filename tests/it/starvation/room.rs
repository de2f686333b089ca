//! Connections to the gate that keep others out: which of them are closed for a new one, and that no write becomes
//! unknown by it.

use std::{
    any::Any,
    io::Write,
    net::{Ipv4Addr, TcpStream},
    process::Command,
    time::Duration,
};

use fencegate::config::Settings;

use super::{from, get};
use crate::support::{
    bench::{Bench, TTL},
    gate::acquire,
    h2::H2,
    http::Conn,
    process::{Site, binary},
    until,
};

/// Room for 8 connections, 6 of them from one address.
fn eight(settings: &mut Settings) {
    settings.gate.connections_max = 8;
    settings.gate.body_timeout_ms = 3_600_000;
}

fn eight_of_two_workers(settings: &mut Settings) {
    eight(settings);
    settings.gate.workers = 2;
}

/// Keeps a connection open in some way. Returns once the gate has read what it sent.
type Attack = fn(&Bench) -> Box<dyn Any>;

const ATTACKS: [(&str, Attack); 6] = [
    ("HTTP/2 reads without an end", |bench| {
        let mut h2 = bench.h2();
        let open = h2.begin("GET", "/users/x", &[]);
        has_been_read(&mut h2);
        Box::new((h2, open))
    }),
    ("HTTP/2 bodies that do not come", |bench| {
        let mut h2 = bench.h2();
        let open = h2.begin("PUT", "/users/x", &[("fence-token", bench.token())]);
        has_been_read(&mut h2);
        Box::new((h2, open))
    }),
    ("bodies that do not come", |bench| Box::new(asked_for_body(bench, bench.token()))),
    ("bodies that drip", |bench| {
        let mut conn = asked_for_body(bench, bench.token());
        conn.send_raw(b"x").unwrap();
        Box::new(conn)
    }),
    ("refused writes whose bodies do not come", |bench| {
        let mut conn = bench.gate.gate();
        conn.send_raw(b"PUT /users/x HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n").unwrap();
        assert_eq!(conn.receive().unwrap().status, 428);
        Box::new(conn)
    }),
    ("HTTP/2 answers that are not taken", |bench| {
        let mut h2 = H2::that_takes_nothing(bench.gate.running().listens);
        let mut open = h2.begin("GET", "/users/x", &[("x-store", "large:1000")]);
        open.send(b"", true);
        assert_eq!(open.read_head().0, 200);
        Box::new((h2, open))
    }),
];

/// Returns once the gate has read all earlier bytes of this connection.
fn has_been_read(h2: &mut H2) {
    assert_eq!(h2.call("GET", "/users/1", &[], b"").status, 200);
}

/// A write that may go on, and of whose body no bytes have come.
fn asked_for_body(bench: &Bench, token: &str) -> Conn {
    let mut conn = bench.gate.gate();
    let head = format!(
        "PUT /users/x HTTP/1.1\r\nhost: x\r\nfence-token: {token}\r\nexpect: 100-continue\r\ncontent-length: 1000\r\n\r\n"
    );
    conn.send_raw(head.as_bytes()).unwrap();
    assert_eq!(conn.read_head().unwrap().0, 100);
    conn
}

#[test]
fn requests_that_wait_for_their_client_make_room_for_others() {
    for (what, attack) in ATTACKS {
        for (workers, change) in [(1, eight as fn(&mut Settings)), (2, eight_of_two_workers)] {
            println!("{what}, {workers} workers");
            let bench = Bench::with(change);
            let _held: Vec<_> = (0..6).map(|_| attack(&bench)).collect();
            for _ in 0..6 {
                bench.put("/users/1", &[("fence-token", bench.token())]).applied();
            }
            assert!(bench.gate.shows("fencegate_unknown_outcomes_total 0\n"), "{what}");
            // No write of the closed connections is in flight: the lease changes hands at once.
            bench.release(&bench.lease);
            let next = acquire(&mut bench.gate.api(), "users", "b", TTL);
            assert_eq!(next["drain"]["unknown"], 0, "{what}");
        }
    }
}

#[test]
fn an_address_gets_in_though_others_fill_the_gate_with_bodies_that_do_not_come() {
    for change in [eight as fn(&mut Settings), eight_of_two_workers] {
        let bench = Bench::with(change);
        let head = format!(
            "PUT /users/x HTTP/1.1\r\nhost: x\r\nfence-token: {}\r\nexpect: 100-continue\r\ncontent-length: 1000\r\n\r\n",
            bench.token()
        );
        let mut held = vec![];
        for number in 0..8 {
            let mut stream = from(Ipv4Addr::new(127, 0, 0, 2 + number % 2), bench.gate.running().listens);
            stream.write_all(head.as_bytes()).unwrap();
            held.push(stream);
            until("its body is waited for", || {
                bench.gate.shows(&format!("fencegate_held_bytes {}\n", held.len() * 1_000))
            });
        }
        for _ in 0..6 {
            bench.put("/users/1", &[("fence-token", bench.token())]).applied();
        }
        assert!(bench.gate.shows("fencegate_unknown_outcomes_total 0\n"));
    }
}

/// Idle connections are closed first, then those that wait for their client; in both groups, the longest first.
#[test]
fn idle_connections_are_closed_before_those_that_wait_for_their_client() {
    let bench = Bench::with(|settings| {
        settings.gate.connections_max = 4;
        settings.gate.peer_connections_max = 100;
    });
    let mut slow: Vec<Conn> = vec![];
    for _ in 0..3 {
        slow.push(asked_for_body(&bench, bench.token()));
        bench.gate.clock.advance(1_000);
    }
    let mut idle = bench.gate.gate();
    assert_eq!(idle.get("/users/1").status, 200);
    let mut new = bench.gate.gate();
    assert_eq!(new.get("/users/1").status, 200);
    assert!(idle.read_line().is_err(), "the idle one was closed");
    // The new one is busy, so the next one can only replace a connection that waits.
    new.send("PUT", "/users/1", &[("fence-token", bench.token()), ("x-store", "hang")], b"v").unwrap();
    until("it is busy", || bench.store.saw("begun") == 3);
    assert_eq!(bench.gate.gate().get("/users/1").status, 200);
    assert!(slow[0].read_line().is_err(), "the longest was closed");
    for conn in &mut slow[1..] {
        conn.send_raw(&[b'x'; 1_000]).unwrap();
        conn.receive().unwrap().applied();
    }
}

/// A write that may be on its way is never cut off for others.
#[test]
fn writes_that_are_on_their_way_are_not_closed() {
    let bench = Bench::with(|settings| {
        settings.gate.connections_max = 100;
        settings.gate.peer_connections_max = 2;
    });
    let folder = tempfile::tempdir().unwrap();
    let gate_file = folder.path().join("go");
    let wanted = format!("until:{}", gate_file.display());
    let mut writes: Vec<Conn> = vec![];
    for number in 0..2 {
        let mut conn = bench.gate.gate();
        conn.send("PUT", "/users/w", &[("fence-token", bench.token()), ("x-store", &wanted)], b"v").unwrap();
        until("it is on its way", || bench.store.saw("begun") == number + 1);
        writes.push(conn);
    }
    assert!(bench.gate.gate().try_call("GET", "/users/1", &[], b"").is_err(), "a third one is closed");
    std::fs::write(&gate_file, "").unwrap();
    for conn in &mut writes {
        conn.receive().unwrap().applied();
    }
}

/// Reads that have a connection to the store, or wait for one, do not keep writers out either.
#[test]
fn reads_that_last_make_room_where_they_take_more_than_half() {
    for change in [eight as fn(&mut Settings), eight_of_two_workers] {
        let bench = Bench::with(change);
        let mut reads = vec![];
        for number in 0..6 {
            let mut conn = bench.gate.gate();
            conn.send("GET", "/users/x", &[("x-store", "hang")], b"").unwrap();
            reads.push(conn);
            until("it is at the store", || bench.store.saw("begun") == number + 1);
        }
        for _ in 0..6 {
            bench.put("/users/1", &[("fence-token", bench.token())]).applied();
        }
    }
}

/// Another worker's idle connection of the same address makes room, too.
#[test]
fn at_its_share_an_address_gives_up_its_idle_connection_on_any_worker() {
    let bench = Bench::with(|settings| {
        settings.gate.connections_max = 100;
        settings.gate.peer_connections_max = 1;
        settings.gate.workers = 2;
    });
    let listens = bench.gate.running().listens;
    let mut idle = vec![];
    for number in 0..12 {
        let mut stream = from(Ipv4Addr::new(127, 0, 0, 2), listens);
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert_eq!(get(&mut stream).as_deref(), Some("HTTP/1.1 200"), "the {number}th");
        idle.push(stream);
    }
    until("the earlier ones are closed", || bench.gate.shows("fencegate_connections 1\n"));
}

/// The share of one address follows from the actual room, which may be less than in the settings.
#[test]
fn one_address_does_not_fill_a_room_that_open_files_make_small() {
    let site = Site::with_table();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 1024; exec \"$0\" \"$@\""]).arg(binary());
    let gate = site.serve_with(command);
    let mut other = Conn::over(from(Ipv4Addr::new(127, 0, 0, 3), gate.gate));
    assert_eq!(other.get("/users/1").status, 502, "no store is there");
    let _crowd: Vec<TcpStream> = (0..700).map(|_| from(Ipv4Addr::new(127, 0, 0, 2), gate.gate)).collect();
    for _ in 0..20 {
        let mut last = Conn::over(from(Ipv4Addr::new(127, 0, 0, 4), gate.gate));
        assert_eq!(last.get("/users/1").status, 502, "what came before it has been accepted");
    }
    assert_eq!(other.try_call("GET", "/users/1", &[], b"").unwrap().status, 502, "it was not closed for the crowd");
}

/// The connection that is idle longest is closed, on any worker, and not a newer one on the next client's worker.
#[test]
fn new_connections_are_spared_where_another_worker_has_older_ones() {
    let bench = Bench::with(|settings| {
        settings.gate.connections_max = 4;
        settings.gate.peer_connections_max = 100;
        settings.gate.workers = 2;
    });
    let mut reads = 0;
    let ticked = |reads: usize| {
        let line = format!("fencegate_store_response_seconds_count{{kind=\"read\"}} {reads}\n");
        until("the workers have ticked behind the last read", || bench.gate.shows(&line));
    };
    // The kernel chooses the worker of a connection. It is unlikely that all four rounds reach the right ones by
    // chance.
    for round in 0..4 {
        let mut old: Vec<Conn> = (0..4).map(|_| bench.gate.gate()).collect();
        for conn in &mut old {
            assert_eq!(conn.get("/users/1").status, 200);
        }
        reads += old.len();
        ticked(reads);
        bench.gate.clock.advance(10_000);
        let mut new: Vec<Conn> = vec![];
        for _ in 0..4 {
            let mut conn = bench.gate.gate();
            assert_eq!(conn.get("/users/1").status, 200);
            reads += 1;
            ticked(reads);
            new.push(conn);
        }
        for conn in &mut new {
            let is_there = conn.try_call("GET", "/users/1", &[], b"").is_ok();
            assert!(is_there, "round {round}: it was not closed for another new one");
            reads += 1;
        }
        drop((old, new));
        until("all are gone", || bench.gate.shows("fencegate_connections 0\n"));
    }
}
