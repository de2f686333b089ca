//! Judges a token as a write with it would be judged, without a write.

use axum::{Json, extract::State};

use super::{
    extract::{self, Body},
    objects::claimant,
};
use crate::{
    fence::{Code, Denial, ObjectId, elected::Claimant, external::Number, verdict::Presented},
    gate::Shared,
    problem::Problem,
    wire::{CheckBody, CheckRequest},
};

/// Judge a token as a write with it would be judged.
///
/// # Errors
/// `FENCE_TOKEN_MALFORMED`, `REQUEST_INVALID`. Every other verdict is an answer, not an error.
#[utoipa::path(post, operation_id = "checkToken", path = "/v1/tokens/check", tag = "tokens", request_body = CheckRequest, responses(
    (status = 200, body = CheckBody), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub async fn check(State(gate): State<Shared>, Body(request): Body<CheckRequest>) -> Result<Json<CheckBody>, Problem> {
    let named = request.object_id.map(|object| extract::object("object_id", &object)).transpose()?;
    if let Some(object) = &named
        && let Some(lease) = gate.routes.load().lease_of(object)
    {
        let claimant = claimant(&request.fence_token, lease, object)?;
        return check_term(&gate, object, claimant).await;
    }
    let terms = named.as_ref().and_then(|object| gate.routes.load().follows(object));
    let (object, seq, presented) = match (named, terms) {
        (Some(object), Some(terms)) => {
            let number = Number::parse(&request.fence_token, terms);
            let number = number.map_err(|fault| Problem::new(Code::FenceTokenMalformed, fault.to_string()))?;
            (object, number.seq, Presented::Number(number))
        }
        (named, _) => {
            let token = extract::token(&request.fence_token)?;
            let object = named.unwrap_or_else(|| token.object.clone());
            let presented = Presented::of(&token, &object);
            (object, token.seq, presented)
        }
    };
    loop {
        let (target, shown, now) = (object.clone(), presented.clone(), gate.now());
        let verdict = gate.read(move |records| Ok(records.judge(&target, &shown, now))).await?;
        let (code, expires_in_ms) = match verdict {
            Ok(permit) => (None, Some(permit.remaining_ms())),
            Err(Denial::Refused(refusal)) => (Some(refusal.code().as_str().to_owned()), None),
            // A write would move the fence first.
            Err(Denial::Behind(_)) => (None, None),
            Err(Denial::Unseen(_) | Denial::Lapsed(_)) => unreachable!("nobody is judged by a Lease here"),
            Err(Denial::Overdue(lease)) => {
                gate.end(vec![(object.clone(), lease)]).await?;
                continue;
            }
        };
        return Ok(Json(CheckBody {
            valid: code.is_none(),
            code,
            object_id: object.to_string(),
            lease_seq: Some(seq.get()),
            expires_in_ms,
        }));
    }
}

/// The same for a token of a term of leadership: the API server is asked if necessary, and no fence moves.
async fn check_term(gate: &Shared, object: &ObjectId, mut claimant: Claimant) -> Result<Json<CheckBody>, Problem> {
    let answer = |code: Option<Code>, seq: Option<u64>, expires_in_ms: Option<u64>| {
        let (code, object_id) = (code.map(|code| code.as_str().to_owned()), object.to_string());
        Ok(Json(CheckBody { valid: code.is_none(), code, object_id, lease_seq: seq, expires_in_ms }))
    };
    let mut has_asked = false;
    loop {
        let (target, shown, now) = (object.clone(), Presented::Claimant(claimant.clone()), gate.now());
        match gate.read(move |records| Ok(records.judge(&target, &shown, now))).await? {
            Ok(permit) => return answer(None, Some(permit.seq().get()), Some(permit.remaining_ms())),
            Err(Denial::Refused(refusal)) => return answer(Some(refusal.code()), None, None),
            // A write would begin this term.
            Err(Denial::Unseen(_)) if has_asked && claimant.is_live(now) => return answer(None, None, None),
            Err(_) if has_asked => return answer(Some(Code::LeaseSourceUnavailable), None, None),
            Err(_) => has_asked = true,
        }
        let own = claimant.election;
        match gate.lease_observer.read_term(&claimant).await {
            Ok((Some(election), term)) if election == own => claimant.term = Some(term),
            Ok((Some(election), _)) if election.is_before(own) => {
                return answer(Some(Code::WriteFenceAhead), None, None);
            }
            Ok(_) => return answer(Some(Code::WriteStaleFence), None, None),
            Err(_) => return answer(Some(Code::LeaseSourceUnavailable), None, None),
        }
    }
}
