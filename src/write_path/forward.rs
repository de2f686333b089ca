//! To the store and back, once.
//!
//! A write takes its permit along, is judged again at the last moment before it is sent, and is sent
//! at most once: whatever fails behind the first byte is [`Code::OutcomeUnknown`]. A client that hangs
//! up does not make its write invisible: the rest of the work is carried on without it.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, Uri, Version, header, request::Parts};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::{
    Worker,
    classify::FENCE_TOKEN,
    decide::Admitted,
    headers::{self, Origin},
    hold::{self, Held, NoBody, Share},
    reply::{Refused, ReplyBody},
};
use crate::{
    fence::{Code, Denial},
    store::{
        body::{Cut, StoreBody},
        pool::{Lane, NoLane, Pool},
    },
};

/// How long an answer that nobody reads any more is read on, to see the write settled.
const LAST_WORDS: Duration = Duration::from_secs(30);

/// A request on its way.
pub struct Job {
    pub worker: Rc<Worker>,
    pub pool: Rc<Pool>,
    pub origin: Origin,
    pub is_write: bool,
    /// `None` for reads, and where nobody judges.
    pub admitted: Option<Admitted>,
    /// What the write would have been told if it were judged in earnest.
    pub would: Option<Code>,
}

/// Forwards a request and returns the store's answer.
///
/// # Errors
/// With what the client is told instead.
pub async fn forward(job: Job, mut head: Parts, body: Incoming) -> Result<Response<ReplyBody>, Refused> {
    let (body, _share) = job.body(&head, body).await?;
    to_origin_form(&mut head);
    let id = || HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()).unwrap_or(HeaderValue::from_static("0"));
    headers::to_store(&mut head.headers, &job.origin, job.admitted.as_ref().map(|admitted| &admitted.permit), id);
    if job.is_write && !matches!(body, StoreBody::Stream(_)) {
        // Of a held body the length is known, however it came.
        head.headers.remove(header::CONTENT_LENGTH);
    }
    let (lane, response) = job.send(Request::from_parts(head, body)).await?;
    Ok(job.answer(lane, response))
}

impl Job {
    async fn body(&self, head: &Parts, body: Incoming) -> Result<(StoreBody, Option<Share>), Refused> {
        if body.is_end_stream() {
            return Ok((StoreBody::Empty, None));
        }
        if !self.is_write {
            return Ok((StoreBody::Stream(Box::pin(Passed(body))), None));
        }
        let plane = &self.worker.plane;
        let settings = &plane.settings;
        let length = head.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let expected = length.unwrap_or(settings.hold_bytes).min(settings.hold_bytes);
        let share = Share::take(plane, expected).ok_or_else(|| {
            Refused::new(Code::GateOverloaded, "too many bodies are being held; try again in a moment")
        })?;
        let patience = Duration::from_millis(settings.body_timeout_ms);
        let is_h2 = self.origin.version == Version::HTTP_2;
        let collected = hold::hold(body, is_h2, settings.hold_bytes, patience).await.map_err(|why| match why {
            NoBody::Cut => Refused::new(Code::BodyUnreadable, "the body broke off; nothing was sent"),
            NoBody::Slow => Refused::new(Code::BodyUnreadable, "the body did not come in time; nothing was sent"),
        })?;
        match collected {
            Held::Whole { trailers: Some(trailers), .. } if trailers.contains_key(FENCE_TOKEN) => {
                Err(Refused::new(Code::FenceTokenMalformed, "Fence-Token came as a trailer; it must be a header"))
            }
            Held::Whole { bytes, trailers } => Ok((StoreBody::held(bytes, trailers), Some(share))),
            Held::Long { first, rest } => Ok((StoreBody::Stream(Box::pin(Long { first, rest, is_h2 })), None)),
        }
    }

    async fn send(&self, mut request: Request<StoreBody>) -> Result<(Lane, Response<Incoming>), Refused> {
        let patience = Duration::from_millis(self.pool.settings().response_timeout_ms);
        loop {
            let mut lane = self.pool.lane().await.map_err(no_lane)?;
            self.judge_again().await?;
            let before = lane.sent();
            let sent = tokio::time::timeout(patience, lane.sender().try_send_request(request)).await;
            let (why, unsent) = match sent {
                Ok(Ok(response)) => return Ok((lane, response)),
                Ok(Err(mut error)) => {
                    let unsent = error.take_message();
                    (error.into_error().to_string(), unsent)
                }
                Err(_) => (format!("no answer within {} ms", patience.as_millis()), None),
            };
            match unsent {
                // The connection died while it was idle, and nothing of this request was taken up.
                Some(unsent) if lane.sent() == before => request = unsent,
                Some(_) | None => return Err(self.failed(lane.sent() > before, &why)),
            }
        }
    }

    async fn judge_again(&self) -> Result<(), Refused> {
        let Some(admitted) = &self.admitted else { return Ok(()) };
        let gate = &self.worker.plane.gate;
        loop {
            match admitted.judge_again(gate) {
                Ok(()) => return Ok(()),
                Err(Denial::Refused(refusal)) => return Err(refusal.into()),
                Err(Denial::Overdue(lease)) => {
                    let object = admitted.permit.object().clone();
                    let ended = gate.ledger.end(vec![(object, lease)]).await;
                    ended.map_err(|_| Refused::new(Code::TableUnavailable, "the fence table cannot be used now"))?;
                }
            }
        }
    }

