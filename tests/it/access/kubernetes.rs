//! Callers with projected tokens of Kubernetes ServiceAccounts. The API server is the fake, or a real one with `make
//! test-kubernetes`.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use fencegate::{
    clock::Clock,
    config::{GrantSettings, IdentityKind, IdentitySettings, Settings},
    fence::Now,
    table::{codec::Meta, memory::MemoryTable, open::write_meta},
};
use serde_json::{Value, json};

use super::grant;
use crate::support::{
    authority::Authority,
    gate::{START, TestGate, acquire, key, renewal, settings, text, wanted},
    http::Conn,
    kube::{API_AUDIENCES, ApiServer, NAMESPACES, Who, token_of_a_person},
    until,
};

const AUDIENCE: &str = "fencegate";
const LEFT: &str = NAMESPACES[0];
const RIGHT: &str = NAMESPACES[1];
/// The ServiceAccount `api` in [`LEFT`].
const API: &str = "system:serviceaccount:left:api";

/// A gate whose api takes tokens of the cluster.
struct World {
    server: ApiServer,
    gate: TestGate,
    authority: Authority,
}

impl World {
    /// `cache_ms`: how long an answer of the API server counts.
    fn with(cache_ms: u64, grants: Vec<GrantSettings>, change: impl FnOnce(&mut Settings)) -> Self {
        let (server, authority, mut settings) = (ApiServer::start(), Authority::new(), settings());
        (settings.api.tls_cert_file, settings.api.tls_key_file) = authority.sign("gate.test");
        settings.kubernetes.url = server.url();
        settings.kubernetes.ca_file = server.ca_file().unwrap_or_default();
        settings.kubernetes.token_file = server.token_file(Who::Gate);
        let source = IdentitySettings { name: "cluster".to_owned(), cache_ms, ..IdentitySettings::default() };
        settings.identity = vec![IdentitySettings { kind: IdentityKind::Kubernetes, ..source }];
        settings.grant = grants;
        // Tests ask again and again, and the gate's clock stands still.
        (settings.access.calls_per_second, settings.access.calls_burst) = (1_000_000, 1_000_000);
        change(&mut settings);
        assert_eq!(settings.all_faults(), vec![]);
        let table = std::sync::Arc::new(MemoryTable::default());
        write_meta(&*table, &Meta::new(&key(), true), fencegate::fence::Hlc::default()).unwrap();
        // The gate's clock shows the time that the API server puts into tokens.
        let now = Now { wall: Clock::machine().now().wall, ..START };
        server.service_account(LEFT, "api");
        Self { gate: TestGate::on(&settings, table, now), server, authority }
    }

    fn new(cache_ms: u64) -> Self {
        Self::with(cache_ms, vec![grant("all", "*", &["*"])], |_| {})
    }

    /// A new token of [`API`].
    fn token(&self) -> String {
        self.server.projected_token(LEFT, "api", AUDIENCE, 600)
    }

    fn bearing(&self, token: &str) -> Conn {
        let api = self.gate.running().api;
        Conn::tls(api, "gate.test", &self.authority.ca(), None).unwrap().bearing(token)
    }

    /// What a caller with this token gets.
    fn status(&self, token: &str) -> u16 {
        self.bearing(token).get("/v1/leases").status
    }

    #[track_caller]
    fn refused(&self, token: &str, status: u16, code: &str, why: &str) {
        let refused = self.bearing(token).get("/v1/leases").refusal(status, code);
        assert!(text(&refused, "detail").contains(why), "{refused}");
        assert!(!refused.to_string().contains(token), "the refusal shows the token");
    }

    fn reviews(&self) -> usize {
        self.server.requests(Who::Gate, "tokenreviews")
    }
}

#[test]
fn a_projected_token_names_its_service_account() {
    let world = World::new(60_000);
    let mut api = world.bearing(&world.token());
    let who = api.get("/v1/whoami").expect(200);
    assert_eq!((text(&who, "principal"), text(&who, "source")), (API, "cluster"));
    assert!(who["groups"].as_array().unwrap().contains(&json!("system:serviceaccounts:left")), "{who}");
    let lease = acquire(&mut api, "/data/x", API, 60_000);
    let (path, body) = renewal(&lease, 60_000);
    api.post(&path, &body).expect(200);
    world.server.service_account(RIGHT, "api");
    let other = world.server.projected_token(RIGHT, "api", AUDIENCE, 600);
    world.bearing(&other).post("/v1/leases", &wanted("/data/y", API, 60_000)).refusal(403, "ACCESS_DENIED");
    assert_eq!(world.reviews(), 2, "one for each token");
}

