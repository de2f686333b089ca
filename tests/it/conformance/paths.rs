//! Paths that two servers could read in two ways, and paths that belong to no object.

use fencegate::config::RouteSettings;

use crate::support::{
    bench::{Bench, TTL},
    gate::{acquire, text},
    h2::{PROTOCOL_ERROR, RawH2},
};

/// A fault of a path, and spellings of it.
const AMBIGUOUS: [(&str, &[&str]); 9] = [
    ("dot segments", &["/users/../orders/1", "/users/./1", "/users/..", "/users/.", "/../users/1"]),
    ("encoded dots", &["/users/%2e%2e/orders/1", "/users/%2E/1", "/users/.%2e/1", "/users/%2e%2E"]),
    ("encoded slashes", &["/users%2f1", "/users%2F1", "/users/..%2forders"]),
    (
        "encoded twice",
        &["/users%252f1", "/users/%252e%252e/orders", "/users/%255c1", "/users/%2541", "/users%25%32%66x"],
    ),
    ("empty segments", &["//users/1", "/users//1", "/users/1//", "//"]),
    ("semicolons", &["/users;v=1/1", "/users/1;v=1", "/users%3b/1", "/users%3Bx/1"]),
    ("backslashes", &["/users\\1", "/users/..\\orders", "/users%5c1", "/users%5C1"]),
    ("control characters", &["/users%00/1", "/users/1%00.txt", "/users/%0d%0a", "/users%7f/1", "/users/%c2%85"]),
    (
        "bad UTF-8 and bad escapes",
        &["/users%ff/1", "/users/%c0%af", "/users/%ed%a0%80", "/users/%zz", "/users/%", "/users/%4"],
    ),
];

#[test]
fn a_path_that_can_be_read_in_two_ways_is_not_written() {
    let bench = Bench::new();
    let token = [("fence-token", bench.token())];
    for (what, paths) in AMBIGUOUS {
        for path in paths {
            println!("{what}: {path}");
            bench.refused(&bench.put(path, &token), 422, "PATH_AMBIGUOUS");
            bench.refused(&bench.call("DELETE", path, &token), 422, "PATH_AMBIGUOUS");
            // Without a token, too: the gate cannot know the token's object.
            bench.refused(&bench.put(path, &[]), 422, "PATH_AMBIGUOUS");
        }
    }
    bench.refused(&bench.put("*", &token), 422, "PATH_AMBIGUOUS");
}

#[test]
fn a_path_that_can_be_read_in_two_ways_is_not_written_on_http_2_either() {
    let bench = Bench::new();
    let mut h2 = bench.h2();
    for (what, paths) in AMBIGUOUS {
        for path in paths {
            println!("{what}: {path}");
            let answer = h2.call("PUT", path, &[("fence-token", bench.token())], b"value");
            bench.refused(&answer, 422, "PATH_AMBIGUOUS");
        }
    }
    // The authority names one host, the field another.
    let answer = h2.call("PUT", "/users/1", &[("fence-token", bench.token()), ("host", "other")], b"value");
    bench.refused(&answer, 422, "PATH_AMBIGUOUS");
}

/// hyper rejects all of these as requests.
#[test]
fn what_is_no_path_at_all_is_turned_away() {
    let bench = Bench::new();
    for path in [&b"/users\0/1"[..], b"/users\x01/1", b"/users\x7f/1", b"/users\xff/1", b"/users /1", b"/users<1", b""]
    {
        println!("{}", path.escape_ascii());
        let head = format!(" HTTP/1.1\r\nhost: x\r\nfence-token: {}\r\ncontent-length: 0\r\n\r\n", bench.token());
        bench.turned_away(&bench.raw(&[&b"PUT "[..], path, head.as_bytes()].concat()));
    }
    let mut raw = RawH2::open(bench.gate.running().listens);
    for (stream, path) in [(1, "/users\0/1"), (3, "/users\x7f/1"), (5, "users/1"), (7, "")] {
        let head = [(":method", "PUT"), (":scheme", "http"), (":path", path), (":authority", "x")];
        raw.send_headers(stream, &[&head[..], &[("fence-token", bench.token())]].concat(), true);
        assert_eq!(raw.expect_reset(stream), PROTOCOL_ERROR, "{path:?}");
    }
    assert_eq!(bench.store.saw("begun"), 0);
}

