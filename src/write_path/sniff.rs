//! Which protocol a connection speaks. Its first bytes show that, and the code for that protocol then reads them again.

use std::{
    cell::RefCell,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use super::raw_head::RawHeads;

/// What every HTTP/2 connection begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Reads as much of a connection as is needed to know its protocol; `None` where the connection ends before that.
pub(super) async fn sniff<S: AsyncRead + Unpin>(mut stream: S) -> Option<Sniffed<S>> {
    let mut begun = BytesMut::with_capacity(PREFACE.len());
    while PREFACE.starts_with(&begun) && begun.len() < PREFACE.len() {
        if (&mut stream).take((PREFACE.len() - begun.len()) as u64).read_buf(&mut begun).await.ok()? == 0 {
            return None;
        }
    }
    Some(Sniffed { first: begun.freeze(), stream, heads: None })
}

/// A stream whose first bytes have been read.
pub(super) struct Sniffed<S> {
    first: Bytes,
    stream: S,
    /// Where a copy of what is read goes, so that the heads in it can be checked.
    heads: Option<Rc<RefCell<RawHeads>>>,
}

impl<S> Sniffed<S> {
    /// From here on, copies what is read.
    pub(super) fn copied_to(self, heads: Option<Rc<RefCell<RawHeads>>>) -> Self {
        Self { heads, ..self }
    }

    /// Whether the protocol is HTTP/2. To be asked before anything is read from this stream.
    pub(super) fn is_h2(&self) -> bool {
        self.first == PREFACE
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Sniffed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = self.poll_both(context, buffer);
        if let Some(heads) = &self.heads
            && buffer.filled().len() > before
        {
            heads.borrow_mut().has_read(&buffer.filled()[before..]);
        }
        read
    }
}

impl<S: AsyncRead + Unpin> Sniffed<S> {
    /// Reads the bytes that were read before, and then more from the stream.
    fn poll_both(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let taken = self.first.len().min(buffer.remaining());
        buffer.put_slice(&self.first.split_to(taken));
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        // Also reads what the stream has ready: hyper would make more room for that than it takes.
        match Pin::new(&mut self.stream).poll_read(context, buffer) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(())),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Sniffed<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// What a stream gives, one read after the other; then nothing yet.
    struct Scripted(Vec<io::Result<&'static [u8]>>);

    impl AsyncRead for Scripted {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            if self.0.is_empty() {
                return Poll::Pending;
            }
            Poll::Ready(self.0.remove(0).map(|bytes| buffer.put_slice(bytes)))
        }
    }

    fn read(begun: &mut Sniffed<Scripted>, room: usize) -> Poll<io::Result<Vec<u8>>> {
        let mut room = vec![0; room];
        let mut buffer = ReadBuf::new(&mut room);
        let read = Pin::new(begun).poll_read(&mut Context::from_waker(Waker::noop()), &mut buffer);
        read.map_ok(|()| buffer.filled().to_vec())
    }

    fn begun(script: Vec<io::Result<&'static [u8]>>) -> Sniffed<Scripted> {
        Sniffed { first: Bytes::from_static(b"GET /"), stream: Scripted(script), heads: None }
    }

    #[test]
    fn what_was_begun_comes_first_and_with_it_whatever_is_there() {
        let mut together = begun(vec![Ok(b" HTTP"), Ok(b"/1.1")]);
        assert!(matches!(read(&mut together, 64), Poll::Ready(Ok(bytes)) if bytes == b"GET / HTTP"));
        assert!(matches!(read(&mut together, 64), Poll::Ready(Ok(bytes)) if bytes == b"/1.1"));
        let mut alone = begun(vec![]);
        assert!(matches!(read(&mut alone, 64), Poll::Ready(Ok(bytes)) if bytes == b"GET /"));
        assert!(read(&mut alone, 64).is_pending());
    }

    #[test]
    fn what_was_begun_is_not_lost_where_there_is_no_room_or_no_more() {
        let mut narrow = begun(vec![Ok(b"!")]);
        assert!(matches!(read(&mut narrow, 3), Poll::Ready(Ok(bytes)) if bytes == b"GET"));
        assert!(matches!(read(&mut narrow, 2), Poll::Ready(Ok(bytes)) if bytes == b" /"));
        assert!(matches!(read(&mut narrow, 2), Poll::Ready(Ok(bytes)) if bytes == b"!"));
        let mut ended = begun(vec![Ok(b""), Ok(b"")]);
        assert!(matches!(read(&mut ended, 64), Poll::Ready(Ok(bytes)) if bytes == b"GET /"));
        assert!(matches!(read(&mut ended, 64), Poll::Ready(Ok(bytes)) if bytes.is_empty()));
        let mut broken = begun(vec![Err(io::ErrorKind::ConnectionReset.into())]);
        assert!(matches!(read(&mut broken, 64), Poll::Ready(Err(_))));
    }
}
