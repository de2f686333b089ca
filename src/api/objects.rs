//! Objects: their fence, and an operator's way to move it.

use axum::{Json, extract::State};

use super::{
    Shared,
    extract::{self, Body, InPath},
    wire::{ObjectBody, RevokeBody, RevokeRequest},
};
use crate::problem::Problem;
use crate::table::ledger::Moved;

const REASON_MAX: usize = 1_024;

/// An object's fence and lease. An object that was never leased has the table's floor.
///
/// # Errors
/// `REQUEST_INVALID`, `TABLE_UNAVAILABLE`.
#[utoipa::path(get, operation_id = "getObject", path = "/v1/objects/{object_id}", tag = "objects", params(("object_id" = String, Path)), responses(
    (status = 200, body = ObjectBody), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub async fn get(State(gate): State<Shared>, InPath(object): InPath) -> Result<Json<ObjectBody>, Problem> {
    let object = extract::object("object_id", &object)?;
    let record = gate.settled_record(&object).await?;
    Ok(Json(ObjectBody::new(&record, gate.now())))
}

/// Move an object's fence past whoever holds it. Nobody holds it then.
///
/// # Errors
/// `REQUEST_INVALID`, `SEQ_EXHAUSTED` and what a gate can be in the way of.
#[utoipa::path(post, operation_id = "revokeObject", path = "/v1/objects/{object_id}/revoke", tag = "objects", request_body = RevokeRequest,
    params(("object_id" = String, Path)), responses(
    (status = 200, body = RevokeBody), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub async fn revoke(
    State(gate): State<Shared>,
    InPath(object): InPath,
    Body(request): Body<RevokeRequest>,
) -> Result<Json<RevokeBody>, Problem> {
    let object = extract::object("object_id", &object)?;
    let reason = request.reason;
    if reason.is_empty() || reason.len() > REASON_MAX || reason.chars().any(char::is_control) {
        return Err(Problem::invalid("reason", format!("must be 1 to {REASON_MAX} bytes without control characters")));
    }
    let force = request.force.unwrap_or(false);
    tracing::info!(%object, reason, force, "audit: an operator revokes");
    let revoked = gate.ledger.revoke(object, reason, force).await;
    let Moved { record, drain, .. } = revoked.map_err(|refused| Problem::refused(&refused, gate.now()))?;
    Ok(Json(RevokeBody { object: ObjectBody::new(&record, gate.now()), drain: drain.into() }))
}
