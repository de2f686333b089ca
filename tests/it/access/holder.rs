//! Routes with `bind_holder`: a token is of no use to another client than its holder.

use std::path::PathBuf;

use fencegate::config::{GrantSettings, LeaseSource, Mode, RouteSettings, Settings};
use serde_json::Value;

use super::{World, grant};
use crate::support::{
    gate::{acquire, text},
    http::{Conn, Response},
    store::Store,
};

const OBJECT: &str = "users";

pub(super) struct Bound {
    pub(super) world: World,
    pub(super) store: Store,
}

/// How the clients of the gate's port can prove who they are.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum By {
    Bearer,
    Certificate,
}

fn bind(settings: &mut Settings) {
    settings.route = vec![RouteSettings { name: "bound".to_owned(), bind_holder: true, ..RouteSettings::default() }];
    settings.route[0].path = "/{object}/{rest...}".to_owned();
    settings.route[0].object = "{object}".to_owned();
}

impl Bound {
    pub(super) fn with(by: By, grants: Vec<GrantSettings>, change: impl FnOnce(&mut Settings)) -> Self {
        let store = Store::start();
        let world = World::with(grants, |settings| {
            settings.store.url = store.url();
            bind(settings);
            if by == By::Certificate {
                settings.gate.tls_cert_file = settings.api.tls_cert_file.clone();
                settings.gate.tls_key_file = settings.api.tls_key_file.clone();
                settings.gate.tls_client_ca_file = settings.api.tls_client_ca_file.clone();
            }
            change(settings);
        });
        Self { world, store }
    }

    fn new(by: By) -> Self {
        Self::with(by, vec![grant("red", "red", &["users"]), grant("blue", "blue", &["users"])], |_| {})
    }

    /// A lease of the object in a principal's name.
    fn lease(&mut self, principal: &str) -> (Value, String) {
        let bearer = self.world.token(principal);
        (acquire(&mut self.world.bearing(&bearer), OBJECT, principal, 60_000), bearer)
    }

    fn shows(&self, certificate: &(PathBuf, PathBuf)) -> Conn {
        Conn::tls(self.world.gate.running().listens, "gate.test", &self.world.authority.ca(), Some(certificate))
            .unwrap()
    }

    fn put(&self, token: &str, bearer: Option<&str>) -> Response {
        let value = bearer.map(|bearer| format!("Bearer {bearer}"));
        let mut headers = vec![("fence-token", token)];
        headers.extend(value.as_deref().map(|value| ("fence-identity", value)));
        self.world.gate.gate().call("PUT", "/users/1", &headers, b"value")
    }

    /// How many writes the store has seen begin.
    pub(super) fn begun(&self) -> usize {
        self.store.saw("begun")
    }
}

#[test]
fn a_stolen_token_is_of_no_use_by_bearer() {
    let mut bound = Bound::new(By::Bearer);
    let (lease, red) = bound.lease("red");
    let blue = bound.world.token("blue");
    let token = text(&lease, "fence_token");
    let without = bound.put(token, None);
    without.refusal(401, "IDENTITY_REQUIRED");
    assert_eq!(without.header("www-authenticate"), Some("Bearer realm=\"fencegate\""));
    for bad in ["", "x", &red[..red.len() - 1], "fga1.x.y"] {
        bound.put(token, Some(bad)).refusal(401, "IDENTITY_REQUIRED");
    }
    let denied = bound.put(token, Some(&blue)).refusal(403, "ACCESS_DENIED");
    assert!(
        denied["fence"].is_null() && denied["lease_seq"].is_null() && !denied.to_string().contains("red"),
        "{denied}"
    );
    assert_eq!(bound.begun(), 0, "nothing has reached the store");
    let settled = bound.put(token, Some(&red));
    assert_eq!((settled.status, settled.header("fence-outcome")), (200, Some("settled")));
    let seen = bound.store.applied();
    assert!(!seen[0].to_string().contains(&red), "the store gets no bearer token: {}", seen[0]);
}

