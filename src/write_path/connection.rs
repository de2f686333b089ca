//! One client's connection: HTTP/1.1 or HTTP/2, with TLS or without, and how long it may take.
//!
//! Timeouts are kept by the worker's tick, which looks at all its connections, so that a request costs
//! no timer. A connection is closed when it has not sent a whole request head in time, from its first
//! byte on and also before the protocol is known; when it has been idle for too long; and when it takes
//! nothing of an answer for too long.

use std::{
    cell::{Cell, RefCell},
    convert::Infallible,
    io,
    net::SocketAddr,
    pin::Pin,
    rc::{Rc, Weak},
    sync::atomic::Ordering,
    task::{Context, Poll},
};

use http::{Request, Version};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{rt::TokioIo, server::conn::auto};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::Notify,
};

use super::{Worker, handle::handle, headers::Origin, plan::Plan};
use crate::{config::GateSettings, fence::BootMs, metrics::add};

/// A worker's connections.
#[derive(Default)]
pub struct Connections {
    all: RefCell<Vec<Weak<Connection>>>,
}

/// How a connection is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    No,
    /// With what it is at.
    Soon,
    Now,
}

/// What is known of one connection.
pub struct Connection {
    /// Requests that are being answered.
    active: Cell<u32>,
    /// Something was read since the last one ended.
    head_begun: Cell<bool>,
    had_request: Cell<bool>,
    is_h2: Cell<bool>,
    /// Since when it has been as it is.
    since: Cell<BootMs>,
    /// Since when the client has taken nothing of what is there for it.
    blocked: Cell<Option<BootMs>>,
    /// HTTP/2 answers that are being taken: since when the client has asked for no more of each.
    replies: RefCell<Vec<Weak<Cell<BootMs>>>>,
    ending: Cell<Ending>,
    told: Notify,
}

/// The store, and not the client, is waited for.
const NOT_THE_CLIENT: BootMs = BootMs(u64::MAX);

impl Connection {
    fn new(now: BootMs) -> Rc<Self> {
        Rc::new(Self {
            active: Cell::new(0),
            head_begun: Cell::new(false),
            had_request: Cell::new(false),
            is_h2: Cell::new(false),
            since: Cell::new(now),
            blocked: Cell::new(None),
            replies: RefCell::default(),
            ending: Cell::new(Ending::No),
            told: Notify::new(),
        })
    }

    /// What it was answered has not all been taken.
    fn is_blocked(&self) -> bool {
        self.blocked.get().is_some()
    }

    fn end(&self, how: Ending) {
        self.ending.set(how);
        self.told.notify_one();
    }

    fn is_stale(&self, settings: &GateSettings, now: BootMs) -> bool {
        if self.blocked.get().is_some_and(|since| now.since(since) >= settings.body_timeout_ms) {
            return true;
        }
        if self.is_blocked() {
            return false;
        }
        let mut replies = self.replies.borrow_mut();
        replies.retain(|reply| reply.strong_count() > 0);
        if replies.iter().filter_map(Weak::upgrade).any(|since| now.since(since.get()) >= settings.body_timeout_ms) {
            return true;
        }
        let patience = match (self.active.get(), self.had_request.get()) {
            (1.., _) => return false,
            // It has not said a whole request yet, or has begun another.
            (0, false) => settings.head_timeout_ms,
            (0, true) if self.head_begun.get() && !self.is_h2.get() => settings.head_timeout_ms,
            (0, true) => settings.idle_timeout_ms,
        };
        now.since(self.since.get()) >= patience
    }
}

impl Connections {
    /// Closes those that have taken too long, and forgets those that are gone.
    pub fn close_stale(&self, settings: &GateSettings, now: BootMs) {
        self.all.borrow_mut().retain(|connection| {
            let Some(connection) = connection.upgrade() else { return false };
            if connection.is_stale(settings, now) {
                connection.end(Ending::Now);
            }
            true
        });
    }

    /// Lets every connection finish what it is at, and take nothing more up.
    pub fn end_all(&self) {
        self.open().iter().for_each(|connection| connection.end(Ending::Soon));
    }

    /// Closes every connection that is at nothing.
    pub fn close_idle(&self) {
        let is_idle = |each: &&Rc<Connection>| each.active.get() == 0 && !each.is_blocked();
        self.open().iter().filter(is_idle).for_each(|idle| idle.end(Ending::Now));
    }

