//! The path of a request through the gate, top to bottom.
//!
//! ```text
//! connection/    accept     a head is here
//! route/classify classify   a read, a write to these objects with these tokens, or a refusal
//! plan.rs        enter      the version of the route that the write is admitted by
//! decide.rs      decide     judged under the object's lock, and counted as in flight from then on
//! outgoing.rs    prepare    the body is collected, or begins to stream; an idempotency key is claimed
//! forward.rs     exchange   a connection; judged again: the commit point; sent, once
//! conclude.rs    conclude   the complete answer settles the write; anything else leaves it unknown
//! reply.rs       reply      the store's answer, or a refusal with a receipt
//! ```
//!
//! What can be decided at once is decided in the first poll. The rest is one future.

use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    pin::Pin,
    rc::Rc,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
};

use http::{Method, Request, Response, request::Parts};
use hyper::body::Incoming;

use super::{
    Worker,
    connection::{Busy, Client},
    crowd::Peer,
    decide::{self, AdmitOptions, Decided, decide_at_once, decide_in_time},
    declined::Declined,
    detach::{Detachable, about},
    evict::{At, Turned},
    forward::forward,
    guard::WriteGuard,
    hold::{Limits, Source},
    holder::{self, Known},
    job::{Active, Admitted, Job},
    keyed::Lookup,
    plan::WorkerPlan,
    refusals::no_room,
    reply::{Answered, Rejection, ReplyBody, refuse},
};
use crate::{
    barrier::{
        generation::RouteGuard,
        in_flight::{Admission, InFlight},
    },
    clock::Stopwatch,
    config::Mode,
    failpoints::{self, Fault},
    fence::{
        Code, ObjectId,
        idempotency::IdempotencyKey,
        verdict::Presented,
        write::{Event, ReadOnly, Write as Life, WriteOptions},
    },
    route::{
        Route,
        classify::{Brought, Class, Target, Write, classify},
    },
    sources,
};

/// A request that is being answered.
pub struct Answering {
    stage: Stage,
    worker: Rc<Worker>,
    /// The connection is busy until the last byte of the answer has been handed on.
    busy: Option<Busy>,
}

#[allow(clippy::large_enum_variant, reason = "each request begins with the largest")]
enum Stage {
    /// Not checked yet. By the first poll, hyper has handed on the part of the body that came with the head.
    New(Option<(Parts, Incoming)>),
    Refused(Declined),
    Work(Pin<Box<dyn Future<Output = Answered>>>),
    Write(Detachable),
}

/// Answers one request.
#[must_use]
pub fn answer(worker: &Rc<Worker>, request: Request<Incoming>, busy: Busy) -> Answering {
    let stage = Stage::New(Some(request.into_parts()));
    Answering { stage, worker: Rc::clone(worker), busy: Some(busy) }
}

/// The first poll: classify, enter, decide. A request that needs no waiting goes on to `forward` from here.
/// `known`: who the client is, on a route that asks.
fn begin(
    worker: &Rc<Worker>,
    client: &Rc<Client>,
    (head, body): (Parts, Incoming),
    known: Option<&Known>,
    context: &mut Context<'_>,
) -> Stage {
    let worker_plan = worker.worker_plan();
    let mut lookup = None;
    // A head is compared with what was read once, and a known client's was.
    let checked = if known.is_none() { client.check_head(&head, &body) } else { Ok(()) };
    let class = match checked {
        Ok(()) => classify(&head, &worker_plan.plan.routes, &worker_plan.plan.settings),
        Err(doubt) => Err(doubt.into()),
    };
    if let Ok(Class::Write(wanted)) = &class
        && wanted.route.bind_holder
        && known.is_none()
    {
        let about = (wanted.target.id(), Arc::clone(&wanted.route.name));
        drop(class);
        return Stage::Work(Box::pin(identify_first(Rc::clone(worker), Rc::clone(client), head, body, about)));
    }
    let (first, body) = match class {
        Err(unfit) => (FirstLook::Refused(unfit.into()), Source::coming(&head, body)),
        Ok(Class::Read { store, may_have_body, read }) => {
            (FirstLook::Read { store, may_have_body, read }, Source::coming(&head, body))
        }
        Ok(Class::Write(wanted)) => {
            let body = if wanted.asks_first {
                Source::coming(&head, body)
            } else {
                let limits = (Limits::of(&worker_plan.plan), worker_plan.plan.settings.hold_total_bytes);
                Source::try_buffer(&head, body, &worker.plane, limits, client, context)
            };
            // A kept answer would be for the holder of a lease that is over, and there is no telling who that was.
            lookup = if known.is_none() { Lookup::of(&wanted).map(Box::new) } else { None };
            (try_admit(worker, &worker_plan, client, &head.method, wanted, (body.is_here(), known)), body)
        }
    };
    let (worker, client) = (Rc::clone(worker), Rc::clone(client));
    match first {
        FirstLook::Refused(why) => match lookup {
            None => Stage::Refused(Declined::new(why, &head, body)),
            Some(lookup) => {
                let body = body.without_room();
                let declined =
                    async move { decline_keyed(*lookup, &worker, &client, &worker_plan, &head, body, why).await };
                Stage::Work(Box::pin(declined))
            }
        },
        FirstLook::Read { store, may_have_body, read } => {
            let job = Job { worker, worker_plan, store, client, head, read: Some(read), write: None, may_have_body };
            Stage::Work(Box::pin(forward(Box::new(job), body)))
        }
        FirstLook::Admitted(write) => Stage::Write(forward_write(worker, worker_plan, client, head, body, write)),
        FirstLook::Undecided(undecided) => {
            Stage::Work(Box::pin(decide_later(undecided, (worker, worker_plan, client), head, body, lookup)))
        }
    }
}

