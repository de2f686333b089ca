//! The agent elects its leader on a Kubernetes Lease. Each test has agents, an API server, and a recording store in the
//! gate's place, which records the token of each write.

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

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{
    super::support::{
        agent::{Agent, settings},
        gate::text,
        http::{Answer, Conn},
        kube::{ApiServer, Candidate, NAMESPACES, OUT_OF_SIGHT, Who, fence_token, micro_time},
        process::{Gate, Site, stderr},
        store::{Hung, Store},
        until,
    },
    Okay,
};

const HERE: &str = NAMESPACES[0];
const ROUTE: &str = "[[route]]\nname = 'data'\nmatch = '/{object}/{rest...}'\nobject = '{object}'\nkubernetes = { namespace = 'left', name = '{object}' }\n";
/// A ttl for tests in which the lease runs out.
const SHORT_MS: u32 = 6_000;
/// A ttl for tests in which the lease does not run out.
const LONG_MS: u32 = 60_000;

struct Bench {
    server: ApiServer,
    /// A recording store in the gate's place.
    gate: Store,
}

impl Bench {
    fn new() -> Self {
        Self { server: ApiServer::start(), gate: Store::start() }
    }

    /// An agent's file: more lines of [lease], and its routes.
    fn settings(&self, name: &str, ttl_ms: u32, lease: &str, routes: &str) -> String {
        let ca = self.server.ca_file().map(|file| format!("ca_file = '{}'\n", file.display())).unwrap_or_default();
        let way = format!(
            "[kubernetes]\nurl = '{}'\n{ca}token_file = '{}'\n",
            self.server.url(),
            self.server.token_file(Who::Candidate).display()
        );
        let text = settings(name, &self.gate.url(), "http://127.0.0.1:1", &format!("{lease}\n{way}{routes}"), "");
        text.replace("ttl_ms = 1000", &format!("ttl_ms = {ttl_ms}"))
    }

    fn agent(&self, name: &str, ttl_ms: u32) -> Agent {
        Agent::start(&self.settings(name, ttl_ms, "wait_ms = 30000", ROUTE))
    }

    #[track_caller]
    fn lease(&self, name: &str) -> Value {
        self.server.lease(HERE, name).expect("a Lease")
    }

    fn holder(&self, name: &str) -> String {
        text(&self.lease(name)["spec"], "holderIdentity").to_owned()
    }

    /// The tokens of the writes that reached the gate, in their order.
    fn tokens(&self) -> Vec<String> {
        let writes = self.gate.applied().into_iter().filter(|each| each["method"] == "PUT");
        writes.map(|each| text(&each["headers"], "fence-token").to_owned()).collect()
    }

    /// The `leaseTransitions` in each of those tokens.
    fn transitions(&self) -> Vec<u32> {
        self.tokens().iter().map(|token| token.rsplit('.').next().unwrap().parse().unwrap()).collect()
    }
}

/// The code may be either one: an agent that was stopped in the middle of a renewal does not know whether it still held
/// the Lease.
#[track_caller]
fn is_refused(answer: &Answer) {
    let code = answer.header("fence-error").unwrap_or_default();
    assert!(answer.status == 503 && ["NOT_LEADER", "GATE_UNREACHABLE"].contains(&code), "{answer:?}");
}

fn lost(agent: &Agent, reason: &str) -> bool {
    agent.shows(&format!("fencegate_agent_losses_total{{reason=\"{reason}\"}} 1\n"))
}

#[test]
fn one_leads_with_the_token_of_its_term_and_the_other_says_who() {
    let bench = Bench::new();
    let (mut one, two) = (bench.agent("one", LONG_MS), bench.agent("two", LONG_MS));
    // The agent replaces an application's own `Fence-Holder`.
    one.call("PUT", "/users/1", &[("fence-holder", "another")]).expect_ok();
    let lease = bench.lease("users");
    let holder = text(&lease["spec"], "holderIdentity");
    assert_eq!(holder.strip_prefix("one_").map(str::len), Some(8), "{holder}");
    assert_eq!((&lease["spec"]["leaseDurationSeconds"], &lease["spec"]["leaseTransitions"]), (&json!(60), &json!(0)));
    let stored = bench.gate.applied()[0]["headers"].clone();
    assert_eq!((text(&stored, "fence-token"), text(&stored, "fence-holder")), (&*fence_token(&lease), holder));
    let led = one.leader("users");
    assert_eq!((&led["leader"], text(&led, "holder_id")), (&json!(true), holder));
    assert_eq!((text(&led, "kubernetes_lease"), &led["lease_transitions"]), ("left/users", &json!(0)));
    assert!(led["expires_in_ms"].as_u64().is_some_and(|ms| (1..=40_000).contains(&ms)), "{led}");
    let refused = two.put("/users/1");
    assert_eq!(text(&refused.refusal(503, "NOT_LEADER"), "leader"), holder);
    assert_eq!(refused.header("fence-leader"), Some(holder));
    two.call("GET", "/users/1", &[]).expect_ok();
    assert!(two.shows("fencegate_agent_objects{standing=\"waiting\"} 1\n"));
    assert_eq!(bench.gate.story(), ["PUT /users/1", "GET /users/1"]);
    // A stop in good order hands over at once, and not after the minute that the lease lasts.
    one.signal(Signal::TERM);
    assert!(one.ended().success());
    until("the other one leads", || two.leader("users")["leader"] == true);
    two.put("/users/2").expect_ok();
    let after = bench.lease("users");
    assert_eq!((&after["spec"]["leaseTransitions"], &after["metadata"]["uid"]), (&json!(1), &lease["metadata"]["uid"]));
    assert_eq!(bench.tokens(), [fence_token(&lease), fence_token(&after)]);
    for token in [Who::Candidate.token(), Who::Admin.token()] {
        assert!(!one.log().contains(token) && !two.log().contains(token), "a secret is in the log");
    }
}

