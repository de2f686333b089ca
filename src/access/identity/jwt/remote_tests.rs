//! Keys that are fetched: when, how often, and what counts while the issuer gives none or wrong ones.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Mutex,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
    sync::Semaphore,
};

use super::{
    signer_tests::{Signer, claims},
    tests::{identify, settings, told},
    *,
};
use crate::tls::{Acceptor, Clients};

const HOUR: Duration = Duration::from_hours(1);
const PATIENCE: Duration = Duration::from_secs(20);
/// Every token causes a fetch, and waits for it if the last one succeeded.
const EACH: Pace = Pace { refresh: Duration::ZERO, gap: Duration::ZERO, timeout: PATIENCE };
/// No token causes a second fetch.
const ONCE: Pace = Pace { refresh: HOUR, gap: HOUR, timeout: PATIENCE };

/// An issuer's server on port 0.
struct Server {
    url: String,
    shared: Arc<Shared>,
}

struct Shared {
    /// What every call gets: a head's first lines, and a body.
    answer: Mutex<(String, String)>,
    /// Calls of each path so far.
    calls: Mutex<BTreeMap<String, usize>>,
    /// One is taken for each answer.
    answers: Semaphore,
}

impl Server {
    async fn start(keys: &[&Value]) -> Self {
        Self::start_with(keys, None).await
    }

    /// With a certificate it speaks TLS.
    async fn start_with(keys: &[&Value], tls: Option<Acceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}/jwks?v=1", listener.local_addr().unwrap());
        let answers = Semaphore::new(Semaphore::MAX_PERMITS);
        let shared = Arc::new(Shared { answer: Mutex::default(), calls: Mutex::default(), answers });
        let server = Self { url, shared: Arc::clone(&shared) };
        server.give(keys);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (shared, tls) = (Arc::clone(&shared), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => answer(stream, &shared).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                answer(stream, &shared).await;
                            }
                        }
                    }
                });
            }
        });
        server
    }

    fn give(&self, keys: &[&Value]) {
        self.say("HTTP/1.1 200 OK", &json!({"keys": keys}).to_string());
    }

    fn say(&self, head: &str, body: &str) {
        *self.shared.answer.lock().unwrap() = (head.to_owned(), body.to_owned());
    }

    fn calls(&self) -> usize {
        self.shared.calls.lock().unwrap().values().sum()
    }

    /// No call is answered until `go_on`.
    fn halt(&self) {
        self.shared.answers.forget_permits(Semaphore::MAX_PERMITS);
    }

    fn go_on(&self) {
        self.shared.answers.add_permits(1_000);
    }

    fn issuer(&self, pace: Pace) -> Issuer {
        let settings = IdentitySettings { url: self.url.clone(), ..settings() };
        Issuer::with(&settings, pace).map_err(|wrong| panic!("{wrong:?}")).unwrap()
    }
}

/// Answers one call.
async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, shared: &Shared) {
    let mut call = vec![];
    while !call.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => call.push(byte),
            Err(_) => return,
        }
    }
    let call = String::from_utf8(call).unwrap();
    *shared.calls.lock().unwrap().entry(call.lines().next().unwrap().to_owned()).or_default() += 1;
    shared.answers.acquire().await.unwrap().forget();
    let (head, body) = shared.answer.lock().unwrap().clone();
    if head.is_empty() {
        return;
    }
    let text = format!("{head}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
    let _ = stream.write_all(text.as_bytes()).await;
    let _ = stream.shutdown().await;
}

fn remote(issuer: &Issuer) -> &Arc<Remote> {
    match &issuer.keys {
        Source::Url(remote) => remote,
        Source::File(_) => panic!("by URL"),
    }
}

/// Waits until something is so.
async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !is_so().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("it came to be so");
}

#[test]
fn settings_are_checked_without_a_runtime_and_without_a_call() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}/jwks", listener.local_addr().unwrap());
    assert!(Issuer::new(&IdentitySettings { url, ..settings() }).is_ok());
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

#[tokio::test]
async fn the_first_token_fetches_the_keys_and_others_use_them() {
    let signer = Signer::es256("a");
    let server = Server::start(&[&signer.jwk]).await;
    let issuer = server.issuer(ONCE);
    let token = signer.sign(&claims());
    server.halt();
    let first = futures_util::future::join_all((0..20).map(|_| told(&issuer, &token)));
    let (first, ()) = tokio::join!(first, async {
        until(async || server.calls() > 0).await;
        server.go_on();
    });
    assert_eq!(first, vec!["hush|7"; 20]);
    assert_eq!(told(&issuer, &token).await, "hush|7");
    let calls = server.shared.calls.lock().unwrap().clone();
    assert_eq!(calls, BTreeMap::from([("GET /jwks?v=1 HTTP/1.1".to_owned(), 1)]));
}

