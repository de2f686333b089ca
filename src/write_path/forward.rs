//! To the store and back, once: prepare the body, exchange it for an answer, conclude.
//!
//! A write is judged again at the last moment before it is sent, and is sent at most once. `fence::write` says what
//! that means for the write. Here are the connection, the bytes and the clock. `conclude.rs` has the answer.

use std::{future::poll_fn, rc::Rc, task::Poll};

use http::Method;

use super::{
    evict::{At, Turned},
    headers::{self, Length},
    hold::{Share, Source},
    job::{Admitted, Job},
    outcome,
    outgoing::{Outgoing, Ready},
    refusals::{self, UNASKED, no_answer, no_connection, rerouted, unsent},
    reply::{Answered, Rejection},
    upload::{Broken, UploadState},
};
use crate::{
    barrier::{flight::Cancel, in_flight::Denied},
    clock::Stopwatch,
    failpoints::{self, Point},
    fence::{
        Code, Denial,
        write::{Effect, Event, Outcome, Release, Stage},
    },
    sources,
    upstream::{
        answer::Head,
        body::StoreBody,
        http1::{Failed, Pass, Reuse, Unsent},
        pool::{NoConnection, PooledConn},
        shares::Asker,
    },
};

/// The head of the store's answer, and the connection that the rest comes on.
pub(super) struct StoreResponse {
    pub(super) conn: PooledConn,
    pub(super) head: Box<Head>,
    /// Since when the gate waits for the answer.
    pub(super) since: Stopwatch,
}

/// Forwards a request and returns the store's answer.
///
/// # Errors
/// With what the client gets instead.
pub async fn forward(mut job: Box<Job>, source: Source) -> Answered {
    let outgoing = match source {
        source if job.is_keyed() => match Box::pin(job.claim_key(source)).await? {
            Ready::Go(outgoing) => outgoing,
            Ready::Answered(response) => return Ok(response),
        },
        Source::Here { body, share } => Outgoing::whole(body, share),
        // Boxed, since it is large and most writes do not need it.
        Source::Coming { hold, share } => Box::pin(job.body(hold, share)).await?,
    };
    let Outgoing { mut body, mut share, upload, length } = outgoing;
    let length = Length::of(&job.head, &body, length, &job.worker_plan.plan.trailers);
    let digest = if job.is_journaled() { outcome::digest_of(&body, upload.as_deref()) } else { None };
    let answer = job.exchange(&mut body, &mut share, upload.as_deref(), &length).await?;
    drop(share);
    job.worker.tally.answered(job.write.is_some(), answer.since.seconds());
    job.conclude(answer, upload.as_deref(), digest).await
}

/// Why a request has no answer.
struct Unanswered {
    why: String,
    /// True where the connection broke, false where the gate has given up.
    is_of_connection: bool,
}

impl Unanswered {
    fn given_up(why: impl Into<String>) -> Self {
        Self { why: why.into(), is_of_connection: false }
    }
}

impl From<Failed> for Unanswered {
    fn from(failed: Failed) -> Self {
        Self { why: failed.to_string(), is_of_connection: !matches!(failed, Failed::Body(_)) }
    }
}

/// How an attempt on one connection went.
enum SendAttempt {
    Answered(StoreResponse),
    /// No byte of the request has left, so it may be tried on another connection.
    Again(Option<Unsent>),
}

