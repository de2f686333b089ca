//! The store's answer on its way to the client.
//!
//! A write is settled by its complete answer. The gate reads a write's answer ahead of its client, so that a slow
//! client does not keep the object from being handed over; beyond [`AHEAD_BYTES`] the answer is passed on as it
//! comes, and the write stays in flight until its end. If the client goes away, the answer is read on without it.

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
    detach::Detached,
    guard::WriteGuard,
    headers::strip_fence,
    hold::Share,
    journaled::{Line, UNWRITTEN, may_be_written_yet},
    keyed, outcome,
};
use crate::{
    fence::{
        idempotency::{KeptResponse, Payload},
        write::{Effect, Event},
    },
    upstream::{body::Cut, pool::PooledConn},
};

/// How much of a write's answer is read ahead of its client.
pub const AHEAD_BYTES: usize = 65_536;

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

    /// Puts data back that was popped last.
    fn put_back(&mut self, data: Bytes) {
        if let Some(first) = self.first.replace(data) {
            self.more.push_front(Frame::data(first));
        }
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
                let parts: Vec<&[u8]> = self.parts().map(|part| &part[..]).collect();
                Some(parts.concat().into())
            }
        }
    }

    /// Its data, part by part.
    fn parts(&self) -> impl Iterator<Item = &Bytes> {
        self.first.iter().chain(self.more.iter().filter_map(Frame::data_ref))
    }

    /// How many bytes of data it has.
    fn size(&self) -> u64 {
        self.parts().map(|data| data.len() as u64).sum()
    }
}

