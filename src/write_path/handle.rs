//! A request's way through the stages.

use std::{cell::Cell, rc::Rc, sync::Arc, time::Duration};

use http::{Method, Request, Response, Version};
use hyper::body::Incoming;

use super::{
    Worker,
    carry::CarryOn,
    classify::{Class, Write, classify},
    decide::decide_in_time,
    forward::{Job, WriteOf, forward},
    headers::Origin,
    hold::discard,
    plan::Outfit,
    reply::{Refused, ReplyBody, refuse},
};
use crate::{
    clock::Stopwatch,
    config::Mode,
    failpoints::{self, Fault},
    fence::{Code, Ttl},
};

/// Answers one request.
pub async fn handle(worker: Rc<Worker>, origin: Origin, request: Request<Incoming>) -> Response<ReplyBody> {
    let (plane, outfit) = (Arc::clone(&worker.plane), worker.outfit());
    let (head, body) = request.into_parts();
    let is_head = head.method == Method::HEAD;
    let done = match classify(&head, &outfit.plan.routes, &outfit.plan.settings) {
        Err(unfit) => {
            let_go(&worker, &head, body);
            Err(unfit.into())
        }
        Ok(Class::Read { store }) => {
            let (plan, pool) = (Arc::clone(&outfit.plan), Rc::clone(&outfit.pools[store]));
            let begun = Rc::default();
            let job = Job {
                worker,
                plan,
                pool,
                origin,
                write: None,
                begun,
                is_out: Cell::new(true),
                in_flight: None,
                would: None,
            };
            forward(job, head, body).await
        }
        Ok(Class::Write(wanted)) => write(worker, &outfit, origin, wanted, head, body).await,
    };
    done.unwrap_or_else(|refused| refuse(&plane, refused, is_head))
}

/// Refuses a request before its body is read. A client that has been told to wait for a 100 Continue
/// sends no body, and is not asked for it.
fn let_go(worker: &Worker, head: &http::request::Parts, body: Incoming) {
    let is_h2 = head.version == Version::HTTP_2;
    if is_h2 || !head.headers.contains_key(http::header::EXPECT) {
        discard(worker, body, is_h2);
    }
}

async fn write(
    worker: Rc<Worker>,
    outfit: &Outfit,
    origin: Origin,
    wanted: Write<'_>,
    head: http::request::Parts,
    body: Incoming,
) -> Result<Response<ReplyBody>, Refused> {
    let Write { route, target, others } = wanted;
    let object = target.object.clone();
    let metrics = outfit.plan.metrics(route).operation(&head.method);
    let about = |refused: Refused| refused.about(&object, &route.name);
    let Some(entered) = outfit.plan.enter(route, &worker.plane.gate.clock) else {
        let_go(&worker, &head, body);
        return Err(about(Refused::new(
            Code::FenceDraining,
            "this route has changed; older writes are still on their way",
        )));
    };
    let (in_flight, would) = match route.mode {
        Mode::Off => (None, None),
        Mode::Enforce | Mode::Audit => {
            let stopwatch = Stopwatch::start();
            let bound = Ttl(outfit.pools[route.store].settings().bound_ms());
            let patience = Duration::from_millis(route.drain_wait_ms);
            let judged = decide_in_time(&worker.plane, target, others, bound, patience).await;
            metrics.judged(stopwatch.seconds(), judged.as_ref().err().map(|refused| &refused.why));
            match (judged, route.mode) {
                (Ok(in_flight), Mode::Audit) => (Some(Rc::new(in_flight.unenforced())), None),
                (Ok(in_flight), _) => (Some(Rc::new(in_flight)), None),
                (Err(refused), mode) if mode == Mode::Audit || failpoints::on(Fault::ForwardStale) => {
                    (None, Some(refused.why.code()))
                }
                (Err(refused), _) => {
                    let_go(&worker, &head, body);
                    return Err(Refused::from(refused.why).about(&refused.object, &route.name));
                }
            }
        }
    };
    if worker.closing.get() {
        let_go(&worker, &head, body);
        return Err(about(stopping()));
    }
    let (plan, pool) = (Arc::clone(&outfit.plan), Rc::clone(&outfit.pools[route.store]));
    let begun = Rc::<Cell<bool>>::default();
    let holder = in_flight.as_ref().map(|in_flight| in_flight.permit().holder().clone());
    let seq = in_flight.as_ref().map(|in_flight| in_flight.permit().seq());
    let job = Job {
        worker: Rc::clone(&worker),
        plan,
        pool,
        origin,
        write: Some(WriteOf { discards: route.discards, settles: route.settles.clone(), entered: Rc::new(entered) }),
        begun: Rc::clone(&begun),
        is_out: Cell::new(true),
        in_flight,
        would,
    };
    let active = metrics.active();
    let done = CarryOn::new(worker, begun, async move {
        let done = forward(job, head, body).await;
        drop(active);
        done
    });
    done.await.map_err(|refused| about(refused).by(holder, seq))
}

fn stopping() -> Refused {
    Refused::new(Code::GateStopping, "this gate is stopping; nothing was sent. Try again once it is back")
}
