//! The thread that writes: it numbers and chains the lines, syncs them once per second, and tries again each second
//! while they cannot be written. Meanwhile lines stay in the queue.

use std::{collections::VecDeque, io, sync::Arc, time::Duration};

use super::{
    chain::Link,
    entry::{Entry, LEFT_OUT, LOST, OK, START, STOP, TORN},
    file::Output,
    queue::{Next, Queue},
};
use crate::{
    clock::{Clock, Stopwatch},
    metrics::AuditMetrics,
};

/// How often lines are made durable, and how often a write is tried again.
pub(super) const EVERY: Duration = Duration::from_secs(1);

/// Says that the thread has ended, also after a panic.
struct End(Arc<Queue>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.ended();
    }
}

/// What the thread has.
pub(super) struct Writer<O> {
    pub(super) queue: Arc<Queue>,
    output: O,
    clock: Clock,
    metrics: AuditMetrics,
    /// The last line.
    last: Link,
    /// Lines that come before those of the queue.
    first: VecDeque<Entry>,
    is_up: bool,
    is_dirty: bool,
    synced: Stopwatch,
    every: Duration,
}

impl<O: Output> Writer<O> {
    /// Opens the output.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(super) fn open(queue: Arc<Queue>, mut output: O, clock: Clock, metrics: AuditMetrics) -> io::Result<Self> {
        let found = output.open()?;
        let now = clock.wall();
        let torn = found.torn.map(|torn| Entry::of_torn(&torn, now));
        let first = torn.into_iter().chain([Entry::of_gate(START, OK, now)]).collect();
        let (last, synced) = (found.last.unwrap_or(Link::START), Stopwatch::start());
        Ok(Self { queue, output, clock, metrics, last, first, is_up: true, is_dirty: false, synced, every: EVERY })
    }

    /// The same, which syncs and tries again so often.
    #[cfg(test)]
    pub(super) fn every(self, every: Duration) -> Self {
        Self { every, ..self }
    }

    /// Writes until the queue says that it has to end.
    pub(super) fn run(mut self) {
        let _end = End(Arc::clone(&self.queue));
        self.begin();
        while self.turn() {}
    }

    /// Writes the lines about the start.
    pub(super) fn begin(&mut self) {
        let begun = self.write_first();
        self.note(begun);
    }

    /// Does what comes next. Returns whether it goes on.
    pub(super) fn turn(&mut self) -> bool {
        if !self.is_up {
            return self.turn_while_down();
        }
        let done = match self.queue.next(self.every) {
            Next::Write(entry) => self.write_or_keep(*entry),
            Next::Nothing => Ok(()),
            Next::Stop => {
                self.stop();
                return false;
            }
        };
        let done = done.and_then(|()| self.each_second());
        self.note(done);
        true
    }

    fn turn_while_down(&mut self) -> bool {
        let is_ending = self.queue.pause(self.every);
        self.try_again();
        let gives_up = is_ending && !self.is_up;
        if gives_up {
            self.give_up();
        }
        !gives_up
    }

    /// Writes a line. The chain goes on behind it only if it is written.
    fn write(&mut self, entry: &Entry) -> io::Result<()> {
        let line = entry.line(self.last).map_err(io::Error::other)?;
        self.output.append(&line)?;
        self.last = Link::of(self.last.n.saturating_add(1), &line);
        self.is_dirty = true;
        self.metrics.written();
        Ok(())
    }

    fn write_or_keep(&mut self, entry: Entry) -> io::Result<()> {
        self.write(&entry).inspect_err(|_| self.first.push_front(entry))
    }

    fn write_first(&mut self) -> io::Result<()> {
        while let Some(entry) = self.first.pop_front() {
            self.write_or_keep(entry)?;
        }
        Ok(())
    }

    /// Makes lines durable, and reports what got no line.
    fn each_second(&mut self) -> io::Result<()> {
        if self.synced.seconds() < self.every.as_secs_f64() {
            return Ok(());
        }
        self.report(super::second())?;
        self.sync()
    }

    /// Reports what got no line: denied calls of seconds before this one, and lines that had no place.
    fn report(&mut self, second: u64) -> io::Result<()> {
        if let Some(calls) = self.queue.left_out(second) {
            self.write_or_keep(Entry::of_gate(LEFT_OUT, OK, self.clock.wall()).with("calls", calls))?;
        }
        match self.queue.take_lost() {
            0 => Ok(()),
            lost => self.report_lost(lost),
        }
    }

    fn report_lost(&mut self, lost: u64) -> io::Result<()> {
        let entry = Entry::of_gate(LOST, OK, self.clock.wall()).with("lines", lost);
        self.write(&entry).inspect_err(|_| self.queue.add_lost(lost))
    }

    fn sync(&mut self) -> io::Result<()> {
        self.synced = Stopwatch::start();
        if std::mem::take(&mut self.is_dirty) {
            self.output.sync()?;
        }
        Ok(())
    }

    /// From a failure on, calls that need a line are refused, until a write works again.
    fn note(&mut self, done: io::Result<()>) {
        let Err(error) = done else { return };
        if self.is_up {
            tracing::error!(%error, "the audit log cannot be written: calls of operators are refused (AUDIT_UNAVAILABLE) until it can; make room on its disk, or look at audit.file");
        }
        self.tell_up(false);
    }

    fn tell_up(&mut self, is_up: bool) {
        self.is_up = is_up;
        self.queue.tell_up(is_up);
    }

    /// Opens the output again, writes what was kept, and how many lines were lost.
    fn try_again(&mut self) {
        if self.reopened().is_ok() {
            self.tell_up(true);
            tracing::info!("the audit log can be written again");
        }
    }

    fn reopened(&mut self) -> io::Result<()> {
        // The chain goes on from the last line that was written, also if the file is not the same any more.
        let torn = self.output.open()?.torn;
        self.first.retain(|entry| &*entry.call != TORN);
        if let Some(torn) = torn {
            self.first.push_front(Entry::of_torn(&torn, self.clock.wall()));
        }
        self.write_first()?;
        let lost = self.queue.take_lost();
        self.report_lost(lost)?;
        self.sync()
    }

    fn stop(&mut self) {
        let entry = Entry::of_gate(STOP, OK, self.clock.wall());
        let reported = self.report(u64::MAX);
        if let Err(error) = reported.and_then(|()| self.write(&entry)).and_then(|()| self.sync()) {
            tracing::error!(%error, "the last lines of the audit log may not be durable");
        }
    }

    fn give_up(&mut self) {
        let mut lost = self.first.len() as u64;
        while let Next::Write(_) = self.queue.next(Duration::ZERO) {
            lost += 1;
        }
        self.metrics.lost(lost);
        // Those that had no place are in the metric already.
        let lost = lost + self.queue.take_lost();
        tracing::error!(lost, "the audit log cannot be written, and the gate stops: these lines are lost");
    }
}
