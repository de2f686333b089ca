//! Writes that must wait before they can be judged, with tokens that were not checked yet. They take no memory for
//! bodies from others. Writes that wait for one thing do not keep others from waiting for another thing.

use std::io::Write as _;

use fencegate::config::{LeaseSource, RouteSettings};
use serde_json::Value;

use super::{from, shares::little_memory};
use crate::{
    external::World,
    support::{
        bench::{Bench, TTL},
        gate::{text, wanted},
        h2::{H2, Stream},
        store::Hung,
        until,
    },
};

#[test]
fn bodies_of_writes_that_are_not_judged_yet_take_no_memory_from_those_of_holders() {
    for sent in ["", "begun", &"v".repeat(100)] {
        let world = World::with_settings(little_memory);
        world.put(5).applied();
        // From here on no fence can move.
        world.gate.table.hold_syncs();
        let head = |object| {
            format!(
                "PUT /invented-{object}/x HTTP/1.1\r\nhost: x\r\nfence-token: 1\r\ncontent-length: 100\r\n\r\n{sent}"
            )
        };
        let listens = world.gate.running().listens;
        let _garbage: Vec<_> = (0..20)
            .map(|object| {
                let mut stream = from([127, 0, 0, 2].into(), listens);
                stream.write_all(head(object).as_bytes()).unwrap();
                stream
            })
            .collect();
        world.gate.table.wait_for_held_sync();
        until("all of them are there", || world.gate.shows("fencegate_connections 20\n"));
        // The gate has read all earlier bytes.
        assert_eq!(world.gate.gate().get("/users/1").status, 200);
        world.put(5).applied();
    }
}

#[test]
fn a_write_that_waits_before_it_is_judged_is_sent_whole() {
    let world = World::with_settings(little_memory);
    for (number, length) in [(1, 0), (2, 1), (3, 100), (4, 101), (5, 5_000)] {
        let body = vec![b'v'; length];
        let headers = [("fence-token", &*number.to_string())];
        world.gate.gate().call("PUT", "/users/1", &headers, &body).applied();
        assert_eq!(world.store.applied().last().unwrap()["size"], length, "{length}");
    }
}

/// This many more writes than may wait, on connections of 205 streams each.
const CROWD: usize = 5;
const STREAMS: usize = 205;

/// Writes, each on its own stream.
fn crowd(bench: &Bench, path: &str, token: &str) -> Vec<(H2, Vec<Stream>)> {
    let each = |_| {
        let mut h2 = bench.h2();
        let streams = (0..STREAMS).map(|_| {
            let mut stream = h2.begin("PUT", path, &[("fence-token", token)]);
            stream.send(b"", true);
            stream
        });
        let streams = streams.collect();
        // The gate has read all earlier requests.
        assert_eq!(h2.call("GET", "/users/1", &[], b"").status, 200);
        (h2, streams)
    };
    (0..CROWD).map(each).collect()
}

/// A token for the next lease of an object: its secret is another one's.
fn next_token(lease: &Value) -> String {
    let parts: Vec<&str> = text(lease, "fence_token").split('.').collect();
    let next = parts[1].parse::<u64>().unwrap() + 1;
    format!("{}.{next}.{}.{}", parts[0], parts[2], parts[3])
}

#[test]
fn writes_that_wait_for_a_drain_keep_no_outside_number_from_moving_its_fence() {
    let bench = Bench::with(|settings| {
        let outside = RouteSettings {
            name: "outside".to_owned(),
            path: "/outside/{object}/{rest...}".to_owned(),
            object: "outside-{object}".to_owned(),
            lease_source: LeaseSource::External,
            ..RouteSettings::default()
        };
        let patient = RouteSettings {
            name: "patient".to_owned(),
            path: "/{object}/{rest...}".to_owned(),
            object: "{object}".to_owned(),
            drain_wait_ms: 60_000,
            ..RouteSettings::default()
        };
        settings.route = vec![outside, patient];
    });
    let outside = |token: &str| bench.put("/outside/a/x", &[("fence-token", token)]);
    outside("5").applied();
    let hung = Hung::send(&bench.store, bench.gate.gate(), "/users/w", &[("fence-token", bench.token())]);
    bench.release(&bench.lease);
    let mut next = bench.gate.api();
    let body = wanted("users", "b", TTL).to_string();
    next.send("POST", "/v1/leases", &[("content-type", "application/json")], body.as_bytes()).unwrap();
    let drains = |object: &Value| object["state"] == "draining";
    until("users is draining", || drains(&bench.gate.api().get("/v1/objects/users").json()));
    let _crowd = crowd(&bench, "/users/x", &next_token(&bench.lease));
    outside("6").applied();
    hung.let_go().applied();
}
