//! What anyone was told, and what the store has applied. It knows the promises and nothing of how the
//! gate keeps them.

use std::collections::{BTreeMap, BTreeSet};

use fencegate::fence::ObjectId;
use shuttle::sync::{Mutex, MutexGuard};

#[derive(Default)]
struct Story {
    granted: BTreeSet<u64>,
    /// Nothing below it may land any more: someone was told so.
    floor: u64,
    /// The highest fence that anyone was told, or has seen in memory.
    fence: u64,
    /// The highest fence that watchers were told.
    announced: u64,
    /// The highest number that the store has applied.
    applied: u64,
    /// The newest lease is: its holder was told that older writes may land.
    tainted: bool,
}

/// All objects' stories. Shuttle may switch whenever it is asked.
#[derive(Default)]
pub struct Oracle(Mutex<BTreeMap<ObjectId, Story>>);

fn violation(name: &str, what: &str) -> ! {
    panic!("VIOLATION {name}: {what}")
}

impl Oracle {
    fn stories(&self) -> MutexGuard<'_, BTreeMap<ObjectId, Story>> {
        self.0.lock().unwrap()
    }

    /// The highest fence that anyone knows of.
    pub fn fence(&self, object: &ObjectId) -> u64 {
        self.stories().get(object).map_or(0, |story| story.fence)
    }

    /// A grant was answered; `before`: the highest fence known when it was asked for.
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

    /// An operator was told that the object is nobody's: nothing below its fence lands any more.
    pub fn freed(&self, object: &ObjectId, fence: u64) {
        let mut stories = self.stories();
        let story = stories.entry(object.clone()).or_default();
        story.fence = story.fence.max(fence);
        if fence > story.floor {
            (story.floor, story.tainted) = (fence, false);
        }
    }

    /// A fence was read; `before` as for a grant.
    pub fn read(&self, object: &ObjectId, fence: u64, before: u64) {
        let mut stories = self.stories();
        let story = stories.entry(object.clone()).or_default();
        if fence < before {
            violation("MONOTONIC", &format!("{object}: {fence} was read though its fence was known to be {before}"));
        }
        story.fence = story.fence.max(fence);
    }

    /// A fence that memory shows. Ask under the lock that it is shown under.
    pub fn seen(&self, object: &ObjectId, fence: u64) {
        let mut stories = self.stories();
        let story = stories.entry(object.clone()).or_default();
        if fence < story.fence {
            violation("MONOTONIC", &format!("{object}: the fence went down from {} to {fence}", story.fence));
        }
        story.fence = fence;
    }

    /// Watchers were told, in this order.
    pub fn announced(&self, object: &ObjectId, granted: Option<u64>, fence: u64) {
        let mut stories = self.stories();
        let story = stories.entry(object.clone()).or_default();
        if granted.unwrap_or(fence) < story.announced.max(fence) {
            let told = story.announced.max(fence);
            violation("MONOTONIC", &format!("{object}: {granted:?} was announced at fence {fence}, behind {told}"));
        }
        story.announced = fence;
    }

    /// The store applies a write, if it still can at this moment.
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
