//! A body that is too long to be held: it streams, but not its end. The frame that completes the request is held back
//! until the write has been judged again, under its object's lock: the commit point. A write that does not pass this
//! point was never sent whole.
//!
//! With a Content-Length, the completing frame is the one with the last byte. Without one, it is the last frame with
//! data, together with the end marker. Empty frames do not count. An HTTP/2 stream that was reset without an error
//! looks like an end, but is none.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    fmt,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::body::Incoming;
use tokio::sync::Notify;

use super::{
    Worker,
    connection::Client,
    guard::WriteGuard,
    hold::{Share, discard},
    journaled::BodyDigest,
    pace::{Pace, Slowest},
};
use crate::{
    clock::Stopwatch,
    fence::write::{Effect, Event},
    route::classify::FENCE_TOKEN,
    upstream::{body::Cut, io::Wire},
};

/// Why a body was broken off.
#[derive(Clone, Debug)]
pub enum Broken {
    /// The client broke off, or sent an invalid body.
    Client,
    Slow,
    TooLong,
    TokenInTrailer,
    Denied,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "the body broke off",
            Self::Slow => "the body did not come in time",
            Self::TooLong => "the body is larger than gate.body_bytes_max",
            Self::TokenInTrailer => "Fence-Token came as a trailer; it must be a header",
            Self::Denied => "the lease was over before the body was",
        })
    }
}

impl std::error::Error for Broken {}

/// How far a streamed body is. Shared by the body and by the task that waits for the answer.
#[derive(Debug, Default)]
pub struct UploadState {
    /// Since when the whole body may be sent.
    released: Cell<Option<Stopwatch>>,
    /// An answer has come before the end of the body: nothing more is sent.
    parked: Cell<bool>,
    broken: RefCell<Option<Broken>>,
    /// The connection's wire, which shows whether the store has sent something since this body began.
    wire: RefCell<Option<Rc<Wire>>>,
    waits_for_client: Cell<bool>,
    change: Notify,
    /// The digest of what has come, where one is needed.
    digest: RefCell<Option<BodyDigest>>,
}

impl UploadState {
    /// From here on, makes a digest of what comes.
    pub fn make_digest(&self) {
        *self.digest.borrow_mut() = Some(BodyDigest::default());
    }

    /// The digest of the whole body, if one was made.
    #[must_use]
    pub fn digest(&self) -> Option<[u8; 32]> {
        self.digest.borrow().clone().map(BodyDigest::finish)
    }

    /// Whether the whole body may be sent, or has been.
    #[must_use]
    pub fn is_released(&self) -> bool {
        self.released.get().is_some()
    }

    /// Since when the whole body may be sent.
    #[must_use]
    pub fn released(&self) -> Option<Stopwatch> {
        self.released.get()
    }

    /// Sends nothing more: the end that is held back is never sent.
    pub fn park(&self) {
        self.parked.set(true);
    }

    /// Watches for a store that answers before the end of the body.
    pub fn listen(&self, wire: Rc<Wire>) {
        *self.wire.borrow_mut() = Some(wire);
    }

    fn has_been_answered(&self) -> bool {
        self.wire.borrow().as_ref().is_some_and(|wire| wire.has_received.get())
    }

    /// Notes why a body is broken off, and returns that as an error.
    fn breaks(&self, why: Broken) -> Cut {
        *self.broken.borrow_mut() = Some(why.clone());
        Box::new(why)
    }

    #[must_use]
    pub fn broken(&self) -> Option<Broken> {
        self.broken.borrow().clone()
    }

    /// Returns when the store has sent nothing for `patience`: after the commit point, or before it while the
    /// store takes nothing more. A slow client has a separate timeout.
    pub async fn stalled(&self, patience: Duration, sent: impl Fn() -> u64) {
        while !self.is_released() {
            let before = sent();
            tokio::select! {
                () = self.change.notified() => {}
                () = tokio::time::sleep(patience) => {
                    if sent() == before && !self.waits_for_client.get() && !self.is_released() {
                        return;
                    }
                }
            }
        }
        tokio::time::sleep(patience).await;
    }
}

