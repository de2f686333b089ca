//! Refusals on the wire: RFC 9457 problem+json, the code in the header `Fence-Error`, and `Retry-After` where another
//! try makes sense.

mod json;

use std::borrow::Cow;

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use utoipa::ToSchema;

use self::json::field;
use crate::{
    fence::{
        Certified, Code, Ended, Fence, HolderId, How, IssuerId, LeaseId, LeaseSeq, MigrationId, Now, ObjectId,
        code::Plane, step::LeaseRefusal, verdict::Successor,
    },
    table::ledger::LedgerError,
    wire::time,
};

/// How callers are asked who they are, in WWW-Authenticate.
pub const ASKS_FOR_BEARER: &str = "Bearer realm=\"fencegate\"";

/// A refusal's body.
#[derive(Clone, Debug, ToSchema)]
pub struct Problem {
    /// `about:blank`: the code has the whole meaning.
    #[schema(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    /// What happened, and what to do.
    detail: Cow<'static, str>,
    code: &'static str,
    retryable: bool,
    /// `none`: nothing was changed; `maybe`: that is unknown; `done`: it was changed.
    side_effect: &'static str,
    #[schema(value_type = Option<String>)]
    object_id: Option<ObjectId>,
    lease_seq: Option<u64>,
    /// The object's fence.
    fence: Option<u64>,
    /// The field that is wrong.
    field: Option<String>,
    /// Who holds the lease.
    #[schema(value_type = Option<String>)]
    holder_id: Option<HolderId>,
    #[schema(value_type = Option<String>)]
    lease_id: Option<LeaseId>,
    /// How long to wait before trying again.
    retry_after_ms: Option<u64>,
    expired_at: Option<String>,
    released_at: Option<String>,
    /// Who has the lease now, after a stale write.
    #[schema(value_type = Option<String>)]
    successor_holder: Option<HolderId>,
    #[schema(value_type = Option<String>)]
    successor_lease_id: Option<LeaseId>,
    /// Whose certificate fenced the lease, after a stale write.
    #[schema(value_type = Option<String>)]
    fenced_by: Option<IssuerId>,
    /// That certificate's hybrid logical time.
    fence_time: Option<String>,
    /// The migration that this concerns.
    migration_id: Option<String>,
    /// The id of this refusal in `GET /v1/receipts`.
    receipt_id: Option<String>,
    /// Who holds the object, in an agent's refusal.
    #[schema(value_type = Option<String>)]
    leader: Option<HolderId>,
    #[schema(ignore)]
    which: Code,
}

/// Most bodies are shorter.
const BODY_BYTES: usize = 640;

/// The default wait before another try: one second.
const RETRY_MS: u64 = 1_000;

