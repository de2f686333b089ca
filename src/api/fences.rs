//! Fence certificates: accepted from every caller that may issue, kept for ever, shown to every caller that may read.

use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    caller::Caller,
    extract::{self, Body, Query},
};
use crate::{
    audit::entry::UNPARKED,
    authority::{
        Untrusted,
        json::{AcknowledgedMessage, CertificateMessage, JsonFault, Message, RelayMessage},
        statement::{FenceCertificate, Signed},
        unique::Unique,
    },
    fence::{Code, ObjectId},
    gate::Shared,
    migration::acknowledgement,
    problem::Problem,
    table::{
        TableFault,
        codec::{Family, Key, decode_signed},
        ledger::{Certificate, Moved, authority as rows},
        records::Records,
    },
    wire::{DrainBody, ObjectBody, schema},
};

/// What `POST /v1/fences` takes: a certificate, or a certificate that another party relays.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum FenceMessage {
    Relayed(RelayMessage),
    Certificate(CertificateMessage),
}

/// What a certificate has done.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct FenceBody {
    /// Whether this certificate's fence is in force. `false`: a newer one was known, or it was thrown away.
    pub applied: bool,
    /// `FenceSuperseded` where it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    pub object: ObjectBody,
    pub drain: DrainBody,
    /// Absent while writes of the fenced lease are still in flight (send the certificate again to wait for them), and
    /// once another holder has had the object: the hash would include that holder's writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acknowledged: Option<AcknowledgedMessage>,
}

/// `GET /v1/fences`
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub struct FencesQuery {
    /// An object id, exactly.
    #[param(value_type = schema::ObjectId, required = true)]
    pub domain: Option<String>,
    /// How many leases' certificates, 1 to 1,000; 100 if absent.
    #[param(value_type = Option<schema::Limit>)]
    pub limit: Option<usize>,
    /// Those of leases above this number; `next_after` of the page before.
    #[param(value_type = Option<schema::Whole>)]
    pub after: Option<u64>,
}

/// Certificates of an object, by the lease_seq that they fence.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct FenceList {
    pub fences: Vec<CertificateMessage>,
    /// Those that would move the fence further than `authority.max_jump`: an operator has to confirm them.
    pub parked: Vec<CertificateMessage>,
    pub next_after: Option<u64>,
}

/// `POST /v1/fences/confirm`
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfirmRequest {
    #[schema(value_type = schema::ObjectId)]
    pub domain: String,
    /// The parked certificate's signature.
    pub signature: String,
    /// Throw it away instead.
    pub discard: Option<bool>,
}

const LIMIT_DEFAULT: usize = 100;
const LIMIT_MAX: usize = 1_000;

/// The refusal of a message that is incomplete or cannot be read.
pub(super) fn unreadable(fault: &JsonFault) -> Problem {
    if !fault.is_no_point {
        return Problem::invalid(fault.field, &fault.what);
    }
    let mut problem = Problem::new(Code::InvalidFenceSignature, format!("{}: {}", fault.field, fault.what));
    problem.tell_field(fault.field);
    problem
}

/// The refusal of a statement that is not trusted.
pub(super) fn untrusted(untrusted: Untrusted) -> Problem {
    Problem::new(untrusted.code, untrusted.what)
}

/// Apply a fence certificate. In any order, any number of times: its signature counts, not its caller.
///
/// # Errors
/// In this order: `InvalidFenceSignature`, `UnauthorizedFence`, `FenceBeforeLease`; `FENCE_JUMP` where it is
/// parked.
#[utoipa::path(post, operation_id = "applyFence", path = "/v1/fences", tag = "authority", request_body = FenceMessage, responses(
    (status = 200, body = FenceBody), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub async fn apply(
    State(gate): State<Shared>,
    caller: Caller,
    Body(Unique(message)): Body<Unique>,
) -> Result<Json<FenceBody>, Problem> {
    let signed = certificate(message)?.signed().map_err(|fault| unreadable(&fault))?;
    caller.may(&signed.statement.domain)?;
    let authority = gate.authority.load_full();
    let by = authority.certificate(&signed, gate.now()).map_err(untrusted)?;
    let domain = signed.statement.domain.clone();
    told(&caller, &signed);
    tracing::info!(object = %domain, issuer = %by.issuer, lease_id = %by.lease_id, lease_seq = by.seq.get(), fence_time = %by.time, "audit: a certificate fences");
    let certificate = Certificate { domain, by, signed: signed.to_bytes() };
    let moved = gate.ledger.certify(certificate, authority.settings.max_jump, None).await;
    let moved = moved.map_err(|refused| Problem::refused(&refused, gate.now()))?;
    retry_parked(&gate, &signed.statement.domain).await;
    answer(&gate, &signed, moved).await.map(Json)
}

