//! Which routes' writes may land if this run ends badly, and for how long. The table keeps this, so that the next
//! run knows what to wait for.
//!
//! While writes use two sets of routes, the table names neither. A run that finds it so waits as it does after a
//! change of its routes. The bound is the longest that this run has had.

use super::{core::Core, round::Round};
use crate::{fence::BootMs, route::Terms, table::codec::Key};

/// The terms of this run's writes.
pub(super) struct InUse {
    /// `None` while they are about to change.
    now: Option<Terms>,
    longest_ms: u64,
}

impl InUse {
    pub(super) fn new(terms: Terms) -> Self {
        Self { now: Some(terms), longest_ms: terms.bound_ms }
    }

    pub(super) fn adopt(&mut self, terms: Terms) {
        self.now = Some(terms);
    }
}

impl Core {
    /// Notes that writes are about to use these terms too.
    pub(super) fn announce(&mut self, round: &mut Round, terms: Terms) {
        self.terms.now = None;
        self.terms.longest_ms = self.terms.longest_ms.max(terms.bound_ms);
        self.write_terms(round, self.setup.meta.terms.and(terms));
    }

    /// Writes the present routes into the table, once no write of other routes can land.
    pub(super) fn settle_terms(&mut self, round: &mut Round, now: BootMs) {
        if let Some(terms) = self.terms.now
            && self.setup.records.stripes.is_past_older_routes(now)
        {
            self.write_terms(round, Terms { bound_ms: self.terms.longest_ms, ..terms });
        }
    }

    fn write_terms(&mut self, round: &mut Round, terms: Terms) {
        let meta = &mut self.setup.meta;
        if meta.terms != terms {
            meta.terms = terms;
            round.writes.put(&Key::Meta, meta.encode());
        }
    }
}
