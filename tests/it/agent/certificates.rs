//! TLS between agent and gate: which gates the agent trusts, and which certificate it shows.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    thread,
};

use serde_json::json;

use super::{
    super::support::{
        agent::{Agent, settings},
        authority::Authority,
        gate::text,
        process::stderr,
        until,
        wire::{Mode, Wire},
    },
    Bench, Okay,
};

/// A gate whose port has a certificate for `localhost`, and which may ask for a certificate of `clients`.
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
        self.agent_by(name, self.bench.gate.gate.port(), more)
    }

    /// An agent that reaches the gate by another port.
    fn agent_by(&self, name: &str, port: u16, more: &str) -> Agent {
        let url = format!("https://localhost:{port}");
        let api = format!("http://{}", self.bench.gate.api);
        let more = format!("tls_ca_file = '{}'\n{more}", self.authority.ca().display());
        // Long enough for the gate's reply about a certificate, however busy the machine is.
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

/// A write waits for its connection while its lease is lost: the agent reads the token when it has a connection.
#[test]
fn a_lease_that_is_lost_while_a_connection_is_made_is_not_written_with() {
    let gate = Secured::new(None);
    let wire = Wire::to(gate.bench.gate.gate);
    wire.set(Mode::Held);
    let agent = gate.agent_by("a", wire.address.port(), "");
    thread::scope(|scope| {
        let write = scope.spawn(|| agent.put("/users/1"));
        until("the write has its lease, and waits", || wire.calls() == 1);
        gate.bench.revoke("users");
        until("the agent has another lease", || agent.leader("users")["lease_seq"] == 3);
        wire.set(Mode::Pass);
        let body = write.join().unwrap().refusal(503, "NOT_LEADER");
        assert!(text(&body, "detail").contains("the lease was lost"), "{body}");
    });
    assert_eq!(
        gate.bench.gate.api().get("/v1/receipts").expect(200)["receipts"],
        json!([]),
        "nothing came to the gate"
    );
    assert_eq!(gate.bench.store.saw("begun"), 0);
    agent.put("/users/1").expect_ok();
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
        ("without", String::new(), "it asks for a certificate, and tls_cert_file names none"),
        ("stranger", shows(&foreign, &its_key), "it does not take the certificate of tls_cert_file: "),
        ("late", shows(&over, &its_own_key), "it does not take the certificate of tls_cert_file: CertificateExpired"),
    ] {
        let agent = gate.agent(name, &shown);
        // The agent sends nothing before the gate has accepted the certificate: so no outcome is unknown.
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
    // As Kubernetes does it: the files are links into a folder that is itself a link, and Kubernetes exchanges that
    // link.
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
    // Each request opens a new connection.
    let more = shows(&at("tls.crt"), &at("tls.key")) + "idle_max = 0\n";
    let agent = gate.agent("a", &more);
    agent.put("/users/1").refusal(503, "GATE_UNREACHABLE");
    let (known, key) = read(clients.sign("writer.test"));
    exchange("..2", &known, &key);
    agent.put("/users/2").expect_ok();
    assert_eq!(agent.log().matches("and were read again").count(), 1);
    // Unusable files change nothing, and are logged once.
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
    // The text of an environment variable that has lost its line breaks.
    let secret = fs::read_to_string(&key).unwrap().replace('\n', "");
    fs::write(&flat, &secret).unwrap();
    let none = Path::new("");
    for (url, certificate, key, fault) in [
        ("https://x", &*certificate, none, "gate.tls_key_file: is missing"),
        ("https://x", none, &*key, "gate.tls_cert_file: is missing"),
        ("http://x", &certificate, &key, "gate.tls_cert_file: needs a gate.url or a gate.api with https"),
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
        // The log has the key neither as text nor as numbers.
        assert!(!said.contains(&secret[..40]) && !said.contains("45, 45, 45"), "a key is in {said}");
    }
}
