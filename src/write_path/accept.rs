//! The gate's port: a worker per core, each with its own runtime, listener, connections and pool.
//!
//! Nothing is shared between workers on the path of a write but the records' stripes. Timeouts are kept
//! by one tick per worker that looks at all its connections, so that a request costs no timer.

use std::{
    cell::{Cell, RefCell},
    convert::Infallible,
    io,
    net::{SocketAddr, TcpListener as StdListener},
    pin::Pin,
    rc::{Rc, Weak},
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    thread::JoinHandle,
    time::Duration,
};

use http::{Request, Response, Version};
use http_body::Body;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{rt::TokioIo, server::conn::auto};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    runtime::{Builder, LocalOptions},
    sync::{Notify, watch},
};

use super::{
    Plane, Worker,
    classify::{Class, Target, classify},
    decide::decide,
    forward::{CarryOn, Job, forward},
    headers::Origin,
    hold::hold,
    reply::{Refused, ReplyBody, refuse},
};
use crate::{
    clock::Stopwatch,
    config::{GateSettings, Mode},
    fence::BootMs,
};

const BACKLOG: i32 = 4_096;
/// How often a worker looks at its connections.
const TICK: Duration = Duration::from_millis(100);
/// How long the rest of a refused request may take to come.
const DISCARD_PATIENCE: Duration = Duration::from_secs(1);
/// After a failed accept: file descriptors may have run out.
const PAUSE: Duration = Duration::from_millis(50);

/// Takes the gate's port, once per worker.
///
/// # Errors
/// Where another process has it: also one that would share it, which is why it is first asked for alone.
pub fn bind(settings: &GateSettings) -> io::Result<Vec<StdListener>> {
    let alone = StdListener::bind(settings.listen)?;
    let address = alone.local_addr()?;
    drop(alone);
    let workers = match settings.workers {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        given => given,
    };
    (0..workers).map(|_| listen(address)).collect()
}

fn listen(address: SocketAddr) -> io::Result<StdListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Starts a worker on each listener.
///
/// # Errors
/// Where the system has no thread or runtime to give.
pub fn start(
    plane: &Arc<Plane>,
    listeners: Vec<StdListener>,
    stopping: &watch::Receiver<bool>,
) -> io::Result<Vec<JoinHandle<()>>> {
    listeners
        .into_iter()
        .enumerate()
        .map(|(number, listener)| {
            let (plane, stopping) = (Arc::clone(plane), stopping.clone());
            std::thread::Builder::new().name(format!("gate-{number}")).spawn(move || work(plane, listener, stopping))
        })
        .collect()
}

fn work(plane: Arc<Plane>, listener: StdListener, stopping: watch::Receiver<bool>) {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
    let runtime = runtime.expect("a runtime for a worker");
    runtime.block_on(async move {
        let worker = Worker::new(plane);
        let connections = Rc::new(Connections::default());
        tokio::select! {
            () = accept(&worker, &connections, listener) => {}
            () = tick(&worker, &connections) => {}
            () = stopped(stopping) => {}
        }
        connections.drain(&worker).await;
        worker.stopping.set(true);
    });
}

