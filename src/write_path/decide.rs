//! May this write go on? `fence::judge`, under the object's lock; the write counts as in flight from
//! the same moment on. No rules of its own.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::{
    Plane,
    classify::Target,
    inflight::{self, Denied, InFlight, Leg},
};
use crate::{
    api::Gate,
    failpoints::{self, Point},
    fence::{
        Denial, Now, ObjectId, Permit, Record, Refusal, Ttl,
        verdict::{self, Presented, Unusable, View},
    },
    table::{records::Records, stripes::Place},
};

/// A write that may not go on, for now or for ever.
#[derive(Debug)]
pub struct Refused {
    /// Which of its objects says so.
    pub object: ObjectId,
    pub why: Refusal,
}

/// Judges a write. Reads records that are not in memory, and ends a lease that has run out before anyone
/// is told so. `bound`: how long the write may still land once its connection is gone.
///
/// # Errors
/// With the refusal that the write gets.
pub async fn decide(gate: &Arc<Gate>, target: Target, others: Vec<Target>, bound: Ttl) -> Result<InFlight, Refused> {
    loop {
        let judged = if others.is_empty() { judge(gate, &target) } else { judge_all(gate, &target, &others) };
        let Denied { object, why } = match judged {
            Judged::Admitted(admitted, more) => {
                failpoints::reach(Point::Admitted);
                let leg = Leg::new(admitted, target.presented);
                let legs = more.into_iter().zip(others).map(|(admitted, other)| Leg::new(admitted, other.presented));
                return Ok(InFlight::new(Arc::clone(gate), leg, legs.collect(), bound));
            }
            Judged::Denied(denied) => denied,
            Judged::NotInMemory => {
                let wanted: Vec<ObjectId> =
                    std::iter::once(&target).chain(&others).map(|target| target.object.clone()).collect();
                let load = move |records: &Records| wanted.iter().try_for_each(|object| records.read(object).map(drop));
                gate.read(load).await.map_err(|_| unusable(target.object.clone()))?;
                continue;
            }
        };
        match why {
            Denial::Refused(why) => return Err(Refused { object, why }),
            Denial::Overdue(lease) => {
                let ended = gate.ledger.end(vec![(object.clone(), lease)]).await;
                ended.map_err(|_| unusable(object))?;
            }
        }
    }
}

fn unusable(object: ObjectId) -> Refused {
    Refused { object, why: Refusal::Unusable(Unusable::Table) }
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
    target: Target,
    others: Vec<Target>,
    bound: Ttl,
    patience: Duration,
) -> Result<InFlight, Refused> {
    if patience.is_zero() {
        return decide(&plane.gate, target, others, bound).await;
    }
    let is_draining =
        |judged: &Result<InFlight, Refused>| matches!(judged, Err(Refused { why: Refusal::Draining { .. }, .. }));
    let judge = || decide(&plane.gate, target.clone(), others.clone(), bound);
    let first = judge().await;
    if is_draining(&first)
        && let Some(_place) = Waiting::take(plane)
    {
        let opened = async {
            loop {
                tokio::time::sleep(LOOK_AGAIN).await;
                let judged = judge().await;
                if !is_draining(&judged) {
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

enum Judged {
    Admitted((Permit, Place), Vec<(Permit, Place)>),
    Denied(Denied),
    /// A record that this needs has to be read first.
    NotInMemory,
}

/// One look, under the lock.
fn judge(gate: &Gate, target: &Target) -> Judged {
    let (now, object) = (gate.now(), &target.object);
    let denied = |why| Judged::Denied(Denied { object: object.clone(), why });
    if let Some(why) = without_record(gate, target, now) {
        return denied(why);
    }
    match gate.records.stripes.admit(object, |record, sealed| look(target, record, sealed, now)) {
        None => Judged::NotInMemory,
        Some(Ok(admitted)) => Judged::Admitted(admitted, vec![]),
        Some(Err(why)) => denied(why),
    }
}

/// The same for a write to several objects, under all their locks.
fn judge_all(gate: &Gate, target: &Target, others: &[Target]) -> Judged {
    let now = gate.now();
    let targets: Vec<&Target> = std::iter::once(target).chain(others).collect();
    let objects: Vec<&ObjectId> = targets.iter().map(|target| &target.object).collect();
    let early = targets.iter().enumerate();
    let early: Vec<_> = early.filter_map(|(n, target)| Some((n, without_record(gate, target, now)?))).collect();
    if !early.is_empty() {
        return Judged::Denied(inflight::first(early, |n| objects[n]));
    }
    match gate.records.stripes.admit_all(&objects, |n, record, sealed| look(targets[n], record, sealed, now)) {
        None => Judged::NotInMemory,
        Some(Ok(mut admitted)) => Judged::Admitted(admitted.remove(0), admitted),
        Some(Err(denied)) => Judged::Denied(inflight::first(denied, |n| objects[n])),
    }
}

fn look(target: &Target, record: &Record, sealed: bool, now: Now) -> Result<Permit, Denial> {
    verdict::judge(&target.object, View::Known { record, sealed }, &target.presented, now)
}

/// What needs no record: a table that is shut, and what is wrong with the token itself.
fn without_record(gate: &Gate, target: &Target, now: Now) -> Option<Denial> {
    let is_linked = matches!(&target.presented, Presented::Token(token) if token.object == target.object);
    if is_linked && gate.records.latched().is_none() {
        return None;
    }
    verdict::judge(&target.object, View::Unusable(Unusable::Table), &target.presented, now).err()
}
