//! To the store and back, once.
//!
//! A write takes its permit along, is judged again at the last moment before it is sent, and is sent
//! at most once. It is settled by its whole answer; whatever fails behind the first byte is
//! [`Code::OutcomeUnknown`], and its object waits for the bound before anyone else gets it. A client that
//! hangs up does not make its write invisible: the rest of the work is carried on without it.

use std::{future::poll_fn, rc::Rc, task::Poll, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, Version, request::Parts};
use hyper::ext::ReasonPhrase;

use super::{
    Worker,
    carry::{AHEAD_BYTES, Ahead, Carried, Frames, StoreReply, read_ahead, take_ready},
    commit::{Broken, Progress},
    connection::Client,
    elect,
    evict::{At, Turned},
    handle::Answered,
    headers::{self, Length, Outcome},
    hold::{NoBody, Share, Source},
    inflight::Denied,
    journaled::{Line, UNWRITTEN},
    keyed::{self, Claim},
    outgoing::{Outgoing, Ready},
    passage::Passage,
    plan::Outfit,
    reply::{Refused, ReplyBody},
};
use crate::{
    clock::Stopwatch,
    config::ReadsBodies,
    failpoints::{self, Fault, Point},
    fence::{Code, Denial, code::Limit, idempotency::IdempotencyKey, verdict},
    metrics::OperationTally,
    route::{Route, UNSETTLING},
    store::{
        answer::Head,
        body::StoreBody,
        link::{Failed, Reuse, Unsent},
        pool::{Lane, NoLane, Pool},
        shares::Asker,
    },
    table::flight::Cancel,
};

/// A request on its way.
pub struct Job {
    pub worker: Rc<Worker>,
    pub outfit: Rc<Outfit>,
    /// Which of the plan's stores it goes to.
    pub store: usize,
    pub client: Rc<Client>,
    pub head: Parts,
    /// `None` for reads.
    pub write: Option<WriteOf>,
    /// It is a write, or a read whose route lets it have a body.
    pub may_have_body: bool,
}

/// What there is to a write.
pub struct WriteOf {
    /// The place of its route.
    pub route: usize,
    pub passage: Rc<Passage>,
    /// What it would have been told if it were judged in earnest.
    pub would: Option<Code>,
    /// It counts as on its way.
    pub active: Active,
    /// It is committed, and is to be sent on this connection.
    pub lane: Option<Lane>,
    /// When it was judged first.
    pub since: Option<Stopwatch>,
    /// The client's own name for it.
    pub key: Option<IdempotencyKey>,
    /// That name is this write's.
    pub claim: Option<Box<Claim>>,
}

/// A write on its way, until this is dropped.
pub struct Active(Rc<OperationTally>);

impl Active {
    #[must_use]
    pub fn new(tally: &Rc<OperationTally>) -> Self {
        tally.began();
        Self(Rc::clone(tally))
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.ended();
    }
}

/// What the store has said.
struct Answer {
    lane: Lane,
    head: Box<Head>,
    /// Since when its answer is waited for.
    since: Stopwatch,
}

