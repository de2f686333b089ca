//! Holding a body back until it is whole, so that a write that is refused in the end was never sent.
//!
//! A body of up to `hold_bytes` is collected; a longer one streams. What all workers hold together is
//! bounded by `hold_total_bytes`, and whoever would exceed it is turned away before a byte is read.

use std::{
    cell::RefCell,
    collections::VecDeque,
    future::poll_fn,
    pin::Pin,
    sync::{Arc, PoisonError, atomic::Ordering},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Version, request::Parts};
use http_body::Body;
use hyper::body::Incoming;

use super::{
    Plane, Worker,
    connection::Client,
    pace::{Pace, Slowest},
    plan::Plan,
};
use crate::store::body::StoreBody;

/// A body, as far as it has come.
pub enum Held {
    Whole {
        trailers: Option<Box<HeaderMap>>,
    },
    /// Longer than may be held.
    Long,
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
    room: Room,
}

/// What is held.
#[derive(Clone, Copy)]
enum Room {
    /// A body; of this object, where that is known.
    Body(Option<u64>),
    /// The answer to a read, ahead of its client.
    Answer,
}

impl Share {
    /// Takes a share of `total`, if there is one left.
    #[must_use]
    pub fn take(plane: &Arc<Plane>, bytes: usize, total: usize) -> Option<Self> {
        let before = plane.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        let share = Self { plane: Arc::clone(plane), bytes, room: Room::Body(None) };
        (before + bytes <= total).then_some(share)
    }

    /// The body is this object's, of which all bodies together may take three quarters of `total`: one holder must leave
    /// room for the others.
    #[must_use]
    pub fn of_object(mut self, object: u64, total: usize) -> Option<Self> {
        let mut by = self.plane.held_by.lock().unwrap_or_else(PoisonError::into_inner);
        let held = by.entry(object).or_default();
        if *held > 0 && *held + self.bytes > total - total / 4 {
            drop(by);
            return None;
        }
        *held += self.bytes;
        drop(by);
        self.room = Room::Body(Some(object));
        Some(self)
    }

    /// Takes a share for the answer to a read: all of them together may take a quarter of `total`.
    #[must_use]
    pub fn for_answer(plane: &Arc<Plane>, bytes: usize, total: usize) -> Option<Self> {
        let before = plane.answer_bytes.fetch_add(bytes, Ordering::Relaxed);
        let share = Self { plane: Arc::clone(plane), bytes, room: Room::Answer };
        (before + bytes <= total / 4).then_some(share)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let counter = match self.room {
            Room::Body(_) => &self.plane.held_bytes,
            Room::Answer => &self.plane.answer_bytes,
        };
        counter.fetch_sub(self.bytes, Ordering::Relaxed);
        if let Room::Body(Some(object)) = self.room {
            let mut by = self.plane.held_by.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(held) = by.get_mut(&object) {
                *held -= self.bytes;
                if *held == 0 {
                    by.remove(&object);
                }
            }
        }
    }
}

/// A body that is being collected.
pub struct Hold {
    /// Where the rest comes from.
    pub body: Incoming,
    /// What has come: most bodies come in one part.
    pub first: Bytes,
    pub parts: VecDeque<Bytes>,
    size: usize,
    is_h2: bool,
    /// How long it is by its decoder, where that is known before it has come.
    pub length: Option<u64>,
    /// How it has ended, if that is known and was not told yet.
    outcome: Option<Result<Held, NoBody>>,
}

/// How much is collected of a body, and how slow its client may be.
#[derive(Clone, Copy)]
pub struct Limits {
    /// What may be held.
    pub hold: usize,
    /// What may come at all.
    pub most: u64,
    pub slowest: Slowest,
}

impl Limits {
    #[must_use]
    pub fn of(plan: &Plan) -> Self {
        let settings = &plan.settings;
        let most = if settings.body_bytes_max == 0 { u64::MAX } else { settings.body_bytes_max };
        Self { hold: settings.hold_bytes, most, slowest: Slowest::of(settings) }
    }
}

impl Hold {
    #[must_use]
    pub fn new(body: Incoming, is_h2: bool) -> Self {
        let length = body.size_hint().exact();
        Self { body, first: Bytes::new(), parts: VecDeque::new(), size: 0, is_h2, length, outcome: None }
    }

    /// Collects on, unless the client is too slow.
    ///
    /// # Errors
    /// Where the body does not come, or not whole, or is too large.
    pub fn poll(
        &mut self,
        limits: Limits,
        client: &Client,
        pace: &mut Pace,
        context: &mut Context<'_>,
    ) -> Poll<Result<Held, NoBody>> {
        if let Some(outcome) = self.outcome.take() {
            return Poll::Ready(outcome);
        }
        let before = self.size;
        let collected = self.collect(limits, client, context);
        if collected.is_pending() {
            if self.size > before {
                pace.came(self.size - before);
            }
            return pace.poll(context).map(|()| Err(NoBody::Slow));
        }
        collected
    }

