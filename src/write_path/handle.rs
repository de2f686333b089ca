//! A request's way through the stages. What can be said at once is said at once; the rest is one future.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    rc::Rc,
    sync::atomic::Ordering,
    task::{Context, Poll},
};

use http::{Method, Request, Response, Version, header, request::Parts};
use http_body::Body;
use hyper::body::Incoming;

use super::{
    Worker,
    carry::CarryOn,
    classify::{Brought, Class, Target, Write, classify},
    connection::{Busy, Client},
    decide::{self, Decided, Terms, decide_at_once, decide_in_time},
    evict::{At, Turned},
    forward::{Active, Job, WriteOf, forward},
    hold::{Limits, Source, discard},
    inflight::InFlight,
    keyed::Lookup,
    passage::{Admitted, Passage},
    plan::Outfit,
    reply::{Refused, ReplyBody, refuse},
};
use crate::{
    clock::Stopwatch,
    config::Mode,
    failpoints::{self, Fault},
    fence::{Code, idempotency::IdempotencyKey, verdict::Presented},
    metrics::OperationTally,
    table::generation::Entered,
};

/// What becomes of a request.
pub type Answered = Result<Response<ReplyBody>, Box<Refused>>;

/// A request that is being answered.
pub struct Answering {
    stage: Stage,
    worker: Rc<Worker>,
    client: Rc<Client>,
    to_head: bool,
    /// The connection is busy until the last byte of the answer has been handed on.
    busy: Option<Busy>,
}

#[allow(clippy::large_enum_variant, reason = "each request begins with the largest")]
enum Stage {
    /// Not looked at yet. By the time of the first look, hyper has handed on what came with the head.
    New(Option<(Parts, Incoming)>),
    Refused(Declined),
    Work(Pin<Box<dyn Future<Output = Answered>>>),
    Write(CarryOn),
}

/// A request that is refused before its body is read.
struct Declined {
    why: Option<Refused>,
    /// Its body, if the client sends it.
    body: Option<Incoming>,
    is_h2: bool,
    /// It has been asked for.
    asked: bool,
}

impl Declined {
    fn new(why: Refused, head: &Parts, body: Source) -> Self {
        let is_h2 = head.version == Version::HTTP_2;
        // A client that has been told to wait for a 100 Continue sends no body, and is not asked for it.
        let comes = |_: &_| is_h2 || !head.headers.contains_key(header::EXPECT);
        let (why, body) = (Some(why), body.into_rest().filter(comes));
        Self { why, body, is_h2, asked: false }
    }

    /// Reads the body over if it is there already, as small ones are; what is still to come is read over
    /// behind the answer.
    fn poll(&mut self, worker: &Worker, context: &mut Context<'_>) -> Poll<Refused> {
        while let Some(body) = self.body.as_mut().filter(|body| !body.is_end_stream()) {
            match Pin::new(body).poll_frame(context) {
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(_)) | None) => self.body = None,
                Poll::Pending if !self.asked && !self.is_h2 => {
                    // What hyper has read of it comes with the next look.
                    self.asked = true;
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Pending => break,
            }
        }
        Poll::Ready(self.let_go(worker))
    }

    /// Why it is refused. What is still to come of its body is read over.
    fn let_go(&mut self, worker: &Worker) -> Refused {
        if let Some(body) = self.body.take() {
            discard(worker, body);
        }
        self.why.take().expect("an answer is asked for once")
    }
}

/// Answers one request.
#[must_use]
pub fn answer(worker: &Rc<Worker>, client: &Rc<Client>, request: Request<Incoming>, busy: Busy) -> Answering {
    let to_head = request.method() == Method::HEAD;
    let stage = Stage::New(Some(request.into_parts()));
    Answering { stage, worker: Rc::clone(worker), client: Rc::clone(client), to_head, busy: Some(busy) }
}