/// A body on its way to the store.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Upload<B: Body<Data = Bytes> + Unpin + 'static = Incoming> {
    /// What was read before it turned out to be too long to be held, and the room it takes.
    first: VecDeque<Bytes>,
    share: Option<Share>,
    /// `None` once it is over.
    rest: Option<B>,
    is_h2: bool,
    /// The client waits for a 100 Continue, which was not sent to it.
    asks_first: bool,
    worker: Rc<Worker>,
    /// What is left of the Content-Length, where there is one.
    to_come: Option<u64>,
    has_trailers: bool,
    is_chunked: bool,
    client: Rc<Client>,
    /// How many bytes may still come.
    room: u64,
    /// The last frame with data, while it is not known whether another follows.
    held_back: Option<Bytes>,
    /// The frames that may be sent.
    ready: VecDeque<Frame<Bytes>>,
    is_over: bool,
    /// `None` for reads.
    guard: Option<Rc<WriteGuard>>,
    state: Rc<UploadState>,
    pace: Pace,
}

/// What is known of a body that will be streamed.
pub struct Stream<B = Incoming> {
    pub first: VecDeque<Bytes>,
    pub share: Option<Share>,
    pub rest: B,
    pub is_h2: bool,
    /// The whole length by the decoder, where known.
    pub length: Option<u64>,
    /// Trailers follow the body, so its last byte does not complete the request.
    pub has_trailers: bool,
    /// The client that sends it.
    pub client: Rc<Client>,
    /// The client sends the body only when it is asked to.
    pub asks_first: bool,
    /// The largest body that is accepted.
    pub limit: u64,
    pub slowest: Slowest,
}

enum Piece {
    Data(Bytes),
    Last(Option<Frame<Bytes>>),
}

