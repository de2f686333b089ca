//! A connection's socket. It ends the connection if the peer takes nothing for too long.

use std::{
    io::{Error, ErrorKind, Result},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use socket2::SockRef;
use tokio::{net::TcpStream, time::Sleep};

use super::seats::Seat;
use crate::upstream::observed::{Observed, Observer};

/// How long a peer may take nothing of its answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// A socket that reports to its seat.
pub(super) type Socket = Observed<TcpStream, Patience>;

impl Socket {
    pub(super) fn new(stream: TcpStream, seat: Arc<Seat>) -> Self {
        Self::with(stream, Patience { seat, has_read: false, timeout: None })
    }
}

/// Measures how long a peer has taken nothing.
pub(super) struct Patience {
    seat: Arc<Seat>,
    /// The first bytes were read.
    has_read: bool,
    /// Runs while the peer takes nothing.
    timeout: Option<Pin<Box<Sleep>>>,
}

impl Observer<TcpStream> for Patience {
    fn read(&mut self, read: &Poll<Result<()>>, _bytes: usize) {
        if read.is_pending() && !self.has_read {
            self.has_read = true;
            self.seat.has_read_all();
        }
    }

    /// Fails a write that waits too long.
    fn written(&mut self, cx: &mut Context<'_>, written: Poll<Result<usize>>) -> Poll<Result<usize>> {
        if written.is_ready() {
            if self.timeout.take().is_some() {
                self.seat.is_stalled(false);
            }
            return written;
        }
        let seat = &self.seat;
        let timeout = self.timeout.get_or_insert_with(|| {
            seat.is_stalled(true);
            Box::pin(tokio::time::sleep(WRITE_TIMEOUT))
        });
        ready!(timeout.as_mut().poll(cx));
        Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "the peer takes nothing")))
    }

    /// Closing must not leave bytes in the kernel that the peer did not take.
    fn closing(&mut self, stream: &TcpStream) {
        if self.timeout.is_some() || self.seat.was_asked_to_leave() {
            let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
        }
    }
}
