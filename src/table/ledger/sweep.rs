//! Handles leases that no caller asks for: forgets what ended a day ago, and ends leases that an earlier run of the
//! gate granted and that were not used since.
//!
//! The sweep reads a few rows each second, from the first lease to the last and then again. Its work grows with the
//! leases that are live or ended lately, not with the objects known, and a start does not wait for it. A floor is
//! never forgotten: it is in the object's record, which the sweep does not change.
//!
//! A wall clock that is set forward does not make the sweep forget earlier: the step is not counted.

use std::collections::VecDeque;

use super::{
    core::Core,
    round::{Draft, Round},
};
use crate::{
    fence::{BootMs, Event, LeaseId, LeaseRow, Now, Ttl, WallMs},
    table::{
        TableFault,
        codec::{Family, Key, decode_lease},
    },
};

/// How long an ended lease can be asked for.
const REMEMBER_MS: u64 = 24 * 60 * 60 * 1_000;
const ROWS_EACH_SECOND: usize = 2_048;

/// Where the sweep continues.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    after: Option<Vec<u8>>,
    rounds: u64,
    steps: Steps,
}

/// Steps of the wall clock forward in this run, the newest last. Times noted before a step look older than they
/// are.
#[derive(Debug, Default)]
struct Steps(VecDeque<Step>);

#[derive(Clone, Copy, Debug)]
struct Step {
    /// What the wall clock would have read without the step.
    before: WallMs,
    by_ms: u64,
    at: BootMs,
}

/// Further steps are added up: times between them then look younger than they are.
const STEPS_MAX: usize = 64;

impl Steps {
    fn note(&mut self, now: Now, by_ms: u64) {
        // Times noted before a step that long ago are old enough.
        while self.0.front().is_some_and(|step| now.boot.since(step.at) >= REMEMBER_MS) {
            self.0.pop_front();
        }
        self.0.push_back(Step { before: WallMs(now.wall.0.saturating_sub(by_ms)), by_ms, at: now.boot });
        if self.0.len() > STEPS_MAX
            && let Some(oldest) = self.0.pop_front()
            && let Some(next) = self.0.front_mut()
        {
            next.before = next.before.max(oldest.before);
            next.by_ms = next.by_ms.saturating_add(oldest.by_ms);
        }
    }

    /// How long ago a time was noted, by the wall clock without its steps since.
    fn age_ms(&self, then: WallMs, now: Now) -> u64 {
        let since = self.0.iter().filter(|step| then <= step.before);
        let stepped = since.fold(0_u64, |sum, step| sum.saturating_add(step.by_ms));
        now.wall.0.saturating_sub(then.0).saturating_sub(stepped)
    }
}

impl Sweep {
    /// Whether the sweep has read all leases once.
    pub(super) fn has_seen_all(&self) -> bool {
        self.rounds > 0
    }

    /// Notes that the wall clock was set forward.
    pub(super) fn clock_stepped(&mut self, now: Now, by_ms: u64) {
        self.steps.note(now, by_ms);
    }

    fn is_long_ago(&self, then: WallMs, now: Now) -> bool {
        self.steps.age_ms(then, now) >= REMEMBER_MS
    }
}

impl Core {
    pub(super) fn sweep_some(&mut self, round: &mut Round) {
        let (mut from, until) = Family::Lease.range("");
        if let Some(after) = self.sweep.after.take() {
            from = [after.as_slice(), &[0]].concat();
        }
        let rows = match self.setup.records.table.scan(&from, &until, ROWS_EACH_SECOND) {
            Ok(rows) => rows,
            Err(fault) => {
                tracing::warn!(%fault, "the sweep of ended leases cannot read; it begins again");
                return;
            }
        };
        if rows.len() == ROWS_EACH_SECOND {
            self.sweep.after = rows.last().map(|(key, _)| key.clone());
        } else {
            self.sweep.rounds += 1;
        }
        let now = self.setup.clock.now();
        for (key, value) in rows {
            match read(&key, &value) {
                // This round has something newer about this lease.
                Ok(row) if round.has_row(&row.lease_id) => {}
                Ok(row) => self.sweep_one(round, row, now),
                Err(fault) => tracing::error!(%fault, "a lease's row cannot be read"),
            }
        }
    }

