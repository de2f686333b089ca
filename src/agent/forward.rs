//! Forwards a request to the gate, once, and returns its answer. Bodies stream both ways.
//!
//! A write is sent on another connection only if its idle connection has died and no byte of it was sent. After the
//! first byte only the answer says what became of the write; without an answer that is unknown.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{body::Body, response::Response};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode, Version, header, request::Parts};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::{sync::Notify, time::Sleep};

use super::{
    holdings::Use,
    pool::{GateConn, GatePool},
    proof::Proof,
};
use crate::{
    clock::Clock,
    config::GateWay,
    fence::{Code, code::Plane},
    problem::Problem,
    route::classify::{FENCE_HOLDER, FENCE_IDENTITY, FENCE_TOKEN},
    upstream::{
        Way,
        hop::{self, takes_trailers},
    },
};

/// How long a body waits for a `100 Continue` that does not come. curl uses the same time.
const CONTINUE: Duration = Duration::from_secs(1);

/// What is added to a request.
pub enum Pass {
    Read,
    /// A write, with the leases of its objects in order.
    Write(Vec<Use>),
}

/// Forwards requests to the gate.
pub struct Forwarder {
    pool: Arc<GatePool>,
    proof: Proof,
    silence: Duration,
    /// The `Host` of a request that has none, as HTTP/1.0 allows.
    host: HeaderValue,
}

impl Forwarder {
    #[must_use]
    pub fn new(way: Way, settings: GateWay, proof: Proof, clock: Clock) -> Self {
        let silence = Duration::from_millis(settings.response_timeout_ms);
        let authority = settings.url.parse::<http::Uri>().ok().and_then(|url| url.authority().cloned());
        let host = authority.and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
        let host = host.unwrap_or_else(|| HeaderValue::from_static("localhost"));
        Self { pool: GatePool::new(way, settings, clock), proof, silence, host }
    }

    /// Sends a request. `guard` is kept until the request is done, including the body of its answer.
    ///
    /// # Errors
    /// What is known of the request when there is no answer.
    pub async fn send<G: Send + Unpin + 'static>(
        &self,
        head: Parts,
        body: Incoming,
        pass: Pass,
        guard: G,
    ) -> Result<Response, Problem> {
        let is_write = matches!(pass, Pass::Write(_));
        let moved = Arc::<Moved>::default();
        let mut request = outgoing(head, body, &self.host, Arc::clone(&moved));
        let (mut conn, answer) = loop {
            let mut conn = self.pool.take().await.map_err(|error| unreachable(&error.to_string()))?;
            if is_write {
                self.proof.put(request.headers_mut());
            }
            // This checks the clock. Nothing is between it and the sending.
            add_tokens(&mut request, &pass)?;
            let (sent, before) = (conn.sent(), conn.sent().load(Ordering::Acquire));
            let sending = conn.sender.try_send_request(request);
            match self.answered(sending, &moved).await {
                Some(Ok(answer)) => break (conn, answer),
                Some(Err(mut failed)) => match failed.take_message() {
                    Some(unsent) if !conn.is_new => request = unsent,
                    _ => return Err(unanswered(&sent, before, is_write, &failed.error().to_string())),
                },
                None => {
                    let ms = self.silence.as_millis();
                    if moved.is_awaited.load(Ordering::Acquire) {
                        return Err(stalled(&sent, before, is_write, ms));
                    }
                    return Err(unanswered(&sent, before, is_write, &format!("the gate was silent for {ms} ms")));
                }
            }
        };
        conn.is_new = false;
        let (mut head, body) = answer.into_parts();
        hop::strip(&mut head.headers);
        if let Pass::Write(uses) = &pass {
            note_refusal(&head.headers, head.status, uses);
        }
        self.give_back(conn);
        Ok(Response::from_parts(head, Body::new(Guarded { body, _guards: (pass, guard) })))
    }

    fn give_back(&self, conn: GateConn) {
        self.pool.give_back(conn);
    }

    /// Returns the answer. Returns `None` after a time in which no part of the body moved and no answer came.
    async fn answered<T>(&self, sending: impl Future<Output = T>, moved: &Moved) -> Option<T> {
        let mut sending = std::pin::pin!(sending);
        loop {
            let before = moved.frames.load(Ordering::Acquire);
            match tokio::time::timeout(self.silence, &mut sending).await {
                Ok(answered) => return Some(answered),
                Err(_) if moved.frames.load(Ordering::Acquire) > before => {}
                Err(_) => return None,
            }
        }
    }
}

/// How much of a request's body was sent.
#[derive(Default)]
struct Moved {
    /// Frames so far.
    frames: AtomicU64,
    /// The gate is ready for more, and the application has not sent it.
    is_awaited: AtomicBool,
}

/// If the gate refused the write because its lease is over, this agent has lost the lease.
fn note_refusal(headers: &HeaderMap, status: StatusCode, uses: &[Use]) {
    let code = headers.get("fence-error").and_then(|code| code.to_str().ok());
    let ends = ["WRITE_STALE_FENCE", "LEASE_EXPIRED", "WRITE_FENCE_AHEAD", "FENCE_TOKEN_INVALID"];
    if let Some(code) = code.filter(|code| status.is_client_error() && ends.contains(code)) {
        for each in uses {
            each.refused(code);
        }
    }
}

