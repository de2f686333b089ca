//! Who was elected. Writes ask here when their token is ahead of what is known of its Lease, and the ledger is told.
//!
//! Of each Lease that governs an object in use there is one [`Entry`]. Reads of one Lease go one behind the other,
//! each a quorum read, and what each found is handed to the ledger before the next begins: so what the ledger is told
//! of a Lease never goes back, though two uids cannot be compared. A watch only says that there is something to read,
//! or that a holder has renewed.
//!
//! Whoever asks while a read is under way waits for the next one, which all of them share. An API server that is away
//! is not made up for: what is known counts until it runs out, and then nobody may write.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{runtime::Handle, sync::Semaphore, task::JoinHandle};

use super::{
    api::{Away, Cluster, LeaseName, Seen},
    known::{Gist, Known},
    watch,
};
use crate::{
    clock::Clock,
    config::{Fault, Faults, GateKubernetes},
    fence::{
        BootMs, ObjectId,
        elected::{Claimant, Sighting, Term},
        election::Election,
    },
    metrics::KubernetesMetrics,
    table::ledger::{self, Ledger, Moved},
};

/// Reads of one Lease are at least so far apart, so that nobody's tokens make them a flood.
const PACE: Duration = Duration::from_millis(100);
/// Reads at once, of all Leases.
const READS_MAX: usize = 8;
/// Objects that one message to the ledger names.
const TOLD_AT_ONCE: usize = 256;
/// How often a Lease that a watch shows to have changed is tried to be read, and how far apart.
const TRIES: u32 = 30;
const TRY_AGAIN: Duration = Duration::from_millis(500);
/// How long to wait before the ledger is asked again that has no room.
const NO_ROOM: Duration = Duration::from_millis(20);

/// One Lease that governs objects in use.
pub struct Entry {
    pub name: LeaseName,
    /// `None`: not looked at yet.
    known: Mutex<Option<Known>>,
    /// The objects that were told of it: each is told of every change.
    objects: Mutex<HashSet<ObjectId>>,
    /// How many reads have begun.
    begun: AtomicU64,
    /// Held by whoever reads; and by whoever tells the ledger, so that it is told in order.
    reading: tokio::sync::Mutex<LastRead>,
}

#[derive(Default)]
struct LastRead {
    number: u64,
    at: BootMs,
    failed: Option<Away>,
    /// What its objects were last told.
    told: Option<Gist>,
}

/// Why nothing can be said.
#[derive(Debug)]
pub enum Unknown {
    Away(Away),
    Ledger(ledger::Refused),
}

/// What a write that asked is told: the object as its Lease has left it.
#[derive(Debug)]
pub struct Told {
    /// `None`: there is no such Lease.
    pub election: Option<Election>,
    pub term: Arc<Term>,
    pub moved: Moved,
}

