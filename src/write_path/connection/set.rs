//! A worker's connections together: which are closed for their timeouts, to make room, or at the end.

use std::{
    cell::{Cell, RefCell},
    rc::{Rc, Weak},
};

use super::{
    super::{
        crowd::Peer,
        evict::{self, Activity, Extent},
    },
    Connection, Ending,
};
use crate::{config::GateSettings, fence::BootMs};

/// A worker's connections.
#[derive(Default)]
pub struct Connections {
    pub(super) all: RefCell<Vec<Weak<Connection>>>,
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

    pub(super) fn next_number(&self) -> u64 {
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
        let idle = |each: Rc<Connection>| match each.activity() {
            Activity::Idle(since) if each.ending.get() == Ending::No => Some(since),
            _ => None,
        };
        self.open().into_iter().filter_map(idle).min()
    }

    /// Closes a connection to make room for another: see `evict.rs`. With `peer`, only one of that client; with
    /// `idle_since`, only one that has been idle since then. Returns false where none may be closed.
    pub fn close_one(&self, peer: Option<Peer>, extent: Extent, idle_since: Option<BootMs>) -> bool {
        let mut open = self.open();
        open.retain(|each| each.ending.get() == Ending::No && peer.is_none_or(|peer| each.client.peer == peer));
        let first = evict::first(open.iter().map(|each| each.activity()), extent, idle_since);
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
