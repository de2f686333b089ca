//! A recording store in its own process: its record lists the requests that it applied.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::Value;

use super::{
    http::{Conn, Response},
    run::Lines,
    until,
};

pub struct Store {
    child: Child,
    pub port: u16,
    log: tempfile::NamedTempFile,
}

impl Store {
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// A store with TLS, with this certificate and its key.
    pub fn with_tls(certificate: &Path, key: &Path) -> Self {
        Self::with(&[certificate, key])
    }

    fn with(tls: &[&Path]) -> Self {
        let log = tempfile::NamedTempFile::new().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/store/recording.py");
        let mut child =
            Command::new("python3").arg(script).arg(log.path()).args(tls).stdout(Stdio::piped()).spawn().unwrap();
        let port = Lines::of("a recording store", child.stdout.take().unwrap()).next().unwrap_or_default();
        Self { child, port: port.trim().parse().unwrap(), log }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Every request that the store has applied, in its order.
    pub fn applied(&self) -> Vec<Value> {
        self.events("applied")
    }

    /// How often an event has happened: a request has `begun`, the first of a `body` has come, a body was `cut` off, an
    /// answer was left `untaken`.
    pub fn saw(&self, event: &str) -> usize {
        self.events(event).len()
    }

    fn events(&self, wanted: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.log.path()).unwrap();
        // The last line may be incomplete while the store writes it.
        let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        lines
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .filter(|event| event["event"].as_str() == Some(wanted))
            .collect()
    }

    /// The methods and paths of the applied requests.
    pub fn story(&self) -> Vec<String> {
        let line = |each: &Value| format!("{} {}", each["method"].as_str().unwrap(), each["path"].as_str().unwrap());
        self.applied().iter().map(line).collect()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A write that the store has received and does not answer yet.
pub struct Hung {
    writer: Conn,
    folder: tempfile::TempDir,
}

const LET_GO: &str = "let-go";

impl Hung {
    /// Sends the write on this connection, and waits until the store has it.
    pub fn send(store: &Store, writer: Conn, path: &str, headers: &[(&str, &str)]) -> Self {
        Self::begin("until", store, writer, path, headers)
    }

    /// The same, for a write that the store will lose.
    pub fn send_to_lose(store: &Store, writer: Conn, path: &str, headers: &[(&str, &str)]) -> Self {
        Self::begin("lost", store, writer, path, headers)
    }

    fn begin(how: &str, store: &Store, mut writer: Conn, path: &str, headers: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let until_file = format!("{how}:{}", folder.path().join(LET_GO).display());
        let headers: Vec<_> = headers.iter().copied().chain([("x-store", until_file.as_str())]).collect();
        let before = store.saw("begun");
        writer.send("PUT", path, &headers, b"value").unwrap();
        until("the store has it", || store.saw("begun") == before + 1);
        Self { writer, folder }
    }

    /// Lets the store answer, or lose the write.
    pub fn let_go(mut self) -> Response {
        std::fs::write(self.folder.path().join(LET_GO), "").unwrap();
        self.writer.receive().unwrap()
    }
}