fn begin(worker: &Rc<Worker>, client: &Rc<Client>, head: Parts, body: Incoming, context: &mut Context<'_>) -> Stage {
    let outfit = worker.outfit();
    let mut lookup = None;
    let class = match client.check_head(&head, &body) {
        Ok(()) => classify(&head, &outfit.plan.routes, &outfit.plan.settings),
        Err(doubt) => Err(doubt.into()),
    };
    let (looked, body) = match class {
        Err(unfit) => (Looked::Refused(unfit.into()), Source::coming(&head, body)),
        Ok(Class::Read { store, may_have_body }) => {
            (Looked::Read { store, may_have_body }, Source::coming(&head, body))
        }
        Ok(Class::Write(wanted)) => {
            let body = if wanted.asks_first {
                Source::coming(&head, body)
            } else {
                let limits = (Limits::of(&outfit.plan), outfit.plan.settings.hold_total_bytes);
                Source::look(&head, body, &worker.plane, limits, client, context)
            };
            lookup = Lookup::of(&wanted).map(Box::new);
            (look(worker, &outfit, client, &head.method, wanted, body.is_here()), body)
        }
    };
    let (worker, client) = (Rc::clone(worker), Rc::clone(client));
    match looked {
        Looked::Refused(why) => match lookup {
            None => Stage::Refused(Declined::new(why, &head, body)),
            Some(lookup) => {
                let declined = async move { decline_keyed(*lookup, &worker, &client, &outfit, &head, body, why).await };
                Stage::Work(Box::pin(declined))
            }
        },
        Looked::Read { store, may_have_body } => {
            let job = Job { worker, outfit, store, client, head, write: None, may_have_body };
            Stage::Work(Box::pin(forward(Box::new(job), body)))
        }
        Looked::Write(write) => Stage::Write(carry_on(worker, outfit, client, head, body, write)),
        Looked::NotYet(undecided) => Stage::Work(Box::pin(async move {
            // Nothing has said yet that it may go on.
            let loose = Turned::new(&client, At::of(&head.method), At::Loose, worker.now());
            let decided = undecided.decide(&worker, &outfit, &head.method).await;
            drop(loose);
            match decided {
                Ok(write) => carry_on(worker, outfit, client, head, body, write).await,
                Err(why) => match lookup {
                    None => Err(Declined::new(why, &head, body).let_go(&worker).into()),
                    Some(lookup) => decline_keyed(*lookup, &worker, &client, &outfit, &head, body, why).await,
                },
            }
        })),
    }
}

/// A keyed write that is refused for its lease gets the answer that is kept of it, if there is one.
async fn decline_keyed(
    lookup: Lookup,
    worker: &Rc<Worker>,
    client: &Rc<Client>,
    outfit: &Outfit,
    head: &Parts,
    body: Source,
    why: Refused,
) -> Answered {
    // It will not be sent, and its client may take its time with its body.
    let _waits = Turned::new(client, At::of(&head.method), At::Client, worker.now());
    match lookup.answer(worker, head, body, Limits::of(&outfit.plan), why).await {
        Ok(response) => Ok(response),
        Err((why, None)) => Err(why.into()),
        Err((why, Some(body))) => Err(Declined::new(why, head, body).let_go(worker).into()),
    }
}

fn carry_on(
    worker: Rc<Worker>,
    outfit: Rc<Outfit>,
    client: Rc<Client>,
    head: Parts,
    body: Source,
    write: WriteOf,
) -> CarryOn {
    let (store, passage, route) = (outfit.plan.routes.all()[write.route].store, Rc::clone(&write.passage), write.route);
    CarryOn::new(
        Box::new(Job { worker, outfit, store, client, head, write: Some(write), may_have_body: true }),
        passage,
        route,
        body,
    )
}

/// What a first look at a request says.
#[allow(clippy::large_enum_variant, reason = "it does not live long")]
enum Looked {
    Refused(Refused),
    Read { store: usize, may_have_body: bool },
    Write(WriteOf),
    NotYet(Undecided),
}

/// Looks at a write, and lets it go on if that can be said at once. `is_here`: all of its body is.
fn look(
    worker: &Worker,
    outfit: &Outfit,
    client: &Client,
    method: &Method,
    wanted: Write<'_>,
    is_here: bool,
) -> Looked {
    let Write { route, mut target, others, key, .. } = wanted;
    if let Brought::Read(Presented::Claimant(claimant)) = &mut target.brought {
        worker.gate.elections.stand(&target.object, claimant);
    }
    let Some(entered) = outfit.plan.enter(route, &worker.plane.gate.clock) else {
        let why = Refused::new(Code::FenceDraining, "this route has changed; older writes are still on their way");
        return Looked::Refused(why.about(&target.id(), &route.name));
    };
    let entered = Entrance { entered, route: route.place };
    if route.mode == Mode::Off {
        let tally = outfit.tallies[route.place].operation(method);
        let may_go = entered.go_on(worker, outfit, tally, (Admitted::Unjudged(target.id()), None), None);
        return may_go.map_or_else(Looked::Refused, Looked::Write);
    }
    let pool = &outfit.pools[route.store];
    // A keyed write is remembered first.
    let may_commit =
        is_here && route.mode == Mode::Enforce && others.is_empty() && key.is_none() && !worker.closing.get();
    let lane = if may_commit { pool.idle_lane_at_ease() } else { None };
    let (now, stopwatch) = worker.now_and_watch();
    let terms = Terms {
        bound: route.bound,
        patience_ms: route.drain_wait_ms,
        commits: lane.is_some(),
        is_audit: route.mode == Mode::Audit,
        near: client.last_place.get(),
        plan: outfit.plan.generation,
    };
    let may_go = match decide_at_once(worker, target, others, terms, now) {
        Decided::Yes(in_flight) => {
            client.last_place.set(Some(in_flight.place()));
            if let Some(lane) = &lane {
                lane.belongs_to(in_flight.place().number(), client.peer.number());
            }
            entered.admitted(worker, outfit, method, stopwatch, in_flight)
        }
        Decided::No(refused) => entered.refused(worker, outfit, method, stopwatch, refused),
        Decided::NotYet(target, others) => {
            if let Some(unused) = lane {
                unused.put_back(now.boot);
            }
            return Looked::NotYet(Undecided { entered, target, others, stopwatch, terms, key });
        }
    };
    match may_go {
        Ok(mut write) => {
            (write.lane, write.key) = (lane, key);
            Looked::Write(write)
        }
        Err(refused) => {
            if let Some(unused) = lane {
                unused.put_back(now.boot);
            }
            Looked::Refused(refused)
        }
    }
}

