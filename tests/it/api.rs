//! Bad input, the ops port, and the description of the api.

use serde_json::json;

use super::support::gate::{TestGate, acquire, text, wanted};

const JSON: (&str, &str) = ("content-type", "application/json");

#[test]
fn what_is_wrong_with_a_body_is_named_by_its_field() {
    let gate = TestGate::start();
    let mut api = gate.api();
    let long = "x".repeat(1_025);
    let rows = [
        (json!({ "holder_id": "a" }), "object_id"),
        (json!({ "object_id": "o" }), "holder_id"),
        (json!({ "object_id": 1, "holder_id": "a" }), "object_id"),
        (json!({ "object_id": "", "holder_id": "a" }), "object_id"),
        (json!({ "object_id": "a\nb", "holder_id": "a" }), "object_id"),
        (json!({ "object_id": long, "holder_id": "a" }), "object_id"),
        (json!({ "object_id": "o", "holder_id": long }), "holder_id"),
        (json!({ "object_id": "o", "holder_id": "a\u{7f}" }), "holder_id"),
        (json!({ "object_id": "o", "holder_id": "a", "ttl_ms": 9 }), "ttl_ms"),
        (json!({ "object_id": "o", "holder_id": "a", "ttl_ms": 3_600_001 }), "ttl_ms"),
        (json!({ "object_id": "o", "holder_id": "a", "ttl_ms": -1 }), "ttl_ms"),
        (json!({ "object_id": "o", "holder_id": "a", "ttl_ms": 1.5 }), "ttl_ms"),
        (json!({ "object_id": "o", "holder_id": "a", "ttl_ms": "1" }), "ttl_ms"),
        (json!({ "object_id": "o", "holder_id": "a", "wait_ms": 300_001 }), "wait_ms"),
        (json!({ "object_id": "o", "holder_id": "a", "request_id": "" }), "request_id"),
        (json!({ "object_id": "o", "holder_id": "a", "takeover": 1 }), "takeover"),
        (json!({ "object_id": "o", "holder_id": "a", "tll_ms": 1 }), "tll_ms"),
        (json!(["o", "h", 5000, null, null, null]), "body"),
        (json!([]), "body"),
        (json!("x"), "body"),
    ];
    for (body, field) in rows {
        let refused = api.post("/v1/leases", &body).refusal(400, "REQUEST_INVALID");
        assert_eq!(text(&refused, "field"), field, "{body}: {refused}");
    }
    for raw in ["", "{", "{}x", "{\"object_id\":\"a\",\"object_id\":\"b\",\"holder_id\":\"h\"}", "\u{0}"] {
        api.call("POST", "/v1/leases", &[JSON], raw.as_bytes()).refusal(400, "REQUEST_INVALID");
    }
    let none = api.get("/v1/objects/o").expect(200);
    assert_eq!(none["fence"], 0, "a refused request changes nothing");
}

#[test]
fn batches_lists_and_ids_in_paths_are_checked_too() {
    let gate = TestGate::start();
    let mut api = gate.api();
    let many: Vec<_> = (0..129).map(|n| format!("o{n}")).collect();
    for (objects, field) in [
        (json!([]), "object_ids"),
        (json!(many), "object_ids"),
        (json!(["a", "a"]), "object_ids"),
        (json!(["a", ""]), "object_ids[1]"),
        (json!(["a", 7]), "object_ids[1]"),
        (json!("a"), "object_ids"),
    ] {
        let body = json!({ "object_ids": objects, "holder_id": "h" });
        let refused = api.post("/v1/lease-batches", &body).refusal(400, "REQUEST_INVALID");
        assert_eq!(text(&refused, "field"), field, "{refused}");
    }
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("cursor=*", "cursor"),
        ("cursor=AAAA", "cursor"),
        ("prefix=b&cursor=bGEAAAAAAAAAAAE", "cursor"),
        ("state=lost", "state"),
        ("colour=red", "colour"),
        ("holder_id=", "holder_id"),
        ("prefix=%ff", "query"),
    ] {
        let refused = api.get(&format!("/v1/leases?{query}")).refusal(400, "REQUEST_INVALID");
        assert_eq!(text(&refused, "field"), field, "{query}: {refused}");
    }
    assert_eq!(api.get("/v1/leases?prefix=a&cursor=bGEAAAAAAAAAAAE").expect(200)["leases"], json!([]));
    for path in ["/v1/objects/%ff", "/v1/objects/a%00b", "/v1/leases/%0a"] {
        api.get(path).refusal(400, "REQUEST_INVALID");
    }
    api.get("/v1/leases/nope").refusal(404, "LEASE_NOT_FOUND");
    api.get("/v2/leases").refusal(404, "NOT_FOUND");
    api.call("PATCH", "/v1/leases", &[], b"").refusal(405, "METHOD_NOT_ALLOWED");
}

