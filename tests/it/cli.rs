//! The commands as a person uses them.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Command, Output, Stdio},
};

use serde_json::Value;

use super::support::{
    process::{Gate, Site, binary, stderr, stdout},
    run::{Ends, Lines, output_of},
    until,
};

fn lease(gate: &Gate, arguments: &[&str]) -> Output {
    let (verb, rest) = arguments.split_first().unwrap();
    let api = format!("http://{}", gate.api);
    Command::new(binary()).args(["lease", verb, "--api", &api]).args(rest).ends()
}

fn json(output: &Output) -> Value {
    serde_json::from_str(&stdout(output)).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn a_lease_lives_through_the_commands() {
    let site = Site::with_table();
    let gate = site.serve();
    let watch = Command::new(binary())
        .args(["lease", "watch", "--api", &format!("http://{}", gate.api)])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut watch = scopeguard(watch);
    until("a watcher", || String::from_utf8(gate.ops().get("/metrics").body).unwrap().contains("fencegate_watchers 1"));
    let got =
        json(&lease(&gate, &["acquire", "--object", "/data/users/", "--holder", "me", "--ttl", "60000", "--json"]));
    let (id, token) = (got["lease_id"].as_str().unwrap(), got["fence_token"].as_str().unwrap());
    let held = lease(&gate, &["acquire", "--object", "/data/users/", "--holder", "you"]);
    assert_eq!(held.status.code(), Some(1));
    assert!(stderr(&held).contains("LEASE_HELD: held by me"), "{}", stderr(&held));
    let shown = stdout(&lease(&gate, &["get", id]));
    assert!(shown.contains("/data/users/") && shown.contains("held"), "{shown}");
    let listed = stdout(&lease(&gate, &["list", "--prefix", "/data/"]));
    assert!(listed.starts_with("OBJECT") && listed.contains(id), "{listed}");
    let renewed = json(&lease(&gate, &["renew", id, "--holder", "me", "--token", token, "--ttl", "90000", "--json"]));
    assert_eq!(renewed["lease_seq"], 1);
    let released = lease(&gate, &["release", id, "--token", token]);
    assert!(stdout(&released).contains("its fence stays 1"), "{released:?}");
    let again = lease(&gate, &["release", id, "--token", token, "--json"]);
    assert_eq!((again.status.code(), json(&again)["code"].as_str()), (Some(1), Some("LEASE_EXPIRED")));
    let lines = Lines::of("lease watch", watch.0.stdout.take().unwrap());
    for kind in ["granted", "renewed", "released"] {
        let line = lines.next().unwrap();
        assert!(line.starts_with(kind) && line.contains("/data/users/"), "{line}");
    }
}

struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn scopeguard(child: std::process::Child) -> Killed {
    Killed(child)
}

#[test]
fn an_unreachable_gate_is_said_to_be_so() {
    let refused = Command::new(binary()).args(["lease", "list", "--api", "http://127.0.0.1:1"]).ends();
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("Is the gate running"), "{}", stderr(&refused));
    let bad = Command::new(binary()).args(["lease", "list", "--api", "ftp://x"]).ends();
    assert!(stderr(&bad).contains("is not a URL"), "{}", stderr(&bad));
}

/// A listener that takes connections and says nothing: the kernel takes them in.
fn silent() -> (std::net::TcpListener, String) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (listener, url)
}

/// Runs a command that must end by itself.
#[track_caller]
fn ends(arguments: &[&str]) -> Output {
    Command::new(binary()).args(arguments).ends()
}

#[test]
fn no_command_waits_for_ever_for_an_answer() {
    let (_listener, url) = silent();
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key").display().to_string();
    assert!(ends(&["cert", "keygen", "--out", &key]).status.success());
    let migrate = ["migrate", "--domain", "d", "--to", "b", "--key", &key, "--cluster", "c", "--api", &url];
    let api = |words: &'static str| words.split(' ').chain(["--api", url.as_str()]).collect::<Vec<_>>();
    for arguments in [
        api("lease list"),
        api("lease acquire --object o --holder h --wait 100"),
        api("lease renew l --holder h --token t"),
        api("lease release l --token t"),
        api("lease get l"),
        api("lease watch"),
        migrate.to_vec(),
    ] {
        let late = ends(&[&arguments[..], &["--timeout", "300"]].concat());
        assert_eq!(late.status.code(), Some(1), "{late:?}");
        let said = stderr(&late);
        assert!(said.contains("did not answer within") && said.contains("--timeout"), "{arguments:?}: {said}");
        assert!(said.contains(&url), "{said}");
    }
}

