//! The elections that an agent takes part in: one for each Lease that some object in use is led by.
//!
//! Objects that share a Lease share its election. Each has a [`Seat`] in it; when the last seat is given up, so is the
//! Lease.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::watch;

use super::{held::Held, holdings::Standing};
use crate::{
    clock::Clock,
    fence::HolderId,
    kubernetes::{
        api::{Cluster, LeaseName},
        candidate::{
            Over, Timing,
            campaign::{Candidate, Heard},
            term::Term,
        },
    },
    metrics::AgentMetrics,
};

/// All of them.
pub struct Elections {
    cluster: Cluster,
    identity: HolderId,
    timing: Timing,
    clock: Clock,
    metrics: Arc<AgentMetrics>,
    open: Mutex<HashMap<LeaseName, Arc<Race>>>,
}

/// One election, and how it stands for this agent.
pub struct Race {
    at: LeaseName,
    standing: watch::Sender<Standing>,
    seats: watch::Sender<usize>,
}

/// An object's interest in a Lease.
pub struct Seat(Arc<Race>);

impl Seat {
    fn on(race: &Arc<Race>) -> Self {
        race.seats.send_modify(|seats| *seats += 1);
        Self(Arc::clone(race))
    }

    /// How the election stands.
    pub(super) fn standing(&self) -> watch::Receiver<Standing> {
        self.0.standing.subscribe()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.seats.send_modify(|seats| *seats -= 1);
    }
}

impl Race {
    /// Returns when nobody is interested any more.
    async fn is_left(&self) {
        // The sender is this one's own.
        let _ = self.seats.subscribe().wait_for(|seats| *seats == 0).await;
    }

    fn heard(&self, heard: Heard) {
        let lease = &self.at;
        // What is said again and again is logged once.
        let (next, is_news) = match (heard, &*self.standing.borrow()) {
            (Heard::Held { by }, _) => (Standing::Following(HolderId::new(&by).ok()), false),
            (Heard::Away { why }, known) => (Standing::Cut(why), !matches!(known, Standing::Cut(_))),
            (Heard::Refused { why }, known) => {
                let is_news = !matches!(known, Standing::Refused(before) if *before == why);
                (Standing::Refused(why), is_news)
            }
        };
        match &next {
            Standing::Cut(why) if is_news => tracing::warn!(%lease, why, "nobody says who leads"),
            Standing::Refused(why) if is_news => {
                tracing::error!(%lease, why, "this agent cannot take part in the election");
            }
            _ => {}
        }
        self.standing.send_replace(next);
    }
}

impl Elections {
    #[must_use]
    pub fn new(cluster: Cluster, identity: HolderId, timing: Timing, clock: Clock, metrics: Arc<AgentMetrics>) -> Self {
        Self { cluster, identity, timing, clock, metrics, open: Mutex::default() }
    }

    /// A seat in the election on this Lease; and the election, if it is new: somebody must [`Elections::run`] it.
    #[must_use]
    pub fn join(&self, at: &LeaseName) -> (Seat, Option<Arc<Race>>) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(race) = open.get(at) {
            return (Seat::on(race), None);
        }
        let (standing, seats) = (watch::Sender::new(Standing::Asking), watch::Sender::new(0));
        let race = Arc::new(Race { at: at.clone(), standing, seats });
        open.insert(at.clone(), Arc::clone(&race));
        (Seat::on(&race), Some(race))
    }

    /// Forgets an election, unless somebody has taken a seat meanwhile.
    fn close(&self, race: &Race) -> bool {
        // Whoever takes a seat holds this lock.
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let is_left = *race.seats.borrow() == 0;
        if is_left {
            open.remove(&race.at);
        }
        is_left
    }

    /// Takes part in an election until all seats are given up. Nothing is asked for any more once `drains` returns.
    pub async fn run<D: Future<Output = ()>>(&self, race: &Race, drains: impl Fn() -> D) {
        let candidate = Candidate {
            cluster: self.cluster.clone(),
            at: race.at.clone(),
            identity: self.identity.clone(),
            timing: self.timing,
            clock: self.clock.clone(),
        };
        let mut pause = Duration::ZERO;
        loop {
            let given_up = async {
                tokio::select! {
                    () = race.is_left() => {}
                    () = drains() => {}
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = race.is_left() => {}
            }
            match candidate.campaign(|heard| race.heard(heard), given_up).await {
                Some(term) => pause = self.lead(race, Arc::new(term)).await,
                None => race.is_left().await,
            }
            if self.close(race) {
                return;
            }
        }
    }

    /// Leads; says how long to wait before the next election.
    async fn lead(&self, race: &Race, term: Arc<Term>) -> Duration {
        let (lease, election) = (&race.at, term.election());
        let begun = self.clock.now().boot;
        tracing::info!(%lease, term = %election, holder = %self.identity, "leading by a Lease");
        race.standing.send_replace(Standing::Leading(Held::Kubernetes(Arc::clone(&term))));
        let over = tokio::select! {
            over = term.keep() => Some(over),
            () = race.is_left() => None,
        };
        race.standing.send_replace(match &over {
            // The API server is silent: nobody waits for it.
            Some(why @ Over::Deadline { last: Some(_) }) => Standing::Cut(why.to_string()),
            _ => Standing::Asking,
        });
        if let Some(why) = &over {
            tracing::warn!(%lease, term = %election, %why, "the lease was lost");
            self.metrics.lost(why.reason());
        }
        let is_refused = matches!(over, Some(Over::Write { .. }));
        if over.is_none() || is_refused {
            match term.release().await {
                Ok(()) if is_refused => {
                    tracing::warn!(%lease, term = %election, "the Lease was given up: the next term has another number");
                }
                Ok(()) => {}
                Err(why) => tracing::warn!(%lease, why, "a Lease was not released, and runs out"),
            }
        }
        // A gate that refuses one term after the other is not asked as fast as it can refuse.
        let was_short = self.clock.now().boot.since(begun) < self.timing.renew_deadline.0;
        if is_refused && was_short { Duration::from_millis(self.timing.retry.0) } else { Duration::ZERO }
    }
}
