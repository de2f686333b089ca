//! May this write go on? `fence::judge`, under the object's lock; the write counts as in flight from
//! the same moment on. No rules of its own.

use std::{rc::Rc, sync::atomic::Ordering, time::Duration};

use super::{
    Plane, Worker,
    classify::{Brought, Target},
    elect,
    inflight::{self, Denied, InFlight, Leg},
};
use crate::{
    api::Gate,
    failpoints::{self, Point},
    fence::{
        Denial, Now, ObjectId, Permit, Record, Refusal, Ttl,
        external::{self, Number},
        step::LeaseRefusal,
        verdict::{self, Presented, Unusable, View},
    },
    table::{flight::Stage, ledger, records::Records, stripes::Place},
};

/// A write that may not go on, for now or for ever.
#[derive(Debug)]
pub struct Refused {
    /// Which of its objects says so.
    pub object: ObjectId,
    pub why: Refusal,
}

/// What can be said of a write at once.
pub enum Decided {
    Yes(InFlight),
    No(Refused),
    /// Something has to be read, written or waited for first.
    NotYet(Target<'static>, Vec<Target<'static>>),
}

/// How a write is to be admitted.
#[derive(Clone, Copy)]
pub struct Terms {
    /// How long it may still land once its connection is gone.
    pub bound: Ttl,
    /// How long it may wait while its lease is changing hands.
    pub patience_ms: u64,
    /// All of it is there, and a connection to send it on, so that it is judged once only: it may land from
    /// that moment on. For writes to one object.
    pub commits: bool,
    /// It is forwarded whatever is said of it.
    pub is_audit: bool,
    /// Where the record is likely to be: that of the client's last write.
    pub near: Option<Place>,
    /// The generation of the plan that it goes by.
    pub plan: u64,
}

/// Judges a write by what is in memory. `now`: the time to judge by.
pub fn decide_at_once(
    worker: &Worker,
    target: Target<'_>,
    others: Vec<Target<'_>>,
    Terms { bound, patience_ms, commits, near, .. }: Terms,
    now: Now,
) -> Decided {
    let not_yet = |target: Target<'_>, others: Vec<Target<'_>>| {
        Decided::NotYet(target.into_owned(), others.into_iter().map(Target::into_owned).collect())
    };
    let denied = if commits && others.is_empty() {
        match judge_and_commit(&worker.gate, &target, near, now) {
            Some(Ok(committed)) => {
                failpoints::reach(Point::Admitted);
                let leg = Leg::committed(committed);
                return Decided::Yes(InFlight::new(Rc::clone(&worker.gate), leg, vec![], bound));
            }
            Some(Err(why)) => Some(Denied { object: target.id(), why }),
            None => None,
        }
    } else {
        match judge_any(&worker.gate, &target, &others, now) {
            Judged::Admitted(admitted, more) => return Decided::Yes(admit(worker, admitted, more, bound)),
            Judged::Denied(denied) => Some(denied),
            Judged::NotInMemory => None,
        }
    };
    match denied {
        None
        | Some(Denied {
            why: Denial::Overdue(_) | Denial::Behind(_) | Denial::Unseen(_) | Denial::Lapsed(_), ..
        }) => not_yet(target, others),
        Some(Denied { why: Denial::Refused(Refusal::Draining { .. }), .. }) if patience_ms > 0 => {
            not_yet(target, others)
        }
        Some(Denied { object, why: Denial::Refused(why) }) => Decided::No(Refused { object, why }),
    }
}

fn judge_any(gate: &Gate, target: &Target<'_>, others: &[Target<'_>], now: Now) -> Judged {
    if !others.is_empty() {
        return judge_all(gate, target, others, now);
    }
    match judge(gate, target, now) {
        None => Judged::NotInMemory,
        Some(Ok(admitted)) => Judged::Admitted(admitted, vec![]),
        Some(Err(why)) => Judged::Denied(Denied { object: target.id(), why }),
    }
}

fn admit(worker: &Worker, admitted: (Permit, Place), more: Vec<(Permit, Place)>, bound: Ttl) -> InFlight {
    failpoints::reach(Point::Admitted);
    InFlight::new(Rc::clone(&worker.gate), Leg::new(admitted), more.into_iter().map(Leg::new).collect(), bound)
}

