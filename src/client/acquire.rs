//! Waits for a lease by long polls under one `request_id`. A failed poll is retried under the same `request_id`.

use std::{pin::pin, time::Duration};

use thiserror::Error;
use uuid::Uuid;

use super::{
    backoff::Backoff,
    call::{Failed, Granted, LeaseApi, Refusal, lasting},
    lease::{Lease, Lost},
};
use crate::{
    fence::{BootMs, HolderId, ObjectId},
    wire::AcquireRequest,
};

/// The length of one long poll. A longer poll keeps the place in the queue for longer; a shorter one notices sooner
/// that the gate's machine is gone.
const POLL_MS: u64 = 60_000;
/// How much longer than the requested wait an answer may take.
const MARGIN: Duration = Duration::from_secs(15);
/// The least such margin, however little time is left: the gate waits up to 5 s for a drain before it answers.
const GATE_PATIENCE: Duration = Duration::from_secs(6);
/// First and longest wait between tries.
const BACKOFF_MS: (u64, u64) = (100, 5_000);
/// How often a call without an answer is repeated, also for a caller that does not want to wait.
const ASK_AGAIN: u32 = 3;
/// The limit on short calls: a repeated call after a lost answer, and giving back.
const SHORT: Duration = Duration::from_secs(2);

/// The lease that a caller wants.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub object: ObjectId,
    /// Unique per process.
    pub holder: HolderId,
    /// `None`: the gate's default.
    pub ttl_ms: Option<u64>,
    /// `None`: wait for ever. Zero: do not wait.
    pub wait: Option<Duration>,
}

impl Wanted {
    /// With the gate's default ttl, and waiting for ever.
    #[must_use]
    pub fn new(object: ObjectId, holder: HolderId) -> Self {
        Self { object, holder, ttl_ms: None, wait: None }
    }

    #[must_use]
    pub fn with_ttl_ms(self, ttl_ms: u64) -> Self {
        Self { ttl_ms: Some(ttl_ms), ..self }
    }

    #[must_use]
    pub fn with_wait(self, wait: Duration) -> Self {
        Self { wait: Some(wait), ..self }
    }
}

/// A name that no other process has: the machine's name, the process id, and eight random digits.
///
/// # Panics
/// Never: characters that a name cannot contain are left out.
#[must_use]
pub fn default_holder() -> HolderId {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let host: String = host.chars().filter(|c| !c.is_control()).take(200).collect();
    let word = Uuid::new_v4().simple().to_string();
    let name = format!("{host}-{}-{}", std::process::id(), &word[..8]);
    HolderId::new(&name).expect("it is short and has no control characters")
}

/// Why there is no lease yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Another holder has it. `None` where the gate still waits for older writes.
    Held { by: Option<String> },
    /// The gate cannot be reached, does not answer, or cannot grant now.
    Unreachable { why: String },
}

/// Why there is no lease.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NotHad {
    #[error("held by {} all the time", by.as_deref().unwrap_or("a lease that is changing hands"))]
    Held { by: Option<String> },
    #[error("{why}")]
    Unreachable { why: String },
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// The caller has given up.
    #[error("no longer wanted")]
    GivenUp,
}

impl From<Progress> for NotHad {
    fn from(last: Progress) -> Self {
        match last {
            Progress::Held { by } => Self::Held { by },
            Progress::Unreachable { why } => Self::Unreachable { why },
        }
    }
}

/// What to do after a failed call.
enum Next {
    /// It is held: wait in the queue.
    Queue(Progress),
    Backoff(Progress, Option<u64>),
    /// This call's `request_id` is used up: the lease of a lost answer has run out.
    NewRequest,
    ShorterPolls,
    GiveUp(Box<Refusal>),
}

/// One attempt to get a lease, from the first call to the last.
struct Attempt<'a> {
    api: &'a LeaseApi,
    wanted: &'a Wanted,
    request_id: String,
    poll_ms: u64,
    until: Option<BootMs>,
    /// The gate may still grant a call: one in progress, one without an answer, or one that waits there for older
    /// writes.
    may_have: bool,
    /// The grant, until the lease is kept.
    granted: Option<Granted>,
}

