//! What callers were answered, and what the store has applied. The oracle knows the promises, but not how the gate
//! keeps them.

use std::collections::{BTreeMap, BTreeSet};

use fencegate::fence::ObjectId;
use shuttle::sync::{Mutex, MutexGuard};

#[derive(Default)]
struct Story {
    granted: BTreeSet<u64>,
    /// A caller got the answer that no write below this number lands any more.
    floor: u64,
    /// The highest fence that a caller got, or has seen in memory.
    fence: u64,
    /// The highest fence that watchers got.
    announced: u64,
    /// The highest number that the store has applied.
    applied: u64,
    /// The newest lease is tainted: its holder got the answer that older writes may land.
    tainted: bool,
}

/// All objects' stories. Shuttle may switch threads at each call.
#[derive(Default)]
pub struct Oracle(Mutex<BTreeMap<ObjectId, Story>>);

fn violation(name: &str, what: &str) -> ! {
    panic!("VIOLATION {name}: {what}")
}

impl Oracle {
    fn stories(&self) -> MutexGuard<'_, BTreeMap<ObjectId, Story>> {
        self.0.lock().unwrap()
    }

    /// The highest fence that a caller knows.
    pub fn fence(&self, object: &ObjectId) -> u64 {
        self.stories().get(object).map_or(0, |story| story.fence)
    }

    /// Checks a grant that was answered; `before`: the highest fence known when the lease was asked for.
    pub fn granted(&self, object: &ObjectId, seq: u64, before: u64, tainted: bool) {
        let mut stories = self.stories();
        let story = stories.entry(object.clone()).or_default();
        if seq <= before {
            violation("MONOTONIC", &format!("{object}: {seq} was granted though its fence was known to be {before}"));
        }
        if !story.granted.insert(seq) {
            violation("UNIQUE", &format!("{object}: {seq} was granted twice"));
        }
        story.fence = story.fence.max(seq);
        if seq > story.floor {
            (story.floor, story.tainted) = (seq, tainted);
        }
    }

    /// Notes that an operator got the answer that the object has no holder: no write below its fence lands any
    /// more.
    pub fn freed(&self, object: &ObjectId, fence: u64) {
        let mut stories = self.stories();
        let story = stories.entry(object.clone()).or_default();
        story.fence = story.fence.max(fence);
        if fence > story.floor {
            (story.floor, story.tainted) = (fence, false);
        }
    }

    /// Checks a fence that was read; `before` as for a grant.
    pub fn read(&self, object: &ObjectId, fence: u64, before: u64) {
        let mut stories = self.stories();
        let story = stories.entry(object.clone()).or_default();
        if fence < before {
            violation("MONOTONIC", &format!("{object}: {fence} was read though its fence was known to be {before}"));
        }
        story.fence = story.fence.max(fence);
    }

    /// Checks a fence that memory shows. To be called under the lock under which it was read.
    pub fn seen(&self, object: &ObjectId, fence: u64) {
        let mut stories = self.stories();
        let story = stories.entry(object.clone()).or_default();
        if fence < story.fence {
            violation("MONOTONIC", &format!("{object}: the fence went down from {} to {fence}", story.fence));
        }
        story.fence = fence;
    }

    /// Checks what watchers got, in this order.
    pub fn announced(&self, object: &ObjectId, granted: Option<u64>, fence: u64) {
        let mut stories = self.stories();
        let story = stories.entry(object.clone()).or_default();
        if granted.unwrap_or(fence) < story.announced.max(fence) {
            let highest = story.announced.max(fence);
            violation("MONOTONIC", &format!("{object}: {granted:?} was announced at fence {fence}, behind {highest}"));
        }
        story.announced = fence;
    }

    /// Applies a write, if the store still can at this moment.
    pub fn apply(&self, object: &ObjectId, seq: u64, can: impl FnOnce() -> bool) {
        let mut stories = self.stories();
        let story = stories.entry(object.clone()).or_default();
        if !can() || story.tainted {
            return;
        }
        if seq < story.floor {
            violation("DRAIN", &format!("{object}: a write of {seq} landed after {} was handed out", story.floor));
        }
        if seq < story.applied {
            violation("DRAIN", &format!("{object}: a write of {seq} landed after one of {}", story.applied));
        }
        story.applied = seq;
    }
}