    fn failed(&self, something_left: bool, why: &str) -> Refused {
        if something_left && self.is_write {
            self.worker.plane.metrics.unknown();
            return Refused::new(
                Code::OutcomeUnknown,
                format!("the write was sent, and the store gave no answer ({why}); look before you write again"),
            );
        }
        Refused::new(Code::StoreUnreachable, format!("the store gave no answer ({why}); nothing was written"))
    }

    fn answer(self, lane: Lane, response: Response<Incoming>) -> Response<ReplyBody> {
        let (mut head, incoming) = response.into_parts();
        let permit = self.admitted.as_ref().map(|admitted| &admitted.permit);
        let settles = settles(head.status);
        headers::to_client(&mut head.headers, permit, settles);
        if self.is_write && !settles {
            self.worker.plane.metrics.unknown();
        }
        if let Some(code) = self.would {
            head.headers.insert("fence-would", HeaderValue::from_static(code.as_str()));
        }
        head.version = Version::HTTP_11;
        let carried = Carried { worker: self.worker, lane, is_write: self.is_write, _admitted: self.admitted };
        let mut reply = StoreReply { incoming: Some(incoming), carried: Some(carried) };
        reply.finish_if_over();
        Response::from_parts(head, ReplyBody::Store(reply))
    }
}

/// Answers that leave open whether the store has done it, or will.
fn settles(status: StatusCode) -> bool {
    !matches!(status.as_u16(), 202 | 408 | 499 | 502 | 503 | 504)
}

fn no_lane(why: NoLane) -> Refused {
    match why {
        NoLane::Unreachable(why) => {
            Refused::new(Code::StoreUnreachable, format!("the store cannot be reached ({why}); nothing was sent"))
        }
        NoLane::Overloaded => {
            Refused::new(Code::GateOverloaded, "too many requests wait for the store; nothing was sent")
        }
    }
}

/// The path and query, byte for byte, and the host in its header.
fn to_origin_form(head: &mut Parts) {
    if !head.headers.contains_key(header::HOST)
        && let Some(host) = head.uri.authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok())
    {
        head.headers.insert(header::HOST, host);
    }
    let path = head.uri.path_and_query().cloned();
    let mut origin = http::uri::Parts::default();
    origin.path_and_query = path;
    head.uri = Uri::from_parts(origin).unwrap_or_default();
    head.version = Version::HTTP_11;
}

/// A read's body, passed on.
struct Passed(Incoming);

impl Body for Passed {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        Pin::new(&mut self.0).poll_frame(context).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

/// A write's body that is too long to be held: its beginning, then the rest as it comes.
struct Long {
    first: VecDeque<Bytes>,
    rest: Incoming,
    is_h2: bool,
}

impl Body for Long {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if let Some(bytes) = self.first.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        match Pin::new(&mut self.rest).poll_frame(context) {
            Poll::Ready(None) if self.is_h2 && !self.rest.is_end_stream() => {
                // Reset without an error: it looks like an end, and is none.
                Poll::Ready(Some(Err("the client broke off".into())))
            }
            other => other.map_err(Into::into),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_empty() && self.rest.is_end_stream()
    }
}

/// What is kept while an answer is being read.
struct Carried {
    worker: Rc<Worker>,
    lane: Lane,
    is_write: bool,
    _admitted: Option<Admitted>,
}

/// A store's answer, on its way to the client. When it is over, the connection is free again and the
/// write is settled. If the client goes away first, a write's answer is read on without it.
pub struct StoreReply {
    incoming: Option<Incoming>,
    carried: Option<Carried>,
}

impl StoreReply {
    fn finish_if_over(&mut self) {
        if self.incoming.as_ref().is_some_and(Body::is_end_stream)
            && let Some(Carried { worker, lane, .. }) = self.carried.take()
        {
            lane.give_back(worker.now.get());
        }
    }
}

impl Body for StoreReply {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
        let frame = Pin::new(incoming).poll_frame(context);
        match &frame {
            Poll::Ready(Some(Ok(_)) | None) => self.finish_if_over(),
            // The connection is of no more use.
            Poll::Ready(Some(Err(_))) => drop(self.carried.take()),
            Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(SizeHint::default, Body::size_hint)
    }
}

impl Drop for StoreReply {
    fn drop(&mut self) {
        let Some(carried) = self.carried.take() else { return };
        if !carried.is_write || carried.worker.stopping.get() {
            return;
        }
        let mut rest = Self { incoming: self.incoming.take(), carried: Some(carried) };
        tokio::task::spawn_local(async move {
            let read_on = async {
                while let Some(Ok(_)) = std::future::poll_fn(|context| Pin::new(&mut rest).poll_frame(context)).await {}
            };
            let _ = tokio::time::timeout(LAST_WORDS, read_on).await;
            // Not over by now: the connection closes, and nothing more is waited for.
            drop(rest.carried.take());
        });
    }
}

/// Work that goes on when nobody waits for it any more.
pub struct CarryOn<F: Future + 'static> {
    work: Option<Pin<Box<F>>>,
    worker: Rc<Worker>,
}

impl<F: Future + 'static> CarryOn<F> {
    pub fn new(worker: Rc<Worker>, work: F) -> Self {
        Self { work: Some(Box::pin(work)), worker }
    }
}

impl<F: Future + 'static> Future for CarryOn<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Some(work) = &mut self.work else { return Poll::Pending };
        let done = work.as_mut().poll(context);
        if done.is_ready() {
            self.work = None;
        }
        done
    }
}

impl<F: Future + 'static> Drop for CarryOn<F> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take().filter(|_| !self.worker.stopping.get()) {
            tokio::task::spawn_local(async move {
                // What comes of it is for nobody; the write is settled by it.
                drop(work.await);
            });
        }
    }
}
