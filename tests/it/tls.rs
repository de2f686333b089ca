//! TLS on the gate's port and towards the store, with curl and Python's ssl as peers.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    os::unix::fs::symlink,
    path::Path,
    process::Command,
};

use rustix::process::Signal;

use super::support::{
    authority::Authority,
    gate::{acquire, text},
    process::{Gate, Site, binary, stderr},
    run::Ends,
    store::Store,
    until,
};

/// A site whose gate's port has a certificate for `gate.test`.
fn with_port_tls(authority: &Authority, store: &str) -> Site {
    let (cert, key) = authority.sign("gate.test");
    with_port_tls_of(&cert, &key, store)
}

fn with_port_tls_of(cert: &Path, key: &Path, store: &str) -> Site {
    let site = Site::with_table();
    let config = fs::read_to_string(site.config()).unwrap();
    let tls = format!("[gate]\ntls_cert_file = '{}'\ntls_key_file = '{}'", cert.display(), key.display());
    fs::write(site.config(), format!("{}[store]\n{store}", config.replacen("[gate]", &tls, 1))).unwrap();
    site
}

fn curl(gate: &Gate, ca: &Path, arguments: &[&str]) -> String {
    let port = gate.gate.port();
    let done = Command::new("curl")
        .args(["-s", "--cacert", ca.to_str().unwrap(), "--resolve", &format!("gate.test:{port}:127.0.0.1")])
        .args(["-w", " %{http_version} %{http_code}"])
        .args(arguments)
        .arg(format!("https://gate.test:{port}/users/1"))
        .ends();
    String::from_utf8(done.stdout).unwrap()
}

