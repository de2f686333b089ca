//! Connections to the store, places in the queue and memory for bodies: what is left for others by writes that are not
//! judged, by one client and by reads.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpStream},
};

use fencegate::config::{Mode, RouteSettings, Settings};
use serde_json::Value;

use super::{busy, from, small};
use crate::support::{
    bench::{Bench, TTL},
    gate::{acquire, text},
    http::Conn,
    store::Hung,
    until,
};

/// A route for paths under `name`, beside the usual one.
fn route(name: &str) -> RouteSettings {
    RouteSettings {
        name: name.to_owned(),
        path: format!("/{name}/{{object}}/{{rest...}}"),
        object: format!("{name}-{{object}}"),
        ..RouteSettings::default()
    }
}

/// Routes `/off/...` and `/audit/...`, which refuse no writes, and the usual ones.
fn unjudged(settings: &mut Settings) {
    settings.route = vec![
        RouteSettings { mode: Mode::Off, ..route("off") },
        RouteSettings { mode: Mode::Audit, ..route("audit") },
        RouteSettings {
            name: "usual".to_owned(),
            path: "/{object}/{rest...}".to_owned(),
            object: "{object}".to_owned(),
            ..RouteSettings::default()
        },
    ];
}

/// An upload that holds a connection to the store, or waits for one.
fn upload(path: &str, token: Option<&str>) -> Vec<u8> {
    let token = token.map_or(String::new(), |token| format!("fence-token: {token}\r\n"));
    format!("PUT {path} HTTP/1.1\r\nhost: x\r\n{token}content-length: 1000000\r\n\r\nbegun").into_bytes()
}

#[test]
fn unjudged_writes_leave_room_for_those_of_holders() {
    for mode in ["off", "audit"] {
        let bench = Bench::with(|settings| {
            small(8)(settings);
            unjudged(settings);
        });
        let _uploads: Vec<Conn> = (0..80)
            .map(|number| {
                let mut conn = bench.gate.gate();
                conn.send_raw(&upload(&format!("/{mode}/invented-{number}/x"), None)).unwrap();
                conn
            })
            .collect();
        until("they have their share", || busy(&bench, 3));
        for _ in 0..10 {
            bench.put("/users/1", &[("fence-token", bench.token())]).applied();
            assert_eq!(bench.gate.gate().get("/users/1").status, 200, "reads have room, too");
        }
        assert!(busy(&bench, 3), "{mode}: of 80 uploads 3 have a connection");
    }
}

/// The limit on all held bodies, and on one body, in bytes.
const HELD: usize = 1_000;

pub(super) fn little_memory(settings: &mut Settings) {
    settings.gate.hold_bytes = HELD / 10;
    settings.gate.hold_total_bytes = HELD;
}

/// Sends a request and waits until the gate asks for its body, with room in memory. Returns whether it got that room.
fn waits_for_body(mut stream: TcpStream, method: &str, path: &str, token: Option<&str>) -> (bool, TcpStream) {
    let token = token.map_or(String::new(), |token| format!("fence-token: {token}\r\n"));
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\n{token}expect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        HELD / 10
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    (&answer == b"HTTP/1.1 100", stream)
}

fn connect(bench: &Bench) -> TcpStream {
    from(Ipv4Addr::LOCALHOST, bench.gate.running().listens)
}

/// The number of requests, of 20, that get room in memory for their bodies.
fn held(bench: &Bench, method: &str, path: impl Fn(usize) -> String) -> (usize, Vec<TcpStream>) {
    let all = (0..20).map(|number| waits_for_body(connect(bench), method, &path(number), None));
    let (got_it, streams): (Vec<bool>, Vec<TcpStream>) = all.unzip();
    (got_it.into_iter().filter(|got_it| *got_it).count(), streams)
}

#[test]
fn bodies_of_unjudged_writes_leave_memory_for_those_of_holders() {
    for mode in ["off", "audit"] {
        let bench = Bench::with(|settings| {
            little_memory(settings);
            unjudged(settings);
        });
        let (count, _streams) = held(&bench, "PUT", |number| format!("/{mode}/invented-{number}/x"));
        assert_eq!(count, 5, "{mode}: half of the memory");
        assert!(waits_for_body(connect(&bench), "PUT", "/users/1", Some(bench.token())).0);
    }
}

#[test]
fn bodies_of_reads_leave_memory_for_those_of_writes() {
    let bench = Bench::with(|settings| {
        little_memory(settings);
        settings.route = vec![RouteSettings { bodies_on_reads: true, ..route("search") }, route("other")];
    });
    let other = acquire(&mut bench.gate.api(), "other-1", "b", TTL);
    let (count, _streams) = held(&bench, "GET", |number| format!("/search/{number}/x"));
    assert_eq!(count, 2, "a quarter of the memory");
    let mut streams = vec![];
    for _ in 0..6 {
        let (got_it, stream) = waits_for_body(connect(&bench), "PUT", "/other/1/x", Some(text(&other, "fence_token")));
        assert!(got_it);
        streams.push(stream);
    }
}

