//! `fencegate lock`: a command under a lease. `processes`: the command's own processes, signals and terminals.

mod processes;

use std::{
    fs,
    io::Write,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::{Value, json};

use super::support::{
    gate::{acquire, renewal, text},
    process::{Gate, Site, binary, stderr, stdout},
    run::{Ends, Lines, end_of, output_of},
    store::Store,
    until,
};

struct Bench {
    site: Site,
    gate: Gate,
}

impl Bench {
    fn new() -> Self {
        Self::with("")
    }

    fn with(settings: &str) -> Self {
        let site = Site::with_table();
        site.configure(settings);
        let gate = site.serve();
        Self { site, gate }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.site.folder.path().join(name)
    }

    /// `fencegate lock` on `users`, with a shell script for a command.
    fn command(&self, options: &[&str], script: &str) -> Command {
        // The test runner may ignore some signals.
        let mut command = Command::new("/usr/bin/env");
        command.arg("--default-signal=HUP,INT,QUIT,TERM").arg(binary());
        command.args(["lock", "--object", "users", "--ttl", "1000", "--api", &format!("http://{}", self.gate.api)]);
        command.args(options).args(["--", "sh", "-c", script]).current_dir(self.site.folder.path());
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, options: &[&str], script: &str) -> Output {
        self.command(options, script).ends()
    }

    fn start(&self, options: &[&str], script: &str) -> Lock {
        Lock::start(self.command(options, script))
    }

    fn lease(&self) -> Value {
        self.gate.api().get("/v1/objects/users").expect(200)["lease"].clone()
    }

    fn state(&self) -> String {
        self.lease()["state"].as_str().unwrap_or("none").to_owned()
    }

    fn revoke(&self) {
        self.gate.api().post("/v1/objects/users/revoke", &json!({ "reason": "a test" })).expect(200);
    }
}

/// A running `fencegate lock`, and the output of its command.
struct Lock {
    child: Child,
    says: Lines,
}

impl Lock {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let says = Lines::of(&format!("{command:?}"), child.stdout.take().unwrap());
        Self { child, says }
    }

    /// The next line of the command's output; empty if the command has ended.
    #[track_caller]
    fn line(&mut self) -> String {
        self.says.next().unwrap_or_default().trim_end().to_owned()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The exit code, and the text on standard error.
    #[track_caller]
    fn end(mut self) -> (Option<i32>, String) {
        let ended = output_of("lock", &mut self.child);
        (ended.status.code(), stderr(&ended))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The guard of a killed `lock` ends the command.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_alive(pid: &str) -> bool {
    let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
    // A zombie counts as gone: its parent may not have waited for it yet.
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    test_kill_process(pid).is_ok() && !stat.contains(") Z ")
}

#[test]
fn a_command_runs_under_a_lease_and_its_code_comes_back() {
    let bench = Bench::new();
    let ran = bench.run(&["--holder", "me"], "echo $FENCE_OBJECT $FENCE_SEQ $FENCE_TOKEN; exit 7");
    assert_eq!(ran.status.code(), Some(7), "{ran:?}");
    let said = stdout(&ran);
    let words: Vec<_> = said.split_whitespace().collect();
    assert_eq!(words[..2], ["users", "1"]);
    assert!(words[2].starts_with("fg1.1."), "{said}");
    assert_eq!(stderr(&ran), "");
    let lease = bench.lease();
    assert_eq!((text(&lease, "state"), text(&lease, "holder_id")), ("released", "me"));
    // The command's own code, whatever it is; after a signal, the code that a shell would give.
    assert_eq!(bench.run(&[], "exit 0").status.code(), Some(0));
    assert_eq!(bench.run(&[], "kill -USR1 $$").status.code(), Some(128 + 10));
    // Standard input is passed on.
    let mut command = bench.command(&[], "cat");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"hello").unwrap();
    assert_eq!(stdout(&output_of("lock with an input", &mut child)), "hello");
}

#[test]
fn a_lease_is_renewed_for_as_long_as_the_command_runs() {
    let bench = Bench::new();
    assert!(Command::new("mkfifo").arg(bench.path("wait")).status().unwrap().success());
    let mut lock = bench.start(&[], "echo $FENCE_TOKEN; read line < wait; exit 3");
    let token = lock.line();
    let mut stream = bench.gate.api();
    stream.send("GET", "/v1/watch", &[], b"").unwrap();
    // Five renewals take longer than the ttl.
    for _ in 0..5 {
        stream.until_line("a renewal", |line| line == "event: renewed");
    }
    let check = bench.gate.api().post("/v1/tokens/check", &json!({ "fence_token": token })).expect(200);
    assert_eq!(check["valid"], true);
    lock.signal(Signal::TERM);
    assert_eq!(lock.end().0, Some(128 + 15));
}

#[test]
fn what_is_not_to_be_had_ends_with_a_code_of_its_own() {
    let bench = Bench::new();
    acquire(&mut bench.gate.api(), "users", "first", 60_000);
    for wait in ["0", "300"] {
        let refused = bench.run(&["--wait", wait], "touch ran");
        assert_eq!(refused.status.code(), Some(75), "{refused:?}");
        assert!(stderr(&refused).contains("users was not to be had: held by first"), "{}", stderr(&refused));
    }
    let mut command = Command::new(binary());
    let api = format!("http://{}", bench.gate.api);
    command.args(["lock", "--object", "users", "--ttl", "1", "--api", &api, "--", "touch", "ran"]);
    let refused = command.ends();
    assert_eq!((refused.status.code(), stderr(&refused).contains("REQUEST_INVALID: ttl_ms")), (Some(1), true));
    let usage = |arguments: &[&str]| Command::new(binary()).arg("lock").args(arguments).ends();
    for bad in [&["--object", "users"][..], &["--", "true"], &["--object", "", "--", "true"]] {
        assert_eq!(usage(bad).status.code(), Some(2), "{bad:?}");
    }
    let away = usage(&["--object", "users", "--wait", "0", "--api", "http://127.0.0.1:1", "--", "touch", "ran"]);
    assert_eq!(away.status.code(), Some(69));
    assert!(stderr(&away).contains("Is the gate running"), "{}", stderr(&away));
    let other =
        |command: &str| usage(&["--object", "other", "--ttl", "5000", "--api", &api, "--", command]).status.code();
    assert_eq!((other("/no/such/command"), other("/etc/passwd")), (Some(127), Some(126)));
    assert_eq!(bench.gate.api().get("/v1/objects/other").expect(200)["state"], "free", "it was given back");
    assert!(!bench.path("ran").exists());
}

#[test]
fn a_command_whose_writes_no_route_would_take_is_not_started() {
    let bench = Bench::with("[[route]]\nname = 'data'\nmatch = '/data/{d}/{rest...}'\nobject = '/data/{d}/'\n");
    let refused = bench.run(&[], "touch ran");
    assert_eq!(refused.status.code(), Some(78), "{refused:?}");
    let said = stderr(&refused);
    assert!(said.contains("no route of this gate makes the object users") && said.contains("--unrouted"), "{said}");
    assert!(!bench.path("ran").exists());
    assert_eq!(bench.state(), "released");
    // A route could make the object, but another route takes all of its paths first.
    let hidden = "[[route]]\nname = 'all'\nmatch = '/{object}/{rest...}'\nobject = '{object}'\n\
                  [[route]]\nname = 'users'\nmatch = '/users/{rest...}'\nobject = 'all-users'\n";
    let refused = Bench::with(hidden).run(&[], "touch ran");
    assert_eq!(refused.status.code(), Some(78), "{refused:?}");
    // An election whose winner writes nothing through the gate.
    let ran = bench.run(&["--unrouted"], "exit 3");
    assert_eq!((ran.status.code(), stderr(&ran).as_str()), (Some(3), ""));
}

#[test]
fn a_turn_is_waited_for() {
    let bench = Bench::new();
    let mut api = bench.gate.api();
    let first = acquire(&mut api, "users", "first", 60_000);
    let mut lock = bench.start(&["--holder", "second"], "echo $FENCE_SEQ");
    let says = Lines::of("lock", lock.child.stderr.take().unwrap());
    assert_eq!(says.next().unwrap(), "fencegate: waiting for users, held by first\n");
    api.delete(&format!("/v1/leases/{}", text(&first, "lease_id")), text(&first, "fence_token")).expect(200);
    assert_eq!(lock.line(), "2");
    assert!(end_of("lock", &mut lock.child).success());
}

#[test]
fn a_lock_that_is_stopped_while_waiting_takes_nothing() {
    let bench = Bench::new();
    let mut api = bench.gate.api();
    let first = acquire(&mut api, "users", "first", 60_000);
    let lock = bench.start(&[], "touch ran");
    until("a waiter", || {
        String::from_utf8(bench.gate.ops().get("/metrics").body).unwrap().contains("fencegate_lease_waiters 1\n")
    });
    lock.signal(Signal::INT);
    assert_eq!(lock.end().0, Some(128 + 2));
    api.delete(&format!("/v1/leases/{}", text(&first, "lease_id")), text(&first, "fence_token")).expect(200);
    assert_eq!(bench.state(), "released");
    assert!(!bench.path("ran").exists());
}

#[test]
fn signals_are_passed_on_to_the_command_and_its_children() {
    let bench = Bench::new();
    for (signal, name) in [
        (Signal::TERM, "TERM"),
        (Signal::INT, "INT"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ] {
        // The child gets the signal; the shell waits for the child.
        let child = format!(
            "import signal, sys\nsignal.signal(signal.SIG{name}, lambda *_: sys.exit(40))\nprint(\"up\", flush=True)\nsignal.pause()"
        );
        let script = format!("trap '' {name}; python3 -c '{child}'; exit $?");
        let mut lock = bench.start(&[], &script);
        assert_eq!(lock.line(), "up");
        lock.signal(signal);
        assert_eq!(lock.end(), (Some(40), String::new()), "{name}");
        assert_eq!(bench.state(), "released");
    }
}

#[test]
fn a_lost_lease_stops_the_command() {
    let bench = Bench::new();
    let mut lock = bench.start(&[], "trap 'echo stopping; exit 0' TERM; echo up; while :; do sleep 0.02; done");
    assert_eq!(lock.line(), "up");
    bench.revoke();
    assert_eq!(lock.line(), "stopping");
    let (code, said) = lock.end();
    assert_eq!(code, Some(76), "{said}");
    assert!(said.contains("the lease on users was lost") && said.contains("LEASE_FENCED"), "{said}");
}

#[test]
fn a_command_that_ignores_term_is_killed_after_the_grace_with_its_children() {
    let bench = Bench::new();
    let script = "trap '' TERM; sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.05; done' & echo $$; wait; wait; while :; do sleep 0.05; done";
    let mut lock = bench.start(&["--grace", "200"], script);
    let pids = [lock.line(), lock.line()];
    bench.revoke();
    let (code, said) = lock.end();
    assert_eq!(code, Some(76), "{said}");
    for pid in &pids {
        assert!(!is_alive(pid), "{pid} is alive");
    }
}

#[test]
fn the_lease_is_released_only_when_the_command_and_what_it_left_behind_are_gone() {
    let bench = Bench::new();
    // The command ends on TERM, but only later; its child ignores TERM and would go on.
    let script = "sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.05; done' & \
                  trap 'while [ ! -e go ]; do sleep 0.01; done; exit 5' TERM; echo up; while :; do sleep 0.02; done";
    let mut lock = bench.start(&[], script);
    let lines = [lock.line(), lock.line()];
    let child = lines.iter().find(|line| *line != "up").unwrap();
    lock.signal(Signal::TERM);
    // `lock` goes on renewing the lease meanwhile.
    let mut stream = bench.gate.api();
    stream.send("GET", "/v1/watch", &[], b"").unwrap();
    stream.until_line("a renewal", |line| line == "event: renewed");
    assert_eq!(bench.state(), "held");
    assert!(is_alive(child));
    fs::write(bench.path("go"), "").unwrap();
    stream.until_line("the release", |line| line == "event: released");
    assert!(!is_alive(child), "what the command left behind outlives its lease");
    assert_eq!(lock.end().0, Some(5));
}

#[test]
fn a_lock_that_is_killed_takes_its_command_along() {
    let bench = Bench::new();
    let mut lock =
        bench.start(&[], "sh -c 'echo $$; while :; do sleep 0.05; done' & echo $$; while :; do sleep 0.05; done");
    let pids = [lock.line(), lock.line()];
    lock.signal(Signal::KILL);
    assert_eq!(lock.child.wait().unwrap().signal(), Some(9));
    until("both are gone", || !pids.iter().any(|pid| is_alive(pid)));
}

#[test]
fn a_candidate_rejoins_after_a_loss() {
    let bench = Bench::new();
    let mut lock = bench.start(
        &["--on-loss", "rejoin", "--holder", "a"],
        "trap 'exit 0' TERM; echo up $FENCE_SEQ; while :; do sleep 0.02; done",
    );
    assert_eq!(lock.line(), "up 1");
    bench.revoke();
    // The revocation took number 2.
    assert_eq!(lock.line(), "up 3");
    assert_eq!(text(&bench.lease(), "holder_id"), "a");
    lock.signal(Signal::TERM);
    let (code, said) = lock.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("was lost"), "{said}");
}

#[test]
fn a_lock_that_must_end_while_it_stops_a_lost_command_does_not_rejoin() {
    let bench = Bench::new();
    let script = "trap 'echo stopping; while [ ! -e go ]; do sleep 0.01; done; exit 0' TERM; echo up; while :; do sleep 0.02; done";
    let mut lock = bench.start(&["--on-loss", "rejoin", "--grace", "20000"], script);
    assert_eq!(lock.line(), "up");
    bench.revoke();
    assert_eq!(lock.line(), "stopping");
    lock.signal(Signal::TERM);
    // The command got the signal, so `lock` has read it.
    assert_eq!(lock.line(), "stopping");
    fs::write(bench.path("go"), "").unwrap();
    assert_eq!(lock.end().0, Some(76));
}

#[test]
fn a_hang_up_long_ago_does_not_take_a_candidate_out_of_the_race() {
    let bench = Bench::new();
    let script = "trap 'echo read again' HUP; trap 'exit 0' TERM; echo up $FENCE_SEQ; while :; do sleep 0.02; done";
    let mut lock = bench.start(&["--on-loss", "rejoin"], script);
    assert_eq!(lock.line(), "up 1");
    lock.signal(Signal::HUP);
    assert_eq!(lock.line(), "read again");
    bench.revoke();
    assert_eq!(lock.line(), "up 3");
    lock.signal(Signal::TERM);
    assert_eq!(lock.end().0, Some(0));
}

#[test]
fn a_signal_that_is_ignored_from_the_start_stays_so() {
    let bench = Bench::new();
    let usual = bench.command(&[], "trap 'exit 4' USR1; echo up; while :; do sleep 0.02; done");
    let mut command = Command::new("/usr/bin/env");
    // As nohup(1) does it.
    command
        .args(["--default-signal=INT,QUIT,TERM", "--ignore-signal=HUP"])
        .args(usual.get_args().skip(1))
        .current_dir(bench.site.folder.path());
    let mut lock = Lock::start(command);
    assert_eq!(lock.line(), "up");
    let status = fs::read_to_string(format!("/proc/{}/status", lock.child.id())).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    assert_eq!(u64::from_str_radix(mask, 16).unwrap() & 1, 1, "{status}");
    lock.signal(Signal::HUP);
    lock.signal(Signal::USR1);
    assert_eq!(lock.end().0, Some(4));
}

#[test]
fn a_standby_whose_program_was_replaced_runs_its_command_all_the_same() {
    let bench = Bench::new();
    let mut api = bench.gate.api();
    let first = acquire(&mut api, "users", "first", 60_000);
    let own = bench.path("fencegate");
    assert!(Command::new("cp").arg(binary()).arg(&own).status().unwrap().success());
    let mut command = Command::new(&own);
    command.args(["lock", "--object", "users", "--ttl", "1000", "--api", &format!("http://{}", bench.gate.api)]);
    command.args(["--", "echo", "ran"]).stdin(Stdio::null());
    let mut lock = Lock::start(command);
    until("a waiter", || {
        String::from_utf8(bench.gate.ops().get("/metrics").body).unwrap().contains("fencegate_lease_waiters 1\n")
    });
    fs::remove_file(&own).unwrap();
    api.delete(&format!("/v1/leases/{}", text(&first, "lease_id")), text(&first, "fence_token")).expect(200);
    assert_eq!(lock.line(), "ran");
    assert_eq!(lock.end().0, Some(0));
}

/// Seed 003: a holder that was paused for longer than its lease comes back, renews and writes.
#[test]
fn a_holder_that_pauses_past_its_ttl_neither_renews_nor_writes() {
    let store = Store::start();
    let bench = Bench::with(&format!("[store]\nurl = '{}'\n", store.url()));
    let write = |name: &str| {
        format!(
            "curl -s -o /dev/null -w '%{{http_code}}' -X PUT http://{}/users/1 -H \"Fence-Token: $FENCE_TOKEN\" -d {name}",
            bench.gate.gate
        )
    };
    // A writes, then waits for a signal before it writes again.
    let script = format!(
        "echo $FENCE_TOKEN; echo $({}); trap 'while [ ! -e go ]; do sleep 0.01; done; echo late $({}); exit 0' TERM; while :; do sleep 0.02; done",
        write("early"),
        write("late")
    );
    let mut a = bench.start(&["--holder", "a", "--grace", "20000"], &script);
    let token = a.line();
    assert_eq!(a.line(), "200");
    let held = bench.lease();
    a.signal(Signal::STOP);
    // B waits for its turn, which comes when A's lease has run out.
    let script = format!("echo $({}); read line < b-waits", write("b"));
    assert!(Command::new("mkfifo").arg(bench.path("b-waits")).status().unwrap().success());
    let mut b = bench.start(&["--holder", "b"], &script);
    assert_eq!(b.line(), "200");
    let taken = bench.lease();
    assert_eq!((text(&taken, "holder_id"), taken["lease_seq"].as_u64()), ("b", Some(2)));
    // A's delayed renewal, as A's process would send it, is refused for the right reason.
    let mut held = held;
    held["fence_token"] = json!(token);
    let (path, body) = renewal(&held, 1_000);
    bench.gate.api().post(&path, &body).refusal(409, "LEASE_FENCED");
    let after = bench.lease();
    assert_eq!((&after["lease_id"], text(&after, "state")), (&taken["lease_id"], "held"), "B's lease is untouched");
    // A wakes up, and its delayed write is refused.
    a.signal(Signal::CONT);
    fs::write(bench.path("go"), "").unwrap();
    assert_eq!(a.line(), "late 412");
    let (code, said) = a.end();
    assert_eq!(code, Some(76), "{said}");
    assert!(said.contains("its time is up") || said.contains("LEASE_FENCED"), "{said}");
    assert_eq!(text(&bench.lease(), "holder_id"), "b");
    let seqs: Vec<_> = store.applied().iter().map(|each| text(&each["headers"], "fence-seq").to_owned()).collect();
    assert_eq!(seqs, ["1", "2"], "A's late write did not land");
    b.signal(Signal::TERM);
    assert_eq!(b.end().0, Some(128 + 15));
}

#[test]
fn who_leads_can_be_watched() {
    let bench = Bench::new();
    let api = format!("http://{}", bench.gate.api);
    acquire(&mut bench.gate.api(), "users-already", "c", 60_000);
    acquire(&mut bench.gate.api(), "other", "d", 60_000);
    let mut command = Command::new(binary());
    command.args(["lease", "watch", "--prefix", "users", "--api", &api]);
    let mut watch = Lock::start(command);
    until("a watcher", || {
        String::from_utf8(bench.gate.ops().get("/metrics").body).unwrap().contains("fencegate_watchers 1\n")
    });
    // First the present leaders, then the changes.
    assert_eq!(watch.line(), "held      users-already  seq 1  c");
    for holder in ["a", "b"] {
        assert!(bench.run(&["--holder", holder], "true").status.success());
    }
    for line in [
        "granted   users  seq 1  a",
        "released  users  seq 1  a",
        "granted   users  seq 2  b",
        "released  users  seq 2  b",
    ] {
        assert_eq!(watch.line(), line);
    }
}
