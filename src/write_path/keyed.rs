//! Writes with an `Idempotency-Key`: each runs once, and a repeated request with its key gets its answer.
//!
//! A key is claimed before any part of its write is sent: in memory, so that twins share one request, and in the table,
//! durably, so that a crash leaves "unknown" and never a second run. A write that is not sent in the end gives its key
//! back. `fence::idempotency` says how a known key is answered.

use std::{
    borrow::Cow,
    collections::{HashMap, VecDeque, hash_map::Entry as Slot},
    future::poll_fn,
    pin::{Pin, pin},
    rc::Rc,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Poll,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Version, header, request::Parts};
use http_body::Body;
use hyper::body::Incoming;
use sha2::{Digest, Sha256};
use tokio::{sync::watch, task::JoinHandle};

use super::{
    Worker,
    detach::Detached,
    guard::WriteGuard,
    hold::{Limits, Source},
    journaled::BodyDigest,
    pace::Pace,
    refusals::unsent,
    reply::{Rejection, ReplyBody},
    upload::Broken,
};
use crate::{
    barrier::in_flight::KeyReservation,
    config::IdempotencySettings,
    fence::{
        Code, HolderId, LeaseSeq, ObjectId, Permit,
        elected::Elected,
        external,
        idempotency::{self, Again, Entry, IdempotencyKey, KeptResponse, KeyRefusal, Payload, Scope},
        verdict::Presented,
        write::{Event, Outcome},
    },
    metrics::KeyedResult,
    route::classify::Write,
    table::{
        ledger::{self, KeyAttempt, KeyClaimResult, Ledger, keyed::read},
        records::Records,
    },
    upstream::body::StoreBody,
};

/// The keyed writes that are on their way.
pub struct Keys {
    flights: Mutex<HashMap<Scope, Arc<Flight>>>,
    /// Numbers attempts, from a random start in each run.
    attempts: AtomicU64,
    settings: IdempotencySettings,
}

