//! Receipts of refused writes: the latest, in memory, for whoever wants to know why.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use crate::fence::{Code, Fence, HolderId, LeaseSeq, ObjectId, WallMs};

/// What is left of a refused write.
#[derive(Clone, Debug)]
pub struct Receipt {
    pub receipt_id: String,
    pub object: Option<ObjectId>,
    pub error: Code,
    pub write_seq: Option<LeaseSeq>,
    pub current_fence: Option<Fence>,
    pub holder: Option<HolderId>,
    pub route: Option<String>,
    pub at: WallMs,
}

/// The latest receipts.
#[derive(Debug)]
pub struct Receipts {
    ring: Mutex<Ring>,
    keep: usize,
    run: u64,
}

#[derive(Debug, Default)]
struct Ring {
    receipts: VecDeque<Receipt>,
    count: u64,
}

impl Receipts {
    /// Room for the latest `keep`. `run` makes their ids this run's own.
    #[must_use]
    pub fn new(keep: usize, run: u64) -> Self {
        Self { ring: Mutex::default(), keep, run }
    }

    /// Keeps a receipt, and says under which id.
    pub fn add(&self, mut receipt: Receipt) -> String {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.count += 1;
        receipt.receipt_id = format!("{:x}-{:x}", self.run, ring.count);
        let id = receipt.receipt_id.clone();
        if self.keep > 0 {
            if ring.receipts.len() == self.keep {
                ring.receipts.pop_back();
            }
            ring.receipts.push_front(receipt);
        }
        id
    }

    /// All that are kept, newest first.
    #[must_use]
    pub fn list(&self) -> Vec<Receipt> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner).receipts.iter().cloned().collect()
    }
}
