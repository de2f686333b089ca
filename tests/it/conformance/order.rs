//! The order of the checks. If a write has two faults, the answer names the one that is checked first. Every pair of
//! faults that one write can have is tried.

use std::collections::BTreeMap;

use fencegate::table::memory::DiskFault;
use serde_json::{Value, json};

use crate::support::{
    bench::{AWAY, Bench, TTL, small_room},
    gate::{acquire, text},
    http::{Conn, Response},
};

use Fault::*;

/// Defines the faults once: as a type, and as a list in the same order.
macro_rules! faults {
    ($(#[$about:meta])* $($fault:ident),* $(,)?) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        enum Fault {
            $($fault),*
        }

        static FAULTS: [Fault; 23] = [$($fault),*];
    };
}

faults! {
    /// The faults of a write, in the order of the checks: of the request itself, of its token, of the lease, and of the
    /// steps after the verdict.
    UriTooLong,
    HeadersTooLarge,
    BodyTooLarge,
    Upgrade,
    TwoHosts,
    OtherHost,
    Override,
    AmbiguousPath,
    Unmapped,
    NoToken,
    Unreadable,
    OtherObject,
    TableShut,
    ClockUnset,
    Stale,
    Ahead,
    WrongSecret,
    Draining,
    Released,
    Expired,
    NoRoom,
    BodyCut,
    StoreAway,
}

/// Pairs that no write can have.
const IMPOSSIBLE: [(Fault, Fault, &str); 7] = [
    (NoToken, Unreadable, "a token that is not there cannot be unreadable"),
    (NoToken, OtherObject, "a token that is not there names no object"),
    (NoToken, Stale, "a token that is not there has no number"),
    (NoToken, Ahead, "a token that is not there has no number"),
    (NoToken, WrongSecret, "a token that is not there has no secret"),
    (Stale, Ahead, "a number is not below and above the fence at once"),
    (Released, Expired, "a lease ends once"),
];

impl Fault {
    /// The documented answer.
    fn documented(self) -> (u16, &'static str) {
        match self {
            UriTooLong => (414, "REQUEST_LIMIT"),
            HeadersTooLarge => (431, "REQUEST_LIMIT"),
            BodyTooLarge => (413, "REQUEST_LIMIT"),
            Upgrade => (403, "TUNNEL_REFUSED"),
            TwoHosts => (400, "REQUEST_INVALID"),
            OtherHost | AmbiguousPath => (422, "PATH_AMBIGUOUS"),
            Override => (400, "METHOD_OVERRIDE_REFUSED"),
            Unmapped => (422, "OBJECT_UNMAPPED"),
            NoToken => (428, "WRITE_UNFENCED"),
            Unreadable => (400, "FENCE_TOKEN_MALFORMED"),
            OtherObject => (409, "LEASE_OBJECT_MISMATCH"),
            TableShut => (503, "TABLE_UNAVAILABLE"),
            ClockUnset => (503, "CLOCK_UNTRUSTED"),
            Stale => (412, "WRITE_STALE_FENCE"),
            Ahead => (412, "WRITE_FENCE_AHEAD"),
            WrongSecret => (403, "FENCE_TOKEN_INVALID"),
            Draining => (503, "FENCE_DRAINING"),
            Released | Expired => (412, "LEASE_EXPIRED"),
            NoRoom => (503, "GATE_OVERLOADED"),
            BodyCut => (422, "BODY_UNREADABLE"),
            StoreAway => (502, "STORE_UNREACHABLE"),
        }
    }

    /// Whether the fault is in the gate's state, and not in the write.
    fn is_of_the_gate(self) -> bool {
        matches!(self, TableShut | ClockUnset | Draining | Released | Expired | NoRoom | StoreAway)
    }

    /// Whether a refusal shows this fault, also if two faults have one code.
    fn shows_in(self, body: &Value) -> bool {
        match self {
            OtherHost => text(body, "detail").contains("host"),
            AmbiguousPath => !text(body, "detail").contains("host"),
            Released => body["released_at"].is_string(),
            Expired => body["expired_at"].is_string(),
            _ => true,
        }
    }
}

/// A gate in which `users` and `orders` have each been leased twice, with some faults.
struct Scene {
    bench: Bench,
    /// The token of the first lease on `users`.
    stale: String,
    /// The token of the lease on `orders`.
    other: String,
    /// Calls and writes that are still open.
    _open: Vec<Conn>,
}

impl Scene {
    fn with(faults: &[Fault]) -> Self {
        let has = |fault| faults.contains(&fault);
        let mut bench = Bench::with(|settings| {
            settings.gate.body_bytes_max = 1_000;
            if has(NoRoom) {
                small_room(settings);
            }
            if has(StoreAway) {
                settings.store.url = AWAY.to_owned();
            }
        });
        let stale = bench.token().to_owned();
        bench.release(&bench.lease);
        bench.lease = acquire(&mut bench.gate.api(), "users", "a", TTL);
        bench.release(&acquire(&mut bench.gate.api(), "orders", "a", TTL));
        let other = text(&acquire(&mut bench.gate.api(), "orders", "a", TTL), "fence_token").to_owned();
        let mut open = vec![];
        if has(NoRoom) {
            open.push(bench.fill_room("/orders/1", &other));
        }
        if has(Released) {
            bench.release(&bench.lease);
        }
        if has(TableShut) {
            shut(&bench, if has(Draining) { "users" } else { "another" });
        } else if has(Draining) {
            open.push(drain(&bench));
        }
        if has(Expired) {
            bench.gate.clock.advance(TTL);
        }
        if has(ClockUnset) {
            bench.gate.clock.step_wall(i64::MIN);
        }
        Self { bench, stale, other, _open: open }
    }