impl Keys {
    #[must_use]
    pub fn new(settings: &IdempotencySettings) -> Arc<Self> {
        let (beginning, _) = uuid::Uuid::new_v4().as_u64_pair();
        Arc::new(Self { flights: Mutex::default(), attempts: AtomicU64::new(beginning), settings: settings.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Scope, Arc<Flight>>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims a key. Fails with the flight of the first request that has it.
    fn enter(&self, scope: &Scope, payload: Option<Payload>, seq: LeaseSeq) -> Result<Arc<Flight>, Arc<Flight>> {
        match self.lock().entry(scope.clone()) {
            Slot::Occupied(first) => Err(Arc::clone(first.get())),
            Slot::Vacant(place) => {
                let (is_fresh, end) = (AtomicBool::new(false), watch::Sender::new(None));
                let flight = Arc::new(Flight { seq, payload, is_fresh, end });
                Ok(Arc::clone(place.insert(flight)))
            }
        }
    }

    fn flight(&self, scope: &Scope) -> Option<Arc<Flight>> {
        self.lock().get(scope).cloned()
    }

    fn leave(&self, scope: &Scope, flight: &Flight, end: End) {
        self.lock().remove(scope);
        flight.end.send_replace(Some(end));
    }
}

/// A keyed write on its way, or one whose key is being looked up.
struct Flight {
    seq: LeaseSeq,
    /// `None` where its body streams.
    payload: Option<Payload>,
    /// The key was new, so this write is the first.
    is_fresh: AtomicBool,
    end: watch::Sender<Option<End>>,
}

/// What became of a keyed write, for its twins.
#[derive(Clone)]
enum End {
    Known(Arc<Entry>),
    /// Nothing was sent; with the reason, where twins would fail in the same way.
    Void(Option<(Code, Cow<'static, str>)>),
    Unknown,
}

impl Flight {
    async fn ended(&self) -> End {
        let mut news = self.end.subscribe();
        match news.wait_for(Option::is_some).await.map(|end| end.clone()) {
            Ok(Some(end)) => end,
            Ok(None) | Err(_) => End::Unknown,
        }
    }
}

/// A claim on a key that is this write's, or that the table is being asked for. It ends with its write.
pub struct ReservedKey {
    keys: Arc<Keys>,
    ledger: Ledger,
    worker: Rc<Worker>,
    scope: Scope,
    flight: Arc<Flight>,
    attempt: u64,
    /// The entry as the table has it.
    entry: Option<Entry>,
    /// While this exists, the ledger may still answer the claim.
    alive: Arc<()>,
    /// Why nothing was sent, where requests with the same key would fail in the same way.
    why: Option<(Code, Cow<'static, str>)>,
}

impl KeyReservation for Box<ReservedKey> {
    /// If nothing was sent, gives the key back. Otherwise the outcome under the key stays unknown.
    fn end(mut self, outcome: Outcome) {
        if outcome != Outcome::Cancelled {
            return self.leave(End::Unknown);
        }
        let end = End::Void(self.why.take());
        let freed = self.ledger.room().map(|room| room.void_keyed(self.scope.clone(), self.attempt));
        if freed != Err(ledger::LedgerError::Overloaded) || self.worker.stopping.get() {
            return self.leave(end);
        }
        // Its twins must not come before the ledger has the message that the key is free.
        tokio::task::spawn_local(async move {
            if let Ok(room) = self.ledger.capacity().await {
                room.void_keyed(self.scope.clone(), self.attempt);
            }
            self.leave(end);
        });
    }
}

impl ReservedKey {
    /// Notes why nothing was sent. If the store is unreachable or the gate overloaded, twins need not try one after the
    /// other.
    pub fn came_to_nothing(&mut self, why: &Rejection) {
        let code = why.problem.code();
        if matches!(code, Code::StoreUnreachable | Code::GateOverloaded) {
            self.why = Some((code, why.problem.detail().to_owned().into()));
        }
    }

    fn leave(&self, end: End) {
        self.keys.leave(&self.scope, &self.flight, end);
    }

    /// The answer in the form that is kept.
    #[must_use]
    pub fn keep(&self, status: StatusCode, headers: &HeaderMap, body: Option<Bytes>) -> KeptResponse {
        let status = status.as_u16();
        let Some(body) = body else { return KeptResponse::Dropped { status } };
        let size = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>() + body.len();
        if size > self.keys.settings.response_bytes_max {
            return KeptResponse::Dropped { status };
        }
        let passing = |name: &HeaderName| name.as_str() == "fence-expires-in";
        let headers = headers.iter().filter(|(name, _)| !passing(name));
        let headers = headers.map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec())).collect();
        KeptResponse::Whole(idempotency::Response { status, headers, body: body.to_vec() })
    }

    /// The entry to be stored for a write that has settled.
    fn answered(&mut self, digest: Option<Payload>, answer: KeptResponse) -> Option<(Ledger, Scope, u64, Entry)> {
        let entry = self.entry.take()?;
        let entry = Entry { payload: entry.payload.or(digest), answer, ..entry };
        Some((self.ledger.clone(), self.scope.clone(), self.attempt, entry))
    }
}

/// Keeps the answer to a settled write under its key, in a separate task that goes on when the client is gone. The task
/// ends when the answer is durable, or cannot be made durable.
pub fn keep_answer(
    worker: &Rc<Worker>,
    guard: &Rc<WriteGuard>,
    digest: Option<Payload>,
    answer: KeptResponse,
) -> Option<JoinHandle<()>> {
    if worker.stopping.get() {
        return None;
    }
    let (detached, guard) = (Detached::new(worker), Rc::clone(guard));
    Some(tokio::task::spawn_local(async move {
        write_down(&guard, digest, answer).await;
        drop(detached);
    }))
}

async fn write_down(guard: &WriteGuard, digest: Option<Payload>, answer: KeptResponse) {
    let answered = guard.with_key(|reserved| reserved.answered(digest, answer)).flatten();
    let Some((ledger, scope, attempt, entry)) = answered else { return };
    let kept = ledger.end_keyed(scope, attempt, entry.clone()).await;
    // Its own client has its answer, whether or not it can be kept.
    let end = if kept.is_ok() { End::Known(Arc::new(entry)) } else { End::Unknown };
    if let Some(reserved) = guard.take_key() {
        reserved.leave(end);
    }
}

/// The state of a write's key.
pub enum Claimed {
    /// The key is this write's.
    Mine,
    /// The key is known, and its write is not on its way.
    Known(Arc<Entry>),
    /// Another write with the same key is on its way.
    Twin(Twin),
    /// The lease of this write is no longer open.
    Fenced,
}

/// Another write with the same key.
pub struct Twin(Arc<Flight>);

impl Twin {
    /// Whether this write may wait for the other one's answer. If the other is not known to be the first, this is
    /// always allowed.
    ///
    /// # Errors
    /// With the refusal that this write gets at once.
    pub fn agrees(&self, payload: &Payload, seq: LeaseSeq) -> Result<(), KeyRefusal> {
        if !self.0.is_fresh.load(Ordering::Acquire) {
            return Ok(());
        }
        if self.0.payload.as_ref().is_some_and(|own| own != payload) {
            return Err(KeyRefusal::OtherPayload);
        }
        if self.0.seq == seq { Ok(()) } else { Err(KeyRefusal::InProgress) }
    }

    /// Waits for the other write's answer, as long as the ledger makes progress. `None`: it was not sent, so the key is
    /// free again.
    pub async fn answer(&self, worker: &Worker, payload: &Payload) -> Option<Result<Response<ReplyBody>, Rejection>> {
        let waiting = worker.plane.metrics().waits_for_twin();
        let ended = worker.gate.ledger.while_it_gets_on(pin!(self.0.ended())).await;
        drop(waiting);
        let Some(ended) = ended else { return Some(Err(self.stalled())) };
        match ended {
            End::Void(None) => None,
            End::Void(Some((code, detail))) => Some(Err(Rejection::new(code, detail))),
            End::Unknown => Some(Err(refused(worker, KeyRefusal::Unknown))),
            End::Known(entry) => Some(again(worker, &entry, payload, KeyedResult::Shared)),
        }
    }

    /// The refusal of a twin while the table does not answer: the other write cannot end before it does.
    fn stalled(&self) -> Rejection {
        let what = "a write with this Idempotency-Key waits for the disk of the fence table, which does not answer; ask again, with the same key";
        let mut refused = Rejection::new(Code::TableUnavailable, what);
        if self.0.is_fresh.load(Ordering::Acquire) {
            // The other write may have been sent.
            refused.problem.tell_unsure();
        }
        refused
    }
}

/// Claims a key for an admitted write.
///
/// # Errors
/// Where the table is not usable.
pub async fn claim(
    worker: &Rc<Worker>,
    guard: &WriteGuard,
    permit: &Permit,
    key: &IdempotencyKey,
    payload: Option<Payload>,
) -> Result<Claimed, Rejection> {
    let (object, holder, seq) = (permit.object().clone(), permit.holder().clone(), permit.seq());
    let scope = Scope { object, holder, key: key.clone() };
    let keys = &worker.plane.keys;
    let flight = match keys.enter(&scope, payload, seq) {
        Ok(flight) => flight,
        Err(first) => return Ok(Claimed::Twin(Twin(first))),
    };
    let ledger = worker.gate.ledger.clone();
    let attempt = keys.attempts.fetch_add(1, Ordering::Relaxed);
    let reserved = ReservedKey {
        keys: Arc::clone(keys),
        ledger: ledger.clone(),
        worker: Rc::clone(worker),
        scope: scope.clone(),
        flight,
        attempt,
        entry: None,
        alive: Arc::default(),
        why: None,
    };
    let alive = Arc::downgrade(&reserved.alive);
    // From here on, the end of the write gives the key back.
    guard.attach_key(Box::new(reserved));
    match ledger.begin_keyed(KeyAttempt { scope, payload, seq, attempt, alive }).await {
        Ok(KeyClaimResult::Fresh(entry)) => {
            worker.plane.metrics().keyed(KeyedResult::Fresh);
            guard.with_key(|reserved| {
                reserved.flight.is_fresh.store(true, Ordering::Release);
                reserved.entry = Some(entry);
            });
            let _ = guard.on(Event::Claimed(true));
            Ok(Claimed::Mine)
        }
        Ok(KeyClaimResult::Known(entry)) => {
            let entry = Arc::new(entry);
            guard.take_key().inspect(|reserved| reserved.leave(End::Known(Arc::clone(&entry))));
            Ok(Claimed::Known(entry))
        }
        Ok(KeyClaimResult::Fenced) => {
            guard.take_key().inspect(|reserved| reserved.leave(End::Void(None)));
            Ok(Claimed::Fenced)
        }
        Err(why) => {
            let refused = unusable(&why);
            if matches!(why, ledger::LedgerError::Unavailable | ledger::LedgerError::Overloaded) {
                // Nothing was begun: the ledger has nothing to forget, and may have no room for a message.
                let end = End::Void(Some((refused.problem.code(), refused.problem.detail().to_owned().into())));
                guard.take_key().inspect(|reserved| reserved.leave(end));
            }
            Err(refused)
        }
    }
}

fn unusable(why: &ledger::LedgerError) -> Rejection {
    match why {
        ledger::LedgerError::Overloaded => {
            Rejection::new(Code::GateOverloaded, "too many changes of the fence table wait; nothing was sent")
        }
        ledger::LedgerError::Stopping => Rejection::new(Code::GateStopping, "this gate is stopping; nothing was sent"),
        _ => Rejection::new(Code::TableUnavailable, "the fence table cannot be used now; nothing was sent"),
    }
}

/// The answer to a write whose key is known.
///
/// # Errors
/// With the reason why there is no answer.
pub fn known(worker: &Worker, entry: &Entry, payload: &Payload) -> Result<Response<ReplyBody>, Rejection> {
    again(worker, entry, payload, KeyedResult::Replayed)
}

fn again(
    worker: &Worker,
    entry: &Entry,
    payload: &Payload,
    how: KeyedResult,
) -> Result<Response<ReplyBody>, Rejection> {
    match entry.again(payload) {
        Again::Refused(why) => Err(refused(worker, why)),
        Again::Replay(kept) => {
            worker.plane.metrics().keyed(how);
            Ok(replay(kept))
        }
    }
}

fn replay(kept: &idempotency::Response) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::own(kept.body.clone()));
    *response.status_mut() = StatusCode::from_u16(kept.status).unwrap_or(StatusCode::OK);
    for (name, value) in &kept.headers {
        // Headers that no longer parse are skipped.
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_bytes(value)) {
            response.headers_mut().append(name, value);
        }
    }
    response.headers_mut().insert("idempotency-replayed", HeaderValue::from_static("true"));
    response
}

/// The refusal of a keyed write that gets neither a run nor an answer.
pub fn refused(worker: &Worker, why: KeyRefusal) -> Rejection {
    let (result, what): (_, Cow<'static, str>) = match why {
        KeyRefusal::OtherPayload => (
            KeyedResult::Mismatch,
            "this Idempotency-Key was used for another write: the method, the target or the body differs; use a new key".into(),
        ),
        KeyRefusal::InProgress => (
            KeyedResult::InProgress,
            "a write with this Idempotency-Key is on its way; ask again in a moment".into(),
        ),
        KeyRefusal::Unknown => (
            KeyedResult::Unknown,
            "a write with this Idempotency-Key was sent, and nobody knows what became of it; it is not run again. Look, then write with a new key".into(),
        ),
        KeyRefusal::OtherLease => (
            KeyedResult::OtherLease,
            "this Idempotency-Key's write was made with another lease; show that one's token, or your current one".into(),
        ),
        KeyRefusal::Dropped { status } => (
            KeyedResult::Dropped,
            format!("this Idempotency-Key's write was done (the store answered {status}), and its answer was too large to keep").into(),
        ),
    };
    worker.plane.metrics().keyed(result);
    Rejection::new(why.code(), what)
}

/// Headers that can turn a write into another one.
const COUNTED: [HeaderName; 4] =
    [header::CONTENT_ENCODING, header::CONTENT_RANGE, header::CONTENT_TYPE, HeaderName::from_static("destination")];

/// The digest of a write: its method, its target, the headers that say how its body is read and where it goes, and the
/// digest of its body.
#[must_use]
pub fn payload(head: &Parts, body: [u8; 32]) -> Payload {
    let mut hash = Sha256::new();
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
    let names = COUNTED;
    let counted = names
        .iter()
        .enumerate()
        .flat_map(|(place, name)| head.headers.get_all(name).iter().map(move |value| (place + 1, value.as_bytes())));
    let said = [(0, head.method.as_str().as_bytes()), (0, target.as_bytes())].into_iter().chain(counted);
    for (place, part) in said {
        hash.update((place as u64).to_be_bytes());
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.update(body);
    hash.finalize().into()
}

/// The digest of a collected body.
#[must_use]
pub fn digest_of(body: &StoreBody) -> [u8; 32] {
    let mut digest = BodyDigest::default();
    body.held_parts().for_each(|part| digest.update(part));
    digest.finish()
}

/// Reads a body to its end, for its digest only.
///
/// # Errors
/// Where the body does not come, is not whole, or is too long.
pub async fn digest_on(
    worker: &Worker,
    first: VecDeque<Bytes>,
    mut rest: Incoming,
    is_h2: bool,
    limits: Limits,
) -> Result<[u8; 32], Rejection> {
    let (mut digest, mut size) = (BodyDigest::default(), 0_u64);
    for part in first {
        size += part.len() as u64;
        digest.update(&part);
    }
    let mut pace = Pace::new(&worker.alarms, limits.slowest);
    loop {
        let next = poll_fn(|context| match Pin::new(&mut rest).poll_frame(context) {
            Poll::Ready(frame) => Poll::Ready(Ok(frame)),
            Poll::Pending => pace.poll(context).map(|()| Err(Broken::Slow)),
        });
        match next.await.map_err(|broken| unsent(&broken))? {
            None if is_h2 && !rest.is_end_stream() => return Err(unsent(&Broken::Client)),
            None => return Ok(digest.finish()),
            Some(Err(_)) => return Err(unsent(&Broken::Client)),
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    size += data.len() as u64;
                    digest.update(data);
                    pace.came(data.len());
                }
            }
        }
        if size > limits.most {
            return Err(unsent(&Broken::TooLong));
        }
    }
}

