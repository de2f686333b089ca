//! The request on its way out: its head and the parts of its body, gathered and written.

use std::{
    io::{self, IoSlice, Write as _},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http::HeaderMap;
use http_body::Body;
use tokio::io::AsyncWrite;

use super::{COPY_MAX, Failed, Framing, GATHER, Http1Conn};
use crate::upstream::body::StoreBody;

impl Http1Conn {
    pub(super) fn poll_send(&mut self, context: &mut Context<'_>, body: &mut StoreBody) -> Poll<Result<(), Failed>> {
        loop {
            let gathered = self.gather(context, body)?;
            if self.has_begun && matches!(gathered, Gathered::All) && self.io.has_come() {
                // What has come may be an answer to part of the request, so it is read before the end is sent.
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
                    // Bytes that TLS buffers must not wait for the rest of the body.
                    ready!(Pin::new(&mut self.io).poll_flush(context)).map_err(Failed::Io)?;
                    return Poll::Pending;
                }
            }
        }
    }

    /// Takes the parts of the body that have come, until there is enough to be written.
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
            // In chunks, an empty one would be the end.
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
}

enum Gathered {
    /// The whole request is ready to be written.
    All,
    /// Enough is gathered for now.
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
