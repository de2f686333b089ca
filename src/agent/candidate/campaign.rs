//! A candidate: reads a Lease again and again, and takes it when it may.

use std::{pin::pin, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;

use super::{
    Observed, Step, Timing, Unanswered, created, decide, taken,
    term::{Term, give_back},
};
use crate::{
    client::backoff::Backoff,
    clock::Clock,
    fence::{BootMs, HolderId},
    kubernetes::api::{Away, Cluster, LeaseName, NotWritten, Seen},
};

/// First wait after another candidate was quicker.
const BACKOFF_MS: u64 = 20;
/// Wait after an answer that will hardly change soon.
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

/// Why the candidate does not lead yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotLeading {
    Held {
        by: String,
    },
    /// The API server cannot be reached, or does not answer.
    Away {
        why: String,
    },
    /// The API server does not let this candidate take part.
    Refused {
        why: String,
    },
}

impl Away {
    /// Whether another try will hardly give another answer: rights or the namespace are missing.
    pub(super) fn is_final(&self) -> bool {
        match self {
            Self::Refused { status, .. } => (400..500).contains(status) && *status != 429,
            Self::Odd(_) => true,
            Self::Unreachable(_) => false,
        }
    }
}

impl From<Away> for NotLeading {
    fn from(away: Away) -> Self {
        let why = away.to_string();
        if away.is_final() { Self::Refused { why } } else { Self::Away { why } }
    }
}

impl Candidate {
    /// Waits until this candidate has won the election. `note` gets each reason why it has not won yet. Returns
    /// `None` when `given_up` returned first; a Lease that may have been won by then is given back.
    pub async fn campaign(&self, mut note: impl FnMut(NotLeading), given_up: impl Future<Output = ()>) -> Option<Term> {
        let (mut observed, mut claim) = (Observed::default(), UnconfirmedClaim::default());
        let mut backoff = Backoff::new(BACKOFF_MS, self.timing.retry.0.max(BACKOFF_MS));
        let mut given_up = pin!(given_up);
        loop {
            let next = tokio::select! {
                biased;
                () = &mut given_up => break,
                next = self.read_lease(&mut observed, &mut claim) => next,
            };
            // A write that was sent is always awaited, also after `given_up`. Otherwise its outcome would stay
            // unknown.
            let looked = match next {
                Ok(Next::Write(write)) => self.write(*write, &mut claim).await,
                Ok(Next::Wait { holder, until }) => Ok(CampaignOutcome::Held { by: holder, until }),
                Err(away) => Err(away),
            };
            let pause = match looked {
                Ok(CampaignOutcome::Won(term)) => return Some(*term),
                Ok(CampaignOutcome::TooLate) => backoff.next(None),
                Ok(CampaignOutcome::Held { by, until }) => {
                    note(NotLeading::Held { by });
                    backoff.reset();
                    let left = Duration::from_millis(until.since(self.clock.now().boot).max(1));
                    self.a_while(None).min(left)
                }
                Err(away) => {
                    let asked_ms = away.asked_ms();
                    let why_not = NotLeading::from(away);
                    let is_refused = matches!(why_not, NotLeading::Refused { .. });
                    note(why_not);
                    if is_refused { REFUSED_PAUSE } else { self.a_while(asked_ms) }
                }
            };
            tokio::select! {
                biased;
                () = &mut given_up => break,
                () = tokio::time::sleep(pause) => {}
            }
        }
        let UnconfirmedClaim { is_seen, unanswered } = claim;
        if (is_seen || unanswered.is_some())
            && let Err(why) = give_back(self, None, unanswered.as_ref(), |seen| self.holds(seen)).await
        {
            tracing::warn!(lease = %self.at, why, "the Lease may not have been given back, and runs out");
        }
        None
    }

