//! 100-continue, trailers, large headers and chunks, both ways and on both protocols.

use std::io::Write;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request};
use serde_json::{Value, json};
use tokio::runtime;

use super::{HTTP_1, HTTP_2, Line, Text, connect, printed, settled, whole};
use crate::support::{h2::H2, run::Ends};

const PROTOCOLS: [&str; 2] = [HTTP_1, HTTP_2];
/// The largest body that is held; longer ones stream.
const HOLD_BYTES: usize = 65_536;

#[test]
fn a_body_is_asked_for_only_once_its_write_may_go_on() {
    const SIZE: usize = 8 << 20;
    let line = Line::new();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&Text::first(SIZE)).unwrap();
    // curl waits for the verdict as long as it takes, and reports how much it has sent.
    let expect = ["-H", "expect: 100-continue", "--expect100-timeout", "300", "-T"];
    let mut refused = line.curl(HTTP_1, "/users/1");
    refused.args(expect).arg(file.path()).args(["-w", " %{http_code} %{size_upload}"]);
    let output = refused.ends();
    let said = String::from_utf8_lossy(printed(&output)).into_owned();
    assert!(said.contains("WRITE_UNFENCED") && said.ends_with(" 428 0"), "{said}");
    assert_eq!(line.store.writes_once_each(), 0);
    let mut accepted = line.fenced_curl(HTTP_1, "/users/1");
    let output = accepted.args(expect).arg(file.path()).ends();
    let came = whole(printed(&output), SIZE as u64);
    assert_eq!(came["headers"]["expect"], Value::Null, "what was asked of the gate is not asked of the store");
    assert_eq!(line.store.writes_once_each(), 1);
}

/// HTTP/2 needs no 100 Continue for an early answer. curl does not wait there, so this test uses another client.
#[test]
fn an_http_2_client_that_waits_with_its_body_is_refused_without_it() {
    let line = Line::new();
    let mut h2 = H2::open(line.gate.gate);
    let expect = ("expect", "100-continue");
    // The client never sends any of the body.
    let refused = h2.begin("PUT", "/users/1", &[expect, ("content-length", "8388608")]);
    refused.receive().unwrap().refusal(428, "WRITE_UNFENCED");
    assert_eq!(line.store.writes_once_each(), 0);
    let mut accepted = h2.begin("PUT", "/users/1", &[expect, ("fence-token", &line.token)]);
    accepted.send(&Text::first(300_000), true);
    let came = settled(&accepted.receive().unwrap(), 300_000);
    assert_eq!(came["headers"]["expect"], Value::Null, "what was asked of the gate is not asked of the store");
    assert_eq!(line.store.writes_once_each(), 1);
}

#[test]
fn a_refusal_reaches_an_http_2_client_that_is_still_sending() {
    let line = Line::new();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&Text::first(HOLD_BYTES - 1)).unwrap();
    let mut refused = line.curl(HTTP_2, "/users/1");
    refused.arg("-T").arg(file.path()).args(["-w", " %{http_version} %{http_code}"]);
    let output = refused.ends();
    let said = String::from_utf8_lossy(printed(&output)).into_owned();
    assert!(said.contains("WRITE_UNFENCED") && said.ends_with(" 2 428"), "{said}");
    // A longer body is broken off. curl may treat that as a failure and forget the answer that it has got, so this test
    // uses another client.
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let status = runtime.block_on(async {
        let mut sender = connect(line.gate.gate).await.ready().await.unwrap();
        let request = Request::put(line.url("/users/1")).body(()).unwrap();
        let (response, mut body) = sender.send_request(request, false).unwrap();
        body.send_data(Bytes::from(Text::first(8 << 20)), true).unwrap();
        response.await.unwrap().status()
    });
    assert_eq!(status, 428);
    assert_eq!(line.store.writes_once_each(), 0);
}

/// A body in chunks of this size.
fn chunked(body: &[u8], size: usize) -> Vec<u8> {
    let mut framed = vec![];
    for chunk in body.chunks(size) {
        write!(framed, "{:x}\r\n", chunk.len()).unwrap();
        framed.extend_from_slice(chunk);
        framed.extend_from_slice(b"\r\n");
    }
    framed
}

#[test]
fn trailers_of_a_write_reach_the_store() {
    let line = Line::new();
    let wanted = json!({ "content-digest": "17", "content-md5": "b" });
    let mut conn = line.conn();
    for size in [0, 10, HOLD_BYTES, 300_000] {
        let head = format!(
            "PUT /users/1 HTTP/1.1\r\nhost: x\r\nfence-token: {}\r\ntransfer-encoding: chunked\r\n\
             trailer: content-digest, content-md5\r\n\r\n",
            line.token
        );
        let body = chunked(&Text::first(size), 10_007);
        let end = b"0\r\ncontent-digest: 17\r\ncontent-md5: b\r\n\r\n";
        conn.send_raw(&[head.as_bytes(), &body, end].concat()).unwrap();
        let came = settled(&conn.receive().unwrap(), size as u64);
        assert_eq!(came["trailers"], wanted, "{size} bytes over HTTP/1.1");
    }
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for size in [10, 300_000] {
        let came = runtime.block_on(put_with_trailers(&line, size));
        assert_eq!(whole(&came, size as u64)["trailers"], wanted, "{size} bytes over HTTP/2");
    }
}