/// Forwards a request and returns the store's answer.
///
/// # Errors
/// With what the client is told instead.
pub async fn forward(mut job: Box<Job>, source: Source) -> Answered {
    let mut ready = job.write.as_mut().and_then(|write| write.lane.take());
    let outgoing = match source {
        source if job.is_keyed() => match Box::pin(job.claim_key(source)).await? {
            Ready::Go(outgoing) => outgoing,
            Ready::Answered(response) => return Ok(response),
        },
        Source::Here { body, share } => Outgoing::whole(body, share),
        // Apart, since it is large, and most writes have no use for it.
        Source::Coming { hold, share } => Box::pin(job.body(hold, share)).await?,
    };
    let Outgoing { mut body, mut share, progress, length } = outgoing;
    let length = Length::of(&job.head, &body, length, &job.outfit.plan.trailers);
    let digest = if job.is_journaled() { digest_of(&body, progress.as_deref()) } else { None };
    let mut unsent: Option<Unsent> = None;
    let answer = loop {
        // An idle one has just been looked at.
        let (mut lane, mut is_sound, is_committed) = match ready.take() {
            Some(lane) => (lane, true, !job.is_retired()),
            None => match job.pool().idle_lane(job.asker()) {
                Some(lane) => (lane, true, false),
                None => {
                    let lane = Box::pin(job.lane(&mut share)).await;
                    (lane.map_err(|why| job.came_to_nothing(no_lane(why)))?, false, false)
                }
            },
        };
        // One whose end was let go once, on a connection that took nothing, goes whole.
        let streams = progress.as_ref().is_some_and(|progress| !progress.is_released());
        let cancel = match job.may_go_on(streams, is_committed) {
            Ok(cancel) => cancel,
            Err(halt) => match Box::pin(job.go_on_after(halt, streams)).await {
                Ok(cancel) => {
                    is_sound = false;
                    cancel
                }
                Err(refused) => {
                    lane.put_back(job.worker.now());
                    return Err(refused.into());
                }
            },
        };
        failpoints::reach(Point::Committed);
        if !is_sound && lane.link().is_dead() {
            // What the store has said before it was asked is no answer.
            let is_another_there = lane.was_idle();
            drop(lane);
            job.back_out();
            if is_another_there {
                continue;
            }
            return Err(Box::pin(job.failed(false, UNASKED, progress.as_deref())).await.into());
        }
        let link = lane.link();
        match unsent.take() {
            Some(unsent) => link.begin_again(unsent),
            None => {
                let reuse = job.reuse(&length);
                let out = link.begin(job.head.method == Method::HEAD, length.framing(), reuse);
                let (passage, closes) = (job.passage().map(|passage| &**passage), reuse == Reuse::Never);
                headers::to_store(out, &job.head, &job.client.origin, passage, (&length, closes), &job.worker.ids);
            }
        }
        let since = job.write.as_ref().and_then(|write| write.since).filter(|_| is_committed);
        let (before, stopwatch) = (link.wire().sent.get(), since.unwrap_or_else(|| job.worker.watch()));
        job.begin();
        let sent = match &progress {
            None => job.send_whole(&mut lane, &mut body).await,
            Some(progress) => Box::pin(job.send_stream(&mut lane, &mut body, progress, cancel)).await,
        };
        let failed = match sent {
            Ok(head) => {
                let since = match &progress {
                    None => stopwatch,
                    // An early answer to a long upload has its own time.
                    Some(progress) => progress.released().unwrap_or_else(Stopwatch::start),
                };
                break Answer { lane, head, since };
            }
            Err(failed) => failed,
        };
        let something_left = lane.link().wire().sent.get() > before;
        if failed.is_of_connection && lane.was_idle() && !something_left {
            // The connection died while it was idle, and nothing of this request was taken up.
            unsent = lane.link().take_back();
        }
        // Nothing more leaves from here on; what is unknown is counted from here on.
        drop(lane);
        if unsent.is_none() {
            return Err(Box::pin(job.failed(something_left, &failed.why, progress.as_deref())).await.into());
        }
        job.back_out();
    };
    drop(share);
    job.worker.tally.answered(job.write.is_some(), answer.since.seconds());
    job.answer(answer, progress.as_deref(), digest).await
}

/// The digest of a body that is there; that of one that streams is asked for, and made as it comes.
fn digest_of(body: &StoreBody, progress: Option<&Progress>) -> Option<[u8; 32]> {
    if let Some(progress) = progress {
        progress.make_digest();
        return None;
    }
    Some(keyed::digest_of(body))
}

const UNASKED: &str = "it hung up, or spoke before it was asked";

/// Why a request has no answer.
struct Unanswered {
    why: String,
    /// The connection broke; nobody has given up.
    is_of_connection: bool,
}

impl Unanswered {
    fn given_up(why: impl Into<String>) -> Self {
        Self { why: why.into(), is_of_connection: false }
    }
}

impl From<Failed> for Unanswered {
    fn from(failed: Failed) -> Self {
        Self { why: failed.to_string(), is_of_connection: !matches!(failed, Failed::Body(_)) }
    }
}

impl Job {
    fn pool(&self) -> &Rc<Pool> {
        &self.outfit.pools[self.store]
    }

