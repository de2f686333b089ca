//! The end of a write: what the journal and the metrics record of it, in the order that the life of a write gives.

use std::rc::Rc;

use super::{Worker, guard::WriteGuard, journaled::Line, keyed, upload::UploadState};
use crate::{
    fence::write::{Effect, Event, Outcome, Stage},
    upstream::body::StoreBody,
};

/// The digest of a body that is here. For a streaming body returns `None`, and has its digest made as it comes.
pub(super) fn digest_of(body: &StoreBody, upload: Option<&UploadState>) -> Option<[u8; 32]> {
    if let Some(upload) = upload {
        upload.make_digest();
        return None;
    }
    Some(keyed::digest_of(body))
}

/// Ends a write whose connection is closed and of which something may have left. Returns its outcome.
pub(super) async fn close(worker: &Rc<Worker>, guard: &WriteGuard, line: Option<Line>) -> Outcome {
    if let Effect::Record(_) = guard.on(Event::Closed { left: true }) {
        if let Some(line) = line {
            Box::pin(line.unknown(&worker.gate.ledger)).await;
        }
        let _ = guard.on(Event::Recorded(true));
    }
    ended(worker, guard)
}

/// Returns the outcome of a write, and counts it if it is unknown.
pub(super) fn ended(worker: &Worker, guard: &WriteGuard) -> Outcome {
    match guard.stage() {
        Stage::Over(outcome @ (Outcome::Settled | Outcome::Cancelled)) => outcome,
        _ => {
            worker.plane.metrics().unknown();
            Outcome::Unknown
        }
    }
}
