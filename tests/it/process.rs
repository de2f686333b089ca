//! Starting and stopping a real gate; faults that stop a start; disks that fail.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    process::{Command, Stdio},
};

use rustix::process::Signal;
use serde_json::json;

use super::support::{
    gate::{acquire, text, wanted},
    http::Conn,
    process::{Site, binary, failpoints_binary, nothing_lands_late, stderr},
    run::{Ends, Lines, end_of},
    until,
};

#[test]
fn a_gate_says_when_it_is_ready_and_stops_in_good_order() {
    let site = Site::with_table();
    for signal in [Signal::TERM, Signal::INT] {
        let mut gate = site.serve();
        assert_eq!(gate.ready, format!("ready gate={} api={} ops={}\n", gate.gate, gate.api, gate.ops));
        acquire(&mut gate.api(), &format!("{signal:?}"), "a", 60_000);
        gate.signal(signal);
        assert!(end_of("a gate that was stopped", &mut gate.child).success());
    }
    let gate = site.serve();
    let metrics = String::from_utf8(gate.ops().get("/metrics").body).unwrap();
    assert!(metrics.contains("fencegate_table_unclean_start 0"), "it was stopped in good order");
    gate.kill();
    let gate = site.serve();
    let metrics = String::from_utf8(gate.ops().get("/metrics").body).unwrap();
    assert!(metrics.contains("fencegate_table_unclean_start 1"), "it was killed");
}

#[test]
fn a_stop_ends_waiting_calls_and_streams() {
    let site = Site::with_table();
    let gate = site.serve();
    acquire(&mut gate.api(), "users", "a", 60_000);
    let mut waiting = gate.api();
    let mut body = wanted("users", "b", 60_000);
    body["wait_ms"] = json!(60_000);
    waiting.send("POST", "/v1/leases", &[("content-type", "application/json")], body.to_string().as_bytes()).unwrap();
    let mut stream = gate.api();
    stream.send("GET", "/v1/watch", &[], b"").unwrap();
    stream.read_head().unwrap();
    // When the metric shows the waiter, both calls have arrived.
    until("a waiter", || {
        String::from_utf8(gate.ops().get("/metrics").body).unwrap().contains("fencegate_lease_waiters 1\n")
    });
    gate.stop();
    waiting.receive().unwrap().refusal(503, "GATE_STOPPING");
    assert!(site.log().contains("stopped in good order"), "{}", site.log());
}

#[test]
fn without_a_table_nothing_starts_and_the_advice_is_given() {
    let site = Site::new();
    let refused = site.run(&["serve"]);
    assert_eq!(refused.status.code(), Some(2));
    let said = stderr(&refused);
    assert!(said.contains("table.path") && said.contains("fencegate table init"), "{said}");
    assert!(!site.data().exists(), "nothing was made");
    site.configure("");
    assert!(site.run(&["table", "init"]).status.success());
    let again = site.run(&["table", "init"]);
    assert_eq!(again.status.code(), Some(2));
    assert!(stderr(&again).contains("already"), "{}", stderr(&again));
}

#[test]
fn a_gate_makes_its_table_only_if_its_settings_say_so() {
    let site = Site::new();
    let text = fs::read_to_string(site.config()).unwrap().replace("[table]", "[table]\ncreate = true");
    fs::write(site.config(), text).unwrap();
    let gate = site.serve();
    acquire(&mut gate.api(), "users", "a", 60_000);
    let metrics = String::from_utf8(gate.ops().get("/metrics").body).unwrap();
    assert!(metrics.contains("fencegate_table_unclean_start 1"), "a table that serve made counts as unclean");
}

#[test]
fn a_table_in_use_and_a_port_in_use_are_named() {
    let site = Site::with_table();
    let gate = site.serve();
    let second = site.run(&["serve"]);
    assert_eq!(second.status.code(), Some(2));
    assert!(stderr(&second).contains("in use by another process"), "{}", stderr(&second));
    drop(gate);
    let (one, two) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let (api, ops) = (one.local_addr().unwrap(), two.local_addr().unwrap());
    fs::write(
        site.config(),
        format!(
            "[gate]\nlisten = '127.0.0.1:0'\n[api]\nlisten = '{api}'\n[ops]\nlisten = '{ops}'\n[table]\npath = 'gone'\n"
        ),
    )
    .unwrap();
    let refused = site.run(&["serve"]);
    let said = stderr(&refused);
    assert_eq!(refused.status.code(), Some(2));
    for key in ["3 things", "api.listen", "ops.listen", "table.path"] {
        assert!(said.contains(key), "{key} is not in {said}");
    }
}