    /// Who a connection, or room for a body, is for.
    pub(super) fn asker(&self) -> Asker {
        match &self.write {
            Some(write) => write.passage.object_number().map_or(Asker::Unjudged, |object| {
                let client = self.client.peer.number();
                Asker::Write { object, client }
            }),
            None => Asker::Read(self.client.number),
        }
    }

    /// Waits for a connection. `share`: the room that its body takes meanwhile, which is its asker's from here on.
    async fn lane(&self, share: &mut Option<Share>) -> Result<Lane, NoLane> {
        let (asker, total) = (self.asker(), self.outfit.plan.settings.hold_total_bytes);
        if let Some(uncounted) = share.take_if(|share| !share.is_counted()) {
            *share = Some(uncounted.of(asker, total).ok_or(NoLane::Overloaded)?);
        }
        // Nothing was sent, and no lease says that it may go on.
        let is_loose = asker == Asker::Unjudged;
        let at = At::of(&self.head.method);
        let _loose = is_loose.then(|| Turned::new(&self.client, at, At::Loose, self.worker.now()));
        self.pool().lane(asker).await
    }

    pub(super) fn passage(&self) -> Option<&Rc<Passage>> {
        self.write.as_ref().map(|write| &write.passage)
    }

    /// From here on something of it may be sent.
    fn begin(&self) {
        if let Some(write) = &self.write {
            write.passage.begin();
            write.claim.iter().for_each(|claim| claim.sends(true));
        }
    }

    /// Nothing of it has left.
    fn back_out(&self) {
        if let Some(write) = &self.write {
            write.passage.back_out();
            write.claim.iter().for_each(|claim| claim.sends(false));
        }
    }

    /// Nothing was sent, and the same would come of its twins.
    fn came_to_nothing(&self, why: Refused) -> Refused {
        self.write.iter().flat_map(|write| &write.claim).for_each(|claim| claim.came_to_nothing(&why));
        why
    }

    /// A newer version of its route has taken over.
    pub(super) fn is_retired(&self) -> bool {
        self.passage().is_some_and(|passage| passage.is_retired())
    }

    fn route(&self, write: &WriteOf) -> &Route {
        &self.outfit.plan.routes.all()[write.route]
    }

    fn is_keyed(&self) -> bool {
        self.write.as_ref().is_some_and(|write| write.key.is_some() && write.passage.is_judged())
    }

    /// Whether its route keeps a journal.
    fn is_journaled(&self) -> bool {
        self.write.as_ref().is_some_and(|write| self.route(write).journal)
    }

    /// What is to be written down of it, where its route keeps a journal.
    fn line(&self, write: &WriteOf) -> Option<Line> {
        self.route(write).journal.then(|| Line::new(&self.head, &write.passage))
    }

    /// Nobody knows what became of it; its connection is gone.
    async fn lose(&self, write: &WriteOf) {
        if let Some(line) = self.line(write) {
            Box::pin(line.unknown(&self.worker.gate.ledger)).await;
        }
        write.passage.lose();
    }

    pub(super) fn is_h2(&self) -> bool {
        self.head.version == Version::HTTP_2
    }

    /// When its connection may be used again behind it. A store is asked to close one that may not be: it must not take
    /// what it left unread for its next request.
    fn reuse(&self, length: &Length) -> Reuse {
        match (length.is_some(), self.pool().settings().reads_bodies) {
            (false, _) => Reuse::Always,
            // Whatever the store is said to do: hardly any server reads these.
            (true, _) if self.write.is_none() => Reuse::Never,
            (true, ReadsBodies::All) => Reuse::Always,
            (true, ReadsBodies::Accepted) if matches!(self.head.method, Method::PUT | Method::POST | Method::PATCH) => {
                Reuse::AfterSuccess
            }
            (true, ReadsBodies::Accepted | ReadsBodies::None) => Reuse::Never,
        }
    }

    /// Sends a request whose body is there.
    async fn send_whole(&self, lane: &mut Lane, body: &mut StoreBody) -> Result<Box<Head>, Unanswered> {
        let (link, mut alarm) = (lane.link(), self.worker.alarms.set(self.patience()));
        poll_fn(|context| match link.poll_answer(context, body) {
            Poll::Ready(answered) => Poll::Ready(answered.map_err(Unanswered::from)),
            Poll::Pending => alarm.poll(context).map(|()| Err(self.unheard())),
        })
        .await
    }

