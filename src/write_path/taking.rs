//! How a client takes an HTTP/2 answer. On HTTP/1.1 the socket shows this. On HTTP/2 a client can leave one stream and
//! take others.
//!
//! An answer of which nothing is taken for `body_timeout_ms`, or that is taken at less than `pace_bytes_min` a second
//! on average, is broken off: its stream is reset. Only time that is spent waiting for the client counts.

use std::cell::{Cell, OnceCell};

use tokio::task::AbortHandle;

use super::pace::Slowest;
use crate::{config::GateSettings, fence::BootMs};

/// How much of an answer is handed on at once. The next piece is asked for when the client has begun to take this one.
/// It is so small that a client at the least pace asks in time.
pub const PIECE: usize = 16 << 10;

/// The gate waits for the store, and not for the client.
const NOT_THE_CLIENT: BootMs = BootMs(u64::MAX);

/// One answer.
#[derive(Debug)]
pub struct Reply {
    /// Since when the client has asked for no more.
    since: Cell<BootMs>,
    /// The size of the last piece that the client got.
    piece: Cell<usize>,
    /// How many bytes the client has taken, and how long it let them wait.
    taken: Cell<u64>,
    waited_ms: Cell<u64>,
    /// The task that hands the answer on.
    task: OnceCell<AbortHandle>,
}

impl Default for Reply {
    fn default() -> Self {
        let (piece, taken, waited_ms) = Default::default();
        Self { since: Cell::new(NOT_THE_CLIENT), piece, taken, waited_ms, task: OnceCell::new() }
    }
}

impl Reply {
    /// Sets the task that hands the answer on.
    pub fn runs_in(&self, task: AbortHandle) {
        let _ = self.task.set(task);
    }

    /// Notes that the answer is ready to be taken.
    pub fn is_there(&self, now: BootMs) {
        self.since.set(now);
    }

    /// Notes that the client has asked for more, and gets a piece of this size, or nothing yet.
    pub fn asked(&self, piece: Option<usize>, now: BootMs) {
        self.waited_ms.set(self.waited_ms.get() + now.since(self.since.get()));
        self.taken.set(self.taken.get() + self.piece.replace(piece.unwrap_or(0)) as u64);
        self.since.set(if piece.is_some() { now } else { NOT_THE_CLIENT });
    }

    /// Whether the client takes the answer too slowly.
    #[must_use]
    pub fn is_slow(&self, settings: &GateSettings, now: BootMs) -> bool {
        let since = self.since.get();
        let waits = now.since(since);
        let is_behind = self.waited_ms.get().saturating_add(waits) >= Slowest::of(settings).time_for(self.taken.get());
        since != NOT_THE_CLIENT && (waits >= settings.body_timeout_ms || is_behind)
    }

    /// Breaks the answer off: its stream is reset.
    pub fn cut(&self) {
        self.task.get().inspect(|task| task.abort());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how long a client is cut off that asks for a piece of `bytes` every `every_ms`.
    fn cut_after(bytes: usize, every_ms: u64) -> Option<u64> {
        let (settings, reply) = (GateSettings::default(), Reply::default());
        reply.is_there(BootMs(0));
        reply.asked(Some(bytes), BootMs(0));
        for now in (100..600_000).step_by(100) {
            if now % every_ms == 0 {
                reply.asked(Some(bytes), BootMs(now));
            }
            if reply.is_slow(&settings, BootMs(now)) {
                return Some(now);
            }
        }
        None
    }

    #[test]
    fn an_http_2_answer_is_cut_that_lies_or_is_taken_by_drips() {
        assert_eq!(cut_after(PIECE, 700_000), Some(30_000), "one that is let lie");
        assert_eq!(cut_after(1, 20_000), Some(30_000), "one that is taken by drips");
        assert!(cut_after(512, 1_000).is_some_and(|ms| (55_000..65_000).contains(&ms)), "half the pace");
        assert_eq!(cut_after(PIECE, 16_000), None, "one that keeps pace");
    }

    #[test]
    fn the_time_that_the_store_takes_does_not_count() {
        let (settings, reply) = (GateSettings::default(), Reply::default());
        reply.is_there(BootMs(0));
        reply.asked(None, BootMs(0));
        assert!(!reply.is_slow(&settings, BootMs(600_000)));
        reply.asked(Some(1), BootMs(600_000));
        assert!(!reply.is_slow(&settings, BootMs(629_999)) && reply.is_slow(&settings, BootMs(630_000)));
    }
}
