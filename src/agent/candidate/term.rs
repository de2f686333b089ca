//! A term that this process holds: renewed in the background, over at the first definite sign of its loss or at its
//! renew deadline.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use thiserror::Error;
use tokio::sync::Mutex;

use super::{Over, Timing, Unanswered, campaign::Candidate, released, renewed, still_of};
use crate::{
    client::{Token, backoff::Backoff, call::lasting, tenure::Tenure},
    fence::{BootMs, HolderId, election::Election},
    kubernetes::api::{Away, LeaseName, NotWritten, Seen},
};

/// How long a release is tried. Each call gets less, so that there is time for another after one that hangs. A Lease
/// that cannot be released runs out.
const RELEASE: Duration = Duration::from_secs(5);
const RELEASE_CALL: Duration = Duration::from_millis(1_500);
/// First wait between tries.
const BACKOFF_MS: u64 = 50;
/// How often a renewal is tried again at once after another party changed the Lease and left its holder as it was.
const CONFLICTS: usize = 4;

/// Why a renewal did not happen.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NotRenewed {
    #[error(transparent)]
    Over(Over),
    /// Unknown: the term may still be good.
    #[error("{0}")]
    Unconfirmed(Away),
}

/// A term of this process, from when the API server has confirmed it.
pub struct Term {
    who: Candidate,
    election: Election,
    token: Token,
    /// Lasts until the renew deadline, which counts from when the last confirmed renewal was sent.
    tenure: Tenure<Over>,
    /// The Lease as the API server sent it last. A task that writes the Lease holds this lock.
    lease: Mutex<Lease>,
}

impl std::fmt::Debug for Term {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Term({} {})", self.who.at, self.election)
    }
}

impl Term {
    /// Starts a term. The API server has confirmed `who` as holder in answer to a write sent at `sent`.
    pub(super) fn begin(who: Candidate, lease: Lease, seen: &Seen, sent: BootMs) -> Self {
        let tenure = Tenure::new(who.clock.clone(), sent.after(who.timing.renew_deadline));
        Self {
            who,
            election: seen.election,
            token: Token::new(&seen.election.to_string()),
            tenure,
            lease: Mutex::new(lease),
        }
    }

    /// Returns the token if the term is good now by this machine's clock. This also holds right after the process was
    /// stopped for longer than its renew deadline.
    ///
    /// # Errors
    /// Why the term is over.
    pub fn token(&self) -> Result<Token, Over> {
        self.tenure.check()?;
        Ok(self.token.clone())
    }

    #[must_use]
    pub fn election(&self) -> Election {
        self.election
    }

    #[must_use]
    pub fn identity(&self) -> &HolderId {
        &self.who.identity
    }

    #[must_use]
    pub fn at(&self) -> &LeaseName {
        &self.who.at
    }

    #[must_use]
    pub fn timing(&self) -> &Timing {
        &self.who.timing
    }

    /// The milliseconds until the renew deadline; 0 once the term is over.
    #[must_use]
    pub fn left_ms(&self) -> u64 {
        self.tenure.check().map_or(0, |()| self.tenure.left_ms())
    }

    /// Returns the reason once the term is over.
    pub async fn over(&self) -> Over {
        self.tenure.over().await
    }

    /// The gate refused a write with this token because of the term, so the term ends.
    pub fn refused_write(&self, code: &str) {
        self.tenure.end(Over::Write { code: code.to_owned() });
    }

    /// Renews, for a caller that wants a confirmation before each write. Calls at the same time share one renewal.
    ///
    /// # Errors
    /// When the term is over, or the API server did not confirm in time.
    pub async fn renew(&self) -> Result<(), NotRenewed> {
        self.tenure.check().map_err(NotRenewed::Over)?;
        let patience = self.who.timing.patience();
        let late = |_| Err(NotRenewed::Unconfirmed(Away::late(patience)));
        tokio::time::timeout(patience, self.renew_after(self.tenure.now())).await.unwrap_or_else(late)
    }

