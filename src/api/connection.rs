//! One connection of a port: its TLS handshake, its protocol, its calls.
//!
//! With TLS the client chooses HTTP/2 or HTTP/1.1 (ALPN); without, it is HTTP/1.1. Each call finds in its extensions who
//! is at the other end: the address, the certificate that was shown, and the socket.

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
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::Service,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::watch,
};

use super::{
    listen::has_stopped,
    seats::{Doing, Occupied, Seat, Turn},
    socket::Socket,
};
use crate::tls::{Acceptor, Certificate};

/// What all connections of a port have.
pub(super) struct Door {
    pub(super) router: Router,
    pub(super) head_timeout: Duration,
    pub(super) tls: Option<Acceptor>,
}

/// A caller's end of a connection, to check whether it is still connected. It uses a second handle on the socket: the
/// kernel may know more than the runtime does.
#[derive(Clone, Debug)]
pub struct Peer {
    socket: Option<Arc<OwnedFd>>,
    /// Bytes may have come that are no request: the end of a TLS session.
    is_encrypted: bool,
}

impl Peer {
    fn of(stream: &TcpStream, is_encrypted: bool) -> Self {
        // Without a free file descriptor, no caller counts as gone.
        Self { socket: stream.as_fd().try_clone_to_owned().ok().map(Arc::new), is_encrypted }
    }

    /// Whether the connection has TLS.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// Whether the caller has hung up, as far as the kernel knows.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        let Some(socket) = &self.socket else { return false };
        if self.is_encrypted {
            let mut ask = [PollFd::new(&**socket, PollFlags::RDHUP)];
            let answered = poll(&mut ask, Some(&Timespec::default()));
            return answered.is_ok() && !ask[0].revents().is_empty();
        }
        match SockRef::from(&**socket).peek(&mut [MaybeUninit::uninit()]) {
            Ok(bytes) => bytes == 0,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }
}

/// The most calls at once on one HTTP/2 connection.
const STREAMS_MAX: u32 = 64;
/// The longest head of a request over HTTP/2, in bytes.
const HEAD_BYTES_MAX: u32 = 32_768;
/// An HTTP/2 peer that does not answer a ping is gone.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves a connection to its end.
pub(super) async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    occupied: Occupied,
    door: Arc<Door>,
    stopping: watch::Receiver<bool>,
) {
    let seat = Arc::clone(&occupied.seat);
    let calls = Calls {
        router: TowerToHyperService::new(door.router.clone()),
        peer,
        socket: Peer::of(&stream, door.tls.is_some()),
        certificate: None,
        seat: Arc::clone(&seat),
    };
    let socket = Socket::new(stream, Arc::clone(&seat));
    let Some(tls) = &door.tls else { return over_http_1(socket, calls, &door, stopping).await };
    let shaken = tokio::select! {
        shaken = tokio::time::timeout(door.head_timeout, tls.accept(socket)) => shaken,
        () = seat.has_to_leave() => return,
        () = has_stopped(stopping.clone()) => return,
    };
    // A peer that does not speak TLS, or shows a certificate that is not taken, gets the alert of the handshake.
    let Ok(Ok(stream)) = shaken else { return };
    let calls = Calls { certificate: Certificate::of_client(&stream).map(Arc::new), ..calls };
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        over_http_2(stream, calls, &door, stopping).await;
    } else {
        over_http_1(stream, calls, &door, stopping).await;
    }
}

async fn over_http_1<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    calls: Calls,
    door: &Door,
    stopping: watch::Receiver<bool>,
) {
    let seat = Arc::clone(&calls.seat);
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(door.head_timeout);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), calls));
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

async fn over_http_2<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    calls: Calls,
    door: &Door,
    stopping: watch::Receiver<bool>,
) {
    let seat = Arc::clone(&calls.seat);
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_BYTES_MAX)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), calls));
    tokio::select! {
        _ = connection.as_mut() => return,
        () = seat.has_to_leave() => return,
        () = idle_for(&seat, door.head_timeout) => {}
        () = has_stopped(stopping) => {}
    }
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        _ = connection.as_mut() => {}
        () = seat.has_to_leave() => {}
    }
}

/// Returns when a connection has had no call for so long.
async fn idle_for(seat: &Seat, limit: Duration) {
    let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    loop {
        match limit.saturating_sub(seat.idle_ms()) {
            0 => return,
            left => tokio::time::sleep(Duration::from_millis(left)).await,
        }
    }
}

/// The calls of one connection.
struct Calls {
    router: TowerToHyperService<Router>,
    peer: SocketAddr,
    socket: Peer,
    certificate: Option<Arc<Certificate>>,
    seat: Arc<Seat>,
}

impl Service<Request<Incoming>> for Calls {
    type Response = Response<Kept<Arc<Turn>>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        // Before each call but the first, a caller that sends many calls at once lets other connections run, and may
        // lose its seat meanwhile.
        let yields = self.seat.has_asked_before();
        let seat = Arc::clone(&self.seat);
        let extensions = request.extensions_mut();
        extensions.insert(ConnectInfo(self.peer));
        extensions.insert(self.socket.clone());
        if let Some(certificate) = &self.certificate {
            extensions.insert(Arc::clone(certificate));
        }
        let router = self.router.clone();
        Box::pin(async move {
            if yields {
                tokio::task::yield_now().await;
            }
            let turn = Arc::new(seat.call());
            request.extensions_mut().insert(Arc::clone(&turn));
            let response = router.call(request).await?;
            turn.begins(Doing::Answering);
            // The call ends when all of its answer was handed over.
            Ok(response.map(|body| Kept::new(body, turn)))
        })
    }
}

/// A body that something is kept with until all of it was handed over.
pub(super) struct Kept<T> {
    body: Body,
    _kept: T,
}

impl<T> Kept<T> {
    pub(super) fn new(body: Body, kept: T) -> Self {
        Self { body, _kept: kept }
    }
}

impl<T: Unpin> http_body::Body for Kept<T> {
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