#[test]
fn a_leader_that_was_stopped_sends_nothing_of_its_old_term() {
    let bench = Bench::new();
    let (one, two) = (bench.agent("one", SHORT_MS), bench.agent("two", SHORT_MS));
    one.put("/users/1").expect_ok();
    two.put("/users/1").refusal(503, "NOT_LEADER");
    one.signal(Signal::STOP);
    until("the other one leads", || two.leader("users")["leader"] == true);
    two.put("/users/2").expect_ok();
    // The kernel takes these requests in; the agent reads them when it goes on.
    let late = |n| {
        let mut conn = one.conn();
        conn.send("PUT", &format!("/users/late-{n}"), &[], b"value").unwrap();
        conn
    };
    let late: Vec<Conn> = (0..20).map(late).collect();
    one.signal(Signal::CONT);
    for mut conn in late {
        is_refused(&conn.receive().unwrap());
    }
    until("it follows", || one.put("/users/1").header("fence-leader").is_some_and(|by| by.starts_with("two_")));
    assert_eq!(bench.transitions(), [0, 1], "one write of each term, and no other");
    assert_eq!(bench.gate.story(), ["PUT /users/1", "PUT /users/2"]);
    until("the loss is counted", || lost(&one, "TAKEN") || lost(&one, "DEADLINE"));
}

/// The control: a leader that was stopped for less than its lease goes on in the same term.
#[test]
fn a_leader_that_was_stopped_for_a_moment_goes_on() {
    let bench = Bench::new();
    let one = bench.agent("one", LONG_MS);
    one.put("/users/1").expect_ok();
    one.signal(Signal::STOP);
    let mut delayed = one.conn();
    delayed.send("PUT", "/users/2", &[], b"value").unwrap();
    one.signal(Signal::CONT);
    delayed.receive().unwrap().expect_ok();
    assert_eq!(bench.transitions(), [0, 0]);
}

#[test]
fn a_leader_that_was_killed_is_waited_out_also_by_its_own_name() {
    let bench = Bench::new();
    let mut one = bench.agent("one", SHORT_MS);
    one.put("/users/1").expect_ok();
    let before = bench.lease("users");
    one.child.kill().unwrap();
    one.child.wait().unwrap();
    // The new process has the same configured name and yet another identity: it may not continue the dead process's
    // term.
    let again = bench.agent("one", SHORT_MS);
    let first = again.put("/users/2");
    let named = first.refusal(503, "NOT_LEADER")["leader"].clone();
    assert_eq!(named, before["spec"]["holderIdentity"]);
    until("it leads", || again.leader("users")["leader"] == true);
    again.put("/users/2").expect_ok();
    assert_eq!(bench.transitions(), [0, 1]);
    assert_ne!(named, bench.holder("users"));
}

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

#[test]
fn objects_that_share_a_lease_have_one_leader_and_one_election() {
    let bench = Bench::new();
    let routes = ROUTE.replace("'{object}' }", "'all' }");
    let agent = |name: &str| Agent::start(&bench.settings(name, SHORT_MS, "wait_ms = 30000", &routes));
    let one = agent("one");
    for path in ["/users/1", "/orders/1", "/more/1"] {
        one.put(path).expect_ok();
    }
    assert_eq!(bench.server.requests(Who::Candidate, "create"), 1);
    assert_eq!(bench.tokens().into_iter().collect::<BTreeSet<_>>(), [fence_token(&bench.lease("all"))].into());
    let (two, shown) = (agent("two"), Conn::open(one.status).unwrap().get("/leader").expect(200));
    assert_eq!(shown.as_object().unwrap().len(), 3);
    assert!(shown.as_object().unwrap().values().all(|each| each["leader"] == true), "{shown}");
    // It also follows for an object that it never wrote to before.
    two.put("/other/1").refusal(503, "NOT_LEADER");
    // A Lease that is lost for one object is lost for all, and the loss is counted once.
    bench.server.take(HERE, "all", "another", 600);
    for path in ["/users/1", "/orders/1", "/more/1"] {
        until("it follows", || one.put(path).header("fence-leader") == Some("another"));
    }
    assert!(lost(&one, "TAKEN"));
}

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