/// What is needed to look up a keyed write that is refused: a repeat of an applied write still gets its answer.
pub struct Lookup {
    object: ObjectId,
    route: Arc<str>,
    presented: Presented,
    key: IdempotencyKey,
}

impl Lookup {
    #[must_use]
    pub fn of(wanted: &Write<'_>) -> Option<Self> {
        // A write to two objects has two leases. Under which of them its key is kept is known only once it is admitted.
        let key = wanted.key.clone().filter(|_| wanted.others.is_empty())?;
        let (object, route) = (wanted.target.id(), Arc::clone(&wanted.route.name));
        Some(Self { object, route, presented: wanted.target.presented(), key })
    }

    /// The answer to a write that was refused for its lease: the answer that was kept, or that refusal.
    ///
    /// # Errors
    /// With the reason why the write is refused.
    pub async fn answer(
        self,
        worker: &Rc<Worker>,
        head: &Parts,
        body: Source,
        limits: Limits,
        why: Rejection,
    ) -> Result<Response<ReplyBody>, (Rejection, Option<Source>)> {
        let (object, route) = (self.object.clone(), Arc::clone(&self.route));
        let answered = self.find_answer(worker, head, body, limits, why).await;
        answered.map_err(|(why, body)| (why.about(&object, &route), body))
    }