#[test]
fn a_request_line_that_names_another_host_is_not_written() {
    let bench = Bench::new();
    let token = [("fence-token", bench.token())];
    // The Host of each is 127.0.0.1.
    for target in [
        "http://other/users/1",
        "http://127.0.0.1:81/users/1",
        "http://somebody@127.0.0.1/users/1",
        "https://127.0.0.1.example/users/1",
        "other",
        "other:80",
    ] {
        println!("{target}");
        bench.refused(&bench.put(target, &token), 422, "PATH_AMBIGUOUS");
    }
    bench.refused(&bench.put("http://127.0.0.1/users/../orders", &token), 422, "PATH_AMBIGUOUS");
    let two = [("fence-token", bench.token()), ("host", "other")];
    assert_eq!(bench.refused(&bench.put("/users/1", &two), 400, "REQUEST_INVALID")["field"], "Host");
    let same = [("fence-token", bench.token()), ("host", "127.0.0.1")];
    assert_eq!(bench.refused(&bench.put("/users/1", &same), 400, "REQUEST_INVALID")["field"], "Host");
}

#[test]
fn what_was_judged_is_what_the_store_gets() {
    let bench = Bench::new();
    let token = [("fence-token", bench.token())];
    let ways = [
        // All spellings are the same object, and the store gets exactly the client's bytes.
        ("/us%65rs/1", "PUT /us%65rs/1"),
        ("/users/a%20b/%C3%A4/..c/.d/e%25", "PUT /users/a%20b/%C3%A4/..c/.d/e%25"),
        ("/users", "PUT /users"),
        ("/users/", "PUT /users/"),
        // Characters after the path are not part of it.
        ("/users/1?a=/../b;c//d%2f", "PUT /users/1?a=/../b;c//d%2f"),
        ("http://127.0.0.1/users/1?a", "PUT /users/1?a"),
    ];
    for (target, _) in ways {
        assert_eq!(bench.put(target, &token).status, 200, "{target}");
    }
    assert_eq!(bench.store.story(), ways.map(|(_, story)| story));
    assert!(bench.store.applied().iter().all(|write| write["headers"]["fence-object"] == "users"));
}

#[test]
fn a_path_that_belongs_to_no_object_is_not_written() {
    let bench = Bench::with(|settings| {
        settings.route = vec![RouteSettings {
            name: "data".to_owned(),
            path: "/data/{domain}/{rest...}".to_owned(),
            object: "/data/{domain}/".to_owned(),
            ..RouteSettings::default()
        }];
    });
    let lease = acquire(&mut bench.gate.api(), "/data/users/", "a", TTL);
    let token = [("fence-token", text(&lease, "fence_token"))];
    let mut h2 = bench.h2();
    // The parents of all objects, and paths that are only similar.
    for path in ["/", "/data", "/data/", "/users/1", "/datax/users/1", "/DATA/users/1", "/data?domain=users"] {
        println!("{path}");
        bench.refused(&bench.put(path, &token), 422, "OBJECT_UNMAPPED");
        bench.refused(&bench.call("DELETE", path, &token), 422, "OBJECT_UNMAPPED");
        bench.refused(&h2.call("DELETE", path, &token, b""), 422, "OBJECT_UNMAPPED");
    }
    // Longer than an object's id may be.
    bench.refused(&bench.put(&format!("/data/{}/1", "x".repeat(1_100)), &token), 422, "OBJECT_UNMAPPED");
    assert_eq!(bench.put("/data/users/1", &token).status, 200);
    assert_eq!(bench.store.story(), ["PUT /data/users/1"]);
}
