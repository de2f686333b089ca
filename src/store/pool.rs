//! A worker's connections to one store. Nothing here is shared between workers.
//!
//! A connection carries one request at a time and is used again once its answer has been read to the
//! end. It is let go when it has been idle for `idle_timeout_ms`, which must be shorter than the
//! store's own patience: a store that hangs up on an idle connection must not meet a write on it.
//! At most `connections_max` are open; whoever comes then waits in a bounded queue.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};

use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
    sync::oneshot,
};

use super::{Address, body::StoreBody};
use crate::{config::StoreSettings, fence::BootMs};

/// Why there is no connection.
#[derive(Debug)]
pub enum NoLane {
    /// The store does not answer there.
    Unreachable(String),
    /// Too many wait already.
    Overloaded,
}

/// A worker's connections to one store.
pub struct Pool {
    address: Address,
    settings: StoreSettings,
    idle: RefCell<Vec<Idle>>,
    open: Cell<usize>,
    queue: RefCell<VecDeque<oneshot::Sender<()>>>,
}

struct Idle {
    sender: SendRequest<StoreBody>,
    sent: Rc<Cell<u64>>,
    since: BootMs,
}

/// One connection, in use by one request. Dropped, it is closed.
pub struct Lane {
    sender: Option<SendRequest<StoreBody>>,
    sent: Rc<Cell<u64>>,
    pool: Rc<Pool>,
}

impl Pool {
    /// A pool without connections.
    #[must_use]
    pub fn new(address: Address, settings: StoreSettings) -> Rc<Self> {
        Rc::new(Self { address, settings, idle: RefCell::default(), open: Cell::new(0), queue: RefCell::default() })
    }

    /// What this store is given.
    #[must_use]
    pub fn settings(&self) -> &StoreSettings {
        &self.settings
    }

    /// A connection: an idle one, a new one, or the next that becomes free.
    ///
    /// # Errors
    /// Where the store cannot be reached, or too many wait for it.
    pub async fn lane(self: &Rc<Self>) -> Result<Lane, NoLane> {
        loop {
            if let Some(mut lane) = self.take_idle() {
                // The last answer may have ended this very moment; a connection that died does not
                // become ready, and is dropped.
                if lane.sender().ready().await.is_ok() {
                    return Ok(lane);
                }
                continue;
            }
            if self.open.get() < self.settings.connections_max {
                return self.connect().await;
            }
            self.wait().await?;
        }
    }

    fn take_idle(self: &Rc<Self>) -> Option<Lane> {
        let Idle { sender, sent, .. } = self.idle.borrow_mut().pop()?;
        Some(Lane { sender: Some(sender), sent, pool: Rc::clone(self) })
    }

    async fn wait(&self) -> Result<(), NoLane> {
        let (tell, told) = oneshot::channel();
        {
            let mut queue = self.queue.borrow_mut();
            queue.retain(|waiting| !waiting.is_closed());
            if queue.len() >= self.settings.queue_max {
                return Err(NoLane::Overloaded);
            }
            queue.push_back(tell);
        }
        // Told or forgotten: look again.
        let _ = told.await;
        Ok(())
    }

    fn tell_next(&self) {
        while let Some(next) = self.queue.borrow_mut().pop_front() {
            if next.send(()).is_ok() {
                return;
            }
        }
    }

    fn closed(&self) {
        self.open.set(self.open.get() - 1);
        self.tell_next();
    }

    async fn connect(self: &Rc<Self>) -> Result<Lane, NoLane> {
        self.open.set(self.open.get() + 1);
        // From here on the lane's drop counts the connection out, also if connecting fails.
        let mut lane = Lane { sender: None, sent: Rc::default(), pool: Rc::clone(self) };
        let patience = Duration::from_millis(self.settings.connect_timeout_ms);
        let connected = tokio::time::timeout(patience, dial(&self.address, Rc::clone(&lane.sent))).await;
        match connected {
            Ok(Ok(sender)) => {
                lane.sender = Some(sender);
                Ok(lane)
            }
            Ok(Err(error)) => Err(NoLane::Unreachable(error.to_string())),
            Err(_) => Err(NoLane::Unreachable(format!("no connection within {} ms", self.settings.connect_timeout_ms))),
        }
    }

    /// Lets go of connections that have been idle for too long.
    pub fn tidy(&self, now: BootMs) {
        let patience = self.settings.idle_timeout_ms;
        let before = self.idle.borrow().len();
        self.idle.borrow_mut().retain(|idle| now.since(idle.since) < patience && !idle.sender.is_closed());
        let gone = before - self.idle.borrow().len();
        (0..gone).for_each(|_| self.closed());
    }
}

async fn dial(address: &Address, sent: Rc<Cell<u64>>) -> io::Result<SendRequest<StoreBody>> {
    match address {
        Address::Tcp { host, port } => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            stream.set_nodelay(true)?;
            shake_hands(Counted { inner: stream, sent }).await
        }
        Address::Unix(path) => shake_hands(Counted { inner: UnixStream::connect(path).await?, sent }).await,
    }
}

async fn shake_hands<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    stream: Counted<S>,
) -> io::Result<SendRequest<StoreBody>> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    tokio::task::spawn_local(async move {
        // Whoever uses it is told what went wrong.
        let _ = connection.await;
    });
    Ok(sender)
}

impl Lane {
    /// The way to send.
    ///
    /// # Panics
    /// Never: a lane is only handed out with a connection in it.
    pub fn sender(&mut self) -> &mut SendRequest<StoreBody> {
        self.sender.as_mut().expect("a lane in use has its connection")
    }

    /// How many bytes have left on this connection, ever.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent.get()
    }

    /// The answer has been read to its end: others may use the connection.
    pub fn give_back(mut self, now: BootMs) {
        if let Some(sender) = self.sender.take().filter(|sender| !sender.is_closed()) {
            let idle = Idle { sender, sent: Rc::clone(&self.sent), since: now };
            self.pool.idle.borrow_mut().push(idle);
            // It is still open: the drop that follows must not count it out.
            self.pool.open.set(self.pool.open.get() + 1);
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.pool.closed();
    }
}

/// A stream that counts what leaves on it.
struct Counted<S> {
    inner: S,
    sent: Rc<Cell<u64>>,
}

impl<S> Counted<S> {
    fn count(&self, written: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(bytes)) = written {
            self.sent.set(self.sent.get() + *bytes as u64);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.count(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, bytes);
        self.count(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
