//! The connections of a port: what each one does, and which one is closed when there is no room for another.
//!
//! A connection that only waits for its peer (for a request, for the rest of one, for an answer to be read) does not
//! keep others out: when a port is full, the one that has waited longest is closed. A call in progress is never cut
//! off. [`Places`] limit how many such calls there are, so that probes, renewals and releases always find a seat.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::{
    clock::Stopwatch,
    fence::{BootMs, Code},
    problem::Problem,
};

/// How long a new connection has to send its first request, and a request its body, before another connection may
/// have its seat. With a longer time, fewer new connections per second get in while a port is full. With a shorter
/// time, a caller on a busy machine may lose its seat before it has sent anything.
const GRACE_MS: u64 = 50;
/// How soon the connections are checked again: one may have become idle meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How long a connection that must leave has for it, before the next one must leave too.
const LEAVES_WITHIN: Duration = Duration::from_millis(200);

/// What a connection without a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Idle {
    /// It was accepted, and what it has sent was not read yet.
    Accepted,
    /// It has not sent a whole head yet.
    New,
    /// Every request was answered.
    Listening,
}

/// How far a call is. A connection with several calls (HTTP/2) does what the furthest in this list does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Doing {
    /// The body of a request is still arriving.
    Receiving,
    /// The answer is being handed over.
    Answering,
    /// A call is in progress.
    Working,
}

#[derive(Debug)]
struct Now {
    idle: Idle,
    /// How many calls are this far, by [`Doing`].
    calls: [usize; 3],
    /// Since when it does what it does.
    since: BootMs,
    /// Since when the peer has taken nothing of its answer.
    stalled: Option<BootMs>,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Seat {
    now: Mutex<Now>,
    leave: Notify,
    has_to_leave: AtomicBool,
}

impl Now {
    fn doing(&self) -> Option<Doing> {
        let all = [Doing::Working, Doing::Answering, Doing::Receiving];
        all.into_iter().find(|doing| self.calls[*doing as usize] > 0)
    }
}

impl Seat {
    fn new() -> Self {
        let now = Now { idle: Idle::Accepted, calls: [0; 3], since: Stopwatch::start().begun(), stalled: None };
        Self { now: Mutex::new(now), leave: Notify::new(), has_to_leave: AtomicBool::new(false) }
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a call on this connection.
    pub(super) fn call(self: &Arc<Self>) -> Turn {
        self.now().calls[Doing::Working as usize] += 1;
        Turn { seat: Arc::clone(self), doing: Mutex::new(Doing::Working) }
    }

    /// Whether one of its calls was answered, and none is in progress.
    pub(super) fn has_asked_before(&self) -> bool {
        let now = self.now();
        now.idle == Idle::Listening && now.doing().is_none()
    }

    /// Everything that its peer has sent was read.
    pub(super) fn has_read_all(&self) {
        let since = Stopwatch::start().begun();
        let mut now = self.now();
        if now.idle == Idle::Accepted {
            (now.idle, now.since) = (Idle::New, since);
        }
    }

    /// The peer has stopped taking its answer, or takes it again.
    pub(super) fn is_stalled(&self, is_stalled: bool) {
        self.now().stalled = is_stalled.then(|| Stopwatch::start().begun());
    }

    /// Whether it has neither a whole request nor an unread answer, so that closing it loses nothing.
    pub(super) fn owes_nothing(&self) -> bool {
        let now = self.now();
        now.stalled.is_none() && !matches!(now.doing(), Some(Doing::Working | Doing::Answering))
    }

    /// For how long it has had no call.
    pub(super) fn idle_ms(&self) -> u64 {
        let at = Stopwatch::start().begun();
        let now = self.now();
        if now.doing().is_none() { at.since(now.since) } else { 0 }
    }

    /// Returns when the connection must give up its seat.
    pub(super) async fn has_to_leave(&self) {
        self.leave.notified().await;
    }

    /// Whether the connection must give up its seat.
    pub(super) fn was_asked_to_leave(&self) -> bool {
        self.has_to_leave.load(Ordering::Acquire)
    }

    fn ask_to_leave(&self) {
        self.has_to_leave.store(true, Ordering::Release);
        self.leave.notify_one();
    }

    /// Since when it only waits for its peer, if it may lose its seat.
    fn waits_since(&self, at: BootMs) -> Option<BootMs> {
        let now = self.now();
        let after_grace = Some(now.since).filter(|since| at.since(*since) >= GRACE_MS);
        match (now.doing(), now.idle) {
            (Some(Doing::Working), _) | (None, Idle::Accepted) => None,
            (Some(Doing::Answering), _) => now.stalled,
            (Some(Doing::Receiving), _) | (None, Idle::New) => after_grace,
            (None, Idle::Listening) => Some(now.since),
        }
    }
}

/// One call of a connection. Dropping this ends it.
#[derive(Debug)]
pub(super) struct Turn {
    seat: Arc<Seat>,
    doing: Mutex<Doing>,
}

impl Turn {
    /// Records how far the call is.
    pub(super) fn begins(&self, next: Doing) {
        let mut doing = self.doing.lock().unwrap_or_else(PoisonError::into_inner);
        self.moves(*doing, Some(next));
        *doing = next;
    }

