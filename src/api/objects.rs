//! Objects: their fence, and how an operator moves it.

use std::sync::Arc;

use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::extract::{self, Body, InPath};
use crate::{
    fence::{
        Code, Fence, ObjectId, Record, State as ObjectState,
        elected::Claimant,
        election::{Election, LeaseName},
        external::{ExternalLimits, Number},
    },
    gate::{Gate, Shared},
    problem::Problem,
    table::ledger::{LedgerError, Moved},
    wire::{
        MovedBody, ObjectBody, RevokeRequest,
        schema::{self, REASON_MAX},
    },
    write_path::elect,
};

/// `POST /v1/objects/{object_id}/advance` and `/confirm`
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AdvanceRequest {
    /// The outside lock service's token, or `k8s.<uid>.<leaseTransitions>` where a Kubernetes Lease governs the object;
    /// for `confirm`, the lowest that may still write.
    pub token: Decimal,
}

/// A number, or its decimal digits: JSON readers may not keep large numbers exact.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Decimal {
    #[schema(value_type = schema::LeaseSeq)]
    Number(u64),
    #[schema(value_type = schema::TokenText)]
    Text(String),
}

impl Decimal {
    /// Its digits.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

/// An object's fence and lease. An object that was never leased has the table's floor.
///
/// # Errors
/// `REQUEST_INVALID`, `TABLE_UNAVAILABLE`.
#[utoipa::path(get, operation_id = "getObject", path = "/v1/objects/{object_id}", tag = "objects", params(("object_id" = schema::ObjectId, Path)), responses(
    (status = 200, body = ObjectBody), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub async fn get(State(gate): State<Shared>, InPath(object): InPath) -> Result<Json<ObjectBody>, Problem> {
    let object = extract::object("object_id", &object)?;
    let record = gate.settled_record(&object).await?;
    Ok(Json(body(&gate, &record)))
}

/// Move an object's fence past its holder. The object then has no holder.
///
/// # Errors
/// `REQUEST_INVALID`, `SEQ_EXHAUSTED` and any error that says the gate is unavailable.
#[utoipa::path(post, operation_id = "revokeObject", path = "/v1/objects/{object_id}/revoke", tag = "objects", request_body = RevokeRequest,
    params(("object_id" = schema::ObjectId, Path)), responses(
    (status = 200, body = MovedBody), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub async fn revoke(
    State(gate): State<Shared>,
    InPath(object): InPath,
    Body(request): Body<RevokeRequest>,
) -> Result<Json<MovedBody>, Problem> {
    let object = extract::object("object_id", &object)?;
    let reason = request.reason;
    if reason.is_empty() || reason.len() > REASON_MAX || reason.chars().any(char::is_control) {
        return Err(Problem::invalid("reason", format!("must be 1 to {REASON_MAX} bytes without control characters")));
    }
    let force = request.force.unwrap_or(false);
    tracing::info!(%object, reason, force, "audit: an operator revokes");
    let is_external = gate.routes.load().follows(&object).is_some();
    let revoked = gate.ledger.revoke(object, reason, force, is_external).await;
    Ok(moved_body(&gate, revoked.map_err(|refused| Problem::refused(&refused, gate.now()))?))
}

/// Move an object's fence to a token of the outside lock service, or of the Kubernetes Lease, that its route names, and wait until no write of a
/// lower one can land any more: for a new holder, before its first read.
///
/// # Errors
/// `WRITE_STALE_FENCE`, `WRITE_FENCE_AHEAD`, `OBJECT_LOCKED`, `FENCE_DRAINING` (it goes on), `LEASE_EXPIRED`.
#[utoipa::path(post, operation_id = "advanceObject", path = "/v1/objects/{object_id}/advance", tag = "objects", request_body = AdvanceRequest,
    params(("object_id" = schema::ObjectId, Path)), responses(
    (status = 200, body = MovedBody), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub async fn advance(
    State(gate): State<Shared>,
    InPath(object): InPath,
    Body(request): Body<AdvanceRequest>,
) -> Result<Json<MovedBody>, Problem> {
    let object = extract::object("object_id", &object)?;
    // Read this before the routes: a reload publishes its routes before its generation counts.
    let generation = gate.lease_observer.generation();
    let governed = gate.routes.load().lease_of(&object);
    if let Some(lease) = governed {
        let claimant = claimant(&request.token.text(), lease, &object)?;
        return Ok(moved_body(&gate, elect::advance(&gate, &object, claimant, generation).await?));
    }
    let number = number(&request, follows(&gate, &object)?)?;
    let stale = |fence: Fence| {
        let what = format!("the fence has moved to {fence}, so this token is over for ever; take the lock again");
        let mut problem = Problem::new(Code::WriteStaleFence, what).with_object(&object);
        problem.tell_numbers(Some(number.seq), Some(fence));
        problem
    };
    let moved = gate.ledger.follow(object.clone(), number).await;
    let moved = moved.map_err(|refused| match Problem::refused(&refused, gate.now()) {
        problem if problem.code() == Code::LeaseFenced => stale(problem.fence()),
        problem => problem,
    })?;
    match &moved.record.state {
        _ if moved.record.fence > number.seq.into() => Err(stale(moved.record.fence)),
        ObjectState::Draining { .. } => Err(Problem::refused(&LedgerError::Draining { object }, gate.now())),
        ObjectState::Open { .. } | ObjectState::Free { .. } => Ok(moved_body(&gate, moved)),
    }
}

/// Open an object that is locked, since part of the table's past was lost, to tokens from this one on.
///
/// # Errors
/// `EXTERNAL_LEASE` where its leases do not come from outside, `LEASE_FENCED` where the token is known to be stale.
#[utoipa::path(post, operation_id = "confirmObject", path = "/v1/objects/{object_id}/confirm", tag = "objects", request_body = AdvanceRequest,
    params(("object_id" = schema::ObjectId, Path)), responses(
    (status = 200, body = MovedBody), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub async fn confirm(
    State(gate): State<Shared>,
    InPath(object): InPath,
    Body(request): Body<AdvanceRequest>,
) -> Result<Json<MovedBody>, Problem> {
    let object = extract::object("object_id", &object)?;
    let governed = gate.routes.load().lease_of(&object);
    let moved = if let Some(lease) = governed {
        let Claimant { election, lease, .. } = claimant(&request.token.text(), lease, &object)?;
        tracing::info!(%object, lowest = %election, "audit: an operator confirms the earliest term that may write");
        gate.ledger.confirm_term(object, lease, election).await
    } else {
        let Number { seq, .. } = number(&request, follows(&gate, &object)?)?;
        tracing::info!(%object, lowest = seq.get(), "audit: an operator confirms the lowest token that may write");
        gate.ledger.confirm(object, seq).await
    };
    Ok(moved_body(&gate, moved.map_err(|refused| Problem::refused(&refused, gate.now()))?))
}

/// The limits for this object's tokens, which come from outside.
fn follows(gate: &Gate, object: &ObjectId) -> Result<ExternalLimits, Problem> {
    let no_route = || {
        let what = "no route with lease_source = \"external\" leads to this object";
        Problem::new(Code::ExternalLease, what).with_object(object)
    };
    gate.routes.load().follows(object).ok_or_else(no_route)
}

/// The claim of this token, if a Lease governs the object.
pub(super) fn claimant(token: &str, lease: Option<LeaseName>, object: &ObjectId) -> Result<Claimant, Problem> {
    let election = Election::parse(token);
    let election = election.map_err(|fault| Problem::new(Code::FenceTokenMalformed, fault.to_string()))?;
    let lease = lease.ok_or_else(|| {
        let what = "this object's name does not say which Lease governs it, or that one is not looked at";
        Problem::new(Code::ObjectUnmapped, what).with_object(object)
    })?;
    Ok(Claimant { election, lease: Arc::new(lease), term: None, holder: None })
}

fn number(request: &AdvanceRequest, limits: ExternalLimits) -> Result<Number, Problem> {
    let number = Number::parse(&request.token.text(), limits);
    number.map_err(|fault| Problem::new(Code::FenceTokenMalformed, fault.to_string()))
}

fn moved_body(gate: &Gate, Moved { record, drain, .. }: Moved) -> Json<MovedBody> {
    Json(MovedBody { object: body(gate, &record), drain: drain.into() })
}

/// An object, and whether it is locked: an object with outside numbers may be locked without a row.
fn body(gate: &Gate, record: &Record) -> ObjectBody {
    let routes = gate.routes.load();
    let locked = (routes.follows(&record.object).is_some() && record.is_locked())
        || (routes.lease_of(&record.object).is_some() && record.is_term_locked());
    ObjectBody { locked, ..ObjectBody::new(record, gate.now()) }
}
