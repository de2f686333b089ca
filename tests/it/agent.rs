//! The writer-side agent: an application that knows nothing of leases writes through it.

use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    os::unix::{fs::symlink, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

use super::support::{
    agent::{Agent, settings},
    authority::Authority,
    gate::{acquire, text},
    http::Conn,
    process::{Gate, Site, stderr},
    store::Store,
    until,
    wire::{Mode, Wire},
};

struct Bench {
    store: Store,
    gate: Gate,
    site: Site,
}

impl Bench {
    fn new() -> Self {
        Self::with("")
    }

    fn with(more: &str) -> Self {
        let store = Store::start();
        let site = Site::with_table();
        site.configure(&format!("[store]\nurl = '{}'\n{more}", store.url()));
        let gate = site.serve();
        Self { store, gate, site }
    }

    fn urls(&self) -> (String, String) {
        (format!("http://{}", self.gate.gate), format!("http://{}", self.gate.api))
    }

    fn agent(&self, name: &str) -> Agent {
        self.agent_with(name, "")
    }

    /// With more lines of [lease], and whatever comes behind it.
    fn agent_with(&self, name: &str, more: &str) -> Agent {
        let (gate, api) = self.urls();
        Agent::start(&settings(name, &gate, &api, more, ""))
    }

    fn revoke(&self, object: &str) {
        self.gate.api().post(&format!("/v1/objects/{object}/revoke"), &json!({ "reason": "a test" })).expect(200);
    }

    fn lease(&self, object: &str) -> Value {
        self.gate.api().get(&format!("/v1/objects/{object}")).expect(200)["lease"].clone()
    }

    /// The lease numbers of what was applied, in the store's order.
    fn seqs(&self) -> Vec<u64> {
        let writes = self.store.applied().into_iter().filter(|each| each["method"] == "PUT");
        writes.map(|each| text(&each["headers"], "fence-seq").parse().unwrap()).collect()
    }
}

#[test]
fn an_application_writes_and_reads_without_knowing_of_leases() {
    let bench = Bench::new();
    let agent = bench.agent("a");
    let wrote =
        agent.call("PUT", "/users/1?x=%20y", &[("idempotency-key", "\"k-1\""), ("x-own", "kept"), ("cookie", "a=b")]);
    assert_eq!(wrote.status, 200, "{wrote:?}");
    assert_eq!((wrote.header("fence-seq"), wrote.header("fence-outcome")), (Some("1"), Some("settled")));
    assert_eq!((wrote.header("x-kept"), &*wrote.body), (Some("yes"), &b"PUT /users/1?x=%20y 5\n"[..]));
    let stored = &bench.store.applied()[0];
    assert_eq!(stored["path"], "/users/1?x=%20y");
    for (name, value) in [
        ("idempotency-key", "\"k-1\""),
        ("x-own", "kept"),
        ("cookie", "a=b"),
        ("fence-seq", "1"),
        ("fence-object", "users"),
    ] {
        assert_eq!(text(&stored["headers"], name), value);
    }
    assert!(stored["headers"]["fence-token"].is_null());
    let read = agent.call("GET", "/users/1", &[("x-store", "large:3000000")]);
    assert_eq!((read.status, read.body.len()), (200, 3_000_000));
    let led = agent.leader("users");
    assert_eq!(
        (led["leader"].as_bool(), text(&led, "holder_id"), led["lease_seq"].as_u64()),
        (Some(true), "a", Some(1))
    );
    assert!(led["expires_in_ms"].as_u64().is_some_and(|ms| (1..=1_000).contains(&ms)), "{led}");
    // The same connection, again and again; other objects have leases of their own.
    let mut conn = agent.conn();
    for n in 0..20 {
        conn.call("POST", &format!("/object-{}/x", n % 2), &[], b"v").expect_ok();
    }
    let all = Conn::open(agent.status).unwrap().get("/leader").expect(200);
    assert_eq!(all.as_object().unwrap().keys().collect::<Vec<_>>(), ["object-0", "object-1", "users"]);
    assert!(agent.shows("fencegate_agent_objects{standing=\"leading\"} 3\n"));
    assert!(agent.shows("fencegate_agent_forwarded_total{kind=\"write\"} 21\n"));
    assert!(!agent.log().contains("fg1."), "a token is in the log");
}

trait Okay {
    fn expect_ok(&self);
}

impl Okay for super::support::http::Answer {
    #[track_caller]
    fn expect_ok(&self) {
        assert_eq!(self.status, 200, "{:?}", String::from_utf8_lossy(&self.body));
    }
}

#[test]
fn whoever_does_not_lead_is_told_who_does() {
    let bench = Bench::new();
    let (one, two) = (bench.agent("one"), bench.agent("two"));
    one.put("/users/1").expect_ok();
    let refused = two.put("/users/1");
    let body = refused.refusal(503, "NOT_LEADER");
    assert_eq!((text(&body, "leader"), text(&body, "object_id"), &body["retryable"]), ("one", "users", &json!(true)));
    assert_eq!((refused.header("fence-leader"), refused.header("retry-after")), (Some("one"), Some("1")));
    assert_eq!(two.call("GET", "/users/1", &[]).status, 200, "reads pass");
    let followed = two.leader("users");
    assert_eq!((followed["leader"].as_bool(), text(&followed, "holder_id")), (Some(false), "one"));
    // The leader goes in good order: the other one has its turn at once.
    one.signal(Signal::TERM);
    until("the other one leads", || two.leader("users")["leader"] == true);
    two.put("/users/1").expect_ok();
    assert_eq!(bench.seqs(), [1, 2]);
}

#[test]
fn a_new_leader_is_heard_of_while_waiting() {
    let bench = Bench::new();
    let mut api = bench.gate.api();
    let first = acquire(&mut api, "users", "first", 60_000);
    // `second` is in the queue before the agent.
    let mut second = bench.gate.api();
    let body = json!({ "object_id": "users", "holder_id": "second", "ttl_ms": 60_000, "wait_ms": 60_000 }).to_string();
    second.send("POST", "/v1/leases", &[("content-type", "application/json")], body.as_bytes()).unwrap();
    let waiting = |count: usize| {
        let line = format!("fencegate_lease_waiters {count}\n");
        until(&line, || String::from_utf8(bench.gate.ops().get("/metrics").body).unwrap().contains(&line));
    };
    waiting(1);
    let agent = bench.agent("a");
    assert_eq!(agent.put("/users/1").header("fence-leader"), Some("first"));
    waiting(2);
    api.delete(&format!("/v1/leases/{}", text(&first, "lease_id")), text(&first, "fence_token")).expect(200);
    second.receive().unwrap().expect(201);
    until("the next leader's name", || agent.put("/users/1").header("fence-leader") == Some("second"));
}

#[test]
fn what_the_gate_would_refuse_anyway_and_a_second_token_go_nowhere() {
    let bench = Bench::new();
    let agent = bench.agent("a");
    let two_sources = agent.call("PUT", "/users/1", &[("fence-token", "fg1.1.dXNlcnM.AQIDBAUGBwgJCgsMDQ4PEA")]);
    assert_eq!(two_sources.refusal(400, "REQUEST_INVALID")["field"], "Fence-Token");
    agent.put("/users/%2e%2e/x").refusal(422, "PATH_AMBIGUOUS");
    agent.put("/").refusal(422, "OBJECT_UNMAPPED");
    agent.call("TRACE", "/users/1", &[]).refusal(403, "TUNNEL_REFUSED");
    agent.call("PUT", "/users/1", &[("x-http-method-override", "GET")]).refusal(400, "METHOD_OVERRIDE_REFUSED");
    for site in ["cross-site", "same-site"] {
        agent.call("POST", "/users/1", &[("sec-fetch-site", site)]).refusal(403, "NOT_LOOPBACK");
    }
    let mut named = agent.conn();
    named.send_raw(b"PUT /users/1 HTTP/1.1\r\nhost: page.example\r\ncontent-length: 0\r\n\r\n").unwrap();
    named.receive().unwrap().refusal(403, "NOT_LOOPBACK");
    assert_eq!(bench.store.saw("begun"), 0);
    assert_eq!(bench.gate.api().get("/v1/receipts").expect(200)["receipts"], json!([]), "the gate saw nothing of it");
}

/// The read is the control: what is forwarded, the fake gate does record.
#[test]
fn without_a_gate_a_write_is_refused_at_once_and_never_forwarded_unfenced() {
    let fake_gate = Store::start();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let agent = Agent::start(&settings("a", &fake_gate.url(), &format!("http://{closed}"), "wait_ms = 60000", ""));
    for _ in 0..50 {
        // A wait of a minute would be noticed: it is known at once that nobody is there.
        let refused = agent.put("/users/1");
        assert_eq!(text(&refused.refusal(503, "GATE_UNREACHABLE"), "object_id"), "users");
        assert!(refused.header("retry-after").is_some());
    }
    agent.call("GET", "/users/1", &[]).expect_ok();
    assert_eq!(fake_gate.story(), ["GET /users/1"]);
    assert!(text(&agent.leader("users"), "why").contains("cannot be reached"));
    // A gate that is silent: as long as the setting says, and no longer.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let api = format!("http://{}", silent.local_addr().unwrap());
    let agent = Agent::start(&settings("a", &fake_gate.url(), &api, "wait_ms = 3000", ""));
    agent.put("/users/1").refusal(503, "GATE_UNREACHABLE");
    assert_eq!(fake_gate.saw("begun"), 1);
    // Only the first one waits.
    let (says, said) = mpsc::sync_channel(1);
    thread::spawn(move || {
        (0..20).for_each(|_| _ = agent.put("/users/1").refusal(503, "GATE_UNREACHABLE"));
        let _ = says.send(());
    });
    said.recv_timeout(Duration::from_secs(20)).expect("the others were refused at once");
}

#[test]
fn a_gate_that_comes_back_is_found_again() {
    let bench = Bench::new();
    let wire = Wire::to(bench.gate.api);
    let agent = Agent::start(&settings("a", &bench.urls().0, &wire.url(), "", ""));
    agent.put("/users/1").expect_ok();
    wire.set(Mode::Cut);
    until("the lease runs out", || agent.put("/users/1").status == 503);
    let before = wire.calls();
    // Three seconds, by the gate's own clock.
    acquire(&mut bench.gate.api(), "other", "first", 3_000);
    let next = json!({ "object_id": "other", "holder_id": "next", "ttl_ms": 60_000, "wait_ms": 60_000 });
    bench.gate.api().post("/v1/leases", &next).expect(201);
    let tries = wire.calls() - before;
    assert!((1..60).contains(&tries), "{tries} calls: that is no backoff");
    wire.set(Mode::Pass);
    until("it leads again", || agent.put("/users/1").status == 200);
    assert!(agent.shows("fencegate_agent_losses_total{reason=\"DEADLINE\"} 1\n"));
    let seqs = bench.seqs();
    assert_eq!(seqs.last(), Some(&2), "{seqs:?}");
}

#[test]
fn a_write_that_the_gate_refuses_is_the_agents_loss() {
    let bench = Bench::new();
    let (gate, api) = bench.urls();
    // It would not renew before long.
    let agent = Agent::start(&settings("a", &gate, &api, "", "").replace("ttl_ms = 1000", "ttl_ms = 60000"));
    agent.put("/users/1").expect_ok();
    bench.revoke("users");
    let refused = agent.put("/users/1");
    let body = refused.refusal(412, "WRITE_STALE_FENCE");
    assert!(body["receipt_id"].is_string(), "the gate's own answer is passed on");
    until("the loss is counted", || agent.shows("fencegate_agent_losses_total{reason=\"WRITE_STALE_FENCE\"} 1\n"));
    agent.put("/users/1").expect_ok();
    assert_eq!(bench.seqs(), [1, 3]);
}

#[test]
fn renewing_before_each_write_finds_out_before_the_gate_has_to() {
    let bench = Bench::new();
    let (gate, api) = bench.urls();
    let text = settings("a", &gate, &api, "renew_before_write = true", "").replace("ttl_ms = 1000", "ttl_ms = 60000");
    let agent = Agent::start(&text);
    agent.put("/users/1").expect_ok();
    bench.revoke("users");
    let refused = agent.put("/users/1");
    assert!(refused.refusal(503, "NOT_LEADER")["detail"].as_str().unwrap().contains("LEASE_FENCED"));
    assert_eq!(bench.gate.api().get("/v1/receipts").expect(200)["receipts"], json!([]), "the gate saw no such write");
    agent.put("/users/1").expect_ok();
    // Without the gate's word, nothing goes on.
    let wire = Wire::to(bench.gate.api);
    let text = text.replace(&api, &wire.url()).replace("holder_id = 'a'", "holder_id = 'b'");
    let other = Agent::start(&text);
    other.put("/other/1").expect_ok();
    wire.set(Mode::Cut);
    other.put("/other/1").refusal(503, "GATE_UNREACHABLE");
    assert_eq!(bench.store.story(), ["PUT /users/1", "PUT /users/1", "PUT /other/1"]);
}

#[test]
fn a_write_is_sent_once_whatever_becomes_of_its_answer() {
    let bench = Bench::new();
    let wire = Wire::to(bench.gate.gate);
    let agent = Agent::start(&settings("a", &wire.url(), &bench.urls().1, "", "response_timeout_ms = 300"));
    until("a connection is used again", || {
        let before = wire.calls();
        agent.put("/users/first").expect_ok();
        wire.calls() == before
    });
    let before = wire.calls();
    wire.set(Mode::LosesAnswers);
    agent.put("/users/lost").unknown();
    assert_eq!(wire.calls(), before, "it went by a connection that had been used, and by no other");
    // A gate that is silent.
    wire.set(Mode::Pass);
    agent.call("PUT", "/users/silent", &[("x-store", "hang")]).unknown();
    // A gate that is not there: nothing was sent.
    wire.set(Mode::Cut);
    let cut = agent.put("/users/cut");
    assert!([503, 504].contains(&cut.status), "{cut:?}");
    wire.set(Mode::Pass);
    let story: Vec<_> = bench.store.story().into_iter().filter(|each| each != "PUT /users/first").collect();
    assert_eq!(story, ["PUT /users/lost", "PUT /users/silent"]);
}

#[test]
fn a_connection_that_died_while_idle_costs_no_write() {
    let Bench { store, gate, site } = Bench::new();
    gate.stop();
    let text = fs::read_to_string(site.config()).unwrap();
    fs::write(site.config(), text.replace("[gate]\n", "[gate]\nidle_timeout_ms = 50\n")).unwrap();
    let gate = site.serve();
    let agent = Agent::start(&settings("a", &format!("http://{}", gate.gate), &format!("http://{}", gate.api), "", ""));
    for _ in 0..10 {
        agent.put("/users/1").expect_ok();
        until("the gate has hung up", || {
            String::from_utf8(gate.ops().get("/metrics").body).unwrap().contains("fencegate_connections 0\n")
        });
    }
    assert_eq!(store.story().len(), 10);
}

#[test]
fn bodies_stream_and_a_refusal_comes_before_the_body() {
    let bench = Bench::new();
    let agent = bench.agent("a");
    // The body is asked for only when the gate asks for it.
    let head = "PUT /users/1 HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n";
    let mut conn = agent.conn();
    conn.send_raw(head.as_bytes()).unwrap();
    assert_eq!(conn.read_head().unwrap().0, 100);
    conn.send_raw(b"value").unwrap();
    conn.receive().unwrap().expect_ok();
    bench.revoke("users");
    let mut conn = agent.conn();
    conn.send_raw(head.as_bytes()).unwrap();
    assert!([412, 503].contains(&conn.receive().unwrap().status), "refused, and the body was not asked for");
    until("it leads again", || agent.put("/users/1").status == 200);
    // Ten megabytes in chunks, while the store has the first of it already.
    let before = bench.store.saw("body");
    let mut conn = agent.conn();
    conn.send_raw(b"PUT /users/2 HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
    let chunk = [format!("{:x}\r\n", 1 << 20).into_bytes(), vec![b'x'; 1 << 20], b"\r\n".to_vec()].concat();
    (0..2).for_each(|_| conn.send_raw(&chunk).unwrap());
    until("the first of it is at the store", || bench.store.saw("body") > before);
    (0..8).for_each(|_| conn.send_raw(&chunk).unwrap());
    conn.send_raw(b"0\r\n\r\n").unwrap();
    assert_eq!(conn.receive().unwrap().body, b"PUT /users/2 10485760\n");
}

#[test]
fn a_stop_finishes_what_is_on_its_way_and_releases() {
    let bench = Bench::new();
    let mut agent = bench.agent("a");
    agent.put("/users/1").expect_ok();
    let go = bench.site.folder.path().join("go");
    let mut slow = agent.conn();
    let until_go = format!("until:{}", go.display());
    slow.send("PUT", "/users/slow", &[("x-store", &until_go)], b"value").unwrap();
    until("the store has it", || bench.store.story().contains(&"PUT /users/slow".to_owned()));
    agent.signal(Signal::TERM);
    until("no more writes are taken", || agent.put("/users/1").header("fence-error") == Some("GATE_STOPPING"));
    assert_eq!(Conn::open(agent.status).unwrap().get("/readyz").status, 503);
    assert_eq!(agent.call("GET", "/users/1", &[]).status, 200, "reads pass");
    assert_eq!(text(&bench.lease("users"), "state"), "held", "not released under a write's feet");
    fs::write(go, "").unwrap();
    slow.receive().unwrap().expect_ok();
    assert!(agent.child.wait().unwrap().success());
    assert_eq!(text(&bench.lease("users"), "state"), "released");
    assert!(agent.log().contains("stopped in good order"), "{}", agent.log());
}

#[test]
fn leases_are_taken_by_route_up_front_or_on_first_use_and_given_back_when_idle() {
    let routes = "[[route]]\nname = 'data'\nmatch = '/data/{domain}/{rest...}'\nobject = '/data/{domain}/'\n[[route]]\nname = 'one'\nmatch = '/one/{rest...}'\nobject = 'one'\n";
    let bench = Bench::with(routes);
    let lease = format!("idle_release_ms = 3000\nobjects_max = 3\n{routes}take = 'up-front'\n");
    let agent = bench.agent_with("a", &lease);
    until("the lease up front", || agent.leader("one")["leader"] == true);
    for path in ["/data/users/1", "/data/users/2", "/data/orders/1", "/one/x"] {
        agent.put(path).expect_ok();
    }
    let objects = |agent: &Agent| -> Vec<String> {
        let all = Conn::open(agent.status).unwrap().get("/leader").expect(200);
        all.as_object().unwrap().keys().cloned().collect()
    };
    assert_eq!(objects(&agent), ["/data/orders/", "/data/users/", "one"]);
    agent.put("/data/more/1").refusal(503, "GATE_OVERLOADED");
    // What nobody writes to is given back; what was taken up front stays.
    until("given back", || objects(&agent) == ["one"]);
    let users = bench.gate.api().get("/v1/objects/%2Fdata%2Fusers%2F").expect(200);
    assert_eq!(text(&users["lease"], "state"), "released");
    agent.put("/data/users/1").expect_ok();
    assert_eq!(agent.leader("%2Fdata%2Fusers%2F")["lease_seq"], 2);
    // A write to two objects of a route needs both, and gets both.
    let moved = agent.call("MOVE", "/data/users/2", &[("destination", "http://127.0.0.1/data/orders/2")]);
    assert_eq!(moved.status, 200, "{:?}", String::from_utf8_lossy(&moved.body));
}

/// A gate whose port has a certificate for `localhost`, and which may ask for one of `clients`.
struct Secured {
    bench: Bench,
    authority: Authority,
}

impl Secured {
    fn new(clients: Option<&Authority>) -> Self {
        let authority = Authority::new();
        let (certificate, key) = authority.sign("localhost");
        let Bench { store, gate, site } = Bench::new();
        gate.stop();
        let text = fs::read_to_string(site.config()).unwrap();
        let asks = clients.map(|clients| format!("tls_client_ca_file = '{}'\n", clients.ca().display()));
        let tls = format!(
            "[gate]\n{}tls_cert_file = '{}'\ntls_key_file = '{}'\n",
            asks.unwrap_or_default(),
            certificate.display(),
            key.display()
        );
        fs::write(site.config(), text.replace("[gate]\n", &tls)).unwrap();
        let gate = site.serve();
        Self { bench: Bench { store, gate, site }, authority }
    }

    /// An agent that trusts the gate, with more lines of [gate].
    fn agent(&self, name: &str, more: &str) -> Agent {
        let url = format!("https://localhost:{}", self.bench.gate.gate.port());
        let api = format!("http://{}", self.bench.gate.api);
        let more = format!("tls_ca_file = '{}'\n{more}", self.authority.ca().display());
        // Long enough for a gate's word on a certificate to come, however busy the machine is.
        let text = settings(name, &url, &api, "", &more).replace("timeout_ms = 1000", "timeout_ms = 60000");
        Agent::start(&text)
    }
}

/// The lines of [gate] that name a certificate and its key.
fn shows(certificate: &Path, key: &Path) -> String {
    format!("tls_cert_file = '{}'\ntls_key_file = '{}'\n", certificate.display(), key.display())
}

#[test]
fn the_way_to_the_gate_can_be_tls() {
    let gate = Secured::new(None);
    gate.agent("a", "").put("/users/1").expect_ok();
    // Another name than the certificate's.
    let agent = gate.agent("b", "tls_server_name = 'elsewhere'");
    agent.put("/other/1").refusal(503, "GATE_UNREACHABLE");
    assert_eq!(gate.bench.store.story(), ["PUT /users/1"]);
}

#[test]
fn a_gate_that_asks_for_a_certificate_is_shown_one() {
    let (clients, strangers) = (Authority::new(), Authority::new());
    let gate = Secured::new(Some(&clients));
    let (certificate, key) = clients.sign("writer.test");
    let known = gate.agent("known", &shows(&certificate, &key));
    known.put("/users/1").expect_ok();
    known.call("GET", "/users/1", &[]).expect_ok();
    let (foreign, its_key) = strangers.sign("writer.test");
    let (over, its_own_key) = clients.sign_until("over.test", 2020);
    for (name, shown, why) in [
        ("nobody", String::new(), "it asks for a certificate, and tls_cert_file names none"),
        ("stranger", shows(&foreign, &its_key), "it does not take the certificate of tls_cert_file: "),
        ("late", shows(&over, &its_own_key), "it does not take the certificate of tls_cert_file: CertificateExpired"),
    ] {
        let agent = gate.agent(name, &shown);
        // Nothing leaves before the gate has said that it takes the certificate: no outcome is unknown.
        for method in ["PUT", "GET"] {
            let body = agent.call(method, &format!("/{name}/1"), &[]).refusal(503, "GATE_UNREACHABLE");
            assert!(text(&body, "detail").contains(why), "{body}");
        }
        assert_eq!(agent.log().matches(why).count(), 1, "said once: {}", agent.log());
        assert!(!agent.log().contains("PRIVATE KEY"), "a key is in the log");
    }
    assert_eq!(gate.bench.store.story(), ["PUT /users/1", "GET /users/1"]);
}

#[test]
fn a_certificate_that_was_exchanged_is_shown_to_the_next_connection() {
    let (clients, strangers) = (Authority::new(), Authority::new());
    let gate = Secured::new(Some(&clients));
    // As Kubernetes does it: the files are links into a folder that is a link itself, and that one is exchanged.
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let exchange = |version: &str, certificate: &[u8], key: &[u8]| {
        fs::create_dir(at(version)).unwrap();
        fs::write(at(version).join("tls.crt"), certificate).unwrap();
        fs::write(at(version).join("tls.key"), key).unwrap();
        symlink(version, at("..next")).unwrap();
        fs::rename(at("..next"), at("..data")).unwrap();
    };
    for name in ["tls.crt", "tls.key"] {
        symlink(Path::new("..data").join(name), at(name)).unwrap();
    }
    let read = |(certificate, key): (PathBuf, PathBuf)| (fs::read(certificate).unwrap(), fs::read(key).unwrap());
    let (foreign, its_key) = read(strangers.sign("writer.test"));
    exchange("..1", &foreign, &its_key);
    // No connection is used twice.
    let more = shows(&at("tls.crt"), &at("tls.key")) + "idle_max = 0\n";
    let agent = gate.agent("a", &more);
    agent.put("/users/1").refusal(503, "GATE_UNREACHABLE");
    let (known, key) = read(clients.sign("writer.test"));
    exchange("..2", &known, &key);
    agent.put("/users/2").expect_ok();
    assert_eq!(agent.log().matches("and were read again").count(), 1);
    // What cannot be used changes nothing, and is said once.
    let broken = "certificates have changed and cannot be used";
    exchange("..3", &known, &its_key);
    for n in 3..6 {
        agent.put(&format!("/users/{n}")).expect_ok();
    }
    assert_eq!(agent.log().matches(broken).count(), 1, "{}", agent.log());
    exchange("..4", &foreign, &its_key);
    agent.put("/users/6").refusal(503, "GATE_UNREACHABLE");
    assert_eq!(gate.bench.store.story().len(), 4);
}

#[test]
fn a_certificate_that_cannot_be_shown_stops_the_start() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let (certificate, key) = authority.sign("writer.test");
    let (_, anothers) = authority.sign("other.test");
    let (away, flat) = (folder.path().join("away.pem"), folder.path().join("flat.pem"));
    // As a variable that has lost its line breaks.
    let secret = fs::read_to_string(&key).unwrap().replace('\n', "");
    fs::write(&flat, &secret).unwrap();
    let none = Path::new("");
    for (url, certificate, key, fault) in [
        ("https://x", &*certificate, none, "gate.tls_key_file: is missing"),
        ("https://x", none, &*key, "gate.tls_cert_file: is missing"),
        ("http://x", &certificate, &key, "gate.tls_cert_file: needs a gate.url with https"),
        ("https://x", &away, &key, "gate.tls_cert_file: no certificate can be read from"),
        ("https://x", &key, &key, "holds no certificate"),
        ("https://x", &certificate, &away, "gate.tls_key_file: no private key can be read from"),
        ("https://x", &certificate, &certificate, "gate.tls_key_file: no private key can be read from"),
        ("https://x", &certificate, &flat, "were line breaks lost?"),
        ("https://x", &certificate, &anothers, "gate.tls_cert_file: certificate and key do not go together"),
    ] {
        let trusts = format!("tls_ca_file = '{}'\n", authority.ca().display());
        let more = trusts + &shows(certificate, key);
        let refused = Agent::refused(&settings("a", url, "http://127.0.0.1:1", "", &more));
        let said = stderr(&refused);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains(fault), "{fault:?} is not in {said}");
        // Neither as text nor as numbers.
        assert!(!said.contains(&secret[..40]) && !said.contains("45, 45, 45"), "a key is in {said}");
    }
}