#[test]
fn only_json_is_read_so_that_a_web_page_cannot_call() {
    let gate = TestGate::start();
    let mut api = gate.api();
    let body = wanted("o", "h", 1_000).to_string();
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
        let refused = api.call("POST", "/v1/leases", &[("content-type", kind)], body.as_bytes());
        assert_eq!(text(&refused.refusal(400, "REQUEST_INVALID"), "field"), "Content-Type");
    }
    api.call("POST", "/v1/leases", &[], body.as_bytes()).refusal(400, "REQUEST_INVALID");
    let good = [("content-type", "Application/JSON; charset=utf-8")];
    api.call("POST", "/v1/leases", &good, body.as_bytes()).expect(201);
    let huge = vec![b' '; 3 << 20];
    gate.api().call("POST", "/v1/leases", &[JSON], &huge).refusal(413, "REQUEST_LIMIT");
}

/// Sends a head unchanged, followed by an acquire. Returns the status and the code of the answer.
fn sent_raw(address: std::net::SocketAddr, head: &str) -> (u16, Option<String>) {
    let body = wanted("o", "h", 1_000).to_string();
    let mut conn = super::support::http::Conn::open(address).unwrap();
    let more = format!("content-type: application/json\r\nconnection: close\r\ncontent-length: {}", body.len());
    conn.send_raw(format!("{head}{more}\r\n\r\n{body}").as_bytes()).unwrap();
    let answer = conn.receive().unwrap();
    (answer.status, answer.header("fence-error").map(str::to_owned))
}

#[test]
fn a_web_page_under_a_name_of_its_own_cannot_call() {
    let gate = TestGate::start();
    let (api, ops) = (gate.running().api, gate.running().ops);
    let refused = (403, Some("NOT_LOOPBACK".to_owned()));
    for host in [
        "evil.example",
        "evil.example:8081",
        "localhost.evil.example",
        "",
        "[::1].evil",
        "[::1].evil:8081",
        "[::1]evil",
        "user@localhost",
        "localhost:x",
    ] {
        for (address, path) in [(api, "/v1/leases"), (ops, "/drain")] {
            assert_eq!(sent_raw(address, &format!("POST {path} HTTP/1.1\r\nhost: {host}\r\n")), refused, "{host}");
        }
    }
    for host in ["localhost", "LOCALHOST:8081", "127.0.0.1:8081", "[::1]:8081"] {
        let (status, _) = sent_raw(api, &format!("POST /v1/leases HTTP/1.1\r\nhost: {host}\r\n"));
        assert_ne!(status, 403, "{host}");
    }
    assert_eq!(gate.ops().get("/readyz").status, 200);
}

#[test]
fn a_web_page_of_another_origin_cannot_call() {
    let gate = TestGate::start();
    let (api, ops) = (gate.running().api, gate.running().ops);
    let refused = (403, Some("NOT_LOOPBACK".to_owned()));
    let head =
        |path: &str, origin: &str| format!("POST {path} HTTP/1.1\r\nhost: 127.0.0.1:8081\r\norigin: {origin}\r\n");
    for origin in
        ["http://evil.example", "null", "", "http://127.0.0.1", "https://127.0.0.1:8081", "http://localhost:8081"]
    {
        assert_eq!(sent_raw(api, &head("/v1/leases", origin)), refused, "{origin}");
        assert_eq!(sent_raw(ops, &head("/drain", origin)), refused, "{origin}");
    }
    let two = head("/v1/leases", "http://127.0.0.1:8081\r\norigin: http://evil.example");
    assert_eq!(sent_raw(api, &two), refused);
    assert_eq!(sent_raw(ops, &head("/drain", "http://127.0.0.1:8081")), refused, "no page at all may drain");
    let fences = gate.api().get("/v1/objects/o").expect(200);
    assert_eq!(fences["fence"], 0, "a refused call changes nothing");
    assert_eq!(sent_raw(api, &head("/v1/leases", "http://127.0.0.1:8081")).0, 201, "a page of its own may");
}

#[test]
fn a_call_names_one_host_and_has_a_path_for_its_target() {
    let gate = TestGate::start();
    let (api, ops) = (gate.running().api, gate.running().ops);
    let refused = (400, Some("REQUEST_INVALID".to_owned()));
    for hosts in ["localhost\r\nhost: localhost", "localhost\r\nhost: evil.example", "evil.example\r\nHOST: localhost"]
    {
        assert_eq!(sent_raw(api, &format!("POST /v1/leases HTTP/1.1\r\nhost: {hosts}\r\n")), refused, "{hosts}");
        assert_eq!(sent_raw(ops, &format!("POST /drain HTTP/1.1\r\nhost: {hosts}\r\n")), refused, "{hosts}");
    }
    for authority in ["localhost", "evil.example", "127.0.0.1:8081", "[::1]"] {
        let head = |path: &str| format!("POST http://{authority}{path} HTTP/1.1\r\nhost: localhost\r\n");
        assert_eq!(sent_raw(api, &head("/v1/leases")), refused, "{authority}");
        assert_eq!(sent_raw(ops, &head("/drain")), refused, "{authority}");
    }
    assert_eq!(gate.api().get("/v1/objects/o").expect(200)["fence"], 0, "a refused call changes nothing");
    assert_eq!(gate.ops().get("/readyz").status, 200);
}

