//! May this write go on? `fence::judge` decides, under the object's lock; the write counts as in flight from the same
//! moment on. No rules are here: the life of a write (`fence::write`) says what comes next.

use std::{rc::Rc, time::Duration};

use super::{Worker, crowd::Peer, guard::WriteGuard};
use crate::{
    barrier::{
        flight::Counted,
        generation::RouteGuard,
        in_flight::{self, Admission, Denied, InFlight, Permitted},
        stripes::Place,
    },
    failpoints::{self, Point},
    fence::{
        Denial, Now, ObjectId, Permit, Record, Refusal,
        outside::Claim,
        verdict::{self, Presented, Unusable, View},
        write::{Effect, Event, Obstacle, Stage, Write, WriteOptions},
    },
    gate::Gate,
    route::classify::{Brought, Target},
    sources,
    table::records::Records,
};

/// A write that may not go on, for now or for ever.
#[derive(Debug)]
pub struct ObjectRefusal {
    /// The object that the refusal is about.
    pub object: ObjectId,
    pub why: Refusal,
}

/// What can be decided about a write at once.
#[allow(clippy::large_enum_variant, reason = "it does not live long")]
pub enum Decided {
    Yes(Rc<WriteGuard>),
    No(ObjectRefusal, RouteGuard),
    /// Something has to be read, written or waited for first.
    NotYet(Target<'static>, Vec<Target<'static>>, RouteGuard),
}

/// How a write is to be admitted.
#[derive(Clone, Copy)]
pub struct AdmitOptions {
    pub write: WriteOptions,
    /// How long it may wait while its lease is changing hands.
    pub patience_ms: u64,
    /// The whole write is here, with a connection to send it on. So it is judged only once, and may land from that
    /// moment on. For writes to one object.
    pub commits: bool,
    /// The write is forwarded whatever the judge says.
    pub is_audit: bool,
    /// Where the record is likely to be: that of the client's last write.
    pub near: Option<Place>,
    /// The generation of the plan that the write uses.
    pub plan: u64,
}

/// Judges a write by what is in memory. `now`: the time to judge by.
pub fn decide_at_once(
    worker: &Worker,
    route: RouteGuard,
    target: Target<'_>,
    others: Vec<Target<'_>>,
    options: AdmitOptions,
    now: Now,
) -> Decided {
    let mut life = Write::new(options.write);
    let judged = match life.on(Event::Arrived { whole: options.commits && others.is_empty() }) {
        Effect::Judge(Stage::Committed) => judge_and_commit(&worker.gate, &target, options.near, now),
        _ => judge(&worker.gate, &target, &others, now),
    };
    let (obstacle, denied) = match judged {
        Judged::Permitted(permitted, stage) => return Decided::Yes(admit(worker, life, permitted, stage, route)),
        Judged::NotInMemory => (Obstacle::NotInMemory, None),
        Judged::Denied(denied) => (Obstacle::from(&denied.why), Some(denied)),
    };
    let may_wait = |why: &Refusal| options.patience_ms > 0 && matches!(why, Refusal::Draining { .. });
    match (life.on(Event::Denied(obstacle)), denied) {
        (Effect::Refuse, Some(Denied { object, why: Denial::Refused(why) })) if !may_wait(&why) => {
            Decided::No(ObjectRefusal { object, why }, route)
        }
        _ => {
            let others = others.into_iter().map(Target::into_owned).collect();
            Decided::NotYet(target.into_owned(), others, route)
        }
    }
}

#[inline(always)]
#[allow(clippy::inline_always, reason = "what it takes is large, and would be copied")]
fn admit(worker: &Worker, mut life: Write, permitted: Permitted, stage: Stage, route: RouteGuard) -> Rc<WriteGuard> {
    failpoints::reach(Point::Admitted);
    let _ = life.on(Event::Permitted(stage));
    Rc::new(InFlight::new(Rc::clone(&worker.gate), life, Admission::Permitted(permitted), route))
}

