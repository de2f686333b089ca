//! An agent in its own process.

use std::{
    fs,
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Output, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{
    http::{Conn, Response},
    process::binary,
    run::{Ends, Lines, end_of},
};

/// A running agent. Killed when dropped.
pub struct Agent {
    pub child: Child,
    pub agent: SocketAddr,
    pub status: SocketAddr,
    folder: tempfile::TempDir,
}

/// The start of an agent's file: free ports, and a name.
pub fn settings(name: &str, gate: &str, api: &str, lease: &str, more: &str) -> String {
    format!(
        "[agent]\nlisten = '127.0.0.1:0'\n[status]\nlisten = '127.0.0.1:0'\n[log]\nformat = 'json'\nlevel = 'trace'\n[gate]\nurl = '{gate}'\napi = '{api}'\nconnect_timeout_ms = 1000\n{more}\n[lease]\nholder_id = '{name}'\nttl_ms = 1000\n{lease}\n"
    )
}

impl Agent {
    pub fn start(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (config, log) = (folder.path().join("agent.toml"), folder.path().join("log"));
        fs::write(&config, text).unwrap();
        let file = fs::File::create(&log).unwrap();
        // The test runner may ignore some signals.
        let mut command = Command::new("/usr/bin/env");
        command.arg("--default-signal=HUP,INT,TERM").arg(binary());
        command.args(["agent", "--config"]).arg(config).stdout(Stdio::piped()).stderr(file).stdin(Stdio::null());
        let mut child = command.spawn().unwrap();
        let says = Lines::of("an agent that is to be ready, or to refuse to start", child.stdout.take().unwrap());
        let ready = says.next().unwrap_or_default();
        let address = |name: &str| -> SocketAddr {
            let part = ready.split_whitespace().find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
            part.unwrap_or_else(|| panic!("no agent: {}", fs::read_to_string(&log).unwrap())).parse().unwrap()
        };
        let (agent, status) = (address("agent"), address("status"));
        Self { child, agent, status, folder }
    }

    /// Starts an agent that must refuse to start.
    pub fn refused(text: &str) -> Output {
        let folder = tempfile::tempdir().unwrap();
        let config: PathBuf = folder.path().join("agent.toml");
        fs::write(&config, text).unwrap();
        Command::new(binary()).args(["agent", "--config"]).arg(config).ends()
    }

    /// Waits until the agent has ended by itself.
    #[track_caller]
    pub fn ended(&mut self) -> ExitStatus {
        end_of("an agent that was stopped", &mut self.child)
    }

    pub fn conn(&self) -> Conn {
        Conn::open(self.agent).unwrap()
    }

    #[track_caller]
    pub fn call(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Response {
        // A read has no body.
        let body: &[u8] = if matches!(method, "GET" | "HEAD" | "OPTIONS") { b"" } else { b"value" };
        self.conn().call(method, path, headers, body)
    }

    #[track_caller]
    pub fn put(&self, path: &str) -> Response {
        self.call("PUT", path, &[])
    }

    /// The status port's entry for one object.
    #[track_caller]
    pub fn leader(&self, object: &str) -> Value {
        Conn::open(self.status).unwrap().get(&format!("/leader?object={object}")).json()
    }

    pub fn shows(&self, line: &str) -> bool {
        let metrics = Conn::open(self.status).unwrap().get("/metrics").body;
        String::from_utf8(metrics).unwrap().contains(line)
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