/// Sends from 127.0.0.2: a client is an address here.
fn uploads_of_many_objects(bench: &Bench, leases: &[Value], each: usize) -> Vec<TcpStream> {
    let mut streams = vec![];
    for lease in leases {
        for _ in 0..each {
            let mut stream = from(Ipv4Addr::new(127, 0, 0, 2), bench.gate.running().listens);
            let path = format!("/{}/x", text(lease, "object_id"));
            stream.write_all(&upload(&path, Some(text(lease, "fence_token")))).unwrap();
            streams.push(stream);
        }
    }
    streams
}

#[test]
fn one_client_with_many_objects_leaves_room_for_the_writes_and_reads_of_others() {
    let bench = Bench::with(|settings| {
        small(16)(settings);
        settings.store.queue_max = 32;
    });
    let mut api = bench.gate.api();
    let leases: Vec<Value> = (0..6).map(|number| acquire(&mut api, &format!("many-{number}"), "b", TTL)).collect();
    // 96 for 16 connections and 32 places.
    let _uploads = uploads_of_many_objects(&bench, &leases, 16);
    // An eighth is kept for other clients, and a sixteenth for reads.
    until("the client has its share", || busy(&bench, 13));
    for _ in 0..10 {
        bench.put("/users/1", &[("fence-token", bench.token())]).applied();
        assert_eq!(bench.gate.gate().get("/users/1").status, 200);
    }
}

/// The same for memory for bodies.
#[test]
fn bodies_of_one_client_with_many_objects_leave_memory_for_those_of_others() {
    let bench = Bench::with(little_memory);
    let mut api = bench.gate.api();
    let leases: Vec<Value> = (0..6).map(|number| acquire(&mut api, &format!("many-{number}"), "b", TTL)).collect();
    let listens = bench.gate.running().listens;
    let all = leases.iter().flat_map(|lease| (0..4).map(move |_| lease)).map(|lease| {
        let path = format!("/{}/x", text(lease, "object_id"));
        let stream = from(Ipv4Addr::new(127, 0, 0, 2), listens);
        waits_for_body(stream, "PUT", &path, Some(text(lease, "fence_token")))
    });
    let (got_it, _streams): (Vec<bool>, Vec<TcpStream>) = all.unzip();
    assert_eq!(got_it.into_iter().filter(|got_it| *got_it).count(), 8, "an eighth is kept");
    assert!(waits_for_body(connect(&bench), "PUT", "/users/1", Some(bench.token())).0);
}

#[test]
fn reads_whose_bodies_do_not_come_take_no_connection_to_the_store() {
    let bench = Bench::with(|settings| {
        small(4)(settings);
        settings.route = vec![RouteSettings { bodies_on_reads: true, ..RouteSettings::default() }];
    });
    let mut streams = vec![];
    for _ in 0..8 {
        let (is_asked_for, stream) = waits_for_body(connect(&bench), "GET", "/users/x", None);
        assert!(is_asked_for);
        streams.push(stream);
    }
    until("no connection to the store is busy", || busy(&bench, 0));
    assert_eq!(bench.store.saw("begun"), 0);
}

#[test]
fn reads_that_wait_leave_places_in_the_queue_to_writes() {
    let bench = Bench::with(|settings| {
        small(4)(settings);
        settings.store.queue_max = 16;
        settings.store.response_timeout_ms = 60_000;
    });
    let mut api = bench.gate.api();
    let leases: Vec<Value> = (0..4).map(|number| acquire(&mut api, &format!("o{number}"), "b", TTL)).collect();
    // Writes to different objects hold all four connections.
    let held: Vec<Hung> = leases
        .iter()
        .map(|lease| {
            let path = format!("/{}/w", text(lease, "object_id"));
            let token = [("fence-token", text(lease, "fence_token"))];
            Hung::send(&bench.store, bench.gate.gate(), &path, &token)
        })
        .collect();
    let _reads: Vec<Conn> = (0..30)
        .map(|_| {
            let mut conn = bench.gate.gate();
            conn.send("GET", "/users/x", &[], b"").unwrap();
            conn
        })
        .collect();
    // Reads may have a quarter of the 16 places.
    let refused = "fencegate_refusals_total{code=\"GATE_OVERLOADED\"} 26\n";
    until("four reads wait, and the others are refused", || bench.gate.shows(refused));
    let mut write = bench.gate.gate();
    write.send("PUT", "/users/1", &[("fence-token", bench.token())], b"v").unwrap();
    until("a write waits behind them", || bench.gate.shows("fencegate_store_queue 5\n"));
    held.into_iter().for_each(|write| write.let_go().applied());
    write.receive().unwrap().applied();
}
