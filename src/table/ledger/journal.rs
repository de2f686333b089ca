//! Journals: for each object a hash chain over its settled writes, in the order in which they settled.
//!
//! `hash(n) = SHA-256(hash(n-1) || entry n)`, starting from 32 zeros. A write is settled for its client only when
//! its entry is durable. The chain also has entries for what the gate cannot know: writes of unknown outcome, and
//! runs of the gate that ended badly, in which writes without an entry may have landed.

use sha2::{Digest, Sha256};

use super::{
    LedgerError,
    core::{Core, unreadable},
    round::Round,
};
use crate::{
    fence::{LeaseSeq, ObjectId},
    table::{
        Table, TableFault,
        codec::{JournalEntry, JournalHead, Key, Wrote},
    },
};

impl Core {
    pub(super) fn journal(
        &mut self,
        round: &mut Round,
        lines: Vec<(ObjectId, Option<LeaseSeq>, Wrote)>,
    ) -> Result<(), LedgerError> {
        for (object, seq, wrote) in lines {
            let mut head = match round.journals.get(&object) {
                Some(head) => *head,
                None => head(&*self.setup.records.table, &object).map_err(|fault| unreadable(&fault))?,
            };
            // Also where the journal was empty: the object's first write may have been on its way.
            let broken = self.setup.meta.broken_run;
            if broken > 0 && head.run <= broken {
                self.append(round, &object, &mut head, None, Wrote::Gap);
            }
            // A caller that brings a gap only asks for the gap to be there if it must be.
            if wrote != Wrote::Gap {
                self.append(round, &object, &mut head, seq, wrote);
            }
        }
        Ok(())
    }

    fn append(
        &self,
        round: &mut Round,
        object: &ObjectId,
        head: &mut JournalHead,
        seq: Option<LeaseSeq>,
        wrote: Wrote,
    ) {
        let hash = chain(&head.hash, seq, &wrote);
        let entry = JournalEntry { seq, wrote, at: self.setup.clock.wall(), hash };
        *head = JournalHead { count: head.count + 1, hash, run: self.setup.meta.run };
        round.writes.put(&Key::JournalEntry(object.clone(), head.count), entry.encode());
        round.writes.put(&Key::Journal(object.clone()), head.encode());
        if let Some(old) = head.count.checked_sub(self.setup.journal_keep).filter(|old| *old > 0) {
            round.writes.delete(&Key::JournalEntry(object.clone(), old));
        }
        round.journals.insert(object.clone(), *head);
    }
}

/// The head of an object's journal.
///
/// # Errors
/// When its row cannot be read.
pub fn head(table: &dyn Table, object: &ObjectId) -> Result<JournalHead, TableFault> {
    let row = table.get(&Key::Journal(object.clone()).encode())?;
    Ok(row.map(|row| JournalHead::decode(&row)).transpose()?.unwrap_or(JournalHead::EMPTY))
}

/// The hash over an entry and all before it. It leaves times out, because two copies that are compared have
/// different clocks.
#[must_use]
pub fn chain(before: &[u8; 32], seq: Option<LeaseSeq>, wrote: &Wrote) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(before);
    hash.update(seq.map_or(0, LeaseSeq::get).to_be_bytes());
    let mut text = |text: &str| {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    };
    match wrote {
        Wrote::Settled { method, target, digest, status } => {
            text("settled");
            text(method);
            text(target);
            hash.update(digest);
            hash.update(status.to_be_bytes());
        }
        Wrote::Unknown { method, target } => {
            text("unknown");
            text(method);
            text(target);
        }
        Wrote::Gap => text("gap"),
    }
    hash.finalize().into()
}
