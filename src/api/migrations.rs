//! The gate as an issuer: requests for a fence, and migrations of an object from one holder to the next.

use axum::{Json, extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    caller::Caller,
    extract::{self, Body, InPath},
    fences::{unreadable, untrusted},
};
use crate::{
    authority::{
        json::{
            AcknowledgedMessage, ActiveMessage, CertificateMessage, FenceRequestMessage, GrantMessage, Message,
            hash_text,
        },
        statement::{FenceRequest, LeaseGrant, Signed},
    },
    fence::{Code, MigrationId, State as ObjectState, authority::MigrationState},
    gate::Shared,
    migration::{self, Wanted},
    problem::Problem,
    table::{
        codec::MigrationRow,
        ledger::{DrainReport, GrantAction, Granted, Progress},
    },
    wire::{GrantBody, schema, time},
};

/// The answer to a requester.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct FenceAnswer {
    /// `WAIT`: the lease runs out soon. `REQUEST_MIGRATION`: it lasts longer, so ask for a migration. `FENCED`: it
    /// was over, and is fenced. `FREE`: no holder is known.
    pub answer: String,
    pub domain: String,
    /// How much is left of the current lease.
    pub remaining_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<CertificateMessage>,
}

/// A migration, and how far it is.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct MigrationBody {
    pub migration_id: String,
    pub domain: String,
    /// fencing, acknowledged, granted, active; or how it ended: drain_timed_out, activation_timed_out,
    /// hash_mismatch, overtaken.
    pub state: String,
    /// What comes next, or what to do.
    pub way_on: String,
    pub next_holder: String,
    pub requester: String,
    pub reason: String,
    pub steps: Vec<StepBody>,
    /// The state that the old holder has left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_hash: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<CertificateMessage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acknowledged: Option<AcknowledgedMessage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grant: Option<GrantMessage>,
}

/// One step of a migration.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct StepBody {
    pub state: String,
    pub at: String,
}

impl MigrationBody {
    fn new(id: &MigrationId, row: &MigrationRow) -> Self {
        Self {
            migration_id: id.to_string(),
            domain: row.domain.to_string(),
            state: row.state.name().to_owned(),
            way_on: row.state.way_on().to_owned(),
            next_holder: row.next_holder.to_string(),
            requester: row.requester.to_string(),
            reason: row.reason.clone(),
            steps: row
                .reached
                .iter()
                .map(|(state, at)| StepBody { state: state.name().to_owned(), at: time(*at) })
                .collect(),
            state_hash: row.left.map(|(hash, _)| hash_text(&hash)),
            writes: row.left.map(|(_, writes)| writes),
            certificate: migration::stored(&row.certificate).map(|signed| CertificateMessage::of(&signed)),
            acknowledged: migration::stored(&row.acknowledged).map(|signed| AcknowledgedMessage::of(&signed)),
            grant: migration::stored(&row.grant).map(|signed| GrantMessage::of(&signed)),
        }
    }
}

/// A request, if its signer may make it.
fn asked(gate: &Shared, caller: &Caller, message: &FenceRequestMessage) -> Result<FenceRequest, Problem> {
    extract::ttl(message.ttl_ms, &gate.limits)?;
    let signed = message.signed().map_err(|fault| unreadable(&fault))?;
    caller.may(&signed.statement.domain)?;
    let authority = gate.authority.load();
    migration::issuer(&authority, &signed.statement.domain)?;
    authority.request(&signed, gate.now()).map_err(untrusted)?;
    let FenceRequest { requester, next_holder, .. } = &signed.statement;
    caller.facts().holder(next_holder.as_ref().unwrap_or(requester).as_str());
    caller.facts().detail("requester", requester.as_str());
    Ok(signed.statement)
}

