//! Writes and reads through the gate, over raw sockets, against a recording store in another process: what the gate
//! changes and what it does not, modes, timeouts. The refusals are in `conformance`.

use std::{
    io::{Read, Write},
    net::TcpStream,
    process::Command,
};

use fencegate::config::{Mode, RouteSettings, Settings};
use serde_json::Value;

use super::support::{
    bench::Bench,
    gate::{acquire, text},
    process::binary,
    run::Ends,
    until,
};

#[test]
fn a_fenced_write_is_forwarded_with_its_number_and_without_its_token() {
    let bench = Bench::new();
    let headers = [
        ("fence-token", bench.token()),
        ("fence-seq", "777"),
        ("x-mine", "1"),
        ("connection", "x-hop"),
        ("x-hop", "1"),
    ];
    let answer = bench.put("/users/1?a=b%20c", &headers);
    assert_eq!((answer.status, answer.body.as_slice()), (200, &b"PUT /users/1?a=b%20c 5\n"[..]));
    assert_eq!((answer.header("fence-seq"), answer.header("fence-outcome")), (Some("1"), Some("settled")));
    assert_eq!((answer.header("fence-expires-in"), answer.header("x-kept")), (Some("60000"), Some("yes")));
    let applied = bench.store.applied();
    let sent = &applied[0]["headers"];
    assert_eq!(
        (&sent["fence-seq"], &sent["fence-object"], &sent["x-mine"]),
        (&"1".into(), &"users".into(), &"1".into())
    );
    assert_eq!(
        (&sent["fence-token"], &sent["x-hop"], &sent["content-length"]),
        (&Value::Null, &Value::Null, &"5".into())
    );
    assert_eq!((&sent["via"], &sent["x-forwarded-for"]), (&"1.1 fencegate".into(), &"127.0.0.1".into()));
    assert!(sent["x-request-id"].is_string());
}

#[test]
fn a_stale_an_expired_a_foreign_and_a_forged_token_are_refused() {
    let bench = Bench::new();
    let other = acquire(&mut bench.gate.api(), "orders", "a", 60_000);
    let answer = bench.put("/users/1", &[("fence-token", text(&other, "fence_token"))]);
    let mismatch = bench.refused(&answer, 409, "LEASE_OBJECT_MISMATCH");
    assert_eq!(text(&mismatch, "object_id"), "users");
    let forged = |seq: u64| format!("fg1.{seq}.dXNlcnM.AAAAAAAAAAAAAAAAAAAAAA");
    bench.refused(&bench.put("/users/1", &[("fence-token", &forged(1))]), 403, "FENCE_TOKEN_INVALID");
    let ahead = bench.refused(&bench.put("/users/1", &[("fence-token", &forged(9))]), 412, "WRITE_FENCE_AHEAD");
    assert_eq!((ahead["lease_seq"].as_u64(), ahead["fence"].as_u64()), (Some(9), Some(1)));
    bench.gate.clock.advance(60_000);
    let expired = bench.refused(&bench.put("/users/1", &[("fence-token", bench.token())]), 412, "LEASE_EXPIRED");
    assert_eq!(
        (expired["retryable"].as_bool(), text(&expired, "expired_at")),
        (Some(false), "2027-01-15T08:01:00.000Z")
    );
    acquire(&mut bench.gate.api(), "users", "b", 60_000);
    let stale = bench.refused(&bench.put("/users/1", &[("fence-token", bench.token())]), 412, "WRITE_STALE_FENCE");
    assert_eq!((stale["lease_seq"].as_u64(), stale["fence"].as_u64()), (Some(1), Some(2)));
    assert!(bench.gate.shows("stale_fencing_token_total{resource=\"default\"} 1\n"));
    let receipts = bench.gate.api().get("/v1/receipts").expect(200);
    let errors: Vec<_> =
        receipts["receipts"].as_array().unwrap().iter().map(|receipt| text(receipt, "error")).collect();
    assert_eq!(
        errors,
        ["WRITE_STALE_FENCE", "LEASE_EXPIRED", "WRITE_FENCE_AHEAD", "FENCE_TOKEN_INVALID", "LEASE_OBJECT_MISMATCH"]
    );
    assert_eq!(receipts["receipts"][0]["receipt_id"], stale["receipt_id"]);
}

