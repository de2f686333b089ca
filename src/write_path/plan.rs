//! The settings that the data plane uses: routes, stores, limits. A reload exchanges them as a whole. A request uses
//! one plan from its first stage to its last.

use std::{rc::Rc, sync::Arc};

use http::HeaderName;

use crate::{
    barrier::generation::{Generation, RouteGuard},
    clock::Clock,
    config::{Fault, Faults, GateSettings, Settings, StoreSettings},
    fence::BootMs,
    metrics::{Metrics, RouteMetrics, RouteTally},
    route::{Route, Routes},
    tls::Acceptor,
    upstream::{Way, pool::Pool},
};

/// The settings, ready for use.
pub struct Plan {
    /// Counts reloads.
    pub generation: u64,
    pub settings: GateSettings,
    pub routes: Routes,
    pub tls: Option<Acceptor>,
    /// The trailers that are passed on to stores.
    pub trailers: Vec<HeaderName>,
    ways: Vec<Way>,
    metrics: Vec<RouteMetrics>,
    versions: Vec<Version>,
}

/// A route's generation, and the older ones that it waits for.
#[derive(Clone)]
struct Version {
    generation: Arc<Generation>,
    waits_for: Vec<Arc<Generation>>,
}

impl Plan {
    /// Makes settings ready for use.
    ///
    /// # Errors
    /// With what is wrong with the settings, or with the files that they name.
    pub fn new(settings: &Settings, before: Before<'_>, now: BootMs, metrics: &Metrics) -> Result<Self, Faults> {
        let routes = Routes::new(settings).map_err(Faults)?;
        let one = |key: String, what: String| Faults(vec![Fault::new(key, what)]);
        let way = |store: &StoreSettings| store.way().map_err(|(key, what)| one(format!("store.{key}"), what));
        let versions = versions(&routes, before, now);
        Ok(Self {
            generation: before.plan().map_or(0, |before| before.generation + 1),
            versions,
            settings: settings.gate.clone(),
            tls: settings.gate.tls().map_err(|(key, what)| one(format!("gate.{key}"), what))?,
            trailers: settings.gate.trailer_names().map_err(|what| one("gate.trailers".to_owned(), what))?,
            ways: routes.stores.iter().map(way).collect::<Result<_, _>>()?,
            metrics: routes.all().iter().map(|route| metrics.route(&route.name)).collect(),
            routes,
        })
    }

    /// How many connections a worker may have to all stores together.
    #[must_use]
    pub fn store_connections(&self) -> usize {
        self.routes.stores.iter().fold(0, |all: usize, store| all.saturating_add(store.connections_max))
    }

    /// Counts a write in under its route's generation. `None` while writes of older generations that it waits for may
    /// still land.
    #[must_use]
    pub fn enter(&self, route: &Route, clock: &Clock) -> Option<RouteGuard> {
        let Version { generation, waits_for } = &self.versions[route.place];
        let may_enter = waits_for.is_empty() || {
            let now = clock.now().boot;
            waits_for.iter().all(|older| older.is_over(now))
        };
        may_enter.then(|| generation.enter(clock, route.bound))
    }

    /// The generations that writes use under this plan.
    #[must_use]
    pub fn generations(&self) -> Vec<Arc<Generation>> {
        self.versions.iter().map(|version| Arc::clone(&version.generation)).collect()
    }

    /// The generations of `before` that this plan no longer uses.
    pub fn retired_from<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = Arc<Generation>> + 'a {
        let stays = |old: &Arc<Generation>| self.versions.iter().any(|new| Arc::ptr_eq(&new.generation, old));
        before.versions.iter().map(|old| &old.generation).filter(move |old| !stays(old)).map(Arc::clone)
    }
}

/// What came before a plan.
#[derive(Clone, Copy)]
pub enum Before<'a> {
    /// No plan. The generation of an earlier run's writes, if they can still land.
    Start(Option<&'a Arc<Generation>>),
    Plan(&'a Plan),
}

impl Before<'_> {
    fn plan(&self) -> Option<&Plan> {
        match self {
            Self::Start(_) => None,
            Self::Plan(plan) => Some(plan),
        }
    }
}