#[test]
fn a_token_for_another_audience_never_leaves_the_gate() {
    let world = World::new(60_000);
    for audience in [API_AUDIENCES[0], "fencegate2", "vault"] {
        let token = world.server.projected_token(LEFT, "api", audience, 600);
        world.refused(&token, 401, "IDENTITY_REQUIRED", "no identity source");
    }
    assert_eq!(world.reviews(), 0);
    // Its own word for the audience is no proof.
    let token = world.token();
    let (head, signature) = token.rsplit_once('.').unwrap();
    let other = world.server.projected_token(LEFT, "api", "vault", 600);
    let mixed = format!("{head}.{}", other.rsplit_once('.').unwrap().1);
    assert_ne!(signature, other.rsplit_once('.').unwrap().1);
    world.refused(&mixed, 401, "IDENTITY_REQUIRED", "does not accept");
    assert_eq!(world.status(&token), 200);
}

#[test]
fn a_deleted_service_account_is_refused_once_the_cache_ends() {
    let world = World::new(500);
    let token = world.token();
    assert_eq!(world.status(&token), 200);
    world.server.delete_service_account(LEFT, "api");
    until("the token is refused", || world.status(&token) == 401);
    world.refused(&token, 401, "IDENTITY_REQUIRED", "does not accept");
    // One of the same name is another account.
    world.server.service_account(LEFT, "api");
    world.refused(&token, 401, "IDENTITY_REQUIRED", "does not accept");
    let new = world.token();
    until("the new token is taken", || world.status(&new) == 200);
}

#[test]
fn a_stream_ends_when_its_service_account_is_deleted() {
    let world = World::new(200);
    let mut stream = world.bearing(&world.token());
    stream.send("GET", "/v1/watch", &[], b"").unwrap();
    stream.until_line("the stream has begun", |line| line.contains("watching"));
    world.server.delete_service_account(LEFT, "api");
    until("the stream ends", || stream.read_line().is_err());
}

#[test]
fn an_expired_token_is_refused_whatever_is_cached() {
    let world = World::new(600_000);
    let token = world.token();
    assert_eq!(world.status(&token), 200);
    world.gate.clock.advance(590_000);
    assert_eq!(world.status(&token), 200);
    world.gate.clock.advance(20_000);
    world.refused(&token, 401, "IDENTITY_REQUIRED", "expired");
    assert_eq!(world.reviews(), 1);
}

#[test]
fn while_the_api_server_is_away_known_callers_go_on_until_their_answer_ends() {
    let world = World::new(5_000);
    // Two tokens of one second are the same one, where the API server gives them no id.
    let (known, new) = (world.token(), world.server.projected_token(LEFT, "api", AUDIENCE, 900));
    assert_eq!(world.status(&known), 200);
    world.server.stop();
    world.refused(&new, 503, "IDENTITY_UNAVAILABLE", "the API server cannot be reached");
    assert_eq!(world.status(&known), 200);
    until("the answer about the known one has ended", || world.status(&known) == 503);
    world.refused(&known, 503, "IDENTITY_UNAVAILABLE", "the API server cannot be reached");
    world.server.start_again();
    until("both are known again", || world.status(&known) == 200 && world.status(&new) == 200);
}

#[test]
fn an_api_server_that_is_too_slow_is_not_waited_for_by_each_caller() {
    let world = World::with(60_000, vec![grant("all", "*", &["*"])], |settings| {
        settings.kubernetes.request_timeout_ms = 1_000;
    });
    let tokens: Vec<_> = (0..20).map(|_| world.token()).collect();
    world.server.hang();
    world.refused(&tokens[0], 503, "IDENTITY_UNAVAILABLE", "cannot be reached");
    let before = world.reviews();
    for token in &tokens {
        world.refused(token, 503, "IDENTITY_UNAVAILABLE", "cannot be reached");
    }
    if !world.server.is_real() {
        let asked = world.reviews() - before;
        assert!(asked < 10, "{asked} of 20 calls have waited for the API server");
    }
    world.server.resume();
    until("the token is known", || world.status(&tokens[0]) == 200);
}

#[test]
fn a_gate_without_the_right_says_which_one_it_needs() {
    let world = World::new(60_000);
    let token = world.token();
    world.server.forbid(Who::Gate);
    world.refused(&token, 503, "IDENTITY_UNAVAILABLE", "the right to create tokenreviews");
    world.server.allow(Who::Gate);
    until("the token is known", || world.status(&token) == 200);
}

