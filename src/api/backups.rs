//! A backup of the running gate's table: a consistent copy in a new folder on the gate's machine.

use std::path::PathBuf;

use axum::{Json, extract::State, http::StatusCode};

use super::{caller::Caller, extract::Body};
use crate::{
    gate::Shared,
    problem::Problem,
    table::backup,
    wire::{BackupBody, BackupRequest},
};

/// Copy the fence table into a new folder.
///
/// # Errors
/// `REQUEST_INVALID` where the folder is there already, is not absolute or cannot be written.
#[utoipa::path(post, operation_id = "createBackup", path = "/v1/backups", tag = "table", request_body = BackupRequest, responses(
    (status = 201, body = BackupBody), (status = "4XX", body = Problem, content_type = "application/problem+json"),
    (status = 503, body = Problem, content_type = "application/problem+json")))]
pub async fn create(
    State(gate): State<Shared>,
    caller: Caller,
    Body(request): Body<BackupRequest>,
) -> Result<(StatusCode, Json<BackupBody>), Problem> {
    caller.may_on_all()?;
    caller.facts().detail("folder", request.folder.as_str());
    let folder = PathBuf::from(&request.folder);
    if !folder.is_absolute() {
        return Err(Problem::invalid("folder", "must be an absolute path on the gate's machine"));
    }
    let made = gate.read_at_length(move |records| Ok(backup::create(&*records.table, &folder))).await?;
    made.map_err(|fault| Problem::invalid("folder", fault))?;
    tracing::info!(folder = request.folder, "audit: the fence table was backed up");
    Ok((StatusCode::CREATED, Json(BackupBody { folder: request.folder })))
}
