//! What is known of one call, for its line. The layers and the handlers add to it while the call goes on.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value};

use super::{entry::bounded, queue::Place};
use crate::fence::{HolderId, ObjectId};

/// The most objects that a line about a denied call names.
const DENIED_OBJECTS_MAX: usize = 8;

/// The facts of a call, as each part of it holds them.
#[derive(Clone, Default)]
pub struct Facts(Arc<Mutex<Known>>);

/// What is known.
#[derive(Default)]
pub struct Known {
    pub principal: Option<String>,
    pub source: Option<String>,
    pub objects: Vec<String>,
    pub holder: Option<String>,
    pub lease_seq: Option<u64>,
    /// What the call has given, by object and lease_seq.
    pub granted: Vec<(String, u64)>,
    pub detail: Map<String, Value>,
    /// Kept for the call's line.
    pub place: Option<Place>,
    /// The caller was let in.
    pub is_admitted: bool,
    /// A caller that hangs up leaves nothing changed: what it gets then is given back.
    pub gives_back: bool,
}

impl Known {
    /// Names few objects: a call that is denied must not write a long line. The last one stays, since a batch is
    /// denied at the last object that it has got to. `detail` says how many there were.
    pub fn shorten(&mut self) {
        let all = self.objects.len();
        if all <= DENIED_OBJECTS_MAX {
            return;
        }
        self.objects.drain(DENIED_OBJECTS_MAX - 1..all - 1);
        self.detail.insert("objects".to_owned(), all.into());
    }
}

impl Facts {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who calls.
    pub fn caller(&self, principal: &str, source: &str) {
        let mut known = self.known();
        (known.principal, known.source) = (Some(principal.to_owned()), Some(source.to_owned()));
    }

    /// One more object that the call is about.
    pub fn object(&self, object: &ObjectId) {
        let mut known = self.known();
        if known.objects.last().is_none_or(|last| last != object.as_str()) {
            known.objects.push(object.to_string());
        }
    }

    /// All objects that the call is about, and the holder.
    pub fn held(&self, objects: &[ObjectId], holder: &HolderId) {
        let mut known = self.known();
        known.objects = objects.iter().map(ToString::to_string).collect();
        known.holder = Some(holder.to_string());
    }

    /// The holder that the call is about.
    pub fn holder(&self, holder: &str) {
        self.known().holder = Some(bounded(holder));
    }

    /// The lease's number that the call is about.
    pub fn lease_seq(&self, seq: u64) {
        self.known().lease_seq = Some(seq);
    }

    /// The call has given a lease.
    pub fn granted(&self, object: &ObjectId, seq: u64) {
        self.known().granted.push((object.to_string(), seq));
    }

    /// Whether nothing is changed where the caller has hung up now.
    #[must_use]
    pub fn leaves_nothing(&self) -> bool {
        let known = self.known();
        known.gives_back && known.granted.is_empty()
    }

    /// A caller that hangs up leaves nothing changed.
    pub fn gives_back(&self) {
        self.known().gives_back = true;
    }

    /// One more detail. Texts are cut to a length that a line may have.
    pub fn detail(&self, name: &str, value: impl Into<Value>) {
        let value = match value.into() {
            Value::String(text) => Value::String(bounded(&text)),
            other => other,
        };
        self.known().detail.insert(name.to_owned(), value);
    }

    /// The caller was let in. `place`: kept for the call's line.
    pub fn admitted(&self, place: Option<Place>) {
        let mut known = self.known();
        (known.is_admitted, known.place) = (true, place);
    }

    /// What is known. Nothing is known afterwards.
    #[must_use]
    pub fn take(&self) -> Known {
        std::mem::take(&mut *self.known())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acquire_that_hangs_up_leaves_nothing_unless_it_was_granted_something() {
        let facts = Facts::default();
        assert!(!facts.leaves_nothing());
        facts.gives_back();
        assert!(facts.leaves_nothing());
        facts.granted(&ObjectId::new("/a").unwrap(), 1);
        assert!(!facts.leaves_nothing());
    }

    #[test]
    fn a_denied_batch_names_few_objects_and_says_how_many_there_were() {
        let facts = Facts::default();
        (0..100).for_each(|n| facts.object(&ObjectId::new(&format!("/data/{n}")).unwrap()));
        let mut known = facts.take();
        known.shorten();
        assert_eq!(
            (known.objects.len(), known.objects[6].as_str(), known.objects[7].as_str()),
            (8, "/data/6", "/data/99")
        );
        assert_eq!(known.detail["objects"], 100);
        known.objects.truncate(8);
        known.detail.clear();
        known.shorten();
        assert!(known.objects.len() == 8 && known.detail.is_empty());
    }
}