impl LeaseApi {
    /// Acquires a lease, waiting as long as `wanted` says, and keeps it from then on. `progress` gets each reason why
    /// there is no lease yet.
    ///
    /// # Errors
    /// When there is no lease in time, or the gate will not grant it.
    pub async fn acquire(&self, wanted: &Wanted, progress: impl FnMut(&Progress)) -> Result<Lease, NotHad> {
        self.acquire_unless(wanted, progress, std::future::pending()).await
    }

    /// The same, until `given_up` returns. A lease that may have been granted by then is given back.
    ///
    /// # Errors
    /// As above, and [`NotHad::GivenUp`].
    pub async fn acquire_unless(
        &self,
        wanted: &Wanted,
        mut progress: impl FnMut(&Progress),
        given_up: impl Future<Output = ()>,
    ) -> Result<Lease, NotHad> {
        let until = wanted.wait.map(|wait| self.now().after(lasting(wait)));
        let request_id = new_request_id();
        let mut attempt =
            Attempt { api: self, wanted, request_id, poll_ms: POLL_MS, until, may_have: false, granted: None };
        let given_up = pin!(given_up);
        tokio::select! {
            biased;
            () = given_up => {
                attempt.withdraw().await;
                Err(NotHad::GivenUp)
            }
            had = attempt.run(&mut progress) => had,
        }
    }
}