async fn stopped(mut stopping: watch::Receiver<bool>) {
    // A sender that is gone means the same.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

async fn accept(worker: &Rc<Worker>, connections: &Rc<Connections>, listener: StdListener) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "the gate's port cannot be used");
            return;
        }
    };
    let plane = &worker.plane;
    loop {
        if plane.connections.load(Ordering::Relaxed) >= plane.settings.connections_max {
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        match listener.accept().await {
            Ok((stream, peer)) => serve(worker, connections, stream, peer),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn tick(worker: &Rc<Worker>, connections: &Rc<Connections>) {
    loop {
        tokio::time::sleep(TICK).await;
        let now = worker.plane.gate.now().boot;
        worker.now.set(now);
        worker.pools.iter().for_each(|pool| pool.tidy(now));
        connections.close_stale(&worker.plane.settings, now);
    }
}

/// A worker's connections.
#[derive(Default)]
struct Connections {
    all: RefCell<Vec<Weak<Connection>>>,
}

/// What is known of one connection.
struct Connection {
    /// Requests that are being answered.
    active: Cell<u32>,
    /// Something was read since the last one ended.
    head_begun: Cell<bool>,
    had_request: Cell<bool>,
    is_h2: Cell<bool>,
    /// Since when it has been as it is.
    since: Cell<BootMs>,
    close: Notify,
}

impl Connections {
    fn close_stale(&self, settings: &GateSettings, now: BootMs) {
        self.all.borrow_mut().retain(|connection| {
            let Some(connection) = connection.upgrade() else { return false };
            let patience = match (connection.active.get(), connection.had_request.get()) {
                (1.., _) => return true,
                // It has not said a whole request yet, or has begun another.
                (0, false) => settings.head_timeout_ms,
                (0, true) if connection.head_begun.get() && !connection.is_h2.get() => settings.head_timeout_ms,
                (0, true) => settings.idle_timeout_ms,
            };
            if now.since(connection.since.get()) >= patience {
                connection.close.notify_one();
            }
            true
        });
    }

    /// Lets every connection finish what it is at.
    async fn drain(&self, worker: &Worker) {
        loop {
            let open: Vec<_> = self.all.borrow().iter().filter_map(Weak::upgrade).collect();
            if open.iter().all(|connection| connection.active.get() == 0) {
                return;
            }
            drop(open);
            tokio::time::sleep(TICK).await;
            worker.now.set(worker.plane.gate.now().boot);
        }
    }
}

/// Runs futures on the worker that they belong to.
#[derive(Clone, Copy)]
struct Local;

impl<F: Future + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(async move {
            future.await;
        });
    }
}

fn serve(worker: &Rc<Worker>, connections: &Rc<Connections>, stream: TcpStream, peer: SocketAddr) {
    let connection = Rc::new(Connection {
        active: Cell::new(0),
        head_begun: Cell::new(false),
        had_request: Cell::new(false),
        is_h2: Cell::new(false),
        since: Cell::new(worker.now.get()),
        close: Notify::new(),
    });
    connections.all.borrow_mut().push(Rc::downgrade(&connection));
    let worker = Rc::clone(worker);
    tokio::task::spawn_local(async move {
        let plane = Arc::clone(&worker.plane);
        plane.connections.fetch_add(1, Ordering::Relaxed);
        // A socket that cannot be set up is closed by the first use.
        let _ = stream.set_nodelay(true);
        let watched = Watched { inner: stream, connection: Rc::clone(&connection), worker: Rc::clone(&worker) };
        let (seen, served) = (Rc::clone(&connection), Rc::clone(&worker));
        let service = service_fn(move |request: Request<Incoming>| {
            let busy = Busy::new(&seen, &served, request.version());
            let (worker, origin) = (Rc::clone(&served), origin(&served, peer, request.version()));
            async move {
                let response = handle(worker, origin, request).await;
                drop(busy);
                Ok::<_, Infallible>(response)
            }
        });
        let builder = builder(&plane.settings);
        let mut serving = std::pin::pin!(builder.serve_connection(TokioIo::new(watched), service));
        tokio::select! {
            // A connection that broke is the peer's affair.
            _ = serving.as_mut() => {}
            () = connection.close.notified() => {}
        }
        plane.connections.fetch_sub(1, Ordering::Relaxed);
    });
}

fn origin(worker: &Worker, peer: SocketAddr, version: Version) -> Origin {
    Origin { peer: Some(peer.ip()), version, forwarded: worker.plane.settings.forwarded }
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
struct Busy {
    connection: Rc<Connection>,
    worker: Rc<Worker>,
}

impl Busy {
    fn new(connection: &Rc<Connection>, worker: &Rc<Worker>, version: Version) -> Self {
        connection.active.set(connection.active.get() + 1);
        connection.had_request.set(true);
        connection.is_h2.set(version == Version::HTTP_2);
        Self { connection: Rc::clone(connection), worker: Rc::clone(worker) }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.connection.active.set(self.connection.active.get() - 1);
        self.connection.head_begun.set(false);
        self.connection.since.set(self.worker.now.get());
    }
}

/// A client's stream that notes when something comes.
struct Watched {
    inner: TcpStream,
    connection: Rc<Connection>,
    worker: Rc<Worker>,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        if buffer.filled().len() > before
            && self.connection.active.get() == 0
            && !self.connection.head_begun.replace(true)
        {
            self.connection.since.set(self.worker.now.get());
        }
        read
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, bytes)
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

/// A request's way through the stages.
async fn handle(worker: Rc<Worker>, origin: Origin, request: Request<Incoming>) -> Response<ReplyBody> {
    let plane = Arc::clone(&worker.plane);
    let (head, body) = request.into_parts();
    let routes = plane.routes.load_full();
    let done = match classify(&head, &routes, &plane.settings) {
        Err(unfit) => {
            discard(body, origin.version, &plane);
            Err(unfit.into())
        }
        Ok(Class::Read { store }) => {
            let pool = Rc::clone(&worker.pools[store]);
            let job = Job { worker, pool, origin, is_write: false, admitted: None, would: None };
            forward(job, head, body).await
        }
        Ok(Class::Write(target)) => write(worker, origin, target, head, body).await,
    };
    done.unwrap_or_else(|refused| refuse(&plane, refused))
}

/// Reads a refused HTTP/2 request's body to its end, within bounds: its stream would else be reset, and
/// some clients then lose the answer. On HTTP/1.1 the connection's end does the same.
fn discard(body: Incoming, version: Version, plane: &Plane) {
    if version != Version::HTTP_2 || body.is_end_stream() {
        return;
    }
    let limit = plane.settings.hold_bytes;
    tokio::task::spawn_local(async move {
        let _ = hold(body, true, limit, DISCARD_PATIENCE).await;
    });
}

async fn write(
    worker: Rc<Worker>,
    origin: Origin,
    target: Target<'_>,
    head: http::request::Parts,
    body: Incoming,
) -> Result<Response<ReplyBody>, Refused> {
    let Target { route, object, presented } = target;
    let plane = Arc::clone(&worker.plane);
    let metrics = plane.metrics.route(&route.name, &head.method);
    let (admitted, would) = match route.mode {
        Mode::Off => (None, None),
        Mode::Enforce | Mode::Audit => {
            let stopwatch = Stopwatch::start();
            let judged = decide(&plane.gate, &object, presented).await;
            metrics.judged(stopwatch.seconds(), judged.as_ref().err());
            match (judged, route.mode) {
                (Ok(admitted), _) => (Some(admitted), None),
                (Err(refusal), Mode::Audit) => (None, Some(refusal.code())),
                (Err(refusal), _) => {
                    discard(body, origin.version, &plane);
                    return Err(Refused::from(refusal).about(&object, &route.name));
                }
            }
        }
    };
    let pool = Rc::clone(&worker.pools[route.store]);
    let job = Job { worker: Rc::clone(&worker), pool, origin, is_write: true, admitted, would };
    let active = metrics.active();
    let done = CarryOn::new(worker, async move {
        let done = forward(job, head, body).await;
        drop(active);
        done
    });
    done.await.map_err(|refused| refused.about(&object, &route.name))
}
