//! Attacks on the gate, as bytes on a socket: what it answers, and what the store behind it saw.
//!
//! Each group is a table of named cases. A case is sent on a connection of its own, to a gate before a store that reads
//! every body and to one before a store that reads none it need not read ([`store`]). Its answers must be the expected
//! ones, the store must have seen those requests and trailers and no others, and the next client must get its own answer.
//! Each group has a control: the same cases against a gate that is set to let something through, or has a fault that does,
//! must fail.
//!
//! - `bodies`: bodies where there should be none, and what stores leave unread of them.
//! - `framing`: lengths that contradict each other, line ends, chunks. `hosts`, `targets`, `methods`: the rest of a head.
//! - `trailers`, `tokens`, `tunnels`. `http2`: the same over HTTP/2. `slow`: clients that take their time.
//! - `destinations`: a second path that is written.
//! - `range`: a gate between a client and such a store. `judge`: what the store may see. `table`: all cases, by group.

mod bodies;
mod destinations;
mod framing;
mod hosts;
mod http2;
mod judge;
mod methods;
mod range;
mod slow;
mod store;
mod table;
mod targets;
mod tokens;
mod trailers;
mod tunnels;

use std::{
    io::ErrorKind,
    panic::{AssertUnwindSafe, catch_unwind},
};

use fencegate::config::Settings;

use self::{judge::Sight, range::Range, store::Reads};
use crate::support::http::{Conn, Response};

/// What is played against a gate.
trait Play {
    fn name(&self) -> &str;

    /// What must come of it, for the table.
    fn expected(&self) -> String;

    /// Plays it. Panics where something else comes of it.
    fn play(&self, range: &Range);
}

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
    /// Each once, in this order.
    sees: Vec<Sight>,
    /// `name: value`, each once.
    trailers: Vec<String>,
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
    Case { name, bytes, ends: false, answers: vec![], closed: false, sees: vec![], trailers: vec![] }
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

    /// The store sees a request with this body and answers it.
    fn stores(self, line: &str, body: impl AsRef<[u8]>) -> Self {
        self.passes(line).carrying(body)
    }

    /// The last request that the store sees has this body.
    fn carrying(mut self, body: impl AsRef<[u8]>) -> Self {
        self.sees.last_mut().expect("the store sees a request").body = Some(body.as_ref().to_vec());
        self
    }

    fn answered(mut self, status: u16, line: &str) -> Self {
        self.answers.push(Expected::Store(status, line.split(' ').nth(1).unwrap().to_owned()));
        self.sees.push(Sight::of(line));
        self
    }

    /// The store sees the beginning of a request, and not its end.
    fn sees_cut(mut self, line: &str) -> Self {
        self.sees.push(Sight::cut(line));
        self
    }

    /// The store sees this trailer.
    fn with_trailer(mut self, line: String) -> Self {
        self.trailers.push(line);
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

impl Play for Case {
    fn name(&self) -> &str {
        &self.name
    }

    fn expected(&self) -> String {
        format!("{:?}{}", self.answers, if self.closed { ", closed" } else { "" })
    }

    fn play(&self, range: &Range) {
        let mut conn = range.conn();
        // A gate that has answered may have closed the connection before all was sent.
        let _ = conn.send_raw(&range.fill(&self.bytes));
        if self.ends {
            conn.close_write();
        }
        for expected in &self.answers {
            answers(&mut conn, expected);
        }
        if self.closed {
            is_closed(&mut conn);
        }
        range.judge(&self.sees, &self.trailers);
        range.probe();
        drop(conn);
        range.saw_nothing_more();
    }
}

/// The next answer is the expected one.
#[track_caller]
fn answers(conn: &mut Conn, expected: &Expected) {
    let answer = conn.receive().unwrap_or_else(|error| panic!("no answer ({error}), but expected {expected:?}"));
    compare(&answer, expected);
}

/// Nothing more comes, and the connection is closed.
#[track_caller]
fn is_closed(conn: &mut Conn) {
    let after = conn.read_line().expect_err("nothing comes behind the last answer").kind();
    let is_closed = matches!(after, ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset);
    assert!(is_closed, "the connection is not closed: {after:?}");
}

#[track_caller]
fn compare(answer: &Response, expected: &Expected) {
    let found = (answer.status, answer.header("fence-error"), answer.header("x-path"));
    let body = String::from_utf8_lossy(&answer.body);
    match expected {
        Expected::Refused(status, code) => assert_eq!(found, (*status, Some(*code), None), "{body}"),
        Expected::Bare(status) => assert_eq!(found, (*status, None, None), "{body}"),
        Expected::Store(status, path) => assert_eq!(found, (*status, None, Some(path.as_str())), "{body}"),
    }
}

/// Plays cases against both kinds of stores: the names of those that failed, and why.
fn failures<P: Play>(cases: &[&P], range: &dyn Fn(Reads) -> Range) -> Vec<(String, String)> {
    let mut failed = vec![];
    for reads in [Reads::EveryBody, Reads::OnlyWhatItMust] {
        let mut made = range(reads);
        for case in cases {
            let played = catch_unwind(AssertUnwindSafe(|| case.play(&made)));
            if let Err(panic) = played {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                failed.push((format!("{} ({reads:?})", case.name()), text.unwrap_or_default()));
                // What it left behind is not the next one's fault.
                made = range(reads);
            }
        }
    }
    failed
}

/// Plays a group: every case must hold.
#[track_caller]
fn hold<P: Play>(cases: &[P], change: impl Fn(&mut Settings)) {
    let failed = failures(&cases.iter().collect::<Vec<_>>(), &|reads| Range::new(reads, &change));
    assert!(failed.is_empty(), "{failed:#?}");
}

/// The control: with the gate set so, these cases of the group must be seen to fail.
#[track_caller]
fn caught<P: Play>(cases: &[P], change: impl Fn(&mut Settings), names: &[&str]) {
    are_caught(cases, names, &|reads| Range::new(reads, &change));
}

/// The control with a test fault instead of a setting.
#[track_caller]
fn caught_with<P: Play>(cases: &[P], fault: &str, names: &[&str]) {
    caught_with_settings(cases, fault, &[], names);
}

/// The same, with these settings in its environment.
#[track_caller]
fn caught_with_settings<P: Play>(cases: &[P], fault: &str, settings: &[(&str, &str)], names: &[&str]) {
    are_caught(cases, names, &|reads| Range::with_fault(reads, fault, settings));
}

#[track_caller]
fn are_caught<P: Play>(cases: &[P], names: &[&str], range: &dyn Fn(Reads) -> Range) {
    let chosen: Vec<&P> = cases.iter().filter(|case| names.contains(&case.name())).collect();
    assert_eq!(chosen.len(), names.len(), "a control names a case that does not exist");
    let failed = failures(&chosen, range);
    for name in names {
        let of_it = format!("{name} (");
        assert!(failed.iter().any(|(failed, _)| failed.starts_with(&of_it)), "{name} was not caught: {failed:#?}");
    }
}
