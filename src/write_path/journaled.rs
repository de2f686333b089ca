//! Writes on routes that keep a journal: what is written down of each, and when.
//!
//! A settled write is written down before its client is told: durable with its outcome. One whose outcome is
//! unknown is queued to be written down before its object may be handed on. Of a body there is a digest of
//! its data; trailers are no part of it.

use http::request::Parts;
use sha2::{Digest, Sha256};

use super::guard::WriteGuard;
use crate::{
    fence::{LeaseSeq, ObjectId},
    table::{
        codec::Wrote,
        ledger::{JournalLines, Ledger, LedgerError},
    },
};

/// A body's digest, as it is made.
#[derive(Clone, Debug, Default)]
pub struct BodyDigest(Sha256);

impl BodyDigest {
    pub fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    #[must_use]
    pub fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

/// A write to be written down: where it goes, and with which leases.
#[derive(Clone, Debug)]
pub struct Line {
    method: String,
    target: String,
    leases: Vec<(ObjectId, LeaseSeq)>,
}

impl Line {
    #[must_use]
    pub fn new(head: &Parts, guard: &WriteGuard) -> Self {
        let mut leases = vec![];
        guard.each_permit(|permit| leases.push((permit.object().clone(), permit.seq())));
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
        Self { method: head.method.to_string(), target: target.to_owned(), leases }
    }

    fn lines(self, wrote: impl Fn(String, String) -> Wrote) -> JournalLines {
        let Self { method, target, leases } = self;
        let line = |(object, seq)| (object, Some(seq), wrote(method.clone(), target.clone()));
        leases.into_iter().map(line).collect()
    }

    /// The store has answered for it. Durable when this returns; a ledger that has no room is waited for.
    ///
    /// # Errors
    /// Where it could not be written down.
    pub async fn settled(self, ledger: &Ledger, digest: [u8; 32], status: u16) -> Result<(), LedgerError> {
        ledger.journal(self.lines(|method, target| Wrote::Settled { method, target, digest, status })).await
    }

    /// Nobody knows what became of it. Queued when this returns, so it comes before whatever its end allows.
    pub async fn unknown(self, ledger: &Ledger) {
        if let Ok(room) = ledger.capacity().await {
            room.journal(self.lines(|method, target| Wrote::Unknown { method, target }));
        }
    }
}

/// Whether a line that is not known to be durable may be so later: the ledger has it. Its write gets no second one.
#[must_use]
pub fn may_be_written_yet(why: &LedgerError) -> bool {
    matches!(why, LedgerError::Stalled | LedgerError::Unsure)
}

/// What is said of a write that could not be written down.
pub const UNWRITTEN: &str = "the store has answered, but the write could not be written down in its journal";
