//! A lease that this process holds: renewed in the background, lost at the first definite sign or at its deadline.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use thiserror::Error;
use tokio::{sync::Mutex, task::JoinHandle};

use super::{
    acquire::Wanted,
    backoff::Backoff,
    call::{By, Failed, Granted, LeaseApi, Refusal, Token, lasting},
    tenure::{Over, Tenure},
};
use crate::{
    fence::{BootMs, HolderId, ObjectId, Ttl},
    wire::RenewRequest,
};

/// How long a release is tried. Each try gets less, so that there is time for another after one that hangs. A lease
/// that cannot be released runs out.
const RELEASE: Duration = Duration::from_secs(5);
const RELEASE_TRY: Duration = Duration::from_millis(1_500);
const BACKOFF_MS: (u64, u64) = (50, 2_000);

/// Why a lease is no longer held.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Lost {
    /// The gate has answered that the lease is over.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// Its deadline has passed without a renewal: the gate did not answer, or this process did not run.
    #[error("its time is up, and it was not renewed{}", last.as_ref().map(|last| format!(": {last}")).unwrap_or_default())]
    Deadline { last: Option<String> },
    /// A write with its token was refused.
    #[error("the gate refused a write of it with {code}")]
    Write { code: String },
    #[error("it was released")]
    Released,
}

impl Lost {
    /// The reason in one word, for metrics and logs.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            Self::Refused(refusal) => &refusal.code,
            Self::Deadline { .. } => "DEADLINE",
            Self::Write { code } => code,
            Self::Released => "RELEASED",
        }
    }
}

impl Over for Lost {
    fn deadline(last: Option<String>) -> Self {
        Self::Deadline { last }
    }

    fn released() -> Self {
        Self::Released
    }
}

/// Why a renewal did not happen.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NotRenewed {
    #[error(transparent)]
    Lost(Lost),
    /// Unknown: the lease may still be good.
    #[error("{0}")]
    Unconfirmed(Failed),
}

/// A lease, kept until it is released, lost or dropped. A dropped lease runs out.
#[derive(Debug)]
pub struct Lease {
    held: Arc<Held>,
    keeper: JoinHandle<()>,
}

#[derive(Debug)]
struct Held {
    api: LeaseApi,
    object: ObjectId,
    holder: HolderId,
    lease_id: String,
    seq: u64,
    token: Token,
    ttl: Ttl,
    warning: Option<String>,
    tenure: Tenure<Lost>,
    /// How many renewals callers have begun.
    begun: AtomicU64,
    /// The number and result of the last of these that has ended. The caller that renews holds this lock.
    asked: Mutex<(u64, Result<(), NotRenewed>)>,
}

impl Lease {
    /// Keeps a grant. If the grant took long to arrive, it is renewed first: counted from the request, no time may be
    /// left.
    pub(super) async fn begin(api: &LeaseApi, wanted: &Wanted, granted: Granted) -> Result<Self, Lost> {
        let Granted { lease_id, seq, token, ttl, sent, until, warning } = granted;
        let held = Arc::new(Held {
            api: api.clone(),
            object: wanted.object.clone(),
            holder: wanted.holder.clone(),
            lease_id,
            seq,
            token,
            ttl,
            warning,
            tenure: Tenure::new(api.clock.clone(), until),
            begun: AtomicU64::new(0),
            asked: Mutex::new((0, Ok(()))),
        });
        let mut renewed = sent;
        if held.tenure.left_ms() < ttl.0 / 3 * 2 {
            renewed = held.confirm().await?;
        }
        let keeper = tokio::spawn(keep(Arc::clone(&held), renewed));
        Ok(Self { held, keeper })
    }

    /// Returns the token if the lease is held now by this machine's clock. This also holds right after the process
    /// was stopped for longer than the lease lasts.
    ///
    /// # Errors
    /// Why it was lost.
    pub fn token(&self) -> Result<Token, Lost> {
        self.held.tenure.check()?;
        Ok(self.held.token.clone())
    }

