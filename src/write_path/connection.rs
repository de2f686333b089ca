//! One client's connection: HTTP/1.1 or HTTP/2, with TLS or without, and its timeouts.
//!
//! The worker's tick checks the timeouts of all its connections, so a request costs no timer. A connection is closed
//! when it has not sent a whole request head in time, counted from its first byte and also before the protocol is
//! known; when it has been idle for too long; and when it takes nothing of an answer for too long. `evict.rs` says
//! which connection is closed to make room for another.

use std::{
    cell::{Cell, OnceCell, RefCell},
    convert::Infallible,
    future::{Future, poll_fn},
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    rc::{Rc, Weak},
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Wake, Waker},
};

use http::{Method, Request, Response, request::Parts};
use hyper::{
    body::{Body, Incoming},
    server::conn::{http1, http2},
    service::Service,
};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    Worker,
    crowd::Peer,
    evict::{self, At, Extent, Requests, Standing},
    headers::Origin,
    pace::Slowest,
    pipeline::{Answering, answer},
    plan::Plan,
    raw_head::{BodyLength, RawHeads},
    reply::ReplyBody,
    sniff::sniff,
    taking::Reply,
};
use crate::{
    barrier::stripes::Place,
    config::GateSettings,
    fence::BootMs,
    metrics::add,
    route::doubt::Doubt,
    upstream::observed::{Observed, Observer},
};

/// A worker's connections.
#[derive(Default)]
pub struct Connections {
    all: RefCell<Vec<Weak<Connection>>>,
    /// How many connections there have been.
    count: Cell<u64>,
    /// How many new connections wait for another one of the same client to be closed.
    in_turn: Rc<Cell<usize>>,
}

/// How many may wait for that at once. Each uses a file that is not counted.
const IN_TURN_MAX: usize = 32;

/// A connection that waits for another one of the same client to be closed.
pub struct InTurn(Rc<Cell<usize>>);

impl Drop for InTurn {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// How a connection is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    No,
    /// After the requests in progress.
    Soon,
    Now,
}

/// The state of one connection.
pub struct Connection {
    /// Requests that are being answered.
    active: Cell<u32>,
    /// Something was read since the last request ended.
    head_begun: Cell<bool>,
    had_request: Cell<bool>,
    is_h2: Cell<bool>,
    /// When the state last changed.
    since: Cell<BootMs>,
    /// Since when the client has taken nothing of the bytes that are ready for it.
    blocked: Cell<Option<BootMs>>,
    /// How many bytes of answers the client has taken since the connection was last idle, and how long it let them
    /// wait.
    taken: Cell<u64>,
    waited_ms: Cell<u64>,
    /// HTTP/2 answers that the client is taking.
    replies: RefCell<Vec<Weak<Reply>>>,
    /// The answer to the HTTP/2 request that was begun last, until its task has started.
    begun: RefCell<Option<Rc<Reply>>>,
    ending: Cell<Ending>,
    client: Rc<Client>,
    /// The clock of its worker.
    clock: Rc<Cell<BootMs>>,
}

/// What requests have to know of their connection. It may outlive the connection.
pub struct Client {
    /// The connection's number within its worker.
    pub number: u64,
    pub peer: Peer,
    pub requests: Requests,
    pub origin: Origin,
    /// Where the record of the last write was.
    pub last_place: Cell<Option<Place>>,
    /// Wakes the task that serves the connection.
    wake_filter: RefCell<Option<Arc<SelfWakeFilter>>>,
    /// What was read of an HTTP/1.1 connection, where its heads are checked strictly.
    heads: OnceCell<Rc<RefCell<RawHeads>>>,
}

impl Connection {
    fn new(clock: &Rc<Cell<BootMs>>, number: u64, peer: Peer, origin: Origin) -> Rc<Self> {
        Rc::new(Self {
            active: Cell::new(0),
            head_begun: Cell::new(false),
            had_request: Cell::new(false),
            is_h2: Cell::new(false),
            since: Cell::new(clock.get()),
            blocked: Cell::new(None),
            taken: Cell::new(0),
            waited_ms: Cell::new(0),
            replies: RefCell::default(),
            begun: RefCell::default(),
            ending: Cell::new(Ending::No),
            clock: Rc::clone(clock),
            client: Rc::new(Client {
                number,
                peer,
                requests: Requests::default(),
                origin,
                last_place: Cell::default(),
                wake_filter: RefCell::default(),
                heads: OnceCell::new(),
            }),
        })
    }