/// Ask for a lease to be fenced.
///
/// # Errors
/// `InvalidFenceSignature`, `UnauthorizedFence`, `NOT_AN_ISSUER`, `LEASE_FENCED`.
#[utoipa::path(post, operation_id = "requestFence", path = "/v1/fence-requests", tag = "authority", request_body = FenceRequestMessage, responses(
    (status = 200, body = FenceAnswer), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub async fn request(
    State(gate): State<Shared>,
    caller: Caller,
    Body(message): Body<FenceRequestMessage>,
) -> Result<Json<FenceAnswer>, Problem> {
    let request = asked(&gate, &caller, &message)?;
    let record = gate.settled_record(&request.domain).await?;
    migration::is_still_there(&record, request.current_lease_id.as_ref())?;
    let domain = request.domain.to_string();
    if let Some(lease) = record.open_lease() {
        let remaining_ms = lease.remaining_ms(gate.now());
        let is_short = remaining_ms <= gate.authority.load().settings.wait_below_ms;
        return Ok(Json(FenceAnswer {
            answer: if is_short { "WAIT" } else { "REQUEST_MIGRATION" }.to_owned(),
            domain,
            remaining_ms,
            holder: Some(lease.holder.to_string()),
            lease_id: Some(lease.lease_id.to_string()),
            expires_at: Some(time(lease.expires_at)),
            certificate: None,
        }));
    }
    if matches!(record.state, ObjectState::Draining { .. }) {
        let what = "writes of an older lease are still on their way to the store; ask again in a moment";
        return Err(Problem::new(Code::FenceDraining, what).with_object(&request.domain));
    }
    tracing::info!(object = %request.domain, requester = %request.requester, reason = request.reason, "audit: a requester asks for a fence");
    let next = request.next_holder.unwrap_or(request.requester);
    let certificate = migration::fence_ended(&gate, &record, next).await?;
    Ok(Json(FenceAnswer {
        answer: if certificate.is_some() { "FENCED" } else { "FREE" }.to_owned(),
        domain,
        remaining_ms: 0,
        holder: None,
        lease_id: certificate.as_ref().map(|signed| signed.statement.fenced_lease_id.to_string()),
        expires_at: None,
        certificate: certificate.as_ref().map(CertificateMessage::of),
    }))
}

/// Ask for an object to be handed over: the requester's signed FENCE_REQUEST. The old holder is fenced when this
/// answers; `GET /v1/migrations/{id}` shows the progress.
///
/// # Errors
/// As for a fence request, and `MIGRATION_IN_PROGRESS`.
#[utoipa::path(post, operation_id = "beginMigration", path = "/v1/migrations", tag = "authority", request_body = FenceRequestMessage, responses(
    (status = 201, body = MigrationBody), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub async fn begin(
    State(gate): State<Shared>,
    caller: Caller,
    Body(message): Body<FenceRequestMessage>,
) -> Result<(StatusCode, Json<MigrationBody>), Problem> {
    let request = asked(&gate, &caller, &message)?;
    let next_holder = request.next_holder.unwrap_or_else(|| request.requester.clone());
    if !gate.authority.load().knows_holder(next_holder.as_str(), &request.domain) {
        let what =
            format!("{next_holder} is no [[requester]] for this domain, so it could not confirm what it takes over");
        return Err(Problem::invalid("next_holder", what));
    }
    let ttl = extract::ttl(request.ttl_ms, &gate.limits)?;
    let FenceRequest { domain, requester, reason, current_lease_id, timestamp: asked, .. } = request;
    tracing::info!(object = %domain, %requester, next_holder = %next_holder, reason, "audit: a requester asks for a migration");
    let wanted = Wanted { domain, next_holder, requester, reason, ttl, current_lease_id, asked };
    let (id, row) = migration::begin(&gate, wanted).await?;
    Ok((StatusCode::CREATED, Json(MigrationBody::new(&id, &row))))
}

fn migration_id(text: &str) -> Result<MigrationId, Problem> {
    MigrationId::new(text).map_err(|fault| Problem::invalid("migration_id", fault))
}

/// A migration that the caller may know of. Another one is answered like one that never was.
async fn find(gate: &Shared, caller: &Caller, id: &MigrationId) -> Result<MigrationRow, Problem> {
    let row = migration::find(gate, id).await?;
    if caller.view().covers(row.domain.as_str()) { Ok(row) } else { Err(migration::not_found()) }
}

/// How far a migration is; for a day after its end.
///
/// # Errors
/// `MIGRATION_NOT_FOUND`.
#[utoipa::path(get, operation_id = "getMigration", path = "/v1/migrations/{migration_id}", tag = "authority", params(("migration_id" = schema::MigrationId, Path)), responses(
    (status = 200, body = MigrationBody), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub async fn get(
    State(gate): State<Shared>,
    caller: Caller,
    InPath(id): InPath,
) -> Result<Json<MigrationBody>, Problem> {
    let id = migration_id(&id)?;
    let row = find(&gate, &caller, &id).await?;
    Ok(Json(MigrationBody::new(&id, &row)))
}