#[tokio::test]
async fn tokens_that_cannot_be_right_cause_no_fetch() {
    let signer = Signer::es256("a");
    let server = Server::start(&[&signer.jwk]).await;
    let issuer = server.issuer(EACH);
    for (claim, value) in [("exp", json!(1)), ("aud", json!("other")), ("iss", json!("other")), ("nbf", json!("x"))] {
        let mut claims = claims();
        claims[claim] = value;
        assert_ne!(told(&issuer, &signer.sign(&claims)).await, "hush|7");
    }
    assert_eq!(server.calls(), 0);
    assert_eq!(told(&issuer, &signer.sign(&claims())).await, "hush|7");
    assert_eq!(server.calls(), 1);
}

#[tokio::test]
async fn keys_come_and_go_with_the_issuers_set() {
    let (a, b) = (Signer::es256("a"), Signer::es256("b"));
    let (by_a, by_b) = (a.sign(&claims()), b.sign(&claims()));
    let server = Server::start(&[&a.jwk]).await;
    let issuer = server.issuer(EACH);
    assert_eq!(told(&issuer, &by_a).await, "hush|7");
    assert!(told(&issuer, &by_b).await.contains("not among"));
    server.give(&[&a.jwk, &b.jwk]);
    assert_eq!((told(&issuer, &by_a).await, told(&issuer, &by_b).await), ("hush|7".into(), "hush|7".into()));
    server.give(&[&b.jwk]);
    assert!(told(&issuer, &by_a).await.contains("not among"), "the key is gone");
    assert_eq!(told(&issuer, &by_b).await, "hush|7");
}

#[tokio::test]
async fn an_unknown_key_causes_one_fetch_in_a_while() {
    let (a, b) = (Signer::es256("a"), Signer::es256("b"));
    let (by_a, by_b) = (a.sign(&claims()), b.sign(&claims()));
    let server = Server::start(&[&a.jwk]).await;
    let issuer = server.issuer(ONCE);
    assert_eq!(told(&issuer, &by_a).await, "hush|7");
    server.give(&[&a.jwk, &b.jwk]);
    for _ in 0..100 {
        assert!(told(&issuer, &by_b).await.contains("not among"), "the last fetch was a moment ago");
    }
    assert_eq!(server.calls(), 1);
    remote(&issuer).forget_when_asked();
    let strangers: Vec<Signer> = ["s", "t", "u", "v"].map(Signer::es256).into();
    let flood: Vec<String> = strangers.iter().cycle().take(200).map(|signer| signer.sign(&claims())).collect();
    let flood = futures_util::future::join_all(flood.iter().map(|token| told(&issuer, token)));
    let (refused, found) = tokio::join!(flood, told(&issuer, &by_b));
    assert!(refused.iter().all(|told| told.contains("not among")));
    assert_eq!((found.as_str(), server.calls()), ("hush|7", 2), "they all waited for one fetch");
}

