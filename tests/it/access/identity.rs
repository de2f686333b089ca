//! How callers prove who they are, and bad proofs.

use std::fs;

use fencegate::config::{GrantSettings, IdentitySettings, Loopback};

use super::{World, grant};
use crate::support::{gate::text, until};

fn everyone() -> Vec<GrantSettings> {
    vec![grant("all", "*", &["*"])]
}

#[test]
fn the_api_speaks_tls_and_says_whom_it_takes_a_caller_for() {
    let mut world = World::new(everyone());
    let token = world.token("nightly");
    let who = world.bearing(&token).get("/v1/whoami").expect(200);
    assert_eq!((text(&who, "principal"), text(&who, "source")), ("nightly", "files"));
    assert_eq!((who["holders"][0].as_str(), text(&who, "holder_separator")), (Some("nightly"), "/"));
    assert_eq!(who["operations"].as_array().unwrap().len(), 5);
    let shown = world.authority.sign("etl.shop");
    let who = world.shows(Some(&shown)).get("/v1/whoami").expect(200);
    assert_eq!((text(&who, "principal"), text(&who, "source")), ("etl.shop", "certs"));
    let spiffe = world.authority.sign_uri("x", "spiffe://td/ns/shop/sa/api");
    let who = world.shows(Some(&spiffe)).get("/v1/whoami").expect(200);
    assert_eq!((text(&who, "principal"), text(&who, "holder_separator")), ("spiffe://td/ns/shop/sa/api", "//"));
    // A caller on the gate's own machine that shows nothing.
    let who = world.shows(None).get("/v1/whoami").expect(200);
    assert_eq!((text(&who, "principal"), who["holders"].as_array().unwrap().len()), ("loopback", 0));
}

#[test]
fn a_proof_that_is_not_taken_is_never_ignored() {
    let mut world = World::new(everyone());
    let good = world.token("nightly");
    let shown = world.authority.sign("etl");
    let half = good.rsplit_once('.').unwrap().0;
    let long = format!("fga1.{}", "x".repeat(16_380));
    for bad in ["", "x", "fga1.", "fga1.x.y", half, &long, "eyJhbGciOiJub25lIn0.e30.", &format!("{good}x")] {
        // On loopback, which needs no proof, and beside a good certificate.
        world.bearing(bad).get("/v1/leases").refusal(401, "IDENTITY_REQUIRED");
        world.shows(Some(&shown)).bearing(bad).get("/v1/leases").refusal(401, "IDENTITY_REQUIRED");
    }
    let mut api = world.shows(None);
    for value in ["Basic bWU6aHVzaA==", "Bearer", "Bearer  ", &format!("Token {good}"), &format!("Bearer{good}")] {
        let refused = api.call("GET", "/v1/leases", &[("authorization", value)], b"").refusal(401, "IDENTITY_REQUIRED");
        assert!(!refused.to_string().contains(&good), "the refusal does not repeat what was shown");
    }
    let bearer = format!("Bearer {good}");
    let twice = [("authorization", bearer.as_str()), ("authorization", "Bearer x")];
    api.call("GET", "/v1/leases", &twice, b"").refusal(401, "IDENTITY_REQUIRED");
    let both = world.shows(Some(&shown)).bearing(&good).get("/v1/whoami").expect(200);
    assert_eq!(text(&both, "source"), "files", "the first source in the file");
    for scheme in ["bearer", "BEARER"] {
        api.call("GET", "/v1/leases", &[("authorization", &format!("{scheme} {good}"))], b"").expect(200);
    }
}

#[test]
fn a_token_that_is_revoked_or_expired_is_refused_with_the_next_call() {
    let mut world = World::new(everyone());
    let (kept, revoked) = (world.token("a"), world.token("b"));
    let ends = world.rows.add("c", vec![], Some("2027-01-15T08:00:10Z".to_owned())).unwrap();
    world.write_tokens();
    let mut api = world.bearing(&revoked);
    api.get("/v1/leases").expect(200);
    world.bearing(&ends).get("/v1/leases").expect(200);
    world.rows.token.retain(|row| row.name != "b");
    world.write_tokens();
    let refused = api.get("/v1/leases").refusal(401, "IDENTITY_REQUIRED");
    assert!(text(&refused, "detail").contains("revoked"), "{refused}");
    world.bearing(&kept).get("/v1/leases").expect(200);
    world.gate.clock.advance(10_000);
    let refused = world.bearing(&ends).get("/v1/leases").refusal(401, "IDENTITY_REQUIRED");
    assert!(text(&refused, "detail").contains("expired"), "{refused}");
}

