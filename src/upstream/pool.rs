//! A worker's connections to one store. Nothing here is shared between workers.
//!
//! A connection carries one request at a time, and is used again once its answer has been read to the end. It is closed
//! when it has been idle for `idle_timeout_ms`. That must be shorter than the store's own timeout: a store that closes
//! an idle connection must not do so while a write is sent on it. At most `connections_max` are open; more requests
//! wait in a bounded queue. Reads, writes that are not judged, one client and one object have no more than their share
//! of both (`shares.rs`), and judged writes are served first.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    io,
    rc::Rc,
    time::Duration,
};

use socket2::SockRef;
use tokio::{
    net::{TcpStream, UnixStream},
    sync::oneshot,
};

use super::{
    Address, Way,
    http1::Http1Conn,
    io::{Io, Wire},
    observed::Observed,
    shares::{Asker, Limits, Shares, Taken, UNKNOWN},
};
use crate::{config::StoreSettings, fence::BootMs};

/// Why there is no connection.
#[derive(Debug)]
pub enum NoConnection {
    /// The store does not answer at its address.
    Unreachable(String),
    /// Too many requests wait already.
    Overloaded,
}

/// A worker's connections to one store.
pub struct Pool {
    way: Way,
    settings: StoreSettings,
    idle: RefCell<Vec<Idle>>,
    open: Cell<usize>,
    shares: RefCell<Shares>,
    queue: RefCell<Queue>,
}

/// The requests that wait for a connection.
#[derive(Default)]
struct Queue {
    writes: VecDeque<ConnWaiter>,
    /// Reads, and writes that are not judged.
    others: VecDeque<ConnWaiter>,
    /// How many writes were served in a row while others waited.
    in_a_row: u32,
}

struct ConnWaiter {
    notify: oneshot::Sender<()>,
    asker: Asker,
}

/// After this many writes another request is served, so that it does not wait for ever.
const WRITES_IN_A_ROW: u32 = 3;

impl Queue {
    fn of(&mut self, asker: Asker) -> &mut VecDeque<ConnWaiter> {
        match asker {
            Asker::Read(_) | Asker::Unjudged => &mut self.others,
            Asker::Write { .. } => &mut self.writes,
        }
    }

    fn len(&self) -> usize {
        self.writes.len() + self.others.len()
    }

    fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.others.is_empty()
    }

    fn askers(&self) -> impl Iterator<Item = Asker> {
        self.writes.iter().chain(&self.others).map(|waiting| waiting.asker)
    }

    /// Removes requests that no longer wait.
    fn tidy(&mut self) {
        self.writes.retain(|waiting| !waiting.notify.is_closed());
        self.others.retain(|waiting| !waiting.notify.is_closed());
    }

    /// The next request that may have a connection.
    fn next(&mut self, shares: &Shares) -> Option<ConnWaiter> {
        let place = |queue: &VecDeque<ConnWaiter>| {
            // Few askers can have used their share, and many requests may wait behind them.
            let mut had_theirs: Vec<Asker> = vec![];
            let reads_are_full = shares.reads_are_full();
            queue.iter().position(|ConnWaiter { notify, asker }| {
                let has_had_it = matches!(asker, Asker::Read(_)) && reads_are_full;
                if has_had_it || notify.is_closed() || had_theirs.contains(asker) {
                    return false;
                }
                let may_take = shares.may_take(*asker);
                if !may_take {
                    had_theirs.push(*asker);
                }
                may_take
            })
        };
        match (place(&self.writes), place(&self.others)) {
            (Some(write), None) => self.writes.remove(write),
            (Some(write), Some(_)) if self.in_a_row < WRITES_IN_A_ROW => {
                self.in_a_row += 1;
                self.writes.remove(write)
            }
            (_, Some(other)) => {
                self.in_a_row = 0;
                self.others.remove(other)
            }
            (None, None) => None,
        }
    }
}

struct Idle {
    http1: Box<Http1Conn>,
    since: BootMs,
    place: usize,
}

/// One connection, in use by one request. Dropping it closes the connection in any state, and nothing more leaves on
/// it.
pub struct PooledConn {
    http1: Option<Box<Http1Conn>>,
    /// Since when it was idle, if it has carried another request before.
    idle_since: Option<BootMs>,
    pool: Rc<Pool>,
    /// Its place among the shares.
    place: usize,
    /// It has not been given back.
    is_open: bool,
}

impl Pool {
    /// A pool without connections.
    #[must_use]
    pub fn new(way: Way, settings: StoreSettings) -> Rc<Self> {
        let shares = RefCell::new(Shares::new(settings.connections_max));
        let (idle, queue) = (RefCell::default(), RefCell::default());
        Rc::new(Self { way, settings, idle, open: Cell::new(0), shares, queue })
    }

    /// The settings of this store.
    #[must_use]
    pub fn settings(&self) -> &StoreSettings {
        &self.settings
    }