fn unreachable(why: &str) -> Problem {
    let what = format!("the gate cannot be reached, and nothing was sent: {why}");
    Problem::on(Plane::Data, Code::GateUnreachable, what)
}

/// The problem for a request whose body the application stopped sending.
fn stalled(sent: &AtomicU64, before: u64, is_write: bool, ms: u128) -> Problem {
    let why = format!("the application sent nothing more of its body for {ms} ms");
    if is_write && sent.load(Ordering::Acquire) != before {
        return unanswered(sent, before, is_write, &why);
    }
    Problem::on(Plane::Data, Code::BodyUnreadable, format!("{why}, and the request was given up: send it whole"))
}

/// The problem for a request that was handed to a connection and got no answer.
fn unanswered(sent: &AtomicU64, before: u64, is_write: bool, why: &str) -> Problem {
    if !is_write {
        let what = format!("the gate has not answered this read: {why}");
        return Problem::on(Plane::Data, Code::GateUnreachable, what);
    }
    if sent.load(Ordering::Acquire) == before {
        return unreachable(why);
    }
    let what =
        format!("the write was sent to the gate, or part of it, and not answered: {why}. Look before you write again");
    Problem::on(Plane::Data, Code::OutcomeUnknown, what)
}

/// Adds the tokens: one field line, one token for each object.
fn add_tokens(request: &mut Request<Upload>, pass: &Pass) -> Result<(), Problem> {
    let Pass::Write(uses) = pass else { return Ok(()) };
    let tokens = uses.iter().map(Use::token).collect::<Result<Vec<_>, _>>()?;
    let line: Vec<&str> = tokens.iter().map(crate::client::Token::expose).collect();
    let mut value = HeaderValue::from_str(&line.join(", ")).map_err(|_| unreachable("its tokens are not a header"))?;
    value.set_sensitive(true);
    request.headers_mut().insert(FENCE_TOKEN, value);
    if let Some(holder) = uses.iter().find_map(Use::shown_holder) {
        let holder = HeaderValue::from_str(holder).map_err(|_| unreachable("its holder is not a header"))?;
        request.headers_mut().insert(FENCE_HOLDER, holder);
    }
    Ok(())
}

/// The request as the gate gets it: the same path, query, headers and body, without the hop-by-hop headers and a proof
/// of who the application is: the agent is the holder.
fn outgoing(mut head: Parts, body: Incoming, host: &HeaderValue, moved: Arc<Moved>) -> Request<Upload> {
    let says_trailers = head.headers.get_all(header::TE).iter().any(takes_trailers);
    hop::strip(&mut head.headers);
    head.headers.remove(FENCE_IDENTITY);
    if says_trailers {
        // The application's `TE` is for this hop only. The agent passes trailers on, so it accepts them too.
        head.headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    let path = head.uri.path_and_query().cloned().unwrap_or_else(|| http::uri::PathAndQuery::from_static("/"));
    if let Some(host) = head.uri.authority()
        && let Ok(host) = HeaderValue::from_str(host.as_str())
    {
        head.headers.entry(header::HOST).or_insert(host);
    }
    head.headers.entry(header::HOST).or_insert_with(|| host.clone());
    if !body.is_end_stream() && !head.headers.contains_key(header::CONTENT_LENGTH) {
        // Without this header, the body of a read would not be sent.
        head.headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    let asks_first = head.headers.contains_key(header::EXPECT) && !body.is_end_stream();
    let go = asks_first.then(|| Arc::new(Notify::new()));
    let mut request = Request::new(Upload::new(body, moved, go.clone()));
    *request.method_mut() = head.method;
    *request.uri_mut() = path.into();
    *request.version_mut() = Version::HTTP_11;
    *request.headers_mut() = head.headers;
    if let Some(go) = go {
        hyper::ext::on_informational(&mut request, move |interim| {
            if interim.status() == StatusCode::CONTINUE {
                go.notify_one();
            }
        });
    }
    request
}

/// A request's body on its way to the gate.
pub struct Upload {
    body: Incoming,
    moved: Arc<Moved>,
    waits: Option<ContinueWait>,
}

/// Waits for the gate's `100 Continue`. Until then the application is not asked for the body.
struct ContinueWait {
    go: Pin<Box<dyn Future<Output = ()> + Send>>,
    patience: Pin<Box<Sleep>>,
}

impl Upload {
    fn new(body: Incoming, moved: Arc<Moved>, go: Option<Arc<Notify>>) -> Self {
        let waits = go.map(|go| ContinueWait {
            go: Box::pin(async move { go.notified().await }),
            patience: Box::pin(tokio::time::sleep(CONTINUE)),
        });
        Self { body, moved, waits }
    }
}

impl http_body::Body for Upload {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        if let Some(waiting) = &mut self.waits {
            if waiting.go.as_mut().poll(context).is_pending() {
                ready!(waiting.patience.as_mut().poll(context));
            }
            self.waits = None;
        }
        let frame = Pin::new(&mut self.body).poll_frame(context);
        self.moved.is_awaited.store(frame.is_pending(), Ordering::Release);
        let frame = ready!(frame);
        self.moved.frames.fetch_add(1, Ordering::AcqRel);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer, and the guards that are kept until it ends.
struct Guarded<G> {
    body: Incoming,
    _guards: (Pass, G),
}

impl<G: Unpin> http_body::Body for Guarded<G> {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
