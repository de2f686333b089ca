//! A JWK set that is fetched from its issuer: when the first token comes, again after `refresh_ms`, and when a token
//! names a key that is not in the set.
//!
//! One fetch is in progress at a time, in a task of its own: a caller that hangs up does not end it. If a fetch fails,
//! the last good set stays in use.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::{Method, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use tokio::{
    sync::{OwnedMutexGuard, Semaphore},
    task::JoinHandle,
};

use super::{SET_BYTES_MAX, keys::Keys};
use crate::{
    client::{CallFault, Client, Credentials},
    clock::Stopwatch,
    config::IdentitySettings,
    tls::renewed::Wrong,
};

/// The most callers that wait for a fetch. Others get an answer by what is known.
const WAITERS_MAX: usize = 256;
/// How far apart fetches are while there is no set.
const FIRST_GAP: Duration = Duration::from_secs(1);
const HEADERS: [(&str, &str); 2] = [("accept", "application/json"), ("user-agent", "fencegate")];

/// When the set is fetched.
#[derive(Clone, Copy)]
pub(super) struct Pace {
    /// The age at which it is fetched again.
    pub(super) refresh: Duration,
    /// How far apart fetches are, at least.
    pub(super) gap: Duration,
    /// How long one may take.
    pub(super) timeout: Duration,
}

/// An issuer's set.
pub(super) struct Remote {
    client: Client,
    path: String,
    /// For the log.
    issuer: String,
    pace: Pace,
    known: Mutex<Known>,
    /// Locked while a fetch is in progress.
    flight: Arc<tokio::sync::Mutex<()>>,
    waiters: Semaphore,
}

/// What the fetches so far have shown.
#[derive(Default)]
struct Known {
    /// The last good set, and when it came.
    keys: Option<(Arc<Keys>, Stopwatch)>,
    /// When the last fetch began, and then when it ended.
    asked: Option<Stopwatch>,
    /// Why the last fetch failed.
    fault: Option<String>,
}

/// What to do before the keys are used.
enum Need {
    Nothing,
    /// A fetch, but these keys can be used meanwhile.
    Fetch,
    /// To wait for a fetch.
    Wait,
}

impl Remote {
    /// The set at the settings' URL. Nothing is fetched yet.
    ///
    /// # Errors
    /// The wrong key of the settings, and what is wrong with it.
    pub(super) fn new(settings: &IdentitySettings, pace: Pace) -> Result<Self, Wrong> {
        let (server, path) = split(&settings.url).map_err(|what| ("url", what.to_owned()))?;
        let ca_file = Some(settings.ca_file.clone()).filter(|file| !file.as_os_str().is_empty());
        if ca_file.is_some() && server.starts_with("http:") {
            return Err(("ca_file", "is for an https `url`".to_owned()));
        }
        let client = Client::with(&server, &Credentials { ca_file, ..Credentials::default() });
        let client = client.map_err(|fault| match fault {
            CallFault::Credentials(what) => ("ca_file", what),
            fault => ("url", fault.to_string()),
        })?;
        let (known, flight) = (Mutex::default(), Arc::default());
        let waiters = Semaphore::new(WAITERS_MAX);
        Ok(Self { client, path, issuer: settings.issuer.clone(), pace, known, flight, waiters })
    }

    /// The present set. Fetches it when that is due.
    ///
    /// # Errors
    /// Why it could not be fetched, if it never was.
    pub(super) async fn present(self: &Arc<Self>) -> Result<Arc<Keys>, String> {
        let need = self.known().need(self.pace);
        match need {
            Need::Nothing => {}
            Need::Fetch => drop(Arc::clone(&self.flight).try_lock_owned().ok().and_then(|flight| self.fetch(flight))),
            Need::Wait => self.wait().await,
        }
        let known = self.known();
        let fault = || known.fault.clone().unwrap_or_else(|| "too many callers wait for them".to_owned());
        known.keys.as_ref().map(|(keys, _)| Arc::clone(keys)).ok_or_else(fault)
    }

    /// The set, for a token whose key is not among `keys`: fetched again, unless that was done lately.
    pub(super) async fn newer(self: &Arc<Self>, keys: Arc<Keys>) -> Arc<Keys> {
        self.wait().await;
        self.known().keys.as_ref().map_or(keys, |(keys, _)| Arc::clone(keys))
    }

