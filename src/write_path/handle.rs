//! A request's way through the stages.

use std::{cell::Cell, rc::Rc, sync::Arc};

use http::{Method, Request, Response, Version};
use hyper::body::Incoming;

use super::{
    Plane, Worker,
    carry::CarryOn,
    classify::{Class, Target, classify},
    decide::decide,
    forward::{Job, forward},
    headers::Origin,
    hold::discard,
    plan::Outfit,
    reply::{Refused, ReplyBody, refuse},
};
use crate::{clock::Stopwatch, config::Mode, failpoints, fence::Code};

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
            let job = Job { worker, plan, pool, origin, is_write: false, begun, admitted: None, would: None };
            forward(job, head, body).await
        }
        Ok(Class::Write(target)) => write(worker, &outfit, origin, target, head, body).await,
    };
    done.unwrap_or_else(|refused| refuse(&plane, refused, is_head))
}

/// Refuses a request before its body is read. A client that has been told to wait for a 100 Continue
/// sends no body, and is not asked for it.
fn let_go(worker: &Worker, head: &http::request::Parts, body: Incoming) {
    if !head.headers.contains_key(http::header::EXPECT) {
        discard(worker, body, head.version == Version::HTTP_2);
    }
}

async fn write(
    worker: Rc<Worker>,
    outfit: &Outfit,
    origin: Origin,
    target: Target<'_>,
    head: http::request::Parts,
    body: Incoming,
) -> Result<Response<ReplyBody>, Refused> {
    let Target { route, object, presented } = target;
    let metrics = outfit.plan.metrics(route).operation(&head.method);
    let about = |refused: Refused| refused.about(&object, &route.name);
    let (admitted, would) = match route.mode {
        Mode::Off => (None, None),
        Mode::Enforce | Mode::Audit => {
            let stopwatch = Stopwatch::start();
            let judged = decide(&worker.plane.gate, &object, presented).await;
            metrics.judged(stopwatch.seconds(), judged.as_ref().err());
            match (judged, route.mode) {
                (Ok(admitted), _) => (Some(Rc::new(admitted)), None),
                (Err(refusal), mode) if mode == Mode::Audit || failpoints::forward_stale() => {
                    (None, Some(refusal.code()))
                }
                (Err(refusal), _) => {
                    let_go(&worker, &head, body);
                    return Err(about(refusal.into()));
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
    let holder = admitted.as_ref().map(|admitted| admitted.permit.holder().clone());
    let seq = admitted.as_ref().map(|admitted| admitted.permit.seq());
    let job = Job {
        worker: Rc::clone(&worker),
        plan,
        pool,
        origin,
        is_write: true,
        begun: Rc::clone(&begun),
        admitted,
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

impl Plane {
    /// Whether another connection may be made.
    pub(super) fn has_room(&self, max: usize) -> bool {
        self.connections.load(std::sync::atomic::Ordering::Relaxed) < max
    }
}