    /// Reads the Lease once, and decides what to do next.
    async fn read_lease(&self, observed: &mut Observed, claim: &mut UnconfirmedClaim) -> Result<Next, Away> {
        let Self { cluster, at, identity, timing, clock } = self;
        let read = self.in_time(cluster.read(at)).await.unwrap_or_else(Err)?;
        claim.unanswered.take_if(|unanswered| !unanswered.may_come(read.as_ref()));
        let seen = read.as_ref().map(Seen::of).transpose()?;
        claim.is_seen = seen.as_ref().is_some_and(|seen| self.holds(seen));
        let now = clock.now();
        let since = observed.note(seen.as_ref(), now.boot);
        let (lease, how) = match decide(seen.as_ref(), since, now.boot, identity.as_str(), timing) {
            Step::Wait { holder, until } => return Ok(Next::Wait { holder, until }),
            Step::Spent => {
                return Err(Away::Odd("its leaseTransitions can go no higher; delete this Lease".to_owned()));
            }
            Step::Create => (created(at, identity.as_str(), timing, now.wall), Unanswered::Create),
            Step::Take { transitions } => {
                let lease = read.unwrap_or_default();
                let version = lease.metadata.resource_version.clone();
                (taken(lease, identity.as_str(), transitions, timing, now.wall), Unanswered::Take { version })
            }
        };
        // The term counts from before the write is sent, because the other candidates see the write later.
        Ok(Next::Write(Box::new(Write { lease, how, begun: now.boot })))
    }

    /// Writes a Lease that may be taken.
    async fn write(
        &self,
        Write { lease, how, begun }: Write,
        claim: &mut UnconfirmedClaim,
    ) -> Result<CampaignOutcome, Away> {
        let is_new = how == Unanswered::Create;
        claim.unanswered = Some(how);
        let written = if is_new {
            self.in_time(self.cluster.create(&lease)).await
        } else {
            self.in_time(self.cluster.replace(&lease)).await
        };
        // Without an answer the outcome is unknown. A later read shows it.
        match written.unwrap_or_else(|late| Err(NotWritten::Away(late))) {
            Ok(lease) => self.begin(lease, begun),
            Err(NotWritten::Conflict) => Ok(CampaignOutcome::TooLate),
            Err(NotWritten::Away(Away::Refused { status: 404, .. })) if !is_new => Ok(CampaignOutcome::TooLate),
            Err(NotWritten::Away(away)) => {
                if away.is_final() {
                    claim.unanswered = None;
                }
                Err(away)
            }
        }
    }

    fn begin(&self, lease: Lease, sent: BootMs) -> Result<CampaignOutcome, Away> {
        let seen = Seen::of(&lease)?;
        if !self.holds(&seen) {
            return Err(Away::Odd("it was taken, and the answer names another holder".to_owned()));
        }
        Ok(CampaignOutcome::Won(Box::new(Term::begin(self.clone(), lease, &seen, sent))))
    }

    fn holds(&self, seen: &Seen) -> bool {
        seen.holder.as_deref() == Some(self.identity.as_str())
    }

    /// Waits differ, so that candidates do not all read at the same moment. No wait is longer than the time between
    /// two reads, even where the server asked for more.
    fn a_while(&self, asked_ms: Option<u64>) -> Duration {
        Backoff::new(self.timing.retry.0.max(1), 0).next(asked_ms)
    }

    async fn in_time<T>(&self, call: impl Future<Output = T>) -> Result<T, Away> {
        let patience = self.timing.patience();
        tokio::time::timeout(patience, call).await.map_err(|_| Away::late(patience))
    }
}

/// Whether this candidate may have the Lease although no answer confirmed it.
#[derive(Default)]
struct UnconfirmedClaim {
    /// A read has shown that it has the Lease.
    is_seen: bool,
    /// A write without an answer, which may have given it the Lease since.
    unanswered: Option<Unanswered>,
}

/// What follows from a read.
enum Next {
    Wait { holder: String, until: BootMs },
    Write(Box<Write>),
}

/// A Lease to be written.
struct Write {
    lease: Lease,
    how: Unanswered,
    begun: BootMs,
}

enum CampaignOutcome {
    Won(Box<Term>),
    Held {
        by: String,
        until: BootMs,
    },
    /// Another candidate was quicker.
    TooLate,
}
