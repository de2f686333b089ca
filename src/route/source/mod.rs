//! Where the leases of a route's objects come from, and what its writes bring. The seam of `route/` for lease sources.
//!
//! A source is one module here: its settings, and how its token is read from a request or from a call of the api. This
//! file names every source once in each place where routes differ by it, so that a new source does not compile before
//! each of its parts is there.

pub mod external;
pub mod kubernetes;

use std::borrow::Cow;

use http::HeaderMap;
use sha2::{Digest, Sha256};

pub use self::{external::External, kubernetes::Kubernetes};
use super::{
    Route, Routes,
    classify::{Brought, Unfit, unfit},
    fields::{Marks, token_field},
    object::ObjectTemplate,
    template::PathTemplate,
};
use crate::{
    config::{LeaseSource, RouteLease, RouteSettings, Settings},
    fence::{
        Code, ObjectId, Record,
        outside::{self, Claim},
        token::TokenFault,
        verdict::Presented,
    },
};

/// A key of a route's settings, and what is wrong with its value.
pub(super) type KeyFault = (&'static str, String);

/// Whether the holders of a source's leases are named as principals of the api are.
pub(super) fn has_principals(source: LeaseSource) -> bool {
    match source {
        LeaseSource::Gate | LeaseSource::Authority => true,
        LeaseSource::External | LeaseSource::Kubernetes => false,
    }
}

/// The source of a route's leases, with its settings.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// The lease api.
    Gate,
    /// Signed grants only.
    Authority,
    /// An outside lock service.
    External(External),
    /// A Kubernetes Lease.
    Kubernetes(Kubernetes),
}

impl Source {
    /// Reads the settings of a route's source. Returns it, where it can be read, and all faults. `templates`: `None`
    /// where they have a fault of their own.
    pub(super) fn of(
        given: &RouteSettings,
        settings: &Settings,
        templates: Option<&(PathTemplate, ObjectTemplate)>,
    ) -> (Option<Self>, Vec<KeyFault>) {
        let mut faults = vec![];
        if given.lease_source != LeaseSource::Kubernetes {
            faults.extend(kubernetes::stray(given));
        }
        let source = match given.lease_source {
            LeaseSource::Gate => Some(Self::Gate),
            LeaseSource::Authority => Some(Self::Authority),
            LeaseSource::External => External::of(given).map(Self::External).map_err(|fault| faults.push(fault)).ok(),
            LeaseSource::Kubernetes => templates.and_then(|templates| {
                let read = Kubernetes::of(given, settings, templates).map(Self::Kubernetes);
                read.map_err(|fault| faults.push(fault)).ok()
            }),
        };
        if given.lease_source != LeaseSource::External {
            faults.extend(external::stray(given));
        }
        (source, faults)
    }

    /// Its value in the settings.
    #[must_use]
    pub fn setting(&self) -> LeaseSource {
        match self {
            Self::Gate => LeaseSource::Gate,
            Self::Authority => LeaseSource::Authority,
            Self::External(_) => LeaseSource::External,
            Self::Kubernetes(_) => LeaseSource::Kubernetes,
        }
    }

    /// What it is to the rules.
    #[must_use]
    pub fn to_fence(&self) -> outside::Source {
        match self {
            Self::Gate | Self::Authority => outside::Source::Gate,
            Self::External(_) => outside::Source::External,
            Self::Kubernetes(_) => outside::Source::Kubernetes,
        }
    }

    /// Whether writes bring tokens that the gate made. Such a token names its object, so a write may bring several.
    pub(super) fn has_gate_tokens(&self) -> bool {
        !self.to_fence().is_outside()
    }

    /// Whether both take the same tokens to the same leases. Limits may differ.
    pub(super) fn acts_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Kubernetes(own), Self::Kubernetes(others)) => own == others,
            (Self::Gate | Self::Authority | Self::External(_) | Self::Kubernetes(_), _) => {
                self.setting() == other.setting()
            }
        }
    }

    /// Why the lease api takes no calls for objects of this source, if so.
    #[must_use]
    pub fn call_refusal(&self) -> Option<(Code, &'static str)> {
        match self {
            Self::Gate => None,
            Self::Authority => Some((
                Code::GrantRequired,
                "leases of this object come from signed grants only (lease_source = \"authority\"); ask its issuer",
            )),
            Self::External(_) => Some((Code::ExternalLease, external::CALL_REFUSAL)),
            Self::Kubernetes(_) => Some((Code::ExternalLease, kubernetes::CALL_REFUSAL)),
        }
    }

    /// What a write brings for its object, by the captures of its path.
    ///
    /// # Errors
    /// Where no lease can govern the object.
    #[inline]
    pub(super) fn brought<'a>(
        &self,
        headers: &'a HeaderMap,
        marks: Marks<'a>,
        captures: &[&Cow<'_, str>],
    ) -> Result<Brought<'a>, Unfit> {
        let claim = match self {
            Self::Gate | Self::Authority => return Ok(gate_token(headers, marks)),
            Self::External(external) => external.brought(headers, marks),
            Self::Kubernetes(kubernetes) => {
                let lease = kubernetes.lease(captures).ok_or_else(|| {
                    let what = "no Lease that this gate looks at could govern this object: its namespace is not among those of the route, or no Lease can have its name";
                    unfit(Code::ObjectUnmapped, what)
                })?;
                kubernetes.brought(lease, headers, marks)
            }
        };
        Ok(Brought::Read(match claim {
            Ok(None) => Presented::Nothing,
            Ok(Some(claim)) => Presented::Outside(claim),
            Err(fault) => Presented::Unreadable(fault),
        }))
    }
}

