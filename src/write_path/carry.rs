//! What goes on when the client is gone, or slow: a write that was begun, and the store's answer to it.
//!
//! A write is settled by its whole answer. The gate reads a write's answer ahead of its client, so that a
//! slow one does not keep the object from being handed over; beyond [`AHEAD_BYTES`] it is passed on as it
//! comes, and the write stays in flight until its end.

use std::{
    cell::RefCell,
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::{
    Worker,
    alarms::Alarm,
    forward::{Job, forward},
    handle::Answered,
    headers::strip_fence,
    hold::{Share, Source},
    journaled::{Line, UNWRITTEN},
    keyed::Claim,
    passage::Passage,
    plan::Outfit,
    reply::Refused,
};
use crate::{
    fence::{
        Permit,
        idempotency::{Answer, Payload},
    },
    store::{body::Cut, pool::Lane},
};

/// How much of a write's answer is read ahead of its client.
pub const AHEAD_BYTES: usize = 65_536;

/// Counts what is carried on: a worker does not stop before it is done.
pub struct Carrying(Rc<Worker>);

impl Carrying {
    #[must_use]
    pub fn new(worker: &Rc<Worker>) -> Self {
        worker.carried.set(worker.carried.get() + 1);
        Self(Rc::clone(worker))
    }
}

impl Drop for Carrying {
    fn drop(&mut self) {
        self.0.carried.set(self.0.carried.get() - 1);
    }
}

/// An answer that was read ahead.
pub enum Ahead {
    Whole(Frames),
    /// There is more of it.
    Part(Frames),
    Broken(String),
}

/// What has been read of an answer: most have one part.
#[derive(Default)]
pub struct Frames {
    first: Option<Bytes>,
    more: VecDeque<Frame<Bytes>>,
}

impl Frames {
    fn push(&mut self, frame: Frame<Bytes>) {
        let is_first = self.first.is_none() && self.more.is_empty();
        match frame.into_data() {
            Ok(data) if is_first => self.first = Some(data),
            Ok(data) => self.more.push_back(Frame::data(data)),
            Err(frame) => self.more.push_back(frame),
        }
    }

    /// The only part, if there is one at most and it is data.
    ///
    /// # Errors
    /// With all of it, where there is more to it.
    pub fn into_only(self) -> Result<Option<Bytes>, Self> {
        if self.more.is_empty() { Ok(self.first.filter(|data| !data.is_empty())) } else { Err(self) }
    }

    fn pop(&mut self) -> Option<Frame<Bytes>> {
        self.first.take().map(Frame::data).or_else(|| self.more.pop_front())
    }

    fn is_empty(&self) -> bool {
        self.first.is_none() && self.more.is_empty()
    }

    fn has_trailers(&self) -> bool {
        self.more.iter().any(Frame::is_trailers)
    }

    /// All of its data, if there is nothing else.
    #[must_use]
    pub fn data(&self) -> Option<Bytes> {
        match (&self.first, self.more.len()) {
            (None, 0) => Some(Bytes::new()),
            (Some(only), 0) => Some(only.clone()),
            _ if self.has_trailers() => None,
            _ => {
                let parts = self.first.iter().chain(self.more.iter().filter_map(Frame::data_ref));
                Some(parts.fold(Vec::new(), |all, part| [&all, &part[..]].concat()).into())
            }
        }
    }

    /// How many bytes of data it has.
    fn size(&self) -> u64 {
        self.first.iter().chain(self.more.iter().filter_map(Frame::data_ref)).map(|data| data.len() as u64).sum()
    }
}

/// Reads an answer ahead of its client.
pub async fn read_ahead(lane: &mut Lane, worker: &Worker, patience: impl Fn() -> Duration) -> Ahead {
    let (mut frames, mut size) = (Frames::default(), 0);
    // Most answers are there, so nobody waits.
    let mut alarm: Option<Alarm> = None;
    let read = poll_fn(|context| {
        while !lane.link().is_over() {
            match lane.link().poll_frame(context) {
                Poll::Pending => {
                    let alarm = alarm.get_or_insert_with(|| worker.alarms.set(patience()));
                    return alarm.poll(context).map(|()| Err("it did not come to its end in time".to_owned()));
                }
                Poll::Ready(None) => break,
                Poll::Ready(Some(Err(failed))) => return Poll::Ready(Err(failed.to_string())),
                Poll::Ready(Some(Ok(mut frame))) => {
                    frame.trailers_mut().into_iter().for_each(strip_fence);
                    size += frame.data_ref().map_or(0, Bytes::len);
                    frames.push(frame);
                    if size > AHEAD_BYTES {
                        break;
                    }
                }
            }
        }
        Poll::Ready(Ok(()))
    });
    match read.await {
        Ok(()) if lane.link().is_over() => Ahead::Whole(frames),
        Ok(()) => Ahead::Part(frames),
        Err(why) => Ahead::Broken(why),
    }
}

/// Takes what has come of a read's answer, within the same bound, without waiting for more: a client that is slow to take a
/// short answer does not hold a connection to the store.
///
/// # Errors
/// With why the answer broke off.
pub fn take_ready(lane: &mut Lane) -> Result<Frames, String> {
    let (mut frames, mut size) = (Frames::default(), 0);
    // Whoever takes the rest waits for it with a waker of its own.
    let mut context = Context::from_waker(Waker::noop());
    while size <= AHEAD_BYTES && !lane.link().is_over() {
        match lane.link().poll_frame(&mut context) {
            Poll::Pending | Poll::Ready(None) => break,
            Poll::Ready(Some(Err(failed))) => return Err(failed.to_string()),
            Poll::Ready(Some(Ok(mut frame))) => {
                frame.trailers_mut().into_iter().for_each(strip_fence);
                size += frame.data_ref().map_or(0, Bytes::len);
                frames.push(frame);
            }
        }
    }
    Ok(frames)
}

/// What is kept while an answer is being passed on.
pub struct Carried {
    pub worker: Rc<Worker>,
    pub lane: Lane,
    /// The connection can carry another request behind this one, and the write is settled by its answer.
    pub settles: bool,
    /// `None` for reads.
    pub passage: Option<Rc<Passage>>,
    /// What is to be written down of a write, its body's digest and its answer's status, where its route keeps
    /// a journal.
    pub line: Option<(Line, [u8; 32], u16)>,
    /// The key that is the write's, its payload and its answer's status.
    pub claim: Option<(Box<Claim>, Option<Payload>, u16)>,
}

impl Carried {
    /// The answer has come to its end.
    fn finish(self) {
        if !self.settles {
            return self.lose();
        }
        self.passage.inspect(|passage| passage.settle());
        self.lane.give_back(self.worker.now());
        keep(self.claim);
    }

    /// The answer has come to its end, but the write is to be written down before anyone is told. Gives itself back
    /// where it is not.
    fn write_down(self) -> Result<Writing, Self> {
        let Self { worker, lane, settles: true, passage: Some(passage), line: Some((line, digest, status)), claim } =
            self
        else {
            return Err(self);
        };
        lane.give_back(worker.now());
        let carrying = Carrying::new(&worker);
        Ok(Box::pin(async move {
            let written = line.clone().settled(&worker.gate.ledger, digest, status).await;
            match &written {
                Ok(()) => {
                    passage.settle();
                    keep(claim);
                }
                Err(_) => {
                    worker.plane.metrics().unknown();
                    line.unknown(&worker.gate.ledger).await;
                    passage.lose();
                }
            }
            drop(carrying);
            written.map_err(|_| UNWRITTEN.into())
        }))
    }

    /// The answer will not come to its end: the write is unknown from when its connection is closed.
    fn lose(self) {
        let Self { worker, lane, passage, line, .. } = self;
        drop(lane);
        let Some(passage) = passage else { return };
        worker.plane.metrics().unknown();
        if line.is_some() && worker.stopping.get() {
            worker.gate.records.lose_track();
        }
        let Some((line, ..)) = line.filter(|_| !worker.stopping.get()) else { return passage.lose() };
        // It is in flight until that is queued.
        let carrying = Carrying::new(&worker);
        tokio::task::spawn_local(async move {
            line.unknown(&worker.gate.ledger).await;
            passage.lose();
            drop(carrying);
        });
    }
}

/// An answer that is too long to be kept has come to its end.
fn keep(claim: Option<(Box<Claim>, Option<Payload>, u16)>) {
    if let Some((claim, payload, status)) = claim {
        claim.answered_later(payload, Answer::Dropped { status });
    }
}

/// The next of an answer's body.
type Next = Option<Result<Frame<Bytes>, Cut>>;

/// A write that is being written down, behind its whole answer.
type Writing = Pin<Box<dyn Future<Output = Result<(), Cut>>>>;

/// A store's answer, on its way to the client: what was read ahead, then the rest as it comes. If the
/// client goes away first, a write's answer is read on without it.
pub struct StoreReply {
    ahead: Frames,
    /// Shared with the deadline of a write's answer, which runs whether or not the client reads.
    rest: Rc<RefCell<Rest>>,
    patience: Duration,
    /// A write's answer must be over by then; a read's must have gone on, and its alarm is set when it is
    /// waited for.
    alarm: Option<Alarm>,
    /// The store has not said how long it is, so the client is not told either, though it may be known by now.
    is_unsized: bool,
    /// The room that what was taken ahead of a read's client has.
    #[allow(dead_code, reason = "it is given back when this is dropped")]
    share: Option<Share>,
    /// The end of a journaled write's answer, held back until the write is written down.
    writing: Option<(Writing, Option<Frame<Bytes>>)>,
}

/// What is not here yet.
#[allow(clippy::large_enum_variant, reason = "there is one per answer, and it is shared")]
enum Rest {
    Coming(Carried),
    Nothing,
    /// It did not come, or not in time.
    Lost,
}

impl Rest {
    /// Takes it up, to be finished or lost.
    fn take(&mut self, to: Self) -> Option<Carried> {
        match std::mem::replace(self, to) {
            Self::Coming(carried) => Some(carried),
            before @ (Self::Nothing | Self::Lost) => {
                *self = before;
                None
            }
        }
    }
}

const LATE: &str = "the store's answer did not come to its end in time";

impl StoreReply {
    /// An answer that is here already.
    #[must_use]
    pub fn whole(ahead: Frames) -> Self {
        let rest = Rc::new(RefCell::new(Rest::Nothing));
        Self { ahead, rest, patience: Duration::ZERO, alarm: None, is_unsized: false, share: None, writing: None }
    }

    /// An answer of which the rest, or all, is still to come.
    #[must_use]
    pub fn coming(ahead: Frames, carried: Carried, patience: Duration) -> Self {
        let deadline = || carried.passage.is_some().then(|| carried.worker.alarms.set(patience));
        let (deadline, alarm) = (deadline(), deadline());
        let rest = Rc::new(RefCell::new(Rest::Coming(carried)));
        if let Some(mut deadline) = deadline {
            let shared = Rc::downgrade(&rest);
            tokio::task::spawn_local(async move {
                poll_fn(|context| deadline.poll(context)).await;
                if let Some(late) = shared.upgrade().and_then(|shared| shared.borrow_mut().take(Rest::Lost)) {
                    late.lose();
                }
            });
        }
        let reply = Self { ahead, rest, patience, alarm, is_unsized: false, share: None, writing: None };
        reply.finish_if_over();
        reply
    }

    /// The answer to a read, part of which was taken ahead of its client. `is_unsized`: the client is not told how long
    /// it is.
    #[must_use]
    pub fn ahead_of_client(mut self, is_unsized: bool, share: Option<Share>) -> Self {
        (self.is_unsized, self.share) = (is_unsized, share);
        self
    }

    /// Whether all of it is here.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        matches!(*self.rest.borrow(), Rest::Nothing) && self.writing.is_none()
    }

    fn is_over(&self) -> bool {
        match &mut *self.rest.borrow_mut() {
            Rest::Coming(carried) => carried.lane.link().is_over(),
            Rest::Nothing | Rest::Lost => false,
        }
    }

    fn finish_if_over(&self) {
        if self.is_over() {
            self.finish();
        }
    }

    /// The answer has come to its end with this frame, or behind the last: a journaled write is written down
    /// before that is passed on. Gives the frame back where there is nothing to write down.
    fn write_down(&mut self, last: Option<Frame<Bytes>>) -> Result<(), Option<Frame<Bytes>>> {
        let Some(carried) = self.rest.borrow_mut().take(Rest::Nothing) else { return Err(last) };
        match carried.write_down() {
            Ok(writing) => {
                self.writing = Some((writing, last));
                Ok(())
            }
            Err(carried) => {
                carried.finish();
                Err(last)
            }
        }
    }

    fn poll_writing(&mut self, context: &mut Context<'_>) -> Option<Poll<Next>> {
        let (writing, _) = self.writing.as_mut()?;
        let written = match writing.as_mut().poll(context) {
            Poll::Pending => return Some(Poll::Pending),
            Poll::Ready(written) => written,
        };
        let last = self.writing.take().and_then(|(_, last)| last);
        Some(Poll::Ready(match written {
            Ok(()) => last.map(Ok),
            Err(cut) => Some(Err(cut)),
        }))
    }

    fn finish(&self) {
        let carried = self.rest.borrow_mut().take(Rest::Nothing);
        if let Some(carried) = carried {
            carried.finish();
        }
    }

    fn lose(&self) {
        let carried = self.rest.borrow_mut().take(Rest::Lost);
        if let Some(carried) = carried {
            carried.lose();
        }
    }

    fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<Next> {
        let mut rest = self.rest.borrow_mut();
        let carried = match &mut *rest {
            Rest::Coming(carried) => carried,
            Rest::Nothing => return Poll::Ready(None),
            Rest::Lost => return Poll::Ready(Some(Err(LATE.into()))),
        };
        match carried.lane.link().poll_frame(context) {
            Poll::Ready(frame) => {
                if carried.passage.is_none() {
                    // A read may take as long as it likes, as long as something comes.
                    self.alarm = None;
                }
                Poll::Ready(frame.map(|frame| match frame {
                    Ok(mut frame) => {
                        frame.trailers_mut().into_iter().for_each(strip_fence);
                        Ok(frame)
                    }
                    Err(failed) => Err(failed.to_string().into()),
                }))
            }
            Poll::Pending => {
                let alarm = self.alarm.get_or_insert_with(|| carried.worker.alarms.set(self.patience));
                alarm.poll(context).map(|()| Some(Err(LATE.into())))
            }
        }
    }
}