/// A write of which nothing could be said at once.
struct Undecided {
    entered: Entrance,
    target: Target<'static>,
    others: Vec<Target<'static>>,
    stopwatch: Stopwatch,
    terms: Terms,
    key: Option<IdempotencyKey>,
}

impl Undecided {
    async fn decide(self, worker: &Worker, outfit: &Outfit, method: &Method) -> Result<WriteOf, Refused> {
        let Self { entered, target, others, stopwatch, terms, key } = self;
        let write = match decide_in_time(worker, target, others, terms).await {
            Ok(in_flight) => entered.admitted(worker, outfit, method, stopwatch, in_flight)?,
            Err(refused) => entered.refused(worker, outfit, method, stopwatch, refused)?,
        };
        Ok(WriteOf { key, ..write })
    }
}

/// A write that goes by a route, and has not been let go on.
struct Entrance {
    entered: Entered,
    route: usize,
}

impl Entrance {
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "what it takes is large, and would be copied")]
    fn admitted(
        self,
        worker: &Worker,
        outfit: &Outfit,
        method: &Method,
        stopwatch: Stopwatch,
        mut in_flight: InFlight,
    ) -> Result<WriteOf, Refused> {
        let tally = outfit.tallies[self.route].operation(method);
        let (seconds, since) = stopwatch.lap();
        tally.judged(seconds, None);
        if outfit.plan.routes.all()[self.route].mode == Mode::Audit {
            in_flight.unenforce();
        }
        self.go_on(worker, outfit, tally, (Admitted::Judged(in_flight), Some(since)), None)
    }

    fn refused(
        self,
        worker: &Worker,
        outfit: &Outfit,
        method: &Method,
        stopwatch: Stopwatch,
        refused: decide::Refused,
    ) -> Result<WriteOf, Refused> {
        let route = &outfit.plan.routes.all()[self.route];
        let tally = outfit.tallies[self.route].operation(method);
        tally.judged(stopwatch.seconds(), Some(&refused.why));
        if route.mode == Mode::Audit || failpoints::on(Fault::ForwardStale) {
            let would = Some(refused.why.code());
            return self.go_on(worker, outfit, tally, (Admitted::Unjudged(refused.object), None), would);
        }
        Err(Refused::from(refused.why).about(&refused.object, &route.name))
    }

    /// Lets the write go on. `would`: what it would have been told if it were judged in earnest.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "what it takes is large, and would be copied")]
    fn go_on(
        self,
        worker: &Worker,
        outfit: &Outfit,
        tally: &Rc<OperationTally>,
        (admitted, since): (Admitted, Option<Stopwatch>),
        would: Option<Code>,
    ) -> Result<WriteOf, Refused> {
        let route = &outfit.plan.routes.all()[self.route];
        let passage = Passage::new(self.entered, admitted);
        // Whoever drains has said so before it looks whether anything is in flight, and this write is.
        if worker.closing.get() || worker.gate.draining.load(Ordering::Acquire) {
            passage.back_out();
            let why = "this gate is stopping; nothing was sent. Try again once it is back";
            return Err(Refused::new(Code::GateStopping, why).about(passage.object(), &route.name));
        }
        let active = Active::new(tally);
        let (passage, route) = (Rc::new(passage), self.route);
        Ok(WriteOf { route, passage, would, active, lane: None, since, key: None, claim: None })
    }
}

impl Future for Answering {
    type Output = Result<Response<ReplyBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Stage::New(request) = &mut this.stage {
            let (head, body) = request.take().expect("a request is looked at once");
            this.stage = begin(&this.worker, &this.client, head, body, context);
        }
        let answered = match &mut this.stage {
            Stage::New(_) => unreachable!("it has just been looked at"),
            Stage::Refused(declined) => {
                let response = |refused| Ok(refuse(&this.worker.plane, refused, this.to_head));
                declined.poll(&this.worker, context).map(response)
            }
            Stage::Work(work) => work.as_mut().poll(context),
            Stage::Write(write) => Pin::new(write).poll(context),
        };
        answered.map(|answered| {
            let response = answered.unwrap_or_else(|refused| refuse(&this.worker.plane, *refused, this.to_head));
            let busy = this.busy.take().expect("an answer is asked for once");
            Ok(response.map(|body| body.during(busy)))
        })
    }
}
