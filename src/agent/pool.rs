//! Connections to the gate. Each carries one request at a time, and counts the bytes sent on it.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

use super::forward::Upload;
use crate::{
    clock::Clock,
    config::GateWay,
    fence::BootMs,
    upstream::{
        Address, Way,
        observed::{Observed, Observer},
    },
};

/// The silence after which keepalive probes begin, and the time between probes.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(5));

/// The connections of an agent.
pub struct GatePool {
    way: Way,
    settings: GateWay,
    clock: Clock,
    idle: Mutex<Vec<(GateConn, BootMs)>>,
    /// Why the last attempt to connect failed.
    fault: Mutex<Option<String>>,
}

/// One connection.
pub struct GateConn {
    pub sender: SendRequest<Upload>,
    /// All bytes ever sent on it, including those of TLS.
    sent: Arc<AtomicU64>,
    /// It has not carried a request yet.
    pub is_new: bool,
}

impl GateConn {
    pub fn sent(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.sent)
    }
}

impl GatePool {
    #[must_use]
    pub fn new(way: Way, settings: GateWay, clock: Clock) -> Arc<Self> {
        Arc::new(Self { way, settings, clock, idle: Mutex::default(), fault: Mutex::default() })
    }

    /// Returns an idle connection, or a new one.
    ///
    /// # Errors
    /// When the gate cannot be reached.
    pub async fn take(&self) -> io::Result<GateConn> {
        if let Some(conn) = self.take_idle() {
            return Ok(conn);
        }
        let patience = Duration::from_millis(self.settings.connect_timeout_ms);
        let connected = tokio::time::timeout(patience, self.connect()).await;
        let connected = connected.unwrap_or_else(|_| {
            let what = format!("no connection within {} ms", self.settings.connect_timeout_ms);
            Err(io::Error::new(io::ErrorKind::TimedOut, what))
        });
        self.note(connected.as_ref().err());
        connected
    }

    /// Logs once why the gate cannot be reached, and once that it can be reached again.
    fn note(&self, error: Option<&io::Error>) {
        let fault = error.map(ToString::to_string);
        let mut last = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        if *last != fault {
            match &fault {
                Some(why) => tracing::warn!(why, "no connection to the gate"),
                None => tracing::info!("the gate can be reached again"),
            }
            *last = fault;
        }
    }

    fn take_idle(&self) -> Option<GateConn> {
        let now = self.clock.now().boot;
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(conn, since)| now.since(*since) < self.settings.idle_timeout_ms && conn.sender.is_ready());
        idle.pop().map(|(conn, _)| conn)
    }

    /// Takes a connection back once its answer was read to the end, if the connection can be used again.
    pub fn give_back(self: &Arc<Self>, mut conn: GateConn) {
        let pool = Arc::clone(self);
        tokio::spawn(async move {
            if conn.sender.ready().await.is_err() {
                return;
            }
            conn.is_new = false;
            let since = pool.clock.now().boot;
            let mut idle = pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() < pool.settings.idle_max {
                idle.push((conn, since));
            }
        });
    }

    async fn connect(&self) -> io::Result<GateConn> {
        let sent = Arc::<AtomicU64>::default();
        let (Address::Tcp { host, port } | Address::Tls { host, port }) = &self.way.address else {
            return Err(io::Error::other("a gate listens on a port"));
        };
        let stream = TcpStream::connect((host.as_str(), *port)).await?;
        stream.set_nodelay(true)?;
        // Keepalive also finds out that the gate's machine is gone while an answer is awaited.
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE.0).with_interval(KEEPALIVE.1);
        SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        let stream = Observed::with(stream, Sent(Arc::clone(&sent)));
        let sender = match &self.way.tls {
            Some(tls) => {
                let patience = Duration::from_millis(self.settings.connect_timeout_ms / 2);
                begin(tls.connect_welcome(stream, patience).await?).await
            }
            None => begin(stream).await,
        };
        Ok(GateConn { sender: sender.map_err(io::Error::other)?, sent, is_new: true })
    }
}

async fn begin<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S) -> hyper::Result<SendRequest<Upload>> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Errors go to the task that waits for the answer.
    tokio::spawn(connection);
    Ok(sender)
}

/// Counts the bytes that are sent.
struct Sent(Arc<AtomicU64>);

impl<S> Observer<S> for Sent {
    fn written(&mut self, _context: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &written {
            self.0.fetch_add(*bytes as u64, Ordering::AcqRel);
        }
        written
    }
}
