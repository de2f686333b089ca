//! Objects: their fence, and how an operator moves it.

use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    caller::Caller,
    extract::{Body, InPath},
};
use crate::{
    fence::{Code, ObjectId, Record, outside::Claim},
    gate::{Gate, Shared},
    problem::Problem,
    route::source::NoClaim,
    sources::{self, NotMoved},
    table::ledger::Moved,
    wire::{
        MovedBody, ObjectBody, RevokeRequest,
        schema::{self, REASON_MAX},
    },
    write_path::reply::Rejection,
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
pub async fn get(
    State(gate): State<Shared>,
    caller: Caller,
    InPath(object): InPath,
) -> Result<Json<ObjectBody>, Problem> {
    let object = caller.object("object_id", &object)?;
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
    caller: Caller,
    InPath(object): InPath,
    Body(request): Body<RevokeRequest>,
) -> Result<Json<MovedBody>, Problem> {
    let object = caller.object("object_id", &object)?;
    let reason = request.reason;
    if reason.is_empty() || reason.len() > REASON_MAX || reason.chars().any(char::is_control) {
        return Err(Problem::invalid("reason", format!("must be 1 to {REASON_MAX} bytes without control characters")));
    }
    let force = request.force.unwrap_or(false);
    caller.facts().detail("reason", reason.as_str());
    caller.facts().detail("force", force);
    tracing::info!(%object, reason, force, "audit: an operator revokes");
    let source = gate.routes.load().numbered_by(&object);
    let revoked = gate.ledger.revoke(object, reason, force, source).await;
    Ok(moved_body(&gate, &caller, revoked.map_err(|refused| Problem::refused(&refused, gate.now()))?))
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
    caller: Caller,
    InPath(object): InPath,
    Body(request): Body<AdvanceRequest>,
) -> Result<Json<MovedBody>, Problem> {
    let object = caller.object("object_id", &object)?;
    // Read this before the routes: a reload publishes its routes before its generation counts.
    let generation = gate.lease_observer.generation();
    let claim = claim(&gate, &object, &request.token.text())?;
    let moved = sources::advance(&gate, &object, claim, generation).await.map_err(|why| match why {
        NotMoved::Refused(refusal) => *Rejection::from(refusal).of(&object).problem,
        NotMoved::Problem(problem) => *problem,
    });
    Ok(moved_body(&gate, &caller, moved?))
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
    caller: Caller,
    InPath(object): InPath,
    Body(request): Body<AdvanceRequest>,
) -> Result<Json<MovedBody>, Problem> {
    let object = caller.object("object_id", &object)?;
    let lowest = claim(&gate, &object, &request.token.text())?;
    let moved = sources::confirm(&gate, object, lowest).await;
    Ok(moved_body(&gate, &caller, moved.map_err(|refused| Problem::refused(&refused, gate.now()))?))
}

/// The claim of this token, if the object's leases come from outside the gate.
fn claim(gate: &Gate, object: &ObjectId, token: &str) -> Result<Claim, Problem> {
    let routes = gate.routes.load();
    let outside = routes.outside_of(object).ok_or_else(|| {
        let what = "no route with lease_source = \"external\" leads to this object";
        Problem::new(Code::ExternalLease, what).with_object(object)
    })?;
    outside.claim(token).map_err(|fault| no_claim(fault, object))
}

/// The problem of a token that cannot be a claim on an object.
pub(super) fn no_claim(why: NoClaim, object: &ObjectId) -> Problem {
    match why {
        NoClaim::Malformed(fault) => Problem::new(Code::FenceTokenMalformed, fault.to_string()),
        NoClaim::Unmapped => {
            let what = "this object's name does not say which Lease governs it, or that one is not looked at";
            Problem::new(Code::ObjectUnmapped, what).with_object(object)
        }
    }
}

fn moved_body(gate: &Gate, caller: &Caller, Moved { record, drain, .. }: Moved) -> Json<MovedBody> {
    caller.facts().detail("fence", record.fence.get());
    Json(MovedBody { object: body(gate, &record), drain: drain.into() })
}

/// An object, and whether it is locked: an object with outside numbers may be locked without a row.
fn body(gate: &Gate, record: &Record) -> ObjectBody {
    let locked = gate.routes.load().is_locked(record);
    ObjectBody { locked, ..ObjectBody::new(record, gate.now()) }
}
