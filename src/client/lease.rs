//! A lease in hand: renewed in the background, lost at the first definite sign, never good past its deadline.

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

/// A release is tried for so long, and each try for less: a connection that hangs is not the last one. What cannot be
/// released runs out.
const RELEASE: Duration = Duration::from_secs(5);
const RELEASE_TRY: Duration = Duration::from_millis(1_500);
const BACKOFF_MS: (u64, u64) = (50, 2_000);

/// Why a lease is no longer held.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Lost {
    /// The gate says so.
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
    /// In a word, for metrics and logs.
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

/// Why a renewal that was asked for did not happen.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NotRenewed {
    #[error(transparent)]
    Lost(Lost),
    /// The lease may be good still: nobody knows.
    #[error("{0}")]
    Unconfirmed(Failed),
}

/// A lease, kept until it is released, lost or dropped. Dropped, it runs out by itself.
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
    /// How many renewals were begun because somebody asked for one.
    begun: AtomicU64,
    /// The number of the last of these that is over, and what it has come to. The caller that renews holds this.
    asked: Mutex<(u64, Result<(), NotRenewed>)>,
}

impl Lease {
    /// Takes a grant into care. One that was long in coming is renewed first: counted from when it was asked for,
    /// there may be nothing left of it.
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

    /// The token, if the lease is held now by this machine's clock: also right after this process was stopped for
    /// longer than the lease lasts.
    ///
    /// # Errors
    /// With why it was lost.
    pub fn token(&self) -> Result<Token, Lost> {
        self.held.tenure.check()?;
        Ok(self.held.token.clone())
    }

    /// Its number: higher than that of every lease on the object before it.
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

    /// What the gate has warned of when it granted it: that no write can use it.
    #[must_use]
    pub fn warning(&self) -> Option<&str> {
        self.held.warning.as_deref()
    }

    /// How long it lasts unless it is renewed.
    #[must_use]
    pub fn ttl_ms(&self) -> u64 {
        self.held.ttl.0
    }

    /// How much is left of it; 0 once it is lost.
    #[must_use]
    pub fn left_ms(&self) -> u64 {
        self.held.tenure.check().map_or(0, |()| self.held.tenure.left_ms())
    }

    /// Returns when it is lost, with the reason.
    pub async fn lost(&self) -> Lost {
        self.held.tenure.over().await
    }

    /// Renews, and says whether the gate has: for callers that want its word before each write. All who ask while one
    /// renewal is on its way share the next one.
    ///
    /// # Errors
    /// Where it is lost, or the gate did not confirm within `patience`.
    pub async fn renew(&self, patience: Duration) -> Result<(), NotRenewed> {
        self.held.tenure.check().map_err(NotRenewed::Lost)?;
        let before = self.held.begun.load(Ordering::Acquire);
        let mut last = self.held.asked.lock().await;
        // It was begun after this call, so the gate's word is new enough.
        if last.0 > before {
            return last.1.clone();
        }
        let number = self.held.begun.fetch_add(1, Ordering::AcqRel) + 1;
        *last = (number, self.held.renew_as_asked(patience).await);
        last.1.clone()
    }

    /// A write with the token was refused for the lease's sake: there is nothing left to hold.
    pub fn refused_write(&self, code: &str) {
        self.held.tenure.end(Lost::Write { code: code.to_owned() });
    }

    /// Gives it back. To be called when nothing writes with its token any more. A lease that is over already counts
    /// as given back.
    ///
    /// # Errors
    /// Where the gate did not say so in time; the lease then runs out.
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

    /// Renews once: when that was sent.
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

    /// Renews until the gate has said so. The lease was granted after it was asked for, and before the answer came:
    /// it cannot last longer than its ttl from here.
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

    /// How long one renewal may take: a third of the ttl, so that a connection that hangs is not the last one.
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
        // Also says so where its time is up.
        if held.tenure.check().is_err() {
            return;
        }
        let renewed = tokio::select! {
            renewed = held.renew(held.patience(held.tenure.left_ms()), By::New) => renewed,
            // The renewal's own timer does not count while the machine sleeps.
            () = held.tenure.sleep_until(BootMs(u64::MAX)) => {
                held.tenure.set_last(Some("the last renewal was not answered in time".to_owned()));
                continue;
            }
            // Somebody else has found out.
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
