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
    io::{Io, Wire},
    link::Link,
    observed::Observed,
    shares::{Asker, Limits, Shares, Taken, UNKNOWN},
};
use crate::{config::StoreSettings, fence::BootMs};

/// Why there is no connection.
#[derive(Debug)]
pub enum NoLane {
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
    writes: VecDeque<Waiting>,
    /// Reads, and writes that are not judged.
    others: VecDeque<Waiting>,
    /// How many writes were served in a row while others waited.
    in_a_row: u32,
}

struct Waiting {
    tell: oneshot::Sender<()>,
    asker: Asker,
}

/// After this many writes another request is served, so that it does not wait for ever.
const WRITES_IN_A_ROW: u32 = 3;

impl Queue {
    fn of(&mut self, asker: Asker) -> &mut VecDeque<Waiting> {
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
        self.writes.retain(|waiting| !waiting.tell.is_closed());
        self.others.retain(|waiting| !waiting.tell.is_closed());
    }

    /// The next request that may have a connection.
    fn next(&mut self, shares: &Shares) -> Option<Waiting> {
        let place = |queue: &VecDeque<Waiting>| {
            // Few askers can have used their share, and many requests may wait behind them.
            let mut had_theirs: Vec<Asker> = vec![];
            let reads_are_full = shares.reads_are_full();
            queue.iter().position(|Waiting { tell, asker }| {
                let has_had_it = matches!(asker, Asker::Read(_)) && reads_are_full;
                if has_had_it || tell.is_closed() || had_theirs.contains(asker) {
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
    link: Box<Link>,
    since: BootMs,
    place: usize,
}

/// One connection, in use by one request. Dropping it closes the connection in any state, and nothing more leaves on
/// it.
pub struct Lane {
    link: Option<Box<Link>>,
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
    pub async fn lane(self: &Rc<Self>, asker: Asker) -> Result<Lane, NoLane> {
        let patience = Duration::from_millis(self.settings.response_timeout_ms);
        match self.lane_at_once(asker).await {
            Some(lane) => lane,
            None => tokio::time::timeout(patience, self.lane_in_turn(asker)).await.unwrap_or(Err(NoLane::Overloaded)),
        }
    }

    /// An idle connection or a new one; `None` where the asker may have none now.
    async fn lane_at_once(self: &Rc<Self>, asker: Asker) -> Option<Result<Lane, NoLane>> {
        if let Some(lane) = self.idle_lane(asker) {
            return Some(Ok(lane));
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
    pub fn idle_lane(self: &Rc<Self>, asker: Asker) -> Option<Lane> {
        loop {
            let mut shares = self.shares.borrow_mut();
            if !shares.may_take(asker) {
                return None;
            }
            let Idle { link, since, place } = self.idle.borrow_mut().pop()?;
            shares.take(place, asker);
            drop(shares);
            let mut lane =
                Lane { link: Some(link), idle_since: Some(since), pool: Rc::clone(self), place, is_open: true };
            if !lane.link().is_dead() {
                return Some(lane);
            }
        }
    }

    /// An idle connection for a write whose object is not known yet, while no object can have used its share.
    #[must_use]
    pub fn idle_lane_at_ease(self: &Rc<Self>) -> Option<Lane> {
        self.idle_lane(UNKNOWN)
    }

    /// Waits for a connection to become free. A request that is overtaken keeps its place in the queue.
    async fn lane_in_turn(self: &Rc<Self>, asker: Asker) -> Result<Lane, NoLane> {
        let mut turn = self.queue_up(asker, false)?;
        loop {
            turn.wait().await;
            if let Some(lane) = self.lane_at_once(asker).await {
                turn.taken();
                return lane;
            }
            turn.taken();
            turn = self.queue_up(asker, true)?;
        }
    }

    /// Adds a connection that was made elsewhere. For `bench/counted.rs`, which counts a write's instructions without a
    /// socket.
    pub fn adopt(self: &Rc<Self>, io: impl Io + 'static) {
        self.open.set(self.open.get() + 1);
        let link = Box::new(observed(io));
        let place = self.shares.borrow_mut().open();
        self.idle.borrow_mut().push(Idle { link, since: BootMs(u64::MAX), place });
    }

    fn queue_up(self: &Rc<Self>, asker: Asker, again: bool) -> Result<Turn, NoLane> {
        let (tell, told) = oneshot::channel();
        let mut queue = self.queue.borrow_mut();
        queue.tidy();
        let waiting = Waiting { tell, asker };
        if again {
            queue.of(asker).push_front(waiting);
        } else {
            let (places, taken) = (Limits::of_places(self.settings.queue_max), Taken::count(queue.askers()));
            let own = |is_own: &dyn Fn(Asker) -> bool| queue.askers().filter(|asker| is_own(*asker)).count();
            if queue.len() >= self.settings.queue_max || !places.allow(asker, taken, own) {
                return Err(NoLane::Overloaded);
            }
            queue.of(asker).push_back(waiting);
        }
        Ok(Turn { told, pool: Some(Rc::clone(self)) })
    }

    fn tell_next(&self) {
        if self.queue.borrow().is_empty() {
            return;
        }
        loop {
            let next = self.queue.borrow_mut().next(&self.shares.borrow());
            if next.is_none_or(|next| next.tell.send(()).is_ok()) {
                return;
            }
        }
    }

    fn closed(&self) {
        self.open.set(self.open.get() - 1);
        self.tell_next();
    }

    async fn connect(self: &Rc<Self>, asker: Asker) -> Result<Lane, NoLane> {
        self.open.set(self.open.get() + 1);
        let place = self.shares.borrow_mut().open();
        self.shares.borrow_mut().take(place, asker);
        // From here on, dropping the lane counts the connection out, also if connecting fails.
        let mut lane = Lane { link: None, idle_since: None, pool: Rc::clone(self), place, is_open: true };
        let patience = Duration::from_millis(self.settings.connect_timeout_ms);
        let connected = tokio::time::timeout(patience, Box::pin(dial(&self.way, &self.settings))).await;
        match connected {
            Ok(Ok(link)) => {
                lane.link = Some(link);
                Ok(lane)
            }
            Ok(Err(error)) => Err(NoLane::Unreachable(error.to_string())),
            Err(_) => Err(NoLane::Unreachable(format!("no connection within {} ms", self.settings.connect_timeout_ms))),
        }
    }

    /// How many connections are idle, how many are in use, and how many requests wait for one.
    #[must_use]
    pub fn standing(&self) -> (usize, usize, usize) {
        let idle = self.idle.borrow().len();
        (idle, self.open.get() - idle, self.queue.borrow().len())
    }

    /// Closes connections that have been idle for too long.
    pub fn tidy(&self, now: BootMs) {
        let patience = self.settings.idle_timeout_ms;
        let mut gone = vec![];
        self.idle.borrow_mut().retain_mut(|idle| {
            let stays = now.since(idle.since) < patience && !idle.link.has_ended();
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
    told: oneshot::Receiver<()>,
    pool: Option<Rc<Pool>>,
}

impl Turn {
    async fn wait(&mut self) {
        // Woken or forgotten: the caller checks again in both cases.
        let _ = (&mut self.told).await;
    }

    /// Notes that the free connection was used or found taken.
    fn taken(&mut self) {
        self.pool = None;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(pool) = self.pool.take() else { return };
        self.told.close();
        // After `wait` has returned, the channel is empty, but the free connection is still this turn's.
        if self.told.is_terminated() || self.told.try_recv().is_ok() {
            pool.tell_next();
        }
    }
}

async fn dial(way: &Way, settings: &StoreSettings) -> io::Result<Box<Link>> {
    Ok(Box::new(match &way.address {
        Address::Tcp { host, port } => observed(connect(host, *port, settings).await?),
        Address::Tls { host, port } => {
            let wire = Rc::<Wire>::default();
            // Counted below TLS.
            let stream = Observed::with(connect(host, *port, settings).await?, Rc::clone(&wire));
            let tls = way.tls.as_ref().ok_or_else(|| io::Error::other("no TLS was set up for this store"))?;
            Link::new(tls.connect(stream).await?, wire)
        }
        Address::Unix(path) => observed(UnixStream::connect(path).await?),
    }))
}

/// A connection whose sent bytes are counted.
fn observed(io: impl Io + 'static) -> Link {
    let wire = Rc::<Wire>::default();
    Link::new(Observed::with(io, Rc::clone(&wire)), wire)
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

impl Lane {
    /// The connection.
    pub fn link(&mut self) -> &mut Link {
        self.link.as_mut().expect("a lane is only handed out with a connection in it")
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
        if let Some(mut link) = self.link.take().filter(|link| link.is_reusable()) {
            link.rest();
            self.pool.shares.borrow_mut().rest(self.place);
            self.pool.idle.borrow_mut().push(Idle { link, since: now, place: self.place });
            self.is_open = false;
            self.pool.tell_next();
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.link = None;
        if self.is_open {
            self.pool.shares.borrow_mut().close(self.place);
            self.pool.closed();
        }
    }
}
