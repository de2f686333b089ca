//! The digest of a write: by it a repeated request is known to be the same write.

use std::{collections::VecDeque, future::poll_fn, pin::Pin, task::Poll};

use bytes::Bytes;
use http::{HeaderName, header, request::Parts};
use http_body::Body;
use hyper::body::Incoming;
use sha2::{Digest, Sha256};

use super::super::{
    Worker, hold::Limits, journaled::BodyDigest, pace::Pace, refusals::unsent, reply::Rejection, upload::Broken,
};
use crate::{fence::idempotency::Payload, upstream::body::StoreBody};

/// Headers that can turn a write into another one.
const COUNTED: [HeaderName; 4] =
    [header::CONTENT_ENCODING, header::CONTENT_RANGE, header::CONTENT_TYPE, HeaderName::from_static("destination")];

/// The digest of a write: its method, its target, the headers that say how its body is read and where it goes, and the
/// digest of its body.
#[must_use]
pub fn payload(head: &Parts, body: [u8; 32]) -> Payload {
    let mut hash = Sha256::new();
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
    let names = COUNTED;
    let counted = names
        .iter()
        .enumerate()
        .flat_map(|(place, name)| head.headers.get_all(name).iter().map(move |value| (place + 1, value.as_bytes())));
    let said = [(0, head.method.as_str().as_bytes()), (0, target.as_bytes())].into_iter().chain(counted);
    for (place, part) in said {
        hash.update((place as u64).to_be_bytes());
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.update(body);
    hash.finalize().into()
}

/// The digest of a collected body.
#[must_use]
pub fn digest_of(body: &StoreBody) -> [u8; 32] {
    let mut digest = BodyDigest::default();
    body.held_parts().for_each(|part| digest.update(part));
    digest.finish()
}

/// Reads a body to its end, for its digest only.
///
/// # Errors
/// Where the body does not come, is not whole, or is too long.
pub async fn digest_on(
    worker: &Worker,
    first: VecDeque<Bytes>,
    mut rest: Incoming,
    is_h2: bool,
    limits: Limits,
) -> Result<[u8; 32], Rejection> {
    let (mut digest, mut size) = (BodyDigest::default(), 0_u64);
    for part in first {
        size += part.len() as u64;
        digest.update(&part);
    }
    let mut pace = Pace::new(&worker.alarms, limits.slowest);
    loop {
        let next = poll_fn(|context| match Pin::new(&mut rest).poll_frame(context) {
            Poll::Ready(frame) => Poll::Ready(Ok(frame)),
            Poll::Pending => pace.poll(context).map(|()| Err(Broken::Slow)),
        });
        match next.await.map_err(|broken| unsent(&broken))? {
            None if is_h2 && !rest.is_end_stream() => return Err(unsent(&Broken::Client)),
            None => return Ok(digest.finish()),
            Some(Err(_)) => return Err(unsent(&Broken::Client)),
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    size += data.len() as u64;
                    digest.update(data);
                    pace.came(data.len());
                }
            }
        }
        if size > limits.most {
            return Err(unsent(&Broken::TooLong));
        }
    }
}