impl<B: Body<Data = Bytes> + Unpin + 'static> Upload<B> {
    #[must_use]
    pub fn new(stream: Stream<B>, guard: Option<Rc<WriteGuard>>, worker: Rc<Worker>) -> (Self, Rc<UploadState>) {
        let Stream { first, share, rest, is_h2, length, has_trailers, client, asks_first, limit, slowest } = stream;
        let state = Rc::new(UploadState::default());
        let upload = Self {
            first,
            share,
            rest: Some(rest),
            is_h2,
            asks_first,
            pace: Pace::new(&worker.alarms, slowest),
            worker,
            to_come: length,
            has_trailers,
            is_chunked: length.is_none(),
            client,
            room: limit,
            held_back: None,
            ready: VecDeque::new(),
            is_over: false,
            guard,
            state: Rc::clone(&state),
        };
        (upload, state)
    }

    /// The next piece of the client's body.
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Result<Piece, Broken>> {
        if let Some(bytes) = self.first.pop_front() {
            return Poll::Ready(Ok(Piece::Data(bytes)));
        }
        (self.share, self.asks_first) = (None, false);
        let Some(rest) = &mut self.rest else { return Poll::Ready(Ok(Piece::Last(None))) };
        let frame = match Pin::new(&mut *rest).poll_frame(context) {
            Poll::Pending => {
                self.state.waits_for_client.set(true);
                ready!(self.pace.poll(context));
                return Poll::Ready(Err(Broken::Slow));
            }
            Poll::Ready(frame) => frame,
        };
        let came = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()).map_or(0, Bytes::len);
        self.pace.came(came);
        self.state.waits_for_client.set(false);
        Poll::Ready(match frame {
            None if self.is_h2 && !rest.is_end_stream() => Err(Broken::Client),
            None => Ok(Piece::Last(None)),
            Some(Err(_)) => Err(Broken::Client),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(bytes) => Ok(Piece::Data(bytes)),
                Err(frame) if frame.trailers_ref().is_some_and(|fields| fields.contains_key(FENCE_TOKEN)) => {
                    Err(Broken::TokenInTrailer)
                }
                // The connection passes on the trailers that were announced.
                Err(frame) => Ok(Piece::Last(frame.into_trailers().ok().map(Frame::trailers))),
            },
        })
    }

    /// Takes a piece, and moves what may be sent to `ready`.
    fn take(&mut self, piece: Piece) -> Result<(), Broken> {
        match piece {
            Piece::Data(bytes) if bytes.is_empty() => {}
            Piece::Data(bytes) => {
                let length = bytes.len() as u64;
                self.room = self.room.checked_sub(length).ok_or(Broken::TooLong)?;
                if let Some(digest) = &mut *self.state.digest.borrow_mut() {
                    digest.update(&bytes);
                }
                if let Some(to_come) = &mut self.to_come {
                    *to_come = to_come.checked_sub(length).ok_or(Broken::Client)?;
                }
                match self.to_come {
                    Some(to_come) if !self.has_trailers => {
                        if to_come == 0 {
                            self.commit()?;
                        }
                        self.ready.push_back(Frame::data(bytes));
                    }
                    Some(_) | None => self.ready.extend(self.held_back.replace(bytes).map(Frame::data)),
                }
            }
            Piece::Last(_) if self.to_come.is_some_and(|to_come| to_come > 0) => return Err(Broken::Client),
            // Two parsers could find the body's end in two places.
            Piece::Last(_) if self.is_chunked && !self.client.body_is_over() => return Err(Broken::Client),
            Piece::Last(trailers) => {
                self.commit()?;
                self.ready.extend(self.held_back.take().map(Frame::data));
                self.ready.extend(trailers);
                (self.rest, self.is_over) = (None, true);
            }
        }
        Ok(())
    }

    /// The end of the body is here: judges the write again. This is the commit point; from here on the write may land.
    fn commit(&mut self) -> Result<(), Broken> {
        if self.state.is_released() {
            return Ok(());
        }
        if let Some(guard) = &self.guard {
            if guard.is_judged() && self.state.has_been_answered() {
                // The end is never released: an answer that came before it cannot be the answer to it.
                self.state.park();
                return Ok(());
            }
            let Effect::Send(_release) = guard.on(Event::Complete) else { return Err(Broken::Denied) };
        }
        self.state.released.set(Some(Stopwatch::start()));
        self.state.change.notify_one();
        Ok(())
    }
}

impl<B: Body<Data = Bytes> + Unpin + 'static> Drop for Upload<B> {
    fn drop(&mut self) {
        if let Some(rest) = self.rest.take().filter(|_| !self.asks_first) {
            discard(&self.worker, rest);
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin + 'static> Body for Upload<B> {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let upload = &mut *self;
        loop {
            if upload.state.parked.get() {
                if upload.state.has_been_answered() {
                    // The connection will be closed once the early answer has been read.
                    return Poll::Pending;
                }
                // It was an interim answer that had come only in part.
                upload.state.parked.set(false);
                if let Err(broken) = upload.commit() {
                    return Poll::Ready(Some(Err(upload.state.breaks(broken))));
                }
                continue;
            }
            if let Some(frame) = upload.ready.pop_front() {
                return Poll::Ready(Some(Ok(frame)));
            }
            if upload.is_over {
                return Poll::Ready(None);
            }
            let taken = ready!(upload.poll_piece(context)).and_then(|piece| upload.take(piece));
            if let Err(broken) = taken {
                return Poll::Ready(Some(Err(upload.state.breaks(broken))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        // After the last byte of a Content-Length nothing more is read.
        let is_complete = self.to_come == Some(0) && !self.has_trailers && self.state.is_released();
        (self.is_over || is_complete) && self.ready.is_empty()
    }
}
