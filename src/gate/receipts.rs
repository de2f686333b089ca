//! Receipts of refused writes: the latest, in memory, to show why a write was refused.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use crate::fence::{Code, Fence, HolderId, LeaseSeq, ObjectId, WallMs};

/// What is kept of a refused write.
#[derive(Clone, Debug)]
pub struct Receipt {
    pub object: Option<ObjectId>,
    pub error: Code,
    pub write_seq: Option<LeaseSeq>,
    pub current_fence: Option<Fence>,
    pub holder: Option<HolderId>,
    pub route: Option<Arc<str>>,
    pub at: WallMs,
}

/// The latest receipts.
#[derive(Debug)]
pub struct Receipts {
    ring: Mutex<Ring>,
    keep: usize,
    /// The beginning of their ids.
    run: String,
}

#[derive(Debug, Default)]
struct Ring {
    /// Newest first, with their numbers.
    receipts: VecDeque<(u64, Receipt)>,
    count: u64,
}

impl Receipts {
    /// Keeps the latest `keep` receipts. `run` makes their ids unique to this run.
    #[must_use]
    pub fn new(keep: usize, run: u64) -> Self {
        Self { ring: Mutex::default(), keep, run: format!("{run}-") }
    }

    /// Keeps a receipt, and returns its id.
    pub fn add(&self, receipt: Receipt) -> String {
        let number = self.keep(receipt);
        self.id(number)
    }

    fn keep(&self, receipt: Receipt) -> u64 {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.count += 1;
        let number = ring.count;
        if self.keep > 0 {
            if ring.receipts.len() == self.keep {
                ring.receipts.pop_back();
            }
            ring.receipts.push_front((number, receipt));
        }
        number
    }

    fn id(&self, number: u64) -> String {
        [self.run.as_str(), itoa::Buffer::new().format(number)].concat()
    }

    /// All kept receipts, newest first, with their ids.
    #[must_use]
    pub fn list(&self) -> Vec<(String, Receipt)> {
        let kept: Vec<_> = self.ring.lock().unwrap_or_else(PoisonError::into_inner).receipts.iter().cloned().collect();
        kept.into_iter().map(|(number, receipt)| (self.id(number), receipt)).collect()
    }
}