/// These commands wait long for an answer, but only a short time for a sign that a gate runs.
#[test]
fn calls_that_take_long_find_out_first_whether_a_gate_is_there() {
    let (_listener, url) = silent();
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("copy").display().to_string();
    for arguments in [&["drain", "--ops", &url][..], &["table", "backup", "--to", &to, "--api", &url]] {
        let late = ends(arguments);
        assert_eq!(late.status.code(), Some(1), "{late:?}");
        assert!(stderr(&late).contains("did not answer within 10000 ms"), "{}", stderr(&late));
    }
}

#[test]
fn a_watch_ends_when_its_stream_is_silent_for_too_long() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut kept = vec![];
        for stream in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut line, mut first) = (String::new(), String::new());
            while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                if first.is_empty() {
                    first.clone_from(&line);
                }
                line.clear();
            }
            let body = "{\"leases\":[],\"next_cursor\":null}";
            let answer = if first.contains("/v1/watch") {
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_owned()
            } else {
                format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
            };
            let mut stream = stream;
            stream.write_all(answer.as_bytes()).unwrap();
            kept.push(stream);
        }
    });
    let silent = ends(&["lease", "watch", "--api", &url, "--silence", "300"]);
    assert_eq!(silent.status.code(), Some(1), "{silent:?}");
    assert!(stderr(&silent).contains("has been silent for 300 ms"), "{}", stderr(&silent));
}

#[test]
fn a_token_is_inspected_without_its_secret() {
    let token = "fg1.7.L2RhdGEvdXNlcnMv.AQIDBAUGBwgJCgsMDQ4PEA";
    let shown = Command::new(binary()).args(["token", "inspect", token]).ends();
    assert_eq!(stdout(&shown), "object_id  /data/users/\nlease_seq  7\n");
    let mut child = Command::new(binary())
        .args(["token", "inspect", "-", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(format!("{token}\n").as_bytes()).unwrap();
    let piped = output_of("token inspect", &mut child);
    assert_eq!(json(&piped), serde_json::json!({ "object_id": "/data/users/", "lease_seq": 7 }));
    let bad = Command::new(binary()).args(["token", "inspect", "fg1.0.x.AQIDBAUGBwgJCgsMDQ4PEA"]).ends();
    assert_eq!(bad.status.code(), Some(1));
    assert!(stderr(&bad).contains("lease_seq") && !stderr(&bad).contains("AQID"), "{}", stderr(&bad));
}

#[test]
fn the_table_is_counted_and_verified_beside_a_running_gate() {
    let site = Site::with_table();
    let gate = site.serve();
    for n in 0..50 {
        super::support::gate::acquire(&mut gate.api(), &format!("o{n}"), "a", 60_000);
    }
    let mut stats = Command::new(binary());
    let stats = stats.args(["table", "stats", "--json", "--config"]).arg(site.config()).ends();
    let counted = json(&stats);
    assert_eq!((counted["rows"]["records"].as_u64(), counted["rows"]["leases"].as_u64()), (Some(50), Some(50)));
    assert_eq!(counted["clean"], false);
    let verified = site.run(&["table", "verify"]);
    assert!(stdout(&verified).contains("all sound"), "{verified:?}");
    gate.stop();
    assert!(stdout(&site.run(&["table", "stats"])).contains("ended in good order  yes"));
}

#[test]
fn a_busy_table_is_not_called_damaged() {
    let site = Site::with_table();
    let gate = site.serve();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let (gate, over) = (&gate, &over);
            scope.spawn(move || {
                let mut api = gate.api();
                for n in 0.. {
                    if over.load(std::sync::atomic::Ordering::Relaxed) {
                        return;
                    }
                    super::support::gate::acquire(&mut api, &format!("{writer}-{n}"), "a", 60_000);
                }
            });
        }
        let verdicts: Vec<_> = (0..15).map(|_| site.run(&["table", "verify"])).collect();
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        for verified in verdicts {
            assert!(verified.status.success(), "{verified:?}");
        }
    });
}

