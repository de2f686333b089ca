//! What a round does without a call: what its timers say is due, and the work of each second.

use super::{
    core::{Changed, Core, SECOND},
    round::Round,
    timers::Due,
};
use crate::{
    fence::{Event, LeaseId, ObjectId, Outcome},
    table::codec::{Key, encode_mark},
};

/// How many due timers one round takes.
const DUE_MAX: usize = 1_024;
/// A mark is due this long after the last: a little less than the second between two checks.
const MARK_AFTER_MS: u64 = 900;
/// The two clocks are not read at exactly the same moment; a difference below this is not a step.
const STEP_NOISE_MS: u64 = 100;

impl Core {
    pub(super) fn do_what_is_due(&mut self, round: &mut Round) {
        let latched = self.setup.records.latched().is_some();
        let now = self.setup.clock.now().boot;
        // What is left over is due in the next round, which then begins at once.
        for _ in 0..DUE_MAX {
            let Some(due) = self.timers.pop_due(now) else { return };
            match due {
                Due::Lease(..) if latched => {}
                Due::Lease(object, lease) => self.end_or_look_again(round, &object, &lease),
                Due::Waiter(object, id) => self.wake(round, &object, id),
                Due::Advance(id) => self.try_finish_advance(round, id),
                Due::Answer(id) => self.stop_waiting(round, id),
                Due::Second => self.each_second(round, latched),
            }
            self.serve_freed(round);
        }
    }

    fn end_or_look_again(&mut self, round: &mut Round, object: &ObjectId, lease_id: &LeaseId) {
        // Where the object's row cannot be read now, a later call for the object ends the lease.
        let outcome = self.change(round, object, Event::End { lease_id: lease_id.clone() });
        if let Ok(Changed::To(Outcome::Unchanged)) = outcome
            && let Ok(record) = self.newest(round, object)
            && let Some(lease) = record.open_lease()
        {
            self.timers.arm(lease.deadline, object, &lease.lease_id);
        }
    }

    fn each_second(&mut self, round: &mut Round, latched: bool) {
        let now = self.setup.clock.now();
        let step_ms = self.step_meter.measure(now);
        if step_ms.unsigned_abs() > STEP_NOISE_MS {
            tracing::warn!(step_ms, "the wall clock was set; no lease is longer or shorter for it");
            self.setup.metrics.clock_stepped(step_ms);
            if step_ms > 0 {
                self.sweep.clock_stepped(now, step_ms.unsigned_abs());
            }
        }
        self.setup.records.stripes.tick(now.boot);
        self.setup.metrics.in_memory(self.setup.records.stripes.len());
        self.setup.metrics.oldest_drain(self.advances.oldest_ms(now.boot));
        self.waiters.forget_the_gone();
        self.jumps.forget_old_ones(now.boot);
        if !latched {
            self.settle_terms(round, now.boot);
            self.sweep_some(round);
            self.sweep_keys(round);
            // Before the sweep has read all leases once, live leases of earlier runs may have no timer.
            let may_live = self.timers.live() > 0 || !self.sweep.has_seen_all();
            if may_live && now.boot.since(self.last_commit) >= MARK_AFTER_MS {
                self.hlc = self.hlc.tick(now);
                round.writes.put(&Key::Mark, encode_mark(self.hlc));
            }
        }
        self.timers.push(now.boot.after(SECOND), Due::Second);
    }
}
