//! Looking after leases that nobody asks for: forgetting what ended a day ago, and ending what an
//! earlier run of the gate granted and nobody has touched since.
//!
//! A few rows each second, from the first lease to the last and then again. It is bounded by leases
//! that live or ended lately, not by objects known, and nothing at start waits for it. A floor is
//! never forgotten: it is in the object's record, which is not touched here.

use super::{
    core::Core,
    round::{Draft, Round},
};
use crate::{
    fence::{Event, LeaseId, LeaseRow, Now, Ttl, WallMs},
    table::{
        TableFault,
        codec::{Family, Key, decode_lease},
    },
};

/// How long an ended lease can be asked for.
const REMEMBER_MS: u64 = 24 * 60 * 60 * 1_000;
const ROWS_EACH_SECOND: usize = 2_048;

/// Where the sweep goes on.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    after: Option<Vec<u8>>,
    rounds: u64,
}

impl Sweep {
    /// Whether it has been through all leases once.
    pub(super) fn has_seen_all(&self) -> bool {
        self.rounds > 0
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
                // This round has something newer to say about it.
                Ok(row) if round.has_row(&row.lease_id) => {}
                Ok(row) => self.sweep_one(round, row, now),
                Err(fault) => tracing::error!(%fault, "a lease's row cannot be read"),
            }
        }
    }

    fn sweep_one(&mut self, round: &mut Round, row: LeaseRow, now: Now) {
        match &row.ended {
            Some(ended) if long_ago(ended.at, now) => self.forget(round, row),
            Some(_) => {}
            None => {
                let Ok(record) = round.newest(&self.setup.records, &Draft::default(), &row.object) else { return };
                match record.open_lease().filter(|lease| lease.lease_id == row.lease_id) {
                    Some(lease) if lease.ttl >= Ttl::FOR_EVER => {}
                    Some(lease) if lease.is_live(now) => self.timers.arm(lease.deadline, &row.object, &row.lease_id),
                    Some(_) => {
                        let _ = self.change(round, &row.object, Event::End { lease_id: row.lease_id.clone() });
                    }
                    // Passed by in a new incarnation, which leaves no end behind.
                    None if long_ago(row.expires_at, now) => self.forget(round, row),
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

fn long_ago(then: WallMs, now: Now) -> bool {
    now.wall.0.saturating_sub(then.0) >= REMEMBER_MS
}
