//! Who was elected. Writes ask here when their token is ahead of what is known of its Lease, and the ledger is told.
//!
//! Of each Lease that governs an object in use there is one `LeaseEntry` (`entries.rs`). Reads of one Lease go one behind the other,
//! each a quorum read, and what each found is handed to the ledger before the next begins: so what the ledger is told
//! of a Lease never goes back, though two uids cannot be compared. A watch only says that there is something to read,
//! or that a holder has renewed.
//!
//! A reload that may give an object another Lease begins a new generation: what was asked under the old one is told to
//! nobody any more. What is known of a Lease stays.
//!
//! Whoever asks while a read is under way waits for the next one, which all of them share, also if it fails; nobody
//! waits for longer than one request may take. An API server that is away is not made up for: what is known counts until
//! it runs out, and then nobody may write.
//!
//! Anyone can send a token, and name an object. So a token that is not of the present term leaves nothing behind, and
//! reads for the sake of tokens are limited: of one Lease by `PACE`, of all by `pace`. Changes that a watch shows are
//! read apart from them.

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

/// Reads of one Lease are at least so far apart, so that nobody's tokens make them a flood.
const PACE: Duration = Duration::from_millis(100);
/// Reads at once, of all Leases: for whoever asks; and as many for what a watch shows.
const READS_MAX: usize = 8;
/// Who may wait for one at once.
const ASKS_MAX: usize = 4_096;
/// Objects that one message to the ledger names.
const TOLD_AT_ONCE: usize = 256;
/// How often a Lease that a watch shows to have changed is tried to be read, and how far apart.
const TRIES: u32 = 30;
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// Why nothing can be said.
#[derive(Debug)]
pub enum Unknown {
    Away(Away),
    Ledger(ledger::LedgerError),
}

/// What a write that asked is told.
#[derive(Debug)]
pub struct TermReply {
    /// The term that its Lease is in; `None`: there is no such Lease.
    pub election: Option<Election>,
    pub term: Arc<Term>,
    /// The object as its Lease has left it.
    pub moved: Result<Moved, ledger::LedgerError>,
}

/// Who was elected, everywhere.
pub struct LeaseObserver {
    cluster: OnceLock<Cluster>,
    ledger: Ledger,
    clock: Clock,
    metrics: KubernetesMetrics,
    /// Where its tasks run, whoever asks; there as soon as there is something to ask about.
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

/// How a Lease is, and what the ledger will say of the object that it was told for.
type PendingReply = (Option<Election>, Arc<Term>, Option<ledger::ReplyRx<Moved>>);

impl LeaseObserver {
    /// Nothing is asked before a route needs it.
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

    /// Finds the way to the API server, if there are namespaces to look at and it is not known yet. Whether it answers is
    /// not asked. Needs a tokio runtime.
    ///
    /// # Errors
    /// Where there is none by these settings.
    pub fn reach(&self, settings: &GateKubernetes, namespaces: &[String]) -> Result<Option<Cluster>, Faults> {
        if namespaces.is_empty() {
            return Ok(None);
        }
        // Whoever asks before [`Self::watch_namespaces`] is told that nobody knows.
        let _ = self.runtime.set(Handle::current());
        if self.cluster.get().is_some() {
            return Ok(None);
        }
        let way = Cluster::new(&settings.way());
        way.map(Some).map_err(|(key, what)| Faults(vec![Fault::new(format!("kubernetes.{key}"), what)]))
    }

    /// Looks at these namespaces from now on, and at no other. `way`: of [`Self::reach`]. `generation`: of the routes that
    /// name them. Needs a tokio runtime.
    pub fn watch_namespaces(self: &Arc<Self>, way: Option<Cluster>, namespaces: &[String], generation: u64) {
        if let Some(way) = way {
            // By the same settings, another one is as good.
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
        // Which Lease an object has may have changed: each is looked up anew, and nobody tells it of the old one.
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

    /// Of the routes that objects are told by. To be asked for before those are looked at.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.objects().generation
    }

    /// Stops looking.
    pub fn stop(&self) {
        lock(&self.watches).drain().for_each(|(_, task)| task.abort());
    }

    /// # Panics
    /// Where nobody has found the way: nothing is asked about then.
    fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.runtime.get().expect("whoever asks has a route to a Lease").spawn(work)
    }

    pub(super) fn cluster(&self) -> Option<&Cluster> {
        self.cluster.get()
    }

    pub(super) fn metrics(&self) -> &KubernetesMetrics {
        &self.metrics
    }

    /// Says what is known of a write's term without asking anyone.
    pub fn attach_term(&self, object: &str, claimant: &mut Claimant) {
        let objects = self.objects();
        let Some(entry) = objects.by_object.get(object).filter(|entry| entry.name == claimant.lease) else { return };
        claimant.term = lock(&entry.known).as_ref().and_then(|known| known.term_of(claimant.election));
    }

