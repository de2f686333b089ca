//! Serving a port of the api's kind: a bounded number of connections, none of which can stall it.
//!
//! A connection has [`HEAD_TIMEOUT`] to send a request's head, also the first; a stop closes whoever
//! has not sent a whole one. Connections beyond a port's [`Room`] wait in the kernel's queue: the table
//! must never want for file descriptors because of them. Calls that last (waiting, watching) get half
//! of the api's room, so that short ones always get in.

use std::{
    io::ErrorKind,
    mem::MaybeUninit,
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use axum::{Router, extract::ConnectInfo};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use socket2::SockRef;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinHandle,
};

/// How many connections a process may have, by the system's limit on files.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// The gate's own port: its clients, and the store's side.
    pub gate: usize,
    pub api: usize,
    pub ops: usize,
    /// Of the api's: calls that wait for a lease, and streams of events.
    pub waiting: usize,
    pub watching: usize,
}

/// Files that the table, its logs and the rest of the process may need.
const OTHER_FILES: u64 = 512;
const OPS_MAX: usize = 128;
const API_MAX: usize = 32_768;
/// Where the system has no limit.
const FILES_MAX: usize = 1 << 20;

impl Room {
    /// Raises the limit on files as far as it goes, and shares it out.
    #[must_use]
    pub fn find() -> Self {
        use rustix::process::{Resource, getrlimit, setrlimit};
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        // Where that is not allowed, the old limit stays.
        let _ = setrlimit(Resource::Nofile, limit);
        Self::within(getrlimit(Resource::Nofile).current)
    }

    fn within(files: Option<u64>) -> Self {
        let files =
            files.map_or(FILES_MAX, |files| usize::try_from(files.saturating_sub(OTHER_FILES)).unwrap_or(FILES_MAX));
        let ops = OPS_MAX.min(files / 4).max(1);
        let left = files.saturating_sub(ops);
        // A connection to the api is two files: see `Caller`.
        let api = API_MAX.min(left / 8).max(4);
        let gate = left.saturating_sub(2 * api).max(8);
        Self { gate, api, ops, waiting: api / 4, watching: api / 4 }
    }
}

/// The other end of a connection, to be asked whether it is still there. A second handle on the socket:
/// the runtime may not have been told yet what the kernel knows.
#[derive(Clone, Debug)]
pub struct Caller(Option<Arc<OwnedFd>>);

impl Caller {
    fn of(stream: &TcpStream) -> Self {
        // Where the files have run out, nobody is called gone.
        Self(stream.as_fd().try_clone_to_owned().ok().map(Arc::new))
    }

    /// Whether it has hung up, as far as the kernel has heard.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        let Some(socket) = &self.0 else { return false };
        match SockRef::from(&**socket).peek(&mut [MaybeUninit::uninit()]) {
            Ok(bytes) => bytes == 0,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }
}

/// How long a request's head, and a body, may take to arrive.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a stop waits for answers that are being given.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// After a failed accept: file descriptors may have run out.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves a router until `stopping` turns true, and then until the last answer is given.
pub fn serve(
    listener: TcpListener,
    room: usize,
    router: Router,
    mut stopping: watch::Receiver<bool>,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        let room = Arc::new(Semaphore::new(room));
        let graceful = GracefulShutdown::new();
        let mut stopped = pin!(async move {
            // A sender that is gone means the same.
            let _ = stopping.wait_for(|stopping| *stopping).await;
        });
        loop {
            let accepted = tokio::select! {
                accepted = accept(&listener, &room) => accepted,
                () = &mut stopped => break,
            };
            match accepted {
                Ok((stream, peer, permit)) => serve_one(stream, peer, permit, &router, &graceful),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        drop(listener);
        // Whoever reads too slowly misses the end of its answer; nothing that was changed is lost.
        let _ = tokio::time::timeout(LAST_ANSWERS, graceful.shutdown()).await;
    })
}

async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let permit = Arc::clone(room).acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, peer, permit))
}

fn serve_one(
    stream: TcpStream,
    peer: SocketAddr,
    permit: OwnedSemaphorePermit,
    router: &Router,
    graceful: &GracefulShutdown,
) {
    let caller = axum::Extension(Caller::of(&stream));
    let router = router.clone().layer(axum::Extension(ConnectInfo(peer))).layer(caller);
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let connection = graceful.watch(connection);
    tokio::spawn(async move {
        // A connection that broke is the peer's affair.
        let _ = connection.await;
        drop(permit);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_shared_out_below_the_limit_on_files() {
        for files in [0, 600, 1_024, 4_096, 65_536, 1 << 40] {
            let room = Room::within(Some(files));
            assert!(
                room.api >= 4 && room.ops >= 1 && room.waiting + room.watching <= room.api / 2,
                "{files}: {room:?}"
            );
            if files >= 1_024 {
                let all = room.gate + 2 * room.api + room.ops;
                assert!(all as u64 + OTHER_FILES <= files, "{files}: {room:?}");
            }
        }
        assert_eq!(Room::within(None).api, API_MAX);
    }
}