#[test]
fn the_gates_port_speaks_tls_with_both_protocols() {
    let (store, authority) = (Store::start(), Authority::new());
    let site = with_port_tls(&authority, &format!("url = '{}'\n", store.url()));
    let gate = site.serve();
    let lease = acquire(&mut gate.api(), "users", "a", 60_000);
    let token = format!("fence-token: {}", text(&lease, "fence_token"));
    for (protocol, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let write = ["-X", "PUT", "-d", "value"];
        let put = |more: &[&str]| curl(&gate, &authority.ca(), &[&[protocol][..], &write, more].concat());
        assert_eq!(put(&["-H", &token]), format!("PUT /users/1 5\n {version} 200"));
        assert!(put(&[]).ends_with(&format!(" {version} 428")));
    }
    assert_eq!(store.applied()[0]["headers"]["x-forwarded-proto"], "https");
    // A client without TLS gets nothing, and other clients are not delayed.
    let mut plain = TcpStream::connect(gate.gate).unwrap();
    plain.write_all(b"GET /users/1 HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut said = vec![];
    let _ = plain.read_to_end(&mut said);
    assert!(!said.starts_with(b"HTTP/"), "{said:?}");
    assert_eq!(store.story().len(), 2);
    gate.stop();
}

#[test]
fn a_certificate_that_was_renewed_is_shown_from_the_next_connection_on() {
    let (store, authority) = (Store::start(), Authority::new());
    let site = with_port_tls(&authority, &format!("url = '{}'\n", store.url()));
    let gate = site.serve();
    assert_eq!(curl(&gate, &authority.ca(), &[]), "GET /users/1 0\n 2 200");
    let other = Authority::new();
    let (cert, key) = other.sign("gate.test");
    let renew = |from, to| fs::copy(from, authority.folder.path().join(to)).unwrap();
    renew(cert, "gate.test-cert.pem");
    assert_eq!(curl(&gate, &authority.ca(), &[]), "GET /users/1 0\n 2 200", "not before it goes with its key");
    renew(key, "gate.test-key.pem");
    assert_eq!(curl(&gate, &other.ca(), &[]), "GET /users/1 0\n 2 200");
    assert_eq!(curl(&gate, &authority.ca(), &[]), " 0 000", "the old one is no longer shown");
    fs::remove_file(authority.folder.path().join("gate.test-key.pem")).unwrap();
    assert_eq!(curl(&gate, &other.ca(), &[]), "GET /users/1 0\n 2 200", "the last one that could be used");
    gate.stop();
}

/// As Kubernetes keeps a Secret: the files are links through another link, which names the current folder.
#[test]
fn a_secret_that_kubernetes_exchanges_is_read_again() {
    let (store, first, second) = (Store::start(), Authority::new(), Authority::new());
    let folder = tempfile::tempdir().unwrap();
    let publish = |name: &str, authority: &Authority| {
        let made = folder.path().join(name);
        fs::create_dir(&made).unwrap();
        let (cert, key) = authority.sign("gate.test");
        fs::copy(cert, made.join("tls.crt")).unwrap();
        fs::copy(key, made.join("tls.key")).unwrap();
        symlink(name, folder.path().join("..tmp")).unwrap();
        fs::rename(folder.path().join("..tmp"), folder.path().join("..data")).unwrap();
    };
    publish("..1", &first);
    for file in ["tls.crt", "tls.key"] {
        symlink(format!("..data/{file}"), folder.path().join(file)).unwrap();
    }
    let at = |file| folder.path().join(file);
    let site = with_port_tls_of(&at("tls.crt"), &at("tls.key"), &format!("url = '{}'\n", store.url()));
    let gate = site.serve();
    assert_eq!(curl(&gate, &first.ca(), &[]), "GET /users/1 0\n 2 200");
    publish("..2", &second);
    assert_eq!(curl(&gate, &second.ca(), &[]), "GET /users/1 0\n 2 200");
    gate.stop();
}

#[test]
fn the_metrics_say_until_when_the_certificate_holds() {
    let not_after = "fencegate_tls_certificate_not_after_seconds";
    let shown = |gate: &Gate| {
        let text = String::from_utf8(gate.ops().get("/metrics").body).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(not_after)?.strip_prefix(' '));
        value.map(str::to_owned)
    };
    let authority = Authority::new();
    let site = with_port_tls(&authority, "url = 'http://127.0.0.1:9'\n");
    let with_tls = fs::read_to_string(site.config()).unwrap();
    authority.sign_until("gate.test", 2040);
    let gate = site.serve();
    assert_eq!(shown(&gate).as_deref(), Some("2208988800"));
    authority.sign_until("gate.test", 2041);
    assert_eq!(shown(&gate).as_deref(), Some("2240611200"), "it was renewed");
    // A faulty file changes nothing; without TLS there is no certificate to show.
    fs::write(authority.folder.path().join("gate.test-cert.pem"), "no certificate\n").unwrap();
    assert_eq!(shown(&gate).as_deref(), Some("2240611200"), "what is served, not what lies there");
    gate.signal(Signal::HUP);
    until("the fault", || {
        String::from_utf8(gate.ops().get("/metrics").body).unwrap().contains("fencegate_reload_failed 1\n")
    });
    assert_eq!(shown(&gate).as_deref(), Some("2240611200"));
    let plain: Vec<&str> = with_tls.lines().filter(|line| !line.starts_with("tls_")).collect();
    fs::write(site.config(), plain.join("\n") + "\n").unwrap();
    gate.signal(Signal::HUP);
    until("no certificate", || shown(&gate).is_none());
    gate.stop();
}

#[test]
fn clients_must_show_a_certificate_where_they_are_asked_to() {
    let (store, authority, clients) = (Store::start(), Authority::new(), Authority::new());
    let site = with_port_tls(&authority, &format!("url = '{}'\n", store.url()));
    let config = fs::read_to_string(site.config()).unwrap();
    let asks = format!("[gate]\ntls_client_ca_file = '{}'", clients.ca().display());
    // Beyond loopback a number would be no secret: the client's certificate protects it.
    let route =
        "[[route]]\nname = 'locked'\nmatch = '/{object}/{rest...}'\nobject = '{object}'\nlease_source = 'external'\n";
    let everywhere = config.replacen("[gate]", &asks, 1).replacen("127.0.0.1:0", "0.0.0.0:0", 1) + route;
    fs::write(site.config(), everywhere).unwrap();
    let gate = site.serve();
    let call = |shown: Option<&Authority>| {
        let write = ["-X", "PUT", "-d", "value", "-H", "fence-token: 7"];
        let Some(signer) = shown else { return curl(&gate, &authority.ca(), &write) };
        let (cert, key) = signer.sign("client.test");
        let (cert, key) = (cert.to_str().unwrap().to_owned(), key.to_str().unwrap().to_owned());
        curl(&gate, &authority.ca(), &[&write[..], &["--cert", &cert, "--key", &key]].concat())
    };
    assert_eq!(call(Some(&clients)), "PUT /users/1 5\n 2 200");
    for stranger in [None, Some(&authority)] {
        assert!(call(stranger).ends_with(" 000"), "a client without one gets no answer");
    }
    assert_eq!(store.story().len(), 1);
    // The file of trusted authorities is read again, too.
    let heirs = Authority::new();
    fs::copy(heirs.ca(), clients.ca()).unwrap();
    assert_eq!(call(Some(&heirs)), "PUT /users/1 5\n 2 200");
    assert!(call(Some(&clients)).ends_with(" 000"), "it is no longer trusted");
    assert_eq!(store.story().len(), 2);
    gate.stop();
}