#[test]
fn a_certificate_of_elsewhere_or_without_a_name_is_refused() {
    let world = World::new(everyone());
    let elsewhere = super::Authority::new();
    let foreign = elsewhere.sign("etl");
    let refused =
        crate::support::http::Conn::tls(world.gate.running().api, "gate.test", &world.authority.ca(), Some(&foreign));
    // In TLS 1.3 the refusal comes behind the handshake.
    let answered = refused.and_then(|mut api| api.try_call("GET", "/v1/leases", &[], b""));
    assert!(answered.is_err(), "{answered:?}");
    for (name, uri) in [("system:admin", None), ("x", Some("spiffe://td//x"))] {
        let shown = match uri {
            None => world.authority.sign(name),
            Some(uri) => world.authority.sign_uri(name, uri),
        };
        world.shows(Some(&shown)).get("/v1/leases").refusal(401, "IDENTITY_REQUIRED");
    }
}

#[test]
fn callers_on_the_gates_machine_can_be_asked_too() {
    let mut world = World::with(everyone(), |settings| settings.access.loopback = Loopback::Authenticate);
    world.shows(None).get("/v1/leases").refusal(401, "IDENTITY_REQUIRED");
    world.as_("a").get("/v1/leases").expect(200);
    // A name as Host, as callers on other machines have it.
    let token = world.token("b");
    let mut api = world.bearing(&token);
    api.send_raw(
        format!("GET /v1/leases HTTP/1.1\r\nhost: gate.test:8081\r\nauthorization: Bearer {token}\r\n\r\n").as_bytes(),
    )
    .unwrap();
    api.receive().unwrap().expect(200);
}

#[test]
fn a_web_page_gets_nothing_by_the_trust_in_loopback() {
    let world = World::new(everyone());
    let mut api = world.shows(None);
    api.send_raw(b"GET /v1/leases HTTP/1.1\r\nhost: rebound.example\r\n\r\n").unwrap();
    api.receive().unwrap().refusal(403, "NOT_LOOPBACK");
    for origin in ["https://evil.example", "http://127.0.0.1"] {
        api.call("GET", "/v1/leases", &[("origin", origin)], b"").refusal(403, "NOT_LOOPBACK");
    }
    api.call("GET", "/v1/leases", &[("origin", "https://127.0.0.1")], b"").expect(200);
}

#[test]
fn ten_thousand_wrong_tokens_leave_no_trace_and_keep_no_one_out() {
    let mut world = World::new(everyone());
    let good = world.token("nightly");
    let mut wrong = world.shows(None);
    let mut valid = world.bearing(&good);
    for n in 0..10_000 {
        let header = format!("Bearer fga1.{n:012}.{}", "A".repeat(43));
        wrong.call("GET", "/v1/leases", &[("authorization", &header)], b"").refusal(401, "IDENTITY_REQUIRED");
        if n % 1_000 == 0 {
            valid.get("/v1/leases").expect(200);
        }
    }
    assert_eq!(world.gate.running().gate.turns.principals(), 1, "wrong tokens are no principals");
}

#[test]
fn a_principal_that_calls_too_often_is_told_when_to_come_back() {
    let mut world = World::with(everyone(), |settings| {
        (settings.access.calls_per_second, settings.access.calls_burst) = (1, 3);
    });
    let (mut greedy, mut other) = (world.as_("greedy"), world.as_("other"));
    let lease = crate::support::gate::acquire(&mut greedy, "o", "greedy", 60_000);
    (0..2).for_each(|_| drop(greedy.get("/v1/leases").expect(200)));
    let refused = greedy.get("/v1/leases");
    refused.refusal(429, "RATE_LIMITED");
    assert_eq!(refused.header("retry-after"), Some("1"));
    let (path, body) = crate::support::gate::renewal(&lease, 60_000);
    greedy.post(&path, &body).expect(200);
    other.get("/v1/leases").expect(200);
    world.shows(None).get("/v1/leases").expect(200);
    world.gate.clock.advance(1_000);
    greedy.get("/v1/leases").expect(200);
}

#[test]
fn calls_in_progress_are_limited_by_principal() {
    let mut world = World::with(everyone(), |settings| settings.access.calls_at_once = 2);
    let token = world.token("watcher");
    let mut streams: Vec<_> = (0..2).map(|_| world.bearing(&token)).collect();
    for stream in &mut streams {
        stream.send("GET", "/v1/watch", &[], b"").unwrap();
        assert_eq!(stream.read_head().unwrap().0, 200);
    }
    world.bearing(&token).get("/v1/leases").refusal(429, "RATE_LIMITED");
    world.as_("another").get("/v1/leases").expect(200);
    drop(streams.pop());
    until("the place of the closed stream is free", || world.bearing(&token).get("/v1/leases").status == 200);
}