    /// Counts `bytes` that the client has taken.
    fn took(&self, bytes: usize) {
        if let Some(since) = self.blocked.take() {
            self.waited_ms.set(self.waited_ms.get() + self.clock.get().since(since));
        }
        self.taken.set(self.taken.get() + bytes as u64);
    }

    /// No request is being answered, and no answer waits to be taken.
    fn is_idle(&self) -> bool {
        self.active.get() == 0 && !self.is_blocked()
    }

    /// The connection's state, for choosing which connection is closed to make room.
    fn standing(&self) -> Standing {
        match (self.client.requests.standing(self.active.get(), self.since.get()), self.blocked.get()) {
            (Some(standing), _) => standing,
            (None, Some(since)) => Standing::Waits(since),
            (None, None) => Standing::Idle(self.since.get()),
        }
    }

    /// The client has not yet taken all that was sent to it.
    fn is_blocked(&self) -> bool {
        self.blocked.get().is_some()
    }

    fn end(&self, how: Ending) {
        self.ending.set(how);
        self.client.wake_filter.borrow().as_ref().inspect(|wake_filter| wake_filter.task.wake_by_ref());
    }

    /// Stores the serving task's waker; returns whether it changed.
    fn watch(&self, context: &Context<'_>) -> bool {
        let mut wake_filter = self.client.wake_filter.borrow_mut();
        let is_known = wake_filter.as_ref().is_some_and(|wake_filter| wake_filter.task.will_wake(context.waker()));
        if !is_known {
            *wake_filter = Some(Arc::new(SelfWakeFilter { task: context.waker().clone() }));
        }
        !is_known
    }

    /// Runs `work` to its end; `None` if the connection has to end before that.
    async fn unless_ended<T>(&self, work: impl Future<Output = Option<T>>) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|context| {
            self.watch(context);
            if self.ending.get() == Ending::No { work.as_mut().poll(context) } else { Poll::Ready(None) }
        })
        .await
    }

    /// Serves the connection until it ends, or has to end.
    async fn serve<C: Future>(&self, mut serving: Pin<&mut C>, finish: impl Fn(Pin<&mut C>)) {
        let (mut is_told, mut filtered) = (false, None::<Waker>);
        poll_fn(|context| {
            if self.watch(context) || filtered.is_none() {
                filtered = self.client.wake_filter.borrow().clone().map(Waker::from);
            }
            match self.ending.get() {
                Ending::No => {}
                Ending::Soon if is_told => {}
                Ending::Soon => {
                    is_told = true;
                    finish(serving.as_mut());
                }
                Ending::Now => return Poll::Ready(()),
            }
            // A connection that broke is the client's concern, so the error is dropped.
            let waker = filtered.as_ref().unwrap_or(context.waker());
            serving.as_mut().poll(&mut Context::from_waker(waker)).map(drop)
        })
        .await;
    }

    fn is_stale(&self, settings: &GateSettings, now: BootMs) -> bool {
        if let Some(since) = self.blocked.get() {
            let waits = now.since(since);
            let is_slow =
                self.waited_ms.get().saturating_add(waits) >= Slowest::of(settings).time_for(self.taken.get());
            return waits >= settings.body_timeout_ms || is_slow;
        }
        if self.cut_slow_replies(settings, now) {
            return true;
        }
        let patience = match (self.active.get(), self.had_request.get()) {
            (1.., _) => return false,
            // It has not sent a whole request head yet, or has begun another one.
            (0, false) => settings.head_timeout_ms,
            (0, true) if self.head_begun.get() && !self.is_h2.get() => settings.head_timeout_ms,
            (0, true) => settings.idle_timeout_ms,
        };
        now.since(self.since.get()) >= patience
    }

    /// Breaks off the HTTP/2 answers that their client takes too slowly. The other streams go on: behind a proxy they
    /// may be another client's. Returns true, and cuts none, if all streams are slow.
    fn cut_slow_replies(&self, settings: &GateSettings, now: BootMs) -> bool {
        let mut replies = self.replies.borrow_mut();
        replies.retain(|reply| reply.strong_count() > 0);
        let slow: Vec<Rc<Reply>> =
            replies.iter().filter_map(Weak::upgrade).filter(|reply| reply.is_slow(settings, now)).collect();
        let is_all = !slow.is_empty() && slow.len() >= self.active.get() as usize;
        if !is_all {
            for reply in slow {
                reply.cut();
            }
        }
        is_all
    }
}