    /// Sends a request whose body comes as it is sent.
    async fn send_stream(
        &self,
        lane: &mut Lane,
        body: &mut StoreBody,
        progress: &Progress,
        cancel: Option<Cancel>,
    ) -> Result<Box<Head>, Unanswered> {
        let link = lane.link();
        let wire = Rc::clone(link.wire());
        progress.listen(Rc::clone(&wire));
        tokio::select! {
            biased;
            answered = poll_fn(|context| link.poll_answer(context, body)) => answered.map_err(Unanswered::from),
            () = progress.stalled(self.patience(), || wire.sent.get()) => Err(self.unheard()),
            () = told_to_stop(cancel, progress) => Err(Unanswered::given_up("the lease is changing hands")),
            () = self.is_rerouted_unreleased(progress) => Err(Unanswered::given_up("this route has just changed")),
        }
    }

    fn unheard(&self) -> Unanswered {
        Unanswered::given_up(format!("nothing was heard of it for {} ms", self.patience().as_millis()))
    }

    /// A reload has changed the route of this write, whose end has not been let go.
    async fn is_rerouted_unreleased(&self, progress: &Progress) {
        match self.passage() {
            Some(passage) => passage.retired().await,
            None => std::future::pending().await,
        }
        if progress.is_released() {
            std::future::pending::<()>().await;
        }
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(self.pool().settings().response_timeout_ms)
    }

    /// Judges the write again, at the last moment before something of it is sent. What is sent whole is
    /// committed by that; what streams is told when to stop.
    ///
    /// One that was committed when it was admitted goes on.
    fn may_go_on(&self, streams: bool, is_committed: bool) -> Result<Option<Cancel>, Box<Halt>> {
        let Some(passage) = self.passage().filter(|_| !is_committed) else { return Ok(None) };
        if passage.is_retired() {
            passage.back_out();
            return Err(Box::new(Halt::Refused(rerouted())));
        }
        let judged = if streams { passage.begin_stream() } else { passage.commit().map(|()| None) };
        judged.map_err(|denied| Box::new(Halt::Denied(denied)))
    }

