//! Serves a port of the api's kind: a limited number of connections, none of which can block the port.
//!
//! A connection has its port's [`Port::head_timeout`] to send the head of each request, also the first. Its peer must
//! take a part of an answer within ten seconds. A full port closes the connection that has waited longest for its
//! peer ([`super::seats`]). If no connection waits, new ones stay in the kernel's queue: the table must never run out
//! of file descriptors because of them. A stop ends each connection that has not sent a whole request. Long calls
//! (waiting, watching) get half of the api's room, so that short calls always get in.

use std::{
    convert::Infallible,
    io::ErrorKind,
    mem::MaybeUninit,
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::ConnectInfo,
    http::{Request, Response},
};
use http_body::{Frame, SizeHint};
use hyper::{body::Incoming, server::conn::http1, service::Service};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use socket2::SockRef;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};

use super::{
    seats::{Doing, Occupied, Seat, Seats},
    socket::Socket,
};

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
        // A connection to the api or to the ops port is two files: see `Caller`.
        let ops = OPS_MAX.min(files / 8).max(2);
        let left = files.saturating_sub(2 * ops);
        let api = API_MAX.min(left / 8).max(4);
        let gate = left.saturating_sub(2 * api).max(8);
        Self { gate, api, ops, waiting: api / 4, watching: api / 4 }
    }
}

/// A caller's end of a connection, to check whether it is still connected. It uses a second handle on the socket: the
/// kernel may know more than the runtime does.
#[derive(Clone, Debug)]
pub struct Caller(Option<Arc<OwnedFd>>);

impl Caller {
    fn of(stream: &TcpStream) -> Self {
        // Without a free file descriptor, no caller counts as gone.
        Self(stream.as_fd().try_clone_to_owned().ok().map(Arc::new))
    }

    /// Whether the caller has hung up, as far as the kernel knows.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        let Some(socket) = &self.0 else { return false };
        match SockRef::from(&**socket).peek(&mut [MaybeUninit::uninit()]) {
            Ok(bytes) => bytes == 0,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }
}

/// How long a stop waits for the last answers.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// After a failed accept: file descriptors may have run out.
const PAUSE: Duration = Duration::from_millis(100);

/// The limits of a port for its connections.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    pub name: &'static str,
    /// The most connections.
    pub room: usize,
    /// How long a request's head may take to arrive, and how long a connection may stay without a request.
    pub head_timeout: Duration,
}

impl Port {
    /// The api's port: callers keep their connections.
    #[must_use]
    pub fn api(room: usize) -> Self {
        Self { name: "api", room, head_timeout: Duration::from_secs(10) }
    }

    /// The ops port: probes and scrapes send their request at once.
    #[must_use]
    pub fn ops(room: usize) -> Self {
        Self { name: "ops", room, head_timeout: Duration::from_secs(3) }
    }
}

/// Serves a router until `stopping` turns true, and then until the last answer was sent.
pub fn serve(listener: TcpListener, port: Port, router: Router, stopping: watch::Receiver<bool>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let seats = Seats::new(port.name, port.room);
        let mut stopped = pin!(has_stopped(stopping.clone()));
        loop {
            let accepted = tokio::select! {
                accepted = accept(&listener, &seats) => accepted,
                () = &mut stopped => break,
            };
            match accepted {
                Ok((stream, peer, occupied)) => {
                    let connection = serve_one(stream, peer, occupied, router.clone(), port, stopping.clone());
                    tokio::spawn(connection);
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

async fn has_stopped(mut stopping: watch::Receiver<bool>) {
    // If the sender is gone, the port stops too.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

/// The connection is accepted before its seat is taken: no connection must leave before another one has come.
async fn accept(listener: &TcpListener, seats: &Arc<Seats>) -> std::io::Result<(TcpStream, SocketAddr, Occupied)> {
    let (stream, peer) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, peer, seats.take().await))
}

async fn serve_one(
    stream: TcpStream,
    peer: SocketAddr,
    occupied: Occupied,
    router: Router,
    port: Port,
    stopping: watch::Receiver<bool>,
) {
    let seat = Arc::clone(&occupied.seat);
    let calls =
        Calls { router: TowerToHyperService::new(router), peer, caller: Caller::of(&stream), seat: Arc::clone(&seat) };
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(port.head_timeout);
    let socket = TokioIo::new(Socket::new(stream, Arc::clone(&seat)));
    let mut connection = pin!(builder.serve_connection(socket, calls));
    tokio::select! {
        // A broken connection concerns the peer only.
        _ = connection.as_mut() => return,
        () = seat.has_to_leave() => return,
        () = has_stopped(stopping) => {}
    }
    connection.as_mut().graceful_shutdown();
    // For a request that has just arrived and has not had its turn yet.
    for _ in 0..2 {
        tokio::select! {
            biased;
            _ = connection.as_mut() => return,
            () = tokio::task::yield_now() => {}
        }
    }
    if !seat.owes_nothing() {
        let _ = connection.await;
    }
}

/// The calls of one connection.
struct Calls {
    router: TowerToHyperService<Router>,
    peer: SocketAddr,
    caller: Caller,
    seat: Arc<Seat>,
}

impl Service<Request<Incoming>> for Calls {
    type Response = Response<SeatedBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let extensions = request.extensions_mut();
        extensions.insert(ConnectInfo(self.peer));
        extensions.insert(self.caller.clone());
        extensions.insert(Arc::clone(&self.seat));
        let (answered, seat) = (self.router.call(request), Arc::clone(&self.seat));
        Box::pin(async move {
            // Before each call but the first, a caller that sends many calls at once lets other connections run, and
            // may lose its seat meanwhile.
            if seat.has_asked_before() {
                tokio::task::yield_now().await;
            }
            seat.begins(Doing::Working);
            let response = answered.await?;
            seat.begins(Doing::Answering);
            Ok(response.map(|body| SeatedBody { body, seat }))
        })
    }
}

/// The body of an answer. It reports to its seat when all of it was handed over.
struct SeatedBody {
    body: Body,
    seat: Arc<Seat>,
}

impl http_body::Body for SeatedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for SeatedBody {
    fn drop(&mut self) {
        self.seat.begins(Doing::Listening);
    }
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
        let port = Port { name: "test", room: 8, head_timeout: Duration::from_millis(50) };
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