impl Problem {
    #[must_use]
    pub fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        Self::on(Plane::Api, code, detail)
    }

    /// A refusal on either plane.
    #[must_use]
    pub fn on(plane: Plane, code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        let status = code.status(plane);
        let title = StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or("Refused");
        Self {
            kind: "about:blank",
            title,
            status,
            detail: detail.into(),
            code: code.as_str(),
            retryable: code.is_retryable(),
            side_effect: code.side_effect(),
            object_id: None,
            lease_seq: None,
            fence: None,
            field: None,
            holder_id: None,
            lease_id: None,
            retry_after_ms: code.is_retryable().then_some(RETRY_MS),
            expired_at: None,
            released_at: None,
            successor_holder: None,
            successor_lease_id: None,
            fenced_by: None,
            fence_time: None,
            migration_id: None,
            receipt_id: None,
            leader: None,
            which: code,
        }
    }

    /// A request with a missing or wrong field.
    #[must_use]
    pub fn invalid(field: impl Into<String>, what: impl std::fmt::Display) -> Self {
        let field = field.into();
        let mut problem = Self::new(Code::RequestInvalid, format!("{field}: {what}"));
        problem.field = Some(field);
        problem
    }

    #[must_use]
    pub fn table_unavailable() -> Self {
        Self::new(
            Code::TableUnavailable,
            "the fence table cannot be used now, so nothing was changed; the gate's log says why. Reads of the store go on",
        )
    }

    #[must_use]
    pub fn with_object(mut self, object: &ObjectId) -> Self {
        self.tell_object(object);
        self
    }

    /// When to try again.
    #[must_use]
    pub fn retry_after_ms(mut self, ms: u64) -> Self {
        self.retry_after_ms = Some(ms);
        self
    }

    /// Another try will not help.
    #[must_use]
    pub fn for_good(mut self) -> Self {
        (self.retryable, self.retry_after_ms) = (false, None);
        self
    }

    /// Adds the object that the refusal concerns.
    pub fn tell_object(&mut self, object: &ObjectId) {
        self.object_id = Some(object.clone());
    }

    /// Adds the wrong field.
    pub fn tell_field(&mut self, field: &str) {
        self.field = Some(field.to_owned());
    }

    /// Adds the numbers by which a write was judged.
    pub fn tell_numbers(&mut self, seq: Option<LeaseSeq>, fence: Option<Fence>) {
        self.lease_seq = seq.map(LeaseSeq::get);
        self.fence = fence.map(Fence::get);
    }

    /// Adds who has the lease now.
    pub fn tell_successor(&mut self, successor: Option<Successor>) {
        if let Some(Successor { holder, lease_id }) = successor {
            self.successor_holder = Some(holder);
            self.successor_lease_id = Some(lease_id);
        }
    }

    /// Adds whose certificate fenced the lease.
    pub fn tell_certificate(&mut self, certified: Option<&Certified>) {
        if let Some(Certified { issuer, time, .. }) = certified {
            self.fenced_by = Some(issuer.clone());
            self.fence_time = Some(time.to_string());
        }
    }

    /// Adds the migration that the refusal concerns.
    #[must_use]
    pub fn with_migration(mut self, id: &MigrationId) -> Self {
        self.migration_id = Some(id.to_string());
        self
    }

    /// Adds how long to wait before another try.
    pub fn tell_retry(&mut self, ms: u64) {
        self.retry_after_ms = Some(ms);
    }

    /// Records that it is unknown whether anything was changed.
    pub fn tell_unsure(&mut self) {
        self.side_effect = "maybe";
    }

    /// Adds the id of the refusal's receipt.
    pub fn tell_receipt(&mut self, receipt_id: String) {
        self.receipt_id = Some(receipt_id);
    }

    /// Adds who holds the object.
    pub fn tell_leader(&mut self, leader: HolderId) {
        self.leader = Some(leader);
    }

    /// Adds the lease's end.
    pub fn tell_end(&mut self, ended: &Ended) {
        match ended.how {
            How::Released => self.released_at = Some(time(ended.at)),
            How::Expired | How::Fenced { .. } => self.expired_at = Some(time(ended.at)),
        }
    }

    /// What happened, and what to do.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The fence in this refusal, or none.
    #[must_use]
    pub fn fence(&self) -> Fence {
        Fence::new(self.fence.unwrap_or(0))
    }

    /// The code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.which
    }

    /// The body's bytes.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        let mut body = json::Object::with_capacity(BODY_BYTES);
        body.plain(field!("type"), self.kind);
        body.plain(field!("title"), self.title);
        body.number(field!("status"), self.status.into());
        body.text(field!("detail"), &self.detail);
        body.plain(field!("code"), self.code);
        body.flag(field!("retryable"), self.retryable);
        body.plain(field!("side_effect"), self.side_effect);
        self.object_id.iter().for_each(|object| body.text(field!("object_id"), object.as_str()));
        self.lease_seq.iter().for_each(|seq| body.number(field!("lease_seq"), *seq));
        self.fence.iter().for_each(|fence| body.number(field!("fence"), *fence));
        self.field.iter().for_each(|field| body.text(field!("field"), field));
        self.holder_id.iter().for_each(|holder| body.text(field!("holder_id"), holder.as_str()));
        self.lease_id.iter().for_each(|lease| body.text(field!("lease_id"), lease.as_str()));
        self.retry_after_ms.iter().for_each(|ms| body.number(field!("retry_after_ms"), *ms));
        self.expired_at.iter().for_each(|at| body.text(field!("expired_at"), at));
        self.released_at.iter().for_each(|at| body.text(field!("released_at"), at));
        self.successor_holder.iter().for_each(|holder| body.text(field!("successor_holder"), holder.as_str()));
        self.successor_lease_id.iter().for_each(|lease| body.text(field!("successor_lease_id"), lease.as_str()));
        self.fenced_by.iter().for_each(|issuer| body.text(field!("fenced_by"), issuer.as_str()));
        self.fence_time.iter().for_each(|time| body.text(field!("fence_time"), time));
        self.migration_id.iter().for_each(|id| body.text(field!("migration_id"), id));
        self.receipt_id.iter().for_each(|receipt| body.text(field!("receipt_id"), receipt));
        self.leader.iter().for_each(|leader| body.text(field!("leader"), leader.as_str()));
        body.done()
    }

    /// How long to wait before another try, in whole seconds, rounded up so that a try is not too early.
    #[must_use]
    pub fn retry_after(&self) -> Option<u64> {
        self.retry_after_ms.map(|ms| ms.div_ceil(1_000))
    }

    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The refusal of a call that the ledger did not carry out.
    #[must_use]
    pub fn refused(refused: &LedgerError, now: Now) -> Self {
        match refused {
            LedgerError::Lease { object, why } => Self::lease(why, now).with_object(object),
            LedgerError::NotFound => {
                Self::new(Code::LeaseNotFound, "no such lease: it never was, or it ended more than a day ago")
            }
            LedgerError::RequestIdUsed => Self::new(
                Code::RequestIdUsed,
                "this request_id was granted a lease that has been used, has ended, or was for other objects; use a new request_id",
            ),
            LedgerError::Unavailable => Self::table_unavailable(),
            LedgerError::Unsure => {
                let mut problem = Self::new(
                    Code::TableUnavailable,
                    "the fence table failed while it made this change durable, so the change may be there or not; the table is shut until the gate is restarted",
                );
                problem.tell_unsure();
                problem
            }
            LedgerError::Stalled => {
                let mut problem = Self::new(
                    Code::TableUnavailable,
                    "the disk of the fence table does not answer, so this may be done later, or not; ask again, with the same request_id if there was one",
                );
                problem.tell_unsure();
                problem
            }
            LedgerError::Overloaded => Self::new(Code::GateOverloaded, "too many lease calls are waiting; come back later"),
            LedgerError::Draining { object } => Self::new(
                Code::FenceDraining,
                "the fence has moved, but writes of older leases are still on their way to the store; the drain goes on. Ask again, with the same request_id if there was one",
            )
            .with_object(object),
            LedgerError::Migrating { object, id } => Self::new(
                Code::MigrationInProgress,
                format!("migration {id} of this object is under way; GET /v1/migrations/{id} shows how far it is"),
            )
            .with_object(object)
            .with_migration(id),
            LedgerError::MigrationMoved => Self::new(
                Code::MigrationOver,
                "the migration has gone on or ended meanwhile; GET it to see where it is",
            ),
            LedgerError::Stopping => Self::new(
                Code::GateStopping,
                "this gate is stopping; ask another one, or this one again once it is back",
            ),
        }
    }

    /// The answer to a refused lease call. The function is long because it is a table, one line per kind of refusal, in
    /// which the compiler finds a kind that is missing.
    fn lease(why: &LeaseRefusal, now: Now) -> Self {
        match why {
            LeaseRefusal::Held { lease: Some((lease_id, holder, seq)), retry_ms, takeover_after_ms } => {
                let detail = match takeover_after_ms {
                    Some(after) => format!(
                        "the lease of {holder} is too new: a takeover is granted once it is {after} ms old (lease.takeover_after_ms); ask again in {retry_ms} ms, or set wait_ms to wait for that"
                    ),
                    None => format!(
                        "held by {holder} for another {retry_ms} ms unless it is renewed; set wait_ms to queue for it"
                    ),
                };
                let mut problem = Self::new(Code::LeaseHeld, detail);
                problem.holder_id = Some(holder.clone());
                problem.lease_id = Some(lease_id.clone());
                problem.lease_seq = Some(seq.get());
                problem.fence = Some(seq.get());
                problem.retry_after_ms = Some(*retry_ms);
                problem
            }
            LeaseRefusal::Held { lease: None, retry_ms, .. } => {
                let mut problem = Self::new(
                    Code::LeaseHeld,
                    "writes of an older lease are still being drained; set wait_ms to queue for it",
                );
                problem.retry_after_ms = Some(*retry_ms);
                problem
            }
            LeaseRefusal::NotHolder => Self::new(Code::LeaseNotHolder, "this lease is held by another holder_id"),
            LeaseRefusal::TokenMismatch => Self::new(
                Code::LeaseTokenMismatch,
                "the fence token is not this lease's: its object, lease_seq or secret differs",
            ),
            LeaseRefusal::Fenced { fence } => {
                let mut problem = Self::new(
                    Code::LeaseFenced,
                    format!("the fence has moved past this lease to {fence}; acquire again"),
                );
                problem.fence = Some(fence.get());
                problem
            }
            LeaseRefusal::Expired { ended } => Self::ended(ended),
            LeaseRefusal::Jump { fence, to } => {
                let detail = format!(
                    "this would move the fence from {fence} to {to}, further than authority.max_jump; a certificate is parked until an operator confirms it with POST /v1/fences/confirm"
                );
                let mut problem = Self::new(Code::FenceJump, detail);
                problem.fence = Some(fence.get());
                problem
            }
            LeaseRefusal::Predecessor { expected } => {
                let expected = expected.as_ref().map_or("no lease", LeaseId::as_str);
                Self::new(
                    Code::PredecessorMismatch,
                    format!("the grant must name its predecessor, which is {expected}"),
                )
            }
            LeaseRefusal::FenceProof => Self::new(
                Code::FenceProofMismatch,
                "fence_proof must be the signature of the certificate that fenced the predecessor, and absent where it was not fenced by one; post the certificate first",
            ),
            LeaseRefusal::GrantUsed => Self::new(
                Code::GrantUsed,
                "this lease_id was granted before: its token has been used, or it is another holder's or object's; use a new lease_id",
            ),
            LeaseRefusal::Ahead { fence, to } => {
                let detail = format!(
                    "this would move the fence from {fence} to {to}, further than the route's max_jump at once or within a minute; is it this object's token?"
                );
                let mut problem = Self::new(Code::WriteFenceAhead, detail);
                problem.fence = Some(fence.get());
                problem
            }
            LeaseRefusal::Locked { fence } => {
                let mut problem = Self::new(
                    Code::ObjectLocked,
                    "part of the fence table's past was lost, so the gate does not know which tokens are stale: confirm the lowest token that may write, with POST /v1/objects/{object_id}/confirm",
                );
                problem.fence = Some(fence.get());
                problem
            }
            LeaseRefusal::SeqExhausted => Self::new(
                Code::SeqExhausted,
                "this object has used up its lease numbers (2^53-1); use another object_id",
            ),
            LeaseRefusal::ClockUntrusted => Self::new(
                Code::ClockUntrusted,
                format!(
                    "the gate's wall clock reads {}, so it has not been set; no lease is granted by it",
                    time(now.wall)
                ),
            ),
        }
    }

    fn ended(ended: &Ended) -> Self {
        let mut problem = Self::new(Code::LeaseExpired, "this lease is over; acquire again");
        problem.tell_end(ended);
        problem
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let kind = [(header::CONTENT_TYPE, "application/problem+json")];
        let mut response = (self.status(), kind, self.body()).into_response();
        let headers = response.headers_mut();
        headers.insert("fence-error", HeaderValue::from_static(self.code));
        if let Some(seconds) = self.retry_after() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(leader) = self.leader.and_then(|leader| HeaderValue::from_str(leader.as_str()).ok()) {
            headers.insert("fence-leader", leader);
        }
        response.extensions_mut().insert(self.which);
        response
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use utoipa::{PartialSchema, openapi};

    use super::*;
    use crate::fence::WallMs;

    #[test]
    fn what_is_written_is_what_is_described() {
        let mut problem = Problem::invalid("ttl_ms", "is \"wrong\"").with_object(&ObjectId::new("users").unwrap());
        problem.tell_numbers(LeaseSeq::new(1), Some(Fence::new(2)));
        let (holder, lease_id) = (HolderId::new("b").unwrap(), LeaseId::new("l-2").unwrap());
        problem.tell_successor(Some(Successor { holder: holder.clone(), lease_id: lease_id.clone() }));
        problem.tell_receipt("1-1".to_owned());
        problem.tell_leader(holder.clone());
        (problem.fenced_by, problem.fence_time) = (Some(IssuerId::new("i").unwrap()), Some("1:0".to_owned()));
        problem.migration_id = Some("m".to_owned());
        problem.tell_end(&Ended { how: How::Expired, at: WallMs(0), stamp: crate::fence::Hlc::default() });
        problem.tell_end(&Ended { how: How::Released, at: WallMs(0), stamp: crate::fence::Hlc::default() });
        (problem.holder_id, problem.lease_id, problem.retry_after_ms) = (Some(holder), Some(lease_id), Some(1));
        let written: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&problem.body()).unwrap();
        let openapi::RefOr::T(openapi::Schema::Object(described)) = Problem::schema() else { panic!("no object") };
        let names: BTreeSet<_> = described.properties.keys().cloned().collect();
        assert_eq!(written.keys().cloned().collect::<BTreeSet<_>>(), names);
        let optional: BTreeSet<_> = names.difference(&described.required.iter().cloned().collect()).cloned().collect();
        let least: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(&Problem::new(Code::NotFound, "no").body()).unwrap();
        let always: BTreeSet<_> = least.keys().cloned().collect();
        assert_eq!(names.difference(&always).cloned().collect::<BTreeSet<_>>(), optional);
    }
}
