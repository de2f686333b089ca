//! A connection from its accept to its end: TLS, the protocol that its client speaks, and hyper's server for that.

use std::{
    convert::Infallible,
    future::Future,
    io,
    net::SocketAddr,
    pin::pin,
    rc::Rc,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
};

use http::{Request, Response};
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::Service,
};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    super::{
        Worker,
        crowd::Peer,
        headers::Origin,
        pipeline::{Answering, answer},
        plan::Plan,
        reply::ReplyBody,
        sniff::sniff,
    },
    Busy, Connection, Connections,
};
use crate::{
    metrics::add,
    tls::Certificate,
    upstream::observed::{Observed, Observer},
};

/// Runs the streams of an HTTP/2 connection on the worker that they belong to.
#[derive(Clone)]
struct Streams(Rc<Connection>);

impl<F: Future<Output: 'static> + 'static> hyper::rt::Executor<F> for Streams {
    fn execute(&self, future: F) {
        let task = tokio::task::spawn_local(future);
        // hyper called the service for this answer just before.
        if let Some(reply) = self.0.begun.take() {
            reply.runs_in(task.abort_handle());
        }
    }
}

/// Counts a connection in, and out when it is gone.
struct Open(Rc<Worker>, Peer);

impl Open {
    fn new(worker: &Rc<Worker>, peer: Peer) -> Self {
        worker.plane.connections.fetch_add(1, Ordering::Relaxed);
        worker.plane.crowd.came(peer);
        add(&worker.tally.accepted, 1);
        Self(Rc::clone(worker), peer)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.plane.connections.fetch_sub(1, Ordering::Relaxed);
        self.0.plane.crowd.went(self.1);
    }
}

/// Serves a connection until it ends.
pub fn serve<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    worker: &Rc<Worker>,
    connections: &Connections,
    stream: S,
    peer: SocketAddr,
) {
    let plan = Arc::clone(&worker.worker_plan().plan);
    // Reads the clock, so that the connection's time begins now and not with the last tick.
    let _ = worker.watch();
    let client = Peer::of(peer.ip());
    let origin = Origin::new(peer.ip(), plan.tls.is_some(), plan.settings.forwarded);
    let connection = Connection::new(worker.clock(), connections.next_number(), peer.ip(), origin);
    connections.all.borrow_mut().push(Rc::downgrade(&connection));
    let open = Open::new(worker, client);
    let worker = Rc::clone(worker);
    tokio::task::spawn_local(async move {
        let traffic = Traffic { connection: Rc::clone(&connection), worker: Rc::clone(&worker) };
        let stream = Observed::with(stream, traffic);
        match &plan.tls {
            None => talk(&worker, &connection, stream, &plan).await,
            Some(tls) => {
                let accepting = async {
                    let accepted = tls.accept(stream).await;
                    accepted.inspect_err(|error| tracing::debug!(%peer, %error, "no TLS connection came about")).ok()
                };
                // Boxed, because it is large and most connections do not need it.
                if let Some(stream) = Box::pin(connection.unless_ended(accepting)).await {
                    if let Some(certificate) = Certificate::of_client(&stream) {
                        let _ = connection.client.certificate.set(Arc::new(certificate));
                    }
                    Box::pin(talk(&worker, &connection, stream, &plan)).await;
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
    plan: &Plan,
) {
    let service = Answers { worker: Rc::clone(worker), connection: Rc::clone(connection) };
    let Some(stream) = connection.unless_ended(sniff(stream)).await else { return };
    let is_h2 = stream.is_h2();
    connection.is_h2.set(is_h2);
    let is_looked_at = plan.settings.strict && !is_h2;
    let heads = is_looked_at.then(|| Rc::clone(connection.client.heads.get_or_init(Rc::default)));
    let stream = TokioIo::new(stream.copied_to(heads));
    if is_h2 {
        let mut builder = http2::Builder::new(Streams(Rc::clone(connection)));
        builder
            .max_concurrent_streams(plan.settings.streams_max)
            .max_header_list_size(u32::try_from(4 * plan.settings.header_bytes_max).unwrap_or(u32::MAX));
        // Boxed, because it is large and most connections are HTTP/1.1.
        let mut serving = Box::pin(builder.serve_connection(stream, service));
        connection.serve(serving.as_mut(), http2::Connection::graceful_shutdown).await;
    } else {
        let mut builder = http1::Builder::new();
        // The gate's own, smaller limit answers with a problem; hyper's limit is the safety behind it.
        let wall = 2 * (plan.settings.header_bytes_max + plan.settings.uri_bytes_max).max(16_384);
        builder.max_header_size(wall).max_buf_size(wall.max(STREAM_ROOM)).header_read_timeout(None);
        let serving = pin!(builder.serve_connection(stream, service));
        connection.serve(serving, http1::Connection::graceful_shutdown).await;
    }
}

/// How much of a streaming body is read at once.
const STREAM_ROOM: usize = 256 << 10;

/// Answers a connection's requests.
struct Answers {
    worker: Rc<Worker>,
    connection: Rc<Connection>,
}

impl Service<Request<Incoming>> for Answers {
    type Response = Response<ReplyBody>;
    type Error = Infallible;
    type Future = Answering;

    fn call(&self, request: Request<Incoming>) -> Answering {
        let busy = Busy::new(&self.connection, &request);
        answer(&self.worker, request, busy)
    }
}

/// Notes what is read from and written to a client's connection.
struct Traffic {
    connection: Rc<Connection>,
    worker: Rc<Worker>,
}

impl<S> Observer<S> for Traffic {
    const JOINS: bool = true;

    #[inline]
    fn read(&mut self, _read: &Poll<io::Result<()>>, bytes: usize) {
        add(&self.worker.tally.received, bytes);
        if bytes > 0 && self.connection.active.get() == 0 && !self.connection.head_begun.replace(true) {
            self.connection.since.set(self.connection.clock.get());
        }
    }

    #[inline]
    fn written(&mut self, _context: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &written {
            Poll::Ready(Ok(bytes)) => {
                add(&self.worker.tally.sent, *bytes);
                self.connection.took(*bytes);
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => {
                let since = self.connection.blocked.get().unwrap_or(self.connection.clock.get());
                self.connection.blocked.set(Some(since));
            }
        }
        written
    }
}
