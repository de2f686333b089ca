//! Holding a body back until it is whole, so that a write that is refused in the end was never sent.
//!
//! A body of up to `hold_bytes` is collected; a longer one streams. What all workers hold together is
//! bounded by `hold_total_bytes`, and whoever would exceed it is turned away before a byte is read.

use std::{
    collections::VecDeque,
    future::poll_fn,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame};
use hyper::body::Incoming;

use super::Plane;

/// A body, as far as it has come.
pub enum Held {
    Whole {
        bytes: Bytes,
        trailers: Option<HeaderMap>,
    },
    /// Longer than may be held: its beginning, and where the rest comes from.
    Long {
        first: VecDeque<Bytes>,
        rest: Incoming,
    },
}

/// Why a body is not there.
#[derive(Debug, PartialEq, Eq)]
pub enum NoBody {
    /// The client broke off, or sent what is no body.
    Cut,
    Slow,
}

/// A share of what may be held.
pub struct Share {
    plane: Arc<Plane>,
    bytes: usize,
}

impl Share {
    /// Takes a share, if there is one left.
    #[must_use]
    pub fn take(plane: &Arc<Plane>, bytes: usize) -> Option<Self> {
        let before = plane.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        let share = Self { plane: Arc::clone(plane), bytes };
        (before + bytes <= plane.settings.hold_total_bytes).then_some(share)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.plane.held_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The next frame, or that it did not come in time. An HTTP/2 stream that was reset without an error
/// ends like any other, but not whole.
async fn next_frame(body: &mut Incoming, is_h2: bool, patience: Duration) -> Result<Option<Frame<Bytes>>, NoBody> {
    let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
    match tokio::time::timeout(patience, frame).await {
        Ok(Some(Ok(frame))) => Ok(Some(frame)),
        Ok(Some(Err(_))) => Err(NoBody::Cut),
        Ok(None) if is_h2 && !body.is_end_stream() => Err(NoBody::Cut),
        Ok(None) => Ok(None),
        Err(_) => Err(NoBody::Slow),
    }
}

/// Collects a body of up to `limit` bytes.
///
/// # Errors
/// Where it does not come, or not whole.
pub async fn hold(mut body: Incoming, is_h2: bool, limit: usize, patience: Duration) -> Result<Held, NoBody> {
    let mut parts: VecDeque<Bytes> = VecDeque::new();
    let mut size = 0;
    loop {
        let Some(frame) = next_frame(&mut body, is_h2, patience).await? else {
            return Ok(Held::Whole { bytes: join(parts, size), trailers: None });
        };
        match frame.into_data() {
            Ok(data) => {
                size += data.len();
                if !data.is_empty() {
                    parts.push_back(data);
                }
                if size > limit {
                    return Ok(Held::Long { first: parts, rest: body });
                }
                if body.is_end_stream() {
                    return Ok(Held::Whole { bytes: join(parts, size), trailers: None });
                }
            }
            Err(frame) => {
                let trailers = frame.into_trailers().ok();
                return Ok(Held::Whole { bytes: join(parts, size), trailers });
            }
        }
    }
}

/// One piece as it is; several as one.
fn join(mut parts: VecDeque<Bytes>, size: usize) -> Bytes {
    if parts.len() == 1 {
        return parts.pop_front().unwrap_or_default();
    }
    let mut whole = BytesMut::with_capacity(size);
    for part in parts {
        whole.extend_from_slice(&part);
    }
    whole.freeze()
}
