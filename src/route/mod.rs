//! Routes: which object a request is about, and what a request is.
//!
//! Pure. [`canonical`] reads a path if every parser would read it in the same way, and fails otherwise. [`template`]
//! matches the path to a route, and [`object`] makes the object's id. [`classify`] says what a request is: a read, a
//! write to these objects, or a refusal. [`doubt`]: what two parsers could read in two ways. `terms`: what the table
//! keeps of the routes.

pub mod canonical;
pub mod classify;
pub mod doubt;
mod fingerprint;
pub mod object;
pub mod template;

use std::{borrow::Cow, sync::Arc};

use http::HeaderName;
use sha2::{Digest, Sha256};

pub use fingerprint::RouteFingerprint;

use self::{
    object::ObjectTemplate,
    template::{Captures, PathTemplate},
};
use crate::{
    config::{Fault, LeaseSource, Mode, PartialBody, RouteLease, RouteSettings, Settings, StoreSettings},
    fence::{ObjectId, Ttl, election::LeaseName, external},
};

/// Statuses that do not say whether the store has done the write, or will.
pub const UNSETTLING: [u16; 6] = [202, 408, 499, 502, 503, 504];

/// One route.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub struct Route {
    pub name: Arc<str>,
    pub mode: Mode,
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
    pub source: LeaseSource,
    pub journal: bool,
    /// Whether the gate handles idempotency keys.
    pub idempotency: bool,
    /// Set where its tokens come from an outside lock service.
    pub external: Option<External>,
    /// Set where a Kubernetes Lease says who may write.
    pub kubernetes: Option<Kubernetes>,
    /// Its templates, as they are in the configuration.
    pub path_text: Arc<str>,
    pub object_text: Arc<str>,
    path: PathTemplate,
    object: ObjectTemplate,
}

/// A route's settings for an outside lock service's tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct External {
    /// The header that has the token.
    pub header: HeaderName,
    pub limits: external::ExternalLimits,
}

/// A route's settings for the Kubernetes Lease that governs its objects.
#[derive(Clone, Debug, PartialEq)]
pub struct Kubernetes {
    namespace: ObjectTemplate,
    name: ObjectTemplate,
    /// A write must name its holder, and that must be the Lease's holder.
    pub check_holder: bool,
    /// The only namespaces that its captures may name.
    namespaces: Arc<[String]>,
}

