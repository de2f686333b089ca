//! The types that go over the wire between the api and its clients. Only these types derive Serialize; those of the
//! domain do not.
//!
//! - [`schema`]: which values requests may have, for the api's description.
//!
//! This module knows no type of the table: `api::bodies` makes these types from records, leases and receipts.

pub mod schema;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{
    config::{LeaseSource, Mode},
    fence::{WallMs, outside::Source},
};

/// A time as text, for people.
#[must_use]
pub fn time(at: WallMs) -> String {
    let ms = i64::try_from(at.0).unwrap_or(i64::MAX);
    match jiff::Timestamp::from_millisecond(ms) {
        Ok(instant) => format!("{instant:.3}"),
        // A time after the year 9999 is shown as the latest possible.
        Err(_) => jiff::Timestamp::MAX.to_string(),
    }
}

/// `POST /v1/leases`
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AcquireRequest {
    /// What to lock: 1 to 1,024 bytes, no control characters.
    #[schema(value_type = schema::ObjectId)]
    pub object_id: String,
    /// Who asks: 1 to 1,024 bytes, unique per process.
    #[schema(value_type = schema::HolderId)]
    pub holder_id: String,
    /// How long the lease lasts unless it is renewed; `lease.ttl_ms_default` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::TtlMs>)]
    pub ttl_ms: Option<u64>,
    /// Queue for so long if the object is held.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::WaitMs>)]
    pub wait_ms: Option<u64>,
    /// Your own name for this call: repeated after a lost answer, it gets the same lease, until its first write or
    /// renewal.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::RequestId>)]
    pub request_id: Option<String>,
    /// Take your own live lease over, as after a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub takeover: Option<bool>,
}

/// `POST /v1/lease-batches`
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchRequest {
    /// All of them, or none.
    #[schema(value_type = schema::ObjectIds)]
    pub object_ids: Vec<String>,
    #[schema(value_type = schema::HolderId)]
    pub holder_id: String,
    #[schema(value_type = Option<schema::TtlMs>)]
    pub ttl_ms: Option<u64>,
    #[schema(value_type = Option<schema::WaitMs>)]
    pub wait_ms: Option<u64>,
    #[schema(value_type = Option<schema::RequestId>)]
    pub request_id: Option<String>,
    /// Take your own live leases over, as after a restart.
    pub takeover: Option<bool>,
}

/// `POST /v1/leases/{lease_id}/renew`
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewRequest {
    #[schema(value_type = schema::FenceToken)]
    pub fence_token: String,
    #[schema(value_type = schema::HolderId)]
    pub holder_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::TtlMs>)]
    pub ttl_ms: Option<u64>,
    /// Get a new lease_seq and token; tokens given away before stop working.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotate: Option<bool>,
}

/// `POST /v1/objects/{object_id}/revoke`
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RevokeRequest {
    /// Why: 1 to 1,024 bytes, kept with the lease that it ends.
    #[schema(value_type = schema::Reason)]
    pub reason: String,
    /// Wait for nothing that is on its way.
    pub force: Option<bool>,
}

/// `POST /v1/tokens/check`
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckRequest {
    #[schema(value_type = schema::AnyToken)]
    pub fence_token: String,
    /// The object to be written; the token's own if absent.
    #[schema(value_type = Option<schema::ObjectId>)]
    pub object_id: Option<String>,
}

/// `POST /v1/backups`
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BackupRequest {
    /// A folder on the gate's machine that does not exist yet.
    #[schema(value_type = schema::Folder)]
    pub folder: String,
}

/// A finished backup.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct BackupBody {
    pub folder: String,
}

/// `GET /v1/leases`
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub struct ListQuery {
    /// Objects whose id begins so.
    pub prefix: Option<String>,
    #[param(value_type = Option<schema::HolderId>)]
    pub holder_id: Option<String>,
    pub state: Option<LeaseState>,
    /// 1 to 1,000; 100 if absent.
    #[param(value_type = Option<schema::Limit>)]
    pub limit: Option<usize>,
    /// `next_cursor` of the page before.
    #[param(value_type = Option<schema::Cursor>)]
    pub cursor: Option<String>,
}

/// `GET /v1/watch`
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub struct WatchQuery {
    /// Objects whose id begins so.
    pub prefix: Option<String>,
    /// Resume behind this event id; the header Last-Event-ID does the same.
    #[param(value_type = Option<schema::Stamp>)]
    pub after: Option<String>,
}

/// The state of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LeaseState {
    Held,
    Draining,
    Expired,
    Released,
    Fenced,
}

/// A lease, without its secret.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct LeaseBody {
    /// Which grant it is.
    pub lease_id: String,
    /// Its number: higher with every grant of the object.
    pub lease_seq: u64,
    /// What it governs.
    pub object_id: String,
    /// To whom it was granted.
    pub holder_id: String,
    /// Since when it is held.
    pub acquired_at: String,
    /// Until when, unless it is renewed.
    pub expires_at: String,
    /// How long it lasts from each renewal.
    pub ttl_ms: u64,
    pub state: LeaseState,
    /// What is left of it by the gate's own clock.
    pub expires_in_ms: u64,
    /// It was granted by force while an older write could still land.
    pub tainted: bool,
    /// When it ended, if it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// When it was given back, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub released_at: Option<String>,
    /// Why it was fenced, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A lease with its token, for its holder.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct GrantBody {
    #[serde(flatten)]
    pub lease: LeaseBody,
    /// Send it with every write, in the header Fence-Token. Keep it to yourself.
    pub fence_token: String,
    /// The call's own name, if it had one. Only its holder gets it: with this name, the same lease can be asked for
    /// again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    pub drain: DrainBody,
    /// Why the lease is useless: no route of the gate makes its object, so no write can use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// The writes that were in flight to the store when the lease changed hands.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct DrainBody {
    /// Older writes that the store has answered.
    pub settled: u64,
    /// Older writes of which nothing can land.
    pub cancelled: u64,
    /// Older writes whose outcome is unknown.
    pub unknown: u64,
    /// How long they were waited for.
    pub waited_ms: u64,
}

