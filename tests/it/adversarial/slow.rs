//! Clients that take their time: with a head, a body, a chunk, a frame, or with taking the answer. Each is let go, and the
//! store sees nothing of what did not come whole, but for the beginning of a body that is too long to be held.
//!
//! Heads and answers go by the gate's own clock, which goes on as long as a case is played; bodies go by the machine's.
//! `frames` is a table of cases, and is not split for its length.

use std::{
    io::Write as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use fencegate::{clock::Driver, config::Settings};

use super::{
    Expected, Play, Range, answers, caught, caught_with_settings, hold, is_closed, judge::Sight, request, write,
};
use crate::support::{
    h2::{CONTINUATION, HEADERS, Outcome, RawH2},
    until,
};

/// Between two bytes of what drips.
const MOMENT: Duration = Duration::from_millis(10);

/// Timeouts that a test can wait for, and less room for bodies than a page.
fn impatient(settings: &mut Settings) {
    settings.gate.head_timeout_ms = 200;
    settings.gate.idle_timeout_ms = 300;
    settings.gate.body_timeout_ms = 150;
    settings.gate.pace_bytes_min = 1_000;
    settings.gate.hold_bytes = 1_024;
}

pub(super) struct Slow {
    name: String,
    client: Client,
    answers: Vec<Expected>,
    /// HTTP/2: the code that each stream is answered with.
    code: Option<&'static str>,
    /// The connection is closed in the end.
    closed: bool,
    sees: Vec<Sight>,
}

enum Client {
    /// Sends the first at once, and the second byte by byte.
    Sends(String, String),
    /// Sends this, and takes nothing of what is answered.
    TakesNothing(String),
    /// Sends frames, on so many streams.
    Frames(fn(&Range) -> RawH2, usize),
}

fn slow(name: &str, client: Client) -> Slow {
    Slow { name: name.to_owned(), client, answers: vec![], code: None, closed: true, sees: vec![] }
}

fn sends(name: &str, at_once: impl Into<String>) -> Slow {
    slow(name, Client::Sends(at_once.into(), String::new()))
}

fn drips(name: &str, at_once: impl Into<String>, drips: impl Into<String>) -> Slow {
    slow(name, Client::Sends(at_once.into(), drips.into()))
}

impl Slow {
    fn refused(mut self, status: u16, code: &'static str) -> Self {
        self.answers.push(Expected::Refused(status, code));
        self
    }

    /// Its body does not come.
    fn unread(self) -> Self {
        self.refused(422, "BODY_UNREADABLE")
    }

    /// A part of it was sent.
    fn unknown(mut self) -> Self {
        self.sees.push(Sight::cut("PUT /users/1"));
        self.refused(504, "OUTCOME_UNKNOWN")
    }

    fn passes(self, line: &str) -> Self {
        self.answered(line).sees(line)
    }

    fn answered(mut self, line: &str) -> Self {
        self.answers.push(Expected::Store(200, line.split(' ').nth(1).unwrap().to_owned()));
        self
    }

    fn sees(self, line: &str) -> Self {
        self.sees_body(line, "")
    }

    fn sees_body(mut self, line: &str, body: &str) -> Self {
        self.sees.push(Sight::with(line, body));
        self
    }
}

fn heads() -> Vec<Slow> {
    let (get, long) = (request("GET /users/x", "\r\n"), format!("x: {}\r\n", "v".repeat(150)));
    vec![
        sends("nothing at all", ""),
        sends("one byte", "P"),
        sends("half a request line", "PUT /us"),
        sends("a request line alone", "PUT /users/1 HTTP/1.1\r\n"),
        sends("half a field", "PUT /users/1 HTTP/1.1\r\nHost: st"),
        sends("a head without its last line", write("PUT /users/1", "Content-Length: 5\r\n")),
        sends("half of the HTTP/2 preface", "PRI * HTTP/2.0\r\n"),
        drips("a head, byte by byte", "", request("GET /users/x", &format!("{long}\r\n"))),
        drips("the fields of a head, byte by byte", write("PUT /users/1", ""), "x: y\r\n".repeat(30) + "\r\n"),
        drips("empty lines, byte by byte", "", "\r\n".repeat(80) + &get),
        sends("silence behind a read", get.clone()).passes("GET /users/x"),
        sends("half a head behind a read", get.clone() + "PUT /us").passes("GET /users/x"),
        drips(
            "a head behind a write, byte by byte",
            write("PUT /users/1", "Content-Length: 5\r\n\r\nvalue"),
            write("PUT /users/2", &format!("{long}Content-Length: 0\r\n\r\n")),
        )
        .answered("PUT /users/1")
        .sees_body("PUT /users/1", "value"),
    ]
}

fn bodies() -> Vec<Slow> {
    let put = |rest: &str| write("PUT /users/1", rest);
    let mut all = vec![
        sends("a body that never begins", put("Content-Length: 5\r\n\r\n")).unread(),
        sends("half a body", put("Content-Length: 5\r\n\r\nva")).unread(),
        drips("a body, byte by byte", put("Content-Length: 100\r\n\r\n"), "v".repeat(100)).unread(),
        sends("half the body of a DELETE", write("DELETE /users/1", "Content-Length: 5\r\n\r\nva")).unread(),
        drips("chunks, byte by byte", put("Transfer-Encoding: chunked\r\n\r\n"), "1\r\nv\r\n".repeat(20) + "0\r\n\r\n")
            .unread(),
        drips(
            "an extension, byte by byte",
            put("Transfer-Encoding: chunked\r\n\r\n"),
            format!("5;{}\r\nvalue\r\n0\r\n\r\n", "x".repeat(80)),
        )
        .unread(),
        drips(
            "a trailer, byte by byte",
            put("Transfer-Encoding: chunked\r\n\r\n5\r\nvalue\r\n0\r\n"),
            format!("x: {}\r\n\r\n", "v".repeat(80)),
        )
        .unread(),
        Slow {
            closed: false,
            ..sends("half a body, and no token", request("PUT /users/1", "Content-Length: 5\r\n\r\nva"))
        }
        .refused(428, "WRITE_UNFENCED"),
        sends("half the body of a read", request("GET /users/x", "Content-Length: 5\r\n\r\nva"))
            .refused(400, "REQUEST_INVALID"),
    ];
    let mut asks =
        sends("a body that is asked for and does not come", put("Expect: 100-continue\r\nContent-Length: 5\r\n\r\n"));
    asks.answers.push(Expected::Bare(100));
    all.push(asks.unread());
    for (name, begun) in [
        ("no size of a chunk", ""),
        ("half a chunk's size", "5"),
        ("half the line of a chunk's size", "5\r"),
        ("half a chunk", "5\r\nva"),
        ("no line end behind a chunk", "5\r\nvalue"),
        ("no last chunk", "5\r\nvalue\r\n"),
        ("half a last chunk", "5\r\nvalue\r\n0"),
        ("no end behind the last chunk", "5\r\nvalue\r\n0\r\n"),
        ("half a trailer", "5\r\nvalue\r\n0\r\ncontent-di"),
        ("no end of the trailers", "5\r\nvalue\r\n0\r\ncontent-digest: x\r\n"),
    ] {
        all.push(sends(name, put(&format!("Transfer-Encoding: chunked\r\n\r\n{begun}"))).unread());
    }
    let long = "v".repeat(2_000);
    all.extend([
        sends("half a long body", put(&format!("Content-Length: 4000\r\n\r\n{long}"))).unknown(),
        sends("a long body without its last byte", put(&format!("Content-Length: 2001\r\n\r\n{long}"))).unknown(),
        sends("half a long body, in chunks", put(&format!("Transfer-Encoding: chunked\r\n\r\nfa0\r\n{long}")))
            .unknown(),
        sends(
            "a long body in chunks without its end",
            put(&format!("Transfer-Encoding: chunked\r\n\r\n7d0\r\n{long}\r\n")),
        )
        .unknown(),
    ]);
    all
}

fn answers_untaken() -> Vec<Slow> {
    let takes_nothing = |name: &str, sent: String| slow(name, Client::TakesNothing(sent));
    let large = format!("x-answer: {}\r\n", 50 << 20);
    let refused = request("PUT /users/1", "Content-Length: 0\r\n\r\n").repeat(50_000);
    vec![
        takes_nothing("the answer of a read is not taken", request("GET /users/x", &format!("{large}\r\n")))
            .sees("GET /users/x"),
        takes_nothing(
            "the answer of a write is not taken",
            write("PUT /users/1", &format!("{large}Content-Length: 5\r\n\r\nvalue")),
        )
        .sees_body("PUT /users/1", "value"),
        takes_nothing("refusals are not taken", refused),
    ]
}

/// A head of a write on a stream.
fn begin(h2: &mut RawH2, range: &Range, stream: u32, method: &str, more: &[(&str, &str)], is_last: bool) {
    let plain = [
        (":method", method),
        (":scheme", "http"),
        (":authority", "store"),
        (":path", "/users/1"),
        ("fence-token", range.token()),
    ];
    h2.send_headers(stream, &[&plain[..], more].concat(), is_last);
}

fn open(range: &Range) -> RawH2 {
    RawH2::open(range.listens())
}

/// A client that drips on until it has been let go.
fn drip(mut each: impl FnMut() -> bool) {
    for _ in 0..60 {
        if !each() {
            return;
        }
        thread::park_timeout(MOMENT);
    }
}

fn stalled(range: &Range, method: &str, more: &[(&str, &str)], data: &[u8]) -> RawH2 {
    let mut h2 = open(range);
    begin(&mut h2, range, 1, method, more, false);
    if !data.is_empty() {
        h2.send_data(1, data, false);
    }
    h2
}

const STREAMS: usize = 40;

fn frames() -> Vec<Slow> {
    let ends = |name: &str, client: fn(&Range) -> RawH2| slow(&format!("HTTP/2: {name}"), Client::Frames(client, 0));
    let answered = |name: &str, code, streams, client: fn(&Range) -> RawH2| Slow {
        code: Some(code),
        closed: false,
        ..slow(&format!("HTTP/2: {name}"), Client::Frames(client, streams))
    };
    let mut unknown =
        answered("half a long body", "OUTCOME_UNKNOWN", 1, |range| stalled(range, "PUT", &[], &[b'v'; 2_000]));
    unknown.sees.push(Sight::cut("PUT /users/1"));
    vec![
        ends("silence behind the preface", open),
        ends("half a frame", |range| {
            let mut h2 = open(range);
            h2.send_raw(&[0, 0, 9, HEADERS]);
            h2
        }),
        ends("a head without its end", |range| {
            let mut h2 = open(range);
            h2.send(HEADERS, 0, 1, &[0x82]);
            h2
        }),
        ends("the fields of a head, one by one", |range| {
            let mut h2 = open(range);
            h2.send(HEADERS, 0, 1, &[0x82]);
            drip(|| h2.try_send(CONTINUATION, 0, 1, &[0, 1, b'x', 1, b'y']));
            h2
        }),
        ends("silence behind a read", |range| {
            let mut h2 = open(range);
            begin(&mut h2, range, 1, "GET", &[], true);
            h2
        })
        .sees("GET /users/1"),
        ends("half a head behind a read", |range| {
            let mut h2 = open(range);
            begin(&mut h2, range, 1, "GET", &[], true);
            h2.send(HEADERS, 0, 3, &[0x82]);
            h2
        })
        .sees("GET /users/1"),
        ends("the answer of a read is not taken", |range| {
            let mut h2 = RawH2::that_takes_nothing(range.listens());
            begin(&mut h2, range, 1, "GET", &[("x-answer", "100000")], true);
            h2
        })
        .sees("GET /users/1"),
        ends("the answer of a write is not taken", |range| {
            let mut h2 = RawH2::that_takes_nothing(range.listens());
            begin(&mut h2, range, 1, "PUT", &[("x-answer", "100000")], true);
            h2
        })
        .sees("PUT /users/1"),
        answered("a body that never begins", "BODY_UNREADABLE", 1, |range| stalled(range, "PUT", &[], b"")),
        answered("half a body", "BODY_UNREADABLE", 1, |range| stalled(range, "PUT", &[("content-length", "5")], b"va")),
        answered("a body without its end", "BODY_UNREADABLE", 1, |range| stalled(range, "PUT", &[], b"value")),
        answered("a read without its end", "BODY_UNREADABLE", 1, |range| stalled(range, "GET", &[], b"")),
        answered("half the body of a DELETE", "BODY_UNREADABLE", 1, |range| stalled(range, "DELETE", &[], b"va")),
        answered("a body, byte by byte", "BODY_UNREADABLE", 1, |range| {
            let mut h2 = stalled(range, "PUT", &[], b"");
            drip(|| h2.try_send_data(1, b"v"));
            h2
        }),
        answered("empty frames, one by one", "BODY_UNREADABLE", 1, |range| {
            let mut h2 = stalled(range, "PUT", &[], b"");
            drip(|| h2.try_send_data(1, b""));
            h2
        }),
        answered("half a body on each of many streams", "BODY_UNREADABLE", STREAMS, |range| {
            let mut h2 = open(range);
            for stream in 0..STREAMS {
                let stream = 2 * u32::try_from(stream).unwrap() + 1;
                begin(&mut h2, range, stream, "PUT", &[("content-length", "5")], false);
                h2.send_data(stream, b"va", false);
            }
            h2
        }),
        unknown,
    ]
}

pub(super) fn cases() -> Vec<Slow> {
    heads().into_iter().chain(bodies()).chain(answers_untaken()).chain(frames()).collect()
}

/// While this lives, the gate's clock goes on, where it does not do so by itself.
struct Passing {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Passing {
    fn new(clock: Option<&Driver>) -> Self {
        let (clock, is_over) = (clock.cloned(), Arc::<AtomicBool>::default());
        let stop = Arc::clone(&is_over);
        let thread = clock.map(|clock| {
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    thread::park_timeout(MOMENT);
                    clock.advance(10);
                }
            })
        });
        Self { is_over, thread }
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

impl Play for Slow {
    fn name(&self) -> &str {
        &self.name
    }

    fn expected(&self) -> String {
        let code = self.code.map(|code| format!("{code} on each stream")).unwrap_or_default();
        let answers = if self.answers.is_empty() { code } else { format!("{:?}", self.answers) };
        let closed = if self.closed { "closed" } else { "" };
        [answers.as_str(), closed].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
    }

    fn play(&self, range: &Range) {
        match &self.client {
            Client::Sends(at_once, drips) => self.send(range, at_once, drips),
            Client::TakesNothing(sent) => take_nothing(range, sent),
            Client::Frames(client, streams) => self.frames(range, *client, *streams),
        }
        range.judge(&self.sees, &[]);
        range.probe();
        range.saw_nothing_more();
    }
}

impl Slow {
    fn send(&self, range: &Range, at_once: &str, drips: &str) {
        let _passing = Passing::new(range.clock());
        let mut conn = range.conn();
        conn.send_raw(&range.fill(at_once.as_bytes())).unwrap();
        for byte in range.fill(drips.as_bytes()) {
            if conn.send_raw(&[byte]).is_err() {
                break;
            }
            thread::park_timeout(MOMENT);
        }
        for expected in &self.answers {
            answers(&mut conn, expected);
        }
        if self.closed {
            is_closed(&mut conn);
        }
    }

    fn frames(&self, range: &Range, client: fn(&Range) -> RawH2, streams: usize) {
        let _passing = Passing::new(range.clock());
        let mut h2 = client(range);
        let numbers: Vec<u32> = (0..u32::try_from(streams).unwrap()).map(|stream| 2 * stream + 1).collect();
        for outcome in h2.outcomes(&numbers) {
            let Outcome::Answered { body, .. } = outcome else { panic!("a stream was not answered") };
            let problem: serde_json::Value = serde_json::from_slice(&body).expect("a problem");
            assert_eq!(problem["code"].as_str(), self.code, "{problem}");
        }
        if self.closed {
            h2.expect_end();
        }
    }
}

/// Sends on a connection, takes nothing, and waits until the gate has closed it.
fn take_nothing(range: &Range, sent: &str) {
    let connections = |count: usize| range.shows(&format!("fencegate_connections {count}\n"));
    until("the gate has no client", || connections(0));
    let conn = range.conn();
    let (mut sending, sent) = (conn.another_handle(), range.fill(sent.as_bytes()));
    // What cannot be sent has met the end of the connection.
    let sender = thread::spawn(move || sending.write_all(&sent).is_ok());
    until("the gate has a client", || connections(1));
    let _passing = Passing::new(range.clock());
    until("the client is let go", || connections(0));
    drop(conn);
    sender.join().unwrap();
}

#[test]
fn clients_that_take_their_time_are_let_go() {
    hold(&cases(), impatient);
}

#[test]
fn a_gate_that_waits_for_every_head_is_caught() {
    let waits = |settings: &mut Settings| {
        impatient(settings);
        settings.gate.head_timeout_ms = 86_400_000;
    };
    caught(&cases(), waits, &["a head, byte by byte", "empty lines, byte by byte"]);
}

#[test]
fn a_gate_that_takes_bodies_at_any_pace_is_caught() {
    let takes = |settings: &mut Settings| {
        impatient(settings);
        settings.gate.pace_bytes_min = 0;
    };
    caught(&cases(), takes, &["a body, byte by byte", "chunks, byte by byte"]);
}

/// Half a write that a gate has waited for long enough.
#[test]
fn a_gate_that_takes_half_a_body_for_a_whole_one_is_caught() {
    let impatient = [
        ("FENCEGATE__GATE__BODY_TIMEOUT_MS", "150"),
        ("FENCEGATE__GATE__PACE_BYTES_MIN", "1000"),
        ("FENCEGATE__GATE__HOLD_BYTES", "1024"),
    ];
    caught_with_settings(
        &cases(),
        "short-body",
        &impatient,
        &["half a body", "half a chunk", "no last chunk", "HTTP/2: half a body"],
    );
}
