//! Every refusal leaves a receipt. There is one write per kind of refusal. The result of `GET /v1/receipts` is written
//! to `target/artifacts/` and compared with the copy in `artifacts/`.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use fencegate::{
    config::{RouteSettings, StoreOverride},
    table::memory::DiskFault,
    wire::ReceiptBody,
};
use serde_json::{Value, json};

use crate::support::{
    bench::{AWAY, Bench, ROOM, TTL, small_room},
    gate::{START, acquire, text},
    h2::RawH2,
    http::Response,
    until,
};

const ARTIFACT: &str = "artifacts/fencing_rejection_receipts.json";

/// Every code that a writer can get today.
const CODES: [&str; 21] = [
    "BODY_UNREADABLE",
    "CLOCK_UNTRUSTED",
    "FENCE_DRAINING",
    "FENCE_TOKEN_INVALID",
    "FENCE_TOKEN_MALFORMED",
    "GATE_OVERLOADED",
    "GATE_STOPPING",
    "LEASE_EXPIRED",
    "LEASE_OBJECT_MISMATCH",
    "METHOD_OVERRIDE_REFUSED",
    "OBJECT_UNMAPPED",
    "OUTCOME_UNKNOWN",
    "PATH_AMBIGUOUS",
    "REQUEST_INVALID",
    "REQUEST_LIMIT",
    "STORE_UNREACHABLE",
    "TABLE_UNAVAILABLE",
    "TUNNEL_REFUSED",
    "WRITE_FENCE_AHEAD",
    "WRITE_STALE_FENCE",
    "WRITE_UNFENCED",
];

/// The holder that a receipt must name.
#[derive(Clone, Copy, Debug)]
enum Holder {
    Absent,
    Known,
    /// The contract allows both.
    Either,
}

/// A refusal as the writer got it, and the expected content of its receipt.
struct RefusedWrite {
    response: Response,
    code: &'static str,
    /// The route and the object, if they were found.
    target: Option<(&'static str, &'static str)>,
    /// The write's number and the fence, if both were checked.
    numbers: Option<(u64, u64)>,
    holder: Holder,
}

impl RefusedWrite {
    /// A refusal before the gate knows what the request would write.
    fn unread(code: &'static str, response: Response) -> Self {
        Self { response, code, target: None, numbers: None, holder: Holder::Absent }
    }

    fn about(object: &'static str, code: &'static str, response: Response) -> Self {
        Self { response, code, target: Some(("data", object)), numbers: None, holder: Holder::Absent }
    }

    fn numbered(mut self, seq: u64, fence: u64) -> Self {
        self.numbers = Some((seq, fence));
        self
    }

    fn held(mut self, holder: Holder) -> Self {
        self.holder = holder;
        self
    }
}

/// A bench with two routes, one of them to a store that is unreachable; `users` has been leased twice.
struct Story {
    bench: Bench,
    stale: String,
    refused: Vec<RefusedWrite>,
}

fn route(name: &str, store: Option<&str>) -> RouteSettings {
    RouteSettings {
        name: name.to_owned(),
        path: format!("/{name}/{{object}}/{{rest...}}"),
        object: "{object}".to_owned(),
        store: StoreOverride { url: store.map(str::to_owned), ..StoreOverride::default() },
        ..RouteSettings::default()
    }
}

impl Story {
    fn begin() -> Self {
        let mut bench = Bench::with(|settings| {
            settings.route = vec![route("data", None), route("away", Some(AWAY))];
            settings.gate.body_bytes_max = 1_000;
            small_room(settings);
        });
        let stale = bench.token().to_owned();
        bench.release(&bench.lease);
        bench.lease = acquire(&mut bench.gate.api(), "users", "a", TTL);
        Self { bench, stale, refused: vec![] }
    }

    fn put(&self, path: &str, token: &str) -> Response {
        self.bench.put(path, &[("fence-token", token)])
    }

    /// The bench's token with one part replaced.
    fn with_part(&self, place: usize, part: &str) -> String {
        let mut parts: Vec<&str> = self.bench.token().split('.').collect();
        parts[place] = part;
        parts.join(".")
    }

