//! An API server that is gone, hangs, refuses or loses answers, and Leases that others change.

use std::{
    collections::BTreeSet,
    io::{self, BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use serde_json::json;

use super::{
    super::super::support::{
        agent::Agent,
        gate::text,
        http::Conn,
        kube::{OUT_OF_SIGHT, Who, fence_token, micro_time},
        until,
    },
    super::Okay,
    Bench, HERE, LONG_MS, ROUTE, SHORT_MS, lost,
};

#[test]
fn without_an_api_server_the_leader_stops_at_its_deadline_and_says_so() {
    let bench = Bench::new();
    let agent = Agent::start(&bench.settings("one", SHORT_MS, "", ROUTE));
    agent.put("/users/1").expect_ok();
    bench.server.stop();
    until("it stops", || agent.put("/users/1").header("fence-error") == Some("GATE_UNREACHABLE"));
    assert!(text(&agent.leader("users"), "why").contains("API server"), "{}", agent.leader("users"));
    until("the loss is counted", || lost(&agent, "DEADLINE"));
    let log = agent.log();
    assert!(log.contains("a renewal was not confirmed") && log.contains("its renew deadline has passed"), "{log}");
    agent.call("GET", "/users/1", &[]).expect_ok();
    let landed = bench.tokens().len();
    agent.put("/users/1").refusal(503, "GATE_UNREACHABLE");
    assert_eq!(bench.tokens().len(), landed);
    // A lost term does not come back, although no other candidate has taken the Lease.
    bench.server.start_again();
    until("it leads again", || agent.put("/users/1").status == 200);
    assert_eq!(bench.transitions().last(), Some(&1));
    assert_eq!(bench.transitions().iter().collect::<BTreeSet<_>>().len(), 2);
}

#[test]
fn an_api_server_that_hangs_is_as_good_as_none() {
    let bench = Bench::new();
    let agent = Agent::start(&bench.settings("one", SHORT_MS, "", ROUTE));
    agent.put("/users/1").expect_ok();
    bench.server.hang();
    until("it stops", || agent.put("/users/1").header("fence-error") == Some("GATE_UNREACHABLE"));
    until("the loss is counted", || lost(&agent, "DEADLINE"));
    bench.server.resume();
    until("it leads again", || agent.put("/users/1").status == 200);
    assert_eq!(bench.tokens().last(), Some(&fence_token(&bench.lease("users"))));
    assert!(bench.transitions().windows(2).all(|pair| pair[0] <= pair[1]), "{:?}", bench.transitions());
}

#[test]
fn a_lease_that_others_touch_is_read_again_and_one_that_others_take_is_lost() {
    let bench = Bench::new();
    let agent = bench.agent("one", SHORT_MS);
    agent.put("/users/1").expect_ok();
    let ours = bench.holder("users");
    // Another client has changed the Lease, and this agent still holds it: its next renewal meets a conflict.
    let before = bench.server.requests(Who::Candidate, "get");
    bench.server.edit(HERE, "users", |spec| spec["renewTime"] = micro_time());
    until("it was read again", || bench.server.requests(Who::Candidate, "get") > before);
    let edited = bench.lease("users")["spec"]["renewTime"].clone();
    until("it was renewed again", || bench.lease("users")["spec"]["renewTime"] != edited);
    agent.put("/users/1").expect_ok();
    assert_eq!((bench.holder("users"), bench.transitions()), (ours, vec![0, 0]));
    // Another candidate has taken the Lease.
    bench.server.take(HERE, "users", "another", 2);
    until("it follows", || agent.put("/users/1").header("fence-leader") == Some("another"));
    assert!(lost(&agent, "TAKEN"), "{}", agent.log());
    until("its turn again", || agent.put("/users/1").status == 200);
    assert_eq!(bench.transitions().last(), Some(&2));
}

#[test]
fn a_lease_that_was_deleted_ends_the_term_with_it() {
    let bench = Bench::new();
    let agent = bench.agent("one", SHORT_MS);
    agent.put("/users/1").expect_ok();
    let before = bench.lease("users");
    bench.server.delete(HERE, "users");
    until("a new Lease", || bench.server.lease(HERE, "users").is_some());
    until("the loss is counted", || lost(&agent, "DELETED"));
    agent.put("/users/2").expect_ok();
    let after = bench.lease("users");
    assert_ne!(before["metadata"]["uid"], after["metadata"]["uid"]);
    assert_eq!(bench.tokens(), [fence_token(&before), fence_token(&after)]);
}

#[test]
fn rights_that_are_missing_are_named() {
    let bench = Bench::new();
    let elsewhere = ROUTE.replace("'left'", &format!("'{OUT_OF_SIGHT}'"));
    let agent = Agent::start(&bench.settings("one", LONG_MS, "wait_ms = 30000", &elsewhere));
    let refused = agent.put("/users/1");
    let body = refused.refusal(503, "NOT_LEADER");
    assert!(text(&body, "detail").contains("refuses with 403"), "{body}");
    assert_eq!((&body["retryable"], refused.header("retry-after")), (&json!(false), None));
    assert!(agent.log().contains("cannot take part in the election"), "{}", agent.log());
    assert!(agent.shows("fencegate_agent_objects{standing=\"refused\"} 1\n"), "an alert goes by it");
    assert!(agent.shows("fencegate_agent_objects{standing=\"waiting\"} 0\n"));
    // The rights are taken away, and given back.
    bench.server.forbid(Who::Candidate);
    let agent = bench.agent("two", LONG_MS);
    assert!(text(&agent.put("/users/1").refusal(503, "NOT_LEADER"), "detail").contains("403"));
    bench.server.allow(Who::Candidate);
    until("it leads", || agent.put("/users/1").status == 200);
    assert!(agent.shows("fencegate_agent_objects{standing=\"refused\"} 0\n"));
    assert_eq!(bench.gate.story(), ["PUT /users/1"]);
}

/// A proxy to an API server. While `loses` is set, it passes writes on and loses their answers.
struct Lossy {
    address: SocketAddr,
    loses: Arc<AtomicBool>,
}

impl Lossy {
    fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, loses) = (listener.local_addr().unwrap(), Arc::<AtomicBool>::default());
        let shared = Arc::clone(&loses);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let loses = Arc::clone(&shared);
                thread::spawn(move || while carry(&client, target, &loses).is_ok() {});
            }
        });
        Self { address, loses }
    }

    fn lose(&self, loses: bool) {
        self.loses.store(loses, Ordering::SeqCst);
    }
}

