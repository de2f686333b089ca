//! Starting and stopping: leases that are taken and given back, and leaders that are stopped in the middle of a write.

use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::json;

use super::{
    super::support::{
        agent::{Agent, settings},
        gate::text,
        http::Conn,
        process::stderr,
        run::end_of,
        until,
    },
    Bench, Okay,
};

#[test]
fn a_stop_finishes_what_is_on_its_way_and_releases() {
    let bench = Bench::new();
    let mut agent = bench.agent("a");
    agent.put("/users/1").expect_ok();
    let go = bench.site.folder.path().join("go");
    let mut slow = agent.conn();
    let until_go = format!("until:{}", go.display());
    slow.send("PUT", "/users/slow", &[("x-store", &until_go)], b"value").unwrap();
    until("the store has it", || bench.store.story().contains(&"PUT /users/slow".to_owned()));
    agent.signal(Signal::TERM);
    until("no more writes are taken", || agent.put("/users/1").header("fence-error") == Some("GATE_STOPPING"));
    assert_eq!(Conn::open(agent.status).unwrap().get("/readyz").status, 503);
    assert_eq!(agent.call("GET", "/users/1", &[]).status, 200, "reads pass");
    assert_eq!(text(&bench.lease("users"), "state"), "held", "not released under a write's feet");
    fs::write(go, "").unwrap();
    slow.receive().unwrap().expect_ok();
    assert!(agent.ended().success());
    assert_eq!(text(&bench.lease("users"), "state"), "released");
    assert!(agent.log().contains("stopped in good order"), "{}", agent.log());
}

#[test]
fn leases_are_taken_by_route_up_front_or_on_first_use_and_given_back_when_idle() {
    let routes = "[[route]]\nname = 'data'\nmatch = '/data/{domain}/{rest...}'\nobject = '/data/{domain}/'\n[[route]]\nname = 'one'\nmatch = '/one/{rest...}'\nobject = 'one'\n";
    let bench = Bench::with(routes);
    let lease = format!("idle_release_ms = 3000\nobjects_max = 3\n{routes}take = 'up-front'\n");
    let agent = bench.agent_with("a", &lease);
    until("the lease up front", || agent.leader("one")["leader"] == true);
    for path in ["/data/users/1", "/data/users/2", "/data/orders/1", "/one/x"] {
        agent.put(path).expect_ok();
    }
    let objects = |agent: &Agent| -> Vec<String> {
        let all = Conn::open(agent.status).unwrap().get("/leader").expect(200);
        all.as_object().unwrap().keys().cloned().collect()
    };
    assert_eq!(objects(&agent), ["/data/orders/", "/data/users/", "one"]);
    agent.put("/data/more/1").refusal(503, "GATE_OVERLOADED");
    // Leases without writes are given back; leases that were taken up front stay.
    until("given back", || objects(&agent) == ["one"]);
    let users = bench.gate.api().get("/v1/objects/%2Fdata%2Fusers%2F").expect(200);
    assert_eq!(text(&users["lease"], "state"), "released");
    agent.put("/data/users/1").expect_ok();
    assert_eq!(agent.leader("%2Fdata%2Fusers%2F")["lease_seq"], 2);
    // A write to two objects of a route needs both, and gets both.
    let moved = agent.call("MOVE", "/data/users/2", &[("destination", "http://127.0.0.1/data/orders/2")]);
    assert_eq!(moved.status, 200, "{:?}", String::from_utf8_lossy(&moved.body));
}

#[test]
fn a_faulty_file_and_an_open_port_stop_the_start() {
    let faulty = Agent::refused(
        "[agent]\nlisten = '0.0.0.0:0'\n[gate]\napi = 'x'\n[lease]\nttl = 1\n[[route]]\ntake = 'up-front'\n",
    );
    assert_eq!(faulty.status.code(), Some(2));
    for key in ["agent.listen: must be a loopback", "gate.api", "lease.ttl: unknown field", "route[0].take"] {
        assert!(stderr(&faulty).contains(key), "{key} is not in {}", stderr(&faulty));
    }
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = settings("a", "http://127.0.0.1:1", "http://127.0.0.1:1", "", "");
    let text = text.replacen("127.0.0.1:0", &taken.local_addr().unwrap().to_string(), 1);
    let refused = Agent::refused(&text);
    assert!(stderr(&refused).contains("agent.listen: cannot listen"), "{}", stderr(&refused));
}

