//! The calls of the lease api that a writer makes, and what their answers mean.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use thiserror::Error;
use tokio::time::error::Elapsed;

use super::http::{ApiResponse, CallFault, Client, Credentials, Kept};
use crate::{
    clock::Clock,
    fence::{BootMs, HolderId, Ttl},
    wire::{AcquireRequest, GrantBody, ObjectBody, RenewRequest, RouteList, WhoBody},
};

/// A gate's lease api.
#[derive(Clone, Debug)]
pub struct LeaseApi {
    client: Client,
    /// For renewals on which writes wait.
    kept: Kept,
    pub(super) clock: Clock,
}

/// A fence token. Prints as `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Arc<str>);

impl Token {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The token's text, for the header `Fence-Token`. Keep it out of logs.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A definite answer that refuses the call.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Refusal {
    pub status: u16,
    pub code: String,
    pub detail: String,
    pub field: Option<String>,
    /// The holder of the lease.
    pub holder_id: Option<String>,
    pub retryable: bool,
    pub retry_after_ms: Option<u64>,
}

impl Default for Refusal {
    fn default() -> Self {
        let code = String::new();
        Self {
            status: 0,
            detail: code.clone(),
            code,
            field: None,
            holder_id: None,
            retryable: false,
            retry_after_ms: None,
        }
    }
}

impl Refusal {
    fn of(answer: &ApiResponse) -> Self {
        let status = answer.status.as_u16();
        match serde_json::from_slice::<Self>(&answer.body) {
            Ok(refusal) if !refusal.code.is_empty() => Self { status, ..refusal },
            // Another program between this one and the gate has answered.
            _ => Self { status, retryable: answer.status.is_server_error(), ..Self::default() },
        }
    }

    /// Whether it says that the lease is not the caller's, or is not any more.
    #[must_use]
    pub fn ends_lease(&self) -> bool {
        matches!(
            self.code.as_str(),
            "LEASE_FENCED" | "LEASE_EXPIRED" | "LEASE_NOT_HOLDER" | "LEASE_NOT_FOUND" | "LEASE_TOKEN_MISMATCH"
        )
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code.as_str() {
            "" => write!(f, "the gate answered {}", self.status),
            code => write!(f, "{code}: {}", self.detail),
        }
    }
}

/// Why a call failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Failed {
    /// The request was not sent.
    #[error("{0}")]
    Unreachable(String),
    /// No answer came. The call may have been carried out.
    #[error("{0}")]
    Unanswered(String),
    #[error("{0}")]
    Refused(Box<Refusal>),
}

impl Failed {
    /// How long the gate asks to wait before the next try.
    #[must_use]
    pub fn asked_ms(&self) -> Option<u64> {
        match self {
            Self::Refused(refusal) => refusal.retry_after_ms,
            Self::Unreachable(_) | Self::Unanswered(_) => None,
        }
    }
}

/// A lease that was granted or renewed.
#[derive(Clone, Debug)]
pub(super) struct Granted {
    pub(super) lease_id: String,
    pub(super) seq: u64,
    pub(super) token: Token,
    pub(super) ttl: Ttl,
    pub(super) sent: BootMs,
    /// Until when it is ours at least: counted from when the request was sent. The gate counted the remaining time
    /// later than that, also where it had granted the lease some time before.
    pub(super) until: BootMs,
    /// The gate's warning.
    pub(super) warning: Option<String>,
}

impl Granted {
    fn new(body: GrantBody, sent: BootMs) -> Self {
        let GrantBody { lease, fence_token, warning, .. } = body;
        Self {
            lease_id: lease.lease_id,
            seq: lease.lease_seq,
            token: Token(fence_token.into()),
            ttl: Ttl(lease.ttl_ms),
            sent,
            until: sent.after(Ttl(lease.expires_in_ms)),
            warning,
        }
    }
}

impl LeaseApi {
    /// The api of the gate at this URL, for a caller that needs no proof of who it is.
    ///
    /// # Errors
    /// When this is not an `http` or `https` URL without a path.
    pub fn new(url: &str) -> Result<Self, CallFault> {
        Self::with(url, &Credentials::default())
    }

    /// The api of the gate at this URL, with a proof of who calls.
    ///
    /// # Errors
    /// When this is not an `http` or `https` URL without a path, when the credentials cannot be used, or when a token
    /// would be sent in plain text to another machine.
    pub fn with(url: &str, credentials: &Credentials) -> Result<Self, CallFault> {
        Ok(Self { client: Client::with(url, credentials)?, kept: Kept::default(), clock: Clock::machine() })
    }

    /// A holder's name that this caller may use, with `own` as its part: `own` itself where every name will do.
    ///
    /// # Errors
    /// When the gate does not say who the caller is, or lets it hold nothing.
    pub async fn own_holder(&self, own: &HolderId, patience: Duration) -> Result<HolderId, Failed> {
        let who: WhoBody = match self.call::<(), _>(Method::GET, "/v1/whoami", &[], None, patience).await {
            Ok(who) => who,
            // A gate of an earlier version binds no names.
            Err(Failed::Refused(refusal)) if refusal.status == 404 => return Ok(own.clone()),
            Err(failed) => return Err(failed),
        };
        let Some(root) = who.holders.first() else { return Ok(own.clone()) };
        let name = HolderId::new(&format!("{root}{}{own}", who.holder_separator));
        name.map_err(|fault| {
            Failed::Unanswered(format!("the holder's name that the gate allows cannot be used: {fault}"))
        })
    }

