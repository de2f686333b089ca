//! The end of a write: what the journal and the metrics hear of it, in the order that the life of a write gives.

use std::rc::Rc;

use super::{Worker, guard::WriteGuard, journaled::Line, keyed, upload::UploadState};
use crate::{
    fence::write::{Effect, Event, Outcome, Stage},
    upstream::body::StoreBody,
};

/// The digest of a body that is here. That of one that streams is asked for, and made as it comes.
pub(super) fn digest_of(body: &StoreBody, upload: Option<&UploadState>) -> Option<[u8; 32]> {
    if let Some(upload) = upload {
        upload.make_digest();
        return None;
    }
    Some(keyed::digest_of(body))
}

/// The connection of a write is closed, and something of the write may have left: ends the write. Returns how.
pub(super) async fn close(worker: &Rc<Worker>, guard: &WriteGuard, line: Option<Line>) -> Outcome {
    if let Effect::Record(_) = guard.on(Event::Closed { left: true }) {
        if let Some(line) = line {
            Box::pin(line.unknown(&worker.gate.ledger)).await;
        }
        let _ = guard.on(Event::Recorded(true));
    }
    ended(worker, guard)
}

/// Returns how a write has ended, and counts it if its outcome is unknown.
pub(super) fn ended(worker: &Worker, guard: &WriteGuard) -> Outcome {
    match guard.stage() {
        Stage::Over(outcome @ (Outcome::Settled | Outcome::Cancelled)) => outcome,
        _ => {
            worker.plane.metrics().unknown();
            Outcome::Unknown
        }
    }
}
