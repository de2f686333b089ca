//! The store's answer or a refusal, as a response.

use std::{
    borrow::Cow,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, header};
use http_body::{Body, Frame, SizeHint};

use super::{
    Plane,
    connection::Busy,
    read_ahead::Frames,
    response_body::ResponseBody,
    taking::{PIECE, Reply},
};
use crate::{
    fence::{BootMs, Code, Fence, HolderId, LeaseSeq, ObjectId, Refusal, code::Plane as Side, verdict::Unusable},
    gate::receipts::Receipt,
    problem::{ASKS_FOR_BEARER, Problem},
    route::classify::Unfit,
    upstream::body::Cut,
};

const FENCE_ERROR: HeaderName = HeaderName::from_static("fence-error");
const FENCE_OUTCOME: HeaderName = HeaderName::from_static("fence-outcome");

/// The response to a request, or its refusal.
pub type Answered = Result<Response<ReplyBody>, Box<Rejection>>;

/// A response's body.
pub struct ReplyBody {
    content: Content,
    /// Its connection is busy until this body is dropped.
    busy: Option<Busy>,
}

enum Content {
    Own(Option<Bytes>),
    Store(Box<ResponseBody>),
}

impl Content {
    /// Whether no part of the content is still at the store.
    fn is_whole(&self) -> bool {
        match self {
            Self::Own(_) => true,
            Self::Store(reply) => reply.is_whole(),
        }
    }
}

impl ReplyBody {
    #[must_use]
    pub fn own(bytes: Vec<u8>) -> Self {
        let bytes = Some(bytes).filter(|bytes| !bytes.is_empty()).map(Bytes::from);
        Self { content: Content::Own(bytes), busy: None }
    }

    /// An answer of the store that is here as a whole. Most have at most one part.
    #[must_use]
    pub fn whole(frames: Frames) -> Self {
        match frames.into_only() {
            Ok(bytes) => Self { content: Content::Own(bytes), busy: None },
            Err(frames) => Self::store(ResponseBody::whole(frames)),
        }
    }

    #[must_use]
    pub fn store(reply: ResponseBody) -> Self {
        Self { content: Content::Store(Box::new(reply)), busy: None }
    }

    /// Keeps a connection busy while this body exists.
    #[must_use]
    pub fn during(self, mut busy: Busy) -> Self {
        if !self.is_end_stream() {
            busy.answered(|| self.content.is_whole());
        }
        Self { content: self.content, busy: Some(busy) }
    }
}

/// The next frame of an answer that is passed on. Once no part of the answer is at the store, only its client is waited
/// for.
#[inline(never)]
fn poll_store(
    reply: &mut ResponseBody,
    busy: Option<&mut Busy>,
    context: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
    let mut frame = Pin::new(&mut *reply).poll_frame(context);
    let Some(busy) = busy else { return frame };
    if reply.is_whole() {
        busy.waits();
    }
    if let (Some(_), Poll::Ready(Some(Ok(next)))) = (busy.taking(), &mut frame) {
        reply.put_back_behind(next, PIECE);
    }
    frame
}

