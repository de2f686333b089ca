//! A gate before a strict store, with leases on `users` and `other`.

use std::{net::SocketAddr, process::Command};

use super::{
    judge::{Sight, judge},
    store::{Reads, StrictStore},
};
use crate::support::{
    gate::{TestGate, acquire, settings, text},
    http::Conn,
    process::{self, Site, failpoints_binary},
};
use fencegate::{clock::Driver, config::Settings};

pub struct Range {
    pub store: StrictStore,
    gate: Gate,
    tokens: [(&'static str, String); 2],
}

#[allow(clippy::large_enum_variant, reason = "there is one per test")]
enum Gate {
    Here(TestGate),
    /// In a process of its own, since it has a test fault.
    Apart(process::Gate, #[allow(dead_code, reason = "its folder is there as long as this is")] Site),
}

impl Range {
    pub fn new(reads: Reads, change: &dyn Fn(&mut Settings)) -> Self {
        let store = StrictStore::start(reads);
        let mut settings = settings();
        settings.store.url = store.url();
        change(&mut settings);
        let gate = TestGate::with(&settings);
        let api = gate.api();
        Self::of(store, Gate::Here(gate), api)
    }

    /// A gate with this fault, and these settings, as the environment has them.
    pub fn with_fault(reads: Reads, fault: &str, settings: &[(&str, &str)]) -> Self {
        let (store, site) = (StrictStore::start(reads), Site::with_table());
        site.configure(&format!("[store]\nurl = '{}'\n", store.url()));
        let mut command = Command::new(failpoints_binary());
        command.env("FENCEGATE_TEST_FAULT", fault).envs(settings.iter().copied());
        let gate = site.serve_with(command);
        let api = gate.api();
        Self::of(store, Gate::Apart(gate, site), api)
    }

    fn of(store: StrictStore, gate: Gate, mut api: Conn) -> Self {
        let mut token = |object| text(&acquire(&mut api, object, "a", 600_000), "fence_token").to_owned();
        let tokens = [("users", token("users")), ("other", token("other"))];
        Self { store, gate, tokens }
    }

    /// A connection to the gate.
    pub fn conn(&self) -> Conn {
        Conn::open(self.listens()).unwrap()
    }

    pub fn listens(&self) -> SocketAddr {
        match &self.gate {
            Gate::Here(gate) => gate.running().listens,
            Gate::Apart(gate, _) => gate.gate,
        }
    }

    /// The clock of a gate in this process.
    pub fn clock(&self) -> Option<&Driver> {
        match &self.gate {
            Gate::Here(gate) => Some(&gate.clock),
            // Its clock is the machine's.
            Gate::Apart(..) => None,
        }
    }

    /// A metric's line is there.
    pub fn shows(&self, line: &str) -> bool {
        match &self.gate {
            Gate::Here(gate) => gate.shows(line),
            Gate::Apart(..) => panic!("no test looks at its metrics"),
        }
    }

    /// The token of `users`.
    pub fn token(&self) -> &str {
        &self.tokens[0].1
    }

    /// Puts valid tokens in the place of `{users}` and `{other}`.
    pub fn fill(&self, bytes: &[u8]) -> Vec<u8> {
        let mut filled = bytes.to_vec();
        for (object, token) in &self.tokens {
            let mark = format!("{{{object}}}");
            while let Some(at) = filled.windows(mark.len()).position(|window| window == mark.as_bytes()) {
                filled.splice(at..at + mark.len(), token.bytes());
            }
        }
        filled
    }

    /// What the store saw is what it may see, and each write of it was judged.
    #[track_caller]
    pub fn judge(&self, sees: &[Sight], trailers: &[String]) {
        judge(&self.store.take(), sees, trailers);
    }

    /// The next client gets its own answer.
    #[track_caller]
    pub fn probe(&self) {
        let answer = self.conn().call("PUT", "/users/probe", &[("fence-token", self.token())], b"value");
        assert_eq!((answer.status, answer.header("x-path")), (200, Some("/users/probe")), "the next client's answer");
        judge(&self.store.take(), &[Sight::with("PUT /users/probe", "value")], &[]);
    }

    #[track_caller]
    pub fn saw_nothing_more(&self) {
        let late = self.store.take();
        assert!(late.is_empty(), "the store saw later: {late:?}");
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        if let Gate::Here(gate) = &self.gate {
            gate.running().gate.stopping.send_replace(true);
        }
    }
}