#[test]
fn a_stolen_token_is_of_no_use_by_certificate() {
    let mut bound = Bound::new(By::Certificate);
    let (lease, red) = bound.lease("red");
    let token = text(&lease, "fence_token").to_owned();
    let by = |name: &str| bound.shows(&bound.world.authority.sign(name));
    let put = |mut gate: Conn| gate.call("PUT", "/users/1", &[("fence-token", &token)], b"value");
    put(by("blue")).refusal(403, "ACCESS_DENIED");
    assert_eq!(bound.begun(), 0);
    assert_eq!(put(by("red")).status, 200);
    // One connection, write after write.
    let mut gate = by("red");
    for _ in 0..3 {
        assert_eq!(gate.call("PUT", "/users/1", &[("fence-token", &token)], b"value").status, 200);
    }
    // The bearer token names the holder, and comes first in the file.
    let bearer = format!("Bearer {red}");
    let both = by("blue").call("PUT", "/users/1", &[("fence-token", &token), ("fence-identity", &bearer)], b"value");
    assert_eq!(both.status, 200);
}

#[test]
fn the_refusal_comes_before_the_body_is_asked_for_and_leaves_a_receipt() {
    let mut bound = Bound::new(By::Bearer);
    let (lease, _) = bound.lease("red");
    let blue = bound.world.token("blue");
    let token = text(&lease, "fence_token");
    for (identity, code) in
        [(String::new(), "IDENTITY_REQUIRED"), (format!("fence-identity: Bearer {blue}\r\n"), "ACCESS_DENIED")]
    {
        let mut gate = bound.world.gate.gate();
        let head = format!(
            "PUT /users/1 HTTP/1.1\r\nhost: gate\r\nfence-token: {token}\r\n{identity}content-length: 100000\r\nexpect: 100-continue\r\n\r\n"
        );
        gate.send_raw(head.as_bytes()).unwrap();
        let answer = gate.receive().unwrap();
        assert_eq!(answer.header("fence-error"), Some(code), "{answer:?}");
    }
    let receipts = bound.world.shows(None).get("/v1/receipts").expect(200);
    let codes: Vec<_> = receipts["receipts"].as_array().unwrap().iter().map(|each| text(each, "error")).collect();
    assert_eq!(codes, ["ACCESS_DENIED", "IDENTITY_REQUIRED"]);
    assert_eq!(text(&receipts["receipts"][0], "object_id"), OBJECT);
}

#[test]
fn a_client_learns_nothing_of_an_object_that_it_may_not_read() {
    let mut bound = Bound::new(By::Bearer);
    let (lease, red) = bound.lease("red");
    let stranger = bound.world.token("stranger");
    let fresh = "fg1.1.dXNlcnM.AAAAAAAAAAAAAAAAAAAAAA";
    let there = bound.put(fresh, Some(&stranger)).refusal(403, "ACCESS_DENIED");
    let gone = bound.world.gate.gate().call(
        "PUT",
        "/nobody/1",
        &[("fence-token", fresh), ("fence-identity", &format!("Bearer {stranger}"))],
        b"value",
    );
    let gone = gone.refusal(403, "ACCESS_DENIED");
    for name in ["detail", "fence", "lease_seq", "title", "retryable"] {
        assert_eq!(there[name], gone[name], "{name}");
    }
    // A client that may read it learns what is wrong with its token.
    let token = text(&lease, "fence_token");
    bound.put(&token.replace("fg1.1.", "fg1.9."), Some(&red)).refusal(412, "WRITE_FENCE_AHEAD");
}

