//! Journals: per object a hash chain over the writes that have settled, in the order in which they did.
//!
//! `hash(n) = SHA-256(hash(n-1) || entry n)`, from 32 zeros on. A write is settled for its client only when
//! its entry is durable. What cannot be known is in the chain, too: a write whose outcome is unknown, and
//! runs of the gate that ended badly, in which a write may have landed that nobody has written down.

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
            // Also where nothing was written down before: the first write of all may have been on its way.
            let broken = self.setup.meta.broken_run;
            if broken > 0 && head.run <= broken {
                self.append(round, &object, &mut head, None, Wrote::Gap);
            }
            // Whoever brings a gap only wants to know that it is there if it must be.
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

/// An object's journal as it stands.
///
/// # Errors
/// Where its row cannot be read.
pub fn head(table: &dyn Table, object: &ObjectId) -> Result<JournalHead, TableFault> {
    let row = table.get(&Key::Journal(object.clone()).encode())?;
    Ok(row.map(|row| JournalHead::decode(&row)).transpose()?.unwrap_or(JournalHead::EMPTY))
}

/// The hash over an entry and all before it. Times are no part of it: whoever compares two copies has his
/// own clock.
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
