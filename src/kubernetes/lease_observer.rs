//! Who was elected. A write asks here when its token is ahead of what is known of its Lease, and the ledger gets the
//! answer.
//!
//! Each Lease that governs an object in use has one `LeaseEntry` (`entries.rs`) with one `LeaseState`
//! (`lease_state.rs`), which says what is read and passed on, and in which order. This file reports to it what has
//! happened, and carries out each effect. So for the ledger a Lease never goes back in time, although two uids cannot
//! be ordered. Each read is a quorum read. A watch only shows that there is something to read, or that a holder has
//! renewed.
//!
//! A reload that may give an object another Lease begins a new generation: answers to questions of the old one are
//! not passed on. What is known of a Lease is kept.
//!
//! No caller waits longer than one request may take. A caller that hangs up stops nothing: work that has begun is
//! finished. Nothing replaces an unreachable API server: what is known counts until it runs out, and then no write is
//! permitted.
//!
//! Any client can send a token and name an object. So a token of another term than the present one leaves no state
//! behind. Reads that tokens cause are limited: of one Lease by its state, of all by the `ReadLimiter`. Reads after
//! changes that a watch shows have limits apart from these.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    task::JoinHandle,
};

use super::{
    api::{Away, Cluster, LeaseName, Seen},
    entries::{Caller, Entries, LeaseEntry, Objects, PendingReply, lock},
    lease_state::{At, CallerId, Effect, Event, Question},
    read_limiter::ReadLimiter,
    watch,
};
use crate::{
    clock::Clock,
    config::{Fault, Faults, GateKubernetes},
    fence::{
        BootMs, ObjectId,
        elected::{Claimant, Term},
        election::Election,
        outside::Update,
    },
    metrics::KubernetesMetrics,
    table::ledger::{self, Ledger, Moved, Room},
};

pub use super::lease_state::Unknown;

/// Reads at once, of all Leases, that callers cause; as many again for changes that a watch shows.
const READS_MAX: usize = 8;
/// The most callers that may wait at once.
const ASKS_MAX: usize = 4_096;
/// The time between tries to read a Lease after a watch has shown a change.
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// The answer to a write that asked.
#[derive(Debug)]
pub struct TermReply {
    /// The present term of its Lease; `None`: there is no such Lease.
    pub election: Option<Election>,
    pub term: Arc<Term>,
    /// The state of the object after the ledger has got the answer.
    pub moved: Result<Moved, ledger::LedgerError>,
}

/// The elections on all Leases.
pub struct LeaseObserver {
    cluster: OnceLock<Cluster>,
    ledger: Ledger,
    clock: Clock,
    metrics: KubernetesMetrics,
    /// The runtime of its tasks, whichever thread asks; set before there is anything to ask about.
    runtime: OnceLock<Handle>,
    asked_reads: Arc<Semaphore>,
    hinted_reads: Arc<Semaphore>,
    read_limiter: ReadLimiter,
    asks: Arc<Semaphore>,
    objects: RwLock<Objects>,
    objects_max: usize,
    entries: Mutex<Entries>,
    watches: Mutex<HashMap<String, JoinHandle<()>>>,
}

impl LeaseObserver {
    /// Sends no request before a route needs one.
    #[must_use]
    pub fn new(objects_max: usize, ledger: Ledger, clock: Clock, metrics: KubernetesMetrics) -> Arc<Self> {
        Arc::new(Self {
            cluster: OnceLock::new(),
            ledger,
            clock,
            metrics,
            runtime: OnceLock::new(),
            asked_reads: Arc::new(Semaphore::new(READS_MAX)),
            hinted_reads: Arc::new(Semaphore::new(READS_MAX)),
            read_limiter: ReadLimiter::default(),
            asks: Arc::new(Semaphore::new(ASKS_MAX)),
            objects: RwLock::default(),
            objects_max,
            entries: Mutex::default(),
            watches: Mutex::default(),
        })
    }