/// Says in the audit log what a certificate fences, and whose it is.
fn told(caller: &Caller, signed: &Signed<FenceCertificate>) {
    caller.facts().lease_seq(signed.statement.lease_seq.get());
    caller.facts().detail("issuer", signed.statement.issuer.as_str());
}

/// A fence has moved, so parked certificates may be within the allowed jump by now. Each is checked like any other.
pub async fn retry_parked(gate: &Shared, domain: &ObjectId) {
    loop {
        let wanted = domain.clone();
        let Ok(parked) = gate.read(move |records| certificates(records, Family::Parked, &wanted, 0, LIMIT_MAX)).await
        else {
            return;
        };
        let mut has_moved = false;
        for message in parked {
            let authority = gate.authority.load_full();
            let Ok(signed) = message.signed() else { continue };
            // Its key may have been retired meanwhile. Then the certificate stays parked until an operator discards
            // it.
            let Ok(by) = authority.certificate(&signed, gate.now()) else { continue };
            let certificate = Certificate { domain: domain.clone(), by, signed: signed.to_bytes() };
            if gate.ledger.certify(certificate, authority.settings.max_jump, None).await.is_ok() {
                has_moved = true;
                let (given, issuer) = (&signed.statement, ("issuer", signed.statement.issuer.as_str()));
                gate.audit.by_gate(UNPARKED, domain, None, given.lease_seq.get(), issuer);
            }
        }
        if !has_moved {
            return;
        }
    }
}

/// The certificate of a message, relayed or not.
fn certificate(message: serde_json::Value) -> Result<CertificateMessage, Problem> {
    let is_relayed = message.get("type").and_then(serde_json::Value::as_str) == Some("RELAY_FENCE");
    let read = |field: String, error: &serde_json::Error| Problem::invalid(field, error);
    if is_relayed {
        let relayed: RelayMessage = serde_path_to_error::deserialize(message)
            .map_err(|error| read(extract::field_of(error.path(), error.inner()), error.inner()))?;
        return Ok(relayed.certificate);
    }
    serde_path_to_error::deserialize(message)
        .map_err(|error| read(extract::field_of(error.path(), error.inner()), error.inner()))
}

async fn answer(gate: &Shared, signed: &Signed<FenceCertificate>, moved: Moved) -> Result<FenceBody, Problem> {
    let Moved { record, drain, is_superseded } = moved;
    let acknowledged = if is_superseded { None } else { acknowledgement(gate, signed, &record).await? };
    Ok(FenceBody {
        applied: !is_superseded,
        code: is_superseded.then(|| "FenceSuperseded".to_owned()),
        object: ObjectBody::new(&record, gate.now()),
        drain: drain.into(),
        acknowledged,
    })
}

/// The certificates that were taken for an object, and those that wait for an operator.
///
/// # Errors
/// `REQUEST_INVALID` with the field.
#[utoipa::path(get, operation_id = "listFences", path = "/v1/fences", tag = "authority", params(FencesQuery), responses(
    (status = 200, body = FenceList), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub async fn list(
    State(gate): State<Shared>,
    caller: Caller,
    Query(query): Query<FencesQuery>,
) -> Result<Json<FenceList>, Problem> {
    let domain = query.domain.ok_or_else(|| Problem::invalid("domain", "name an object"))?;
    let domain = caller.object("domain", &domain)?;
    let limit = query.limit.unwrap_or(LIMIT_DEFAULT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(Problem::invalid("limit", format!("must be from 1 to {LIMIT_MAX}, this is {limit}")));
    }
    let after = query.after.unwrap_or(0);
    let (fences, parked) = gate
        .read(move |records| {
            let fences = certificates(records, Family::Certificate, &domain, after, limit)?;
            Ok((fences, certificates(records, Family::Parked, &domain, 0, LIMIT_MAX)?))
        })
        .await?;
    // The list may be longer than the limit, since one lease may have several certificates.
    let next_after = fences.last().filter(|_| fences.len() >= limit).map(|last| last.lease_seq);
    Ok(Json(FenceList { fences, parked, next_after }))
}