/// Decides about a write that may not go on yet, and whose token has not been judged.
async fn decide_later(
    undecided: Undecided,
    (worker, worker_plan, client): (Rc<Worker>, Rc<WorkerPlan>, Rc<Client>),
    head: Parts,
    body: Source,
    lookup: Option<Box<Lookup>>,
) -> Answered {
    let body = body.without_room();
    let loose = Turned::new(&client, At::of(&head.method), At::Loose, worker.now());
    let decided = undecided.decide((&worker, client.peer), &worker_plan, &head.method).await;
    drop(loose);
    match decided {
        Ok(write) => match body.with_room(&worker.plane, worker_plan.plan.settings.hold_total_bytes) {
            Some(body) => forward_write(worker, worker_plan, client, head, body, write).await,
            None => Err(about(no_room(), &write.guard, &worker_plan.plan.routes.all()[write.route].name).into()),
        },
        Err(why) => match lookup {
            None => Err(Declined::new(why, &head, body).finish(&worker).into()),
            Some(lookup) => decline_keyed(*lookup, &worker, &client, &worker_plan, &head, body, why).await,
        },
    }
}

/// Finds out who a write's client is, and begins then. Nothing of the body is read before. `about`: the object and the
/// route of the write.
async fn identify_first(
    worker: Rc<Worker>,
    client: Rc<Client>,
    head: Parts,
    body: Incoming,
    about: (ObjectId, Arc<str>),
) -> Answered {
    let waits = Turned::new(&client, At::of(&head.method), At::Loose, worker.now());
    let found = holder::identify(&worker, &client, &head).await;
    drop(waits);
    let known;
    let mut request = match found {
        Ok(found) => {
            holder::load(&worker, &about.0).await;
            known = found;
            Some((head, body))
        }
        Err(why) => {
            let why = why.about(&about.0, &about.1);
            return Err(Declined::new(why, &head, Source::coming(&head, body)).finish(&worker).into());
        }
    };
    let stage = poll_fn(|context| match request.take() {
        Some(request) => Poll::Ready(begin(&worker, &client, request, Some(&known), context)),
        None => Poll::Pending,
    });
    match stage.await {
        Stage::Work(work) => work.await,
        Stage::Write(write) => write.await,
        Stage::Refused(mut declined) => Err(poll_fn(|context| declined.poll(&worker, context)).await.into()),
        Stage::New(_) => unreachable!("a request that has begun is past that"),
    }
}

/// Declines a keyed write that was refused for its lease: returns the answer that is kept for its key, or the refusal.
async fn decline_keyed(
    lookup: Lookup,
    worker: &Rc<Worker>,
    client: &Rc<Client>,
    worker_plan: &WorkerPlan,
    head: &Parts,
    body: Source,
    why: Rejection,
) -> Answered {
    // The write will not be sent, and its client may be slow with its body.
    let _waits = Turned::new(client, At::of(&head.method), At::Client, worker.now());
    match lookup.answer(worker, head, body, Limits::of(&worker_plan.plan), why).await {
        Ok(response) => Ok(response),
        Err((why, None)) => Err(why.into()),
        Err((why, Some(body))) => Err(Declined::new(why, head, body).finish(worker).into()),
    }
}

fn forward_write(
    worker: Rc<Worker>,
    worker_plan: Rc<WorkerPlan>,
    client: Rc<Client>,
    head: Parts,
    body: Source,
    write: Admitted,
) -> Detachable {
    let (store, guard, route) =
        (worker_plan.plan.routes.all()[write.route].store, Rc::clone(&write.guard), write.route);
    let job =
        Box::new(Job { worker, worker_plan, store, client, head, read: None, write: Some(write), may_have_body: true });
    Detachable::new(job, guard, route, body)
}