#[test]
fn reads_pass_without_a_token_also_when_the_table_is_shut() {
    let bench = Bench::new();
    assert_eq!(bench.gate.gate().get("/users/1").status, 200);
    assert_eq!(bench.gate.gate().get("/users/../x").status, 200, "a read may be spelled as it likes");
    bench.gate.table.fail_next(fencegate::table::memory::DiskFault::Sync);
    bench.gate.api().post("/v1/objects/x/revoke", &serde_json::json!({ "reason": "fail" }));
    let answer = bench.put("/users/1", &[("fence-token", bench.token())]);
    answer.refusal(503, "TABLE_UNAVAILABLE");
    assert!(answer.header("retry-after").is_some());
    assert_eq!(bench.gate.gate().get("/users/1").status, 200);
    assert_eq!(bench.store.story(), ["GET /users/1", "GET /users/../x", "GET /users/1"]);
}

#[test]
fn a_verdict_comes_before_the_body_is_asked_for() {
    let bench = Bench::new();
    let mut conn = bench.gate.gate();
    let expect = |token: &str| {
        format!("PUT /users/1 HTTP/1.1\r\nhost: x\r\n{token}expect: 100-continue\r\ncontent-length: 5\r\n\r\n")
    };
    conn.send_raw(expect("").as_bytes()).unwrap();
    assert_eq!(conn.read_head().unwrap().0, 428, "refused, and no 100 before it");
    let mut conn = bench.gate.gate();
    conn.send_raw(expect(&format!("fence-token: {}\r\n", bench.token())).as_bytes()).unwrap();
    assert_eq!(conn.read_head().unwrap().0, 100);
    conn.send_raw(b"value").unwrap();
    assert_eq!(conn.receive().unwrap().status, 200);
    assert_eq!(bench.store.applied()[0]["headers"]["expect"], Value::Null);
}

#[test]
fn bodies_of_every_size_and_framing_arrive_whole() {
    let bench = Bench::new();
    let token = bench.token().to_owned();
    let mut conn = bench.gate.gate();
    for size in [0, 1, 65_535, 65_536, 65_537, 1 << 20, 5 << 20] {
        let answer = conn.call("PUT", "/users/1", &[("fence-token", &token)], &vec![7; size]);
        assert_eq!(answer.body, format!("PUT /users/1 {size}\n").as_bytes(), "{size}");
    }
    for pieces in [1, 3, 100] {
        let piece = format!("{:x}\r\n{}\r\n", 5_000, "x".repeat(5_000));
        let body = format!("{}0\r\n\r\n", piece.repeat(pieces));
        conn.send_raw(
            format!(
                "PUT /users/1 HTTP/1.1\r\nhost: x\r\nfence-token: {token}\r\ntransfer-encoding: chunked\r\n\r\n{body}"
            )
            .as_bytes(),
        )
        .unwrap();
        let answer = conn.receive().unwrap();
        assert_eq!(answer.body, format!("PUT /users/1 {}\n", 5_000 * pieces).as_bytes());
    }
}

#[test]
fn http_2_goes_the_same_way() {
    let bench = Bench::new();
    let url = format!("http://{}/users/1", bench.gate.running().listens);
    let curl = |arguments: &[&str]| {
        let mut command = Command::new("curl");
        command
            .args(["-s", "--http2-prior-knowledge", "-w", " %{http_version} %{http_code}"])
            .args(arguments)
            .arg(&url);
        String::from_utf8(command.ends().stdout).unwrap()
    };
    let token = format!("fence-token: {}", bench.token());
    assert_eq!(curl(&["-X", "PUT", "-d", "value", "-H", &token]), "PUT /users/1 5\n 2 200");
    assert!(curl(&["-X", "PUT", "-d", "value"]).ends_with(" 2 428"));
    assert_eq!(curl(&[]), "GET /users/1 0\n 2 200");
    assert_eq!(bench.store.story(), ["PUT /users/1", "GET /users/1"]);
}

#[test]
fn a_reads_body_arrives_where_its_route_says_so_however_it_is_framed() {
    let bench = Bench::with(bodies_on_reads);
    let chunked = "GET /users/1 HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nvalue\r\n0\r\n\r\n";
    let lengthy = "GET /users/1 HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nvalue";
    for request in [chunked, lengthy] {
        assert_eq!(bench.raw(request.as_bytes()).body, b"GET /users/1 5\n");
    }
}

fn bodies_on_reads(settings: &mut Settings) {
    settings.route = vec![RouteSettings { bodies_on_reads: true, ..RouteSettings::default() }];
}