impl Body for StoreReply {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if let Some(frame) = self.ahead.pop() {
            return Poll::Ready(Some(Ok(frame)));
        }
        if let Some(written) = self.poll_writing(context) {
            return written;
        }
        let ended = match self.poll_rest(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(None) => self.write_down(None),
            Poll::Ready(Some(Ok(frame))) if self.is_over() => self.write_down(Some(frame)),
            Poll::Ready(Some(Ok(frame))) => Err(Some(frame)),
            // The connection is of no more use.
            Poll::Ready(Some(Err(cut))) => {
                self.lose();
                return Poll::Ready(Some(Err(cut)));
            }
        };
        match ended {
            Ok(()) => self.poll_writing(context).unwrap_or(Poll::Ready(None)),
            Err(frame) => Poll::Ready(frame.map(Ok)),
        }
    }

    fn is_end_stream(&self) -> bool {
        !self.is_unsized && self.ahead.is_empty() && self.is_whole()
    }

    fn size_hint(&self) -> SizeHint {
        if self.is_unsized {
            return SizeHint::default();
        }
        let held = self.writing.as_ref().and_then(|(_, last)| last.as_ref()).and_then(Frame::data_ref);
        let ahead = self.ahead.size() + held.map_or(0, |data| data.len() as u64);
        let rest = match &mut *self.rest.borrow_mut() {
            Rest::Nothing if self.ahead.has_trailers() => None,
            Rest::Nothing => Some(0),
            Rest::Coming(carried) => carried.lane.link().to_come(),
            Rest::Lost => None,
        };
        let mut hint = SizeHint::new();
        hint.set_lower(ahead + rest.unwrap_or(0));
        if let Some(rest) = rest {
            hint.set_upper(ahead + rest);
        }
        hint
    }
}

