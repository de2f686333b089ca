//! One connection to the store: sends a request, and reads its answer.
//!
//! What has left is known to the byte, since it is written here: a request is out when its last byte was
//! handed to the kernel. Nothing goes on in the background: a link works while somebody waits for it, and
//! whoever drops it has closed it by that.

use std::{
    fmt,
    future::Future,
    io::{self, IoSlice, Write as _},
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll, Waker, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, StatusCode};
use http_body::{Body, Frame};
use tokio::io::{AsyncReadExt, AsyncWrite};

use super::{
    answer::{self, Ends, Head, Unreadable},
    body::{Cut, StoreBody},
    chunks::{Chunks, Piece, take},
    io::{Io, Wire},
};
use crate::fence::write::{ReadOnly, Release};

/// Pieces of a body up to this size are copied behind what goes before them.
const COPY_MAX: usize = 4 << 10;
/// How much is gathered before it is written.
const GATHER: usize = 16 << 10;
/// Room for what is read: of a head, and of a long body.
const ROOM: usize = 4 << 10;
const LONG_ROOM: usize = 64 << 10;
/// How long the heads that come before the one that counts may be together.
const INTERIM_BYTES_MAX: usize = 256 << 10;

/// What became of a request that has no answer.
#[derive(Debug)]
pub enum Failed {
    /// Its body broke off.
    Body(Cut),
    Io(io::Error),
    /// The store has hung up.
    Closed,
    Unreadable(Unreadable),
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Body(why) => write!(f, "{why}"),
            Self::Io(why) => write!(f, "{why}"),
            Self::Closed => f.write_str("it closed the connection"),
            Self::Unreadable(why) => f.write_str(why),
        }
    }
}

/// How the end of a request's body is told.
#[derive(Clone, Debug)]
pub enum Framing {
    /// By its length, which its head says; or there is none.
    Length,
    /// By the last chunk. These trailers may follow.
    Chunks { trailers: Vec<HeaderName> },
}

/// What gives a request the right to be sent.
#[derive(Debug)]
pub enum Pass {
    /// It changes nothing.
    Read(ReadOnly),
    /// The life of a write says that it may be sent now.
    Write(Release),
}

/// When a connection may be used again behind a request, as far as its body goes. What a store leaves unread of a body it
/// takes for its next request, which was never judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// The request has no body, or the store is known to read every body to its end.
    Always,
    /// The store has read it if it says that it did what was asked (2xx). It may have answered with an error or with
    /// another place to go to without reading on.
    AfterSuccess,
    Never,
}

impl Reuse {
    fn allows(self, status: StatusCode) -> bool {
        match self {
            Self::Always => true,
            Self::AfterSuccess => status.is_success(),
            Self::Never => false,
        }
    }
}

/// A connection.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Http1Conn {
    io: Box<dyn Io>,
    wire: Rc<Wire>,
    /// What is to be written, and how much of it was.
    out: Vec<u8>,
    written: usize,
    /// A long piece of a body, behind that.
    piece: Bytes,
    /// What was read and not used.
    read: BytesMut,
    framing: Framing,
    reuse: Reuse,
    to_head: bool,
    /// The whole body was taken.
    is_taken: bool,
    /// The stream has taken something of the request; all of it.
    has_begun: bool,
    is_out: bool,
    /// The end waits until it is known what has come.
    is_held: bool,
    /// Nothing more can be written, but an answer may be there.
    broken: Option<io::Error>,
    /// Bytes of the heads that came before the one that counts.
    interim: usize,
    answer: ResponseState,
    keeps_alive: bool,
}

/// How far an answer is.
#[derive(Debug)]
enum ResponseState {
    Awaited,
    Length(u64),
    Chunks(Chunks),
    UntilClosed,
    Over,
}

impl Http1Conn {
    #[must_use]
    pub fn new(io: impl Io + 'static, wire: Rc<Wire>) -> Self {
        Self {
            io: Box::new(io),
            wire,
            out: vec![],
            written: 0,
            piece: Bytes::new(),
            read: BytesMut::new(),
            framing: Framing::Length,
            reuse: Reuse::Always,
            to_head: false,
            is_taken: true,
            has_begun: false,
            is_out: true,
            is_held: false,
            broken: None,
            interim: 0,
            answer: ResponseState::Over,
            keeps_alive: true,
        }
    }

