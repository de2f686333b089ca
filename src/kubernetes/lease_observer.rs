//! Who was elected. A write asks here when its token is ahead of what is known of its Lease, and the ledger gets the
//! answer.
//!
//! Each Lease that governs an object in use has one `LeaseEntry` (`entries.rs`). Reads of one Lease follow each other, and
//! each is a quorum read. The ledger gets the result of each before the next begins. So for the ledger a Lease never
//! goes back in time, although two uids cannot be ordered. A watch only shows that there is something to read, or
//! that a holder has renewed.
//!
//! A reload that may give an object another Lease begins a new generation: answers to questions of the old one are
//! not passed on. What is known of a Lease is kept.
//!
//! A caller that comes during a read waits for the next read, which all such callers share, also if it fails. No
//! caller waits longer than one request may take. Nothing replaces an unreachable API server: what is known counts
//! until it runs out, and then no write is permitted.
//!
//! Any client can send a token and name an object. So a token of another term than the present one leaves no state
//! behind. Reads that tokens cause are limited: of one Lease by `PACE`, of all by `pace`. Reads after changes that a
//! watch shows have limits apart from these.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic::Ordering},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::{Semaphore, SemaphorePermit},
    task::JoinHandle,
};

use super::{
    api::{Away, Cluster, LeaseName, Seen},
    entries::{Entries, LastRead, LeaseEntry, Objects, lock},
    known::Known,
    pace::Pace,
    watch,
};
use crate::{
    clock::Clock,
    config::{Fault, Faults, GateKubernetes},
    fence::{
        ObjectId,
        elected::{Claimant, Term},
        election::Election,
    },
    metrics::KubernetesMetrics,
    table::ledger::{self, Ledger, Moved},
};

/// The least time between reads of one Lease, so that tokens cannot cause a flood of reads.
const PACE: Duration = Duration::from_millis(100);
/// Reads at once, of all Leases, that callers cause; as many again for changes that a watch shows.
const READS_MAX: usize = 8;
/// The most callers that may wait at once.
const ASKS_MAX: usize = 4_096;
/// Objects that one message to the ledger names.
const TOLD_AT_ONCE: usize = 256;
/// How many times to try to read a Lease after a watch shows a change, and the time between tries.
const TRIES: u32 = 30;
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// Why there is no answer.
#[derive(Debug)]
pub enum Unknown {
    Away(Away),
    Ledger(ledger::LedgerError),
}

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
    asked_reads: Semaphore,
    shown_reads: Semaphore,
    pace: Pace,
    asks: Arc<Semaphore>,
    objects: RwLock<Objects>,
    objects_max: usize,
    entries: Mutex<Entries>,
    watches: Mutex<HashMap<String, JoinHandle<()>>>,
}

