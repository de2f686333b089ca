//! What watchers get from the ledger: a bounded ring of announcements, each under its own stamp.
//!
//! The ring is filled in commit order, after the change is durable and published. A watcher that falls behind, or
//! asks for a stamp that is no longer kept, has to start over. Watchers never slow the ledger down.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use crate::fence::{Hlc, step::Announcement};

/// One announcement under its stamp.
pub type Item = Arc<(Hlc, Announcement)>;

/// The ring.
#[derive(Debug)]
pub struct News {
    ring: Mutex<Ring>,
    newest: watch::Sender<Hlc>,
    capacity: usize,
}

#[derive(Debug)]
struct Ring {
    items: VecDeque<Item>,
    /// Stamps up to this one are no longer kept.
    forgotten: Hlc,
}

/// The announcements after a stamp.
#[derive(Debug)]
pub enum After {
    /// These, oldest first; empty where there are none yet.
    Items(Vec<Item>),
    /// The stamp is not kept any more: start over from this stamp.
    Reset(Hlc),
}

impl News {
    /// A ring for `capacity` announcements; stamps before `start` are not served.
    #[must_use]
    pub fn new(capacity: usize, start: Hlc) -> Self {
        let ring = Ring { items: VecDeque::with_capacity(capacity.min(1024)), forgotten: start };
        Self { ring: Mutex::new(ring), newest: watch::Sender::new(start), capacity }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the announcements of one commit.
    pub fn publish(&self, items: impl IntoIterator<Item = (Hlc, Announcement)>) {
        let mut newest = None;
        let mut ring = self.ring();
        for item in items {
            newest = Some(item.0);
            if ring.items.len() == self.capacity
                && let Some(oldest) = ring.items.pop_front()
            {
                ring.forgotten = oldest.0;
            }
            ring.items.push_back(Arc::new(item));
        }
        drop(ring);
        if let Some(newest) = newest {
            self.newest.send_replace(newest);
        }
    }

    /// The newest stamp, and a way to await a newer one.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Hlc> {
        self.newest.subscribe()
    }

    /// The announcements after `stamp`.
    #[must_use]
    pub fn after(&self, stamp: Hlc) -> After {
        let ring = self.ring();
        let newest = ring.items.back().map_or(ring.forgotten, |item| item.0);
        // The stamp is older than the ring, or comes from another run and is ahead of this one.
        if stamp < ring.forgotten || stamp > newest {
            return After::Reset(newest);
        }
        let from = ring.items.partition_point(|item| item.0 <= stamp);
        After::Items(ring.items.range(from..).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::{Fence, HolderId, LeaseId, LeaseRow, LeaseSeq, ObjectId, Ttl, WallMs, step::Kind};

    fn at(ms: u64) -> Hlc {
        Hlc { ms, logical: 0 }
    }

    fn line() -> Announcement {
        let row = LeaseRow {
            object: ObjectId::new("users").unwrap(),
            lease_id: LeaseId::new("l").unwrap(),
            seq: LeaseSeq::new(1).unwrap(),
            holder: HolderId::new("a").unwrap(),
            acquired_at: WallMs(0),
            expires_at: WallMs(1),
            ttl: Ttl(1),
            request: None,
            tainted: false,
            ended: None,
        };
        Announcement { kind: Kind::Granted, row: Arc::new(row), fence: Fence::new(1) }
    }

    fn stamps(after: After) -> Result<Vec<u64>, u64> {
        match after {
            After::Items(items) => Ok(items.iter().map(|item| item.0.ms).collect()),
            After::Reset(newest) => Err(newest.ms),
        }
    }

    #[test]
    fn a_watcher_resumes_where_it_was_or_gets_a_reset() {
        let news = News::new(3, at(10));
        assert_eq!(stamps(news.after(at(10))), Ok(vec![]));
        assert_eq!(stamps(news.after(at(9))), Err(10), "before this run");
        assert_eq!(stamps(news.after(at(11))), Err(10), "not of this run");
        for ms in 11..=15 {
            news.publish([(at(ms), line())]);
        }
        assert_eq!(stamps(news.after(at(12))), Ok(vec![13, 14, 15]));
        assert_eq!(stamps(news.after(at(14))), Ok(vec![15]));
        assert_eq!(stamps(news.after(at(15))), Ok(vec![]));
        assert_eq!(stamps(news.after(at(11))), Err(15), "no longer kept");
        assert_eq!(*news.subscribe().borrow(), at(15));
    }
}
