//! A controller that elects its leader, in its own process: client-go (tests/kubernetes/candidate) if `make
//! test-kubernetes` has built it, else a script with the same rules (tests/kubernetes/candidate.py).

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{super::run::end_of, ApiServer, Who};

const PATIENCE: Duration = Duration::from_secs(60);

/// The folder of the programs that scripts/kube-apiserver has built, as `make test-kubernetes` names it.
#[allow(clippy::disallowed_methods, reason = "make test-kubernetes says where it is")]
pub fn programs() -> Option<PathBuf> {
    std::env::var_os("FENCEGATE_TEST_KUBE_APISERVER").map(PathBuf::from)
}

/// Killed when dropped.
pub struct Candidate {
    child: Child,
    events: mpsc::Receiver<Value>,
    /// The log of client-go.
    log: PathBuf,
}

impl Candidate {
    /// A candidate for a Lease. While it leads, it writes to `url` and its path. Its lease lasts 2 s, and all other
    /// times are short too, unless the flags say otherwise.
    pub fn start(server: &ApiServer, lease: (&str, &str), identity: &str, url: &str, flags: &[&str]) -> Self {
        let mut command = match programs() {
            Some(programs) => Command::new(programs.join("candidate")),
            None => {
                let mut python = Command::new("python3");
                python.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kubernetes/candidate.py"));
                python
            }
        };
        let (gate, path) = url.split_at(url.match_indices('/').nth(2).expect("a url with a path").0);
        let (namespace, name) = lease;
        command.args(["--server", &server.url(), "--namespace", namespace, "--name", name, "--identity", identity]);
        command.arg("--token-file").arg(server.token_file(Who::Candidate));
        if let Some(ca) = server.ca_file() {
            command.arg("--ca").arg(ca);
        }
        command.args(["--gate", gate, "--path", path]);
        command.args([
            "--lease-duration",
            "2s",
            "--renew-deadline",
            "1s",
            "--retry-period",
            "200ms",
            "--every",
            "20ms",
        ]);
        // The last flag of a name counts.
        command.args(flags);
        let log = server.folder.path().join(format!("candidate-{identity}.log"));
        let stderr = fs::OpenOptions::new().create(true).append(true).open(&log).unwrap();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, events) = mpsc::sync_channel(1 << 16);
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = sender.send(serde_json::from_str(&line).expect("a line of JSON"));
            }
        });
        Self { child, events, log }
    }

    /// The next event of this kind (leader, leading, answer, error, lost, stopped) that is as wanted. Skips others.
    #[track_caller]
    pub fn next(&self, kind: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            match self.events.recv_timeout(PATIENCE) {
                Ok(event) if event["event"] == kind && wanted(&event) => return event,
                Ok(_) => {}
                Err(error) => {
                    let log = fs::read_to_string(&self.log).unwrap_or_default();
                    panic!("waited in vain for {kind}: {error}\n{log}");
                }
            }
        }
    }

    /// Waits until the candidate leads. Returns its token.
    #[track_caller]
    pub fn leads(&self) -> String {
        self.next("leading", |_| true)["token"].as_str().unwrap().to_owned()
    }

    /// The events that have come and were not read yet.
    pub fn rest(&self) -> Vec<Value> {
        self.events.try_iter().collect()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until the candidate has ended. Returns 0 after SIGTERM, 3 if it lost its leadership.
    pub fn ended(&mut self) -> ExitStatus {
        end_of("a candidate", &mut self.child)
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
