//! `lease_source = "kubernetes"`: the terms of a Kubernetes Lease, which the route's captures name.

use std::{borrow::Cow, sync::Arc};

use http::HeaderMap;

use super::{KeyFault, NoClaim};
use crate::{
    config::{RouteLease, RouteSettings, Settings},
    fence::{
        HolderId, ObjectId,
        elected::Claimant,
        election::{Election, LeaseName},
        outside::Claim,
        token::TokenFault,
    },
    route::{
        Route,
        fields::{FENCE_HOLDER, Marks, other_field, token_field},
        object::ObjectTemplate,
        template::PathTemplate,
    },
};

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

/// The refusal of calls of the lease api.
pub(super) const CALL_REFUSAL: &str = "a Kubernetes Lease says who may write this object (lease_source = \"kubernetes\"): be elected there, and send k8s.<uid>.<leaseTransitions> with each write";

impl Kubernetes {
    /// The Lease that these captures name; `None` where no Lease can have that name, or its namespace is not in the
    /// list.
    #[must_use]
    pub fn lease(&self, captures: &[&Cow<'_, str>]) -> Option<LeaseName> {
        let fill = |template: &ObjectTemplate| template.fill(captures).into_owned();
        let lease = LeaseName { namespace: fill(&self.namespace), name: fill(&self.name) };
        (self.namespaces.contains(&lease.namespace) && is_label(&lease.name, NAME_MAX, true)).then_some(lease)
    }

    pub(super) fn of(
        given: &RouteSettings,
        settings: &Settings,
        (path, object): &(PathTemplate, ObjectTemplate),
    ) -> Result<Self, KeyFault> {
        let RouteLease { namespace, name, check_holder } = &given.kubernetes;
        let read = |key: &'static str, text: &str| {
            let template = ObjectTemplate::parse(text, path).map_err(|fault| (key, fault.to_string()))?;
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
        Ok(Self { namespace, name, check_holder: *check_holder, namespaces })
    }

    /// The claim of a token for an object, which names the Lease. A fault of the token comes first.
    pub(super) fn claim(&self, text: &str, template: &ObjectTemplate, object: &ObjectId) -> Result<Claim, NoClaim> {
        let election = Election::parse(text).map_err(NoClaim::Malformed)?;
        let captures = template.captures_of(object.as_str());
        let lease = captures.and_then(|captures| self.lease(&captures.iter().collect::<Vec<_>>()));
        let lease = Arc::new(lease.ok_or(NoClaim::Unmapped)?);
        Ok(Claim::Term(Claimant { election, lease, term: None, holder: None }))
    }

    /// The claim that a write brings, whose captures name this Lease.
    pub(super) fn brought(
        &self,
        lease: LeaseName,
        headers: &HeaderMap,
        marks: Marks<'_>,
    ) -> Result<Option<Claim>, TokenFault> {
        let Some(text) = token_field(headers, marks)? else { return Ok(None) };
        let election = Election::parse(text)?;
        let holder = if self.check_holder {
            let field = other_field(headers, &FENCE_HOLDER, marks)?.and_then(|holder| HolderId::new(holder).ok());
            Some(field.ok_or(TokenFault::Holder)?)
        } else {
            None
        };
        Ok(Some(Claim::Term(Claimant { election, lease: Arc::new(lease), term: None, holder })))
    }

    /// The only namespaces that its captures may name.
    pub(super) fn namespaces(&self) -> &[String] {
        &self.namespaces
    }
}

/// The fault of settings for this source on a route that has another one.
pub(super) fn stray(given: &RouteSettings) -> Option<KeyFault> {
    let is_given = given.kubernetes != RouteLease::default();
    is_given.then(|| ("kubernetes", "is for lease_source = \"kubernetes\"".to_owned()))
}

/// Whether both routes give every object that both can make the same Lease.
pub(in crate::route) fn have_one_lease(
    (route, own): (&Route, &Kubernetes),
    (other, others): (&Route, &Kubernetes),
) -> bool {
    let is_one = |one: &ObjectTemplate, two: &ObjectTemplate| one.literal().is_some() && one == two;
    if is_one(&own.namespace, &others.namespace) && is_one(&own.name, &others.name) {
        return true;
    }
    if let Some(id) = route.object.literal().or_else(|| other.object.literal()) {
        // If there is not exactly one way to make the id, the routes do not both make it, or another fault is
        // reported.
        let (Some(mine), Some(theirs)) = (route.object.captures_of(&id), other.object.captures_of(&id)) else {
            return true;
        };
        let lease = |lease: &Kubernetes, captures: &[Cow<'_, str>]| lease.lease(&captures.iter().collect::<Vec<_>>());
        return lease(own, &mine) == lease(others, &theirs)
            || route.takes_all_of(&other.path.filled(&theirs), other)
            || other.takes_all_of(&route.path.filled(&mine), route);
    }
    for (wide, wide_lease, narrow, narrow_lease) in [(route, own, other, others), (other, others, route, own)] {
        let Some(narrowed) = wide.object.narrowed_to(&narrow.object) else { continue };
        let is_same = |one: &ObjectTemplate, two: &ObjectTemplate| one.in_narrow(&narrowed) == *two;
        return is_same(&wide_lease.namespace, &narrow_lease.namespace)
            && is_same(&wide_lease.name, &narrow_lease.name)
            || narrow.takes_all_of(&wide.path.filled(&narrowed.texts()), wide);
    }
    false
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
