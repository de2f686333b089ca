//! What goes on on a connection to the store: how much has left, whether the store has said something, and
//! whether all of a request is out of our hands.
//!
//! hyper asks its stream to be flushed only when it holds nothing back itself, so what has been flushed since
//! it took the last of a body is with the kernel.

use std::{
    cell::Cell,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What goes on on one connection.
#[derive(Debug, Default)]
pub struct Wire {
    /// Bytes that have left, ever.
    pub sent: Cell<u64>,
    /// Something has come from the store since this was last set to false.
    pub heard: Cell<bool>,
    /// hyper has taken the whole body of the request.
    is_taken: Cell<bool>,
    /// hyper may hold something back.
    is_dirty: Cell<bool>,
}

impl Wire {
    /// A request is about to be sent. `is_whole`: there is nothing behind its head.
    pub fn begin(&self, is_whole: bool) {
        self.is_taken.set(is_whole);
        self.is_dirty.set(true);
    }

    /// hyper takes another frame of the body; perhaps the last.
    pub fn take(&self, is_last: bool) {
        self.is_taken.set(is_last);
        self.is_dirty.set(true);
    }

    /// Whether all of the request was handed to the kernel.
    #[must_use]
    pub fn is_out(&self) -> bool {
        self.is_taken.get() && !self.is_dirty.get()
    }
}

/// A stream that notes when something comes, and when all that hyper had for it is out. It lies above TLS:
/// only what the store itself says counts.
pub struct Watched<S> {
    inner: S,
    wire: Rc<Wire>,
}

impl<S> Watched<S> {
    pub fn new(inner: S, wire: &Rc<Wire>) -> Self {
        Self { inner, wire: Rc::clone(wire) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.wire.heard.set(true);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(context);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            self.wire.is_dirty.set(false);
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

/// A stream that counts what leaves on it. It lies below TLS.
pub struct Counted<S> {
    inner: S,
    wire: Rc<Wire>,
}

impl<S> Counted<S> {
    pub fn new(inner: S, wire: &Rc<Wire>) -> Self {
        Self { inner, wire: Rc::clone(wire) }
    }

    fn count(&self, written: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(bytes)) = written {
            self.wire.sent.set(self.wire.sent.get() + *bytes as u64);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.count(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, bytes);
        self.count(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::HeaderMap;
    use http_body::Body;
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::store::body::StoreBody;

    #[tokio::test]
    async fn a_request_is_out_when_its_body_was_taken_whole_and_flushed_since() {
        let wire = Rc::<Wire>::default();
        let mut stream = Watched::new(tokio::io::sink(), &wire);
        let parts = [Bytes::from_static(b"one"), Bytes::from_static(b"two")].into();
        let mut body = StoreBody::held(parts, Some(HeaderMap::new()));
        body.goes_by(Rc::clone(&wire));
        // Two parts and the trailers, each flushed: only the last is the end of it.
        for is_out in [false, false, true] {
            stream.flush().await.unwrap();
            assert!(!wire.is_out());
            let frame = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
            assert!(matches!(frame, Some(Ok(_))) && !wire.is_out(), "taken, and not flushed");
            stream.flush().await.unwrap();
            assert_eq!(wire.is_out(), is_out);
        }
        // The next request on the same connection begins anew.
        StoreBody::empty().goes_by(Rc::clone(&wire));
        assert!(!wire.is_out());
        stream.flush().await.unwrap();
        assert!(wire.is_out());
    }
}