/// A client that breaks off its own request says nothing about the store.
#[test]
fn a_reads_body_that_breaks_off_is_not_blamed_on_the_store() {
    let bench = Bench::with(bodies_on_reads);
    for size in [5, 100_000] {
        let value = "v".repeat(size);
        let request = format!(
            "GET /users/1 HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n{size:x}\r\n{value}\r\nzz\r\n"
        );
        bench.raw(request.as_bytes()).refusal(422, "BODY_UNREADABLE");
    }
    assert!(bench.gate.shows("fencegate_refusals_total{code=\"STORE_UNREACHABLE\"} 0\n"));
}

#[test]
fn an_answer_that_stalls_is_given_up_for_reads_and_writes_alike() {
    // The beginning of the answer must come within this time.
    let bench = Bench::with(|settings| settings.store.response_timeout_ms = 1_500);
    let wish = [("fence-token", bench.token()), ("x-store", "stall")];
    bench.put("/users/1", &wish).unknown();
    let read = bench.gate.gate().try_call("GET", "/users/1", &wish[1..], b"");
    assert!(read.is_err(), "half an answer is no answer: {read:?}");
    until("no connection to the store is busy", || bench.gate.shows("fencegate_store_connections{state=\"busy\"} 0\n"));
}

#[test]
fn a_store_that_changes_the_protocol_unasked_has_not_answered() {
    let bench = Bench::new();
    bench.put("/users/1", &[("fence-token", bench.token()), ("x-store", "101")]).unknown();
    bench.gate.gate().call("GET", "/users/1", &[("x-store", "101")], b"").refusal(502, "STORE_UNREACHABLE");
}

#[test]
fn an_empty_write_says_so() {
    let bench = Bench::new();
    let answer = bench.gate.gate().call("PUT", "/users/1", &[("fence-token", bench.token())], b"");
    assert_eq!(answer.status, 200);
    assert_eq!(bench.store.applied()[0]["headers"]["content-length"], "0");
}

#[test]
fn an_http_2_client_that_takes_nothing_is_let_go() {
    let bench = Bench::with(|settings| settings.gate.body_timeout_ms = 1_000);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let address = bench.gate.running().listens;
    let (answer, connection) = runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let mut builder = ::h2::client::Builder::new();
        let (sender, connection) = builder.initial_window_size(0).handshake::<_, bytes::Bytes>(stream).await.unwrap();
        let connection = tokio::spawn(connection);
        let mut sender = sender.ready().await.unwrap();
        let request = http::Request::get(format!("http://{address}/users/1")).header("x-store", "large:1000000");
        (sender.send_request(request.body(()).unwrap(), true).unwrap().0.await.unwrap(), connection)
    });
    assert_eq!(answer.status(), 200);
    until("the connection to the store is free again", || {
        bench.gate.clock.advance(100);
        bench.gate.shows("fencegate_store_connections{state=\"busy\"} 0\n") && connection.is_finished()
    });
}

#[test]
fn a_drain_waits_for_writes_on_their_way_and_lets_no_more_begin() {
    let bench = Bench::new();
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let wish = format!("until:{}", go.display());
    let mut write = bench.gate.gate();
    write.send("PUT", "/users/1", &[("fence-token", bench.token()), ("x-store", &wish)], b"value").unwrap();
    until("the store has it", || bench.store.story().len() == 1);
    let mut ops = bench.gate.ops();
    ops.send("POST", "/drain", &[], b"").unwrap();
    let mut other = bench.gate.ops();
    until("the drain has begun", || other.get("/readyz").status == 503);
    let late = bench.put("/users/1", &[("fence-token", bench.token())]);
    late.refusal(503, "GATE_STOPPING");
    assert_eq!(bench.gate.gate().get("/users/1").status, 200, "reads go on");
    std::fs::write(go, "").unwrap();
    assert_eq!(write.receive().unwrap().status, 200, "it was not cut short");
    assert_eq!(ops.receive().unwrap().body, b"drained\n");
    bench.put("/users/1", &[("fence-token", bench.token())]).refusal(503, "GATE_STOPPING");
    let puts = bench.store.story().into_iter().filter(|line| line.starts_with("PUT")).count();
    assert_eq!(puts, 1);
}

#[test]
fn audit_never_refuses_not_even_at_the_last_moment() {
    let bench = Bench::with(|settings| {
        settings.route = vec![RouteSettings { mode: Mode::Audit, ..RouteSettings::default() }];
    });
    let mut conn = bench.gate.gate();
    let token = bench.token();
    let head = format!(
        "PUT /users/1 HTTP/1.1\r\nhost: x\r\nfence-token: {token}\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n"
    );
    conn.send_raw(head.as_bytes()).unwrap();
    assert_eq!(conn.read_head().unwrap().0, 100);
    bench.gate.clock.advance(60_000);
    conn.send_raw(b"value").unwrap();
    assert_eq!(conn.receive().unwrap().status, 200);
}