impl Job {
    /// Sends the request, on the first connection that takes a byte of it, and returns the head of the answer.
    async fn exchange(
        &mut self,
        body: &mut StoreBody,
        share: &mut Option<Share>,
        upload: Option<&UploadState>,
        length: &Length,
    ) -> Result<StoreResponse, Box<Rejection>> {
        let mut unsent: Option<Unsent> = None;
        loop {
            let is_committed = self.guard().is_some_and(|guard| guard.stage() == Stage::Committed);
            // An idle connection has just been checked.
            let (mut conn, is_checked) = match self.idle_connection() {
                Some(conn) => (conn, true),
                None => (Box::pin(self.connect(share)).await?, false),
            };
            // If the last frame was released but no byte was accepted, the body is sent as a complete one.
            let streams = upload.is_some_and(|upload| !upload.is_released());
            let (pass, waited) = match self.release(streams) {
                Ok(pass) => (pass, false),
                Err(effect) => match Box::pin(self.release_after(effect)).await {
                    Ok(release) => (Pass::Write(release), true),
                    Err(refused) => {
                        conn.put_back(self.worker.now());
                        return Err(refused.into());
                    }
                },
            };
            failpoints::reach(Point::Committed);
            if (waited || !is_checked) && conn.http1().is_dead() {
                // Bytes that the store sent before the request are no answer to it.
                let is_another_there = conn.was_idle();
                drop(conn);
                self.back_out();
                if is_another_there {
                    continue;
                }
                return Err(Box::pin(self.failed(false, UNASKED, upload)).await.into());
            }
            let since = self.write.as_ref().and_then(|write| write.since).filter(|_| is_committed);
            self.write_head(&mut conn, pass, unsent.take(), length);
            match self.attempt(conn, body, upload, since).await? {
                SendAttempt::Answered(answer) => return Ok(answer),
                SendAttempt::Again(again) => unsent = again,
            }
        }
    }

    /// The connection that the write was committed with, or an idle one.
    #[inline]
    fn idle_connection(&mut self) -> Option<PooledConn> {
        let committed = self.write.as_mut().and_then(|write| write.conn.take());
        committed.or_else(|| self.pool().idle_conn(self.asker()))
    }

    /// A new connection, or the next one that becomes free. `share`: the room that the body uses meanwhile. It counts
    /// as its asker's from here on.
    async fn connect(&self, share: &mut Option<Share>) -> Result<PooledConn, Box<Rejection>> {
        let nothing = |why| Box::new(self.came_to_nothing(no_connection(why)));
        let (asker, total) = (self.asker(), self.worker_plan.plan.settings.hold_total_bytes);
        if let Some(uncounted) = share.take_if(|share| !share.is_counted()) {
            *share = Some(uncounted.of(asker, total).ok_or(NoConnection::Overloaded).map_err(nothing)?);
        }
        // Nothing was sent, and no lease permits it.
        let is_loose = asker == Asker::Unjudged;
        let at = At::of(&self.head.method);
        let _loose = is_loose.then(|| Turned::new(&self.client, at, At::Loose, self.worker.now()));
        self.pool().conn(asker).await.map_err(nothing)
    }

    /// The last moment before something is sent. A write is judged again; if it is sent whole, this commits it.
    ///
    /// # Errors
    /// With the effect that has to be carried out first.
    #[inline]
    fn release(&self, streams: bool) -> Result<Pass, Effect> {
        let Some(guard) = self.guard() else { return self.read.map(Pass::Read).ok_or(Effect::Nothing) };
        match guard.on(Event::Connected { whole: !streams }) {
            Effect::Send(release) => Ok(Pass::Write(release)),
            effect => Err(effect),
        }
    }

    /// Carries out what has to be done first, and has the write judged again.
    async fn release_after(&self, mut effect: Effect) -> Result<Release, Rejection> {
        let Some(guard) = self.guard() else { return Err(rerouted()) };
        loop {
            let denied = guard.take_denied();
            effect = match effect {
                Effect::Send(release) => return Ok(release),
                Effect::Clear(_) => match self.clear(denied).await {
                    Ok(()) => guard.on(Event::Cleared(true)),
                    Err(refused) => {
                        let _ = guard.on(Event::Cleared(false));
                        return Err(refused);
                    }
                },
                _ => return Err(denied.map_or_else(rerouted, |denied| self.refusal(denied))),
            };
        }
    }