#[test]
fn a_change_whose_sync_failed_is_said_to_be_maybe() {
    let gate = TestGate::start();
    let mut api = gate.api();
    let lease = acquire(&mut api, "users", "a", 60_000);
    gate.table.fail_next(fencegate::table::memory::DiskFault::Sync);
    let unsure = api.post("/v1/leases", &wanted("orders", "a", 1_000));
    assert_eq!((unsure.status, unsure.json()["side_effect"].as_str()), (503, Some("maybe")));
    assert_eq!(text(&unsure.json(), "code"), "TABLE_UNAVAILABLE");
    let (renew, body) = super::support::gate::renewal(&lease, 60_000);
    api.post(&renew, &body).refusal(503, "TABLE_UNAVAILABLE");
    assert!(gate.shows("lease_renewal_rejected_total{reason=\"unavailable\"} 1\n"));
    assert!(
        gate.shows("fencegate_lease_events_total{event=\"granted\"} 1\n"),
        "what was not made durable is not counted"
    );
}

#[test]
fn a_table_that_cannot_be_read_refuses_and_says_so() {
    let gate = TestGate::start();
    let mut api = gate.api();
    gate.table.fail_reads(true);
    api.post("/v1/leases", &wanted("users", "a", 1_000)).refusal(503, "TABLE_UNAVAILABLE");
    api.get("/v1/objects/users").refusal(503, "TABLE_UNAVAILABLE");
    api.get("/v1/leases/x").refusal(503, "TABLE_UNAVAILABLE");
    let token = "fg1.1.dXNlcnM.AAAAAAAAAAAAAAAAAAAAAA";
    let verdict = api.post("/v1/tokens/check", &json!({ "fence_token": token })).expect(200);
    assert_eq!(text(&verdict, "code"), "TABLE_UNAVAILABLE");
    gate.table.fail_reads(false);
    assert_eq!(acquire(&mut api, "users", "a", 1_000)["lease_seq"], 1);
}

#[test]
fn the_ops_port_probes_measures_and_drains() {
    let gate = TestGate::start();
    let (mut api, mut ops) = (gate.api(), gate.ops());
    let lease = acquire(&mut api, "users", "a", 60_000);
    assert_eq!((ops.get("/livez").status, ops.get("/readyz").status), (200, 200));
    let metrics = ops.get("/metrics");
    assert_eq!(metrics.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert_eq!(
        metrics.header("connection"),
        Some("close"),
        "a caller that asks again and again without reading gets it once"
    );
    let metrics = String::from_utf8(metrics.body).unwrap();
    let mut ops = gate.ops();
    for line in [
        "# TYPE fencegate_ledger_commit_seconds histogram",
        "fencegate_lease_events_total{event=\"granted\"} 1",
        "fencegate_table_latched 0",
    ] {
        assert!(metrics.contains(line), "{line}");
    }
    assert!(!metrics.contains("users") && !metrics.contains("fg1."), "no object and no token in a metric");
    ops.get("/nope").refusal(404, "NOT_FOUND");
    ops.get("/drain").refusal(405, "METHOD_NOT_ALLOWED");
    assert_eq!(ops.call("POST", "/drain", &[], b"").body, b"drained\n");
    assert_eq!((ops.get("/livez").status, ops.get("/readyz").status), (200, 503));
    api.post("/v1/leases", &wanted("orders", "a", 1_000)).refusal(503, "GATE_STOPPING");
    // A holder can still release its lease.
    api.delete(&format!("/v1/leases/{}", text(&lease, "lease_id")), text(&lease, "fence_token")).expect(200);
}

#[test]
fn the_api_describes_itself() {
    let gate = TestGate::start();
    let mut api = gate.api();
    let described = api.get("/v1/openapi.json").expect(200);
    let paths = described["paths"].as_object().unwrap();
    for path in [
        "/v1/leases",
        "/v1/lease-batches",
        "/v1/leases/{lease_id}",
        "/v1/leases/{lease_id}/renew",
        "/v1/objects/{object_id}",
        "/v1/objects/{object_id}/revoke",
        "/v1/tokens/check",
        "/v1/receipts",
        "/v1/routes",
        "/v1/watch",
    ] {
        assert!(paths.contains_key(path), "{path} is not described");
    }
    assert_eq!(api.get("/v1/receipts").expect(200), json!({ "receipts": [] }));
    let operations: Vec<_> = paths.values().flat_map(|path| path.as_object().unwrap().values()).collect();
    let mut ids: Vec<_> = operations.iter().map(|operation| text(operation, "operationId")).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), operations.len(), "every operation has an id of its own");
    for (path, item) in paths {
        for parameter in
            item.as_object().unwrap().values().filter_map(|operation| operation["parameters"].as_array()).flatten()
        {
            let (name, place) = (text(parameter, "name"), text(parameter, "in"));
            assert_eq!(place == "path", path.contains(&format!("{{{name}}}")), "{path}: {name} is in {place}");
            let is_required = parameter["required"] == true;
            assert!(place != "query" || is_required == (name == "domain"), "{path}: {name}");
        }
    }
}