    fn moves(&self, from: Doing, to: Option<Doing>) {
        let since = Stopwatch::start().begun();
        let mut now = self.seat.now();
        let before = now.doing();
        now.calls[from as usize] -= 1;
        match to {
            Some(to) => now.calls[to as usize] += 1,
            None => now.idle = Idle::Listening,
        }
        if now.doing() != before {
            now.since = since;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let doing = *self.doing.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.moves(doing, None);
    }
}

/// The connections of a port.
pub(super) struct Seats {
    port: &'static str,
    room: Arc<Semaphore>,
    size: u32,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    next: u64,
    seats: HashMap<u64, Arc<Seat>>,
    /// The port is full, and the log says so.
    is_full: bool,
}

impl Seats {
    pub(super) fn new(port: &'static str, room: usize) -> Arc<Self> {
        let size = u32::try_from(room).unwrap_or(u32::MAX);
        let room = Arc::new(Semaphore::new(size as usize));
        Arc::new(Self { port, room, size, taken: Mutex::default() })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a seat for a connection. If none is free, the connection that has waited longest for its peer loses
    /// its seat.
    pub(super) async fn take(self: &Arc<Self>) -> Occupied {
        loop {
            let free = Arc::clone(&self.room).try_acquire_owned();
            let wait = match free {
                Ok(permit) => return self.occupy(permit),
                Err(_) if self.make_room() => LEAVES_WITHIN,
                Err(_) => LOOK_AGAIN,
            };
            let free = tokio::time::timeout(wait, Arc::clone(&self.room).acquire_owned()).await;
            if let Ok(Ok(permit)) = free {
                return self.occupy(permit);
            }
        }
    }

    fn occupy(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> Occupied {
        let seat = Arc::new(Seat::new());
        let mut taken = self.taken();
        let id = taken.next;
        taken.next += 1;
        taken.seats.insert(id, Arc::clone(&seat));
        Occupied { seat, id, seats: Arc::clone(self), _permit: permit }
    }

    /// Asks the connection that has waited longest for its peer to leave. Returns `false` if none waits.
    fn make_room(&self) -> bool {
        let at = Stopwatch::start().begun();
        let mut taken = self.taken();
        let waits = |(id, seat): (&u64, &Arc<Seat>)| seat.waits_since(at).map(|since| (since, *id));
        let Some((_, id)) = taken.seats.iter().filter_map(waits).min() else { return false };
        if let Some(seat) = taken.seats.remove(&id) {
            seat.ask_to_leave();
        }
        if !std::mem::replace(&mut taken.is_full, true) {
            tracing::warn!(
                port = self.port,
                room = self.size,
                "the port is full: connections that wait for their callers are closed for new ones. Find out which clients connect to it; its room follows from the limit on open files"
            );
        }
        true
    }

    /// Returns when the last connection is gone.
    pub(super) async fn are_empty(&self) {
        let _ = self.room.acquire_many(self.size).await;
    }
}

/// A taken seat. Dropping this frees it.
pub(super) struct Occupied {
    pub(super) seat: Arc<Seat>,
    id: u64,
    seats: Arc<Seats>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Occupied {
    fn drop(&mut self) {
        let mut taken = self.seats.taken();
        taken.seats.remove(&self.id);
        if taken.seats.len() * 2 < self.seats.size as usize {
            taken.is_full = false;
        }
    }
}

/// How many calls of a port may be in progress at once, besides those that always get in.
#[derive(Clone)]
pub struct Places(Arc<Semaphore>);

impl Places {
    /// Places for half of a port's room. Streams of events have a quarter of the api's room, so a quarter is left for
    /// calls that need no place.
    #[must_use]
    pub fn within(room: usize) -> Self {
        Self(Arc::new(Semaphore::new((room / 2).max(1))))
    }

    /// # Errors
    /// `GATE_OVERLOADED` where every place is taken.
    pub fn take(&self) -> Result<OwnedSemaphorePermit, Problem> {
        self.semaphore().try_acquire_owned().map_err(|_| Self::none_left())
    }

    /// For a layer that takes a place for each call.
    pub(super) fn semaphore(&self) -> Arc<Semaphore> {
        Arc::clone(&self.0)
    }

    /// The refusal of a call that gets no place.
    pub(super) fn none_left() -> Problem {
        Problem::new(
            Code::GateOverloaded,
            "too many calls are worked on already; the limit follows from how many files the gate may open",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(30);

    async fn taken(seats: &Arc<Seats>) -> Occupied {
        tokio::time::timeout(SOON, seats.take()).await.expect("a seat within 30 s")
    }

    async fn left(occupied: &Occupied) {
        tokio::time::timeout(SOON, occupied.seat.has_to_leave()).await.expect("asked to leave within 30 s");
    }

    #[tokio::test]
    async fn the_one_that_has_waited_longest_leaves_and_a_call_that_is_worked_on_stays() {
        let seats = Seats::new("test", 3);
        let (working, first, second) = (taken(&seats).await, taken(&seats).await, taken(&seats).await);
        let call = working.seat.call();
        drop(second.seat.call());
        // This makes the first connection the later one of the two.
        drop(first.seat.call());
        {
            let mut now = first.seat.now();
            now.since = BootMs(now.since.0 + 1);
        }
        let next = tokio::spawn({
            let seats = Arc::clone(&seats);
            async move { taken(&seats).await }
        });
        left(&second).await;
        assert!(second.seat.was_asked_to_leave());
        drop(second);
        let next = next.await.unwrap();
        assert!(!working.seat.was_asked_to_leave() && !first.seat.was_asked_to_leave());
        drop((call, working, first, next));
        tokio::time::timeout(SOON, seats.are_empty()).await.expect("no seat is taken within 30 s");
    }

    #[tokio::test]
    async fn a_stream_leaves_only_where_its_peer_takes_nothing_and_nothing_is_lost_with_half_a_request() {
        let seats = Seats::new("test", 1);
        let stream = taken(&seats).await;
        assert!(stream.seat.owes_nothing() && !seats.make_room(), "it may have sent a request already");
        let call = stream.seat.call();
        call.begins(Doing::Answering);
        assert!(!seats.make_room() && !stream.seat.owes_nothing());
        stream.seat.is_stalled(true);
        assert!(seats.make_room());
        drop(call);
        assert!(!stream.seat.owes_nothing(), "the end of its answer was not taken");
        stream.seat.is_stalled(false);
        assert!(stream.seat.owes_nothing());
    }

    #[tokio::test]
    async fn a_connection_with_several_calls_leaves_only_when_none_is_worked_on() {
        let seats = Seats::new("test", 1);
        let connection = taken(&seats).await;
        let (one, other) = (connection.seat.call(), connection.seat.call());
        drop(one);
        assert!(!seats.make_room() && !connection.seat.has_asked_before() && connection.seat.idle_ms() == 0);
        other.begins(Doing::Answering);
        let late = connection.seat.call();
        connection.seat.is_stalled(true);
        assert!(!seats.make_room(), "a call is in progress beside the answer that is not taken");
        drop(late);
        assert!(seats.make_room());
        drop(other);
        assert!(connection.seat.has_asked_before());
    }

    #[test]
    fn half_of_the_room_is_for_calls_that_may_last() {
        let places = Places::within(4);
        let two = (places.take().unwrap(), places.take().unwrap());
        assert_eq!(places.take().map(drop).map_err(|problem| problem.code()), Err(Code::GateOverloaded));
        drop(two);
        assert!(places.take().is_ok());
    }
}
