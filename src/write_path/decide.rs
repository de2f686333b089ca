//! May this write go on? `fence::judge`, under the object's lock; the write counts as in flight from
//! the same moment on. No rules of its own.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::{Plane, inflight::InFlight};
use crate::{
    api::Gate,
    failpoints::{self, Point},
    fence::{
        Denial, ObjectId, Permit, Refusal, Ttl,
        verdict::{self, Presented, Unusable, View},
    },
    table::stripes::Place,
};

/// Judges a write. Reads the record if it is not in memory, and ends a lease that has run out before
/// anyone is told so. `bound`: how long the write may still land once its connection is gone.
///
/// # Errors
/// With the refusal that the write gets.
pub async fn decide(
    gate: &Arc<Gate>,
    object: &ObjectId,
    presented: Presented,
    bound: Ttl,
) -> Result<InFlight, Refusal> {
    loop {
        match judge(gate, object, &presented) {
            Some(Ok(admitted)) => {
                failpoints::reach(Point::Admitted);
                return Ok(InFlight::new(Arc::clone(gate), admitted, presented, bound));
            }
            Some(Err(Denial::Refused(refusal))) => return Err(refusal),
            Some(Err(Denial::Overdue(lease))) => {
                let ended = gate.ledger.end(vec![(object.clone(), lease)]).await;
                ended.map_err(|_| Refusal::Unusable(Unusable::Table))?;
            }
            None => {
                let wanted = object.clone();
                let loaded = gate.read(move |records| records.read(&wanted).map(drop)).await;
                loaded.map_err(|_| Refusal::Unusable(Unusable::Table))?;
            }
        }
    }
}

/// How often a write that waits for its lease to open is judged anew.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The same, for a write that waits up to `patience` while its lease is changing hands. It holds no permit
/// meanwhile, its body is not asked for, and it is judged from the start each time.
///
/// # Errors
/// As [`decide`].
pub async fn decide_in_time(
    plane: &Plane,
    object: &ObjectId,
    presented: Presented,
    bound: Ttl,
    patience: Duration,
) -> Result<InFlight, Refusal> {
    let first = decide(&plane.gate, object, presented.clone(), bound).await;
    if !patience.is_zero()
        && matches!(first, Err(Refusal::Draining { .. }))
        && let Some(_place) = Waiting::take(plane)
    {
        let opened = async {
            loop {
                tokio::time::sleep(LOOK_AGAIN).await;
                let judged = decide(&plane.gate, object, presented.clone(), bound).await;
                if !matches!(judged, Err(Refusal::Draining { .. })) {
                    return judged;
                }
            }
        };
        return tokio::time::timeout(patience, opened).await.unwrap_or(first);
    }
    first
}

/// A place among the writes that wait for a lease to open: there are only so many.
struct Waiting<'a>(&'a Plane);

const WAITING_MAX: usize = 1_024;

impl<'a> Waiting<'a> {
    fn take(plane: &'a Plane) -> Option<Self> {
        let before = plane.waiting.fetch_add(1, Ordering::Relaxed);
        let taken = Self(plane);
        (before < WAITING_MAX).then_some(taken)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

type Judged = Result<(Permit, Place), Denial>;

/// One look, under the lock. `None`: the record is not in memory.
fn judge(gate: &Gate, object: &ObjectId, presented: &Presented) -> Option<Judged> {
    let now = gate.now();
    if gate.records.latched().is_some() {
        let latched = verdict::judge(object, View::Unusable(Unusable::Table), presented, now);
        return Some(latched.map(|_| unreachable!("an unusable table admits nothing")));
    }
    // What is wrong with the token itself needs no record.
    if !matches!(presented, Presented::Token(token) if token.object == *object) {
        let unlinked = verdict::judge(object, View::Unusable(Unusable::Table), presented, now);
        return Some(unlinked.map(|_| unreachable!("an unusable table admits nothing")));
    }
    gate.records
        .stripes
        .admit(object, |record, sealed| verdict::judge(object, View::Known { record, sealed }, presented, now))
}
