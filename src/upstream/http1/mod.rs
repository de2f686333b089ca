//! One connection to the store: sends a request, and reads its answer.
//!
//! It is known to the byte what has left, since it is written here: a request is out when its last byte was handed to
//! the kernel. There is no background work: a connection works only while a task waits for it, and dropping it closes
//! it.
//!
//! Here is the state of a connection, and the order of its work. `send`: the request. `receive`: its answer.

mod receive;
mod send;

use std::{
    fmt,
    future::Future,
    io,
    pin::pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use bytes::{Bytes, BytesMut};
use http::{HeaderName, StatusCode};
use tokio::io::AsyncReadExt;

pub use self::send::write_line;
use super::{
    answer::{Head, Unreadable},
    body::{Cut, StoreBody},
    chunks::Chunks,
    copies::Copies,
    io::{Io, Wire},
};
use crate::fence::write::{ReadOnly, Release};

/// Pieces of a body up to this size are copied after the bytes that go before them.
const COPY_MAX: usize = 4 << 10;
/// How many bytes are gathered before they are written.
const GATHER: usize = 16 << 10;
/// Room for what is read: of a head, and of a long body.
const ROOM: usize = 4 << 10;
const LONG_ROOM: usize = 64 << 10;
/// How long the interim heads before the final one may be together.
const INTERIM_BYTES_MAX: usize = 256 << 10;

/// Why a request has no answer.
#[derive(Debug)]
pub enum Failed {
    /// Its body broke off.
    Body(Cut),
    Io(io::Error),
    /// The store has closed the connection.
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

/// How the end of a request's body is marked.
#[derive(Clone, Debug)]
pub enum Framing {
    /// By the length in its head; or there is no body.
    Length,
    /// By the last chunk. These trailers may follow.
    Chunks { trailers: Vec<HeaderName> },
}

/// The right to send a request.
#[derive(Debug)]
pub enum Pass {
    /// The request changes nothing.
    Read(ReadOnly),
    /// The life of a write says that it may be sent now.
    Write(Release),
}

/// When a connection may be used again after a request, as far as its body matters. A store takes the unread rest of a
/// body for its next request, which was never judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// The request has no body, or the store is known to read every body to its end.
    Always,
    /// A store that reports success (2xx) has read the body. One that answers with an error or a redirect may not have
    /// read it to its end.
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
    /// The bytes to be written, and how many of them were.
    out: Vec<u8>,
    written: usize,
    /// A long piece of a body, to be written after `out`.
    piece: Bytes,
    /// Bytes that were read and not used yet.
    read: BytesMut,
    /// Where heads and short pieces of bodies are copied.
    copies: Copies,
    framing: Framing,
    reuse: Reuse,
    to_head: bool,
    /// The whole body was taken.
    is_taken: bool,
    /// The stream has taken part of the request (`has_begun`), or all of it (`is_out`).
    has_begun: bool,
    is_out: bool,
    /// The end is held back until it is known what has come.
    is_held: bool,
    /// Nothing more can be written, but an answer may have come.
    broken: Option<io::Error>,
    /// Bytes of the interim heads before the final one.
    interim: usize,
    answer: ResponseState,
    keeps_alive: bool,
}

/// How much of an answer has come.
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
            copies: Copies::default(),
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

    /// Begins a request, and returns the buffer that its head is to be written into. `to_head`: it is a HEAD. Nothing
    /// is sent without a pass.
    pub fn begin(&mut self, _: Pass, to_head: bool, framing: Framing, reuse: Reuse) -> &mut Vec<u8> {
        (self.to_head, self.framing, self.reuse) = (to_head, framing, reuse);
        (self.is_taken, self.has_begun, self.is_out, self.interim) = (false, false, false, 0);
        (self.answer, self.keeps_alive) = (ResponseState::Awaited, false);
        self.wire.has_received.set(false);
        self.out.clear();
        self.written = 0;
        &mut self.out
    }

    /// Takes the request back; `None` if the stream has taken part of it.
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

    /// Begins a request of which another connection has taken nothing.
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

    /// Whether another request may use this connection.
    #[must_use]
    pub fn is_reusable(&self) -> bool {
        self.keeps_alive && self.is_out && self.is_over() && self.read.is_empty()
    }

    /// Keeps no more memory than an idle connection needs.
    pub fn rest(&mut self) {
        if self.read.capacity() > LONG_ROOM / 4 {
            self.read = BytesMut::new();
        }
        self.out.clear();
        self.out.shrink_to(GATHER);
    }

    /// Whether this connection cannot be used any more, by what the runtime and the kernel know. If the store has taken
    /// a body for a request, the answer to that must not be taken for the answer to the next request. The kernel is
    /// asked only after a body that the store may not have read, since that is a system call for each request.
    #[must_use]
    pub fn is_dead(&mut self) -> bool {
        self.has_ended() || (self.reuse == Reuse::AfterSuccess && self.io.has_come())
    }

    /// Whether the store has closed this idle connection, or has sent bytes without a request, as far as the runtime
    /// has noticed.
    #[must_use]
    pub fn has_ended(&mut self) -> bool {
        // The next user of the connection waits with another waker.
        let mut context = Context::from_waker(Waker::noop());
        self.make_room();
        // Unconstrained: this read must see what has come, however much of its budget the task has used.
        pin!(tokio::task::unconstrained(self.io.read_buf(&mut self.read))).poll(&mut context).is_ready()
    }

    /// How much more of the answer is to come, where known.
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
    /// An answer may come before all of the request is out. Then nothing more of the request is sent.
    pub fn poll_answer(&mut self, context: &mut Context<'_>, body: &mut StoreBody) -> Poll<Result<Box<Head>, Failed>> {
        // What the store has sent by now cannot answer what is sent from here on. If the store has closed the
        // connection, nothing more needs to be sent.
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
        let had_received = self.wire.has_received.get();
        let head = self.poll_head(context);
        if head.is_pending() && !self.is_out && !self.wire.has_received.get() {
            // This read took the bytes that TLS has for itself.
            let was_nothing = std::mem::take(&mut self.is_held) && !self.io.has_come();
            if had_received || was_nothing {
                // An interim answer came, or none, so a body that waits for the end of that answer may go on.
                context.waker().wake_by_ref();
            }
        }
        match (&head, self.broken.take()) {
            // A store may refuse a long body, close the connection, and have said why.
            (Poll::Ready(Ok(_)), _) | (_, None) => head,
            // The store's answer may have come without being noticed yet. If none has, the end of the connection will
            // be noticed.
            (Poll::Pending, Some(broken)) if is_hung_up(&broken) => {
                self.broken = Some(broken);
                Poll::Pending
            }
            (Poll::Ready(Err(_)) | Poll::Pending, Some(broken)) => Poll::Ready(Err(Failed::Io(broken))),
        }
    }
}

/// A request that was taken back, as far as it had been prepared.
pub struct Unsent {
    to_head: bool,
    framing: Framing,
    reuse: Reuse,
    out: Vec<u8>,
    piece: Bytes,
    is_taken: bool,
}

/// Whether a write failed because the other side reads no more. What the other side sent before that can be read.
fn is_hung_up(broken: &io::Error) -> bool {
    matches!(broken.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

#[cfg(test)]
mod tests;
