//! What is sent to the store: nothing, a body that was held, or one that streams.

use std::{
    collections::VecDeque,
    error::Error,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

use super::wire::Wire;

/// Why a body was not sent to its end.
pub type Cut = Box<dyn Error + Send + Sync>;

/// A body for the store.
pub struct StoreBody {
    pub content: Content,
    /// Of the connection that it is sent on.
    wire: Option<Rc<Wire>>,
}

/// What there is of it.
pub enum Content {
    Empty,
    Held { parts: VecDeque<Bytes>, size: u64, trailers: Option<HeaderMap> },
    Stream(Pin<Box<dyn Body<Data = Bytes, Error = Cut>>>),
}

impl StoreBody {
    /// No body at all.
    #[must_use]
    pub fn empty() -> Self {
        Self { content: Content::Empty, wire: None }
    }

    /// A body that was collected whole.
    #[must_use]
    pub fn held(parts: VecDeque<Bytes>, trailers: Option<HeaderMap>) -> Self {
        let size = parts.iter().map(|part| part.len() as u64).sum();
        if size == 0 && trailers.is_none() {
            return Self::empty();
        }
        Self { content: Content::Held { parts, size, trailers }, wire: None }
    }

    /// One that is sent as it comes.
    #[must_use]
    pub fn stream(body: impl Body<Data = Bytes, Error = Cut> + 'static) -> Self {
        Self { content: Content::Stream(Box::pin(body)), wire: None }
    }

    /// It is about to be sent on this connection, behind its head.
    pub fn goes_by(&mut self, wire: Rc<Wire>) {
        wire.begin(self.is_end_stream());
        self.wire = Some(wire);
    }
}

impl Content {
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match self {
            Self::Empty => Poll::Ready(None),
            Self::Held { parts, size, trailers } => Poll::Ready(match parts.pop_front() {
                Some(bytes) => {
                    *size -= bytes.len() as u64;
                    Some(Ok(Frame::data(bytes)))
                }
                None => trailers.take().map(|trailers| Ok(Frame::trailers(trailers))),
            }),
            Self::Stream(body) => body.as_mut().poll_frame(context),
        }
    }
}

impl Body for StoreBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let frame = self.content.poll_frame(context);
        if let (Some(wire), Poll::Ready(taken)) = (&self.wire, &frame) {
            wire.take(taken.is_none() || self.is_end_stream());
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Empty => true,
            Content::Held { parts, trailers, .. } => parts.is_empty() && trailers.is_none(),
            Content::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Empty => SizeHint::with_exact(0),
            Content::Held { size, trailers: None, .. } => SizeHint::with_exact(*size),
            Content::Held { .. } => SizeHint::default(),
            Content::Stream(body) => body.size_hint(),
        }
    }
}