    /// The same, once what stands in its way has been looked at.
    async fn go_on_after(&self, mut halt: Box<Halt>, streams: bool) -> Result<Option<Cancel>, Refused> {
        let gate = &self.worker.plane.gate;
        let mut has_asked = false;
        loop {
            match *halt {
                Halt::Refused(refused) => return Err(refused),
                // Only a first look finds a fence below an outside number.
                Halt::Denied(Denied { object, why: Denial::Behind(number) }) => {
                    let fence = number.seq.into();
                    return Err(Refused::from(verdict::Refusal::Draining { fence }).of(&object));
                }
                // Its term was known when it was admitted; whether its Lease is still held is asked once.
                Halt::Denied(Denied { object, why: why @ (Denial::Unseen(_) | Denial::Lapsed(_)) }) => {
                    let asked = if has_asked { Ok(()) } else { gate.elections.ask_again(&object).await };
                    if has_asked || asked.is_err() {
                        return Err(Refused::from(elect::still_unknown(gate, &object, &why)).of(&object));
                    }
                    has_asked = true;
                }
                Halt::Denied(Denied { object, why: Denial::Refused(refusal) }) => {
                    return Err(Refused::from(refusal).of(&object));
                }
                Halt::Denied(Denied { object, why: Denial::Overdue(lease) }) => {
                    let ended = gate.ledger.end(vec![(object, lease)]).await;
                    ended.map_err(|_| Refused::new(Code::TableUnavailable, "the fence table cannot be used now"))?;
                }
            }
            match self.may_go_on(streams, false) {
                Ok(cancel) => return Ok(cancel),
                Err(again) => halt = again,
            }
        }
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
                None => self.came_to_nothing(no_answer(why)),
            };
        }
        let Some(write) = &self.write else {
            // A client that breaks its own request off says nothing of the store.
            return broken.map_or_else(|| no_answer(why), |broken| cut_off(&broken));
        };
        if is_partial && self.route(write).discards {
            write.passage.cancel();
            write.claim.iter().for_each(|claim| claim.sends(false));
            return match broken {
                Some(broken) => unsent(&broken),
                None => no_answer(why),
            };
        }
        self.lose(write).await;
        match broken {
            Some(broken) => self.unknown(format!("part of the write was sent, but not its end ({broken})")),
            None if is_partial => self.unknown(format!("part of the write was sent, but not its end ({why})")),
            None => self.unknown(format!("the write was sent, and the store gave no answer ({why})")),
        }
    }

    /// Why a write of which nothing was sent may not go on.
    pub(super) async fn why_denied(&self) -> Refused {
        let denied = match self.may_go_on(false, false) {
            Ok(_) => None,
            Err(denied) => self.go_on_after(denied, false).await.err(),
        };
        denied.unwrap_or_else(|| {
            self.passage().inspect(|passage| passage.back_out());
            Refused::new(Code::FenceDraining, "the lease was changing hands; nothing was sent")
        })
    }

    fn unknown(&self, what: String) -> Refused {
        self.worker.plane.metrics().unknown();
        Refused::new(Code::OutcomeUnknown, what + "; look before you write again")
    }

    async fn answer(
        mut self: Box<Self>,
        answer: Answer,
        progress: Option<&Progress>,
        digest: Option<[u8; 32]>,
    ) -> Answered {
        let Answer { mut lane, head, since } = answer;
        let is_out = lane.link().is_out();
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            drop(lane);
            let why = "it changed the protocol, which nobody asked for";
            return Err(Box::pin(self.failed(true, why, None)).await.into());
        }
        let is_partial = progress.is_some_and(|progress| !progress.is_released());
        let is_early = is_partial || !is_out;
        if let Some(progress) = progress.filter(|_| is_early) {
            // The end that is held back stays back, and the connection is of no further use.
            progress.park();
        }
        let Head { status, reason, mut headers, .. } = *head;
        let claim = self.write.as_mut().and_then(|write| write.claim.take());
        let Some(write) = &self.write else {
            headers::to_client(&mut headers, None, &self.worker.last_seq);
            let to_come = lane.link().to_come();
            let bytes = to_come.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(AHEAD_BYTES).min(AHEAD_BYTES);
            let share = Share::for_answer(&self.worker.plane, bytes, self.outfit.plan.settings.hold_total_bytes);
            let ahead = if share.is_some() { take_ready(&mut lane) } else { Ok(Frames::default()) };
            let ahead = ahead.map_err(|why| no_answer(&why))?;
            let (worker, patience) = (Rc::clone(&self.worker), self.patience());
            let carried = Carried { worker, lane, settles: !is_early, passage: None, line: None, claim: None };
            let reply = StoreReply::coming(ahead, carried, patience).ahead_of_client(to_come.is_none(), share);
            return Ok(respond((status, reason), headers, ReplyBody::store(reply)));
        };
        let (passage, route) = (&write.passage, self.route(write));
        // What is left of a whole write may still leave before its connection is closed.
        let settles = if is_early { is_partial && route.discards } else { is_settled_by(route, status) };
        failpoints::reach(Point::Sent);
        if failpoints::on(Fault::HeadSettles) {
            passage.settle();
        }
        let left = || self.patience().saturating_sub(Duration::from_secs_f64(since.seconds()));
        let made = |digest: Option<[u8; 32]>| digest.or_else(|| progress.and_then(Progress::digest));
        let mut kept = None;
        let (body, outcome) = match read_ahead(&mut lane, &self.worker, left).await {
            Ahead::Broken(why) => {
                drop(lane);
                Box::pin(self.lose(write)).await;
                let what = format!("the write was sent, and the store's answer broke off ({why})");
                return Err(self.unknown(what).into());
            }
            Ahead::Whole(frames) => {
                failpoints::reach(Point::Answered);
                let is_noted = route.journal && settles && !is_early;
                if is_noted && Box::pin(self.write_down(write, made(digest), status)).await.is_err() {
                    drop(lane);
                    Box::pin(self.lose(write)).await;
                    return Err(self.unknown(UNWRITTEN.to_owned()).into());
                }
                if !self.conclude(&write.passage, lane, settles, is_early) {
                    Box::pin(self.lose(write)).await;
                }
                if let Some(claim) = claim {
                    claim.sends(!(settles && is_early));
                    // Only what the store has answered for is kept.
                    kept = Some((claim, frames.data())).filter(|_| settles && !is_early);
                }
                (ReplyBody::whole(frames), if settles { Outcome::Settled } else { Outcome::Unknown })
            }
            Ahead::Part(frames) => {
                let (worker, passage) = (Rc::clone(&self.worker), Some(Rc::clone(passage)));
                let digest = made(digest);
                let line = self.line(write).map(|line| (line, digest.unwrap_or_default(), status.as_u16()));
                let payload = digest.map(|digest| keyed::payload(&self.head, digest));
                let claim = claim.map(|claim| (claim, payload, status.as_u16()));
                let carried = Carried { worker, lane, settles: settles && !is_early, passage, line, claim };
                let outcome = if settles { Outcome::Pending } else { Outcome::Unknown };
                (ReplyBody::store(StoreReply::coming(frames, carried, left())), outcome)
            }
        };
        headers::to_client(&mut headers, Some((passage, outcome)), &self.worker.last_seq);
        if let Some((claim, body)) = kept {
            let payload = made(digest).map(|digest| keyed::payload(&self.head, digest));
            let answer = claim.keep(status, &headers, body);
            Box::pin(claim.answered(payload, answer)).await;
        }
        if let Some(code) = write.would {
            headers.insert("fence-would", HeaderValue::from_static(code.as_str()));
        }
        Ok(respond((status, reason), headers, body))
    }

    /// Writes a settled write down: durable when this returns.
    async fn write_down(&self, write: &WriteOf, digest: Option<[u8; 32]>, status: StatusCode) -> Result<(), ()> {
        let Some(line) = self.line(write) else { return Ok(()) };
        let written = line.settled(&self.worker.gate.ledger, digest.unwrap_or_default(), status.as_u16()).await;
        written.map_err(drop)
    }

    /// The whole answer is there. Returns whether it says what became of the write.
    fn conclude(&self, passage: &Passage, lane: Lane, settles: bool, is_early: bool) -> bool {
        if settles && !is_early {
            passage.settle();
            lane.give_back(self.worker.now());
            return true;
        }
        drop(lane);
        if settles {
            passage.cancel();
        } else {
            self.worker.plane.metrics().unknown();
        }
        settles
    }
}

