//! Writes with an `Idempotency-Key`: each runs once, and a repeated request with its key gets its answer.
//!
//! A key is claimed before any part of its write is sent: in memory, so that twins share one request, and in the table,
//! durably, so that a crash leaves "unknown" and never a second run. A write that is not sent in the end gives its key
//! back. `fence::idempotency` says how a known key is answered.
//!
//! Here is the life of a key. `digest`: what makes two writes the same. `replay`: what a known key gets.
//! `lookup`: the same for a write whose lease is over.

mod digest;
mod lookup;
mod replay;

use std::{
    borrow::Cow,
    collections::{HashMap, hash_map::Entry as Slot},
    pin::pin,
    rc::Rc,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Response, StatusCode};
use tokio::{sync::watch, task::JoinHandle};

use self::replay::again;
pub use self::{
    digest::{digest_of, digest_on, payload},
    lookup::Lookup,
    replay::{known, refused},
};
use super::{
    Worker,
    detach::Detached,
    guard::WriteGuard,
    reply::{Rejection, ReplyBody},
};
use crate::{
    barrier::in_flight::KeyReservation,
    config::IdempotencySettings,
    fence::{
        Code, HolderId, LeaseSeq, ObjectId, Permit,
        idempotency::{self, Entry, IdempotencyKey, KeptResponse, KeyRefusal, Payload, Scope},
        verdict::Presented,
        write::{Event, Outcome},
    },
    metrics::KeyedResult,
    table::{
        ledger::{self, KeyAttempt, KeyClaimResult, Ledger, keyed::read},
        records::Records,
    },
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

/// The holder of a token that may be over, by the lease that made it, and what is stored under the key.
fn find(
    records: &Records,
    object: ObjectId,
    presented: &Presented,
    key: IdempotencyKey,
) -> Result<Option<(Scope, LeaseSeq, Entry)>, crate::table::TableFault> {
    let (holder, seq): (HolderId, LeaseSeq) = match presented {
        Presented::Nothing | Presented::Unreadable(_) => return Ok(None),
        Presented::Outside(claim) => match claim.owner(|| records.read(&object))? {
            Some(owner) => owner,
            None => return Ok(None),
        },
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