    /// Begins a request: its head is to be written into what this returns. `to_head`: it is a HEAD. Nothing is sent
    /// without a pass.
    pub fn begin(&mut self, _: Pass, to_head: bool, framing: Framing, reuse: Reuse) -> &mut Vec<u8> {
        (self.to_head, self.framing, self.reuse) = (to_head, framing, reuse);
        (self.is_taken, self.has_begun, self.is_out, self.interim) = (false, false, false, 0);
        (self.answer, self.keeps_alive) = (ResponseState::Awaited, false);
        self.wire.heard.set(false);
        self.out.clear();
        self.written = 0;
        &mut self.out
    }

    /// Takes the request back, if the stream has taken nothing of it.
    pub fn take_back(&mut self) -> Option<Unsent> {
        (!self.has_begun).then(|| Unsent {
            to_head: self.to_head,
            framing: std::mem::replace(&mut self.framing, Framing::Length),
            reuse: self.reuse,
            out: std::mem::take(&mut self.out),
            piece: std::mem::take(&mut self.piece),
            is_taken: self.is_taken,
        })
    }

    /// Begins a request that another connection has taken nothing of.
    pub fn begin_again(&mut self, pass: Pass, unsent: Unsent) {
        let Unsent { to_head, framing, reuse, out, piece, is_taken } = unsent;
        self.begin(pass, to_head, framing, reuse);
        (self.out, self.piece, self.is_taken) = (out, piece, is_taken);
    }

    #[must_use]
    pub fn wire(&self) -> &Rc<Wire> {
        &self.wire
    }

    /// Whether all of the request was handed to the kernel.
    #[must_use]
    pub fn is_out(&self) -> bool {
        self.is_out
    }