#[test]
fn http_2_is_spoken_over_tls() {
    let mut world = World::new(everyone());
    let token = world.token("nightly");
    let port = world.gate.running().api.port();
    let folder = world.authority.folder.path();
    let curl = |more: &[&str]| {
        let done = std::process::Command::new("curl")
            .args(["-s", "--max-time", "30", "--http2", "-w", " %{http_version} %{http_code}"])
            .args(["--cacert", world.authority.ca().to_str().unwrap()])
            .args(["--resolve", &format!("gate.test:{port}:127.0.0.1")])
            .args(["-H", &format!("authorization: Bearer {token}")])
            .args(more)
            .output()
            .unwrap();
        String::from_utf8(done.stdout).unwrap()
    };
    let at = |path: &str| format!("https://gate.test:{port}{path}");
    let who = curl(&[&at("/v1/whoami")]);
    assert!(who.contains("\"nightly\"") && who.ends_with(" 2 200"), "{who}");
    let lease = r#"{"object_id":"users","holder_id":"nightly/1","ttl_ms":60000}"#;
    let granted = curl(&["--json", lease, &at("/v1/leases")]);
    assert!(granted.ends_with(" 2 201"), "{granted}");
    // Several calls on one connection.
    let held = r#"{"object_id":"users","holder_id":"nightly/2"}"#;
    let both = curl(&[
        "-Z",
        "--json",
        held,
        &at("/v1/leases"),
        "--next",
        "-s",
        "--max-time",
        "30",
        "--cacert",
        world.authority.ca().to_str().unwrap(),
        "--resolve",
        &format!("gate.test:{port}:127.0.0.1"),
        "-H",
        &format!("authorization: Bearer {token}"),
        "-o",
        folder.join("list").to_str().unwrap(),
        &at("/v1/leases"),
    ]);
    assert!(both.contains("LEASE_HELD"), "{both}");
    assert!(fs::read_to_string(folder.join("list")).unwrap().contains("\"users\""));
}

#[test]
fn a_configuration_that_would_let_anyone_in_is_refused() {
    let faults = |text: &str| {
        let (_, faults) = fencegate::config::read::<fencegate::config::Settings>(text.parse().unwrap(), vec![]);
        faults.into_iter().map(|fault| fault.key).collect::<Vec<_>>()
    };
    let open = "[api]\nlisten = '0.0.0.0:8081'\n";
    assert_eq!(faults(open), ["api.listen", "api.listen"], "neither TLS nor an identity");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens.toml");
    fencegate::access::identity::tokens::write(&file, &Default::default()).unwrap();
    let tokens = format!("[[identity]]\nname = 'files'\nkind = 'tokens'\nfile = '{}'\n", file.display());
    assert_eq!(faults(&format!("{open}{tokens}")), ["api.listen", "access.loopback"]);
    let mesh = format!("{open}insecure_plaintext = true\n");
    assert_eq!(faults(&mesh), ["api.listen"]);
    assert_eq!(faults(&format!("{mesh}{tokens}")), ["access.loopback"]);
    let asks = "[access]\nloopback = 'authenticate'\n";
    assert_eq!(faults(&format!("{mesh}{asks}{tokens}")), Vec::<String>::new());
    assert_eq!(faults(asks), ["access.loopback"], "no caller could prove who it is");
    assert_eq!(faults("[[identity]]\nname = 'c'\nkind = 'mtls'"), ["identity[0].kind"]);
    assert_eq!(faults("[api]\ntls_cert_file = 'x'"), ["api.tls_cert_file"]);
    assert_eq!(faults("[[identity]]\nname = 'loopback'\nkind = 'tokens'"), ["identity[0].name", "identity[0].file"]);
    let grant = "[[grant]]\nname = 'g'\nprincipals = ['a']\noperations = ['read']\nobjects = ['*']";
    assert_eq!(faults(grant), ["grant"], "no caller has a name");
    let twice = IdentitySettings { name: "files".to_owned(), file, ..IdentitySettings::default() };
    let mut settings = fencegate::config::Settings { identity: vec![twice.clone(), twice], ..Default::default() };
    settings.access.calls_burst = 0;
    let keys: Vec<_> = settings.all_faults().into_iter().map(|fault| fault.key).collect();
    assert_eq!(keys, ["identity[1].name", "access.calls_burst"]);
}