/// Judges a write. Reads records that are not in memory, and ends a lease that has run out before anyone
/// is told so.
///
/// # Errors
/// With the refusal that the write gets.
async fn decide(
    worker: &Worker,
    mut target: Target<'_>,
    others: Vec<Target<'_>>,
    Terms { bound, is_audit, plan, .. }: Terms,
) -> Result<InFlight, Refused> {
    let gate = &worker.plane.gate;
    let mut has_asked = false;
    loop {
        let Denied { object, why } = match judge_any(gate, &target, &others, gate.now()) {
            Judged::Admitted(admitted, more) => return Ok(admit(worker, admitted, more, bound)),
            Judged::Denied(denied) => denied,
            Judged::NotInMemory => {
                let wanted: Vec<ObjectId> = std::iter::once(&target).chain(&others).map(Target::id).collect();
                let load = move |records: &Records| wanted.iter().try_for_each(|object| records.read(object).map(drop));
                gate.read(load).await.map_err(|_| unusable(target.id()))?;
                worker.plane.metrics().loaded();
                continue;
            }
        };
        match why {
            Denial::Refused(why) => return Err(Refused { object, why }),
            Denial::Overdue(lease) => {
                let ended = gate.ledger.end(vec![(object.clone(), lease)]).await;
                ended.map_err(|_| unusable(object))?;
            }
            Denial::Behind(number) => follow(worker, object, number).await?,
            Denial::Unseen(_) | Denial::Lapsed(_) if has_asked => {
                return Err(Refused { why: elect::still_unknown(gate, &object, &why), object });
            }
            Denial::Unseen(_) | Denial::Lapsed(_) => {
                has_asked = true;
                let asked = elect::ask(worker, &object, &mut target, (!is_audit, plan)).await;
                asked.map_err(|why| Refused { object, why })?;
            }
        }
    }
}

/// Moves the fence to an outside lock service's number, and waits a while for the last writes below it. The write
/// is judged again then, whatever has become of it.
async fn follow(worker: &Worker, object: ObjectId, number: Number) -> Result<(), Refused> {
    let seq = number.seq;
    let moved = match Waiting::take(&worker.plane) {
        Some(_place) => worker.plane.gate.ledger.follow(object.clone(), number).await,
        None => Err(ledger::Refused::Overloaded),
    };
    let of_number = |why| match why {
        LeaseRefusal::Ahead { fence, .. } => Some(Refusal::Jump { seq, fence, max_jump: number.terms.max_jump }),
        LeaseRefusal::Expired { ended } => Some(Refusal::Ended { seq, holder: external::holder(), ended }),
        LeaseRefusal::Fenced { fence } => Some(Refusal::Stale { seq, fence, successor: None, certified: None }),
        LeaseRefusal::TokenMismatch => Some(Refusal::WrongSecret { seq }),
        _ => None,
    };
    moved.map(drop).map_err(|refused| Refused { object, why: not_moved(refused, of_number) })
}

/// What is told to a write for which the ledger has not moved the fence. `of_source`: what its own source of leases
/// makes of it.
pub(super) fn not_moved(refused: ledger::Refused, of_source: impl FnOnce(LeaseRefusal) -> Option<Refusal>) -> Refusal {
    match refused {
        ledger::Refused::Lease { why: LeaseRefusal::Locked { fence }, .. } => Refusal::Locked { fence },
        ledger::Refused::Lease { why: LeaseRefusal::ClockUntrusted, .. } => Refusal::Unusable(Unusable::Clock),
        ledger::Refused::Lease { why, .. } => of_source(why).unwrap_or(Refusal::Busy { stops: false }),
        ledger::Refused::Overloaded => Refusal::Busy { stops: false },
        ledger::Refused::Stopping => Refusal::Busy { stops: true },
        _ => Refusal::Unusable(Unusable::Table),
    }
}

fn unusable(object: ObjectId) -> Refused {
    Refused { object, why: Refusal::Unusable(Unusable::Table) }
}