    /// Whether the whole answer has been read.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.answer, ResponseState::Over)
    }

    /// Whether another request may go this way.
    #[must_use]
    pub fn is_reusable(&self) -> bool {
        self.keeps_alive && self.is_out && self.is_over() && self.read.is_empty()
    }

    /// Keeps no more room than an idle connection needs.
    pub fn rest(&mut self) {
        if self.read.capacity() > LONG_ROOM / 4 {
            self.read = BytesMut::new();
        }
        self.out.clear();
        self.out.shrink_to(GATHER);
    }

    /// Whether this connection is of no more use, by what the runtime knows and by what lies in the kernel: the answer to a
    /// body that the store has taken for a request must not be taken for the answer to the next one. Only behind a body that
    /// the store may not have read is the kernel asked, since that is a call for each request.
    #[must_use]
    pub fn is_dead(&mut self) -> bool {
        self.has_ended() || (self.reuse == Reuse::AfterSuccess && self.io.has_come())
    }

    /// Whether the store has hung up on this idle connection, or has said what nobody asked for, as far as the runtime has
    /// noticed.
    #[must_use]
    pub fn has_ended(&mut self) -> bool {
        // Whoever uses it next waits for it with a waker of its own.
        let mut context = Context::from_waker(Waker::noop());
        self.make_room();
        // Whatever else the task has done: this look costs nothing, and must see what is there.
        pin!(tokio::task::unconstrained(self.io.read_buf(&mut self.read))).poll(&mut context).is_ready()
    }

    /// How much more of the answer is to come, where that is known.
    #[must_use]
    pub fn to_come(&self) -> Option<u64> {
        match self.answer {
            ResponseState::Length(left) => Some(left),
            ResponseState::Over => Some(0),
            ResponseState::Awaited | ResponseState::Chunks(_) | ResponseState::UntilClosed => None,
        }
    }

    /// Sends the request that was begun, and reads the head of its answer.
    ///
    /// An answer may come before all of the request is out; nothing more of it is sent then.
    pub fn poll_answer(&mut self, context: &mut Context<'_>, body: &mut StoreBody) -> Poll<Result<Box<Head>, Failed>> {
        // What the store has said by now is no answer to what is sent from here on; and behind a store that has
        // hung up there is nobody to send it to.
        if self.has_begun
            && !self.is_out
            && let answered @ Poll::Ready(_) = self.poll_head(context)
        {
            return answered;
        }
        if !self.is_out && self.broken.is_none() {
            match self.poll_send(context, body) {
                Poll::Ready(Err(Failed::Io(broken))) => self.broken = Some(broken),
                Poll::Ready(Err(failed)) => return Poll::Ready(Err(failed)),
                Poll::Ready(Ok(())) => self.is_out = true,
                Poll::Pending => {}
            }
        }
        let had_heard = self.wire.heard.get();
        let head = self.poll_head(context);
        if head.is_pending() && !self.is_out && !self.wire.heard.get() {
            // What TLS has for itself has been read like this.
            let was_nothing = std::mem::take(&mut self.is_held) && !self.io.has_come();
            if had_heard || was_nothing {
                // It was an interim answer, or none: a body that has waited for the rest of it may go on.
                context.waker().wake_by_ref();
            }
        }
        match (&head, self.broken.take()) {
            // A store may refuse a long body, hang up, and have said why.
            (Poll::Ready(Ok(_)), _) | (_, None) => head,
            // What it said may have come and not been noticed yet. If there is nothing, its end is.
            (Poll::Pending, Some(broken)) if is_hung_up(&broken) => {
                self.broken = Some(broken);
                Poll::Pending
            }
            (Poll::Ready(Err(_)) | Poll::Pending, Some(broken)) => Poll::Ready(Err(Failed::Io(broken))),
        }
    }

    fn poll_send(&mut self, context: &mut Context<'_>, body: &mut StoreBody) -> Poll<Result<(), Failed>> {
        loop {
            let gathered = self.gather(context, body)?;
            if self.has_begun && matches!(gathered, Gathered::All) && self.io.has_come() {
                // It may be an answer to a part of the request: it is read before the end is sent.
                self.is_held = true;
                return Poll::Pending;
            }
            while self.written < self.out.len() || !self.piece.is_empty() {
                let (out, mut io) = (&self.out[self.written..], Pin::new(&mut self.io));
                let written = match (out, &*self.piece) {
                    (one, []) | ([], one) => io.as_mut().poll_write(context, one),
                    (out, piece) => io.as_mut().poll_write_vectored(context, &[IoSlice::new(out), IoSlice::new(piece)]),
                };
                let written = ready!(written).map_err(Failed::Io)?;
                if written == 0 {
                    return Poll::Ready(Err(Failed::Io(io::ErrorKind::WriteZero.into())));
                }
                self.has_begun = true;
                let head = written.min(self.out.len() - self.written);
                self.written += head;
                self.piece.advance(written - head);
            }
            self.out.clear();
            self.written = 0;
            match gathered {
                Gathered::All => return Pin::new(&mut self.io).poll_flush(context).map_err(Failed::Io),
                Gathered::More => {}
                Gathered::Awaited => {
                    // What TLS holds back must not wait for the rest of the body.
                    ready!(Pin::new(&mut self.io).poll_flush(context)).map_err(Failed::Io)?;
                    return Poll::Pending;
                }
            }
        }
    }

    /// Takes of the body what is there, until there is enough to be written.
    fn gather(&mut self, context: &mut Context<'_>, body: &mut StoreBody) -> Result<Gathered, Failed> {
        while !self.is_taken {
            if !self.piece.is_empty() || self.out.len() - self.written >= GATHER {
                return Ok(Gathered::More);
            }
            match Pin::new(&mut *body).poll_frame(context) {
                Poll::Pending => return Ok(Gathered::Awaited),
                Poll::Ready(None) => self.end(None),
                Poll::Ready(Some(Err(cut))) => return Err(Failed::Body(cut)),
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => {
                        self.data(data);
                        if body.is_end_stream() {
                            self.end(None);
                        }
                    }
                    Err(frame) => self.end(frame.into_trailers().ok().as_ref()),
                },
            }
        }
        Ok(Gathered::All)
    }

    fn data(&mut self, data: Bytes) {
        if data.is_empty() {
            // In chunks, this would be the end.
            return;
        }
        let is_chunk = matches!(self.framing, Framing::Chunks { .. });
        if is_chunk {
            // Writing to memory does not fail.
            let _ = write!(self.out, "{:x}\r\n", data.len());
        }
        if data.len() <= COPY_MAX || is_chunk {
            self.out.extend_from_slice(&data);
        } else {
            self.piece = data;
        }
        if is_chunk {
            self.out.extend_from_slice(b"\r\n");
        }
    }

    fn end(&mut self, trailers: Option<&HeaderMap>) {
        self.is_taken = true;
        let Framing::Chunks { trailers: announced } = &self.framing else { return };
        self.out.extend_from_slice(b"0\r\n");
        for (name, value) in trailers.into_iter().flatten() {
            if announced.contains(name) {
                // HTTP/2 keeps spaces at the edges of a value; HTTP/1.1 has none there.
                write_line(&mut self.out, name.as_str(), value.as_bytes().trim_ascii());
            }
        }
        self.out.extend_from_slice(b"\r\n");
    }

    fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<Result<Box<Head>, Failed>> {
        loop {
            if !self.read.is_empty()
                && let Some((length, head)) = answer::parse(&self.read, self.to_head).map_err(Failed::Unreadable)?
            {
                self.read.advance(length);
                if head.status.is_informational() && head.status != StatusCode::SWITCHING_PROTOCOLS {
                    self.interim += length;
                    if self.interim > INTERIM_BYTES_MAX {
                        return Poll::Ready(Err(Failed::Unreadable("it says nothing but that it goes on")));
                    }
                    self.wire.heard.set(!self.read.is_empty());
                    continue;
                }
                self.keeps_alive = head.keeps_alive && self.reuse.allows(head.status);
                self.answer = match head.ends {
                    Ends::AtOnce => ResponseState::Over,
                    Ends::After(length) => ResponseState::Length(length),
                    Ends::WithLastChunk => ResponseState::Chunks(Chunks::default()),
                    Ends::WithConnection => ResponseState::UntilClosed,
                };
                return Poll::Ready(Ok(head));
            }
            if ready!(self.poll_read(context)).map_err(Failed::Io)? == 0 {
                return Poll::Ready(Err(Failed::Closed));
            }
        }
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.make_room();
        let read = ready!(pin!(self.io.read_buf(&mut self.read)).poll(context));
        if matches!(read, Ok(1..)) {
            self.wire.heard.set(true);
        }
        Poll::Ready(read)
    }

    fn make_room(&mut self) {
        let room = match self.answer {
            ResponseState::Length(left) => usize::try_from(left).unwrap_or(LONG_ROOM).clamp(ROOM, LONG_ROOM),
            ResponseState::Chunks(_) | ResponseState::UntilClosed => LONG_ROOM,
            ResponseState::Awaited | ResponseState::Over => ROOM,
        };
        if self.read.capacity() - self.read.len() < room / 4 {
            self.read.reserve(room);
        }
    }

    /// The next piece of the answer's body.
    pub fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Failed>>> {
        loop {
            match self.next_frame() {
                Err(why) => {
                    (self.answer, self.keeps_alive) = (ResponseState::Over, false);
                    return Poll::Ready(Some(Err(Failed::Unreadable(why))));
                }
                Ok(Some(frame)) => return Poll::Ready(Some(Ok(frame))),
                Ok(None) if self.is_over() => return Poll::Ready(None),
                Ok(None) => {}
            }
            let failed = match ready!(self.poll_read(context)) {
                Ok(0) if matches!(self.answer, ResponseState::UntilClosed) => {
                    self.answer = ResponseState::Over;
                    return Poll::Ready(None);
                }
                Ok(0) => Failed::Closed,
                Ok(_) => continue,
                Err(why) => Failed::Io(why),
            };
            (self.answer, self.keeps_alive) = (ResponseState::Over, false);
            return Poll::Ready(Some(Err(failed)));
        }
    }

    /// A piece of the body that has been read; `None` where more has to be read, or all of it was.
    fn next_frame(&mut self) -> Result<Option<Frame<Bytes>>, Unreadable> {
        Ok(match &mut self.answer {
            ResponseState::Awaited | ResponseState::Over => None,
            ResponseState::Chunks(chunks) => match chunks.next(&mut self.read)? {
                Piece::Data(data) => Some(Frame::data(data)),
                Piece::None => None,
                Piece::End(trailers) => {
                    self.answer = ResponseState::Over;
                    trailers.map(Frame::trailers)
                }
            },
            ResponseState::UntilClosed | ResponseState::Length(_) if self.read.is_empty() => None,
            ResponseState::UntilClosed => {
                let all = self.read.len();
                Some(Frame::data(take(&mut self.read, all)))
            }
            ResponseState::Length(left) => {
                let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(self.read.len());
                *left -= taken as u64;
                if *left == 0 {
                    self.answer = ResponseState::Over;
                }
                Some(Frame::data(take(&mut self.read, taken)))
            }
        })
    }
}

/// A request that was taken back, as far as it had been made ready.
pub struct Unsent {
    to_head: bool,
    framing: Framing,
    reuse: Reuse,
    out: Vec<u8>,
    piece: Bytes,
    is_taken: bool,
}

/// A write that failed because nobody reads any more: what the other side has said before that can be read.
fn is_hung_up(broken: &io::Error) -> bool {
    matches!(broken.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

enum Gathered {
    /// The whole request is there to be written.
    All,
    /// Enough for now.
    More,
    /// The rest of the body has yet to come.
    Awaited,
}

/// Writes a header line.
pub fn write_line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

#[cfg(test)]
#[path = "http1_tests.rs"]
mod tests;
