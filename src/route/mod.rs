//! Routes: which object a request is about, and what a request is.
//!
//! Pure. [`canonical`] reads a path if every parser would read it in the same way, and fails otherwise. [`template`]
//! matches the path to a route, and [`object`] makes the object's id. [`classify`] says what a request is: a read, a
//! write to these objects, or a refusal. `form`: the checks of its form. `fields`: the headers that mean something.
//! [`doubt`]: what two parsers could read in two ways. [`source`]: where a route's leases come from, and what its
//! writes bring. [`profile`]: what its store's protocol makes of requests and answers. `disagree`: routes that
//! disagree. `fingerprint`: what the table keeps of the routes.

pub mod canonical;
pub mod classify;
mod disagree;
pub mod doubt;
mod fields;
mod fingerprint;
mod form;
pub mod object;
pub mod profile;
pub mod source;
pub mod template;

use std::{borrow::Cow, collections::HashSet, path::Path, sync::Arc};

use sha2::{Digest, Sha256};

pub use fingerprint::RouteFingerprint;

use self::{
    object::ObjectTemplate,
    source::{KeyFault, Source},
    template::{Captures, PathTemplate},
};
use crate::{
    config::{Fault, Mode, Profile, RouteSettings, Settings, StoreSettings},
    fence::{ObjectId, Ttl},
};

/// One route.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub struct Route {
    pub name: Arc<str>,
    pub mode: Mode,
    pub profile: Profile,
    /// Its place in [`Routes::all`].
    pub place: usize,
    /// The place of its store in [`Routes::stores`].
    pub store: usize,
    /// How long a write may still land at its store after its connection is closed.
    pub bound: Ttl,
    /// The store discards a body that broke off.
    pub discards: bool,
    /// Reads may have a body.
    pub bodies_on_reads: bool,
    pub settles: Vec<u16>,
    pub drain_wait_ms: u64,
    pub source: Source,
    pub journal: bool,
    /// Whether the gate handles idempotency keys.
    pub idempotency: bool,
    /// Whether a write's client must be the holder of its lease.
    pub bind_holder: bool,
    /// Its templates, as they are in the configuration.
    pub path_text: Arc<str>,
    pub object_text: Arc<str>,
    path: PathTemplate,
    object: ObjectTemplate,
}

/// All routes, the most specific first, and the stores behind them.
#[derive(Clone, Debug, PartialEq)]
pub struct Routes {
    all: Vec<Route>,
    /// The first one is for requests that no route matches.
    pub stores: Vec<StoreSettings>,
    /// The hash and the longest bound of these routes, for the table.
    pub fingerprint: RouteFingerprint,
}

impl Routes {
    /// Reads the routes of a configuration.
    ///
    /// # Errors
    /// With the faults of each route, and those of routes that disagree. A route whose templates or source cannot be
    /// read is compared with the others by its name only. Where else it disagrees shows once it can be read.
    pub fn new(settings: &Settings) -> Result<Self, Vec<Fault>> {
        let given_routes = settings.routes();
        let mut faults = vec![];
        let mut stores = vec![settings.store.clone()];
        let mut routes: Vec<Route> = vec![];
        let mut names = HashSet::new();
        let mut hash = Sha256::new();
        for (place, given) in given_routes.iter().enumerate() {
            let at = |key: &str| format!("route[{place}].{key}");
            if !names.insert(given.name.as_str()) {
                faults.push(Fault::new(at("name"), format!("{:?} is another route's name too", given.name)));
            }
            let store = given.store.over(&settings.store);
            add_to_hash(&mut hash, given, &store);
            let store = stores.iter().position(|each| *each == store).unwrap_or_else(|| {
                stores.push(store);
                stores.len() - 1
            });
            let (route, found) = Route::of(given, settings, place, (store, Ttl(stores[store].bound_ms())));
            routes.extend(route);
            faults.extend(found.into_iter().map(|(key, what)| Fault::new(at(key), what)));
        }
        faults.extend(disagree::disagreements(&routes));
        // The longest literal prefix comes first. This sort keeps the order in the file among equals.
        routes.sort_by_key(|route| std::cmp::Reverse(route.path.literal_prefix()));
        routes.iter_mut().enumerate().for_each(|(place, route)| route.place = place);
        if !faults.is_empty() {
            return Err(faults);
        }
        let mut hashed = [0; 16];
        hashed.copy_from_slice(&hash.finalize()[..16]);
        let bound_ms = stores.iter().map(StoreSettings::bound_ms).max().unwrap_or(0);
        Ok(Self { all: routes, stores, fingerprint: RouteFingerprint { routes: hashed, bound_ms } })
    }

