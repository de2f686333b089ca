//! What is sent to the store: nothing, a body that was held, or one that streams.

use std::{
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
    Held { bytes: Option<Bytes>, trailers: Option<HeaderMap> },
    Stream(Pin<Box<dyn Body<Data = Bytes, Error = Cut>>>),
}

impl StoreBody {
    /// A body that was collected whole.
    #[must_use]
    pub fn held(bytes: Bytes, trailers: Option<HeaderMap>) -> Self {
        if bytes.is_empty() && trailers.is_none() { Self::Empty } else { Self::Held { bytes: Some(bytes), trailers } }
    }
}

impl Body for StoreBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match self.get_mut() {
            Self::Empty => Poll::Ready(None),
            Self::Held { bytes, trailers } => Poll::Ready(match bytes.take().filter(|bytes| !bytes.is_empty()) {
                Some(bytes) => Some(Ok(Frame::data(bytes))),
                None => trailers.take().map(|trailers| Ok(Frame::trailers(trailers))),
            }),
            Self::Stream(body) => body.as_mut().poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Held { bytes, trailers } => bytes.is_none() && trailers.is_none(),
            Self::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Held { bytes, trailers: None } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Self::Held { .. } => SizeHint::default(),
            Self::Stream(body) => body.size_hint(),
        }
    }
}
