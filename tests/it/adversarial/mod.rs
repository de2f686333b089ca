//! Attacks on the gate, as bytes on a socket: what it answers, and what the store behind it saw.
//!
//! Each group is a table of named cases. A case is sent on a connection of its own, to a gate before a store that reads
//! every body and to one before a store that reads none it need not read ([`store`]). Its answers must be the expected
//! ones, the store must have seen those requests and no others, and the next client must get its own answer. Each group has a
//! control: the same cases against a gate that is set to let something through must fail.
//!
//! - `bodies`: bodies where there should be none, and what stores leave unread of them.
//! - `framing`: lengths that contradict each other, line ends, chunks. `hosts`, `targets`, `methods`: the rest of a head.
//! - `trailers`, `tokens`, `tunnels`. `http2`: the same over HTTP/2.

mod bodies;
mod framing;
mod hosts;
mod http2;
mod methods;
mod store;
mod targets;
mod tokens;
mod trailers;
mod tunnels;

use std::{
    io::ErrorKind,
    panic::{AssertUnwindSafe, catch_unwind},
};

use fencegate::config::Settings;

use self::store::{Reads, Seen, StrictStore};
use crate::support::{
    gate::{TestGate, acquire, settings, text},
    http::{Answer, Conn},
};

/// Bytes to send, and what must come of them.
#[derive(Clone, Debug)]
struct Case {
    name: String,
    /// `{users}` and `{other}` stand for valid tokens of these objects.
    bytes: Vec<u8>,
    /// The client says that it will send no more.
    ends: bool,
    answers: Vec<Expected>,
    /// The connection is closed behind the answers.
    closed: bool,
    /// `METHOD /path`, each once.
    sees: Vec<String>,
}

#[derive(Clone, Debug)]
enum Expected {
    /// A refusal of the gate's own.
    Refused(u16, &'static str),
    /// An answer of hyper's, to what is no HTTP: it has no code.
    Bare(u16),
    /// The store's answer to this path.
    Store(u16, String),
}

fn case(name: impl Into<String>, bytes: impl AsRef<[u8]>) -> Case {
    let (name, bytes) = (name.into(), bytes.as_ref().to_vec());
    Case { name, bytes, ends: false, answers: vec![], closed: false, sees: vec![] }
}

impl Case {
    /// It is refused, and the connection goes on.
    fn refused(mut self, status: u16, code: &'static str) -> Self {
        self.answers.push(Expected::Refused(status, code));
        self
    }

    /// It is refused as what two parsers could read in two ways, and the connection is closed.
    fn doubted(self) -> Self {
        self.refused(400, "REQUEST_INVALID").closed()
    }

    /// It is no HTTP, and the connection is closed.
    fn bare(mut self) -> Self {
        self.answers.push(Expected::Bare(400));
        self.closed()
    }

    /// The store sees a request and answers it.
    fn passes(self, line: &str) -> Self {
        self.answered(200, line)
    }

    fn answered(mut self, status: u16, line: &str) -> Self {
        self.answers.push(Expected::Store(status, line.split(' ').nth(1).unwrap().to_owned()));
        self.sees.push(line.to_owned());
        self
    }

    /// The store sees the beginning of a request, and not its end.
    fn sees_cut(mut self, line: &str) -> Self {
        self.sees.push(format!("CUT {line}"));
        self
    }

    fn closed(mut self) -> Self {
        self.closed = true;
        self
    }

