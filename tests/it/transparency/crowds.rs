//! Many at once: connections that each wait for their own answer, and bodies that the gate holds.

use std::{collections::HashSet, future::poll_fn, net::SocketAddr, time::Duration};

use bytes::Bytes;
use h2::{
    Reason, SendStream,
    client::{ResponseFuture, SendRequest},
};
use http::Request;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::{runtime, sync::mpsc};

use super::{Line, Text, connect, settled, whole};
use crate::support::http::Conn;

const CONNECTIONS: usize = 1_000;

/// Raises this process's limit on open files to the system's maximum.
fn allow_files(wanted: u64) {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < wanted) {
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit).unwrap();
    }
    let allowed = getrlimit(Resource::Nofile).current;
    assert!(allowed.is_none_or(|allowed| allowed >= wanted), "{wanted} files are needed, {allowed:?} are allowed");
}

#[test]
fn a_thousand_connections_at_once_get_their_own_answers_and_go_on() {
    allow_files(2_048);
    let line = Line::new();
    let mut conns: Vec<Conn> = (0..CONNECTIONS).map(|_| line.conn()).collect();
    let text = Text::first(CONNECTIONS);
    for round in 0..2 {
        for (number, conn) in conns.iter_mut().enumerate() {
            let head = format!(
                "PUT /users/{round}-{number} HTTP/1.1\r\nhost: x\r\nfence-token: {}\r\nx-echo: {round}-{number}\r\n\
                 content-length: {}\r\n\r\n",
                line.token,
                number + 1
            );
            conn.send_raw(head.as_bytes()).unwrap();
        }
        line.until_under_way(CONNECTIONS);
        for (number, conn) in conns.iter_mut().enumerate() {
            conn.send_raw(&text[..=number]).unwrap();
        }
        for (number, conn) in conns.iter_mut().enumerate() {
            let answer = conn.receive().unwrap();
            settled(&answer, number as u64 + 1);
            assert_eq!(answer.header("x-echo"), Some(format!("{round}-{number}").as_str()));
        }
        line.until_under_way(0);
    }
    assert_eq!(line.store.writes_once_each(), 2 * CONNECTIONS);
}

const H2_CONNECTIONS: usize = 40;
/// Streams on each connection: as many as are allowed.
const STREAMS: usize = 256;
const HELD: usize = 10_000;
const TURNED_AWAY: usize = H2_CONNECTIONS * STREAMS - HELD;
const LENGTH: usize = 16;
/// The most memory that a held body may take, including its stream, its task and its headers.
const COST: usize = 32 << 10;
/// Every wait here ends after this time.
const PATIENCE: Duration = Duration::from_secs(300);

/// The response to a write, with its whole body.
struct WholeResponse {
    status: u16,
    error: Option<String>,
    body: Vec<u8>,
}

