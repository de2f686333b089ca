//! Keyed writes: remembered before they may land, with their answers afterwards.
//!
//! A write is remembered only under the lease that is open at its object's fence, so a fenced holder never leaves
//! one behind. Entries older than `idempotency.keep_ms` are forgotten, by an index of times: never because of a
//! step of the wall clock, and never while their write is on its way.

use std::{collections::HashMap, sync::Weak};

use super::{
    LedgerError,
    core::{Core, unreadable},
    round::Round,
};
use crate::{
    failpoints::{self, Fault},
    fence::{
        BootMs, LeaseSeq, Now, Ttl, WallMs,
        idempotency::{Entry, KeptResponse, Payload, Scope, Since},
    },
    table::{
        Table, TableFault,
        codec::{Family, Key, decode_entry, encode_entry},
    },
};

/// A keyed write that is about to be sent.
#[derive(Clone, Debug)]
pub struct KeyAttempt {
    pub scope: Scope,
    /// `None` where the body is not known yet.
    pub payload: Option<Payload>,
    pub seq: LeaseSeq,
    /// Names this attempt among all others.
    pub attempt: u64,
    /// Gone once this attempt can have no more effect.
    pub alive: Weak<()>,
}

/// What the ledger knows of keyed writes beside their rows.
#[derive(Debug, Default)]
pub(super) struct Keyed {
    /// Attempts of this run that have not been answered: they may be on their way.
    flying: HashMap<Scope, Flying>,
    /// The sweep has nothing to do before this instant.
    rests_until: BootMs,
}

#[derive(Debug)]
struct Flying {
    attempt: u64,
    alive: Weak<()>,
    since: BootMs,
}

impl Flying {
    /// The attempt ended without an answer: its outcome is unknown.
    fn is_lost(&self) -> bool {
        self.alive.strong_count() == 0
    }
}

impl Keyed {
    fn is_flying(&self, scope: &Scope, attempt: u64) -> bool {
        self.flying.get(scope).is_some_and(|flying| flying.attempt == attempt && !flying.is_lost())
    }

    fn lands(&mut self, scope: &Scope, attempt: u64) {
        if self.flying.get(scope).is_some_and(|flying| flying.attempt == attempt) {
            self.flying.remove(scope);
        }
    }
}

/// What the ledger found under a key.
#[derive(Clone, Debug)]
pub enum KeyClaimResult {
    /// The key is new, and is remembered now.
    Fresh(Entry),
    /// The key was known before.
    Known(Entry),
    /// The write's lease is not open any more; nothing is remembered.
    Fenced,
}

/// How many rows one sweep reads: more than can be remembered in a second.
const ROWS_EACH_SECOND: usize = 65_536;

impl Core {
    pub(super) fn begin_keyed(
        &mut self,
        round: &mut Round,
        attempt: KeyAttempt,
    ) -> Result<KeyClaimResult, LedgerError> {
        let KeyAttempt { scope, payload, seq, attempt, alive } = attempt;
        let now = self.setup.clock.now();
        if self.keyed.flying.get(&scope).is_some_and(Flying::is_lost) {
            self.keep_lost(round, &scope)?;
        }
        let before = self.keyed(round, &scope)?;
        let is_known = |known: &&Entry| !self.is_forgettable(&scope, known, now) && !failpoints::on(Fault::ForgetKeys);
        if let Some(known) = before.as_ref().filter(is_known) {
            return Ok(KeyClaimResult::Known(known.clone()));
        }
        let record = self.newest(round, &scope.object)?;
        let Some(lease) = record.open_lease().filter(|lease| lease.seq == seq && lease.is_live(now)) else {
            return Ok(KeyClaimResult::Fenced);
        };
        let lease_id = lease.lease_id.clone();
        let since = Some(self.since(now));
        let entry = Entry { payload, seq, lease_id, at: now.wall, since, attempt, answer: KeptResponse::None };
        self.keyed.flying.insert(scope.clone(), Flying { attempt, alive, since: now.boot });
        put(round, scope, before.map(|before| before.at), Some(entry.clone()));
        Ok(KeyClaimResult::Fresh(entry))
    }

    /// Ends an attempt with its outcome; `None`: nothing of it was sent, so its key is free again. Where another
    /// attempt has the key by now, nothing is changed.
    pub(super) fn end_keyed(
        &mut self,
        round: &mut Round,
        scope: Scope,
        attempt: u64,
        entry: Option<Entry>,
    ) -> Result<(), LedgerError> {
        if let Some(known) = self.keyed(round, &scope)?.filter(|known| known.attempt == attempt) {
            self.keyed.lands(&scope, attempt);
            let entry = entry.map(|entry| self.kept_from_now(entry));
            put(round, scope, Some(known.at), entry);
        }
        Ok(())
    }

    /// This instant, as a moment of this run.
    fn since(&self, now: Now) -> Since {
        Since { run: self.setup.records.context.frame.run, boot: now.boot }
    }

