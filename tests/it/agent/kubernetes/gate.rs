//! The gate behind the agent: what it refuses, and that it sees the leader's writes in the order of their terms.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener},
    thread,
};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{
    super::super::support::{
        agent::Agent,
        gate::text,
        kube::{ApiServer, Who},
        process::{Gate, Site},
        store::Store,
        until,
    },
    super::Okay,
    Bench, HERE, LONG_MS, ROUTE, SHORT_MS, is_refused, lost,
};

/// A gate that refuses the first `times` writes with this code, and accepts later ones.
fn refusing_gate(code: &'static str, times: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for (number, stream) in listener.incoming().map_while(Result::ok).enumerate() {
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            while stream.read_line(&mut line).is_ok_and(|read| read > 2) {
                line.clear();
            }
            let _ = stream.read_exact(&mut [0; 5]);
            let (status, error) =
                if number < times { (412, format!("fence-error: {code}\r\n")) } else { (200, String::new()) };
            let answer = format!("HTTP/1.1 {status} Word\r\n{error}connection: close\r\ncontent-length: 0\r\n\r\n");
            let _ = stream.get_mut().write_all(answer.as_bytes());
        }
    });
    address
}

#[test]
fn a_term_that_the_gate_refuses_is_given_up_and_the_next_has_another_number() {
    for code in ["LEASE_EXPIRED", "WRITE_STALE_FENCE"] {
        let bench = Bench::new();
        let gate = refusing_gate(code, 1);
        let text = bench.settings("one", LONG_MS, "wait_ms = 30000", ROUTE);
        let agent = Agent::start(&text.replace(&bench.gate.url(), &format!("http://{gate}")));
        let refused = agent.put("/users/1");
        assert_eq!((refused.status, refused.header("fence-error")), (412, Some(code)), "the gate's own answer");
        agent.put("/users/1").expect_ok();
        assert_eq!(bench.lease("users")["spec"]["leaseTransitions"], 1);
        assert!(lost(&agent, code));
        assert!(agent.log().contains("the Lease was given up"), "{}", agent.log());
    }
}

#[test]
fn renewing_before_each_write_finds_out_before_the_gate_has_to() {
    let bench = Bench::new();
    let agent = Agent::start(&bench.settings("one", LONG_MS, "wait_ms = 30000\nrenew_before_write = true", ROUTE));
    for n in 0..3 {
        let before = bench.server.requests(Who::Candidate, "update");
        agent.put("/users/1").expect_ok();
        assert!(bench.server.requests(Who::Candidate, "update") > before, "write {n} went without a renewal");
    }
    // Writes that come at the same time share one renewal.
    bench.server.hang();
    let before = bench.server.requests(Who::Candidate, "update");
    thread::scope(|scope| {
        let writes: Vec<_> = (0..20).map(|_| scope.spawn(|| agent.put("/users/1"))).collect();
        until("the first of them is being renewed", || {
            bench.server.is_real() || bench.server.requests(Who::Candidate, "update") > before
        });
        bench.server.resume();
        writes.into_iter().for_each(|write| write.join().unwrap().expect_ok());
    });
    let renewals = bench.server.requests(Who::Candidate, "update") - before;
    assert!((1..=15).contains(&renewals), "{renewals} renewals for 20 writes");
    bench.server.take(HERE, "users", "another", 600);
    let refused = agent.put("/users/2");
    assert!(text(&refused.refusal(503, "NOT_LEADER"), "detail").contains("the Lease was taken by another"));
    assert_eq!(bench.gate.story(), ["PUT /users/1"; 23]);
    // No write is sent unless the API server confirms the Lease.
    agent.put("/other/1").expect_ok();
    bench.server.stop();
    agent.put("/other/2").refusal(503, "GATE_UNREACHABLE");
    assert_eq!(bench.gate.story().len(), 24);
}

/// A real gate, which reads the same Lease and checks the holder that a write names.
fn gate(server: &ApiServer, store: &Store) -> (Site, Gate) {
    let site = Site::with_table();
    let ca = server.ca_file().map(|file| format!("ca_file = '{}'\n", file.display())).unwrap_or_default();
    let route = ROUTE.replace("name = '{object}' }", "name = '{object}', check_holder = true }");
    site.configure(&format!(
        "[store]\nurl = '{}'\n[kubernetes]\nurl = '{}'\n{ca}token_file = '{}'\n{route}lease_source = 'kubernetes'\n",
        store.url(),
        server.url(),
        server.token_file(Who::Gate).display()
    ));
    let gate = site.serve();
    (site, gate)
}

#[test]
fn the_gate_takes_the_leaders_writes_and_counts_its_terms() {
    let (bench, store) = (Bench::new(), Store::start());
    let (site, gate) = gate(&bench.server, &store);
    let agent = |name: &str, ttl_ms| {
        let text = bench.settings(name, ttl_ms, "wait_ms = 30000", ROUTE);
        Agent::start(&text.replace(&bench.gate.url(), &format!("http://{}", gate.gate)))
    };
    let seqs = || -> Vec<u64> {
        let seq = |each: &Value| text(&each["headers"], "fence-seq").parse().unwrap();
        store.applied().iter().filter(|each| each["method"] == "PUT").map(seq).collect()
    };
    let (one, two) = (agent("one", SHORT_MS), agent("two", SHORT_MS));
    until("the first one's write lands", || one.put("/users/1").status == 200);
    two.put("/users/1").refusal(503, "NOT_LEADER");
    one.signal(Signal::STOP);
    until("the other one's write lands", || two.put("/users/1").status == 200);
    let before = seqs();
    let mut late = one.conn();
    late.send("PUT", "/users/late", &[], b"value").unwrap();
    one.signal(Signal::CONT);
    is_refused(&late.receive().unwrap());
    two.signal(Signal::TERM);
    until("the first one's write lands again", || one.put("/users/1").status == 200);
    let after = seqs();
    assert!(after.windows(2).all(|pair| pair[0] <= pair[1]), "what was applied went back: {after:?}");
    assert_eq!((before.last(), after.last()), (Some(&2), Some(&3)), "{after:?}\n{}", site.log());
    assert!(!store.story().contains(&"PUT /users/late".to_owned()));
    // The gate refuses the token although the agent leads: an operator has fenced the object.
    gate.api().post("/v1/objects/users/revoke", &json!({ "reason": "a test" })).expect(200);
    one.put("/users/1").refusal(412, "WRITE_STALE_FENCE");
    until("its writes land in the next term", || one.put("/users/1").status == 200);
    assert_eq!(bench.lease("users")["spec"]["leaseTransitions"], 3);
    assert!(lost(&one, "WRITE_STALE_FENCE"));
    assert_eq!(text(&store.applied().pop().unwrap()["headers"], "fence-object"), "users");
}