/// Notes that the client of an HTTP/2 answer has asked for more.
#[inline(never)]
fn has_asked(reply: &Reply, now: BootMs, got: &Poll<Option<Result<Frame<Bytes>, Cut>>>) {
    let size = |frame: &Frame<Bytes>| frame.data_ref().map_or(0, Bytes::len);
    let piece = match got {
        Poll::Ready(Some(Ok(frame))) => Some(size(frame)),
        Poll::Ready(_) => Some(0),
        Poll::Pending => None,
    };
    reply.asked(piece, now);
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Cut;

    #[inline]
    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let this = self.get_mut();
        let frame = match &mut this.content {
            Content::Own(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Content::Store(reply) => poll_store(reply, this.busy.as_mut(), context),
        };
        if let Some((reply, now)) = this.busy.as_ref().and_then(Busy::taking) {
            has_asked(reply, now, &frame);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Own(bytes) => bytes.is_none(),
            Content::Store(reply) => reply.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Own(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Content::Store(reply) => reply.size_hint(),
        }
    }
}

/// A request that is not forwarded: why, and what it was about.
#[derive(Debug)]
pub struct Rejection {
    /// Boxed, since it is large and refusals are moved about.
    pub problem: Box<Problem>,
    pub object: Option<ObjectId>,
    pub route: Option<Arc<str>>,
    pub seq: Option<LeaseSeq>,
    pub fence: Option<Fence>,
    pub holder: Option<HolderId>,
    /// The connection is closed after the answer.
    pub closes: bool,
}

impl Rejection {
    #[must_use]
    pub fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        let problem = Box::new(Problem::on(Side::Data, code, detail));
        Self { problem, object: None, route: None, seq: None, fence: None, holder: None, closes: false }
    }

    /// Names the object that the refusal is about.
    #[must_use]
    pub fn of(mut self, object: &ObjectId) -> Self {
        self.problem.tell_object(object);
        self.object = Some(object.clone());
        self
    }

    /// Names the route, and the object unless the refusal has one already.
    #[must_use]
    pub fn about(mut self, object: &ObjectId, route: &Arc<str>) -> Self {
        if self.object.is_none() {
            self = self.of(object);
        }
        self.route = Some(Arc::clone(route));
        self
    }

    /// Names the lease of an admitted write. What the refusal has already is kept.
    #[must_use]
    pub fn by(mut self, holder: Option<HolderId>, seq: Option<LeaseSeq>) -> Self {
        self.holder = self.holder.or(holder);
        let (seq, fence) = (self.seq.or(seq), self.fence);
        self.numbered(seq, fence)
    }

    fn numbered(mut self, seq: Option<LeaseSeq>, fence: Option<Fence>) -> Self {
        (self.seq, self.fence) = (seq, fence);
        self
    }
}

impl From<Unfit> for Rejection {
    fn from(unfit: Unfit) -> Self {
        let mut refused = Self::new(unfit.code, unfit.detail);
        if let Some(field) = unfit.field {
            refused.problem.tell_field(field);
        }
        refused.closes = unfit.closes;
        refused
    }
}

