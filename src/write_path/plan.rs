//! What the data plane goes by: routes, stores, limits. A reload exchanges it as a whole; a request
//! goes by one plan from its first stage to its last.

use std::{rc::Rc, sync::Arc};

use crate::{
    config::{Fault, Faults, GateSettings, Settings, StoreSettings},
    metrics::{Metrics, RouteMetrics},
    route::{Route, Routes},
    store::{Way, pool::Pool},
    tls::Acceptor,
};

/// The settings, ready for use.
pub struct Plan {
    /// Counts reloads.
    pub generation: u64,
    pub settings: GateSettings,
    pub routes: Routes,
    pub tls: Option<Acceptor>,
    ways: Vec<Way>,
    metrics: Vec<RouteMetrics>,
}

impl Plan {
    /// Makes settings ready for use.
    ///
    /// # Errors
    /// With what is wrong with them, or with the files that they name.
    pub fn new(settings: &Settings, generation: u64, metrics: &Metrics) -> Result<Self, Faults> {
        let routes = Routes::new(settings).map_err(Faults)?;
        let one = |key: String, what: String| Faults(vec![Fault::new(key, what)]);
        let way = |store: &StoreSettings| store.way().map_err(|(key, what)| one(format!("store.{key}"), what));
        Ok(Self {
            generation,
            settings: settings.gate.clone(),
            tls: settings.gate.tls().map_err(|what| one("gate.tls_cert_file".to_owned(), what))?,
            ways: routes.stores.iter().map(way).collect::<Result<_, _>>()?,
            metrics: routes.all().iter().map(|route| metrics.route(&route.name)).collect(),
            routes,
        })
    }

    /// What a route counts.
    #[must_use]
    pub fn metrics(&self, route: &Route) -> &RouteMetrics {
        &self.metrics[route.place]
    }
}

/// A plan and one worker's own connections to its stores.
pub struct Outfit {
    pub plan: Arc<Plan>,
    pub pools: Vec<Rc<Pool>>,
}

impl Outfit {
    /// Takes a plan up. Connections to stores that are as they were are kept; those over TLS are made
    /// anew, since the certificates to trust may have changed.
    #[must_use]
    pub fn new(plan: Arc<Plan>, before: Option<&Self>) -> Rc<Self> {
        let pools = plan.routes.stores.iter().zip(&plan.ways).map(|(store, way)| {
            let old = before.filter(|_| way.tls.is_none()).map_or(&[][..], |before| &before.pools);
            let same = old.iter().find(|pool| pool.settings() == store);
            same.map_or_else(|| Pool::new(way.clone(), store.clone()), Rc::clone)
        });
        Rc::new(Self { pools: pools.collect(), plan })
    }
}
