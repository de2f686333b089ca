//! What a write gets whose key is known: the answer that was kept, or a refusal.

use std::borrow::Cow;

use http::{HeaderName, HeaderValue, Response, StatusCode};

use super::super::{
    Worker,
    reply::{Rejection, ReplyBody},
};
use crate::{
    fence::idempotency::{self, Again, Entry, KeyRefusal, Payload},
    metrics::KeyedResult,
};

/// The answer to a write whose key is known.
///
/// # Errors
/// With the reason why there is no answer.
pub fn known(worker: &Worker, entry: &Entry, payload: &Payload) -> Result<Response<ReplyBody>, Rejection> {
    again(worker, entry, payload, KeyedResult::Replayed)
}

pub(super) fn again(
    worker: &Worker,
    entry: &Entry,
    payload: &Payload,
    how: KeyedResult,
) -> Result<Response<ReplyBody>, Rejection> {
    match entry.again(payload) {
        Again::Refused(why) => Err(refused(worker, why)),
        Again::Replay(kept) => {
            worker.plane.metrics().keyed(how);
            Ok(replay(kept))
        }
    }
}

fn replay(kept: &idempotency::Response) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::own(kept.body.clone()));
    *response.status_mut() = StatusCode::from_u16(kept.status).unwrap_or(StatusCode::OK);
    for (name, value) in &kept.headers {
        // Headers that no longer parse are skipped.
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_bytes(value)) {
            response.headers_mut().append(name, value);
        }
    }
    response.headers_mut().insert("idempotency-replayed", HeaderValue::from_static("true"));
    response
}

/// The refusal of a keyed write that gets neither a run nor an answer.
pub fn refused(worker: &Worker, why: KeyRefusal) -> Rejection {
    let (result, what): (_, Cow<'static, str>) = match why {
        KeyRefusal::OtherPayload => (
            KeyedResult::Mismatch,
            "this Idempotency-Key was used for another write: the method, the target or the body differs; use a new key".into(),
        ),
        KeyRefusal::InProgress => (
            KeyedResult::InProgress,
            "a write with this Idempotency-Key is on its way; ask again in a moment".into(),
        ),
        KeyRefusal::Unknown => (
            KeyedResult::Unknown,
            "a write with this Idempotency-Key was sent, and its outcome is unknown; it is not run again. Look at the store, then write with a new key".into(),
        ),
        KeyRefusal::OtherLease => (
            KeyedResult::OtherLease,
            "this Idempotency-Key's write was made with another lease; show that one's token, or your current one".into(),
        ),
        KeyRefusal::Dropped { status } => (
            KeyedResult::Dropped,
            format!("this Idempotency-Key's write was done (the store answered {status}), and its answer was too large to keep").into(),
        ),
    };
    worker.plane.metrics().keyed(result);
    Rejection::new(why.code(), what)
}
