//! Projected tokens of Kubernetes ServiceAccounts, checked by the API server (TokenReview).
//!
//! A token leaves the gate only if it says that it is for the audience of this source. `review_cache` decides
//! which tokens are asked about, and how long an answer counts.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use futures_util::future::BoxFuture;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use super::{
    Verdict,
    review_cache::{Answer, Cache, Ended, Hash, Next},
    unverified::Unverified,
};
use crate::{
    access::principal::{Kind, Principal},
    clock::Stopwatch,
    config::{GateKubernetes, IdentitySettings, KubernetesSettings},
    fence::{BootMs, WallMs},
    kubernetes::{
        api::{Away, Cluster},
        token_review::{self, Reviewed},
    },
    tls::renewed::Wrong,
};

const CACHE_MS_MAX: u64 = 600_000;
/// How long the API server is not asked again after a failed review.
const PAUSE_MS: u64 = 1_000;
/// The longest such pause that the API server can ask for.
const PAUSE_MS_MAX: u64 = 30_000;
/// The beginning of a ServiceAccount's name.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";
const BROKEN_OFF: &str = "the review of this token was broken off";

/// What the API server says about tokens, kept for a short time.
pub struct Reviews(Arc<Shared>);

struct Shared {
    audience: String,
    cache: Mutex<Cache<Waits>>,
    ask: Ask,
}

/// Asks the API server about a token.
type Ask = Box<dyn Fn(Arc<str>) -> BoxFuture<'static, Result<Reviewed, Away>> + Send + Sync>;
/// The outcome of a review, once there is one: the answer, or why there is none.
type Outcome = Option<Result<Answer, String>>;
type Waits = watch::Receiver<Outcome>;

impl Reviews {
    /// A source by these settings. Makes no client yet: that needs a tokio runtime.
    ///
    /// # Errors
    /// The wrong key of the settings, and what is wrong with it.
    pub fn new(settings: &IdentitySettings, server: &GateKubernetes) -> Result<Self, Wrong> {
        if settings.audience.is_empty() {
            return Err(("audience", "must not be empty: it says that a token is for this gate".to_owned()));
        }
        if settings.cache_ms > CACHE_MS_MAX {
            return Err((
                "cache_ms",
                format!("must be at most {CACHE_MS_MAX}: a deleted ServiceAccount counts so long"),
            ));
        }
        let way = server.way();
        // A wrong url is a fault of its own there.
        if way.faults().is_empty() {
            let wrong =
                |(key, what)| ("kind", format!("\"kubernetes\" needs the API server: kubernetes.{key}: {what}"));
            Cluster::check(&way).map_err(wrong)?;
        }
        let ask = asks(way, settings.audience.clone());
        Ok(Self::asking(&settings.audience, settings.cache_ms, ask))
    }

    fn asking(audience: &str, cache_ms: u64, ask: Ask) -> Self {
        let cache = Mutex::new(Cache::new(cache_ms));
        Self(Arc::new(Shared { audience: audience.to_owned(), cache, ask }))
    }

    /// Who shows this token. Waits for the API server if it was not asked lately.
    pub(super) async fn identify(&self, source: &str, bearer: &str, peer: Option<IpAddr>, now: WallMs) -> Verdict {
        let Some(claims) = Unverified::of(bearer).filter(|claims| claims.is_for(&self.0.audience)) else {
            return Verdict::NotMine;
        };
        let Some(expires) = claims.expires else {
            return Verdict::Refused("this token names no end (exp), so it is no projected token".to_owned());
        };
        if now >= expires {
            return Verdict::Refused("this token has expired".to_owned());
        }
        let token = Token { source, bearer, expires, left_ms: expires.0.saturating_sub(now.0) };
        match self.look(&token, peer) {
            Next::Known(answer) => verdict(Ok(answer)),
            Next::NotNow(what) => Verdict::Unavailable(what),
            Next::Join(waits) | Next::Ask(waits) => verdict(outcome(waits).await),
        }
    }

    /// Looks a token up, and begins its review if one is needed and may begin.
    fn look(&self, token: &Token<'_>, peer: Option<IpAddr>) -> Next<Waits> {
        let hash = Sha256::digest(token.bearer).into();
        let mut sender = None;
        let next = self.0.cache().look(&hash, peer, boot(), || {
            let (sends, waits) = watch::channel(None);
            sender = Some(sends);
            waits
        });
        if let Some(sender) = sender {
            let flight = Flight { shared: Arc::clone(&self.0), hash, sender, ended: None };
            // In a task of its own: it goes on for others if this caller hangs up.
            tokio::spawn(flight.run(token.source.to_owned(), token.bearer.into(), (token.expires, token.left_ms)));
        }
        next
    }
}

/// A token that a caller shows now.
struct Token<'a> {
    source: &'a str,
    bearer: &'a str,
    expires: WallMs,
    left_ms: u64,
}

fn boot() -> BootMs {
    Stopwatch::start().begun()
}

