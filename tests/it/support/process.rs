//! A gate in its own process.

use std::{
    fs,
    net::SocketAddr,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
};

use super::{
    http::Conn,
    run::{Ends, Lines, end_of},
};

/// The program as users get it, without test faults.
pub fn binary() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_fencegate"))
}

/// The program with test faults, which `make test` builds beside it.
pub fn failpoints_binary() -> PathBuf {
    with_failpoints("fencegate")
}

/// The simulation with test faults, which `make test` builds too.
pub fn simulation_binary() -> PathBuf {
    with_failpoints("simulate")
}

fn with_failpoints(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/failpoints").join(name);
    assert!(path.exists(), "{} is missing: run `make failpoints` first, or `make test`", path.display());
    path
}

/// A folder with a configuration on free ports, and a table if asked for.
pub struct Site {
    pub folder: tempfile::TempDir,
}

/// No bounds on late writes, unless a test is about them.
pub fn nothing_lands_late(command: &mut Command) {
    for bound in ["FENCEGATE__STORE__DELIVERY_BOUND_MS", "FENCEGATE__STORE__APPLY_BOUND_MS"] {
        if !command.get_envs().any(|(name, _)| name == bound) {
            command.env(bound, "0");
        }
    }
}

impl Site {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let site = Self { folder };
        site.configure("");
        site
    }

    pub fn with_table() -> Self {
        let site = Self::new();
        let made = site.run(&["table", "init"]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        site
    }

    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub fn config(&self) -> PathBuf {
        self.folder.path().join("fencegate.toml")
    }

    pub fn configure(&self, more: &str) {
        let text = format!(
            "[gate]\nlisten = '127.0.0.1:0'\n[api]\nlisten = '127.0.0.1:0'\n[ops]\nlisten = '127.0.0.1:0'\n[table]\npath = '{}'\n[log]\nformat = 'json'\n{more}",
            self.data().display()
        );
        fs::write(self.config(), text).unwrap();
    }

    /// Runs a subcommand that takes `--config`, and waits for its end.
    pub fn run(&self, arguments: &[&str]) -> Output {
        Command::new(binary()).args(arguments).arg("--config").arg(self.config()).ends()
    }

    pub fn serve(&self) -> Gate {
        self.serve_with(Command::new(binary()))
    }

    /// Serves with the test's own command: another binary, an environment, a wrapper.
    pub fn serve_with(&self, mut command: Command) -> Gate {
        command.arg("serve").arg("--config").arg(self.config());
        self.spawn(command).unwrap_or_else(|(status, log)| panic!("no gate: {status}\n{log}"))
    }

    /// Starts a gate that may refuse to start.
    pub fn spawn(&self, mut command: Command) -> Result<Gate, (ExitStatus, String)> {
        let log = self.folder.path().join("log");
        nothing_lands_late(&mut command);
        let file = fs::OpenOptions::new().create(true).append(true).open(&log).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(file).stdin(Stdio::null()).spawn().unwrap();
        let says = Lines::of("a gate that is to be ready, or to refuse to start", child.stdout.take().unwrap());
        let ready = says.next().unwrap_or_default();
        let address = |name: &str| -> Option<SocketAddr> {
            ready.split_whitespace().find_map(|part| part.strip_prefix(name))?.strip_prefix('=')?.parse().ok()
        };
        match (address("api"), address("ops")) {
            (Some(api), Some(ops)) => Ok(Gate { child, gate: address("gate").unwrap(), api, ops, ready }),
            _ => {
                let status = end_of("a gate that is not ready", &mut child);
                Err((status, fs::read_to_string(log).unwrap()))
            }
        }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

/// A running gate. Killed when dropped.
pub struct Gate {
    pub child: Child,
    pub gate: SocketAddr,
    pub api: SocketAddr,
    pub ops: SocketAddr,
    pub ready: String,
}

impl Gate {
    pub fn api(&self) -> Conn {
        Conn::open(self.api).unwrap()
    }

    /// A connection to the gate's own port, for writes.
    pub fn gate(&self) -> Conn {
        Conn::open(self.gate).unwrap()
    }

    pub fn ops(&self) -> Conn {
        Conn::open(self.ops).unwrap()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Stops the gate with SIGTERM. Panics unless it ends in good order.
    pub fn stop(mut self) {
        self.signal(rustix::process::Signal::TERM);
        let status = end_of("a gate that was stopped", &mut self.child);
        assert!(status.success(), "{status}");
    }

    /// Sends SIGKILL and waits for the end of the process.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        assert_eq!(self.child.wait().unwrap().signal(), Some(9));
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The standard error of a command.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The standard output of a command.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
