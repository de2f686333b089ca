//! Repeats whose lease is over: they are refused, unless their write was applied and its answer was kept.

use std::{rc::Rc, sync::Arc};

use http::{Response, Version, request::Parts};

use super::{
    super::{
        Worker,
        hold::{Limits, Source},
        reply::{Rejection, ReplyBody},
    },
    Twin,
    digest::{digest_of, digest_on, payload},
    find,
    replay::{known, refused},
};
use crate::{
    fence::{
        Code, ObjectId,
        idempotency::{IdempotencyKey, KeptResponse, KeyRefusal},
        verdict::Presented,
    },
    route::classify::Write,
    table::ledger::keyed::read,
};

/// What is needed to look up a keyed write that is refused: a repeat of an applied write still gets its answer.
pub struct Lookup {
    object: ObjectId,
    route: Arc<str>,
    presented: Presented,
    key: IdempotencyKey,
}

impl Lookup {
    #[must_use]
    pub fn of(wanted: &Write<'_>) -> Option<Self> {
        // A write to two objects has two leases. Under which of them its key is kept is known only once it is admitted.
        let key = wanted.key.clone().filter(|_| wanted.others.is_empty())?;
        let (object, route) = (wanted.target.id(), Arc::clone(&wanted.route.name));
        Some(Self { object, route, presented: wanted.target.presented(), key })
    }

    /// The answer to a write that was refused for its lease: the answer that was kept, or that refusal.
    ///
    /// # Errors
    /// With the reason why the write is refused.
    pub async fn answer(
        self,
        worker: &Rc<Worker>,
        head: &Parts,
        body: Source,
        limits: Limits,
        why: Rejection,
    ) -> Result<Response<ReplyBody>, (Rejection, Option<Source>)> {
        let (object, route) = (self.object.clone(), Arc::clone(&self.route));
        let answered = self.find_answer(worker, head, body, limits, why).await;
        answered.map_err(|(why, body)| (why.about(&object, &route), body))
    }

    async fn find_answer(
        self,
        worker: &Rc<Worker>,
        head: &Parts,
        body: Source,
        limits: Limits,
        why: Rejection,
    ) -> Result<Response<ReplyBody>, (Rejection, Option<Source>)> {
        let code = why.problem.code();
        if !matches!(code, Code::WriteStaleFence | Code::LeaseExpired | Code::FenceDraining) {
            return Err((why, Some(body)));
        }
        // True where the write was judged, and not refused because of a reload.
        let is_current = code == Code::FenceDraining && why.fence.is_some();
        let now = worker.gate.clock.now();
        let keep_ms = worker.plane.keys.settings.keep_ms;
        let Self { object, presented, key, .. } = self;
        let found = worker.gate.read(move |records| find(records, object, &presented, key)).await;
        let Ok(Some((scope, shown, entry))) = found else { return Err((why, Some(body))) };
        if entry.age_ms(now, &worker.gate.records.context.frame) >= keep_ms {
            return Err((why, Some(body)));
        }
        if shown != entry.seq && !is_current {
            return Err((refused(worker, KeyRefusal::OtherLease), Some(body)));
        }
        let is_h2 = head.version == Version::HTTP_2;
        let digest = match body {
            Source::Here { body, .. } => digest_of(&body),
            Source::Coming { hold, .. } => {
                let mut first = hold.parts;
                first.push_front(hold.first);
                digest_on(worker, first, hold.body, is_h2, limits).await.map_err(|why| (why, None))?
            }
        };
        let payload = payload(head, digest);
        if entry.answer == KeptResponse::None
            && let Some(flight) = worker.plane.keys.flight(&scope)
        {
            let twin = Twin(flight);
            twin.agrees(&payload, shown).map_err(|why| (refused(worker, why), None))?;
            return match twin.answer(worker, &payload).await {
                Some(answered) => answered.map_err(|why| (why, None)),
                None => Err((why, None)),
            };
        }
        // Since the entry was read, the other write may have been answered, or the key given back.
        let newest = worker.gate.read(move |records| read(&*records.table, &scope)).await;
        match newest.ok().flatten().filter(|newest| newest.attempt == entry.attempt) {
            Some(entry) => known(worker, &entry, &payload).map_err(|why| (why, None)),
            None => Err((why, None)),
        }
    }
}
