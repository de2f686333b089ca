//! A candidate: looks at a Lease again and again, and takes it when it may.

use std::{pin::pin, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;

use super::{
    Observed, Step, Timing, created, decide, taken,
    term::{Term, give_back},
};
use crate::{
    client::backoff::Backoff,
    clock::Clock,
    fence::{BootMs, HolderId},
    kubernetes::api::{Away, Cluster, LeaseName, NotWritten, Seen},
};

/// First wait after somebody else was quicker.
const BACKOFF_MS: u64 = 20;
/// After an answer that asking again will hardly change.
const REFUSED_PAUSE: Duration = Duration::from_secs(5);

/// Who takes part in which election.
#[derive(Clone)]
pub struct Candidate {
    pub cluster: Cluster,
    pub at: LeaseName,
    /// Unique per process.
    pub identity: HolderId,
    pub timing: Timing,
    pub clock: Clock,
}

/// What stands in the way meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    Held {
        by: String,
    },
    /// The API server cannot be reached, or does not answer.
    Away {
        why: String,
    },
    /// It will not let this one take part.
    Refused {
        why: String,
    },
}

impl Away {
    /// Whether asking again will hardly change it: rights that are missing, a namespace that is not there.
    pub(super) fn is_final(&self) -> bool {
        match self {
            Self::Refused { status, .. } => (400..500).contains(status) && *status != 429,
            Self::Odd(_) => true,
            Self::Unreachable(_) => false,
        }
    }
}

impl From<Away> for Heard {
    fn from(away: Away) -> Self {
        let why = away.to_string();
        if away.is_final() { Self::Refused { why } } else { Self::Away { why } }
    }
}

impl Candidate {
    /// Waits its turn. `heard` is told what stands in the way, whenever it is heard of. `None` when it was given up;
    /// what may have been won by then is given back.
    pub async fn campaign(&self, mut heard: impl FnMut(Heard), given_up: impl Future<Output = ()>) -> Option<Term> {
        let mut may_have = false;
        let given_up = pin!(given_up);
        tokio::select! {
            biased;
            () = given_up => {}
            term = self.win(&mut heard, &mut may_have) => return Some(term),
        }
        if may_have && let Err(why) = give_back(self, None, |seen| self.holds(seen)).await {
            tracing::warn!(lease = %self.at, why, "the Lease may not have been given back, and runs out");
        }
        None
    }

    async fn win(&self, heard: &mut impl FnMut(Heard), may_have: &mut bool) -> Term {
        let mut observed = Observed::default();
        let mut backoff = Backoff::new(BACKOFF_MS, self.timing.retry.0.max(BACKOFF_MS));
        loop {
            let pause = match self.look(&mut observed, may_have).await {
                Ok(Looked::Won(term)) => return *term,
                Ok(Looked::TooLate) => backoff.next(None),
                Ok(Looked::Held { by, until }) => {
                    heard(Heard::Held { by });
                    backoff.reset();
                    let left = Duration::from_millis(until.since(self.clock.now().boot).max(1));
                    self.a_while().min(left)
                }
                Err(away) => {
                    let told = Heard::from(away);
                    let pause = if matches!(told, Heard::Refused { .. }) { REFUSED_PAUSE } else { self.a_while() };
                    heard(told);
                    pause
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// One look, and what follows from it.
    async fn look(&self, observed: &mut Observed, may_have: &mut bool) -> Result<Looked, Away> {
        let Self { cluster, at, identity, timing, clock } = self;
        let read = self.in_time(cluster.read(at)).await.unwrap_or_else(Err)?;
        let seen = read.as_ref().map(Seen::of).transpose()?;
        *may_have = seen.as_ref().is_some_and(|seen| self.holds(seen));
        let now = clock.now();
        let since = observed.note(seen.as_ref(), now.boot);
        // Counted from before it is sent: whoever sees it sees it later.
        let written = match decide(seen.as_ref(), since, now.boot, identity.as_str(), timing) {
            Step::Wait { holder, until } => return Ok(Looked::Held { by: holder, until }),
            Step::Spent => {
                return Err(Away::Odd("its leaseTransitions can go no higher; delete this Lease".to_owned()));
            }
            Step::Create => {
                *may_have = true;
                self.in_time(cluster.create(&created(at, identity.as_str(), timing, now.wall))).await
            }
            Step::Take { transitions } => {
                *may_have = true;
                let lease = taken(read.unwrap_or_default(), identity.as_str(), transitions, timing, now.wall);
                self.in_time(cluster.replace(&lease)).await
            }
        };
        // Without an answer nobody knows: the next look shows it.
        match written.unwrap_or_else(|late| Err(NotWritten::Away(late))) {
            Ok(lease) => self.begin(lease, now.boot),
            Err(NotWritten::Conflict) => Ok(Looked::TooLate),
            Err(NotWritten::Away(Away::Refused { status: 404, .. })) if seen.is_some() => Ok(Looked::TooLate),
            Err(NotWritten::Away(away)) => Err(away),
        }
    }

    fn begin(&self, lease: Lease, sent: BootMs) -> Result<Looked, Away> {
        let seen = Seen::of(&lease)?;
        if !self.holds(&seen) {
            return Err(Away::Odd("it was taken, and the answer names another holder".to_owned()));
        }
        Ok(Looked::Won(Box::new(Term::begin(self.clone(), lease, &seen, sent))))
    }

    fn holds(&self, seen: &Seen) -> bool {
        seen.holder.as_deref() == Some(self.identity.as_str())
    }

    /// Not all at the same moment.
    fn a_while(&self) -> Duration {
        Backoff::new(self.timing.retry.0.max(1), 0).next(None)
    }

    async fn in_time<T>(&self, call: impl Future<Output = T>) -> Result<T, Away> {
        let patience = self.timing.patience();
        let late = |_| Away::Unreachable(format!("no answer within {} ms", patience.as_millis()));
        tokio::time::timeout(patience, call).await.map_err(late)
    }
}

enum Looked {
    Won(Box<Term>),
    Held {
        by: String,
        until: BootMs,
    },
    /// Somebody else was quicker.
    TooLate,
}