    /// Restarts the age of an entry whose write ended in this run with an unknown outcome, as an answer does: what
    /// was sent of the write may still land.
    fn keep_lost(&mut self, round: &mut Round, scope: &Scope) -> Result<(), LedgerError> {
        let Some(lost) = self.keyed.flying.get(scope) else { return Ok(()) };
        let (attempt, age_ms) = (lost.attempt, self.setup.clock.now().boot.since(lost.since));
        // Most end soon: then there is nothing to change.
        if age_ms >= self.setup.keys_keep_ms / 2
            && let Some(known) = self.keyed(round, scope)?.filter(|known| known.attempt == attempt)
        {
            put(round, scope.clone(), Some(known.at), Some(self.kept_from_now(known)));
        }
        self.keyed.flying.remove(scope);
        Ok(())
    }

    /// Keeps an answer that came late for as long as any other.
    fn kept_from_now(&self, entry: Entry) -> Entry {
        let now = self.setup.clock.now();
        if entry.age_ms(now, &self.setup.records.context.frame) < self.setup.keys_keep_ms / 2 {
            return entry;
        }
        Entry { at: now.wall, since: Some(self.since(now)), ..entry }
    }

    /// Whether the entry is old enough, and its write is not on its way.
    fn is_forgettable(&self, scope: &Scope, entry: &Entry, now: Now) -> bool {
        let age_ms = entry.age_ms(now, &self.setup.records.context.frame);
        age_ms >= self.setup.keys_keep_ms && !self.may_land(scope, entry, now)
    }

    /// Whether the entry's write may be on its way, from this run or from an earlier one.
    fn may_land(&self, scope: &Scope, entry: &Entry, now: Now) -> bool {
        let is_earlier = !entry.is_of(self.setup.records.context.frame.run);
        let is_left = is_earlier && entry.answer == KeptResponse::None && now.boot < self.bound_from_start();
        is_left || self.keyed.is_flying(scope, entry.attempt)
    }

    fn keyed(&self, round: &Round, scope: &Scope) -> Result<Option<Entry>, LedgerError> {
        match round.keyed.get(scope) {
            Some(entry) => Ok(entry.clone()),
            None => read(&*self.setup.records.table, scope).map_err(|fault| unreadable(&fault)),
        }
    }

    /// Forgets entries that are old enough; only rows that are due are read.
    pub(super) fn sweep_keys(&mut self, round: &mut Round) {
        let now = self.setup.clock.now();
        self.keep_all_lost(round);
        let Some(due) = now.wall.0.checked_sub(self.setup.keys_keep_ms) else { return };
        if now.boot < self.keyed.rests_until {
            return;
        }
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
                // This round may have something newer about this entry.
                Ok(Key::KeyedAt(at, scope)) if !round.keyed.contains_key(&scope) => {
                    if !self.sweep_key(round, scope, WallMs(at), now) {
                        break;
                    }
                }
                Ok(_) => {}
                Err(fault) => tracing::error!(%fault, "an idempotency key's row cannot be read"),
            }
        }
    }

    /// Keeps the entries of all writes that have ended without an answer.
    fn keep_all_lost(&mut self, round: &mut Round) {
        let lost = self.keyed.flying.iter().filter(|(_, flying)| flying.is_lost());
        let lost: Vec<Scope> = lost.map(|(scope, _)| scope.clone()).collect();
        for scope in lost {
            // An entry that cannot be read is tried again later.
            let _ = self.keep_lost(round, &scope);
        }
    }

    /// Handles one key that is due by the wall clock. `false`: it is not due by the boot clock, and the later ones
    /// are not either.
    fn sweep_key(&mut self, round: &mut Round, scope: Scope, at: WallMs, now: Now) -> bool {
        let Ok(entry) = self.keyed(round, &scope) else { return true };
        if let Some(entry) = entry.filter(|entry| entry.at == at) {
            let age_ms = entry.age_ms(now, &self.setup.records.context.frame);
            if self.may_land(&scope, &entry, now) {
                return true;
            }
            if age_ms < self.setup.keys_keep_ms {
                if entry.answer == KeptResponse::None && !entry.is_of(self.setup.records.context.frame.run) {
                    // This entry counts from this run's start; the later ones do not.
                    return true;
                }
                self.keyed.rests_until = now.boot.after(Ttl(self.setup.keys_keep_ms - age_ms));
                return false;
            }
            self.keyed.lands(&scope, entry.attempt);
            put(round, scope, Some(at), None);
        } else {
            // The index names no entry, or a later attempt.
            round.writes.delete(&Key::KeyedAt(at.0, scope));
        }
        true
    }
}

/// Replaces an entry that was remembered at `before` by another one, or by none.
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
/// When its row cannot be read.
pub fn read(table: &dyn Table, scope: &Scope) -> Result<Option<Entry>, TableFault> {
    let row = table.get(&Key::Keyed(scope.clone()).encode())?;
    Ok(row.map(|row| decode_entry(&row)).transpose()?)
}