    fn open(&self) -> Vec<Rc<Connection>> {
        self.all.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.all.borrow().iter().filter(|connection| connection.strong_count() > 0).count()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Runs futures on the worker that they belong to.
#[derive(Clone, Copy)]
struct Local;

impl<F: Future<Output: 'static> + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}

/// Counts a connection in, and out when it is gone.
struct Open(Rc<Worker>);

impl Open {
    fn new(worker: &Rc<Worker>) -> Self {
        worker.plane.connections.fetch_add(1, Ordering::Relaxed);
        add(&worker.tally.accepted, 1);
        Self(Rc::clone(worker))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.plane.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves a connection until it ends.
pub fn serve(worker: &Rc<Worker>, connections: &Connections, stream: TcpStream, peer: SocketAddr) {
    let connection = Connection::new(worker.now.get());
    connections.all.borrow_mut().push(Rc::downgrade(&connection));
    let open = Open::new(worker);
    let worker = Rc::clone(worker);
    tokio::task::spawn_local(async move {
        let plan = std::sync::Arc::clone(&worker.outfit().plan);
        // A socket that cannot be set up is closed by the first use.
        let _ = stream.set_nodelay(true);
        let watched = Watched { inner: stream, connection: Rc::clone(&connection), worker: Rc::clone(&worker) };
        match &plan.tls {
            None => talk(&worker, &connection, watched, peer, &plan).await,
            Some(tls) => {
                let accepted = tokio::select! {
                    accepted = tls.accept(watched) => accepted,
                    () = connection.told.notified() => Err(io::ErrorKind::TimedOut.into()),
                };
                match accepted {
                    Ok(stream) => talk(&worker, &connection, stream, peer, &plan).await,
                    Err(error) => tracing::debug!(%peer, %error, "no TLS connection came about"),
                }
            }
        }
        drop(open);
    });
}

async fn talk<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    worker: &Rc<Worker>,
    connection: &Rc<Connection>,
    stream: S,
    peer: SocketAddr,
    plan: &Plan,
) {
    let (seen, served) = (Rc::clone(connection), Rc::clone(worker));
    let (is_tls, forwarded) = (plan.tls.is_some(), plan.settings.forwarded);
    let service = service_fn(move |request: Request<Incoming>| {
        let busy = Busy::new(&seen, &served, request.version());
        let origin = Origin { peer: Some(peer.ip()), version: request.version(), is_tls, forwarded };
        let worker = Rc::clone(&served);
        async move {
            let response = handle(worker, origin, request).await;
            // Busy until the last byte of the answer has been handed on.
            Ok::<_, Infallible>(response.map(|body| body.during(busy)))
        }
    });
    let builder = builder(&plan.settings);
    let mut serving = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    loop {
        tokio::select! {
            // A connection that broke is the peer's affair.
            _ = serving.as_mut() => return,
            () = connection.told.notified() => match connection.ending.get() {
                Ending::No => {}
                Ending::Soon => serving.as_mut().graceful_shutdown(),
                Ending::Now => return,
            }
        }
    }
}

fn builder(settings: &GateSettings) -> auto::Builder<Local> {
    let mut builder = auto::Builder::new(Local);
    // The gate's own limit answers in its own words; hyper's is the wall behind it.
    builder
        .http1()
        .max_buf_size(2 * (settings.header_bytes_max + settings.uri_bytes_max).max(16_384))
        .header_read_timeout(None);
    builder
        .http2()
        .max_concurrent_streams(settings.streams_max)
        .max_header_list_size(u32::try_from(4 * settings.header_bytes_max).unwrap_or(u32::MAX));
    builder
}

/// A request that is being answered.
pub struct Busy {
    connection: Rc<Connection>,
    worker: Rc<Worker>,
    /// Since when the client has asked for no more of its HTTP/2 answer. On HTTP/1.1 the socket tells.
    asked: Option<Rc<Cell<BootMs>>>,
}

impl Busy {
    fn new(connection: &Rc<Connection>, worker: &Rc<Worker>, version: Version) -> Self {
        connection.active.set(connection.active.get() + 1);
        connection.had_request.set(true);
        connection.is_h2.set(version == Version::HTTP_2);
        Self { connection: Rc::clone(connection), worker: Rc::clone(worker), asked: None }
    }

    /// An answer is there to be taken.
    pub fn answered(&mut self) {
        if self.connection.is_h2.get() {
            let asked = Rc::new(Cell::new(self.worker.now.get()));
            self.connection.replies.borrow_mut().push(Rc::downgrade(&asked));
            self.asked = Some(asked);
        }
    }

    /// The client has asked for more, and got it or not.
    pub fn asked(&self, got_it: bool) {
        if let Some(asked) = &self.asked {
            asked.set(if got_it { self.worker.now.get() } else { NOT_THE_CLIENT });
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.connection.active.set(self.connection.active.get() - 1);
        self.connection.head_begun.set(false);
        self.connection.since.set(self.worker.now.get());
    }
}

/// A client's stream that notes what comes and goes.
struct Watched {
    inner: TcpStream,
    connection: Rc<Connection>,
    worker: Rc<Worker>,
}

impl Watched {
    fn read(&self, bytes: usize) {
        add(&self.worker.tally.received, bytes);
        if bytes > 0 && self.connection.active.get() == 0 && !self.connection.head_begun.replace(true) {
            self.connection.since.set(self.worker.now.get());
        }
    }

    fn written(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &written {
            Poll::Ready(Ok(bytes)) => {
                add(&self.worker.tally.sent, *bytes);
                self.connection.blocked.set(None);
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => {
                let since = self.connection.blocked.get().unwrap_or(self.worker.now.get());
                self.connection.blocked.set(Some(since));
            }
        }
        written
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        self.read(buffer.filled().len() - before);
        read
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.written(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, bytes);
        self.written(written)
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