impl Client {
    /// One that no connection belongs to.
    #[cfg(test)]
    pub fn of_no_connection(peer: std::net::IpAddr) -> Rc<Self> {
        let origin = Origin::new(peer, false, crate::config::Forwarded::Off);
        Rc::clone(&Connection::new(&Rc::new(Cell::new(BootMs(0))), 1, Peer::of(peer), origin).client)
    }

    /// Looks at a head as it came, where that is asked for.
    ///
    /// # Errors
    /// With the reason why the head could be read in two ways.
    pub fn check_head(&self, head: &Parts, body: &Incoming) -> Result<(), Doubt> {
        let Some(heads) = self.heads.get() else { return Ok(()) };
        let length = body.size_hint().exact().map_or(BodyLength::Chunks, BodyLength::Known);
        heads.borrow_mut().check(head, length)
    }

    /// Whether a body in chunks has ended where hyper says it has, as far as that is checked.
    pub fn body_is_over(&self) -> bool {
        self.heads.get().is_none_or(|heads| heads.borrow().body_is_over())
    }

    /// Runs `work` and suppresses the wakes that it gives this task. Wakes the task afterwards, unless there was none
    /// or `needless` says that the only one was not needed.
    pub fn without_self_wake<T>(&self, work: impl FnOnce() -> T, needless: impl FnOnce(&T) -> bool) -> T {
        let wake_filter = self.wake_filter.borrow();
        let Some(wake_filter) = &*wake_filter else { return work() };
        let (done, missed) = wake_filter.count_self_wakes(work);
        if missed > 1 || (missed == 1 && !needless(&done)) {
            wake_filter.task.wake_by_ref();
        }
        done
    }
}

/// The waker of a connection's task. It can be suppressed for a moment, on its own thread: taking the last part of a
/// body wakes the task that takes it, which would then be polled once more without need.
struct SelfWakeFilter {
    task: Waker,
}

thread_local! {
    /// Which `Ear` is suppressed on this thread, by its address, and how many wakes it has missed.
    static FILTERING: Cell<(usize, u32)> = const { Cell::new((0, 0)) };
}

impl SelfWakeFilter {
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Runs `work` while wakes from this thread are suppressed. Also returns how many there were.
    fn count_self_wakes<T>(&self, work: impl FnOnce() -> T) -> (T, u32) {
        let _restores = FilterBefore(FILTERING.replace((self.address(), 0)));
        let done = work();
        (done, FILTERING.get().1)
    }
}

/// Restores the earlier suppression when dropped, also after a panic.
struct FilterBefore((usize, u32));

impl Drop for FilterBefore {
    fn drop(&mut self) {
        FILTERING.set(self.0);
    }
}

impl Wake for SelfWakeFilter {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        match FILTERING.get() {
            (filtering, missed) if filtering == self.address() => FILTERING.set((filtering, missed + 1)),
            _ => self.task.wake_by_ref(),
        }
    }
}

impl Connections {
    /// Closes the connections that have taken too long, and forgets those that are gone.
    pub fn close_stale(&self, settings: &GateSettings, now: BootMs) {
        self.all.borrow_mut().retain(|connection| {
            let Some(connection) = connection.upgrade() else { return false };
            if connection.is_stale(settings, now) {
                connection.end(Ending::Now);
            }
            true
        });
    }

    /// A place among the connections that wait; `None` where too many wait.
    pub fn wait_in_turn(&self) -> Option<InTurn> {
        let waiting = self.in_turn.get();
        (waiting < IN_TURN_MAX).then(|| {
            self.in_turn.set(waiting + 1);
            InTurn(Rc::clone(&self.in_turn))
        })
    }

    fn next_number(&self) -> u64 {
        self.count.set(self.count.get() + 1);
        self.count.get()
    }

    /// Lets every connection finish its current requests, and accept no new ones.
    pub fn end_all(&self) {
        self.open().iter().for_each(|connection| connection.end(Ending::Soon));
    }

    /// Closes every idle connection.
    pub fn close_idle(&self) {
        self.open().iter().filter(|each| each.is_idle()).for_each(|idle| idle.end(Ending::Now));
    }

    /// Since when the longest idle connection has been idle.
    pub fn longest_idle(&self) -> Option<BootMs> {
        let idle = |each: Rc<Connection>| match each.standing() {
            Standing::Idle(since) if each.ending.get() == Ending::No => Some(since),
            _ => None,
        };
        self.open().into_iter().filter_map(idle).min()
    }

