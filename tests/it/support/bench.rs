//! A gate in this process, a recording store behind it in another process, and one lease.

use fencegate::config::Settings;
use serde_json::Value;

use super::{
    gate::{TestGate, acquire, settings, text},
    h2::H2,
    http::{Conn, Response},
    store::Store,
};

/// An address where no server listens.
pub const AWAY: &str = "http://127.0.0.1:1";
/// How long the bench's lease lasts.
pub const TTL: u64 = 60_000;
/// The room for bodies after [`small_room`].
pub const ROOM: usize = 64;

/// Driven clocks jump; with these timeouts no connection is closed for that.
const DAY: u64 = 86_400_000;

/// Room for one body at a time: see [`Bench::fill_room`].
pub fn small_room(settings: &mut Settings) {
    settings.gate.hold_bytes = ROOM;
    settings.gate.hold_total_bytes = ROOM;
}

pub struct Bench {
    pub store: Store,
    pub gate: TestGate,
    /// On `users`, held by `a`.
    pub lease: Value,
}

impl Bench {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let store = Store::start();
        let mut settings = settings();
        settings.store.url = store.url();
        settings.gate.head_timeout_ms = DAY;
        settings.gate.idle_timeout_ms = DAY;
        change(&mut settings);
        let gate = TestGate::with(&settings);
        let lease = acquire(&mut gate.api(), "users", "a", TTL);
        Self { store, gate, lease }
    }

    pub fn token(&self) -> &str {
        text(&self.lease, "fence_token")
    }

    #[track_caller]
    pub fn call(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Response {
        // A read has no body.
        let body: &[u8] = if matches!(method, "GET" | "HEAD" | "OPTIONS") { b"" } else { b"value" };
        self.gate.gate().call(method, path, headers, body)
    }

    #[track_caller]
    pub fn put(&self, path: &str, headers: &[(&str, &str)]) -> Response {
        self.call("PUT", path, headers)
    }

    /// Sends bytes unchanged.
    #[track_caller]
    pub fn raw(&self, request: &[u8]) -> Response {
        let mut conn = self.gate.gate();
        conn.send_raw(request).unwrap();
        conn.receive().unwrap()
    }

    /// An HTTP/2 connection.
    pub fn h2(&self) -> H2 {
        H2::open(self.gate.running().listens)
    }

    /// Checks a refusal: the store saw nothing, and the answer has no secret.
    #[track_caller]
    pub fn refused(&self, answer: &Response, status: u16, code: &str) -> Value {
        let body = answer.refusal(status, code);
        assert_eq!(self.store.saw("begun"), 0, "the store got something");
        assert!(body["receipt_id"].is_string(), "{body}");
        assert_eq!(answer.header("retry-after").is_some(), body["retryable"] == true, "{body}");
        let secret = self.token().rsplit('.').next().unwrap();
        assert!(!body.to_string().contains(secret), "{body}");
        body
    }

    /// Checks a bare 400 of hyper for bytes that are not HTTP. The store saw nothing of it.
    #[track_caller]
    pub fn turned_away(&self, answer: &Response) {
        assert_eq!((answer.status, answer.header("fence-error")), (400, None));
        assert_eq!(self.store.saw("begun"), 0, "the store got something");
    }

    /// A write whose body takes all the room and does not end: no other body gets room while the connection is open.
    #[track_caller]
    pub fn fill_room(&self, path: &str, token: &str) -> Conn {
        let mut conn = self.gate.gate();
        let head = format!(
            "PUT {path} HTTP/1.1\r\nhost: x\r\nfence-token: {token}\r\nexpect: 100-continue\r\ncontent-length: {ROOM}\r\n\r\n"
        );
        conn.send_raw(head.as_bytes()).unwrap();
        assert_eq!(conn.read_head().unwrap().0, 100, "the body is asked for once there is room for it");
        conn
    }

    /// Gives a lease back.
    #[track_caller]
    pub fn release(&self, lease: &Value) {
        let path = format!("/v1/leases/{}", text(lease, "lease_id"));
        self.gate.api().delete(&path, text(lease, "fence_token")).expect(200);
    }
}

impl Drop for Bench {
    /// Lets the gate's threads end: one program has many benches.
    fn drop(&mut self) {
        self.gate.table.release_syncs();
        self.gate.table.release_reads();
        self.gate.running().gate.stopping.send_replace(true);
    }
}