impl Drop for StoreReply {
    fn drop(&mut self) {
        if let Some((writing, _)) = self.writing.take() {
            // The write is settled by it, whoever hears of that.
            tokio::task::spawn_local(writing);
            return;
        }
        let carrying = match &*self.rest.borrow() {
            Rest::Coming(carried) if carried.passage.is_some() && !carried.worker.stopping.get() => {
                Carrying::new(&carried.worker)
            }
            Rest::Coming(_) | Rest::Nothing | Rest::Lost => return,
        };
        let (rest, patience, alarm) = (Rc::clone(&self.rest), self.patience, self.alarm.take());
        let (ahead, is_unsized) = (Frames::default(), self.is_unsized);
        let mut rest = Self { ahead, rest, patience, alarm, is_unsized, share: None, writing: None };
        tokio::task::spawn_local(async move {
            while let Some(Ok(_)) = poll_fn(|context| Pin::new(&mut rest).poll_frame(context)).await {}
            drop(carrying);
        });
    }
}

/// Work on a write that goes on when nobody waits for it any more.
pub struct CarryOn {
    work: Option<Pin<Box<dyn Future<Output = Answered>>>>,
    worker: Rc<Worker>,
    /// Before something may have been sent, there is nothing to carry on.
    passage: Rc<Passage>,
    outfit: Rc<Outfit>,
    route: usize,
}

