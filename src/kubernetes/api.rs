//! The API server: reads and writes of one Lease, each with a time limit.

use std::{fmt, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, Config, api::PostParams, config::AuthInfo};

use crate::{
    config::KubernetesSettings,
    fence::election::{Election, Uid},
};

pub use crate::fence::election::LeaseName;

/// The parts of a Lease that matter here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub election: Election,
    /// `None`: it has no holder, because it was given back.
    pub holder: Option<String>,
    pub duration: Duration,
    /// When its holder last renewed it by the holder's own clock, in microseconds since 1970.
    pub renewed_us: i64,
}

/// The API server did not answer, or not as expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Away {
    /// It cannot be reached, or does not answer in time.
    Unreachable(String),
    /// It refuses, for missing rights or a fault of its own. It may say how long to wait.
    Refused { status: u16, what: String, asked_ms: Option<u64> },
    /// Its answer for this Lease cannot be understood.
    Odd(String),
}

impl Away {
    /// How long the API server asks to wait before the next request.
    #[must_use]
    pub fn asked_ms(&self) -> Option<u64> {
        match self {
            Self::Refused { asked_ms, .. } => *asked_ms,
            Self::Unreachable(_) | Self::Odd(_) => None,
        }
    }

    /// No answer in time.
    #[must_use]
    pub fn late(after: Duration) -> Self {
        Self::Unreachable(format!("no answer within {} ms", after.as_millis()))
    }
}

impl fmt::Display for Away {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(what) => write!(f, "the API server cannot be reached: {what}"),
            Self::Refused { status, what, .. } => write!(f, "the API server refuses with {status}: {what}"),
            Self::Odd(what) => write!(f, "the API server's answer cannot be understood: {what}"),
        }
    }
}

/// Why a write of a Lease failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotWritten {
    /// Another client was first: read the Lease again.
    Conflict,
    /// The outcome is unknown, unless the API server refused it.
    Away(Away),
}

/// The API server, with the credentials for it.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    timeout: Duration,
}

impl Cluster {
    /// A client of the API server. Sends no request yet; needs a tokio runtime.
    ///
    /// # Errors
    /// The wrong setting, and what is wrong with it.
    pub fn new(settings: &KubernetesSettings) -> Result<Self, (&'static str, String)> {
        let timeout = Duration::from_millis(settings.request_timeout_ms);
        let mut config = if settings.url.is_empty() {
            Config::incluster().map_err(|error| ("url", format!("is empty, and this is no pod: {error}")))?
        } else {
            elsewhere(settings)?
        };
        config.connect_timeout = Some(timeout);
        // For requests without a time limit: a list, and the beginning of a watch.
        config.read_timeout = Some(SILENCE);
        config.reset_reader_on_write = true;
        // The caller decides whether to ask again.
        config.default_retry = false;
        let client = Client::try_from(config).map_err(|error| ("url", error.to_string()))?;
        Ok(Self { client, timeout })
    }

