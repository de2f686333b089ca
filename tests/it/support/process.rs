//! A gate in its own process.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use super::http::Conn;

/// More than any command takes that ends by itself, and than a gate takes to be ready.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a command to its end, but not for ever: a gate that starts where it should not would never end.
#[track_caller]
pub fn finish(what: &str, command: &mut Command) -> Output {
    let pipes = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    let (done, ended) = mpsc::sync_channel(1);
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let both = thread::spawn(move || {
        let (mut stdout, mut stderr) = (vec![], vec![]);
        let errors = thread::spawn(move || {
            err.read_to_end(&mut stderr).unwrap();
            stderr
        });
        out.read_to_end(&mut stdout).unwrap();
        let stderr = errors.join().unwrap();
        // Both pipes are closed: it has ended, or is about to.
        let _ = done.send(());
        (stdout, stderr)
    });
    let is_over = ended.recv_timeout(PATIENCE).is_ok();
    if !is_over {
        child.kill().unwrap();
    }
    let status = child.wait().unwrap();
    let (stdout, stderr) = both.join().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(is_over, "waited in vain for {what} to end; it said:\n{said}");
    Output { status, stdout, stderr }
}

/// The program as users get it.
pub fn binary() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_fencegate"))
}

/// The program with test faults, which `make test` builds beside it.
pub fn failpoints_binary() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/failpoints/fencegate");
    assert!(path.exists(), "{} is missing: run `make failpoints` first, or `make test`", path.display());
    path
}

/// A folder with a configuration on free ports, and a table if asked for.
pub struct Site {
    pub folder: tempfile::TempDir,
}

/// Without bounds on what may still land, unless a test is about them.
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

    /// Runs a subcommand that takes `--config` to its end.
    pub fn run(&self, arguments: &[&str]) -> Output {
        let what = format!("fencegate {}", arguments.join(" "));
        finish(&what, Command::new(binary()).args(arguments).arg("--config").arg(self.config()))
    }

    pub fn serve(&self) -> Gate {
        self.serve_with(Command::new(binary()))
    }

    /// Serves with a command of the test's making: another binary, an environment, a wrapper.
    pub fn serve_with(&self, mut command: Command) -> Gate {
        command.arg("serve").arg("--config").arg(self.config());
        self.spawn(command).unwrap_or_else(|(status, log)| panic!("no gate: {status}\n{log}"))
    }

    /// Starts a gate that may refuse to.
    pub fn spawn(&self, mut command: Command) -> Result<Gate, (ExitStatus, String)> {
        let log = self.folder.path().join("log");
        nothing_lands_late(&mut command);
        let file = fs::OpenOptions::new().create(true).append(true).open(&log).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(file).stdin(Stdio::null()).spawn().unwrap();
        let ready = first_line(&mut child, &log);
        let address = |name: &str| -> Option<SocketAddr> {
            ready.split_whitespace().find_map(|part| part.strip_prefix(name))?.strip_prefix('=')?.parse().ok()
        };
        match (address("api"), address("ops")) {
            (Some(api), Some(ops)) => Ok(Gate { child, gate: address("gate").unwrap(), api, ops, ready }),
            _ => {
                let status = child.wait().unwrap();
                Err((status, fs::read_to_string(log).unwrap()))
            }
        }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

/// What a gate says on its standard output once it is up; nothing where it has ended.
#[track_caller]
fn first_line(child: &mut Child, log: &Path) -> String {
    let (tell, told) = mpsc::sync_channel(1);
    let stdout = child.stdout.take().unwrap();
    thread::spawn(move || {
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let _ = tell.send(line);
    });
    told.recv_timeout(PATIENCE).unwrap_or_else(|_| {
        let _ = child.kill();
        panic!(
            "waited in vain for a gate to be ready, or to refuse to start; it said:\n{}",
            fs::read_to_string(log).unwrap()
        )
    })
}

/// A gate that runs. Killed when dropped.
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

    /// A connection to the gate itself, where writes go.
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

    /// Stops it with SIGTERM, and expects good order.
    pub fn stop(mut self) {
        self.signal(rustix::process::Signal::TERM);
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }

    /// kill -9, and waits until it is gone.
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

/// What a command said on standard error.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What a command said on standard output.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
