//! Puts the parts together: starts them in order, and stops them in order.
//!
//! A start takes the ports first, so that a port that is in use is found before anything is changed. Then the
//! table's run begins (the clean flag is cleared and synced). Only then does the gate answer. A stop is in the
//! reverse order: no new leases, listeners closed, ledger closed, clean flag last.

mod settings;

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::{Semaphore, watch},
    task::JoinHandle,
};

use crate::{
    access::{Access, turns::Turns},
    api::{
        self,
        listen::{self, Port, Room},
    },
    audit::{self, Audit},
    authority::Authority,
    barrier::{generation::Generation, stripes},
    clock::Clock,
    config::{Fault, Faults, Settings},
    fence::Ttl,
    gate::{Gate, Shared, reads::Reads, receipts::Receipts},
    kubernetes::lease_observer::LeaseObserver,
    metrics::Metrics,
    migration,
    route::Routes,
    table::{
        data_folder::DataLock,
        ledger::{Core, Ledger, Setup},
        news::News,
        open::{self, Lost, OpenedTable},
        records::Records,
    },
    write_path::{Plane, accept},
};

const BACKLOG: u32 = 1_024;
/// How often the samples of histograms are sorted into their buckets.
const UPKEEP: Duration = Duration::from_secs(1);
/// How long a stop waits for the last use of the table.
const LAST_USE: Duration = Duration::from_secs(2);

/// Ports that this process has taken and does not answer on yet.
pub struct Ports {
    gate: Vec<std::net::TcpListener>,
    api: TcpListener,
    ops: TcpListener,
}

impl Ports {
    /// Takes every port.
    ///
    /// # Errors
    /// With every port that cannot be taken.
    pub fn bind(settings: &Settings) -> Result<Self, Faults> {
        let (api, ops) = (bind("api.listen", settings.api.listen), bind("ops.listen", settings.ops.listen));
        let gate = accept::bind(&settings.gate);
        let gate = gate
            .map_err(|error| Fault::new("gate.listen", format!("cannot listen on {}: {error}", settings.gate.listen)));
        match (gate, api, ops) {
            (Ok(gate), Ok(api), Ok(ops)) => Ok(Self { gate, api, ops }),
            (gate, api, ops) => Err(Faults([gate.err(), api.err(), ops.err()].into_iter().flatten().collect())),
        }
    }
}

fn bind(key: &str, address: SocketAddr) -> Result<TcpListener, Fault> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    socket
        .and_then(|socket| {
            // A restart must not wait until the kernel has forgotten the connections of the last run. Another
            // process that listens on the port is still an error.
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            // Only a socket that listens keeps other processes off the port.
            socket.listen(BACKLOG)
        })
        .map_err(|error| Fault::new(key, format!("cannot listen on {address}: {error}")))
}

/// A gate that runs.
pub struct Running {
    pub listens: SocketAddr,
    pub api: SocketAddr,
    pub ops: SocketAddr,
    pub gate: Shared,
    plane: Arc<Plane>,
    /// The settings of the start: some of them a reload cannot change.
    settings: Settings,
    servers: Vec<JoinHandle<()>>,
    workers: Vec<std::thread::JoinHandle<()>>,
    /// Writes the audit log; `None`: it is off.
    audit: Option<audit::Thread>,
    /// Keeps other processes off the data folder.
    _lock: Option<DataLock>,
}

/// Checks everything outside a gate that could prevent its start, without changing anything: ports, table, key.
/// `faults` are those of the configuration itself.
///
/// # Errors
/// With all faults at once.
pub fn prepare(settings: &Settings, mut faults: Vec<Fault>) -> Result<Ports, Faults> {
    let ports = Ports::bind(settings).map_err(|found| faults.extend(found.0));
    let table = &settings.table;
    faults.extend(
        open::check_data_folder(&table.path, table.create)
            .err()
            .map(|fault| Fault::new("table.path", fault.to_string())),
    );
    faults.extend(audit::check(&settings.audit).err());
    match ports {
        Ok(ports) if faults.is_empty() => Ok(ports),
        Ok(_) | Err(()) => Err(Faults(faults)),
    }
}

