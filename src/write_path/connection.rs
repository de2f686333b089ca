//! One client's connection: HTTP/1.1 or HTTP/2, with TLS or without, and how long it may take.
//!
//! Timeouts are kept by the worker's tick, which looks at all its connections, so that a request costs
//! no timer. A connection is closed when it has not sent a whole request head in time, from its first
//! byte on and also before the protocol is known; when it has been idle for too long; and when it takes
//! nothing of an answer for too long. `evict.rs` says which one is closed where there is no room for another.

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

use http::{Request, Response, request::Parts};
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
    /// How many there have been.
    count: Cell<u64>,
    /// How many wait for one of their own client's to be closed.
    in_turn: Rc<Cell<usize>>,
}

/// How many may wait for that at once: each takes a file that is not counted.
const IN_TURN_MAX: usize = 32;

/// A connection that waits for another one of its client's to be closed.
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
    /// What it has taken of the answers since the connection was last idle, and how long it let them wait.
    taken: Cell<u64>,
    waited_ms: Cell<u64>,
    /// HTTP/2 answers that are being taken.
    replies: RefCell<Vec<Weak<Reply>>>,
    /// The answer to the HTTP/2 request that was begun last, until its task is there.
    begun: RefCell<Option<Rc<Reply>>>,
    ending: Cell<Ending>,
    client: Rc<Client>,
    /// Its worker's clock.
    clock: Rc<Cell<BootMs>>,
}

/// What requests have to know of their connection. They may outlive it.
pub struct Client {
    /// Its own among the worker's.
    pub number: u64,
    pub peer: Peer,
    pub requests: Requests,
    pub origin: Origin,
    /// Where the record of the last write was.
    pub last_place: Cell<Option<Place>>,
    /// Whoever serves the connection.
    wake_filter: RefCell<Option<Arc<SelfWakeFilter>>>,
    /// What was read of an HTTP/1.1 connection, where its heads are looked at strictly.
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

    /// The client has taken so many bytes.
    fn took(&self, bytes: usize) {
        if let Some(since) = self.blocked.take() {
            self.waited_ms.set(self.waited_ms.get() + self.clock.get().since(since));
        }
        self.taken.set(self.taken.get() + bytes as u64);
    }

    /// Nothing goes on on it, and nothing waits to be taken.
    fn is_idle(&self) -> bool {
        self.active.get() == 0 && !self.is_blocked()
    }

    /// How it stands where there is no room for another one.
    fn standing(&self) -> Standing {
        match (self.client.requests.standing(self.active.get(), self.since.get()), self.blocked.get()) {
            (Some(standing), _) => standing,
            (None, Some(since)) => Standing::Waits(since),
            (None, None) => Standing::Idle(self.since.get()),
        }
    }

    /// What it was answered has not all been taken.
    fn is_blocked(&self) -> bool {
        self.blocked.get().is_some()
    }

    fn end(&self, how: Ending) {
        self.ending.set(how);
        self.client.wake_filter.borrow().as_ref().inspect(|wake_filter| wake_filter.task.wake_by_ref());
    }

    /// Whoever serves it wants to be told. Whether that is news.
    fn watch(&self, context: &Context<'_>) -> bool {
        let mut wake_filter = self.client.wake_filter.borrow_mut();
        let is_known = wake_filter.as_ref().is_some_and(|wake_filter| wake_filter.task.will_wake(context.waker()));
        if !is_known {
            *wake_filter = Some(Arc::new(SelfWakeFilter { task: context.waker().clone() }));
        }
        !is_known
    }

    /// Does something on it, unless it has to end before that.
    async fn unless_ended<T>(&self, work: impl Future<Output = Option<T>>) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|context| {
            self.watch(context);
            if self.ending.get() == Ending::No { work.as_mut().poll(context) } else { Poll::Ready(None) }
        })
        .await
    }

    /// Serves it until it ends, or has to.
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
            // A connection that broke is the peer's affair.
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
            // It has not said a whole request yet, or has begun another.
            (0, false) => settings.head_timeout_ms,
            (0, true) if self.head_begun.get() && !self.is_h2.get() => settings.head_timeout_ms,
            (0, true) => settings.idle_timeout_ms,
        };
        now.since(self.since.get()) >= patience
    }

    /// Breaks off the HTTP/2 answers that their client takes too slowly. What else goes on on the connection is another
    /// client's, if a proxy stands before the gate, so it goes on. Returns whether there is nothing else.
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
    /// Looks at a head as it came, where that is asked for.
    ///
    /// # Errors
    /// With why it could be read in two ways.
    pub fn check_head(&self, head: &Parts, body: &Incoming) -> Result<(), Doubt> {
        let Some(heads) = self.heads.get() else { return Ok(()) };
        let length = body.size_hint().exact().map_or(BodyLength::Chunks, BodyLength::Known);
        heads.borrow_mut().check(head, length)
    }

    /// Whether a body in chunks has ended where hyper says it has, as far as that is looked at.
    pub fn body_is_over(&self) -> bool {
        self.heads.get().is_none_or(|heads| heads.borrow().body_is_over())
    }

    /// Does something that wakes this very task. `needless`: whether that was without need.
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

