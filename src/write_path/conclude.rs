//! The store's answer: what it means for the write, and what of it the client gets.
//!
//! A complete answer settles the write. The gate reads the answer before the client takes it, up to a bound. A longer
//! answer is passed on as it comes, and the write stays in flight until its end (`response_body.rs`).

use std::{rc::Rc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use hyper::ext::ReasonPhrase;

use super::{
    forward::StoreResponse,
    headers::{self, Outcome as Shown},
    hold::Share,
    job::{Admitted, Job},
    journaled::{UNWRITTEN, may_be_written_yet},
    keyed, outcome,
    read_ahead::{AHEAD_BYTES, Ahead, Frames, read_ahead, take_ready},
    refusals::{no_answer, unknown},
    reply::{Answered, Rejection, ReplyBody},
    response_body::{ResponseBody, Streaming},
    upload::UploadState,
};
use crate::{
    failpoints::{self, Fault, Point},
    fence::write::{Effect, Event, Outcome},
    upstream::{answer::Head, pool::PooledConn},
};

/// What is known of a write's answer when its head is here.
#[derive(Clone, Copy)]
struct Reading {
    status: StatusCode,
    /// The complete answer will say what became of the write.
    settles: bool,
    /// The answer came before all of the request had left.
    is_early: bool,
    /// The digest of the body, where one is needed.
    digest: Option<[u8; 32]>,
}

impl Job {
    /// Passes the store's answer on, and ends the write with it.
    pub(super) async fn conclude(
        self: Box<Self>,
        answer: StoreResponse,
        upload: Option<&UploadState>,
        digest: Option<[u8; 32]>,
    ) -> Answered {
        let StoreResponse { mut conn, head, since } = answer;
        let is_out = conn.http1().is_out();
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            drop(conn);
            let why = "it changed the protocol, although no client had asked for that";
            return Err(Box::pin(self.failed(true, why, None)).await.into());
        }
        let is_partial = upload.is_some_and(|upload| !upload.is_released());
        let is_early = is_partial || !is_out;
        if let Some(upload) = upload.filter(|_| is_early) {
            // The end of the body that is held back is never sent, and the connection is not used again.
            upload.park();
        }
        let Head { status, reason, mut headers, .. } = *head;
        let Some(write) = &self.write else {
            return self.pass_on(conn, (status, reason), headers, is_early);
        };
        let route = self.route(write);
        // The rest of a whole write may still leave before its connection is closed.
        let settles = if is_early { is_partial && route.discards } else { route.is_settled_by(status.as_u16()) };
        failpoints::reach(Point::Sent);
        if failpoints::on(Fault::HeadSettles) {
            let _ = write.guard.on(Event::Answered { settles: true });
        }
        let left = || self.patience().saturating_sub(Duration::from_secs_f64(since.seconds()));
        let ahead = read_ahead(&mut conn, &self.worker, left).await;
        let digest = digest.or_else(|| upload.and_then(UploadState::digest));
        let reading = Reading { status, settles, is_early, digest };
        let (body, shown) = match ahead {
            Ahead::Broken(why) => {
                drop(conn);
                return Err(match Box::pin(self.close(write)).await {
                    // The store discards the part that it has of the write.
                    Outcome::Cancelled => no_answer(&why),
                    _ => unknown(format!("the write was sent, and the store's answer broke off ({why})")),
                }
                .into());
            }
            Ahead::Whole(frames) => {
                failpoints::reach(Point::Answered);
                let keeps = self.end(write, conn, reading).await?;
                let shown = if settles { Shown::Settled } else { Shown::Unknown };
                headers::to_client(&mut headers, Some((&write.guard, shown)), &self.worker.numbers);
                if keeps {
                    Box::pin(self.keep(write, reading, &headers, frames.data())).await;
                }
                add_would(&mut headers, write);
                return Ok(respond((status, reason), headers, ReplyBody::whole(frames)));
            }
            Ahead::Part(frames) => (self.go_on_streaming(write, conn, frames, reading, left()), reading.pending()),
        };
        headers::to_client(&mut headers, Some((&write.guard, shown)), &self.worker.numbers);
        add_would(&mut headers, write);
        Ok(respond((status, reason), headers, body))
    }

    /// Ends the write: its complete answer is here. Returns whether the answer is to be kept under its key.
    async fn end(&self, write: &Admitted, conn: PooledConn, reading: Reading) -> Result<bool, Box<Rejection>> {
        let Reading { status, settles, is_early, digest } = reading;
        let mut effect = write.guard.on(Event::Answered { settles: settles && !is_early });
        let is_recorded = matches!(effect, Effect::Record(_));
        let mut has_line = false;
        if is_recorded {
            let written = match self.line(write) {
                Some(entry) => {
                    Box::pin(entry.settled(&self.worker.gate.ledger, digest.unwrap_or_default(), status.as_u16())).await
                }
                None => Ok(()),
            };
            has_line = written.as_ref().is_err_and(may_be_written_yet);
            effect = write.guard.on(Event::Recorded(written.is_ok()));
        }
        if effect != Effect::Close {
            conn.give_back(self.worker.now());
            return Ok(effect == Effect::KeepAnswer);
        }
        drop(conn);
        let entry = if has_line { None } else { self.line(write) };
        Box::pin(outcome::close(&self.worker, &write.guard, entry)).await;
        if is_recorded { Err(unknown(UNWRITTEN.to_owned()).into()) } else { Ok(false) }
    }

    /// Keeps the answer under the write's idempotency key. When this returns, the answer is durable, or its outcome
    /// under the key stays unknown.
    async fn keep(&self, write: &Admitted, reading: Reading, headers: &HeaderMap, body: Option<Bytes>) {
        let Some(answer) = write.guard.with_key(|claim| claim.keep(reading.status, headers, body)) else { return };
        let payload = reading.digest.map(|digest| keyed::payload(&self.head, digest));
        if let Some(kept) = keyed::keep_answer(&self.worker, &write.guard, payload, answer) {
            // The error only says that the worker ended.
            let _ = kept.await;
        }
    }

    /// The rest of a write's answer is passed on as it comes.
    fn go_on_streaming(
        &self,
        write: &Admitted,
        conn: PooledConn,
        ahead: Frames,
        reading: Reading,
        patience: Duration,
    ) -> ReplyBody {
        let status = reading.status.as_u16();
        let streaming = Streaming {
            worker: Rc::clone(&self.worker),
            conn,
            settles: reading.settles && !reading.is_early,
            guard: Some(Rc::clone(&write.guard)),
            line: self.line(write).map(|line| (line, reading.digest.unwrap_or_default(), status)),
            payload: reading.digest.map(|digest| keyed::payload(&self.head, digest)),
            status,
        };
        ReplyBody::store(ResponseBody::coming(ahead, streaming, patience))
    }

    /// Passes the answer to a read on.
    fn pass_on(
        &self,
        mut conn: PooledConn,
        status: (StatusCode, Option<Bytes>),
        mut headers: HeaderMap,
        is_early: bool,
    ) -> Answered {
        headers::to_client(&mut headers, None, &self.worker.numbers);
        let to_come = conn.http1().to_come();
        let bytes = to_come.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(AHEAD_BYTES).min(AHEAD_BYTES);
        let share = Share::for_answer(&self.worker.plane, bytes, self.worker_plan.plan.settings.hold_total_bytes);
        let ahead = if share.is_some() { take_ready(&mut conn) } else { Ok(Frames::default()) };
        let ahead = ahead.map_err(|why| no_answer(&why))?;
        let streaming = Streaming {
            worker: Rc::clone(&self.worker),
            conn,
            settles: !is_early,
            guard: None,
            line: None,
            payload: None,
            status: status.0.as_u16(),
        };
        let body = ResponseBody::coming(ahead, streaming, self.patience()).ahead_of_client(to_come.is_none(), share);
        Ok(respond(status, headers, ReplyBody::store(body)))
    }
}

impl Reading {
    /// What the client learns of a write whose answer is not complete yet.
    fn pending(self) -> Shown {
        if self.settles { Shown::Pending } else { Shown::Unknown }
    }
}

/// Adds the code that the write would have been refused with if its route enforced.
fn add_would(headers: &mut HeaderMap, write: &Admitted) {
    if let Some(code) = write.would {
        headers.insert("fence-would", HeaderValue::from_static(code.as_str()));
    }
}

fn respond((status, reason): (StatusCode, Option<Bytes>), headers: HeaderMap, body: ReplyBody) -> Response<ReplyBody> {
    let mut response = Response::new(body);
    (*response.status_mut(), *response.headers_mut()) = (status, headers);
    if let Some(reason) = reason.and_then(|reason| ReasonPhrase::try_from(reason).ok()) {
        response.extensions_mut().insert(reason);
    }
    response
}
