//! Checks whether the gate and this agent derive the same objects from paths. Where they differ, the gate refuses the
//! writes, because their tokens are of another object.

use std::{sync::Arc, time::Duration};

use crate::{
    client::{Failed, LeaseApi, backoff::Backoff},
    config::Mode,
    route::{Routes, object::ObjectTemplate, template::PathTemplate},
    wire::RouteBody,
};

/// How long one call may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// First and longest wait between tries.
const BACKOFF_MS: (u64, u64) = (1_000, 60_000);

/// One of the agent's routes.
#[derive(Clone, Debug)]
pub struct Own {
    name: Arc<str>,
    path: Arc<str>,
    object: Arc<str>,
    /// Its leases come from the gate.
    by_gate: bool,
}

/// The agent's routes, the most specific first.
#[must_use]
pub fn to_compare(routes: &Routes) -> Vec<Own> {
    let own = |route: &crate::route::Route| Own {
        name: Arc::clone(&route.name),
        path: Arc::clone(&route.path_text),
        object: Arc::clone(&route.object_text),
        by_gate: route.kubernetes().is_none(),
    };
    routes.all().iter().map(own).collect()
}

/// Asks the gate for its routes until it answers. Logs each route of the agent that the gate does not have, and each
/// route of the gate that takes paths of a route that it does have.
pub async fn compare(api: LeaseApi, own: Vec<Own>) {
    // An agent that takes no leases from the gate may be unable to reach its api.
    if !own.iter().any(|route| route.by_gate) {
        return;
    }
    let mut backoff = Backoff::new(BACKOFF_MS.0, BACKOFF_MS.1);
    let theirs = loop {
        match api.routes(PATIENCE).await {
            Ok(list) => break list.routes,
            // This gate is older than the call.
            Err(Failed::Refused(refusal)) if !refusal.retryable => return,
            Err(failed) => tokio::time::sleep(backoff.next(failed.asked_ms())).await,
        }
    };
    let Some(compared) = Compared::read(&own, &theirs) else { return };
    for strange in compared.unknown() {
        let known: Vec<String> = theirs.iter().map(|route| format!("{} -> {}", route.path, route.object)).collect();
        tracing::warn!(
            route = &*strange.name,
            path = &*strange.path,
            object = &*strange.object,
            gate_has = known.join(", "),
            "the gate has no route with this match and object: where it makes another object of a path, it refuses the write with LEASE_OBJECT_MISMATCH"
        );
    }
    for (strange, of) in compared.missing() {
        tracing::warn!(
            route = &*of.name,
            path = &*of.path,
            object = &*of.object,
            gate_route = strange.name,
            gate_path = strange.path,
            gate_object = strange.object,
            "the gate has a more specific route that this agent does not have: it makes another object of these paths, and refuses writes to them with LEASE_OBJECT_MISMATCH. Give this agent the same route"
        );
    }
}

type Templates = (PathTemplate, ObjectTemplate);

