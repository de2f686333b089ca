//! The gate's port: a worker per core, each with its own runtime, listener, connections and pool.
//!
//! Workers share nothing on the path of a write but the records' stripes. One tick per worker checks all timeouts.

use std::{
    io,
    net::{SocketAddr, TcpListener as StdListener},
    pin::pin,
    rc::Rc,
    sync::{Arc, atomic::Ordering},
    thread::JoinHandle,
    time::Duration,
};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::{Builder, LocalOptions},
    sync::watch,
};

use super::{
    Plane, Worker,
    connection::{Connections, serve},
    crowd::Peer,
    evict::Extent,
};
use crate::{
    config::GateSettings,
    fence::BootMs,
    metrics::{RouteTally, WorkerGauges},
};

const BACKLOG: i32 = 4_096;
/// How often a worker checks its connections.
pub const TICK: Duration = Duration::from_millis(100);
/// The pause after a failed accept, since file descriptors may have run out; and while there is no room.
const PAUSE: Duration = Duration::from_millis(50);
/// After so many pauses every worker has ticked.
const PAUSES_OF_OTHERS: u32 = 3;
/// A connection that has been idle for less counts as new. One that has been idle for longer is closed first, whichever
/// worker has it.
const NEW_MS: u64 = 1_000;

/// Takes the gate's port, once per worker.
///
/// # Errors
/// Where another process has the port, even if that process would share it. The first worker takes the port
/// exclusively, and only then shares it with the other workers of this process.
pub fn bind(settings: &GateSettings) -> io::Result<Vec<StdListener>> {
    let first = listen(settings.listen, false)?;
    first.set_reuse_port(true)?;
    let first = StdListener::from(first);
    let address = first.local_addr()?;
    let others = (1..workers(settings)).map(|_| listen(address, true).map(StdListener::from));
    std::iter::once(Ok(first)).chain(others).collect()
}

/// How many workers there are.
#[must_use]
pub fn workers(settings: &GateSettings) -> usize {
    match settings.workers {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        given => given,
    }
}

fn listen(address: SocketAddr, share: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(share)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Starts a worker on each listener.
///
/// # Errors
/// Where the system cannot start a thread.
pub fn start(
    plane: &Arc<Plane>,
    listeners: Vec<StdListener>,
    stopping: &watch::Receiver<bool>,
) -> io::Result<Vec<JoinHandle<()>>> {
    listeners
        .into_iter()
        .enumerate()
        .map(|(number, listener)| {
            let (plane, stopping) = (Arc::clone(plane), stopping.clone());
            std::thread::Builder::new().name(format!("gate-{number}")).spawn(move || work(plane, listener, stopping))
        })
        .collect()
}

fn work(plane: Arc<Plane>, listener: StdListener, stopping: watch::Receiver<bool>) {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
    let runtime = runtime.expect("a runtime for a worker");
    runtime.block_on(async move {
        let worker = Worker::new(plane);
        let connections = Rc::<Connections>::default();
        tokio::select! {
            () = accept(&worker, &connections, listener) => {}
            () = ticks(&worker, &connections) => {}
            () = stopped(stopping) => {}
        }
        drain(&worker, &connections).await;
        worker.stopping.set(true);
    });
}

async fn stopped(mut stopping: watch::Receiver<bool>) {
    // A sender that is gone also means stop.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

async fn accept(worker: &Rc<Worker>, connections: &Rc<Connections>, listener: StdListener) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "the gate's port cannot be used");
            return;
        }
    };
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                // Ignored: if a socket cannot be set up, its first use closes it.
                let _ = stream.set_nodelay(true);
                let client = Peer::of(peer.ip());
                if !worker.plane.has_room_for(client, &worker.worker_plan().plan) {
                    worker.plane.metrics().crowded_out(true);
                    if !connections.close_one(Some(client), Extent::IdleOrWaiting, None) {
                        serve_in_turn(worker, connections, stream, peer);
                        continue;
                    }
                    // The closed connection ends when its task is polled next. Without that, new connections would take
                    // the room of other clients.
                    tokio::task::yield_now().await;
                }
                make_room(worker, connections).await;
                serve(worker, connections, stream, peer);
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Waits until there is room for another connection. One is closed for it (`evict.rs`): of this worker, or of another
/// worker where this one has none to close, or where it has only new ones and the other has an older one.
async fn make_room(worker: &Worker, connections: &Connections) {
    let (plane, mut extent, mut may_spare) = (&worker.plane, Extent::IdleOrWaiting, true);
    let has_room = || plane.has_room(&worker.worker_plan().plan);
    while !has_room() {
        let _ = worker.watch();
        let old = BootMs(worker.now().0.saturating_sub(NEW_MS));
        let spares = (may_spare && plane.crowd.is_idle_elsewhere(old)).then_some(old);
        if connections.close_one(None, extent, spares) {
            plane.metrics().crowded_out(false);
            // The closed connection ends when its task is polled next.
            tokio::task::yield_now().await;
        } else {
            others_make_room(plane, None, (extent, spares), has_room).await;
            // The other workers have no more connections to close.
            if spares.is_none() {
                extent = Extent::Reading;
            }
            may_spare = false;
        }
    }
}

