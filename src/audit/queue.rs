//! The queue between the calls and the thread that writes. It has a bound, and a call never waits for it.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{denials::Denials, entry::Entry};
use crate::clock::Stopwatch;

/// How long a line may wait, or the thread may be busy with one, before the disk counts as hung.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the thread has to do next.
#[derive(Debug)]
pub(super) enum Next {
    Write(Box<Entry>),
    /// The time has passed, or there is nothing to write yet.
    Nothing,
    /// There are no more lines: end. From here on no line is taken.
    Stop,
}

/// A line that waits.
#[derive(Debug)]
struct Waiting {
    entry: Entry,
    since: Stopwatch,
}

#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct State {
    entries: VecDeque<Waiting>,
    /// Places that are kept for lines to come.
    reserved: usize,
    /// Lines that had no place since this was last asked.
    lost: u64,
    is_down: bool,
    /// Since when the thread has been busy with the disk; `None`: it waits for lines.
    busy: Option<Stopwatch>,
    /// It was logged that the disk hangs.
    is_hang_logged: bool,
    denials: Denials,
    /// The thread is to end.
    is_ending: bool,
    /// No line is taken any more.
    is_closed: bool,
    has_ended: bool,
}

impl State {
    fn is_full(&self, max: usize) -> bool {
        self.entries.len() + self.reserved >= max
    }

    fn add(&mut self, entry: Entry) {
        self.entries.push_back(Waiting { entry, since: Stopwatch::start() });
    }

    /// Whether the disk has been busy, or the oldest line has been waiting, for so long.
    fn hangs(&self, patience: Duration) -> bool {
        let oldest = self.entries.front().map(|oldest| &oldest.since);
        self.busy.iter().chain(oldest).any(|since| since.seconds() >= patience.as_secs_f64())
    }
}

/// Lines that wait to be written.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    ended: Condvar,
    max: usize,
    patience: Duration,
}

impl Queue {
    pub(super) fn new(max: usize) -> Self {
        let (changed, ended) = (Condvar::new(), Condvar::new());
        Self { state: Mutex::default(), changed, ended, max, patience: PATIENCE }
    }

    /// The same, with a disk that counts as hung after so long.
    #[cfg(test)]
    pub(super) fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line. Returns whether there was a place for it.
    pub(super) fn push(&self, entry: Entry) -> bool {
        let mut state = self.state();
        let has_place = !state.is_full(self.max) && !state.is_ending;
        if has_place {
            state.add(entry);
            self.changed.notify_one();
        } else {
            state.lost += 1;
        }
        has_place
    }

    /// Keeps a place for the line of a call that must not be carried out without one. `None`: the lines cannot be
    /// written now, there is no place, or the thread is to end.
    pub(super) fn reserve(self: &Arc<Self>) -> Option<Place> {
        let mut state = self.state();
        let hangs = state.hangs(self.patience);
        let is_news = hangs && !std::mem::replace(&mut state.is_hang_logged, hangs);
        let has_place = !(hangs || state.is_down || state.is_ending || state.is_full(self.max));
        state.reserved += usize::from(has_place);
        drop(state);
        if is_news {
            tracing::error!(
                "the audit log's disk hangs: calls of operators are refused (AUDIT_UNAVAILABLE) until it goes on; look at the disk of audit.file"
            );
        }
        has_place.then(|| Place(Some(Arc::clone(self))))
    }

    /// Whether lines can be written, as far as that is known.
    pub(super) fn is_up(&self) -> bool {
        let state = self.state();
        !state.is_down && !state.hangs(self.patience)
    }

    /// Whether a denied call gets a line in this second.
    pub(super) fn admits_denial(&self, second: u64, is_known: bool) -> bool {
        self.state().denials.admits(second, is_known)
    }

    /// How many denied calls have got no line.
    pub(super) fn left_out(&self, second: u64) -> Option<u64> {
        self.state().denials.left_out(second)
    }

    /// How many lines had no place since this was last asked.
    pub(super) fn take_lost(&self) -> u64 {
        std::mem::take(&mut self.state().lost)
    }

    /// These lines are still not reported.
    pub(super) fn add_lost(&self, lines: u64) {
        self.state().lost += lines;
    }

    /// Whether lines can be written.
    pub(super) fn tell_up(&self, is_up: bool) {
        self.state().is_down = !is_up;
    }

    /// The oldest line, or that the thread is to end. Waits for one of them for at most this long.
    pub(super) fn next(&self, patience: Duration) -> Next {
        let is_idle = |state: &mut State| state.entries.is_empty() && !state.is_ending;
        let mut state = self.wait(patience, is_idle);
        match state.entries.pop_front() {
            Some(Waiting { entry, .. }) => Next::Write(Box::new(entry)),
            None if state.is_ending => {
                state.is_closed = true;
                Next::Stop
            }
            None => Next::Nothing,
        }
    }

