//! Holding a body back until it is whole, so that nothing was sent of a write that is refused in the end.
//!
//! A body of up to `hold_bytes` is collected; a longer one streams. `hold_total_bytes` bounds what all workers hold
//! together. A request that would exceed it is refused before a byte of its body is read.

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
use crate::{
    failpoints::{self, Fault},
    upstream::{body::StoreBody, shares::Asker},
};

/// A body, as far as it has come.
pub enum Held {
    Whole {
        trailers: Option<Box<HeaderMap>>,
    },
    /// Longer than what may be held.
    Long,
}

/// Why a body is missing.
#[derive(Debug, PartialEq, Eq)]
pub enum NoBody {
    /// The client broke off, or sent an invalid body.
    Cut,
    Slow,
    /// Larger than any body may be.
    TooLong,
}

/// A share of the bytes that may be held.
pub struct Share {
    plane: Arc<Plane>,
    bytes: usize,
    room: Room,
}

/// What a share is for.
enum Room {
    /// A body.
    Body,
    /// A body of this request. Boxed, since few requests need it and shares are moved about.
    BodyOf(Box<Asker>),
    /// The answer to a read, taken before its client takes it.
    Answer,
}

/// Whose bodies are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    Object(u64),
    Client(u64),
    /// Writes that are not judged.
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

    /// Counts a body, unless its owner has used its share of `total`. An object may have three quarters. Reads may have
    /// a quarter and writes that are not judged half, and neither may use the last quarter. A client that has an eighth
    /// may not use the last eighth. `held`: what all owners hold, with this body. The first of an owner's bodies is
    /// always admitted.
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
    /// Takes a share of `total`; `None` if too little is left.
    #[must_use]
    pub fn take(plane: &Arc<Plane>, bytes: usize, total: usize) -> Option<Self> {
        let before = plane.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        let share = Self { plane: Arc::clone(plane), bytes, room: Room::Body };
        (before + bytes <= total).then_some(share)
    }

    /// Counts the share as this request's. `None` where its owner must leave room for others: an object, a client,
    /// reads, or writes that are not judged.
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

    /// Whether the share is counted for a request.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        !matches!(self.room, Room::Body)
    }

    /// Takes a share for the answer to a read. All of these together may have a quarter of `total`.
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
pub struct Hold<B = Incoming> {
    /// Where the rest comes from.
    pub body: B,
    /// What has come: most bodies come in one part.
    pub first: Bytes,
    pub parts: VecDeque<Bytes>,
    size: usize,
    is_h2: bool,
    /// The length by the decoder, where it is known before the body has come.
    pub length: Option<u64>,
    /// How the body ended, if that is known and not yet returned.
    outcome: Option<Result<Held, NoBody>>,
}

/// As it is, but for a fault of tests.
fn or_short(outcome: Result<Held, NoBody>) -> Result<Held, NoBody> {
    match outcome {
        Err(NoBody::Cut | NoBody::Slow) if failpoints::on(Fault::ShortBody) => Ok(Held::Whole { trailers: None }),
        outcome => outcome,
    }
}

/// How much is collected of a body, and how slow its client may be.
#[derive(Clone, Copy)]
pub struct Limits {
    /// How many bytes may be held.
    pub hold: usize,
    /// How many bytes may come at all.
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

impl<B: Body<Data = Bytes> + Unpin> Hold<B> {
    #[must_use]
    pub fn new(body: B, is_h2: bool) -> Self {
        let length = body.size_hint().exact();
        Self { body, first: Bytes::new(), parts: VecDeque::new(), size: 0, is_h2, length, outcome: None }
    }

    /// Collects more of the body, unless the client is too slow.
    ///
    /// # Errors
    /// Where the body does not come, is not whole, or is too large.
    pub fn poll(
        &mut self,
        limits: Limits,
        client: &Client,
        pace: &mut Pace,
        context: &mut Context<'_>,
    ) -> Poll<Result<Held, NoBody>> {
        if let Some(outcome) = self.outcome.take() {
            return Poll::Ready(or_short(outcome));
        }
        let before = self.size;
        let collected = self.collect(limits, client, context);
        if collected.is_pending() {
            if self.size > before {
                pace.came(self.size - before);
            }
            return pace.poll(context).map(|()| or_short(Err(NoBody::Slow)));
        }
        collected.map(or_short)
    }

    /// Nothing of the body has been taken.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        self.size == 0 && self.outcome.is_none()
    }

