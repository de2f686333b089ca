//! Journals: a hash chain over settled writes, which anyone can compute again.

use fencegate::{api::journal::JournalBody, fence::LeaseSeq, table::ledger::journal::chain};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{TestGate, USERS, World};
use crate::support::{gate::START, until};

const JOURNAL: &str = "/v1/objects/%2Fdata%2Fusers%2F/journal";

fn journal(gate: &TestGate, query: &str) -> JournalBody {
    serde_json::from_value(gate.api().get(&format!("{JOURNAL}{query}")).expect(200)).unwrap()
}

/// Computes the chain from the entries alone.
fn recompute(body: &JournalBody) -> String {
    let mut hash = [0; 32];
    for entry in &body.entries {
        hash = chain(&hash, entry.lease_seq.and_then(LeaseSeq::new), &entry.wrote().unwrap());
        assert_eq!(entry.hash, fencegate::authority::json::hash_text(&hash), "entry {}", entry.number);
    }
    fencegate::authority::json::hash_text(&hash)
}

fn sha256(body: &[u8]) -> String {
    Sha256::digest(body).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn settled_writes_are_chained_with_the_digests_of_their_bodies() {
    let world = World::with(|settings| settings.gate.hold_bytes = 1_000);
    let london = world.london();
    let token = london["fence_token"].as_str().unwrap();
    assert_eq!(world.api().get(JOURNAL).expect(200)["writes"], 0);
    let put = |path: &str, body: &[u8], more: &[(&str, &str)]| {
        let headers = [&[("fence-token", token)], more].concat();
        world.gate.gate().call("PUT", path, &headers, body)
    };
    let long = vec![b'x'; 100_000];
    assert_eq!(put("/data/users/1?v=2", b"short", &[]).status, 200);
    assert_eq!(put("/data/users/2", b"", &[]).status, 200);
    assert_eq!(put("/data/users/3", &long, &[]).status, 200, "streamed");
    assert_eq!(put("/data/users/4", b"refused by the store", &[("x-store", "409")]).status, 409);
    assert_eq!(put("/data/users/5", b"with a long answer", &[("x-store", "large:200000")]).status, 200);
    // The digest is over the data, not over the chunks.
    let mut chunked = world.gate.gate();
    let head =
        format!("PUT /data/users/6 HTTP/1.1\r\nhost: x\r\nfence-token: {token}\r\ntransfer-encoding: chunked\r\n\r\n");
    chunked.send_raw(format!("{head}3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n").as_bytes()).unwrap();
    assert_eq!(chunked.receive().unwrap().status, 200);
    assert_eq!(world.gate.gate().get("/data/users/1").status, 200);
    until("the long answer's write is written down, too", || journal(&world.gate, "").writes == 6);
    let body = journal(&world.gate, "");
    assert_eq!(recompute(&body), body.state_hash);
    let mut entries: Vec<(String, String, u16)> = body
        .entries
        .iter()
        .map(|entry| (entry.target.clone().unwrap(), entry.body_sha256.clone().unwrap(), entry.status.unwrap()))
        .collect();
    entries.sort();
    let expected: [(&str, &[u8], u16); 6] = [
        ("/data/users/1?v=2", b"short", 200),
        ("/data/users/2", b"", 200),
        ("/data/users/3", &long, 200),
        ("/data/users/4", b"refused by the store", 409),
        ("/data/users/5", b"with a long answer", 200),
        ("/data/users/6", b"abcde", 200),
    ];
    for ((target, digest, status), (path, body, answered)) in entries.iter().zip(expected) {
        assert_eq!((target.as_str(), digest.as_str(), *status), (path, sha256(body).as_str(), answered));
    }
    let page = journal(&world.gate, "?after=2&limit=3");
    assert_eq!(page.entries.iter().map(|entry| entry.number).collect::<Vec<_>>(), [3, 4, 5]);
    assert_eq!((page.next_after, page.trimmed), (Some(5), false));
    // A refused write makes no entry, and other objects have their own journals.
    world.gate.gate().call("PUT", "/data/users/1", &[], b"x").refusal(428, "WRITE_UNFENCED");
    assert_eq!(journal(&world.gate, "").writes, 6);
}

#[test]
fn an_answer_waits_until_its_write_is_written_down() {
    let world = World::new();
    let london = world.london();
    world.gate.table.hold_syncs();
    let mut writer = world.gate.gate();
    writer.send("PUT", "/data/users/1", &[("fence-token", london["fence_token"].as_str().unwrap())], b"x").unwrap();
    world.gate.table.wait_for_held_sync();
    assert_eq!(world.store.story(), ["PUT /data/users/1"], "the store has answered");
    // The table that a crash at this moment would leave has no such entry, and the client has no answer.
    let left = TestGate::on(&world.settings, world.gate.table.after_a_crash().into(), START);
    assert_eq!(journal(&left, "").writes, 0);
    world.gate.table.release_syncs();
    let answer = writer.receive().unwrap();
    assert_eq!((answer.status, answer.header("fence-outcome")), (200, Some("settled")));
    let left = TestGate::on(&world.settings, world.gate.table.after_a_crash().into(), START);
    assert_eq!(journal(&left, "").writes, 1);
}

/// The same holds for an answer that is too long to be read ahead: its end is held back.
#[test]
fn the_end_of_a_long_answer_waits_until_its_write_is_written_down() {
    let world = World::new();
    let london = world.london();
    world.gate.table.hold_syncs();
    let mut writer = world.gate.gate();
    let token = london["fence_token"].as_str().unwrap();
    writer.send("PUT", "/data/users/1", &[("fence-token", token), ("x-store", "large:200000")], b"x").unwrap();
    let (status, headers) = writer.read_head().unwrap();
    let outcome = headers.iter().find(|(name, _)| name == "fence-outcome").map(|(_, value)| value.as_str());
    assert_eq!((status, outcome), (200, Some("pending")));
    world.gate.table.wait_for_held_sync();
    let reader = writer.another_handle();
    reader.set_read_timeout(Some(std::time::Duration::from_millis(300))).unwrap();
    assert!(writer.read_exactly(200_000).is_err(), "all of it came before its write was durable");
    world.gate.table.release_syncs();
    until("it is written down", || journal(&world.gate, "").writes == 1);
}

/// The very first write of an object may be on its way when the gate is killed.
#[test]
fn a_first_write_that_a_kill_swallowed_is_a_gap() {
    let world = World::new();
    let london = world.london();
    let hung = world.hung_write(&london);
    let again = TestGate::on(&world.settings, world.gate.table.after_a_crash().into(), START);
    let sent = world.europe.certificate(USERS, "london-1", 1, &super::time(5), Value::Null);
    let acknowledged = again.api().post("/v1/fences", &sent).expect(200)["acknowledged"].clone();
    assert_eq!(acknowledged["writes"], 1, "{acknowledged}");
    assert_eq!(journal(&again, "").entries[0].outcome, "gap");
    hung.let_go();
}

#[test]
fn a_write_that_cannot_be_written_down_is_of_unknown_outcome() {
    let world = World::new();
    let london = world.london();
    world.gate.table.fail_next(fencegate::table::memory::DiskFault::Write);
    world.put("/data/users/1", &london).unknown();
    assert_eq!(world.store.story(), ["PUT /data/users/1"]);
}

/// The ledger has the write's entry and writes it once the disk goes on: it is the write's only entry.
#[test]
fn a_write_whose_line_waits_for_a_disk_that_stands_still_is_one_entry() {
    for how in ["200", "large:200000"] {
        let world = World::with(|settings| settings.table.stall_timeout_ms = 400);
        let london = world.london();
        let token = london["fence_token"].as_str().unwrap();
        world.gate.table.hold_syncs();
        let mut writer = world.gate.gate();
        writer.send("PUT", "/data/users/1", &[("fence-token", token), ("x-store", how)], b"x").unwrap();
        if how == "200" {
            writer.receive().unwrap().unknown();
        } else {
            writer.read_head().unwrap();
            assert!(writer.read_exactly(200_000).is_err(), "its end came before it was written down");
        }
        until("it is over", || world.gate.running().gate.records.stripes.is_idle());
        world.gate.table.release_syncs();
        assert_eq!(world.put("/data/users/2", &london).status, 200, "{how}");
        let body = journal(&world.gate, "");
        let entries: Vec<_> = body.entries.iter().map(|entry| (entry.target.as_deref(), &*entry.outcome)).collect();
        assert_eq!(entries, [(Some("/data/users/1"), "settled"), (Some("/data/users/2"), "settled")], "{how}");
        assert_eq!(recompute(&body), body.state_hash);
    }
}

#[test]
fn what_cannot_be_known_is_in_the_chain() {
    let world = World::new();
    let london = world.london();
    let token = london["fence_token"].as_str().unwrap();
    let put = |gate: &TestGate, path: &str, store: &str| {
        gate.gate().call("PUT", path, &[("fence-token", token), ("x-store", store)], b"x")
    };
    assert_eq!(put(&world.gate, "/data/users/1", "200").status, 200);
    put(&world.gate, "/data/users/2", "close").unknown();
    assert_eq!(put(&world.gate, "/data/users/3", "503").header("fence-outcome"), Some("unknown"));
    until("all are written down", || journal(&world.gate, "").writes == 3);
    let outcomes = |body: &JournalBody| body.entries.iter().map(|entry| entry.outcome.clone()).collect::<Vec<_>>();
    assert_eq!(outcomes(&journal(&world.gate, "")), ["settled", "unknown", "unknown"]);
    // A gate that was killed may have sent writes that have no entry.
    let again = TestGate::on(&world.settings, world.gate.table.after_a_crash().into(), START);
    assert_eq!(put(&again, "/data/users/4", "200").status, 200);
    let body = journal(&again, "");
    assert_eq!(outcomes(&body), ["settled", "unknown", "unknown", "gap", "settled"]);
    assert_eq!(recompute(&body), body.state_hash);
    // A gate that was stopped in good order has not.
    let table = again.stop();
    let third = TestGate::on(&world.settings, table, START);
    assert_eq!(put(&third, "/data/users/5", "200").status, 200);
    assert_eq!(outcomes(&journal(&third, "")).len(), 6);
}

#[test]
fn the_oldest_entries_go_and_the_hash_stays() {
    let world = World::with(|settings| settings.journal.keep = 3);
    let london = world.london();
    for n in 1..=5 {
        assert_eq!(world.put(&format!("/data/users/{n}"), &london).status, 200);
    }
    let body = journal(&world.gate, "");
    assert_eq!((body.writes, body.trimmed), (5, true));
    assert_eq!(body.entries.iter().map(|entry| entry.number).collect::<Vec<_>>(), [3, 4, 5]);
    assert_eq!(body.entries.last().unwrap().hash, body.state_hash);
    assert!(!journal(&world.gate, "?after=2").trimmed);
    let beyond = journal(&world.gate, "?after=5");
    assert_eq!((beyond.entries.len(), beyond.trimmed), (0, false));
}

#[test]
fn without_a_journal_there_is_none_and_a_table_checks_those_that_are() {
    let world = World::with(|settings| settings.route[0].journal = false);
    let london = world.london();
    assert_eq!(world.put("/data/users/1", &london).status, 200);
    let refused = world.api().get(JOURNAL).refusal(404, "JOURNAL_OFF");
    assert_eq!(refused["object_id"], USERS);
    let audit = World::with(|_| {}).settings.clone();
    let mut audit = audit;
    audit.route[0].mode = fencegate::config::Mode::Audit;
    let faults = fencegate::route::Routes::new(&audit).unwrap_err();
    assert_eq!(faults[0].key, "route[0].journal");
    assert_eq!(json!(faults.len()), Value::from(1));
}
