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
    rc::Rc,
    time::Duration,
};

use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    sync::oneshot,
    task::JoinHandle,
};

use super::{
    Address, Way,
    body::StoreBody,
    wire::{Counted, Watched, Wire},
};
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
    way: Way,
    settings: StoreSettings,
    idle: RefCell<Vec<Idle>>,
    open: Cell<usize>,
    queue: RefCell<VecDeque<oneshot::Sender<()>>>,
}

struct Idle {
    link: Link,
    since: BootMs,
}

/// A connection: the way to send on it, the task that carries it, and what has left on it.
struct Link {
    sender: SendRequest<StoreBody>,
    task: JoinHandle<()>,
    wire: Rc<Wire>,
}

/// One connection, in use by one request. Dropped, it is closed, whatever is going on on it.
pub struct Lane {
    link: Option<Link>,
    was_idle: bool,
    pool: Rc<Pool>,
}

impl Pool {
    /// A pool without connections.
    #[must_use]
    pub fn new(way: Way, settings: StoreSettings) -> Rc<Self> {
        Rc::new(Self { way, settings, idle: RefCell::default(), open: Cell::new(0), queue: RefCell::default() })
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
        let patience = Duration::from_millis(self.settings.response_timeout_ms);
        match self.lane_at_once().await {
            Some(lane) => lane,
            None => tokio::time::timeout(patience, self.lane_in_turn()).await.unwrap_or(Err(NoLane::Overloaded)),
        }
    }

    /// An idle connection or a new one; `None` where there are as many as may be.
    async fn lane_at_once(self: &Rc<Self>) -> Option<Result<Lane, NoLane>> {
        loop {
            if let Some(mut lane) = self.take_idle() {
                // The last answer may have ended this very moment; a connection that died does not
                // become ready, and is dropped.
                if lane.sender().ready().await.is_ok() {
                    return Some(Ok(lane));
                }
                continue;
            }
            if self.open.get() < self.settings.connections_max {
                return Some(self.connect().await);
            }
            return None;
        }
    }

    /// Waits for a connection to become free. Whoever is overtaken keeps its place in the queue.
    async fn lane_in_turn(self: &Rc<Self>) -> Result<Lane, NoLane> {
        let mut turn = self.queue_up(false)?;
        loop {
            turn.wait().await;
            if let Some(lane) = self.lane_at_once().await {
                turn.taken();
                return lane;
            }
            turn.taken();
            turn = self.queue_up(true)?;
        }
    }

    fn take_idle(self: &Rc<Self>) -> Option<Lane> {
        let Idle { link, .. } = self.idle.borrow_mut().pop()?;
        Some(Lane { link: Some(link), was_idle: true, pool: Rc::clone(self) })
    }

    fn queue_up(self: &Rc<Self>, again: bool) -> Result<Turn, NoLane> {
        let (tell, told) = oneshot::channel();
        let mut queue = self.queue.borrow_mut();
        queue.retain(|waiting| !waiting.is_closed());
        if again {
            queue.push_front(tell);
        } else if queue.len() >= self.settings.queue_max {
            return Err(NoLane::Overloaded);
        } else {
            queue.push_back(tell);
        }
        Ok(Turn { told, pool: Some(Rc::clone(self)) })
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
        let mut lane = Lane { link: None, was_idle: false, pool: Rc::clone(self) };
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

    /// Connections that are idle, those in use, and how many wait for one.
    #[must_use]
    pub fn standing(&self) -> (usize, usize, usize) {
        let idle = self.idle.borrow().len();
        (idle, self.open.get() - idle, self.queue.borrow().len())
    }

    /// Lets go of connections that have been idle for too long.
    pub fn tidy(&self, now: BootMs) {
        let patience = self.settings.idle_timeout_ms;
        let before = self.idle.borrow().len();
        self.idle.borrow_mut().retain(|idle| now.since(idle.since) < patience && !idle.link.sender.is_closed());
        let gone = before - self.idle.borrow().len();
        (0..gone).for_each(|_| self.closed());
    }
}

/// A place in the queue. Whoever is told that a connection is free, and then does not take it, tells the
/// next one.
struct Turn {
    told: oneshot::Receiver<()>,
    pool: Option<Rc<Pool>>,
}

impl Turn {
    async fn wait(&mut self) {
        // Told or forgotten: look again.
        let _ = (&mut self.told).await;
    }

    /// What it was told of has been looked at.
    fn taken(&mut self) {
        self.pool = None;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(pool) = self.pool.take() else { return };
        self.told.close();
        // After `wait` has returned there is nothing left in the channel, but the turn is still ours.
        if self.told.is_terminated() || self.told.try_recv().is_ok() {
            pool.tell_next();
        }
    }
}

async fn dial(way: &Way, settings: &StoreSettings) -> io::Result<Link> {
    let wire = Rc::<Wire>::default();
    match &way.address {
        Address::Tcp { host, port } => {
            let stream = Counted::new(connect(host, *port, settings).await?, &wire);
            shake_hands(stream, wire).await
        }
        Address::Tls { host, port } => {
            let stream = Counted::new(connect(host, *port, settings).await?, &wire);
            let tls = way.tls.as_ref().ok_or_else(|| io::Error::other("no TLS was set up for this store"))?;
            shake_hands(tls.connect(stream).await?, wire).await
        }
        Address::Unix(path) => {
            let stream = Counted::new(UnixStream::connect(path).await?, &wire);
            shake_hands(stream, wire).await
        }
    }
}

/// A connection on which nothing is delivered long after it is closed: what the kernel still holds then
/// is thrown away, and what it cannot get through in time ends the connection. (Without that, a killed
/// gate's kernel was seen delivering 2 MB, 13 s later.)
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

async fn shake_hands<S: AsyncRead + AsyncWrite + Unpin + 'static>(stream: S, wire: Rc<Wire>) -> io::Result<Link> {
    let stream = Watched::new(stream, &wire);
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let task = tokio::task::spawn_local(async move {
        // Whoever uses it is told what went wrong.
        let _ = connection.await;
    });
    Ok(Link { sender, task, wire })
}

impl Lane {
    fn link(&mut self) -> &mut Link {
        self.link.as_mut().expect("a lane is only handed out with a connection in it")
    }

    /// The way to send.
    pub fn sender(&mut self) -> &mut SendRequest<StoreBody> {
        &mut self.link().sender
    }

    /// What goes on on this connection.
    pub fn wire(&mut self) -> Rc<Wire> {
        Rc::clone(&self.link().wire)
    }

    /// Whether it has carried another request before.
    #[must_use]
    pub fn was_idle(&self) -> bool {
        self.was_idle
    }

    /// Closes the connection, whatever is going on on it. When this returns, nothing more leaves on it.
    pub async fn close(mut self) {
        if let Some(Link { task, .. }) = self.link.take() {
            task.abort();
            // Ended by the abort, or before.
            let _ = task.await;
        }
    }

    /// The answer has been read to its end: others may use the connection.
    pub fn give_back(mut self, now: BootMs) {
        if let Some(link) = self.link.take().filter(|link| !link.sender.is_closed()) {
            self.pool.idle.borrow_mut().push(Idle { link, since: now });
            // It is still open: the drop that follows must not count it out.
            self.pool.open.set(self.pool.open.get() + 1);
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if let Some(link) = self.link.take() {
            // A body that waits for ever would keep the connection open.
            link.task.abort();
        }
        self.pool.closed();
    }
}