    fn sweep_one(&mut self, round: &mut Round, row: LeaseRow, now: Now) {
        match &row.ended {
            Some(ended) if self.sweep.is_long_ago(ended.at, now) => self.forget(round, row),
            Some(_) => {}
            None => {
                let Ok(record) = round.newest(&self.setup.records, &Draft::default(), &row.object) else { return };
                match record.open_lease().filter(|lease| lease.lease_id == row.lease_id) {
                    Some(lease) if lease.ttl >= Ttl::FOR_EVER => {}
                    Some(lease) if lease.is_live(now) => self.timers.arm(lease.deadline, &row.object, &row.lease_id),
                    Some(_) => {
                        let _ = self.change(round, &row.object, Event::End { lease_id: row.lease_id.clone() });
                    }
                    // A new incarnation has moved the fence past it, and that leaves no end in the row.
                    None if self.sweep.is_long_ago(row.expires_at, now) => self.forget(round, row),
                    None => {}
                }
            }
        }
    }

    fn forget(&self, round: &mut Round, row: LeaseRow) {
        if let Some(request) = &row.request
            && let Ok(Some(granted)) = round.request(&self.setup.records, &row.holder, request)
            // A batch's request is remembered until its last lease is forgotten.
            && granted.leases.iter().all(|(_, lease, _)| {
                *lease == row.lease_id || !self.is_remembered(round, lease)
            })
            && granted.leases.iter().any(|(_, lease, _)| *lease == row.lease_id)
        {
            round.writes.delete(&Key::Request(row.holder.clone(), request.clone()));
        }
        round.forget(row);
    }

    fn is_remembered(&self, round: &Round, lease: &LeaseId) -> bool {
        // Where that cannot be read, the request stays.
        round.lease_row(&self.setup.records, lease).map_or(true, |row| row.is_some())
    }
}

fn read(key: &[u8], value: &[u8]) -> Result<LeaseRow, TableFault> {
    match Key::decode(key)? {
        Key::Lease(object, seq) => Ok(decode_lease(object, seq, value)?),
        _ => Err(TableFault::Corrupt("a foreign key among the leases".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(wall: u64, boot: u64) -> Now {
        Now { wall: WallMs(wall), boot: BootMs(boot) }
    }

    #[test]
    fn what_the_wall_clock_was_set_by_does_not_count() {
        let mut steps = Steps::default();
        assert_eq!(steps.age_ms(WallMs(1_000), now(1_700, 0)), 700);
        // 1,700 would have been the time; it was set to 51,700, and later once more.
        steps.note(now(51_700, 10), 50_000);
        assert_eq!(steps.age_ms(WallMs(1_000), now(51_700, 10)), 700);
        assert_eq!(steps.age_ms(WallMs(51_800), now(52_000, 310)), 200, "noted since");
        steps.note(now(72_000, 310), 20_000);
        assert_eq!(steps.age_ms(WallMs(1_000), now(72_000, 310)), 1_000);
        assert_eq!(steps.age_ms(WallMs(51_800), now(72_000, 310)), 200);
        assert_eq!(steps.age_ms(WallMs(72_100), now(60, 400)), 0, "and back");
    }

    #[test]
    fn steps_do_not_pile_up_and_make_nothing_older() {
        let mut steps = Steps::default();
        for n in 1..=1_000 {
            steps.note(now(1_000 * n, n), 999);
        }
        assert_eq!((steps.0.len(), steps.age_ms(WallMs(0), now(1_000_000, 1_000))), (STEPS_MAX, 1_000));
        steps.note(now(2_000_000, 1_000 + REMEMBER_MS), 5);
        assert_eq!(steps.0.len(), 1);
    }
}
