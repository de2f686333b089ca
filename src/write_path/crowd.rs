//! How many connections each client has, where a client is an address; and which new connections wait for another one
//! to be closed, by this worker or by another.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, ThreadId},
};

use tokio::sync::Notify;

use super::evict::Extent;
use crate::fence::BootMs;

/// An address, as far as clients are distinguished by it. An IPv6 client has a network of 64 bits to choose its
/// addresses from, so only the network counts. An IPv4 address in IPv6 form is the IPv4 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer(u64);

impl Peer {
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            // No IPv6 network begins with 32 zero bits, except for the loopback address and for IPv4 addresses in IPv6
            // form.
            IpAddr::V4(address) => Self(u32::from(address).into()),
            #[allow(clippy::cast_possible_truncation, reason = "64 bits are left")]
            IpAddr::V6(address) => Self((u128::from(address) >> 64) as u64),
        }
    }

    /// A number that only this client has.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

/// All clients' connections, shared by the workers.
#[derive(Debug, Default)]
pub struct Crowd {
    peers: Mutex<HashMap<Peer, usize>>,
    wanted: Mutex<HashMap<Option<Peer>, Wanted>>,
    /// How many new connections wait, in all. `asks` wakes every worker when one begins to wait; `gone` wakes the
    /// waiting ones when a connection was closed.
    waiting: AtomicUsize,
    asks: Notify,
    gone: Notify,
    /// Since when each worker's longest idle connection has been idle, as of its last tick.
    idle: Mutex<HashMap<ThreadId, BootMs>>,
}

/// How many connections are to be closed: of one client, or of any.
#[derive(Debug)]
struct Wanted {
    waiting: usize,
    /// How many of these were closed.
    closed: usize,
    extent: Extent,
    /// Only connections that have been idle since then or before.
    idle_since: Option<BootMs>,
}

/// A new connection that waits for another one to be closed, until this is dropped.
#[derive(Debug)]
pub struct WaitingConnection<'a> {
    crowd: &'a Crowd,
    whose: Option<Peer>,
}

impl Drop for WaitingConnection<'_> {
    fn drop(&mut self) {
        self.crowd.waiting.fetch_sub(1, Ordering::Relaxed);
        let mut all = self.crowd.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(wanted) = all.get_mut(&self.whose) else { return };
        wanted.waiting -= 1;
        wanted.closed = wanted.closed.saturating_sub(1);
        if wanted.waiting == 0 {
            all.remove(&self.whose);
        }
    }
}

impl Crowd {
    /// Asks every worker to close a connection, of this client or of any. With `idle_since`, only one that has been
    /// idle since then or before.
    pub fn wait(&self, whose: Option<Peer>, extent: Extent, idle_since: Option<BootMs>) -> WaitingConnection<'_> {
        let mut all = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = all.entry(whose).or_insert(Wanted { waiting: 0, closed: 0, extent, idle_since });
        wanted.waiting += 1;
        wanted.extent = wanted.extent.max(extent);
        wanted.idle_since = wanted.idle_since.zip(idle_since).map(|(one, other)| one.max(other));
        drop(all);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.asks.notify_waiters();
        WaitingConnection { crowd: self, whose }
    }

    /// Returns when a new connection begins to wait. One that began before this call is seen by the next tick.
    pub async fn wanted(&self) {
        self.asks.notified().await;
    }

    /// Waits until a connection is gone.
    pub async fn room(&self) {
        self.gone.notified().await;
    }

    /// Sets since when this worker's longest idle connection has been idle.
    pub fn lies_idle(&self, since: Option<BootMs>) {
        let (mut idle, own) = (self.idle.lock().unwrap_or_else(PoisonError::into_inner), thread::current().id());
        match since {
            Some(since) => idle.insert(own, since),
            None => idle.remove(&own),
        };
    }

    /// Whether another worker has a connection that has been idle since then or before.
    #[must_use]
    pub fn is_idle_elsewhere(&self, since: BootMs) -> bool {
        let (idle, own) = (self.idle.lock().unwrap_or_else(PoisonError::into_inner), thread::current().id());
        idle.iter().any(|(worker, longest)| *worker != own && *longest <= since)
    }

    /// Closes the connections that others wait for, as far as this worker can. `close` returns whether it closed one.
    pub fn make_room(&self, close: impl Fn(Option<Peer>, Extent, Option<BootMs>) -> bool) {
        for (whose, wanted) in &mut *self.wanted.lock().unwrap_or_else(PoisonError::into_inner) {
            while wanted.closed < wanted.waiting && close(*whose, wanted.extent, wanted.idle_since) {
                wanted.closed += 1;
            }
        }
    }

    /// How many connections a client has.
    #[must_use]
    pub fn of(&self, peer: Peer) -> usize {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).get(&peer).copied().unwrap_or(0)
    }

    /// Counts a new connection of this client.
    pub fn came(&self, peer: Peer) {
        *self.peers.lock().unwrap_or_else(PoisonError::into_inner).entry(peer).or_default() += 1;
    }

    /// Counts a connection of this client out.
    pub fn went(&self, peer: Peer) {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = peers.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                peers.remove(&peer);
            }
        }
        drop(peers);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.gone.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(address: &str) -> Peer {
        Peer::of(address.parse().unwrap())
    }

    #[test]
    fn clients_are_distinguished_by_address_or_by_ipv6_network() {
        assert_eq!(peer("2001:db8:1:2::1"), peer("2001:db8:1:2:ffff:ffff:ffff:ffff"));
        assert_ne!(peer("2001:db8:1:2::1"), peer("2001:db8:1:3::1"));
        assert_eq!(peer("::ffff:10.0.0.1"), peer("10.0.0.1"));
        let all = ["10.0.0.1", "10.0.0.2", "127.0.0.1", "::1", "fe80::1", "2001:db8::1"].map(peer);
        for (place, each) in all.iter().enumerate() {
            assert!(!all[..place].contains(each), "{each:?}");
        }
    }

    #[test]
    fn a_worker_closes_as_many_as_others_wait_for() {
        use std::cell::RefCell;
        let (crowd, one) = (Crowd::default(), peer("10.0.0.1"));
        let closed = RefCell::new(vec![]);
        let close = |whose, extent, _| {
            closed.borrow_mut().push((whose, extent));
            true
        };
        crowd.make_room(close);
        assert!(closed.take().is_empty());
        let waiting =
            [crowd.wait(Some(one), Extent::IdleOrWaiting, None), crowd.wait(Some(one), Extent::Reading, None)];
        crowd.make_room(|_, _, _| false);
        crowd.make_room(close);
        assert_eq!(closed.take(), [(Some(one), Extent::Reading); 2]);
        crowd.make_room(close);
        assert!(closed.take().is_empty(), "each once");
        drop(waiting);
        let _any = crowd.wait(None, Extent::IdleOrWaiting, None);
        crowd.make_room(close);
        assert_eq!(closed.take(), [(None, Extent::IdleOrWaiting)]);
        assert_eq!(crowd.wanted.lock().unwrap().len(), 1);
    }

    #[test]
    fn connections_are_counted_until_they_are_gone() {
        let (crowd, one, other) = (Crowd::default(), peer("10.0.0.1"), peer("10.0.0.2"));
        crowd.came(one);
        crowd.came(one);
        crowd.came(other);
        crowd.went(one);
        assert_eq!((crowd.of(one), crowd.of(other)), (1, 1));
        crowd.went(one);
        assert_eq!(crowd.of(one), 0);
        assert_eq!(crowd.peers.lock().unwrap().len(), 1, "a client that is gone is forgotten");
    }
}
