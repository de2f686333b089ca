//! The waker that a connection's task is polled with. It suppresses the wakes that the task gives itself.

use std::{
    cell::Cell,
    sync::Arc,
    task::{Wake, Waker},
};

/// The waker of a connection's task. It can be suppressed for a moment, on its own thread: taking the last part of a
/// body wakes the task that takes it, which would then be polled once more without need.
pub(super) struct SelfWakeFilter {
    pub(super) task: Waker,
}

thread_local! {
    /// Which filter is active on this thread, by its address, and how many wakes it has suppressed.
    static FILTERING: Cell<(usize, u32)> = const { Cell::new((0, 0)) };
}

impl SelfWakeFilter {
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Runs `work` while wakes from this thread are suppressed. Also returns how many there were.
    pub(super) fn count_self_wakes<T>(&self, work: impl FnOnce() -> T) -> (T, u32) {
        let _restores = FilterBefore(FILTERING.replace((self.address(), 0)));
        let done = work();
        (done, FILTERING.get().1)
    }
}

/// Restores the earlier suppression when dropped, also after a panic.
struct FilterBefore((usize, u32));

impl Drop for FilterBefore {
    fn drop(&mut self) {
        FILTERING.set(self.0);
    }
}

impl Wake for SelfWakeFilter {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        match FILTERING.get() {
            (filtering, missed) if filtering == self.address() => FILTERING.set((filtering, missed + 1)),
            _ => self.task.wake_by_ref(),
        }
    }
}