    /// Removes the obstacle that keeps the write from being permitted.
    async fn clear(&self, denied: Option<Denied>) -> Result<(), Rejection> {
        let gate = &self.worker.plane.gate;
        match denied {
            Some(Denied { object, why: Denial::Overdue(lease) }) => {
                let ended = gate.ledger.end(vec![(object, lease)]).await;
                ended.map_err(|_| Rejection::new(Code::TableUnavailable, "the fence table cannot be used now"))
            }
            // Its term was known when it was admitted. The API server is asked once whether its Lease is still held.
            Some(denied @ Denied { why: Denial::Unseen(_) | Denial::Lapsed(_), .. }) => {
                if sources::ask_again(gate, &denied.object).await { Ok(()) } else { Err(self.refusal(denied)) }
            }
            Some(denied) => Err(self.refusal(denied)),
            None => Ok(()),
        }
    }

    /// The refusal that the client gets for a denial.
    fn refusal(&self, Denied { object, why }: Denied) -> Rejection {
        let refusal = sources::still_unknown(&self.worker.plane.gate, &object, why);
        Rejection::from(refusal).of(&object)
    }

    /// Ends a write of which nothing was sent, and returns why it may not go on.
    pub(super) async fn why_denied(&self) -> Rejection {
        let changing = || Rejection::new(Code::FenceDraining, "the lease was changing hands; nothing was sent");
        let Some(guard) = self.guard() else { return changing() };
        let mut may_ask = true;
        let why = loop {
            let denied = match guard.check_permit() {
                _ if self.is_retired() => break rerouted(),
                Ok(()) => break changing(),
                Err(denied) => denied,
            };
            let may_clear = match denied.why {
                Denial::Overdue(_) => true,
                Denial::Unseen(_) | Denial::Lapsed(_) => std::mem::take(&mut may_ask),
                Denial::Refused(_) | Denial::Behind(_) => false,
            };
            if !may_clear {
                break self.refusal(denied);
            }
            if let Err(refused) = self.clear(Some(denied)).await {
                break refused;
            }
        };
        let _ = guard.on(Event::Interrupted);
        why
    }

    fn write_head(&self, conn: &mut PooledConn, pass: Pass, unsent: Option<Unsent>, length: &Length) {
        let http1 = conn.http1();
        match unsent {
            Some(unsent) => http1.begin_again(pass, unsent),
            None => {
                let reuse = self.reuse(length);
                let out = http1.begin(pass, self.head.method == Method::HEAD, length.framing(), reuse);
                let (guard, closes) = (self.guard().map(|guard| &**guard), reuse == Reuse::Never);
                headers::to_store(out, &self.head, &self.client.origin, guard, (length, closes), &self.worker.ids);
            }
        }
    }

    /// Sends the request on one connection, and waits for the head of the answer.
    async fn attempt(
        &self,
        mut conn: PooledConn,
        body: &mut StoreBody,
        upload: Option<&UploadState>,
        since: Option<Stopwatch>,
    ) -> Result<SendAttempt, Box<Rejection>> {
        let (before, stopwatch) = (conn.http1().wire().sent.get(), since.unwrap_or_else(|| self.worker.watch()));
        let sent = match upload {
            None => self.send_whole(&mut conn, body).await,
            Some(upload) => Box::pin(self.send_stream(&mut conn, body, upload)).await,
        };
        let failed = match sent {
            Ok(head) => {
                let since = match upload {
                    None => stopwatch,
                    // An early answer to a long upload is timed separately.
                    Some(upload) => upload.released().unwrap_or_else(Stopwatch::start),
                };
                return Ok(SendAttempt::Answered(StoreResponse { conn, head, since }));
            }
            Err(failed) => failed,
        };
        let something_left = conn.http1().wire().sent.get() > before;
        // The connection died while it was idle, and took no byte of this request.
        let may_try_again = failed.is_of_connection && conn.was_idle() && !something_left;
        let unsent = if may_try_again { conn.http1().take_back() } else { None };
        // Nothing more leaves from here on, so the bound of an unknown outcome is counted from here.
        drop(conn);
        if unsent.is_none() {
            return Err(Box::pin(self.failed(something_left, &failed.why, upload)).await.into());
        }
        self.back_out();
        Ok(SendAttempt::Again(unsent))
    }

