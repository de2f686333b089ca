//! The layers around the calls, from the outside in, as layers of tower.
//!
//! [`around`] is for all calls of the api, [`within_places`] for calls that may be many, [`within_time`] for calls
//! that wait for the table only. A layer's refusal is a [`Problem`] too.

use std::{any::Any, time::Duration};

use axum::{
    Router,
    body::Body,
    error_handling::HandleErrorLayer,
    extract::MatchedPath,
    http::{HeaderName, Request, StatusCode},
    middleware::{from_fn, map_response},
    response::{IntoResponse, Response},
};
use tower::{BoxError, ServiceBuilder, limit::GlobalConcurrencyLimitLayer};
use tower_http::{
    catch_panic::CatchPanicLayer,
    limit::RequestBodyLimitLayer,
    map_request_body::MapRequestBodyLayer,
    map_response_body::MapResponseBodyLayer,
    request_id::{MakeRequestUuid, PropagateRequestIdLayer, RequestId, SetRequestIdLayer},
    trace::TraceLayer,
};
use tracing::Span;

use super::{extract, origin, seats::Places};
use crate::{fence::Code, problem::Problem};

/// Names a call in the gate's log and in its answer. A caller may bring its own.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Layers around every call of the api. `refused` is called with the code of each answer that is a refusal.
pub fn around(calls: Router, refused: impl Fn(Code) + Clone + Send + Sync + 'static) -> Router {
    calls.layer(
        ServiceBuilder::new()
            // Each call has an id, in the log and in its answer.
            .layer(SetRequestIdLayer::new(REQUEST_ID, MakeRequestUuid))
            // Refusals are counted and logged where they leave, so no handler has to.
            .layer(TraceLayer::new_for_http().make_span_with(span).on_request(()).on_failure(()).on_response(
                move |response: &Response<_>, _: Duration, _: &Span| {
                    if let Some(code) = response.extensions().get::<Code>() {
                        refused(*code);
                        tracing::debug!(code = code.as_str(), "refused");
                    }
                },
            ))
            .layer(PropagateRequestIdLayer::new(REQUEST_ID))
            // A panic in one call does not end its connection.
            .layer(CatchPanicLayer::custom(panicked))
            // Web pages may not call.
            .layer(from_fn(origin::local_only))
            // A body that is far too long is not read to its end.
            .layer(map_response(as_problem))
            .layer(MapResponseBodyLayer::new(Body::new))
            .layer(RequestBodyLimitLayer::new(extract::DISCARD_BYTES_MAX))
            .layer(MapRequestBodyLayer::new(Body::new))
            // The body has arrived before the call takes a place.
            .layer(from_fn(extract::whole_body)),
    )
}

/// The call's template instead of its path: text that a caller put there by mistake stays out of the log.
fn span<B>(request: &Request<B>) -> Span {
    let call = request.extensions().get::<MatchedPath>().map_or("?", MatchedPath::as_str);
    let id = request.extensions().get::<RequestId>().and_then(|id| id.header_value().to_str().ok());
    tracing::debug_span!("call", method = %request.method(), call, request_id = id)
}

/// The answer of a call that has panicked.
pub(super) fn panicked(_: Box<dyn Any + Send>) -> Response {
    tracing::error!("a call of the api has panicked: this is a bug of fencegate, please report it");
    let what = "the gate failed in the middle of this call, so it may have been carried out; look at what is there before you ask again";
    Problem::new(Code::OutcomeUnknown, what).into_response()
}

/// The layer that limits bodies does not answer with a problem document.
async fn as_problem(response: Response) -> Response {
    let is_ours = response.extensions().get::<Code>().is_some();
    if is_ours || response.status() != StatusCode::PAYLOAD_TOO_LARGE {
        return response;
    }
    extract::body_too_large().into_response()
}

/// Limits how many of these calls run at once; all groups with the same places share the limit. A call that holds a
/// place for a part of its work finds the places in its extensions.
pub fn within_places<S: Clone + Send + Sync + 'static>(calls: Router<S>, places: &Places) -> Router<S> {
    calls.layer(
        ServiceBuilder::new()
            .layer(HandleErrorLayer::new(|_: BoxError| async { Places::none_left() }))
            .load_shed()
            .layer(GlobalConcurrencyLimitLayer::with_semaphore(places.semaphore())),
    )
}

/// Limits how long each of these calls takes: they read, and wait for the table only.
pub fn within_time<S: Clone + Send + Sync + 'static>(calls: Router<S>, limit: Duration) -> Router<S> {
    calls.layer(
        ServiceBuilder::new()
            .layer(HandleErrorLayer::new(|_: BoxError| async { Problem::table_unavailable() }))
            .timeout(limit),
    )
}