#[test]
fn audit_forwards_and_says_what_would_have_been_and_off_does_not_look() {
    let route = |name: &str, mode| RouteSettings {
        name: name.to_owned(),
        path: format!("/{name}/{{object}}/{{rest...}}"),
        object: "{object}".to_owned(),
        mode,
        ..RouteSettings::default()
    };
    let bench = Bench::with(|settings| settings.route = vec![route("audit", Mode::Audit), route("off", Mode::Off)]);
    let audit = bench.put("/audit/users/1", &[]);
    assert_eq!((audit.status, audit.header("fence-would")), (200, Some("WRITE_UNFENCED")));
    let good = bench.put("/audit/users/1", &[("fence-token", bench.token())]);
    assert_eq!((good.status, good.header("fence-would"), good.header("fence-seq")), (200, None, Some("1")));
    let off = bench.put("/off/users/1", &[("fence-token", "nonsense")]);
    assert_eq!((off.status, off.header("fence-would")), (200, None));
    assert_eq!(bench.store.applied()[2]["headers"]["fence-token"], Value::Null, "a token never goes further");
    bench.put("/audit/../users/1", &[]).refusal(422, "PATH_AMBIGUOUS");
}

#[test]
fn a_client_that_hangs_up_does_not_make_its_write_invisible() {
    let bench = Bench::with(|settings| settings.store.response_timeout_ms = 60_000);
    let active = |n: u32| format!("active_fenced_operations{{resource=\"default\",operation=\"put\"}} {n}\n");
    let mut conn = bench.gate.gate();
    conn.send("PUT", "/users/1", &[("fence-token", bench.token()), ("x-store", "hang")], b"value").unwrap();
    until("the store has it", || !bench.store.story().is_empty());
    until("it is counted", || bench.gate.shows(&active(1)) && bench.gate.shows("fencegate_connections 1\n"));
    drop(conn);
    // The gate answers other requests, and still counts this one when it knows that its client is gone.
    assert_eq!(bench.put("/users/2", &[("fence-token", bench.token())]).status, 200);
    until("the gate has no client", || bench.gate.shows("fencegate_connections 0\n"));
    assert!(bench.gate.shows(&active(1)));
}

#[test]
fn slow_and_silent_clients_are_let_go() {
    let bench = Bench::with(|settings| {
        settings.gate.head_timeout_ms = 200;
        settings.gate.idle_timeout_ms = 300;
    });
    let closes = |start: &[u8], served: bool| {
        let mut stream = TcpStream::connect(bench.gate.running().listens).unwrap();
        stream.write_all(start).unwrap();
        let mut seen = vec![];
        // The test drives the gate's clock: it moves the clock until the connection is closed.
        stream.set_read_timeout(Some(std::time::Duration::from_millis(50))).unwrap();
        until("the connection is closed", || {
            bench.gate.clock.advance(50);
            let mut buffer = [0; 1024];
            match stream.read(&mut buffer) {
                Ok(0) => true,
                Ok(read) => {
                    seen.extend_from_slice(&buffer[..read]);
                    false
                }
                Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
            }
        });
        assert_eq!(seen.starts_with(b"HTTP/1.1 200"), served);
    };
    closes(b"", false);
    closes(b"GET /us", false);
    closes(b"PRI * HTTP/2.0\r\n", false);
    closes(b"GET /users/1 HTTP/1.1\r\nhost: x\r\n\r\n", true);
    closes(b"GET /users/1 HTTP/1.1\r\nhost: x\r\n\r\nGET /", true);
}

#[test]
fn a_port_that_another_process_shares_is_an_error() {
    use socket2::{Domain, Socket, Type};
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_port(true).unwrap();
    socket.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
    socket.listen(1).unwrap();
    let taken = socket.local_addr().unwrap().as_socket().unwrap();
    let site = super::support::process::Site::with_table();
    let config = std::fs::read_to_string(site.config()).unwrap();
    std::fs::write(site.config(), config.replacen("127.0.0.1:0", &taken.to_string(), 1)).unwrap();
    let refused = Command::new(binary()).args(["serve", "--config"]).arg(site.config()).ends();
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("gate.listen: cannot listen"), "{refused:?}");
}
