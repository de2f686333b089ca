//! A stream, and an observer of its reads and writes. Each user of a connection counts in a different way. The reading
//! and writing around that is here, once.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::io::Io;

/// Observes the reads and writes of a stream `S`.
pub trait Observer<S> {
    /// Whether the parts of a small vectored write are copied together and written as one.
    const JOINS: bool = false;

    /// Called after a read with the number of bytes that came: zero where it waits, or where the stream has ended.
    fn read(&mut self, _read: &Poll<io::Result<()>>, _bytes: usize) {}

    /// Called with the result of a write. Returns what the writer gets.
    fn written(&mut self, _context: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        written
    }

    /// Called before the stream is closed.
    fn closing(&mut self, _stream: &S) {}
}

/// The stream, and its observer.
pub struct Observed<S, O: Observer<S>> {
    inner: S,
    observer: O,
}

impl<S, O: Observer<S>> Observed<S, O> {
    pub fn with(inner: S, observer: O) -> Self {
        Self { inner, observer }
    }
}

impl<S, O: Observer<S>> Drop for Observed<S, O> {
    fn drop(&mut self) {
        self.observer.closing(&self.inner);
    }
}

impl<S: Io, O: Observer<S> + Unpin> Io for Observed<S, O> {
    fn has_come(&self) -> bool {
        self.inner.has_come()
    }
}

impl<S: AsyncRead + Unpin, O: Observer<S> + Unpin> AsyncRead for Observed<S, O> {
    #[inline]
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.remaining();
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        self.observer.read(&read, before - buffer.remaining());
        read
    }
}

impl<S: AsyncWrite + Unpin, O: Observer<S> + Unpin> AsyncWrite for Observed<S, O> {
    #[inline]
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.observer.written(context, written)
    }

    #[inline]
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = if O::JOINS {
            write_joined(Pin::new(&mut self.inner), context, parts)
        } else {
            Pin::new(&mut self.inner).poll_write_vectored(context, parts)
        };
        self.observer.written(context, written)
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

/// Up to this size, it costs less to copy the parts of a write together than to pass each to the kernel.
const JOIN_MAX: usize = 1_024;

#[inline]
fn write_joined<S: AsyncWrite>(
    stream: Pin<&mut S>,
    context: &mut Context<'_>,
    parts: &[io::IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    let mut joined = [0; JOIN_MAX];
    match join(parts, &mut joined) {
        Some(joined) => stream.poll_write(context, joined),
        None => stream.poll_write_vectored(context, parts),
    }
}

fn join<'a>(parts: &[io::IoSlice<'_>], joined: &'a mut [u8; JOIN_MAX]) -> Option<&'a [u8]> {
    let mut length = 0;
    for part in parts {
        joined.get_mut(length..length + part.len())?.copy_from_slice(part);
        length += part.len();
    }
    Some(&joined[..length])
}

#[cfg(test)]
mod tests {
    use std::{
        cell::{Cell, RefCell},
        io::IoSlice,
        rc::Rc,
        task::Waker,
    };

    use super::*;

    #[derive(Default)]
    struct Seen {
        read: Cell<usize>,
        written: Cell<usize>,
        waited: Cell<usize>,
        is_closed: Cell<bool>,
    }

    struct Note<const JOINS: bool>(Rc<Seen>);

    impl<S, const JOINS: bool> Observer<S> for Note<JOINS> {
        const JOINS: bool = JOINS;

        fn read(&mut self, _: &Poll<io::Result<()>>, bytes: usize) {
            self.0.read.set(self.0.read.get() + bytes);
        }

        fn written(&mut self, _: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
            match &written {
                Poll::Ready(Ok(bytes)) => self.0.written.set(self.0.written.get() + bytes),
                Poll::Ready(Err(_)) => {}
                Poll::Pending => self.0.waited.set(self.0.waited.get() + 1),
            }
            written
        }

        fn closing(&mut self, _: &S) {
            self.0.is_closed.set(true);
        }
    }

    #[test]
    fn an_observer_sees_what_was_read_and_written_and_the_end() {
        let (seen, mut context) = (Rc::<Seen>::default(), Context::from_waker(Waker::noop()));
        let (near, mut far) = tokio::io::duplex(8);
        let mut near = Observed::with(near, Note::<false>(Rc::clone(&seen)));
        let parts = [IoSlice::new(b"ab"), IoSlice::new(b"cde")];
        assert!(Pin::new(&mut near).poll_write_vectored(&mut context, &parts).is_ready());
        assert!(Pin::new(&mut near).poll_write(&mut context, b"12345678").is_ready());
        assert!(Pin::new(&mut near).poll_write(&mut context, b"more").is_pending());
        assert!(Pin::new(&mut far).poll_write(&mut context, b"xyz").is_ready());
        let mut room = [0; 8];
        let mut buffer = ReadBuf::new(&mut room);
        assert!(Pin::new(&mut near).poll_read(&mut context, &mut buffer).is_ready());
        assert!(Pin::new(&mut near).poll_read(&mut context, &mut buffer).is_pending());
        assert_eq!((seen.read.get(), seen.written.get(), seen.waited.get()), (3, 8, 1));
        assert!(!seen.is_closed.get());
        drop(near);
        assert!(seen.is_closed.get());
    }

    /// Notes how many parts each write had.
    #[derive(Default)]
    struct Parts(RefCell<Vec<usize>>);

    impl AsyncWrite for Parts {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.0.borrow_mut().push(1);
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            parts: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            self.0.borrow_mut().push(parts.len());
            Poll::Ready(Ok(parts.iter().map(|part| part.len()).sum()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn parts_written<const JOINS: bool>(size: usize) -> (Vec<usize>, usize) {
        let (seen, mut context) = (Rc::<Seen>::default(), Context::from_waker(Waker::noop()));
        let mut stream = Observed::with(Parts::default(), Note::<JOINS>(Rc::clone(&seen)));
        let part = vec![b'x'; size];
        let written =
            Pin::new(&mut stream).poll_write_vectored(&mut context, &[IoSlice::new(&part), IoSlice::new(&part)]);
        assert!(matches!(written, Poll::Ready(Ok(bytes)) if bytes == 2 * size), "{written:?}");
        (stream.inner.0.take(), seen.written.get())
    }

    #[test]
    fn small_parts_are_joined_where_the_observer_says_so() {
        assert_eq!(parts_written::<true>(JOIN_MAX / 2), (vec![1], JOIN_MAX));
        assert_eq!(parts_written::<true>(JOIN_MAX), (vec![2], 2 * JOIN_MAX));
        assert_eq!(parts_written::<false>(1), (vec![2], 2));
    }
}
