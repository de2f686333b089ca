//! A recording store in its own process: what it wrote down is what was applied.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::Value;

pub struct Store {
    child: Child,
    pub port: u16,
    log: tempfile::NamedTempFile,
}

impl Store {
    pub fn start() -> Self {
        let log = tempfile::NamedTempFile::new().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/store/recording.py");
        let mut child = Command::new("python3").arg(script).arg(log.path()).stdout(Stdio::piped()).spawn().unwrap();
        let mut port = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut port).unwrap();
        Self { child, port: port.trim().parse().unwrap(), log }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Every request that the store has applied, in its order.
    pub fn applied(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.log.path()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The methods and paths of what was applied.
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
