//! A write that has begun goes on when its client is gone: a separate task takes over the rest of its work.

use std::{
    future::Future,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
};

use super::{
    Worker,
    forward::forward,
    guard::WriteGuard,
    hold::Source,
    job::Job,
    plan::WorkerPlan,
    reply::{Answered, Rejection},
};
use crate::fence::Permit;

/// Counts work that goes on without a client. A worker does not stop before this work is done.
pub struct Detached(Rc<Worker>);

impl Detached {
    #[must_use]
    pub fn new(worker: &Rc<Worker>) -> Self {
        worker.carried.set(worker.carried.get() + 1);
        Self(Rc::clone(worker))
    }
}

impl Drop for Detached {
    fn drop(&mut self) {
        self.0.carried.set(self.0.carried.get() - 1);
    }
}

/// Forwards a write. If dropped while part of the write may be on its way, it hands the work to a separate task.
pub struct Detachable {
    work: Option<Pin<Box<dyn Future<Output = Answered>>>>,
    worker: Rc<Worker>,
    guard: Rc<WriteGuard>,
    worker_plan: Rc<WorkerPlan>,
    route: usize,
}

impl Detachable {
    #[must_use]
    pub fn new(job: Box<Job>, guard: Rc<WriteGuard>, route: usize, body: Source) -> Self {
        let (worker, worker_plan) = (Rc::clone(&job.worker), Rc::clone(&job.worker_plan));
        Self { work: Some(Box::pin(forward(job, body))), worker, guard, worker_plan, route }
    }
}

/// Adds to the refusal of an admitted write the object, the route and the lease that it is about.
pub fn about(refused: Rejection, guard: &WriteGuard, route: &Arc<str>) -> Rejection {
    let permit = guard.permit();
    let refused = refused.about(guard.object(), route);
    refused.by(permit.map(|permit| permit.holder().clone()), permit.map(Permit::seq))
}

impl Future for Detachable {
    type Output = Answered;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answered> {
        let Some(work) = &mut self.work else { return Poll::Pending };
        let done = work.as_mut().poll(context);
        if done.is_ready() {
            self.work = None;
        }
        let route = || &self.worker_plan.plan.routes.all()[self.route].name;
        done.map_err(|refused| Box::new(about(*refused, &self.guard, route())))
    }
}

impl Drop for Detachable {
    fn drop(&mut self) {
        let may_have_left = self.guard.is_at_risk() && !self.worker.stopping.get();
        if let Some(work) = self.work.take().filter(|_| may_have_left) {
            let detached = Detached::new(&self.worker);
            tokio::task::spawn_local(async move {
                // No client gets the answer, but it settles the write.
                drop(work.await);
                drop(detached);
            });
        }
    }
}