    /// Takes what is there.
    fn collect(&mut self, limits: Limits, client: &Client, context: &mut Context<'_>) -> Poll<Result<Held, NoBody>> {
        loop {
            let body = RefCell::new(&mut self.body);
            // Behind the last part, hyper has nothing left to do; on HTTP/2 the connection has others.
            let is_last = |frame: &Poll<_>| frame.is_ready() && body.borrow().is_end_stream();
            let mut next = || Pin::new(&mut **body.borrow_mut()).poll_frame(context);
            let next = if self.is_h2 { next() } else { client.quietly(next, is_last) };
            let Poll::Ready(frame) = next else { return Poll::Pending };
            let frame = match frame {
                Some(Ok(frame)) => frame,
                Some(Err(_)) => return Poll::Ready(Err(NoBody::Cut)),
                // An HTTP/2 stream that was reset without an error ends like any other, but not whole.
                None if self.is_h2 && !self.body.is_end_stream() => return Poll::Ready(Err(NoBody::Cut)),
                // hyper says so itself; but what is short would be committed as a shorter write.
                None if self.body.size_hint().exact().is_some_and(|left| left > 0) => {
                    return Poll::Ready(Err(NoBody::Cut));
                }
                None if self.ends_elsewhere(client) => return Poll::Ready(Err(NoBody::Cut)),
                None => return Poll::Ready(Ok(Held::Whole { trailers: None })),
            };
            match frame.into_data() {
                Ok(data) => self.take(data),
                Err(_) if self.ends_elsewhere(client) => return Poll::Ready(Err(NoBody::Cut)),
                Err(frame) => {
                    return Poll::Ready(Ok(Held::Whole { trailers: frame.into_trailers().ok().map(Box::new) }));
                }
            }
            if self.size as u64 > limits.most {
                return Poll::Ready(Err(NoBody::TooLong));
            }
            if self.size > limits.hold {
                return Poll::Ready(Ok(Held::Long));
            }
            if self.body.is_end_stream() {
                if self.ends_elsewhere(client) {
                    return Poll::Ready(Err(NoBody::Cut));
                }
                return Poll::Ready(Ok(Held::Whole { trailers: None }));
            }
        }
    }

    /// A body in chunks whose end two parsers could find in two places.
    fn ends_elsewhere(&self, client: &Client) -> bool {
        self.length.is_none() && !client.body_is_over()
    }

    fn take(&mut self, data: Bytes) {
        self.size += data.len();
        if self.first.is_empty() {
            self.first = data;
        } else if !data.is_empty() {
            self.parts.push_back(data);
        }
    }
}

/// A request's body, as far as it is there before the request is judged.
#[allow(clippy::large_enum_variant, reason = "it does not live long")]
pub enum Source {
    /// All of it, and the room that it takes.
    Here { body: StoreBody, share: Option<Share> },
    /// Not all of it, or it was not looked at.
    Coming { hold: Hold, share: Option<Share> },
}

impl Source {
    /// A body that nobody has looked at.
    #[must_use]
    pub fn coming(head: &Parts, body: Incoming) -> Self {
        Self::Coming { hold: Hold::new(body, head.version == Version::HTTP_2), share: None }
    }

    /// Takes what has come of a write's body with its head, if it is short. The client is asked for nothing:
    /// so it must not wait for that.
    #[must_use]
    pub fn look(
        head: &Parts,
        body: Incoming,
        plane: &Arc<Plane>,
        limits: (Limits, usize),
        client: &Client,
        context: &mut Context<'_>,
    ) -> Self {
        if body.is_end_stream() {
            return Self::Here { body: StoreBody::Empty, share: None };
        }
        let (limits, total) = limits;
        let mut hold = Hold::new(body, head.version == Version::HTTP_2);
        let length = hold.length.and_then(|length| usize::try_from(length).ok());
        let share = match length {
            Some(length) if length <= limits.hold && !hold.is_h2 => Share::take(plane, length, total),
            Some(_) | None => None,
        };
        if share.is_some() {
            match hold.collect(limits, client, context) {
                Poll::Pending => {}
                Poll::Ready(Ok(Held::Whole { trailers: None })) => {
                    return Self::Here { body: StoreBody::held(hold.first, hold.parts, None), share };
                }
                Poll::Ready(outcome) => hold.outcome = Some(outcome),
            }
        }
        Self::Coming { hold, share }
    }

    #[must_use]
    pub fn is_here(&self) -> bool {
        matches!(self, Self::Here { .. })
    }

    /// What is still to come, for whoever throws it away.
    #[must_use]
    pub fn into_rest(self) -> Option<Incoming> {
        match self {
            Self::Here { .. } => None,
            Self::Coming { hold, .. } => Some(hold.body),
        }
    }
}

/// How much of a refused request's body is read on, and for how long.
const DISCARD_BYTES: usize = 16 << 20;
const DISCARD_PATIENCE: Duration = Duration::from_secs(5);

/// Reads a refused request's body on, within bounds, and throws it away: while it is still coming, some
/// clients cannot read their answer (HTTP/1.1: the connection would be reset under it; HTTP/2: so would
/// the stream).
pub fn discard(worker: &Worker, mut body: Incoming) {
    if body.is_end_stream() || worker.stopping.get() {
        return;
    }
    let mut alarm = worker.alarms.set(DISCARD_PATIENCE);
    tokio::task::spawn_local(async move {
        let mut left = DISCARD_BYTES;
        poll_fn(|context| {
            while let Poll::Ready(frame) = Pin::new(&mut body).poll_frame(context) {
                let Some(Ok(frame)) = frame else { return Poll::Ready(()) };
                left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
                if left == 0 {
                    return Poll::Ready(());
                }
            }
            alarm.poll(context)
        })
        .await;
    });
}