/// Both sides' routes with their templates, the most specific first.
struct Compared<'a> {
    own: Vec<(&'a Own, Templates)>,
    theirs: Vec<(&'a RouteBody, Templates)>,
}

impl<'a> Compared<'a> {
    /// Returns `None` where a template is of a kind that this program does not know: it may mean the same in another
    /// form.
    fn read(own: &'a [Own], theirs: &'a [RouteBody]) -> Option<Self> {
        let read = |path: &str, object: &str| {
            let path = PathTemplate::parse(path).ok()?;
            let object = ObjectTemplate::parse(object, &path).ok()?;
            Some((path, object))
        };
        Some(Self {
            own: own.iter().map(|each| Some((each, read(&each.path, &each.object)?))).collect::<Option<_>>()?,
            theirs: theirs.iter().map(|each| Some((each, read(&each.path, &each.object)?))).collect::<Option<_>>()?,
        })
    }

    /// Whether the gate has this route. Names of routes and captures do not matter.
    fn is_known(&self, (path, object): &Templates) -> bool {
        self.theirs.iter().any(|(_, (their_path, their_object))| {
            path.covers(their_path) && their_path.covers(path) && object == their_object
        })
    }

    /// The agent's routes that the gate does not have.
    fn unknown(&self) -> Vec<&'a Own> {
        let own = self.own.iter().filter(|(route, templates)| route.by_gate && !self.is_known(templates));
        own.map(|(route, _)| *route).collect()
    }

    /// The routes of the gate that take paths of one of the agent's routes and derive other objects from them; each
    /// with that route of the agent. Routes that another route hides on either side do not count, nor do routes that
    /// refuse nothing.
    fn missing(&self) -> Vec<(&'a RouteBody, &'a Own)> {
        let mut found = vec![];
        for (place, (theirs, (their_path, their_object))) in self.theirs.iter().enumerate() {
            for (own_place, (own, templates)) in self.own.iter().enumerate() {
                let (own_path, own_object) = templates;
                // A route that the gate does not have is logged elsewhere.
                if theirs.mode == Mode::Off || !own.by_gate || !self.is_known(templates) {
                    continue;
                }
                let Some(common) = own_path.common(their_path) else { continue };
                let comes_first = !self.theirs[..place].iter().any(|(_, (path, _))| path.covers(&common))
                    && !self.own[..own_place].iter().any(|(_, (path, _))| path.covers(&common));
                if comes_first && own_object.within(own_path, &common) != their_object.within(their_path, &common) {
                    found.push((*theirs, *own));
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LeaseSource;

    fn own(path: &str, object: &str) -> Own {
        Own { name: "x".into(), path: path.into(), object: object.into(), by_gate: true }
    }

    fn theirs(path: &str, object: &str) -> RouteBody {
        RouteBody {
            name: "x".to_owned(),
            path: path.to_owned(),
            object: object.to_owned(),
            mode: Mode::Enforce,
            lease_source: LeaseSource::Gate,
        }
    }

    #[test]
    fn routes_are_compared_by_what_they_make_of_a_path() {
        for (one, other, same) in [
            (("/{a}/{rest...}", "{a}"), ("/{object}/{more...}", "{object}"), true),
            (("/{a}/{rest...}", "{a}"), ("/data/{a}/{rest...}", "/data/{a}/"), false),
            (("/data/{a}/{rest...}", "{a}"), ("/data/{a}/{rest...}", "/data/{a}/"), false),
            (("/{a}/{b}", "{a}-{b}"), ("/{b}/{a}", "{b}-{a}"), true),
            (("/{a}/{b}", "{a}-{b}"), ("/{a}/{b}", "{b}-{a}"), false),
            (("/{a}/{rest...}", "{a}"), ("of another kind", "{a}"), true),
        ] {
            let (given, have) = ([own(one.0, one.1)], [theirs(other.0, other.1)]);
            let unknown = Compared::read(&given, &have).map_or(0, |compared| compared.unknown().len());
            assert_eq!(unknown == 0, same, "{one:?} {other:?}");
        }
    }

    #[test]
    fn a_route_of_the_gates_that_comes_before_one_of_the_agents_is_found() {
        type Pairs = &'static [(&'static str, &'static str)];
        const ALL: (&str, &str) = ("/{object}/{rest...}", "{object}");
        const DATA: (&str, &str) = ("/data/{d}/{rest...}", "/data/{d}/");
        // In order: the most specific first.
        let cases: [(Pairs, Pairs, Pairs); 8] = [
            (&[ALL], &[DATA, ALL], &[DATA]),
            (&[DATA, ALL], &[DATA, ALL], &[]),
            (&[ALL], &[("/data/{rest...}", "data"), ALL], &[]),
            (&[ALL], &[("/data/{d}", "{d}"), DATA, ALL], &[("/data/{d}", "{d}"), DATA]),
            (&[DATA], &[("/logs/{d}", "{d}"), DATA, ALL], &[]),
            (&[DATA, ALL], &[ALL], &[]),
            (
                &[("/data/{a}/{b}", "{b}"), ALL],
                &[("/data/{x}/{y}", "{y}"), ("/data/{x}/{y}/{rest...}", "{y}"), ALL],
                &[("/data/{x}/{y}/{rest...}", "{y}")],
            ),
            // At the gate, other routes take all paths before DATA.
            (&[ALL], &[("/data/{rest...}", "data"), ("/{a}/{b}", "{a}"), DATA, ALL], &[]),
        ];
        for (agent, gate, expected) in cases {
            let given: Vec<Own> = agent.iter().map(|(path, object)| own(path, object)).collect();
            let have: Vec<RouteBody> = gate.iter().map(|(path, object)| theirs(path, object)).collect();
            let compared = Compared::read(&given, &have).unwrap();
            let found: Vec<_> = compared.missing().iter().map(|(each, _)| (&*each.path, &*each.object)).collect();
            assert_eq!(found, expected, "{agent:?} {gate:?}");
        }
        let (given, mut have) = ([own(ALL.0, ALL.1)], [theirs(DATA.0, DATA.1), theirs(ALL.0, ALL.1)]);
        have[0].mode = Mode::Off;
        assert!(Compared::read(&given, &have).unwrap().missing().is_empty(), "nothing is refused there");
    }
}