/// Waits until another worker has closed a connection, of this client or of any, or until all workers have searched for
/// one.
async fn others_make_room(
    plane: &Plane,
    whose: Option<Peer>,
    (extent, idle_since): (Extent, Option<BootMs>),
    has_room: impl Fn() -> bool,
) {
    let _waiting = plane.crowd.wait(whose, extent, idle_since);
    for _ in 0..PAUSES_OF_OTHERS {
        let _ = tokio::time::timeout(PAUSE, plane.crowd.room()).await;
        if has_room() {
            return;
        }
    }
}

/// Called for another connection of a client that has used its share, where this worker has none of that client's to
/// close. The connection is served when another worker has closed one, and is closed if none has. The listener does not
/// wait for that.
fn serve_in_turn(worker: &Rc<Worker>, connections: &Rc<Connections>, stream: TcpStream, from: SocketAddr) {
    let Some(turn) = connections.wait_in_turn() else { return };
    let (worker, connections) = (Rc::clone(worker), Rc::clone(connections));
    tokio::task::spawn_local(async move {
        let peer = Peer::of(from.ip());
        let has_room = || {
            let plan = &worker.worker_plan().plan;
            worker.plane.has_room_for(peer, plan) && worker.plane.has_room(plan)
        };
        for extent in [Extent::IdleOrWaiting, Extent::Reading] {
            others_make_room(&worker.plane, Some(peer), (extent, None), has_room).await;
            if has_room() && !worker.closing.get() {
                serve(&worker, &connections, stream, from);
                break;
            }
        }
        drop(turn);
    });
}

async fn ticks(worker: &Rc<Worker>, connections: &Connections) {
    loop {
        let mut pause = pin!(tokio::time::sleep(TICK));
        loop {
            tokio::select! {
                () = &mut pause => break,
                () = worker.plane.crowd.wanted() => make_room_for_others(worker, connections),
            }
        }
        tick(worker, connections);
    }
}

/// Closes the connections that other workers wait for.
fn make_room_for_others(worker: &Worker, connections: &Connections) {
    worker.plane.crowd.make_room(|whose, extent, idle_since| {
        let is_closed = connections.close_one(whose, extent, idle_since);
        if is_closed && whose.is_none() {
            worker.plane.metrics().crowded_out(false);
        }
        is_closed
    });
    worker.plane.crowd.lies_idle(connections.longest_idle());
}

fn tick(worker: &Worker, connections: &Connections) {
    let (worker_plan, stopwatch) = (worker.worker_plan(), worker.watch());
    let now = worker.now();
    // After a reload, every waiting task checks whether its route is still current.
    let is_new = worker.announced.replace(worker_plan.plan.generation) != worker_plan.plan.generation;
    worker.alarms.tick(stopwatch.begun(), is_new);
    worker_plan.pools.iter().for_each(|pool| pool.tidy(now));
    connections.close_stale(&worker_plan.plan.settings, now);
    make_room_for_others(worker, connections);
    let mut gauges = WorkerGauges { connections: connections.len(), ..WorkerGauges::default() };
    for (idle, busy, queue) in worker_plan.pools.iter().map(|pool| pool.counts()) {
        gauges.store_idle += idle;
        gauges.store_busy += busy;
        gauges.store_queue += queue;
    }
    worker_plan.tallies.iter().for_each(RouteTally::add_up);
    worker.tally.add_up(worker.plane.metrics(), gauges);
    worker.plane.metrics().held(worker.plane.held_bytes.load(Ordering::Relaxed));
}

/// Lets every connection, and every write that goes on without one, finish its current work.
async fn drain(worker: &Rc<Worker>, connections: &Connections) {
    worker.closing.set(true);
    connections.end_all();
    loop {
        tick(worker, connections);
        if connections.is_empty() && worker.carried.get() == 0 {
            return;
        }
        tokio::time::sleep(TICK).await;
        // Connections that were asked to end and have no request have had time for an orderly close.
        connections.close_idle();
    }
}
