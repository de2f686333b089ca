//! The methods that write, and requests that could make a store see another method than the gate did.

use serde_json::Value;

use crate::support::{
    bench::Bench,
    h2::{PROTOCOL_ERROR, RawH2},
};

/// The methods of HTTP and WebDAV, others that stores know, unknown ones, and lower-case spellings. A method's name is
/// read as it is, so `get` is not a read.
const WRITES: [&str; 29] = [
    "PUT",
    "POST",
    "PATCH",
    "DELETE",
    "COPY",
    "MOVE",
    "MKCOL",
    "PROPPATCH",
    "PROPFIND",
    "LOCK",
    "UNLOCK",
    "ACL",
    "REPORT",
    "SEARCH",
    "MKCALENDAR",
    "BIND",
    "LINK",
    "UNLINK",
    "PURGE",
    "QUERY",
    "FROBNICATE",
    "X-1",
    "put",
    "post",
    "delete",
    "get",
    "Get",
    "head",
    "trace",
];

#[test]
fn every_method_but_three_writes() {
    let bench = Bench::new();
    for method in WRITES {
        println!("{method}");
        bench.refused(&bench.call(method, "/users/1", &[]), 428, "WRITE_UNFENCED");
        bench.refused(&bench.gate.gate().call(method, "/users/1", &[], b""), 428, "WRITE_UNFENCED");
    }
    let token = [("fence-token", bench.token())];
    for method in WRITES {
        let answer = bench.call(method, "/users/1", &token);
        assert_eq!((answer.status, answer.header("fence-outcome")), (200, Some("settled")), "{method}");
    }
    assert_eq!(bench.store.story(), WRITES.map(|method| format!("{method} /users/1")));
    for method in ["GET", "HEAD", "OPTIONS"] {
        let mut conn = bench.gate.gate();
        conn.send(method, "/users/1", &[], b"").unwrap();
        let (status, headers) = conn.read_head().unwrap();
        assert_eq!(status, 200, "{method} reads");
        assert!(headers.iter().all(|(name, _)| !name.eq_ignore_ascii_case("fence-seq")), "{method}: {headers:?}");
    }
}

#[test]
fn every_method_but_three_writes_on_http_2_too() {
    let bench = Bench::new();
    let mut h2 = bench.h2();
    for method in WRITES {
        println!("{method}");
        bench.refused(&h2.call(method, "/users/1", &[], b"value"), 428, "WRITE_UNFENCED");
    }
    for method in WRITES {
        let answer = h2.call(method, "/users/1", &[("fence-token", bench.token())], b"value");
        assert_eq!(answer.status, 200, "{method}");
    }
    for method in ["GET", "HEAD", "OPTIONS"] {
        assert_eq!(h2.call(method, "/users/2", &[], b"").status, 200, "{method} reads");
    }
    let story = WRITES.map(|method| format!("{method} /users/1"));
    assert_eq!(bench.store.story()[..WRITES.len()], story);
}

/// Headers and query keys that make a store see another method.
const OVERRIDES: [(&str, &str); 5] = [
    ("x-http-method-override", "DELETE"),
    ("X-HTTP-Method", "PUT"),
    ("x-method-override", "PATCH"),
    ("X-Http-Method-Override", "GET"),
    ("x-http-method", ""),
];
const OVERRIDING: [&str; 5] =
    ["_method=DELETE", "a=b&_METHOD=x", "%5fmethod=PUT", "_method", "X-HTTP-Method-Override=PUT"];

#[test]
fn no_method_hides_behind_another() {
    let bench = Bench::new();
    let mut h2 = bench.h2();
    let token = ("fence-token", bench.token());
    // Also after a read: the second request would be a write that is not judged.
    for method in ["GET", "OPTIONS", "POST", "PUT", "DELETE"] {
        for header in OVERRIDES {
            println!("{method} {header:?}");
            let headers = [token, header];
            bench.refused(&bench.call(method, "/users/1", &headers), 400, "METHOD_OVERRIDE_REFUSED");
            bench.refused(&h2.call(method, "/users/1", &headers, b"value"), 400, "METHOD_OVERRIDE_REFUSED");
        }
        for query in OVERRIDING {
            println!("{method} {query}");
            let path = format!("/users/1?{query}");
            bench.refused(&bench.call(method, &path, &[token]), 400, "METHOD_OVERRIDE_REFUSED");
            bench.refused(&h2.call(method, &path, &[token], b"value"), 400, "METHOD_OVERRIDE_REFUSED");
        }
    }
    // The store gives a meaning to a key that is only similar.
    assert_eq!(bench.call("POST", "/users/1?method=DELETE", &[token]).status, 200);
}