    fn ends(mut self) -> Self {
        self.ends = true;
        self
    }
}

/// A head with a Host, and what stands behind its first line.
fn request(line: &str, rest: &str) -> String {
    format!("{line} HTTP/1.1\r\nHost: store\r\n{rest}")
}

/// A write to `users` with its token.
fn write(line: &str, rest: &str) -> String {
    request(line, &format!("Fence-Token: {{users}}\r\n{rest}"))
}

/// A gate before a strict store, with leases on `users` and `other`.
struct Range {
    store: StrictStore,
    gate: TestGate,
    tokens: [(&'static str, String); 2],
}

impl Range {
    fn new(reads: Reads, change: &dyn Fn(&mut Settings)) -> Self {
        let store = StrictStore::start(reads);
        let mut settings = settings();
        settings.store.url = store.url();
        change(&mut settings);
        let gate = TestGate::with(&settings);
        let mut api = gate.api();
        let token = |object, api: &mut Conn| text(&acquire(api, object, "a", 600_000), "fence_token").to_owned();
        let tokens = [("users", token("users", &mut api)), ("other", token("other", &mut api))];
        Self { store, gate, tokens }
    }

    fn fill(&self, bytes: &[u8]) -> Vec<u8> {
        let mut filled = bytes.to_vec();
        for (object, token) in &self.tokens {
            let mark = format!("{{{object}}}");
            while let Some(at) = filled.windows(mark.len()).position(|window| window == mark.as_bytes()) {
                filled.splice(at..at + mark.len(), token.bytes());
            }
        }
        filled
    }

    /// Plays a case: panics where something else comes of it.
    fn play(&self, case: &Case) {
        let mut conn = self.gate.gate();
        // A gate that has answered may have closed the connection before all was sent.
        let _ = conn.send_raw(&self.fill(&case.bytes));
        if case.ends {
            conn.close_write();
        }
        for expected in &case.answers {
            let answer =
                conn.receive().unwrap_or_else(|error| panic!("no answer ({error}), but expected {expected:?}"));
            compare(&answer, expected);
        }
        if case.closed {
            let after = conn.read_line().expect_err("nothing comes behind the last answer").kind();
            let is_closed = matches!(after, ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset);
            assert!(is_closed, "the connection is not closed: {after:?}");
        }
        self.judge(&self.store.take(), &case.sees);
        self.probe();
        drop(conn);
        let late = self.store.take();
        assert!(late.is_empty(), "the store saw later: {late:?}");
    }

    /// What the store saw is what it may see, and each write of it was judged.
    fn judge(&self, seen: &[Seen], sees: &[String]) {
        let lines: Vec<&str> = seen.iter().map(|seen| seen.line.as_str()).collect();
        assert_eq!(lines, sees.iter().map(String::as_str).collect::<Vec<_>>(), "what the store saw");
        for seen in seen {
            let is_read = ["GET ", "HEAD ", "OPTIONS ", "CUT "].iter().any(|read| seen.line.starts_with(read));
            let object = seen.line.split('/').nth(1);
            assert!(is_read || seen.field("fence-object") == object, "it was not judged: {seen:?}");
            assert_eq!(seen.field("fence-token"), None, "a token reached the store");
        }
    }

    /// The next client gets its own answer.
    fn probe(&self) {
        let answer = self.gate.gate().call("PUT", "/users/probe", &[("fence-token", &self.tokens[0].1)], b"value");
        assert_eq!((answer.status, answer.header("x-path")), (200, Some("/users/probe")), "the next client's answer");
        let seen = self.store.take();
        assert_eq!(seen.iter().map(|seen| seen.line.as_str()).collect::<Vec<_>>(), ["PUT /users/probe"]);
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        self.gate.running().gate.stopping.send_replace(true);
    }
}

fn compare(answer: &Answer, expected: &Expected) {
    let found = (answer.status, answer.header("fence-error"), answer.header("x-path"));
    let body = String::from_utf8_lossy(&answer.body);
    match expected {
        Expected::Refused(status, code) => assert_eq!(found, (*status, Some(*code), None), "{body}"),
        Expected::Bare(status) => assert_eq!(found, (*status, None, None), "{body}"),
        Expected::Store(status, path) => assert_eq!(found, (*status, None, Some(path.as_str())), "{body}"),
    }
}

/// Plays a group of cases against both kinds of stores: the names of those that failed, and why.
fn failures(cases: &[Case], change: &dyn Fn(&mut Settings)) -> Vec<(String, String)> {
    let mut failed = vec![];
    for reads in [Reads::EveryBody, Reads::OnlyWhatItMust] {
        let mut range = Range::new(reads, change);
        for case in cases {
            let played = catch_unwind(AssertUnwindSafe(|| range.play(case)));
            if let Err(panic) = played {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                failed.push((format!("{} ({reads:?})", case.name), text.unwrap_or_default()));
                // What it left behind is not the next one's fault.
                range = Range::new(reads, change);
            }
        }
    }
    failed
}

/// Plays a group: every case must hold. Prints the table.
#[track_caller]
fn hold(group: &str, cases: &[Case], change: impl Fn(&mut Settings)) {
    let failed = failures(cases, &change);
    println!("{group}: {} cases, each before two kinds of stores", cases.len());
    for case in cases {
        println!("  {:<64} {:?}{}", case.name, case.answers, if case.closed { ", closed" } else { "" });
    }
    let names: std::collections::HashSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names.len(), cases.len(), "two cases of {group} have one name");
    assert!(failed.is_empty(), "{group}: {failed:#?}");
}

/// The control: with the gate set so, these cases of the group must be seen to fail.
#[track_caller]
fn caught(cases: &[Case], change: impl Fn(&mut Settings), names: &[&str]) {
    let chosen: Vec<Case> = cases.iter().filter(|case| names.contains(&case.name.as_str())).cloned().collect();
    assert_eq!(chosen.len(), names.len(), "a control names a case that there is not");
    let failed = failures(&chosen, &change);
    for name in names {
        assert!(failed.iter().any(|(failed, _)| failed.starts_with(name)), "{name} was not caught: {failed:#?}");
    }
}
