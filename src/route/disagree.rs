//! Routes that disagree about an object or a path. Their places are those in the settings, before they are sorted.

use super::{Route, source::kubernetes, template::PathTemplate};
use crate::config::Fault;

impl Route {
    /// Whether it and another route could give one object leases of two kinds. (Where only one of them has a Kubernetes
    /// Lease, or an outside lock service, for some of the other's objects, each change is an advance like any other.)
    fn has_other_leases(&self, other: &Self) -> bool {
        let narrows = |one: &Self, two: &Self| one.object.narrowed_to(&two.object).is_some();
        let is_same = narrows(self, other) && narrows(other, self);
        match (self.kubernetes(), other.kubernetes()) {
            (Some(own), Some(others)) => {
                own.check_holder != others.check_holder && is_same
                    || self.object.meets(&other.object) && !kubernetes::have_one_lease((self, own), (other, others))
            }
            (None, _) | (_, None) => is_same && self.source.setting() != other.source.setting(),
        }
    }

    /// Whether this route takes all of these paths first, so that none of them gets to `route`.
    pub(super) fn takes_all_of(&self, path: &PathTemplate, route: &Self) -> bool {
        self.path.literal_prefix() > route.path.literal_prefix() && self.path.covers(path)
    }
}

/// Reports routes that disagree: two that could take the same path, with only their order to choose by, must treat it
/// alike.
pub(super) fn disagreements(routes: &[Route]) -> Vec<Fault> {
    let mut faults = vec![];
    for (n, route) in routes.iter().enumerate() {
        let place = route.place;
        for other in &routes[..n] {
            let tie = route.path.literal_prefix() == other.path.literal_prefix() && route.path.overlaps(&other.path);
            let agree = (&route.object, route.mode, route.profile, route.store)
                == (&other.object, other.mode, other.profile, other.store)
                && route.source.acts_like(&other.source);
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
