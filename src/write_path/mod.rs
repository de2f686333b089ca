//! The path of a write. [`pipeline`] shows the way from top to bottom; begin there.
//!
//! - [`accept`]: the port, with a worker per core. [`crowd`]: how many connections each client has, and which workers
//!   wait for room. [`connection`]: one client's connection and its timeouts. [`evict`]: which connection is closed to
//!   make room. `sniff`: which protocol a connection speaks. [`raw_head`]: heads that two parsers could read in two
//!   ways.
//! - [`decide`]: may this write go on? `fence::judge`, under the object's lock. No rules here. [`waits`]:
//!   places for the writes that wait for this. [`guard`]: an admitted write, until its end.
//! - [`outgoing`]: bodies, made ready to be sent. [`hold`]: bodies that are collected first. [`upload`]: longer ones,
//!   whose end is held back until the write has been judged again. [`pace`]: how slow a client may be.
//! - [`job`]: a request on its way. [`forward`]: to the store and back, once. [`conclude`]: the store's answer.
//!   `outcome`: the end of a write. [`response_body`]: the answer on its way to the client. [`read_ahead`]: the part of
//!   it that is read before the client takes it. [`detach`]: the work that goes on when the client is gone.
//!   [`taking`]: how slowly a client may take an HTTP/2 answer.
//! - [`reply`]: the store's answer or a refusal, as a response. `refusals`: what refusals say. `declined`: requests
//!   that are refused before their body is read.
//! - [`keyed`]: writes with an idempotency key; each runs once. [`journaled`]: the journal's lines.
//! - `holder`: routes that compare a write's client with the holder of its lease.
//! - [`headers`]: what is removed from and added to a request on its way. [`alarms`]: timeouts without timers.
//! - [`plan`]: the settings of all stages.

pub mod accept;
pub mod alarms;
pub mod conclude;
pub mod connection;
pub mod crowd;
pub mod decide;
mod declined;
pub mod detach;
pub mod evict;
pub mod forward;
pub mod guard;
pub mod headers;
pub mod hold;
mod holder;
pub mod job;
pub mod journaled;
pub mod keyed;
mod outcome;
pub mod outgoing;
pub mod pace;
pub mod pipeline;
pub mod plan;
pub mod raw_head;
pub mod read_ahead;
mod refusals;
pub mod reply;
pub mod response_body;
mod sniff;
pub mod taking;
pub mod upload;
pub mod waits;

#[cfg(test)]
mod untrue_bodies;

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use arc_swap::ArcSwap;
use tokio::{runtime::Handle, sync::Semaphore};

use self::{
    alarms::Alarms,
    crowd::{Crowd, Peer},
    guard::Own,
    headers::{Numbers, RequestIds},
    hold::HeldBy,
    keyed::Keys,
    plan::{Before, Plan, WorkerPlan},
    waits::Waits,
};
use crate::{
    barrier::generation::Generation,
    clock::Stopwatch,
    config::{Fault, Faults, Settings},
    fence::{BootMs, Now},
    gate::{Gate, Shared},
    metrics::{PlaneMetrics, RouteTally, Tally},
    tls::Acceptor,
};

/// How many clients other servers are asked about at a time.
const IDENTIFYING_MAX: usize = 64;

/// What all workers share.
pub struct Plane {
    pub gate: Shared,
    plan: ArcSwap<Plan>,
    /// The generation of `plan`. A worker reads it without loading the plan.
    generation: AtomicU64,
    /// Bytes of all bodies that are held. `held_by` has the bytes per owner, of bodies that have yet to come or that
    /// wait for a connection.
    pub held_bytes: AtomicUsize,
    pub held_by: Mutex<HeldBy>,
    /// Bytes of answers to reads that were taken from the store before their clients took them.
    pub answer_bytes: AtomicUsize,
    /// Writes that wait before they can be judged.
    pub waits: Waits,
    pub connections: AtomicUsize,
    /// The connections of each client.
    pub crowd: Crowd,
    pub keys: Arc<Keys>,
    /// The runtime of the api, for what a worker has to ask of other servers.
    runtime: Handle,
    /// Clients that other servers are asked about.
    identifying: Semaphore,
    /// How many files the connections of clients and stores may use together.
    files: usize,
    workers: usize,
}