    /// Faults of a request, whatever it would write.
    fn requests(&mut self) {
        let (bench, long) = (&self.bench, "x".repeat(40_000));
        let token = ("fence-token", bench.token());
        let put = |path: &str, header: (&str, &str)| bench.put(path, &[token, header]);
        let none = ("x-none", "");
        let refused = [
            RefusedWrite::unread("REQUEST_LIMIT", put(&format!("/data/users/{}", &long[..9_000]), none)),
            RefusedWrite::unread("REQUEST_LIMIT", put("/data/users/1", ("x-long", &long))),
            RefusedWrite::unread(
                "REQUEST_LIMIT",
                bench.gate.gate().call("PUT", "/data/users/1", &[token], &[b'x'; 1_001]),
            ),
            RefusedWrite::unread("TUNNEL_REFUSED", put("/data/users/1", ("upgrade", "websocket"))),
            RefusedWrite::unread("REQUEST_INVALID", put("/data/users/1", ("host", "other"))),
            RefusedWrite::unread("METHOD_OVERRIDE_REFUSED", put("/data/users/1", ("x-http-method-override", "DELETE"))),
            RefusedWrite::unread("PATH_AMBIGUOUS", put("/data/users/../orders", none)),
            RefusedWrite::unread("OBJECT_UNMAPPED", put("/other/users/1", none)),
        ];
        self.refused.extend(refused);
    }

    /// Faults of a token.
    fn tokens(&mut self) {
        let other = acquire(&mut self.bench.gate.api(), "orders", "a", TTL);
        let (path, malformed) = ("/data/users/1", "FENCE_TOKEN_MALFORMED");
        let refused = [
            RefusedWrite::about("users", "WRITE_UNFENCED", self.bench.put(path, &[])),
            RefusedWrite::about("users", malformed, self.put(path, "nonsense")),
            RefusedWrite::about("users", "LEASE_OBJECT_MISMATCH", self.put(path, text(&other, "fence_token"))),
            RefusedWrite::about("users", "WRITE_STALE_FENCE", self.put(path, &self.stale)).numbered(1, 2),
            RefusedWrite::about("users", "WRITE_FENCE_AHEAD", self.put(path, &self.with_part(1, "9"))).numbered(9, 2),
            RefusedWrite::about(
                "users",
                "FENCE_TOKEN_INVALID",
                self.put(path, &self.with_part(3, "AAAAAAAAAAAAAAAAAAAAAA")),
            ),
        ];
        self.refused.extend(refused);
    }

    /// Faults of a write that was admitted.
    fn admitted(&mut self) {
        let bench = &self.bench;
        let token = ("fence-token", bench.token());
        let mut cut = bench.gate.gate();
        let head = format!("PUT /data/users/1 HTTP/1.1\r\nhost: x\r\nfence-token: {}\r\n", bench.token());
        cut.send_raw(format!("{head}content-length: 10\r\n\r\nhalf").as_bytes()).unwrap();
        cut.close_write();
        let cut = cut.receive().unwrap();
        let mut full = bench.fill_room("/data/users/1", bench.token());
        let crowded = bench.put("/data/users/1", &[token]);
        full.send_raw(&[b'x'; ROOM]).unwrap();
        assert_eq!(full.receive().unwrap().status, 200);
        let unknown = bench.put("/data/users/1", &[token, ("x-store", "reset")]);
        let mut away = RefusedWrite::about("users", "STORE_UNREACHABLE", bench.put("/away/users/1", &[token]));
        away.target = Some(("away", "users"));
        let refused = [
            RefusedWrite::about("users", "BODY_UNREADABLE", cut).held(Holder::Known),
            RefusedWrite::about("users", "GATE_OVERLOADED", crowded).held(Holder::Either),
            RefusedWrite::about("users", "OUTCOME_UNKNOWN", unknown).held(Holder::Known),
            away.held(Holder::Known),
        ];
        self.refused.extend(refused);
    }