#[test]
fn every_fault_of_a_configuration_is_listed_at_once() {
    let site = Site::with_table();
    fs::write(site.config(), "[api]\nlisten = '0.0.0.0:1'\nport = 1\n[leases]\n[lease]\nttl_ms_min = 'x'\n").unwrap();
    for command in ["check", "serve"] {
        let refused = site.run(&[command]);
        assert_eq!(refused.status.code(), Some(2));
        let said = stderr(&refused);
        for key in
            ["api.listen: is not a loopback", "api.port: unknown field", "leases: unknown field", "lease.ttl_ms_min: "]
        {
            assert!(said.contains(key), "{key} is not in {said}");
        }
    }
    fs::write(site.config(), "[gate]\nlisten = '127.0.0.1:8080'\n[store]\nurl = 'http://localhost:8080'\n").unwrap();
    let refused = site.run(&["check"]);
    assert!(stderr(&refused).contains("store.url: is the gate's own port"), "{}", stderr(&refused));
    fs::write(site.config(), "[api\n").unwrap();
    let refused = site.run(&["check"]);
    assert!(refused.status.code() == Some(2) && stderr(&refused).contains("is not TOML"), "{}", stderr(&refused));
    let missing = Command::new(binary()).args(["check", "--config", "/nowhere.toml"]).ends();
    assert!(missing.status.code() == Some(2) && stderr(&missing).contains("cannot be read"));
    let mut unknown = Command::new(binary());
    site.configure("");
    unknown.args(["check", "--config"]).arg(site.config()).env("FENCEGATE__LEASE__TTL", "5");
    let unknown = unknown.ends();
    assert!(stderr(&unknown).contains("FENCEGATE__LEASE__TTL: there is no such setting"), "{}", stderr(&unknown));
}

#[test]
fn only_a_loopback_peer_may_drain() {
    // In a separate network namespace, with a second address that is not a loopback one.
    let site = Site::with_table();
    let config = fs::read_to_string(site.config())
        .unwrap()
        .replace("[ops]\nlisten = '127.0.0.1:0'", "[ops]\nlisten = '0.0.0.0:9464'");
    fs::write(site.config(), config).unwrap();
    let script = r#"
        set -e
        ip link set lo up
        ip address add 192.0.2.7/32 dev lo
        "$1" serve --config "$2" > "$2.ready" 2>/dev/null &
        until grep -q ready "$2.ready"; do kill -0 $!; done
        curl -s -o /dev/null -w '%{http_code} ' -X POST --interface 192.0.2.7 http://192.0.2.7:9464/drain
        curl -s -o /dev/null -w '%{http_code} ' http://192.0.2.7:9464/readyz
        curl -s -o /dev/null -w '%{http_code} ' -X POST http://127.0.0.1:9464/drain
        curl -s -o /dev/null -w '%{http_code}' http://192.0.2.7:9464/readyz
        kill $!
        wait $!"#;
    let mut command = Command::new("unshare");
    command.args(["--net", "--map-root-user", "sh", "-c", script, "sh"]).arg(binary()).arg(site.config());
    let done = command.ends();
    assert_eq!(String::from_utf8_lossy(&done.stdout), "403 200 200 503", "{}", stderr(&done));
}

#[test]
fn a_default_build_refuses_test_faults() {
    let run = |binary, fault: &str| Command::new(binary).arg("--version").env("FENCEGATE_TEST_FAULT", fault).ends();
    // `--version` is answered before the settings are read, so the test uses a real command.
    let site = Site::new();
    let check = |binary, fault: &str| {
        Command::new(binary).args(["check", "--config"]).arg(site.config()).env("FENCEGATE_TEST_FAULT", fault).ends()
    };
    assert!(run(binary(), "no-sync").status.success());
    let refused = check(binary(), "no-sync");
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("this build has no test faults"), "{}", stderr(&refused));
    assert!(check(failpoints_binary(), "no-sync").status.success());
    assert_eq!(check(failpoints_binary(), "nonsense").status.code(), Some(2));
    let point = |binary, point: &str| {
        let mut command = Command::new(binary);
        command.args(["check", "--config"]).arg(site.config()).env("FENCEGATE_TEST_POINT", point);
        command.ends().status.code()
    };
    assert_eq!(point(binary(), "sealed=kill:1"), Some(2));
    assert_eq!(point(failpoints_binary(), "sealed=kill:1,loaded=hold:x"), Some(0));
    assert_eq!(point(failpoints_binary(), "sealed=kill"), Some(2));
}