/// The gate's own token, or the fault that makes it unreadable.
pub(super) fn gate_token<'a>(headers: &HeaderMap, marks: Marks<'a>) -> Brought<'a> {
    match token_field(headers, marks) {
        Ok(None) => Brought::Read(Presented::Nothing),
        Ok(Some(text)) => Brought::Text(text),
        Err(fault) => Brought::Read(Presented::Unreadable(fault)),
    }
}

/// Adds to the hash of the routes what their source does to an object's leases.
pub(super) fn hash(given: &RouteSettings, hash: &mut Sha256) {
    if given.lease_source != LeaseSource::Gate {
        hash.update([given.lease_source as u8]);
    }
    if given.kubernetes != RouteLease::default() {
        for part in [&given.kubernetes.namespace, &given.kubernetes.name] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
    }
}

/// What is at stake where the tokens of a source have no secret.
#[derive(Clone, Copy, Debug)]
pub struct Risk {
    /// The source's name in the settings.
    pub name: &'static str,
    /// What a lost table means.
    pub lost: &'static str,
    /// What a caller can do who reaches the gate's port.
    pub open: &'static str,
}

/// What is at stake with this source; `None` where its tokens have a secret.
#[must_use]
pub fn risk(source: LeaseSource) -> Option<Risk> {
    match source {
        LeaseSource::Gate | LeaseSource::Authority => None,
        LeaseSource::External => {
            let (lost, open) = ("every old token would count as the first", "can move the fence");
            Some(Risk { name: "external", lost, open })
        }
        LeaseSource::Kubernetes => {
            let (lost, open) = ("the terms that are over would be forgotten", "and read the Lease can write");
            Some(Risk { name: "kubernetes", lost, open })
        }
    }
}

/// An object, and the route that takes its leases from an outside source.
#[derive(Clone, Copy, Debug)]
pub struct Outside<'a> {
    route: &'a Route,
    object: &'a ObjectId,
}

/// Why there is no claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoClaim {
    Malformed(TokenFault),
    /// No lease can govern the object.
    Unmapped,
}

impl Outside<'_> {
    /// The claim of a token that a caller of the api names for the object.
    ///
    /// # Errors
    /// Where the token cannot be read, or the object can have no lease.
    pub fn claim(&self, text: &str) -> Result<Claim, NoClaim> {
        match &self.route.source {
            Source::External(external) => external.claim(text).map_err(NoClaim::Malformed),
            Source::Kubernetes(kubernetes) => kubernetes.claim(text, &self.route.object, self.object),
            Source::Gate | Source::Authority => Err(NoClaim::Unmapped),
        }
    }
}

impl Route {
    /// Its Kubernetes Lease, where one says who may write.
    #[must_use]
    pub fn kubernetes(&self) -> Option<&Kubernetes> {
        match &self.source {
            Source::Kubernetes(kubernetes) => Some(kubernetes),
            Source::Gate | Source::Authority | Source::External(_) => None,
        }
    }
}

impl Routes {
    /// Routes that may make this object's id.
    fn of_object(&self, object: &ObjectId) -> impl Iterator<Item = &Route> {
        self.all.iter().filter(|route| route.may_make(object))
    }

    /// The route that takes this object's leases from an outside source; `None` where no route that may make this id
    /// does. A Kubernetes Lease comes before an outside lock service.
    #[must_use]
    pub fn outside_of<'a>(&'a self, object: &'a ObjectId) -> Option<Outside<'a>> {
        let outside = self.of_object(object).filter(|route| route.source.to_fence().is_outside());
        let route = outside.min_by_key(|route| match route.source.to_fence() {
            outside::Source::Kubernetes => 0,
            outside::Source::External => 1,
            outside::Source::Gate => 2,
        })?;
        Some(Outside { route, object })
    }

    /// Why the lease api takes no calls for this object, if so.
    #[must_use]
    pub fn call_refusal(&self, object: &ObjectId) -> Option<(Code, &'static str)> {
        let refusals = self.of_object(object).filter_map(|route| Some((&route.source, route.source.call_refusal()?)));
        let first = refusals.min_by_key(|(source, _)| match source {
            Source::External(_) => 0,
            Source::Kubernetes(_) => 1,
            Source::Gate | Source::Authority => 2,
        });
        first.map(|(_, refusal)| refusal)
    }

    /// Whether an object is locked for a source that its leases may come from. An object may be locked without a row.
    #[must_use]
    pub fn is_locked(&self, record: &Record) -> bool {
        self.of_object(&record.object).any(|route| record.is_locked_for(route.source.to_fence()))
    }

    /// The source that numbers an object's leases, as far as its routes say so. An outside lock service's numbers come
    /// before the gate's own, which can be raised without harm.
    #[must_use]
    pub fn numbered_by(&self, object: &ObjectId) -> outside::Source {
        let all = self.of_object(object).map(|route| route.source.to_fence());
        let first = all.min_by_key(|source| match source {
            outside::Source::External => 0,
            outside::Source::Kubernetes => 1,
            outside::Source::Gate => 2,
        });
        // An object that no route makes has leases of the gate only.
        first.unwrap_or(outside::Source::Gate)
    }

    /// The namespaces whose Leases govern objects.
    #[must_use]
    pub fn namespaces(&self) -> Vec<String> {
        let all = self.all.iter().filter_map(Route::kubernetes);
        let mut all: Vec<String> = all.flat_map(|kubernetes| kubernetes.namespaces().iter().cloned()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}
