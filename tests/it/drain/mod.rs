//! Writes that are on their way when a lease changes hands: the next holder gets it only after they have settled, were
//! stopped, or can no longer land.
//!
//! - `handover`: how each kind of write delays the next holder. `force`: an operator who does not wait.
//! - `several`: rotations, batches, several workers.
//! - `clients`: slow ones, lost ones, HTTP/2 and TLS. `lanes`: connections to the store, as the kernel sees them.
//! - `endings`: crashes and stops.

mod clients;
mod endings;
mod force;
mod handover;
mod lanes;
mod several;

use std::{
    fs,
    path::PathBuf,
    sync::mpsc::{Receiver, sync_channel},
    thread,
};

use fencegate::config::Settings;
use serde_json::{Value, json};

use super::support::{
    bench::Bench,
    gate::{TestGate, text, wanted},
    http::{Conn, Response},
    until,
};

/// How long an unknown write may still land, in tests that set it.
const BOUND: u64 = 40_000;
/// Driven clocks jump; with these timeouts no connection is closed for that.
const DAY: u64 = 86_400_000;

fn bounded(settings: &mut Settings) {
    settings.store.delivery_bound_ms = BOUND / 4;
    settings.store.apply_bound_ms = BOUND - BOUND / 4;
    settings.gate.body_timeout_ms = DAY;
}

/// Sends a request. Returns a receiver for its answer.
fn send(mut conn: Conn, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Receiver<Response> {
    conn.send(method, path, headers, body).unwrap();
    let (sender, receiver) = sync_channel(1);
    thread::spawn(move || sender.send(conn.receive().unwrap()));
    receiver
}

fn ask(gate: &TestGate, path: &str, body: &Value) -> Receiver<Response> {
    send(gate.api(), "POST", path, &[("content-type", "application/json")], body.to_string().as_bytes())
}

fn takeover(holder: &str) -> Value {
    let mut body = wanted("users", holder, 60_000);
    body["takeover"] = json!(true);
    body
}

/// A takeover whose caller waits as long as it takes.
fn patient_takeover(holder: &str) -> Value {
    let mut body = takeover(holder);
    body["wait_ms"] = json!(2 * BOUND);
    body
}

/// Waits until this many advances are draining.
#[track_caller]
fn draining(gate: &TestGate, n: usize) {
    let line = format!("fencegate_advances_draining {n}\n");
    until(&line, || gate.shows(&line));
}

/// Checks that this call has no answer after the ledger has processed all earlier events.
#[track_caller]
fn still_waits(gate: &TestGate, call: &Receiver<Response>) {
    // A change of another object goes through the same ledger.
    gate.api().post("/v1/objects/another/revoke", &json!({ "reason": "look" })).expect(200);
    assert!(call.try_recv().is_err(), "handed over while a write could still land");
}

/// State and fence of an object.
#[track_caller]
fn standing(gate: &TestGate, object: &str) -> (String, u64) {
    let body = gate.api().get(&format!("/v1/objects/{object}")).expect(200);
    (text(&body, "state").to_owned(), body["fence"].as_u64().unwrap())
}

/// A store's answer that the test releases.
struct Held {
    folder: tempfile::TempDir,
}

impl Held {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("go")
    }

    fn wish(&self) -> String {
        format!("until:{}", self.file().display())
    }

    fn let_go(&self) {
        fs::write(self.file(), "").unwrap();
    }
}

/// A write that the store has received and not answered.
#[track_caller]
fn begin_held(bench: &Bench, path: &str, token: &str, held: &Held) -> Receiver<Response> {
    let before = bench.store.story().len();
    let headers = [("fence-token", token), ("x-store", &held.wish())];
    let write = send(bench.gate.gate(), "PUT", path, &headers, b"held");
    until("the store has it", || bench.store.story().len() > before);
    write
}

/// A long write of which the store has got a part.
fn begin_long(bench: &Bench) -> Conn {
    let mut conn = bench.gate.gate();
    let token = bench.token();
    let head = format!("PUT /users/1 HTTP/1.1\r\nhost: x\r\nfence-token: {token}\r\ncontent-length: 100000\r\n\r\n");
    conn.send_raw(&[head.as_bytes(), &[b'x'; 50_000]].concat()).unwrap();
    until("the store has some of it", || bench.store.saw("body") == 1);
    conn
}
