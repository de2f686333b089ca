//! The examples in shell and Python, unchanged, against a real gate.

use std::{
    path::Path,
    process::{Command, Output},
};

use serde_json::json;

use super::support::{
    gate::text,
    process::{Gate, Site, stderr, stdout},
    run::{Ends, end_of},
    store::Store,
    until,
};

struct Bench {
    store: Store,
    gate: Gate,
    _site: Site,
}

impl Bench {
    fn new() -> Self {
        let store = Store::start();
        let site = Site::with_table();
        site.configure(&format!("[store]\nurl = '{}'\n", store.url()));
        Self { store, gate: site.serve(), _site: site }
    }

    fn command(&self, example: &str, values: &[&str]) -> Command {
        let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(example));
        command.args(["users", "/users/1"]).args(values);
        command.env("API", format!("http://{}", self.gate.api)).env("GATE", format!("http://{}", self.gate.gate));
        command.env("HOLDER", "example").env("TTL", "1000").env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    fn run(&self, example: &str, values: &[&str]) -> Output {
        self.command(example, values).ends()
    }
}

const EXAMPLES: [&str; 2] = ["shell/fenced-write.sh", "python/fenced_write.py"];

#[test]
fn each_example_writes_under_a_lease_and_gives_it_back() {
    for example in EXAMPLES {
        let bench = Bench::new();
        let ran = bench.run(example, &["one", "two"]);
        assert!(ran.status.success(), "{example}: {} {}", stdout(&ran), stderr(&ran));
        assert!(stdout(&ran).contains("acquired users"), "{}", stdout(&ran));
        let applied = bench.store.applied();
        let seqs: Vec<_> = applied.iter().map(|each| text(&each["headers"], "fence-seq")).collect();
        assert_eq!(seqs, ["1", "1"], "{example}");
        let lease = bench.gate.api().get("/v1/objects/users").expect(200)["lease"].clone();
        assert_eq!((text(&lease, "state"), text(&lease, "holder_id")), ("released", "example"), "{example}");
    }
}

#[test]
fn each_example_keeps_its_lease_while_it_works_and_ends_when_it_is_lost() {
    for example in EXAMPLES {
        let bench = Bench::new();
        // The example writes until it is refused.
        let values: Vec<String> = (0..20_000).map(|n| format!("value-{n}")).collect();
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        let mut stream = bench.gate.api();
        stream.send("GET", "/v1/watch", &[], b"").unwrap();
        let mut child = bench.command(example, &values).stdout(std::process::Stdio::null()).spawn().unwrap();
        for _ in 0..4 {
            stream.until_line("a renewal", |line| line == "event: renewed");
        }
        bench.gate.api().post("/v1/objects/users/revoke", &json!({ "reason": "a test" })).expect(200);
        assert_eq!(end_of(example, &mut child).code(), Some(1), "{example}");
        let written = bench.store.applied().len();
        assert!(written > 0 && written < values.len(), "{example}: {written}");
        // The example has stopped for good: the next one has its turn, and writes last.
        let next = bench.run(example, &["next"]);
        assert!(next.status.success(), "{example}: {}", stderr(&next));
        let applied = bench.store.applied();
        assert_eq!(applied.len(), written + 1, "{example}");
        assert_eq!(text(&applied[written]["headers"], "fence-seq"), "3", "{example}");
    }
}

/// A killed example cannot give its lease back, and no process of it may keep the lease either.
#[test]
fn a_killed_example_lets_its_lease_run_out_and_shows_its_token_to_no_other_process() {
    for example in EXAMPLES {
        let bench = Bench::new();
        let values: Vec<String> = (0..20_000).map(|n| format!("value-{n}")).collect();
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        let mut stream = bench.gate.api();
        stream.send("GET", "/v1/watch", &[], b"").unwrap();
        let mut command = bench.command(example, &values);
        let mut child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
        let mut shown = false;
        let addresses = [bench.gate.api.to_string(), bench.gate.gate.to_string()];
        let mut look = || {
            for process in std::fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
                let arguments = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
                let arguments = String::from_utf8_lossy(&arguments);
                let is_its_own = addresses.iter().any(|address| arguments.contains(address));
                shown |= is_its_own && arguments.contains("fg1.");
            }
        };
        for _ in 0..2 {
            until("a renewal", || {
                look();
                stream.read_line().unwrap() == "event: renewed"
            });
        }
        until("some writes", || {
            look();
            bench.store.applied().len() >= 20
        });
        child.kill().unwrap();
        child.wait().unwrap();
        stream.until_line("the lease runs out", |line| line == "event: expired");
        assert!(!shown, "{example}: its token is in the arguments of a process");
    }
}
