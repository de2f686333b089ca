//! Serves a port of the api's kind: a limited number of connections, none of which can block the port.
//!
//! A connection has its port's [`Port::head_timeout`] to send the head of each request, also the first. Its peer must
//! take a part of an answer within ten seconds. A full port closes the connection that has waited longest for its
//! peer ([`super::seats`]). If no connection waits, new ones stay in the kernel's queue: the table must never run out
//! of file descriptors because of them. A stop ends each connection that has not sent a whole request. Long calls
//! (waiting, watching) get half of the api's room, so that short calls always get in.

use std::{net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use axum::Router;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};

use super::{
    connection::{self, Door},
    seats::{Occupied, Seats},
};
use crate::tls::Acceptor;

/// How many connections a process may have, by the system's limit on files.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// The gate's own port: its clients, and the store's side.
    pub gate: usize,
    pub api: usize,
    pub ops: usize,
    /// Part of the api's: calls that wait for a lease, and streams of events.
    pub waiting: usize,
    pub watching: usize,
}

/// Files that the table, its logs and the rest of the process may use.
const OTHER_FILES: u64 = 512;
const OPS_MAX: usize = 128;
const API_MAX: usize = 32_768;
/// Where the system has no limit.
const FILES_MAX: usize = 1 << 20;

impl Room {
    /// Raises the limit on files as far as allowed, and divides it.
    #[must_use]
    pub fn find() -> Self {
        use rustix::process::{Resource, getrlimit, setrlimit};
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        // If raising is not allowed, the old limit stays.
        let _ = setrlimit(Resource::Nofile, limit);
        Self::within(getrlimit(Resource::Nofile).current)
    }

    fn within(files: Option<u64>) -> Self {
        let files =
            files.map_or(FILES_MAX, |files| usize::try_from(files.saturating_sub(OTHER_FILES)).unwrap_or(FILES_MAX));
        // A connection to the api or to the ops port is two files: see `connection::Peer`.
        let ops = OPS_MAX.min(files / 8).max(2);
        let left = files.saturating_sub(2 * ops);
        let api = API_MAX.min(left / 8).max(4);
        let gate = left.saturating_sub(2 * api).max(8);
        Self { gate, api, ops, waiting: api / 4, watching: api / 4 }
    }
}

/// How long a stop waits for the last answers.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// After a failed accept: file descriptors may have run out.
const PAUSE: Duration = Duration::from_millis(100);

/// The limits of a port for its connections.
#[derive(Clone)]
pub struct Port {
    pub name: &'static str,
    /// The most connections.
    pub room: usize,
    /// How long a request's head may take to arrive, and how long a connection may stay without a request.
    pub head_timeout: Duration,
    /// Connections are encrypted.
    pub tls: Option<Acceptor>,
}

impl Port {
    /// The api's port: callers keep their connections.
    #[must_use]
    pub fn api(room: usize, tls: Option<Acceptor>) -> Self {
        Self { name: "api", room, head_timeout: Duration::from_secs(10), tls }
    }

    /// The ops port: probes and scrapes send their request at once.
    #[must_use]
    pub fn ops(room: usize) -> Self {
        Self { name: "ops", room, head_timeout: Duration::from_secs(3), tls: None }
    }
}

/// Serves calls until `stopping` turns true, and then until the last answer was sent.
pub fn serve(listener: TcpListener, port: Port, router: Router, stopping: watch::Receiver<bool>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let seats = Seats::new(port.name, port.room);
        let door = Arc::new(Door { router, head_timeout: port.head_timeout, tls: port.tls });
        let mut stopped = pin!(has_stopped(stopping.clone()));
        loop {
            let accepted = tokio::select! {
                accepted = accept(&listener, &seats) => accepted,
                () = &mut stopped => break,
            };
            match accepted {
                Ok((stream, peer, occupied)) => {
                    tokio::spawn(connection::serve(stream, peer, occupied, Arc::clone(&door), stopping.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        drop(listener);
        // A caller that reads too slowly misses the end of its answer; every change stays made.
        let _ = tokio::time::timeout(LAST_ANSWERS, seats.are_empty()).await;
    })
}

pub(super) async fn has_stopped(mut stopping: watch::Receiver<bool>) {
    // If the sender is gone, the port stops too.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

/// The connection is accepted before its seat is taken: no connection must leave before another one has come.
async fn accept(listener: &TcpListener, seats: &Arc<Seats>) -> std::io::Result<(TcpStream, SocketAddr, Occupied)> {
    let (stream, peer) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, peer, seats.take().await))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn room_is_shared_out_below_the_limit_on_files() {
        for files in [0, 600, 1_024, 4_096, 65_536, 1 << 40] {
            let room = Room::within(Some(files));
            assert!(
                room.api >= 4 && room.ops >= 2 && room.waiting + room.watching <= room.api / 2,
                "{files}: {room:?}"
            );
            if files >= 1_024 {
                let all = room.gate + 2 * (room.api + room.ops);
                assert!(all as u64 + OTHER_FILES <= files, "{files}: {room:?}");
            }
        }
        assert_eq!(Room::within(None).api, API_MAX);
    }
    /// Connections without a whole head are closed after the port's head timeout, also while the port has room.
    #[tokio::test]
    async fn a_connection_that_sends_no_whole_head_is_closed_in_time() {
        const SOON: Duration = Duration::from_secs(30);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopping) = watch::channel(false);
        let port = Port { name: "test", room: 8, head_timeout: Duration::from_millis(50), tls: None };
        let served = serve(listener, port, Router::new(), stopping);
        for sent in ["", "G", "GET /livez HTTP/1.1\r\nho", "GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(sent.as_bytes()).await.unwrap();
            let mut answer = vec![];
            // The end may be a reset.
            let end = tokio::time::timeout(SOON, stream.read_to_end(&mut answer)).await;
            assert!(end.is_ok(), "{sent:?}: the connection is open after 30 s");
            assert_eq!(answer.starts_with(b"HTTP/1.1 404"), sent.ends_with("\r\n\r\n"), "{sent:?}");
        }
        stop.send_replace(true);
        tokio::time::timeout(SOON, served).await.expect("the port stops within 30 s").unwrap();
    }
}
