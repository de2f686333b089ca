//! Keyed writes: remembered before they may land, and their answers behind it.
//!
//! A write is remembered only under the lease that stands open at its object's fence, so a fenced holder never
//! leaves one behind. What was remembered longer ago than `idempotency.keep_ms` is forgotten, by an index of times.

use super::{
    Refused,
    core::{Core, unreadable},
    round::Round,
};
use crate::{
    fence::{
        LeaseSeq, WallMs,
        idempotency::{Answer, Entry, Payload, Scope},
    },
    table::{
        Table, TableFault,
        codec::{Family, Key, decode_entry, encode_entry},
    },
};

/// A keyed write that is about to be sent.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub scope: Scope,
    /// `None` where the body is not known yet.
    pub payload: Option<Payload>,
    pub seq: LeaseSeq,
    /// Names it among all others.
    pub attempt: u64,
}

/// What its key is.
#[derive(Clone, Debug)]
pub enum Begun {
    /// New, and remembered.
    Fresh(Entry),
    /// Known before.
    Known(Entry),
    /// Its lease does not stand open any more; nothing is remembered.
    Fenced,
}

/// More than can be remembered in a second.
const ROWS_EACH_SECOND: usize = 65_536;

impl Core {
    pub(super) fn begin_keyed(&mut self, round: &mut Round, attempt: Attempt) -> Result<Begun, Refused> {
        let Attempt { scope, payload, seq, attempt } = attempt;
        let now = self.setup.clock.now();
        let before = self.keyed(round, &scope)?;
        if let Some(known) = before.as_ref().filter(|known| !known.is_old(now.wall, self.setup.keys_keep_ms)) {
            return Ok(Begun::Known(known.clone()));
        }
        let record = self.newest(round, &scope.object)?;
        let Some(lease) = record.open_lease().filter(|lease| lease.seq == seq && lease.is_live(now)) else {
            return Ok(Begun::Fenced);
        };
        let lease_id = lease.lease_id.clone();
        let entry = Entry { payload, seq, lease_id, at: now.wall, attempt, answer: Answer::None };
        put(round, scope, before.map(|before| before.at), Some(entry.clone()));
        Ok(Begun::Fresh(entry))
    }

    /// What became of an attempt; `None`: nothing of it was sent, so its key is free again. Where another attempt
    /// has the key by now, nothing is changed.
    pub(super) fn end_keyed(
        &mut self,
        round: &mut Round,
        scope: Scope,
        attempt: u64,
        entry: Option<Entry>,
    ) -> Result<(), Refused> {
        if let Some(known) = self.keyed(round, &scope)?.filter(|known| known.attempt == attempt) {
            put(round, scope, Some(known.at), entry);
        }
        Ok(())
    }

    fn keyed(&self, round: &Round, scope: &Scope) -> Result<Option<Entry>, Refused> {
        match round.keyed.get(scope) {
            Some(entry) => Ok(entry.clone()),
            None => read(&*self.setup.records.table, scope).map_err(|fault| unreadable(&fault)),
        }
    }

    /// Forgets what has been remembered for long enough; only what is due is read.
    pub(super) fn sweep_keys(&mut self, round: &mut Round) {
        let Some(due) = self.setup.clock.wall().0.checked_sub(self.setup.keys_keep_ms) else { return };
        let (from, until) = Family::keyed_until(WallMs(due));
        let rows = match self.setup.records.table.scan(&from, &until, ROWS_EACH_SECOND) {
            Ok(rows) => rows,
            Err(fault) => {
                tracing::warn!(%fault, "the sweep of idempotency keys cannot read; it begins again");
                return;
            }
        };
        for (key, _) in rows {
            match Key::decode(&key) {
                // This round may have something newer to say about it.
                Ok(Key::KeyedAt(at, scope)) if !round.keyed.contains_key(&scope) => {
                    put(round, scope, Some(WallMs(at)), None);
                }
                Ok(_) => {}
                Err(fault) => tracing::error!(%fault, "an idempotency key's row cannot be read"),
            }
        }
    }
}

/// Puts an entry, or none, in the place of one that was remembered at `before`.
fn put(round: &mut Round, scope: Scope, before: Option<WallMs>, entry: Option<Entry>) {
    let at = entry.as_ref().map(|entry| entry.at);
    if let Some(before) = before.filter(|before| Some(*before) != at) {
        round.writes.delete(&Key::KeyedAt(before.0, scope.clone()));
    }
    let key = Key::Keyed(scope.clone());
    match &entry {
        Some(entry) => {
            round.writes.put(&Key::KeyedAt(entry.at.0, scope.clone()), []);
            round.writes.put(&key, encode_entry(entry));
        }
        None => round.writes.delete(&key),
    }
    round.keyed.insert(scope, entry);
}

/// What is remembered of a keyed write.
///
/// # Errors
/// Where its row cannot be read.
pub fn read(table: &dyn Table, scope: &Scope) -> Result<Option<Entry>, TableFault> {
    let row = table.get(&Key::Keyed(scope.clone()).encode())?;
    Ok(row.map(|row| decode_entry(&row)).transpose()?)
}