#[test]
fn a_controller_that_elects_by_client_go_takes_part_in_the_same_election() {
    let bench = Bench::new();
    let url = format!("{}/users/by-itself", bench.gate.url());
    let controller =
        |identity: &str| Candidate::start(&bench.server, (HERE, "users"), identity, &url, &["--release-on-cancel"]);
    let mut one = bench.agent("one", LONG_MS);
    one.put("/users/1").expect_ok();
    let mut other = controller("other");
    let led = other.next("leader", |_| true);
    assert_eq!(text(&led, "leader"), bench.holder("users"));
    one.signal(Signal::TERM);
    assert!(one.ended().success());
    let token = other.leads();
    assert_eq!(token, fence_token(&bench.lease("users")));
    other.next("answer", |answer| answer["token"] == token);
    // The agent takes over from the other program, too.
    let two = bench.agent("two", LONG_MS);
    assert_eq!(two.put("/users/1").header("fence-leader"), Some("other"));
    other.signal(Signal::TERM);
    assert_eq!(other.ended().code(), Some(0));
    until("the agent leads", || two.put("/users/1").status == 200);
    let terms = bench.transitions();
    assert!(terms.is_sorted() && [0, 1, 2].iter().all(|term| terms.contains(term)), "{terms:?}");
}

#[test]
fn leases_are_taken_by_route_up_front_or_on_first_use_and_given_back_when_idle() {
    let bench = Bench::new();
    let one = "[[route]]\nname = 'one'\nmatch = '/one/{rest...}'\nobject = 'one'\ntake = 'up-front'\nkubernetes = { namespace = 'right', name = 'first' }\n";
    let routes = format!("{}{one}", ROUTE.replace("'{object}' }", "'by-{object}' }"));
    let agent = Agent::start(&bench.settings("one", LONG_MS, "wait_ms = 30000\nidle_release_ms = 1500", &routes));
    until("the Lease up front", || agent.leader("one")["leader"] == true);
    agent.put("/users/1").expect_ok();
    agent.put("/one/1").expect_ok();
    let first = bench.server.lease("right", "first").unwrap();
    assert_eq!(bench.tokens(), [fence_token(&bench.lease("by-users")), fence_token(&first)]);
    until("given back", || bench.holder("by-users").is_empty());
    assert_eq!(bench.lease("by-users")["spec"]["leaseDurationSeconds"], 1);
    until("forgotten", || agent.shows("fencegate_agent_objects{standing=\"leading\"} 1\n"));
    assert!(text(&bench.server.lease("right", "first").unwrap()["spec"], "holderIdentity").starts_with("one_"));
    agent.put("/users/1").expect_ok();
    assert_eq!(bench.transitions(), [0, 0, 1]);
    // No Lease can have the name of the first object, and no token is for two objects.
    agent.put("/Users/1").refusal(422, "OBJECT_UNMAPPED");
    let moved = agent.call("MOVE", "/users/2", &[("destination", "http://127.0.0.1/orders/2")]);
    moved.refusal(409, "LEASE_OBJECT_MISMATCH");
}

#[test]
fn a_stop_finishes_what_is_on_its_way_before_it_gives_the_lease_back() {
    let bench = Bench::new();
    let mut agent = bench.agent("one", LONG_MS);
    agent.put("/users/1").expect_ok();
    let slow = Hung::send(&bench.gate, agent.conn(), "/users/slow", &[]);
    agent.signal(Signal::TERM);
    until("no more writes are taken", || agent.put("/users/1").header("fence-error") == Some("GATE_STOPPING"));
    assert!(bench.holder("users").starts_with("one_"), "not given back under a write's feet");
    slow.let_go().expect_ok();
    assert!(agent.ended().success());
    assert_eq!(bench.holder("users"), "");
    assert!(agent.log().contains("stopped in good order"), "{}", agent.log());
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
            "left out: a_term_is_claimed_only_by_the_api_servers_word: nobody can lose half of what is encrypted"
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
    assert_eq!(bench.tokens(), [] as [&str; 0], "it is ours, and nobody has said so");
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

#[test]
fn what_cannot_be_an_election_stops_the_start() {
    let refused = Agent::refused(&format!("[lease]\nholder_id = 'käse'\n{ROUTE}"));
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("lease.holder_id: must be printable ASCII"), "{}", stderr(&refused));
    // The agent runs outside a cluster, and its settings name none.
    let text = settings("one", "http://127.0.0.1:1", "http://127.0.0.1:1", ROUTE, "");
    let refused = Agent::refused(&text);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("kubernetes.url: is empty, and this is no pod"), "{}", stderr(&refused));
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