    /// Faults of a lease or of the gate; the last of them cannot be undone.
    fn leases(&mut self) {
        let bench = &self.bench;
        let mut api = bench.gate.api();
        let [moving, back, short] = [("moving", TTL), ("given-back", TTL), ("short", 1_000)]
            .map(|(object, ttl)| acquire(&mut api, object, "a", ttl));
        let put = |path: &str, lease: &Value| bench.put(path, &[("fence-token", text(lease, "fence_token"))]);
        let reason = json!({ "reason": "conformance" });
        bench.gate.table.hold_syncs();
        let kind = [("content-type", "application/json")];
        api.send("POST", "/v1/objects/moving/revoke", &kind, reason.to_string().as_bytes()).unwrap();
        bench.gate.table.wait_for_held_sync();
        let draining = put("/data/moving/1", &moving);
        bench.gate.table.release_syncs();
        assert_eq!(api.receive().unwrap().status, 200);
        bench.release(&back);
        let released = put("/data/given-back/1", &back);
        bench.gate.clock.advance(1_000);
        let expired = put("/data/short/1", &short);
        bench.gate.clock.step_wall(i64::MIN);
        let unset = put("/data/users/1", &bench.lease);
        bench.gate.clock.step_wall(i64::try_from(START.wall.0).unwrap());
        bench.gate.table.fail_next(DiskFault::Sync);
        assert_eq!(api.post("/v1/objects/another/revoke", &reason).status, 503);
        let shut = put("/data/users/1", &bench.lease);
        let refused = [
            RefusedWrite::about("moving", "FENCE_DRAINING", draining).held(Holder::Either),
            RefusedWrite::about("given-back", "LEASE_EXPIRED", released).numbered(1, 1).held(Holder::Known),
            RefusedWrite::about("short", "LEASE_EXPIRED", expired).numbered(1, 1).held(Holder::Known),
            RefusedWrite::about("users", "CLOCK_UNTRUSTED", unset),
            RefusedWrite::about("users", "TABLE_UNAVAILABLE", shut),
        ];
        self.refused.extend(refused);
    }

    /// Plays all refusals. Returns the receipts that the api then shows, newest first.
    fn tell() -> (Self, Vec<Value>) {
        let mut story = Self::begin();
        story.requests();
        story.tokens();
        story.admitted();
        story.leases();
        let shown = story.bench.gate.api().get("/v1/receipts").expect(200);
        let receipts = shown["receipts"].as_array().unwrap().clone();
        (story, receipts)
    }
}

/// The receipt of a write that came while the gate was stopping. Its api is closed by then, so the receipt is read from
/// memory.
fn while_stopping() -> Value {
    let bench = Bench::with(|settings| settings.store.response_timeout_ms = 60_000);
    let head = [(":method", "PUT"), (":scheme", "http"), (":authority", "x"), (":path", "/users/1")];
    let write = [&head[..], &[("fence-token", bench.token()), ("x-store", "hang")]].concat();
    let mut raw = RawH2::open(bench.gate.running().listens);
    raw.send_headers(1, &write, true);
    until("the store has the first", || bench.store.story() == ["PUT /users/1"]);
    let gate = &bench.gate.running().gate;
    gate.stopping.send_replace(true);
    raw.expect_goodbye();
    raw.send_headers(3, &write, true);
    let body: Value = serde_json::from_slice(&raw.expect_body(3)).unwrap();
    let receipts = gate.receipts.list();
    assert_eq!(receipts.len(), 1);
    let receipt = serde_json::to_value(ReceiptBody::new(receipts[0].0.clone(), &receipts[0].1)).unwrap();
    assert_eq!((text(&receipt, "error"), &receipt["receipt_id"]), ("GATE_STOPPING", &body["receipt_id"]));
    receipt
}