    /// A connection: an idle one, a new one, or the next one that becomes free.
    ///
    /// # Errors
    /// Where the store cannot be reached, or too many requests wait for it.
    pub async fn conn(self: &Rc<Self>, asker: Asker) -> Result<PooledConn, NoConnection> {
        let patience = Duration::from_millis(self.settings.response_timeout_ms);
        match self.conn_at_once(asker).await {
            Some(conn) => conn,
            None => {
                tokio::time::timeout(patience, self.conn_in_turn(asker)).await.unwrap_or(Err(NoConnection::Overloaded))
            }
        }
    }

    /// An idle connection or a new one; `None` where the asker may have none now.
    async fn conn_at_once(self: &Rc<Self>, asker: Asker) -> Option<Result<PooledConn, NoConnection>> {
        if let Some(conn) = self.idle_conn(asker) {
            return Some(Ok(conn));
        }
        if self.open.get() < self.settings.connections_max && self.shares.borrow().may_take(asker) {
            return Some(self.connect(asker).await);
        }
        None
    }

    /// An idle connection that has not died; `None` where there is none, or the asker has used its share.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "most askers are the same one, which is known beforehand")]
    #[must_use]
    pub fn idle_conn(self: &Rc<Self>, asker: Asker) -> Option<PooledConn> {
        loop {
            let mut shares = self.shares.borrow_mut();
            if !shares.may_take(asker) {
                return None;
            }
            let Idle { http1, since, place } = self.idle.borrow_mut().pop()?;
            shares.take(place, asker);
            drop(shares);
            let mut conn =
                PooledConn { http1: Some(http1), idle_since: Some(since), pool: Rc::clone(self), place, is_open: true };
            if !conn.http1().is_dead() {
                return Some(conn);
            }
        }
    }

    /// An idle connection for a write whose object is not known yet, while no object can have used its share.
    #[must_use]
    pub fn idle_conn_at_ease(self: &Rc<Self>) -> Option<PooledConn> {
        self.idle_conn(UNKNOWN)
    }

    /// Waits for a connection to become free. A request that is overtaken keeps its place in the queue.
    async fn conn_in_turn(self: &Rc<Self>, asker: Asker) -> Result<PooledConn, NoConnection> {
        let mut turn = self.queue_up(asker, false)?;
        loop {
            turn.wait().await;
            if let Some(conn) = self.conn_at_once(asker).await {
                turn.taken();
                return conn;
            }
            turn.taken();
            turn = self.queue_up(asker, true)?;
        }
    }

    /// Adds a connection that was made elsewhere. For `bench/counted.rs`, which counts a write's instructions without a
    /// socket.
    pub fn adopt(self: &Rc<Self>, io: impl Io + 'static) {
        self.open.set(self.open.get() + 1);
        let http1 = Box::new(observed(io));
        let place = self.shares.borrow_mut().open();
        self.idle.borrow_mut().push(Idle { http1, since: BootMs(u64::MAX), place });
    }

    fn queue_up(self: &Rc<Self>, asker: Asker, again: bool) -> Result<Turn, NoConnection> {
        let (notify, notified) = oneshot::channel();
        let mut queue = self.queue.borrow_mut();
        queue.tidy();
        let waiting = ConnWaiter { notify, asker };
        if again {
            queue.of(asker).push_front(waiting);
        } else {
            let (places, taken) = (Limits::of_places(self.settings.queue_max), Taken::count(queue.askers()));
            let own = |is_own: &dyn Fn(Asker) -> bool| queue.askers().filter(|asker| is_own(*asker)).count();
            if queue.len() >= self.settings.queue_max || !places.allow(asker, taken, own) {
                return Err(NoConnection::Overloaded);
            }
            queue.of(asker).push_back(waiting);
        }
        Ok(Turn { notified, pool: Some(Rc::clone(self)) })
    }

    fn tell_next(&self) {
        if self.queue.borrow().is_empty() {
            return;
        }
        loop {
            let next = self.queue.borrow_mut().next(&self.shares.borrow());
            if next.is_none_or(|next| next.notify.send(()).is_ok()) {
                return;
            }
        }
    }

    fn closed(&self) {
        self.open.set(self.open.get() - 1);
        self.tell_next();
    }

    async fn connect(self: &Rc<Self>, asker: Asker) -> Result<PooledConn, NoConnection> {
        self.open.set(self.open.get() + 1);
        let place = self.shares.borrow_mut().open();
        self.shares.borrow_mut().take(place, asker);
        // From here on, dropping the lane counts the connection out, also if connecting fails.
        let mut conn = PooledConn { http1: None, idle_since: None, pool: Rc::clone(self), place, is_open: true };
        let patience = Duration::from_millis(self.settings.connect_timeout_ms);
        let connected = tokio::time::timeout(patience, Box::pin(dial(&self.way, &self.settings))).await;
        match connected {
            Ok(Ok(http1)) => {
                conn.http1 = Some(http1);
                Ok(conn)
            }
            Ok(Err(error)) => Err(NoConnection::Unreachable(error.to_string())),
            Err(_) => {
                Err(NoConnection::Unreachable(format!("no connection within {} ms", self.settings.connect_timeout_ms)))
            }
        }
    }

