//! To the store and back, once.
//!
//! A write takes its permit along, is judged again at the last moment before it is sent, and is sent
//! at most once. It is settled by its whole answer; whatever fails behind the first byte is
//! [`Code::OutcomeUnknown`], and its object waits for the bound before anyone else gets it. A client that
//! hangs up does not make its write invisible: the rest of the work is carried on without it.

use std::{cell::Cell, collections::VecDeque, rc::Rc, sync::Arc, time::Duration};

use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header, request::Parts};
use http_body::Body;
use hyper::body::Incoming;

use super::{
    Worker,
    carry::{Ahead, Carried, StoreReply, read_ahead},
    classify::FENCE_TOKEN,
    commit::{Broken, Progress, Stream, Upload},
    headers::{self, Origin, Outcome},
    hold::{self, Held, NoBody, Share},
    inflight::{Denied, InFlight},
    plan::Plan,
    reply::{Refused, ReplyBody},
};
use crate::{
    clock::Stopwatch,
    failpoints::{self, Fault, Point},
    fence::{Code, Denial, code::Limit},
    route::UNSETTLING,
    store::{
        body::{Content, StoreBody},
        pool::{Lane, NoLane, Pool},
    },
    table::{flight::Cancel, generation::Entered},
};

/// A request on its way.
pub struct Job {
    pub worker: Rc<Worker>,
    pub plan: Arc<Plan>,
    pub pool: Rc<Pool>,
    pub origin: Origin,
    /// `None` for reads.
    pub write: Option<WriteOf>,
    /// Set as soon as something may be sent.
    pub begun: Rc<Cell<bool>>,
    /// The whole request was handed to the kernel before the store began to answer.
    pub is_out: Cell<bool>,
    /// `None` for reads, and where nobody judges.
    pub in_flight: Option<Rc<InFlight>>,
    /// What the write would have been told if it were judged in earnest.
    pub would: Option<Code>,
}

/// What a route knows of its store's ways with writes.
pub struct WriteOf {
    /// It throws away a body that broke off.
    pub discards: bool,
    /// Answers that settle a write, of those that by themselves do not.
    pub settles: Vec<u16>,
    /// The version of the route that it goes by.
    pub entered: Rc<Entered>,
}

impl WriteOf {
    /// Whether an answer says what became of a write.
    fn is_settled_by(&self, status: u16) -> bool {
        !UNSETTLING.contains(&status) || self.settles.contains(&status)
    }
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
    let Outgoing { body, share, progress } = tokio::select! {
        biased;
        collected = job.body(&head, body) => collected?,
        // A client may take its time with its body; a reload does not wait for it.
        () = job.is_rerouted() => return Err(rerouted()),
    };
    to_origin_form(&mut head);
    let id = || HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()).unwrap_or(HeaderValue::from_static("0"));
    let permits = job.in_flight.iter().flat_map(|in_flight| in_flight.permits());
    headers::to_store(&mut head.headers, &job.origin, permits, id);
    frame(&mut head, &body);
    let sent = job.send(Request::from_parts(head, body), progress.as_deref()).await;
    drop(share);
    let (lane, response, since) = sent?;
    job.answer(lane, response, since, progress.as_deref()).await
}