impl Plane {
    /// A data plane for these settings, with at most `files` connections on both sides. `earlier`: the routes of an
    /// earlier run, if writes under them can still land.
    ///
    /// # Errors
    /// With what is wrong with the settings, or with the files that they name.
    pub fn new(
        gate: Shared,
        settings: &Settings,
        files: usize,
        earlier: Option<&Arc<Generation>>,
    ) -> Result<Arc<Self>, Faults> {
        let plan = Plan::new(settings, Before::Start(earlier), gate.now().boot, &gate.metrics)?;
        gate.records.stripes.generations.adopt(plan.generations());
        Ok(Arc::new(Self {
            gate,
            plan: ArcSwap::from_pointee(plan),
            generation: AtomicU64::new(0),
            held_bytes: AtomicUsize::new(0),
            held_by: Mutex::default(),
            answer_bytes: AtomicUsize::new(0),
            waits: Waits::default(),
            connections: AtomicUsize::new(0),
            crowd: Crowd::default(),
            keys: Keys::new(&settings.idempotency),
            runtime: Handle::current(),
            identifying: Semaphore::new(IDENTIFYING_MAX),
            files,
            workers: accept::workers(&settings.gate),
        }))
    }

    /// Uses other settings from the next request on. Returns the generation of their plan.
    ///
    /// # Errors
    /// With what is wrong with the settings; the old ones stay in use.
    pub async fn reload(&self, settings: &Settings) -> Result<u64, Faults> {
        let before = self.plan.load_full();
        let plan = Arc::new(Plan::new(settings, Before::Plan(&before), self.gate.now().boot, &self.gate.metrics)?);
        let terms = plan.routes.fingerprint;
        // Should this run end badly, the next one must know that writes went by other routes than its own.
        self.gate.ledger.announce(terms).await.map_err(|_| {
            Faults(vec![Fault::new("table.path", "the fence table cannot be written now, so the old settings stay")])
        })?;
        // First nothing more is granted over writes of the old routes; then no new write uses these routes.
        let generations = &self.gate.records.stripes.generations;
        generations.retire(plan.retired_from(&before));
        generations.adopt(plan.generations());
        let generation = plan.generation;
        self.plan.store(plan);
        self.generation.store(generation, Ordering::Release);
        // If this fails, the table goes on saying that both sets of routes may be in use.
        let _ = self.gate.ledger.adopt(terms).await;
        Ok(generation)
    }

    /// How many connections there may be: what the settings say, or what the limit on open files allows, if that is
    /// less.
    fn room(&self, plan: &Plan) -> usize {
        let clients = clients_max(self.files, self.workers.saturating_mul(plan.store_connections()));
        plan.settings.connections_max.min(clients)
    }

    /// Whether another connection may be made.
    #[must_use]
    pub fn has_room(&self, plan: &Plan) -> bool {
        self.connections.load(Ordering::Relaxed) < self.room(plan)
    }

    /// Whether this client may make another connection.
    #[must_use]
    pub fn has_room_for(&self, peer: Peer, plan: &Plan) -> bool {
        self.crowd.of(peer) < plan.settings.connections_of_peer(self.room(plan))
    }

    /// Until when the certificate of the gate's port is valid; `None` without TLS.
    #[must_use]
    pub fn certificate_not_after(&self) -> Option<i64> {
        self.plan.load().tls.as_ref().map(Acceptor::not_after)
    }

    pub fn metrics(&self) -> &PlaneMetrics {
        &self.gate.metrics.plane
    }
}

/// How many of `files` are for clients, where stores may use `stores`: the rest, or at least half.
fn clients_max(files: usize, stores: usize) -> usize {
    files.saturating_sub(stores).max(files / 2)
}

