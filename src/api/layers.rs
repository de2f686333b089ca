//! The layers around the calls, from the outside in, as layers of tower.
//!
//! [`around`] is for all calls of the api ([`super::admission`] has the layers that let callers in), [`within_places`] for calls that may be many, [`within_time`] for calls
//! that wait for the table only. A layer's refusal is a [`Problem`] too.

use std::{any::Any, time::Duration};

use axum::{
    Router,
    body::Body,
    error_handling::HandleErrorLayer,
    extract::MatchedPath,
    http::{HeaderName, Request, StatusCode},
    middleware::{from_fn, from_fn_with_state, map_response},
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

use super::{
    admission::{self, Guard},
    audited, extract, origin,
    seats::Places,
    unread,
};
use crate::{fence::Code, problem::Problem};

/// Names a call in the gate's log and in its answer. A caller may bring its own.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Layers around every call of the api. `refused` is called with the code of each answer that is a refusal.
pub fn around(calls: Router, guard: Guard, refused: impl Fn(Code) + Clone + Send + Sync + 'static) -> Router {
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
            // Who did what, and who was denied: behind this, the outcome is final.
            .layer(from_fn_with_state(guard.clone(), audited::record))
            // A panic in one call does not end its connection.
            .layer(CatchPanicLayer::custom(panicked))
            // What is refused before its body was read still gets its answer.
            .layer(from_fn(unread::discard))
            // Pages of other origins may not call.
            .layer(from_fn(origin::own_pages_only))
            // Who is it, may it do this, does it call too often.
            .layer(from_fn_with_state(guard.clone(), admission::identify))
            .layer(from_fn_with_state(guard.clone(), admission::authorise))
            .layer(from_fn_with_state(guard.clone(), admission::in_turn))
            // Calls of operators are not carried out without a line in the audit log.
            .layer(from_fn_with_state(guard, audited::admit))
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
    let what = "the gate failed in the middle of this call, so the call may have been carried out; read the present state before you ask again";
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

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use axum::{
        body::{Bytes, to_bytes},
        http::header,
        routing::get,
    };
    use serde_json::Value;
    use tower::ServiceExt;

    use super::*;
    use crate::{api::tests::guard, fence::code::Plane};

    /// The codes of the refusals that `around` has counted.
    type Refused = std::sync::Arc<Mutex<Vec<Code>>>;

    /// A call that works, one that panics, and one that does not end by itself.
    fn calls() -> (Router, Refused) {
        let refused = Refused::default();
        let counted = Refused::clone(&refused);
        let stuck = Router::new().route("/stuck", get(std::future::pending::<&'static str>));
        let calls = Router::new()
            .route("/works", get(async || "it works"))
            .route("/panics", get(async || -> &'static str { std::panic::resume_unwind(Box::new("a bug")) }))
            .merge(within_time(stuck, Duration::from_millis(20)));
        let count = move |code| counted.lock().unwrap_or_else(PoisonError::into_inner).push(code);
        (around(calls, guard(), count), refused)
    }

    /// A call from this machine.
    async fn get_from(calls: &Router, path: &str, id: Option<&str>) -> Response<Bytes> {
        let mut request = Request::get(path).header(header::HOST, "localhost");
        if let Some(id) = id {
            request = request.header(REQUEST_ID, id);
        }
        let near = axum::extract::ConnectInfo(std::net::SocketAddr::from(([127, 0, 0, 1], 1)));
        let answered = calls.clone().oneshot(request.extension(near).body(Body::empty()).unwrap());
        let answered = tokio::time::timeout(Duration::from_secs(30), answered).await;
        let (head, body) = answered.expect("an answer within 30 s").unwrap().into_parts();
        Response::from_parts(head, to_bytes(body, usize::MAX).await.unwrap())
    }

    #[track_caller]
    fn is_problem(answer: &Response<Bytes>, code: Code, side_effect: &str) {
        let body: Value = serde_json::from_slice(answer.body()).unwrap();
        assert_eq!(answer.status(), StatusCode::from_u16(code.status(Plane::Api)).unwrap());
        assert_eq!(answer.headers()[header::CONTENT_TYPE], "application/problem+json");
        assert_eq!(answer.headers()["fence-error"], code.as_str());
        assert_eq!((body["code"].as_str(), body["side_effect"].as_str()), (Some(code.as_str()), Some(side_effect)));
    }

    #[tokio::test]
    async fn a_call_that_panics_is_answered_and_the_next_one_works() {
        let (calls, refused) = calls();
        for _ in 0..2 {
            is_problem(&get_from(&calls, "/panics", None).await, Code::OutcomeUnknown, "maybe");
            assert_eq!(get_from(&calls, "/works", None).await.body(), "it works");
        }
        assert_eq!(*refused.lock().unwrap(), [Code::OutcomeUnknown; 2]);
    }

    #[tokio::test]
    async fn every_answer_has_the_id_that_its_caller_has_sent_or_a_new_one() {
        let (calls, _) = calls();
        let mut new = vec![];
        for path in ["/works", "/panics", "/stuck", "/nowhere"] {
            assert_eq!(get_from(&calls, path, Some("mine-7")).await.headers()[REQUEST_ID], "mine-7", "{path}");
            new.push(get_from(&calls, path, None).await.headers()[REQUEST_ID].clone());
        }
        for (place, id) in new.iter().enumerate() {
            assert!(!id.is_empty() && !new[..place].contains(id), "{new:?}");
        }
    }

    #[tokio::test]
    async fn a_call_that_takes_too_long_is_answered_for_it() {
        let (calls, refused) = calls();
        is_problem(&get_from(&calls, "/stuck", None).await, Code::TableUnavailable, "none");
        assert_eq!(*refused.lock().unwrap(), [Code::TableUnavailable]);
    }
}