    /// Checks the files of a url that was set, as [`Self::new`] does; needs no runtime. A pod's own service account is
    /// not checked: its files are only in the pod.
    ///
    /// # Errors
    /// The wrong setting, and what is wrong with it.
    pub fn check(settings: &KubernetesSettings) -> Result<(), (&'static str, String)> {
        if settings.url.is_empty() { Ok(()) } else { elsewhere(settings).map(drop) }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// How long one request may take.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The Leases of a namespace.
    #[must_use]
    pub fn leases(&self, namespace: &str) -> Api<Lease> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Reads a Lease as it is now: a quorum read, so it is newer than every read that has ended.
    ///
    /// # Errors
    /// When the API server does not answer this.
    pub async fn read(&self, at: &LeaseName) -> Result<Option<Lease>, Away> {
        let leases = self.leases(&at.namespace);
        self.within(leases.get_opt(&at.name)).await.map_err(away)
    }

    /// Creates a Lease.
    ///
    /// # Errors
    /// When it exists already, or the API server does not create it.
    pub async fn create(&self, lease: &Lease) -> Result<Lease, NotWritten> {
        let api = self.leases(lease.metadata.namespace.as_deref().unwrap_or_default());
        let terms = PostParams::default();
        self.within(api.create(&terms, lease)).await.map_err(not_written)
    }

    /// Writes a Lease that was read, if it has not been written since: its resourceVersion shows this.
    ///
    /// # Errors
    /// When it has been written since, or the API server does not write it.
    pub async fn replace(&self, lease: &Lease) -> Result<Lease, NotWritten> {
        let (namespace, name) = (lease.metadata.namespace.as_deref(), lease.metadata.name.as_deref());
        let api = self.leases(namespace.unwrap_or_default());
        let terms = PostParams::default();
        let replaced = api.replace(name.unwrap_or_default(), &terms, lease);
        self.within(replaced).await.map_err(not_written)
    }

    pub(super) async fn within<T>(&self, call: impl Future<Output = kube::Result<T>>) -> Result<T, Failed> {
        match tokio::time::timeout(self.timeout, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(Failed::With(Box::new(error))),
            Err(_) => Err(Failed::Late(self.timeout)),
        }
    }
}

/// The connection to a server that the settings name, with its files.
fn elsewhere(settings: &KubernetesSettings) -> Result<Config, (&'static str, String)> {
    let mut config = Config::new(settings.url.parse().map_err(|error| ("url", format!("{error}")))?);
    if !settings.ca_file.as_os_str().is_empty() {
        std::fs::metadata(&settings.ca_file)
            .map_err(|error| ("ca_file", format!("{}: {error}", settings.ca_file.display())))?;
        config.root_cert_file = Some(settings.ca_file.clone());
    }
    if !settings.token_file.as_os_str().is_empty() {
        let file = settings.token_file.display().to_string();
        let text = std::fs::read_to_string(&settings.token_file);
        let text = text.map_err(|error| ("token_file", format!("{file}: {error}")))?;
        if text.is_empty() || text.contains(char::is_whitespace) {
            // The text is sent unchanged, and no header can contain such text.
            let what = "must hold the token and nothing else, not even a line break at its end";
            return Err(("token_file", format!("{file} {what}")));
        }
        config.auth_info = AuthInfo { token_file: Some(file), ..AuthInfo::default() };
    }
    Ok(config)
}

/// Why a request has no answer.
pub(super) enum Failed {
    With(Box<kube::Error>),
    Late(Duration),
}

pub(super) fn away(failed: Failed) -> Away {
    match failed {
        Failed::Late(after) => Away::late(after),
        Failed::With(error) => match *error {
            kube::Error::Api(status) => {
                let seconds = status.details.map(|details| u64::from(details.retry_after_seconds));
                let asked_ms = seconds.filter(|seconds| *seconds > 0).map(|seconds| seconds * 1_000);
                Away::Refused { status: status.code, what: status.message, asked_ms }
            }
            kube::Error::SerdeError(error) => Away::Odd(error.to_string()),
            error => Away::Unreachable(chain(&error)),
        },
    }
}

fn not_written(failed: Failed) -> NotWritten {
    match away(failed) {
        Away::Refused { status: 409, .. } => NotWritten::Conflict,
        away => NotWritten::Away(away),
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}

/// How long a connection may be silent during a request: longer than a watch lasts.
const SILENCE: Duration = Duration::from_secs(75);

/// The longest that a Lease may be held without a renewal: one day.
const DURATION_MAX_S: i32 = 86_400;

impl Seen {
    /// Reads a Lease.
    ///
    /// # Errors
    /// When a field has a value that no candidate writes.
    pub fn of(lease: &Lease) -> Result<Self, Away> {
        let odd = |what: &str| Away::Odd(format!("this Lease has {what}"));
        let uid = lease.metadata.uid.as_deref().ok_or_else(|| odd("no uid"))?;
        let uid = Uid::parse(uid).ok_or_else(|| odd("a uid that is no UUID"))?;
        let spec = lease.spec.clone().unwrap_or_default();
        let transitions = spec.lease_transitions.unwrap_or(0);
        let transitions = u32::try_from(transitions).map_err(|_| odd("a leaseTransitions below 0"))?;
        let seconds = spec.lease_duration_seconds.unwrap_or(0).clamp(0, DURATION_MAX_S);
        let duration = Duration::from_secs(u64::from(seconds.unsigned_abs()));
        let holder = spec.holder_identity.filter(|holder| !holder.is_empty());
        let renewed_us = spec.renew_time.map_or(0, |time| time.0.as_microsecond());
        Ok(Self { election: Election { uid, transitions }, holder, duration, renewed_us })
    }
}

#[cfg(test)]
mod tests {
    use kube::core::{Status, response::StatusDetails};

    use super::*;

    #[tokio::test]
    async fn a_token_that_no_header_could_hold_stops_the_start() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let cluster = |token: &str| {
            std::fs::write(file.path(), token).unwrap();
            let (url, token_file) = ("http://127.0.0.1:1".to_owned(), file.path().to_owned());
            let settings = KubernetesSettings { url, token_file, ..KubernetesSettings::default() };
            let made = Cluster::new(&settings).map(drop);
            assert_eq!(Cluster::check(&settings), made, "the check without a runtime finds the same");
            made
        };
        assert_eq!(cluster("abc.def"), Ok(()));
        for odd in ["", "secret\n", "secret\r\n", " secret", "sec ret"] {
            let (key, what) = cluster(odd).unwrap_err();
            assert!(key == "token_file" && what.contains("not even a line break"), "{key}: {what}");
            assert!(odd.is_empty() || !what.contains(odd.trim()), "the token is shown: {what}");
        }
    }

    #[test]
    fn an_api_server_that_asks_for_time_is_heard() {
        let refused = |seconds| {
            let details: StatusDetails =
                serde_json::from_value(serde_json::json!({ "retryAfterSeconds": seconds })).unwrap();
            let status = Status::failure("too many", "TooManyRequests").with_code(429).with_details(details);
            away(Failed::With(Box::new(kube::Error::Api(Box::new(status)))))
        };
        assert_eq!((refused(0).asked_ms(), refused(3).asked_ms()), (None, Some(3_000)));
        assert_eq!(Away::late(SILENCE).asked_ms(), None);
    }
}