/// The result of the first check of a request.
#[allow(clippy::large_enum_variant, reason = "it does not live long")]
enum FirstLook {
    Refused(Rejection),
    Read { store: usize, may_have_body: bool, read: ReadOnly },
    Admitted(Admitted),
    Undecided(Undecided),
}

/// What a route and a key say about the life of a write.
fn write_options(route: &Route, key: Option<&IdempotencyKey>) -> WriteOptions {
    WriteOptions { unfenced: false, discards: route.discards, journaled: route.journal, keyed: key.is_some() }
}

/// Admits a write if that can be decided at once. `is_here`: all of its body is here. `known`: as in [`begin`].
fn try_admit(
    worker: &Worker,
    worker_plan: &WorkerPlan,
    client: &Client,
    method: &Method,
    wanted: Write<'_>,
    (is_here, known): (bool, Option<&Known>),
) -> FirstLook {
    let Write { route, mut target, others, key, .. } = wanted;
    if let Brought::Read(Presented::Outside(claim)) = &mut target.brought {
        sources::attach(&worker.gate, &target.object, claim);
    }
    let Some(entered) = worker_plan.plan.enter(route, &worker.plane.gate.clock) else {
        let why = Rejection::new(Code::FenceDraining, "this route has changed; older writes are still on their way");
        return FirstLook::Refused(why.about(&target.id(), &route.name));
    };
    let admission = Admitting { worker, worker_plan, method, route: route.place, known };
    if route.mode == Mode::Off {
        let admitted = admission.unfenced(entered, target.id(), None);
        return admitted.map_or_else(FirstLook::Refused, FirstLook::Admitted);
    }
    let objects = || std::iter::once(&target).chain(&others).map(Target::id);
    if let Some(known) = admission.known
        && let Some(object) = objects().find(|object| holder::is_of_another(worker, known, object))
    {
        return FirstLook::Refused(holder::denied(known).about(&object, &route.name));
    }
    let pool = &worker_plan.pools[route.store];
    // A keyed write cannot commit here: its key is stored first.
    // And one whose holder is compared commits when that is done.
    let may_commit = admission.known.is_none()
        && is_here
        && route.mode == Mode::Enforce
        && others.is_empty()
        && key.is_none()
        && !worker.closing.get();
    let conn = if may_commit { pool.idle_conn_at_ease() } else { None };
    let (now, stopwatch) = worker.now_and_watch();
    let options = AdmitOptions {
        write: write_options(route, key.as_ref()),
        patience_ms: route.drain_wait_ms,
        commits: conn.is_some(),
        is_audit: route.mode == Mode::Audit,
        near: client.last_place.get(),
        plan: worker_plan.plan.generation,
    };
    let admitted = match decide_at_once(worker, entered, target, others, options, now) {
        Decided::Yes(guard) => {
            client.last_place.set(guard.place());
            if let (Some(conn), Some(place)) = (&conn, guard.place()) {
                conn.belongs_to(place.number(), client.peer.number());
            }
            admission.permitted(guard, stopwatch)
        }
        Decided::No(refused, entered) => admission.refused(entered, stopwatch, refused),
        Decided::NotYet(target, others, entered) => {
            if let Some(unused) = conn {
                unused.put_back(now.boot);
            }
            let route = route.place;
            let known = admission.known.cloned();
            return FirstLook::Undecided(Undecided { entered, route, target, others, stopwatch, options, key, known });
        }
    };
    match admitted {
        Ok(mut write) => {
            (write.conn, write.key) = (conn, key);
            FirstLook::Admitted(write)
        }
        Err(refused) => {
            if let Some(unused) = conn {
                unused.put_back(now.boot);
            }
            FirstLook::Refused(refused)
        }
    }
}

/// A write that could not be decided at once.
struct Undecided {
    entered: RouteGuard,
    route: usize,
    target: Target<'static>,
    others: Vec<Target<'static>>,
    stopwatch: Stopwatch,
    options: AdmitOptions,
    key: Option<IdempotencyKey>,
    known: Option<Known>,
}

impl Undecided {
    async fn decide(
        self,
        (worker, client): (&Worker, Peer),
        worker_plan: &WorkerPlan,
        method: &Method,
    ) -> Result<Admitted, Rejection> {
        let Self { entered, route, target, others, stopwatch, options, key, known } = self;
        let admission = Admitting { worker, worker_plan, method, route, known: known.as_ref() };
        let write = match decide_in_time((worker, client), entered, target, others, options).await {
            Ok(guard) => admission.permitted(guard, stopwatch)?,
            Err((refused, entered)) => admission.refused(entered, stopwatch, refused)?,
        };
        Ok(Admitted { key, ..write })
    }
}

