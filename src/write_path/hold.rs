//! Holding a body back until it is whole, so that a write that is refused in the end was never sent.
//!
//! A body of up to `hold_bytes` is collected; a longer one streams. What all workers hold together is
//! bounded by `hold_total_bytes`, and whoever would exceed it is turned away before a byte is read.

use std::{
    cell::RefCell,
    collections::{HashMap, VecDeque},
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
use crate::upstream::{body::StoreBody, shares::Asker};

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
enum Room {
    /// A body.
    Body,
    /// A body of this request. Apart, since few are looked at so closely, and shares are moved about.
    BodyOf(Box<Asker>),
    /// The answer to a read, ahead of its client.
    Answer,
}

/// Whose bodies are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    Object(u64),
    Client(u64),
    /// Writes that nobody judges.
    Unjudged,
    Reads,
}

/// What each owner of bodies holds.
#[derive(Debug, Default)]
pub struct HeldBy(HashMap<Owner, usize>);

impl HeldBy {
    fn owners(asker: Asker) -> impl Iterator<Item = Owner> {
        let (first, second) = match asker {
            Asker::Read(_) => (Owner::Reads, None),
            Asker::Unjudged => (Owner::Unjudged, None),
            Asker::Write { object, client } => (Owner::Object(object), Some(Owner::Client(client))),
        };
        [Some(first), second].into_iter().flatten()
    }

    /// Counts a body, unless its owner has had its share of `total`: an object three quarters, reads a quarter, writes that
    /// nobody judges half, and neither of these two any of the last quarter; a client that has an eighth none of the last
    /// eighth. `held`: what all hold, with this one. The first of an owner's bodies is let in.
    fn add(&mut self, asker: Asker, bytes: usize, held: usize, total: usize) -> bool {
        let may_have = |owner: Owner| {
            let own = self.0.get(&owner).map_or(0, |own| own + bytes);
            let (most, free) = (|share: usize| own <= share, |kept: usize| held <= total - kept);
            match owner {
                Owner::Object(_) => most(total - total / 4),
                Owner::Client(_) => most(total / 8) || free(total / 8),
                Owner::Unjudged => most(total / 2) && free(total / 4),
                Owner::Reads => most(total / 4) && free(total / 4),
            }
        };
        let is_first = |owner: Owner| !self.0.contains_key(&owner);
        let may_add = Self::owners(asker).all(|owner| is_first(owner) || may_have(owner));
        if may_add {
            Self::owners(asker).for_each(|owner| *self.0.entry(owner).or_default() += bytes);
        }
        may_add
    }

    fn remove(&mut self, asker: Asker, bytes: usize) {
        for owner in Self::owners(asker) {
            if let Some(held) = self.0.get_mut(&owner) {
                *held -= bytes;
                if *held == 0 {
                    self.0.remove(&owner);
                }
            }
        }
    }
}

impl Share {
    /// Takes a share of `total`, if there is one left.
    #[must_use]
    pub fn take(plane: &Arc<Plane>, bytes: usize, total: usize) -> Option<Self> {
        let before = plane.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        let share = Self { plane: Arc::clone(plane), bytes, room: Room::Body };
        (before + bytes <= total).then_some(share)
    }

    /// The body is of this request: one holder, or those without a token, must leave room for others.
    #[must_use]
    pub fn of(mut self, asker: Asker, total: usize) -> Option<Self> {
        let held = self.plane.held_bytes.load(Ordering::Relaxed);
        let mut by = self.plane.held_by.lock().unwrap_or_else(PoisonError::into_inner);
        let is_in = by.add(asker, self.bytes, held, total);
        drop(by);
        is_in.then(|| {
            self.room = Room::BodyOf(Box::new(asker));
            self
        })
    }

    /// Whether it is known whose it is.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        !matches!(self.room, Room::Body)
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
        let counter = match &self.room {
            Room::Body => &self.plane.held_bytes,
            Room::BodyOf(asker) => {
                self.plane.held_by.lock().unwrap_or_else(PoisonError::into_inner).remove(**asker, self.bytes);
                &self.plane.held_bytes
            }
            Room::Answer => &self.plane.answer_bytes,
        };
        counter.fetch_sub(self.bytes, Ordering::Relaxed);
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

    /// Nothing has been taken of it.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        self.size == 0 && self.outcome.is_none()
    }

    /// Takes what is there.
    fn collect(&mut self, limits: Limits, client: &Client, context: &mut Context<'_>) -> Poll<Result<Held, NoBody>> {
        loop {
            let body = RefCell::new(&mut self.body);
            // Behind the last part, hyper has nothing left to do; on HTTP/2 the connection has others.
            let is_last = |frame: &Poll<_>| frame.is_ready() && body.borrow().is_end_stream();
            let mut next = || Pin::new(&mut **body.borrow_mut()).poll_frame(context);
            let next = if self.is_h2 { next() } else { client.without_self_wake(next, is_last) };
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
    pub fn try_buffer(
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

    /// Gives its room back while it is not known whether the write may go on: what has come with a head is there in any case,
    /// and nothing more is read.
    #[must_use]
    pub fn without_room(mut self) -> Self {
        match &mut self {
            Self::Here { share, .. } | Self::Coming { share, .. } => *share = None,
        }
        self
    }

    /// Takes room of `total` for a body that is here; `None` where there is none. One that is to come gets it when it is
    /// collected.
    #[must_use]
    pub fn with_room(mut self, plane: &Arc<Plane>, total: usize) -> Option<Self> {
        if let Self::Here { body, share: share @ None } = &mut self
            && let Some(bytes) = body.size_hint().exact().filter(|bytes| *bytes > 0)
        {
            *share = Some(Share::take(plane, usize::try_from(bytes).ok()?, total)?);
        }
        Some(self)
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

#[cfg(test)]
mod tests {
    use super::*;

    const TOTAL: usize = 800;

    /// How many bodies of 10 bytes get in, where others hold so much already.
    fn let_in(by: &mut HeldBy, held: &mut usize, asker: impl Fn(u64) -> Asker) -> usize {
        let mut count = 0;
        for number in 0..1_000 {
            if *held + 10 <= TOTAL && by.add(asker(number), 10, *held + 10, TOTAL) {
                *held += 10;
                count += 1;
            }
        }
        count
    }

    #[test]
    fn each_owner_leaves_room_for_the_bodies_of_others() {
        let object = |object: u64, client: u64| Asker::Write { object, client };
        let (mut by, mut held) = (HeldBy::default(), 0);
        assert_eq!(let_in(&mut by, &mut held, |_| Asker::Unjudged), 40, "half");
        assert_eq!(let_in(&mut by, &mut held, Asker::Read), 20, "a quarter");
        assert_eq!(let_in(&mut by, &mut held, |number| object(number, 1)), 10, "one client, with many objects");
        assert_eq!(let_in(&mut by, &mut held, |number| object(number, 2)), 10, "another one");
        let (mut by, mut held) = (HeldBy::default(), 0);
        assert_eq!(let_in(&mut by, &mut held, |number| object(1, number)), 60, "one object");
        assert_eq!(let_in(&mut by, &mut held, Asker::Read), 1, "none of the last quarter but the first");
        assert_eq!(let_in(&mut by, &mut held, |number| object(2, number)), 19);
        for number in 0..60 {
            by.remove(object(1, number), 10);
        }
        assert_eq!(by.0.get(&Owner::Object(1)), None);
        assert!(by.add(object(1, 1), 10, 200, TOTAL));
    }
}