    /// The route of a path and its captures. The path's segments are decoded.
    #[must_use]
    pub fn find<'s, 'p>(&self, path: &'s [Cow<'p, str>]) -> Option<(&Route, Captures<'s, 'p>)> {
        self.all.iter().find_map(|route| Some((route, route.path.captures(path)?)))
    }

    /// Another route whose objects are below this path.
    #[must_use]
    pub fn below(&self, path: &[Cow<'_, str>], of: &Route) -> Option<&Route> {
        self.all.iter().find(|route| route.place != of.place && route.path.lies_below(path))
    }

    /// Whether some path could be about this object: a route makes its id, from paths that no earlier route takes.
    #[must_use]
    pub fn may_make(&self, object: &ObjectId) -> bool {
        let takes_all = |earlier: &[Route], route: &Route| {
            let captures = route.object.captures_of(object.as_str());
            let paths = captures.map(|captures| route.path.filled(&captures));
            paths.is_some_and(|paths| earlier.iter().any(|each| each.path.covers(&paths)))
        };
        let mut makers = self.all.iter().enumerate().filter(|(_, route)| route.may_make(object));
        makers.any(|(place, route)| !takes_all(&self.all[..place], route))
    }

    /// Whether some route journals the settled writes of this object.
    #[must_use]
    pub fn keeps_journal(&self, object: &ObjectId) -> bool {
        self.all.iter().any(|route| route.journal && route.may_make(object))
    }

    /// All routes, the most specific first.
    #[must_use]
    pub fn all(&self) -> &[Route] {
        &self.all
    }
}

impl Route {
    /// Reads a route's settings. Returns the route, where it can be compared with others, and all faults. `place`: in
    /// the settings. `store`: its place, and its bound.
    fn of(
        given: &RouteSettings,
        settings: &Settings,
        place: usize,
        (store, bound): (usize, Ttl),
    ) -> (Option<Self>, Vec<KeyFault>) {
        let mut faults: Vec<KeyFault> = vec![];
        if given.name.is_empty() || given.name.chars().any(char::is_control) {
            faults.push(("name", "must be a word or two".to_owned()));
        }
        if given.journal && given.mode != Mode::Enforce {
            faults.push(("journal", "needs mode = \"enforce\": other writes have no lease".to_owned()));
        }
        faults.extend(bind_holder_fault(given, settings).map(|what| ("bind_holder", what.to_owned())));
        let unsettling = given.profile.unsettling();
        if let Some(odd) = given.settles.iter().find(|status| !unsettling.contains(status)) {
            let what = format!("{odd} says by itself what became of a write; only {unsettling:?} do not");
            faults.push(("settles", what));
        }
        let templates = parse(given);
        let (source, found) = Source::of(given, settings, templates.as_ref().ok());
        faults.extend(found);
        let route = match (templates, source) {
            (Ok((path, object)), Some(source)) => Some(Self {
                name: given.name.as_str().into(),
                mode: given.mode,
                profile: given.profile,
                place,
                store,
                bound,
                discards: given.profile.discards(given.partial_body),
                bodies_on_reads: given.bodies_on_reads,
                settles: given.settles.clone(),
                drain_wait_ms: given.drain_wait_ms,
                source,
                journal: given.journal,
                idempotency: given.idempotency && given.mode == Mode::Enforce,
                bind_holder: given.bind_holder,
                path_text: given.path.as_str().into(),
                object_text: given.object.as_str().into(),
                path,
                object,
            }),
            (templates, _) => {
                faults.extend(templates.err());
                None
            }
        };
        (route, faults)
    }

    /// Whether it takes the same paths to the same objects in the same way. The store is compared separately.
    #[must_use]
    pub fn acts_like(&self, other: &Self) -> bool {
        let (own, others) = ((&self.path, &self.object, self.mode), (&other.path, &other.object, other.mode));
        own == others && self.profile == other.profile && self.source.acts_like(&other.source)
    }

    /// Whether a complete answer with this status says what became of a write.
    #[must_use]
    pub fn is_settled_by(&self, status: u16) -> bool {
        !self.profile.unsettling().contains(&status) || self.settles.contains(&status)
    }

    /// Whether it could make this object's id.
    #[must_use]
    pub fn may_make(&self, object: &ObjectId) -> bool {
        self.object.may_make(object.as_str())
    }

    /// Whether both could take the same path.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.path.overlaps(&other.path)
    }

    /// The id of the object that these captures name; `None` where they make no valid id.
    #[must_use]
    pub fn object<'p>(&'p self, captures: &[&Cow<'p, str>]) -> Option<Cow<'p, str>> {
        Some(self.object.fill(captures)).filter(|object| ObjectId::is_valid(object))
    }
}

/// Adds to the hash of the routes what decides which writes go to which object and store.
fn add_to_hash(hash: &mut Sha256, given: &RouteSettings, store: &StoreSettings) {
    let mode = [given.mode as u8];
    for part in [given.path.as_bytes(), given.object.as_bytes(), &mode, store.url.as_bytes()] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    profile::hash(given.profile, hash);
    source::hash(given, hash);
}