async fn receive(response: ResponseFuture) -> Result<WholeResponse, h2::Error> {
    let (head, mut body) = response.await?.into_parts();
    let error = head.headers.get("fence-error").map(|code| code.to_str().unwrap().to_owned());
    let mut whole = vec![];
    while let Some(data) = body.data().await {
        match data {
            Ok(data) => {
                body.flow_control().release_capacity(data.len())?;
                whole.extend_from_slice(&data);
            }
            // The gate has answered and needs no more of the request's body.
            Err(error) if error.reason() == Some(Reason::NO_ERROR) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(WholeResponse { status: head.status.as_u16(), error, body: whole })
}

/// Writes that have begun, and the receiver of their answers.
struct BegunWrites {
    bodies: Vec<SendStream<Bytes>>,
    received: mpsc::Receiver<(usize, Result<WholeResponse, h2::Error>)>,
    /// They keep the connections open.
    _senders: Vec<SendRequest<Bytes>>,
}

/// Sends the heads and half of the bodies of as many writes as the streams allow.
async fn begin(gate: SocketAddr, token: &str) -> BegunWrites {
    let half = Bytes::from(Text::first(LENGTH / 2));
    let (report, received) = mpsc::channel(H2_CONNECTIONS * STREAMS);
    let (mut senders, mut bodies) = (vec![], vec![]);
    for _ in 0..H2_CONNECTIONS {
        senders.push(connect(gate).await);
    }
    for _ in 0..STREAMS {
        for sender in &mut senders {
            let number = bodies.len();
            let request = Request::put(format!("http://{gate}/users/{number}"))
                .header("fence-token", token)
                .header("content-length", LENGTH)
                .body(())
                .unwrap();
            poll_fn(|context| sender.poll_ready(context)).await.unwrap();
            let (response, mut body) = sender.send_request(request, false).unwrap();
            body.send_data(half.clone(), false).unwrap();
            bodies.push(body);
            let report = report.clone();
            tokio::spawn(async move {
                let whole = receive(response).await;
                // If the test has failed, the receiver is gone.
                let _ = report.send((number, whole)).await;
            });
        }
    }
    BegunWrites { bodies, received, _senders: senders }
}

impl BegunWrites {
    /// The next `count` answers.
    async fn receive(&mut self, count: usize) -> Vec<(usize, WholeResponse)> {
        let mut all = Vec::with_capacity(count);
        while all.len() < count {
            let received = tokio::time::timeout(PATIENCE, self.received.recv()).await;
            let received = received.unwrap_or_else(|_| panic!("{} of {count} answers came", all.len()));
            let (number, whole) = received.unwrap();
            all.push((number, whole.unwrap_or_else(|error| panic!("write {number}: {error}"))));
        }
        all
    }

    /// Sends the rest of every body except these.
    fn finish(&mut self, but: &HashSet<usize>) {
        let rest = Bytes::from(Text::first(LENGTH).split_off(LENGTH / 2));
        for (number, body) in self.bodies.iter_mut().enumerate().filter(|(number, _)| !but.contains(number)) {
            body.send_data(rest.clone(), true).unwrap_or_else(|error| panic!("write {number}: {error}"));
        }
    }
}

#[test]
fn ten_thousand_held_http_2_bodies_fit_the_rest_are_turned_away_and_all_room_is_given_back() {
    allow_files(1_024);
    // One object has five eighths of the places in the queue.
    let (streams, queue) = (STREAMS.to_string(), (2 * HELD).to_string());
    // One object has three quarters of the room for bodies.
    let (hold, room) = ((HELD * LENGTH).to_string(), (HELD * LENGTH * 4).div_ceil(3).to_string());
    let line = Line::with(&[
        ("GATE__HOLD_BYTES", &hold),
        ("GATE__HOLD_TOTAL_BYTES", &room),
        ("GATE__STREAMS_MAX", &streams),
        ("STORE__CONNECTIONS_MAX", "16"),
        ("STORE__QUEUE_MAX", &queue),
    ]);
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let growth = line.growth(|| {
        let mut begun = runtime.block_on(begin(line.gate.gate, &line.token));
        // A write that finds no room is refused while the others are held.
        let refusals = runtime.block_on(begun.receive(TURNED_AWAY));
        for (number, WholeResponse { status, error, body }) in &refusals {
            let said = (*status, error.as_deref());
            assert_eq!(said, (503, Some("GATE_OVERLOADED")), "{number}: {}", String::from_utf8_lossy(body));
        }
        line.until_under_way(HELD);
        assert_eq!(line.store.writes_once_each(), 0, "a held body is not sent");
        assert_eq!(line.conn().get("/users/5").body, Text::first(5), "a read needs no room");

        let refused: HashSet<usize> = refusals.iter().map(|(number, _)| *number).collect();
        begun.finish(&refused);
        for (number, WholeResponse { status, body, .. }) in runtime.block_on(begun.receive(HELD)) {
            assert_eq!(status, 200, "{number}: {}", String::from_utf8_lossy(&body));
            whole(&body, LENGTH as u64);
        }
        let report = line.store.report();
        let written = report["written"].as_object().unwrap();
        assert!(refused.iter().all(|number| !written.contains_key(&format!("/users/{number}"))));
    });
    assert_eq!(line.store.writes_once_each(), HELD);
    assert!(growth < (H2_CONNECTIONS * STREAMS * COST) as u64, "{} MiB more", growth >> 20);
    // One body as large as all the room.
    let answer = line.conn().call("PUT", "/users/last", &[("fence-token", &line.token)], &Text::first(HELD * LENGTH));
    settled(&answer, (HELD * LENGTH) as u64);
}