/// The answer to a refused write: one line per kind of refusal. The function is long because it is this table, in which
/// the compiler finds a kind that is missing.
impl From<Refusal> for Rejection {
    fn from(refusal: Refusal) -> Self {
        let code = refusal.code();
        match refusal {
            Refusal::Unfenced => {
                Self::new(code, "this write needs a Fence-Token: acquire a lease for the object first")
            }
            Refusal::Malformed(fault) => Self::new(code, fault.to_string()),
            Refusal::Mismatch { token_object } => {
                Self::new(code, format!("this token is for {token_object}, not for the object that would be written"))
            }
            Refusal::Unusable(Unusable::Table) => Self::new(code, "the fence table cannot be used now; reads go on"),
            Refusal::Unusable(Unusable::Clock) => Self::new(code, "the gate's clock has not been set; reads go on"),
            Refusal::Stale { seq, fence, successor, certified } => {
                let mut number = itoa::Buffer::new();
                let fence_now = number.format(fence.get());
                let detail = ["the fence has moved to ", fence_now, ", so this lease is over for ever; acquire again"];
                let detail = detail.concat();
                let mut refused = Self::new(code, detail).numbered(Some(seq), Some(fence));
                refused.problem.tell_successor(successor);
                refused.problem.tell_certificate(certified.as_deref());
                refused
            }
            Refusal::NotYet { seq, holder, begins_in_ms } => {
                let mut refused = Self::new(code, format!("this lease begins in {begins_in_ms} ms; try again then"))
                    .numbered(Some(seq), Some(seq.into()));
                refused.problem.tell_retry(begins_in_ms);
                refused.holder = Some(holder);
                refused
            }
            Refusal::Ahead { seq, fence } => {
                Self::new(code, format!("this gate has granted nothing above {fence}; is the token another gate's?"))
                    .numbered(Some(seq), Some(fence))
            }
            Refusal::Busy { stops: true } => Self::new(code, "this gate is stopping; nothing was sent. Try again once it is back"),
            Refusal::Busy { stops: false } => Self::new(code, "too many lease changes are waiting; nothing was sent. Try again in a moment"),
            Refusal::Jump { seq, fence, max_jump } => Self::new(
                code,
                format!("this would move the fence from {fence} further than max_jump ({max_jump}) at once or within a minute; is it this object's token?"),
            )
            .numbered(Some(seq), Some(fence)),
            Refusal::Locked { fence } => Self::new(
                code,
                "part of the fence table's past was lost, so the gate does not know which tokens are stale: an operator must confirm the lowest token that may write, with POST /v1/objects/{object_id}/confirm",
            )
            .numbered(None, Some(fence)),
            Refusal::Deposed { election, fence, successor } => {
                let detail = format!(
                    "the term {election} is over for ever: the Lease has changed hands since, or this is another Lease's uid; be elected again"
                );
                let mut refused = Self::new(code, detail).numbered(None, Some(fence));
                refused.problem.tell_successor(successor);
                refused
            }
            Refusal::NotElected { election, fence } => Self::new(
                code,
                format!("the Lease has not come to {election}; is this object's Lease another one?"),
            )
            .numbered(None, Some(fence)),
            Refusal::OtherHolder { seq, holder } => {
                let detail = "Fence-Holder names another holder than the Lease does";
                let mut refused = Self::new(code, detail).numbered(Some(seq), None);
                refused.holder = Some(holder);
                refused
            }
            Refusal::SourceUnavailable { fence } => Self::new(
                code,
                "the Kubernetes API server cannot be asked about this term now, or the Lease has not been seen renewed yet; nothing was sent. Try again in a moment",
            )
            .numbered(None, Some(fence)),
            Refusal::Exhausted { fence } => Self::new(
                code,
                "this object's fence can go no higher than 2^53-1, so another term cannot get its own number; use another object id",
            )
            .numbered(None, Some(fence)),
            Refusal::WrongSecret { seq } => {
                Self::new(code, "this token was not made by this gate's table").numbered(Some(seq), None)
            }
            Refusal::Draining { fence } => {
                Self::new(code, "the lease is changing hands; try again in a moment").numbered(None, Some(fence))
            }
            Refusal::Ended { seq, holder, ended } => {
                let mut refused =
                    Self::new(code, "the lease is over; acquire again").numbered(Some(seq), Some(seq.into()));
                refused.problem.tell_end(&ended);
                refused.holder = Some(holder);
                refused
            }
        }
    }
}

/// Makes the refusal's response, and keeps a receipt. The response to a HEAD has only headers.
pub fn refuse(plane: &Plane, refused: Rejection, is_head: bool) -> Response<ReplyBody> {
    let Rejection { mut problem, object, route, seq, fence, holder, closes } = refused;
    // If the refusal itself needed no fence, the one in memory is exact enough to show.
    let known =
        |object: &ObjectId| plane.gate.records.stripes.view(object, |found| found.map(|(record, _)| record.fence));
    let fence = fence.or_else(|| object.as_ref().and_then(known));
    let code = problem.code();
    plane.metrics().refused(code);
    let receipt_id = plane.gate.receipts.add(Receipt {
        object,
        error: code,
        write_seq: seq,
        current_fence: fence,
        holder,
        route,
        at: plane.gate.clock.wall(),
    });
    // Who may not know of an object learns nothing of it.
    let is_discreet = matches!(code, Code::IdentityRequired | Code::IdentityUnavailable | Code::AccessDenied);
    if !is_discreet {
        problem.tell_numbers(seq, fence);
    }
    problem.tell_receipt(receipt_id);
    let mut response = Response::new(ReplyBody::own(if is_head { vec![] } else { problem.body() }));
    *response.status_mut() = problem.status();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(FENCE_ERROR, HeaderValue::from_static(code.as_str()));
    if code == Code::OutcomeUnknown {
        headers.insert(FENCE_OUTCOME, HeaderValue::from_static("unknown"));
    }
    if code == Code::IdentityRequired {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(ASKS_FOR_BEARER));
    }
    if closes {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if let Some(seconds) = problem.retry_after() {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}
