//! Judges a token as a write with it would be judged, without a write.

use axum::{Json, extract::State};

use super::{
    caller::Caller,
    extract::{self, Body},
    objects::no_claim,
};
use crate::{
    fence::verdict::Presented,
    gate::Shared,
    problem::Problem,
    sources::{self, Check},
    wire::{CheckBody, CheckRequest},
};

/// Judge a token as a write with it would be judged.
///
/// # Errors
/// `FENCE_TOKEN_MALFORMED`, `REQUEST_INVALID`. Every other verdict is an answer, not an error.
#[utoipa::path(post, operation_id = "checkToken", path = "/v1/tokens/check", tag = "tokens", request_body = CheckRequest, responses(
    (status = 200, body = CheckBody), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub async fn check(
    State(gate): State<Shared>,
    caller: Caller,
    Body(request): Body<CheckRequest>,
) -> Result<Json<CheckBody>, Problem> {
    let named = request.object_id.map(|object| caller.object("object_id", &object)).transpose()?;
    let outside = named.as_ref().and_then(|object| {
        let routes = gate.routes.load();
        let claim = routes.outside_of(object)?.claim(&request.fence_token);
        Some(claim.map_err(|why| no_claim(why, object)).map(|claim| (object.clone(), claim)))
    });
    let (object, checked) = match outside.transpose()? {
        Some((object, claim)) => {
            let checked = sources::check(&gate, &object, claim).await?;
            (object, checked)
        }
        None => {
            let token = extract::token(&request.fence_token)?;
            caller.may(&token.object)?;
            let object = named.unwrap_or_else(|| token.object.clone());
            let checked = sources::judge(&gate, &object, Presented::of(&token, &object)).await?;
            (object, Check { seq: Some(token.seq.get()), ..checked })
        }
    };
    let Check { code, seq, expires_in_ms } = checked;
    let code = code.map(|code| code.as_str().to_owned());
    Ok(Json(CheckBody { valid: code.is_none(), code, object_id: object.to_string(), lease_seq: seq, expires_in_ms }))
}