    /// Takes the parts that have come.
    fn collect(&mut self, limits: Limits, client: &Client, context: &mut Context<'_>) -> Poll<Result<Held, NoBody>> {
        loop {
            let body = RefCell::new(&mut self.body);
            // After the last part, hyper's task has no work left; on HTTP/2 the connection has other streams.
            let is_last = |frame: &Poll<_>| frame.is_ready() && body.borrow().is_end_stream();
            let mut next = || Pin::new(&mut **body.borrow_mut()).poll_frame(context);
            let next = if self.is_h2 { next() } else { client.without_self_wake(next, is_last) };
            let Poll::Ready(frame) = next else { return Poll::Pending };
            let frame = match frame {
                Some(Ok(frame)) => frame,
                Some(Err(_)) => return Poll::Ready(Err(NoBody::Cut)),
                // An HTTP/2 stream that was reset without an error ends like any other, but its body is not whole.
                None if self.is_h2 && !self.body.is_end_stream() => return Poll::Ready(Err(NoBody::Cut)),
                None => return Poll::Ready(self.ended(None, client)),
            };
            match frame.into_data() {
                Ok(data) => self.take(data),
                Err(frame) => return Poll::Ready(self.ended(frame.into_trailers().ok(), client)),
            }
            if self.size as u64 > limits.most {
                return Poll::Ready(Err(NoBody::TooLong));
            }
            if self.size > limits.hold {
                return Poll::Ready(Ok(Held::Long));
            }
            if self.body.is_end_stream() {
                return Poll::Ready(self.ended(None, client));
            }
        }
    }

    /// The body has come to its end, by its decoder. It is whole if it is as long as was said: what is not would be
    /// committed as another write. One in chunks is whole if no parser could find its end in another place.
    fn ended(&self, trailers: Option<HeaderMap>, client: &Client) -> Result<Held, NoBody> {
        let is_whole = match self.length {
            Some(length) => length == self.size as u64,
            None => client.body_is_over(),
        };
        if is_whole { Ok(Held::Whole { trailers: trailers.map(Box::new) }) } else { Err(NoBody::Cut) }
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

/// A request's body, as far as it has come before the request is judged.
#[allow(clippy::large_enum_variant, reason = "it does not live long")]
pub enum Source {
    /// The whole body, and the room that it uses.
    Here { body: StoreBody, share: Option<Share> },
    /// Part of the body, or a body that was not read yet.
    Coming { hold: Hold, share: Option<Share> },
}

impl Source {
    /// A body of which nothing was read.
    #[must_use]
    pub fn coming(head: &Parts, body: Incoming) -> Self {
        Self::Coming { hold: Hold::new(body, head.version == Version::HTTP_2), share: None }
    }

    /// Takes the part of a write's body that came with its head, if the body is short. The client is not asked to send
    /// it, so this must not wait for more.
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

    /// Gives the body's room back while it is not known whether the write may go on. What came with the head is in
    /// memory in any case, and nothing more is read.
    #[must_use]
    pub fn without_room(mut self) -> Self {
        match &mut self {
            Self::Here { share, .. } | Self::Coming { share, .. } => *share = None,
        }
        self
    }

    /// Takes room of `total` for a body that is here; `None` where there is no room. A body that is still to come gets
    /// its room when it is collected.
    #[must_use]
    pub fn with_room(mut self, plane: &Arc<Plane>, total: usize) -> Option<Self> {
        if let Self::Here { body, share: share @ None } = &mut self
            && let Some(bytes) = body.size_hint().exact().filter(|bytes| *bytes > 0)
        {
            *share = Some(Share::take(plane, usize::try_from(bytes).ok()?, total)?);
        }
        Some(self)
    }

    /// The rest of the body, for a caller that throws it away.
    #[must_use]
    pub fn into_rest(self) -> Option<Incoming> {
        match self {
            Self::Here { .. } => None,
            Self::Coming { hold, .. } => Some(hold.body),
        }
    }
}

/// How much more of a refused request's body is read, and for how long.
const DISCARD_BYTES: usize = 16 << 20;
const DISCARD_PATIENCE: Duration = Duration::from_secs(5);

/// Reads a refused request's body on, within bounds, and throws it away: while it is still coming, some
/// clients cannot read their answer (HTTP/1.1: the connection would be reset under it; HTTP/2: so would
/// the stream).
pub fn discard<B: Body<Data = Bytes> + Unpin + 'static>(worker: &Worker, mut body: B) {
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

    /// How many bodies of 10 bytes are admitted, where others hold `held` already.
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
