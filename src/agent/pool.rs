//! Connections to the gate: one request at a time on each, and what has left on it is counted.

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

/// After how much silence the other side is asked whether it is there, and how often then.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(5));

/// The connections of an agent.
pub struct GatePool {
    way: Way,
    settings: GateWay,
    clock: Clock,
    idle: Mutex<Vec<(GateConn, BootMs)>>,
    /// Why there was no connection when one was last made.
    fault: Mutex<Option<String>>,
}

/// One connection.
pub struct GateConn {
    pub sender: SendRequest<Upload>,
    /// Bytes that have left on it, ever; of TLS, too.
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

    /// A connection: an idle one, or a new one.
    ///
    /// # Errors
    /// Where the gate cannot be reached.
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

    /// Says what is in the way, once, and that nothing is any more.
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

    /// Takes a connection back once its answer has been read to the end, if it can be used again.
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
        // A gate whose machine is gone is found out also while an answer is awaited.
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
    // Whoever waits for its answer is told what went wrong.
    tokio::spawn(connection);
    Ok(sender)
}

/// Counts what leaves.
struct Sent(Arc<AtomicU64>);

impl<S> Observer<S> for Sent {
    fn written(&mut self, _context: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &written {
            self.0.fetch_add(*bytes as u64, Ordering::AcqRel);
        }
        written
    }
}
