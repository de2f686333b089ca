//! Makes a body ready to be sent: a short one is collected, a long one streams. The key of a keyed write is claimed
//! here, once its payload is known.

use std::{collections::VecDeque, future::poll_fn, pin::Pin, rc::Rc, task::Poll};

use http::{Response, header};
use http_body::Body;
use hyper::body::Incoming;

use super::{
    evict::{At, Turned},
    headers,
    hold::{Held, Hold, Limits, Share, Source},
    job::Job,
    keyed::{self, Claimed},
    pace::Pace,
    refusals::{no_room, rerouted, unsent},
    reply::{Rejection, ReplyBody},
    upload::{Broken, Stream, Upload, UploadState},
};
use crate::{
    fence::{
        Code,
        idempotency::{KeyRefusal, Payload},
    },
    route::classify::{FENCE_TOKEN, body_on_read},
    upstream::{body::StoreBody, trailer},
};

/// A body, ready to be sent.
pub struct Outgoing {
    pub body: StoreBody,
    /// The room that a collected body uses until it is sent.
    pub share: Option<Share>,
    /// The progress of a body that streams.
    pub upload: Option<Rc<UploadState>>,
    /// The length of a body that streams, where its decoder knows it.
    pub length: Option<u64>,
}

impl Outgoing {
    /// A body that is here as a whole.
    #[must_use]
    pub fn whole(body: StoreBody, share: Option<Share>) -> Self {
        Self { body, share, upload: None, length: None }
    }
}

/// A body that was collected, or is too long for that.
#[allow(clippy::large_enum_variant, reason = "it does not live long")]
enum Collected {
    Whole(Outgoing),
    /// Too long to be collected.
    Long(Stream),
}

/// A keyed write that may be sent, or that has its answer.
#[allow(clippy::large_enum_variant, reason = "it does not live long")]
pub enum Ready {
    Go(Outgoing),
    Answered(Response<ReplyBody>),
}

impl Job {
    /// Claims the key of a keyed write, and makes its body ready to be sent. If an earlier write has the key, returns
    /// that write's answer.
    pub(super) async fn claim_key(&self, source: Source) -> Result<Ready, Rejection> {
        let mut collected = match source {
            Source::Here { body, share } => Collected::Whole(Outgoing::whole(body, share)),
            Source::Coming { hold, share } => self.collect(hold, share).await?,
        };
        let (worker, guard) = (Rc::clone(&self.worker), self.guard().map(Rc::clone));
        let key = self.write.as_ref().and_then(|write| write.key.clone());
        let permit = guard.as_ref().and_then(|guard| guard.permit());
        let (Some(key), Some(guard), Some(permit)) = (key, &guard, permit) else {
            return Err(Rejection::new(Code::TableUnavailable, "a keyed write without a lease; nothing was sent"));
        };
        let mut payload = match &collected {
            Collected::Whole(outgoing) => Some(keyed::payload(&self.head, keyed::digest_of(&outgoing.body))),
            Collected::Long(_) => None,
        };
        loop {
            let claimed = match keyed::claim(&worker, guard, permit, &key, payload).await {
                Ok(claimed) => claimed,
                Err(refused) => {
                    drop(self.outgoing(collected));
                    return Err(refused);
                }
            };
            let twin = match claimed {
                Claimed::Mine => break,
                Claimed::Fenced => {
                    drop(self.outgoing(collected));
                    return Err(self.why_denied().await);
                }
                Claimed::Known(entry) => {
                    let payload = self.payload(payload, collected).await?.0;
                    return keyed::known(&worker, &entry, &payload).map(Ready::Answered);
                }
                Claimed::Twin(twin) => twin,
            };
            let (own, left) = self.payload(payload, collected).await?;
            payload = Some(own);
            twin.agrees(&own, permit.seq()).map_err(|why| keyed::refused(&worker, why))?;
            let answered = tokio::select! {
                biased;
                answered = twin.answer(&worker, &own) => answered,
                () = guard.route().retired() => return Err(rerouted()),
            };
            collected = match (answered, left) {
                (Some(answered), _) => return answered.map(Ready::Answered),
                // The first was not sent, so this one may try to be next.
                (None, Some(left)) => left,
                (None, None) => return Err(keyed::refused(&worker, KeyRefusal::InProgress)),
            };
        }
        let outgoing = self.outgoing(collected);
        outgoing.upload.iter().for_each(|upload| upload.make_digest());
        Ok(Ready::Go(outgoing))
    }

    /// The payload of a write whose key is another's, and its body, where that was not read for it.
    async fn payload(
        &self,
        payload: Option<Payload>,
        collected: Collected,
    ) -> Result<(Payload, Option<Collected>), Rejection> {
        match (payload, collected) {
            (Some(payload), collected) => Ok((payload, Some(collected))),
            (None, Collected::Whole(outgoing)) => {
                let payload = keyed::payload(&self.head, keyed::digest_of(&outgoing.body));
                Ok((payload, Some(Collected::Whole(outgoing))))
            }
            (None, Collected::Long(Stream { first, rest, is_h2, .. })) => {
                let (limits, _waits) = (Limits::of(&self.worker_plan.plan), self.waits_for_client());
                let digest = keyed::digest_on(&self.worker, first, rest, is_h2, limits);
                let Some(guard) = self.guard() else { return Err(rerouted()) };
                // A client may be slow with its body; a reload does not wait for it.
                let digest = tokio::select! {
                    biased;
                    digest = digest => digest?,
                    () = guard.route().retired() => return Err(rerouted()),
                };
                Ok((keyed::payload(&self.head, digest), None))
            }
        }
    }