#[test]
fn a_holder_can_be_bound_to_a_pod() {
    let bound = GrantSettings { holder: "{principal}/{pod.name}".to_owned(), ..grant("pods", API, &["/data"]) };
    let world = World::with(60_000, vec![bound], |_| {});
    let (token, uid) = world.server.pod_token(LEFT, "api", AUDIENCE, "api-0");
    assert_eq!(uid.len(), 36);
    let mut api = world.bearing(&token);
    let own = format!("{API}/api-0");
    acquire(&mut api, "/data/x", &own, 60_000);
    for other in [API, &format!("{API}/api-1"), &format!("{API}/api-00")] {
        api.post("/v1/leases", &wanted("/data/y", other, 60_000)).refusal(403, "ACCESS_DENIED");
    }
    // The same account without a pod has no name to hold by.
    let mut bare = world.bearing(&world.token());
    bare.post("/v1/leases", &wanted("/data/y", &own, 60_000)).refusal(403, "ACCESS_DENIED");
}

#[test]
fn each_namespace_has_its_own_objects() {
    let tenants = grant("tenants", "system:serviceaccount:*", &["/tenants/{serviceaccount.namespace}/"]);
    let world = World::with(60_000, vec![tenants], |_| {});
    world.server.service_account(RIGHT, "api");
    for (namespace, other) in [(LEFT, RIGHT), (RIGHT, LEFT)] {
        let token = world.server.projected_token(namespace, "api", AUDIENCE, 600);
        let (mut api, holder) = (world.bearing(&token), format!("system:serviceaccount:{namespace}:api"));
        acquire(&mut api, &format!("/tenants/{namespace}/x"), &holder, 60_000);
        let body = wanted(&format!("/tenants/{other}/y"), &holder, 60_000);
        api.post("/v1/leases", &body).refusal(403, "ACCESS_DENIED");
    }
}

#[test]
fn a_users_token_is_refused() {
    let world = World::with(60_000, vec![grant("all", "*", &["*"])], |settings| {
        settings.identity[0].audience = API_AUDIENCES[1].to_owned();
    });
    world.refused(&token_of_a_person(), 401, "IDENTITY_REQUIRED", "no ServiceAccount's");
    assert_eq!(world.reviews(), 1);
    for who in Who::ALL {
        world.refused(who.token(), 401, "IDENTITY_REQUIRED", "no identity source");
    }
    assert_eq!(world.reviews(), 1, "what is no JWT is not sent");
}

/// A token for this gate that no API server has signed.
fn garbage(n: usize) -> String {
    let part = |value: Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let payload = json!({ "aud": [AUDIENCE], "exp": 4_102_444_800_u64, "n": n, "iss": API_AUDIENCES[0] });
    format!("{}.{}.{}", part(json!({ "alg": "RS256" })), part(payload), "A".repeat(86))
}

#[test]
fn a_flood_of_wrong_tokens_stops_no_known_caller() {
    let world = World::new(300);
    let token = world.token();
    let (ends, sent, refused) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let mut known = world.bearing(&token);
    known.get("/v1/leases").expect(200);
    let before = world.reviews();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut api = world.bearing("");
                api.always.clear();
                while !ends.load(Ordering::SeqCst) {
                    let header = format!("Bearer {}", garbage(sent.fetch_add(1, Ordering::SeqCst)));
                    let answer = api.call("GET", "/v1/leases", &[("authorization", &header)], b"");
                    assert!([401, 503].contains(&answer.status), "{answer:?}");
                    refused.fetch_add(usize::from(answer.status == 401), Ordering::SeqCst);
                }
            });
        }
        // All of them come from one address, and the known token is reviewed again every 300 ms.
        let mut calls = 0;
        let flooded = || sent.load(Ordering::SeqCst) >= 2_000 && refused.load(Ordering::SeqCst) >= 40;
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until("the flood is over", || {
                known.get("/v1/leases").expect(200);
                calls += 1;
                flooded()
            });
        }));
        ends.store(true, Ordering::SeqCst);
        outcome.unwrap_or_else(|why| std::panic::resume_unwind(why));
        assert!(calls > 3, "{calls} calls of the known caller");
    });
    let (reviews, sent) = (world.reviews() - before, sent.load(Ordering::SeqCst));
    assert!((40..sent / 2).contains(&reviews), "{reviews} reviews for {sent} wrong tokens");
}