/// Writes over HTTP/2, with trailers; returns the answer's body.
async fn put_with_trailers(line: &Line, size: usize) -> Vec<u8> {
    let mut sender = connect(line.gate.gate).await.ready().await.unwrap();
    let request = Request::put(line.url("/users/1"))
        .header("fence-token", &line.token)
        .header("trailer", "content-digest, content-md5")
        .body(())
        .unwrap();
    let (response, mut body) = sender.send_request(request, false).unwrap();
    body.send_data(Bytes::from(Text::first(size)), false).unwrap();
    let mut trailers = HeaderMap::new();
    trailers.insert("content-digest", HeaderValue::from_static("17"));
    trailers.insert("content-md5", HeaderValue::from_static("b"));
    body.send_trailers(trailers).unwrap();
    let response = response.await.unwrap();
    assert_eq!(response.status(), 200);
    let (mut body, mut whole) = (response.into_body(), vec![]);
    while let Some(data) = body.data().await {
        whole.extend_from_slice(&data.unwrap());
    }
    whole
}

#[test]
fn trailers_of_an_answer_reach_a_client_that_takes_them() {
    let line = Line::new();
    for protocol in PROTOCOLS {
        for (takes, size) in [("TE: trailers", 10), ("TE: trailers", 300_000), ("x-te: none", 10)] {
            let (head, body) = (tempfile::NamedTempFile::new().unwrap(), tempfile::NamedTempFile::new().unwrap());
            let mut curl = line.curl(protocol, &format!("/users/{size}?trailers"));
            curl.args(["-H", takes, "-D"]).arg(head.path()).arg("-o").arg(body.path());
            printed(&curl.ends());
            assert!(std::fs::read(body.path()).unwrap() == Text::first(size), "{protocol} {size}");
            // curl writes trailers where it writes headers.
            let head = std::fs::read_to_string(head.path()).unwrap();
            let has_trailer = head.lines().any(|each| each.eq_ignore_ascii_case(&format!("x-sum: {size}")));
            assert_eq!(has_trailer, takes == "TE: trailers", "{protocol} {takes}: {head}");
        }
    }
}

#[test]
fn large_headers_pass_both_ways_and_larger_ones_are_refused() {
    let line = Line::new();
    let (large, too_large) = ("a".repeat(20 << 10), "b".repeat(40 << 10));
    let answer = line.conn().call("PUT", "/users/1", &[("fence-token", &line.token), ("x-echo", &large)], b"");
    assert_eq!(settled(&answer, 0)["headers"]["x-echo"], large);
    assert!(answer.header("x-echo") == Some(large.as_str()), "the answer's header is not the same");
    let refused = line.conn().call("PUT", "/users/1", &[("fence-token", &line.token), ("x-echo", &too_large)], b"");
    refused.refusal(431, "REQUEST_LIMIT");
    line.conn().call("GET", "/users/1", &[("x-echo", &too_large)], b"").refusal(431, "REQUEST_LIMIT");

    let over_http_2 = |value: &str| {
        let mut curl = line.fenced_curl(HTTP_2, "/users/2");
        curl.args(["-X", "PUT", "-D", "-", "-o", "/dev/null", "-H"]).arg(format!("x-echo: {value}"));
        String::from_utf8(printed(&curl.ends()).to_vec()).unwrap()
    };
    let head = over_http_2(&large);
    assert!(head.starts_with("HTTP/2 200") && head.contains(&format!("x-echo: {large}\r\n")), "{head}");
    let head = over_http_2(&too_large);
    assert!(head.starts_with("HTTP/2 431") && head.contains("fence-error: REQUEST_LIMIT\r\n"), "{head}");
    assert_eq!(line.store.writes_once_each(), 2);
}

#[test]
fn chunked_writes_arrive_whole_whatever_their_size() {
    let line = Line::new();
    let mut conn = line.conn();
    for size in [0, 1, 10, HOLD_BYTES - 1, HOLD_BYTES, HOLD_BYTES + 1, 200_000, 5 << 20] {
        for chunk in [1_000, 70_001] {
            let head = format!(
                "PUT /users/{size}-{chunk} HTTP/1.1\r\nhost: x\r\nfence-token: {}\r\ntransfer-encoding: chunked\r\n\r\n",
                line.token
            );
            let body = chunked(&Text::first(size), chunk);
            conn.send_raw(&[head.as_bytes(), &body, b"0\r\n\r\n"].concat()).unwrap();
            settled(&conn.receive().unwrap(), size as u64);
        }
    }
    assert_eq!(line.store.writes_once_each(), 16);
}

#[test]
fn answers_of_unknown_length_arrive_whole_and_stay_of_unknown_length() {
    let line = Line::new();
    for protocol in PROTOCOLS {
        for size in [0, 10, 300_000, 5 << 20] {
            let body = tempfile::NamedTempFile::new().unwrap();
            let mut curl = line.curl(protocol, &format!("/users/{size}?chunked"));
            let output = curl.args(["-D", "-", "-o"]).arg(body.path()).ends();
            let head = String::from_utf8(printed(&output).to_vec()).unwrap().to_lowercase();
            assert!(!head.contains("content-length:"), "{head}");
            assert_eq!(head.contains("transfer-encoding: chunked"), protocol == HTTP_1, "{head}");
            assert!(std::fs::read(body.path()).unwrap() == Text::first(size), "{protocol} {size}");
        }
    }
}

#[test]
fn an_answer_of_unknown_length_leaves_its_connection_to_the_store_for_the_next() {
    let line = Line::with(&[("GATE__WORKERS", "1"), ("STORE__IDLE_TIMEOUT_MS", "600000")]);
    let connections = || line.store.report()["connections"].as_u64().unwrap();
    let before = connections();
    let mut curl = line.curl(HTTP_1, "/users/1000?chunked");
    for _ in 0..9 {
        curl.arg(line.url("/users/1000?chunked"));
    }
    let output = curl.ends();
    assert_eq!(printed(&output).len(), 10 * 1_000);
    assert_eq!(connections() - before, 2, "one for the ten, and one for asking");
}