    async fn renew_after(&self, asked: BootMs) -> Result<(), NotRenewed> {
        let Candidate { cluster, at, identity, timing, clock } = &self.who;
        let unconfirmed = NotRenewed::Unconfirmed;
        let mut lease = self.lease.lock().await;
        for _ in 0..CONFLICTS {
            if self.renewed_at() > asked {
                break;
            }
            let now = clock.now();
            match cluster.replace(&renewed(lease.clone(), identity.as_str(), timing, now.wall)).await {
                Ok(answer) => {
                    self.is_still_ours(Some(&Seen::of(&answer).map_err(unconfirmed)?))?;
                    *lease = answer;
                    self.tenure.extend(now.boot.after(timing.renew_deadline));
                    self.tenure.set_last(None);
                    return self.tenure.check().map_err(NotRenewed::Over);
                }
                // An earlier renewal may have been carried out without an answer, or the Lease is gone.
                Err(NotWritten::Conflict | NotWritten::Away(Away::Refused { status: 404, .. })) => {
                    let read = cluster.read(at).await.map_err(unconfirmed)?;
                    let seen = read.as_ref().map(Seen::of).transpose().map_err(unconfirmed)?;
                    self.is_still_ours(seen.as_ref())?;
                    *lease = read.unwrap_or_default();
                }
                Err(NotWritten::Away(away)) => return Err(unconfirmed(away)),
            }
        }
        if self.renewed_at() > asked {
            return self.tenure.check().map_err(NotRenewed::Over);
        }
        Err(NotRenewed::Unconfirmed(Away::Odd("other clients keep changing this Lease".to_owned())))
    }

    fn is_still_ours(&self, seen: Option<&Seen>) -> Result<(), NotRenewed> {
        still_of(self.election, self.who.identity.as_str(), seen)
            .map_err(|over| NotRenewed::Over(self.tenure.end(over)))
    }

    /// Renews again and again until the term is over.
    pub async fn keep(&self) -> Over {
        let retry = self.who.timing.retry;
        let mut backoff = Backoff::new(BACKOFF_MS.min(retry.0), retry.0);
        let mut next = self.renewed_at().after(retry);
        loop {
            self.tenure.sleep_until(next).await;
            if let Err(over) = self.tenure.check() {
                return over;
            }
            let renewed = tokio::select! {
                biased;
                over = self.tenure.over() => return over,
                renewed = self.renew() => renewed,
                // Tokio's timer does not count while the machine sleeps; this one does.
                () = self.tenure.sleep_until(BootMs(u64::MAX)) => {
                    Err(NotRenewed::Unconfirmed(Away::late(self.who.timing.patience())))
                }
            };
            next = match renewed {
                Ok(()) => {
                    backoff.reset();
                    self.renewed_at().after(retry)
                }
                Err(NotRenewed::Over(over)) => return over,
                Err(NotRenewed::Unconfirmed(away)) => {
                    if self.tenure.set_last(Some(away.to_string())).is_none() {
                        tracing::warn!(lease = %self.who.at, %away, left_ms = self.left_ms(), "a renewal was not confirmed");
                    }
                    self.tenure.now().after(lasting(backoff.next(away.asked_ms())))
                }
            };
        }
    }

    /// Gives the Lease back. Call this when no write uses its token any more.
    ///
    /// # Errors
    /// When the API server did not confirm in time; the Lease then runs out.
    pub async fn release(&self) -> Result<(), String> {
        self.tenure.end(Over::Released);
        let known = self.lease.lock().await.clone();
        give_back(&self.who, Some(known), None, |seen| self.is_still_ours(Some(seen)).is_ok()).await
    }

    fn renewed_at(&self) -> BootMs {
        BootMs(self.tenure.until().0.saturating_sub(self.who.timing.renew_deadline.0))
    }
}

