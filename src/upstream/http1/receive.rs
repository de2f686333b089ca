//! The answer on its way in: its heads, then its body, piece by piece.

use std::{
    future::Future,
    io,
    pin::pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http::StatusCode;
use http_body::Frame;
use tokio::io::AsyncReadExt;

use super::{Failed, Http1Conn, INTERIM_BYTES_MAX, LONG_ROOM, ROOM, ResponseState};
use crate::upstream::{
    answer::{self, Ends, Head, Unreadable},
    chunks::{Chunks, Piece, take},
};

impl Http1Conn {
    pub(super) fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<Result<Box<Head>, Failed>> {
        loop {
            if !self.read.is_empty()
                && let Some((length, head)) =
                    answer::parse(&self.read, self.to_head, &mut self.copies).map_err(Failed::Unreadable)?
            {
                self.read.advance(length);
                if head.status.is_informational() && head.status != StatusCode::SWITCHING_PROTOCOLS {
                    self.interim += length;
                    if self.interim > INTERIM_BYTES_MAX {
                        return Poll::Ready(Err(Failed::Unreadable("it says nothing but that it goes on")));
                    }
                    self.wire.has_received.set(!self.read.is_empty());
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
            self.wire.has_received.set(true);
        }
        Poll::Ready(read)
    }

    pub(super) fn make_room(&mut self) {
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

    /// The next piece of the body in the buffer; `None` where more has to be read, or all of it was.
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
                Some(Frame::data(take(&mut self.read, all, Some(&mut self.copies))))
            }
            ResponseState::Length(left) => {
                let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(self.read.len());
                *left -= taken as u64;
                if *left == 0 {
                    self.answer = ResponseState::Over;
                }
                Some(Frame::data(take(&mut self.read, taken, Some(&mut self.copies))))
            }
        })
    }
}
