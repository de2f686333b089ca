//! Grants: which principals may do what to which objects, and in whose name.
//!
//! A call is allowed if one grant allows all of it: the principal, the operation, the object, and for `acquire` the
//! holder. Without such a grant it is denied. Grants only add up, so their order does not matter; refusals and the
//! audit log name the first that allows.

use super::{
    principal::{Kind, Principal},
    template::Template,
};
use crate::{
    config::{Fault, GrantSettings, Operation},
    fence::{HolderId, ObjectId, domain::Domain},
};

/// In [`GrantSettings::objects`]: every object.
const ALL: &str = "*";

/// All grants.
#[derive(Clone, Debug, Default)]
pub struct Rules(Vec<Grant>);

#[derive(Clone, Debug)]
struct Grant {
    name: String,
    principals: Vec<Pattern>,
    groups: Vec<String>,
    sources: Vec<String>,
    operations: Vec<Operation>,
    objects: Vec<Objects>,
    holder: Template,
}

/// A principal's name, or the beginning of names.
#[derive(Clone, Debug)]
enum Pattern {
    Name(String),
    Beginning(String),
}

#[derive(Clone, Debug)]
enum Objects {
    All,
    Under(Template),
}

/// Why a call is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    /// No grant has the principal and the operation.
    Operation,
    /// One has, but not for this object.
    Object,
    /// One has the object too, but not for this holder. These would do, or names that begin with one of them and the
    /// separator behind it.
    Holder(Vec<(String, &'static str)>),
}

/// The objects that a principal may do something with.
#[derive(Clone, Debug)]
pub struct View {
    all: bool,
    parts: Vec<Domain>,
}

impl View {
    /// Every object.
    #[must_use]
    pub fn all() -> Self {
        Self { all: true, parts: vec![] }
    }

    /// Whether every object is among them.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.all
    }

    /// The parts that it consists of; `None`: it is every object.
    #[must_use]
    pub fn parts(&self) -> Option<&[Domain]> {
        (!self.all).then_some(&self.parts)
    }

    /// Whether the object is among them.
    #[must_use]
    pub fn covers(&self, object: &str) -> bool {
        self.all || self.parts.iter().any(|part| part.covers(object))
    }
}

impl Rules {
    /// The grants of these settings.
    ///
    /// # Errors
    /// With every fault. `sources` are the names of the identity sources.
    pub fn new(given: &[GrantSettings], sources: &[&str]) -> Result<Self, Vec<Fault>> {
        let (mut grants, mut faults) = (vec![], vec![]);
        for (place, settings) in given.iter().enumerate() {
            let found = grant_faults(settings, sources, &given[..place]);
            if found.is_empty() {
                grants.extend(read(settings));
            }
            faults.extend(found.into_iter().map(|(key, what)| Fault::new(format!("grant[{place}].{key}"), what)));
        }
        if faults.is_empty() { Ok(Self(grants)) } else { Err(faults) }
    }

    /// The grants for this principal and operation.
    fn of<'a>(&'a self, who: &Principal, operation: Operation) -> impl Iterator<Item = &'a Grant> {
        self.0.iter().filter(move |grant| grant.operations.contains(&operation) && grant.is_for(who))
    }

    /// Whether the principal may do this to any object at all.
    #[must_use]
    pub fn allow_some(&self, who: &Principal, operation: Operation) -> bool {
        self.of(who, operation).next().is_some()
    }

    /// The objects to which the principal may do this.
    #[must_use]
    pub fn view(&self, who: &Principal, operation: Operation) -> View {
        let mut view = View { all: false, parts: vec![] };
        for objects in self.of(who, operation).flat_map(|grant| &grant.objects) {
            match objects.part(who) {
                Some(Part::All) => view.all = true,
                Some(Part::Domain(domain)) => view.parts.push(domain),
                None => {}
            }
        }
        view
    }

    /// Whether the principal may do this to the object, and for `acquire` in this holder's name. Returns the name of the
    /// grant that allows it.
    ///
    /// # Errors
    /// When no grant allows it.
    pub fn decide(
        &self,
        who: &Principal,
        operation: Operation,
        object: &ObjectId,
        holder: Option<&HolderId>,
    ) -> Result<&str, Denied> {
        let (mut denied, mut holders) = (Denied::Operation, vec![]);
        for grant in self.of(who, operation) {
            if !grant.covers(who, object) {
                denied = Denied::Object;
            } else if holder.is_none_or(|holder| grant.binds(who, holder)) {
                return Ok(&grant.name);
            } else {
                holders.extend(grant.holder.holder(who).map(|root| (root, separator(who))));
            }
        }
        Err(if holders.is_empty() { denied } else { Denied::Holder(holders) })
    }

    /// The holders' names that the principal may use: each, and those that begin with it and the separator behind it.
    #[must_use]
    pub fn holders(&self, who: &Principal) -> Vec<(String, &'static str)> {
        let wanted = self.of(who, Operation::Acquire);
        let mut holders: Vec<_> = wanted.filter_map(|grant| grant.holder.holder(who)).collect();
        holders.dedup();
        holders.into_iter().map(|root| (root, separator(who))).collect()
    }
}

/// What may stand behind a holder's name, before a part of the principal's own choice. A principal with slashes in its
/// name has two: with one, its holders could have the name of another principal.
fn separator(who: &Principal) -> &'static str {
    if who.name().contains('/') { "//" } else { "/" }
}