/// What a connection's task is woken by. It can be deafened for a moment, on its own thread: taking the last
/// part of a body wakes the task that takes it, which would be polled once more for nothing.
struct SelfWakeFilter {
    task: Waker,
}

thread_local! {
    /// Which ear is deaf on this thread, by its address, and how often it has not been heard.
    static FILTERING: Cell<(usize, u32)> = const { Cell::new((0, 0)) };
}

impl SelfWakeFilter {
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Does something while it hears nothing of this thread. Also says how often it was called.
    fn count_self_wakes<T>(&self, work: impl FnOnce() -> T) -> (T, u32) {
        let _restores = FilterBefore(FILTERING.replace((self.address(), 0)));
        let done = work();
        (done, FILTERING.get().1)
    }
}

/// What is to be deaf again when this is dropped, also by a panic.
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

    /// A place among those that wait; `None` where too many do.
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

    /// Lets every connection finish what it is at, and take nothing more up.
    pub fn end_all(&self) {
        self.open().iter().for_each(|connection| connection.end(Ending::Soon));
    }

    /// Closes every connection that is at nothing.
    pub fn close_idle(&self) {
        self.open().iter().filter(|each| each.is_idle()).for_each(|idle| idle.end(Ending::Now));
    }

    /// Since when the one lies idle that does so for longest.
    pub fn longest_idle(&self) -> Option<BootMs> {
        let idle = |each: Rc<Connection>| match each.standing() {
            Standing::Idle(since) if each.ending.get() == Ending::No => Some(since),
            _ => None,
        };
        self.open().into_iter().filter_map(idle).min()
    }

    /// Closes one to make room for another: see `evict.rs`. Only one of `peer`, if that is given; only one that has lain idle
    /// since `idle_since`, if that is. Returns false where there is none that may be closed.
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
        // hyper has asked for the answer just before.
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
    // So that its time begins now, and not with the last tick.
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
                // Apart, like all that is large and not there in every connection.
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
        // Apart, since it is large, and most connections are of the other kind.
        let mut serving = Box::pin(builder.serve_connection(stream, service));
        connection.serve(serving.as_mut(), http2::Connection::graceful_shutdown).await;
    } else {
        let mut builder = http1::Builder::new();
        // The gate's own limit answers in its own words; hyper's is the wall behind it.
        let wall = 2 * (plan.settings.header_bytes_max + plan.settings.uri_bytes_max).max(16_384);
        builder.max_header_size(wall).max_buf_size(wall.max(STREAM_ROOM)).header_read_timeout(None);
        let serving = pin!(builder.serve_connection(stream, service));
        connection.serve(serving, http1::Connection::graceful_shutdown).await;
    }
}

/// How much is read at once of a body that streams.
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
        answer(&self.worker, &self.connection.client, request, busy)
    }
}

/// A request that is being answered.
pub struct Busy {
    connection: Rc<Connection>,
    at: At,
    /// How its client takes its HTTP/2 answer. On HTTP/1.1 the socket tells.
    reply: Option<Rc<Reply>>,
}

impl Busy {
    fn new<B>(connection: &Rc<Connection>, request: &Request<B>) -> Self {
        let at = At::of(request.method());
        connection.client.requests.begin(at);
        connection.active.set(connection.active.get() + 1);
        connection.had_request.set(true);
        let reply = connection.is_h2.get().then(Rc::<Reply>::default);
        if reply.is_some() {
            connection.begun.replace(reply.clone());
        }
        Self { connection: Rc::clone(connection), at, reply }
    }

    /// Nothing more is waited for than that the client takes its answer.
    pub fn waits(&mut self) {
        if self.at != At::Client {
            self.connection.client.requests.turn(self.at, At::Client, self.connection.clock.get());
            self.at = At::Client;
        }
    }

    /// An answer is there to be taken. `is_whole` says whether all of it is. An HTTP/1.1 client has no way to let it lie but
    /// the socket, which tells.
    pub fn answered(&mut self, is_whole: impl FnOnce() -> bool) {
        if self.reply.is_some() && is_whole() {
            self.waits();
        }
        if let Some(reply) = &self.reply {
            reply.is_there(self.connection.clock.get());
            self.connection.replies.borrow_mut().push(Rc::downgrade(reply));
        }
    }

    /// How its client takes an HTTP/2 answer, and what the time is.
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

/// Notes what comes and goes on a client's connection.
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

    /// After how long a client is too slow that takes `bytes` every `every_ms` of an answer that is all there.
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
