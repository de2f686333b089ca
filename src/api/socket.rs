//! A connection's socket, which ends the connection where its peer takes nothing for too long.

use std::{
    io::{Error, ErrorKind, IoSlice, Result},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::Sleep,
};

use super::seats::Seat;

/// How long a peer may take nothing of what there is for it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// A socket, and what its seat has to know of it.
pub(super) struct Socket {
    stream: TcpStream,
    seat: Arc<Seat>,
    /// What came first was looked at.
    has_read: bool,
    /// Runs while the peer takes nothing.
    patience: Option<Pin<Box<Sleep>>>,
}

impl Socket {
    pub(super) fn new(stream: TcpStream, seat: Arc<Seat>) -> Self {
        Self { stream, seat, has_read: false, patience: None }
    }

    /// Looks at what became of a write.
    fn written(&mut self, cx: &mut Context<'_>, written: Poll<Result<usize>>) -> Poll<Result<usize>> {
        if written.is_ready() {
            if self.patience.take().is_some() {
                self.seat.is_stalled(false);
            }
            return written;
        }
        let seat = &self.seat;
        let patience = self.patience.get_or_insert_with(|| {
            seat.is_stalled(true);
            Box::pin(tokio::time::sleep(WRITE_TIMEOUT))
        });
        ready!(patience.as_mut().poll(cx));
        Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "the peer takes nothing")))
    }
}

impl Drop for Socket {
    /// What a peer did not take is not kept for it in the kernel.
    fn drop(&mut self) {
        if self.patience.is_some() || self.seat.was_asked_to_leave() {
            let _ = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, into);
        if read.is_pending() && !self.has_read {
            self.has_read = true;
            self.seat.has_read_all();
        }
        read
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.written(cx, written)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, all: &[IoSlice<'_>]) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, all);
        self.written(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
