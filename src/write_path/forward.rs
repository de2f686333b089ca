//! To the store and back, once.
//!
//! A write takes its permit along, is judged again at the last moment before it is sent, and is sent
//! at most once: whatever fails behind the first byte is [`Code::OutcomeUnknown`]. A client that hangs
//! up does not make its write invisible: the rest of the work is carried on without it.

use std::{cell::Cell, collections::VecDeque, rc::Rc, sync::Arc, time::Duration};

use http::{HeaderValue, Request, Response, StatusCode, Uri, Version, header, request::Parts};
use http_body::Body;
use hyper::body::Incoming;

use super::{
    Worker,
    carry::{Carried, StoreReply},
    classify::FENCE_TOKEN,
    commit::{Broken, JudgeAgain, Progress, Stream, Upload},
    decide::Admitted,
    headers::{self, Origin},
    hold::{self, Held, NoBody, Share},
    plan::Plan,
    reply::{Refused, ReplyBody},
};
use crate::{
    clock::Stopwatch,
    fence::{Code, Denial, code::Limit},
    store::{
        body::StoreBody,
        pool::{Lane, NoLane, Pool},
    },
};

/// A request on its way.
pub struct Job {
    pub worker: Rc<Worker>,
    pub plan: Arc<Plan>,
    pub pool: Rc<Pool>,
    pub origin: Origin,
    pub is_write: bool,
    /// Set as soon as something may be sent.
    pub begun: Rc<Cell<bool>>,
    /// `None` for reads, and where nobody judges.
    pub admitted: Option<Rc<Admitted>>,
    /// What the write would have been told if it were judged in earnest.
    pub would: Option<Code>,
}

/// A body, ready to be sent.
struct Outgoing {
    body: StoreBody,
    /// The room that a collected body takes until it is sent.
    share: Option<Share>,
    /// How far a body is that streams.
    progress: Option<Rc<Progress>>,
}

/// Forwards a request and returns the store's answer.
///
/// # Errors
/// With what the client is told instead.
pub async fn forward(job: Job, mut head: Parts, body: Incoming) -> Result<Response<ReplyBody>, Refused> {
    let Outgoing { body, share, progress } = job.body(&head, body).await?;
    to_origin_form(&mut head);
    let id = || HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()).unwrap_or(HeaderValue::from_static("0"));
    headers::to_store(&mut head.headers, &job.origin, job.admitted.as_ref().map(|admitted| &admitted.permit), id);
    frame(&mut head, progress.is_some());
    let sent = job.send(Request::from_parts(head, body), progress.as_deref()).await;
    drop(share);
    let (lane, response) = sent?;
    Ok(job.answer(lane, response, progress.as_deref()))
}

impl Job {
    async fn body(&self, head: &Parts, body: Incoming) -> Result<Outgoing, Refused> {
        if body.is_end_stream() {
            return Ok(Outgoing { body: StoreBody::Empty, share: None, progress: None });
        }
        let settings = &self.plan.settings;
        let length = head.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let limit = if settings.body_bytes_max == 0 { u64::MAX } else { settings.body_bytes_max };
        let mut stream = Stream {
            first: VecDeque::new(),
            share: None,
            rest: body,
            is_h2: self.origin.version == Version::HTTP_2,
            length,
            asks_first: head.headers.contains_key(header::EXPECT),
            limit,
            patience: Duration::from_millis(settings.body_timeout_ms),
        };
        if !self.is_write || length.is_some_and(|length| length > settings.hold_bytes as u64) {
            return Ok(self.stream(stream));
        }
        let expected = length.and_then(|length| usize::try_from(length).ok()).unwrap_or(settings.hold_bytes);
        let Some(share) = Share::take(&self.worker.plane, expected, settings.hold_total_bytes) else {
            drop(self.stream(stream));
            return Err(Refused::new(Code::GateOverloaded, "too many bodies are being held; try again in a moment"));
        };
        let collected = hold::hold(stream.rest, stream.is_h2, settings.hold_bytes, limit, stream.patience).await;
        match collected.map_err(|why| unsent(&why.into()))? {
            Held::Whole { trailers: Some(trailers), .. } if trailers.contains_key(FENCE_TOKEN) => {
                Err(unsent(&Broken::TokenInTrailer))
            }
            Held::Whole { parts, trailers } => {
                Ok(Outgoing { body: StoreBody::held(parts, trailers), share: Some(share), progress: None })
            }
            Held::Long { first, rest } => {
                (stream.first, stream.share, stream.rest) = (first, Some(share), rest);
                stream.asks_first = false;
                Ok(self.stream(stream))
            }
        }
    }

    fn stream(&self, stream: Stream) -> Outgoing {
        let judge = self.admitted.clone().map(|admitted| {
            let worker = Rc::clone(&self.worker);
            Box::new(move || admitted.judge_again(&worker.plane.gate)) as JudgeAgain
        });
        let (upload, progress) = Upload::new(stream, judge, Rc::clone(&self.worker));
        Outgoing { body: StoreBody::Stream(Box::pin(upload)), share: None, progress: Some(progress) }
    }

