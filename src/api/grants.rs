//! Signed grants: an issuer gives an object to a holder.

use axum::{Json, extract::State, http::StatusCode};

use super::{
    caller::Caller,
    extract::Body,
    fences::{retry_parked, unreadable, untrusted},
};
use crate::{
    authority::json::{GrantMessage, Message},
    gate::Shared,
    problem::Problem,
    wire::GrantBody,
};

/// Apply a signed grant. The same grant gets the same token again until its first write.
///
/// # Errors
/// `InvalidFenceSignature`, `UnauthorizedFence`, then `LEASE_HELD`, `PREDECESSOR_MISMATCH`,
/// `FENCE_PROOF_MISMATCH`, `LEASE_FENCED`, `FENCE_JUMP`.
#[utoipa::path(post, operation_id = "applyGrant", path = "/v1/grants", tag = "authority", request_body = GrantMessage, responses(
    (status = 201, body = GrantBody), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub async fn apply(
    State(gate): State<Shared>,
    caller: Caller,
    Body(message): Body<GrantMessage>,
) -> Result<(StatusCode, Json<GrantBody>), Problem> {
    let signed = message.signed().map_err(|fault| unreadable(&fault))?;
    caller.may(&signed.statement.domain)?;
    let grant = gate.authority.load().grant(&signed).map_err(untrusted)?;
    let given = &signed.statement;
    caller.facts().held(std::slice::from_ref(&given.domain), &given.holder);
    caller.facts().lease_seq(given.lease_seq.get());
    caller.facts().detail("issuer", given.issuer.as_str());
    let span = given.expiry.0 - given.start.0;
    if span > gate.limits.ttl_ms_max {
        let what = format!("is {span} ms after start_ms; lease.ttl_ms_max is {}", gate.limits.ttl_ms_max);
        return Err(Problem::invalid("expiry_ms", what));
    }
    if given.start.0 > gate.now().wall.0.saturating_add(START_AHEAD_MAX_MS) {
        return Err(Problem::invalid("start_ms", "must be at most a day ahead"));
    }
    tracing::info!(object = %given.domain, issuer = %given.issuer, holder = %given.holder, lease_id = %given.lease_id, lease_seq = given.lease_seq.get(), "audit: an issuer grants");
    let granted = gate.ledger.grant(given.domain.clone(), grant, None).await;
    let granted = granted.map_err(|refused| Problem::refused(&refused, gate.now()))?;
    retry_parked(&gate, &signed.statement.domain).await;
    Ok((StatusCode::CREATED, Json(GrantBody::new(&granted, gate.now()))))
}

const START_AHEAD_MAX_MS: u64 = 86_400_000;
