//! Which connection is closed when there is no room for another one.
//!
//! First idle connections; then those whose requests only wait for their client, with nothing at the store; then, where
//! they are more than half of all, those that only read. Of each kind, the connection goes first that has been in that
//! state for longest. A connection with a write that may be on its way stays, so no write becomes unknown to make room.

use std::{cell::Cell, rc::Rc};

use http::Method;

use super::connection::Client;
use crate::{
    failpoints::{self, Fault},
    fence::BootMs,
    route::profile::is_read,
};

/// The state of a request, as far as closing its connection matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// The gate waits for its client to send its body, or to take its answer. It has no connection to the store.
    Client,
    /// It can be broken off: it is a read, or a write without a permit, of which nothing was sent.
    Loose,
    /// It is a write that may be on its way to the store.
    Write,
}

impl At {
    /// The state that a request begins in.
    #[must_use]
    pub fn of(method: &Method) -> Self {
        if is_read(method) { Self::Loose } else { Self::Write }
    }
}

/// The requests of a connection that do not keep it from being closed. The others are writes, and are not counted here.
#[derive(Debug, Default)]
pub struct Requests {
    waiting: Cell<u32>,
    loose: Cell<u32>,
    /// Since when at least one request has waited for the client.
    waits_since: Cell<BootMs>,
}

impl Requests {
    fn count(&self, at: At) -> Option<&Cell<u32>> {
        match at {
            At::Client => Some(&self.waiting),
            At::Loose => Some(&self.loose),
            At::Write => None,
        }
    }

    pub fn begin(&self, at: At) {
        self.count(at).inspect(|count| count.set(count.get() + 1));
    }

    pub fn end(&self, at: At) {
        self.count(at).inspect(|count| count.set(count.get() - 1));
    }

    /// Moves a request from one state to another.
    pub fn turn(&self, from: At, to: At, now: BootMs) {
        if to == At::Client && self.waiting.get() == 0 {
            self.waits_since.set(now);
        }
        self.end(from);
        self.begin(to);
    }

    /// The state of a connection with `total` requests, these among them; `None` where it has none.
    #[must_use]
    pub fn activity(&self, total: u32, began: BootMs) -> Option<Activity> {
        let (waiting, loose) = (self.waiting.get(), self.loose.get());
        match total {
            0 => None,
            total if total == waiting => Some(Activity::Waits(self.waits_since.get())),
            total if total == waiting + loose => Some(Activity::Reads(began)),
            _ => Some(Activity::Writes),
        }
    }
}

/// A request in another state than its first, until this is dropped.
pub struct Turned {
    client: Rc<Client>,
    from: At,
    to: At,
}

impl Turned {
    #[must_use]
    pub fn new(client: &Rc<Client>, from: At, to: At, now: BootMs) -> Self {
        client.requests.turn(from, to, now);
        Self { client: Rc::clone(client), from, to }
    }
}

impl Drop for Turned {
    fn drop(&mut self) {
        // Back in its first state it does not wait for its client, so the time does not matter.
        self.client.requests.turn(self.to, self.from, BootMs::PAST);
    }
}

/// What a connection is doing, and since when. The earlier variants are closed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Activity {
    Idle(BootMs),
    Waits(BootMs),
    Reads(BootMs),
    Writes,
}

/// Which connections may be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    /// Connections that are idle, or wait for their client.
    IdleOrWaiting,
    /// Also those that only read, where they are more than half.
    Reading,
}

/// The place of the connection to close first; `None` where none may be closed. `idle_since`: only one that has been
/// idle since then or before, as another worker has one.
pub fn first(all: impl Iterator<Item = Activity> + Clone, extent: Extent, idle_since: Option<BootMs>) -> Option<usize> {
    if failpoints::on(Fault::NoEviction) {
        return None;
    }
    let reads = all.clone().filter(|each| matches!(each, Activity::Reads(_))).count();
    let may_cut_reads = extent == Extent::Reading && 2 * reads > all.clone().count();
    let may_close = |activity: &Activity| match (activity, idle_since) {
        (Activity::Idle(since), Some(latest)) => *since <= latest,
        (_, Some(_)) | (Activity::Writes, None) => false,
        (Activity::Idle(_) | Activity::Waits(_), None) => true,
        (Activity::Reads(_), None) => may_cut_reads,
    };
    all.enumerate().filter(|(_, each)| may_close(each)).min_by_key(|(_, each)| *each).map(|(place, _)| place)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: BootMs = BootMs(1_000);

    #[test]
    fn a_connection_stands_by_the_request_that_holds_it_most() {
        let requests = Requests::default();
        assert_eq!(requests.activity(0, NOW), None);
        requests.begin(At::of(&Method::GET));
        assert_eq!(requests.activity(1, NOW), Some(Activity::Reads(NOW)));
        requests.turn(At::Loose, At::Client, BootMs(5));
        assert_eq!(requests.activity(1, NOW), Some(Activity::Waits(BootMs(5))));
        requests.begin(At::of(&Method::PUT));
        assert_eq!(requests.activity(2, NOW), Some(Activity::Writes));
        // The first request has waited for longer.
        requests.turn(At::Write, At::Client, BootMs(9));
        assert_eq!(requests.activity(2, NOW), Some(Activity::Waits(BootMs(5))));
        requests.end(At::Client);
        requests.turn(At::Client, At::Write, BootMs(10));
        assert_eq!(requests.activity(1, NOW), Some(Activity::Writes));
        requests.end(At::Write);
        assert_eq!(requests.activity(0, NOW), None);
    }

    #[test]
    fn idle_ones_go_first_then_those_that_wait_and_writes_never() {
        use Activity::{Idle, Reads, Waits, Writes};
        let first = |all: &[Activity], extent| super::first(all.iter().copied(), extent, None).map(|place| all[place]);
        let at = BootMs;
        assert_eq!(first(&[Waits(at(1)), Idle(at(9)), Idle(at(8))], Extent::IdleOrWaiting), Some(Idle(at(8))));
        assert_eq!(first(&[Writes, Waits(at(3)), Waits(at(2)), Reads(at(1))], Extent::Reading), Some(Waits(at(2))));
        assert_eq!(first(&[Reads(at(2)), Reads(at(1)), Writes], Extent::IdleOrWaiting), None);
        assert_eq!(first(&[Reads(at(2)), Reads(at(1)), Writes], Extent::Reading), Some(Reads(at(1))));
        assert_eq!(first(&[Reads(at(2)), Writes], Extent::Reading), None, "not more than half");
        assert_eq!(first(&[Writes, Writes], Extent::Reading), None);
        let spared = |all: &[Activity]| super::first(all.iter().copied(), Extent::Reading, Some(at(5)));
        assert_eq!(spared(&[Idle(at(6)), Waits(at(1)), Reads(at(1)), Reads(at(1))]), None, "another worker has one");
        assert_eq!(spared(&[Idle(at(6)), Idle(at(5))]), Some(1));
    }
}