    /// How many connections are idle, how many are in use, and how many requests wait for one.
    #[must_use]
    pub fn counts(&self) -> (usize, usize, usize) {
        let idle = self.idle.borrow().len();
        (idle, self.open.get() - idle, self.queue.borrow().len())
    }

    /// Closes connections that have been idle for too long.
    pub fn tidy(&self, now: BootMs) {
        let patience = self.settings.idle_timeout_ms;
        let mut gone = vec![];
        self.idle.borrow_mut().retain_mut(|idle| {
            let stays = now.since(idle.since) < patience && !idle.http1.has_ended();
            if !stays {
                gone.push(idle.place);
            }
            stays
        });
        for place in gone {
            self.shares.borrow_mut().close(place);
            self.closed();
        }
    }
}

/// A place in the queue. A turn that is woken for a free connection, and is dropped without taking it, wakes the next.
struct Turn {
    notified: oneshot::Receiver<()>,
    pool: Option<Rc<Pool>>,
}

impl Turn {
    async fn wait(&mut self) {
        // Woken or forgotten: the caller checks again in both cases.
        let _ = (&mut self.notified).await;
    }

    /// Notes that the free connection was used or found taken.
    fn taken(&mut self) {
        self.pool = None;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(pool) = self.pool.take() else { return };
        self.notified.close();
        // After `wait` has returned, the channel is empty, but the free connection is still this turn's.
        if self.notified.is_terminated() || self.notified.try_recv().is_ok() {
            pool.tell_next();
        }
    }
}

async fn dial(way: &Way, settings: &StoreSettings) -> io::Result<Box<Http1Conn>> {
    Ok(Box::new(match &way.address {
        Address::Tcp { host, port } => observed(connect(host, *port, settings).await?),
        Address::Tls { host, port } => {
            let wire = Rc::<Wire>::default();
            // Counted below TLS.
            let stream = Observed::with(connect(host, *port, settings).await?, Rc::clone(&wire));
            let tls = way.tls.as_ref().ok_or_else(|| io::Error::other("no TLS was set up for this store"))?;
            Http1Conn::new(tls.connect(stream).await?, wire)
        }
        Address::Unix(path) => observed(UnixStream::connect(path).await?),
    }))
}

/// A connection whose sent bytes are counted.
fn observed(io: impl Io + 'static) -> Http1Conn {
    let wire = Rc::<Wire>::default();
    Http1Conn::new(Observed::with(io, Rc::clone(&wire)), wire)
}

/// A TCP connection that delivers nothing long after it is closed. On close, the kernel discards what it still holds.
/// If it cannot deliver data in time, the connection ends. (Without these settings, the kernel of a killed gate
/// delivered 2 MB 13 s later.)
async fn connect(host: &str, port: u16, settings: &StoreSettings) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    socket.set_linger(Some(Duration::ZERO))?;
    if settings.delivery_bound_ms > 0 {
        socket.set_tcp_user_timeout(Some(Duration::from_millis(settings.delivery_bound_ms)))?;
    }
    Ok(stream)
}

impl PooledConn {
    /// The connection.
    pub fn http1(&mut self) -> &mut Http1Conn {
        self.http1.as_mut().expect("a lane is only handed out with a connection in it")
    }

    /// Counts the connection as used for a write to this object by this client.
    pub fn belongs_to(&self, object: u64, client: u64) {
        self.pool.shares.borrow_mut().belongs_to(self.place, object, client);
    }

    /// Whether it has carried another request before.
    #[must_use]
    pub fn was_idle(&self) -> bool {
        self.idle_since.is_some()
    }

    /// Returns the connection to the pool unused.
    pub fn put_back(self, now: BootMs) {
        let since = self.idle_since.unwrap_or(now);
        self.give_back(since);
    }

    /// Lets others use the connection, if it can be used again. To be called when the answer has been read to its end.
    pub fn give_back(mut self, now: BootMs) {
        if let Some(mut http1) = self.http1.take().filter(|http1| http1.is_reusable()) {
            http1.rest();
            self.pool.shares.borrow_mut().rest(self.place);
            self.pool.idle.borrow_mut().push(Idle { http1, since: now, place: self.place });
            self.is_open = false;
            self.pool.tell_next();
        }
    }
}

impl Drop for PooledConn {
    fn drop(&mut self) {
        self.http1 = None;
        if self.is_open {
            self.pool.shares.borrow_mut().close(self.place);
            self.pool.closed();
        }
    }
}
