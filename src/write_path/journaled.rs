//! Writes on routes that keep a journal: what is written to it, and when.
//!
//! A settled write is written to the journal before its client gets the answer, and is durable with its outcome. A
//! write with an unknown outcome is queued for the journal before its object may be handed on. The journal has a digest
//! of a body's data, without its trailers.

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

/// The digest of a body, updated part by part.
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

/// A write for the journal: its method and target, and its leases.
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

    /// Writes the line of a settled write to the journal. The line is durable when this returns. Waits where the ledger
    /// has no room.
    ///
    /// # Errors
    /// Where the line could not be written.
    pub async fn settled(self, ledger: &Ledger, digest: [u8; 32], status: u16) -> Result<(), LedgerError> {
        ledger.journal(self.lines(|method, target| Wrote::Settled { method, target, digest, status })).await
    }

    /// Queues the line of a write whose outcome is unknown. It is queued when this returns, so it comes before any
    /// change that the end of this write allows.
    pub async fn unknown(self, ledger: &Ledger) {
        if let Ok(room) = ledger.capacity().await {
            room.journal(self.lines(|method, target| Wrote::Unknown { method, target }));
        }
    }
}

/// Whether a line that is not known to be durable may become so: the ledger has it. Its write gets no second line.
#[must_use]
pub fn may_be_written_yet(why: &LedgerError) -> bool {
    matches!(why, LedgerError::Stalled | LedgerError::Unsure)
}

/// The detail for a write that could not be written to its journal.
pub const UNWRITTEN: &str = "the store has answered, but the write could not be written down in its journal";
