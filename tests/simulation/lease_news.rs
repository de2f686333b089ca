//! What the gate tells of a Lease: to the writes that ask about their terms, and to the objects that follow it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::sync::oneshot;

use super::oracle::Violation;
use fencegate::{
    fence::{
        Fence, HolderId, ObjectId, Refusal,
        elected::{LeaseObservation, Term},
        election::{Election, TermStatus},
    },
    table::ledger::{LedgerError, Moved},
};

/// A write that asks whether its term is the present one.
pub(super) struct Asker {
    pub(super) write: u64,
    pub(super) election: Election,
}

/// The answer to an ask.
pub(super) enum AskResult {
    No(Refusal),
    /// The write's term, and the ledger's answer about its object.
    Moved(Arc<Term>, oneshot::Receiver<Result<Moved, LedgerError>>),
}

impl AskResult {
    /// Does what `attach_present_term` does in `src/sources/kubernetes.rs`.
    pub(super) fn of(election: Election, present: Option<Election>, moved: impl FnOnce() -> Self) -> Self {
        match election.status(present) {
            TermStatus::Present => moved(),
            TermStatus::Ahead => Self::No(Refusal::NotElected { election, fence: Fence::default() }),
            TermStatus::Over => Self::No(Refusal::Deposed { election, fence: Fence::default(), successor: None }),
        }
    }
}

/// The part of a read's result that is passed on: the term and its holder.
type Gist = Option<(Election, Option<HolderId>)>;

fn gist(result: &LeaseObservation) -> Gist {
    match result {
        LeaseObservation::Gone { .. } => None,
        LeaseObservation::Held { election, holder, .. } => Some((*election, holder.clone())),
    }
}

/// The last result that the ledger's queue got for each object that follows a Lease.
#[derive(Default)]
pub(super) struct PassedOn(BTreeMap<ObjectId, Gist>);

impl PassedOn {
    /// Forgets objects that follow no longer. They may come back without the last result.
    pub(super) fn keep(&mut self, followers: Option<&BTreeSet<ObjectId>>) {
        self.0.retain(|object, _| followers.is_some_and(|followers| followers.contains(object)));
    }

    /// Notes that the ledger's queue has this result for these objects.
    pub(super) fn note(&mut self, objects: &[ObjectId], result: &LeaseObservation) {
        self.0.extend(objects.iter().map(|object| (object.clone(), gist(result))));
    }

    /// Checks a result by which a write is answered: all followers have it. `new`: objects that begin to follow right
    /// now, each with a result of its own.
    pub(super) fn answered(
        &self,
        result: &LeaseObservation,
        followers: &BTreeSet<ObjectId>,
        new: &[ObjectId],
    ) -> Result<(), Violation> {
        let has_it = |object: &ObjectId| match self.0.get(object) {
            Some(last) => *last == gist(result),
            None => new.contains(object),
        };
        match followers.iter().find(|follower| !has_it(follower)) {
            Some(late) => {
                let what = format!("{late}: a write was answered by {result:?} before this object had that");
                Err(Violation { name: "PASSED ON", what })
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use fencegate::fence::election::{LeaseName, Uid};

    use super::*;

    fn held(transitions: u32, lapsed: bool) -> LeaseObservation {
        let lease = Arc::new(LeaseName { namespace: "left".to_owned(), name: "l".to_owned() });
        LeaseObservation::Held { lease, election: Election { uid: Uid(1), transitions }, holder: None, lapsed }
    }

    #[test]
    fn a_follower_without_the_last_result_is_found() {
        let [old, new] = ["old", "new"].map(|name| ObjectId::new(name).unwrap());
        let followers = BTreeSet::from([old.clone(), new.clone()]);
        let mut passed_on = PassedOn::default();
        passed_on.note(std::slice::from_ref(&old), &held(1, false));
        // That a Lease has lapsed is not passed on.
        assert!(passed_on.answered(&held(1, true), &followers, std::slice::from_ref(&new)).is_ok());
        assert!(passed_on.answered(&held(1, false), &followers, &[]).is_err());
        assert!(passed_on.answered(&held(2, false), &followers, std::slice::from_ref(&new)).is_err());
        // An object that begins to follow has had a result already, but not this one.
        assert!(passed_on.answered(&held(2, false), &followers, &[old.clone(), new.clone()]).is_err());
        passed_on.keep(Some(&BTreeSet::from([new.clone()])));
        assert!(passed_on.answered(&held(2, false), &followers, &[old, new]).is_ok());
    }
}