/// Confirm a migration: the next holder's signed LEASE_ACTIVE, with the hash of the state that it has. The
/// answer has its token; the same confirmation gets it again until its first write.
///
/// # Errors
/// `STATE_HASH_MISMATCH` ends the migration; `MIGRATION_OVER` where it has ended.
#[utoipa::path(post, operation_id = "activateMigration", path = "/v1/migrations/{migration_id}/active", tag = "authority",
    params(("migration_id" = schema::MigrationId, Path)), request_body = ActiveMessage, responses(
    (status = 200, body = GrantBody), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub async fn activate(
    State(gate): State<Shared>,
    caller: Caller,
    InPath(id): InPath,
    Body(message): Body<ActiveMessage>,
) -> Result<Json<GrantBody>, Problem> {
    let id = migration_id(&id)?;
    let signed = message.signed().map_err(|fault| unreadable(&fault))?;
    caller.may(&signed.statement.domain)?;
    gate.authority.load().active(&signed, gate.now()).map_err(untrusted)?;
    caller.facts().holder(signed.statement.holder.as_str());
    caller.facts().lease_seq(signed.statement.lease_seq.get());
    let row = find(&gate, &caller, &id).await?;
    let over = |what: String| Problem::new(Code::MigrationOver, what).with_object(&row.domain).with_migration(&id);
    let grant: Signed<LeaseGrant> = match row.state {
        MigrationState::Fencing | MigrationState::Acknowledged => {
            let what = "the old holder's last writes are still on their way; confirm once it is granted";
            return Err(Problem::new(Code::FenceDraining, what).with_object(&row.domain).with_migration(&id));
        }
        MigrationState::Granted | MigrationState::Active => {
            migration::stored(&row.grant).ok_or_else(Problem::table_unavailable)?
        }
        ended => return Err(over(format!("this migration has ended as {}: {}", ended.name(), ended.way_on()))),
    };
    let (said, given) = (&signed.statement, &grant.statement);
    if (&said.domain, &said.lease_id, said.lease_seq, &said.holder)
        != (&given.domain, &given.lease_id, given.lease_seq, &given.holder)
    {
        return Err(Problem::invalid(
            "lease_id",
            "domain, lease_id, lease_seq and holder must be those of the migration's grant",
        ));
    }
    let is_right = row.left.map(|(hash, _)| hash) == Some(said.state_hash);
    let record = gate.settled_record(&row.domain).await?;
    if row.state == MigrationState::Granted {
        if matches!(record.state, ObjectState::Draining { .. }) {
            let what = "what an earlier run of this gate has sent may still land; confirm again in a moment";
            return Err(Problem::new(Code::FenceDraining, what).with_object(&row.domain).with_migration(&id));
        }
        if !is_right {
            return Err(mismatch(&gate, &id, &row, &grant).await);
        }
        let next = migration::reached(&row, MigrationState::Active, gate.now());
        let progress = Progress { id: id.clone(), from: Some(MigrationState::Granted), row: next };
        let done = gate.ledger.migrate(progress, GrantAction::Needs(given.lease_id.clone())).await;
        done.map_err(|refused| Problem::refused(&refused, gate.now()))?;
    } else if !is_right {
        return Err(over("this is not the state that was left behind; the migration is active already".to_owned()));
    }
    let (record, now) = (gate.settled_record(&row.domain).await?, gate.now());
    let lease = record.replay(&given.lease_id, now).cloned();
    let lease =
        lease.ok_or_else(|| over("the token was handed out and has been used, or the lease is over".to_owned()))?;
    let granted = Granted { object: row.domain.clone(), lease, drain: DrainReport::default(), is_again: true };
    Ok(Json(GrantBody::new(&granted, now)))
}

/// The next holder has another state: the migration ends, and its lease is taken back.
async fn mismatch(gate: &Shared, id: &MigrationId, row: &MigrationRow, grant: &Signed<LeaseGrant>) -> Problem {
    let next = migration::reached(row, MigrationState::HashMismatch, gate.now());
    let progress = Progress { id: id.clone(), from: Some(MigrationState::Granted), row: next };
    let grant_action = GrantAction::Withdraw(grant.statement.lease_id.clone());
    if let Err(refused) = gate.ledger.migrate(progress, grant_action).await {
        return Problem::refused(&refused, gate.now());
    }
    let what =
        "this is not the state that was left behind; the lease was taken back. Sync, and ask for the migration again";
    Problem::new(Code::StateHashMismatch, what).with_object(&row.domain).with_migration(id)
}
