//! Which connection is closed when there is no room for another one.
//!
//! First those that lie idle; then those whose requests only wait for their client, with nothing at the store; then, where
//! they take more than half of the room, those that only read. Of each kind the one goes first that has been so for longest.
//! A connection with a write that may be on its way stays: so no write becomes unknown for the sake of room.

use std::{cell::Cell, rc::Rc};

use http::Method;

use super::connection::Client;
use crate::{
    failpoints::{self, Fault},
    fence::BootMs,
    route::classify::is_read,
};

/// What a request is at, as far as closing its connection matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Its client is waited for: to send its body, or to take its answer. It has no connection to the store.
    Client,
    /// It can be broken off: it is a read, or a write of which nothing was sent and that nobody has let go on.
    Loose,
    /// It is a write that may be on its way to the store.
    Write,
}

impl At {
    /// Where a request begins.
    #[must_use]
    pub fn of(method: &Method) -> Self {
        if is_read(method) { Self::Loose } else { Self::Write }
    }
}

/// Those requests of a connection that do not hold it: the others are writes, and cost nothing here.
#[derive(Debug, Default)]
pub struct Requests {
    waiting: Cell<u32>,
    loose: Cell<u32>,
    /// Since when one of them or another has waited for the client.
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

    /// One of them is at something else from here on.
    pub fn turn(&self, from: At, to: At, now: BootMs) {
        if to == At::Client && self.waiting.get() == 0 {
            self.waits_since.set(now);
        }
        self.end(from);
        self.begin(to);
    }

    /// How a connection stands that has so many requests, these among them; `None` where it has none.
    #[must_use]
    pub fn standing(&self, total: u32, began: BootMs) -> Option<Standing> {
        let (waiting, loose) = (self.waiting.get(), self.loose.get());
        match total {
            0 => None,
            total if total == waiting => Some(Standing::Waits(self.waits_since.get())),
            total if total == waiting + loose => Some(Standing::Reads(began)),
            _ => Some(Standing::Writes),
        }
    }
}

/// A request that is at something else than at first, until this is dropped.
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
        // It does not wait for its client behind this.
        self.client.requests.turn(self.to, self.from, BootMs::PAST);
    }
}

/// How a connection stands, and since when. The first are closed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    Idle(BootMs),
    Waits(BootMs),
    Reads(BootMs),
    Writes,
}

/// Which connections may be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    /// Those that lie idle, or wait for their client.
    Waiting,
    /// Those that only read as well, where they are more than half.
    Reading,
}

/// The place of the one that is closed first, among so many. `idle_since`: only one that has lain idle since then or before,
/// as another worker has one.
pub fn first(all: impl Iterator<Item = Standing> + Clone, extent: Extent, idle_since: Option<BootMs>) -> Option<usize> {
    if failpoints::on(Fault::NoEviction) {
        return None;
    }
    let reads = all.clone().filter(|each| matches!(each, Standing::Reads(_))).count();
    let may_cut_reads = extent == Extent::Reading && 2 * reads > all.clone().count();
    let may_close = |standing: &Standing| match (standing, idle_since) {
        (Standing::Idle(since), Some(latest)) => *since <= latest,
        (_, Some(_)) | (Standing::Writes, None) => false,
        (Standing::Idle(_) | Standing::Waits(_), None) => true,
        (Standing::Reads(_), None) => may_cut_reads,
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
        assert_eq!(requests.standing(0, NOW), None);
        requests.begin(At::of(&Method::GET));
        assert_eq!(requests.standing(1, NOW), Some(Standing::Reads(NOW)));
        requests.turn(At::Loose, At::Client, BootMs(5));
        assert_eq!(requests.standing(1, NOW), Some(Standing::Waits(BootMs(5))));
        requests.begin(At::of(&Method::PUT));
        assert_eq!(requests.standing(2, NOW), Some(Standing::Writes));
        // The first has waited for longer.
        requests.turn(At::Write, At::Client, BootMs(9));
        assert_eq!(requests.standing(2, NOW), Some(Standing::Waits(BootMs(5))));
        requests.end(At::Client);
        requests.turn(At::Client, At::Write, BootMs(10));
        assert_eq!(requests.standing(1, NOW), Some(Standing::Writes));
        requests.end(At::Write);
        assert_eq!(requests.standing(0, NOW), None);
    }

    #[test]
    fn idle_ones_go_first_then_those_that_wait_and_writes_never() {
        use Standing::{Idle, Reads, Waits, Writes};
        let first = |all: &[Standing], extent| super::first(all.iter().copied(), extent, None).map(|place| all[place]);
        let at = BootMs;
        assert_eq!(first(&[Waits(at(1)), Idle(at(9)), Idle(at(8))], Extent::Waiting), Some(Idle(at(8))));
        assert_eq!(first(&[Writes, Waits(at(3)), Waits(at(2)), Reads(at(1))], Extent::Reading), Some(Waits(at(2))));
        assert_eq!(first(&[Reads(at(2)), Reads(at(1)), Writes], Extent::Waiting), None);
        assert_eq!(first(&[Reads(at(2)), Reads(at(1)), Writes], Extent::Reading), Some(Reads(at(1))));
        assert_eq!(first(&[Reads(at(2)), Writes], Extent::Reading), None, "not more than half");
        assert_eq!(first(&[Writes, Writes], Extent::Reading), None);
        let spared = |all: &[Standing]| super::first(all.iter().copied(), Extent::Reading, Some(at(5)));
        assert_eq!(spared(&[Idle(at(6)), Waits(at(1)), Reads(at(1)), Reads(at(1))]), None, "another worker has one");
        assert_eq!(spared(&[Idle(at(6)), Idle(at(5))]), Some(1));
    }
}