/// What one worker has for itself.
pub struct Worker {
    pub plane: Arc<Plane>,
    /// The gate, behind a reference count that only this worker uses.
    pub gate: Own<Gate>,
    current: RefCell<Rc<WorkerPlan>>,
    pub tally: Tally,
    pub alarms: Rc<Alarms>,
    now: Rc<Cell<BootMs>>,
    pub ids: RequestIds,
    pub numbers: Numbers,
    /// The generation of the plan that this worker's tasks were last woken for.
    pub announced: Cell<u64>,
    /// No more writes are begun: the gate is about to stop.
    pub closing: Cell<bool>,
    /// How many exchanges with the store go on without a client.
    pub carried: Cell<usize>,
    /// The worker's runtime is about to end: nothing can be carried on.
    pub stopping: Cell<bool>,
}

impl Worker {
    /// A worker that has done nothing yet.
    #[must_use]
    pub fn new(plane: Arc<Plane>) -> Rc<Self> {
        let current = RefCell::new(WorkerPlan::new(plane.plan.load_full(), None));
        let ((now, stopwatch), tally) = (plane.gate.clock.boot_and_watch(), plane.metrics().tally());
        Rc::new(Self {
            gate: Rc::new(Arc::clone(&plane.gate)),
            plane,
            current,
            tally,
            alarms: Alarms::new(stopwatch.begun()),
            now: Rc::new(Cell::new(now)),
            ids: RequestIds::new(),
            numbers: Numbers::default(),
            announced: Cell::new(0),
            closing: Cell::new(false),
            carried: Cell::new(0),
            stopping: Cell::new(false),
        })
    }

    /// The boot clock, as last read. Exact enough for idle connections.
    #[must_use]
    pub fn now(&self) -> BootMs {
        self.now.get()
    }

    /// The same clock, for callers that read it often.
    #[must_use]
    pub fn clock(&self) -> &Rc<Cell<BootMs>> {
        &self.now
    }

    /// Reads the clocks, and starts a stopwatch at the same moment.
    #[must_use]
    pub fn now_and_watch(&self) -> (Now, Stopwatch) {
        let (now, stopwatch) = self.gate.clock.now_and_watch();
        self.has_read(now.boot, stopwatch);
        (now, stopwatch)
    }

    /// Starts a stopwatch.
    #[must_use]
    pub fn watch(&self) -> Stopwatch {
        let (boot, stopwatch) = self.gate.clock.boot_and_watch();
        self.has_read(boot, stopwatch);
        stopwatch
    }

    fn has_read(&self, now: BootMs, stopwatch: Stopwatch) {
        self.now.set(now);
        self.alarms.now_is(stopwatch.begun());
    }

    /// The newest plan and this worker's connections for it.
    pub fn worker_plan(&self) -> Rc<WorkerPlan> {
        let newest = self.plane.generation.load(Ordering::Acquire);
        if self.current.borrow().plan.generation != newest {
            let taken_up = WorkerPlan::new(self.plane.plan.load_full(), Some(&**self.current.borrow()));
            let before = self.current.replace(taken_up);
            before.tallies.iter().for_each(RouteTally::retire);
        }
        Rc::clone(&self.current.borrow())
    }
}

#[cfg(test)]
mod tests {
    use super::clients_max;
    use crate::config::GateSettings;

    #[test]
    fn one_client_leaves_a_quarter_of_the_room_that_there_is() {
        let mut settings = GateSettings::default();
        let room = settings.connections_max.min(clients_max(2_512, 512));
        assert_eq!((room, settings.connections_of_peer(room)), (2_000, 1_500));
        assert_eq!(settings.connections_of_peer(1), 1);
        settings.peer_connections_max = 100;
        assert_eq!(settings.connections_of_peer(room), 100);
    }

    #[test]
    fn clients_get_what_the_stores_leave_and_never_less_than_half() {
        assert_eq!(clients_max(14_000, 512), 13_488);
        assert_eq!(clients_max(1_000, 512), 500);
        assert_eq!(clients_max(8, 512), 4);
    }
}