/// What keeps a route from comparing a write's client with the holder of its lease.
fn bind_holder_fault(given: &RouteSettings, settings: &Settings) -> Option<&'static str> {
    let (gate, api) = (&settings.gate, &settings.api);
    let is_given = |path: &Path| !path.as_os_str().is_empty();
    match () {
        () if !given.bind_holder => None,
        () if given.mode != Mode::Enforce => Some("needs mode = \"enforce\": other writes have no lease"),
        () if !source::has_principals(given.lease_source) => Some(
            "needs lease_source = \"gate\" or \"authority\": the holders of other sources are not principals of this gate",
        ),
        () if settings.identity.is_empty() => Some("needs an [[identity]]: without one, no client can prove who it is"),
        () if !gate.listen.ip().is_loopback() && !is_given(&gate.tls_cert_file) && !api.insecure_plaintext => Some(
            "needs TLS on gate.listen beyond loopback (gate.tls_cert_file): what proves who a client is could be read on the way",
        ),
        () if is_given(&gate.tls_client_ca_file)
            && is_given(&api.tls_client_ca_file)
            && gate.tls_client_ca_file != api.tls_client_ca_file =>
        {
            Some(
                "needs one gate.tls_client_ca_file and api.tls_client_ca_file: a name in certificates of two authorities could be of two clients",
            )
        }
        () => None,
    }
}

fn parse(given: &RouteSettings) -> Result<(PathTemplate, ObjectTemplate), KeyFault> {
    let path = PathTemplate::parse(&given.path).map_err(|fault| ("match", fault.to_string()))?;
    let object = ObjectTemplate::parse(&given.object, &path).map_err(|fault| ("object", fault.to_string()))?;
    Ok((path, object))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LeaseSource;

    fn settings(routes: &[(&str, &str, &str)]) -> Settings {
        let route = routes
            .iter()
            .map(|(name, path, object)| RouteSettings {
                name: (*name).to_owned(),
                path: (*path).to_owned(),
                object: (*object).to_owned(),
                ..RouteSettings::default()
            })
            .collect();
        Settings { route, ..Settings::default() }
    }

    fn object(settings: &Settings, path: &str) -> Option<String> {
        let routes = Routes::new(settings).unwrap();
        let segments = canonical::segments(path).unwrap();
        let (route, captures) = routes.find(&segments)?;
        Some(format!("{} {}", route.name, route.object(&captures)?))
    }

    #[test]
    fn without_routes_the_first_segment_is_the_object() {
        let none = Settings::default();
        assert_eq!(object(&none, "/users/1"), Some("default users".to_owned()));
        assert_eq!(object(&none, "/users"), Some("default users".to_owned()));
        assert_eq!(object(&none, "/us%65rs/"), Some("default users".to_owned()));
        assert_eq!(object(&none, "/"), None);
    }

    #[test]
    fn the_longest_literal_prefix_wins_then_the_order_in_the_file() {
        let some = settings(&[
            ("any", "/{object}/{rest...}", "{object}"),
            ("data", "/data/{domain}/{rest...}", "/data/{domain}/"),
            ("audit", "/data/audit/{rest...}", "audit"),
        ]);
        assert_eq!(object(&some, "/data/audit/x"), Some("audit audit".to_owned()));
        assert_eq!(object(&some, "/data/users/1"), Some("data /data/users/".to_owned()));
        assert_eq!(object(&some, "/data"), Some("any data".to_owned()));
        // Another spelling is the same path.
        assert_eq!(object(&some, "/%64ata/users/1"), Some("data /data/users/".to_owned()));
    }

    #[test]
    fn routes_that_disagree_are_a_fault_and_each_is_named() {
        let keys = |settings: &Settings| -> Vec<String> {
            Routes::new(settings).unwrap_err().into_iter().map(|fault| fault.key).collect()
        };
        let tie = settings(&[("a", "/{x}/{rest...}", "{x}"), ("b", "/{y}/{z}", "{z}")]);
        assert_eq!(keys(&tie), ["route[1].match"]);
        assert!(Routes::new(&settings(&[("a", "/{x}/{rest...}", "{x}"), ("b", "/{y}", "{y}")])).is_ok());
        let bad = settings(&[("a", "x", "{x}"), ("a", "/{x}", "{y}"), ("", "/{x}/b", "{x}")]);
        assert_eq!(keys(&bad), ["route[0].match", "route[1].name", "route[1].object", "route[2].name"]);
        // A name is taken also where its route's source has a fault.
        let mut twice = settings(&[("a", "/a/{x}", "a/{x}"), ("a", "/b/{x}", "b/{x}")]);
        (twice.route[0].lease_source, twice.route[0].max_jump) = (LeaseSource::External, 0);
        assert_eq!(keys(&twice), ["route[0].max_jump", "route[1].name"]);
    }
}