/// An unchanged route keeps its generation, unless a route that is new, has changed or is gone could take the same
/// paths: then it takes other paths than before. A route with a new generation waits for all generations that are gone,
/// since their writes may have gone to its object.
fn versions(routes: &Routes, before: Before<'_>, now: BootMs) -> Vec<Version> {
    let same = |route: &Route| -> Option<&Version> {
        let before = before.plan()?;
        let is_same = |old: &&Route| {
            old.acts_like(route) && before.routes.stores[old.store].url == routes.stores[route.store].url
        };
        before.routes.all().iter().find(is_same).map(|old| &before.versions[old.place])
    };
    let like: Vec<Option<&Version>> = routes.all().iter().map(same).collect();
    let is_like = |old: &Version| like.iter().flatten().any(|like| Arc::ptr_eq(&like.generation, &old.generation));
    let olds = before.plan().map_or(&[][..], |before| before.routes.all());
    let gone = olds.iter().filter(|old| before.plan().is_some_and(|before| !is_like(&before.versions[old.place])));
    let new = routes.all().iter().zip(&like).filter(|(_, like)| like.is_none()).map(|(new, _)| new);
    let changed: Vec<&Route> = gone.chain(new).collect();
    let takes_the_same_paths = |route: &Route| changed.iter().all(|changed| !changed.overlaps(route));
    let kept = routes.all().iter().zip(like).map(|(route, like)| like.filter(|_| takes_the_same_paths(route)));
    let kept: Vec<Option<&Version>> = kept.collect();
    let is_kept = |old: &Version| kept.iter().flatten().any(|kept| Arc::ptr_eq(&kept.generation, &old.generation));
    let gone: Vec<Arc<Generation>> = match before {
        Before::Start(earlier) => earlier.into_iter().map(Arc::clone).collect(),
        Before::Plan(before) => {
            let with_own = |old: &Version| {
                let own = (!is_kept(old)).then_some(&old.generation);
                old.waits_for.iter().chain(own).map(Arc::clone).collect::<Vec<_>>()
            };
            let mut gone: Vec<_> = before.versions.iter().flat_map(with_own).collect();
            // Each once, and only those with writes that may still land.
            gone.sort_by_key(Arc::as_ptr);
            gone.dedup_by(|one, two| Arc::ptr_eq(one, two));
            gone.retain(|generation| !generation.is_spent(now));
            gone
        }
    };
    let new = || Version { generation: Arc::default(), waits_for: gone.clone() };
    kept.into_iter().map(|kept| kept.cloned().unwrap_or_else(new)).collect()
}

/// A plan, and one worker's connections to its stores and counts for its routes.
pub struct WorkerPlan {
    pub plan: Arc<Plan>,
    pub pools: Vec<Rc<Pool>>,
    /// By the route's place.
    pub tallies: Vec<RouteTally>,
}

impl WorkerPlan {
    /// Takes over a plan. Keeps the connections to unchanged stores. Connections over TLS are made anew, since the
    /// certificates to trust may have changed.
    #[must_use]
    pub fn new(plan: Arc<Plan>, before: Option<&Self>) -> Rc<Self> {
        let pools = plan.routes.stores.iter().zip(&plan.ways).map(|(store, way)| {
            let old = before.filter(|_| way.tls.is_none()).map_or(&[][..], |before| &before.pools);
            let same = old.iter().find(|pool| pool.settings() == store);
            same.map_or_else(|| Pool::new(way.clone(), store.clone()), Rc::clone)
        });
        let tallies = plan.metrics.iter().map(RouteMetrics::tally).collect();
        Rc::new(Self { pools: pools.collect(), tallies, plan })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{barrier::generation::Generations, config::RouteSettings};

    fn settings(paths: &[&str]) -> Settings {
        let route = |path: &&str| RouteSettings {
            name: (*path).to_owned(),
            path: (*path).to_owned(),
            object: "o".to_owned(),
            ..RouteSettings::default()
        };
        Settings { route: paths.iter().map(route).collect(), ..Settings::default() }
    }

    #[test]
    fn reloads_do_not_pile_up_what_is_waited_for() {
        let (metrics, generations) = (Metrics::new(), Generations::default());
        let plan =
            |paths: &[&str], before: Before<'_>| Plan::new(&settings(paths), before, BootMs(0), &metrics).unwrap();
        let mut now = plan(&["/{any...}", "/a/x", "/b"], Before::Start(None));
        for round in 0..20 {
            let other = if round % 2 == 0 { "/a/y" } else { "/a/x" };
            let next = plan(&["/{any...}", other, "/b"], Before::Plan(&now));
            generations.retire(next.retired_from(&now));
            let waits_for: Vec<usize> = next.versions.iter().map(|version| version.waits_for.len()).collect();
            // The catch-all and the changed route wait; `/b` overlaps with neither change.
            assert_eq!((waits_for.iter().sum::<usize>(), waits_for.len()), (4, 3), "{waits_for:?}");
            now = next;
        }
    }
}
