//! The elections that an agent takes part in: one for each Lease that leads an object in use.
//!
//! Objects with the same Lease share its election. Each has a [`Seat`] in it; when the last seat is given up, the
//! Lease is given back.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::watch;

use super::{
    candidate::{
        Over, Timing,
        campaign::{Candidate, NotLeading},
        term::Term,
    },
    held::Held,
    slot::Standing,
};
use crate::{
    clock::Clock,
    fence::HolderId,
    kubernetes::api::{Cluster, LeaseName},
    metrics::AgentMetrics,
};

/// All elections of this agent.
pub struct Campaigns {
    cluster: Cluster,
    identity: HolderId,
    timing: Timing,
    clock: Clock,
    metrics: Arc<AgentMetrics>,
    open: Mutex<HashMap<LeaseName, Arc<Race>>>,
}

/// One election, and this agent's state in it.
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

    /// This agent's state in the election.
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
    /// Returns when no object has a seat any more.
    async fn is_left(&self) {
        // The sender lives in this struct, so this cannot fail.
        let _ = self.seats.subscribe().wait_for(|seats| *seats == 0).await;
    }

    fn note(&self, why_not: NotLeading) {
        let lease = &self.at;
        // A repeated message is logged once.
        let (next, is_news) = match (why_not, &*self.standing.borrow()) {
            (NotLeading::Held { by }, _) => (Standing::Following(HolderId::new(&by).ok()), false),
            (NotLeading::Away { why }, known) => (Standing::Cut(why), !matches!(known, Standing::Cut(_))),
            (NotLeading::Refused { why }, known) => {
                let is_news = !matches!(known, Standing::Refused(before) if *before == why);
                (Standing::Refused(why), is_news)
            }
        };
        match &next {
            Standing::Cut(why) if is_news => tracing::warn!(%lease, why, "the agent cannot learn who leads"),
            Standing::Refused(why) if is_news => {
                tracing::error!(%lease, why, "this agent cannot take part in the election");
            }
            _ => {}
        }
        self.standing.send_replace(next);
    }
}

impl Campaigns {
    #[must_use]
    pub fn new(cluster: Cluster, identity: HolderId, timing: Timing, clock: Clock, metrics: Arc<AgentMetrics>) -> Self {
        Self { cluster, identity, timing, clock, metrics, open: Mutex::default() }
    }

    /// Returns a seat in the election on this Lease. A new election is returned too, and the caller must
    /// [`Campaigns::run`] it.
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

    /// Forgets an election, unless an object has taken a seat meanwhile.
    fn close(&self, race: &Race) -> bool {
        // Seats are taken under this lock.
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let is_left = *race.seats.borrow() == 0;
        if is_left {
            open.remove(&race.at);
        }
        is_left
    }