    /// Waits for the fetch in progress. If there is none, waits for a new one, unless the last one was lately.
    async fn wait(self: &Arc<Self>) {
        let Ok(_place) = self.waiters.try_acquire() else { return };
        let flight = Arc::clone(&self.flight).lock_owned().await;
        if let Some(task) = self.fetch(flight) {
            let _ = task.await;
        }
    }

    /// Begins a fetch, unless the last one was lately.
    fn fetch(self: &Arc<Self>, flight: OwnedMutexGuard<()>) -> Option<JoinHandle<()>> {
        if !self.known().may_ask(self.pace) {
            return None;
        }
        let own = Arc::clone(self);
        Some(tokio::spawn(async move {
            own.known().asked = Some(Stopwatch::start());
            let got = tokio::time::timeout(own.pace.timeout, own.get()).await;
            let got = got.unwrap_or_else(|_| Err(format!("no whole answer in {} s", own.pace.timeout.as_secs())));
            own.note(got);
            drop(flight);
        }))
    }

    async fn get(&self) -> Result<Keys, String> {
        let (status, body) = self.client.open(Method::GET, &self.path, &HEADERS, None).await.map_err(cause)?;
        if status != StatusCode::OK {
            return Err(format!("the answer has status {status}, and only 200 is taken (redirects are not followed)"));
        }
        let body = Limited::new(body, SET_BYTES_MAX).collect().await;
        let body = body.map_err(|error| format!("the answer cannot be read: {error}"))?;
        Keys::read(&body.to_bytes()).map_err(|what| format!("the answer {what}"))
    }

    fn note(&self, got: Result<Keys, String>) {
        let (issuer, url) = (&self.issuer, self.client.url());
        let mut known = self.known();
        let fault = match got {
            Ok(keys) => {
                if known.keys.is_none() || known.fault.is_some() {
                    tracing::info!(issuer, url, "an issuer's keys were fetched");
                }
                known.keys = Some((Arc::new(keys), Stopwatch::start()));
                None
            }
            Err(what) => Some(what),
        };
        if let Some(what) = fault.as_ref().filter(|_| fault != known.fault) {
            tracing::warn!(issuer, url, what, "an issuer's keys cannot be fetched; the last ones, if any, stay in use");
        }
        known.fault = fault;
        known.asked = Some(Stopwatch::start());
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As if the last fetch had been long ago.
    #[cfg(test)]
    pub(super) fn forget_when_asked(&self) {
        self.known().asked = None;
    }
}

impl Known {
    /// A set that is a little too old is used while the next one is fetched: callers do not wait for the issuer. One
    /// that was not needed for long is fetched first, since its issuer may have taken keys out; but not if the issuer
    /// did not answer the last time.
    fn need(&self, pace: Pace) -> Need {
        let Some((_, came)) = &self.keys else { return Need::Wait };
        let age = came.seconds();
        match pace.refresh.as_secs_f64() {
            refresh if age < refresh => Need::Nothing,
            refresh if age < 2.0 * refresh || self.fault.is_some() => Need::Fetch,
            _ => Need::Wait,
        }
    }

    fn may_ask(&self, pace: Pace) -> bool {
        let gap = if self.keys.is_some() { pace.gap } else { pace.gap.min(FIRST_GAP) };
        self.asked.is_none_or(|asked| asked.seconds() >= gap.as_secs_f64())
    }
}

/// The server and the path of a URL.
fn split(url: &str) -> Result<(String, String), &'static str> {
    let what = "must be an https URL with a path, such as https://issuer.example/jwks.json";
    let uri: Uri = url.parse().map_err(|_| what)?;
    let authority = uri.authority().ok_or(what)?;
    if authority.as_str().contains('@') {
        return Err("has a user name or a password in it: leave it out");
    }
    let host = authority.host().trim_matches(['[', ']']).parse::<IpAddr>();
    let is_near = host.is_ok_and(|address| address.to_canonical().is_loopback());
    match uri.scheme_str() {
        Some("http") if !is_near => Err("must be https: keys that are changed on the way would let anyone in"),
        Some(scheme @ ("http" | "https")) => {
            let path = uri.path_and_query().map_or("/", |path| path.as_str());
            Ok((format!("{scheme}://{authority}"), path.to_owned()))
        }
        _ => Err(what),
    }
}

/// Why a call failed. The client's own texts are about gates.
fn cause(fault: CallFault) -> String {
    match fault {
        CallFault::Connect { error, .. } => format!("the server cannot be reached: {error}"),
        CallFault::Broken { error, .. } => format!("the connection broke: {error}"),
        fault => fault.to_string(),
    }
}