/// Opens the table and starts a gate.
///
/// # Errors
/// With the reason; nothing runs then.
pub async fn start(settings: &Settings, clock: Clock, ports: Ports) -> Result<Running, Faults> {
    let fingerprint = Routes::new(settings).map_err(Faults)?.fingerprint;
    let (path, may_create, table_clock) = (settings.table.path.clone(), settings.table.create, clock.clone());
    let begun = tokio::task::spawn_blocking(move || open::begin(&path, may_create, &table_clock, fingerprint)).await;
    match begun {
        Ok(Ok(begun)) => start_on(settings, clock, begun, ports),
        Ok(Err(fault)) => Err(Faults(vec![Fault::new("table.path", fault.to_string())])),
        Err(_) => Err(Faults(vec![Fault::new("table.path", "the table could not be opened")])),
    }
}

/// Starts a gate on a table whose run has begun.
///
/// # Errors
/// When a port that was bound does not listen.
pub fn start_on(settings: &Settings, clock: Clock, begun: OpenedTable, ports: Ports) -> Result<Running, Faults> {
    let mut begun = begun;
    let lock = begun.lock.take();
    let room = Room::find();
    let bound_passed = begun.context.frame.start.boot.after(Ttl(begun.meta.fingerprint.bound_ms));
    let earlier = begun.was_rerouted.then(|| Generation::gone(bound_passed));
    let authority = Authority::new(settings).map_err(Faults)?;
    let routes = Routes::new(settings).map_err(Faults)?;
    let access = Access::new(settings, None).map_err(Faults)?;
    let tls = settings.api.tls().map_err(|(key, what)| Faults(vec![Fault::new(format!("api.{key}"), what)]))?;
    let namespaces = routes.namespaces();
    let metrics = Arc::new(Metrics::new());
    let (log, audit) = audit::start(&settings.audit, &clock, &metrics.audit).map_err(|fault| Faults(vec![fault]))?;
    let gate = assemble(settings, clock, begun, room, (authority, routes, access), (metrics, log));
    let cluster = gate.lease_observer.reach(&settings.kubernetes, &namespaces)?;
    gate.lease_observer.watch_namespaces(cluster, &namespaces, 0);
    let address = |key: &str, listener: &TcpListener| {
        listener.local_addr().map_err(|error| Faults(vec![Fault::new(key, format!("cannot listen: {error}"))]))
    };
    let (api, ops) = (address("api.listen", &ports.api)?, address("ops.listen", &ports.ops)?);
    let cannot = |error| Faults(vec![Fault::new("gate.listen", format!("cannot listen: {error}"))]);
    let listens = ports.gate[0].local_addr().map_err(cannot)?;
    let plane = Plane::new(Arc::clone(&gate), settings, room.gate, earlier.as_ref())?;
    let shows = Arc::downgrade(&plane);
    plane.metrics().ask_for_certificate(move || shows.upgrade()?.certificate_not_after());
    let workers = accept::start(&plane, ports.gate, &gate.stopping.subscribe()).map_err(cannot)?;
    let servers = vec![
        listen::serve(
            ports.api,
            Port::api(room.api, tls),
            api::router(Arc::clone(&gate), room.api),
            gate.stopping.subscribe(),
        ),
        listen::serve(
            ports.ops,
            Port::ops(room.ops),
            api::ops::router(Arc::clone(&gate), room.ops),
            gate.stopping.subscribe(),
        ),
        tokio::spawn(upkeep(Arc::clone(&gate.metrics), gate.stopping.subscribe())),
    ];
    migration::resume(&gate);
    Ok(Running { listens, api, ops, gate, plane, servers, workers, audit, settings: settings.clone(), _lock: lock })
}

