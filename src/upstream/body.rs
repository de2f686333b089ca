//! What is sent to the store: nothing, a body that was held, or one that streams.

use std::{
    collections::VecDeque,
    error::Error,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};

use crate::failpoints::{self, Fault};

/// Why a body was not sent to its end.
pub type Cut = Box<dyn Error + Send + Sync>;

/// A body for the store.
pub enum StoreBody {
    Empty,
    /// A body that was collected whole. Most come in one part.
    Held {
        first: Bytes,
        parts: VecDeque<Bytes>,
        trailers: Option<Box<HeaderMap>>,
    },
    /// A body that is sent as it comes.
    Stream(Pin<Box<dyn Body<Data = Bytes, Error = Cut>>>),
}

impl StoreBody {
    /// A body that was collected whole.
    #[must_use]
    pub fn held(mut first: Bytes, parts: VecDeque<Bytes>, trailers: Option<Box<HeaderMap>>) -> Self {
        if failpoints::on(Fault::CutBody) {
            first.truncate(first.len().saturating_sub(2));
        }
        if first.is_empty() && parts.is_empty() && trailers.is_none() {
            return Self::Empty;
        }
        Self::Held { first, parts, trailers }
    }

    /// The data of a collected body, part by part.
    pub fn held_parts(&self) -> impl Iterator<Item = &Bytes> {
        let (first, parts) = match self {
            Self::Held { first, parts, .. } => (Some(first), Some(parts)),
            Self::Empty | Self::Stream(_) => (None, None),
        };
        first.into_iter().chain(parts.into_iter().flatten())
    }
}

impl Body for StoreBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match &mut *self {
            Self::Empty => Poll::Ready(None),
            Self::Held { first, parts, trailers } => Poll::Ready(if first.is_empty() && parts.is_empty() {
                trailers.take().map(|trailers| Ok(Frame::trailers(*trailers)))
            } else {
                let next = parts.pop_front().unwrap_or_default();
                Some(Ok(Frame::data(std::mem::replace(first, next))))
            }),
            Self::Stream(body) => body.as_mut().poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Held { first, parts, trailers } => first.is_empty() && parts.is_empty() && trailers.is_none(),
            Self::Stream(body) => body.is_end_stream(),
        }
    }
}