/// Reads an answer ahead of its client.
pub async fn read_ahead(conn: &mut PooledConn, worker: &Worker, patience: impl Fn() -> Duration) -> Ahead {
    let (mut frames, mut size) = (Frames::default(), 0);
    // Most answers are here, so most need no alarm.
    let mut alarm: Option<Alarm> = None;
    let read = poll_fn(|context| {
        while !conn.http1().is_over() {
            match conn.http1().poll_frame(context) {
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
        Ok(()) if conn.http1().is_over() => Ahead::Whole(frames),
        Ok(()) => Ahead::Part(frames),
        Err(why) => Ahead::Broken(why),
    }
}

/// Takes what has come of a read's answer, within the same bound, without waiting for more: a client that is slow to take a
/// short answer does not hold a connection to the store.
///
/// # Errors
/// With why the answer broke off.
pub fn take_ready(conn: &mut PooledConn) -> Result<Frames, String> {
    let (mut frames, mut size) = (Frames::default(), 0);
    // The rest is waited for with another waker.
    let mut context = Context::from_waker(Waker::noop());
    while size <= AHEAD_BYTES && !conn.http1().is_over() {
        match conn.http1().poll_frame(&mut context) {
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
pub struct Streaming {
    pub worker: Rc<Worker>,
    pub conn: PooledConn,
    /// The connection can carry another request behind this one, and the complete answer says what became of the
    /// write.
    pub settles: bool,
    /// `None` for reads.
    pub guard: Option<Rc<WriteGuard>>,
    /// The journal's line about a write, its body's digest and its answer's status, where its route keeps a journal.
    pub line: Option<(Line, [u8; 32], u16)>,
    /// What the write's idempotency key stands for.
    pub payload: Option<Payload>,
    pub status: u16,
}

impl Streaming {
    /// The answer has come to its end. Returns what has to be done before the client gets that end: a journaled write
    /// is written down first.
    fn finish(self) -> Option<Recording> {
        let Some(guard) = &self.guard else {
            self.give_back();
            return None;
        };
        match guard.on(Event::Answered { settles: self.settles }) {
            Effect::Close => {
                self.lose();
                None
            }
            Effect::Record(_) => Some(self.record()),
            effect => {
                keep(&self.worker, guard, &effect, self.payload, self.status);
                self.give_back();
                None
            }
        }
    }

    fn give_back(self) {
        if self.settles {
            self.conn.give_back(self.worker.now());
        }
    }

    /// Writes a settled write down. Its connection carries other requests meanwhile.
    fn record(self) -> Recording {
        let detached = Detached::new(&self.worker);
        let Self { worker, conn, guard, line, payload, status, .. } = self;
        conn.give_back(worker.now());
        Box::pin(async move {
            let Some(((line, digest, _), guard)) = line.zip(guard) else { return Ok(()) };
            let written = line.clone().settled(&worker.gate.ledger, digest, status).await;
            match guard.on(Event::Recorded(written.is_ok())) {
                Effect::Close => {
                    let has_line = written.as_ref().is_err_and(may_be_written_yet);
                    outcome::close(&worker, &guard, (!has_line).then_some(line)).await;
                }
                effect => keep(&worker, &guard, &effect, payload, status),
            }
            drop(detached);
            written.map_err(|_| UNWRITTEN.into())
        })
    }

    /// The answer will not come to its end: the outcome of a write is unknown from the close of its connection on.
    fn lose(self) {
        let Self { worker, conn, guard, line, .. } = self;
        drop(conn);
        let Some(guard) = guard else { return };
        let line = line.map(|(line, ..)| line);
        if line.is_none() {
            let _ = guard.on(Event::Closed { left: true });
            outcome::ended(&worker, &guard);
            return;
        }
        if worker.stopping.get() {
            // Its line cannot be written any more, so this run does not end in good order: the guard's drop says so.
            worker.plane.metrics().unknown();
            return;
        }
        // The write is in flight until its line is queued.
        let detached = Detached::new(&worker);
        tokio::task::spawn_local(async move {
            outcome::close(&worker, &guard, line).await;
            drop(detached);
        });
    }
}

/// An answer that is too long to be kept leaves its status under the write's key.
fn keep(worker: &Rc<Worker>, guard: &Rc<WriteGuard>, effect: &Effect, payload: Option<Payload>, status: u16) {
    if *effect == Effect::KeepAnswer {
        drop(keyed::keep_answer(worker, guard, payload, KeptResponse::Dropped { status }));
    }
}

/// The next of an answer's body.
type Next = Option<Result<Frame<Bytes>, Cut>>;

/// A write that is being written down, behind its complete answer.
type Recording = Pin<Box<dyn Future<Output = Result<(), Cut>>>>;

/// A store's answer, on its way to the client: what was read ahead, then the rest as it comes. If the
/// client goes away first, a write's answer is read on without it.
pub struct ResponseBody {
    ahead: Frames,
    /// Shared with the deadline of a write's answer, which runs whether or not the client reads.
    rest: Rc<RefCell<Rest>>,
    patience: Duration,
    /// A write's answer must be over by then; a read's must have gone on, and its alarm is set when it is
    /// waited for.
    alarm: Option<Alarm>,
    /// The store has not said how long it is, so the client gets no length either, though it may be known by now.
    is_unsized: bool,
    /// The room that what was taken ahead of a read's client has.
    #[allow(dead_code, reason = "it is given back when this is dropped")]
    share: Option<Share>,
    /// The end of a journaled write's answer, held back until the write is written down.
    recording: Option<(Recording, Option<Frame<Bytes>>)>,
}

/// What is not here yet.
#[allow(clippy::large_enum_variant, reason = "there is one per answer, and it is shared")]
enum Rest {
    Coming(Streaming),
    Nothing,
    /// It did not come, or not in time.
    Lost,
}

impl Rest {
    /// Takes it up, to be finished or lost.
    fn take(&mut self, to: Self) -> Option<Streaming> {
        match std::mem::replace(self, to) {
            Self::Coming(streaming) => Some(streaming),
            before @ (Self::Nothing | Self::Lost) => {
                *self = before;
                None
            }
        }
    }
}

const LATE: &str = "the store's answer did not come to its end in time";

impl ResponseBody {
    /// An answer that is here already.
    #[must_use]
    pub fn whole(ahead: Frames) -> Self {
        let rest = Rc::new(RefCell::new(Rest::Nothing));
        Self { ahead, rest, patience: Duration::ZERO, alarm: None, is_unsized: false, share: None, recording: None }
    }

    /// An answer of which the rest, or all, is still to come.
    #[must_use]
    pub fn coming(ahead: Frames, streaming: Streaming, patience: Duration) -> Self {
        let deadline = || streaming.guard.is_some().then(|| streaming.worker.alarms.set(patience));
        let (deadline, alarm) = (deadline(), deadline());
        let rest = Rc::new(RefCell::new(Rest::Coming(streaming)));
        if let Some(mut deadline) = deadline {
            let shared = Rc::downgrade(&rest);
            tokio::task::spawn_local(async move {
                poll_fn(|context| deadline.poll(context)).await;
                if let Some(late) = shared.upgrade().and_then(|shared| shared.borrow_mut().take(Rest::Lost)) {
                    late.lose();
                }
            });
        }
        let mut reply = Self { ahead, rest, patience, alarm, is_unsized: false, share: None, recording: None };
        if reply.is_over() {
            let _ = reply.finish(None);
        }
        reply
    }

    /// The answer to a read, part of which was taken ahead of its client. `is_unsized`: the client gets no length.
    #[must_use]
    pub fn ahead_of_client(mut self, is_unsized: bool, share: Option<Share>) -> Self {
        (self.is_unsized, self.share) = (is_unsized, share);
        self
    }

    /// Keeps what is longer of a frame of this body, to be handed on next.
    pub fn put_back_behind(&mut self, frame: &mut Frame<Bytes>, length: usize) {
        if let Some(data) = frame.data_mut().filter(|data| data.len() > length) {
            self.ahead.put_back(data.split_off(length));
        }
    }

    /// Whether all of it is here.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        matches!(*self.rest.borrow(), Rest::Nothing) && self.recording.is_none()
    }

    fn is_over(&self) -> bool {
        match &mut *self.rest.borrow_mut() {
            Rest::Coming(streaming) => streaming.conn.http1().is_over(),
            Rest::Nothing | Rest::Lost => false,
        }
    }

    /// The answer has come to its end with this frame, or behind the last: a journaled write is written down
    /// before the client gets that. Returns the frame where there is nothing to write down.
    fn finish(&mut self, last: Option<Frame<Bytes>>) -> Result<(), Option<Frame<Bytes>>> {
        let streaming = self.rest.borrow_mut().take(Rest::Nothing);
        match streaming.and_then(Streaming::finish) {
            Some(recording) => {
                self.recording = Some((recording, last));
                Ok(())
            }
            None => Err(last),
        }
    }

    fn poll_recording(&mut self, context: &mut Context<'_>) -> Option<Poll<Next>> {
        let (recording, _) = self.recording.as_mut()?;
        let written = match recording.as_mut().poll(context) {
            Poll::Pending => return Some(Poll::Pending),
            Poll::Ready(written) => written,
        };
        let last = self.recording.take().and_then(|(_, last)| last);
        Some(Poll::Ready(match written {
            Ok(()) => last.map(Ok),
            Err(cut) => Some(Err(cut)),
        }))
    }

    fn lose(&self) {
        let streaming = self.rest.borrow_mut().take(Rest::Lost);
        if let Some(streaming) = streaming {
            streaming.lose();
        }
    }

    fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<Next> {
        let mut rest = self.rest.borrow_mut();
        let streaming = match &mut *rest {
            Rest::Coming(streaming) => streaming,
            Rest::Nothing => return Poll::Ready(None),
            Rest::Lost => return Poll::Ready(Some(Err(LATE.into()))),
        };
        match streaming.conn.http1().poll_frame(context) {
            Poll::Ready(frame) => {
                if streaming.guard.is_none() {
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
                let alarm = self.alarm.get_or_insert_with(|| streaming.worker.alarms.set(self.patience));
                alarm.poll(context).map(|()| Some(Err(LATE.into())))
            }
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if let Some(frame) = self.ahead.pop() {
            return Poll::Ready(Some(Ok(frame)));
        }
        if let Some(written) = self.poll_recording(context) {
            return written;
        }
        let ended = match self.poll_rest(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(None) => self.finish(None),
            Poll::Ready(Some(Ok(frame))) if self.is_over() => self.finish(Some(frame)),
            Poll::Ready(Some(Ok(frame))) => Err(Some(frame)),
            // The connection is of no more use.
            Poll::Ready(Some(Err(cut))) => {
                self.lose();
                return Poll::Ready(Some(Err(cut)));
            }
        };
        match ended {
            Ok(()) => self.poll_recording(context).unwrap_or(Poll::Ready(None)),
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
        let held = self.recording.as_ref().and_then(|(_, last)| last.as_ref()).and_then(Frame::data_ref);
        let ahead = self.ahead.size() + held.map_or(0, |data| data.len() as u64);
        let rest = match &mut *self.rest.borrow_mut() {
            Rest::Nothing if self.ahead.has_trailers() => None,
            Rest::Nothing => Some(0),
            Rest::Coming(streaming) => streaming.conn.http1().to_come(),
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

impl Drop for ResponseBody {
    fn drop(&mut self) {
        if let Some((recording, _)) = self.recording.take() {
            // The write is settled by it, also where the client is gone.
            tokio::task::spawn_local(recording);
            return;
        }
        let detached = match &*self.rest.borrow() {
            Rest::Coming(streaming) if streaming.guard.is_some() && !streaming.worker.stopping.get() => {
                Detached::new(&streaming.worker)
            }
            Rest::Coming(_) | Rest::Nothing | Rest::Lost => return,
        };
        let (rest, patience, alarm) = (Rc::clone(&self.rest), self.patience, self.alarm.take());
        let (ahead, is_unsized) = (Frames::default(), self.is_unsized);
        let mut rest = Self { ahead, rest, patience, alarm, is_unsized, share: None, recording: None };
        tokio::task::spawn_local(async move {
            while let Some(Ok(_)) = poll_fn(|context| Pin::new(&mut rest).poll_frame(context)).await {}
            drop(detached);
        });
    }
}