async fn outcome(mut waits: Waits) -> Result<Answer, String> {
    let found = waits.wait_for(Option::is_some).await.ok().and_then(|found| found.clone());
    found.unwrap_or_else(|| Err(BROKEN_OFF.to_owned()))
}

fn verdict(outcome: Result<Answer, String>) -> Verdict {
    match outcome {
        Ok(Answer::Is(who)) => Verdict::Is(who),
        Ok(Answer::Refused(what)) => Verdict::Refused(what),
        Err(what) => Verdict::Unavailable(what),
    }
}

impl Shared {
    fn cache(&self) -> MutexGuard<'_, Cache<Waits>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A review in progress. Dropping this ends it, also when its task panics.
struct Flight {
    shared: Arc<Shared>,
    hash: Hash,
    sender: watch::Sender<Outcome>,
    ended: Option<Ended>,
}

impl Flight {
    async fn run(mut self, source: String, token: Arc<str>, (expires, left_ms): (WallMs, u64)) {
        let reviewed = (self.shared.ask)(token).await;
        self.ended = Some(match reviewed {
            Ok(reviewed) => {
                let answer = judged(reviewed, &source, &self.shared.audience);
                let answer = match answer {
                    Ok(who) => Answer::Is(who.until(expires)),
                    Err(what) => Answer::Refused(what),
                };
                Ended::Answered { answer, left_ms }
            }
            Err(away) => {
                let (what, pause_ms) = (unavailable(&away), pause_ms(&away));
                tracing::warn!(source, "a ServiceAccount's token could not be checked: {what}");
                Ended::Failed { what, pause_ms }
            }
        });
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let ended = self.ended.take();
        let ended = ended.unwrap_or_else(|| Ended::Failed { what: BROKEN_OFF.to_owned(), pause_ms: 0 });
        let outcome = match &ended {
            Ended::Answered { answer, .. } => Ok(answer.clone()),
            Ended::Failed { what, .. } => Err(what.clone()),
        };
        self.shared.cache().end(&self.hash, ended, boot());
        self.sender.send_replace(Some(outcome));
    }
}

/// The principal that the API server's answer names.
///
/// # Errors
/// Why it names none. The text has nothing of the token in it.
fn judged(reviewed: Reviewed, source: &str, audience: &str) -> Result<Principal, String> {
    if !reviewed.authenticated {
        tracing::debug!(source, "the API server does not accept a token: {}", reviewed.error);
        return Err("the API server does not accept this token".to_owned());
    }
    // An API server that knows no audiences accepts tokens for every audience.
    if !reviewed.audiences.iter().any(|each| each == audience) {
        return Err(format!("the API server does not say that this token is for the audience {audience:?}"));
    }
    let name = &reviewed.username;
    if !name.starts_with(SERVICE_ACCOUNT) {
        return Err("this token is no ServiceAccount's".to_owned());
    }
    let who =
        Principal::new(Kind::Kubernetes, source, name).map_err(|fault| format!("the name of this token {fault}"))?;
    if who.capture("serviceaccount.name").is_none_or(str::is_empty) {
        return Err("this token is no ServiceAccount's".to_owned());
    }
    let pod = [("pod.name", reviewed.pod_name), ("pod.uid", reviewed.pod_uid)];
    let who = who.in_groups(reviewed.groups);
    Ok(pod.into_iter().fold(who, |who, (capture, value)| match value {
        Some(value) => who.with(capture, &value),
        None => who,
    }))
}

/// What failed, for the caller.
fn unavailable(away: &Away) -> String {
    let need = match away {
        Away::Refused { status: 403, .. } => {
            ". The gate's own account needs the right to create tokenreviews (authentication.k8s.io)"
        }
        Away::Refused { status: 401, .. } => ". It does not accept the gate's own token",
        Away::Refused { .. } | Away::Unreachable(_) | Away::Odd(_) => "",
    };
    format!("this token cannot be checked: {away}{need}")
}

/// How long the API server is not asked again. It may refuse one token for its form: that says nothing about others.
fn pause_ms(away: &Away) -> u64 {
    match away {
        Away::Refused { status: 400 | 413 | 422, .. } => 0,
        _ => away.asked_ms().unwrap_or(0).clamp(PAUSE_MS, PAUSE_MS_MAX),
    }
}

/// Asks the API server in these settings. The first review makes the client; one that cannot be made is tried again.
fn asks(way: KubernetesSettings, audience: String) -> Ask {
    let shared = Arc::new((way, audience, OnceLock::new()));
    Box::new(move |token| {
        let shared = Arc::clone(&shared);
        Box::pin(async move {
            let (way, audience, made) = &*shared;
            let cluster = match made.get() {
                Some(cluster) => cluster,
                None => {
                    let wrong = |(key, what)| Away::Unreachable(format!("kubernetes.{key}: {what}"));
                    let cluster = Cluster::new(way).map_err(wrong)?;
                    made.get_or_init(|| cluster)
                }
            };
            token_review::review(cluster, audience, &token).await
        })
    })
}

#[cfg(test)]
#[path = "kubernetes_tests.rs"]
mod tests;