impl Job {
    async fn body(&self, head: &Parts, body: Incoming) -> Result<Outgoing, Refused> {
        if body.is_end_stream() {
            return Ok(Outgoing { body: StoreBody::empty(), share: None, progress: None });
        }
        let settings = &self.plan.settings;
        let length = head.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let limit = if settings.body_bytes_max == 0 { u64::MAX } else { settings.body_bytes_max };
        let mut stream = Stream {
            first: VecDeque::new(),
            share: None,
            rest: body,
            is_h2: self.origin.version == Version::HTTP_2,
            // Before trailers it is not the last byte that completes the request: see `frame`.
            length: length.filter(|_| !head.headers.contains_key(header::TRAILER)),
            asks_first: self.origin.version != Version::HTTP_2 && head.headers.contains_key(header::EXPECT),
            limit,
            patience: Duration::from_millis(settings.body_timeout_ms),
        };
        if self.write.is_none() || length.is_some_and(|length| length > settings.hold_bytes as u64) {
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
            Held::Whole { parts, mut trailers } => {
                trailers.iter_mut().for_each(headers::strip_fence);
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
        let (upload, progress) = Upload::new(stream, self.in_flight.clone(), Rc::clone(&self.worker));
        Outgoing { body: StoreBody::stream(upload), share: None, progress: Some(progress) }
    }

    async fn send(
        &self,
        mut request: Request<StoreBody>,
        progress: Option<&Progress>,
    ) -> Result<(Lane, Response<Incoming>, Stopwatch), Refused> {
        let patience = self.patience();
        loop {
            let mut lane = self.pool.lane().await.map_err(no_lane)?;
            let cancel = self.go_on(progress.is_some()).await?;
            failpoints::reach(Point::Committed);
            let (wire, stopwatch) = (lane.wire(), Stopwatch::start());
            let before = wire.sent.get();
            wire.heard.set(false);
            progress.inspect(|progress| progress.listen(Rc::clone(&wire)));
            request.body_mut().goes_by(Rc::clone(&wire));
            self.begun.set(true);
            self.write.as_ref().inspect(|write| write.entered.begin());
            let stalled = async {
                match progress {
                    Some(progress) => progress.stalled(patience, || wire.sent.get()).await,
                    None => tokio::time::sleep(patience).await,
                }
            };
            let sent = tokio::select! {
                biased;
                sent = lane.sender().try_send_request(request) => sent.map_err(|mut error| {
                    let unsent = error.take_message();
                    (error.into_error().to_string(), unsent)
                }),
                () = stalled => Err((format!("nothing was heard of it for {} ms", patience.as_millis()), None)),
                () = told_to_stop(cancel, progress) => Err(("the lease is changing hands".to_owned(), None)),
                () = self.is_rerouted_unreleased(progress) => Err(("this route has just changed".to_owned(), None)),
            };
            let (why, unsent) = match sent {
                Ok(response) => {
                    self.is_out.set(wire.is_out());
                    let since = match progress {
                        None => stopwatch,
                        // An early answer to a long upload has its own time.
                        Some(progress) => progress.released().unwrap_or_else(Stopwatch::start),
                    };
                    self.worker.plane.metrics().answered(self.write.is_some(), since.seconds());
                    return Ok((lane, response, since));
                }
                Err(failed) => failed,
            };
            let was_idle = lane.was_idle();
            // Nothing more leaves from here on; what is unknown is counted from here on.
            lane.close().await;
            match unsent {
                // The connection died while it was idle, and nothing of this request was taken up.
                Some(unsent) if was_idle && wire.sent.get() == before => {
                    self.back_out();
                    request = unsent;
                }
                Some(_) | None => return Err(self.failed(wire.sent.get() > before, &why, progress).await),
            }
        }
    }

    /// A reload has changed the route of this write.
    async fn is_rerouted(&self) {
        match &self.write {
            Some(write) => write.entered.retired().await,
            None => std::future::pending().await,
        }
    }

    /// The same, of a write whose end has not been let go.
    async fn is_rerouted_unreleased(&self, progress: Option<&Progress>) {
        match progress {
            Some(_) => self.is_rerouted().await,
            None => std::future::pending().await,
        }
        if progress.is_some_and(Progress::is_released) {
            std::future::pending::<()>().await;
        }
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(self.pool.settings().response_timeout_ms)
    }

    /// Judges the write again, at the last moment before something of it is sent. What is sent whole is
    /// committed by that; what streams is told when to stop.
    async fn go_on(&self, streams: bool) -> Result<Option<Cancel>, Refused> {
        if self.write.as_ref().is_some_and(|write| write.entered.is_retired()) {
            return Err(rerouted());
        }
        let Some(in_flight) = &self.in_flight else { return Ok(None) };
        loop {
            let judged = if streams { in_flight.begin_stream().map(Some) } else { in_flight.commit().map(|()| None) };
            match judged {
                Ok(cancel) => return Ok(cancel),
                Err(Denied { object, why: Denial::Refused(refusal) }) => return Err(Refused::from(refusal).of(&object)),
                Err(Denied { object, why: Denial::Overdue(lease) }) => {
                    let ended = self.worker.plane.gate.ledger.end(vec![(object, lease)]).await;
                    ended.map_err(|_| Refused::new(Code::TableUnavailable, "the fence table cannot be used now"))?;
                }
            }
        }
    }

    fn back_out(&self) {
        self.begun.set(false);
        self.write.as_ref().inspect(|write| write.entered.settle());
        self.in_flight.as_ref().inspect(|in_flight| in_flight.back_out());
    }

    fn settle(&self) {
        self.write.as_ref().inspect(|write| write.entered.settle());
        self.in_flight.as_ref().inspect(|in_flight| in_flight.settle());
    }

    /// The store throws away what it has of it.
    fn cancel(&self) {
        self.write.as_ref().inspect(|write| write.entered.settle());
        self.in_flight.as_ref().inspect(|in_flight| in_flight.cancel());
    }

    /// What to tell the client of a request whose connection is closed and that was not answered.
    async fn failed(&self, something_left: bool, why: &str, progress: Option<&Progress>) -> Refused {
        let broken = progress.and_then(Progress::broken);
        let is_partial = progress.is_some_and(|progress| !progress.is_released());
        if !something_left {
            self.back_out();
            return match broken {
                Some(Broken::Denied) => self.why_denied().await,
                Some(broken) => unsent(&broken),
                None => no_answer(why),
            };
        }
        let Some(write) = &self.write else { return no_answer(why) };
        if is_partial && write.discards {
            self.cancel();
            return match broken {
                Some(broken) => unsent(&broken),
                None => no_answer(why),
            };
        }
        self.lose();
        match broken {
            Some(broken) => self.unknown(format!("part of the write was sent, but not its end ({broken})")),
            None if is_partial => self.unknown(format!("part of the write was sent, but not its end ({why})")),
            None => self.unknown(format!("the write was sent, and the store gave no answer ({why})")),
        }
    }

    /// Why a write of which nothing was sent may not go on.
    async fn why_denied(&self) -> Refused {
        match self.go_on(false).await {
            Err(refused) => refused,
            Ok(_) => {
                self.back_out();
                Refused::new(Code::FenceDraining, "the lease was changing hands; nothing was sent")
            }
        }
    }

    /// The connection is gone, and nobody knows what became of the write.
    fn lose(&self) {
        self.write.as_ref().inspect(|write| write.entered.lose());
        self.in_flight.as_ref().inspect(|in_flight| in_flight.lose());
    }

    fn unknown(&self, what: String) -> Refused {
        self.worker.plane.metrics().unknown();
        Refused::new(Code::OutcomeUnknown, what + "; look before you write again")
    }

    /// The whole answer is there.
    async fn conclude(&self, lane: Lane, settles: bool, is_early: bool) {
        if settles && !is_early {
            self.settle();
            return lane.give_back(self.worker.now.get());
        }
        lane.close().await;
        if settles {
            self.cancel();
        } else {
            self.lose();
        }
    }

    async fn answer(
        self,
        lane: Lane,
        response: Response<Incoming>,
        since: Stopwatch,
        progress: Option<&Progress>,
    ) -> Result<Response<ReplyBody>, Refused> {
        let (mut head, incoming) = response.into_parts();
        head.version = Version::HTTP_11;
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            lane.close().await;
            return Err(self.failed(true, "it changed the protocol, which nobody asked for", None).await);
        }
        let is_partial = progress.is_some_and(|progress| !progress.is_released());
        let is_early = is_partial || !self.is_out.get();
        if let Some(progress) = progress.filter(|_| is_early) {
            // The end that is held back stays back, and the connection is of no further use.
            progress.park();
        }
        let patience = self.patience();
        let Some(write) = &self.write else {
            headers::to_client(&mut head.headers, None::<(std::iter::Empty<_>, _)>);
            let worker = self.worker;
            let carried = Carried { worker, lane, is_write: false, settles: !is_early, in_flight: None, entered: None };
            let reply = StoreReply::coming(VecDeque::new(), incoming, carried, patience);
            return Ok(Response::from_parts(head, ReplyBody::store(reply)));
        };
        // What hyper holds of a whole write may still leave before its connection is closed.
        let settles = if is_early { is_partial && write.discards } else { write.is_settled_by(head.status.as_u16()) };
        failpoints::reach(Point::Sent);
        if failpoints::on(Fault::HeadSettles) {
            self.settle();
        }
        let left = || patience.saturating_sub(Duration::from_secs_f64(since.seconds()));
        let (reply, outcome) = match read_ahead(incoming, left()).await {
            Ahead::Broken(why) => {
                lane.close().await;
                self.lose();
                return Err(self.unknown(format!("the write was sent, and the store's answer broke off ({why})")));
            }
            Ahead::Whole(frames) => {
                failpoints::reach(Point::Answered);
                self.conclude(lane, settles, is_early).await;
                (StoreReply::whole(frames), if settles { Outcome::Settled } else { Outcome::Unknown })
            }
            Ahead::Part(frames, incoming) => {
                let (worker, in_flight) = (Rc::clone(&self.worker), self.in_flight.clone());
                let (settled, entered) = (settles && !is_early, Some(Rc::clone(&write.entered)));
                let carried = Carried { worker, lane, is_write: true, settles: settled, in_flight, entered };
                let outcome = if settles { Outcome::Pending } else { Outcome::Unknown };
                (StoreReply::coming(frames, incoming, carried, left()), outcome)
            }
        };
        if outcome == Outcome::Unknown && reply.is_whole() {
            self.worker.plane.metrics().unknown();
        }
        let permits = self.in_flight.as_ref().map(|in_flight| (in_flight.permits(), outcome));
        headers::to_client(&mut head.headers, permits);
        if let Some(code) = self.would {
            head.headers.insert("fence-would", HeaderValue::from_static(code.as_str()));
        }
        Ok(Response::from_parts(head, ReplyBody::store(reply)))
    }
}

/// An advance has told this write to stop. Behind its commit point it is too late for that.
async fn told_to_stop(cancel: Option<Cancel>, progress: Option<&Progress>) {
    match cancel {
        Some(cancel) => cancel.notified().await,
        None => std::future::pending().await,
    }
    if progress.is_some_and(Progress::is_released) {
        std::future::pending::<()>().await;
    }
}

fn rerouted() -> Refused {
    Refused::new(Code::FenceDraining, "this route has just changed; nothing was sent")
}

fn no_answer(why: &str) -> Refused {
    Refused::new(Code::StoreUnreachable, format!("the store gave no answer ({why}); nothing was written"))
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
        Broken::Denied => Code::FenceDraining,
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
fn frame(head: &mut Parts, body: &StoreBody) {
    match &body.content {
        Content::Empty => {
            let had_length = head.headers.remove(header::CONTENT_LENGTH).is_some();
            if had_length || matches!(head.method, Method::PUT | Method::POST | Method::PATCH) {
                head.headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
            }
        }
        Content::Held { trailers, .. } => {
            head.headers.remove(header::CONTENT_LENGTH);
            if let Some(trailers) = trailers
                && !head.headers.contains_key(header::TRAILER)
            {
                let names = trailers.keys().filter_map(|name| HeaderValue::from_str(name.as_str()).ok());
                for name in names {
                    head.headers.append(header::TRAILER, name);
                }
            }
        }
        Content::Stream(_) => {
            if head.headers.contains_key(header::TRAILER) {
                head.headers.remove(header::CONTENT_LENGTH);
            }
            if !head.headers.contains_key(header::CONTENT_LENGTH) {
                head.headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
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