    /// Makes the client of the API server, if there are namespaces to watch and there is no client yet. Does not
    /// check whether the API server answers. Needs a tokio runtime.
    ///
    /// # Errors
    /// When these settings give no client.
    pub fn reach(&self, settings: &GateKubernetes, namespaces: &[String]) -> Result<Option<Cluster>, Faults> {
        if namespaces.is_empty() {
            return Ok(None);
        }
        // A caller that asks before [`Self::watch_namespaces`] gets an error.
        let _ = self.runtime.set(Handle::current());
        if self.cluster.get().is_some() {
            return Ok(None);
        }
        let way = Cluster::new(&settings.way());
        way.map(Some).map_err(|(key, what)| Faults(vec![Fault::new(format!("kubernetes.{key}"), what)]))
    }

    /// Watches exactly these namespaces from now on. `way`: from [`Self::reach`]. `generation`: of the routes that
    /// name them. Needs a tokio runtime.
    pub fn watch_namespaces(self: &Arc<Self>, way: Option<Cluster>, namespaces: &[String], generation: u64) {
        if let Some(way) = way {
            // A second client has the same settings, so the first one is kept.
            let _ = self.cluster.set(way);
        }
        let mut watches = lock(&self.watches);
        watches.retain(|namespace, task| {
            let stays = namespaces.contains(namespace);
            if !stays {
                task.abort();
                self.metrics.forget(namespace);
            }
            stays
        });
        for namespace in namespaces {
            watches.entry(namespace.clone()).or_insert_with(|| {
                let (this, namespace) = (Arc::clone(self), namespace.clone());
                self.spawn(watch::run(this, namespace))
            });
        }
        // An object may have another Lease now: each is looked up anew, and no news of the old one is passed on.
        self.objects_mut().begin_generation(generation);
    }

    fn objects(&self) -> RwLockReadGuard<'_, Objects> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn objects_mut(&self) -> RwLockWriteGuard<'_, Objects> {
        self.objects.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The generation of the routes by which objects are known here. Read it before the routes.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.objects().generation
    }

    /// Stops all watches.
    pub fn stop(&self) {
        lock(&self.watches).drain().for_each(|(_, task)| task.abort());
    }

