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

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};
use hyper::body::Incoming;

use super::{Plane, Worker};

/// A body, as far as it has come.
pub enum Held {
    Whole {
        parts: VecDeque<Bytes>,
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
    /// Larger than bodies may be at all.
    TooLong,
}

/// A share of what may be held.
pub struct Share {
    plane: Arc<Plane>,
    bytes: usize,
}

impl Share {
    /// Takes a share of `total`, if there is one left.
    #[must_use]
    pub fn take(plane: &Arc<Plane>, bytes: usize, total: usize) -> Option<Self> {
        let before = plane.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        let share = Self { plane: Arc::clone(plane), bytes };
        (before + bytes <= total).then_some(share)
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

/// Collects a body of up to `limit` bytes; one of more than `max` is not wanted at all.
///
/// # Errors
/// Where it does not come, or not whole, or is too large.
pub async fn hold(mut body: Incoming, is_h2: bool, limit: usize, max: u64, patience: Duration) -> Result<Held, NoBody> {
    let mut parts: VecDeque<Bytes> = VecDeque::new();
    let mut size = 0;
    loop {
        let Some(frame) = next_frame(&mut body, is_h2, patience).await? else {
            return Ok(Held::Whole { parts, trailers: None });
        };
        match frame.into_data() {
            Ok(data) => {
                size += data.len();
                if !data.is_empty() {
                    parts.push_back(data);
                }
                if size as u64 > max {
                    return Err(NoBody::TooLong);
                }
                if size > limit {
                    return Ok(Held::Long { first: parts, rest: body });
                }
                if body.is_end_stream() {
                    return Ok(Held::Whole { parts, trailers: None });
                }
            }
            Err(frame) => {
                let trailers = frame.into_trailers().ok();
                return Ok(Held::Whole { parts, trailers });
            }
        }
    }
}

/// How much of a refused request's body is read on, and for how long.
const DISCARD_BYTES: usize = 16 << 20;
const DISCARD_PATIENCE: Duration = Duration::from_secs(5);

/// Reads a refused request's body on, within bounds, and throws it away: while it is still coming, some
/// clients cannot read their answer (HTTP/1.1: the connection would be reset under it; HTTP/2: so would
/// the stream).
pub fn discard(worker: &Worker, mut body: Incoming, is_h2: bool) {
    if body.is_end_stream() || worker.stopping.get() {
        return;
    }
    tokio::task::spawn_local(async move {
        let read_on = async {
            let mut left = DISCARD_BYTES;
            while let Ok(Some(frame)) = next_frame(&mut body, is_h2, DISCARD_PATIENCE).await {
                left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
                if left == 0 {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(DISCARD_PATIENCE, read_on).await;
    });
}
