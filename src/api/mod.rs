//! The lease api (`/v1`, JSON) and the ops port.
//!
//! Handlers read the request, ask the ledger or the table, and write the answer. They decide
//! nothing: rules are in `fence/`. What goes over the wire has its own types in [`crate::wire`]; `bodies` makes them of
//! records, leases and receipts.
//!
//! - [`leases`], [`objects`], [`tokens`], [`receipts`], [`mod@routes`], [`backups`]: the calls.
//! - [`fences`], [`grants`], [`migrations`], [`journal`]: signed authority.
//! - [`watch`]: lease events as a stream.
//! - [`ops`]: probes, metrics, drain.
//! - [`listen`]: serving a port that no caller can stall: [`seats`] for its connections, `socket` under them.
//! - [`origin`]: who may call. [`extract`]: bodies, queries and ids, checked. Refusals are [`Problem`]s.

pub mod backups;
mod bodies;
pub mod extract;
pub mod fences;
pub mod grants;
pub mod journal;
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

use axum::{
    Router,
    body::Bytes,
    extract::{MatchedPath, State},
    http::header,
    routing::get,
};
use utoipa::{OpenApi, openapi};
use utoipa_axum::{router::OpenApiRouter, routes};

use self::seats::{Places, in_place};
use crate::{fence::Code, gate::Shared, problem::Problem, wire::schema};

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

/// The calls, and their description.
pub fn describe() -> (Router<Shared>, openapi::OpenApi) {
    OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(leases::acquire, leases::list))
        .routes(routes!(leases::acquire_batch))
        .routes(routes!(leases::get, leases::release))
        .routes(routes!(leases::renew))
        .routes(routes!(objects::get))
        .routes(routes!(objects::revoke))
        .routes(routes!(objects::advance))
        .routes(routes!(objects::confirm))
        .routes(routes!(tokens::check))
        .routes(routes!(receipts::list))
        .routes(routes!(self::routes::list))
        .routes(routes!(backups::create))
        .routes(routes!(watch::watch))
        .routes(routes!(fences::apply, fences::list))
        .routes(routes!(fences::confirm))
        .routes(routes!(grants::apply))
        .routes(routes!(migrations::request))
        .routes(routes!(migrations::begin))
        .routes(routes!(migrations::get))
        .routes(routes!(migrations::activate))
        .routes(routes!(journal::list))
        .split_for_parts()
}

/// The lease api. Renewals and releases always get in: what a holder has must not depend on how many others ask.
pub fn router(gate: Shared, room: usize) -> Router {
    let places = Places::within(room, |method, path| {
        matches!((method.as_str(), path), ("POST", "/v1/leases/{lease_id}/renew") | ("DELETE", "/v1/leases/{lease_id}"))
    });
    let (calls, mut description) = describe();
    schema::fit(&mut description, &gate.limits);
    // Written once: it is long, and does not change.
    let description = Bytes::from(serde_json::to_vec(&description).unwrap_or_default());
    let described = move || async move { ([(header::CONTENT_TYPE, "application/json")], description) };
    calls
        .route("/v1/openapi.json", get(described))
        .fallback(|| async { Problem::new(Code::NotFound, "there is no such call; GET /v1/openapi.json lists them") })
        .method_not_allowed_fallback(|| async {
            Problem::new(Code::MethodNotAllowed, "this call does not take that method")
        })
        .layer(axum::middleware::from_fn_with_state(places, in_place))
        .layer(axum::middleware::from_fn(extract::whole_body))
        .layer(axum::middleware::from_fn(origin::local_only))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&gate), count_refusals))
        .with_state(gate)
}

/// Counts and logs refusals where they leave, so no handler has to.
async fn count_refusals(
    State(gate): State<Shared>,
    request: axum::extract::Request,
    next: axum::middleware::Next,
) -> axum::response::Response {
    let method = request.method().clone();
    let call = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    if let Some(code) = response.extensions().get::<Code>() {
        gate.metrics.api.refused(*code);
        // The call's template, not its path: whatever a caller put there by mistake stays out.
        let call = call.as_ref().map_or("?", MatchedPath::as_str);
        tracing::debug!(%method, call, code = code.as_str(), "refused");
    }
    response
}