    /// Closes a connection to make room for another: see `evict.rs`. With `peer`, only one of that client; with
    /// `idle_since`, only one that has been idle since then. Returns false where none may be closed.
    pub fn close_one(&self, peer: Option<Peer>, extent: Extent, idle_since: Option<BootMs>) -> bool {
        let mut open = self.open();
        open.retain(|each| each.ending.get() == Ending::No && peer.is_none_or(|peer| each.client.peer == peer));
        let first = evict::first(open.iter().map(|each| each.standing()), extent, idle_since);
        first.inspect(|place| open[*place].end(Ending::Now)).is_some()
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
    let connection = Connection::new(worker.clock(), connections.next_number(), client, origin);
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

/// A request that is being answered.
pub struct Busy {
    connection: Rc<Connection>,
    at: At,
    /// How the client takes this HTTP/2 answer. On HTTP/1.1 the socket shows that.
    pub to_head: bool,
    /// How its client takes its HTTP/2 answer. On HTTP/1.1 the socket tells.
    reply: Option<Rc<Reply>>,
}

impl Busy {
    /// Whose request it is.
    pub fn client(&self) -> &Rc<Client> {
        &self.connection.client
    }

    fn new<B>(connection: &Rc<Connection>, request: &Request<B>) -> Self {
        let at = At::of(request.method());
        connection.client.requests.begin(at);
        connection.active.set(connection.active.get() + 1);
        connection.had_request.set(true);
        let reply = connection.is_h2.get().then(Rc::<Reply>::default);
        if reply.is_some() {
            connection.begun.replace(reply.clone());
        }
        Self { connection: Rc::clone(connection), at, to_head: request.method() == Method::HEAD, reply }
    }

    /// Notes that from now on only the client's taking of its answer is waited for.
    pub fn waits(&mut self) {
        if self.at != At::Client {
            self.connection.client.requests.turn(self.at, At::Client, self.connection.clock.get());
            self.at = At::Client;
        }
    }

    /// The answer is ready to be taken. `is_whole` says whether all of it is. Only HTTP/2 needs this: an HTTP/1.1
    /// client can delay an answer only through the socket, which shows it.
    pub fn answered(&mut self, is_whole: impl FnOnce() -> bool) {
        if self.reply.is_some() && is_whole() {
            self.waits();
        }
        if let Some(reply) = &self.reply {
            reply.is_there(self.connection.clock.get());
            self.connection.replies.borrow_mut().push(Rc::downgrade(reply));
        }
    }

    /// How the client takes an HTTP/2 answer, and the present time.
    pub fn taking(&self) -> Option<(&Reply, BootMs)> {
        self.reply.as_deref().map(|reply| (reply, self.connection.clock.get()))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.connection.client.requests.end(self.at);
        let active = self.connection.active.get() - 1;
        self.connection.active.set(active);
        if active == 0 {
            self.connection.taken.set(0);
            self.connection.waited_ms.set(0);
        }
        self.connection.head_begun.set(false);
        self.connection.since.set(self.connection.clock.get());
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

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::config::Forwarded;

    /// After how long a client is cut off that takes `bytes` every `every_ms`, where the whole answer is ready.
    fn cut_after(bytes: usize, every_ms: u64) -> Option<u64> {
        let (settings, peer) = (GateSettings::default(), IpAddr::from([127, 0, 0, 1]));
        let clock = Rc::<Cell<BootMs>>::default();
        let connection = Connection::new(&clock, 1, Peer::of(peer), Origin::new(peer, false, Forwarded::Off));
        connection.active.set(1);
        for now in (0..600_000).step_by(100) {
            clock.set(BootMs(now));
            if now > 0 && now % every_ms == 0 {
                connection.took(bytes);
            }
            if connection.blocked.get().is_none() {
                connection.blocked.set(Some(BootMs(now)));
            }
            if connection.is_stale(&settings, BootMs(now)) {
                return Some(now);
            }
        }
        None
    }

    #[test]
    fn a_client_that_takes_its_answer_by_drips_is_cut_off() {
        assert_eq!(cut_after(0, 700_000), Some(30_000), "one that takes nothing");
        assert_eq!(cut_after(1, 20_000), Some(30_000), "one that drips");
        assert_eq!(cut_after(2_048, 1_000), None, "one that keeps pace");
    }
}
