//! No secret is in any log (at the trace level), body, receipt or metric.

use std::{fs, process::Command};

use base64::{Engine, prelude::BASE64_STANDARD, prelude::BASE64_URL_SAFE_NO_PAD};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::support::{
    gate::{acquire, renewal, text},
    http::{Conn, Response},
    process::{Gate, Site},
    store::Store,
};

/// All forms in which a secret could leak.
fn spellings(bytes: &[u8]) -> Vec<String> {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let list = format!("{bytes:?}");
    let codes = [BASE64_URL_SAFE_NO_PAD.encode(bytes), BASE64_STANDARD.encode(bytes)];
    [hex.to_uppercase(), hex, list.trim_matches(['[', ']']).to_owned()].into_iter().chain(codes).collect()
}

fn secret_of(token: &str) -> Vec<u8> {
    BASE64_URL_SAFE_NO_PAD.decode(token.rsplit('.').next().unwrap()).unwrap()
}

/// Answers of the gate, except those that hand a token to its holder.
#[derive(Default)]
struct Responses(Vec<Response>);

impl Responses {
    fn note(&mut self, answer: Response) -> &Response {
        self.0.push(answer);
        self.0.last().unwrap()
    }

    fn text(&self) -> String {
        self.0
            .iter()
            .map(|answer| format!("{:?} {}\n", answer.headers, String::from_utf8_lossy(&answer.body)))
            .collect()
    }
}

/// Writes and lease calls of every kind, good and bad.
fn exercise(gate: &Gate, responses: &mut Responses) -> Vec<String> {
    let mut api = gate.api();
    let first = acquire(&mut api, "users", "a", 1_000);
    let (path, body) = renewal(&first, 60_000);
    api.post(&path, &body).expect(200);
    let token = text(&first, "fence_token").to_owned();
    let mut conn = gate.gate();
    for headers in [
        vec![("fence-token", token.as_str())],
        vec![("fence-token", token.as_str()), ("x-store", "reset")],
        vec![("fence-token", token.as_str()), ("fence-token", token.as_str())],
        vec![("fence-token", token.as_str()), ("connection", "fence-token")],
    ] {
        for path in ["/users/1", "/orders/1", "/users/../1", "/"] {
            responses.note(conn.call("PUT", path, &headers, b"value"));
            conn = gate.gate();
        }
    }
    let forged = format!("{}AAAAAAAAAAAAAAAAAAAAAA", token.strip_suffix(token.rsplit('.').next().unwrap()).unwrap());
    for bad in [forged.as_str(), &token[..token.len() - 1], &format!("{token}="), &format!("{token}, {token}")] {
        responses.note(gate.gate().call("PUT", "/users/1", &[("fence-token", bad)], b"value"));
    }
    over_http_2(gate, &token);
    let wrong = json!({ "fence_token": format!("{token}x"), "holder_id": "a", "ttl_ms": 5_000 });
    responses.note(api.post(&path, &wrong));
    let wrong = json!({ "fence_token": token, "holder_id": "b", "ttl_ms": 5_000 });
    responses.note(api.post(&path, &wrong));
    responses.note(api.post("/v1/tokens/check", &json!({ "fence_token": token, "nonsense": token })));
    responses.note(api.post("/v1/tokens/check", &json!({ "fence_token": token })));
    let (_, rotate) = renewal(&first, 60_000);
    let rotate = with(rotate, "rotate", true.into());
    let second = api.post(&path, &rotate).expect(200);
    responses.note(gate.gate().call("PUT", "/users/1", &[("fence-token", &token)], b"value"));
    for path in ["/v1/leases", "/v1/objects/users", "/v1/receipts", "/v1/openapi.json"] {
        responses.note(api.get(path));
    }
    responses.note(api.get(&format!("/v1/leases/{}", text(&second, "lease_id"))));
    responses.note(api.delete(&format!("/v1/leases/{}", text(&second, "lease_id")), text(&second, "fence_token")));
    responses.note(gate.ops().get("/metrics"));
    vec![token, text(&second, "fence_token").to_owned()]
}

fn with(mut body: Value, name: &str, value: Value) -> Value {
    body[name] = value;
    body
}

fn over_http_2(gate: &Gate, token: &str) {
    let header = format!("fence-token: {token}");
    let done = Command::new("curl")
        .args(["-s", "--http2-prior-knowledge", "-o", "/dev/null", "-X", "PUT", "-d", "value", "-H", &header])
        .arg(format!("http://{}/users/1", gate.gate))
        .status();
    assert!(done.unwrap().success());
}

fn watch(gate: &Gate) -> Conn {
    let mut stream = gate.api();
    stream.send("GET", "/v1/watch", &[], b"").unwrap();
    stream
}

#[test]
fn no_secret_is_in_a_log_a_body_a_receipt_or_a_metric() {
    let store = Store::start();
    let site = Site::with_table();
    let config = fs::read_to_string(site.config()).unwrap();
    let config = config.replace("format = 'json'", "format = 'json'\nlevel = 'trace'");
    fs::write(site.config(), format!("{config}[store]\nurl = '{}'\n", store.url())).unwrap();
    let gate = site.serve();
    let mut events = watch(&gate);
    let mut responses = Responses::default();
    let tokens = exercise(&gate, &mut responses);
    gate.signal(Signal::HUP);
    gate.stop();
    // The stream has ended with the gate.
    let mut seen = String::new();
    while let Ok(line) = events.read_line() {
        seen.push_str(&line);
    }
    let log = site.log();
    assert!(log.contains("\"TRACE\"") && log.contains("\"DEBUG\""), "the log is not at its most talkative");
    assert!(
        seen.contains("granted") && responses.text().contains("WRITE_STALE_FENCE"),
        "too little was received: {seen}"
    );
    let stored = serde_json::to_string(&store.applied()).unwrap();
    let mut secrets: Vec<Vec<u8>> = tokens.iter().map(|token| secret_of(token)).collect();
    secrets.push(fs::read(site.data().join("key")).unwrap());
    for spelling in secrets.iter().flat_map(|secret| spellings(secret)) {
        for (place, text) in
            [("the log", &log), ("an answer", &responses.text()), ("an event", &seen), ("what the store got", &stored)]
        {
            assert!(!text.contains(&spelling), "a secret is in {place}");
        }
    }
}

#[test]
fn the_search_for_secrets_finds_one() {
    let bytes: Vec<u8> = (0..16).map(|n| n * 16 + 1).collect();
    let found = |text: &str| spellings(&bytes).iter().any(|spelling| text.contains(spelling.as_str()));
    assert!(found(&format!("token fg1.1.dXNlcnM.{}", BASE64_URL_SAFE_NO_PAD.encode(&bytes))));
    assert!(found(&format!("Secret({bytes:?})")));
    assert!(!found("Secret(***)"));
}