#[track_caller]
fn check(refused: &RefusedWrite, receipt: &Value) {
    let RefusedWrite { response, code, target, numbers, holder } = refused;
    let mut names: Vec<&str> = receipt.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    let wanted =
        ["current_fence_seq", "error", "holder_id", "object_id", "receipt_id", "route", "timestamp", "write_seq"];
    assert_eq!(names, wanted, "{receipt}");
    assert_eq!(response.header("fence-error"), Some(*code));
    assert_eq!((text(receipt, "error"), &receipt["receipt_id"]), (*code, &response.json()["receipt_id"]));
    assert_eq!((receipt["route"].as_str(), receipt["object_id"].as_str()), target.unzip(), "{receipt}");
    for name in ["write_seq", "current_fence_seq"] {
        assert!(receipt[name].is_u64() || receipt[name].is_null(), "{receipt}");
    }
    if let Some((seq, fence)) = numbers {
        assert_eq!((&receipt["write_seq"], &receipt["current_fence_seq"]), (&json!(seq), &json!(fence)), "{receipt}");
    }
    match (holder, receipt["holder_id"].as_str()) {
        (Holder::Absent | Holder::Either, None) | (Holder::Known | Holder::Either, Some("a")) => {}
        (holder, found) => panic!("{holder:?}, and not {found:?}: {receipt}"),
    }
    let timestamp = text(receipt, "timestamp");
    assert!(timestamp.parse::<jiff::Timestamp>().is_ok(), "{receipt}");
    assert!(timestamp.len() == "2027-01-15T08:00:00.000Z".len() && timestamp.ends_with('Z'), "{receipt}");
}

#[test]
fn every_refusal_leaves_a_receipt_that_says_what_it_was_about() {
    let (story, receipts) = Story::tell();
    assert_eq!(receipts.len(), story.refused.len(), "one each");
    let ids: BTreeSet<&str> = receipts.iter().map(|receipt| text(receipt, "receipt_id")).collect();
    assert_eq!(ids.len(), receipts.len(), "each has an id of its own");
    // The writers did not get their refusals in this order, so each receipt is found by its id.
    for refused in &story.refused {
        let id = &refused.response.json()["receipt_id"];
        let receipt = receipts.iter().find(|receipt| receipt["receipt_id"] == *id);
        check(refused, receipt.unwrap_or_else(|| panic!("no receipt {id} of {}", refused.code)));
    }
    let secrets = [story.bench.token(), story.stale.as_str()].map(|token| token.rsplit('.').next().unwrap());
    let shown = Value::from(receipts).to_string();
    assert!(secrets.iter().all(|secret| !shown.contains(*secret)), "no secret is in them");
    assert_eq!(story.bench.store.story().len(), 2, "the one that was let in, and the one of unknown outcome");
}

fn in_the_checkout(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The receipts without the fields that differ from run to run.
fn masked(mut receipts: Value) -> Value {
    for receipt in receipts["receipts"].as_array_mut().unwrap() {
        for name in ["receipt_id", "timestamp"] {
            assert!(receipt[name].is_string(), "{receipt}");
            receipt[name] = json!("***");
        }
    }
    receipts
}

#[test]
fn the_receipts_of_all_codes_are_as_committed() {
    let (_story, mut receipts) = Story::tell();
    receipts.insert(0, while_stopping());
    let codes: BTreeSet<&str> = receipts.iter().map(|receipt| text(receipt, "error")).collect();
    assert_eq!(codes, BTreeSet::from(CODES), "one of every code, and none besides");
    let seen = json!({ "receipts": receipts });
    let fresh = in_the_checkout("target").join(ARTIFACT);
    fs::create_dir_all(fresh.parent().unwrap()).unwrap();
    fs::write(&fresh, serde_json::to_string_pretty(&seen).unwrap() + "\n").unwrap();
    let advice = format!("if this is meant, copy target/{ARTIFACT} over {ARTIFACT}");
    let committed = fs::read_to_string(in_the_checkout(ARTIFACT)).unwrap_or_else(|error| panic!("{error}; {advice}"));
    let committed: Value = serde_json::from_str(&committed).unwrap();
    assert_eq!(masked(seen), masked(committed), "{advice}");
}