    /// Takes part in an election until all seats are given up. Asks for no more terms once `drains` returns.
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
            let mut is_draining = false;
            let given_up = async {
                tokio::select! {
                    () = race.is_left() => {}
                    () = drains() => is_draining = true,
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = race.is_left() => {}
            }
            match candidate.campaign(|why_not| race.note(why_not), given_up).await {
                Some(term) => pause = self.lead(race, Arc::new(term)).await,
                // The agent asks for no more terms; wait until all seats are given up.
                None if is_draining => race.is_left().await,
                // All seats were given up. Giving back takes a while, and an object that took a seat meanwhile wants
                // a leader.
                None => pause = Duration::ZERO,
            }
            if self.close(race) {
                return;
            }
        }
    }

    /// Leads for one term. Returns how long to wait before the next election.
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
            // The API server does not answer, so writers do not wait for it.
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
                Err(why) => tracing::warn!(%lease, why, "a Lease was not released; it stays held until it runs out"),
            }
        }
        // Pause before the next term if the gate refuses one term after the other.
        let was_short = self.clock.now().boot.since(begun) < self.timing.renew_deadline.0;
        if is_refused && was_short { Duration::from_millis(self.timing.retry.0) } else { Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::{
        io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream},
        net::{TcpListener, TcpStream},
    };

    use super::*;
    use crate::{
        config::KubernetesSettings,
        fence::{BootMs, Now, WallMs},
    };

    /// The limit for an event that must happen; this measures nothing.
    const PATIENCE: Duration = Duration::from_secs(30);

    /// How far an API server has come that hangs during the first take of a Lease.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum At {
        Begin,
        Take,
        GivingBack,
        LetGo,
    }

    /// Has no Lease, and creates every Lease that it is asked to.
    async fn serve(stream: TcpStream, at: watch::Sender<At>) -> std::io::Result<()> {
        let mut stream = BufStream::new(stream);
        loop {
            let (head, body) = receive(&mut stream).await?;
            let is_read = head.starts_with("GET");
            at.send_if_modified(|at| {
                let before = *at;
                *at = match (before, is_read) {
                    (At::Begin, false) => At::Take,
                    (At::Take, true) => At::GivingBack,
                    (other, _) => other,
                };
                *at != before
            });
            at.subscribe().wait_for(|at| matches!(at, At::Begin | At::LetGo)).await.unwrap();
            if is_read {
                answer(&mut stream, None).await?;
            } else {
                let mut lease: Value = serde_json::from_slice(&body).unwrap();
                lease["metadata"]["uid"] = json!("8f2d3c1a-0b4e-4c6d-9a7f-112233445566");
                answer(&mut stream, Some(lease)).await?;
            }
        }
    }

    /// A request's head and body.
    async fn receive(stream: &mut BufStream<TcpStream>) -> std::io::Result<(String, Vec<u8>)> {
        let (mut head, mut length) = (String::new(), 0);
        while stream.read_line(&mut head).await? > 2 {
            let line = head.lines().last().unwrap_or_default().to_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        if head.is_empty() {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        Ok((head, body))
    }

    async fn answer(stream: &mut BufStream<TcpStream>, lease: Option<Value>) -> std::io::Result<()> {
        let (status, answer) = match lease {
            None => {
                ("404 Not Found", json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404 }))
            }
            Some(lease) => ("200 OK", lease),
        };
        let answer = answer.to_string();
        let head =
            format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", answer.len());
        stream.write_all(format!("{head}{answer}").as_bytes()).await?;
        stream.flush().await
    }

    fn campaigns(url: String) -> Arc<Campaigns> {
        let cluster = Cluster::new(&KubernetesSettings { url, ..KubernetesSettings::default() }).unwrap();
        let (clock, _driver) = Clock::driven(Now { wall: WallMs(1_700_000_000_000), boot: BootMs(1_000) });
        let (identity, metrics) = (HolderId::new("a").unwrap(), Arc::<AgentMetrics>::default());
        Arc::new(Campaigns::new(cluster, identity, Timing::new(3_000), clock, metrics))
    }

    async fn within<T>(what: &str, is_so: impl Future<Output = T>) -> T {
        tokio::time::timeout(PATIENCE, is_so).await.unwrap_or_else(|_| panic!("in vain: {what}"))
    }

    #[tokio::test]
    async fn a_write_that_comes_while_a_lease_is_given_back_has_an_election() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let at = watch::Sender::new(At::Begin);
        let shared = at.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, shared.clone()));
            }
        });
        let reached = async |far: At| {
            within("the API server hangs", at.subscribe().wait_for(|at| *at == far)).await.unwrap();
        };
        let campaigns = campaigns(url);
        let lease = LeaseName { namespace: "left".to_owned(), name: "users".to_owned() };

        let (first, race) = campaigns.join(&lease);
        let (race, all) = (race.expect("it is new"), Arc::clone(&campaigns));
        let election = tokio::spawn(async move { all.run(&race, std::future::pending::<()>).await });
        reached(At::Take).await;
        drop(first);
        reached(At::GivingBack).await;
        let (second, race) = campaigns.join(&lease);
        assert!(race.is_none(), "both use one election");
        at.send_replace(At::LetGo);
        let mut standing = second.standing();
        within("it leads", standing.wait_for(|standing| matches!(standing, Standing::Leading(_)))).await.unwrap();
        drop(second);
        within("the election ends with its last seat", election).await.unwrap();
    }

    /// An API server that carries out the first creation late, and sends no answer to it.
    #[derive(Default)]
    struct Slow {
        lease: Option<Value>,
        reads: usize,
        creates: usize,
        is_let_go: bool,
    }

    async fn serve_slowly(stream: TcpStream, slow: watch::Sender<Slow>) -> std::io::Result<()> {
        let mut stream = BufStream::new(stream);
        loop {
            let (head, body) = receive(&mut stream).await?;
            if head.starts_with("GET") {
                slow.send_modify(|slow| slow.reads += 1);
            } else {
                let mut lease: Value = serde_json::from_slice(&body).unwrap();
                if head.starts_with("POST") {
                    slow.send_modify(|slow| slow.creates += 1);
                    slow.subscribe().wait_for(|slow| slow.is_let_go).await.unwrap();
                }
                lease["metadata"]["uid"] = json!("8f2d3c1a-0b4e-4c6d-9a7f-112233445566");
                slow.send_modify(|slow| {
                    let version = if slow.lease.is_some() { "2" } else { "1" };
                    lease["metadata"]["resourceVersion"] = json!(version);
                    slow.lease = Some(lease);
                });
            }
            let now = slow.borrow().lease.clone();
            answer(&mut stream, now).await?;
        }
    }

    #[tokio::test]
    async fn what_comes_of_a_take_after_it_was_given_up_is_given_back_too() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let slow = watch::Sender::new(Slow::default());
        let shared = slow.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve_slowly(stream, shared.clone()));
            }
        });
        let campaigns = campaigns(url);
        let lease = LeaseName { namespace: "left".to_owned(), name: "users".to_owned() };
        let (seat, race) = campaigns.join(&lease);
        let (race, all) = (race.expect("it is new"), Arc::clone(&campaigns));
        let election = tokio::spawn(async move { all.run(&race, std::future::pending::<()>).await });
        let mut seen = slow.subscribe();
        within("it is about to take it", seen.wait_for(|slow| slow.creates == 1)).await.unwrap();
        drop(seat);
        // The first read belongs to the campaign, the second to the release: there is no Lease yet.
        within("it looks for what to give back", seen.wait_for(|slow| slow.reads >= 2)).await.unwrap();
        slow.send_modify(|slow| slow.is_let_go = true);
        let is_free = |slow: &Slow| slow.lease.as_ref().is_some_and(|lease| lease["spec"]["holderIdentity"] == "");
        within("it is given back", seen.wait_for(is_free)).await.unwrap();
        within("the election ends", election).await.unwrap();
    }
}
