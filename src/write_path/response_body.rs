//! The store's answer on its way to the client.
//!
//! A complete answer settles its write. The gate reads a write's answer before its client takes it, so that a slow
//! client does not keep the object from being handed over. Beyond [`AHEAD_BYTES`](super::read_ahead::AHEAD_BYTES) the answer is passed on as it comes,
//! and the write stays in flight until its end. If the client goes away, the rest is read without it.

use std::{
    cell::RefCell,
    future::{Future, poll_fn},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
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
    read_ahead::Frames,
};
use crate::{
    fence::{
        idempotency::{KeptResponse, Payload},
        write::{Effect, Event},
    },
    upstream::{body::Cut, pool::PooledConn},
};

/// The state while an answer is being passed on.
pub struct Streaming {
    pub worker: Rc<Worker>,
    pub conn: PooledConn,
    /// The complete answer settles the write, and its connection can carry another request.
    pub settles: bool,
    /// `None` for reads.
    pub guard: Option<Rc<WriteGuard>>,
    /// The journal's line about a write, its body's digest and its answer's status, where its route keeps a journal.
    pub line: Option<(Line, [u8; 32], u16)>,
    /// The payload digest of the write's idempotency key.
    pub payload: Option<Payload>,
    pub status: u16,
}

impl Streaming {
    /// Ends the write: the answer is complete. Returns the work that must be done before the client gets the end of the
    /// answer: a journaled write goes to the journal first.
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

    /// Writes a settled write to the journal. Its connection carries other requests meanwhile.
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

    /// Ends a write whose answer will not be complete: its outcome is unknown from the close of its connection on.
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
            // Its line cannot be written any more, so this run does not end cleanly: the guard's drop records that.
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

/// Keeps only the status under the write's key: the answer is too long to be kept.
fn keep(worker: &Rc<Worker>, guard: &Rc<WriteGuard>, effect: &Effect, payload: Option<Payload>, status: u16) {
    if *effect == Effect::KeepAnswer {
        drop(keyed::keep_answer(worker, guard, payload, KeptResponse::Dropped { status }));
    }
}

/// The next frame of an answer's body.
type Next = Option<Result<Frame<Bytes>, Cut>>;

/// A settled write that is being written to the journal.
type Recording = Pin<Box<dyn Future<Output = Result<(), Cut>>>>;

/// A store's answer, on its way to the client: what was read ahead, then the rest as it comes. If the client goes away
/// first, the rest of a write's answer is read without it.
pub struct ResponseBody {
    ahead: Frames,
    /// Shared with the deadline of a write's answer, which runs whether or not the client reads.
    rest: Rc<RefCell<Rest>>,
    patience: Duration,
    /// The answer to a write must be complete before this rings. For a read it is set when more is waited for, and
    /// rings if nothing comes.
    alarm: Option<Alarm>,
    /// The store has not sent a length, so the client gets none either, though it may be known by now.
    is_unsized: bool,
    /// The room of the part that was taken before a read's client took it.
    #[allow(dead_code, reason = "it is given back when this is dropped")]
    share: Option<Share>,
    /// The journaling of a write, and the end of its answer, which is held back until then.
    recording: Option<(Recording, Option<Frame<Bytes>>)>,
}

/// The part of an answer that has not come yet.
#[allow(clippy::large_enum_variant, reason = "there is one per answer, and it is shared")]
enum Rest {
    Coming(Streaming),
    Nothing,
    /// The rest did not come, or not in time.
    Lost,
}

impl Rest {
    /// Takes the streaming state and leaves `to`; `None`, and no change, where nothing is to come.
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
    /// An answer that is here as a whole.
    #[must_use]
    pub fn whole(ahead: Frames) -> Self {
        let rest = Rc::new(RefCell::new(Rest::Nothing));
        Self { ahead, rest, patience: Duration::ZERO, alarm: None, is_unsized: false, share: None, recording: None }
    }

    /// An answer of which part, or all, is still to come.
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

    /// The answer to a read, with the room of the part that was taken ahead. `is_unsized`: the client gets no length.
    #[must_use]
    pub fn ahead_of_client(mut self, is_unsized: bool, share: Option<Share>) -> Self {
        (self.is_unsized, self.share) = (is_unsized, share);
        self
    }

    /// Cuts a frame of this body to `length`, and keeps the rest to be handed on next.
    pub fn put_back_behind(&mut self, frame: &mut Frame<Bytes>, length: usize) {
        if let Some(data) = frame.data_mut().filter(|data| data.len() > length) {
            self.ahead.put_back(data.split_off(length));
        }
    }

    /// Whether all of the answer is here.
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

    /// The answer is complete with `last`, or was with the frame before. A journaled write goes to the journal before
    /// the client gets `last`. Gives `last` back as the error where nothing has to be written.
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
                    // A read may take any time, as long as something comes.
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
            // The connection cannot be used again.
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
            // This settles the write, also where the client is gone.
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
