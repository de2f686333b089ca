//! A request on its way to the store: its parts, and what follows from them.

use std::{rc::Rc, time::Duration};

use http::{Method, Version, request::Parts};

use super::{Worker, connection::Client, guard::WriteGuard, headers::Length, journaled::Line, plan::WorkerPlan};
use crate::{
    clock::Stopwatch,
    config::ReadsBodies,
    fence::{Code, idempotency::IdempotencyKey, write::ReadOnly},
    metrics::OperationTally,
    route::Route,
    upstream::{
        http1::Reuse,
        pool::{Pool, PooledConn},
        shares::Asker,
    },
};

/// A request on its way.
pub struct Job {
    pub worker: Rc<Worker>,
    pub worker_plan: Rc<WorkerPlan>,
    /// The place of its store in the plan.
    pub store: usize,
    pub client: Rc<Client>,
    pub head: Parts,
    /// What is forwarded: a read, or an admitted write.
    pub read: Option<ReadOnly>,
    pub write: Option<Admitted>,
    /// The request is a write, or a read whose route allows a body.
    pub may_have_body: bool,
}

/// A write that was admitted.
pub struct Admitted {
    /// The place of its route.
    pub route: usize,
    pub guard: Rc<WriteGuard>,
    /// The code it would have been refused with if its route enforced.
    pub would: Option<Code>,
    /// Counts it as on its way.
    pub active: Active,
    /// The connection it is to be sent on, if it is committed already.
    pub conn: Option<PooledConn>,
    /// When it was judged first.
    pub since: Option<Stopwatch>,
    /// The client's own name for the write.
    pub key: Option<IdempotencyKey>,
}

/// A write on its way, until this is dropped.
pub struct Active(Rc<OperationTally>);

impl Active {
    #[must_use]
    pub fn new(tally: &Rc<OperationTally>) -> Self {
        tally.began();
        Self(Rc::clone(tally))
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.ended();
    }
}

impl Job {
    pub(super) fn pool(&self) -> &Rc<Pool> {
        &self.worker_plan.pools[self.store]
    }

    /// The asker that a connection, or room for a body, is counted for.
    pub(super) fn asker(&self) -> Asker {
        match &self.write {
            // The object of a write that was not judged may be invented.
            Some(write) => write.guard.place().map_or(Asker::Unjudged, |place| {
                let (object, client) = (place.number(), self.client.peer.number());
                Asker::Write { object, client }
            }),
            None => Asker::Read(self.client.number),
        }
    }

    pub(super) fn guard(&self) -> Option<&Rc<WriteGuard>> {
        self.write.as_ref().map(|write| &write.guard)
    }

    /// Whether a newer generation of its route is in use.
    pub(super) fn is_retired(&self) -> bool {
        self.guard().is_some_and(|guard| guard.route().is_retired())
    }

    pub(super) fn route(&self, write: &Admitted) -> &Route {
        &self.worker_plan.plan.routes.all()[write.route]
    }

    pub(super) fn is_keyed(&self) -> bool {
        self.write.as_ref().is_some_and(|write| write.key.is_some() && write.guard.is_judged())
    }

    /// Whether its route keeps a journal.
    pub(super) fn is_journaled(&self) -> bool {
        self.write.as_ref().is_some_and(|write| self.route(write).journal)
    }

    /// The journal's line about the write, where its route keeps a journal.
    pub(super) fn line(&self, write: &Admitted) -> Option<Line> {
        self.route(write).journal.then(|| Line::new(&self.head, &write.guard))
    }

    pub(super) fn is_h2(&self) -> bool {
        self.head.version == Version::HTTP_2
    }

    /// When the connection may be used again after this request. If it may not, the store is asked to close it, so that
    /// the store does not take the unread rest of this request for the next one.
    pub(super) fn reuse(&self, length: &Length) -> Reuse {
        if !length.is_some() {
            return Reuse::Always;
        }
        match self.pool().settings().reads_bodies {
            // For any setting: hardly any server reads the bodies of reads.
            _ if self.write.is_none() => Reuse::Never,
            ReadsBodies::All => Reuse::Always,
            ReadsBodies::Accepted if matches!(self.head.method, Method::PUT | Method::POST | Method::PATCH) => {
                Reuse::AfterSuccess
            }
            ReadsBodies::Accepted | ReadsBodies::None => Reuse::Never,
        }
    }

    pub(super) fn patience(&self) -> Duration {
        Duration::from_millis(self.pool().settings().response_timeout_ms)
    }
}
