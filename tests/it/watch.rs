//! Lease events as a stream.

use fencegate::clock::Stopwatch;
use serde_json::Value;

use super::support::{
    gate::{TestGate, acquire, renewal, settings, text},
    http::Conn,
};

/// Opens a stream. The id in its first line is the position where it begins.
fn watch(gate: &TestGate, query: &str, headers: &[(&str, &str)]) -> (Conn, String) {
    let mut stream = gate.api();
    stream.send("GET", &format!("/v1/watch{query}"), headers, b"").unwrap();
    let (status, headers) = stream.read_head().unwrap();
    assert_eq!(status, 200);
    assert!(headers.iter().any(|(_, value)| value.starts_with("text/event-stream")));
    let hello = read_block(&mut stream);
    let id = field(&hello, "id").expect("the first block carries an id");
    assert_eq!(field(&hello, "data"), None);
    (stream, id)
}

/// How long an event may take to come. Keep-alives come more often than the socket's read timeout.
const PATIENCE_S: f64 = 30.0;

/// One event: its lines up to the empty one, without the chunk framing.
#[track_caller]
fn read_block(stream: &mut Conn) -> Vec<String> {
    let (mut block, begun) = (vec![], Stopwatch::start());
    loop {
        assert!(begun.seconds() < PATIENCE_S, "waited in vain for the end of a block; so far: {block:?}");
        let line = stream.read_line().unwrap();
        let is_field = ["id:", "event:", "data:", ":"].iter().any(|start| line.starts_with(start));
        if is_field {
            block.push(line);
        } else if line.is_empty() && !block.is_empty() {
            return block;
        }
    }
}

fn field(block: &[String], name: &str) -> Option<String> {
    let start = format!("{name}:");
    block.iter().find_map(|line| line.strip_prefix(&start)).map(|value| value.trim().to_owned())
}

struct Event {
    kind: String,
    id: String,
    data: Value,
}

#[track_caller]
fn next(stream: &mut Conn) -> Event {
    let begun = Stopwatch::start();
    // Blocks without an event only change the id.
    let mut block = read_block(stream);
    while field(&block, "event").is_none() {
        assert!(begun.seconds() < PATIENCE_S, "waited in vain for an event; the last block: {block:?}");
        block = read_block(stream);
    }
    let data = field(&block, "data").unwrap();
    Event {
        kind: field(&block, "event").unwrap(),
        id: field(&block, "id").unwrap(),
        data: serde_json::from_str(&data).unwrap(),
    }
}

#[test]
fn every_change_is_sent_in_order_to_the_watchers_of_its_prefix() {
    let gate = TestGate::start();
    let mut api = gate.api();
    let (mut all, _) = watch(&gate, "", &[]);
    let (mut some, _) = watch(&gate, "?prefix=/data/", &[]);
    let lease = acquire(&mut api, "/data/a", "one", 1_000);
    let other = acquire(&mut api, "/logs/a", "two", 1_000);
    let (path, body) = renewal(&lease, 2_000);
    api.post(&path, &body).expect(200);
    api.delete(&format!("/v1/leases/{}", text(&other, "lease_id")), text(&other, "fence_token")).expect(200);
    gate.clock.advance(2_000);
    acquire(&mut api, "/data/a", "three", 1_000);
    api.post("/v1/objects/%2Fdata%2Fa/revoke", &serde_json::json!({ "reason": "test" })).expect(200);
    let seen: Vec<_> = (0..7).map(|_| next(&mut all)).collect();
    let story: Vec<_> = seen
        .iter()
        .map(|event| (event.kind.as_str(), text(&event.data, "object_id"), event.data["lease_seq"].as_u64().unwrap()))
        .collect();
    assert_eq!(
        story,
        [
            ("granted", "/data/a", 1),
            ("granted", "/logs/a", 1),
            ("renewed", "/data/a", 1),
            ("released", "/logs/a", 1),
            ("expired", "/data/a", 1),
            ("granted", "/data/a", 2),
            ("fenced", "/data/a", 2),
        ]
    );
    assert_eq!((text(&seen[6].data, "reason"), seen[6].data["fence"].as_u64()), ("test", Some(3)));
    assert!(seen.iter().all(|event| !event.data.to_string().contains("fg1.")), "no token in an event");
    let ids: Vec<fencegate::fence::Hlc> = seen.iter().map(|event| event.id.parse().unwrap()).collect();
    assert!(ids.is_sorted() && ids.windows(2).all(|pair| pair[0] < pair[1]));
    let kinds: Vec<_> = (0..5).map(|_| next(&mut some).kind).collect();
    assert_eq!(kinds, ["granted", "renewed", "expired", "granted", "fenced"]);
}

