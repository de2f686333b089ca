//! The gate's port: a worker per core, each with its own runtime, listener, connections and pool.
//!
//! Nothing is shared between workers on the path of a write but the records' stripes. One tick per
//! worker looks after all timeouts.

use std::{
    io,
    net::{IpAddr, SocketAddr, TcpListener as StdListener},
    rc::Rc,
    sync::{Arc, atomic::Ordering},
    thread::JoinHandle,
    time::Duration,
};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    net::TcpListener,
    runtime::{Builder, LocalOptions},
    sync::watch,
};

use super::{
    Plane, Worker,
    connection::{Connections, serve},
};
use crate::{
    config::GateSettings,
    metrics::{RouteTally, Standing},
};

const BACKLOG: i32 = 4_096;
/// How often a worker looks at its connections.
pub const TICK: Duration = Duration::from_millis(100);
/// After a failed accept, since file descriptors may have run out; and while there is no room.
const PAUSE: Duration = Duration::from_millis(50);

/// Takes the gate's port, once per worker.
///
/// # Errors
/// Where another process has it: also one that would share it. The first worker takes the port for
/// itself alone, and shares it with the others of this process only then.
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
/// Where the system has no thread or runtime to give.
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
        let connections = Connections::default();
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
    // A sender that is gone means the same.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

async fn accept(worker: &Rc<Worker>, connections: &Connections, listener: StdListener) {
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
                // A socket that cannot be set up is closed by the first use.
                let _ = stream.set_nodelay(true);
                if make_room(worker, connections, peer.ip()).await {
                    serve(worker, connections, stream, peer);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Waits until there is room for a connection of this address. The one that has lain idle for longest makes room: of the
/// same address, where that has had its share. Returns false where it has, and this worker has no idle one of it.
async fn make_room(worker: &Rc<Worker>, connections: &Connections, peer: IpAddr) -> bool {
    let (plane, settings) = (&worker.plane, Arc::clone(&worker.outfit().plan));
    if plane.connections_of(peer) >= settings.settings.connections_of_peer() {
        plane.metrics().crowded_out(true);
        return connections.close_longest_idle(Some(peer));
    }
    while !plane.has_room(&worker.outfit().plan) {
        if connections.close_longest_idle(None) {
            plane.metrics().crowded_out(false);
            // It ends when its task is polled next.
            tokio::task::yield_now().await;
        } else {
            plane.crowded.store(true, Ordering::Relaxed);
            tokio::time::sleep(PAUSE).await;
        }
    }
    true
}

async fn ticks(worker: &Rc<Worker>, connections: &Connections) {
    loop {
        tokio::time::sleep(TICK).await;
        tick(worker, connections);
    }
}

fn tick(worker: &Worker, connections: &Connections) {
    let (outfit, stopwatch) = (worker.outfit(), worker.watch());
    let now = worker.now();
    // Behind a reload, everyone looks whether their route is still the one they go by.
    let is_new = worker.told.replace(outfit.plan.generation) != outfit.plan.generation;
    worker.alarms.tick(stopwatch.begun(), is_new);
    outfit.pools.iter().for_each(|pool| pool.tidy(now));
    connections.close_stale(&outfit.plan.settings, now);
    if worker.plane.crowded.load(Ordering::Relaxed) && connections.close_longest_idle(None) {
        worker.plane.crowded.store(false, Ordering::Relaxed);
        worker.plane.metrics().crowded_out(false);
    }
    let mut standing = Standing { connections: connections.len(), ..Standing::default() };
    for (idle, busy, queue) in outfit.pools.iter().map(|pool| pool.standing()) {
        standing.store_idle += idle;
        standing.store_busy += busy;
        standing.store_queue += queue;
    }
    outfit.tallies.iter().for_each(RouteTally::add_up);
    worker.tally.add_up(worker.plane.metrics(), standing);
    worker.plane.metrics().held(worker.plane.held_bytes.load(Ordering::Relaxed));
}

/// Lets every connection, and every write that goes on without one, finish what it is at.
async fn drain(worker: &Rc<Worker>, connections: &Connections) {
    worker.closing.set(true);
    connections.end_all();
    loop {
        tick(worker, connections);
        if connections.is_empty() && worker.carried.get() == 0 {
            return;
        }
        tokio::time::sleep(TICK).await;
        // Those that have been told to end and are at nothing have had time to say goodbye.
        connections.close_idle();
    }
}