    async fn find_answer(
        self,
        worker: &Rc<Worker>,
        head: &Parts,
        body: Source,
        limits: Limits,
        why: Rejection,
    ) -> Result<Response<ReplyBody>, (Rejection, Option<Source>)> {
        let code = why.problem.code();
        if !matches!(code, Code::WriteStaleFence | Code::LeaseExpired | Code::FenceDraining) {
            return Err((why, Some(body)));
        }
        // True where the write was judged, and not refused because of a reload.
        let is_current = code == Code::FenceDraining && why.fence.is_some();
        let now = worker.gate.clock.now();
        let keep_ms = worker.plane.keys.settings.keep_ms;
        let Self { object, presented, key, .. } = self;
        let found = worker.gate.read(move |records| find(records, object, &presented, key)).await;
        let Ok(Some((scope, shown, entry))) = found else { return Err((why, Some(body))) };
        if entry.age_ms(now, &worker.gate.records.context.frame) >= keep_ms {
            return Err((why, Some(body)));
        }
        if shown != entry.seq && !is_current {
            return Err((refused(worker, KeyRefusal::OtherLease), Some(body)));
        }
        let is_h2 = head.version == Version::HTTP_2;
        let digest = match body {
            Source::Here { body, .. } => digest_of(&body),
            Source::Coming { hold, .. } => {
                let mut first = hold.parts;
                first.push_front(hold.first);
                digest_on(worker, first, hold.body, is_h2, limits).await.map_err(|why| (why, None))?
            }
        };
        let payload = payload(head, digest);
        if entry.answer == KeptResponse::None
            && let Some(flight) = worker.plane.keys.flight(&scope)
        {
            let twin = Twin(flight);
            twin.agrees(&payload, shown).map_err(|why| (refused(worker, why), None))?;
            return match twin.answer(worker, &payload).await {
                Some(answered) => answered.map_err(|why| (why, None)),
                None => Err((why, None)),
            };
        }
        // Since the entry was read, the other write may have been answered, or the key given back.
        let newest = worker.gate.read(move |records| read(&*records.table, &scope)).await;
        match newest.ok().flatten().filter(|newest| newest.attempt == entry.attempt) {
            Some(entry) => known(worker, &entry, &payload).map_err(|why| (why, None)),
            None => Err((why, None)),
        }
    }
}