#[test]
fn an_https_store_must_prove_who_it_is() {
    let authority = Authority::new();
    let (cert, key) = authority.sign("store.test");
    let store = Store::with_tls(&cert, &key);
    let url = format!("https://127.0.0.1:{}", store.port);
    let serve = |ca: &Path, name: &str| {
        let site = Site::with_table();
        let tls = format!("tls_ca_file = '{}'\ntls_server_name = '{name}'\n", ca.display());
        site.configure(&format!("[store]\nurl = '{url}'\n{tls}"));
        let gate = site.serve();
        let lease = acquire(&mut gate.api(), "users", "a", 60_000);
        (site, gate, text(&lease, "fence_token").to_owned())
    };
    let put = |gate: &Gate, token: &str| {
        let mut conn = gate.gate();
        let mut call = || conn.call("PUT", "/users/1", &[("fence-token", token)], &[7; 100_000]);
        [call(), call(), call()]
    };
    let (_site, gate, token) = serve(&authority.ca(), "store.test");
    let answers = put(&gate, &token);
    assert!(answers.iter().all(|answer| answer.body == b"PUT /users/1 100000\n"), "{answers:?}");
    assert_eq!(store.story().len(), 3);
    let stranger = Authority::new();
    for (ca, name) in [(authority.ca(), "other.test"), (stranger.ca(), "store.test")] {
        let (_site, gate, token) = serve(&ca, name);
        for answer in put(&gate, &token) {
            let refused = answer.refusal(502, "STORE_UNREACHABLE");
            assert!(text(&refused, "detail").contains("certificate"), "{refused}");
        }
        assert_eq!(store.story().len(), 3, "nothing is sent to a store that has not proved who it is");
        if ca == stranger.ca() {
            // The file of trusted authorities is read again before the next connection.
            fs::copy(authority.ca(), ca).unwrap();
            assert!(put(&gate, &token).iter().all(|answer| answer.body == b"PUT /users/1 100000\n"));
        }
    }
    assert_eq!(store.story().len(), 6);
}

#[test]
fn certificates_that_cannot_be_used_stop_the_start() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let (cert, _) = authority.sign("one.test");
    let (_, foreign) = authority.sign("two.test");
    let nothing = folder.path().join("nothing.pem");
    fs::write(&nothing, "no certificate\n").unwrap();
    for (section, key, config) in [
        ("gate", "gate.tls_cert_file", format!("tls_cert_file = '{}'", cert.display())),
        (
            "gate",
            "gate.tls_cert_file",
            format!("tls_cert_file = '{}'\ntls_key_file = '{}'", cert.display(), foreign.display()),
        ),
        (
            "gate",
            "gate.tls_cert_file",
            format!("tls_cert_file = '{}'\ntls_key_file = '{}'", nothing.display(), foreign.display()),
        ),
        ("store", "store.tls_ca_file", format!("url = 'https://x'\ntls_ca_file = '{}'", nothing.display())),
        ("store", "store.tls_ca_file", format!("url = 'https://x'\ntls_ca_file = '{}/away'", folder.path().display())),
    ] {
        let file = folder.path().join("config.toml");
        fs::write(&file, format!("[{section}]\n{config}\n")).unwrap();
        let refused = Command::new(binary()).args(["check", "--config"]).arg(&file).ends();
        assert_eq!(refused.status.code(), Some(2), "{config}");
        assert!(stderr(&refused).contains(&format!("{key}: ")), "{}", stderr(&refused));
    }
}