/// Runs `curl` again and again, as an application without knowledge of leases; returns its status codes.
struct Loop {
    child: Child,
    answers: PathBuf,
}

impl Loop {
    fn start(agent: &Agent, folder: &Path, name: &str) -> Self {
        let answers = folder.join(name);
        let script = format!(
            "while :; do curl -s -o /dev/null -w '%{{http_code}}\\n' -X PUT http://{}/users/1 -d {name} >> {}; done",
            agent.agent,
            answers.display()
        );
        let child = Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).process_group(0).spawn().unwrap();
        Self { child, answers }
    }

    fn answers(&self) -> Vec<String> {
        let mut text = String::new();
        if let Ok(mut file) = fs::File::open(&self.answers) {
            file.read_to_string(&mut text).unwrap();
        }
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

#[test]
fn only_the_leaders_writes_land_and_none_of_a_leader_that_was_stopped() {
    let bench = Bench::new();
    let (gate, api) = bench.urls();
    // Long enough for a busy machine.
    let agent =
        |name: &str| Agent::start(&settings(name, &gate, &api, "", "").replace("ttl_ms = 1000", "ttl_ms = 3000"));
    let (one, two) = (agent("one"), agent("two"));
    one.put("/users/1").expect_ok();
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (Loop::start(&one, folder.path(), "one"), Loop::start(&two, folder.path(), "two"));
    let is = |code: &'static str| move |answer: &&String| *answer == code;
    until("both loops run", || {
        first.answers().iter().filter(is("200")).count() >= 10
            && second.answers().iter().filter(is("503")).count() >= 10
    });
    assert_eq!(second.answers().iter().filter(is("200")).count(), 0, "only the leader's writes land");
    assert!(bench.seqs().iter().all(|seq| *seq == 1));
    // The leader is stopped at a random moment, for longer than its lease lasts.
    one.signal(Signal::STOP);
    until("the other one's writes land", || bench.seqs().iter().filter(|seq| **seq == 2).count() >= 10);
    let delayed = first.answers().len();
    one.signal(Signal::CONT);
    until("the first one's application goes on", || first.answers().len() >= delayed + 10);
    let (late, seqs) = (first.answers()[delayed..].to_vec(), bench.seqs());
    // The first may be the answer to a write that had landed before the stop; the store's numbers show what landed
    // when.
    assert!(late.iter().skip(1).all(|answer| answer != "200"), "{late:?}");
    assert!(seqs.windows(2).all(|pair| pair[0] <= pair[1]), "the seqs of what was applied went down: {seqs:?}");
    assert_eq!(seqs.last(), Some(&2));
    assert_eq!(text(&bench.lease("users"), "holder_id"), "two");
    // The other way round: the second stops in good order, and the first has its turn.
    two.signal(Signal::TERM);
    until("the first one leads again", || bench.seqs().last() == Some(&3));
    drop((first, second));
    let seqs = bench.seqs();
    assert!(seqs.windows(2).all(|pair| pair[0] <= pair[1]), "{seqs:?}");
}

#[test]
fn a_leader_that_was_stopped_finds_out_before_it_sends_anything() {
    let bench = Bench::new();
    let agent = bench.agent("a");
    agent.put("/users/1").expect_ok();
    agent.signal(Signal::STOP);
    let next = json!({ "object_id": "users", "holder_id": "b", "ttl_ms": 60_000, "wait_ms": 60_000 });
    bench.gate.api().post("/v1/leases", &next).expect(201);
    // The kernel takes the request in; the agent reads it when it goes on.
    let mut delayed = agent.conn();
    delayed.send("PUT", "/users/1", &[], b"value").unwrap();
    agent.signal(Signal::CONT);
    delayed.receive().unwrap().refusal(503, "NOT_LEADER");
    assert_eq!(bench.gate.api().get("/v1/receipts").expect(200)["receipts"], json!([]), "the gate saw no such write");
    assert_eq!(bench.seqs(), [1]);
}

/// The gate's own fence: the agent has sent the head, with a valid token, before it was stopped.
#[test]
fn a_write_that_a_stopped_leader_had_begun_is_not_applied() {
    let bench = Bench::with("[[route]]\npartial_body = 'discards'\n");
    let agent = bench.agent("a");
    agent.put("/users/1").expect_ok();
    let before = bench.store.saw("body");
    let mut half = agent.conn();
    half.send_raw(b"PUT /users/late HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3145728\r\n\r\n").unwrap();
    half.send_raw(&vec![b'x'; 2 << 20]).unwrap();
    until("the first of it is at the store", || bench.store.saw("body") > before);
    agent.signal(Signal::STOP);
    let next = json!({ "object_id": "users", "holder_id": "b", "ttl_ms": 60_000, "wait_ms": 60_000 });
    let next = bench.gate.api().post("/v1/leases", &next).expect(201);
    bench.gate.gate().call("PUT", "/users/next", &[("fence-token", text(&next, "fence_token"))], b"v").expect_ok();
    agent.signal(Signal::CONT);
    // The agent may have closed the connection by now.
    let _ = half.send_raw(&vec![b'x'; 1 << 20]);
    if let Ok(answer) = half.receive() {
        assert_ne!(answer.status, 200);
    }
    assert_eq!(bench.seqs(), [1, 2], "what was begun did not land");
}

#[test]
fn a_hang_up_is_a_stop_in_good_order() {
    let bench = Bench::new();
    let mut agent = bench.agent("a");
    agent.put("/users/1").expect_ok();
    agent.signal(Signal::HUP);
    assert!(agent.ended().success());
    assert_eq!(text(&bench.lease("users"), "state"), "released");
}

/// The control: the same late write lands if the gate only audits, and the store's log shows it.
#[test]
fn a_late_write_does_land_where_the_gate_only_looks_on() {
    let bench = Bench::with("[[route]]\nmode = 'audit'\n");
    let (gate, api) = bench.urls();
    let agent = Agent::start(&settings("a", &gate, &api, "", "").replace("ttl_ms = 1000", "ttl_ms = 60000"));
    agent.put("/users/1").expect_ok();
    bench.revoke("users");
    let late = agent.put("/users/late");
    assert_eq!((late.status, late.header("fence-would")), (200, Some("WRITE_STALE_FENCE")));
    assert_eq!(bench.store.story(), ["PUT /users/1", "PUT /users/late"]);
}

#[test]
fn a_second_signal_is_no_success() {
    let bench = Bench::new();
    let mut agent = bench.agent("a");
    let mut slow = agent.conn();
    slow.send("PUT", "/users/slow", &[("x-store", "hang")], b"value").unwrap();
    until("the store has it", || bench.store.saw("begun") == 1);
    agent.signal(Signal::TERM);
    until("it stops", || Conn::open(agent.status).unwrap().get("/readyz").status == 503);
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().code(), Some(1));
    assert!(agent.log().contains("a second signal"), "{}", agent.log());
    // The gate has the same write on its way.
    let Bench { mut gate, site, .. } = bench;
    gate.signal(Signal::TERM);
    until("it stops", || site.log().contains("stopping: SIGTERM"));
    gate.signal(Signal::INT);
    assert_eq!(end_of("a gate that was signalled twice", &mut gate.child).code(), Some(1));
}

#[test]
fn half_a_request_does_not_hold_a_stop_up() {
    let bench = Bench::new();
    let mut agent = bench.agent("a");
    let mut half = std::net::TcpStream::connect(agent.agent).unwrap();
    half.write_all(b"PUT /users/1 HTTP/1.1\r\nhost: localhost\r\ncontent-le").unwrap();
    agent.put("/users/1").expect_ok();
    agent.signal(Signal::TERM);
    assert!(agent.ended().success());
    assert_eq!(text(&bench.lease("users"), "state"), "released");
}