/// The holder of a token that may be over, by the lease that made it, and what is stored under the key.
fn find(
    records: &Records,
    object: ObjectId,
    presented: &Presented,
    key: IdempotencyKey,
) -> Result<Option<(Scope, LeaseSeq, Entry)>, crate::table::TableFault> {
    let (holder, seq): (HolderId, LeaseSeq) = match presented {
        Presented::Nothing | Presented::Unreadable(_) => return Ok(None),
        Presented::Number(number) => (external::holder(), number.seq),
        // The holder of an earlier term is not stored any more.
        Presented::Claimant(claimant) => {
            let record = records.read(&object)?;
            let is_own = |holder: &HolderId| claimant.holder.as_ref().is_none_or(|own| own == holder);
            match record.elected.as_deref().filter(|elected| elected.election == claimant.election) {
                Some(Elected { holder: Some(holder), seq, .. }) if is_own(holder) => (holder.clone(), *seq),
                Some(_) | None => return Ok(None),
            }
        }
        Presented::Token(claim) => {
            let row = records.lease_at(object.clone(), claim.seq)?;
            let is_its = |row: &crate::fence::LeaseRow| {
                records.context.key.secret(&row.object, row.seq, &row.lease_id) == claim.secret
            };
            match row.filter(is_its) {
                Some(row) => (row.holder, row.seq),
                None => return Ok(None),
            }
        }
    };
    let scope = Scope { object, holder, key };
    Ok(read(&*records.table, &scope)?.map(|entry| (scope, seq, entry)))
}