    /// # Panics
    /// When [`Self::reach`] has set no runtime: then no caller has anything to ask.
    fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.runtime.get().expect("a caller that asks has a route to a Lease").spawn(work)
    }

    pub(super) fn cluster(&self) -> Option<&Cluster> {
        self.cluster.get()
    }

    pub(super) fn metrics(&self) -> &KubernetesMetrics {
        &self.metrics
    }

    /// Adds what is known of a write's term, without asking the API server.
    pub fn attach_term(&self, object: &str, claimant: &mut Claimant) {
        let objects = self.objects();
        let Some(entry) = objects.by_object.get(object).filter(|entry| entry.name == claimant.lease) else { return };
        claimant.term = lock(&entry.state).term_of(claimant.election);
    }

    /// Asks about a write's term, unless it is known to be the present one, and passes the answer to the ledger.
    /// Waits a while for older writes. `generation`: of the routes by which that Lease governs the object.
    ///
    /// # Errors
    /// When the API server or the ledger does not answer.
    pub async fn ask(
        self: &Arc<Self>,
        object: &ObjectId,
        claimant: &Claimant,
        generation: u64,
    ) -> Result<TermReply, Unknown> {
        let entry = self.entry(&claimant.lease);
        let object = Some((object.clone(), generation));
        self.ask_for_object(entry, Question { election: Some(claimant.election), object }).await
    }

    /// Asks about an object's Lease anew, and passes the answer to the ledger.
    ///
    /// # Errors
    /// When the API server or the ledger does not answer.
    pub async fn ask_again(self: &Arc<Self>, object: &ObjectId) -> Result<(), Unknown> {
        let (entry, generation) = {
            let objects = self.objects();
            (objects.by_object.get(object).map(Arc::clone), objects.generation)
        };
        let Some(entry) = entry else { return Err(Unknown::Ledger(ledger::LedgerError::Overloaded)) };
        let question = Question { election: None, object: Some((object.clone(), generation)) };
        self.ask_for_object(entry, question).await?.moved.map(drop).map_err(Unknown::Ledger)
    }

    async fn ask_for_object(
        self: &Arc<Self>,
        entry: Arc<LeaseEntry>,
        question: Question,
    ) -> Result<TermReply, Unknown> {
        let ((election, term), answer) = self.ask_question(entry, question).await?;
        let moved = match answer {
            Some(mut answer) => self.ledger.wait(&mut answer).await,
            None => Err(ledger::LedgerError::Stopping),
        };
        Ok(TermReply { election, term, moved })
    }

    /// Asks about a write's term, unless it is known to be the present one, and moves no fence. Returns the Lease's
    /// present term and until when it is held.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn read_term(self: &Arc<Self>, claimant: &Claimant) -> Result<(Option<Election>, Arc<Term>), Unknown> {
        let question = Question { election: Some(claimant.election), object: None };
        let answer = self.ask_question(self.entry(&claimant.lease), question).await;
        answer.map(|(present, _)| present)
    }

    /// Waits for the answer to a question. The caller may hang up or run out of time.
    async fn ask_question(
        self: &Arc<Self>,
        entry: Arc<LeaseEntry>,
        question: Question,
    ) -> Result<PendingReply, Unknown> {
        let Ok(place) = Arc::clone(&self.asks).try_acquire_owned() else {
            return Err(Unknown::Ledger(ledger::LedgerError::Overloaded));
        };
        let (reply, answer) = oneshot::channel();
        self.on(&entry, Event::Asked(question, Caller { reply, _place: place }), None);
        let patience = self.patience();
        match tokio::time::timeout(patience, answer).await {
            Ok(answered) => answered.unwrap_or(Err(Unknown::Ledger(ledger::LedgerError::Stopping))),
            Err(_) => Err(Unknown::Away(Away::late(patience))),
        }
    }

    /// A watch shows a Lease; `None`: it is deleted.
    pub(super) fn watch_shows(self: &Arc<Self>, name: &LeaseName, seen: Option<Seen>) {
        let Some(entry) = lock(&self.entries).all.get(name).map(Arc::clone) else { return };
        let is_hint = lock(&entry.state).watch_shows(seen, self.clock.now());
        if is_hint {
            self.on(&entry, Event::Hinted, None);
        }
    }

    /// A watch has begun anew, and these are all the Leases of its namespace.
    pub(super) fn watch_lists(self: &Arc<Self>, namespace: &str, names: &HashSet<String>) {
        let all: Vec<Arc<LeaseEntry>> = lock(&self.entries).all.values().map(Arc::clone).collect();
        for entry in all {
            let is_missing = entry.name.namespace == namespace && !names.contains(&entry.name.name);
            if is_missing && lock(&entry.state).was_there() {
                self.on(&entry, Event::Hinted, None);
            }
        }
    }

    /// Reports an event to a Lease's state, and carries out what follows. `room`: in the ledger, for one message.
    fn on(
        self: &Arc<Self>,
        entry: &Arc<LeaseEntry>,
        event: Event<Caller, OwnedSemaphorePermit>,
        mut room: Option<Room<'_>>,
    ) {
        // Held until the ledger has the update: after a reload, another Lease may govern these objects. It also keeps the
        // order: no other event of this Lease is taken before these effects are carried out.
        let mut objects = self.objects_mut();
        let (mut changed, mut gives_up) = (None, false);
        let at = At { now: self.clock.now(), generation: objects.generation };
        let effects = lock(&entry.state).on(event, at);
        for effect in effects {
            match effect {
                Effect::Follow(object) => objects.follow(entry, &object, self.objects_max),
                Effect::Observe { caller, object, observation, begins, present } => {
                    let answer =
                        self.ledger.follow_next(object, Update::Lease { observation, begins }).map_err(Unknown::Ledger);
                    let _ = caller.reply.send(answer.map(|answer| (present, Some(answer))));
                }
                Effect::Answer(caller, present) => {
                    let _ = caller.reply.send(Ok((present, None)));
                }
                Effect::Refuse(caller, why) => {
                    let _ = caller.reply.send(Err(why));
                }
                Effect::ObserveAll(objects, observation) => {
                    changed = Some((objects.len(), observation.clone()));
                    // A ledger that is gone has ended its run.
                    let _ =
                        room.take().map(|room| room.follow_all(objects, Update::Lease { observation, begins: false }));
                }
                Effect::WaitForTurn(id) => self.wait_for_turn(entry, id),
                Effect::WaitForRoom => self.wait_for_room(entry),
                Effect::Read { not_before, permit } => self.read(entry, not_before, permit),
                Effect::Pause => self.pause(entry),
                Effect::GiveUp => gives_up = true,
            }
        }
        // A log that does not take its lines must not keep writes waiting.
        drop(objects);
        if let Some((objects, observation)) = changed {
            tracing::info!(objects, ?observation, "a Lease has changed");
        }
        if gives_up {
            tracing::warn!(lease = %entry.name, "a Lease has changed, and could not be read or passed on");
        }
    }

    fn patience(&self) -> Duration {
        self.cluster().map(Cluster::timeout).unwrap_or_default()
    }

    fn wait_for_turn(self: &Arc<Self>, entry: &Arc<LeaseEntry>, id: CallerId) {
        let (this, entry) = (Arc::clone(self), Arc::clone(entry));
        self.spawn(async move {
            let event = match this.turn().await {
                Ok(permit) => Event::Turn(id, permit),
                Err(away) => Event::NoTurn(id, away),
            };
            this.on(&entry, event, None);
        });
    }

    /// Waits for a caller's turn to read: reads per second and at once are limited. Fails if the turn does not come
    /// in time.
    async fn turn(&self) -> Result<OwnedSemaphorePermit, Away> {
        let patience = self.patience();
        let wait = self.read_limiter.take(self.clock.now().boot, patience).ok_or_else(|| Away::late(patience))?;
        let turn = async {
            tokio::time::sleep(wait).await;
            permit_of(&self.asked_reads).await
        };
        tokio::time::timeout(patience, turn).await.map_err(|_| Away::late(patience))
    }

    /// Reads a Lease as it is now. `permit`: of the caller whose turn it is; `None`: for a hint.
    fn read(self: &Arc<Self>, entry: &Arc<LeaseEntry>, not_before: BootMs, permit: Option<OwnedSemaphorePermit>) {
        let (this, entry) = (Arc::clone(self), Arc::clone(entry));
        self.spawn(async move {
            let permit = match permit {
                Some(permit) => permit,
                None => permit_of(&this.hinted_reads).await,
            };
            let early = Duration::from_millis(not_before.since(this.clock.now().boot));
            if !early.is_zero() {
                tokio::time::sleep(early).await;
            }
            this.on(&entry, Event::ReadBegins, None);
            // In a task of its own: if any of it panics, that is a failed read, and the Lease can be read again. Nothing
            // but the wait for that task stands between the two events.
            let request = this.spawn(Arc::clone(&this).request(Arc::clone(&entry.name)));
            let result = request.await.unwrap_or_else(|_| Err(Away::Unreachable("the read was given up".to_owned())));
            drop(permit);
            this.on(&entry, Event::ReadEnded(result), None);
        });
    }

    /// Asks the API server, reads its answer, counts it, and logs a failure.
    async fn request(self: Arc<Self>, name: Arc<LeaseName>) -> Result<Option<Seen>, Away> {
        let Some(cluster) = self.cluster() else {
            return Err(Away::Unreachable("no route leads to a Lease".to_owned()));
        };
        let lease = cluster.read(&name).await;
        let seen = lease.and_then(|lease| lease.as_ref().map(Seen::of).transpose());
        self.metrics.read(match &seen {
            Ok(Some(_)) => "held",
            Ok(None) => "gone",
            Err(_) => "away",
        });
        seen.inspect_err(|away| tracing::warn!(lease = %name, %away, "a Lease cannot be read"))
    }

    fn wait_for_room(self: &Arc<Self>, entry: &Arc<LeaseEntry>) {
        let (this, entry) = (Arc::clone(self), Arc::clone(entry));
        self.spawn(async move {
            match this.ledger.capacity_in_time().await {
                Ok(room) => this.on(&entry, Event::Room, Some(room)),
                Err(why) => this.on(&entry, Event::NoRoom(why), None),
            }
        });
    }

    fn pause(self: &Arc<Self>, entry: &Arc<LeaseEntry>) {
        let (this, entry) = (Arc::clone(self), Arc::clone(entry));
        self.spawn(async move {
            tokio::time::sleep(TRY_AGAIN).await;
            this.on(&entry, Event::PauseOver, None);
        });
    }

    fn entry(&self, name: &Arc<LeaseName>) -> Arc<LeaseEntry> {
        lock(&self.entries).of(name, self.objects_max)
    }
}

async fn permit_of(semaphore: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    Arc::clone(semaphore).acquire_owned().await.expect("this semaphore is never closed")
}