#[test]
fn a_right_that_is_taken_away_ends_writes_too_and_reads_need_no_identity() {
    let mut bound = Bound::new(By::Bearer);
    let (lease, red) = bound.lease("red");
    let token = text(&lease, "fence_token").to_owned();
    assert_eq!(bound.put(&token, Some(&red)).status, 200);
    assert_eq!(bound.world.gate.gate().get("/users/1").status, 200);
    bound.world.reload(vec![]);
    bound.put(&token, Some(&red)).refusal(403, "ACCESS_DENIED");
    bound.world.reload(vec![grant("red", "red", &["users"])]);
    assert_eq!(bound.put(&token, Some(&red)).status, 200, "the lease is still there");
    // A revoked bearer token is refused with the next write.
    bound.world.rows.token.clear();
    bound.world.write_tokens();
    bound.put(&token, Some(&red)).refusal(401, "IDENTITY_REQUIRED");
}

#[test]
fn a_copy_to_another_object_needs_the_holder_of_both() {
    let grants = vec![grant("all", "*", &["*"])];
    let mut bound = Bound::with(By::Bearer, grants, |_| {});
    let (red, blue) = (bound.world.token("red"), bound.world.token("blue"));
    let own = acquire(&mut bound.world.bearing(&red), "users", "red", 60_000);
    let other = acquire(&mut bound.world.bearing(&blue), "orders", "blue", 60_000);
    let tokens = format!("{}, {}", text(&own, "fence_token"), text(&other, "fence_token"));
    for bearer in [&red, &blue] {
        let identity = format!("Bearer {bearer}");
        let headers = [("fence-token", tokens.as_str()), ("fence-identity", &identity), ("destination", "/orders/1")];
        bound.world.gate.gate().call("MOVE", "/users/1", &headers, b"").refusal(403, "ACCESS_DENIED");
    }
    assert_eq!(bound.begun(), 0);
}

#[test]
fn a_kept_answer_is_for_a_holder_only() {
    let mut bound = Bound::new(By::Bearer);
    let (lease, red) = bound.lease("red");
    let blue = bound.world.token("blue");
    let token = text(&lease, "fence_token").to_owned();
    let put = |bearer: &str| {
        let identity = format!("Bearer {bearer}");
        let headers = [("fence-token", token.as_str()), ("fence-identity", &identity), ("idempotency-key", "\"k-1\"")];
        bound.world.gate.gate().call("PUT", "/users/1", &headers, b"value")
    };
    assert_eq!(put(&red).status, 200);
    let again = put(&red);
    assert_eq!((again.status, again.header("idempotency-replayed")), (200, Some("true")));
    put(&blue).refusal(403, "ACCESS_DENIED");
    bound.world.gate.clock.advance(120_000);
    put(&blue).refusal(412, "LEASE_EXPIRED");
    assert_eq!(bound.begun(), 1);
}

#[test]
fn settings_that_could_not_hold_are_refused() {
    let faults = |change: &dyn Fn(&mut Settings)| {
        let world = World::new(vec![]);
        let mut settings = world.settings.clone();
        bind(&mut settings);
        change(&mut settings);
        settings.all_faults().into_iter().map(|fault| fault.key).collect::<Vec<_>>()
    };
    assert_eq!(faults(&|_| {}), Vec::<String>::new());
    assert_eq!(faults(&|settings| settings.identity.clear()), ["route[0].bind_holder"]);
    assert_eq!(faults(&|settings| settings.route[0].mode = Mode::Audit), ["route[0].bind_holder"]);
    let outside = faults(&|settings| {
        settings.route[0].lease_source = LeaseSource::External;
        settings.route[0].token_header = "x-lock".to_owned();
    });
    assert!(outside.contains(&"route[0].bind_holder".to_owned()), "{outside:?}");
    assert_eq!(faults(&|settings| settings.gate.listen = "0.0.0.0:0".parse().unwrap()), ["route[0].bind_holder"]);
    let two = faults(&|settings| {
        settings.gate.tls_cert_file = settings.api.tls_cert_file.clone();
        settings.gate.tls_key_file = settings.api.tls_key_file.clone();
        settings.gate.tls_client_ca_file = settings.api.tls_cert_file.clone();
    });
    assert_eq!(two, ["route[0].bind_holder"], "certificates of two authorities");
}