/// What stands in the way of a write at its commit point.
#[allow(clippy::large_enum_variant, reason = "it is boxed, and rare")]
enum Halt {
    Refused(Refused),
    Denied(Denied),
}

/// Whether an answer says what became of a write.
fn is_settled_by(route: &Route, status: StatusCode) -> bool {
    !UNSETTLING.contains(&status.as_u16()) || route.settles.contains(&status.as_u16())
}

fn respond(
    (status, reason): (StatusCode, Option<Bytes>),
    headers: http::HeaderMap,
    body: ReplyBody,
) -> Response<ReplyBody> {
    let mut response = Response::new(body);
    (*response.status_mut(), *response.headers_mut()) = (status, headers);
    if let Some(reason) = reason.and_then(|reason| ReasonPhrase::try_from(reason).ok()) {
        response.extensions_mut().insert(reason);
    }
    response
}

/// An advance has told this write to stop. Behind its commit point it is too late for that.
async fn told_to_stop(cancel: Option<Cancel>, progress: &Progress) {
    match cancel {
        Some(cancel) => cancel.notified().await,
        None => std::future::pending().await,
    }
    if progress.is_released() {
        std::future::pending::<()>().await;
    }
}

pub(super) fn rerouted() -> Refused {
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
pub fn unsent(broken: &Broken) -> Refused {
    Refused::new(code_of(broken), format!("{broken}; nothing was sent"))
}

/// The body of a read that was broken off.
fn cut_off(broken: &Broken) -> Refused {
    Refused::new(code_of(broken), format!("{broken}; a part of this read was sent to the store"))
}

fn code_of(broken: &Broken) -> Code {
    match broken {
        Broken::Client | Broken::Slow => Code::BodyUnreadable,
        Broken::TooLong => Code::RequestLimit(Limit::Body),
        Broken::TokenInTrailer => Code::FenceTokenMalformed,
        // Behind the first piece; before it, the write is judged once more to be told why.
        Broken::Denied => Code::FenceDraining,
    }
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