    async fn send(
        &self,
        mut request: Request<StoreBody>,
        progress: Option<&Progress>,
    ) -> Result<(Lane, Response<Incoming>), Refused> {
        let patience = Duration::from_millis(self.pool.settings().response_timeout_ms);
        loop {
            let mut lane = self.pool.lane().await.map_err(no_lane)?;
            self.judge_again().await?;
            let (counter, stopwatch) = (lane.counter(), Stopwatch::start());
            let before = counter.get();
            self.begun.set(true);
            let stalled = async {
                match progress {
                    Some(progress) => progress.stalled(patience, || counter.get()).await,
                    None => tokio::time::sleep(patience).await,
                }
            };
            let sent = tokio::select! {
                biased;
                sent = lane.sender().try_send_request(request) => Some(sent),
                () = stalled => None,
            };
            let (why, unsent) = match sent {
                Some(Ok(response)) => {
                    self.worker.plane.metrics().answered(self.is_write, stopwatch.seconds());
                    return Ok((lane, response));
                }
                Some(Err(mut error)) => {
                    let unsent = error.take_message();
                    (error.into_error().to_string(), unsent)
                }
                None => (format!("nothing was heard of it for {} ms", patience.as_millis()), None),
            };
            match unsent {
                // The connection died while it was idle, and nothing of this request was taken up.
                Some(unsent) if lane.was_idle() && counter.get() == before => {
                    self.begun.set(false);
                    request = unsent;
                }
                Some(_) | None => return Err(self.failed(counter.get() > before, &why, progress).await),
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

    async fn failed(&self, something_left: bool, why: &str, progress: Option<&Progress>) -> Refused {
        let broken = progress.and_then(Progress::broken);
        match broken {
            Some(Broken::Denied(_)) if !something_left => match self.judge_again().await {
                Err(refused) => refused,
                Ok(()) => Refused::new(Code::FenceDraining, "the lease was changing hands; nothing was sent"),
            },
            Some(broken) if !something_left => unsent(&broken),
            Some(broken) if self.is_write => {
                self.unknown(format!("part of the write was sent, but not its end ({broken})"))
            }
            None if something_left && self.is_write => {
                self.unknown(format!("the write was sent, and the store gave no answer ({why})"))
            }
            Some(_) | None => {
                Refused::new(Code::StoreUnreachable, format!("the store gave no answer ({why}); nothing was written"))
            }
        }
    }

    fn unknown(&self, what: String) -> Refused {
        self.worker.plane.metrics().unknown();
        Refused::new(Code::OutcomeUnknown, what + "; look before you write again")
    }

    fn answer(self, lane: Lane, response: Response<Incoming>, progress: Option<&Progress>) -> Response<ReplyBody> {
        let (mut head, incoming) = response.into_parts();
        let permit = self.admitted.as_ref().map(|admitted| &admitted.permit);
        let is_early = progress.is_some_and(|progress| !progress.is_released());
        if let Some(progress) = progress.filter(|_| is_early) {
            // The end that is held back stays back, and the connection is of no further use.
            progress.park();
        }
        let settles = settles(head.status) && !is_early;
        headers::to_client(&mut head.headers, permit, settles);
        if self.is_write && !settles {
            self.worker.plane.metrics().unknown();
        }
        if let Some(code) = self.would {
            head.headers.insert("fence-would", HeaderValue::from_static(code.as_str()));
        }
        head.version = Version::HTTP_11;
        let patience = Duration::from_millis(self.pool.settings().response_timeout_ms);
        let (is_write, admitted) = (self.is_write, self.admitted);
        let carried = Carried { worker: self.worker, lane, is_write, reuse: !is_early, admitted };
        Response::from_parts(head, ReplyBody::store(StoreReply::new(incoming, carried, patience)))
    }
}

/// Answers that leave open whether the store has done it, or will.
fn settles(status: StatusCode) -> bool {
    !matches!(status.as_u16(), 202 | 408 | 499 | 502 | 503 | 504)
}

impl From<NoBody> for Broken {
    fn from(why: NoBody) -> Self {
        match why {
            NoBody::Cut => Self::Client,
            NoBody::Slow => Self::Slow,
            NoBody::TooLong => Self::TooLong,
        }
    }
}

/// A body that was broken off before anything of it was sent.
fn unsent(broken: &Broken) -> Refused {
    let code = match broken {
        Broken::Client | Broken::Slow => Code::BodyUnreadable,
        Broken::TooLong => Code::RequestLimit(Limit::Body),
        Broken::TokenInTrailer => Code::FenceTokenMalformed,
        // Behind the first piece; before it, the write is judged once more to be told why.
        Broken::Denied(_) => Code::FenceDraining,
    };
    Refused::new(code, format!("{broken}; nothing was sent"))
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

/// How the store is told where the body ends. Of a body that is there the length is known, however it
/// came. One that streams keeps its length, unless trailers are announced, which need chunks; without a
/// length it goes in chunks, also where hyper would expect no body.
fn frame(head: &mut Parts, streams: bool) {
    if !streams || head.headers.contains_key(header::TRAILER) {
        head.headers.remove(header::CONTENT_LENGTH);
    }
    if streams && !head.headers.contains_key(header::CONTENT_LENGTH) {
        head.headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
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