#[test]
fn a_faulty_file_and_an_open_port_stop_the_start() {
    let faulty = Agent::refused(
        "[agent]\nlisten = '0.0.0.0:0'\n[gate]\napi = 'x'\n[lease]\nttl = 1\n[[route]]\ntake = 'up-front'\n",
    );
    assert_eq!(faulty.status.code(), Some(2));
    for key in ["agent.listen: must be a loopback", "gate.api", "lease.ttl: unknown field", "route[0].take"] {
        assert!(stderr(&faulty).contains(key), "{key} is not in {}", stderr(&faulty));
    }
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = settings("a", "http://127.0.0.1:1", "http://127.0.0.1:1", "", "");
    let text = text.replacen("127.0.0.1:0", &taken.local_addr().unwrap().to_string(), 1);
    let refused = Agent::refused(&text);
    assert!(stderr(&refused).contains("agent.listen: cannot listen"), "{}", stderr(&refused));
}

/// `curl`, again and again, as an application that knows nothing of all this; what it was answered.
struct Loop {
    child: Child,
    answers: PathBuf,
}

impl Loop {
    fn start(agent: &Agent, folder: &Path, name: &str) -> Self {
        let answers = folder.join(name);
        let script = format!(
            "while :; do curl -s -o /dev/null -w '%{{http_code}}\\n' -X PUT http://{}/users/1 -d {name} >> {}; done",
            agent.agent,
            answers.display()
        );
        let child = Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).process_group(0).spawn().unwrap();
        Self { child, answers }
    }

    fn answers(&self) -> Vec<String> {
        let mut text = String::new();
        if let Ok(mut file) = fs::File::open(&self.answers) {
            file.read_to_string(&mut text).unwrap();
        }
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

#[test]
fn only_the_leaders_writes_land_and_none_of_a_leader_that_was_stopped() {
    let bench = Bench::new();
    let (gate, api) = bench.urls();
    // Long enough for a busy machine.
    let agent =
        |name: &str| Agent::start(&settings(name, &gate, &api, "", "").replace("ttl_ms = 1000", "ttl_ms = 3000"));
    let (one, two) = (agent("one"), agent("two"));
    one.put("/users/1").expect_ok();
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (Loop::start(&one, folder.path(), "one"), Loop::start(&two, folder.path(), "two"));
    let is = |code: &'static str| move |answer: &&String| *answer == code;
    until("both loops run", || {
        first.answers().iter().filter(is("200")).count() >= 10
            && second.answers().iter().filter(is("503")).count() >= 10
    });
    assert_eq!(second.answers().iter().filter(is("200")).count(), 0, "only the leader's writes land");
    assert!(bench.seqs().iter().all(|seq| *seq == 1));
    // The leader is stopped, in the middle of whatever it does, for longer than its lease lasts.
    one.signal(Signal::STOP);
    until("the other one's writes land", || bench.seqs().iter().filter(|seq| **seq == 2).count() >= 10);
    let delayed = first.answers().len();
    one.signal(Signal::CONT);
    until("the first one's application goes on", || first.answers().len() >= delayed + 10);
    let (late, seqs) = (first.answers()[delayed..].to_vec(), bench.seqs());
    // The first may be the answer to a write that had landed before the stop; what landed when is in the seqs.
    assert!(late.iter().skip(1).all(|answer| answer != "200"), "{late:?}");
    assert!(seqs.windows(2).all(|pair| pair[0] <= pair[1]), "the seqs of what was applied went down: {seqs:?}");
    assert_eq!(seqs.last(), Some(&2));
    assert_eq!(text(&bench.lease("users"), "holder_id"), "two");
    // Back again: the second goes in good order, and the first has its turn.
    two.signal(Signal::TERM);
    until("the first one leads again", || bench.seqs().last() == Some(&3));
    drop((first, second));
    let seqs = bench.seqs();
    assert!(seqs.windows(2).all(|pair| pair[0] <= pair[1]), "{seqs:?}");
}

#[test]
fn a_leader_that_was_stopped_finds_out_before_it_sends_anything() {
    let bench = Bench::new();
    let agent = bench.agent("a");
    agent.put("/users/1").expect_ok();
    agent.signal(Signal::STOP);
    let next = json!({ "object_id": "users", "holder_id": "b", "ttl_ms": 60_000, "wait_ms": 60_000 });
    bench.gate.api().post("/v1/leases", &next).expect(201);
    // The kernel takes it in; the agent sees it first when it goes on.
    let mut delayed = agent.conn();
    delayed.send("PUT", "/users/1", &[], b"value").unwrap();
    agent.signal(Signal::CONT);
    delayed.receive().unwrap().refusal(503, "NOT_LEADER");
    assert_eq!(bench.gate.api().get("/v1/receipts").expect(200)["receipts"], json!([]), "the gate saw no such write");
    assert_eq!(bench.seqs(), [1]);
}

/// The gate's own fence: the agent has sent the head, with a good token, before it was stopped.
#[test]
fn a_write_that_a_stopped_leader_had_begun_is_not_applied() {
    let bench = Bench::with("[[route]]\npartial_body = 'discards'\n");
    let agent = bench.agent("a");
    agent.put("/users/1").expect_ok();
    let before = bench.store.saw("body");
    let mut half = agent.conn();
    half.send_raw(b"PUT /users/late HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3145728\r\n\r\n").unwrap();
    half.send_raw(&vec![b'x'; 2 << 20]).unwrap();
    until("the first of it is at the store", || bench.store.saw("body") > before);
    agent.signal(Signal::STOP);
    let next = json!({ "object_id": "users", "holder_id": "b", "ttl_ms": 60_000, "wait_ms": 60_000 });
    let next = bench.gate.api().post("/v1/leases", &next).expect(201);
    bench.gate.gate().call("PUT", "/users/next", &[("fence-token", text(&next, "fence_token"))], b"v").expect_ok();
    agent.signal(Signal::CONT);
    // The agent may have closed the connection by now.
    let _ = half.send_raw(&vec![b'x'; 1 << 20]);
    if let Ok(answer) = half.receive() {
        assert_ne!(answer.status, 200);
    }
    assert_eq!(bench.seqs(), [1, 2], "what was begun did not land");
}

#[test]
fn a_write_to_two_objects_refused_for_one_does_not_lock_the_other() {
    let bench = Bench::new();
    let (gate, api) = bench.urls();
    let agent = Agent::start(&settings("a", &gate, &api, "", "").replace("ttl_ms = 1000", "ttl_ms = 120000"));
    for path in ["/users/1", "/orders/1"] {
        agent.put(path).expect_ok();
    }
    bench.revoke("users");
    let moved = agent.call("MOVE", "/users/1", &[("destination", "http://127.0.0.1/orders/2")]);
    moved.refusal(412, "WRITE_STALE_FENCE");
    until("both are led again", || ["/users/1", "/orders/1"].iter().all(|path| agent.put(path).status == 200));
}

#[test]
fn the_body_of_a_read_and_old_requests_without_a_host_get_through() {
    let bench = Bench::new();
    let agent = bench.agent("a");
    let mut conn = agent.conn();
    conn.send_raw(b"GET /users/1 HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
    conn.send_raw(b"5\r\nhello\r\n0\r\n\r\n").unwrap();
    assert_eq!(String::from_utf8_lossy(&conn.receive().unwrap().body), "GET /users/1 5\n");
    for request in ["GET /users/1 HTTP/1.0\r\n\r\n", "PUT /users/1 HTTP/1.0\r\ncontent-length: 5\r\n\r\nvalue"] {
        let mut old = agent.conn();
        old.send_raw(request.as_bytes()).unwrap();
        assert_eq!(old.read_head().unwrap().0, 200, "{request}");
    }
    // What only the gate may say is not the application's to say.
    agent.call("PUT", "/users/1", &[("fence-seq", "99"), ("fence-object", "orders")]);
    assert!(bench.seqs().iter().all(|seq| *seq == 1), "{:?}", bench.seqs());
}

#[test]
fn a_hang_up_is_a_stop_in_good_order() {
    let bench = Bench::new();
    let mut agent = bench.agent("a");
    agent.put("/users/1").expect_ok();
    agent.signal(Signal::HUP);
    assert!(agent.child.wait().unwrap().success());
    assert_eq!(text(&bench.lease("users"), "state"), "released");
}

#[test]
fn a_lease_that_is_never_granted_is_not_to_be_tried_again() {
    let bench = Bench::new();
    let (gate, api) = bench.urls();
    let agent = Agent::start(&settings("a", &gate, &api, "", "").replace("ttl_ms = 1000", "ttl_ms = 1"));
    let refused = agent.put("/users/1");
    assert_eq!(refused.refusal(503, "NOT_LEADER")["retryable"], false);
    assert_eq!(refused.header("retry-after"), None);
}

/// The control: the same late write lands where the gate only looks on, and the store's log shows it.
#[test]
fn a_late_write_does_land_where_the_gate_only_looks_on() {
    let bench = Bench::with("[[route]]\nmode = 'audit'\n");
    let (gate, api) = bench.urls();
    let agent = Agent::start(&settings("a", &gate, &api, "", "").replace("ttl_ms = 1000", "ttl_ms = 60000"));
    agent.put("/users/1").expect_ok();
    bench.revoke("users");
    let late = agent.put("/users/late");
    assert_eq!((late.status, late.header("fence-would")), (200, Some("WRITE_STALE_FENCE")));
    assert_eq!(bench.store.story(), ["PUT /users/1", "PUT /users/late"]);
}

#[test]
fn half_a_request_does_not_hold_a_stop_up() {
    let bench = Bench::new();
    let mut agent = bench.agent("a");
    let mut half = std::net::TcpStream::connect(agent.agent).unwrap();
    half.write_all(b"PUT /users/1 HTTP/1.1\r\nhost: localhost\r\ncontent-le").unwrap();
    agent.put("/users/1").expect_ok();
    agent.signal(Signal::TERM);
    assert!(agent.child.wait().unwrap().success());
    assert_eq!(text(&bench.lease("users"), "state"), "released");
}