fn certificates(
    records: &Records,
    family: Family,
    domain: &ObjectId,
    after: u64,
    limit: usize,
) -> Result<Vec<CertificateMessage>, TableFault> {
    let (mut from, until) = family.range_of(domain);
    if let Some(next) = after.checked_add(1) {
        from.extend_from_slice(&next.to_be_bytes());
    } else {
        return Ok(vec![]);
    }
    let rows = records.table.scan(&from, &until, limit)?;
    let mut all = vec![];
    for (key, value) in rows {
        for signed in decode_signed(&value)? {
            let signed = Signed::<FenceCertificate>::from_bytes(&signed);
            let signed = signed.map_err(|fault| TableFault::Corrupt(format!("{:?}: {fault}", Key::decode(&key))))?;
            all.push(CertificateMessage::of(&signed));
        }
    }
    Ok(all)
}

/// An operator confirms a parked certificate: its fence moves as far as the certificate says.
///
/// # Errors
/// `NOT_FOUND` where no such certificate is parked.
#[utoipa::path(post, operation_id = "confirmFence", path = "/v1/fences/confirm", tag = "authority", request_body = ConfirmRequest, responses(
    (status = 200, body = FenceBody), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub async fn confirm(
    State(gate): State<Shared>,
    caller: Caller,
    Body(request): Body<ConfirmRequest>,
) -> Result<Json<FenceBody>, Problem> {
    let domain = caller.object("domain", &request.domain)?;
    let wanted = domain.clone();
    let parked = gate.read(move |records| certificates(records, Family::Parked, &wanted, 0, LIMIT_MAX)).await?;
    let found = parked.into_iter().find(|each| each.signature.as_deref() == Some(&request.signature));
    let found = found
        .ok_or_else(|| Problem::new(Code::NotFound, "no such certificate is parked; GET /v1/fences lists them"))?;
    let signed = found.signed().map_err(|fault| unreadable(&fault))?;
    told(&caller, &signed);
    caller.facts().detail("discard", request.discard.unwrap_or(false));
    if request.discard.unwrap_or(false) {
        return discard(&gate, &signed).await.map(Json);
    }
    // Its issuer's key may have been retired while it was parked.
    let by = gate.authority.load().certificate(&signed, gate.now()).map_err(untrusted)?;
    tracing::info!(object = %domain, issuer = %by.issuer, lease_seq = by.seq.get(), "audit: an operator confirms a parked certificate");
    let certificate = Certificate { domain, by, signed: signed.to_bytes() };
    let moved = gate.ledger.certify(certificate, u64::MAX, None).await;
    let moved = moved.map_err(|refused| Problem::refused(&refused, gate.now()))?;
    retry_parked(&gate, &signed.statement.domain).await;
    answer(&gate, &signed, moved).await.map(Json)
}

/// Throws a parked certificate away: its fence does not move.
async fn discard(gate: &Shared, signed: &Signed<FenceCertificate>) -> Result<FenceBody, Problem> {
    let domain = &signed.statement.domain;
    tracing::info!(object = %domain, issuer = %signed.statement.issuer, lease_seq = signed.statement.lease_seq.get(), "audit: an operator throws a parked certificate away");
    let certificate = rows::read(signed.to_bytes(), domain).map_err(|_| Problem::table_unavailable())?;
    gate.ledger.unpark(certificate).await.map_err(|refused| Problem::refused(&refused, gate.now()))?;
    let object = ObjectBody::new(&gate.settled_record(domain).await?, gate.now());
    let drain = crate::table::ledger::DrainReport::default().into();
    Ok(FenceBody { applied: false, code: None, object, drain, acknowledged: None })
}