/// A gate whose twentieth sync and all later ones fail as strace's `inject` says: the ledger's syncs are fdatasync
/// calls of one thread. With -D the gate is the test's child, and strace runs beside it.
fn with_syncs(fate: &str) -> Command {
    let mut command = Command::new("strace");
    let inject = format!("inject=fdatasync:{fate}");
    command.args(["-D", "-f", "-qq", "-e", "trace=fdatasync", "-e", &inject, "-o", "/dev/null", "--"]).arg(binary());
    command
}

/// Acquires one lease after another until the table fails. Returns the acknowledged ones.
fn fill_until_it_fails(api: &mut Conn) -> Vec<(String, String)> {
    let mut acknowledged = vec![];
    let refused = loop {
        let n = acknowledged.len();
        // A long object id fills the disk sooner.
        let object = format!("{n}-{}", "x".repeat(900));
        let answer = api.post("/v1/leases", &wanted(&object, "a", 3_600_000));
        if answer.status != 201 {
            break answer;
        }
        acknowledged.push((object, text(&answer.json(), "lease_id").to_owned()));
        assert!(n < 20_000, "the disk never failed");
    };
    // The outcome of the change that failed is unknown; later calls change nothing.
    let failed = refused.json();
    assert_eq!(
        (refused.status, text(&failed, "code"), text(&failed, "side_effect")),
        (503, "TABLE_UNAVAILABLE", "maybe")
    );
    api.post("/v1/leases", &wanted("other", "a", 1_000)).refusal(503, "TABLE_UNAVAILABLE");
    acknowledged
}

/// Checks that every acknowledged grant is there. Returns the state of each lease.
fn all_are_there(api: &mut Conn, acknowledged: Vec<(String, String)>) -> Vec<String> {
    assert!(!acknowledged.is_empty());
    let mut states = vec![];
    for (object, lease_id) in acknowledged {
        let lease = api.get(&format!("/v1/leases/{lease_id}")).expect(200);
        assert_eq!(text(&lease, "object_id"), object);
        assert!(api.get(&format!("/v1/objects/{object}")).expect(200)["fence"].as_u64() >= Some(1));
        states.push(text(&lease, "state").to_owned());
    }
    acquire(api, "other", "a", 1_000);
    states
}

/// Runs a gate until its disk fails, and checks that no acknowledged change is lost.
fn latches(site: &Site, gate: super::support::process::Gate) -> Vec<String> {
    let acknowledged = fill_until_it_fails(&mut gate.api());
    let mut ops = gate.ops();
    assert_eq!(ops.get("/readyz").status, 200, "reads go on, so it stays ready");
    assert!(String::from_utf8(ops.get("/metrics").body).unwrap().contains("fencegate_table_latched 1"));
    gate.kill();
    assert!(site.log().contains("it is shut until this process is started again"), "{}", site.log());
    all_are_there(&mut site.serve().api(), acknowledged)
}

#[test]
fn a_failed_sync_latches_the_table_and_loses_nothing() {
    let site = Site::with_table();
    // The ledger's syncs are fdatasync calls of one thread; the twentieth fails.
    let command = with_syncs("error=EIO:when=20+");
    let states = latches(&site, site.serve_with(command));
    assert!(states.iter().all(|state| state == "held"), "{states:?}");
}

#[test]
fn a_full_disk_latches_the_table_and_loses_nothing() {
    // A real small disk, in a separate mount namespace: it is filled, then made larger for the restart.
    let site = Site::new();
    fs::create_dir(site.data()).unwrap();
    let script = r#"
        set -e
        mount -t tmpfs -o size=3m tmpfs "$1"
        "$2" table init --config "$3" >/dev/null
        "$2" serve --config "$3" && exit 1
        mount -o remount,size=64m "$1"
        exec "$2" serve --config "$3""#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--map-root-user", "sh", "-c", script, "sh"]);
    command.arg(site.data()).arg(binary()).arg(site.config());
    nothing_lands_late(&mut command);
    let log = fs::OpenOptions::new().create(true).append(true).open(site.folder.path().join("log")).unwrap();
    let mut shell = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
    let lines = Lines::of("a gate on a small disk", shell.stdout.take().unwrap());
    let ready = || -> (SocketAddr, SocketAddr) {
        let line = lines.next().unwrap_or_else(|| panic!("no gate: {}", site.log()));
        let address =
            |name: &str| line.trim_end().split(' ').find_map(|part| part.strip_prefix(name)).unwrap().parse().unwrap();
        (address("api="), address("ops="))
    };
    let (api, ops) = ready();
    let acknowledged = fill_until_it_fails(&mut Conn::open(api).unwrap());
    let metrics = Conn::open(ops).unwrap().get("/metrics").body;
    assert!(String::from_utf8(metrics).unwrap().contains("fencegate_table_latched 1"));
    assert!(site.log().contains("No space left on device"), "{}", site.log());
    // The gate is the shell's child; when it is killed, the shell goes on with the second gate.
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", shell.id())).unwrap();
    let gate: i32 = children.split_whitespace().next().unwrap().parse().unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(gate).unwrap(), Signal::KILL).unwrap();
    let (api, _) = ready();
    let states = all_are_there(&mut Conn::open(api).unwrap(), acknowledged);
    // The write that failed may have left half a record at the end of the log. It looks the same as a damaged synced
    // record, so the start then voids the leases; no grant is forgotten.
    let expected = if site.log().contains("LOG WAS LOST") { "fenced" } else { "held" };
    assert!(states.iter().all(|state| state == expected), "{expected}: {states:?}");
    shell.kill().unwrap();
    shell.wait().unwrap();
}

