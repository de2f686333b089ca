//! A gate before a strict store, with leases on `users` and `other`.

use std::{net::SocketAddr, process::Command};

use fencegate::{clock::Driver, config::Settings};
use percent_encoding::percent_decode_str;

use super::store::{Reads, Seen, StrictStore};
use crate::support::{
    gate::{TestGate, acquire, settings, text},
    http::Conn,
    process::{self, Site, failpoints_binary},
};

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

    /// A gate with this fault.
    pub fn with_fault(reads: Reads, fault: &str) -> Self {
        let (store, site) = (StrictStore::start(reads), Site::with_table());
        site.configure(&format!("[store]\nurl = '{}'\n", store.url()));
        let mut command = Command::new(failpoints_binary());
        command.env("FENCEGATE_TEST_FAULT", fault);
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
    pub fn clock(&self) -> &Driver {
        match &self.gate {
            Gate::Here(gate) => &gate.clock,
            Gate::Apart(..) => panic!("its clock is the machine's"),
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
    pub fn judge(&self, sees: &[String], trailers: &[String]) {
        let seen = self.store.take();
        assert_eq!(lines(&seen), sees.iter().map(String::as_str).collect::<Vec<_>>(), "what the store saw");
        for seen in &seen {
            let is_read = ["GET ", "HEAD ", "OPTIONS ", "CUT "].iter().any(|read| seen.line.starts_with(read));
            // The store spells the object as the path does.
            let object = seen.line.split('/').nth(1).map(|segment| percent_decode_str(segment).decode_utf8_lossy());
            assert!(is_read || seen.field("fence-object") == object.as_deref(), "it was not judged: {seen:?}");
            assert_eq!(seen.field("fence-token"), None, "a token reached the store");
        }
        let came: Vec<&String> = seen.iter().flat_map(|seen| &seen.trailers).collect();
        assert_eq!(came, trailers.iter().collect::<Vec<_>>(), "the trailers that the store saw");
    }

    /// The next client gets its own answer.
    #[track_caller]
    pub fn probe(&self) {
        let answer = self.conn().call("PUT", "/users/probe", &[("fence-token", self.token())], b"value");
        assert_eq!((answer.status, answer.header("x-path")), (200, Some("/users/probe")), "the next client's answer");
        assert_eq!(lines(&self.store.take()), ["PUT /users/probe"]);
    }

    #[track_caller]
    pub fn saw_nothing_more(&self) {
        let late = self.store.take();
        assert!(late.is_empty(), "the store saw later: {late:?}");
    }
}

fn lines(seen: &[Seen]) -> Vec<&str> {
    seen.iter().map(|seen| seen.line.as_str()).collect()
}

impl Drop for Range {
    fn drop(&mut self) {
        if let Gate::Here(gate) = &self.gate {
            gate.running().gate.stopping.send_replace(true);
        }
    }
}
