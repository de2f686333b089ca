//! A request that is refused before its body is read.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use http::{Version, header, request::Parts};
use http_body::Body;
use hyper::body::Incoming;

use super::{
    Worker,
    hold::{Source, discard},
    reply::Rejection,
};

/// A refused request, and what is still to come of its body.
pub(super) struct Declined {
    why: Option<Rejection>,
    /// The rest of its body, if the client sends it.
    body: Option<Incoming>,
    is_h2: bool,
    /// Whether hyper was asked for the body once.
    asked: bool,
}

impl Declined {
    pub(super) fn new(why: Rejection, head: &Parts, body: Source) -> Self {
        let is_h2 = head.version == Version::HTTP_2;
        // A client that waits for a 100 Continue sends no body, and is not asked to.
        let comes = |_: &_| is_h2 || !head.headers.contains_key(header::EXPECT);
        let (why, body) = (Some(why), body.into_rest().filter(comes));
        Self { why, body, is_h2, asked: false }
    }

    /// Reads and drops the part of the body that is here already; small bodies are. The rest is read and dropped after
    /// the answer.
    pub(super) fn poll(&mut self, worker: &Worker, context: &mut Context<'_>) -> Poll<Rejection> {
        while let Some(body) = self.body.as_mut().filter(|body| !body.is_end_stream()) {
            match Pin::new(body).poll_frame(context) {
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(_)) | None) => self.body = None,
                Poll::Pending if !self.asked && !self.is_h2 => {
                    // What hyper has read of the body comes with the next poll.
                    self.asked = true;
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Pending => break,
            }
        }
        Poll::Ready(self.finish(worker))
    }

    /// Returns why the request is refused. Has the rest of its body read and dropped.
    pub(super) fn finish(&mut self, worker: &Worker) -> Rejection {
        if let Some(body) = self.body.take() {
            discard(worker, body);
        }
        self.why.take().expect("an answer is asked for once")
    }
}
