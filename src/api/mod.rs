//! The lease api (`/v1`, JSON) and the ops port.
//!
//! Handlers read the request, ask the ledger or the table, and write the answer. They decide nothing: rules are in
//! `fence/`. The wire types are in [`crate::wire`]; `bodies` makes them from records, leases and receipts.
//!
//! - [`leases`], [`objects`], [`tokens`], [`receipts`], [`mod@routes`], [`backups`]: the calls.
//! - [`fences`], [`grants`], [`migrations`], [`journal`]: signed authority.
//! - [`watch`]: lease events as a stream.
//! - [`ops`]: probes, metrics, drain.
//! - [`layers`]: the layers around every call. `audited`: those of them that write the audit log. [`admission`]: those
//!   that let callers in, by what [`calls`] says that each call needs. `unread`: bodies of calls that are answered
//!   before. [`caller`]: who calls, for the handlers: they get objects and holders from it.
//! - [`listen`]: serves a port that no caller can block: [`seats`] for its connections, `connection` for each, `socket`
//!   below it.
//! - [`origin`]: which web pages may call. [`extract`]: bodies, queries and ids, checked. Refusals are [`Problem`]s.

pub mod admission;
mod audited;
pub mod backups;
mod bodies;
pub mod caller;
pub mod calls;
mod connection;
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
#[cfg(test)]
mod tests;
pub mod tokens;
mod unread;
pub mod watch;

use std::sync::Arc;

use axum::{Extension, Router, body::Bytes, http::header, routing::get};
use utoipa::{OpenApi, openapi};
use utoipa_axum::{router::OpenApiRouter, routes};

use self::{
    admission::Guard,
    calls::{Audited, Calls, Needs},
    seats::Places,
};
use crate::{config::Operation, fence::Code, gate::Shared, problem::Problem, wire::schema};

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

/// Where the description of all calls is.
const DESCRIPTION: &str = "/v1/openapi.json";

/// Calls of holders. They always get in: a holder must keep its lease however many others ask.
fn of_holders() -> Calls {
    Calls::default()
        .add_keeping(Audited::WhenRefused, routes!(leases::renew))
        .add_keeping(Audited::WhenChanged, routes!(leases::release))
}

/// Calls that read, and wait for the table only.
fn short() -> Calls {
    Calls::default()
        .add(Operation::Read, routes!(leases::list))
        .add(Operation::Read, routes!(leases::get))
        .add(Operation::Read, routes!(objects::get))
        .add(Operation::Read, routes!(tokens::check))
        .add(Operation::Read, routes!(receipts::list))
        .add(Operation::Read, routes!(self::routes::list))
        .add(Operation::Read, routes!(fences::list))
        .add(Operation::Read, routes!(migrations::get))
        .add(Operation::Read, routes!(journal::list))
        .add_for_all(routes!(caller::whoami))
}

/// Calls that may wait for other holders, for writes in flight, or for a copy.
fn lasting() -> Calls {
    Calls::default()
        .add(Operation::Acquire, routes!(leases::acquire))
        .add(Operation::Acquire, routes!(leases::acquire_batch))
        .add(Operation::Operate, routes!(objects::revoke))
        .add(Operation::Advance, routes!(objects::advance))
        .add(Operation::Operate, routes!(objects::confirm))
        .add(Operation::Operate, routes!(backups::create))
        .add(Operation::Read, routes!(watch::watch))
        .add(Operation::Issue, routes!(fences::apply))
        .add(Operation::Operate, routes!(fences::confirm))
        .add(Operation::Issue, routes!(grants::apply))
        .add(Operation::Issue, routes!(migrations::request))
        .add(Operation::Issue, routes!(migrations::begin))
        .add(Operation::Issue, routes!(migrations::activate))
}

/// The description of all calls.
#[must_use]
pub fn describe() -> openapi::OpenApi {
    let all = of_holders().merge(short()).merge(lasting());
    let mut description = OpenApiRouter::with_openapi(Description::openapi()).merge(all.router).into_openapi();
    calls::add_schemes(&mut description);
    description
}

/// What each call needs.
fn needs() -> Needs {
    let mut needs = of_holders().merge(short()).merge(lasting()).needs;
    needs.add_description(DESCRIPTION);
    needs
}

/// The lease api.
pub fn router(gate: Shared, room: usize) -> Router {
    let places = Places::within(room);
    let mut description = describe();
    schema::fit(&mut description, &gate.limits);
    // Serialized once: it is long, and does not change.
    let description = Bytes::from(serde_json::to_vec(&description).unwrap_or_default());
    let described = move || async move { ([(header::CONTENT_TYPE, "application/json")], description) };
    let needs = Arc::new(needs());
    let (of_holders, short, lasting) = (of_holders(), short(), lasting());
    let short = Router::from(short.router).route(DESCRIPTION, get(described));
    let bounded = layers::within_time(short, gate.ledger.patience() * PATIENCE).merge(lasting.router);
    let calls = layers::within_places(bounded, &places)
        .merge(of_holders.router)
        // For a renewal that turns out to wait.
        .layer(Extension(places))
        .fallback(|| async { Problem::new(Code::NotFound, "there is no such call; GET /v1/openapi.json lists them") })
        .method_not_allowed_fallback(|| async {
            Problem::new(Code::MethodNotAllowed, "this call does not take that method")
        });
    let metrics = Arc::clone(&gate.metrics);
    let guard = Guard { gate: Arc::clone(&gate), needs };
    layers::around(calls.with_state(gate), guard, move |code| metrics.api.refused(code))
}