    /// Sends a request whose whole body is here.
    async fn send_whole(&self, conn: &mut PooledConn, body: &mut StoreBody) -> Result<Box<Head>, Unanswered> {
        let (http1, mut alarm) = (conn.http1(), self.worker.alarms.set(self.patience()));
        poll_fn(|context| match http1.poll_answer(context, body) {
            Poll::Ready(answered) => Poll::Ready(answered.map_err(Unanswered::from)),
            Poll::Pending => alarm.poll(context).map(|()| Err(self.unheard())),
        })
        .await
    }

    /// Sends a request whose body is still coming.
    async fn send_stream(
        &self,
        conn: &mut PooledConn,
        body: &mut StoreBody,
        upload: &UploadState,
    ) -> Result<Box<Head>, Unanswered> {
        let http1 = conn.http1();
        let wire = Rc::clone(http1.wire());
        let cancel = self.guard().and_then(|guard| guard.cancel());
        upload.listen(Rc::clone(&wire));
        tokio::select! {
            biased;
            answered = poll_fn(|context| http1.poll_answer(context, body)) => answered.map_err(Unanswered::from),
            () = upload.stalled(self.patience(), || wire.sent.get()) => Err(self.unheard()),
            () = cancelled(cancel, upload) => Err(Unanswered::given_up("the lease is changing hands")),
            () = self.rerouted_before_its_end(upload) => Err(Unanswered::given_up("this route has just changed")),
        }
    }

    fn unheard(&self) -> Unanswered {
        Unanswered::given_up(format!("no answer came for {} ms", self.patience().as_millis()))
    }

    /// Returns when a reload has changed the route of this write before its end was released.
    async fn rerouted_before_its_end(&self, upload: &UploadState) {
        match self.guard() {
            Some(guard) => guard.route().retired().await,
            None => std::future::pending().await,
        }
        if upload.is_released() {
            std::future::pending::<()>().await;
        }
    }

    /// The refusal for a request that was not answered and whose connection is closed.
    pub(super) async fn failed(&self, something_left: bool, why: &str, upload: Option<&UploadState>) -> Rejection {
        let broken = upload.and_then(UploadState::broken);
        let is_partial = upload.is_some_and(|upload| !upload.is_released());
        if !something_left {
            self.back_out();
            let refused = match broken {
                Some(Broken::Denied) => return self.why_denied().await,
                Some(broken) => unsent(&broken),
                None => self.came_to_nothing(no_answer(why)),
            };
            self.guard().inspect(|guard| drop(guard.on(Event::Interrupted)));
            return refused;
        }
        let Some(write) = &self.write else {
            // A client that breaks off its own request shows nothing about the store.
            return broken.map_or_else(|| no_answer(why), |broken| refusals::cut_off(&broken));
        };
        if self.close(write).await == Outcome::Cancelled {
            return broken.map_or_else(|| no_answer(why), |broken| unsent(&broken));
        }
        refusals::unknown(match broken {
            Some(broken) => format!("part of the write was sent, but not its end ({broken})"),
            None if is_partial => format!("part of the write was sent, but not its end ({why})"),
            None => format!("the write was sent, and the store gave no answer ({why})"),
        })
    }

    /// Ends a write whose connection is closed and of which something may have left.
    pub(super) async fn close(&self, write: &Admitted) -> Outcome {
        outcome::close(&self.worker, &write.guard, self.line(write)).await
    }

    /// Notes that nothing of the write has left: it may be tried on another connection.
    fn back_out(&self) {
        self.guard().inspect(|guard| drop(guard.on(Event::Closed { left: false })));
    }

    /// Nothing was sent, and requests that share its idempotency key would fail in the same way.
    fn came_to_nothing(&self, why: Rejection) -> Rejection {
        self.guard().and_then(|guard| guard.with_key(|claim| claim.came_to_nothing(&why)));
        why
    }
}

/// Returns when an advance cancels this write. After the commit point it is too late for that.
async fn cancelled(cancel: Option<Cancel>, upload: &UploadState) {
    match cancel {
        Some(cancel) => cancel.notified().await,
        None => std::future::pending().await,
    }
    if upload.is_released() {
        std::future::pending::<()>().await;
    }
}