#[test]
fn an_answer_that_cannot_be_printed_is_a_failure() {
    let site = Site::with_table();
    let gate = site.serve();
    let mut command = Command::new(binary());
    command.args(["lease", "acquire", "--object", "o", "--holder", "h", "--api", &format!("http://{}", gate.api)]);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut child = command.stdout(full).stderr(Stdio::piped()).spawn().unwrap();
    let failed = output_of("an acquire whose answer cannot be printed", &mut child);
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
}

#[test]
fn a_lease_on_an_object_that_no_route_makes_comes_with_a_warning() {
    let site = Site::with_table();
    let route = "[[route]]\nname = 'data'\nmatch = '/data/{domain}/{rest...}'\nobject = '/data/{domain}/'\n";
    site.configure(route);
    let gate = site.serve();
    let routes = gate.api().get("/v1/routes").expect(200);
    let data = serde_json::json!({
        "name": "data", "match": "/data/{domain}/{rest...}", "object": "/data/{domain}/", "mode": "enforce",
        "lease_source": "gate",
    });
    assert_eq!(routes, serde_json::json!({ "routes": [data] }));
    let useless = lease(&gate, &["acquire", "--object", "users", "--holder", "me", "--json"]);
    assert!(useless.status.success());
    let warning = json(&useless)["warning"].as_str().unwrap().to_owned();
    assert!(warning.contains("no route") && warning.contains("/data/{domain}/"), "{warning}");
    assert!(stderr(&useless).contains(&warning), "{}", stderr(&useless));
    let good = lease(&gate, &["acquire", "--object", "/data/users/", "--holder", "me", "--json"]);
    assert_eq!((json(&good)["warning"].as_str(), stderr(&good).as_str()), (None, ""));
    let both = serde_json::json!({ "object_ids": ["/data/a/", "a"], "holder_id": "me" });
    let both = gate.api().post("/v1/lease-batches", &both).expect(201);
    let warned: Vec<_> = both["leases"].as_array().unwrap().iter().map(|lease| lease["warning"].is_string()).collect();
    assert_eq!(warned, [false, true]);
}

#[test]
fn check_prints_which_promises_a_setting_relies_on() {
    let site = Site::with_table();
    site.configure("[store]\nreads_bodies = 'all'\n[[route]]\nname = 'all'\nbodies_on_reads = true\n");
    let checked = site.run(&["check"]);
    assert!(checked.status.success(), "{checked:?}");
    let said = stdout(&checked);
    for note in [
        "note: store.reads_bodies: the store must read the body of every request",
        "note: route[0].bodies_on_reads: a read needs no token",
    ] {
        assert!(said.contains(note), "{note} is not in {said}");
    }
}

#[test]
fn drain_asks_the_gate_and_waits() {
    let site = Site::with_table();
    let gate = site.serve();
    let drained = Command::new(binary()).args(["drain", "--ops", &format!("http://{}", gate.ops)]).ends();
    assert_eq!(stdout(&drained), "drained\n");
    assert_eq!(gate.ops().get("/readyz").status, 503);
}

#[test]
fn help_teaches_and_the_manual_and_completions_are_there() {
    let help = stdout(&Command::new(binary()).arg("--help").ends());
    for word in ["fencegate table init", "serve", "lease", "token", "drain"] {
        assert!(help.contains(word), "{word} is not in {help}");
    }
    let version = stdout(&Command::new(binary()).arg("--version").ends());
    assert_eq!(version, format!("fencegate {}\n", env!("CARGO_PKG_VERSION")));
    let completions = stdout(&Command::new(binary()).args(["completions", "bash"]).ends());
    assert!(completions.contains("_fencegate"));
    let folder = tempfile::tempdir().unwrap();
    let made = Command::new(binary()).args(["man", "--out"]).arg(folder.path()).ends();
    assert!(made.status.success(), "{made:?}");
    assert!(folder.path().join("fencegate-lease-acquire.1").exists());
    assert!(stdout(&Command::new(binary()).arg("man").ends()).contains(".TH fencegate 1"));
    assert_eq!(Command::new(binary()).arg("nonsense").ends().status.code(), Some(2));
}