/// Sorts the samples of histograms into buckets, so that they stay small, until the gate stops.
async fn upkeep(metrics: Arc<Metrics>, mut stopping: watch::Receiver<bool>) {
    let mut turns = tokio::time::interval(UPKEEP);
    loop {
        tokio::select! {
            _ = turns.tick() => metrics.upkeep(),
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
    }
}

fn assemble(
    settings: &Settings,
    clock: Clock,
    begun: OpenedTable,
    room: Room,
    (authority, routes, access): (Authority, Routes, Access),
    (metrics, audit): (Arc<Metrics>, Audit),
) -> Shared {
    report(&begun, &metrics);
    let OpenedTable { table, context, meta, mark, was_clean, fingerprint, .. } = begun;
    let run = meta.run;
    let first = mark.max(clock.now().mark());
    let records = Arc::new(Records::new(table, context, settings.table.cache_objects.max(stripes::LEAST)));
    let news = Arc::new(News::new(settings.watch.history, first));
    let core = Core::new(Setup {
        records: Arc::clone(&records),
        news: Arc::clone(&news),
        clock: clock.clone(),
        metrics: metrics.ledger.clone(),
        meta,
        mark: first,
        journal_keep: settings.journal.keep,
        keys_keep_ms: settings.idempotency.keep_ms,
        takeover_after_ms: settings.lease.takeover_after_ms,
        waiters_max: settings.lease.waiters_max.min(room.waiting),
        unclean: !was_clean,
        fingerprint,
    });
    let ledger = Ledger::start(core, &clock).with_patience(Duration::from_millis(settings.table.stall_timeout_ms));
    let pulse = ledger.pulse();
    metrics.ledger.ask_for_commit_age(move || pulse.age().as_secs_f64());
    let lease_observer =
        LeaseObserver::new(settings.table.cache_objects, ledger.clone(), clock.clone(), metrics.kubernetes.clone());
    Arc::new(Gate {
        lease_observer,
        records,
        ledger,
        news,
        clock,
        limits: settings.lease.clone(),
        authority: ArcSwap::from_pointee(authority),
        access: ArcSwap::from_pointee(access),
        access_changes: watch::Sender::new(()),
        turns: Turns::default(),
        audit,
        routes: ArcSwap::from_pointee(routes),
        deadline: Duration::from_millis(settings.shutdown.deadline_ms),
        metrics,
        receipts: Receipts::new(settings.receipts.keep, run),
        reads: Reads::default(),
        watchers: Arc::new(Semaphore::new(room.watching)),
        draining: AtomicBool::new(false),
        stopping: watch::Sender::new(false),
    })
}

fn report(begun: &OpenedTable, metrics: &Metrics) {
    let frame = &begun.context.frame;
    metrics.table.begun(begun.meta.incarnation, begun.was_clean, frame);
    let incarnation = begun.meta.incarnation.number();
    match &begun.lost {
        None => {}
        Some(Lost::Tail { why }) => tracing::error!(
            why,
            incarnation,
            "THE END OF THE FENCE TABLE'S LOG WAS LOST. Changes that were acknowledged may be missing, so the table starts a new incarnation: every fence has been raised, every lease is void, and objects whose locks are kept elsewhere wait for an operator's confirmation (POST /v1/objects/ID/confirm). Check the disk"
        ),
        Some(Lost::Behind { epoch, run }) => tracing::error!(
            epoch = epoch.number(),
            run,
            incarnation,
            "THE FENCE TABLE IS NOT THE NEWEST THAT ITS FOLDER HAS HAD: the folder's epoch has a later incarnation or a later run, so an older copy was put back by hand. Changes that were acknowledged may be missing, so the table starts a new incarnation: every fence has been raised, every lease is void, and objects whose locks are kept elsewhere wait for an operator's confirmation (POST /v1/objects/ID/confirm). Put copies back only with `fencegate table restore`"
        ),
    }
    if frame.behind_mark {
        tracing::error!(
            wall_ms = frame.start.wall.0,
            mark_ms = begun.mark.ms,
            "the wall clock is behind the fence table's own mark: every lease of earlier runs counts as expired"
        );
    }
    if begun.was_rerouted {
        tracing::warn!(
            bound_ms = begun.meta.fingerprint.bound_ms,
            "the last run did not end in good order, and its routes were different: no write is forwarded before the writes of that run can no longer land"
        );
    }
    tracing::info!(
        run = begun.meta.run,
        incarnation,
        clean = begun.was_clean,
        reads = begun.table.reads(),
        "the fence table is open"
    );
}

impl Running {
    /// Takes other settings, as far as that is possible without a restart: routes, stores, the limits and
    /// certificates of the gate's port.
    ///
    /// # Errors
    /// With every fault; the old settings stay.
    pub async fn reload(&self, settings: Result<Settings, Faults>) -> Result<(), Faults> {
        let reloaded = match settings {
            Ok(settings) => self.reload_all(&settings).await.map(|()| settings),
            Err(faults) => Err(faults),
        };
        let reloaded = reloaded.map(|settings| {
            for key in self.settings.fixed_differences(&settings) {
                tracing::warn!(key, "this setting changes with a restart only; the old value stays");
            }
        });
        self.plane.metrics().reloaded(reloaded.is_ok());
        self.gate.audit.reloaded(reloaded.as_ref().err().map_or(&[], |faults| &faults.0));
        reloaded
    }

    async fn reload_all(&self, settings: &Settings) -> Result<(), Faults> {
        let settings = &self.as_it_runs(settings);
        let authority = Authority::new(settings).map_err(Faults)?;
        let routes = Routes::new(settings).map_err(Faults)?;
        let access = Access::new(settings, Some(&*self.gate.access.load())).map_err(Faults)?;
        let namespaces = routes.namespaces();
        // The calls that can fail come first: a faulty file changes nothing.
        let cluster = self.gate.lease_observer.reach(&settings.kubernetes, &namespaces)?;
        // Rights are taken away at once, also where the table cannot be written now and the routes stay as they were.
        self.gate.access.store(Arc::new(access));
        self.gate.access_changes.send_replace(());
        let generation = self.plane.reload(settings).await?;
        self.gate.authority.store(Arc::new(authority));
        self.gate.routes.store(Arc::new(routes));
        self.gate.lease_observer.watch_namespaces(cluster, &namespaces, generation);
        Ok(())
    }

    /// Other settings, but for what a reload cannot change of the ports and of the API server. Who may call must fit
    /// the ports that are open.
    fn as_it_runs(&self, settings: &Settings) -> Settings {
        let mut settings = settings.clone();
        settings.api.clone_from(&self.settings.api);
        settings.gate.listen = self.settings.gate.listen;
        let (own, given) = (&self.settings.kubernetes, &mut settings.kubernetes);
        given.url.clone_from(&own.url);
        given.ca_file.clone_from(&own.ca_file);
        given.token_file.clone_from(&own.token_file);
        settings
    }

    /// Stops in good order, within the deadline.
    ///
    /// # Errors
    /// With what failed: the next start counts as unclean.
    pub async fn stop(mut self, deadline: Duration) -> Result<(), &'static str> {
        let (gate, audit) = (Arc::clone(&self.gate), self.audit.take());
        let is_silent = tokio::time::timeout(deadline, self.fall_silent()).await.is_ok();
        if !is_silent {
            tracing::warn!("the deadline has passed while requests are going on; they are cut off");
        }
        // Reads that were cut off leave nothing behind. The ledger itself checks whether writes were cut off.
        let close = async {
            let closed = gate.ledger.stop().await;
            // A call that still waits for the table then has waited long enough.
            let table = Arc::clone(&gate.records.table);
            let _ = tokio::task::spawn_blocking(move || table.close()).await;
            closed
        };
        let closed = tokio::time::timeout(LAST_USE, close).await;
        // Behind the last call. It waits for a disk that hangs, but not for long.
        let _ = tokio::task::spawn_blocking(move || audit.map(audit::Thread::stop)).await;
        match closed {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) if !is_silent => Err("the deadline has passed"),
            Ok(Err(_)) | Err(_) => Err("the fence table could not be closed in good order"),
        }
    }

    /// Lets no more callers in, and waits for the present ones.
    async fn fall_silent(self) {
        let _ = self.gate.drain().await;
        self.gate.lease_observer.stop();
        self.gate.stopping.send_replace(true);
        for server in self.servers {
            // A server that panicked has stopped too.
            let _ = server.await;
        }
        for worker in self.workers {
            let _ = tokio::task::spawn_blocking(move || worker.join()).await;
        }
    }
}
