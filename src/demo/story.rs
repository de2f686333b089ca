//! The split brain, played by real HTTP requests: a leader stalls, its lease runs out, another takes
//! over, and the first one wakes up in the middle of a write.

use std::{
    io::{IsTerminal, Write},
    net::SocketAddr,
    time::Duration,
};

use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::Demo;
use crate::{
    client::{ApiResponse, CallFault, Client},
    clock::Stopwatch,
};

/// How long A's lease lasts: long enough to write once, short enough to watch it run out.
const TTL_MS: u64 = 1_500;
const PATH: &str = "/users/1";

/// Plays the story. Returns whether the late write was refused.
///
/// # Errors
/// When a step does not go as the story has it.
pub async fn play(demo: &Demo) -> Result<bool, String> {
    let stage = Stage::new(demo)?;
    Stage::curtain();
    let first = stage.acquire('A', TTL_MS).await?;
    stage.write('A', "from A", &first).await?.must(StatusCode::is_success)?;
    stage.note('A', "stalls: a long pause, a lost network, a slow disk");
    let second = stage.acquire('B', 60_000).await?;
    stage.write('B', "from B", &second).await?.must(StatusCode::is_success)?;
    stage.note('A', "wakes up, knows nothing of all this, and goes on writing");
    let late = stage.write('A', "late, from A", &first).await?;
    let kept = stage.read_store().await?;
    let held = late.code.as_deref() == Some("WRITE_STALE_FENCE") && kept == "from B";
    stage.moral(held, &kept);
    Ok(held)
}

struct Stage {
    api: Client,
    gate: Client,
    store: Client,
    begun: Stopwatch,
    colours: bool,
}

/// The result of a write.
struct Written {
    status: StatusCode,
    code: Option<String>,
}

impl Written {
    fn must(self, be: impl FnOnce(&StatusCode) -> bool) -> Result<Self, String> {
        if be(&self.status) { Ok(self) } else { Err(format!("a write was answered with {}", self.status)) }
    }
}

const RED: &str = "\x1b[31m";
const GREEN: &str = "\x1b[32m";
const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

impl Stage {
    fn new(demo: &Demo) -> Result<Self, String> {
        let client = |address: SocketAddr| Client::new(&format!("http://{address}")).map_err(|fault| fault.to_string());
        Ok(Self {
            api: client(demo.running.api)?,
            gate: client(demo.running.listens)?,
            store: client(demo.store)?,
            begun: Stopwatch::start(),
            colours: std::io::stdout().is_terminal(),
        })
    }

    async fn acquire(&self, who: char, ttl_ms: u64) -> Result<String, String> {
        let body = json!({ "object_id": "users", "holder_id": who.to_string(), "ttl_ms": ttl_ms, "wait_ms": 30_000 });
        if who == 'B' {
            self.line(who, "asks for the lease, and waits for A's to run out", "", "");
        }
        let body = Some(body.to_string().into_bytes());
        let answer = fault_as_text(self.api.call(Method::POST, "/v1/leases", &[], body).await)?;
        let lease: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let (Some(token), Some(seq)) = (lease["fence_token"].as_str(), lease["lease_seq"].as_u64()) else {
            return Err(format!("{who} got no lease: {}", String::from_utf8_lossy(&answer.body)));
        };
        self.line(who, "takes the lease on users", GREEN, &format!("lease_seq {seq}"));
        Ok(token.to_owned())
    }

    async fn write(&self, who: char, text: &str, token: &str) -> Result<Written, String> {
        let headers = [("fence-token", token), ("content-type", "text/plain")];
        let body = Some(text.as_bytes().to_vec());
        let ApiResponse { status, body } = fault_as_text(self.gate.call(Method::PUT, PATH, &headers, body).await)?;
        let problem: Value = serde_json::from_slice(&body).unwrap_or_default();
        let code = problem["code"].as_str().map(str::to_owned);
        let what = format!("PUT {PATH} {text:?}");
        match &code {
            None => self.line(who, &what, GREEN, &format!("{} forwarded", status.as_u16())),
            Some(code) => self.line(who, &what, RED, &format!("{} {code}", status.as_u16())),
        }
        Ok(Written { status, code })
    }

    /// Reads what the store holds, past the gate.
    async fn read_store(&self) -> Result<String, String> {
        let answer = fault_as_text(self.store.call(Method::GET, PATH, &[], None).await)?;
        Ok(String::from_utf8_lossy(&answer.body).into_owned())
    }

    fn curtain() {
        print(&format!("{:>8}   {:<42} {:<42} the gate", "", "A, the leader", "B, the next one"));
    }

    /// Prints one line of the story: when, who, what, and the gate's answer.
    fn line(&self, who: char, what: &str, colour: &str, says: &str) {
        let at = self.begun.seconds();
        let what = if says.is_empty() { what.to_owned() } else { format!("{:─<42}", format!("{what} ")) };
        let (a, b) = if who == 'A' { (what.as_str(), "") } else { ("", what.as_str()) };
        let middle = if who == 'A' && !says.is_empty() { "─".repeat(42) } else { format!("{b:<42}") };
        let arrow = if says.is_empty() { "" } else { "─▶ " };
        let says = self.coloured(colour, says);
        print(&format!("{at:>6.2} s   {a:<42} {middle} {arrow}{says}"));
    }

    fn note(&self, who: char, what: &str) {
        print(&self.coloured(DIM, &format!("{:>8}   {who} {what}", "")));
    }

    fn moral(&self, held: bool, kept: &str) {
        print("");
        if held {
            let says = format!("The store holds {kept:?}. A's late write was refused before it reached the store.");
            print(&self.coloured(GREEN, &says));
        } else {
            let says = format!("The store holds {kept:?}: a write of a lease that was over got through.");
            print(&self.coloured(RED, &says));
        }
    }

    fn coloured(&self, colour: &str, text: &str) -> String {
        if self.colours && !colour.is_empty() { format!("{colour}{text}{PLAIN}") } else { text.to_owned() }
    }
}

fn print(text: &str) {
    // Closed output does not change the exit code.
    let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
}

fn fault_as_text(answer: Result<ApiResponse, CallFault>) -> Result<ApiResponse, String> {
    answer.map_err(|fault| fault.to_string())
}

/// How long the story may take before it counts as failed.
pub const PATIENCE: Duration = Duration::from_mins(1);