/// Whether a principal's bare name is no holder's name: `a/b` could be the holder `a/b` of the principal `a`. No other
/// principal has a name that a SPIFFE ID begins with.
fn needs_part(root: &str, who: &Principal) -> bool {
    root == who.name() && root.contains('/') && who.kind() != Kind::Mtls
}

enum Part {
    All,
    Domain(Domain),
}

impl Objects {
    /// `None`: the principal lacks what the template needs.
    fn part(&self, who: &Principal) -> Option<Part> {
        match self {
            Self::All => Some(Part::All),
            Self::Under(template) => Domain::parse(&template.object(who)?).ok().map(Part::Domain),
        }
    }
}

impl Pattern {
    fn matches(&self, name: &str) -> bool {
        match self {
            Self::Name(wanted) => wanted == name,
            Self::Beginning(begin) => name.starts_with(begin),
        }
    }
}

impl Grant {
    fn is_for(&self, who: &Principal) -> bool {
        let source = self.sources.is_empty() || self.sources.iter().any(|source| source == who.source());
        let named = self.principals.iter().any(|pattern| pattern.matches(who.name()));
        source && (named || self.groups.iter().any(|group| who.groups().contains(group)))
    }

    fn covers(&self, who: &Principal, object: &ObjectId) -> bool {
        self.objects.iter().any(|objects| match objects.part(who) {
            Some(Part::All) => true,
            Some(Part::Domain(domain)) => domain.covers(object.as_str()),
            None => false,
        })
    }

    /// Whether the principal may hold a lease under this name.
    fn binds(&self, who: &Principal, holder: &HolderId) -> bool {
        self.holder.holder(who).is_some_and(|root| is_in_name_of(&root, who, holder))
    }
}

/// Whether a holder's name is this one, or this one with a part of the principal's own choice behind it.
fn is_in_name_of(root: &str, who: &Principal, holder: &HolderId) -> bool {
    let Some(rest) = holder.as_str().strip_prefix(root) else { return false };
    if rest.is_empty() {
        return !needs_part(root, who);
    }
    rest.strip_prefix(separator(who)).is_some_and(|own| !own.is_empty() && !own.starts_with('/') && !own.contains("//"))
}

type Wrong = (&'static str, String);

fn grant_faults(settings: &GrantSettings, sources: &[&str], earlier: &[GrantSettings]) -> Vec<Wrong> {
    let mut faults = vec![];
    let mut check = |ok: bool, key: &'static str, what: &str| {
        if !ok {
            faults.push((key, what.to_owned()));
        }
    };
    check(!settings.name.is_empty(), "name", "must not be empty: refusals and the audit log name it");
    check(earlier.iter().all(|each| each.name != settings.name), "name", "another grant has this name");
    let is_for_no_one = settings.principals.is_empty() && settings.groups.is_empty();
    check(!is_for_no_one, "principals", "must name at least one principal, or groups at least one group");
    check(
        !settings.operations.is_empty(),
        "operations",
        "must name at least one: acquire, read, operate, issue, advance",
    );
    check(!settings.objects.is_empty(), "objects", "must name at least one, such as \"/data/\"; \"*\" is every object");
    for source in &settings.sources {
        let what = format!("there is no [[identity]] named {source:?}");
        check(sources.contains(&source.as_str()), "sources", &what);
    }
    for pattern in &settings.principals {
        if let Err(what) = read_pattern(pattern) {
            faults.push(("principals", what));
        }
    }
    for objects in &settings.objects {
        if let Err(what) = read_objects(objects) {
            faults.push(("objects", what));
        }
    }
    match Template::parse(&settings.holder) {
        Ok(template) if template.sample().is_empty() => faults.push(("holder", "must not be empty".to_owned())),
        Ok(_) => {}
        Err(what) => faults.push(("holder", what)),
    }
    faults
}

/// A grant without a fault.
fn read(settings: &GrantSettings) -> Option<Grant> {
    Some(Grant {
        name: settings.name.clone(),
        principals: settings.principals.iter().map(|text| read_pattern(text)).collect::<Result<_, _>>().ok()?,
        groups: settings.groups.clone(),
        sources: settings.sources.clone(),
        operations: settings.operations.clone(),
        objects: settings.objects.iter().map(|text| read_objects(text)).collect::<Result<_, _>>().ok()?,
        holder: Template::parse(&settings.holder).ok()?,
    })
}

fn read_pattern(text: &str) -> Result<Pattern, String> {
    let Some(begin) = text.strip_suffix('*') else {
        return if text.is_empty() || text.contains('*') {
            Err(format!("{text:?} is no name; a * may stand only at the end"))
        } else {
            Ok(Pattern::Name(text.to_owned()))
        };
    };
    if begin.contains('*') || !(begin.is_empty() || begin.ends_with([':', '/'])) {
        return Err(format!("{text:?}: a * stands alone, or behind a : or a /, so that no name is cut in the middle"));
    }
    Ok(Pattern::Beginning(begin.to_owned()))
}

fn read_objects(text: &str) -> Result<Objects, String> {
    if text == ALL {
        return Ok(Objects::All);
    }
    if text.contains('*') {
        return Err(format!(
            "{text:?}: a * stands alone, for every object; other texts cover all that begins with them"
        ));
    }
    let template = Template::parse(text)?;
    Domain::parse(&template.sample())?;
    Ok(Objects::Under(template))
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
