//! The names by which an agent may be called.

use super::{
    super::support::{
        agent::{Agent, settings},
        gate::text,
        http::{Conn, Response},
        process::stderr,
    },
    Bench, Okay,
};

fn call(mut conn: Conn, method: &str, path: &str, host: &str) -> Response {
    let request = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\n\r\n");
    conn.send_raw(request.as_bytes()).unwrap();
    conn.receive().unwrap()
}

/// A page whose name resolves to this machine sends that name as Host.
#[test]
fn a_web_page_with_a_name_of_its_own_reads_nothing_either() {
    let bench = Bench::new();
    let agent = bench.agent("a");
    agent.put("/users/1").expect_ok();
    for host in ["page.example", "page.example:8082", "localhost.page.example", "[::1].page.example"] {
        for method in ["GET", "PUT", "OPTIONS"] {
            let refused = call(agent.conn(), method, "/users/1", host);
            assert_eq!((refused.status, refused.header("fence-error")), (403, Some("NOT_LOOPBACK")), "{method} {host}");
        }
        call(Conn::open(agent.status).unwrap(), "GET", "/leader", host).refusal(403, "NOT_LOOPBACK");
        assert_eq!(call(Conn::open(agent.status).unwrap(), "GET", "/livez", host).status, 200);
    }
    for host in ["localhost:1", "127.0.0.1", "[::1]:8082", "10.0.0.7:8082"] {
        assert_eq!(call(agent.conn(), "GET", "/users/1", host).status, 200, "{host}");
        assert_eq!(call(Conn::open(agent.status).unwrap(), "GET", "/leader", host).status, 200, "{host}");
    }
    assert_eq!(bench.store.story()[1..], vec!["GET /users/1"; 4]);
}

#[test]
fn an_applications_own_host_is_taken_where_it_is_listed_and_passed_on() {
    let bench = Bench::new();
    let (gate, api) = bench.urls();
    let text_of =
        settings("a", &gate, &api, "", "").replace("[agent]\n", "[agent]\nhosts = ['*.s3.example', 'minio']\n");
    let agent = Agent::start(&text_of);
    for host in ["bucket.s3.example", "minio:9000"] {
        call(agent.conn(), "PUT", "/users/1", host).expect_ok();
        let stored = bench.store.applied().pop().unwrap();
        assert_eq!(text(&stored["headers"], "host"), host, "what is signed must not change");
        assert_eq!(call(Conn::open(agent.status).unwrap(), "GET", "/leader", host).status, 200);
    }
    call(agent.conn(), "PUT", "/users/1", "s3.example").refusal(403, "NOT_LOOPBACK");
    let old = Agent::refused("[agent]\nallow_remote = true\n");
    assert_eq!(old.status.code(), Some(2));
    for key in ["agent.allow_remote", "agent.listen_beyond_loopback", "agent.hosts"] {
        assert!(stderr(&old).contains(key), "{}", stderr(&old));
    }
}

/// By plain http from another machine, browsers send no `Sec-Fetch-Site`, but an `Origin` with every write.
#[test]
fn a_page_of_another_origin_writes_nothing() {
    let bench = Bench::new();
    let (gate, api) = bench.urls();
    let text_of = settings("a", &gate, &api, "", "").replace("[agent]\n", "[agent]\nhosts = ['files.example']\n");
    let agent = Agent::start(&text_of);
    let write = |method: &str, origin: &str| {
        let mut conn = agent.conn();
        let request = format!(
            "{method} /users/1 HTTP/1.1\r\nhost: files.example:8082\r\norigin: {origin}\r\ncontent-length: 0\r\n\r\n"
        );
        conn.send_raw(request.as_bytes()).unwrap();
        conn.receive().unwrap()
    };
    for method in ["POST", "PUT", "DELETE"] {
        for origin in ["http://evil.example", "http://files.example", "null"] {
            write(method, origin).refusal(403, "NOT_LOOPBACK");
        }
    }
    assert_eq!(bench.store.saw("begun"), 0, "nothing of it was sent");
    write("POST", "http://files.example:8082").expect_ok();
    call(agent.conn(), "POST", "/users/1", "files.example:8082").expect_ok();
    // The store decides what a page of another origin may read.
    assert_eq!(write("GET", "http://evil.example").status, 200);
    agent.call("PUT", "/users/1", &[("origin", "http://evil.example")]).refusal(403, "NOT_LOOPBACK");
    agent.call("PUT", "/users/1", &[("origin", "http://127.0.0.1")]).expect_ok();
}