/// The last step of an admission: counts the decision, and lets the write go on or refuses it.
struct Admitting<'a> {
    worker: &'a Worker,
    worker_plan: &'a WorkerPlan,
    method: &'a Method,
    route: usize,
    known: Option<&'a Known>,
}

impl Admitting<'_> {
    fn route(&self) -> &Route {
        &self.worker_plan.plan.routes.all()[self.route]
    }

    /// The judge permits the write.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "what it takes is large, and would be copied")]
    fn permitted(self, guard: Rc<WriteGuard>, stopwatch: Stopwatch) -> Result<Admitted, Rejection> {
        let (seconds, since) = stopwatch.lap();
        self.worker_plan.tallies[self.route].operation(self.method).judged(seconds, None);
        if self.route().mode == Mode::Audit {
            guard.unfence();
        }
        if let Some(known) = self.known
            && !holder::is_own(self.worker, known, &guard)
        {
            let _ = guard.on(Event::Interrupted);
            return Err(holder::denied(known).about(guard.object(), &self.route().name));
        }
        self.go_on(guard, Some(since), None)
    }

    /// The judge refuses the write: a route that only looks forwards it all the same.
    fn refused(
        self,
        entered: RouteGuard,
        stopwatch: Stopwatch,
        refused: decide::ObjectRefusal,
    ) -> Result<Admitted, Rejection> {
        let tally = self.worker_plan.tallies[self.route].operation(self.method);
        tally.judged(stopwatch.seconds(), Some(&refused.why));
        if self.route().mode == Mode::Audit || failpoints::on(Fault::ForwardStale) {
            let would = Some(refused.why.code());
            return self.unfenced(entered, refused.object, would);
        }
        let why = match self.known {
            Some(known) if !holder::shows(self.worker, known, &refused.object) => holder::denied(known),
            _ => Rejection::from(refused.why),
        };
        Err(why.about(&refused.object, &self.route().name))
    }

    /// Forwards the write without a permit. `would`: the code that an enforcing route would have refused it with.
    fn unfenced(self, entered: RouteGuard, object: ObjectId, would: Option<Code>) -> Result<Admitted, Rejection> {
        let options = WriteOptions { unfenced: true, ..write_options(self.route(), None) };
        let mut life = Life::new(options);
        let _ = life.on(Event::Arrived { whole: false });
        let gate = Rc::clone(&self.worker.gate);
        self.go_on(Rc::new(InFlight::new(gate, life, Admission::Unfenced(object), entered)), None, would)
    }

    #[inline(always)]
    #[allow(clippy::inline_always, reason = "what it takes is large, and would be copied")]
    fn go_on(
        self,
        guard: Rc<WriteGuard>,
        since: Option<Stopwatch>,
        would: Option<Code>,
    ) -> Result<Admitted, Rejection> {
        let Self { worker, worker_plan, method, route, .. } = self;
        // A drain sets its flag before it looks whether a write is in flight, and this one is.
        if worker.closing.get() || worker.gate.draining.load(Ordering::Acquire) {
            let _ = guard.on(Event::Interrupted);
            let why = "this gate is stopping; nothing was sent. Try again once it is back";
            let refused = Rejection::new(Code::GateStopping, why);
            return Err(refused.about(guard.object(), &worker_plan.plan.routes.all()[route].name));
        }
        let active = Active::new(worker_plan.tallies[route].operation(method));
        Ok(Admitted { route, guard, would, active, conn: None, since, key: None })
    }
}

impl Future for Answering {
    type Output = Result<Response<ReplyBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Stage::New(request) = &mut this.stage {
            let (head, body) = request.take().expect("a request is looked at once");
            let busy = this.busy.as_ref().expect("an answer is asked for once");
            this.stage = begin(&this.worker, busy.client(), (head, body), None, context);
        }
        let answered = match &mut this.stage {
            Stage::New(_) => unreachable!("the first poll has replaced it"),
            Stage::Refused(declined) => {
                let to_head = this.busy.as_ref().is_some_and(|busy| busy.to_head);
                let response = |refused| Ok(refuse(&this.worker.plane, refused, to_head));
                declined.poll(&this.worker, context).map(response)
            }
            Stage::Work(work) => work.as_mut().poll(context),
            Stage::Write(write) => Pin::new(write).poll(context),
        };
        answered.map(|answered| {
            let busy = this.busy.take().expect("an answer is asked for once");
            let response = answered.unwrap_or_else(|refused| refuse(&this.worker.plane, *refused, busy.to_head));
            Ok(response.map(|body| body.during(busy)))
        })
    }
}