    pub(super) fn now(&self) -> BootMs {
        self.clock.now().boot
    }

    /// Asks for a lease once.
    pub(super) async fn ask(&self, wanted: &AcquireRequest, patience: Duration) -> Result<Granted, Failed> {
        let sent = self.now();
        let body: GrantBody = self.call(Method::POST, "/v1/leases", &[], Some(wanted), patience).await?;
        Ok(Granted::new(body, sent))
    }

    /// Renews a lease once, on a new connection or on one that is kept for the next call.
    pub(super) async fn renew(
        &self,
        lease_id: &str,
        wanted: &RenewRequest,
        patience: Duration,
        by: By,
    ) -> Result<Granted, Failed> {
        let sent = self.now();
        let path = format!("/v1/leases/{}/renew", encode(lease_id));
        let body: GrantBody = match by {
            By::New => self.call(Method::POST, &path, &[], Some(wanted), patience).await?,
            By::Kept => {
                let body = serde_json::to_vec(wanted).unwrap_or_default();
                // A renewal may be carried out twice.
                let call = self.client.call_kept(&self.kept, Method::POST, &path, &[], Some(body));
                answered(tokio::time::timeout(patience, call).await, patience)?
            }
        };
        Ok(Granted::new(body, sent))
    }

    /// Releases a lease once.
    pub(super) async fn release(&self, lease_id: &str, token: &Token, patience: Duration) -> Result<(), Failed> {
        let path = format!("/v1/leases/{}", encode(lease_id));
        let headers = [("Fence-Token", token.expose())];
        let _: ObjectBody = self.call::<(), _>(Method::DELETE, &path, &headers, None, patience).await?;
        Ok(())
    }

    /// Reads an object: its fence and its holder.
    ///
    /// # Errors
    /// When there is no answer, or a refusal.
    pub async fn get_object(&self, object: &str, patience: Duration) -> Result<ObjectBody, Failed> {
        self.call::<(), _>(Method::GET, &format!("/v1/objects/{}", encode(object)), &[], None, patience).await
    }

    /// The gate's routes, the most specific first.
    ///
    /// # Errors
    /// When there is no answer, or a refusal.
    pub async fn routes(&self, patience: Duration) -> Result<RouteList, Failed> {
        self.call::<(), _>(Method::GET, "/v1/routes", &[], None, patience).await
    }

    async fn call<B: Serialize, T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&B>,
        patience: Duration,
    ) -> Result<T, Failed> {
        let body = body.map(|body| serde_json::to_vec(body).unwrap_or_default());
        let call = tokio::time::timeout(patience, self.client.call(method, path, headers, body)).await;
        answered(call, patience)
    }
}

/// The connection of a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum By {
    New,
    Kept,
}

/// The result of a call.
fn answered<T: DeserializeOwned>(
    call: Result<Result<ApiResponse, CallFault>, Elapsed>,
    patience: Duration,
) -> Result<T, Failed> {
    let answer = match call {
        Ok(Ok(answer)) => answer,
        Ok(Err(
            fault @ (CallFault::Connect { .. }
            | CallFault::Url(_)
            | CallFault::UserInfo
            | CallFault::Credentials(_)
            | CallFault::PlainToken(_)),
        )) => {
            return Err(Failed::Unreachable(fault.to_string()));
        }
        Ok(Err(fault @ CallFault::Broken { .. })) => return Err(Failed::Unanswered(fault.to_string())),
        Err(_) => return Err(Failed::Unanswered(format!("no answer within {} ms", patience.as_millis()))),
    };
    if !answer.status.is_success() {
        return Err(Failed::Refused(Box::new(Refusal::of(&answer))));
    }
    read(&answer.body)
}

/// Reads an answer. Errors do not quote the answer, because it may contain a token.
fn read<T: DeserializeOwned>(body: &Bytes) -> Result<T, Failed> {
    serde_json::from_slice(body).map_err(|error| {
        let place = format!("line {}, column {}", error.line(), error.column());
        Failed::Unanswered(format!("the gate's answer is not what this program knows ({place})"))
    })
}

/// A span on the boot clock.
pub(crate) fn lasting(span: Duration) -> Ttl {
    Ttl(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
}

fn encode(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    #[test]
    fn a_refusal_is_read_and_what_is_none_counts_by_its_status() {
        let of = |status, body: &'static str| {
            Refusal::of(&ApiResponse { status: StatusCode::from_u16(status).unwrap(), body: Bytes::from(body) })
        };
        let held = of(
            409,
            r#"{"code":"LEASE_HELD","detail":"d","retryable":true,"retry_after_ms":7,"holder_id":"a","status":1,"new":{}}"#,
        );
        assert_eq!((held.status, held.holder_id.as_deref(), held.retry_after_ms), (409, Some("a"), Some(7)));
        assert!(!held.ends_lease() && held.retryable);
        assert!(of(409, r#"{"code":"LEASE_FENCED","detail":"d"}"#).ends_lease());
        assert_eq!(of(502, "<html>").to_string(), "the gate answered 502");
        assert!(of(502, "<html>").retryable && !of(404, "{}").retryable);
    }

    #[test]
    fn a_token_prints_as_stars() {
        assert_eq!(format!("{:?}", Token("fg1.1.dXNlcnM.AQID".into())), "***");
    }
}