/// Judges a write. As the life of a write says, it reads records that are not in memory, ends a lease that has run out
/// before any answer says so, has the fence follow an outside source and asks that source. Takes the place in `route` if
/// the write is admitted.
///
/// # Errors
/// With the refusal that the write gets.
async fn decide(
    (worker, client): (&Worker, Peer),
    route: &mut Option<RouteGuard>,
    mut target: Target<'_>,
    others: Vec<Target<'_>>,
    options: AdmitOptions,
) -> Result<Rc<WriteGuard>, ObjectRefusal> {
    let gate = &worker.plane.gate;
    let mut life = Write::new(options.write);
    let mut effect = life.on(Event::Arrived { whole: false });
    let mut denied = None;
    loop {
        let event = match effect {
            Effect::Judge(_) => match judge(gate, &target, &others, gate.now()) {
                Judged::Permitted(permitted, stage) => {
                    let route = route.take().expect("a write is admitted once");
                    return Ok(admit(worker, life, permitted, stage, route));
                }
                Judged::NotInMemory => Event::Denied(Obstacle::NotInMemory),
                Judged::Denied(why) => Event::Denied(Obstacle::from(&denied.insert(why).why)),
            },
            Effect::Clear(_) => {
                clear((worker, client), denied.take(), &mut target, &others, options).await?;
                Event::Cleared(true)
            }
            _ => {
                let Denied { object, why } = denied
                    .take()
                    .unwrap_or_else(|| Denied { object: target.id(), why: Refusal::Unusable(Unusable::Table).into() });
                let why = sources::still_unknown(gate, &object, why);
                return Err(ObjectRefusal { object, why });
            }
        };
        effect = life.on(event);
    }
}

/// Removes the obstacle that keeps a client's write from being judged. `denied`: what the judge said; `None` where the
/// record is not in memory.
async fn clear(
    (worker, client): (&Worker, Peer),
    denied: Option<Denied>,
    target: &mut Target<'_>,
    others: &[Target<'_>],
    AdmitOptions { is_audit, plan, .. }: AdmitOptions,
) -> Result<(), ObjectRefusal> {
    let gate = &worker.plane.gate;
    match denied {
        None => {
            let wanted: Vec<ObjectId> = std::iter::once(&*target).chain(others).map(Target::id).collect();
            let load = move |records: &Records| wanted.iter().try_for_each(|object| records.read(object).map(drop));
            gate.read(load).await.map_err(|_| unusable(target.id()))?;
            worker.plane.metrics().loaded();
            Ok(())
        }
        Some(Denied { object, why: Denial::Overdue(lease) }) => {
            let ended = gate.ledger.end(vec![(object.clone(), lease)]).await;
            ended.map_err(|_| unusable(object))
        }
        Some(Denied { object, why: Denial::Behind(update) }) => {
            let place = worker.plane.waits.follow.take(&object, client);
            let moved = sources::follow(gate, &object, update, target.claim(), place.is_some()).await;
            moved.map_err(|why| ObjectRefusal { object, why })
        }
        Some(Denied { object, why: Denial::Unseen(_) | Denial::Lapsed(_) }) => {
            let Some(_place) = worker.plane.waits.ask.take(&object, client) else {
                return Err(ObjectRefusal { object, why: Refusal::Busy { stops: false } });
            };
            let asked = match target.claim_mut() {
                Some(claim) => sources::ask(gate, &object, claim, (!is_audit, plan)).await,
                None => Ok(()),
            };
            asked.map_err(|why| ObjectRefusal { object, why })
        }
        Some(Denied { object, why: Denial::Refused(why) }) => Err(ObjectRefusal { object, why }),
    }
}

fn unusable(object: ObjectId) -> ObjectRefusal {
    ObjectRefusal { object, why: Refusal::Unusable(Unusable::Table) }
}

/// How often a write that waits for its lease to open is judged again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Judges a client's write that waits up to `patience_ms` while its lease is changing hands. Meanwhile it holds no
/// permit, its body is not asked for, and it is judged from the start each time.
///
/// # Errors
/// With the refusal that the write gets, and its place in the generation of its route.
pub async fn decide_in_time(
    by: (&Worker, Peer),
    route: RouteGuard,
    target: Target<'_>,
    others: Vec<Target<'_>>,
    options: AdmitOptions,
) -> Result<Rc<WriteGuard>, (ObjectRefusal, RouteGuard)> {
    let mut route = Some(route);
    let decided = match decide(by, &mut route, target.clone(), others.clone(), options).await {
        Err(ObjectRefusal { object, why: why @ Refusal::Draining { .. } }) if options.patience_ms > 0 => {
            let patience = Duration::from_millis(options.patience_ms);
            let opened = decide_when_open(by, &mut route, target, others, options);
            let place = by.0.plane.waits.open.take(&object, by.1);
            let first = Err(ObjectRefusal { object, why });
            match place {
                Some(_place) => tokio::time::timeout(patience, opened).await.unwrap_or(first),
                None => first,
            }
        }
        decided => decided,
    };
    decided.map_err(|refused| (refused, route.expect("only an admission takes it")))
}

/// Judges a write again until its lease is no longer changing hands.
async fn decide_when_open(
    by: (&Worker, Peer),
    route: &mut Option<RouteGuard>,
    target: Target<'_>,
    others: Vec<Target<'_>>,
    options: AdmitOptions,
) -> Result<Rc<WriteGuard>, ObjectRefusal> {
    loop {
        tokio::time::sleep(LOOK_AGAIN).await;
        match decide(by, route, target.clone(), others.clone(), options).await {
            Err(ObjectRefusal { why: Refusal::Draining { .. }, .. }) => {}
            decided => return decided,
        }
    }
}

enum Judged {
    /// The write is counted at this stage.
    Permitted(Permitted, Stage),
    Denied(Denied),
    /// A record that the judgement needs has to be read first.
    NotInMemory,
}

/// One judgement, under the locks of all objects of the write.
fn judge(gate: &Gate, target: &Target<'_>, others: &[Target<'_>], now: Now) -> Judged {
    if !others.is_empty() {
        return judge_all(gate, target, others, now);
    }
    if let Some(why) = without_record(gate, target, now) {
        return Judged::Denied(Denied { object: target.id(), why });
    }
    match gate.records.stripes.admit(&target.object, |record, sealed| judge_target(target, record, sealed, now)) {
        None => Judged::NotInMemory,
        Some(Ok(admitted)) => Judged::Permitted(Permitted::waiting(admitted), Stage::Waiting),
        Some(Err(why)) => Judged::Denied(Denied { object: target.id(), why }),
    }
}