    /// Its number: higher than that of every earlier lease on the object.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.held.seq
    }

    #[must_use]
    pub fn object(&self) -> &ObjectId {
        &self.held.object
    }

    #[must_use]
    pub fn holder(&self) -> &HolderId {
        &self.held.holder
    }

    /// The gate's warning at the grant: that no write can use it.
    #[must_use]
    pub fn warning(&self) -> Option<&str> {
        self.held.warning.as_deref()
    }

    /// How many milliseconds it lasts unless it is renewed.
    #[must_use]
    pub fn ttl_ms(&self) -> u64 {
        self.held.ttl.0
    }

    /// The milliseconds that are left; 0 once it is lost.
    #[must_use]
    pub fn left_ms(&self) -> u64 {
        self.held.tenure.check().map_or(0, |()| self.held.tenure.left_ms())
    }

    /// Returns the reason once it is lost.
    pub async fn lost(&self) -> Lost {
        self.held.tenure.over().await
    }

    /// Renews, for callers that want a confirmation before each write. All calls during one renewal share the next
    /// one.
    ///
    /// # Errors
    /// When it is lost, or the gate did not confirm within `patience`.
    pub async fn renew(&self, patience: Duration) -> Result<(), NotRenewed> {
        self.held.tenure.check().map_err(NotRenewed::Lost)?;
        let before = self.held.begun.load(Ordering::Acquire);
        let mut last = self.held.asked.lock().await;
        // That renewal was begun after this call, so its result is new enough.
        if last.0 > before {
            return last.1.clone();
        }
        let number = self.held.begun.fetch_add(1, Ordering::AcqRel) + 1;
        *last = (number, self.held.renew_as_asked(patience).await);
        last.1.clone()
    }

    /// The gate refused a write with this token because of the lease, so the lease is lost.
    pub fn refused_write(&self, code: &str) {
        self.held.tenure.end(Lost::Write { code: code.to_owned() });
    }

    /// Gives the lease back. Call this when no write uses its token any more. A lease that is already over counts as
    /// given back.
    ///
    /// # Errors
    /// When the gate did not confirm in time; the lease then runs out.
    pub async fn release(&self) -> Result<(), Failed> {
        self.keeper.abort();
        self.held.tenure.end(Lost::Released);
        let mut backoff = Backoff::new(BACKOFF_MS.0, BACKOFF_MS.1);
        let give_up = self.held.api.now().after(lasting(RELEASE));
        loop {
            let failed = match self.held.api.release(&self.held.lease_id, &self.held.token, RELEASE_TRY).await {
                Ok(()) => return Ok(()),
                Err(Failed::Refused(refusal)) if refusal.ends_lease() => return Ok(()),
                Err(failed) => failed,
            };
            let is_final = matches!(&failed, Failed::Refused(refusal) if !refusal.retryable);
            if is_final || self.held.api.now() >= give_up {
                return Err(failed);
            }
            tokio::time::sleep(backoff.next(failed.asked_ms())).await;
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

impl Held {
    async fn renew_as_asked(&self, patience: Duration) -> Result<(), NotRenewed> {
        match self.renew(patience, By::Kept).await {
            Ok(_) => self.tenure.check().map_err(NotRenewed::Lost),
            Err(Failed::Refused(refusal)) if refusal.ends_lease() => {
                Err(NotRenewed::Lost(self.tenure.end(Lost::Refused(refusal))))
            }
            Err(failed) => Err(NotRenewed::Unconfirmed(failed)),
        }
    }

    /// Renews once. Returns when the renewal was sent.
    async fn renew(&self, patience: Duration, by: By) -> Result<BootMs, Failed> {
        let request = RenewRequest {
            fence_token: self.token.expose().to_owned(),
            holder_id: self.holder.to_string(),
            ttl_ms: Some(self.ttl.0),
            rotate: None,
        };
        let renewed = self.api.renew(&self.lease_id, &request, patience, by).await?;
        self.tenure.extend(renewed.until);
        Ok(renewed.sent)
    }

    /// Renews until the gate has confirmed. The lease was granted after the request and before the answer came, so it
    /// ends at the latest its ttl from now.
    async fn confirm(&self) -> Result<BootMs, Lost> {
        let end = self.api.now().after(self.ttl);
        let mut backoff = Backoff::new(BACKOFF_MS.0, BACKOFF_MS.1);
        loop {
            let left = end.since(self.api.now());
            let failed = match self.renew(self.patience(left), By::New).await {
                Ok(sent) => return Ok(sent),
                Err(Failed::Refused(refusal)) if refusal.ends_lease() => return Err(Lost::Refused(refusal)),
                Err(failed) => failed,
            };
            if left == 0 {
                return Err(Lost::Deadline { last: Some(failed.to_string()) });
            }
            tokio::time::sleep(backoff.next(failed.asked_ms())).await;
        }
    }

    /// How long one renewal may take: a third of the ttl, so that there is time for another after one that hangs.
    fn patience(&self, left_ms: u64) -> Duration {
        Duration::from_millis(left_ms.min(self.ttl.0 / 3).max(1))
    }
}

/// Renews a lease at a third of its ttl, again and again, until it is lost.
async fn keep(held: Arc<Held>, renewed: BootMs) {
    let third = Ttl(held.ttl.0 / 3);
    let mut next = renewed.after(third);
    let mut backoff = Backoff::new(BACKOFF_MS.0.min(third.0.max(1)), BACKOFF_MS.1.min(third.0.max(1)));
    loop {
        held.tenure.sleep_until(next).await;
        // This also ends the lease if its deadline has passed.
        if held.tenure.check().is_err() {
            return;
        }
        let renewed = tokio::select! {
            renewed = held.renew(held.patience(held.tenure.left_ms()), By::New) => renewed,
            // Tokio's timer does not count while the machine sleeps; this one does.
            () = held.tenure.sleep_until(BootMs(u64::MAX)) => {
                held.tenure.set_last(Some("the last renewal was not answered in time".to_owned()));
                continue;
            }
            // Another task has found the lease lost.
            _ = held.tenure.over() => return,
        };
        match renewed {
            Ok(sent) => {
                next = sent.after(third);
                held.tenure.set_last(None);
                backoff.reset();
            }
            Err(Failed::Refused(refusal)) if refusal.ends_lease() => {
                held.tenure.end(Lost::Refused(refusal));
                return;
            }
            Err(failed) => {
                let wait = backoff.next(failed.asked_ms());
                next = held.api.now().after(lasting(wait));
                held.tenure.set_last(Some(failed.to_string()));
            }
        }
    }
}
