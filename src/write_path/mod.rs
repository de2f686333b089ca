//! The path of a write: `accept -> classify -> decide -> forward -> reply`, one file per stage.
//!
//! - [`accept`]: the port, connections, their limits and timeouts; a worker per core.
//! - [`classify`]: what a request is: a read, a write to one object, or nothing that is forwarded.
//! - [`decide`]: may this write go on? `fence::judge`, under the object's lock. No rules of its own.
//! - [`forward`]: to the store and back, once. [`hold`]: bodies that are collected first.
//! - [`reply`]: the store's answer or a refusal, as a response. [`receipts`]: what was refused lately.
//! - [`headers`]: what is taken from and added to a request on its way.

pub mod accept;
pub mod classify;
pub mod decide;
pub mod forward;
pub mod headers;
pub mod hold;
pub mod receipts;
pub mod reply;

use std::{
    cell::Cell,
    rc::Rc,
    sync::{Arc, atomic::AtomicUsize},
};

use arc_swap::ArcSwap;

use crate::{
    api::Shared,
    config::{GateSettings, Settings},
    fence::BootMs,
    metrics::PlaneMetrics,
    route::Routes,
    store::{Address, pool::Pool},
};

/// What all workers share.
pub struct Plane {
    pub gate: Shared,
    pub routes: ArcSwap<Routes>,
    pub settings: GateSettings,
    pub metrics: PlaneMetrics,
    /// Bytes of bodies that are being held.
    pub held_bytes: AtomicUsize,
    pub connections: AtomicUsize,
}

impl Plane {
    /// A data plane for sound settings.
    ///
    /// # Panics
    /// Where the settings' routes were not checked before.
    #[must_use]
    pub fn new(gate: Shared, settings: &Settings) -> Arc<Self> {
        let routes = Routes::new(settings).expect("routes are checked with the settings");
        let metrics = gate.metrics.plane(routes.all().iter().map(|route| route.name.as_str()));
        Arc::new(Self {
            gate,
            routes: ArcSwap::from_pointee(routes),
            settings: settings.gate.clone(),
            metrics,
            held_bytes: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
        })
    }
}

/// What belongs to one worker alone.
pub struct Worker {
    pub plane: Arc<Plane>,
    pub pools: Vec<Rc<Pool>>,
    /// The boot clock, as of the last tick: good enough for timeouts.
    pub now: Cell<BootMs>,
    /// The worker's runtime is going away: nothing can be carried on.
    pub stopping: Cell<bool>,
}

impl Worker {
    fn new(plane: Arc<Plane>) -> Rc<Self> {
        let routes = plane.routes.load();
        let pools = routes
            .stores
            .iter()
            .map(|store| {
                let address = Address::parse(&store.url).expect("addresses are checked with the settings");
                Pool::new(address, store.clone())
            })
            .collect();
        let now = plane.gate.now().boot;
        drop(routes);
        Rc::new(Self { plane, pools, now: Cell::new(now), stopping: Cell::new(false) })
    }
}