/// Writes the Lease without a holder, if it `is_ours` as it was read. If it is not, returns once `unanswered` can no
/// longer make it ours.
pub(super) async fn give_back(
    who: &Candidate,
    known: Option<Lease>,
    unanswered: Option<&Unanswered>,
    is_ours: impl Fn(&Seen) -> bool,
) -> Result<(), String> {
    let Candidate { cluster, at, clock, .. } = who;
    let give = async {
        let mut known = known;
        let mut backoff = Backoff::new(BACKOFF_MS, 1_000);
        loop {
            let read = match known.take() {
                Some(lease) => Ok(Some(lease)),
                None => soon(cluster.read(at)).await.unwrap_or_else(Err),
            };
            let away = match read {
                Ok(Some(lease)) if Seen::of(&lease).is_ok_and(|seen| is_ours(&seen)) => {
                    let written = soon(cluster.replace(&released(lease, clock.now().wall))).await;
                    match written.unwrap_or_else(|late| Err(NotWritten::Away(late))) {
                        Ok(_) => return Ok(()),
                        Err(NotWritten::Conflict | NotWritten::Away(Away::Refused { status: 404, .. })) => continue,
                        Err(NotWritten::Away(away)) => away,
                    }
                }
                Ok(lease) if unanswered.is_some_and(|unanswered| unanswered.may_come(lease.as_ref())) => {
                    Away::Unreachable("the last write of this Lease was not answered".to_owned())
                }
                Ok(_) => return Ok(()),
                Err(away) => away,
            };
            if away.is_final() {
                return Err(away.to_string());
            }
            tokio::time::sleep(backoff.next(away.asked_ms())).await;
        }
    };
    let late = || Err(format!("the API server did not confirm within {} s", RELEASE.as_secs()));
    tokio::time::timeout(RELEASE, give).await.unwrap_or_else(|_| late())
}

/// Makes a call, with a shorter time limit than the release has.
async fn soon<T>(call: impl Future<Output = T>) -> Result<T, Away> {
    tokio::time::timeout(RELEASE_CALL, call).await.map_err(|_| Away::late(RELEASE_CALL))
}

#[cfg(test)]
mod tests {
    use super::{super::created, *};
    use crate::{
        clock::{Clock, Driver},
        config::KubernetesSettings,
        fence::{Now, WallMs},
        kubernetes::api::Cluster,
    };

    const UID: &str = "8f2d3c1a-0b4e-4c6d-9a7f-112233445566";

    /// A term that no task renews: only the clock can end it.
    fn term() -> (Term, Driver) {
        let (clock, driver) = Clock::driven(Now { wall: WallMs(1_700_000_000_000), boot: BootMs(1_000) });
        let settings = KubernetesSettings { url: "http://127.0.0.1:1".to_owned(), ..KubernetesSettings::default() };
        let at = LeaseName { namespace: "left".to_owned(), name: "users".to_owned() };
        let (identity, timing) = (HolderId::new("a").unwrap(), Timing::new(15_000));
        let mut lease = created(&at, "a", &timing, clock.now().wall);
        lease.metadata.uid = Some(UID.to_owned());
        let seen = Seen::of(&lease).unwrap();
        let who = Candidate { cluster: Cluster::new(&settings).unwrap(), at, identity, timing, clock };
        (Term::begin(who, lease, &seen, BootMs(1_000)), driver)
    }

    #[tokio::test]
    async fn no_token_is_given_from_the_renew_deadline_on() {
        let (term, driver) = term();
        assert_eq!(term.token().unwrap().expose(), format!("k8s.{UID}.0"));
        driver.advance(9_999);
        assert!(term.token().is_ok());
        assert_eq!(term.left_ms(), 1);
        driver.advance(1);
        assert_eq!(term.token(), Err(Over::Deadline { last: None }));
        assert_eq!((term.left_ms(), term.over().await), (0, Over::Deadline { last: None }));
        // The first reason is kept.
        term.refused_write("LEASE_EXPIRED");
        assert_eq!(term.token(), Err(Over::Deadline { last: None }));
    }

    #[tokio::test]
    async fn a_term_whose_write_was_refused_gives_no_more_tokens() {
        let (term, _driver) = term();
        term.refused_write("LEASE_EXPIRED");
        assert_eq!(term.token(), Err(Over::Write { code: "LEASE_EXPIRED".to_owned() }));
        assert!(matches!(term.renew().await, Err(NotRenewed::Over(Over::Write { .. }))));
    }

    #[tokio::test]
    async fn a_renewal_without_an_answer_extends_nothing() {
        let (term, driver) = term();
        driver.advance(5_000);
        let left = term.left_ms();
        assert!(matches!(term.renew().await, Err(NotRenewed::Unconfirmed(_))));
        assert_eq!(term.left_ms(), left);
    }
}