/// The same for a write that may land from this moment on.
#[inline]
fn judge_and_commit(gate: &Gate, target: &Target<'_>, near: Option<Place>, now: Now) -> Judged {
    if let Some(why) = without_record(gate, target, now) {
        return Judged::Denied(Denied { object: target.id(), why });
    }
    let judge = |record: &Record, sealed: bool| judge_target(target, record, sealed, now);
    let judged: Option<Result<(Permit, Place, Counted), Denial>> =
        gate.records.stripes.admit_committed(&target.object, near, judge);
    match judged {
        None => Judged::NotInMemory,
        Some(Ok(committed)) => Judged::Permitted(Permitted::committed(committed), Stage::Committed),
        Some(Err(why)) => Judged::Denied(Denied { object: target.id(), why }),
    }
}

/// The same for a write to several objects, under all their locks.
fn judge_all(gate: &Gate, target: &Target<'_>, others: &[Target<'_>], now: Now) -> Judged {
    let targets: Vec<&Target<'_>> = std::iter::once(target).chain(others).collect();
    let objects: Vec<&str> = targets.iter().map(|target| &*target.object).collect();
    let early = targets.iter().enumerate();
    let early: Vec<_> = early.filter_map(|(n, target)| Some((n, without_record(gate, target, now)?))).collect();
    if !early.is_empty() {
        return Judged::Denied(in_flight::first(early, |n| targets[n].id()));
    }
    match gate.records.stripes.admit_all(&objects, |n, record, sealed| judge_target(targets[n], record, sealed, now)) {
        None => Judged::NotInMemory,
        Some(Ok(admitted)) => Judged::Permitted(Permitted::together(admitted), Stage::Waiting),
        Some(Err(denied)) => Judged::Denied(in_flight::first(denied, |n| targets[n].id())),
    }
}

fn judge_target(target: &Target<'_>, record: &Record, sealed: bool, now: Now) -> Result<Permit, Denial> {
    match &target.brought {
        Brought::Text(text) => verdict::judge_text(record, sealed, text, now),
        Brought::Read(presented) => verdict::judge(View::Known { record, sealed }, presented, now),
    }
}

/// The denial that needs no record: the table is shut, or the token itself has a fault.
fn without_record(gate: &Gate, target: &Target<'_>, now: Now) -> Option<Denial> {
    if target.claim().is_some_and(Claim::is_sign_of_life) {
        // By this clock the record notes when its holder last wrote.
        gate.records.stripes.tick(now.boot);
    }
    let is_linked = match &target.brought {
        // Only the record shows whether these fit the object. It is read if it is not in memory.
        Brought::Text(_) | Brought::Read(Presented::Outside(_)) => true,
        Brought::Read(Presented::Token(token)) => token.other.is_none(),
        Brought::Read(Presented::Nothing | Presented::Unreadable(_)) => false,
    };
    if is_linked && gate.records.latched().is_none() {
        return None;
    }
    verdict::judge(View::Unusable(Unusable::Table), &target.presented(), now).err()
}