#[tokio::test]
async fn without_any_keys_it_is_not_known_who_a_caller_is() {
    let signer = Signer::es256("a");
    let token = signer.sign(&claims());
    let server = Server::start(&[]).await;
    let issuer = server.issuer(EACH);
    let long = json!({"keys": [signer.jwk], "x": "x".repeat(SET_BYTES_MAX)}).to_string();
    let set = json!({"keys": [signer.jwk]}).to_string();
    let shared = r#"{"keys":[{"kty":"oct","kid":"a","k":"AAAA"}]}"#;
    for (head, body, words) in [
        ("", "", "the connection broke"),
        ("HTTP/1.1 500 Oh", &set, "status 500"),
        ("HTTP/1.1 201 Created", &set, "status 201"),
        ("HTTP/1.1 302 Found\r\nlocation: /jwks?v=1", &set, "status 302"),
        ("HTTP/1.1 200 OK", "", "wrong JSON"),
        ("HTTP/1.1 200 OK", "<html>", "wrong JSON"),
        ("HTTP/1.1 200 OK", &set[..set.len() - 1], "wrong JSON"),
        ("HTTP/1.1 200 OK", "[]", "no list of `keys`"),
        ("HTTP/1.1 200 OK", r#"{"keys":[]}"#, "no key that can be used, among 0"),
        ("HTTP/1.1 200 OK", shared, "no key that can be used, among 1"),
        ("HTTP/1.1 200 OK", &long, "cannot be read"),
        ("nonsense", "", "the connection broke"),
    ] {
        server.say(head, body);
        let told = told(&issuer, &token).await;
        assert!(told.starts_with("unavailable: the keys of") && told.contains(words), "{head} {body:.40}: {told}");
    }
    server.give(&[&signer.jwk]);
    assert_eq!(told(&issuer, &token).await, "hush|7");
}

#[tokio::test]
async fn the_last_good_keys_outlive_an_outage() {
    let (a, b) = (Signer::es256("a"), Signer::es256("b"));
    let (by_a, by_b) = (a.sign(&claims()), b.sign(&claims()));
    let server = Server::start(&[&a.jwk]).await;
    let issuer = server.issuer(EACH);
    assert_eq!(told(&issuer, &by_a).await, "hush|7");
    for (head, body) in
        [("", ""), ("HTTP/1.1 503 Busy", "{}"), ("HTTP/1.1 200 OK", "garbage"), ("HTTP/1.1 200 OK", r#"{"keys":[]}"#)]
    {
        server.say(head, body);
        let before = server.calls();
        until(async || {
            assert_eq!(told(&issuer, &by_a).await, "hush|7", "{head} {body}");
            server.calls() > before + 2
        })
        .await;
    }
    server.give(&[&b.jwk]);
    until(async || told(&issuer, &by_b).await == "hush|7").await;
    assert!(told(&issuer, &by_a).await.contains("not among"));
}

#[tokio::test]
async fn a_fetch_has_a_time_limit() {
    let signer = Signer::es256("a");
    let token = signer.sign(&claims());
    let server = Server::start(&[&signer.jwk]).await;
    let issuer = server.issuer(Pace { timeout: Duration::from_millis(50), ..EACH });
    server.halt();
    let first = told(&issuer, &token).await;
    assert!(first.contains("no whole answer"), "{first}");
    server.go_on();
    until(async || told(&issuer, &token).await == "hush|7").await;
    server.halt();
    assert_eq!(told(&issuer, &token).await, "hush|7", "by the keys that were fetched before");
}

/// The first fetch of an outage is the only one that a caller waits for.
#[tokio::test]
async fn callers_do_not_wait_for_an_issuer_that_is_silent() {
    let signer = Signer::es256("a");
    let token = signer.sign(&claims());
    let server = Server::start(&[&signer.jwk]).await;
    let issuer = server.issuer(Pace { timeout: HOUR, ..EACH });
    assert_eq!(told(&issuer, &token).await, "hush|7");
    server.say("", "");
    assert_eq!(told(&issuer, &token).await, "hush|7", "the outage is noticed");
    server.halt();
    for _ in 0..10 {
        let told = tokio::time::timeout(PATIENCE, told(&issuer, &token)).await;
        assert_eq!(told.expect("an answer at once"), "hush|7");
    }
}

#[tokio::test]
async fn a_caller_that_hangs_up_does_not_end_the_fetch() {
    let signer = Signer::es256("a");
    let token = signer.sign(&claims());
    let server = Server::start(&[&signer.jwk]).await;
    let issuer = server.issuer(ONCE);
    server.halt();
    tokio::select! {
        _ = told(&issuer, &token) => panic!("nothing was answered"),
        () = until(async || server.calls() == 1) => {}
    }
    server.go_on();
    assert_eq!((told(&issuer, &token).await.as_str(), server.calls()), ("hush|7", 1));
}

/// A certificate for 127.0.0.1 that is its own authority.
fn certificate(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    let pair = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let paths = (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")));
    std::fs::write(&paths.0, params.self_signed(&pair).unwrap().pem()).unwrap();
    std::fs::write(&paths.1, pair.serialize_pem()).unwrap();
    paths
}

#[tokio::test]
async fn the_server_must_prove_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let (own, other) = (certificate(folder.path(), "own"), certificate(folder.path(), "other"));
    let signer = Signer::es256("a");
    let tls = Acceptor::new(&own.0, &own.1, Clients::NotAsked).unwrap();
    let server = Server::start_with(&[&signer.jwk], Some(tls)).await;
    let by = |ca_file: &Path| {
        let settings = IdentitySettings { url: server.url.clone(), ca_file: ca_file.to_owned(), ..settings() };
        Issuer::new(&settings).map_err(|wrong| panic!("{wrong:?}")).unwrap()
    };
    let token = signer.sign(&claims());
    assert!(matches!(identify(&by(&own.0), &token).await, Verdict::Is(_)));
    let told = told(&by(&other.0), &token).await;
    assert!(told.starts_with("unavailable") && told.contains("TLS"), "{told}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named_as_the_cause() {
    let signer = Signer::es256("a");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/jwks", listener.local_addr().unwrap());
    drop(listener);
    let issuer = Issuer::new(&IdentitySettings { url, ..settings() }).map_err(|wrong| panic!("{wrong:?}")).unwrap();
    let told = told(&issuer, &signer.sign(&claims())).await;
    assert!(told.starts_with("unavailable") && told.contains("cannot be reached"), "{told}");
    assert!(!told.contains("gate running"), "{told}");
}