#[test]
fn a_watcher_resumes_by_id_and_misses_nothing() {
    let gate = TestGate::start();
    let mut api = gate.api();
    let (stream, start) = watch(&gate, "", &[]);
    drop(stream);
    for n in 0..5 {
        acquire(&mut api, &format!("o{n}"), "me", 1_000);
    }
    let (mut stream, _) = watch(&gate, "", &[("last-event-id", &start)]);
    let first: Vec<_> = (0..3).map(|_| next(&mut stream)).collect();
    let (mut resumed, _) = watch(&gate, &format!("?after={}", first[2].id), &[]);
    let rest: Vec<_> = (0..2).map(|_| text(&next(&mut resumed).data, "object_id").to_owned()).collect();
    assert_eq!(rest, ["o3", "o4"]);
}

#[test]
fn an_id_that_is_no_longer_kept_gets_a_reset() {
    let mut small = settings();
    small.watch.history = 2;
    let gate = TestGate::with(&small);
    let mut api = gate.api();
    let (_stream, start) = watch(&gate, "", &[]);
    for n in 0..5 {
        acquire(&mut api, &format!("o{n}"), "me", 1_000);
    }
    let (mut late, _) = watch(&gate, "", &[("last-event-id", &start)]);
    let reset = next(&mut late);
    assert_eq!(reset.kind, "reset");
    acquire(&mut api, "o9", "me", 1_000);
    assert_eq!(text(&next(&mut late).data, "object_id"), "o9");
    // An id of another run is refused, too.
    let table = gate.stop();
    let mut now = super::support::gate::START;
    now.wall.0 += 60_000;
    let gate = TestGate::on(&small, table, now);
    let (mut stream, _) = watch(&gate, "", &[("last-event-id", &reset.id)]);
    assert_eq!(next(&mut stream).kind, "reset");
}

#[test]
fn a_watcher_of_a_quiet_prefix_can_resume_when_others_have_filled_the_ring() {
    let mut small = settings();
    small.watch.history = 5;
    let gate = TestGate::with(&small);
    let mut api = gate.api();
    let (mut quiet, start) = watch(&gate, "?prefix=/quiet/", &[]);
    let mut last = start;
    for n in 0..12 {
        acquire(&mut api, &format!("/noisy/{n}"), "me", 1_000);
        // Each of these changes the id, without an event.
        let block = read_block(&mut quiet);
        assert_eq!(field(&block, "event"), None);
        last = field(&block, "id").unwrap();
    }
    let (mut resumed, _) = watch(&gate, "?prefix=/quiet/", &[("last-event-id", &last)]);
    acquire(&mut api, "/quiet/1", "me", 1_000);
    assert_eq!(next(&mut resumed).kind, "granted");
}

#[test]
fn an_id_that_is_none_is_refused_and_a_stop_ends_the_stream() {
    let gate = TestGate::start();
    for id in ["x", "1", "-1:0", "01:0"] {
        let refused =
            gate.api().call("GET", "/v1/watch", &[("last-event-id", id)], b"").refusal(400, "REQUEST_INVALID");
        assert_eq!(text(&refused, "field"), "Last-Event-ID");
    }
    let (mut stream, _) = watch(&gate, "", &[]);
    gate.stop();
    let end = std::iter::repeat_with(|| stream.read_line()).take(10).find(Result::is_err);
    assert!(end.is_some(), "the stream is still open");
}

#[test]
fn leases_of_an_earlier_run_are_announced_when_they_expire() {
    let gate = TestGate::start();
    acquire(&mut gate.api(), "users", "a", 10_000);
    let table = gate.stop();
    let gate = TestGate::on(&settings(), table, super::support::gate::START);
    let (mut stream, _) = watch(&gate, "", &[]);
    // No call names the lease: the sweep finds it.
    gate.clock.advance(1_000);
    gate.clock.advance(9_000);
    let event = next(&mut stream);
    assert_eq!((event.kind.as_str(), text(&event.data, "object_id")), ("expired", "users"));
}