/// Passes on one request and its answer.
fn carry(client: &TcpStream, target: SocketAddr, loses: &AtomicBool) -> io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let begin = head.len();
        if reader.read_line(&mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = head[begin..].trim().to_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let mut server = Conn::open(target)?;
    server.send_raw(&[head.as_bytes(), &body].concat())?;
    let answer = server.receive()?;
    if !head.starts_with("GET") && loses.load(Ordering::SeqCst) {
        client.shutdown(Shutdown::Both)?;
        return Err(io::ErrorKind::ConnectionReset.into());
    }
    let head = format!(
        "HTTP/1.1 {} Word\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        answer.status,
        answer.body.len()
    );
    (&mut &*client).write_all(&[head.as_bytes(), &answer.body].concat())
}

#[test]
fn a_term_is_claimed_only_by_the_api_servers_word() {
    let bench = Bench::new();
    if bench.server.is_real() {
        eprintln!(
            "left out: a_term_is_claimed_only_by_the_api_servers_word: a test cannot lose half of what is encrypted"
        );
        return;
    }
    let way = Lossy::to(bench.server.url().trim_start_matches("http://").parse().unwrap());
    let text = bench.settings("one", SHORT_MS, "", ROUTE);
    let agent = Agent::start(&text.replace(&bench.server.url(), &format!("http://{}", way.address)));
    way.lose(true);
    agent.put("/users/1").refusal(503, "GATE_UNREACHABLE");
    until("the Lease is there", || bench.server.lease(HERE, "users").is_some());
    assert!(bench.holder("users").starts_with("one_"));
    agent.put("/users/1").refusal(503, "GATE_UNREACHABLE");
    assert_eq!(bench.tokens(), [] as [&str; 0], "it is ours, and the API server has not said so");
    way.lose(false);
    until("it leads", || agent.put("/users/1").status == 200);
    assert_eq!(bench.tokens(), [fence_token(&bench.lease("users"))]);
    // Renewals whose answers are lost are carried out, but do not count for the agent.
    way.lose(true);
    let before = bench.lease("users");
    until("it stops", || agent.put("/users/1").header("fence-error") == Some("GATE_UNREACHABLE"));
    assert!(lost(&agent, "DEADLINE"));
    assert_ne!(bench.lease("users")["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);
    way.lose(false);
    until("it leads again", || agent.put("/users/1").status == 200);
    assert_eq!(bench.tokens().last(), Some(&fence_token(&bench.lease("users"))));
    assert!(bench.transitions().windows(2).all(|pair| pair[0] <= pair[1]), "{:?}", bench.transitions());
}