#[test]
fn a_refusal_of_a_head_request_is_in_its_headers_alone() {
    let bench = Bench::new();
    let headers = [("x-http-method-override", "DELETE")];
    let mut conn = bench.gate.gate();
    for _ in 0..2 {
        conn.send("HEAD", "/users/1", &headers, b"").unwrap();
        let (status, fields) = conn.read_head().unwrap();
        let code = fields.iter().find(|(name, _)| name.eq_ignore_ascii_case("fence-error"));
        assert_eq!((status, code.map(|(_, code)| code.as_str())), (400, Some("METHOD_OVERRIDE_REFUSED")));
    }
    // An answer to HEAD with a body is not valid HTTP/2, and a client would lose the answer with it.
    let answer = bench.h2().call("HEAD", "/users/1", &headers, b"");
    assert_eq!((answer.status, answer.header("fence-error")), (400, Some("METHOD_OVERRIDE_REFUSED")));
    assert_eq!((answer.body.len(), bench.store.saw("begun")), (0, 0));
}

#[test]
fn no_tunnel_leads_through_the_gate() {
    let bench = Bench::new();
    let token = ("fence-token", bench.token());
    for target in ["users:80", "127.0.0.1", "/users/1", "http://127.0.0.1/users/1"] {
        println!("{target}");
        bench.refused(&bench.call("CONNECT", target, &[token]), 403, "TUNNEL_REFUSED");
    }
    bench.refused(&bench.call("TRACE", "/users/1", &[token]), 403, "TUNNEL_REFUSED");
    for method in ["GET", "PUT", "POST"] {
        for upgrade in ["websocket", "WebSocket", "h2c, websocket", "tls/1.2", "h2", ""] {
            println!("{method} {upgrade}");
            let headers = [token, ("connection", "upgrade"), ("upgrade", upgrade)];
            bench.refused(&bench.call(method, "/users/1", &headers), 403, "TUNNEL_REFUSED");
            // Not named in Connection, and still an offer that some server may accept.
            let headers = [token, ("upgrade", upgrade)];
            bench.refused(&bench.call(method, "/users/1", &headers), 403, "TUNNEL_REFUSED");
        }
        let headers = [token, ("connection", "upgrade"), ("upgrade", "h2c"), ("upgrade", "websocket")];
        bench.refused(&bench.call(method, "/users/1", &headers), 403, "TUNNEL_REFUSED");
    }
}

#[test]
fn an_offer_of_h2c_is_not_passed_on() {
    let bench = Bench::new();
    let offer = [("connection", "upgrade, http2-settings"), ("upgrade", "h2c"), ("http2-settings", "AAMAAABk")];
    bench.refused(&bench.put("/users/1", &offer), 428, "WRITE_UNFENCED");
    let fenced = [&offer[..], &[("fence-token", bench.token())]].concat();
    assert_eq!(bench.put("/users/1", &fenced).status, 200);
    assert_eq!(bench.gate.gate().call("GET", "/users/1", &offer, b"").status, 200);
    for applied in bench.store.applied() {
        let headers = &applied["headers"];
        assert_eq!((&headers["upgrade"], &headers["http2-settings"]), (&Value::Null, &Value::Null), "{applied}");
    }
}

#[test]
fn no_tunnel_leads_through_the_gate_on_http_2_either() {
    let bench = Bench::new();
    let mut h2 = bench.h2();
    bench.refused(&h2.call("CONNECT", "users:80", &[("fence-token", bench.token())], b""), 403, "TUNNEL_REFUSED");
    bench.refused(&h2.call("TRACE", "/users/1", &[("fence-token", bench.token())], b""), 403, "TUNNEL_REFUSED");
    // HTTP/2 has no upgrades, and the gate did not offer its WebSocket extension: hyper resets these.
    let mut raw = RawH2::open(bench.gate.running().listens);
    let head = [(":method", "PUT"), (":scheme", "http"), (":path", "/users/1"), (":authority", "x")];
    raw.send_headers(1, &[&head[..], &[("fence-token", bench.token()), ("upgrade", "websocket")]].concat(), true);
    assert_eq!(raw.expect_reset(1), PROTOCOL_ERROR);
    let head = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "http"),
        (":path", "/users/1"),
        (":authority", "x"),
    ];
    raw.send_headers(3, &[&head[..], &[("fence-token", bench.token())]].concat(), true);
    assert_eq!(raw.expect_reset(3), PROTOCOL_ERROR);
    assert_eq!(bench.store.saw("begun"), 0);
}

/// hyper rejects all of these as requests.
#[test]
fn what_is_no_method_at_all_is_turned_away() {
    let bench = Bench::new();
    let token = [("fence-token", bench.token())];
    for method in ["", "PU(T", "P\tUT", "PUT,", "\u{e4}"] {
        println!("{method:?}");
        bench.turned_away(&bench.call(method, "/users/1", &token));
    }
}
