//! Which routes' writes may land if this run ends badly, and for how long. The table keeps this, so that the next
//! run knows what to wait for.
//!
//! While writes use two sets of routes, the table names neither. A run that finds it so waits as it does after a
//! change of its routes. The bound is the longest that this run has had.

use super::{core::Core, round::Round};
use crate::{fence::BootMs, route::RouteFingerprint, table::codec::Key};

/// The terms of this run's writes.
pub(super) struct InUse {
    /// `None` while they are about to change.
    now: Option<RouteFingerprint>,
    longest_ms: u64,
}

impl InUse {
    pub(super) fn new(fingerprint: RouteFingerprint) -> Self {
        Self { now: Some(fingerprint), longest_ms: fingerprint.bound_ms }
    }

    pub(super) fn adopt(&mut self, fingerprint: RouteFingerprint) {
        self.now = Some(fingerprint);
    }
}

impl Core {
    /// Notes that writes are about to use these terms too.
    pub(super) fn announce(&mut self, round: &mut Round, fingerprint: RouteFingerprint) {
        self.fingerprint.now = None;
        self.fingerprint.longest_ms = self.fingerprint.longest_ms.max(fingerprint.bound_ms);
        self.write_fingerprint(round, self.setup.meta.fingerprint.and(fingerprint));
    }

    /// Writes the present routes into the table, once no write of other routes can land.
    pub(super) fn settle_terms(&mut self, round: &mut Round, now: BootMs) {
        if let Some(fingerprint) = self.fingerprint.now
            && self.setup.records.stripes.is_past_older_routes(now)
        {
            self.write_fingerprint(round, RouteFingerprint { bound_ms: self.fingerprint.longest_ms, ..fingerprint });
        }
    }

    fn write_fingerprint(&mut self, round: &mut Round, fingerprint: RouteFingerprint) {
        let meta = &mut self.setup.meta;
        if meta.fingerprint != fingerprint {
            meta.fingerprint = fingerprint;
            round.writes.put(&Key::Meta, meta.encode());
        }
    }
}