/// The state of a Lease, and the ledger's answer for the object that the ledger got it for.
type PendingReply = (Option<Election>, Arc<Term>, Option<ledger::ReplyRx<Moved>>);

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
            asked_reads: Semaphore::new(READS_MAX),
            shown_reads: Semaphore::new(READS_MAX),
            pace: Pace::default(),
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
        let mut objects = self.objects_mut();
        objects.generation = generation;
        objects.by_object.drain().for_each(|(object, entry)| {
            lock(&entry.objects).remove(&object);
        });
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
        self.runtime.get().expect("whoever asks has a route to a Lease").spawn(work)
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
        claimant.term = lock(&entry.known).as_ref().and_then(|known| known.term_of(claimant.election));
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
        self.ask_of(entry, (object, generation), Some(claimant.election)).await
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
        self.ask_of(entry, (object, generation), None).await?.moved.map(drop).map_err(Unknown::Ledger)
    }

    async fn ask_of(
        self: &Arc<Self>,
        entry: Arc<LeaseEntry>,
        (object, generation): (&ObjectId, u64),
        election: Option<Election>,
    ) -> Result<TermReply, Unknown> {
        let (this, object) = (Arc::clone(self), object.clone());
        let (election, term, answer) = self
            .in_turn(entry, election, move |entry: Arc<LeaseEntry>| async move {
                let told = this.tell(&entry, Some((object, generation, election)))?;
                this.tell_all(&entry).await.map_err(Unknown::Ledger)?;
                Ok(told)
            })
            .await?;
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
        let (this, entry) = (Arc::clone(self), self.entry(&claimant.lease));
        let looked = self.in_turn(entry, Some(claimant.election), move |entry: Arc<LeaseEntry>| async move {
            // Objects that follow this Lease get the change too: this read may be the only one that finds it.
            this.tell_all(&entry).await.map_err(Unknown::Ledger)?;
            this.tell(&entry, None)
        });
        looked.await.map(|(election, term, _)| (election, term))
    }

    /// Reads a Lease if its known state may be too old, and runs `then` before another caller can read. The caller
    /// may hang up or run out of time; work that has begun is finished.
    async fn in_turn<T: Send + 'static, F: Future<Output = Result<T, Unknown>> + Send>(
        self: &Arc<Self>,
        entry: Arc<LeaseEntry>,
        election: Option<Election>,
        then: impl FnOnce(Arc<LeaseEntry>) -> F + Send + 'static,
    ) -> Result<T, Unknown> {
        let Ok(place) = Arc::clone(&self.asks).try_acquire_owned() else {
            return Err(Unknown::Ledger(ledger::LedgerError::Overloaded));
        };
        let arrived = entry.begun.load(Ordering::Acquire);
        let this = Arc::clone(self);
        let asked = self.spawn(async move {
            let _place = place;
            let mut last = entry.reading.lock().await;
            if this.is_behind(&entry, &last, arrived, election) {
                // This turn may take long to come. Changes that a watch shows are read meanwhile.
                drop(last);
                let _turn = this.turn().await.map_err(Unknown::Away)?;
                last = entry.reading.lock().await;
                if this.is_behind(&entry, &last, arrived, election) {
                    this.read(&entry, &mut last).await.map_err(Unknown::Away)?;
                }
            }
            if last.number > arrived
                && let Some(away) = &last.failed
            {
                return Err(Unknown::Away(away.clone()));
            }
            then(Arc::clone(&entry)).await
        });
        let patience = self.patience();
        match tokio::time::timeout(patience, asked).await {
            Ok(told) => told.unwrap_or(Err(Unknown::Ledger(ledger::LedgerError::Stopping))),
            Err(_) => Err(Unknown::Away(Away::late(patience))),
        }
    }

    /// A watch shows a Lease; `None`: it is deleted.
    pub(super) fn hear(self: &Arc<Self>, name: &LeaseName, seen: Option<Seen>) {
        let Some(entry) = lock(&self.entries).all.get(name).map(Arc::clone) else { return };
        let now = self.clock.now();
        // Before the first read there is no state to compare with, and that read may have begun too early.
        let is_known = lock(&entry.known).as_mut().is_some_and(|known| known.hear(seen, now));
        if !is_known {
            self.read_hinted(&entry);
        }
    }

    /// A watch has begun anew, and these are all the Leases of its namespace.
    pub(super) fn hear_all(self: &Arc<Self>, namespace: &str, names: &HashSet<String>) {
        let all: Vec<Arc<LeaseEntry>> = lock(&self.entries).all.values().map(Arc::clone).collect();
        for entry in all {
            let is_missing = entry.name.namespace == namespace && !names.contains(&entry.name.name);
            let was_there = lock(&entry.known).as_ref().is_some_and(|known| known.seen.is_some());
            if is_missing && was_there {
                self.read_hinted(&entry);
            }
        }
    }

    /// Reads a Lease after a watch has shown a change, and passes it to its objects. One task for each Lease.
    fn read_hinted(self: &Arc<Self>, entry: &Arc<LeaseEntry>) {
        entry.hints.fetch_add(1, Ordering::SeqCst);
        if entry.is_reading_hint.swap(true, Ordering::SeqCst) {
            return;
        }
        let (this, entry) = (Arc::clone(self), Arc::clone(entry));
        self.spawn(async move {
            let mut tries = 0;
            while tries < TRIES {
                let hints = entry.hints.load(Ordering::SeqCst);
                let arrived = entry.begun.load(Ordering::Acquire);
                let mut last = entry.reading.lock().await;
                let is_read = if last.number > arrived {
                    last.failed.is_none()
                } else {
                    // The semaphore is never closed.
                    let _place = this.shown_reads.acquire().await.ok();
                    this.read(&entry, &mut last).await.is_ok()
                };
                let is_done = is_read && this.tell_all(&entry).await.is_ok();
                drop(last);
                if !is_done {
                    tries += 1;
                    tokio::time::sleep(TRY_AGAIN).await;
                    continue;
                }
                // This order, since a new hint uses the opposite one.
                entry.is_reading_hint.store(false, Ordering::SeqCst);
                if entry.hints.load(Ordering::SeqCst) == hints || entry.is_reading_hint.swap(true, Ordering::SeqCst) {
                    return;
                }
            }
            entry.is_reading_hint.store(false, Ordering::SeqCst);
            // The known term runs out, and a write with another token causes a read.
            tracing::warn!(lease = %entry.name, "a Lease has changed, and could not be read");
        });
    }

    /// Whether a Lease must be read for a caller: not if a read has begun since the caller came, nor if the Lease is
    /// known to be in the caller's term. `arrived`: how many reads had begun when the caller came.
    fn is_behind(&self, entry: &LeaseEntry, last: &LastRead, arrived: u64, election: Option<Election>) -> bool {
        let (known, now) = (lock(&entry.known), self.clock.now());
        let is_present = known.as_ref().zip(election).is_some_and(|(known, election)| known.is_in(election, now));
        last.number <= arrived && !is_present
    }

    fn patience(&self) -> Duration {
        self.cluster().map(Cluster::timeout).unwrap_or_default()
    }

    /// Waits for a caller's turn to read: reads per second and at once are limited. Fails if the turn does not come
    /// in time.
    async fn turn(&self) -> Result<Option<SemaphorePermit<'_>>, Away> {
        let patience = self.patience();
        let wait = self.pace.take(self.clock.now().boot, patience).ok_or_else(|| Away::late(patience))?;
        let turn = async {
            tokio::time::sleep(wait).await;
            // The semaphore is never closed.
            self.asked_reads.acquire().await.ok()
        };
        tokio::time::timeout(patience, turn).await.map_err(|_| Away::late(patience))
    }

    /// Reads a Lease as it is now.
    async fn read(&self, entry: &LeaseEntry, last: &mut LastRead) -> Result<(), Away> {
        let since = self.clock.now().boot.since(last.at);
        let early = PACE.saturating_sub(Duration::from_millis(since));
        if last.number > 0 && !early.is_zero() {
            tokio::time::sleep(early).await;
        }
        let cluster = self.cluster().ok_or_else(|| Away::Unreachable("no route leads to a Lease".to_owned()))?;
        last.number = entry.begun.fetch_add(1, Ordering::AcqRel) + 1;
        let at = self.clock.now();
        last.at = at.boot;
        let read = cluster.read(&entry.name).await;
        let seen = read.and_then(|lease| lease.as_ref().map(Seen::of).transpose());
        self.metrics.read(match &seen {
            Ok(Some(_)) => "held",
            Ok(None) => "gone",
            Err(_) => "away",
        });
        last.failed = seen.as_ref().err().cloned();
        let seen = seen.inspect_err(|away| tracing::warn!(lease = %entry.name, %away, "a Lease cannot be read"))?;
        let mut known = lock(&entry.known);
        match known.as_mut() {
            None => *known = Some(Known::first(seen, at)),
            Some(known) => known.again(seen, at),
        }
        Ok(())
    }

    /// Tells the ledger how the Lease of an object is; where somebody has come with its present term, the object is told
    /// of every change from here on. Whoever calls this reads nothing meanwhile, and nobody else does.
    fn tell(
        &self,
        entry: &Arc<LeaseEntry>,
        asked: Option<(ObjectId, u64, Option<Election>)>,
    ) -> Result<PendingReply, Unknown> {
        let (observation, election, term) = entry.observation()?;
        let Some((object, generation, token)) = asked else { return Ok((election, term, None)) };
        let begins = token.is_none() || token == election;
        let mut objects = self.objects_mut();
        if objects.generation != generation {
            // Another Lease may govern it by now.
            return Err(Unknown::Ledger(ledger::LedgerError::Overloaded));
        }
        if begins {
            objects.note(entry, &object, self.objects_max);
        }
        let answer = self.ledger.observe(object, observation, begins).map_err(Unknown::Ledger)?;
        Ok((election, term, Some(answer)))
    }

    /// Passes the state of a Lease to all its objects, unless they have it already.
    async fn tell_all(&self, entry: &LeaseEntry) -> Result<(), ledger::LedgerError> {
        if lock(&entry.known).as_ref().is_none_or(|known| known.is_told) {
            return Ok(());
        }
        // If it cannot be passed to one object, it cannot be passed to any; a writer gets the reason.
        let Ok((observation, _, _)) = entry.observation() else { return Ok(()) };
        let generation = self.objects().generation;
        let objects: Vec<ObjectId> = lock(&entry.objects).iter().cloned().collect();
        tracing::info!(objects = objects.len(), sighting = ?observation, "a Lease has changed");
        for some in objects.chunks(TOLD_AT_ONCE) {
            let room = self.ledger.capacity_in_time().await?;
            // Held until the ledger has it: after a reload, another Lease may govern these objects.
            let now = self.objects();
            if now.generation != generation {
                return Ok(());
            }
            room.observe_all(some.to_vec(), observation.clone())?;
        }
        lock(&entry.known).as_mut().into_iter().for_each(|known| known.is_told = true);
        Ok(())
    }

    fn entry(&self, name: &Arc<LeaseName>) -> Arc<LeaseEntry> {
        lock(&self.entries).of(name, self.objects_max)
    }
}
