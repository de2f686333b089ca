//! One client's connection: HTTP/1.1 or HTTP/2, with TLS or without, and its timeouts.
//!
//! The worker's tick checks the timeouts of all its connections, so a request costs no timer. A connection is closed
//! when it has not sent a whole request head in time, counted from its first byte and also before the protocol is
//! known; when it has been idle for too long; and when it takes nothing of an answer for too long. `evict.rs` says
//! which connection is closed to make room for another.
//!
//! Here is the state of one connection. [`serve`](fn@serve) runs it, [`Busy`] is a request on it, [`Connections`] are a
//! worker's connections together.

mod busy;
mod self_wake;
mod serve;
mod set;

use std::{
    cell::{Cell, OnceCell, RefCell},
    future::{Future, poll_fn},
    net::IpAddr,
    pin::{Pin, pin},
    rc::{Rc, Weak},
    sync::Arc,
    task::{Context, Poll, Waker},
};

use http::request::Parts;
use hyper::body::{Body, Incoming};

use self::self_wake::SelfWakeFilter;
pub use self::{
    busy::Busy,
    serve::serve,
    set::{Connections, InTurn},
};
use super::{
    crowd::Peer,
    evict::{Activity, Requests},
    headers::Origin,
    pace::Slowest,
    raw_head::{BodyLength, RawHeads},
    taking::Reply,
};
use crate::{barrier::stripes::Place, config::GateSettings, fence::BootMs, route::doubt::Doubt, tls::Certificate};

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
    pub peer_address: IpAddr,
    /// The certificate that the client has shown.
    pub certificate: OnceCell<Arc<Certificate>>,
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
    fn new(clock: &Rc<Cell<BootMs>>, number: u64, peer_address: IpAddr, origin: Origin) -> Rc<Self> {
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
                peer: Peer::of(peer_address),
                peer_address,
                certificate: OnceCell::new(),
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
    fn activity(&self) -> Activity {
        match (self.client.requests.activity(self.active.get(), self.since.get()), self.blocked.get()) {
            (Some(activity), _) => activity,
            (None, Some(since)) => Activity::Waits(since),
            (None, None) => Activity::Idle(self.since.get()),
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
        Rc::clone(&Connection::new(&Rc::new(Cell::new(BootMs(0))), 1, peer, origin).client)
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

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::config::Forwarded;

    /// After how long a client is cut off that takes `bytes` every `every_ms`, where the whole answer is ready.
    fn cut_after(bytes: usize, every_ms: u64) -> Option<u64> {
        let (settings, peer) = (GateSettings::default(), IpAddr::from([127, 0, 0, 1]));
        let clock = Rc::<Cell<BootMs>>::default();
        let connection = Connection::new(&clock, 1, peer, Origin::new(peer, false, Forwarded::Off));
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