    fn outgoing(&self, collected: Collected) -> Outgoing {
        match collected {
            Collected::Whole(outgoing) => outgoing,
            Collected::Long(stream) => self.stream_on(stream),
        }
    }

    /// Makes a body ready to be sent: a short one is collected, a long one streams.
    pub(super) async fn body(&self, hold: Hold, share: Option<Share>) -> Result<Outgoing, Rejection> {
        Ok(self.outgoing(self.collect(hold, share).await?))
    }

    /// Collects a body, if it is short.
    async fn collect(&self, mut hold: Hold, share: Option<Share>) -> Result<Collected, Rejection> {
        if hold.is_untouched() && hold.body.is_end_stream() {
            return Ok(Collected::Whole(Outgoing::whole(StoreBody::Empty, None)));
        }
        if !self.may_have_body {
            return self.has_no_body(hold).await;
        }
        let (settings, length) = (&self.worker_plan.plan.settings, hold.length);
        if length.is_some_and(|length| length > settings.hold_bytes as u64) {
            return Ok(Collected::Long(self.streamed(hold.body, length)));
        }
        let expected = length.and_then(|length| usize::try_from(length).ok()).unwrap_or(settings.hold_bytes);
        let take = || Share::take(&self.worker.plane, expected, settings.hold_total_bytes);
        let of_asker = |share: Share| share.of(self.asker(), settings.hold_total_bytes);
        let Some(share) = share.or_else(take).and_then(of_asker) else {
            drop(self.stream_on(self.streamed(hold.body, length)));
            return Err(no_room());
        };
        let limits = Limits::of(&self.worker_plan.plan);
        if !self.guard().is_some_and(|guard| guard.is_judged()) {
            // Judging a write reads the clock. This request was not judged.
            let _ = self.worker.watch();
        }
        let (mut pace, waits) = (Pace::new(&self.worker.alarms, limits.slowest), self.waits_for_client());
        let collected = poll_fn(|context| match hold.poll(limits, &self.client, &mut pace, context) {
            Poll::Ready(collected) => Poll::Ready(collected.map_err(|why| unsent(&why.into()))),
            // A client may be slow with its body; a reload does not wait for it.
            Poll::Pending if self.is_retired() => Poll::Ready(Err(rerouted())),
            Poll::Pending => Poll::Pending,
        });
        let collected = collected.await?;
        drop(waits);
        match collected {
            Held::Whole { trailers: Some(trailers) } if trailers.contains_key(FENCE_TOKEN) => {
                Err(unsent(&Broken::TokenInTrailer))
            }
            Held::Whole { trailers } => {
                let trailers =
                    trailers.and_then(|trailers| trailer::pass_on(&trailers, &self.worker_plan.plan.trailers));
                let body = StoreBody::held(hold.first, hold.parts, trailers.map(Box::new));
                Ok(Collected::Whole(Outgoing::whole(body, Some(share))))
            }
            Held::Long => {
                let mut first = hold.parts;
                first.push_front(hold.first);
                Ok(Collected::Long(Stream { first, share: Some(share), ..self.streamed(hold.body, length) }))
            }
        }
    }

    /// Counts the request as waiting for its client, with nothing sent, until this is dropped.
    fn waits_for_client(&self) -> Turned {
        Turned::new(&self.client, At::of(&self.head.method), At::Client, self.worker.now())
    }

    /// Waits for the end of a read's body, which must be empty. An HTTP/2 head need not say that it is.
    async fn has_no_body(&self, mut hold: Hold) -> Result<Collected, Rejection> {
        // The clock was not read for this request.
        let _ = self.worker.watch();
        let mut pace = Pace::new(&self.worker.alarms, Limits::of(&self.worker_plan.plan).slowest);
        let _waits = self.waits_for_client();
        poll_fn(|context| {
            while !hold.body.is_end_stream() {
                match Pin::new(&mut hold.body).poll_frame(context) {
                    Poll::Pending => return pace.poll(context).map(|()| Err(unsent(&Broken::Slow))),
                    Poll::Ready(None | Some(Err(_))) => return Poll::Ready(Err(unsent(&Broken::Client))),
                    Poll::Ready(Some(Ok(frame))) if frame.data_ref().is_some_and(|data| !data.is_empty()) => {
                        return Poll::Ready(Err(body_on_read("body").into()));
                    }
                    Poll::Ready(Some(Ok(_))) => {}
                }
            }
            Poll::Ready(Ok(Collected::Whole(Outgoing::whole(StoreBody::Empty, None))))
        })
        .await
    }

    fn streamed(&self, rest: Incoming, length: Option<u64>) -> Stream {
        let (headers, limits) = (&self.head.headers, Limits::of(&self.worker_plan.plan));
        Stream {
            first: VecDeque::new(),
            share: None,
            rest,
            is_h2: self.is_h2(),
            length,
            client: Rc::clone(&self.client),
            // If trailers follow, the last byte does not complete the request: see `Length`.
            has_trailers: !headers::announced(&self.head, &self.worker_plan.plan.trailers).is_empty(),
            asks_first: !self.is_h2() && headers.contains_key(header::EXPECT),
            limit: limits.most,
            slowest: limits.slowest,
        }
    }

    fn stream_on(&self, stream: Stream) -> Outgoing {
        // A body that has begun to come needs no 100 Continue.
        let asks_first = stream.asks_first && stream.first.is_empty();
        let stream = Stream { asks_first, ..stream };
        let length = stream.length;
        let (upload, state) = Upload::new(stream, self.guard().cloned(), Rc::clone(&self.worker));
        Outgoing { body: StoreBody::Stream(Box::pin(upload)), share: None, upload: Some(state), length }
    }
}