    /// Asks about a write's term, unless it is known to be the present one, and lets the ledger know of the Lease.
    /// Older writes are waited for a while. `generation`: of the routes by which that Lease governs the object.
    ///
    /// # Errors
    /// Where the API server, or the ledger, cannot say.
    pub async fn ask(
        self: &Arc<Self>,
        object: &ObjectId,
        claimant: &Claimant,
        generation: u64,
    ) -> Result<TermReply, Unknown> {
        let entry = self.entry(&claimant.lease);
        self.ask_of(entry, (object, generation), Some(claimant.election)).await
    }

    /// Asks about the Lease of an object anew, and tells the ledger.
    ///
    /// # Errors
    /// Where the API server, or the ledger, cannot say.
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

    /// Asks about a write's term, unless it is known to be the present one, and moves nothing for it: the term that its
    /// Lease is in, and until when that is held.
    ///
    /// # Errors
    /// Where the API server cannot say.
    pub async fn read_term(self: &Arc<Self>, claimant: &Claimant) -> Result<(Option<Election>, Arc<Term>), Unknown> {
        let (this, entry) = (Arc::clone(self), self.entry(&claimant.lease));
        let looked = self.in_turn(entry, Some(claimant.election), move |entry: Arc<LeaseEntry>| async move {
            // Those who were told of it before are told, or else nobody would.
            this.tell_all(&entry).await.map_err(Unknown::Ledger)?;
            this.tell(&entry, None)
        });
        looked.await.map(|(election, term, _)| (election, term))
    }

    /// Reads a Lease, if what is known may not be good enough, and does something with it before anyone else can.
    /// Whoever asked may hang up, or run out of time; what was begun is brought to its end.
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
                // Its turn may be long in coming: whatever a watch shows of this Lease is read meanwhile.
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

    /// A watch shows a Lease; `None`: it is gone.
    pub(super) fn hear(self: &Arc<Self>, name: &LeaseName, seen: Option<Seen>) {
        let Some(entry) = lock(&self.entries).all.get(name).map(Arc::clone) else { return };
        let now = self.clock.now();
        // Before the first read there is nothing to compare it with, and that one may have begun too early.
        let is_known = lock(&entry.known).as_mut().is_some_and(|known| known.hear(seen, now));
        if !is_known {
            self.read_hinted(&entry);
        }
    }

    /// A watch has begun anew, and these are all the Leases that there are.
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

    /// Reads a Lease of which a watch shows something new, and tells its objects. One at a time.
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
                    // It is never closed.
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
                // In this order, as whoever hints takes them in the other.
                entry.is_reading_hint.store(false, Ordering::SeqCst);
                if entry.hints.load(Ordering::SeqCst) == hints || entry.is_reading_hint.swap(true, Ordering::SeqCst) {
                    return;
                }
            }
            entry.is_reading_hint.store(false, Ordering::SeqCst);
            // The term that is known runs out, and whoever has another token is looked up.
            tracing::warn!(lease = %entry.name, "a Lease has changed, and could not be read");
        });
    }

    /// Whether a Lease has to be read for somebody: unless that was done since they arrived, or it is known to be in the
    /// term that they ask about. `arrived`: how many reads had begun then.
    fn is_behind(&self, entry: &LeaseEntry, last: &LastRead, arrived: u64, election: Option<Election>) -> bool {
        let (known, now) = (lock(&entry.known), self.clock.now());
        let is_present = known.as_ref().zip(election).is_some_and(|(known, election)| known.is_in(election, now));
        last.number <= arrived && !is_present
    }

    fn patience(&self) -> Duration {
        self.cluster().map(Cluster::timeout).unwrap_or_default()
    }

    /// The turn of somebody who asks: there are only so many in a second, and at once. Whose does not come in time has
    /// none.
    async fn turn(&self) -> Result<Option<SemaphorePermit<'_>>, Away> {
        let patience = self.patience();
        let wait = self.pace.take(self.clock.now().boot, patience).ok_or_else(|| Away::late(patience))?;
        let turn = async {
            tokio::time::sleep(wait).await;
            // It is never closed.
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

    /// Tells all objects of a Lease how it is, unless they know.
    async fn tell_all(&self, entry: &LeaseEntry) -> Result<(), ledger::LedgerError> {
        if lock(&entry.known).as_ref().is_none_or(|known| known.is_told) {
            return Ok(());
        }
        // What cannot be said to one cannot be said to any; whoever writes is told why.
        let Ok((observation, _, _)) = entry.observation() else { return Ok(()) };
        let generation = self.objects().generation;
        let objects: Vec<ObjectId> = lock(&entry.objects).iter().cloned().collect();
        tracing::info!(objects = objects.len(), sighting = ?observation, "a Lease has changed");
        for some in objects.chunks(TOLD_AT_ONCE) {
            let room = self.ledger.capacity_in_time().await?;
            // Held until the ledger has it: behind a reload, another Lease may govern these objects.
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
