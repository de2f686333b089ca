//! Puts the parts together: starts them in order, and stops them in order.
//!
//! Ports are bound first, so that a taken one is found before anything is changed; then the table's
//! run begins (the clean flag is cleared and synced); only then does anything listen. A stop goes
//! the other way round: no new leases, listeners closed, ledger closed, clean flag set last.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use axum::Router;
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::watch,
    task::JoinHandle,
};

use crate::{
    api::{self, Gate, Shared},
    clock::Clock,
    config::{Fault, Faults, Settings},
    fence::Hlc,
    metrics::Metrics,
    table::{
        ledger::{Core, Ledger, Setup},
        news::News,
        open::{self, Begun},
        records::Records,
    },
};

const BACKLOG: u32 = 1_024;

/// Ports that are ours but do not listen yet.
pub struct Ports {
    api: TcpSocket,
    ops: TcpSocket,
}

impl Ports {
    /// Binds every port.
    ///
    /// # Errors
    /// With every one that cannot be had.
    pub fn bind(settings: &Settings) -> Result<Self, Faults> {
        let (api, ops) = (bind("api.listen", settings.api.listen), bind("ops.listen", settings.ops.listen));
        match (api, ops) {
            (Ok(api), Ok(ops)) => Ok(Self { api, ops }),
            (api, ops) => Err(Faults([api.err(), ops.err()].into_iter().flatten().collect())),
        }
    }
}

fn bind(key: &str, address: SocketAddr) -> Result<TcpSocket, Fault> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    socket
        .and_then(|socket| {
            // A restart must not wait for connections of the last run to be forgotten. Another
            // process that listens there is still an error.
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            Ok(socket)
        })
        .map_err(|error| Fault::new(key, format!("cannot listen on {address}: {error}")))
}

/// A gate that runs.
pub struct Running {
    pub api: SocketAddr,
    pub ops: SocketAddr,
    pub gate: Shared,
    servers: Vec<JoinHandle<()>>,
}

/// Opens the table and starts a gate.
///
/// # Errors
/// With everything that stands in the way; nothing runs then.
pub async fn start(settings: &Settings, clock: Clock) -> Result<Running, Faults> {
    let ports = Ports::bind(settings);
    let path = settings.table.path.clone();
    if let Err(mut faults) = ports {
        // The table's faults belong to the same list, but a run must not begin for it.
        faults.0.extend(missing_table(settings));
        return Err(faults);
    }
    let ports = ports?;
    let (may_create, table_clock) = (settings.table.create, clock.clone());
    let begun = tokio::task::spawn_blocking(move || open::begin(&path, may_create, &table_clock)).await;
    let begun = match begun {
        Ok(Ok(begun)) => begun,
        Ok(Err(fault)) => return Err(Faults(vec![Fault::new("table.path", fault.to_string())])),
        Err(_) => return Err(Faults(vec![Fault::new("table.path", "the table could not be opened")])),
    };
    start_on(settings, clock, begun, ports)
}

fn missing_table(settings: &Settings) -> Option<Fault> {
    let path = &settings.table.path;
    let is_there = crate::table::rocks::RocksTable::exists(&open::table_folder(path));
    let missing = open::OpenFault::Missing { folder: path.display().to_string() };
    (!is_there && !settings.table.create).then(|| Fault::new("table.path", missing.to_string()))
}

/// Starts a gate on a table whose run has begun.
///
/// # Errors
/// Where a port that was bound does not listen.
pub fn start_on(settings: &Settings, clock: Clock, begun: Begun, ports: Ports) -> Result<Running, Faults> {
    let gate = assemble(settings, clock, begun);
    let listen = |key: &str, socket: TcpSocket| {
        let listener = socket.listen(BACKLOG).and_then(|listener| Ok((listener.local_addr()?, listener)));
        listener.map_err(|error| Faults(vec![Fault::new(key, format!("cannot listen: {error}"))]))
    };
    let (api, api_listener) = listen("api.listen", ports.api)?;
    let (ops, ops_listener) = listen("ops.listen", ports.ops)?;
    let servers = vec![
        serve(api_listener, api::router(Arc::clone(&gate)), gate.stopping.subscribe()),
        serve(ops_listener, api::ops::router(Arc::clone(&gate)), gate.stopping.subscribe()),
    ];
    Ok(Running { api, ops, gate, servers })
}

fn assemble(settings: &Settings, clock: Clock, begun: Begun) -> Shared {
    let metrics = Arc::new(Metrics::new());
    report(&begun, &metrics);
    let Begun { table, context, meta, mark, .. } = begun;
    let first = mark.max(Hlc { ms: clock.now().wall.0, logical: 0 });
    let records = Arc::new(Records::new(table, context, settings.table.cache_objects));
    let news = Arc::new(News::new(settings.watch.history, first));
    let core = Core::new(Setup {
        records: Arc::clone(&records),
        news: Arc::clone(&news),
        clock: clock.clone(),
        metrics: metrics.ledger.clone(),
        meta,
        mark: first,
        takeover_after_ms: settings.lease.takeover_after_ms,
        waiters_max: settings.lease.waiters_max,
    });
    let ledger = Ledger::start(core, &clock);
    Arc::new(Gate {
        records,
        ledger,
        news,
        clock,
        limits: settings.lease.clone(),
        metrics,
        draining: AtomicBool::new(false),
        stopping: watch::Sender::new(false),
    })
}

fn report(begun: &Begun, metrics: &Metrics) {
    let frame = &begun.context.frame;
    metrics.table.begun(begun.meta.incarnation.get(), begun.was_clean, frame.behind_mark);
    if let Some(why) = &begun.tail_lost {
        tracing::error!(
            why,
            incarnation = begun.meta.incarnation.get(),
            "THE END OF THE FENCE TABLE'S LOG WAS LOST. Changes that were acknowledged may be missing, so the table starts a new incarnation: every fence has been raised, every lease is void. Check the disk"
        );
    }
    if frame.behind_mark {
        tracing::error!(
            wall_ms = frame.start.wall.0,
            mark_ms = begun.mark.ms,
            "the wall clock is behind the fence table's own mark: every lease of earlier runs counts as expired"
        );
    }
    tracing::info!(
        run = begun.meta.run,
        incarnation = begun.meta.incarnation.get(),
        clean = begun.was_clean,
        reads = begun.table.reads(),
        "the fence table is open"
    );
}

fn serve(listener: TcpListener, router: Router, mut stopping: watch::Receiver<bool>) -> JoinHandle<()> {
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move {
        let stopped = async move {
            // A sender that is gone means the same.
            let _ = stopping.wait_for(|stopping| *stopping).await;
        };
        if let Err(error) = axum::serve(listener, service).with_graceful_shutdown(stopped).await {
            tracing::error!(%error, "a listener failed");
        }
    })
}

impl Running {
    /// Stops in good order, within the deadline.
    ///
    /// # Errors
    /// With what was not in good order: the next start counts as unclean.
    pub async fn stop(self, deadline: Duration) -> Result<(), &'static str> {
        self.gate.drain().await;
        self.gate.stopping.send_replace(true);
        let servers = async {
            for server in self.servers {
                // A server that panicked has stopped too.
                let _ = server.await;
            }
        };
        let in_time = tokio::time::timeout(deadline, servers).await.is_ok();
        if !in_time {
            return Err("calls were still going on at the deadline");
        }
        self.gate.ledger.stop().await.map_err(|_| "the fence table could not be closed in good order")
    }
}