impl Attempt<'_> {
    async fn run(&mut self, progress: &mut impl FnMut(&Progress)) -> Result<Lease, NotHad> {
        loop {
            let granted = match self.granted(progress).await {
                Ok(granted) => granted,
                Err(not_had) => {
                    if matches!(not_had, NotHad::Held { .. }) {
                        self.withdraw().await;
                    }
                    return Err(not_had);
                }
            };
            self.granted = Some(granted.clone());
            let why = match self.begin(granted).await {
                Ok(lease) => return Ok(lease),
                Err(why) => why,
            };
            // The lease was lost before it was kept.
            let why = match why {
                Lost::Refused(_) => Progress::Held { by: None },
                Lost::Deadline { .. } | Lost::Write { .. } | Lost::Released => {
                    self.withdraw().await;
                    Progress::Unreachable { why: why.to_string() }
                }
            };
            progress(&why);
            if self.left_ms() == Some(0) {
                return Err(why.into());
            }
            (self.request_id, self.may_have, self.granted) = (new_request_id(), false, None);
        }
    }

    /// Keeps a grant. This may take the time that is left, or as long as one call.
    async fn begin(&self, granted: Granted) -> Result<Lease, Lost> {
        let taken = Lease::begin(self.api, self.wanted, granted);
        let Some(left) = self.left_ms() else { return taken.await };
        let begun = tokio::time::timeout(Duration::from_millis(left).max(GATE_PATIENCE), taken).await;
        begun.unwrap_or_else(|_| Err(Lost::Deadline { last: Some("the gate did not confirm it".to_owned()) }))
    }

    async fn granted(&mut self, progress: &mut impl FnMut(&Progress)) -> Result<Granted, NotHad> {
        let mut backoff = Backoff::new(BACKOFF_MS.0, BACKOFF_MS.1);
        // The first call does not wait, so that `progress` soon gets the holder.
        let (mut wait_ms, mut unanswered) = (0, 0);
        loop {
            let failed = match self.ask(wait_ms, unanswered).await {
                Ok(granted) => return Ok(granted),
                Err(failed) => failed,
            };
            unanswered = if matches!(failed, Failed::Unanswered(_)) { unanswered + 1 } else { 0 };
            match judge(failed, wait_ms > 0) {
                Next::GiveUp(refusal) => return Err(NotHad::Refused(refusal)),
                Next::NewRequest => self.request_id = new_request_id(),
                Next::ShorterPolls => {
                    self.poll_ms /= 2;
                    wait_ms = self.next_poll();
                }
                Next::Queue(held) => {
                    progress(&held);
                    if self.left_ms() == Some(0) {
                        return Err(held.into());
                    }
                    wait_ms = self.next_poll();
                    if wait_ms == 0 {
                        // This gate does not let callers wait.
                        self.pause(backoff.next(None)).await;
                    } else {
                        backoff.reset();
                    }
                }
                Next::Backoff(why, asked_ms) => {
                    progress(&why);
                    // A caller that does not wait still asks again for a lease that may have been granted.
                    if self.left_ms() == Some(0) && !(1..ASK_AGAIN).contains(&unanswered) {
                        return Err(why.into());
                    }
                    wait_ms = 0;
                    self.pause(backoff.next(asked_ms)).await;
                }
            }
        }
    }

    async fn ask(&mut self, wait_ms: u64, unanswered: u32) -> Result<Granted, Failed> {
        let request = self.request(wait_ms);
        let might_before = self.may_have;
        self.may_have = true;
        let asked = self.api.ask(&request, Duration::from_millis(wait_ms) + self.margin(unanswered)).await;
        self.may_have = match &asked {
            Ok(_) | Err(Failed::Unanswered(_)) => true,
            // These answers do not concern the earlier calls.
            Err(Failed::Unreachable(_)) => might_before,
            Err(Failed::Refused(refusal)) => match refusal.code.as_str() {
                "FENCE_DRAINING" => true,
                "LEASE_HELD" | "REQUEST_ID_USED" => false,
                _ => might_before,
            },
        };
        asked
    }

    /// How much longer than the requested wait the gate may take to answer.
    fn margin(&self, unanswered: u32) -> Duration {
        match self.left_ms() {
            // A grant of the call before is answered at once.
            Some(0) if unanswered > 0 => SHORT,
            Some(left) => Duration::from_millis(left).clamp(GATE_PATIENCE, MARGIN),
            None => MARGIN,
        }
    }

    /// Gives back a lease that was granted, or may have been, to a call that has been given up. A lease that cannot
    /// be given back runs out.
    async fn withdraw(&mut self) {
        if self.granted.is_none() && self.may_have {
            // A grant that waits for older writes is answered when they are settled, or refused after the gate's 5 s.
            self.granted = self.api.ask(&self.request(0), GATE_PATIENCE).await.ok();
        }
        if let Some(granted) = self.granted.take() {
            let _ = self.api.release(&granted.lease_id, &granted.token, SHORT).await;
        }
        self.may_have = false;
    }

    fn request(&self, wait_ms: u64) -> AcquireRequest {
        AcquireRequest {
            object_id: self.wanted.object.to_string(),
            holder_id: self.wanted.holder.to_string(),
            ttl_ms: self.wanted.ttl_ms,
            wait_ms: (wait_ms > 0).then_some(wait_ms),
            request_id: Some(self.request_id.clone()),
            takeover: None,
        }
    }

    fn left_ms(&self) -> Option<u64> {
        self.until.map(|until| until.since(self.api.now()))
    }

    fn next_poll(&self) -> u64 {
        self.left_ms().map_or(self.poll_ms, |left| left.min(self.poll_ms))
    }

    async fn pause(&self, wait: Duration) {
        let most = self.left_ms().map_or(wait, |left| wait.min(Duration::from_millis(left.max(1))));
        tokio::time::sleep(most).await;
    }
}

fn judge(failed: Failed, is_polling: bool) -> Next {
    let refusal = match failed {
        Failed::Unreachable(why) | Failed::Unanswered(why) => {
            return Next::Backoff(Progress::Unreachable { why }, None);
        }
        Failed::Refused(refusal) => refusal,
    };
    match refusal.code.as_str() {
        "LEASE_HELD" => Next::Queue(Progress::Held { by: refusal.holder_id }),
        "REQUEST_ID_USED" => Next::NewRequest,
        "REQUEST_INVALID" if is_polling && refusal.field.as_deref() == Some("wait_ms") => Next::ShorterPolls,
        // The lease becomes ours when the older writes are settled, as long as the same `request_id` is used.
        "MIGRATION_IN_PROGRESS" | "FENCE_DRAINING" => {
            Next::Backoff(Progress::Held { by: None }, refusal.retry_after_ms)
        }
        _ if refusal.retryable => {
            Next::Backoff(Progress::Unreachable { why: refusal.to_string() }, refusal.retry_after_ms)
        }
        _ => Next::GiveUp(refusal),
    }
}

fn new_request_id() -> String {
    Uuid::new_v4().to_string()
}