    /// Waits this long, or until the thread is to end. Returns whether it is.
    pub(super) fn pause(&self, patience: Duration) -> bool {
        self.wait(patience, |state| !state.is_ending).is_ending
    }

    /// The thread waits. Before and afterwards it is busy.
    fn wait(&self, patience: Duration, is_idle: impl FnMut(&mut State) -> bool) -> MutexGuard<'_, State> {
        let mut state = self.state();
        state.busy = None;
        if std::mem::take(&mut state.is_hang_logged) {
            tracing::info!("the audit log's disk goes on");
        }
        let waited = self.changed.wait_timeout_while(state, patience, is_idle);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.busy = Some(Stopwatch::start());
        state
    }

    /// The thread is to end, behind the last line.
    pub(super) fn end(&self) {
        self.state().is_ending = true;
        self.changed.notify_all();
    }

    /// The thread has ended.
    pub(super) fn ended(&self) {
        let mut state = self.state();
        (state.is_closed, state.has_ended) = (true, true);
        self.ended.notify_all();
    }

    /// Waits until the thread has ended, for at most this long. Returns whether it has.
    pub(super) fn wait_ended(&self, patience: Duration) -> bool {
        let waited = self.ended.wait_timeout_while(self.state(), patience, |state| !state.has_ended);
        waited.unwrap_or_else(PoisonError::into_inner).0.has_ended
    }
}

/// A place in the queue for one line. Dropping it gives it back.
#[derive(Debug, Default)]
pub struct Place(Option<Arc<Queue>>);

impl Place {
    /// Adds the line. Returns whether it will be written.
    pub(super) fn fill(mut self, entry: Entry) -> bool {
        let Some(queue) = self.0.take() else { return false };
        let mut state = queue.state();
        state.reserved -= 1;
        if state.is_closed {
            state.lost += 1;
            return false;
        }
        state.add(entry);
        queue.changed.notify_one();
        true
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(queue) = &self.0 {
            queue.state().reserved -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{audit::entry::OK, fence::WallMs};

    fn entry() -> Entry {
        Entry::of_gate("x", OK, WallMs(0))
    }

    #[test]
    fn a_place_that_is_kept_is_no_other_lines() {
        let queue = Arc::new(Queue::new(2));
        let place = queue.reserve().unwrap();
        assert!(queue.push(entry()) && !queue.push(entry()));
        assert!(queue.reserve().is_none());
        assert!(place.fill(entry()));
        assert_eq!((queue.take_lost(), queue.take_lost()), (1, 0));
        for _ in 0..2 {
            assert!(matches!(queue.next(Duration::ZERO), Next::Write(_)));
        }
        assert!(matches!(queue.next(Duration::ZERO), Next::Nothing));
        drop(queue.reserve().unwrap());
        assert!(queue.push(entry()) && queue.push(entry()), "a place that was given back is free");
    }

    #[test]
    fn a_queue_that_is_down_keeps_lines_and_no_places() {
        let queue = Arc::new(Queue::new(2));
        queue.tell_up(false);
        assert!(queue.reserve().is_none() && queue.push(entry()));
        queue.tell_up(true);
        assert!(queue.reserve().is_some());
    }

    #[test]
    fn a_disk_that_hangs_gives_no_places() {
        let queue = Arc::new(Queue::new(4).with_patience(Duration::ZERO));
        assert!(queue.is_up() && queue.reserve().is_some());
        assert!(queue.push(entry()));
        assert!(!queue.is_up() && queue.reserve().is_none(), "the oldest line waits");
        assert!(matches!(queue.next(Duration::ZERO), Next::Write(_)));
        assert!(!queue.is_up() && queue.reserve().is_none(), "it is being written");
        assert!(Arc::new(Queue::new(4)).is_up());
    }

    #[test]
    fn a_stop_comes_behind_the_last_line() {
        let queue = Arc::new(Queue::new(3));
        let (early, late) = (queue.reserve().unwrap(), queue.reserve().unwrap());
        assert!(queue.push(entry()));
        queue.end();
        assert!(!queue.push(entry()) && queue.reserve().is_none());
        assert!(early.fill(entry()), "the thread has not ended yet");
        for _ in 0..2 {
            assert!(matches!(queue.next(Duration::MAX), Next::Write(_)));
        }
        assert!(matches!(queue.next(Duration::MAX), Next::Stop));
        assert!(queue.pause(Duration::MAX) && !late.fill(entry()));
        assert!(matches!(queue.next(Duration::MAX), Next::Stop) && !queue.wait_ended(Duration::ZERO));
        queue.ended();
        assert!(queue.wait_ended(Duration::ZERO));
        assert!(queue.take_lost() == 2);
    }
}
