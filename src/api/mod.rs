//! The lease api (`/v1`, JSON) and the ops port.
//!
//! Handlers read the request, ask the ledger or the table, and write the answer. They decide nothing: rules are in
//! `fence/`. The wire types are in [`crate::wire`]; `bodies` makes them from records, leases and receipts.
//!
//! - [`leases`], [`objects`], [`tokens`], [`receipts`], [`mod@routes`], [`backups`]: the calls.
//! - [`fences`], [`grants`], [`migrations`], [`journal`]: signed authority.
//! - [`watch`]: lease events as a stream.
//! - [`ops`]: probes, metrics, drain.
//! - [`layers`]: the layers around every call. [`listen`]: serves a port that no caller can block: [`seats`] for its
//!   connections, `socket` below them.
//! - [`origin`]: who may call. [`extract`]: bodies, queries and ids, checked. Refusals are [`Problem`]s.

pub mod backups;
mod bodies;
pub mod extract;
pub mod fences;
pub mod grants;
pub mod journal;
pub mod layers;
pub mod leases;
pub mod listen;
pub mod migrations;
pub mod objects;
pub mod ops;
pub mod origin;
pub mod receipts;
pub mod routes;
pub mod seats;
mod socket;
pub mod tokens;
pub mod watch;

use std::sync::Arc;

use axum::{Extension, Router, body::Bytes, http::header, routing::get};
use utoipa::{OpenApi, openapi};
use utoipa_axum::{router::OpenApiRouter, routes};

use self::seats::Places;
use crate::{fence::Code, gate::Shared, problem::Problem, wire::schema};

/// The time limit of a short call, in multiples of the longest wait for the table.
const PATIENCE: u32 = 4;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "fencegate lease api",
        description = "Leases with fence tokens. Times are RFC 3339, UTC, milliseconds. Every refusal is application/problem+json with a `code`; the header Fence-Error carries the code too."
    ),
    components(schemas(
        schema::ObjectId,
        schema::HolderId,
        schema::LeaseId,
        schema::IssuerId,
        schema::MigrationId,
        schema::RequestId,
        schema::Reason,
        schema::Words,
        schema::Folder,
        schema::FenceToken,
        schema::AnyToken,
        schema::TokenText,
        schema::TtlMs,
        schema::WaitMs,
        schema::LeaseSeq,
        schema::Whole,
        schema::KeyEpoch,
        schema::Limit,
        schema::Cursor,
        schema::Stamp,
        schema::Signature,
        schema::StateHash,
        schema::ObjectIds,
        schema::FenceRequestKind,
        schema::CertificateKind,
        schema::AcknowledgedKind,
        schema::GrantKind,
        schema::ActiveKind,
        schema::RelayKind,
        schema::Propagation,
    ))
)]
struct Description;

/// Calls of holders. They always get in: a holder must keep its lease however many others ask.
fn of_holders() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(leases::renew)).routes(routes!(leases::release))
}

/// Calls that read, and wait for the table only.
fn short() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(leases::list))
        .routes(routes!(leases::get))
        .routes(routes!(objects::get))
        .routes(routes!(tokens::check))
        .routes(routes!(receipts::list))
        .routes(routes!(self::routes::list))
        .routes(routes!(fences::list))
        .routes(routes!(migrations::get))
        .routes(routes!(journal::list))
}

/// Calls that may wait for other holders, for writes in flight, or for a copy.
fn lasting() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(leases::acquire))
        .routes(routes!(leases::acquire_batch))
        .routes(routes!(objects::revoke))
        .routes(routes!(objects::advance))
        .routes(routes!(objects::confirm))
        .routes(routes!(backups::create))
        .routes(routes!(watch::watch))
        .routes(routes!(fences::apply))
        .routes(routes!(fences::confirm))
        .routes(routes!(grants::apply))
        .routes(routes!(migrations::request))
        .routes(routes!(migrations::begin))
        .routes(routes!(migrations::activate))
}

/// The description of all calls.
#[must_use]
pub fn describe() -> openapi::OpenApi {
    let all = OpenApiRouter::with_openapi(Description::openapi()).merge(of_holders()).merge(short()).merge(lasting());
    all.into_openapi()
}

/// The lease api.
pub fn router(gate: Shared, room: usize) -> Router {
    let places = Places::within(room);
    let mut description = describe();
    schema::fit(&mut description, &gate.limits);
    // Serialized once: it is long, and does not change.
    let description = Bytes::from(serde_json::to_vec(&description).unwrap_or_default());
    let described = move || async move { ([(header::CONTENT_TYPE, "application/json")], description) };
    let short = Router::from(short()).route("/v1/openapi.json", get(described));
    let bounded = layers::within_time(short, gate.ledger.patience() * PATIENCE).merge(lasting());
    let calls = layers::within_places(bounded, &places)
        .merge(of_holders())
        // For a renewal that turns out to wait.
        .layer(Extension(places))
        .fallback(|| async { Problem::new(Code::NotFound, "there is no such call; GET /v1/openapi.json lists them") })
        .method_not_allowed_fallback(|| async {
            Problem::new(Code::MethodNotAllowed, "this call does not take that method")
        });
    let metrics = Arc::clone(&gate.metrics);
    layers::around(calls.with_state(gate), move |code| metrics.api.refused(code))
}
