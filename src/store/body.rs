//! What is sent to the store: nothing, a body that was held, or one that streams.

use std::{
    collections::VecDeque,
    error::Error,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

/// Why a body was not sent to its end.
pub type Cut = Box<dyn Error + Send + Sync>;

/// A body for the store.
pub enum StoreBody {
    Empty,
    Held { parts: VecDeque<Bytes>, size: u64, trailers: Option<HeaderMap> },
    Stream(Pin<Box<dyn Body<Data = Bytes, Error = Cut>>>),
}

impl StoreBody {
    /// A body that was collected whole.
    #[must_use]
    pub fn held(parts: VecDeque<Bytes>, trailers: Option<HeaderMap>) -> Self {
        let size = parts.iter().map(|part| part.len() as u64).sum();
        if size == 0 && trailers.is_none() { Self::Empty } else { Self::Held { parts, size, trailers } }
    }
}

impl Body for StoreBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match self.get_mut() {
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

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Held { parts, trailers, .. } => parts.is_empty() && trailers.is_none(),
            Self::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Held { size, trailers: None, .. } => SizeHint::with_exact(*size),
            Self::Held { .. } => SizeHint::default(),
            Self::Stream(body) => body.size_hint(),
        }
    }
}