#[test]
fn a_gate_whose_log_is_not_read_serves_and_latches_all_the_same() {
    let site = Site::with_table();
    let mut command = with_syncs("error=EIO:when=20+");
    command.args(["serve", "--config"]).arg(site.config());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let line = Lines::of("a gate whose log is not read", child.stdout.take().unwrap()).next().unwrap();
    drop(child.stderr.take());
    let api = line.split(' ').find_map(|part| part.strip_prefix("api=")).unwrap().parse().unwrap();
    let mut api = Conn::open(api).unwrap();
    let first = acquire(&mut api, "users", "a", 3_600_000);
    api.post("/v1/objects/other/revoke", &json!({ "reason": "an audit line" })).expect(200);
    fill_until_it_fails(&mut api);
    let verdict = api.post("/v1/tokens/check", &json!({ "fence_token": first["fence_token"] })).expect(200);
    assert_eq!((verdict["valid"].as_bool(), text(&verdict, "code")), (Some(false), "TABLE_UNAVAILABLE"));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn half_a_request_does_not_hold_a_stop_up() {
    use std::io::Write;
    let site = Site::with_table();
    let gate = site.serve();
    let mut halves = vec![];
    for (address, half) in [
        (gate.ops, "GET /livez HT"),
        (gate.api, ""),
        (
            gate.api,
            "POST /v1/leases HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{",
        ),
    ] {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(half.as_bytes()).unwrap();
        halves.push(stream);
    }
    // When both ports answer others, they have accepted these connections.
    assert_eq!(gate.ops().get("/livez").status, 200);
    acquire(&mut gate.api(), "users", "a", 60_000);
    gate.stop();
    assert!(site.log().contains("stopped in good order"), "{}", site.log());
    drop(halves);
}

#[test]
fn a_stop_keeps_its_deadline_though_the_disk_hangs() {
    let site = Site::with_table();
    site.configure("[shutdown]\ndeadline_ms = 300\n");
    // From the sixteenth of the ledger's on, a sync takes five seconds. Each of the first fifteen leases has its own.
    let command = with_syncs("delay_enter=5000000:when=16+");
    let mut gate = site.serve_with(command);
    let mut api = gate.api();
    for n in 0..30 {
        let body = wanted(&format!("o{n}"), "a", 60_000).to_string();
        api.send("POST", "/v1/leases", &[("content-type", "application/json")], body.as_bytes()).unwrap();
        let mut other = gate.api();
        if other.get("/v1/objects/none").status == 200 && n < 15 {
            api.receive().unwrap();
        }
    }
    gate.signal(Signal::TERM);
    let status = end_of("a gate whose disk hangs", &mut gate.child);
    assert!(status.success(), "{status}");
    assert!(site.log().contains("the deadline has passed"), "{}", site.log());
}

#[test]
fn ports_that_overlap_are_found_before_anything_is_changed() {
    let site = Site::new();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let text = format!(
        "[gate]\nlisten = '127.0.0.1:0'\n[api]\nlisten = '127.0.0.1:{free}'\n[ops]\nlisten = '0.0.0.0:{free}'\n[table]\ncreate = true\npath = '{}'\n[nonsense]\n",
        site.data().display()
    );
    fs::write(site.config(), text).unwrap();
    let refused = site.run(&["serve"]);
    assert_eq!(refused.status.code(), Some(2));
    let said = stderr(&refused);
    assert!(said.contains("ops.listen: cannot listen") && said.contains("nonsense: unknown field"), "{said}");
    assert!(!site.data().exists(), "nothing was made");
}
