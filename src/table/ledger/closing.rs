//! The end of a round: the changes of its calls are persisted, published and answered, as `fence::order` says.

use super::{
    LedgerError,
    core::Core,
    round::{Round, SendReply},
};
use crate::{
    clock::Stopwatch,
    failpoints::{self, Point},
    fence::{BootMs, Hlc, Record, order::RoundStep, step::Announcement},
    table::{
        Batch,
        codec::{Key, encode_mark},
    },
};

/// A round whose calls are decided.
struct Closing {
    writes: Batch,
    /// In the order in which they changed.
    records: Vec<Record>,
    news: Vec<(Hlc, Announcement)>,
    answers: Vec<SendReply>,
    changes: usize,
    now: BootMs,
}

impl Core {
    /// Takes a round to its end, step by step.
    pub(super) fn finish(&mut self, round: Round) {
        let mut closing = self.close(round);
        let mut next = Some(RoundStep::FIRST);
        while let Some(step) = next {
            let done = match step {
                RoundStep::Persist => self.persist(&mut closing),
                RoundStep::Publish => self.publish(&mut closing),
                RoundStep::Answer { durable } => self.answer_all(&mut closing, durable),
            };
            next = step.next(done);
        }
        self.setup.metrics.gauges(self.timers.live(), self.waiters.len(), self.advances.len());
    }

    fn close(&mut self, mut round: Round) -> Closing {
        let now = self.setup.clock.now();
        let news = std::mem::take(&mut round.news)
            .into_iter()
            .map(|line| {
                self.hlc = self.hlc.tick(now);
                (self.hlc, line)
            })
            .collect();
        let (writes, records) = round.finish(self.setup.meta.run);
        Closing { writes, records, news, answers: round.answers, changes: round.changes, now: now.boot }
    }

    /// Writes and syncs the changes. `false`: the table is shut.
    fn persist(&mut self, closing: &mut Closing) -> bool {
        let mut writes = std::mem::take(&mut closing.writes);
        if writes.is_empty() {
            return true;
        }
        writes.put(&Key::Mark, encode_mark(self.hlc));
        let stopwatch = Stopwatch::start();
        match self.setup.records.table.commit(writes) {
            Ok(()) => {
                self.setup.metrics.committed(stopwatch.seconds(), closing.changes);
                self.last_commit = closing.now;
                if !closing.records.is_empty() {
                    failpoints::reach(Point::Persisted);
                } else if !closing.answers.is_empty() {
                    failpoints::reach(Point::Noted);
                }
                true
            }
            Err(fault) => {
                self.setup.metrics.latched();
                self.setup.records.latch(fault.clone());
                tracing::error!(%fault, "a change of the fence table failed; it is shut until this process is started again. Free disk space or replace the volume, then restart");
                false
            }
        }
    }

    fn publish(&self, closing: &mut Closing) -> bool {
        let has_changes = !closing.records.is_empty();
        for record in closing.records.drain(..) {
            self.setup.records.stripes.publish(record);
        }
        if has_changes {
            failpoints::reach(Point::Published);
        }
        for (_, line) in &closing.news {
            self.setup.metrics.announced(line.kind);
        }
        self.setup.news.publish(std::mem::take(&mut closing.news));
        true
    }

    fn answer_all(&mut self, closing: &mut Closing, durable: bool) -> bool {
        for answer in closing.answers.drain(..) {
            self.orphans.extend(answer(durable));
        }
        if !durable {
            self.dismiss_waiters(&LedgerError::Unavailable);
            self.dismiss_advances(&LedgerError::Unavailable);
        }
        true
    }
}