/// Who was elected, everywhere.
pub struct Elections {
    settings: GateKubernetes,
    cluster: OnceLock<Cluster>,
    ledger: Ledger,
    clock: Clock,
    metrics: KubernetesMetrics,
    /// Where its tasks run, whoever asks; there as soon as there is something to ask about.
    runtime: OnceLock<Handle>,
    reads: Semaphore,
    /// The objects that were told of their Lease.
    objects: RwLock<HashMap<ObjectId, Arc<Entry>>>,
    objects_max: usize,
    entries: Mutex<HashMap<LeaseName, Arc<Entry>>>,
    watches: Mutex<HashMap<String, JoinHandle<()>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Elections {
    /// Nothing is asked before a route needs it.
    #[must_use]
    pub fn new(
        settings: GateKubernetes,
        objects_max: usize,
        ledger: Ledger,
        clock: Clock,
        metrics: KubernetesMetrics,
    ) -> Arc<Self> {
        Arc::new(Self {
            settings,
            cluster: OnceLock::new(),
            ledger,
            clock,
            metrics,
            runtime: OnceLock::new(),
            reads: Semaphore::new(READS_MAX),
            objects: RwLock::default(),
            objects_max,
            entries: Mutex::default(),
            watches: Mutex::default(),
        })
    }

    /// Finds the way to the API server, if there are namespaces to look at. Whether it answers is not asked. Needs a tokio
    /// runtime.
    ///
    /// # Errors
    /// Where there is none by these settings.
    pub fn reach(&self, namespaces: &[String]) -> Result<(), Faults> {
        if !namespaces.is_empty() && self.cluster.get().is_none() {
            let way = Cluster::new(&self.settings.way());
            let way = way.map_err(|(key, what)| Faults(vec![Fault::new(format!("kubernetes.{key}"), what)]))?;
            // By the same settings, another one is as good.
            let _ = (self.cluster.set(way), self.runtime.set(Handle::current()));
        }
        Ok(())
    }

    /// Looks at these namespaces from now on, and at no other.
    pub fn look_at(self: &Arc<Self>, namespaces: &[String]) {
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
        // Which Lease an object has may have changed: each is looked up anew.
        self.objects.write().unwrap_or_else(PoisonError::into_inner).clear();
        lock(&self.entries).clear();
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
    pub fn stand(&self, object: &str, claimant: &mut Claimant) {
        let objects = self.objects.read().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = objects.get(object).filter(|entry| entry.name == *claimant.lease) else { return };
        let known = lock(&entry.known);
        let known = known.as_ref().filter(|known| known.election() == Some(claimant.election));
        claimant.term = known.map(|known| Arc::clone(&known.term));
    }

    /// Asks about a write's term, unless it is known to be the present one, and lets the ledger know of the Lease.
    /// Older writes are waited for a while.
    ///
    /// # Errors
    /// Where the API server, or the ledger, cannot say.
    pub async fn ask(self: &Arc<Self>, object: &ObjectId, claimant: &Claimant) -> Result<Told, Unknown> {
        let entry = self.entry(&claimant.lease);
        let arrived = entry.begun.load(Ordering::Acquire);
        let (this, object, election) = (Arc::clone(self), object.clone(), claimant.election);
        // Whoever asked may hang up; what was begun is brought to its end.
        let asked = self.spawn(async move {
            let mut last = entry.reading.lock().await;
            if this.needs_read(&entry, &last, arrived, Some(election)) {
                this.read(&entry, &mut last).await.map_err(Unknown::Away)?;
            }
            this.tell(&entry, &mut last, Some(object)).await
        });
        let (election, term, answer) = asked.await.unwrap_or(Err(Unknown::Ledger(ledger::Refused::Stopping)))?;
        let answer = answer.ok_or(Unknown::Ledger(ledger::Refused::Stopping))?;
        let moved = answer.await.unwrap_or(Err(ledger::Refused::Stopping)).map_err(Unknown::Ledger)?;
        Ok(Told { election, term, moved })
    }

    /// Asks about a write's term, unless it is known to be the present one, and tells nobody: the term that its Lease is
    /// in, and until when that is held.
    ///
    /// # Errors
    /// Where the API server cannot say.
    pub async fn look(self: &Arc<Self>, claimant: &Claimant) -> Result<(Option<Election>, Arc<Term>), Away> {
        let entry = self.entry(&claimant.lease);
        let arrived = entry.begun.load(Ordering::Acquire);
        let (this, election) = (Arc::clone(self), claimant.election);
        let looked = self.spawn(async move {
            let mut last = entry.reading.lock().await;
            if this.needs_read(&entry, &last, arrived, Some(election)) {
                this.read(&entry, &mut last).await?;
            }
            let known = lock(&entry.known);
            Ok(known.as_ref().map(|known| (known.election(), Arc::clone(&known.term))))
        });
        let stopped = || Away::Unreachable("the gate is stopping".to_owned());
        looked.await.unwrap_or_else(|_| Err(stopped())).and_then(|known| known.ok_or_else(stopped))
    }

    /// Asks about the Lease of an object anew, and tells the ledger.
    ///
    /// # Errors
    /// Where the API server, or the ledger, cannot say.
    pub async fn ask_again(self: &Arc<Self>, object: &ObjectId) -> Result<(), Unknown> {
        let entry = self.objects.read().unwrap_or_else(PoisonError::into_inner).get(object).map(Arc::clone);
        let Some(entry) = entry else { return Ok(()) };
        let arrived = entry.begun.load(Ordering::Acquire);
        let (this, object) = (Arc::clone(self), object.clone());
        let asked = self.spawn(async move {
            let mut last = entry.reading.lock().await;
            if this.needs_read(&entry, &last, arrived, None) {
                this.read(&entry, &mut last).await.map_err(Unknown::Away)?;
            }
            this.tell(&entry, &mut last, Some(object)).await
        });
        let (_, _, answer) = asked.await.unwrap_or(Err(Unknown::Ledger(ledger::Refused::Stopping)))?;
        let answer = answer.ok_or(Unknown::Ledger(ledger::Refused::Stopping))?;
        answer.await.unwrap_or(Err(ledger::Refused::Stopping)).map(drop).map_err(Unknown::Ledger)
    }

    /// A watch shows a Lease; `None`: it is gone.
    pub(super) fn hear(self: &Arc<Self>, name: &LeaseName, seen: Option<Seen>) {
        let Some(entry) = lock(&self.entries).get(name).map(Arc::clone) else { return };
        let now = self.clock.now();
        // Before the first read there is nothing to compare it with, and that read is under way.
        let is_known = lock(&entry.known).as_mut().is_none_or(|known| known.hear(seen, now));
        if !is_known {
            self.look_into(entry);
        }
    }

    /// A watch has begun anew, and these are all the Leases that there are.
    pub(super) fn hear_all(self: &Arc<Self>, namespace: &str, names: &HashSet<String>) {
        let all: Vec<Arc<Entry>> = lock(&self.entries).values().map(Arc::clone).collect();
        for entry in all {
            let is_missing = entry.name.namespace == namespace && !names.contains(&entry.name.name);
            let was_there = lock(&entry.known).as_ref().is_some_and(|known| known.seen.is_some());
            if is_missing && was_there {
                self.look_into(entry);
            }
        }
    }

    /// Reads a Lease of which a watch shows something new, and tells its objects.
    fn look_into(self: &Arc<Self>, entry: Arc<Entry>) {
        let this = Arc::clone(self);
        let arrived = entry.begun.load(Ordering::Acquire);
        self.spawn(async move {
            for _ in 0..TRIES {
                let mut last = entry.reading.lock().await;
                let is_known =
                    !this.needs_read(&entry, &last, arrived, None) || this.read(&entry, &mut last).await.is_ok();
                if is_known && this.tell(&entry, &mut last, None).await.is_ok() {
                    return;
                }
                drop(last);
                tokio::time::sleep(TRY_AGAIN).await;
            }
            // The term that is known runs out, and whoever has another token is looked up.
            tracing::warn!(lease = %entry.name, "a Lease has changed, and could not be read");
        });
    }

    /// Whether what is known may not be good enough. `arrived`: how many reads had begun when it was asked for.
    fn needs_read(&self, entry: &Entry, last: &LastRead, arrived: u64, election: Option<Election>) -> bool {
        let known = lock(&entry.known);
        let Some(known) = known.as_ref() else { return true };
        if last.number > arrived && last.failed.is_none() {
            return false;
        }
        election.is_none_or(|election| known.election() != Some(election) || !known.term.is_live(self.clock.now()))
    }

    /// Reads a Lease as it is now.
    async fn read(&self, entry: &Entry, last: &mut LastRead) -> Result<(), Away> {
        let since = self.clock.now().boot.since(last.at);
        let early = PACE.saturating_sub(Duration::from_millis(since));
        if last.number > 0 && !early.is_zero() {
            tokio::time::sleep(early).await;
        }
        // It is never closed.
        let _place = self.reads.acquire().await.ok();
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

    /// Tells the ledger how a Lease is: the object that was asked about, and all others if it has changed.
    async fn tell(
        &self,
        entry: &Arc<Entry>,
        last: &mut LastRead,
        asked: Option<ObjectId>,
    ) -> Result<(Option<Election>, Arc<Term>, Option<ledger::Answer<Moved>>), Unknown> {
        let (sighting, gist, election, term) = {
            let known = lock(&entry.known);
            let known = known.as_ref().ok_or(Unknown::Ledger(ledger::Refused::Stopping))?;
            let odd = |what: String| Unknown::Away(Away::Odd(what));
            let sighting = known.sighting(self.clock.now()).map_err(odd)?;
            (sighting, known.gist(), known.election(), Arc::clone(&known.term))
        };
        let answer = match asked {
            None => None,
            Some(object) => {
                // From here on it is told of every change.
                self.note(entry, &object);
                Some(self.ledger.sight(object, sighting.clone()).map_err(Unknown::Ledger)?)
            }
        };
        if last.told.as_ref() != Some(&gist) {
            self.tell_all(entry, &sighting).await.map_err(Unknown::Ledger)?;
            last.told = Some(gist);
        }
        Ok((election, term, answer))
    }

    async fn tell_all(&self, entry: &Entry, sighting: &Sighting) -> Result<(), ledger::Refused> {
        let objects: Vec<ObjectId> = lock(&entry.objects).iter().cloned().collect();
        tracing::info!(lease = %entry.name, objects = objects.len(), ?sighting, "a Lease is in another term, or was given back");
        for some in objects.chunks(TOLD_AT_ONCE) {
            loop {
                match self.ledger.sight_all(some.to_vec(), sighting.clone()) {
                    Err(ledger::Refused::Overloaded) => tokio::time::sleep(NO_ROOM).await,
                    Err(refused) => return Err(refused),
                    Ok(()) => break,
                }
            }
        }
        Ok(())
    }

    fn entry(&self, name: &LeaseName) -> Arc<Entry> {
        let mut entries = lock(&self.entries);
        if entries.len() >= self.objects_max {
            // Those that govern nothing in use; whoever asks for one again finds a new one.
            entries.retain(|_, entry| !lock(&entry.objects).is_empty());
        }
        let new = || {
            Arc::new(Entry {
                name: name.clone(),
                known: Mutex::default(),
                objects: Mutex::default(),
                begun: AtomicU64::new(0),
                reading: tokio::sync::Mutex::default(),
            })
        };
        Arc::clone(entries.entry(name.clone()).or_insert_with(new))
    }

    fn note(&self, entry: &Arc<Entry>, object: &ObjectId) {
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        if objects.len() >= self.objects_max && !objects.contains_key(object) {
            // Any will do: its next write asks, as the first one did.
            let one = objects.keys().next().cloned();
            if let Some(before) = one.and_then(|one| objects.remove_entry(&one)) {
                lock(&before.1.objects).remove(&before.0);
            }
        }
        lock(&entry.objects).insert(object.clone());
        objects.insert(object.clone(), Arc::clone(entry));
    }
}