/// A batch of leases.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct BatchBody {
    pub leases: Vec<GrantBody>,
}

/// A page of leases.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct LeaseList {
    pub leases: Vec<LeaseBody>,
    pub next_cursor: Option<String>,
}

/// An object.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct ObjectBody {
    pub object_id: String,
    /// Writes below it are stale for ever.
    pub fence: u64,
    pub state: ObjectState,
    /// Whose numbers its fence counts in.
    pub lease_source: NumberSource,
    /// It is not known which tokens of its outside lock service are stale: an operator must confirm.
    pub locked: bool,
    /// The term of leadership at its fence, as a token, where a Kubernetes Lease says who may write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub term: Option<String>,
    /// The lease at the fence, if one was granted there.
    pub lease: Option<LeaseBody>,
    /// When the table last changed it, as a hybrid logical time.
    pub changed: String,
}

/// Whose numbers a fence counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum NumberSource {
    /// The gate's, or an issuer's.
    Gate,
    /// An outside lock service's.
    External,
    /// The gate's, one for each term of leadership by a Kubernetes Lease.
    Kubernetes,
}

impl From<Source> for NumberSource {
    fn from(source: Source) -> Self {
        match source {
            Source::Gate => Self::Gate,
            Source::External => Self::External,
            Source::Kubernetes => Self::Kubernetes,
        }
    }
}

/// The state of an object's fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ObjectState {
    Free,
    Draining,
    Open,
}

/// An object whose fence was moved.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct MovedBody {
    #[serde(flatten)]
    pub object: ObjectBody,
    pub drain: DrainBody,
}

/// A verdict without a write.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct CheckBody {
    /// Whether a write with this token would be forwarded now.
    pub valid: bool,
    /// Why not: the code that the write would get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    pub object_id: String,
    /// Absent where the token does not name it: a token of a term of leadership that is not the present one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_seq: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<u64>,
}

/// Refused writes, newest first.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct ReceiptList {
    pub receipts: Vec<ReceiptBody>,
}

/// One refused write.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct ReceiptBody {
    /// The refusal named it, too.
    pub receipt_id: String,
    pub object_id: Option<String>,
    /// The code of the refusal.
    pub error: String,
    /// The number in the write's token.
    pub write_seq: Option<u64>,
    /// The object's fence, when the write was refused.
    pub current_fence_seq: Option<u64>,
    /// Who wrote, where that is known.
    pub holder_id: Option<String>,
    /// The name of the route.
    pub route: Option<String>,
    /// When it was refused.
    pub timestamp: String,
}

/// The data of an event for watchers.
#[derive(Debug, ToSchema)]
#[serde(untagged)]
pub enum WatchBody {
    Lease(EventBody),
    /// Of `reset`: nothing.
    Reset(ResetBody),
}

/// The data of the event `reset`.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResetBody {}

/// An event for watchers.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct EventBody {
    pub lease_id: String,
    pub lease_seq: u64,
    pub object_id: String,
    pub holder_id: String,
    pub fence: u64,
    pub acquired_at: String,
    pub expires_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// `GET /v1/whoami`
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct WhoBody {
    /// The caller's name, as grants have it.
    pub principal: String,
    /// The identity source that found it out; `loopback`: the caller needs no proof.
    pub source: String,
    pub groups: Vec<String>,
    /// What it may do to some object at least.
    pub operations: Vec<String>,
    /// The holders' names that it may use, each also with `holder_separator` and a part of its own choice behind it;
    /// none where every name will do.
    pub holders: Vec<String>,
    pub holder_separator: String,
}

/// The routes of a gate.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct RouteList {
    /// The most specific first.
    pub routes: Vec<RouteBody>,
}

/// One route.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct RouteBody {
    pub name: String,
    /// The template of the paths that it takes.
    #[serde(rename = "match")]
    pub path: String,
    /// The template of the objects that these paths name.
    pub object: String,
    #[schema(value_type = String)]
    pub mode: Mode,
    #[schema(value_type = String)]
    pub lease_source: LeaseSource,
}

impl GrantBody {
    /// The same with a warning, if there is one.
    #[must_use]
    pub fn warned(self, warning: Option<String>) -> Self {
        Self { warning, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_utc_with_milliseconds() {
        assert_eq!(time(WallMs(1_754_842_735_000)), "2025-08-10T16:18:55.000Z");
        assert_eq!(time(WallMs(1_754_842_735_007)), "2025-08-10T16:18:55.007Z");
        assert_eq!(time(WallMs(0)), "1970-01-01T00:00:00.000Z");
        assert!(time(WallMs(u64::MAX)).starts_with("9999-"));
    }
}