    fn token(&self, has: &impl Fn(Fault) -> bool) -> String {
        let good: &str = match (has(OtherObject), has(Stale)) {
            (true, _) => &self.other,
            (false, true) => &self.stale,
            (false, false) => self.bench.token(),
        };
        let mut parts: Vec<&str> = good.split('.').collect();
        if has(Stale) {
            parts[1] = "1";
        }
        if has(Ahead) {
            parts[1] = "9";
        }
        if has(WrongSecret) {
            parts[3] = "AAAAAAAAAAAAAAAAAAAAAA";
        }
        if has(Unreadable) {
            parts.push("x");
        }
        parts.join(".")
    }

    fn request(&self, has: &impl Fn(Fault) -> bool) -> String {
        let path = match (has(AmbiguousPath), has(Unmapped)) {
            (false, false) => "/users/1",
            (true, false) => "/users//1",
            (false, true) => "/",
            (true, true) => "//",
        };
        let host = if has(OtherHost) { "http://other" } else { "" };
        let query = if has(UriTooLong) { format!("?pad={}", "x".repeat(9_000)) } else { String::new() };
        let mut lines = vec![format!("PUT {host}{path}{query} HTTP/1.1"), "host: 127.0.0.1".to_owned()];
        if has(HeadersTooLarge) {
            lines.push(format!("x-pad: {}", "x".repeat(40_000)));
        }
        if has(Upgrade) {
            lines.extend(["connection: upgrade".to_owned(), "upgrade: websocket".to_owned()]);
        }
        if has(TwoHosts) {
            lines.push("host: 127.0.0.1".to_owned());
        }
        if has(Override) {
            lines.push("x-http-method-override: DELETE".to_owned());
        }
        if !has(NoToken) {
            lines.push(format!("fence-token: {}", self.token(has)));
        }
        let (length, body) = match (has(BodyTooLarge), has(BodyCut)) {
            (true, true) => (2_000, "half"),
            (true, false) => (2_000, "value"),
            (false, true) => (10, "half"),
            (false, false) => (5, "value"),
        };
        lines.push(format!("content-length: {length}"));
        format!("{}\r\n\r\n{body}", lines.join("\r\n"))
    }

    /// Sends a write with these faults; the gate already has those of them that are in its state.
    fn write(&self, faults: &[Fault]) -> Response {
        let has = |fault| faults.contains(&fault);
        let mut conn = self.bench.gate.gate();
        conn.send_raw(self.request(&has).as_bytes()).unwrap();
        if has(BodyCut) {
            conn.close_write();
        }
        conn.receive().unwrap()
    }

    #[track_caller]
    fn is_answered(&self, fault: Fault, answer: &Response, case: &str) {
        let (status, code) = fault.documented();
        assert_eq!((answer.status, answer.header("fence-error")), (status, Some(code)), "{case}");
        let body = self.bench.refused(answer, status, code);
        assert!(fault.shows_in(&body), "{case}: {body}");
    }
}

/// Shuts the table: an attempt to move the fence of this object fails.
fn shut(bench: &Bench, object: &str) {
    bench.gate.table.fail_next(DiskFault::Sync);
    let path = format!("/v1/objects/{object}/revoke");
    assert_eq!(bench.gate.api().post(&path, &json!({ "reason": "conformance" })).status, 503);
}

/// Begins to move the fence of `users`; the sync is held.
fn drain(bench: &Bench) -> Conn {
    bench.gate.table.hold_syncs();
    let mut api = bench.gate.api();
    let body = json!({ "reason": "conformance" }).to_string();
    let kind = [("content-type", "application/json")];
    api.send("POST", "/v1/objects/users/revoke", &kind, body.as_bytes()).unwrap();
    bench.gate.table.wait_for_held_sync();
    api
}

#[test]
fn each_fault_alone_gets_its_own_answer_and_none_gets_the_stores() {
    for fault in FAULTS {
        let scene = Scene::with(&[fault]);
        scene.is_answered(fault, &scene.write(&[fault]), &format!("{fault:?}"));
    }
    let scene = Scene::with(&[]);
    assert_eq!(scene.write(&[]).status, 200);
    assert_eq!(scene.bench.store.story(), ["PUT /users/1"]);
}

#[test]
fn of_two_faults_the_one_that_is_checked_first_is_answered() {
    let ordered = FAULTS
        .iter()
        .enumerate()
        .flat_map(|(place, &first)| FAULTS[place + 1..].iter().map(move |&second| (first, second)));
    let (impossible, possible): (Vec<_>, Vec<_>) =
        ordered.partition(|pair| IMPOSSIBLE.iter().any(|(first, second, _)| (*first, *second) == *pair));
    // Pairs with the same faults in the gate's state share one gate.
    let mut scenes: BTreeMap<Vec<Fault>, Vec<(Fault, Fault)>> = BTreeMap::new();
    for (first, second) in possible {
        let of_the_gate = [first, second].into_iter().filter(|fault| fault.is_of_the_gate()).collect();
        scenes.entry(of_the_gate).or_default().push((first, second));
    }
    let mut covered = 0;
    for (faults, pairs) in scenes {
        let scene = Scene::with(&faults);
        for (first, second) in pairs {
            let case = format!("{first:?} before {second:?}");
            scene.is_answered(first, &scene.write(&[first, second]), &case);
            println!("{case}: {}", first.documented().1);
            covered += 1;
        }
    }
    for (first, second, why) in IMPOSSIBLE {
        println!("not {first:?} with {second:?}: {why}");
    }
    assert_eq!((covered, impossible.len(), IMPOSSIBLE.len()), (246, 7, 7));
}