impl Kubernetes {
    /// The Lease that these captures name; `None` where no Lease can have that name, or its namespace is not in the
    /// list.
    #[must_use]
    pub fn lease(&self, captures: &[&Cow<'_, str>]) -> Option<LeaseName> {
        let fill = |template: &ObjectTemplate| template.fill(captures).into_owned();
        let lease = LeaseName { namespace: fill(&self.namespace), name: fill(&self.name) };
        (self.namespaces.contains(&lease.namespace) && is_label(&lease.name, NAME_MAX, true)).then_some(lease)
    }
}

/// The longest name of a Lease, and of a namespace.
const NAME_MAX: usize = 253;
const NAMESPACE_MAX: usize = 63;

/// Whether Kubernetes accepts this as a name.
fn is_label(name: &str, max: usize, may_have_dots: bool) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_part =
        |part: &str| part.bytes().all(is_inner) && !part.is_empty() && !part.starts_with('-') && !part.ends_with('-');
    name.len() <= max && if may_have_dots { name.split('.').all(is_part) } else { is_part(name) }
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
    /// With all faults of the routes.
    pub fn new(settings: &Settings) -> Result<Self, Vec<Fault>> {
        let mut faults = vec![];
        let mut stores = vec![settings.store.clone()];
        let mut routes: Vec<Route> = vec![];
        let mut hash = Sha256::new();
        for (place, given) in settings.routes().iter().enumerate() {
            let at = |key: &str| format!("route[{place}].{key}");
            if given.name.is_empty() || given.name.chars().any(char::is_control) {
                faults.push(Fault::new(at("name"), "must be a word or two"));
            }
            if routes.iter().any(|route| *route.name == *given.name) {
                faults.push(Fault::new(at("name"), format!("{:?} is another route's name too", given.name)));
            }
            let store = given.store.over(&settings.store);
            let mode = [given.mode as u8];
            for part in [given.path.as_bytes(), given.object.as_bytes(), &mode, store.url.as_bytes()] {
                hash.update((part.len() as u64).to_be_bytes());
                hash.update(part);
            }
            if given.lease_source != LeaseSource::Gate {
                hash.update([given.lease_source as u8]);
            }
            if given.journal && given.mode != Mode::Enforce {
                faults.push(Fault::new(at("journal"), "needs mode = \"enforce\": other writes have no lease"));
            }
            let store = stores.iter().position(|each| *each == store).unwrap_or_else(|| {
                stores.push(store);
                stores.len() - 1
            });
            if let Some(odd) = given.settles.iter().find(|status| !UNSETTLING.contains(status)) {
                let what = format!("{odd} says by itself what became of a write; only {UNSETTLING:?} do not");
                faults.push(Fault::new(at("settles"), what));
            }
            let kubernetes = kubernetes(given, settings).map_err(|(key, what)| faults.push(Fault::new(at(key), what)));
            if given.kubernetes != RouteLease::default() {
                for part in [&given.kubernetes.namespace, &given.kubernetes.name] {
                    hash.update((part.len() as u64).to_be_bytes());
                    hash.update(part);
                }
            }
            let external = external(given).map_err(|(key, what)| faults.push(Fault::new(at(key), what)));
            match parse(given) {
                Err((key, what)) => faults.push(Fault::new(at(key), what)),
                Ok((path, object)) => {
                    let discards = given.partial_body == PartialBody::Discards;
                    let (name, settles) = (given.name.as_str().into(), given.settles.clone());
                    let (mode, drain_wait_ms, bound) = (given.mode, given.drain_wait_ms, Ttl(stores[store].bound_ms()));
                    let place = 0;
                    routes.push(Route {
                        name,
                        mode,
                        place,
                        store,
                        bound,
                        discards,
                        bodies_on_reads: given.bodies_on_reads,
                        settles,
                        drain_wait_ms,
                        source: given.lease_source,
                        journal: given.journal,
                        idempotency: given.idempotency && given.mode == Mode::Enforce,
                        external: external.unwrap_or_default(),
                        kubernetes: kubernetes.unwrap_or_default(),
                        path_text: given.path.as_str().into(),
                        object_text: given.object.as_str().into(),
                        path,
                        object,
                    });
                }
            }
        }
        faults.extend(disagreements(&routes));
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

    /// Whether leases of this object come from signed grants only: true if a route that may make this id says so.
    #[must_use]
    pub fn needs_grant(&self, object: &ObjectId) -> bool {
        self.all.iter().any(|route| route.source == LeaseSource::Authority && route.may_make(object))
    }

    /// The terms for outside tokens of this object; `None` where no route that may make this id uses an outside lock
    /// service.
    #[must_use]
    pub fn follows(&self, object: &ObjectId) -> Option<external::ExternalLimits> {
        let external = self.all.iter().filter(|route| route.may_make(object)).find_map(|route| route.external.as_ref());
        external.map(|external| external.limits)
    }

    /// The Kubernetes Lease that governs this object. The outer `None`: no route that may make this id has one.
    #[must_use]
    pub fn lease_of(&self, object: &ObjectId) -> Option<Option<LeaseName>> {
        let mut governed = self.all.iter().filter(|route| route.may_make(object));
        governed.find_map(|route| {
            let kubernetes = route.kubernetes.as_ref()?;
            let captures = route.object.captures_of(object.as_str());
            Some(captures.and_then(|captures| kubernetes.lease(&captures.iter().collect::<Vec<_>>())))
        })
    }

    /// The namespaces whose Leases govern objects.
    #[must_use]
    pub fn namespaces(&self) -> Vec<String> {
        let all = self.all.iter().filter_map(|route| route.kubernetes.as_ref());
        let mut all: Vec<String> = all.flat_map(|kubernetes| kubernetes.namespaces.iter().cloned()).collect();
        all.sort_unstable();
        all.dedup();
        all
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
    /// Whether it takes the same paths to the same objects in the same way. The store is compared separately.
    #[must_use]
    pub fn acts_like(&self, other: &Self) -> bool {
        (&self.path, &self.object, self.mode, self.source, &self.kubernetes)
            == (&other.path, &other.object, other.mode, other.source, &other.kubernetes)
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

/// Reads the settings of a route whose tokens come from an outside lock service.
fn external(given: &RouteSettings) -> Result<Option<External>, (&'static str, String)> {
    let plain = RouteSettings::default();
    if given.lease_source != LeaseSource::External {
        let only = |key| Err((key, "is for lease_source = \"external\"".to_owned()));
        return match given {
            _ if given.token_header != plain.token_header => only("token_header"),
            _ if given.max_jump != plain.max_jump => only("max_jump"),
            _ if given.ttl_ms != plain.ttl_ms => only("ttl_ms"),
            _ => Ok(None),
        };
    }
    let header = HeaderName::from_bytes(given.token_header.as_bytes());
    let header = header.map_err(|_| ("token_header", format!("{:?} is not a header's name", given.token_header)))?;
    if RESERVED.contains(&header.as_str()) {
        return Err(("token_header", format!("{header} has its own meaning; choose another header")));
    }
    if given.max_jump == 0 {
        return Err(("max_jump", "must be at least 1".to_owned()));
    }
    if given.ttl_ms != 0 && !(1_000..=Ttl::FOR_EVER.0 / 2).contains(&given.ttl_ms) {
        return Err(("ttl_ms", "must be at least 1000, or 0 where silence does not matter".to_owned()));
    }
    let silence = if given.ttl_ms == 0 { Ttl::FOR_EVER } else { Ttl(given.ttl_ms) };
    Ok(Some(External { header, limits: external::ExternalLimits { max_jump: given.max_jump, silence } }))
}

/// Reads the settings of a route that a Kubernetes Lease governs.
fn kubernetes(given: &RouteSettings, settings: &Settings) -> Result<Option<Kubernetes>, (&'static str, String)> {
    let RouteLease { namespace, name, check_holder } = &given.kubernetes;
    if given.lease_source != LeaseSource::Kubernetes {
        let is_given = given.kubernetes != RouteLease::default();
        let what = "is for lease_source = \"kubernetes\"";
        return if is_given { Err(("kubernetes", what.to_owned())) } else { Ok(None) };
    }
    // `Routes::new` reports this fault itself.
    let Ok((path, object)) = parse(given) else { return Ok(None) };
    let read = |key: &'static str, text: &str| {
        let template = ObjectTemplate::parse(text, &path).map_err(|fault| (key, fault.to_string()))?;
        let strange = template.captures().find(|capture| !object.captures().any(|own| own == *capture));
        match strange {
            None => Ok(template),
            Some(_) => Err((
                key,
                format!(
                    "{text:?} uses a capture that {:?} does not, so one object could have two Leases",
                    given.object
                ),
            )),
        }
    };
    if !object.is_unambiguous() {
        let what = format!(
            "{:?}: with a / between its captures, or else two paths could be one object with two Leases",
            given.object
        );
        return Err(("object", what));
    }
    let (namespace_of, name_of) = (read("kubernetes.namespace", namespace)?, read("kubernetes.name", name)?);
    if let Some(odd) = settings.kubernetes.namespaces.iter().find(|name| !is_label(name, NAMESPACE_MAX, false)) {
        return Err(("kubernetes.namespace", format!("kubernetes.namespaces: {odd:?} is no namespace")));
    }
    let namespaces = if namespace_of.captures().next().is_some() {
        settings.kubernetes.namespaces.clone()
    } else {
        vec![namespace.clone()]
    };
    if namespaces.is_empty() {
        let what = "has captures, so kubernetes.namespaces must say which namespaces they may name";
        return Err(("kubernetes.namespace", what.to_owned()));
    }
    if namespace_of.captures().next().is_none() && !is_label(namespace, NAMESPACE_MAX, false) {
        return Err(("kubernetes.namespace", format!("{namespace:?} is no namespace")));
    }
    if name_of.captures().next().is_none() && !is_label(name, NAME_MAX, true) {
        return Err(("kubernetes.name", format!("{name:?} is no Lease's name")));
    }
    let (namespace, name, namespaces) = (namespace_of, name_of, namespaces.into());
    Ok(Some(Kubernetes { namespace, name, check_holder: *check_holder, namespaces }))
}

/// Headers that say how a request is read, or who sends it.
const RESERVED: [&str; 16] = [
    "authorization",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "destination",
    "expect",
    "host",
    "idempotency-key",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "x-forwarded-for",
];

fn parse(given: &RouteSettings) -> Result<(PathTemplate, ObjectTemplate), (&'static str, String)> {
    let path = PathTemplate::parse(&given.path).map_err(|fault| ("match", fault.to_string()))?;
    let object = ObjectTemplate::parse(&given.object, &path).map_err(|fault| ("object", fault.to_string()))?;
    Ok((path, object))
}

impl Route {
    /// Whether it and another route could give one object leases of two kinds. (Where only one of them has a Kubernetes
    /// Lease, or an outside lock service, for some of the other's objects, each change is an advance like any other.)
    fn has_other_leases(&self, other: &Self) -> bool {
        let narrows = |one: &Self, two: &Self| one.object.narrowed_to(&two.object).is_some();
        let is_same = narrows(self, other) && narrows(other, self);
        match (&self.kubernetes, &other.kubernetes) {
            (Some(own), Some(others)) => {
                own.check_holder != others.check_holder && is_same
                    || self.object.meets(&other.object) && !self.has_lease_of(own, other, others)
            }
            (None, _) | (_, None) => is_same && self.source != other.source,
        }
    }

    /// Whether this route takes all of these paths first, so that none of them gets to `route`.
    fn takes_all_of(&self, path: &PathTemplate, route: &Self) -> bool {
        self.path.literal_prefix() > route.path.literal_prefix() && self.path.covers(path)
    }

    /// Whether both routes give every object that both can make the same Lease.
    fn has_lease_of(&self, own: &Kubernetes, other: &Self, others: &Kubernetes) -> bool {
        let is_one = |one: &ObjectTemplate, two: &ObjectTemplate| one.literal().is_some() && one == two;
        if is_one(&own.namespace, &others.namespace) && is_one(&own.name, &others.name) {
            return true;
        }
        if let Some(id) = self.object.literal().or_else(|| other.object.literal()) {
            // If there is not exactly one way to make the id, the routes do not both make it, or another fault is
            // reported.
            let (Some(mine), Some(theirs)) = (self.object.captures_of(&id), other.object.captures_of(&id)) else {
                return true;
            };
            let lease =
                |lease: &Kubernetes, captures: &[Cow<'_, str>]| lease.lease(&captures.iter().collect::<Vec<_>>());
            return lease(own, &mine) == lease(others, &theirs)
                || self.takes_all_of(&other.path.filled(&theirs), other)
                || other.takes_all_of(&self.path.filled(&mine), self);
        }
        for (wide, wide_lease, narrow, narrow_lease) in [(self, own, other, others), (other, others, self, own)] {
            let Some(narrowed) = wide.object.narrowed_to(&narrow.object) else { continue };
            let is_same = |one: &ObjectTemplate, two: &ObjectTemplate| one.in_narrow(&narrowed) == *two;
            return is_same(&wide_lease.namespace, &narrow_lease.namespace)
                && is_same(&wide_lease.name, &narrow_lease.name)
                || narrow.takes_all_of(&wide.path.filled(&narrowed.texts()), wide);
        }
        false
    }
}

/// Reports routes that disagree: two that could take the same path, with only their order to choose by, must treat it
/// alike.
fn disagreements(routes: &[Route]) -> Vec<Fault> {
    let mut faults = vec![];
    for (place, route) in routes.iter().enumerate() {
        for other in &routes[..place] {
            let tie = route.path.literal_prefix() == other.path.literal_prefix() && route.path.overlaps(&other.path);
            let agree = (&route.object, route.mode, route.store, route.source, &route.kubernetes)
                == (&other.object, other.mode, other.store, other.source, &other.kubernetes);
            if route.object == other.object && route.journal != other.journal {
                let what = format!(
                    "route {:?} has the same object, and its hash would cover a part of the writes",
                    other.name
                );
                faults.push(Fault::new(format!("route[{place}].journal"), what));
            }
            if route.has_other_leases(other) {
                let what =
                    format!("route {:?} can have the same object, and its leases come from elsewhere", other.name);
                faults.push(Fault::new(format!("route[{place}].lease_source"), what));
            }
            if tie && !agree {
                let what = format!("takes paths that route {:?} takes too, and they disagree", other.name);
                faults.push(Fault::new(format!("route[{place}].match"), what));
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(keys(&bad), ["route[0].match", "route[1].object", "route[2].name"]);
    }
}
