//! Acquires that wait for their turn: per object, first come, first served. A caller that has hung up leaves the
//! queue. A batch waits at the first of its objects that is not free, and holds nothing meanwhile.

use std::collections::{HashMap, VecDeque};

use super::{GrantReply, Wanted};
use crate::fence::{BootMs, ObjectId};

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) id: u64,
    pub(super) wanted: Wanted,
    pub(super) until: BootMs,
    pub(super) reply: GrantReply,
}

#[derive(Debug, Default)]
pub(super) struct Waiters {
    queues: HashMap<ObjectId, VecDeque<Waiter>>,
    count: usize,
    last_id: u64,
}

impl Waiters {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    pub(super) fn push(&mut self, object: &ObjectId, waiter: Waiter) {
        self.count += 1;
        self.queues.entry(object.clone()).or_default().push_back(waiter);
    }

    pub(super) fn is_waiting(&self, object: &ObjectId) -> bool {
        self.queues.contains_key(object)
    }

    /// Takes the first waiter whose caller is still there.
    pub(super) fn pop(&mut self, object: &ObjectId) -> Option<Waiter> {
        loop {
            let waiter = self.remove(object, |_| true)?;
            if !waiter.reply.is_closed() {
                return Some(waiter);
            }
        }
    }

    /// Takes the waiter with this id, whose time is up.
    pub(super) fn take(&mut self, object: &ObjectId, id: u64) -> Option<Waiter> {
        self.remove(object, |waiter| waiter.id == id)
    }

    /// Takes the waiter of another call with the same request.
    pub(super) fn take_twin(&mut self, object: &ObjectId, of: &Wanted) -> Option<Waiter> {
        of.request.as_ref()?;
        self.remove(object, |waiter| waiter.wanted.holder == of.holder && waiter.wanted.request == of.request)
    }

    /// Whether no more callers may wait. Those that have hung up do not count.
    pub(super) fn is_full(&mut self, max: usize) -> bool {
        if self.count >= max {
            self.forget_the_gone();
        }
        self.count >= max
    }

    /// Removes all waiters whose callers have hung up.
    pub(super) fn forget_the_gone(&mut self) {
        self.queues.retain(|_, queue| {
            queue.retain(|waiter| !waiter.reply.is_closed());
            !queue.is_empty()
        });
        self.count = self.queues.values().map(VecDeque::len).sum();
    }

    /// Takes all waiters, for a gate that cannot grant any more.
    pub(super) fn take_all(&mut self) -> Vec<Waiter> {
        self.count = 0;
        self.queues.drain().flat_map(|(_, queue)| queue).collect()
    }

    fn remove(&mut self, object: &ObjectId, which: impl Fn(&Waiter) -> bool) -> Option<Waiter> {
        let queue = self.queues.get_mut(object)?;
        let waiter = queue.iter().position(which).and_then(|place| queue.remove(place));
        if queue.is_empty() {
            self.queues.remove(object);
        }
        self.count -= usize::from(waiter.is_some());
        waiter
    }
}
