//! Whether the gate has the routes that this agent has: where they differ, the gate refuses writes as another object's.

use std::{sync::Arc, time::Duration};

use crate::{
    api::routes::RouteBody,
    client::{Failed, LeaseApi, backoff::Backoff},
    route::{Routes, object::ObjectTemplate, template::PathTemplate},
};

/// How long one call may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// First and longest wait between tries.
const BACKOFF_MS: (u64, u64) = (1_000, 60_000);

/// A route of the agent's.
#[derive(Clone, Debug)]
pub struct Own {
    name: Arc<str>,
    path: Arc<str>,
    object: Arc<str>,
}

/// Those whose leases are the gate's: an agent without any may not reach its api.
#[must_use]
pub fn to_compare(routes: &Routes) -> Vec<Own> {
    let of_gate = routes.all().iter().filter(|route| route.kubernetes.is_none());
    let own = |route: &crate::route::Route| Own {
        name: Arc::clone(&route.name),
        path: Arc::clone(&route.path_text),
        object: Arc::clone(&route.object_text),
    };
    of_gate.map(own).collect()
}

/// Asks the gate for its routes until it answers, and logs each route of the agent's that the gate does not have.
pub async fn compare(api: LeaseApi, own: Vec<Own>) {
    if own.is_empty() {
        return;
    }
    let mut backoff = Backoff::new(BACKOFF_MS.0, BACKOFF_MS.1);
    let theirs = loop {
        match api.routes(PATIENCE).await {
            Ok(list) => break list.routes,
            // A gate that is older than this call.
            Err(Failed::Refused(refusal)) if !refusal.retryable => return,
            Err(failed) => tokio::time::sleep(backoff.next(failed.asked_ms())).await,
        }
    };
    for strange in unknown(&own, &theirs) {
        let known: Vec<String> = theirs.iter().map(|route| format!("{} -> {}", route.path, route.object)).collect();
        tracing::warn!(
            route = &*strange.name,
            path = &*strange.path,
            object = &*strange.object,
            gate_has = known.join(", "),
            "the gate has no route with this match and object: where it makes another object of a path, it refuses the write with LEASE_OBJECT_MISMATCH"
        );
    }
}

/// The routes that the gate does not have. Names do not matter, nor do the names of captures.
fn unknown<'a>(own: &'a [Own], theirs: &[RouteBody]) -> Vec<&'a Own> {
    let read = |path: &str, object: &str| {
        let path = PathTemplate::parse(path).ok()?;
        let object = ObjectTemplate::parse(object, &path).ok()?;
        Some((path, object))
    };
    // A template that this program does not know may say the same in another way.
    let Some(theirs) = theirs.iter().map(|route| read(&route.path, &route.object)).collect::<Option<Vec<_>>>() else {
        return vec![];
    };
    let is_known = |route: &&Own| {
        let Some((path, object)) = read(&route.path, &route.object) else { return true };
        theirs.iter().any(|(their_path, their_object)| {
            path.covers(their_path) && their_path.covers(&path) && object == *their_object
        })
    };
    own.iter().filter(|route| !is_known(route)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{LeaseSource, Mode};

    #[test]
    fn routes_are_compared_by_what_they_make_of_a_path() {
        let own = |path: &str, object: &str| Own { name: "x".into(), path: path.into(), object: object.into() };
        let theirs = |path: &str, object: &str| RouteBody {
            name: "x".to_owned(),
            path: path.to_owned(),
            object: object.to_owned(),
            mode: Mode::Enforce,
            lease_source: LeaseSource::Gate,
        };
        for (one, other, same) in [
            (("/{a}/{rest...}", "{a}"), ("/{object}/{more...}", "{object}"), true),
            (("/{a}/{rest...}", "{a}"), ("/data/{a}/{rest...}", "/data/{a}/"), false),
            (("/data/{a}/{rest...}", "{a}"), ("/data/{a}/{rest...}", "/data/{a}/"), false),
            (("/{a}/{b}", "{a}-{b}"), ("/{b}/{a}", "{b}-{a}"), true),
            (("/{a}/{b}", "{a}-{b}"), ("/{a}/{b}", "{b}-{a}"), false),
            (("/{a}/{rest...}", "{a}"), ("of another kind", "{a}"), true),
        ] {
            let given = [own(one.0, one.1)];
            assert_eq!(unknown(&given, &[theirs(other.0, other.1)]).is_empty(), same, "{one:?} {other:?}");
        }
    }
}