/// How often a write that waits for its lease to open is judged anew.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The same, for a write that waits up to `patience_ms` while its lease is changing hands. It holds no permit
/// meanwhile, its body is not asked for, and it is judged from the start each time.
///
/// # Errors
/// With the refusal that the write gets.
pub async fn decide_in_time(
    worker: &Worker,
    target: Target<'_>,
    others: Vec<Target<'_>>,
    terms: Terms,
) -> Result<InFlight, Refused> {
    if terms.patience_ms == 0 {
        return decide(worker, target, others, terms).await;
    }
    let is_draining =
        |judged: &Result<InFlight, Refused>| matches!(judged, Err(Refused { why: Refusal::Draining { .. }, .. }));
    let judge = || decide(worker, target.clone(), others.clone(), terms);
    let first = judge().await;
    if is_draining(&first)
        && let Some(_place) = Waiting::take(&worker.plane)
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
        return tokio::time::timeout(Duration::from_millis(terms.patience_ms), opened).await.unwrap_or(first);
    }
    first
}

/// A place among the writes that wait for a lease to open: there are only so many.
pub(super) struct Waiting<'a>(&'a Plane);

const WAITING_MAX: usize = 1_024;

impl<'a> Waiting<'a> {
    pub(super) fn take(plane: &'a Plane) -> Option<Self> {
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

/// One look, under the lock. `None`: the record has to be read first.
fn judge(gate: &Gate, target: &Target<'_>, now: Now) -> Option<Result<(Permit, Place), Denial>> {
    if let Some(why) = without_record(gate, target, now) {
        return Some(Err(why));
    }
    gate.records.stripes.admit(&target.object, |record, sealed| look(target, record, sealed, now))
}

/// The same for a write that may land from that moment on.
fn judge_and_commit(
    gate: &Gate,
    target: &Target<'_>,
    near: Option<Place>,
    now: Now,
) -> Option<Result<(Permit, Place, Stage), Denial>> {
    if let Some(why) = without_record(gate, target, now) {
        return Some(Err(why));
    }
    gate.records.stripes.admit_committed(&target.object, near, |record, sealed| look(target, record, sealed, now))
}

/// The same for a write to several objects, under all their locks.
fn judge_all(gate: &Gate, target: &Target<'_>, others: &[Target<'_>], now: Now) -> Judged {
    let targets: Vec<&Target<'_>> = std::iter::once(target).chain(others).collect();
    let objects: Vec<&str> = targets.iter().map(|target| &*target.object).collect();
    let early = targets.iter().enumerate();
    let early: Vec<_> = early.filter_map(|(n, target)| Some((n, without_record(gate, target, now)?))).collect();
    if !early.is_empty() {
        return Judged::Denied(inflight::first(early, |n| targets[n].id()));
    }
    match gate.records.stripes.admit_all(&objects, |n, record, sealed| look(targets[n], record, sealed, now)) {
        None => Judged::NotInMemory,
        Some(Ok(mut admitted)) => Judged::Admitted(admitted.remove(0), admitted),
        Some(Err(denied)) => Judged::Denied(inflight::first(denied, |n| targets[n].id())),
    }
}

fn look(target: &Target<'_>, record: &Record, sealed: bool, now: Now) -> Result<Permit, Denial> {
    match &target.brought {
        Brought::Text(text) => verdict::judge_text(record, sealed, text, now),
        Brought::Read(presented) => verdict::judge(View::Known { record, sealed }, presented, now),
    }
}

/// What needs no record: a table that is shut, and what is wrong with the token itself.
fn without_record(gate: &Gate, target: &Target<'_>, now: Now) -> Option<Denial> {
    if let Brought::Read(Presented::Number(_)) = &target.brought {
        // Its holder is heard of now.
        gate.records.stripes.tick(now.boot);
    }
    let is_linked = match &target.brought {
        // Not known before the record is; without one, it is read.
        Brought::Text(_) | Brought::Read(Presented::Number(_) | Presented::Claimant(_)) => true,
        Brought::Read(Presented::Token(token)) => token.other.is_none(),
        Brought::Read(Presented::Nothing | Presented::Unreadable(_)) => false,
    };
    if is_linked && gate.records.latched().is_none() {
        return None;
    }
    verdict::judge(View::Unusable(Unusable::Table), &target.presented(), now).err()
}
