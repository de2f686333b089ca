//! Writes that have to wait before they can be judged, with tokens that nobody has looked at yet: they take no memory for
//! bodies from others.

use std::io::Write as _;

use super::{from, shares::little_memory};
use crate::{external::World, support::until};

#[test]
fn bodies_of_writes_that_are_not_judged_yet_take_no_memory_from_those_of_holders() {
    for sent in ["", "begun", &"v".repeat(100)] {
        let world = World::with_settings(little_memory);
        world.put(5).applied();
        // Nothing moves a fence from here on.
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
        // What came before this has been read.
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