impl CarryOn {
    /// Forwards a write.
    #[must_use]
    pub fn new(job: Box<Job>, passage: Rc<Passage>, route: usize, body: Source) -> Self {
        let (worker, outfit) = (Rc::clone(&job.worker), Rc::clone(&job.outfit));
        Self { work: Some(Box::pin(forward(job, body))), worker, passage, outfit, route }
    }

    /// A refusal, with what it is about.
    fn about(&self, refused: Refused) -> Refused {
        let permit = self.passage.permit();
        let refused = refused.about(self.passage.object(), &self.outfit.plan.routes.all()[self.route].name);
        refused.by(permit.map(|permit| permit.holder().clone()), permit.map(Permit::seq))
    }
}

impl Future for CarryOn {
    type Output = Answered;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answered> {
        let Some(work) = &mut self.work else { return Poll::Pending };
        let done = work.as_mut().poll(context);
        if done.is_ready() {
            self.work = None;
        }
        done.map_err(|refused| Box::new(self.about(*refused)))
    }
}

impl Drop for CarryOn {
    fn drop(&mut self) {
        let may_have_left = self.passage.is_at_risk() && !self.worker.stopping.get();
        if let Some(work) = self.work.take().filter(|_| may_have_left) {
            let carrying = Carrying::new(&self.worker);
            tokio::task::spawn_local(async move {
                // What comes of it is for nobody; the write is settled by it.
                drop(work.await);
                drop(carrying);
            });
        }
    }
}
